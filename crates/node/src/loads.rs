//! This server's reports to the coordinator: the sizes of its ranges, by which the tablets of a
//! dead server are cut; its room, since nothing is moved to a server without room; the speed of its
//! disk, by which masters place replicas; the free frames of its backup, which decide how many logs
//! are recovered at once.
//!
//! A job counts the sizes from a sample from time to time. Sizes, room and free frames are reported
//! when they have changed, when the last report was not answered, and to each new leader, which
//! does not know them; room also soon after a recovery has ended here. The speed is reported as
//! long as it is news for a reader of the server list (speed::B1), at most once in
//! [`SPEED_AGAIN_US`]: an older coordinator answers that it does not understand it, and the list
//! stays as it is.
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
use duramen_cluster::membership::Members;
use duramen_cluster::speed::differs;
use duramen_engine::RANGE_PARTS;
use duramen_wire::native::message::{
    CoordinatorAnswer, Means, RangeLoad, ServerRoom, TabletEntry, Tablets, ToCoordinator,
};
use std::sync::Arc;

/// Time until the first count, and the interval of counts.
const FIRST_US: u64 = 2_000_000;
const COUNT_US: u64 = 10_000_000;
/// Interval of the looks at free frames; a change by this part of all is news.
const DISK_US: u64 = 500_000;
const DISK_PART: u64 = 32;
/// Segments that the threads of a recovery leave partly empty.
const TAILS: u64 = 2;
/// A change of the room is reported this soon.
const ROOM_SOON_US: u64 = 100_000;
/// Interval of the looks at the disk's speed, and the shortest time between two reports of it.
const SPEED_US: u64 = 10_000_000;
const SPEED_AGAIN_US: u64 = 60_000_000;

