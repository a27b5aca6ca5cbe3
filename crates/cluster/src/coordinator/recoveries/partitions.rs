//! The partitions of recoveries: cut, given to recovery masters, taken back, and handed over.

use super::{ASK_AGAIN_US, BUSY_US, Recoveries};
use crate::coordinator::records::{Origin, TabletRecord};
use crate::coordinator::{CallKind, State, Timer, frames, refused, rooms};
use crate::recovery::collect::Log;
use crate::recovery::plan;
use crate::recovery::{Partition, Place, Recovery};
use duramen_base::ids::{RecoveryId, RouteHash, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    CoordinatorAnswer, FromCoordinator, PartitionDone, PartitionOutcome, PartitionProgress,
    Refusal, ServerAnswer,
};
use std::collections::{BTreeMap, BTreeSet};

/// An order to give a partition back is repeated after this time without an answer.
const AGAIN_US: u64 = 1_000_000;

impl Recoveries {
    pub(super) fn begin_partitions(&mut self, state: &mut State, dead: ServerId, log: Log) {
        let tablets = state.tables.lost_tablets(dead);
        let planned = self
            .planner(state)
            .planned_bytes(dead, &tablets, log.bytes());
        if let Some(recovery) = self.all.get_mut(&dead) {
            recovery.planned = planned;
        }
        let (limits, fits) = self.planner(state).partition_limits(dead, planned);
        let loads = state
            .servers
            .get(&dead)
            .map_or(&[][..], |s| s.loads.ranges());
        if self.planner(state).goes_home(dead, tablets.len()) {
            let pieces = plan::uncut(&tablets, loads, planned);
            if let Some(recovery) = self.all.get_mut(&dead) {
                recovery.begin_at_home(log, pieces);
            }
            return self.give_partitions(state);
        }
        // Not all of the log fits, however it is cut: there may be room for all of it later.
        if !fits && !limits.within_slots && self.planner(state).counted_bytes(dead, &tablets) > 0 {
            let pieces = vec![plan::uncut(&tablets, loads, planned)];
            if let Some(recovery) = self.all.get_mut(&dead) {
                recovery.begin(log, pieces, u64::MAX);
            }
            return self.give_partitions(state);
        }
        let pieces = plan::cut(&tablets, loads, planned, limits);
        for piece in &pieces {
            let tablet = piece.tablet;
            if let Ok((first, _)) = state.tables.tablet_of(tablet.table, tablet.range.first)
                && first != tablet.range.first
            {
                state.cut_record(tablet.table, first, tablet.range.first);
            }
        }
        let partitions = plan::pack(pieces, limits, &mut state.random);
        let masters: BTreeSet<ServerId> = state.recovery_masters().collect();
        if let Some(recovery) = self.all.get_mut(&dead) {
            if masters.is_subset(&recovery.unlucky) {
                recovery.unlucky.clear();
            }
            recovery.begin(log, partitions, limits.bytes);
        }
        self.give_partitions(state);
    }

