//! A member of a cluster: its log is on other servers, whose answers come at any time.
//!
//! **Invariants** (docs/protocols.md)
//! - J1: one group is in flight at a time: appends made meanwhile form the next one, which begins
//!   when this one has reached its level on all replicas. No write waits for more writers.
//! - J2: the engine gets the level of a group when all of its data, and the records that came with
//!   it, have reached it: data as the rules count it, records synced. A segment's closing is
//!   reported when all its replicas are closed and synced.
//! - J3: a buffered group is reported as synced when all of it is synced.
//! - J4: bytes that are sent were copied from the log under the commit's lock: no call refers to
//!   the engine's memory.
//! - J5: if a backup finds that bytes do not match their certificate, a bit may have changed in
//!   memory since the certificate was made. The next bytes of that segment are compared with it,
//!   one flipped bit of an entry is put back in them, and a survivor is copied again. If they do
//!   not match then, no backup would ever take them, and this life ends: what is acknowledged is on
//!   the backups, and is recovered elsewhere.
//!
//! **Concurrency**: everything here holds the commit's lock; [`Backups`] is called under it and
//! must not call back.

use super::copies::Bytes;
use super::groups::Part;
use super::{Commit, Common};
use crate::hints::Hints;
use crate::{DiskState, Error};
use duramen_base::ids::{Level, SegmentId, ServerId};
use duramen_cluster::replication::{BackupId, Effect, Send, Ticket};
use duramen_engine::Log;
use duramen_format::segment::Kind;
use duramen_wire::native::message::WriteReplica;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A write to a backup: a [`Send`] of the rules, with its bytes.
#[derive(Clone, Debug)]
pub struct Call {
    pub ticket: Ticket,
    pub to: BackupId,
    pub write: WriteReplica,
    pub bytes: Bytes,
}

/// A request of a member's log. Each one is repeated until the backup is lost, or its answer is
/// passed to the named method: of [`LogWriter`](crate::writer::LogWriter), or of the rules, by
/// [`LogWriter::master`](crate::writer::LogWriter::master).
#[derive(Clone, Debug)]
pub enum ToBackups {
    /// → [`LogWriter::answered`](crate::writer::LogWriter::answered)
    Write(Call),
    /// The backup may drop its replica. → `replicas_mut().freed`
    Free(BackupId, SegmentId),
    /// Sync all data of this log there. → [`LogWriter::synced`](crate::writer::LogWriter::synced)
    Sync(BackupId),
    /// To the coordinator: record that no older control segment counts. → `control_head_noted`
    ControlHead(SegmentId),
}

/// The connection to a member's backups and to its coordinator.
pub trait Backups: std::marker::Send + Sync {
    /// Neither blocks nor fails.
    fn ask(&self, request: ToBackups);
}

/// The replicas of a member's log: the connection to its backups.
pub(crate) struct Remote {
    pub log: ServerId,
    pub segment_bytes: u32,
    pub replicas: usize,
    pub backups: Arc<dyn Backups>,
    /// The hints of hot keys; `None` without a flash tier.
    pub hints: Option<Hints>,
}

impl Remote {
    /// Continues all possible work: sends as the rules allow, reports reached levels to the engine,
    /// begins the next group.
    ///
    /// # Errors
    /// [`Error::DiskFailed`], permanent, if this server counts as crashed, or cannot continue its
    /// log (J5).
    pub fn pump(&self, common: &Common, commit: &mut Commit, level: Level) -> Result<(), Error> {
        commit.groups.demand(level);
        loop {
            commit.begin_group(common.log());
            self.apply(common, commit);
            if !commit.end_group(common) {
                break;
            }
        }
        self.sync_behind(common, commit);
        if commit.master.is_fenced() {
            let fault = commit.master.fault();
            let reason = fault.unwrap_or("the cluster takes this server for crashed");
            let reason = reason.to_owned();
            let state = DiskState::Failed(reason.clone());
            common.health.set(state, common.log());
            common.ended.fetch_add(1, Ordering::AcqRel);
            return Err(Error::DiskFailed(reason));
        }
        Ok(())
    }

    /// A member's work beside its groups: survivors, swaps. Returns whether there was any.
    pub fn step(&self, common: &Common) -> Result<bool, Error> {
        let mut commit = common.lock();
        let any = [
            commit.drop_abandoned(common.log()),
            commit.write_survivors(common),
            commit.advance_swaps(common.log()),
        ];
        let any = any.into_iter().any(|any| any);
        if any {
            self.pump(common, &mut commit, Level::Memory)?;
        }
        Ok(any)
    }

