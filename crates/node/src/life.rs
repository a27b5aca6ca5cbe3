//! The state of a server while it is a member: its store, its connection to its backups, its
//! leases.
//!
//! Paper: [Ousterhout15 §3]

use crate::backup_service::{BackupConfig, BackupService};
use crate::hint_exchange::HintExchange;
use crate::interface::{NodeOptions, NodeOutput};
use crate::lease::{Leases, ReadUntil};
use crate::life_end::LifeEnd;
use crate::loads::Loads;
use crate::migration::Migrations;
use crate::reconciliation::Purging;
use crate::recovery::Recoveries;
use crate::remote::{Queue, Remote, RemoteEvent, SLOW_US, Slow};
use crate::replica_gc::ReplicaGc;
use crate::requests::PeerCall;
use crate::serve::{self, Clients};
use duramen::Store;
use duramen::internals::{MemberOptions, member_disk};
use duramen_backup::Backup;
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, has_bug};
use duramen_cluster::membership::Members;
use duramen_cluster::placement::{self, Layout};
use duramen_cluster::replication::{BackupId, Rejection, Ticket};
use duramen_format::hash::KeyHasher;
use duramen_wire::native::message::{ClusterSettings, Enlist, ServerEntry};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const MICROS_PER_SECOND: u64 = 1_000_000;
/// A lost backup gets no requests for this long. The pause doubles with each loss, up to the second
/// time.
const BACK_US: u64 = 2_000_000;
const BACK_MAX_US: u64 = 60_000_000;
/// The same for a slow backup: each time that it comes back costs some seconds of slow writes.
const SLOW_BACK_US: u64 = 60_000_000;
const SLOW_BACK_MAX_US: u64 = 16 * SLOW_BACK_US;
/// A backup that works for this long after it was taken back begins anew with the shortest pause.
const FORGOTTEN_US: u64 = 600_000_000;
/// Longest time in which the open segments on a slow backup are closed, again and again.
const LEAVING_US: u64 = 10_000_000;
/// A slow backup that cannot be replaced is reported this often; others that were slow are asked
/// then.
const SAY_SLOW_US: u64 = 60_000_000;

/// The state of one membership.
pub(crate) struct Life {
    pub store: Arc<Store>,
    pub remote: Remote,
    pub leases: Leases,
    /// For the backup's service of this life (backup_service::B0).
    backup_end: LifeEnd,
    pub recoveries: Recoveries,
    pub migrations: Migrations,
    pub replica_gc: ReplicaGc,
    pub hint_exchange: HintExchange,
    /// Backups that are UP and are lost for the log, or too slow for it, or were.
    pub lost: BTreeMap<ServerId, LostBackup>,
    /// When a slow backup that cannot be replaced may be reported again.
    say_slow_us: u64,
    /// The requests about the leases of native clients.
    pub client_leases: serve::leases::Leases,
    /// Jobs that failed, and when they are tried again.
    pub again: Vec<(u64, Again)>,
    /// The reason why the newest order failed, as last reported.
    pub complaint: Option<String>,
    /// How often each backup has found the bytes of a write damaged.
    pub damaged: BTreeMap<BackupId, u64>,
    pub loads: Loads,
    pub settings: ClusterSettings,
}

/// A backup that has lost replicas of the log, did not write to it, or does so slowly.
pub(crate) struct LostBackup {
    /// Whether it is slow: then it keeps its replicas (remote::Q9).
    is_slow: bool,
    /// The length of its current or last pause.
    pause_us: u64,
    state: LostState,
}

