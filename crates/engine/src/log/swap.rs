//! The list of the log's segments on disk, and the cleaning passes that replace some of them by
//! others.
//!
//! A pass takes victims and fills survivors. Its steps: *announced* (its record is written with the
//! data that may name its survivors) → *scanned* (survivors closed, positions recorded) → survivors
//! written to frames → *proposed* as a [`Swap`] → *swapped*: the record is durable, the victims are
//! no longer part of the log, and their frames may be freed.
//!
//! **Invariants**
//! - D1: a segment is listed from its opening until the Swap that removes it is durable. A
//!   tombstone (embedded or not) is needed as long as its victim is listed: if it were dropped
//!   earlier, the victim's copy would come back after a crash.
//! - D2: a Swap is proposed only when all its survivors are closed and durable (docs/traps.md,
//!   trap 9), and when every append that may have been the reason of the pass to drop an entry is
//!   durable itself (trap 3).
//! - D3: a survivor may be a victim only after its own Swap is durable, because only then the
//!   victims that it was filled from are gone. Otherwise the killer of an entry in the survivor,
//!   which names the survivor, could be dropped before the copy in the victim is gone. (D5 alone
//!   has the same effect; D3 keeps it true should swaps ever overtake one another.)
//! - D4: a crash between the copying and the Swap leaves killers that name a survivor which was
//!   never listed. The pass's announcement is durable before such a killer is. After a restart,
//!   these killers are needed as long as one of the pass's victims is listed.
//! - D5: passes are swapped in the order in which their scans ended.
//! - D6: a side log (`side`) ends as a pass without victims does. Until its Swap is durable, its
//!   windows are *held*: no cleaner and no expiry touches them, so the side log can be given up as
//!   a whole. Bytes that were handed to the consumer stay in place until the consumer has reported
//!   them, even if the side log is given up. A complete side log can be given up until its Swap was
//!   handed to the consumer: from then on its record may be durable.
//! - D7: the segments of a side log can be read from memory or from flash, as they were closed,
//!   until its Swap is durable. If all replicas of a segment were lost before, there would be no
//!   other copy of its bytes, and the Swap would wait for ever. So can a pass's survivor, but only
//!   until a compaction has taken its window: its memory may be needed.
//! - D8: a held window may turn cold once its frame is durable, and not before: until then the
//!   consumer reads it. It stays held: only its memory is freed. The thread that gives the side log
//!   up claims each of its windows first. So no other thread works on a window (core::flash::F2)
//!   when its entries are taken out of the index and it is retired, and no window turns cold
//!   afterwards.
//! - D9: heads take room for a segment before they open it. So the reserves of survivors and of
//!   removals stay, however many windows a group sets aside, and however many heads open one at the
//!   same time.
//! - D10: a log that a restart found longer than its present limit becomes shorter: survivors and
//!   removals get their reserves beyond the segments that were found, as far as the disk has room
//!   for them. The count of found segments falls with each Swap and never rises.
//! - D11: objects are evicted by passes, by a load (load::R8), and by a cleaner without room for a
//!   survivor. While a segment that lost objects so is listed, the creation or removal of an absent
//!   key names a token: the first id of announced passes that have all these segments as victims.
//!   So the entry is needed until the last of them has left (D4), and no evicted object comes back
//!   in place of a newer one. An object that has expired by a clock that was set back since counts
//!   as evicted (core::doubt::DC4).
//! - D12: a token is named at once, and stands also for survivors before their Swap and for the new
//!   segments of heads. The control log does not list these yet: it announces each with the record
//!   that lists it (replication::O15). Until then a crash leaves the victims of a survivor, which
//!   are announced with it, and nothing of a head's new segment. Victims of a Swap that is recorded
//!   and not durable are not announced: what is written after the record is lost with it.
//!
//! **Concurrency**: one lock for the list (read once per group of entries by cleaners), one for the
//! queues. The list's lock may be taken under the queue's, never the other way round. Paper:
//! [Rumble14 §4, §6.4]; differs: D2's second half and D4 are in no source (docs/traps.md, trap 3).

