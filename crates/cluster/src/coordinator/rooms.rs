//! The room of recovery masters: what each may still take, over all recoveries in progress.
//!
//! Members report the bytes that they have and those that they may have. A report that comes during
//! a recovery contains a part of the recovered bytes, and an earlier one contains none. So what was
//! planned for a master counts on top of its last report from a time without any partition, until a
//! report that contains all of it.
//!
//! **Invariants**
//! - recovery::Y4: a partition is given to a master only if what is planned for it, over all
//!   recoveries, fits there. Rooms are advice (coordinator::K9): a partition that has fitted
//!   nowhere for long, while nothing else was recovered, is tried all the same.
//! - recovery::Y5: the room of a machine for its own former life is not given to other logs.
//! - Q1: the bytes of a partition count once: as planned until it ends, and as used afterwards.
//! - Q2: planned bytes are live bytes, as far as the dead server has reported them: its log also
//!   has overwritten versions, which take no room where it is replayed.

use super::{AT_ONCE, State};
use crate::recovery::plan::{self, Limits};
use crate::recovery::{Partition, Place, Recovery};
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{RangeLoad, RecoverTablet, ServerRoom};
use std::collections::BTreeMap;

/// A report that came this long before the end of a master's last partition is current if no other
/// one has followed: members report changes every two seconds.
const SETTLED_US: u64 = 3_000_000;
/// A server that has not reported for this long after it came has no limit: it may run an older
/// program. Until then it is not asked if several logs are recovered, as after a full stop.
const NEW_US: u64 = 3_000_000;
/// A partition that fits nowhere is tried after this time without any other one in progress, if the
/// numbers may well be wrong: nobody has reported the dead server's bytes, or a master's room.
const TRY_GUESSED_US: u64 = 10_000_000;
/// The same time if all have reported. It is longer, because an attempt takes memory that clients'
/// deletes need.
const TRY_REPORTED_US: u64 = 60_000_000;
/// Planned bytes are the reported ones and so many percent more: reports are samples.
const MARGIN_PERCENT: u64 = 5;
/// Recoveries that wait for room look again this long after a report, so that those of several
/// members count together.
pub(super) const NEWS_US: u64 = 50_000;
/// After an attempt without enough space the pause is longer each time, up to [`RETRY_US`] shifted
/// by this.
const RESTS_LONGER: u32 = 3;
/// Number of first attempts that are only cut finer, if the members report room.
const FINER_FIRST: u32 = 4;
/// After a full stop machines come back at about the same time: a log is left to its machine for
/// this long.
pub(super) const HOME_US: u64 = 5_000_000;
/// A master that came back at most this long ago is a sign of a full stop.
const YOUNG_US: u64 = 15_000_000;
/// A log of at most so many partitions is read by its own machine alone: that keeps its tablets
/// together and where they were. Longer ones are read by all, which is faster.
const HOME_PARTITIONS: u64 = 16;
/// The data of a machine's former life fits there. Reported bytes are samples: if they are above
/// the machine's limit by more than this part, it has less memory now.
const HOME_SLACK: u64 = 10;
/// Most tablets of a partition for the own machine: each request for entries has all of them.
const HOME_TABLETS: usize = 4096;
/// Rules are applied at least this often; also the pause after a failed attempt.
pub(super) const RETRY_US: u64 = 2_000_000;

/// A master recovers several partitions at once only if they may be at least this many segments
/// long: each partition fills a segment on R disks only in part, so many short ones at once would
/// fill the disks with nothing.
const SEGMENTS_AT_ONCE: u64 = 8;

/// A master's room.
pub(super) struct Room {
    report: Option<ServerRoom>,
    reported_us: u64,
    /// When it came into the list here.
    since_us: u64,
    /// When it enlisted, as another life of an earlier server.
    returned_us: Option<u64>,
    /// The bytes in use when it got the first of its present partitions, and the planned bytes of
    /// those that it has recovered since.
    before_bytes: u64,
    done_bytes: u64,
    /// When the last of its partitions ended.
    idle_us: u64,
}

