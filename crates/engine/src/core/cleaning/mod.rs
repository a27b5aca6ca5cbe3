//! The state of cleaning that lives as long as the store: contexts and their passes, and the
//! pacer's figures. The work is done in `cleaner`.

pub mod cleaners;
pub mod fruitless;
pub mod need;
mod plain;
pub mod remembered;
pub mod seat;
pub mod shrink;

use crate::head::Tail;
use crate::log::Trace;
use duramen_base::ids::SegmentId;
use duramen_format::recipe::{Fate, Parts};
use fruitless::Rounds;
use plain::PlainPasses;
use remembered::Remembered;
use seat::Seat;
use shrink::{Look, Lowering, Shrinker};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The cleaner's statistics, written by the context's holder.
#[derive(Default)]
#[repr(align(128))]
pub struct Tally {
    pub passes: AtomicU64,
    pub compactions: AtomicU64,
    pub segments_cleaned: AtomicU64,
    pub survivors: AtomicU64,
    pub bytes_scanned: AtomicU64,
    pub bytes_relocated: AtomicU64,
    pub bytes_freed: AtomicU64,
    pub busy_ns: AtomicU64,
    /// Victims chosen and not yet retired.
    pub victims: AtomicU64,
}

impl Tally {
    /// A victim was retired, or given up.
    pub fn end_victim(&self) {
        let left = self.victims.load(Ordering::Relaxed).saturating_sub(1);
        self.victims.store(left, Ordering::Relaxed);
    }

    /// Survivors opened without a log, and bytes moved.
    pub fn plain_survivors(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let opened = load(&self.survivors) + load(&self.compactions);
        (opened, load(&self.bytes_relocated))
    }
}

/// The destination of a victim's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Without a log: the entries go to the open survivor.
    Plain,
    /// The segment keeps its id and gets a smaller window (with a log).
    Compact,
    /// The entries go to survivors of a pass, which are new segments of the log.
    Combine,
}

/// The victim being cleaned.
pub struct Current {
    pub window: u32,
    pub kind: Kind,
    /// Its segment, with a log.
    pub segment: SegmentId,
    /// Offsets in the region: of the next entry to clean, and of the segment's end.
    pub at: usize,
    pub end: usize,
    pub evict: bool,
    /// Live bytes kept and dropped so far (eviction).
    pub kept: u64,
    pub dropped: u64,
    /// An entry was skipped (context::C3); without a log the victim is scanned once more from its
    /// start.
    pub skipped: bool,
    /// Offsets in the region of the entries that were skipped, and of those that are being examined
    /// again for this reason. With a log no other entry may be examined twice: an entry that was
    /// moved looks dead in its old place.
    pub postponed: Vec<usize>,
    pub again: Vec<usize>,
    /// The survivor takes this victim alone and is cut to its length afterwards.
    pub compacting: bool,
    /// Objects of this victim are evicted, and that is announced for this segment alone
    /// (levels::V4).
    pub announced: bool,
    /// By the counters, no entry in it is alive.
    pub dead: bool,
    /// Its entries before this offset were verified (sound::V1); nothing is moved before all are.
    pub verified: usize,
    /// The victim was taken in an earlier step than the present one.
    pub is_stale: bool,
    /// Verified copies of the entries of which a bit was put back, by their offsets.
    pub mended: BTreeMap<usize, Vec<u64>>,
    /// Its bytes were read back from flash.
    pub warmed: bool,
    /// Follows the entries of the victim's replicas; `None`: origins are not noted.
    pub trace: Option<Trace>,
}

pub struct Context {
    pub seat: Seat,
    pub survivor: Tail,
    pub victims: VecDeque<u32>,
    pub current: Option<Current>,
    /// The running combined pass; none without a log.
    pub pass: Option<PassAtWork>,
    /// Rounds of combined passes.
    pub rounds: Rounds,
    /// The passes without a log.
    pub plain: PlainPasses,
    /// Victims cleaned since the last search for tombstones.
    pub since_rescan: u32,
    pub remembered: Remembered,
    /// The last step was a demotion.
    pub demoted: bool,
    /// The thread that makes the present step may wait for a flash device.
    pub caller_may_wait: bool,
}

impl Context {
    pub fn new(seat: Seat) -> Context {
        Context {
            seat,
            survivor: Tail::default(),
            victims: VecDeque::new(),
            current: None,
            pass: None,
            rounds: Rounds::default(),
            plain: PlainPasses::default(),
            since_rescan: 0,
            remembered: Remembered::default(),
            demoted: false,
            caller_may_wait: false,
        }
    }

    /// True if this context has read a victim back: memory for one is set aside (core::flash::F6).
    pub fn has_warmed(&self) -> bool {
        self.current.as_ref().is_some_and(|current| current.warmed)
    }

    /// An entry of the victim was copied to the survivor, with this fate.
    pub fn copied(&mut self, fate: Fate) {
        let Some(current) = &mut self.current else {
            return;
        };
        let Some(trace) = &mut current.trace else {
            return;
        };
        match (&mut self.pass, current.kind) {
            (Some(pass), Kind::Combine) => match (trace.copied(fate), &mut pass.parts) {
                (Some((at, fate)), Some(parts)) => parts.add(current.segment, at, fate),
                _ => pass.parts = None,
            },
            _ => trace.compacted(fate),
        }
    }
}

/// Purpose of a combined pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Frees memory and disk.
    Free,
    /// As `Free`, and also drops cold entries.
    Evict,
    /// Gives new replicas to segments whose replicas are damaged.
    Relocate,
    /// Frees slots of the flash device whose segments have almost no live data.
    Hollow,
}

