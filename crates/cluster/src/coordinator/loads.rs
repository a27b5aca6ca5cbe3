//! The members' reports: loads of their ranges, room, speed of the disk. All of them are advice
//! (coordinator::K9).
//!
//! **Rules**
//! - W1: the loads by which a recovery is partitioned are stored, so a new leader partitions as
//!   well as the last one: one record for each server in the list, of at most [`STORED_LOADS_MAX`]
//!   ranges, which is deleted with the server.
//! - W2: they are stored only if they have changed much since they were stored last: if more than a
//!   quarter of the bytes, and more than a segment, are elsewhere. A server's record is written at
//!   most once every [`STORE_US`]. A batch, at most one every [`NEXT_BATCH_US`], has those that
//!   have waited longest, and at most [`SERVERS_AT_ONCE`] and about [`RANGES_AT_ONCE`] ranges. So
//!   a cluster of any size writes at most 0.2 MB of them in a second: etcd keeps all that was
//!   written in the last minutes.
//!
//! Paper: [Ousterhout15 §7.4] (tablet statistics); differs: they are in the coordinator's store and
//! not in the master's log, as only the coordinator reads them.

use super::records::{self, Key};
use super::{State, Timer, invalid};
use crate::speed::differs;
use duramen_base::ids::{KeyRange, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{CoordinatorAnswer, Means, RangeLoad};

/// Most ranges in a server's report of its load.
const LOADS_MAX: usize = 1 << 16;
/// Most ranges of a stored report, about 30 bytes each: enough for partitions of an even size. A
/// longer report is made coarser.
const STORED_LOADS_MAX: usize = 512;
/// Shortest time between two writes of a server's loads, in microseconds. A report that changed
/// much waits for it too, so that a table that is being filled is not stored at its begin.
const STORE_US: u64 = 10_000_000;
/// Most records in one batch, and the number of ranges from which on it gets no more records: it
/// must not delay other changes much.
const SERVERS_AT_ONCE: usize = 32;
const RANGES_AT_ONCE: usize = 4096;
/// Pause between two such batches, in microseconds.
const NEXT_BATCH_US: u64 = 1_000_000;

/// The loads of a member's ranges.
#[derive(Default)]
pub(super) struct Loads {
    ranges: Vec<RangeLoad>,
    /// The sums of the loads: bytes, records.
    sums: (u64, u64),
    /// The loads as they are stored, or are about to be; empty if none are.
    stored: Vec<RangeLoad>,
    /// When they may be stored; `None`: they have not changed much.
    due_us: Option<u64>,
}

impl Loads {
    fn new(ranges: Vec<RangeLoad>) -> Loads {
        let mut new = Loads::default();
        new.report(ranges);
        new
    }

    fn report(&mut self, ranges: Vec<RangeLoad>) {
        let sum = |of: fn(&RangeLoad) -> u64| ranges.iter().map(of).fold(0, u64::saturating_add);
        self.sums = (sum(|load| load.bytes), sum(|load| load.records));
        self.ranges = ranges;
    }

    /// The member has recovered these ranges: they count until its next report, which contains
    /// them.
    pub(super) fn gain(&mut self, gained: impl IntoIterator<Item = RangeLoad>) {
        let ranges = std::mem::take(&mut self.ranges);
        self.report(ranges.into_iter().chain(gained).take(LOADS_MAX).collect());
    }

    /// This range has left: its loads do not count here any more. A load that is only partly in the
    /// range is cut in proportion. Returns the loads of the range.
    pub(super) fn lose(&mut self, table: TableId, range: KeyRange) -> Vec<RangeLoad> {
        let (mut left, mut kept) = (Vec::new(), Vec::new());
        for load in std::mem::take(&mut self.ranges) {
            let common = load.range.intersection(&range);
            let Some(common) = common.filter(|_| load.table == table) else {
                kept.push(load);
                continue;
            };
            let (below, rest) = match load.range.split(common.first) {
                Some((below, rest)) => (Some(below), rest),
                None => (None, load.range),
            };
            let next = common.last.next();
            let above = next.and_then(|next| Some(rest.split(next)?.1));
            let others = below.into_iter().chain(above);
            kept.extend(others.map(|other| load_of(&load, other)));
            left.push(load_of(&load, common));
        }
        self.report(kept);
        left
    }

    pub(super) fn ranges(&self) -> &[RangeLoad] {
        &self.ranges
    }

    /// All bytes and records.
    pub(super) fn sums(&self) -> (u64, u64) {
        self.sums
    }

    pub(super) fn is_stored(&self) -> bool {
        !self.stored.is_empty()
    }
}

/// The load of a part of its range.
fn load_of(load: &RangeLoad, range: KeyRange) -> RangeLoad {
    let width = |of: KeyRange| u128::from(of.last.0 - of.first.0) + 1;
    let part = |of: u64| u128::from(of) * width(range) / width(load.range);
    RangeLoad {
        range,
        bytes: part(load.bytes) as u64,
        records: part(load.records) as u64,
        ..*load
    }
}

/// The loads that are to be stored.
#[derive(Default)]
pub(super) struct Storing {
    /// Whether the timer is armed.
    is_armed: bool,
}

impl Storing {
    /// A member reports the loads of its ranges.
    pub(super) fn report(
        &mut self,
        state: &mut State,
        server: ServerId,
        ranges: Vec<RangeLoad>,
    ) -> CoordinatorAnswer {
        if ranges.len() > LOADS_MAX {
            return invalid(format!("more than {LOADS_MAX} ranges"));
        }
        let least = u64::from(state.meta.settings.segment_bytes);
        if let Some(member) = state.servers.get_mut(&server) {
            let loads = &mut member.loads;
            loads.report(ranges);
            let is_much = has_changed_much(&loads.stored, &coarse(&loads.ranges), least);
            match is_much && !has_bug(Bug::LoadsNotStored) {
                true if loads.due_us.is_none() => {
                    let due_us = state.now_us + STORE_US;
                    loads.due_us = Some(due_us);
                    self.store_at(state, due_us);
                }
                true => {}
                false => loads.due_us = None,
            }
        }
        CoordinatorAnswer::Noted
    }

    /// Arms the timer, which is one for all servers.
    fn store_at(&mut self, state: &mut State, at_us: u64) {
        if !std::mem::replace(&mut self.is_armed, true) {
            state.asks.arm(at_us, Timer::Loads);
        }
    }

    /// Stores the loads that are due (W2).
    pub(super) fn store(&mut self, state: &mut State) {
        self.is_armed = false;
        let now_us = state.now_us;
        let due = state.servers.iter();
        let due = due.filter_map(|(id, server)| Some((server.loads.due_us?, *id)));
        let mut due: Vec<(u64, ServerId)> = due.filter(|(at_us, _)| *at_us <= now_us).collect();
        due.sort_unstable();
        let mut ranges = 0;
        for (_, id) in due.into_iter().take(SERVERS_AT_ONCE) {
            let Some(server) = state.servers.get_mut(&id) else {
                continue;
            };
            if ranges >= RANGES_AT_ONCE {
                break;
            }
            server.loads.due_us = None;
            let record = coarse(&server.loads.ranges);
            server.loads.stored.clone_from(&record);
            ranges += record.len();
            match record.is_empty() {
                true => state.records.delete(Key::Loads(id)),
                false => state.records.put(Key::Loads(id), &record),
            }
        }
        let next_us = state.servers.values().filter_map(|s| s.loads.due_us).min();
        if let Some(next_us) = next_us {
            self.store_at(state, next_us.max(now_us + NEXT_BATCH_US));
        }
    }
}

/// A new leader takes over the stored loads of this server. Loads of a server that is not in the
/// list are deleted: an older program, which does not know them, has removed the server.
pub(super) fn adopt(state: &mut State, id: ServerId, value: &[u8]) {
    let ranges: Option<Vec<RangeLoad>> = records::decode(value);
    let is_sound = |load: &RangeLoad| load.range.first <= load.range.last;
    let ranges = ranges.filter(|ranges| ranges.iter().all(is_sound));
    match (state.servers.get_mut(&id), ranges) {
        (Some(server), Some(ranges)) => {
            server.loads = Loads::new(ranges);
            server.loads.stored = server.loads.ranges.clone();
        }
        _ => state.records.delete(Key::Loads(id)),
    }
}

impl State {
    /// A member reports the speed of its disk. If it is news (speed::B1), all masters are told, and
    /// place replicas by it.
    pub(super) fn read_speed(&mut self, server: ServerId, bytes_per_s: u64) -> CoordinatorAnswer {
        let member = self.servers.get(&server);
        let known = member.map(|member| member.record.entry.read_bytes_per_s);
        if known.is_some_and(|known| differs(known, bytes_per_s)) {
            self.change_member(server, |entry| entry.read_bytes_per_s = bytes_per_s);
        }
        CoordinatorAnswer::Noted
    }

    /// A member reports what it was given, and what its log lacks.
    pub(super) fn means(&mut self, means: Means) -> CoordinatorAnswer {
        if let Some(member) = self.servers.get_mut(&means.server) {
            member.means = Some(means);
        }
        CoordinatorAnswer::Noted
    }
}

/// The loads in at most [`STORED_LOADS_MAX`] ranges, in order: neighbours of one table are added
/// up. With more tables than that the smallest ranges are left out: a recovery spreads bytes that
/// were not counted.
fn coarse(ranges: &[RangeLoad]) -> Vec<RangeLoad> {
    let mut all: Vec<RangeLoad> = ranges.to_vec();
    all.sort_unstable_by_key(|load| (load.table, load.range));
    let tables = all.chunk_by(|one, next| one.table == next.table).count();
    // Each table has one sum more than its share, for the rest.
    let sums = STORED_LOADS_MAX.saturating_sub(tables).max(1);
    let together = match all.len() {
        0..=STORED_LOADS_MAX => 1,
        count => count.div_ceil(sums),
    };
    let mut coarse: Vec<RangeLoad> = Vec::new();
    let mut count = 0;
    for load in all {
        match coarse
            .last_mut()
            .filter(|last| last.table == load.table && count < together)
        {
            Some(last) => {
                last.range = KeyRange::new(last.range.first, last.range.last.max(load.range.last));
                last.bytes = last.bytes.saturating_add(load.bytes);
                last.records = last.records.saturating_add(load.records);
                count += 1;
            }
            None => {
                coarse.push(load);
                count = 1;
            }
        }
    }
    if coarse.len() > STORED_LOADS_MAX {
        coarse.sort_unstable_by_key(|load| std::cmp::Reverse(load.bytes));
        coarse.truncate(STORED_LOADS_MAX);
        coarse.sort_unstable_by_key(|load| (load.table, load.range));
    }
    coarse
}

/// Whether more than a quarter of the stored bytes, and more than `least`, came, left or moved
/// (W2). Both lists are in order.
fn has_changed_much(stored: &[RangeLoad], now: &[RangeLoad], least: u64) -> bool {
    let place = |load: &RangeLoad| (load.table, load.range);
    let sum = |loads: &[RangeLoad]| {
        loads
            .iter()
            .fold(0u64, |sum, l| sum.saturating_add(l.bytes))
    };
    let (mut moved, mut rest) = (0u64, now);
    for load in stored {
        let (new, others) = rest.split_at(rest.partition_point(|new| place(new) < place(load)));
        let same = others.first().filter(|other| place(other) == place(load));
        let change = load.bytes.abs_diff(same.map_or(0, |same| same.bytes));
        moved = moved.saturating_add(sum(new)).saturating_add(change);
        rest = &others[usize::from(same.is_some())..];
    }
    moved = moved.saturating_add(sum(rest));
    moved > least && moved > sum(stored) / 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::ids::RouteHash;

    fn load(table: u32, part: u64, bytes: u64) -> RangeLoad {
        RangeLoad {
            table: TableId(table),
            range: KeyRange::new(RouteHash(part << 40), RouteHash((part << 40) + 99)),
            bytes,
            records: 1,
        }
    }

    #[test]
    fn a_short_report_stays_and_a_long_one_is_bounded_and_keeps_its_sums() {
        let short: Vec<RangeLoad> = (0..STORED_LOADS_MAX as u64)
            .map(|n| load(1, n, n))
            .collect();
        assert!(coarse(&short) == short);
        for (tables, parts) in [(1, 4_000), (3, 1_000), (200, 20)] {
            let long: Vec<RangeLoad> = (0..tables)
                .flat_map(|table| {
                    (0..parts)
                        .rev()
                        .map(move |part| load(table, part, part + 1))
                })
                .collect();
            let coarse = coarse(&long);
            assert!(coarse.len() <= STORED_LOADS_MAX, "{tables} {parts}");
            let sum = |loads: &[RangeLoad]| loads.iter().map(|load| load.bytes).sum::<u64>();
            assert_eq!(sum(&coarse), sum(&long), "{tables} {parts}");
            assert!(coarse.windows(2).all(|two| {
                two[0].table < two[1].table || two[0].range.last < two[1].range.first
            }));
        }
        // More tables than ranges: the largest are kept.
        let many: Vec<RangeLoad> = (0..2_000)
            .map(|table| load(table, 0, table.into()))
            .collect();
        let kept = coarse(&many);
        assert_eq!(kept.len(), STORED_LOADS_MAX);
        assert!(
            kept.iter()
                .all(|load| load.bytes >= 2_000 - STORED_LOADS_MAX as u64)
        );
    }

    #[test]
    fn a_range_that_leaves_takes_its_part_of_the_loads_along() {
        let mut loads = Loads::new(vec![load(1, 0, 600), load(1, 1, 400), load(2, 0, 50)]);
        let range = KeyRange::new(RouteHash(25), RouteHash(74));
        let left = loads.lose(TableId(1), range);
        assert_eq!(left.iter().map(|load| load.bytes).sum::<u64>(), 300);
        assert!(left.iter().all(|load| load.range == range));
        assert_eq!(loads.sums().0, 750);
        let kept: Vec<u64> = loads.ranges().iter().map(|load| load.bytes).collect();
        assert_eq!(kept, [150, 150, 400, 50]);
        let all = KeyRange::ALL;
        assert_eq!(loads.lose(TableId(2), all), [load(2, 0, 50)]);
        assert_eq!(loads.lose(TableId(1), all).len(), 3);
        assert_eq!((loads.sums(), loads.ranges().len()), ((0, 0), 0));
    }

    #[test]
    fn a_quarter_of_the_bytes_and_a_segment_must_change() {
        let stored = [load(1, 0, 600), load(1, 1, 400)];
        assert!(!has_changed_much(&stored, &stored, 0));
        assert!(!has_changed_much(
            &stored,
            &[load(1, 0, 850), load(1, 1, 400)],
            0
        ));
        assert!(has_changed_much(
            &stored,
            &[load(1, 0, 851), load(1, 1, 400)],
            0
        ));
        assert!(!has_changed_much(
            &stored,
            &[load(1, 0, 851), load(1, 1, 400)],
            251
        ));
        // Other ranges, in front, between and behind.
        let split = [
            load(0, 9, 100),
            load(1, 0, 600),
            load(1, 2, 400),
            load(2, 0, 9),
        ];
        assert!(has_changed_much(&stored, &split, 908));
        assert!(!has_changed_much(&stored, &split, 909));
        // Moved, with the same sum.
        assert!(has_changed_much(
            &stored,
            &[load(1, 0, 400), load(1, 1, 600)],
            0
        ));
        assert!(has_changed_much(&stored, &[], 999) && !has_changed_much(&stored, &[], 1_000));
        assert!(has_changed_much(&[], &stored, 999) && !has_changed_much(&[], &[], 0));
    }
}