impl Room {
    pub(super) fn new(now_us: u64) -> Room {
        Room {
            report: None,
            reported_us: 0,
            since_us: now_us,
            returned_us: None,
            before_bytes: 0,
            done_bytes: 0,
            idle_us: 0,
        }
    }

    pub(super) fn returns(&mut self, now_us: u64) {
        self.returned_us = Some(now_us);
    }

    pub(super) fn report(&self) -> Option<ServerRoom> {
        self.report
    }

    pub(super) fn reports(&mut self, now_us: u64, report: ServerRoom) {
        (self.report, self.reported_us) = (Some(report), now_us);
    }

    /// The master gets the first of its present partitions.
    pub(super) fn begins(&mut self, now_us: u64) {
        self.before_bytes = self.used_bytes(now_us, 0, 0);
        self.done_bytes = 0;
    }

    /// One of its partitions was recovered.
    pub(super) fn gains(&mut self, planned_bytes: u64) {
        self.done_bytes = self.done_bytes.saturating_add(planned_bytes);
    }

    /// The last of its partitions has ended.
    pub(super) fn rests(&mut self, now_us: u64) {
        self.idle_us = now_us;
    }

    /// Q1: the bytes in use, without the `given` bytes of the `recovering` partitions in progress.
    fn used_bytes(&self, now_us: u64, recovering: u32, given: u64) -> u64 {
        let Some(report) = self.report else { return 0 };
        let is_newer = self.reported_us > self.idle_us || now_us >= self.idle_us + SETTLED_US;
        if recovering == 0 && is_newer {
            let twice = has_bug(Bug::DoneCountsTwice);
            return report.used_bytes + if twice { self.done_bytes } else { 0 };
        }
        let planned = self.before_bytes.saturating_add(self.done_bytes);
        planned.max(report.used_bytes.saturating_sub(given))
    }
}

/// The room that all recovery masters still have.
pub(super) struct Rooms {
    /// The room that is left on each master; unlimited if the master has not reported.
    left: BTreeMap<ServerId, u64>,
    /// The part of that which is kept for the logs of a machine's former lives (recovery::Y5).
    kept: BTreeMap<ServerId, Vec<(ServerId, u64)>>,
}

impl Rooms {
    /// Whether so many bytes of this log fit on a master (recovery::Y4).
    pub(super) fn fits(&self, dead: ServerId, master: ServerId, bytes: u64) -> bool {
        self.left_for(dead, master) >= bytes || has_bug(Bug::RoomIsIgnored)
    }

    /// The room that a master has for this log.
    fn left_for(&self, dead: ServerId, master: ServerId) -> u64 {
        let left = self.left.get(&master).copied().unwrap_or(0);
        let kept = self.kept.get(&master).into_iter().flatten();
        let kept = kept.filter(|(log, _)| *log != dead && !has_bug(Bug::HomeRoomGiven));
        kept.fold(left, |left, (_, bytes)| left.saturating_sub(*bytes))
    }

    /// Whether a master may have room for so many bytes of any log.
    pub(super) fn fits_any(&self, master: ServerId, bytes: u64) -> bool {
        self.fits(master, master, bytes) || self.kept.contains_key(&master)
    }

    pub(super) fn take(&mut self, dead: ServerId, master: ServerId, bytes: u64) {
        for (log, kept) in self.kept.get_mut(&master).into_iter().flatten() {
            if *log == dead {
                *kept = kept.saturating_sub(bytes);
            }
        }
        if let Some(left) = self.left.get_mut(&master).filter(|left| **left < u64::MAX) {
            *left = left.saturating_sub(bytes);
        }
    }

    /// The master of these that gets a partition: the first one with room for it.
    pub(super) fn first(
        &self,
        free: &[ServerId],
        dead: ServerId,
        partition: &Partition,
    ) -> Option<usize> {
        let may = |id: &ServerId| !partition.not_on.contains(id);
        free.iter()
            .position(|id| may(id) && self.fits(dead, *id, partition.bytes))
    }

