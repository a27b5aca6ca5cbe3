//! The sizes of this server's ranges, for the coordinator: it cuts a dead server's tablets by the
//! last report.
//!
//! A job counts them from a sample from time to time; they are reported when they have changed, or
//! the last report was not answered. Free room is reported too: nothing is moved to a server
//! without room.
//!
//! **Concurrency** none: one owner, the node.
//!
//! Paper: [Ousterhout15 §7.4] (tablet statistics); differs: they are not in the log's head, and not
//! exact.

use crate::effects::Effects;
use crate::job::{Job, JobResult};
use crate::migration::takes_over_max;
use crate::requests::Token;
use duramen::Store;
use duramen_backup::Backup;
use duramen_base::ids::{KeyRange, RouteHash, ServerId, TableId};
use duramen_engine::RANGE_PARTS;
use duramen_wire::native::message::{
    CoordinatorAnswer, RangeLoad, ServerRoom, TabletEntry, Tablets, ToCoordinator,
};
use std::sync::Arc;

/// Time until the first count, and the interval of counts.
const FIRST_US: u64 = 2_000_000;
const COUNT_US: u64 = 10_000_000;

/// The reports of sizes and room; see the module.
pub(crate) struct Loads {
    due_us: u64,
    is_counting: bool,
    counted: Option<Vec<RangeLoad>>,
    told: Vec<RangeLoad>,
    room_every_us: u64,
    room_due_us: u64,
    room_told: Option<ServerRoom>,
    next: u64,
}

impl Loads {
    /// `room_us`: the interval of the reports of free room; 0: never.
    pub fn new(now_us: u64, room_us: u64) -> Loads {
        Loads {
            due_us: now_us + FIRST_US,
            is_counting: false,
            counted: None,
            told: Vec::new(),
            room_every_us: room_us,
            room_due_us: if room_us == 0 { u64::MAX } else { now_us },
            room_told: None,
            next: 0,
        }
    }

    pub fn due_us(&self) -> u64 {
        self.due_us.min(self.room_due_us)
    }

    pub fn poll(
        &mut self,
        now_us: u64,
        me: ServerId,
        tablets: &Tablets,
        (store, backup): (&Arc<Store>, Option<&Backup>),
        out: &mut Effects,
    ) {
        if now_us >= self.room_due_us {
            self.room_due_us = now_us + self.room_every_us;
            let room = room(store, backup);
            if self.room_told != Some(room) {
                self.room_told = Some(room);
                self.next += 1;
                let token = Token::Loads(self.next);
                let server = me;
                out.reports
                    .push((token, ToCoordinator::Room { server, room }));
            }
        }
        if let Some(loads) = self.counted.take()
            && loads != self.told
        {
            self.told.clone_from(&loads);
            self.next += 1;
            let token = Token::Loads(self.next);
            let server = me;
            out.reports
                .push((token, ToCoordinator::Loads { server, loads }));
        }
        if now_us < self.due_us || self.is_counting {
            return;
        }
        self.due_us = now_us + COUNT_US;
        let served = tablets.tablets.iter().filter(|t| t.state.is_served());
        let served: Vec<TabletEntry> = served.copied().collect();
        if served.is_empty() && self.told.is_empty() {
            return;
        }
        self.is_counting = true;
        let store = store.clone();
        out.jobs.push(Job::new("count", move || {
            JobResult::Counted(count(&store, &served))
        }));
    }

    pub fn counted(&mut self, loads: Vec<RangeLoad>) {
        self.is_counting = false;
        self.counted = Some(loads);
    }

    /// The answer of the coordinator; `None`: it was not reached.
    pub fn answered(&mut self, answer: Option<&CoordinatorAnswer>) {
        if !matches!(answer, Some(CoordinatorAnswer::Noted)) {
            self.told.clear(); // it is reported again with the next count
            self.room_told = None;
        }
    }
}

fn room(store: &Store, backup: Option<&Backup>) -> ServerRoom {
    let (stats, log) = (store.engine().stats(), store.log());
    ServerRoom {
        used_bytes: stats.live_bytes,
        limit_bytes: takes_over_max(&stats),
        replicas: backup.map_or(0, |backup| u64::from(backup.stats().replicas)),
        segments_sharing_rack: log.map_or(0, |log| log.placed().segments_sharing_rack as u64),
    }
}

fn count(store: &Arc<Store>, served: &[TabletEntry]) -> Vec<RangeLoad> {
    let mut tables: Vec<TableId> = served.iter().map(|tablet| tablet.table).collect();
    tables.sort();
    tables.dedup();
    let mut loads = Vec::new();
    for table in tables {
        let Ok(statistics) = store.engine().range_statistics(table) else {
            continue; // it is gone, or does not exist yet
        };
        for (part, load) in statistics.parts.iter().enumerate() {
            let cut = |tablet: &TabletEntry| tablet.range.intersection(&part_range(part));
            let mut ranges = served.iter().filter(|t| t.table == table).filter_map(cut);
            // No other range of the part is here: the first range stands for all of the part.
            if let Some(range) = ranges.next().filter(|_| load.entries > 0) {
                loads.push(RangeLoad {
                    table,
                    range,
                    bytes: load.bytes,
                    records: load.entries,
                });
            }
        }
    }
    loads
}

/// The slots of one part.
fn part_range(part: usize) -> KeyRange {
    let slots = (1 << 14) / RANGE_PARTS;
    let first = (part * slots) as u16;
    let last = first + (slots - 1) as u16;
    KeyRange::new(
        RouteHash::first_of_slot(first),
        RouteHash::last_of_slot(last),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_the_whole_hash_space() {
        let mut next = Some(RouteHash::MIN);
        for part in 0..RANGE_PARTS {
            let range = part_range(part);
            assert_eq!(Some(range.first), next);
            next = range.last.next();
        }
        assert_eq!(next, None);
    }
}
