//! Recoveries in progress: rules that are applied until nothing is left to recover
//! ([`crate::recovery`] has the parts).

use super::records::{Origin, TabletRecord};
use super::rooms::{RETRY_US, Rooms};
use super::{AT_ONCE, CallKind, Coordinator, Timer, refused};
use crate::recovery::collect::{Log, Missing};
use crate::recovery::plan;
use crate::recovery::{Partition, Place, Recovery};
use duramen_base::ids::{RecoveryId, RouteHash, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    CoordinatorAnswer, FromCoordinator, PartitionOutcome, RecoveryPhase, RecoveryStatus, Refusal,
    ServerAnswer,
};
use std::collections::BTreeSet;

/// Late answers of backups are waited for this long, even if the log is whole without them: they
/// bring more replicas to read from in parallel.
const PATIENCE_US: u64 = 150_000;
/// A request to a backup or a recovery master without an answer is repeated after this time.
const ASK_AGAIN_US: u64 = 1_000_000;
/// The same for a refused request, by a server that is just starting, or busy.
const BUSY_US: u64 = 200_000;
/// A recovery master that has started gets its order again after this time: if it had lost it, the
/// recovery would hang.
const REMIND_US: u64 = 5_000_000;
/// A read lease is measured by another clock, which may run faster or slower by this much, in
/// percent.
const DRIFT_PERCENT: u64 = 10;
/// A master recovers several partitions at once only if they may be at least this many segments
/// long: each partition fills a segment on R disks only in part, so many short ones at once would
/// fill the disks with nothing.
const SEGMENTS_AT_ONCE: u64 = 8;
/// Segments of which all known replicas are damaged are waited for this long: a whole one may be
/// on a server that is just starting. Then the damaged ones have to do.
const DAMAGED_AFTER_US: u64 = 10_000_000;
/// Ended recoveries that are still shown.
const ENDED_KEPT: usize = 32;

impl Coordinator {
    /// Begins to recover a crashed server's tablets. If it has none, it leaves the list at once.
    pub(super) fn recover(&mut self, dead: ServerId) {
        if self.state.tables.tablets_owned(dead) == 0 {
            self.remove(dead);
            return;
        }
        let Some(server) = self.state.servers.get(&dead) else {
            return;
        };
        let (min_open, quiet_until_us) = (server.record.min_open, server.quiet_until_us);
        let id = RecoveryId(self.state.random.next_u64());
        let mut new = Recovery::new(id, dead, min_open, self.state.now_us, PATIENCE_US);
        // coordinator::K7: it had to be quiet itself, for the lease of an owner before it.
        if !has_bug(Bug::LeaseForgotten) {
            new.lease_until_us = new.lease_until_us.max(quiet_until_us);
        }
        new.planned = self.counted_bytes(dead, &self.state.tables.lost_tablets(dead));
        self.recoveries.insert(dead, new);
        self.ask_backups(dead);
        self.arm_recovery(dead, PATIENCE_US);
    }

    /// Schedules the rules after this time, if not before. One timer for each recovery, for all
    /// reasons.
    pub(super) fn arm_recovery(&mut self, dead: ServerId, after_us: u64) {
        let at_us = self.state.now_us + after_us;
        let Some(recovery) = self.recoveries.get_mut(&dead) else {
            return;
        };
        if recovery.due_us.is_some_and(|due_us| due_us <= at_us) {
            return;
        }
        if let Some(later_us) = recovery.due_us.replace(at_us) {
            self.state.asks.disarm(later_us, Timer::Recovery(dead));
        }
        self.state.asks.arm(at_us, Timer::Recovery(dead));
    }

    /// Asks every backup that is UP once; [`recovery_due`](Self::recovery_due) repeats unanswered
    /// requests.
    fn ask_backups(&mut self, dead: ServerId) {
        let backups: Vec<ServerId> = self
            .state
            .servers
            .up()
            .iter()
            .copied()
            .filter(|id| self.state.servers[id].record.entry.roles.backup)
            .collect();
        for backup in backups {
            self.ask_backup(dead, backup);
        }
    }