/// The reports; see the module.
pub(crate) struct Loads {
    due_us: u64,
    is_counting: bool,
    counted: Option<Vec<RangeLoad>>,
    told: Vec<RangeLoad>,
    room_every_us: u64,
    room_due_us: u64,
    room_told: Option<ServerRoom>,
    /// The coordinator's term.
    term: u32,
    speed_due_us: u64,
    disk_due_us: u64,
    /// Free frames and all frames, as last reported.
    disk_told: Option<(u64, u64)>,
    /// The numbers of the last reports of each kind: a report that failed is sent again, and not
    /// the others.
    sizes_asked: u64,
    room_asked: u64,
    disk_asked: u64,
    /// The bytes that it was given and the segments that lack a copy, as last reported.
    means_told: Option<Means>,
    means_asked: u64,
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
            term: 0,
            speed_due_us: now_us + FIRST_US,
            disk_due_us: if room_us == 0 { u64::MAX } else { now_us },
            disk_told: None,
            sizes_asked: 0,
            room_asked: 0,
            disk_asked: 0,
            means_told: None,
            means_asked: 0,
            next: 0,
        }
    }

    pub fn due_us(&self) -> u64 {
        let due_us = self.due_us.min(self.room_due_us);
        due_us.min(self.speed_due_us).min(self.disk_due_us)
    }

    pub fn poll(
        &mut self,
        now_us: u64,
        (me, members, term): (ServerId, &Members, u32),
        tablets: &Tablets,
        (store, backup): (&Arc<Store>, Option<&Backup>),
        out: &mut Effects,
    ) {
        if self.term != term {
            self.term = term;
            self.room_told = None;
            (self.disk_told, self.means_told) = (None, None);
            self.told.clear();
            self.hasten(now_us);
        }
        if !out.ended.is_empty() {
            self.hasten(now_us);
        }
        if now_us >= self.room_due_us {
            self.room_due_us = now_us + self.room_every_us;
            let room = room(store, backup);
            if self.room_told != Some(room) {
                self.room_told = Some(room);
                let server = me;
                self.room_asked = self.tell(ToCoordinator::Room { server, room }, out);
            }
            self.tell_means(means(me, store), out);
        }
        if now_us >= self.disk_due_us {
            self.disk_due_us = now_us + DISK_US;
            self.tell_disk(me, backup, out);
        }
        if now_us >= self.speed_due_us {
            let is_told = self.tell_speed(me, members, backup, out);
            self.speed_due_us = now_us + if is_told { SPEED_AGAIN_US } else { SPEED_US };
        }
        if let Some(loads) = self.counted.take()
            && loads != self.told
        {
            self.told.clone_from(&loads);
            let server = me;
            self.sizes_asked = self.tell(ToCoordinator::Loads { server, loads }, out);
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

    /// The room is reported soon.
    fn hasten(&mut self, now_us: u64) {
        if self.room_every_us > 0 {
            self.room_due_us = self.room_due_us.min(now_us + ROOM_SOON_US);
        }
    }

    pub fn counted(&mut self, loads: Vec<RangeLoad>) {
        self.is_counting = false;
        self.counted = Some(loads);
    }

    /// Reports the disk's speed if it is news; returns whether it was.
    fn tell_speed(
        &mut self,
        me: ServerId,
        members: &Members,
        backup: Option<&Backup>,
        out: &mut Effects,
    ) -> bool {
        let bytes_per_s = backup.map_or(0, |backup| backup.reader().bytes_per_s());
        let known = members.get(me).map(|entry| entry.read_bytes_per_s);
        let is_news = known.is_some_and(|known| differs(known, bytes_per_s));
        if is_news {
            let server = me;
            let question = ToCoordinator::ReadSpeed {
                server,
                bytes_per_s,
            };
            self.tell(question, out);
        }
        is_news
    }

    /// Reports the free frames if that is news.
    fn tell_disk(&mut self, me: ServerId, backup: Option<&Backup>, out: &mut Effects) {
        let Some(stats) = backup.map(Backup::stats) else {
            return;
        };
        let (free, frames) = (u64::from(stats.frames_free()), u64::from(stats.frames));
        if is_news_of_disk(self.disk_told, free, frames) {
            self.disk_told = Some((free, frames));
            let server = me;
            let question = ToCoordinator::DiskRoom {
                server,
                free,
                frames,
            };
            self.disk_asked = self.tell(question, out);
        }
    }

    fn tell_means(&mut self, means: Means, out: &mut Effects) {
        if self.means_told.replace(means) != Some(means) {
            self.means_asked = self.tell(ToCoordinator::Means(means), out);
        }
    }

    /// Sends a report, and returns its number.
    fn tell(&mut self, question: ToCoordinator, out: &mut Effects) -> u64 {
        self.next += 1;
        out.reports.push((Token::Loads(self.next), question));
        self.next
    }

    /// The coordinator's answer to the report with this number; `None`: it was not reached. A
    /// report that was not noted is sent again when it is due, unless a later one of its kind was
    /// sent.
    pub fn answered(&mut self, number: u64, answer: Option<&CoordinatorAnswer>) {
        if matches!(answer, Some(CoordinatorAnswer::Noted)) {
            return;
        }
        if number == self.sizes_asked {
            self.told.clear();
        }
        if number == self.room_asked {
            self.room_told = None;
        }
        if number == self.disk_asked {
            self.disk_told = None;
        }
        if number == self.means_asked {
            self.means_told = None;
        }
    }
}

/// Whether free frames have changed by more than a part of all since the last report, or have come
/// to an end or begun again: a full disk is one that people have to hear of.
fn is_news_of_disk(told: Option<(u64, u64)>, free: u64, frames: u64) -> bool {
    told.is_none_or(|(told, all)| {
        let is_other = told.abs_diff(free) > frames / DISK_PART;
        all != frames || is_other || (told == 0) != (free == 0)
    })
}

/// The room of this server. Recovered data fills segments of several threads, of which the last
/// ones are not full.
fn room(store: &Store, backup: Option<&Backup>) -> ServerRoom {
    let (stats, log) = (store.engine().stats(), store.log());
    let tails = TAILS * stats.segment_bytes;
    ServerRoom {
        used_bytes: stats.live_bytes,
        limit_bytes: takes_over_max(&stats).min(stats.live_limit_bytes.saturating_sub(tails)),
        replicas: backup.map_or(0, |backup| u64::from(backup.stats().replicas)),
        segments_sharing_rack: log.map_or(0, |log| log.placed().segments_sharing_rack as u64),
    }
}

/// The memory and flash that it was given, and the segments that lack a copy which nobody takes.
fn means(server: ServerId, store: &Store) -> Means {
    let stats = store.engine().stats();
    let memory = stats.segment_budget_bytes.saturating_add(stats.index_bytes);
    let short = store.log().map_or(0, |log| log.placed().segments_short);
    Means {
        server,
        given_bytes: memory.saturating_add(stats.flash.bytes),
        segments_short: short as u64,
    }
}

fn count(store: &Arc<Store>, served: &[TabletEntry]) -> Vec<RangeLoad> {
    let mut tables: Vec<TableId> = served.iter().map(|tablet| tablet.table).collect();
    tables.sort();
    tables.dedup();
    let mut loads = Vec::new();
    for table in tables {
        let Ok(statistics) = store.engine().ranges().statistics(table) else {
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

    /// A report of room that was not answered made the server report its sizes again, too. One of
    /// free frames was not sent again: a new leader, to which it went too early, did not know them.
    #[test]
    fn a_report_that_failed_is_sent_again_and_not_the_others() {
        let (mut loads, mut out) = (Loads::new(0, 1), Effects::default());
        let server = ServerId::new(1, 1);
        let room = ServerRoom {
            used_bytes: 1,
            limit_bytes: 2,
            replicas: 3,
            segments_sharing_rack: 4,
        };
        let sizes = [RangeLoad {
            table: TableId(1),
            range: KeyRange::ALL,
            bytes: 5,
            records: 6,
        }];
        let means = Means {
            server,
            given_bytes: 1,
            segments_short: 2,
        };
        let noted = Some(&CoordinatorAnswer::Noted);
        for answers in 0..16 {
            let answers = [1, 2, 4, 8].map(|kind| noted.filter(|_| answers & kind > 0));
            (loads.told, loads.room_told) = (sizes.to_vec(), Some(room));
            (loads.disk_told, loads.means_told) = (Some((1, 2)), Some(means));
            let mut tell = || loads.tell(ToCoordinator::Room { server, room }, &mut out);
            let (before, of_sizes, of_room) = (tell(), tell(), tell());
            let (of_disk, of_means) = (tell(), tell());
            (loads.sizes_asked, loads.room_asked) = (of_sizes, of_room);
            (loads.disk_asked, loads.means_asked) = (of_disk, of_means);
            loads.answered(before, None); // a report of speed, or an earlier one
            loads.answered(of_sizes, answers[0]);
            loads.answered(of_room, answers[1]);
            loads.answered(of_disk, answers[2]);
            loads.answered(of_means, answers[3]);
            let (sizes, room) = (loads.told.is_empty(), loads.room_told.is_none());
            let (disk, means) = (loads.disk_told.is_none(), loads.means_told.is_none());
            let again = [sizes, room, disk, means];
            assert_eq!(again, answers.map(|answer| answer.is_none()));
        }
    }

    /// The last frames of a disk went in small steps, and the coordinator never heard that none was
    /// left.
    #[test]
    fn the_end_of_the_free_frames_is_news() {
        let told = |free| Some((free, 3200));
        assert!(is_news_of_disk(None, 3200, 3200));
        assert!(is_news_of_disk(told(200), 99, 3200));
        assert!(!is_news_of_disk(told(200), 100, 3200));
        assert!(is_news_of_disk(told(20), 0, 3200));
        assert!(is_news_of_disk(told(0), 1, 3200));
        assert!(!is_news_of_disk(told(0), 0, 3200));
    }

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