/// A combined pass whose victims are being emptied.
pub struct PassAtWork {
    pub victims: Vec<SegmentId>,
    /// Victims that are certain to leave: all their entries were verified (context::C5), or they
    /// have none in memory. A tombstone may be dropped because of these victims alone.
    pub leaving: Vec<SegmentId>,
    pub survivors: Vec<SegmentId>,
    /// The origin of the open survivor's entries; `None`: unknown.
    pub parts: Option<Parts>,
    /// Ids from here to `end`, in steps of the number of zones, are for further survivors.
    pub next: u64,
    pub end: u64,
    pub goal: Goal,
    pub victim_bytes: u64,
    pub survivor_bytes: u64,
    /// It cannot end (swap::given_up).
    pub is_given_up: bool,
    /// It has evicted an object (given_up::GU3).
    pub has_evicted: bool,
}

impl PassAtWork {
    /// Notes that the victim that is emptied next is sound, and so certain to leave.
    pub fn leaves(&mut self, victim: SegmentId) {
        if self.leaving.last() != Some(&victim) {
            self.leaving.push(victim);
        }
    }

    pub fn evicts(&self) -> bool {
        self.goal == Goal::Evict
    }
}

/// The pacer's data about the load.
#[derive(Default)]
pub struct Pacer {
    /// Live part of recent victims, in thousandths (exponential average).
    victim_live: AtomicU64,
    /// Used by the first cleaner thread only.
    shrinker: Mutex<Shrinker>,
    /// Memory is being given back to the system.
    shrinking: AtomicBool,
    /// Used by the first cleaner thread only.
    lowering: Mutex<Lowering>,
    /// Cleaning frees no more memory for a budget that was lowered.
    lowers_in_vain: AtomicBool,
    /// A cache must evict although little is live, because fragments of large objects fill its
    /// memory, or because its disk is full.
    evicts_by_force: AtomicBool,
    /// Passes gain nothing until more entries have died.
    passes_in_vain: AtomicBool,
    /// When a writer last waited in vain for flash, and for the log's disk.
    pub flash_stuck: Stuck,
    pub disk_stuck: Stuck,
    /// The time at which a writer last waited in vain for index memory; 0: none has.
    index_vain_ms: AtomicU64,
    /// Longest time that a writer has waited for memory since somebody asked.
    longest_stall_ns: AtomicU64,
}

/// The progress of a device plus one, at the time when a writer last waited for it in vain; 0: none
/// has. The note is void as soon as the device has progressed.
#[derive(Default)]
pub struct Stuck(AtomicU64);

impl Stuck {
    pub fn note(&self, progress: u64) {
        self.0.store(progress + 1, Ordering::Relaxed);
    }

    /// Whether the device has made no progress since the note. `progress`: its present progress;
    /// `None`: there is no such device.
    pub fn stands(&self, progress: Option<u64>) -> bool {
        progress.is_some_and(|progress| progress + 1 == self.0.load(Ordering::Relaxed))
    }
}

impl Pacer {
    /// Notes whether the last search for a pass found passes to be in vain.
    pub fn note_passes(&self, in_vain: bool) {
        self.passes_in_vain.store(in_vain, Ordering::Relaxed);
    }

    /// True if no writer should wait for a pass. Without a log this is about segments on flash in
    /// which no entries have died.
    pub fn passes_are_in_vain(&self) -> bool {
        self.passes_in_vain.load(Ordering::Relaxed)
    }

    pub fn note_victim(&self, live_bytes: u64, segment_bytes: u64) {
        let now = live_bytes * 1000 / segment_bytes.max(1);
        let average = self.victim_live.load(Ordering::Relaxed);
        self.victim_live
            .store((average * 7 + now.min(1000)) / 8, Ordering::Relaxed);
    }

    /// Judges the cleaning for a budget that was lowered; see [`Lowering::look`].
    pub fn watch_lowering(&self, is_above: bool, used: u64, log_time: u64) {
        let mut lowering = self.lowering.lock().expect("lowering");
        let in_vain = lowering.look(is_above, used, log_time);
        self.lowers_in_vain.store(in_vain, Ordering::Relaxed);
    }

    pub fn lowers_in_vain(&self) -> bool {
        self.lowers_in_vain.load(Ordering::Relaxed)
    }

    pub fn is_shrinking(&self) -> bool {
        self.shrinking.load(Ordering::Relaxed)
    }

    /// Decides whether memory is given back; see [`Shrinker::look`].
    pub fn watch_shrinking(&self, look: Look) {
        let shrinks = self.shrinker.lock().expect("shrinker").look(look);
        self.shrinking.store(shrinks, Ordering::Relaxed);
    }

    /// Dead part of recent victims.
    pub fn victim_dead_part(&self) -> f64 {
        1.0 - self.victim_live.load(Ordering::Relaxed) as f64 / 1000.0
    }

    /// True if a cache must evict although little is live.
    pub fn evicts_by_force(&self) -> bool {
        self.evicts_by_force.load(Ordering::Relaxed)
    }

    pub fn set_evicts_by_force(&self, by_force: bool) {
        self.evicts_by_force.store(by_force, Ordering::Relaxed);
    }

    /// A writer waited in vain for index memory.
    pub fn note_index_vain(&self, now_ms: u64) {
        self.index_vain_ms.store(now_ms, Ordering::Relaxed);
    }

    /// The time at which a writer last waited in vain for index memory; 0: none has.
    pub fn index_vain_ms(&self) -> u64 {
        self.index_vain_ms.load(Ordering::Relaxed)
    }

    /// Notes that a writer has waited for memory for this time.
    pub fn note_stall(&self, ns: u64) {
        self.longest_stall_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// The longest time that a writer has waited for memory since the last call; zero: none has.
    pub fn take_longest_stall(&self) -> Duration {
        Duration::from_nanos(self.longest_stall_ns.swap(0, Ordering::Relaxed))
    }
}
