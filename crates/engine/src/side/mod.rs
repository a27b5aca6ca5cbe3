//! A side log: entries of another server's log, collected beside the own one and taken over at one
//! instant.
//!
//! A recovery master replays its part of a dead server's segments; a migration's target replays the
//! entries that it is sent. Each version of a key that wins is copied into a segment of survivor
//! kind outside of any head. Full segments go to frames as cleaning survivors do, each byte once.
//! Then one Swap that removes nothing makes all of them part of the log, or the side log is given
//! up and leaves no trace.
//!
//! **Invariants**
//! - S1: per key the highest version wins, whatever the order, and however often an entry comes: an
//!   object enters if its version is above that in the index and above every tombstone met.
//!   Tombstones are remembered until the end; an expired object counts as a tombstone.
//! - S2: an entry that replaces or kills an entry in a segment names that segment, like any other
//!   killer does (swap::D1). The victims that the dead log's entries named are dropped:
//!   those segments are no part of this log.
//! - S3: nothing of a side log is served before its Swap is durable. So no entry in the heads names
//!   its segments before, and it needs no announcement (swap::D4). Until then its segments are held
//!   (swap::D6): they are not cleaned and nothing in them expires. But they may go to flash
//!   (swap::D8), so a side log may be larger than memory.
//! - S4: before any thread can write, the next versions are set above everything replayed,
//!   including tombstones and entries that lost; the Swap's record contains that version too.
//! - S6: an entry that a replayed one is compared with may be on flash: it is read first, with no
//!   lock held and outside, and compared under the lock if its location has not changed.
//! - S5: the segments of a side log get their ids after it began, so they are above a position that
//!   [`Heads::try_roll`](crate::Heads::try_roll) gave before.
//! - S7: an entry has no effect if the next one of the same call is of the same key and newer, or
//!   the tombstone of its version: the result is that of S1 if the newer one had come first.
//!   Backups give the versions of a key as neighbours, oldest first. So a segment's last version of
//!   a key is the only one that takes memory. Versions are compared and not places: a survivor has
//!   entries of mixed age.
//!
//! **Concurrency**: several threads may call `replay`: each fills a segment of its own, and settles
//! a key under its bucket's lock, where it also looks up the tombstones of that key. Lock order:
//! bucket, then tombstones.
//!
//! Paper: [Ousterhout15 §7.5] side logs; differs: the winner's own entry has in 8 bytes the data
//! for which RAMCloud writes a synthetic tombstone, and replay does not depend on the order of
//! segments.

mod completions;
mod replay;
mod tombstones;

use crate::cleaner::candidate::Candidate;
use crate::core::flash::Image;
use crate::core::sound;
use crate::core::{Core, Visitor};
use crate::counters::{Counters, sub};
use crate::head::Tail;
use crate::index::Partition;
use crate::index::bucket::{Locking, View};
use crate::log::{Log, Swap};
use crate::range::Place;
use crate::space::segment;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use crate::{Error, Store, TableId};
use completions::Taken;
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::yield_now;
use duramen_format::entry::{self, Damage, Entry, Kind};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tombstones::Tombstones;

/// Entries of a side log that are taken out of the index under one pin.
const ABORT_GROUP: usize = 256;

/// Partitions of the index that are checked under one pin.
const SHRINK_GROUP: usize = 64;

/// Facts about the log that is replayed.
#[derive(Clone, Debug, Default)]
pub struct SidePlan {
    /// Entries of these tables with a lower version do not belong to the table: it was dropped or
    /// cleared since.
    pub floors: Vec<(TableId, u64)>,
    /// No version at or below this one may be given again.
    pub version_floor: u64,
}

/// The reason why a side log cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SideError {
    /// The bytes are not entries. Those before them count; replay the bytes of another replica,
    /// from the start.
    #[error("no whole entry at byte {offset}: {damage}")]
    Damaged { offset: usize, damage: Damage },
    /// Abort, and let another server replay.
    #[error("the side log cannot be filled: {0}")]
    Store(#[from] Error),
    /// The side log was committed or aborted, or has failed before.
    #[error("the side log takes no more entries")]
    Closed,
    /// Wait until all calls of `replay` have returned.
    #[error("another thread is still replaying")]
    Busy,
}

