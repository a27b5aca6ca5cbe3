//! Which segments the log consists of on disk, and how a cleaning pass replaces some by others.
//!
//! A pass takes victims and fills survivors. Its way: *announced* (its record goes with the data
//! that may name its survivors) → *scanned* (survivors closed, positions recorded) → survivors
//! written to frames → *proposed* as a [`Swap`] → *swapped*: the record is durable, the victims are
//! no longer part of the log and their frames may go.
//!
//! **Invariants**
//! - D1: a segment is listed from its opening until the Swap that removes it is durable. A
//!   tombstone (embedded or not) is needed as long as its victim is listed: dropping it earlier
//!   would let the victim's copy come back after a crash.
//! - D2: a Swap is proposed only when all its survivors are closed and durable (90-traps.md §0.9),
//!   and when every append that the pass may have taken for a reason to drop something is itself
//!   durable (§0.3).
//! - D3: a survivor may be a victim only after its own Swap is durable: the victims that it was
//!   filled from are gone then. Otherwise the killer of an entry in the survivor, which names the
//!   survivor, could be dropped before the copy in the victim is gone. (D5 alone has the same
//!   effect; this keeps it true should swaps ever overtake one another.)
//! - D4: a crash between the copying and the Swap leaves killers that name a survivor which was
//!   never listed. The pass's announcement is durable before such a killer is, so that after a
//!   restart they are needed as long as one of the pass's victims is listed.
//! - D5: passes are swapped in the order in which their scans ended.
//! - D6: a side log (`side`) ends as a pass without victims does. Until its Swap is durable its
//!   windows are *held*: no cleaner and no expiry touches them, so that they can be given up as a
//!   whole. What the consumer was handed stays in place until the consumer has reported it,
//!   whatever became of the side log.
//! - D7: what a side log wrote can be had from memory, or from flash, as it was closed, until its
//!   Swap is durable: should all its replicas be lost before, there is no other copy of these
//!   bytes, and the Swap would wait for them for ever.
//! - D8: a held window may turn cold as soon as its frame is durable, and no sooner: until then the
//!   consumer reads it. It stays held: only its memory goes. Who gives the side log up claims each
//!   of its windows first, so that nobody is at work on one (F2) when its entries are taken out of
//!   the index and it is retired, and so that none turns cold afterwards.
//! - D9: heads take room for a segment before they open it. So however many windows a group sets
//!   aside, and however many heads open one at the same time, the reserves of survivors and of
//!   removals stay.
//! - D10: a log that was found longer than it may be now becomes shorter: survivors and removals
//!   get their reserves beyond the segments that were found, as far as the disk has room for them.
//!   What was found counts less with each Swap, and never more.
//!
//! **Concurrency**: one lock for the list (read once per group of entries by cleaners), one for the
//! queues. The list's lock may be taken under the queue's, never the other way round. Paper:
//! [Rumble14 §4, §6.4]; differs: D2's second half and D4 are in no source (90-traps.md §0.3 names
//! the first).

mod disk_room;

use super::planted::Bug;
use super::relocate::Relocations;
use super::{Log, Position};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::sync::coarse::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What is announced of a pass before anything of it can be named by durable data (D4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Its survivors have ids from here …
    pub first: SegmentId,
    /// … so many in a row at most.
    pub count: u32,
    /// What is removed by its Swap; while one of them is listed, who names a survivor of this pass
    /// is needed.
    pub victims: Vec<SegmentId>,
}

impl Pass {
    fn has_survivor(&self, segment: u64) -> bool {
        (self.first.0..self.first.0 + u64::from(self.count)).contains(&segment)
    }
}

/// A closed survivor that needs a frame.
#[derive(Clone, Copy, Debug)]
pub struct SurvivorReady<'a> {
    pub segment: SegmentId,
    /// The whole segment, header included; stable until it was reported durable.
    pub bytes: &'a [u8],
}

/// What a cleaning pass does to the log, as one atomic record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    pub add: Vec<SegmentId>,
    pub remove: Vec<SegmentId>,
    /// Versions up to here may have been given to keys of which the log keeps no trace now.
    pub version_floor: u64,
}

/// How a segment came into the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Opened by a head, or its Swap is durable: it may be a victim as far as this file is
    /// concerned.
    Settled,
    /// A survivor whose Swap is not durable yet (D3).
    Unswapped,
}

#[derive(Default)]
struct List {
    segments: HashMap<u64, Life>,
    /// Passes announced and not yet swapped, those included that a crash cut off in an earlier life
    /// of this store (D4).
    passes: Vec<Pass>,
}