    fn ask_backup(&mut self, dead: ServerId, backup: ServerId) {
        let min_open = self.state.servers.get(&dead).map(|s| s.record.min_open);
        let (Some(recovery), Some(min_open)) = (self.recoveries.get_mut(&dead), min_open) else {
            return;
        };
        if recovery.log.is_some() || recovery.collected.has(backup) {
            return;
        }
        recovery.asked.insert(backup);
        recovery.silent.remove(&backup);
        let question = FromCoordinator::StartRead {
            recovery: recovery.id,
            log: dead,
            min_open,
        };
        self.state
            .ask(backup, question, CallKind::StartRead { dead }, ASK_AGAIN_US);
    }

    /// A backup was added: recoveries that wait for replicas ask it.
    pub(super) fn ask_new_backup(&mut self, backup: ServerId) {
        let is_backup = |s: &super::Server| s.is_up() && s.record.entry.roles.backup;
        if !self.state.servers.get(&backup).is_some_and(is_backup) {
            return;
        }
        let dead: Vec<ServerId> = self.recoveries.keys().copied().collect();
        for dead in dead {
            self.ask_backup(dead, backup);
        }
        self.look_for_losses();
    }

    /// The end of a `StartRead`.
    pub(super) fn collected(
        &mut self,
        dead: ServerId,
        backup: ServerId,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let is_up = self.state.servers.is_up(backup);
        let now_us = self.state.now_us;
        let Some(recovery) = self.recoveries.get_mut(&dead) else {
            return;
        };
        match answer {
            Some((ServerAnswer::Replicas(replicas), control)) if is_up && replicas.log == dead => {
                let lease_us = u64::from(replicas.lease_left_ms) * 1000;
                let until_us = now_us + lease_us + lease_us * DRIFT_PERCENT / 100;
                recovery.lease_until_us = recovery.lease_until_us.max(until_us);
                recovery.asked.remove(&backup);
                recovery.silent.remove(&backup);
                recovery.collected.add(backup, *replicas, control);
                self.decide(dead);
            }
            _ => {
                if recovery.asked.contains(&backup) {
                    recovery.silent.insert(backup);
                }
                self.arm_recovery(dead, BUSY_US);
            }
        }
    }

    /// If the log is whole, cuts it into partitions and gives them to masters.
    pub(super) fn decide(&mut self, dead: ServerId) {
        if self.waits_for_newer_life(dead) {
            return; // older::A3
        }
        let Some(recovery) = self.recoveries.get_mut(&dead) else {
            return;
        };
        let is_early = !recovery.asked.is_empty() && self.state.now_us < recovery.patient_until_us;
        if recovery.log.is_some() || is_early || self.state.now_us < recovery.rest_until_us {
            return;
        }
        let copies = self.state.meta.settings.replicas as usize;
        let with_damaged = self.state.now_us >= recovery.since_us + DAMAGED_AFTER_US;
        let judged = recovery.collected.judge(with_damaged);
        let judged = judged.and_then(|()| match recovery.collected.unproven(copies) {
            Some(segment) if recovery.waits_for_copies(self.state.now_us) => {
                Err(Missing::Copies { segment })
            }
            _ => Ok(()),
        });
        if let Err(missing) = judged {
            recovery.waits_for = Some(missing.to_string());
        } else if let Some(until_us) = self.left_to_home_us(dead) {
            self.wait_for_home(dead, until_us);
        } else if let Some(mut log) = whole(self.recoveries.get(&dead)) {
            let speeds = self.state.speeds();
            if let Some(recovery) = self.recoveries.get(&dead) {
                recovery.collected.spread(&mut log, &speeds);
            }
            self.begin_partitions(dead, log);
        }
    }

    /// The log is whole, and its machine may come back soon (recovery::Y5).
    fn wait_for_home(&mut self, dead: ServerId, until_us: u64) {
        let left_us = until_us - self.state.now_us;
        if let Some(recovery) = self.recoveries.get_mut(&dead) {
            let left_s = left_us.div_ceil(1_000_000);
            let text = format!("the machine of server {dead}, for {left_s} s more");
            recovery.waits_for = Some(text);
        }
        self.arm_recovery(dead, left_us);
    }

    /// The machines of some logs may be back: those that wait for them begin.
    pub(super) fn home_is_back(&mut self, home: ServerId) {
        let of_it = self.recoveries.keys().copied();
        let of_it: Vec<ServerId> = of_it
            .filter(|dead| self.state.home_of(*dead) == Some(home))
            .collect();
        for dead in of_it {
            if let Some(recovery) = self.recoveries.get_mut(&dead) {
                recovery.finer = 0; // attempts before say nothing about this life
            }
            self.decide(dead);
        }
    }

