//! Cleared tables that were large, or had entries on flash: their entries are counted as dead
//! afterwards.
//!
//! A clear takes a table's buckets away from it, for all sessions at once. The entries that they
//! point to are dead from then on. But a segment's live bytes must be exact (a segment without live
//! entries is dropped unread), and the length of an entry is only in the entry. So the buckets are
//! kept as a list of entries to count. A cleaner thread walks through them: entries in memory are
//! counted at once; segments on flash are read one by one in the background
//! (background_reads::F8), or without a rest while flash is short or writes wait for it. A cleaner
//! that meets such an entry first counts it itself.
//!
//! None of this is durable: the log has the clear itself, and a restart loads no entry that is
//! older.
//!
//! **Invariants**
//! - K1: an entry of a cleared table is counted as dead once, by the thread that empties its slot
//!   in the old buckets, and before its window is retired: cleaners look up every entry that the
//!   index does not point to. So a slot always means the incarnation of the window that it was made
//!   for, and until then live bytes are too high, never too low.
//! - K2: entries that can leave the log in another way are counted by the clear itself: those of a
//!   group that may yet move, and all entries while there are side logs, which can be given up as a
//!   whole.
//! - K3: the buckets of at most 256 indexes are pending at any time. Beyond that, a clear counts
//!   its entries itself while all sessions wait.

use super::demote::Demotion;
use super::tier::Tier;
use crate::core::Core;
use crate::core::cleaning::Context;
use crate::core::cleaning::seat::Seat;
use crate::core::sound;
use crate::counters::Counters;
use crate::index::bucket::Slot;
use crate::index::old::OldViews;
use crate::space::Space;
use crate::{KeyHash, TableId};
use duramen_format::entry::{self, Entry, Kind};
use duramen_format::hash::KeyHasher;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

/// Maximum number of pending indexes (K3).
const PENDING_MAX: usize = 256;
/// Maximum number of indexes that a clear adds: those of a table's objects and of its parts.
const ADDED_MAX: usize = 2;
/// Buckets walked through in one step, under one pin: less than 1 ms.
const STEP_BUCKETS: usize = 1024;
/// Pause after a round that counted nothing; it is doubled for each further one, up to 12.8 s.
const VAIN_ROUND_REST: Duration = Duration::from_millis(100);
const VAIN_ROUNDS_MAX: u32 = 7;
/// Entries of a segment that was read that are looked up under one pin.
const STEP_ENTRIES: usize = 256;

/// All entries that are still to be counted.
pub struct Cleared {
    hasher: KeyHasher,
    /// Number of sets.
    left: AtomicUsize,
    /// Number of sets that are not stuck: some of their entries are in segments that can be read.
    pending: AtomicUsize,
    /// Steps done since the start.
    progress: AtomicU64,
    sets: RwLock<Vec<Arc<Set>>>,
}

/// The buckets that one clear left of one index.
struct Set {
    /// A table, or its parts.
    table: TableId,
    views: OldViews,
    /// The thread that looks at it, or walks, has cleaning context 0 locked. So nobody waits for
    /// it, with `sets` locked or without.
    walk: Mutex<Walk>,
    /// All entries that are left are in segments that could not be read for minutes.
    is_stuck: AtomicBool,
}

/// Position of the walk through a set. Only the first cleaner thread walks.
#[derive(Default)]
struct Walk {
    partition: usize,
    bucket: usize,
    /// Whether some buckets that were passed are still used: in this partition, and in earlier
    /// ones.
    used_here: bool,
    used: bool,
    /// A slot of this round points to a segment that can be read, or may soon be.
    is_hopeful: bool,
    /// Windows on flash that slots pointed to.
    cold: BTreeSet<u32>,
    /// The windows in `cold` are being read now; afterwards the walk makes another round.
    reads: bool,
    /// Whether some entry was counted in this round, and whether the round is not the first.
    counted: bool,
    goes_round: bool,
    /// The last rounds were in vain: the next one does not begin before this time.
    rests_until: Option<Instant>,
    /// Number of the last rounds that counted nothing.
    vain: u32,
}

impl Cleared {
    /// `hasher`: computes the hashes of the keys of all tables.
    pub fn new(hasher: KeyHasher) -> Cleared {
        Cleared {
            hasher,
            left: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            progress: AtomicU64::new(0),
            sets: RwLock::default(),
        }
    }