mod disk_room;
mod evicted;
mod given_up;
mod lost;
mod survivors;

pub use survivors::SurvivorReady;

use super::relocate::Relocations;
use super::{Log, Position};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::coarse::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use duramen_format::recipe::Parts;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The announcement of a pass, made before durable data can name one of its survivors (D4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// First id of the survivors.
    pub first: SegmentId,
    /// Maximum number of survivors; their ids follow one another.
    pub count: u32,
    /// Segments that its Swap removes. While one of them is listed, entries that name a survivor of
    /// this pass are needed.
    pub victims: Vec<SegmentId>,
}

impl Pass {
    fn has_survivor(&self, segment: u64) -> bool {
        (self.first.0..self.first.0 + u64::from(self.count)).contains(&segment)
    }
}

/// The effect of a cleaning pass on the log, as one atomic record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    pub add: Vec<SegmentId>,
    pub remove: Vec<SegmentId>,
    /// Highest version that may have been given to a key of which the log now keeps no trace.
    pub version_floor: u64,
}

/// The state of a listed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Opened by a head, or its Swap is durable: the rules of this file allow it as a victim.
    Settled,
    /// A survivor whose Swap is not durable yet (D3).
    Unswapped,
    /// Its compaction was given up: no pass may take it (given_up::GU4).
    Kept,
    /// Survivor of a pass that was given up: no pass may take it (given_up::GU2).
    InVain,
}

#[derive(Default)]
struct List {
    segments: HashMap<u64, Life>,
    /// Passes announced and not yet swapped. Includes passes that a crash cut off before the last
    /// restart (D4).
    passes: Vec<Pass>,
}

/// A pass whose scan has ended.
struct Pending {
    swap: Swap,
    /// Survivors of the pass that are not durable yet.
    unwritten: usize,
    /// Position of the heads when the scan ended (D2).
    position: Position,
    evicted: bool,
    /// Windows of a side log, held until the Swap is durable (D6).
    held: Vec<u32>,
    done: Option<Arc<AtomicBool>>,
    /// The consumer has got its Swap (D6).
    handed: bool,
}

/// A closed survivor without a frame.
#[derive(Clone)]
struct Unwritten {
    segment: SegmentId,
    parts: Option<Arc<Parts>>,
    window: u32,
    length: u32,
    /// The consumer has got its bytes, and may be reading them.
    handed: bool,
    /// Part of a side log that was given up (D6).
    abandoned: bool,
    /// Survivor of a pass that was given up (given_up::GU1).
    in_vain: bool,
}

/// Result of the last search of a window for tombstones.
#[derive(Default)]
struct Searched {
    /// Incarnation of the window that was searched. If the window has another one now, the result
    /// is void.
    incarnation: AtomicU32,
    /// Bytes of tombstones that had to stay, and of those that may be dropped.
    kept: AtomicU32,
    droppable: AtomicU32,
    /// Swaps done by then, plus one; 0 = never searched.
    at: AtomicU64,
    /// True: the window holds a survivor without a frame.
    unwritten: AtomicBool,
    /// True: the window is part of a side log whose Swap is not durable (D6).
    held: AtomicBool,
}

#[derive(Default)]
struct Queues {
    /// Announcements that the consumer has not taken yet.
    announced: Vec<Pass>,
    /// Closed and not durable, in the order of closing.
    survivors: VecDeque<Unwritten>,
    /// Durable segments that are not swapped in, and their windows, as they were closed (D7).
    written: HashMap<u64, u32>,
    pending: VecDeque<Pending>,
    /// Victims of the running pass.
    working: Vec<SegmentId>,
    /// Victims of the running pass, if it evicts.
    evicting: Option<Vec<SegmentId>>,
    /// Listed segments of which objects were evicted outside of the passes that evict (D11).
    evicted: Vec<SegmentId>,
    /// Listed segments of which memory holds nothing any more.
    empty: Vec<SegmentId>,
    /// Victims of passes that were given up (given_up::GU3).
    stranded: Vec<SegmentId>,
    /// Survivors that will never be durable, until their passes are given up.
    hopeless: Vec<SegmentId>,
    /// Segments of side logs and passes that were given up: their frames may be freed.
    abandoned: Vec<SegmentId>,
    /// Windows of such segments that the consumer has finished reading.
    released: Vec<u32>,
}