    fn begin_partitions(&mut self, dead: ServerId, log: Log) {
        let tablets = self.state.tables.lost_tablets(dead);
        let planned = self.planned_bytes(dead, &tablets, log.bytes());
        if let Some(recovery) = self.recoveries.get_mut(&dead) {
            recovery.planned = planned;
        }
        let (limits, fits) = self.partition_limits(dead, planned);
        let loads = self
            .state
            .servers
            .get(&dead)
            .map_or(&[][..], |s| s.loads.ranges());
        if self.goes_home(dead, tablets.len()) {
            let pieces = plan::uncut(&tablets, loads, planned);
            if let Some(recovery) = self.recoveries.get_mut(&dead) {
                recovery.begin_at_home(log, pieces);
            }
            return self.give_partitions();
        }
        // Not all of it fits, however it is cut: there may be room for all of it later.
        if !fits && !limits.within_slots && self.counted_bytes(dead, &tablets) > 0 {
            let pieces = vec![plan::uncut(&tablets, loads, planned)];
            if let Some(recovery) = self.recoveries.get_mut(&dead) {
                recovery.begin(log, pieces, u64::MAX);
            }
            return self.give_partitions();
        }
        let pieces = plan::cut(&tablets, loads, planned, limits);
        for piece in &pieces {
            let tablet = piece.tablet;
            if let Ok((first, _)) = self
                .state
                .tables
                .tablet_of(tablet.table, tablet.range.first)
                && first != tablet.range.first
            {
                self.state
                    .cut_record(tablet.table, first, tablet.range.first);
            }
        }
        let partitions = plan::pack(pieces, limits, &mut self.state.random);
        let masters: BTreeSet<ServerId> = self.state.recovery_masters().collect();
        if let Some(recovery) = self.recoveries.get_mut(&dead) {
            if masters.is_subset(&recovery.unlucky) {
                recovery.unlucky.clear();
            }
            recovery.begin(log, partitions, limits.bytes);
        }
        self.give_partitions();
    }

    /// Gives waiting partitions to masters that have room (recovery::Y4).
    pub(super) fn give_partitions(&mut self) {
        let all = self.recoveries.values().flat_map(|of| &of.partitions);
        let waiting = all.filter(|partition| partition.place == Place::Waiting);
        let (count, most, least) =
            waiting.fold((0, 0, u64::MAX), |(count, most, least), partition| {
                let most = most.max(partition.not_on.len());
                (count + 1, most, least.min(partition.bytes))
            });
        if count == 0 {
            return;
        }
        let mut rooms = self.rooms();
        let mut free = self.free_places(&rooms, least, count, most);
        let mut given = Vec::new();
        for (dead, recovery) in &self.recoveries {
            let waiting = (0..).zip(&recovery.partitions);
            let waiting = waiting.filter(|(_, partition)| partition.place == Place::Waiting);
            for (number, partition) in waiting {
                let to = match partition.is_home {
                    true => self.takes_home(*dead, partition),
                    false => rooms
                        .first(&free, *dead, partition)
                        .map(|at| free.remove(at)),
                };
                if let Some(to) = to {
                    rooms.take(*dead, to, partition.bytes);
                    given.push((*dead, number, to));
                }
            }
        }
        self.give_with_frames(&given);
        self.note_lacks(&rooms);
        if let Some((dead, partition, to)) = self.last_resort(&rooms) {
            self.give(dead, partition, to);
        }
        let anew = self.changes_home().or_else(|| self.fits_if_shorter());
        if let Some(dead) = anew {
            self.cut_again(dead);
        }
    }

    /// Masters with free places, once for each place; first those without a partition. With enough
    /// places there is one for each of `count` partitions, none of which is shorter than `least`
    /// bytes or was tried on more than `most` masters; or every master has some.
    fn free_places(&self, rooms: &Rooms, least: u64, count: usize, most: usize) -> Vec<ServerId> {
        let settings = &self.state.meta.settings;
        let is_long =
            settings.partition_bytes >= SEGMENTS_AT_ONCE * u64::from(settings.segment_bytes);
        let at_once = if is_long { AT_ONCE } else { 1 };
        let enough = count + most * at_once as usize;
        let mut free: Vec<ServerId> = Vec::new();
        for places in 1..=at_once {
            let has_one = |id: &ServerId| {
                let server = &self.state.servers[id];
                let is_free =
                    server.recovering < places && server.busy_until_us <= self.state.now_us;
                is_free && rooms.fits_any(*id, least)
            };
            let more = enough - free.len();
            free.extend(self.state.recovery_masters().filter(has_one).take(more));
        }
        free
    }