    /// True if live bytes are too high, and will soon be lower.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) != 0
    }

    /// True if some entries are to be counted, when their segments can be read.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.left.load(Ordering::Acquire) != 0
    }

    /// True if another clear may leave its buckets (K3).
    pub fn has_room(&self) -> bool {
        self.left.load(Ordering::Acquire) + ADDED_MAX <= PENDING_MAX
    }

    fn count(&self, sets: &[Arc<Set>]) {
        let pending = sets
            .iter()
            .filter(|set| !set.is_stuck.load(Ordering::Relaxed));
        self.pending.store(pending.count(), Ordering::Release);
        self.left.store(sets.len(), Ordering::Release);
    }

    /// Grows while the number of pending entries falls.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Adds the buckets of a cleared index. The caller is alone in the store.
    pub fn add(&self, table: TableId, views: OldViews) {
        let walk = Mutex::default();
        let mut sets = self.sets.write().expect("cleared tables");
        sets.push(Arc::new(Set {
            table,
            views,
            walk,
            is_stuck: AtomicBool::new(false),
        }));
        self.count(&sets);
    }

    /// Counts an entry as dead to which the index does not point, if a clear has left it to be
    /// counted (K1). The caller is pinned since it saw the entry in its window, and owns the
    /// counters.
    #[inline]
    pub fn meet(&self, space: &Space, entry: &Entry<'_>, location: u64, counters: &Counters) {
        if self.has_any() {
            self.look_for(space, entry, location, counters);
        }
    }

    #[cold]
    fn look_for(&self, space: &Space, entry: &Entry<'_>, location: u64, counters: &Counters) {
        if entry.kind != Kind::Object {
            return;
        }
        let sets = self.sets.read().expect("cleared tables");
        let mut sets = sets.iter().filter(|set| set.table.0 == entry.table);
        let hash = KeyHash(self.hasher.hash(entry.key));
        if sets.any(|set| set.views.take(hash, location)) {
            counters.note_dead(space.window_of(location), entry.padded_bytes);
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Drops all sets, as all live entries were counted as dead. The caller is alone in the store.
    pub fn forget(&self, core: &Core) {
        let mut sets = self.sets.write().expect("cleared tables");
        for set in sets.drain(..) {
            set.give_back(core);
        }
        self.count(&sets);
    }

    /// The oldest set that does not rest.
    fn next(&self) -> Option<Arc<Set>> {
        let sets = self.sets.read().expect("cleared tables");
        sets.iter().find(|set| !set.rests()).cloned()
    }

    fn remove(&self, done: &Arc<Set>) {
        let mut sets = self.sets.write().expect("cleared tables");
        sets.retain(|set| !Arc::ptr_eq(set, done));
        self.count(&sets);
    }
}

impl Set {
    fn rests(&self) -> bool {
        let until = self.walk.lock().expect("a walk").rests_until;
        until.is_some_and(|until| Instant::now() < until)
    }

    fn give_back(&self, core: &Core) {
        (0..self.views.len())
            .for_each(|partition| self.views.give_back(partition, core.resources()));
    }
}

/// True if the pending entries delay more work than reading the device for them does.
fn is_urgent(core: &Core, tier: &Tier) -> bool {
    tier.is_short()
        || core.actors.live_bytes() > core.live_limit()
        || core.need().index_is_large() // a part of the index is held by pending entries
        || tier.pressure.others_come_first(core.clock().now_ms())
}

/// Does a step of counting the entries that clears left. Returns false if there is nothing to do
/// now.
pub fn count(core: &Core, context: &Context) -> bool {
    let Some(set) = core.cleared().next() else {
        return false;
    };
    let tier = core.tier();
    let mut walk = set.walk.lock().expect("a walk");
    walk.rests_until = None;
    if let Some(tier) = tier.filter(|_| walk.reads) {
        return read_next(core, context, tier, &mut walk);
    }
    if !context.seat.enter(core) {
        return false;
    }
    walk_through(core, context.seat, tier, &set, &mut walk);
    context.seat.leave(core);
    if walk.partition < set.views.len() {
        return true;
    }
    if !walk.used {
        drop(walk);
        core.cleared().remove(&set);
        core.cleaners.wake(); // many segments may be hollow now
        return true;
    }
    // No entry could be counted in this round: the segments of all the rest are being written
    // to flash, or are victims of other cleaners, or cannot be read now.
    let again = walk.counted || !walk.goes_round;
    let is_stuck = !again && !walk.is_hopeful;
    if set.is_stuck.swap(is_stuck, Ordering::Relaxed) != is_stuck {
        core.cleared()
            .count(&core.cleared().sets.read().expect("cleared tables"));
    }
    let rest = VAIN_ROUND_REST * (1 << walk.vain.min(VAIN_ROUNDS_MAX));
    *walk = Walk {
        reads: true,
        goes_round: true,
        cold: std::mem::take(&mut walk.cold),
        rests_until: (!again).then(|| Instant::now() + rest),
        vain: if again { 0 } else { walk.vain + 1 },
        ..Walk::default()
    };
    again
}

/// Walks through some buckets: counts entries in memory, and notes the windows of others. Pinned.
fn walk_through(core: &Core, seat: Seat, tier: Option<&Tier>, set: &Set, walk: &mut Walk) {
    let stamp = core.door.epochs().stamp_of(seat.slot());
    let counters = seat.counters(core);
    for _ in 0..STEP_BUCKETS {
        if walk.partition >= set.views.len() {
            return;
        }
        let view = set.views.view(walk.partition);
        if walk.bucket >= view.len() {
            if !walk.used_here {
                set.views.give_back(walk.partition, core.resources());
            }
            walk.used |= std::mem::take(&mut walk.used_here);
            (walk.partition, walk.bucket) = (walk.partition + 1, 0);
            continue;
        }
        view.each_place_inside(walk.bucket, |place, slot: Slot| {
            let window = core.space.window_of(slot.location());
            let cold = tier.filter(|tier| !tier.is_in_memory(window, stamp));
            let Some(tier) = cold else {
                // The slot was there under our pin, so its window was not retired before (K1);
                // and its bytes are in memory for our stamp (core::flash::F2).
                let Ok(sound) = sound::at(core, slot.location()) else {
                    walk.used_here = true; // its segment stays (sound::V2)
                    return;
                };
                if OldViews::take_at(place, slot) {
                    counters.note_dead(window, sound.entry.padded_bytes);
                    core.cleared().progress.fetch_add(1, Ordering::Relaxed);
                    walk.counted = true;
                }
                return;
            };
            walk.used_here = true;
            walk.is_hopeful |= !tier.is_lost(window);
            if !tier.is_bad(window) {
                walk.cold.insert(window as u32);
            }
        });
        walk.bucket += 1;
    }
}

/// Reads the next segment on flash and counts its pending entries. Returns false if that is not
/// possible now.
fn read_next(core: &Core, context: &Context, tier: &Tier, walk: &mut Walk) -> bool {
    if context.has_warmed() || !(is_urgent(core, tier) || tier.background_reads.are_rested()) {
        return false;
    }
    let Some(window) = walk.cold.pop_first() else {
        walk.reads = false;
        return true;
    };
    let segment = &core.space.segments[window as usize];
    // If the segment is another cleaner's victim, that cleaner counts its entries, or this walk
    // meets them again.
    if segment.claim() {
        let warm = |demotion: Demotion<'_>| demotion.warm(window);
        if core.is_cold(window) && core.demotion().is_some_and(warm) {
            walk.counted |= count_warmed(core, context.seat, window);
            core.space.memory.decommit(window);
        }
        core.space.segments[window as usize].unclaim();
    }
    true
}

/// Counts the pending entries of a segment that this context has claimed and read back. Returns
/// false if another guard wants to be alone.
fn count_warmed(core: &Core, seat: Seat, window: u32) -> bool {
    let start = core.space.offset_of(window);
    let end = start + core.space.segments[window as usize].appended_bytes() as usize;
    let mut at = start + crate::space::SEGMENT_HEADER_BYTES;
    let counters = seat.counters(core);
    while at < end {
        if !seat.enter(core) {
            return false; // the rest is met again
        }
        for _ in 0..STEP_ENTRIES {
            if at >= end {
                break;
            }
            let location = Space::location(at);
            // SAFETY: whole entries from the header to the end, verified by `warm`; the window
            // is this context's.
            let entry = unsafe { entry::parse_trusted(core.space.at(location)) };
            at += entry.padded_bytes;
            core.cleared().meet(&core.space, &entry, location, counters);
        }
        seat.leave(core);
    }
    true
}
