//! Garbage collection of replicas: checks whether those on this disk are still needed.
//!
//! A backup that was restarted holds replicas from before, which their masters count as lost;
//! others are left over from failures in between. So it asks each master that is UP, again and
//! again, about all its replicas of that master's log; about logs of servers that are not in its
//! list it asks the coordinator. The replicas of crashed servers are handled by their recovery.
//!
//! **Invariants**
//! - U1: a replica is dropped only by an answer of the log's master, or of the coordinator; only
//!   the answer to the last request counts, and only for replicas that have not changed since that
//!   request (the keeper compares).
//! - U2: a log that is not in the list here is dropped only if the coordinator, asked after the
//!   first replica of the log was here, says that it is gone (membership::V4). So a server that is
//!   newer than the list here loses nothing. A server that is newer than the coordinator's store
//!   loses nothing either: the coordinator says so only of servers that the store once had
//!   (coordinator::older::A1).
//! - U3: a request is repeated until it is answered, and again as long as some replica is
//!   undecided; needed replicas are checked from time to time.
//! - U4: a master is told again and again that a replica was found damaged, until the replica is
//!   freed: the master counts it as whole, and does not make another one before.
//!
//! **Concurrency** none: one owner, the node.
//!
//! Paper: [Ousterhout15 §7.7, §8]; docs/traps.md, trap 21.