    /// Whether any master has room for the partition, even one that cannot begin it now.
    pub(super) fn has_any(&self, dead: ServerId, partition: &Partition) -> bool {
        let mut masters = self.left.keys();
        masters.any(|id| !partition.not_on.contains(id) && self.fits(dead, *id, partition.bytes))
    }

    fn sum(&self) -> u64 {
        self.left
            .values()
            .fold(0, |sum, left| sum.saturating_add(*left))
    }

    fn all_known(&self) -> bool {
        self.left.values().all(|left| *left < u64::MAX)
    }
}

impl State {
    /// The present life of a dead server's machine, if it may get tablets.
    pub(super) fn home_of(&self, dead: ServerId) -> Option<ServerId> {
        let disk = self.servers.get(&dead)?.record.entry.disk;
        let home = self.servers.with_disk(disk).filter(|_| disk != 0)?;
        let entry = &self.servers.get(&home)?.record.entry;
        let may = entry.roles.master && !entry.draining;
        (may && self.unheard_us(home).is_none()).then_some(home)
    }

    /// Whether most masters that are up have just come back.
    pub(super) fn is_after_full_stop(&self) -> bool {
        let returned_us = |id: ServerId| self.servers.get(&id)?.room.returned_us;
        let is_young = |id: &ServerId| {
            returned_us(*id).is_some_and(|at_us| self.now_us < at_us.saturating_add(YOUNG_US))
        };
        2 * self.servers.masters().filter(is_young).count() > self.servers.masters_count()
    }
}

/// The masters, rooms and frames for all recoveries in progress, by the members' reports.
#[derive(Clone, Copy)]
pub(super) struct Planner<'c> {
    state: &'c State,
    recoveries: &'c BTreeMap<ServerId, Recovery>,
}