    pub(super) fn give(&mut self, dead: ServerId, partition: u32, to: ServerId) {
        self.promise_frames(to, self.place_bytes(dead, partition));
        let asked_us = self.state.now_us;
        if let Some(place) = self.place_mut(dead, partition) {
            *place = Place::Given {
                to,
                started: false,
                asked_us,
            };
        }
        if let Some(server) = self.state.servers.get_mut(&to) {
            if server.recovering == 0 {
                server.room.begins(self.state.now_us);
            }
            server.recovering += 1;
        }
        self.ask_master(dead, partition, to);
    }

    /// The log is whole, and its partitions are cut anew, as another attempt.
    fn cut_again(&mut self, dead: ServerId) {
        let id = RecoveryId(self.state.random.next_u64());
        let log = self
            .recoveries
            .get_mut(&dead)
            .and_then(|recovery| recovery.cut_again(id));
        if let Some(log) = log {
            self.begin_partitions(dead, log);
        }
    }

    fn ask_master(&mut self, dead: ServerId, partition: u32, to: ServerId) {
        let tables = self.state.tables.entries().cloned().collect();
        let accepted = self.accepted.get(&dead).cloned().unwrap_or_default();
        let order = self
            .recoveries
            .get(&dead)
            .and_then(|recovery| recovery.order(partition, tables, accepted));
        if let Some(order) = order {
            let kind = CallKind::Recover {
                dead,
                recovery: order.recovery,
                partition,
            };
            let question = FromCoordinator::Recover(Box::new(order));
            self.state.ask(to, question, kind, ASK_AGAIN_US);
        }
    }

    /// The end of a `Recover`. An order may have been sent twice, and the master, which was busy at
    /// the first one, have begun at the second: by then another may have the partition.
    pub(super) fn recover_answered(
        &mut self,
        dead: ServerId,
        (id, partition): (RecoveryId, u32),
        by: ServerId,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let of = self.partition_mut(dead, (id, partition));
        let place = of.map(|of| &mut of.place);
        let is_given = matches!(&place, Some(Place::Given { to, .. }) if *to == by);
        let Some(place) = place.filter(|_| is_given) else {
            if matches!(answer, Some((ServerAnswer::Started, _))) {
                self.abort_run(by, (id, partition)); // recovery::Y3
            }
            return;
        };
        match (answer, &mut *place) {
            (Some((ServerAnswer::Started, _)), Place::Given { started, .. }) => *started = true,
            (Some((ServerAnswer::Busy, _)), Place::Given { started: false, .. }) => {
                *place = Place::Waiting;
                self.state.release_master(by, BUSY_US);
                self.give_partitions();
                self.arm_recovery(dead, BUSY_US);
            }
            _ => self.arm_recovery(dead, BUSY_US),
        }
    }

    /// A partition of this attempt; none if there is a later one (recovery::Y1).
    pub(super) fn partition_mut(
        &mut self,
        dead: ServerId,
        (id, partition): (RecoveryId, u32),
    ) -> Option<&mut Partition> {
        let recovery = self.recoveries.get_mut(&dead)?;
        let is_this = recovery.id == id;
        let of = recovery.partitions.get_mut(partition as usize);
        of.filter(|_| is_this)
    }

    pub(super) fn place_mut(&mut self, dead: ServerId, partition: u32) -> Option<&mut Place> {
        let recovery = self.recoveries.get_mut(&dead)?;
        let partition = recovery.partitions.get_mut(partition as usize)?;
        Some(&mut partition.place)
    }

    pub(super) fn place_bytes(&self, dead: ServerId, partition: u32) -> u64 {
        let recovery = self.recoveries.get(&dead);
        let of = recovery.and_then(|of| of.partitions.get(partition as usize));
        of.map_or(0, |partition| partition.bytes)
    }