use crate::backup_service::Task;
use crate::effects::Effects;
use crate::requests::{PeerCall, PeerRequest, Token};
use duramen_backup::{Backup, KnownDamage};
use duramen_base::ids::{SegmentId, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::membership::Members;
use duramen_cluster::replication::{BackupId, Found};
use duramen_wire::native::Slice;
use duramen_wire::native::message::{
    CoordinatorAnswer, Peer, PeerAnswer, ReplicaEntry, ToCoordinator,
};
use std::collections::BTreeMap;

/// Interval of the checks for replicas.
const LOOK_US: u64 = 500_000;
/// A request without an answer is repeated after this time.
const PATIENCE_US: u64 = 1_000_000;
/// Some replica is undecided: ask again after this time.
const SOON_US: u64 = 2_000_000;
/// All replicas are needed: ask again after this time.
const LATER_US: u64 = 60_000_000;

#[derive(Default)]
struct Question {
    /// The last request, until it is answered.
    call: Option<PeerCall>,
    replicas: Vec<ReplicaEntry>,
    /// When the next one leaves.
    due_us: u64,
    /// When it may be told of damage again (U4).
    damage_due_us: u64,
}

/// The requests about unneeded replicas; see the module.
#[derive(Default)]
pub(crate) struct ReplicaGc {
    masters: BTreeMap<ServerId, Question>,
    /// Logs that the coordinator was asked about, and the deadline of its answer.
    unknown: Option<(Token, Vec<ServerId>, u64)>,
    /// The damage at the last look.
    damage: KnownDamage,
    look_us: u64,
    next: u64,
}

impl ReplicaGc {
    pub fn due_us(&self) -> u64 {
        self.look_us
    }

    /// Replicas here that are damaged and not replaced yet, at the last look.
    pub fn damage(&self) -> &KnownDamage {
        &self.damage
    }

    /// Sends the due requests.
    pub fn poll(
        &mut self,
        now_us: u64,
        me: ServerId,
        backup: &Backup,
        members: &Members,
        out: &mut Effects,
    ) {
        if now_us < self.look_us {
            return;
        }
        self.look_us = now_us + LOOK_US;
        let Some(logs) = backup.figures().logs_now() else {
            return; // node_thread::X1: this thread does not wait for a device.
        };
        let logs: Vec<(ServerId, bool)> = logs
            .into_iter()
            .map(|(log, is_fenced)| (ServerId::from_number(log), is_fenced))
            .filter(|(log, _)| *log != me)
            .collect();
        let is_here = |log: ServerId| logs.iter().any(|(here, _)| *here == log);
        self.masters
            .retain(|log, _| members.is_up(*log) && is_here(*log));
        let mut unknown = Vec::new();
        for (log, is_fenced) in logs {
            if members.get(log).is_none() {
                unknown.push(log);
            } else if members.is_up(log) && !is_fenced {
                self.ask(now_us, log, backup, out);
            }
        }
        self.tell_of_damage(now_us, backup, out);
        if has_bug(Bug::UnknownIsGone) {
            out.tasks.extend(unknown.iter().copied().map(Task::Removed));
        }
        let waits = matches!(&self.unknown, Some((_, _, until_us)) if now_us < *until_us);
        if !unknown.is_empty() && !waits {
            self.next += 1;
            let token = Token::Needed(self.next);
            let logs = unknown;
            self.unknown = Some((token, logs.clone(), now_us + PATIENCE_US));
            out.reports.push((token, ToCoordinator::AreGone { logs }));
        }
    }

    fn ask(&mut self, now_us: u64, log: ServerId, backup: &Backup, out: &mut Effects) {
        let question = self.masters.entry(log).or_default();
        if now_us < question.due_us {
            return;
        }
        let Some(held) = backup.figures().replicas_now(log.number()) else {
            return;
        };
        let entries = held.iter().map(|replica| ReplicaEntry {
            segment: replica.segment,
            kind: replica.kind,
            epoch: replica.epoch,
            certificate: replica.certificate(),
            closed: replica.closed && !replica.damaged,
            primary: false,
        });
        self.next += 1;
        let call = PeerCall::Needed(self.next);
        question.call = Some(call);
        question.replicas = entries.collect();
        question.due_us = now_us + PATIENCE_US;
        out.requests.push(PeerRequest {
            call,
            to: log,
            question: Peer::Needed {
                log,
                replicas: question.replicas.clone(),
            },
            payload: Slice::default(),
        });
    }

    /// Tells masters of their damaged replicas here, again and again (U4).
    fn tell_of_damage(&mut self, now_us: u64, backup: &Backup, out: &mut Effects) {
        let Some(damage) = backup.figures().damage_now() else {
            return;
        };
        self.damage = damage;
        for (log, question) in &mut self.masters {
            let of_log = self
                .damage
                .replicas
                .iter()
                .filter(|id| id.log == log.number());
            let segments: Vec<SegmentId> = of_log.map(|id| id.segment).collect();
            if segments.is_empty() || now_us < question.damage_due_us {
                continue;
            }
            question.damage_due_us = now_us + SOON_US;
            question.due_us = question.due_us.min(now_us + SOON_US); // it will not be needed
            self.next += 1;
            out.requests.push(PeerRequest {
                call: PeerCall::Needed(self.next), // its answer changes nothing here
                to: *log,
                question: Peer::Damaged {
                    log: *log,
                    segments,
                },
                payload: Slice::default(),
            });
        }
    }

    /// The answer of a master; `None`: it was not reached.
    pub fn answered(
        &mut self,
        now_us: u64,
        call: PeerCall,
        answer: Option<PeerAnswer>,
    ) -> Option<Task> {
        let mut masters = self.masters.iter_mut();
        let late = has_bug(Bug::LateAnswerCounts);
        let is_last = |question: &Question| question.call == Some(call) || late;
        let (log, question) = masters.find(|(_, question)| is_last(question))?; // U1
        question.call = None;
        let Some(PeerAnswer::NotNeeded { segments, counted }) = answer else {
            question.due_us = now_us + SOON_US;
            return None;
        };
        let mut replicas = std::mem::take(&mut question.replicas);
        let is_decided = |r: &ReplicaEntry| counted.contains(&r.segment);
        let all = replicas.iter().all(is_decided);
        question.due_us = now_us + if all { LATER_US } else { SOON_US }; // U3
        replicas.retain(|replica| segments.contains(&replica.segment));
        let log = *log;
        (!replicas.is_empty()).then_some(Task::NotNeeded { log, replicas })
    }

    /// The answer of the coordinator; `None`: it was not reached. Returns the logs that are gone
    /// (U2).
    pub fn listed(
        &mut self,
        token: Token,
        answer: Option<&CoordinatorAnswer>,
        members: &Members,
    ) -> Vec<Task> {
        let Some((_, asked, _)) = self.unknown.take_if(|(last, _, _)| *last == token) else {
            return Vec::new();
        };
        let Some(CoordinatorAnswer::Gone { logs }) = answer else {
            return Vec::new();
        };
        let is_gone = |log: &ServerId| logs.contains(log) && members.get(*log).is_none();
        let gone = asked.into_iter().filter(is_gone);
        gone.map(Task::Removed).collect()
    }
}

/// A backup's replicas, in the form of the replication rules.
pub(crate) fn found(backup: ServerId, replicas: &[ReplicaEntry]) -> Vec<Found> {
    let found = |replica: &ReplicaEntry| Found {
        backup: BackupId(backup.number()),
        segment: replica.segment,
        epoch: replica.epoch,
        certificate: replica.certificate,
        closed: replica.closed,
    };
    replicas.iter().map(found).collect()
}

#[cfg(test)]
mod tests;