impl<'c> Planner<'c> {
    pub(super) fn new(
        state: &'c State,
        recoveries: &'c BTreeMap<ServerId, Recovery>,
    ) -> Planner<'c> {
        Planner { state, recoveries }
    }

    pub(super) fn state(&self) -> &'c State {
        self.state
    }

    /// Whether a partition is being recovered: reports contain a part of what it takes.
    pub(super) fn is_in_progress(&self) -> bool {
        self.recoveries.values().any(Recovery::has_given)
    }

    /// The room of all recovery masters together.
    pub(super) fn room(&self) -> u64 {
        self.rooms().sum()
    }

    pub(super) fn rooms(&self) -> Rooms {
        let mut given: BTreeMap<ServerId, u64> = BTreeMap::new();
        for partition in self.recoveries.values().flat_map(|of| &of.partitions) {
            if let Some(to) = partition.place.master() {
                let sum = given.entry(to).or_default();
                *sum = sum.saturating_add(partition.bytes);
            }
        }
        let room_of = |id: ServerId| {
            let server = self.state.servers.get(&id)?;
            let (room, given) = (&server.room, given.get(&id).copied().unwrap_or(0));
            let left = match room.report {
                Some(report) => {
                    let used = room.used_bytes(self.state.now_us, server.recovering, given);
                    report
                        .limit_bytes
                        .saturating_sub(used.saturating_add(given))
                }
                None if self.may_report_soon(id) => 0,
                None => u64::MAX,
            };
            Some((id, left))
        };
        let left = self.state.recovery_masters().filter_map(room_of).collect();
        let mut kept: BTreeMap<ServerId, Vec<(ServerId, u64)>> = BTreeMap::new();
        for (dead, recovery) in self.recoveries {
            if let Some(home) = self.state.home_of(*dead) {
                kept.entry(home)
                    .or_default()
                    .push((*dead, recovery.waiting_bytes()));
            }
        }
        Rooms { left, kept }
    }

    /// Whether a server without a report is so new, and so many logs are recovered, that its report
    /// is waited for.
    pub(super) fn may_report_soon(&self, id: ServerId) -> bool {
        let since_us = self
            .state
            .servers
            .get(&id)
            .map_or(0, |server| server.room.since_us);
        self.recoveries.len() > 1 && self.state.now_us < since_us + NEW_US
    }

    /// Whether all tablets of a dead server go to its own machine: the data that it held before
    /// fits there, at least while its present life has nothing else.
    pub(super) fn goes_home(&self, dead: ServerId, tablets: usize) -> bool {
        let (Some(home), Some(recovery)) = (self.state.home_of(dead), self.recoveries.get(&dead))
        else {
            return false;
        };
        let server = &self.state.servers[&home];
        let is_empty = self.state.tables.tablets_owned(home) == 0 && server.recovering == 0;
        let is_known = server.room.report.is_some();
        let has_room = || is_known && self.rooms().fits(dead, home, recovery.planned);
        let most = self.state.meta.settings.partition_bytes;
        let is_short = recovery.planned <= most.saturating_mul(HOME_PARTITIONS);
        let is_one_of_many = 2 * self.recoveries.len() >= self.state.servers.masters_count();
        // The machine may have less memory now.
        let limit = server.room.report.map_or(u64::MAX, |room| room.limit_bytes);
        let counted = self
            .state
            .servers
            .get(&dead)
            .map_or(0, |s| s.loads.sums().0);
        let is_smaller = counted > limit.saturating_add(limit / HOME_SLACK);
        (is_short || is_one_of_many)
            && tablets <= HOME_TABLETS
            && !is_smaller
            && recovery.finer == 0
            && (!recovery.unlucky.contains(&home) || !self.fits_elsewhere(dead))
            && (is_empty || has_room())
    }

    /// Whether masters that have not failed to read a log have room for all of it.
    fn fits_elsewhere(&self, dead: ServerId) -> bool {
        let Some(recovery) = self.recoveries.get(&dead) else {
            return false;
        };
        let rooms = self.rooms();
        let lucky = rooms
            .left
            .keys()
            .filter(|id| !recovery.unlucky.contains(id));
        let sum = lucky.fold(0u64, |sum, id| {
            sum.saturating_add(rooms.left_for(dead, *id))
        });
        sum >= recovery.planned
    }

    /// The end of the time for which a dead server's log is left to its absent machine, if most
    /// masters that are up have just come back.
    pub(super) fn left_to_home_us(&self, dead: ServerId) -> Option<u64> {
        let recovery = self.recoveries.get(&dead)?;
        let until_us = recovery.since_us + HOME_US;
        let has_machine = self.state.servers.get(&dead)?.record.entry.disk != 0;
        let waits =
            has_machine && self.state.home_of(dead).is_none() && self.state.is_after_full_stop();
        (waits && self.state.now_us < until_us).then_some(until_us)
    }

    /// A dead server whose machine is back, or is gone. Its partition is given to that machine, or
    /// all that is left is planned anew.
    pub(super) fn changes_home(&self) -> Option<ServerId> {
        let changes = |(dead, recovery): &(&ServerId, &Recovery)| {
            if recovery.log.is_none() || recovery.has_given() {
                return false;
            }
            let mut waiting = recovery.partitions.iter();
            let mut waiting = waiting.by_ref().filter(|of| of.place == Place::Waiting);
            match waiting.any(|of| of.is_home) {
                true => {
                    self.state.home_of(**dead).is_none() && self.left_to_home_us(**dead).is_none()
                }
                false => {
                    let tablets = self.state.tables.tablets_owned(**dead);
                    recovery.lacks.is_some() && self.goes_home(**dead, tablets)
                }
            }
        };
        self.recoveries.iter().find(changes).map(|(dead, _)| *dead)
    }

    /// Whether the dead server's machine can be given its partition.
    pub(super) fn takes_home(&self, dead: ServerId, partition: &Partition) -> Option<ServerId> {
        let home = self.state.home_of(dead)?;
        let server = self.state.servers.get(&home)?;
        let fits = || self.rooms().fits(dead, home, partition.bytes);
        let may = server.busy_until_us <= self.state.now_us
            && !partition.not_on.contains(&home)
            && (server.recovering == 0 || server.recovering < AT_ONCE && fits());
        may.then_some(home)
    }

    /// Most bytes of a partition: the settings' limit, reduced by the number of masters and by
    /// their room; and whether all of `planned` bytes fit then.
    pub(super) fn partition_limits(&self, dead: ServerId, planned: u64) -> (Limits, bool) {
        let settings = &self.state.meta.settings;
        let rooms = self.rooms();
        let masters = rooms.left.keys();
        let rooms: Vec<u64> = masters.map(|id| rooms.left_for(dead, *id)).collect();
        let least = u64::from(settings.segment_bytes);
        let most = settings.partition_bytes;
        let (bytes, fits) = plan::partition_bytes(planned, &rooms, most, least);
        let finer = self.recoveries.get(&dead).map_or(0, |of| of.finer);
        let shorter = bytes.checked_shr(finer).unwrap_or(0);
        let limits = Limits {
            // Partitions that do not fit would be cut in halves again and again. But each partition
            // costs a segment on R disks, and messages.
            bytes: shorter.max(least.min(bytes)),
            records: settings.partition_records,
            within_slots: finer > 0,
        };
        (limits, fits)
    }

    /// The bytes that the dead server has reported of a partition, by range.
    pub(super) fn loads_of(&self, dead: ServerId, partition: u32) -> Vec<RangeLoad> {
        let recovery = self.recoveries.get(&dead);
        let of = recovery.and_then(|of| of.partitions.get(partition as usize));
        let tablets = of.map_or(&[][..], |of| &of.tablets);
        let server = self.state.servers.get(&dead);
        let loads = server.map_or(&[][..], |s| s.loads.ranges());
        let pieces = plan::uncut(tablets, loads, 0).into_iter();
        let known = pieces.filter(|piece| piece.bytes > 0);
        let load = |piece: plan::Piece| RangeLoad {
            table: piece.tablet.table,
            range: piece.tablet.range,
            bytes: piece.bytes,
            records: piece.records,
        };
        known.map(load).collect()
    }

    /// Q2: the bytes that a dead server's tablets will take, of a log of this length.
    pub(super) fn planned_bytes(
        &self,
        dead: ServerId,
        tablets: &[RecoverTablet],
        log_bytes: u64,
    ) -> u64 {
        match self.counted_bytes(dead, tablets) {
            0 => log_bytes,
            counted => counted.min(log_bytes),
        }
    }

    /// The same bytes without a log; 0 if nobody has reported them.
    pub(super) fn counted_bytes(&self, dead: ServerId, tablets: &[RecoverTablet]) -> u64 {
        let server = self.state.servers.get(&dead);
        let loads = server.map_or(&[][..], |s| s.loads.ranges());
        let counted = plan::counted(tablets, loads);
        counted.saturating_add(counted / 100 * MARGIN_PERCENT)
    }

    /// The partition that is tried although it fits nowhere, as nothing else is in progress, and
    /// the master with most room.
    pub(super) fn last_resort(&self, rooms: &Rooms) -> Option<(ServerId, u32, ServerId)> {
        let is_given = |of: &Partition| matches!(of.place, Place::Given { .. });
        let mut all = self.recoveries.values().flat_map(|of| &of.partitions);
        if all.any(is_given) {
            return None;
        }
        let is_due = |(dead, recovery): &(&ServerId, &Recovery)| {
            let counted = self
                .state
                .servers
                .get(dead)
                .is_some_and(|s| s.loads.sums().0 > 0);
            let after_us = match counted && rooms.all_known() {
                true => TRY_REPORTED_US,
                false => TRY_GUESSED_US,
            };
            let since_us = recovery.lacks.map(|(_, since_us)| since_us);
            since_us.is_some_and(|since_us| self.state.now_us >= since_us + after_us)
        };
        let is_free = |id: &ServerId| self.state.servers[id].busy_until_us <= self.state.now_us;
        let due = self.recoveries.iter().filter(is_due);
        let mut waiting = due.flat_map(|(dead, recovery)| {
            let partitions = (0..).zip(&recovery.partitions);
            partitions.map(move |(number, of)| (*dead, number, of))
        });
        waiting.find_map(|(dead, number, of)| {
            if of.place != Place::Waiting || of.is_home {
                return None;
            }
            let may = |id: &&ServerId| !of.not_on.contains(id) && is_free(id);
            let most = rooms
                .left
                .keys()
                .filter(may)
                .max_by_key(|id| rooms.left[id])?;
            Some((dead, number, *most))
        })
    }

    /// A recovery whose partitions fit nowhere, with nothing in progress, that would fit if they
    /// were cut shorter.
    pub(super) fn fits_if_shorter(&self) -> Option<ServerId> {
        let fits = |(dead, recovery): &(&ServerId, &Recovery)| {
            let Some(log) = recovery.log.as_ref().filter(|_| recovery.lacks.is_some()) else {
                return false;
            };
            if recovery.has_given() {
                return false;
            }
            let planned =
                self.planned_bytes(**dead, &self.state.tables.lost_tablets(**dead), log.bytes());
            let (limits, fits) = self.partition_limits(**dead, planned);
            fits && limits.bytes < recovery.cut_bytes
        };
        self.recoveries.iter().find(fits).map(|(dead, _)| *dead)
    }

    /// The reason why partitions wait, for people.
    pub(super) fn lacks_text(&self, dead: ServerId, bytes: u64) -> String {
        let rooms = self.rooms().left;
        let known = rooms.values().filter(|left| **left < u64::MAX);
        let (up, left) = (rooms.len(), known.sum());
        format!(
            "room for {}: the {up} servers that are up have {} left. Start server {dead} again, \
             add a server, or delete data",
            mebibytes(bytes),
            mebibytes(left)
        )
    }

    /// Masters with free places, once for each place; those without a partition come first. A place
    /// has room for at least `least` bytes. There are enough for `count` partitions, each of which
    /// was tried on at most `most` masters, unless all masters together have fewer.
    pub(super) fn free_places(
        &self,
        rooms: &Rooms,
        least: u64,
        count: usize,
        most: usize,
    ) -> Vec<ServerId> {
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

    pub(super) fn place_bytes(&self, dead: ServerId, partition: u32) -> u64 {
        let recovery = self.recoveries.get(&dead);
        let of = recovery.and_then(|of| of.partitions.get(partition as usize));
        of.map_or(0, |partition| partition.bytes)
    }
}