    /// A recovery master reports the end of a partition (coordinator::K3).
    pub(super) fn partition_done(
        &mut self,
        sender: ServerId,
        server: ServerId,
        (id, partition): (RecoveryId, u32),
        outcome: PartitionOutcome,
    ) -> CoordinatorAnswer {
        if sender != server || !self.state.servers.is_up(server) && !has_bug(Bug::OwnerNotUp) {
            return CoordinatorAnswer::Stale; // coordinator::K3
        }
        let any_attempt = has_bug(Bug::OldAttemptCounts);
        let dead = self
            .recoveries
            .values()
            .find(|recovery| recovery.id == id || any_attempt && !recovery.partitions.is_empty())
            .map(|recovery| recovery.dead);
        let origin = Origin::Recovered {
            recovery: id,
            partition,
        };
        let Some(dead) = dead else {
            return self.state.accepted_before(server, origin);
        };
        let is_rash = any_attempt || has_bug(Bug::OwnerNotUp);
        match self.place_mut(dead, partition) {
            Some(Place::Given { to, .. }) if *to == server || is_rash => {}
            Some(Place::Done { by }) if *by == server => {
                return self.state.accepted_before(server, origin);
            }
            Some(_) if is_rash => {}
            _ => return CoordinatorAnswer::Stale, // recovery::Y3
        }
        match outcome {
            PartitionOutcome::Replayed {
                creation,
                bytes,
                entries,
            } => {
                let progress = (bytes, bytes, entries);
                let tablet = TabletRecord {
                    last: RouteHash::MAX,
                    owner: server,
                    creation,
                    origin,
                };
                self.hand_over(dead, partition, tablet, progress);
            }
            PartitionOutcome::Failed {
                retry_elsewhere,
                reason,
            } => self.partition_failed(dead, partition, server, (retry_elsewhere, reason)),
            PartitionOutcome::Lost { losses } => {
                self.note_losses(dead, losses);
                let reason = "no replica of some segments is whole".to_owned();
                self.partition_failed(dead, partition, server, (false, reason));
            }
        }
        self.state.release_master(server, 0);
        let since = self.state.tablets_version();
        self.settle(dead);
        self.give_partitions();
        CoordinatorAnswer::Accepted { since }
    }

    /// coordinator::K4: the tablets that still belong to the dead server get the new owner, in one
    /// step.
    fn hand_over(
        &mut self,
        dead: ServerId,
        partition: u32,
        new: TabletRecord,
        progress: (u64, u64, u64),
    ) {
        let owner = new.owner;
        let planned = self.place_bytes(dead, partition);
        let gained = self.loads_of(dead, partition);
        if let Some(server) = self.state.servers.get_mut(&owner) {
            server.room.gains(planned);
            server.loads.gain(gained);
        }
        let Some(recovery) = self.recoveries.get_mut(&dead) else {
            return;
        };
        let lease_until_us = recovery.lease_until_us;
        let Some(done) = recovery.partitions.get_mut(partition as usize) else {
            return;
        };
        done.place = Place::Done { by: owner };
        done.progress = progress;
        for tablet in done.tablets.clone() {
            let at = (tablet.table, tablet.range.first);
            let known = self.state.tables.tablet(at);
            if known.is_some_and(|known| known.owner == dead) {
                let last = tablet.range.last;
                self.state
                    .set_tablet(at.0, at.1, TabletRecord { last, ..new });
            }
        }
        if let Some(server) = self.state.servers.get_mut(&owner)
            && !has_bug(Bug::LeaseIgnored)
        {
            server.quiet_until_us = server.quiet_until_us.max(lease_until_us); // coordinator::K7
        }
        self.state.affect(owner);
        // It may be drained since it was given the partition, or all that are heard are.
        let drained = self.state.servers.get(&owner);
        let drained = drained.filter(|server| server.record.entry.draining);
        if let Some(quiet_until_us) = drained.map(|server| server.quiet_until_us) {
            self.state
                .asks
                .arm(self.state.now_us.max(quiet_until_us), Timer::Drain(owner));
        }
    }

    fn partition_failed(
        &mut self,
        dead: ServerId,
        partition: u32,
        by: ServerId,
        (elsewhere, reason): (bool, String),
    ) {
        let Some(recovery) = self.recoveries.get_mut(&dead) else {
            return;
        };
        if let Some(failed) = recovery.partitions.get_mut(partition as usize) {
            failed.progress = (0, 0, 0);
            failed.not_on.insert(by);
            failed.place = if elsewhere {
                Place::Waiting
            } else {
                Place::Failed
            };
        }
        recovery.waits_for = Some(format!("partition {partition} failed on {by}: {reason}"));
    }