/// Report of the replay so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideReport {
    pub entries: u64,
    /// Bytes of entries replayed, and of those taken over.
    pub bytes: u64,
    pub kept_bytes: u64,
    /// Objects taken over, also those that were replaced later.
    pub kept_objects: u64,
    /// Bytes of entries that were taken over and that nothing needs any more. They stay in memory
    /// until the side log has ended.
    pub dead_bytes: u64,
    pub version_max: u64,
}

#[derive(Default)]
struct Totals {
    entries: AtomicU64,
    bytes: AtomicU64,
    kept_bytes: AtomicU64,
    kept_objects: AtomicU64,
    dead_bytes: AtomicU64,
    version_max: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Filling,
    /// An entry could not be stored: only `abort` is left.
    Failed,
    /// Its Swap was taken back: only `abort` is left.
    Withdrawn,
    /// Its Swap is proposed, or it was given up.
    Ended,
}

struct State {
    stage: Stage,
    /// Calls of `replay` that have not returned.
    at_work: usize,
    /// Segments that are not full and that no thread is filling now.
    tails: Vec<Tail>,
    segments: Vec<(SegmentId, u32)>,
    /// Set when the Swap that `commit` proposed is durable. `None`: none is proposed.
    proposed: Option<Arc<AtomicBool>>,
}

/// A side log; see the module's text. If it is dropped without [`commit`](Self::commit), it is
/// aborted.
pub struct SideLog {
    store: Arc<Store>,
    floors: HashMap<TableId, u64>,
    version_floor: AtomicU64,
    state: Mutex<State>,
    tombstones: Tombstones,
    /// Estimated number of objects that are still to come.
    expected: AtomicU64,
    completions: Taken,
    totals: Totals,
}

/// A side log that waits for its Swap.
#[derive(Clone, Debug)]
pub struct SideCommit {
    done: Arc<AtomicBool>,
}