impl Queues {
    fn has_victim(&self, segment: SegmentId) -> bool {
        let mut pending = self.pending.iter();
        self.working.contains(&segment)
            || self.stranded.contains(&segment)
            || pending.any(|pending| pending.swap.remove.contains(&segment))
    }
}

/// The list and the queues of one log.
pub struct Swaps {
    list: RwLock<List>,
    /// Changes of `list`.
    serial: AtomicU64,
    queues: Mutex<Queues>,
    /// Maximum number of segments in the log.
    limit_max: u64,
    /// Number of segments that the disk has room for, if a restart found more than the maximum
    /// (D10).
    room_max: u64,
    /// Segments that a restart found; falls with the length of the log.
    found: AtomicU64,
    heads: u64,
    /// Number of segments that the disk has space for, if it is less.
    disk_room: AtomicU64,
    /// A head was refused a segment because the disk is full, and no head has got one since.
    refused: AtomicBool,
    pending_max: usize,
    count: AtomicU64,
    /// Segments that heads have taken room for and not opened yet (D9).
    aside: AtomicU64,
    /// Swaps made durable since the start.
    done: AtomicU64,
    progress: AtomicU64,
    /// One pass runs at a time (docs/traps.md, trap 17).
    taken: AtomicBool,
    /// See [`Log::eviction_victim`].
    eviction_victim: AtomicU64,
    /// Compaction found nothing to free.
    dry: AtomicBool,
    windows: Box<[Searched]>,
    /// Window at which the search for tombstones continues.
    cursor: AtomicUsize,
    pub relocations: Relocations,
}

/// The list, locked for reading.
pub struct Required<'a> {
    list: RwLockReadGuard<'a, List>,
}