/// A pass whose scan has ended.
struct Pending {
    swap: Swap,
    /// Survivors of it that are not durable yet.
    unwritten: usize,
    /// Where the heads stood when the scan ended (D2).
    position: Position,
    evicted: bool,
    /// What a side log holds until the Swap is durable (D6).
    held: Vec<u32>,
    done: Option<Arc<AtomicBool>>,
}

/// A closed survivor without a frame.
#[derive(Clone, Copy)]
struct Unwritten {
    segment: SegmentId,
    window: u32,
    length: u32,
    /// The consumer has seen its bytes, and may be looking at them.
    handed: bool,
    /// Of a side log that was given up (D6).
    abandoned: bool,
}

/// What was found when a window was last searched for tombstones.
#[derive(Default)]
struct Searched {
    /// Of which incarnation of the window this is; another one: nothing is known.
    incarnation: AtomicU32,
    /// Bytes of tombstones that had to stay, and of those that may go.
    kept: AtomicU32,
    droppable: AtomicU32,
    /// Swaps done until then, plus one; 0 = never searched.
    at: AtomicU64,
    /// 1: the window holds a survivor without a frame.
    unwritten: AtomicBool,
    /// 1: the window is part of a side log whose Swap is not durable (D6).
    held: AtomicBool,
}

#[derive(Default)]
struct Queues {
    /// Not yet taken by the consumer.
    announced: Vec<Pass>,
    /// Closed and not durable, in the order of closing.
    survivors: VecDeque<Unwritten>,
    /// Of side logs, durable and not swapped in, with their windows (D7).
    written: HashMap<u64, u32>,
    pending: VecDeque<Pending>,
    /// Victims of the pass at work.
    working: Vec<SegmentId>,
    /// Victims of the pass at work, if it evicts.
    evicting: Option<Vec<SegmentId>>,
    /// Listed segments of which memory holds nothing any more.
    empty: Vec<SegmentId>,
    /// Segments of side logs that were given up: their frames may go.
    abandoned: Vec<SegmentId>,
    /// Windows of such segments that the consumer has done with.
    released: Vec<u32>,
}

/// The list and the queues of one log.
pub struct Swaps {
    list: RwLock<List>,
    /// Changes of `list`.
    serial: AtomicU64,
    queues: Mutex<Queues>,
    /// Segments that the log may have.
    limit_max: u64,
    /// Segments that there is room for, if the log was found longer than that (D10).
    room_max: u64,
    /// Segments that were found by a restart, or fewer, once there were fewer.
    found: AtomicU64,
    heads: u64,
    /// Segments that the disk has space for, if that is less.
    disk_room: AtomicU64,
    /// A head got no segment, for want of disk, and none has got one since.
    refused: AtomicBool,
    pending_max: usize,
    count: AtomicU64,
    /// Segments that heads have room for and have not opened yet (D9).
    aside: AtomicU64,
    /// Swaps made durable since the start.
    done: AtomicU64,
    progress: AtomicU64,
    /// One pass at a time is at work [90-traps.md §B: one disk-cleaning thread].
    taken: AtomicBool,
    /// See [`Log::eviction_victim`].
    eviction_victim: AtomicU64,
    /// Compaction found nothing to free.
    dry: AtomicBool,
    windows: Box<[Searched]>,
    /// Where the search for tombstones goes on.
    cursor: AtomicUsize,
    pub relocations: Relocations,
}

/// The list, held for some looks.
pub struct Needs<'a> {
    list: RwLockReadGuard<'a, List>,
}

impl Needs<'_> {
    /// True if a tombstone with this victim must be kept, `leaving` being removed by the same Swap
    /// as it (D1, D4).
    pub fn tombstone(&self, victim: SegmentId, leaving: &[SegmentId]) -> bool {
        let stays =
            |id: u64| self.list.segments.contains_key(&id) && !leaving.contains(&SegmentId(id));
        stays(victim.0)
            || self.list.passes.iter().any(|pass| {
                pass.has_survivor(victim.0) && pass.victims.iter().any(|id| stays(id.0))
            })
    }

    /// True if the segment may be a victim of a pass (D3).
    pub fn is_settled(&self, segment: SegmentId) -> bool {
        self.list.segments.get(&segment.0) == Some(&Life::Settled)
    }
}