impl SideCommit {
    /// True once the replayed entries are durably part of the log: now they may be served.
    pub fn is_durable(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

impl Store {
    /// Begins a side log. Its tables must exist, and must not be cleared or dropped before its end.
    ///
    /// # Panics
    /// If the store has no log.
    pub fn side_log(self: &Arc<Self>, plan: SidePlan) -> SideLog {
        let log = self.log().expect("a side log of a store with a log");
        log.arrivals().side_began();
        SideLog {
            store: self.clone(),
            floors: plan.floors.into_iter().collect(),
            version_floor: AtomicU64::new(plan.version_floor),
            state: Mutex::new(State {
                stage: Stage::Filling,
                at_work: 0,
                tails: Vec::new(),
                segments: Vec::new(),
                proposed: None,
            }),
            tombstones: Tombstones::default(),
            expected: AtomicU64::new(0),
            completions: Taken::default(),
            totals: Totals::default(),
        }
    }
}

impl SideLog {
    fn core(&self) -> &Core {
        self.store.core()
    }

    fn log(&self) -> &Log {
        self.core().log.as_deref().expect("a store with a log")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("side log")
    }

    /// Takes a segment to fill: a partly filled one, or none yet.
    fn begin(&self) -> Result<Tail, SideError> {
        let mut state = self.state();
        if state.stage != Stage::Filling {
            return Err(SideError::Closed);
        }
        state.at_work += 1;
        Ok(state.tails.pop().unwrap_or_default())
    }

    /// Lays the segment aside again.
    fn end(&self, tail: Tail, failed: bool) {
        let mut state = self.state();
        state.at_work -= 1;
        if tail.window().is_some() {
            state.tails.push(tail);
        }
        if failed {
            state.stage = Stage::Failed;
        }
    }

    /// Sets a lower limit of new versions: none at or below `version` is given again. The source of
    /// a migration sends it at its end.
    pub fn raise_version_floor(&self, version: u64) {
        self.version_floor.fetch_max(version, Ordering::Relaxed);
    }

    /// About `objects` objects of one table are still to come: its index grows for them in few
    /// steps. If fewer come it shrinks at the end ([`commit_above`](Self::commit_above)).
    pub fn expect(&self, objects: u64) {
        self.expected.store(objects, Ordering::Relaxed);
    }

    /// Report of the replay so far.
    pub fn report(&self) -> SideReport {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SideReport {
            entries: load(&self.totals.entries),
            bytes: load(&self.totals.bytes),
            kept_bytes: load(&self.totals.kept_bytes),
            kept_objects: load(&self.totals.kept_objects),
            dead_bytes: load(&self.totals.dead_bytes),
            version_max: load(&self.totals.version_max),
        }
    }

    /// Number of its full segments that are not durable yet: the lag of the disks.
    pub fn unwritten(&self) -> usize {
        let state = self.state();
        let is_own = |segment| state.segments.iter().any(|(own, _)| *own == segment);
        let swaps = self.log().swaps();
        swaps.queues().survivors().count_unwritten(is_own)
    }

    /// Closes the segments that no thread is filling now, so that they are written although they
    /// are not full. When no segment is [unwritten](Self::unwritten) any more, all entries replayed
    /// before are durable.
    pub fn settle(&self) {
        let (core, log) = (self.core(), self.log());
        let mut state = self.state();
        for mut tail in std::mem::take(&mut state.tails) {
            close(core, log, &mut tail);
        }
        log.demand();
    }

    /// Hands out the last segments to be written, and proposes the Swap. The replayed entries may
    /// be served, and written to, once the returned handle reports them durable. Waits for no
    /// guard and no keys of other threads: the thread that serves commits may call it (waits::W4).
    ///
    /// # Errors
    /// [`SideError::Busy`], [`SideError::Closed`].
    pub fn commit(&self) -> Result<SideCommit, SideError> {
        let (core, log) = (self.core(), self.log());
        let (tails, segments) = {
            let mut state = self.state();
            match (state.stage, state.at_work) {
                (Stage::Filling, 0) => {}
                (Stage::Filling, _) => return Err(SideError::Busy),
                _ => return Err(SideError::Closed),
            }
            state.stage = Stage::Ended;
            log.arrivals().side_ended();
            (std::mem::take(&mut state.tails), state.segments.clone())
        };
        for mut tail in tails {
            close(core, log, &mut tail);
        }
        self.tombstones.clear(&core.space);
        self.completions.clear(&core.space);
        let version_max = self.totals.version_max.load(Ordering::Relaxed);
        let given = self.version_floor.load(Ordering::Relaxed);
        log.numbers()
            .raise_version_floor(given.max(version_max) + 1); // S4
        let floor = core.version_max();
        core.tables.each_index(|_, index| {
            let partitions = index.partitions().iter();
            partitions.for_each(|partition| partition.raise_floor(floor));
        });
        let (add, held) = segments.into_iter().unzip();
        let swap = Swap {
            add,
            remove: Vec::new(),
            version_floor: floor,
        };
        let done = Arc::<AtomicBool>::default();
        let mut state = self.state();
        state.proposed = Some(done.clone());
        log.swaps()
            .side_scanned(swap, log.appended(), held, done.clone());
        drop(state);
        log.demand();
        Ok(SideCommit { done })
    }

    /// As [`commit`](Self::commit), for a thread that may wait. Before, it closes heads below
    /// `position` ([`Heads::close_below`](crate::Heads::close_below)); after, it shrinks partitions
    /// that had grown for more objects than came ([`expect`](Self::expect)).
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_above(&self, position: SegmentId) -> Result<SideCommit, SideError> {
        self.close_heads_below(position);
        let commit = self.commit()?;
        self.shrink();
        Ok(commit)
    }

    /// As [`Heads::close_below`](crate::Heads::close_below).
    pub fn close_heads_below(&self, position: SegmentId) {
        self.store.heads().close_below(position);
    }

    /// Takes the Swap back, so that [`abort`](Self::abort) may follow. Returns false if that is not
    /// possible: the Swap may be durable soon, and will be some time (swap::D6).
    pub fn withdraw(&self) -> bool {
        let mut state = self.state();
        let proposed = state.proposed.as_ref();
        let swaps = self.log().swaps();
        let is_back = proposed.is_some_and(|done| swaps.queues().passes().withdraw(done));
        if is_back {
            state.stage = Stage::Withdrawn;
        }
        is_back
    }

    /// Shrinks partitions that had grown for more objects than came.
    fn shrink(&self) {
        let core = self.core();
        let visitor = Visitor::wait(core);
        for table in core.tables.index_ids() {
            let mut next = 0;
            let mut is_over = false;
            while !is_over {
                core.door.enter(visitor.slot);
                let index = core.tables.index(table).ok();
                let partitions = index.map_or(&[][..], |index| index.partitions());
                let group = partitions.iter().skip(next).take(SHRINK_GROUP);
                is_over = next + SHRINK_GROUP >= partitions.len();
                for partition in group {
                    if partition.wants_shrinking(partition.view().len()) {
                        // Without memory for the move, it stays as it is.
                        let _ = partition.resize(0, visitor.me(), core.resources());
                    }
                }
                core.door.leave(visitor.slot);
                next += SHRINK_GROUP;
            }
        }
    }

    /// Takes everything back: the index is as before, and memory and flash are free (memory that
    /// the log's consumer is reading follows later). [`crate::Swaps::take_abandoned`] lists its
    /// segments, whose frames may be freed. Reads its segments on flash. Must not be called with a
    /// guard held.
    ///
    /// # Errors
    /// [`SideError::Busy`], [`SideError::Closed`].
    pub fn abort(&self) -> Result<(), SideError> {
        let (core, log) = (self.core(), self.log());
        let segments = {
            let mut state = self.state();
            match (state.stage, state.at_work) {
                (Stage::Ended, _) => return Err(SideError::Closed),
                (_, 0) => {}
                _ => return Err(SideError::Busy),
            }
            if state.stage != Stage::Withdrawn {
                log.arrivals().side_ended();
            }
            state.stage = Stage::Ended;
            state.tails.clear();
            std::mem::take(&mut state.segments)
        };
        segments.iter().for_each(|(_, window)| claim(core, *window));
        let mut unread = HashSet::new();
        for (_, window) in &segments {
            if !core.is_cold(*window) {
                self.unindex(*window);
            } else if !has_bug(Bug::AbortForgetsCold) && self.unindex_cold(*window).is_err() {
                unread.insert(*window);
            }
        }
        if !unread.is_empty() {
            self.sweep(&unread);
        }
        self.tombstones.clear(&core.space);
        self.completions.clear(&core.space);
        for window in log.swaps().abandon(&segments) {
            core.space
                .retire(core.space.node_of(window), window, core.door.epochs());
        }
        Ok(())
    }

    /// Takes the entries of a window in memory out of the index.
    fn unindex(&self, window: u32) {
        let core = self.core();
        let visitor = Visitor::wait(core);
        let start = core.space.offset_of(window);
        let end = start + core.space.segments[window as usize].appended_bytes() as usize;
        let mut at = start + SEGMENT_HEADER_BYTES;
        let mut is_damaged = false;
        while at < end {
            core.door.enter(visitor.slot);
            let mut looked = 0;
            core.actors.as_guest(|counters| {
                while at < end && looked < ABORT_GROUP {
                    let location = Space::location(at);
                    // SAFETY: a held window has whole entries from its header to `appended`, and no
                    // other thread uses it (swap::D6); it is in memory, and stays there (swap::D8).
                    let Ok(mut sound) = (unsafe { sound::verify(core, location, end) }) else {
                        (at, is_damaged) = (end, true);
                        break;
                    };
                    if has_bug(Bug::AbortsUnverified) {
                        // SAFETY: as above.
                        sound.entry = unsafe { entry::parse_trusted(core.space.at(location)) };
                    }
                    if !take_back(&visitor, counters, location, &sound.entry) {
                        break; // a transaction holds the bucket: the next turn tries again
                    }
                    at += sound.entry.padded_bytes;
                    looked += 1;
                }
            });
            core.door.leave(visitor.slot);
            yield_now();
        }
        if is_damaged {
            self.sweep(&HashSet::from([window])); // sound::V1: by the places, not by the entries
        }
    }

    /// As [`unindex`](Self::unindex), for a window on flash, which is read.
    fn unindex_cold(&self, window: u32) -> Result<(), Error> {
        let core = self.core();
        let incarnation = core.space.segments[window as usize].incarnation();
        let image = Image::read(core, window, incarnation)?;
        let mut image = image.ok_or(Error::FlashFailed)?; // it is claimed, so it cannot be gone
        let visitor = Visitor::wait(core);
        while !image.is_over() {
            core.door.enter(visitor.slot);
            let taken = core.actors.as_guest(|counters| {
                image.each(core, ABORT_GROUP, |location, entry| {
                    take_back(&visitor, counters, location, entry)
                })
            });
            core.door.leave(visitor.slot);
            taken?;
            yield_now();
        }
        Ok(())
    }

    /// Takes all entries of these windows, which cannot be read, out of the index. The lengths of
    /// their entries and the expiring ones among them are unknown then. So live bytes become too
    /// low by the tombstones in the windows, and the count of expiring objects stays too high.
    fn sweep(&self, windows: &HashSet<u32>) {
        let core = self.core();
        let floor = self.totals.version_max.load(Ordering::Relaxed);
        for table in core.tables.index_ids() {
            let mut place = Place::START;
            let mut is_over = false;
            while !is_over {
                let visitor = Visitor::wait(core);
                core.door.enter(visitor.slot);
                is_over = core.tables.index(table).map_or(true, |index| {
                    core.actors.as_guest(|counters| {
                        for _ in 0..ABORT_GROUP {
                            let Some((view, bucket)) = (!place.is_end(index))
                                .then(|| place.bucket(index, &core.space))
                                .flatten()
                            else {
                                break;
                            };
                            let partition = &index.partitions()[place.partition];
                            let gone =
                                sweep_bucket(&visitor, partition, view, bucket, windows, floor);
                            let Some(gone) = gone else {
                                break; // the next turn pins anew and tries again
                            };
                            counters.note_objects(table, -gone);
                            place = place.after(view, bucket);
                        }
                    });
                    place.is_end(index)
                });
                core.door.leave(visitor.slot);
            }
        }
        core.actors.as_guest(|counters| {
            for window in windows {
                counters.note_dead(*window as usize, core.live_in(*window) as usize);
            }
        });
    }
}

/// Claims a window of a side log that is given up (swap::D8). A window that is not closed has no
/// other user anyway. The caller is outside, because the thread that demotes the window waits for
/// those inside.
fn claim(core: &Core, window: u32) {
    let known = &core.space.segments[window as usize];
    // A cleaner that looked at the window before it was filled may claim it for an instant.
    let may_be_claimed = || core.tier().is_some() || core.is_held(window);
    while !known.claim() {
        match known.state() {
            segment::State::Closed => {} // another thread gave it back since
            segment::State::Victim if may_be_claimed() => {
                core.windows().reap(core.space.node_of(window));
                yield_now();
            }
            _ => return,
        }
    }
}

/// Takes an entry of a side log out of the index. Returns false if a transaction holds its bucket.
/// Pinned.
fn take_back(visitor: &Visitor<'_>, counters: &Counters, location: u64, entry: &Entry<'_>) -> bool {
    let core = visitor.core;
    if entry.kind != Kind::Object {
        sub(&counters.tombstones, entry.padded_bytes as u64);
    } else if let Ok(index) = core.tables.index(TableId(entry.table)) {
        let candidate = Candidate::new(core, index, location, *entry, false);
        // A damaged slot is put back while the entry is still in its place, where it shows what the
        // slot was (core::slots::I1).
        let _ = candidate.is_in_doubt(core);
        return candidate.drop_from_index(core, counters, visitor.me()) != Some(false);
    }
    true
}

/// Empties the slots of a bucket that point into one of these windows; returns their number.
/// `None`: the bucket's lock is not free.
fn sweep_bucket(
    visitor: &Visitor<'_>,
    partition: &Partition,
    view: View<'_>,
    bucket: usize,
    windows: &HashSet<u32>,
    floor: u64,
) -> Option<i64> {
    let (core, me) = (visitor.core, visitor.me());
    let mut found = Vec::new();
    let _ = core.slots().check(view, bucket); // as in `take_back`
    view.each_homed(bucket, me, |slot| {
        if windows.contains(&(core.space.window_of(slot.location()) as u32)) {
            found.push(slot);
        }
    });
    if found.is_empty() {
        return Some(0);
    }
    match view.try_lock(bucket, me) {
        Locking::Taken => {}
        Locking::Moved => {
            partition.wait_for_move(view);
            return None;
        }
        Locking::Mine | Locking::Busy => return None,
    }
    let mut gone = 0;
    for slot in found {
        if let Some((place, _)) = view.find_location(slot.tag(), slot.location()) {
            partition.raise_floor(floor); // index::X3: the keys are absent now
            partition.remove(view, slot.tag(), place);
            gone += 1;
        }
    }
    view.unlock(bucket);
    Some(gone)
}

impl Drop for SideLog {
    fn drop(&mut self) {
        // An error means that the side log has ended already. It cannot be busy: there is no other
        // reference, so no call of `replay` is running.
        let _ = self.abort();
    }
}

/// Closes a segment: its frame can be written.
fn close(core: &Core, log: &Log, tail: &mut Tail) {
    if let Some(window) = tail.window() {
        tail.record(&core.space);
        log.swaps().closed_survivor(
            log.segment_of(window as usize),
            window,
            core.space.segments[window as usize].appended_bytes(),
            None,
        );
        core.space.cut_tail(window);
        tail.close(&core.space);
    }
}