/// Notes for each recovery what fits nowhere: bytes, and since when.
pub(super) fn note_lacks(
    recoveries: &mut BTreeMap<ServerId, Recovery>,
    now_us: u64,
    rooms: &Rooms,
) {
    for (dead, recovery) in recoveries {
        let waiting = recovery.partitions.iter();
        let waiting = waiting
            .filter(|of| of.place == Place::Waiting && !of.is_home && !rooms.has_any(*dead, of));
        let bytes = waiting.fold(0u64, |sum, of| sum.saturating_add(of.bytes));
        recovery.lacks = match recovery.lacks {
            _ if bytes == 0 => None,
            Some((_, since_us)) => Some((bytes, since_us)),
            None => Some((bytes, now_us)),
        };
    }
}

/// Sets the pause before the next attempt. `room`: of all recovery masters.
pub(super) fn rest(recovery: &mut Recovery, now_us: u64, room: u64) {
    let has_room = room >= recovery.lacking;
    let longer = match has_room {
        true => recovery.in_vain.saturating_sub(FINER_FIRST),
        false => recovery.in_vain.saturating_sub(1),
    };
    recovery.room = room;
    recovery.rest_until_us = now_us + (RETRY_US << longer.min(RESTS_LONGER));
}

/// Ends a pause early when a server reports that there is room now. A pause that waits for an
/// operator (losses::O3) does not end: rooms grow all the time.
pub(super) fn rest_less(recovery: &mut Recovery, now_us: u64, room: u64) {
    let has_room = room > recovery.room && room >= recovery.lacking;
    if has_room && recovery.losses.is_empty() {
        recovery.rest_until_us = recovery.rest_until_us.min(now_us);
    }
}

pub(super) fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