impl LostBackup {
    fn is_lost_for_now(&self) -> bool {
        !matches!(self.state, LostState::TakenBack(_))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LostState {
    /// The open segments there are being closed, until this time at the latest.
    Leaving(u64),
    /// The backup gets no requests until this time.
    LeftAlone(u64),
    /// The backup was asked whether it works again.
    Probed,
    /// The backup is used like any other, until it fails again; the loss is forgotten at this time.
    TakenBack(u64),
}

/// A job that failed.
pub(crate) enum Again {
    Obey,
    Purge(Purging),
}

impl Life {
    /// Opens the store of a new member, and the backup service for others.
    ///
    /// # Errors
    /// The reason why it can never be a member.
    pub fn begin(
        now_us: u64,
        server: ServerId,
        settings: ClusterSettings,
        node: &NodeOptions,
        until: Arc<ReadUntil>,
    ) -> Result<(Life, NodeOutput), String> {
        let queue = Arc::new(Queue::new(node.wake.clone()));
        let replicas = settings.replicas;
        let layout = match settings.layout.copyset_scatter() {
            Some(width) => Layout::copysets(width, replicas),
            None => Layout::Scatter,
        };
        let options = MemberOptions {
            store: store_options(node, &settings),
            log: server.number(),
            hash_seed: settings.hash_seed,
            segment_bytes: settings.segment_bytes,
            replicas: replicas as usize,
            layout,
            zone_bytes: settings.layout.zone_bytes(),
            backups: queue.clone(),
        };
        let backup = node.backup.clone();
        let fits = |backup: &Arc<Backup>| backup.geometry().segment_bytes == settings.segment_bytes;
        if backup.as_ref().is_some_and(|backup| !fits(backup)) {
            return Err("the segments of its disk have another size than the cluster's".to_owned());
        }
        let store = Store::open_member(options, node.threads).map_err(|e| e.to_string())?;
        let log = store.log().expect("a member's store has a log");
        let here = at(server, &node.candidate.enlist);
        log.master(|master| master.replicas_mut().is_at(here));
        let clients = Clients::new(node.wake.clone());
        store.engine().set_completions(clients.clone());
        let config = BackupConfig {
            server,
            hash_seed: settings.hash_seed,
            read_lease_ms: settings.read_lease_ms,
            ahead_bytes: node.ahead_bytes,
        };
        let keeper = backup.map(|backup| Box::new(BackupService::new(backup, config, now_us)));
        let life = Life {
            store: store.clone(),
            remote: Remote::new(server, queue),
            leases: Leases::new(settings.read_lease_ms, until),
            backup_end: keeper
                .as_ref()
                .map(|keeper| keeper.life_end.clone())
                .unwrap_or_default(),
            recoveries: Recoveries::new(node.ahead_bytes / 2, KeyHasher::new(settings.hash_seed)),
            migrations: Migrations::default(),
            replica_gc: ReplicaGc::default(),
            hint_exchange: HintExchange::new(store.log().is_some_and(|log| log.hints().is_some())),
            lost: BTreeMap::new(),
            say_slow_us: 0,
            client_leases: serve::leases::Leases::new(clients.clone()),
            again: Vec::new(),
            complaint: None,
            damaged: BTreeMap::new(),
            loads: Loads::new(now_us, node.room_us),
            settings,
        };
        let opened = NodeOutput::Opened {
            store,
            keeper,
            clients,
        };
        Ok((life, opened))
    }

    /// Ends it (node::D2).
    pub fn end(&mut self) {
        self.backup_end.note();
        self.leases.end();
        self.remote.end();
        // Callers that wait for a write get an error.
        let nobody = Ticket(u64::MAX);
        self.log().answered(nobody, Err(Rejection::Fenced));
    }

    /// When some part of it is due.
    pub fn due_us(&self) -> u64 {
        let again = self.again.iter().map(|(at_us, _)| *at_us);
        let parts = [
            self.remote.due_us(),
            self.recoveries.due_us(),
            self.migrations.due_us(),
            self.replica_gc.due_us(),
            self.hint_exchange.due_us(),
            self.client_leases.due_us(),
            self.loads.due_us(),
        ];
        again.chain(parts).min().unwrap_or(u64::MAX)
    }

    pub fn log(&self) -> &duramen::internals::LogWriter {
        self.store.log().expect("a member's store has a log")
    }

    /// The connections of these calls have moved something since the last time.
    pub fn moving(&mut self, now_us: u64, calls: &[PeerCall]) {
        for call in calls {
            match call {
                PeerCall::Replication(_) => self.remote.moving(now_us, *call),
                PeerCall::Recovery(_) => self.recoveries.moving(now_us, *call),
                // These requests are small: they need no more time.
                PeerCall::Ping(_)
                | PeerCall::Migration(_)
                | PeerCall::Needed(_)
                | PeerCall::Hint(_) => {}
            }
        }
    }

    /// Whether the backup gets no requests now; it is [taken back](Self::take_back) later.
    pub fn is_lost_for_now(&self, server: ServerId) -> bool {
        let lost = self.lost.get(&server);
        lost.is_some_and(LostBackup::is_lost_for_now)
    }

    /// remote::Q5: all replicas of this log on a backup are lost; it gets no requests for a while,
    /// longer each time.
    pub fn lose(&mut self, now_us: u64, backup: BackupId, events: &mut Vec<RemoteEvent>) {
        self.remote.lost(now_us, backup, events);
        self.log().backup_lost(backup);
        let server = ServerId::from_number(backup.0);
        let known = self.lost.get(&server);
        let pause_us = known.map_or(BACK_US, |lost| lost.pause_us * 2);
        let pause_us = pause_us.min(BACK_MAX_US);
        let lost = LostBackup {
            is_slow: false,
            pause_us,
            state: LostState::LeftAlone(now_us + pause_us),
        };
        self.lost.insert(server, lost);
    }

    /// A backup has found the bytes of a write damaged. The first and the fourth time are reported:
    /// one bit on the way is nothing, more have a cause.
    pub fn note_damaged(&mut self, backup: BackupId) -> Option<NodeOutput> {
        let server = ServerId::from_number(backup.0);
        let times = self.damaged.entry(backup).or_default();
        *times += 1;
        let text = match *times {
            1 => "once: they are sent again",
            4 => {
                "four times: the memory of one of them, or the network between them, changes bits \
                 (`duramen_damaged_sends`)"
            }
            _ => return None,
        };
        let text = format!("server {server} has found bytes of this one damaged {text}");
        Some(NodeOutput::Fails(text))
    }

    /// remote::Q8: silent backups, if the others suffice. If most are silent, the failure is this
    /// server's, or the network's.
    pub fn silent_backups(&self, me: ServerId, members: &Members) -> Vec<BackupId> {
        let silent = self.remote.silent();
        if silent.is_empty() || has_bug(Bug::SilentWaited) {
            return Vec::new();
        }
        match self.others_suffice(me, members, &silent, true) {
            true => silent.into_iter().collect(),
            false => Vec::new(),
        }
    }

    /// Whether there are enough other backups, and as many as these. `any`: slow and draining ones
    /// count, which are used if there are no others (placement::L5).
    fn others_suffice(
        &self,
        me: ServerId,
        members: &Members,
        bad: &BTreeSet<BackupId>,
        any: bool,
    ) -> bool {
        let is_slow = |server| self.lost.get(&server).is_some_and(|lost| lost.is_slow);
        let others = members.up().filter(|entry| {
            let backup = BackupId(entry.server.number());
            entry.roles.backup
                && entry.server != me
                && (any || !entry.draining)
                && (!self.is_lost_for_now(entry.server) || any && is_slow(entry.server))
                && !bad.contains(&backup)
        });
        others.count() >= bad.len().max(self.settings.replicas as usize)
    }

    /// remote::Q9: begins to leave slow backups, if the others suffice. Returns texts for the
    /// operator.
    pub fn leave_slow(&mut self, now_us: u64, me: ServerId, members: &Members) -> Vec<String> {
        let mut slow = self.remote.slow();
        slow.retain(|slow| !self.is_lost_for_now(ServerId::from_number(slow.backup.0)));
        if slow.is_empty() || has_bug(Bug::SlowWaited) {
            return Vec::new();
        }
        let backups = slow.iter().map(|slow| slow.backup).collect();
        let suffice = self.others_suffice(me, members, &backups, false);
        if !suffice && now_us < self.say_slow_us {
            return Vec::new();
        }
        if suffice {
            for backup in backups {
                self.leave(now_us, backup);
            }
        } else {
            self.say_slow_us = now_us + SAY_SLOW_US;
            // A backup that was slow before may be faster now.
            for lost in self.lost.values_mut().filter(|lost| lost.is_slow) {
                if let LostState::LeftAlone(until_us) = &mut lost.state {
                    *until_us = now_us;
                }
            }
        }
        let text = |slow: &Slow| {
            format!(
                "server {} is a slow backup, {} ms for a write instead of {} ms: {}",
                ServerId::from_number(slow.backup.0),
                slow.mean_us / 1000,
                slow.others_us / 1000,
                match suffice {
                    true => "other backups get the new data",
                    false => "there are not enough others, so writes here are as slow",
                }
            )
        };
        slow.iter().map(text).collect()
    }

    fn leave(&mut self, now_us: u64, backup: BackupId) {
        self.remote.forget_pace(backup);
        let server = ServerId::from_number(backup.0);
        let known = self.lost.get(&server);
        let pause_us = known.map_or(SLOW_BACK_US, |lost| lost.pause_us * 2);
        let lost = LostBackup {
            is_slow: true,
            pause_us: pause_us.clamp(SLOW_BACK_US, SLOW_BACK_MAX_US),
            state: LostState::Leaving(now_us + LEAVING_US),
        };
        self.lost.insert(server, lost);
    }

    /// Closes the open segments on slow backups. Asks lost backups that are UP, after a while,
    /// whether they carry out requests again.
    pub fn take_back(&mut self, now_us: u64, members: &Members) {
        let is_over = |state| matches!(state, LostState::TakenBack(until_us) if until_us <= now_us);
        self.lost
            .retain(|server, lost| members.is_up(*server) && !is_over(lost.state));
        let log = self.store.log().expect("a member's store has a log");
        for (server, lost) in &mut self.lost {
            let backup = BackupId(server.number());
            match lost.state {
                LostState::Leaving(until_us) => {
                    if log.backup_leaves(backup) || until_us <= now_us {
                        lost.state = LostState::LeftAlone(now_us + lost.pause_us);
                    }
                }
                LostState::LeftAlone(until_us) if until_us <= now_us => {
                    lost.state = LostState::Probed;
                    self.remote.probe(now_us, backup);
                }
                LostState::LeftAlone(_) | LostState::Probed | LostState::TakenBack(_) => {}
            }
        }
    }

    /// A lost backup answers, after this time: it may be given replicas again.
    pub fn is_back(&mut self, now_us: u64, backup: BackupId, took_us: u64, members: &Members) {
        let server = ServerId::from_number(backup.0);
        let Some(lost) = self.lost.get_mut(&server) else {
            return;
        };
        if lost.is_slow && took_us >= SLOW_US {
            lost.state = LostState::LeftAlone(now_us + lost.pause_us);
            return;
        }
        lost.state = LostState::TakenBack(now_us + FORGOTTEN_US);
        self.remote.forget_pace(backup); // what was slow then
        let entry = members.get(server);
        if let Some(entry) = entry.filter(|entry| entry.roles.backup) {
            let retire = entry.draining.then_some(backup);
            let member = member_of(entry, &self.settings);
            self.log().backups_up([member], retire.as_slice());
        }
    }

    /// Number of backups that are slow: they get no new replicas now, or there are not enough
    /// others.
    pub fn slow_backups(&self) -> usize {
        let left = self.lost.iter();
        let left = left.filter(|(_, lost)| lost.is_slow && lost.is_lost_for_now());
        let left = left.map(|(server, _)| *server);
        let slow = self.remote.slow();
        let slow = slow.iter().map(|slow| ServerId::from_number(slow.backup.0));
        left.chain(slow).collect::<BTreeSet<_>>().len()
    }
}

/// The placement data of a server with this request to enlist. Its own disk's speed does not matter
/// to itself.
fn at(server: ServerId, enlist: &Enlist) -> placement::Member {
    placement::Member {
        rack: enlist.rack.clone(),
        address: enlist.addresses.native.clone(),
        disk: enlist.disk,
        ..placement::Member::from(BackupId(server.number()))
    }
}

pub(crate) fn member_of(entry: &ServerEntry, settings: &ClusterSettings) -> placement::Member {
    let bytes = u64::from(settings.segment_bytes);
    let read_us = (bytes * MICROS_PER_SECOND)
        .checked_div(entry.read_bytes_per_s)
        .map_or(0, |us| us.max(1));
    placement::Member {
        backup: BackupId(entry.server.number()),
        rack: entry.rack.clone(),
        address: entry.addresses.native.clone(),
        disk: entry.disk,
        read_us: u32::try_from(read_us).unwrap_or(u32::MAX),
    }
}

/// The settings of the member's store: its log leaves room for recoveries on the others' disks,
/// and its backup leaves some for theirs.
fn store_options(node: &NodeOptions, settings: &ClusterSettings) -> duramen::Options {
    let mut store = node.store.clone();
    if let Some(backup) = &node.backup {
        let segment_bytes = u64::from(settings.segment_bytes);
        let (copies, frames) = (settings.replicas.into(), backup.geometry().frames);
        let limits = member_disk(&store, segment_bytes, copies, frames);
        store.disk_bytes = limits.segments * segment_bytes;
        backup
            .flusher()
            .keep_from_refills(limits.refills_leave as u32);
    }
    store
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers;
    use duramen_base::ids::Level;

    /// Its pause was as long as after its last failure, however long ago that was.
    #[test]
    fn a_backup_that_has_worked_for_long_is_forgiven() {
        let (me, other) = (ServerId::new(0, 1), ServerId::new(9, 1));
        let members = servers::members(&[me, other]);
        let backup = BackupId(other.number());
        let begun = Life::begin(
            0,
            me,
            servers::settings(),
            &servers::options(None),
            Arc::default(),
        );
        let (mut life, _) = begun.expect("it can be a member");
        let mut fails_at = |now_us| {
            life.take_back(now_us, &members);
            life.lose(now_us, backup, &mut Vec::new());
            let pause_us = life.lost[&other].pause_us;
            life.is_back(now_us, backup, 0, &members);
            pause_us
        };
        assert_eq!(fails_at(0), BACK_US);
        assert_eq!(fails_at(FORGOTTEN_US - 1), 2 * BACK_US);
        assert_eq!(fails_at(2 * FORGOTTEN_US), BACK_US);
    }

    /// Megabytes were sent again and again, and nothing said why the log waited.
    #[test]
    fn damaged_sends_are_told_and_not_each_of_them() {
        let (me, other) = (ServerId::new(0, 1), ServerId::new(2, 1));
        let settings = servers::settings();
        let options = servers::options(None);
        let begun = Life::begin(0, me, settings, &options, Arc::default());
        let (mut life, _) = begun.expect("it can be a member");
        let told: Vec<u64> = (1..100)
            .filter(|_| life.note_damaged(BackupId(1)).is_some())
            .collect();
        assert_eq!(told, [1, 4]);
        let Some(NodeOutput::Fails(text)) = life.note_damaged(BackupId(other.number())) else {
            panic!("each backup is told");
        };
        assert!(text.contains(&format!("server {other} ")), "{text}");
    }

    /// Copies were in the master's own rack: the log was not told its rack.
    #[test]
    fn copies_avoid_the_rack_that_this_server_says_it_is_in() {
        let options = servers::options(Some("a"));
        let me = ServerId::new(0, 1);
        let begun = Life::begin(0, me, servers::settings(), &options, Arc::default());
        let (mut life, _) = begun.expect("it can be a member");
        let other = ServerId::new(9, 1);
        let member = |slot: u32| {
            let mut entry = servers::entry(ServerId::new(slot, 1));
            entry.addresses.native = slot.to_string();
            entry.rack = Some(if entry.server == other { "b" } else { "a" }.to_owned());
            member_of(&entry, &life.settings)
        };
        life.log().backups_up((1..10).map(member), &[]);
        life.log().demand(Level::Synced);
        while life.store.background_step().expect("nothing fails") {}
        life.log().try_commit_here(Level::Synced);
        let mut asked = Vec::new();
        life.remote.poll(0, &mut asked);
        let asked: Vec<ServerId> = asked.iter().map(|asked| asked.to).collect();
        assert!(
            !asked.is_empty() && asked.iter().all(|to| *to == other),
            "{asked:?}"
        );
    }
}