    /// Applies the rules and sends their calls.
    fn apply(&self, common: &Common, commit: &mut Commit) {
        let mut effects = std::mem::take(&mut commit.effects);
        let mut next_id = || common.log().numbers().new_segment_id();
        commit.master.poll(&mut next_id, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(send) => self.send(common, commit, send),
                Effect::Free { backup, segment } => {
                    self.backups.ask(ToBackups::Free(backup, segment));
                }
                Effect::Swapped { swap } => commit.survivors.swapped(swap),
                Effect::ControlHead { min_open } => {
                    self.backups.ask(ToBackups::ControlHead(min_open));
                }
            }
        }
        commit.effects = effects;
        common.figures.note(commit);
        commit.copies.forget_last();
    }

    fn send(&self, common: &Common, commit: &mut Commit, send: Send) {
        let Commit { copies, master, .. } = commit;
        let Some(bytes) = copies.bytes_of(common, master, &send) else {
            if commit.master.is_fenced() {
                return; // J5
            }
            commit.master.give_up(send.ticket);
            if !commit.lose_survivor(common, send.segment) {
                // Cleaning moves its live entries to another segment.
                common.engine.segments().relocate(send.segment);
            }
            return;
        };
        if send.kind == Kind::Survivor && commit.copies.is_of_pass(send.segment) {
            common.figures.note_cleaning(&bytes);
        }
        // Sends that order other data are synced; data alone reaches the level of its group.
        let orders = send.kind != Kind::Head || send.open || send.close || send.epoch > 0;
        let level = match commit.groups.level() {
            Some(level) if !orders => level,
            _ => Level::Synced,
        };
        let write = WriteReplica {
            log: self.log,
            segment: send.segment,
            kind: send.kind,
            epoch: send.epoch,
            offset: send.from,
            certificate: (send.certificate.length > 0).then_some(send.certificate),
            open: send.open,
            close: send.close,
            primary: send.primary,
            level,
            capacity: self.segment_bytes,
        };
        self.backups.ask(ToBackups::Write(Call {
            ticket: send.ticket,
            to: send.backup,
            write,
            bytes,
        }));
    }

    /// Reports appends that are synced on all replicas by now (J3), and asks backups to sync the
    /// others.
    fn sync_behind(&self, common: &Common, commit: &mut Commit) {
        let Commit { groups, master, .. } = commit;
        if groups.end_behind(master) {
            common.unsynced.store(false, Ordering::Relaxed);
            common.log().complete_all(Level::Synced);
            common.ended.fetch_add(1, Ordering::AcqRel);
        }
        groups.sync(master, |backup| self.backups.ask(ToBackups::Sync(backup)));
    }
}

impl Commit {
    /// A backup has ended a sync that was requested with [`ToBackups::Sync`].
    pub fn synced(&mut self, backup: BackupId) {
        if self.groups.end_sync(backup) {
            self.master.segments_mut().sync_ends(backup);
        }
    }

    /// A backup has crashed.
    pub fn backup_lost(&mut self, backup: BackupId) {
        self.groups.end_sync(backup);
        self.master.backup_lost(backup);
    }

    /// Whether survivors or a swap are in flight: then the next step is due after each answer.
    pub fn is_swapping(&self) -> bool {
        self.copies.has_survivors() || self.survivors.is_swap_proposed()
    }

    /// Begins the next group, if one is requested and none is in flight (J1).
    fn begin_group(&mut self, log: &Log) {
        let Some(level) = self.groups.take_demand() else {
            return;
        };
        log.collect(&mut self.collected);
        if self.collected.is_empty() {
            return;
        }
        let has_records =
            !self.collected.changes().is_empty() || !self.collected.passes().is_empty();
        self.tell(log);
        // Records before the first control segment are in its snapshot.
        let records = if has_records {
            self.master.control().end().max(1)
        } else {
            0
        };
        let part = Part::new(log.pieces(&self.collected), records);
        self.groups.begin(level, part);
    }

    /// Reports a group that has reached its level to the engine. Returns whether it had.
    fn end_group(&mut self, common: &Common) -> bool {
        let Some(level) = self.groups.end(&self.master) else {
            return false;
        };
        if level < Level::Synced {
            common.unsynced.store(true, Ordering::Relaxed);
        }
        common.log().complete(&mut self.collected, level);
        common.ended.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Passes survivors that are written to the next Swap, and sends others. Returns whether there
    /// were any.
    fn write_survivors(&mut self, common: &Common) -> bool {
        let written = self.copies.take_written(&self.master);
        for (segment, certificate) in &written {
            self.survivors.add(*segment, *certificate);
            common.log().swaps().survivor_durable(*segment);
        }
        let any = self.copies.write_more(common, &mut self.master);
        any || !written.is_empty()
    }

    /// No copy of a segment's bytes is left. If it is a survivor of a pass whose Swap is not
    /// recorded, the pass is given up (engine::log::swap::given_up). Returns whether it is one.
    #[cold]
    fn lose_survivor(&mut self, common: &Common, segment: SegmentId) -> bool {
        let survivors = &mut self.survivors;
        if !survivors.withdraw(segment, &mut self.master, common.log()) {
            return false;
        }
        let why = "all its replicas were lost before its Swap, and memory has changed since";
        common.engine.segments().give_up_pass_of(segment, why)
    }

    /// Frees the replicas of survivors of side logs that were given up.
    fn drop_abandoned(&mut self, log: &Log) -> bool {
        let abandoned = log.swaps().take_abandoned();
        for segment in &abandoned {
            let is_written = self.survivors.remove(*segment);
            let is_under_way = self.copies.remove(*segment);
            if is_under_way {
                log.swaps().survivor_durable(*segment);
            }
            if is_written || is_under_way {
                self.master.survivor_abandoned(*segment);
            }
        }
        !abandoned.is_empty()
    }

    /// Proposes the next swap; reports a durable one to the engine.
    fn advance_swaps(&mut self, log: &Log) -> bool {
        if self.survivors.is_swap_proposed() {
            let swap = self.survivors.take_swapped();
            if let Some(swap) = &swap {
                log.swaps().swapped(swap);
            }
            return swap.is_some();
        }
        if let Some(swap) = log.next_swap() {
            self.survivors.propose(swap, &mut self.master);
            return true;
        }
        let waits = log.swap_waits_for();
        if waits.is_some_and(|position| log.reached(&position) < Level::Synced) {
            return self.groups.demand_sync(); // a caller that gets true checks again at once
        }
        false
    }
}