impl Required<'_> {
    /// True if a tombstone with this victim must be kept. `leaving`: segments that the same Swap as
    /// the tombstone's removes (D1, D4).
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
    /// `pending_max`: maximum number of passes that wait for their Swap.
    pub fn new(limit: u64, room: u64, pending_max: usize, windows: usize, heads: usize) -> Swaps {
        // Windows must remain for heads, for survivors, and for retired ones that readers still
        // pin.
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
        // Under the lock. Pairs with Acquire in `serial`.
        self.serial.fetch_add(1, Ordering::Release);
        list
    }

    /// Changes with every change of the list. Read it before the list: an answer from the list is
    /// then at least as new as this number.
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

    pub fn needs(&self) -> Required<'_> {
        Required {
            list: self.list.read().expect("segment list"),
        }
    }

    pub fn is_listed(&self, segment: SegmentId) -> bool {
        self.needs().list.segments.contains_key(&segment.0)
    }

    /// Grows with every survivor and every Swap that became durable.
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    pub fn swaps_done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// True if work of the cleaners waits for the consumer: then it makes sense to wait for memory.
    pub fn is_waiting(&self) -> bool {
        let queues = self.queues();
        !queues.survivors.is_empty() || !queues.pending.is_empty()
    }

    /// True if a context runs a pass.
    pub fn is_at_work(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes the right to run a pass. False: another context has it, or too many passes wait for
    /// the disk.
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

    /// Compaction left nothing of a segment: it has no window any more, and a pass has to remove it
    /// from the list.
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

    /// True if the segment has no window any more and waits for a pass to remove it.
    pub fn is_emptied(&self, segment: SegmentId) -> bool {
        self.queues().empty.contains(&segment)
    }

    /// True if a pass of this run has the segment as a victim: its Swap will remove it, or no pass
    /// of this run does (given_up::GU3).
    pub fn is_victim(&self, segment: SegmentId) -> bool {
        self.queues().has_victim(segment)
    }

    /// Wants a pass that takes this segment (relocate::R1). False: one has it as a victim, none may
    /// take it, or it is not listed.
    pub fn relocate(&self, segment: SegmentId) -> bool {
        let queues = self.queues(); // until then no pass takes it
        let needs = self.needs();
        let life = needs.list.segments.get(&segment.0);
        let may_be_taken = matches!(life, Some(Life::Settled | Life::Unswapped));
        let wants = may_be_taken && !queues.has_victim(segment);
        if wants {
            self.relocations.want(segment);
        }
        wants
    }

    /// Announces a pass (D4), before the pass copies, drops or evicts anything.
    pub fn announce(&self, mut pass: Pass, evicts: bool) {
        let mut queues = self.queues();
        queues.working.clone_from(&pass.victims);
        self.relocations.taken(&pass.victims);
        if !evicts {
            return self.note_announced(&mut queues, pass);
        }
        // Objects that earlier passes evicted can still come back with their victims, and those
        // evicted outside of such passes. One token stands for all of them (D11).
        queues.evicting = Some(pass.victims.clone());
        let pending = queues.pending.iter().filter(|pending| pending.evicted);
        let mut victims = pass.victims.clone();
        victims.extend(pending.flat_map(|pending| &pending.swap.remove));
        victims.sort_unstable();
        victims.dedup();
        if queues.evicted.is_empty() {
            pass.victims = victims;
            self.eviction_victim.store(pass.first.0, Ordering::Release);
            return self.note_announced(&mut queues, pass);
        }
        // The present token stays. It gets these victims too: a copy of all segments that a load
        // evicted in each pass would outgrow the control segment.
        let token = Pass {
            first: SegmentId(self.eviction_victim.load(Ordering::Acquire)),
            count: 1,
            victims,
        };
        self.note_announced(&mut queues, pass);
        self.note_announced(&mut queues, token);
    }

    fn note_announced(&self, queues: &mut Queues, pass: Pass) {
        let mut list = self.list.write().expect("segment list");
        list.passes.push(pass.clone());
        drop(list);
        queues.announced.push(pass);
    }

    /// Moves the announcements made so far to `out`. The consumer calls it after it has decided
    /// which data it takes.
    pub fn take_passes(&self, out: &mut Vec<Pass>) {
        out.append(&mut self.queues().announced);
    }

    /// A survivor is complete: its frame can be written. Called before its window is closed.
    pub fn closed_survivor(
        &self,
        segment: SegmentId,
        window: u32,
        length: u32,
        parts: Option<Parts>,
    ) {
        self.windows[window as usize]
            .unwritten
            .store(true, Ordering::Release);
        self.queues().survivors.push_back(Unwritten {
            segment,
            parts: parts.map(Arc::new),
            window,
            length,
            handed: false,
            abandoned: false,
            in_vain: false,
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

    /// Notes the result of a search of a window for tombstones, made after `done` Swaps.
    pub fn note_rescan(&self, window: u32, incarnation: u32, done: u64, kept: u32, droppable: u32) {
        let known = &self.windows[window as usize];
        known.incarnation.store(incarnation, Ordering::Relaxed);
        known.kept.store(kept, Ordering::Relaxed);
        known.droppable.store(droppable, Ordering::Relaxed);
        known.at.store(done + 1, Ordering::Relaxed);
    }

    /// Bytes of tombstones in a closed window that may be dropped, by the last search.
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

    /// True if a new search of the closed window could find more than the last one.
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

    /// The scan of a pass has ended, with the heads at `position`; all survivors of the pass are
    /// closed.
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
            handed: false,
        });
        self.give_up_hopeless(&mut queues);
    }

    /// A side log opened a segment (D6).
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

    /// A side log is complete, with the heads at `position`. This Swap makes it part of the log;
    /// `done` is set then.
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
            handed: false,
        });
    }

    /// A complete side log, known by its `done`, is to be given up (D6): its Swap is taken back.
    /// False: it was handed to the consumer.
    pub fn withdraw(&self, done: &Arc<AtomicBool>) -> bool {
        let mut queues = self.queues();
        let is_it = |pending: &Pending| {
            let its = pending.done.as_ref();
            its.is_some_and(|its| Arc::ptr_eq(its, done))
        };
        let Some(at) = queues.pending.iter().position(is_it) else {
            return false;
        };
        if queues.pending[at].handed && !has_bug(Bug::WithdrawnAfterHanded) {
            return false;
        }
        queues.pending.remove(at);
        true
    }

    /// Number of these segments that are closed and not durable.
    pub fn unwritten_of(&self, segments: &[(SegmentId, u32)]) -> usize {
        let queues = self.queues();
        let waiting = queues.survivors.iter();
        let is_one = |waiting: &&Unwritten| segments.iter().any(|(id, _)| *id == waiting.segment);
        waiting.filter(is_one).count()
    }

    /// A side log is given up: the index no longer points to its entries. Returns the windows that
    /// are free at once. [`take_released`](Self::take_released) returns the others, once the
    /// consumer has finished reading them.
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
        let gone: Vec<SegmentId> = segments.iter().map(|(id, _)| *id).collect();
        let mut list = self.change_list();
        list.remove(&gone);
        self.count
            .store(list.segments.len() as u64, Ordering::Relaxed);
        drop(list);
        self.end_token(&mut queues, &gone);
        free.iter().for_each(|window| self.let_go(*window));
        free
    }

    fn let_go(&self, window: u32) {
        let known = &self.windows[window as usize];
        known.unwritten.store(false, Ordering::Release);
        known.held.store(false, Ordering::Release);
    }

    /// Windows of abandoned side logs that the consumer has finished reading. The caller frees
    /// their memory.
    pub fn take_released(&self) -> Vec<u32> {
        let released = std::mem::take(&mut self.queues().released);
        released.iter().for_each(|window| self.let_go(*window));
        released
    }

    /// The next Swap, in order (D5), if its survivors are durable and the position is `reached`
    /// (D2).
    fn next(&self, early: bool, reached: impl Fn(&Position) -> bool) -> Option<Swap> {
        let mut queues = self.queues();
        let pending = queues.pending.front_mut()?;
        let written = pending.unwritten == 0 || early;
        pending.handed |= written && reached(&pending.position);
        pending.handed.then(|| pending.swap.clone())
    }

    /// The position of the next Swap, if all its survivors are durable.
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
            let life = life.expect("a survivor is listed from its opening");
            if *life == Life::Unswapped {
                *life = Life::Settled;
            }
            queues.written.remove(&segment.0);
        }
        queues.hopeless.retain(|known| !swap.add.contains(known));
        list.remove(&swap.remove);
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
        self.end_token(&mut queues, &swap.remove);
    }

    /// Passes that a crash cut off, from the control log (D4). Called before any segment is loaded.
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

    /// Segments of side logs and passes that were given up since the last call. The caller frees
    /// the frames that it wrote of them.
    pub fn take_abandoned(&self) -> Vec<SegmentId> {
        std::mem::take(&mut self.swaps.queues().abandoned)
    }

    /// The survivor's frame is closed and durable. Or the side log was abandoned meanwhile, and the
    /// caller no longer reads its bytes.
    pub fn survivor_durable(&self, segment: SegmentId) {
        let _ = self.swaps.durable(segment); // a repeated report has no effect
    }

    /// The next Swap that may be recorded (D2); the same until [`swapped`](Self::swapped).
    pub fn next_swap(&self) -> Option<Swap> {
        let early = has_bug(Bug::SwapBeforeFrames);
        let careless = has_bug(Bug::SwapBeforeReasons);
        self.swaps.next(early, |position| {
            careless || self.reached(position) >= Level::Synced
        })
    }

    /// The position that the next Swap waits for, if it waits for nothing else: a sync is due.
    pub fn swap_waits_for(&self) -> Option<Position> {
        self.swaps()
            .waits_for()
            .filter(|position| self.reached(position) < Level::Synced)
    }

    /// The Swap's record is durable: its victims have left the log, and their frames may be freed.
    pub fn swapped(&self, swap: &Swap) {
        self.swaps().finished(swap);
    }
}