impl Swaps {
    /// `pending_max`: passes that may wait for their Swap at once.
    pub fn new(limit: u64, room: u64, pending_max: usize, windows: usize, heads: usize) -> Swaps {
        // Windows must be left for heads, survivors, and what waits for its readers.
        let limit_max = limit.min((windows - windows / 4) as u64);
        Swaps {
            limit_max,
            room_max: room.min((windows - windows / 8) as u64).max(limit_max),
            found: AtomicU64::new(0),
            heads: heads as u64,
            pending_max: pending_max.max(1),
            list: RwLock::default(),
            serial: AtomicU64::new(1),
            queues: Mutex::default(),
            disk_room: AtomicU64::new(u64::MAX),
            refused: AtomicBool::new(false),
            count: AtomicU64::new(0),
            aside: AtomicU64::new(0),
            done: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            taken: AtomicBool::new(false),
            eviction_victim: AtomicU64::new(0),
            dry: AtomicBool::new(false),
            windows: (0..windows).map(|_| Searched::default()).collect(),
            cursor: AtomicUsize::new(0),
            relocations: Relocations::default(),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("cleaning queues")
    }

    fn change_list(&self) -> RwLockWriteGuard<'_, List> {
        let list = self.list.write().expect("segment list");
        self.serial.fetch_add(1, Ordering::Release); // with the lock: pairs with Acquire in `serial`
        list
    }

    /// Changes with every change of the list. Read before the list is, it says how old an answer is
    /// at least.
    #[inline]
    pub fn serial(&self) -> u64 {
        self.serial.load(Ordering::Acquire)
    }

    fn insert(&self, segment: SegmentId, life: Life) {
        let mut list = self.change_list();
        let before = list.segments.insert(segment.0, life);
        assert!(before.is_none(), "segment {segment} opened twice"); // ids are never given again
        self.count
            .store(list.segments.len() as u64, Ordering::Relaxed);
    }

    /// A head opened a segment, or the loader adopts one: it is listed (D1).
    pub fn opened(&self, segment: SegmentId) {
        self.refused.store(false, Ordering::Relaxed);
        self.insert(segment, Life::Settled);
    }

    /// A pass opened a survivor.
    pub fn opened_survivor(&self, segment: SegmentId) {
        self.insert(segment, Life::Unswapped);
    }