    /// Ends a recovery that has nothing left to do, or begins its next attempt.
    pub(super) fn settle(&mut self, dead: ServerId) {
        if !self.recoveries.contains_key(&dead) {
            return;
        }
        if self.state.tables.tablets_owned(dead) == 0 {
            self.end_recovery(dead);
            return;
        }
        let Some(recovery) = self.recoveries.get(&dead) else {
            return;
        };
        let nobody = self.state.recovery_masters().next().is_none();
        let home = self.state.home_of(dead);
        let can_go_on = recovery.partitions.iter().any(|p| match p.place {
            Place::Given { .. } | Place::TakenBack { .. } => true,
            Place::Waiting if p.is_home => home.is_none_or(|home| !p.not_on.contains(&home)),
            Place::Waiting => {
                nobody
                    || self
                        .state
                        .recovery_masters()
                        .any(|m| !p.not_on.contains(&m))
            }
            Place::Done { .. } | Place::Failed => false,
        });
        if recovery.log.is_none() || can_go_on {
            return;
        }
        let id = RecoveryId(self.state.random.next_u64());
        if let Some(recovery) = self.recoveries.get_mut(&dead) {
            recovery.begin_again(id);
        }
        self.rest(dead);
        self.rest_with_losses(dead);
        self.ask_backups(dead);
        self.arm_recovery(dead, RETRY_US);
    }

    pub(super) fn settle_all(&mut self) {
        let dead: Vec<ServerId> = self.recoveries.keys().copied().collect();
        dead.into_iter().for_each(|dead| self.settle(dead));
    }

    fn end_recovery(&mut self, dead: ServerId) {
        let Some(recovery) = self.recoveries.remove(&dead) else {
            return;
        };
        let mut status = recovery.status(self.state.now_us);
        status.phase = RecoveryPhase::Done;
        self.ended.push_back(status);
        if self.ended.len() > ENDED_KEPT {
            self.ended.pop_front();
        }
        for (number, partition) in recovery.partitions.iter().enumerate() {
            if let Some(to) = partition.place.master() {
                // Its tablets are gone: the table was dropped.
                self.state.release_master(to, 0);
                self.abort_run(to, (recovery.id, number as u32));
            }
        }
        self.remove(dead);
    }

    /// A server is not to replay a partition any more, unless its report of it has counted.
    pub(super) fn abort_run(&mut self, on: ServerId, (recovery, partition): (RecoveryId, u32)) {
        let origin = Origin::Recovered {
            recovery,
            partition,
        };
        if self.state.tables.is_accepted(on, origin) {
            return;
        }
        let question = FromCoordinator::AbortRecovery {
            recovery,
            partition,
        };
        self.state.ask(on, question, CallKind::Abort, ASK_AGAIN_US);
    }

    /// A server is crashed: its partitions and replicas are gone.
    pub(super) fn forget_in_recoveries(&mut self, server: ServerId) {
        let dead: Vec<ServerId> = self.recoveries.keys().copied().collect();
        for dead in dead {
            if let Some(recovery) = self.recoveries.get_mut(&dead) {
                recovery.forget(server);
            }
            self.collect_again(dead);
            self.decide(dead);
            self.settle(dead);
        }
        self.give_partitions();
    }

    /// A log that was whole, and of which nobody is replaying anything, is collected anew when the
    /// last holder of one of its segments is gone: the holder's next life has another id.
    fn collect_again(&mut self, dead: ServerId) {
        let Some(recovery) = self.recoveries.get(&dead) else {
            return;
        };
        let is_there = recovery.log.as_ref().is_none_or(|log| {
            let mut segments = log.segments.iter();
            segments.all(|segment| {
                segment
                    .sources
                    .iter()
                    .any(|id| self.state.servers.is_up(*id))
            })
        });
        if is_there || recovery.has_given() {
            return;
        }
        let id = RecoveryId(self.state.random.next_u64());
        if let Some(recovery) = self.recoveries.get_mut(&dead) {
            recovery.begin_again(id);
        }
        self.ask_backups(dead);
        self.arm_recovery(dead, BUSY_US);
    }