    /// Gives waiting partitions to masters that have room (recovery::Y4).
    pub(in super::super) fn give_partitions(&mut self, state: &mut State) {
        let all = self.all.values().flat_map(|of| &of.partitions);
        let waiting = all.filter(|partition| partition.place == Place::Waiting);
        let (count, most, least) =
            waiting.fold((0, 0, u64::MAX), |(count, most, least), partition| {
                let most = most.max(partition.not_on.len());
                (count + 1, most, least.min(partition.bytes))
            });
        if count == 0 {
            return;
        }
        let planner = self.planner(state);
        let mut rooms = planner.rooms();
        let mut free = planner.free_places(&rooms, least, count, most);
        let mut given = Vec::new();
        for (dead, recovery) in &self.all {
            let waiting = (0..).zip(&recovery.partitions);
            let waiting = waiting.filter(|(_, partition)| partition.place == Place::Waiting);
            for (number, partition) in waiting {
                let to = match partition.is_home {
                    true => planner.takes_home(*dead, partition),
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
        self.give_with_frames(state, &given);
        rooms::note_lacks(&mut self.all, state.now_us, &rooms);
        if let Some((dead, partition, to)) = self.planner(state).last_resort(&rooms) {
            self.give(state, dead, partition, to);
        }
        let planner = self.planner(state);
        let anew = planner.changes_home().or_else(|| planner.fits_if_shorter());
        if let Some(dead) = anew {
            self.cut_again(state, dead);
        }
    }

    /// Gives partitions for whose copies there are frames; if there are none for any, and nothing
    /// else is in progress, the first one: an estimate must not stop everything.
    fn give_with_frames(&mut self, state: &mut State, all: &[(ServerId, u32, ServerId)]) {
        let mut lacking = Vec::new();
        for (dead, partition, to) in all.iter().copied() {
            let bytes = self.planner(state).place_bytes(dead, partition);
            let has_frames = self.has_frames(state, to, bytes);
            let now_us = state.now_us;
            if let Some(recovery) = self.all.get_mut(&dead) {
                recovery.lacks_frames = match (has_frames, recovery.lacks_frames) {
                    (true, _) => None,
                    (false, since_us) => since_us.or(Some(now_us)),
                };
            }
            match has_frames {
                true => self.give(state, dead, partition, to),
                false => lacking.push((dead, partition, to)),
            }
        }
        let first = lacking
            .into_iter()
            .find(|(dead, ..)| frames::are_late(state, self.all.get(dead)));
        if let Some((dead, partition, to)) = first.filter(|_| !self.planner(state).is_in_progress())
        {
            if let Some(recovery) = self.all.get_mut(&dead) {
                recovery.lacks_frames = None;
            }
            self.give(state, dead, partition, to);
        }
    }

    fn give(&mut self, state: &mut State, dead: ServerId, partition: u32, to: ServerId) {
        let planner = self.planner(state);
        let is_in_progress = planner.is_in_progress();
        let bytes = planner.place_bytes(dead, partition);
        self.frames.promise(state, is_in_progress, to, bytes);
        let asked_us = state.now_us;
        if let Some(place) = place_mut(&mut self.all, dead, partition) {
            *place = Place::Given {
                to,
                started: false,
                asked_us,
            };
        }
        if let Some(server) = state.servers.get_mut(&to) {
            if server.recovering == 0 {
                server.room.begins(state.now_us);
            }
            server.recovering += 1;
        }
        self.ask_master(state, dead, partition, to);
    }

    /// The log is whole, and its partitions are cut anew, as another attempt.
    fn cut_again(&mut self, state: &mut State, dead: ServerId) {
        let id = RecoveryId(state.random.next_u64());
        let log = self
            .all
            .get_mut(&dead)
            .and_then(|recovery| recovery.cut_again(id));
        if let Some(log) = log {
            self.begin_partitions(state, dead, log);
        }
    }

    pub(super) fn ask_master(
        &self,
        state: &mut State,
        dead: ServerId,
        partition: u32,
        to: ServerId,
    ) {
        let tables = state.tables.entries().cloned().collect();
        let accepted = self.accepted.of(dead);
        let order = self
            .all
            .get(&dead)
            .and_then(|recovery| recovery.order(partition, tables, accepted));
        if let Some(order) = order {
            let kind = CallKind::Recover {
                dead,
                recovery: order.recovery,
                partition,
            };
            let question = FromCoordinator::Recover(Box::new(order));
            state.ask(to, question, kind, ASK_AGAIN_US);
        }
    }

    /// Handles the end of a `Recover`. An order may have been sent twice: a master that was busy at
    /// the first one may have begun at the second. By then another master may have the partition.
    pub(in super::super) fn answered(
        &mut self,
        state: &mut State,
        dead: ServerId,
        (id, partition): (RecoveryId, u32),
        by: ServerId,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        let of = partition_mut(&mut self.all, dead, (id, partition));
        let place = of.map(|of| &mut of.place);
        let is_given = matches!(&place, Some(Place::Given { to, .. }) if *to == by);
        let Some(place) = place.filter(|_| is_given) else {
            if matches!(answer, Some((ServerAnswer::Started, _))) {
                abort_run(state, by, (id, partition)); // recovery::Y3
            }
            return;
        };
        match (answer, &mut *place) {
            (Some((ServerAnswer::Started, _)), Place::Given { started, .. }) => *started = true,
            (Some((ServerAnswer::Busy, _)), Place::Given { started: false, .. }) => {
                *place = Place::Waiting;
                state.servers.release(state.now_us, by, BUSY_US);
                self.give_partitions(state);
                self.arm(state, dead, BUSY_US);
            }
            _ => self.arm(state, dead, BUSY_US),
        }
    }

    /// A recovery master reports the end of a partition (coordinator::K3).
    pub(in super::super) fn done(
        &mut self,
        state: &mut State,
        sender: ServerId,
        done: PartitionDone,
    ) -> CoordinatorAnswer {
        let (id, partition, server) = (done.recovery, done.partition, done.server);
        if sender != server || !state.servers.is_up(server) && !has_bug(Bug::OwnerNotUp) {
            return CoordinatorAnswer::Stale; // coordinator::K3
        }
        let any_attempt = has_bug(Bug::OldAttemptCounts);
        let dead = self
            .all
            .values()
            .find(|recovery| recovery.id == id || any_attempt && !recovery.partitions.is_empty())
            .map(|recovery| recovery.dead);
        let origin = Origin::Recovered {
            recovery: id,
            partition,
        };
        let Some(dead) = dead else {
            return state.accepted_before(server, origin);
        };
        let is_rash = any_attempt || has_bug(Bug::OwnerNotUp);
        match place_mut(&mut self.all, dead, partition) {
            Some(Place::Given { to, .. }) if *to == server || is_rash => {}
            Some(Place::Done { by }) if *by == server => {
                return state.accepted_before(server, origin);
            }
            Some(_) if is_rash => {}
            _ => return CoordinatorAnswer::Stale, // recovery::Y3
        }
        match done.outcome {
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
                self.hand_over(state, dead, partition, tablet, progress);
            }
            PartitionOutcome::Failed {
                retry_elsewhere,
                reason,
            } => {
                let recovery = self.all.get_mut(&dead);
                failed(recovery, partition, server, (retry_elsewhere, reason));
            }
            PartitionOutcome::Lost { losses } => {
                let mut recovery = self.all.get_mut(&dead);
                if let Some(recovery) = &mut recovery {
                    recovery.losses.note(recovery.id, losses);
                }
                let reason = "no replica of some segments is whole".to_owned();
                failed(recovery, partition, server, (false, reason));
            }
        }
        state.servers.release(state.now_us, server, 0);
        let since = state.tablets_version();
        self.settle(state, dead);
        self.give_partitions(state);
        CoordinatorAnswer::Accepted { since }
    }

    /// coordinator::K4: the tablets that still belong to the dead server get the new owner, in one
    /// step.
    fn hand_over(
        &mut self,
        state: &mut State,
        dead: ServerId,
        partition: u32,
        new: TabletRecord,
        progress: (u64, u64, u64),
    ) {
        let owner = new.owner;
        let planned = self.planner(state).place_bytes(dead, partition);
        let gained = self.planner(state).loads_of(dead, partition);
        if let Some(server) = state.servers.get_mut(&owner) {
            server.room.gains(planned);
            server.loads.gain(gained);
        }
        let Some(recovery) = self.all.get_mut(&dead) else {
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
            let known = state.tables.tablet(at);
            if known.is_some_and(|known| known.owner == dead) {
                let last = tablet.range.last;
                state.set_tablet(at.0, at.1, TabletRecord { last, ..new });
            }
        }
        if let Some(server) = state.servers.get_mut(&owner)
            && !has_bug(Bug::LeaseIgnored)
        {
            server.quiet_until_us = server.quiet_until_us.max(lease_until_us); // coordinator::K7
        }
        state.affect(owner);
        // The owner may be drained since it was given the partition, or drained masters were the
        // only ones that are heard.
        let drained = state.servers.get(&owner);
        let drained = drained.filter(|server| server.record.entry.draining);
        if let Some(quiet_until_us) = drained.map(|server| server.quiet_until_us) {
            state
                .asks
                .arm(state.now_us.max(quiet_until_us), Timer::Drain(owner));
        }
    }

    pub(in super::super) fn progress(&mut self, report: PartitionProgress) -> CoordinatorAnswer {
        let recovery = self.all.values_mut().find(|r| r.id == report.recovery);
        let partition = recovery.and_then(|r| r.partitions.get_mut(report.partition as usize));
        match partition {
            Some(of) if matches!(of.place, Place::Given { to, .. } if to == report.server) => {
                of.progress = (report.bytes, report.bytes_total, report.entries);
                CoordinatorAnswer::Noted
            }
            _ => refused(Refusal::Invalid(
                "no such partition is recovered by this server".to_owned(),
            )),
        }
    }

    /// recovery::Y7: takes the partitions of this recovery back from masters that are unheard. From
    /// now on their reports of these do not count.
    pub(super) fn take_back(&mut self, state: &mut State, dead: ServerId) {
        let now_us = state.now_us;
        let Some(recovery) = self.all.get(&dead) else {
            return;
        };
        let is_due = |(number, partition): (u32, &Partition)| match partition.place {
            Place::Given { to, .. } if state.unheard_us(to).is_some() => Some((number, to)),
            Place::TakenBack { from, asked_us } if now_us >= asked_us + AGAIN_US => {
                Some((number, from))
            }
            _ => None,
        };
        let due = (0..).zip(&recovery.partitions).filter_map(is_due);
        let due: Vec<(u32, ServerId)> = due.collect();
        let recovery = recovery.id;
        for (partition, from) in due {
            if let Some(place) = place_mut(&mut self.all, dead, partition)
                && !has_bug(Bug::TakenBackCounts)
            {
                *place = Place::TakenBack {
                    from,
                    asked_us: now_us,
                };
            }
            let question = FromCoordinator::AbortRecovery {
                recovery,
                partition,
            };
            let kind = CallKind::TakeBack {
                dead,
                recovery,
                partition,
            };
            state.ask(from, question, kind, AGAIN_US);
        }
    }

    /// Handles the end of an order to give a partition back. Another master gets the partition
    /// (recovery::Y3).
    pub(in super::super) fn taken_back(
        &mut self,
        state: &mut State,
        dead: ServerId,
        (id, partition): (RecoveryId, u32),
        from: ServerId,
        answer: Option<(ServerAnswer, Vec<u8>)>,
    ) {
        if !matches!(answer, Some((ServerAnswer::Confirmed { .. }, _))) {
            return self.arm(state, dead, AGAIN_US);
        }
        let of = partition_mut(&mut self.all, dead, (id, partition));
        let is_its = |of: &&mut Partition| {
            let place = &of.place;
            matches!(place, Place::TakenBack { from: by, .. } if *by == from)
        };
        let Some(of) = of.filter(is_its) else {
            return;
        };
        of.place = Place::Waiting;
        of.progress = (0, 0, 0);
        of.not_on.insert(from);
        state.servers.release(state.now_us, from, 0);
        self.settle(state, dead);
        self.give_partitions(state);
    }
}

/// A recovery master could not recover a partition: another one tries it, or the next attempt.
fn failed(
    recovery: Option<&mut Recovery>,
    partition: u32,
    by: ServerId,
    (elsewhere, reason): (bool, String),
) {
    let Some(recovery) = recovery else {
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

/// A partition of this attempt; none if there is a later one (recovery::Y1).
fn partition_mut(
    all: &mut BTreeMap<ServerId, Recovery>,
    dead: ServerId,
    (id, partition): (RecoveryId, u32),
) -> Option<&mut Partition> {
    let recovery = all.get_mut(&dead)?;
    let is_this = recovery.id == id;
    let of = recovery.partitions.get_mut(partition as usize);
    of.filter(|_| is_this)
}

pub(super) fn place_mut(
    all: &mut BTreeMap<ServerId, Recovery>,
    dead: ServerId,
    partition: u32,
) -> Option<&mut Place> {
    let recovery = all.get_mut(&dead)?;
    let partition = recovery.partitions.get_mut(partition as usize)?;
    Some(&mut partition.place)
}

/// A server is not to replay a partition any more, unless its report of it has counted.
pub(super) fn abort_run(state: &mut State, on: ServerId, (recovery, partition): (RecoveryId, u32)) {
    let origin = Origin::Recovered {
        recovery,
        partition,
    };
    if state.tables.is_accepted(on, origin) {
        return;
    }
    let question = FromCoordinator::AbortRecovery {
        recovery,
        partition,
    };
    state.ask(on, question, CallKind::Abort, ASK_AGAIN_US);
}

/// The master that has not yet confirmed that it gives a partition back, for people.
pub(super) fn taken_back_from(recovery: &Recovery) -> Option<String> {
    let partitions = &recovery.partitions;
    let taken = |(number, partition): (u32, &Partition)| match partition.place {
        Place::TakenBack { from, .. } => Some((number, from)),
        _ => None,
    };
    let (number, from) = (0..).zip(partitions).find_map(taken)?;
    Some(format!(
        "server {from} to give partition {number} back: its own requests do not arrive here"
    ))
}