    pub fn needs(&self) -> Needs<'_> {
        Needs {
            list: self.list.read().expect("segment list"),
        }
    }

    pub fn is_listed(&self, segment: SegmentId) -> bool {
        self.needs().list.segments.contains_key(&segment.0)
    }

    /// Grows with every survivor and Swap that became durable.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    pub fn swaps_done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// True if something of the cleaners waits for the consumer: then waiting for memory makes
    /// sense.
    pub fn is_waiting(&self) -> bool {
        let queues = self.queues();
        !queues.survivors.is_empty() || !queues.pending.is_empty()
    }

    /// True if some context works at a pass.
    pub fn is_at_work(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes the right to work at a pass. False: another has it, or the disk is too far behind.
    pub fn try_take_turn(&self) -> bool {
        // Side logs wait for their Swaps too, but hold no victims.
        let queues = self.queues();
        let passes = queues.pending.iter();
        if passes.filter(|pending| pending.done.is_none()).count() >= self.pending_max {
            return false;
        }
        drop(queues);
        self.taken
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    pub fn end_turn(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// Compaction left nothing of a segment: it has no window any more, and waits to be removed by
    /// a pass.
    pub fn emptied(&self, segment: SegmentId) {
        self.queues().empty.push(segment);
    }

    /// Takes emptied segments that may be victims, for a pass to remove.
    pub fn take_empty(&self) -> Vec<SegmentId> {
        let mut queues = self.queues();
        let needs = self.needs();
        let (settled, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut queues.empty)
            .into_iter()
            .partition(|segment| needs.is_settled(*segment));
        queues.empty = rest;
        settled
    }

    /// True if the segment waits to be removed by a pass, and has no window any more.
    pub fn is_emptied(&self, segment: SegmentId) -> bool {
        self.queues().empty.contains(&segment)
    }

    /// True if a pass of this run has the segment as a victim: its Swap will remove it.
    pub fn is_victim(&self, segment: SegmentId) -> bool {
        let queues = self.queues();
        let mut pending = queues.pending.iter();
        queues.working.contains(&segment)
            || pending.any(|pending| pending.swap.remove.contains(&segment))
    }

    /// Announces a pass (D4). Before anything is copied, dropped or evicted by it.
    pub fn announce(&self, mut pass: Pass, evicts: bool) {
        let mut queues = self.queues();
        queues.working.clone_from(&pass.victims);
        self.relocations.taken(&pass.victims);
        if evicts {
            // What earlier passes evicted can still come back with their victims. One token stands
            // for all of them.
            let own = pass.victims.clone();
            let pending = queues.pending.iter().filter(|pending| pending.evicted);
            pass.victims
                .extend(pending.flat_map(|pending| &pending.swap.remove));
            queues.evicting = Some(own);
            self.eviction_victim.store(pass.first.0, Ordering::Release);
        }
        self.list
            .write()
            .expect("segment list")
            .passes
            .push(pass.clone());
        queues.announced.push(pass);
    }

    /// Moves the announcements made so far to `out`. The consumer calls it after it has fixed what
    /// data it takes.
    pub fn take_passes(&self, out: &mut Vec<Pass>) {
        out.append(&mut self.queues().announced);
    }

    /// A survivor is complete: its frame can be written. Called before its window is closed.
    pub fn closed_survivor(&self, segment: SegmentId, window: u32, length: u32) {
        self.windows[window as usize]
            .unwritten
            .store(true, Ordering::Release);
        self.queues().survivors.push_back(Unwritten {
            segment,
            window,
            length,
            handed: false,
            abandoned: false,
        });
    }

    /// False: the window holds a survivor without a frame, and must stay as it is.
    pub fn is_written(&self, window: u32) -> bool {
        !self.windows[window as usize]
            .unwritten
            .load(Ordering::Acquire)
    }

    pub fn is_dry(&self) -> bool {
        self.dry.load(Ordering::Relaxed)
    }

    pub fn set_dry(&self, dry: bool) {
        self.dry.store(dry, Ordering::Relaxed);
    }

    /// Notes what a search of a window for tombstones found, when `done` swaps were done.
    pub fn note_rescan(&self, window: u32, incarnation: u32, done: u64, kept: u32, droppable: u32) {
        let known = &self.windows[window as usize];
        known.incarnation.store(incarnation, Ordering::Relaxed);
        known.kept.store(kept, Ordering::Relaxed);
        known.droppable.store(droppable, Ordering::Relaxed);
        known.at.store(done + 1, Ordering::Relaxed);
    }

    /// Bytes of tombstones in a closed window that may go, as far as is known.
    pub fn droppable(&self, window: u32, incarnation: u32) -> u32 {
        let known = &self.windows[window as usize];
        if known.incarnation.load(Ordering::Relaxed) == incarnation
            && known.at.load(Ordering::Relaxed) != 0
        {
            known.droppable.load(Ordering::Relaxed)
        } else {
            0
        }
    }

    /// True if a search of the closed window could find what the last one did not.
    pub fn wants_rescan(&self, window: u32, incarnation: u32) -> bool {
        let known = &self.windows[window as usize];
        let at = known.at.load(Ordering::Relaxed);
        if at == 0 || known.incarnation.load(Ordering::Relaxed) != incarnation {
            return true;
        }
        known.kept.load(Ordering::Relaxed) > 0 && at <= self.swaps_done()
    }

    pub fn rescan_cursor(&self, windows: usize) -> usize {
        self.cursor.load(Ordering::Relaxed) % windows.max(1)
    }

    pub fn set_rescan_cursor(&self, at: usize) {
        self.cursor.store(at, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.windows) as u64
    }

    /// The scan of a pass has ended, with the heads at `position`; all its survivors are closed.
    pub fn scanned(&self, swap: Swap, position: Position) {
        let mut queues = self.queues();
        let unwritten = queues
            .survivors
            .iter()
            .filter(|waiting| swap.add.contains(&waiting.segment))
            .count();
        let evicted = queues.evicting.take().is_some();
        queues.working.clear();
        queues.pending.push_back(Pending {
            swap,
            unwritten,
            position,
            evicted,
            held: Vec::new(),
            done: None,
        });
    }

    /// A side log goes on in a segment (D6).
    pub fn opened_side(&self, segment: SegmentId, window: u32, careless: bool) {
        if careless {
            self.insert(segment, Life::Settled);
            return;
        }
        self.insert(segment, Life::Unswapped);
        self.windows[window as usize]
            .held
            .store(true, Ordering::Release);
    }

    /// True if the window is part of a side log whose Swap is not durable (D6).
    #[inline]
    pub fn is_held(&self, window: u32) -> bool {
        self.windows[window as usize].held.load(Ordering::Acquire)
    }

    /// A side log is complete, with the heads at `position`: it becomes part of the log by this
    /// Swap, and then `done` is set.
    pub fn side_scanned(
        &self,
        swap: Swap,
        position: Position,
        held: Vec<u32>,
        done: Arc<AtomicBool>,
    ) {
        let mut queues = self.queues();
        let waiting = queues.survivors.iter();
        let unwritten = waiting
            .filter(|waiting| swap.add.contains(&waiting.segment))
            .count();
        queues.pending.push_back(Pending {
            swap,
            unwritten,
            position,
            evicted: false,
            held,
            done: Some(done),
        });
    }

    /// How many of these are closed and not durable.
    pub fn unwritten_of(&self, segments: &[(SegmentId, u32)]) -> usize {
        let queues = self.queues();
        let waiting = queues.survivors.iter();
        let is_one = |waiting: &&Unwritten| segments.iter().any(|(id, _)| *id == waiting.segment);
        waiting.filter(is_one).count()
    }

    /// A side log is given up: nothing points to its entries any more. Returns the windows that are
    /// free at once; the others come by way of [`take_released`](Self::take_released), when the
    /// consumer has done with them.
    pub fn abandon(&self, segments: &[(SegmentId, u32)]) -> Vec<u32> {
        let mut queues = self.queues();
        let mut free = Vec::new();
        for (segment, window) in segments {
            let at = queues
                .survivors
                .iter()
                .position(|waiting| waiting.segment == *segment);
            queues.written.remove(&segment.0);
            match at {
                Some(at) if queues.survivors[at].handed => queues.survivors[at].abandoned = true,
                Some(at) => {
                    queues.survivors.remove(at);
                    free.push(*window);
                }
                None => {
                    queues.abandoned.push(*segment);
                    free.push(*window);
                }
            }
        }
        let mut list = self.change_list();
        for (segment, _) in segments {
            list.segments.remove(&segment.0);
        }
        self.count
            .store(list.segments.len() as u64, Ordering::Relaxed);
        drop(list);
        free.iter().for_each(|window| self.let_go(*window));
        free
    }

    fn let_go(&self, window: u32) {
        let known = &self.windows[window as usize];
        known.unwritten.store(false, Ordering::Release);
        known.held.store(false, Ordering::Release);
    }

    /// Windows of abandoned side logs that nobody reads any more, for their memory to be given
    /// back.
    pub fn take_released(&self) -> Vec<u32> {
        let released = std::mem::take(&mut self.queues().released);
        released.iter().for_each(|window| self.let_go(*window));
        released
    }

    /// The window of a side log's segment that is durable and not swapped in yet (D7). It may be
    /// given up at any time.
    pub fn written_window(&self, segment: SegmentId) -> Option<u32> {
        self.queues().written.get(&segment.0).copied()
    }

    fn durable(&self, segment: SegmentId) -> Option<()> {
        let mut queues = self.queues();
        let at = queues
            .survivors
            .iter()
            .position(|waiting| waiting.segment == segment)?;
        let Unwritten {
            window, abandoned, ..
        } = queues.survivors.remove(at)?;
        if abandoned {
            queues.released.push(window);
            queues.abandoned.push(segment);
            self.progress.fetch_add(1, Ordering::Relaxed);
            return Some(());
        }
        if let Some(pending) = queues
            .pending
            .iter_mut()
            .find(|pending| pending.swap.add.contains(&segment))
        {
            pending.unwritten -= 1;
        }
        let known = &self.windows[window as usize];
        if known.held.load(Ordering::Acquire) {
            queues.written.insert(segment.0, window); // D7
        }
        known.unwritten.store(false, Ordering::Release);
        self.progress.fetch_add(1, Ordering::Relaxed);
        Some(())
    }

    /// The next Swap, if its survivors are durable (D2) and `reached` its position; D5.
    fn next(&self, early: bool, reached: impl Fn(&Position) -> bool) -> Option<Swap> {
        let queues = self.queues();
        let pending = queues.pending.front()?;
        let written = pending.unwritten == 0 || early;
        (written && reached(&pending.position)).then(|| pending.swap.clone())
    }

    /// The position that the next Swap waits for, if nothing else is missing.
    fn waits_for(&self) -> Option<Position> {
        let queues = self.queues();
        let pending = queues.pending.front()?;
        (pending.unwritten == 0).then(|| pending.position.clone())
    }

    fn finished(&self, swap: &Swap) {
        let mut queues = self.queues();
        let front = queues.pending.pop_front();
        assert_eq!(
            front.as_ref().map(|pending| &pending.swap),
            Some(swap),
            "swaps are made in order" // D5
        );
        let mut list = self.change_list();
        for segment in &swap.add {
            let life = list.segments.get_mut(&segment.0);
            *life.expect("a survivor is listed from its opening") = Life::Settled;
            queues.written.remove(&segment.0);
        }
        for segment in &swap.remove {
            list.segments.remove(&segment.0);
        }
        for pass in &mut list.passes {
            pass.victims.retain(|victim| !swap.remove.contains(victim));
        }
        list.passes.retain(|pass| !pass.victims.is_empty());
        let count = list.segments.len() as u64;
        self.count.store(count, Ordering::Relaxed);
        self.found.fetch_min(count, Ordering::Relaxed); // D10
        drop(list);
        if let Some(Pending { held, done, .. }) = front {
            held.iter().for_each(|window| self.let_go(*window));
            if let Some(done) = done {
                done.store(true, Ordering::Release);
            }
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        self.progress.fetch_add(1, Ordering::Relaxed);
        let evicting = queues.evicting.is_some();
        if !evicting && !queues.pending.iter().any(|pending| pending.evicted) {
            self.eviction_victim.store(0, Ordering::Release);
        }
    }

    /// Passes that a crash cut off, as the control log remembers them (D4). Before anything is
    /// loaded.
    pub fn restore(&self, passes: &[Pass]) {
        let mut list = self.change_list();
        list.passes.extend_from_slice(passes);
    }
}

impl Log {
    /// True while the segment is part of the log on disk, or may become so (D1).
    pub fn is_durable_segment(&self, segment: SegmentId) -> bool {
        self.swaps().is_listed(segment)
    }

    /// The next closed survivor that has no frame yet; the same until
    /// [`survivor_durable`](Self::survivor_durable).
    pub fn next_survivor(&self) -> Option<SurvivorReady<'_>> {
        let ready = {
            let mut queues = self.swaps.queues();
            let front = queues.survivors.front_mut()?;
            front.handed = true;
            *front
        };
        Some(SurvivorReady {
            segment: ready.segment,
            bytes: self.memory.slice(ready.window, 0, ready.length),
        })
    }

    /// A closed survivor that was not handed out yet: whoever writes several at once. Each comes
    /// once, and is [`survivor_durable`](Self::survivor_durable) in whatever order.
    pub fn another_survivor(&self) -> Option<SurvivorReady<'_>> {
        let ready = {
            let mut queues = self.swaps.queues();
            let mut waiting = queues.survivors.iter_mut();
            let next = waiting.find(|survivor| !survivor.handed)?;
            next.handed = true;
            *next
        };
        Some(SurvivorReady {
            segment: ready.segment,
            bytes: self.memory.slice(ready.window, 0, ready.length),
        })
    }

    /// Segments of side logs that were given up since the last call: whoever wrote frames of them
    /// frees those.
    pub fn take_abandoned(&self) -> Vec<SegmentId> {
        std::mem::take(&mut self.swaps.queues().abandoned)
    }

    /// The survivor's frame is closed and durable; or it was abandoned meanwhile, and nobody reads
    /// its bytes any more.
    pub fn survivor_durable(&self, segment: SegmentId) {
        let _ = self.swaps.durable(segment); // said twice: nothing new
    }

    /// The next Swap that may be recorded (D2); the same until [`swapped`](Self::swapped).
    pub fn next_swap(&self) -> Option<Swap> {
        let early = self.has_bug(Bug::SwapBeforeFrames);
        let careless = self.has_bug(Bug::SwapBeforeReasons);
        self.swaps.next(early, |position| {
            careless || self.reached(position) >= Level::Synced
        })
    }

    /// The position that the next Swap waits for, if that is all it waits for: time to sync.
    pub fn swap_waits_for(&self) -> Option<Position> {
        self.swaps()
            .waits_for()
            .filter(|position| self.reached(position) < Level::Synced)
    }

    /// The Swap's record is durable: its victims have left the log, their frames may be freed.
    pub fn swapped(&self, swap: &Swap) {
        self.swaps().finished(swap);
    }

    /// What the creation of an absent key names as victim while evicted objects can still come back
    /// from disk: 0 = nothing.
    pub fn eviction_victim(&self) -> SegmentId {
        SegmentId(self.swaps().eviction_victim.load(Ordering::Acquire))
    }
}