    /// Applies the rules again.
    pub(super) fn recovery_due(&mut self, dead: ServerId) {
        self.take_back(dead);
        let now_us = self.state.now_us;
        let Some(recovery) = self.recoveries.get_mut(&dead) else {
            return;
        };
        recovery.due_us = None;
        let unanswered: Vec<ServerId> = recovery.silent.iter().copied().collect();
        let silent = |(number, partition): (usize, &Partition)| {
            let Place::Given {
                to,
                started,
                asked_us,
            } = partition.place
            else {
                return None;
            };
            let patience_us = if started { REMIND_US } else { BUSY_US };
            (now_us - asked_us >= patience_us).then_some((number as u32, to))
        };
        let silent: Vec<(u32, ServerId)> = recovery
            .partitions
            .iter()
            .enumerate()
            .filter_map(silent)
            .collect();
        if now_us > recovery.patient_until_us {
            for backup in unanswered {
                self.ask_backup(dead, backup);
            }
        }
        for (partition, to) in silent {
            if let Some(Place::Given { asked_us, .. }) = self.place_mut(dead, partition) {
                *asked_us = now_us;
            }
            self.ask_master(dead, partition, to);
        }
        self.rest_less(dead);
        self.decide(dead);
        self.settle(dead);
        self.give_partitions();
        let Some(recovery) = self.recoveries.get(&dead) else {
            return;
        };
        let copies_until_us = recovery.copies_until_us.unwrap_or(0);
        let ends = [
            recovery.rest_until_us,
            recovery.patient_until_us,
            copies_until_us,
        ];
        let next_us = ends.into_iter().filter(|at_us| *at_us > now_us).min();
        let after_us = next_us.map_or(RETRY_US, |at_us| RETRY_US.min(at_us - now_us));
        self.arm_recovery(dead, after_us);
    }

    pub(super) fn partition_progress(
        &mut self,
        server: ServerId,
        (id, partition): (RecoveryId, u32),
        (bytes, bytes_total): (u64, u64),
        entries: u64,
    ) -> CoordinatorAnswer {
        let recovery = self.recoveries.values_mut().find(|r| r.id == id);
        let partition = recovery.and_then(|r| r.partitions.get_mut(partition as usize));
        match partition {
            Some(of) if matches!(of.place, Place::Given { to, .. } if to == server) => {
                of.progress = (bytes, bytes_total, entries);
                CoordinatorAnswer::Noted
            }
            _ => refused(Refusal::Invalid(
                "no such partition is recovered by this server".to_owned(),
            )),
        }
    }

    /// Recoveries in progress, then the ended ones, the last one last.
    pub fn recovery_statuses(&self) -> Vec<RecoveryStatus> {
        let status = |recovery: &Recovery| {
            let mut status = recovery.status(self.state.now_us);
            if let Some(losses) = recovery.lost() {
                status.waits_for = Some(losses.text(recovery.dead));
            } else if let Some(text) = self.takes_back_text(recovery.dead) {
                status.waits_for = Some(text);
            } else if let Some((bytes, _)) = recovery.lacks {
                status.waits_for = Some(self.lacks_text(recovery.dead, bytes));
            } else if recovery.lacks_frames.is_some() {
                let text = "room on the servers' disks, which other recoveries will free";
                status.waits_for.get_or_insert_with(|| text.to_owned());
            }
            status
        };
        let mut all: Vec<RecoveryStatus> = self.recoveries.values().map(status).collect();
        let is_backup = |id: &&ServerId| self.state.servers[*id].record.entry.roles.backup;
        let replicas = self.state.meta.settings.replicas as usize;
        let up = self
            .state
            .servers
            .up()
            .iter()
            .filter(is_backup)
            .take(replicas + 1);
        let backups = if all.is_empty() {
            usize::MAX
        } else {
            up.count()
        };
        if backups <= replicas {
            let waits_for = format!(
                "{backups} backups are up: a log has {replicas} replicas, none of them on its own server"
            );
            let replaying = |status: &&mut RecoveryStatus| status.phase == RecoveryPhase::Replaying;
            for status in all.iter_mut().filter(replaying) {
                status.waits_for.get_or_insert_with(|| waits_for.clone());
            }
        }
        all.extend(self.ended.iter().cloned());
        all
    }
}

fn whole(recovery: Option<&Recovery>) -> Option<Log> {
    recovery.and_then(|of| of.collected.whole(&of.images))
}
