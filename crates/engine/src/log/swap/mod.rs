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
//! queues. The list's lock may be taken under the queue's, never the other way round (`log`, Lock
//! order).
//!
//! Paper: [Rumble14 §4, §6.4]; differs: D2's second half and D4 are in no source (docs/traps.md,
//! trap 3).

mod disk_room;
mod evicted;
mod given_up;
mod list;
mod lost;
mod marks;
mod passes;
mod rescan;
mod survivors;
mod turn;

pub use disk_room::DiskRoom;
pub(crate) use list::Required;
pub use survivors::SurvivorReady;

use super::Position;
use super::relocate::Relocations;
use crate::LogOptions;
use duramen_base::ids::SegmentId;
use duramen_base::sync::coarse::{Mutex, MutexGuard};
use duramen_format::recipe::Parts;
use evicted::{Eviction, Token};
use list::{Life, Listed};
use marks::Marks;
use passes::{Passes, Pending};
use rescan::Rescan;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use survivors::{Survivors, Written};
use turn::Turn;

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

/// The effect of a cleaning pass on the log, which is written as one atomic record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    pub add: Vec<SegmentId>,
    pub remove: Vec<SegmentId>,
    /// Highest version that may have been given to a key of which the log now keeps no trace.
    pub version_floor: u64,
}

/// Parts under one lock: a survivor, its pass, and the evictions of that pass change together.
#[derive(Default)]
pub(crate) struct Queues {
    passes: Passes,
    survivors: Survivors,
    eviction: Eviction,
}

impl Queues {
    pub fn passes(&mut self) -> &mut Passes {
        &mut self.passes
    }

    pub fn survivors(&mut self) -> &mut Survivors {
        &mut self.survivors
    }
}

/// The list of one log, and the passes that change it.
pub struct Swaps {
    list: Listed,
    queues: Mutex<Queues>,
    disk: DiskRoom,
    marks: Marks,
    rescan: Rescan,
    turn: Turn,
    pub(crate) relocations: Relocations,
    /// See [`eviction_victim`](Self::eviction_victim).
    token: Token,
    /// Swaps made durable since the start.
    done: AtomicU64,
    progress: AtomicU64,
    /// Maximum victims of the announcements of one loss: an eighth of a control segment.
    victims_max: usize,
}

impl Swaps {
    pub(super) fn new(options: &LogOptions, windows: usize, heads: usize) -> Swaps {
        let (limit, room) = (options.disk_segments_max, options.disk_segments_room);
        Swaps {
            list: Listed::default(),
            queues: Mutex::default(),
            disk: DiskRoom::new(limit, room, windows, heads),
            marks: Marks::new(windows),
            rescan: Rescan::new(windows),
            turn: Turn::new(options.pending_passes_max),
            relocations: Relocations::default(),
            token: Token::default(),
            done: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            victims_max: options.segment_bytes as usize / 8 / size_of::<SegmentId>(),
        }
    }

    /// The list of segments.
    pub(crate) fn list(&self) -> &Listed {
        &self.list
    }

    /// The passes and survivors, locked.
    pub(crate) fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("cleaning queues")
    }

    /// The number of segments that the disk has room for.
    pub fn disk(&self) -> &DiskRoom {
        &self.disk
    }

    /// The windows that have to stay as they are.
    pub(crate) fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Results of searches for tombstones.
    pub(crate) fn rescan(&self) -> &Rescan {
        &self.rescan
    }

    /// The right to run a pass.
    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.rescan.bytes() + self.marks.bytes()
    }

    /// Grows with every survivor and every Swap that became durable.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    pub(crate) fn swaps_done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn insert(&self, segment: SegmentId, life: Life) {
        let mut list = self.list.change();
        list.insert(segment, life);
        self.disk.set_listed(list.count());
    }

    /// A head opened a segment, or the loader adopts one: it is listed (D1).
    pub(crate) fn opened(&self, segment: SegmentId) {
        self.disk.set_refused(false);
        self.insert(segment, Life::Settled);
    }

    /// A pass opened a survivor.
    pub(crate) fn opened_survivor(&self, segment: SegmentId) {
        self.insert(segment, Life::Unswapped);
    }

    /// A side log opened a segment (D6).
    pub(crate) fn opened_side(&self, segment: SegmentId, window: u32, careless: bool) {
        if careless {
            self.insert(segment, Life::Settled);
            return;
        }
        self.insert(segment, Life::Unswapped);
        self.marks.hold(window);
    }

    /// True while the segment is part of the log on disk, or may become so (D1).
    pub fn is_durable_segment(&self, segment: SegmentId) -> bool {
        self.list.has(segment)
    }

    /// True if work of the cleaners waits for the consumer: then it makes sense to wait for memory.
    pub(crate) fn is_waiting(&self) -> bool {
        let queues = self.queues();
        !queues.survivors.is_empty() || !queues.passes.is_idle()
    }

    /// Takes the right to run a pass. Returns false if another context has it, or if too many
    /// passes wait for the disk.
    pub(crate) fn try_take_turn(&self) -> bool {
        let pending = self.queues().passes.waiting();
        self.turn.try_take(pending)
    }

    /// Takes emptied segments that may be victims, for a pass to remove.
    pub(crate) fn take_empty(&self) -> Vec<SegmentId> {
        let mut queues = self.queues();
        let needs = self.list.needs();
        queues
            .passes
            .take_empty(|segment| needs.is_settled(segment))
    }

    /// Asks for a pass that takes this segment (relocate::R1). Returns false if a pass has it as a
    /// victim, if no pass may take it, or if it is not listed.
    pub(crate) fn relocate(&self, segment: SegmentId) -> bool {
        let queues = self.queues(); // no pass takes the segment before this returns
        let life = self.list.needs().life(segment);
        let may_be_taken = matches!(life, Some(Life::Settled | Life::Unswapped));
        let wants = may_be_taken && !queues.passes.is_victim(segment);
        if wants {
            self.relocations.want(segment);
        }
        wants
    }

    /// Announces a pass (D4), before the pass copies, drops or evicts anything.
    pub(crate) fn announce(&self, mut pass: Pass, evicts: bool) {
        let mut queues = self.queues();
        queues.passes.begin(&pass.victims);
        self.relocations.taken(&pass.victims);
        if !evicts {
            return queues.passes.announce(&self.list, pass);
        }
        // Evicted objects can still come back with their segments, those of earlier passes and
        // those that were evicted outside of passes. One token stands for all of them (D11).
        queues.eviction.begin();
        let mut victims = pass.victims.clone();
        victims.extend(queues.passes.evicted_victims());
        victims.sort_unstable();
        victims.dedup();
        if !queues.eviction.has_segments() {
            pass.victims = victims;
            self.token.set(pass.first);
            return queues.passes.announce(&self.list, pass);
        }
        // The present token stays. It gets these victims too: a copy of all segments that a load
        // evicted in each pass would outgrow the control segment.
        let token = Pass {
            first: self.token.get(),
            count: 1,
            victims,
        };
        queues.passes.announce(&self.list, pass);
        queues.passes.announce(&self.list, token);
    }

    /// A survivor is complete: its frame can be written. Called before its window is closed.
    pub(crate) fn closed_survivor(
        &self,
        segment: SegmentId,
        window: u32,
        length: u32,
        parts: Option<Parts>,
    ) {
        self.marks.set_written(window, false);
        let mut queues = self.queues();
        queues.survivors.closed(segment, window, length, parts);
    }

    /// Notes that the survivor's frame is closed and durable, or that its side log was abandoned
    /// meanwhile and the caller no longer reads its bytes. Returns false if it was reported before:
    /// then nothing changes.
    pub fn survivor_durable(&self, segment: SegmentId) -> bool {
        let mut queues = self.queues();
        match queues.survivors.durable(segment) {
            None => return false,
            Some(Written::Abandoned) => {}
            Some(Written::InVain(window)) => self.marks.set_written(window, true),
            Some(Written::Waits(window)) => {
                queues.passes.survivor_written(segment);
                self.marks.set_written(window, true);
            }
        }
        self.progress.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// The scan of a pass has ended, with the heads at `position`; all survivors of the pass are
    /// closed.
    pub(crate) fn scanned(&self, swap: Swap, position: Position) {
        let mut queues = self.queues();
        let evicted = queues.eviction.end_work();
        queues.passes.end_work();
        let is_its = |segment| swap.add.contains(&segment);
        let unwritten = queues.survivors.count_unwritten(is_its);
        queues.passes.wait_for_swap(Pending {
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

    /// A side log is complete, with the heads at `position`. This Swap makes it part of the log;
    /// `done` is set then.
    pub(crate) fn side_scanned(
        &self,
        swap: Swap,
        position: Position,
        held: Vec<u32>,
        done: Arc<AtomicBool>,
    ) {
        let mut queues = self.queues();
        let is_its = |segment| swap.add.contains(&segment);
        let unwritten = queues.survivors.count_unwritten(is_its);
        queues.passes.wait_for_swap(Pending {
            swap,
            unwritten,
            position,
            evicted: false,
            held,
            done: Some(done),
            handed: false,
        });
    }

    /// A side log is given up: the index no longer points to its entries. Returns the windows that
    /// are free at once. [`take_released`](Self::take_released) returns the others, once the
    /// consumer has finished reading them.
    pub(crate) fn abandon(&self, segments: &[(SegmentId, u32)]) -> Vec<u32> {
        let mut queues = self.queues();
        let mut free = Vec::new();
        for (segment, window) in segments {
            if queues.survivors.abandon(*segment) {
                free.push(*window);
            }
        }
        let gone: Vec<SegmentId> = segments.iter().map(|(id, _)| *id).collect();
        let mut list = self.list.change();
        list.remove(&gone);
        self.disk.set_listed(list.count());
        drop(list);
        queues.end_token(&self.token, &gone);
        free.iter().for_each(|window| self.marks.let_go(*window));
        free
    }

    /// Windows of abandoned side logs that the consumer has finished reading. The caller frees
    /// their memory.
    pub(crate) fn take_released(&self) -> Vec<u32> {
        let released = self.queues().survivors.take_released();
        let windows = released.iter();
        windows.for_each(|window| self.marks.let_go(*window));
        released
    }

    /// Segments of side logs and passes that were given up since the last call. The caller frees
    /// the frames that it wrote of them.
    pub fn take_abandoned(&self) -> Vec<SegmentId> {
        self.queues().survivors.take_abandoned()
    }

    /// The consumer will not record this Swap: its pass may be given up.
    pub fn swap_withdrawn(&self, swap: &Swap) {
        self.queues().passes.handed_back(swap);
    }

    /// The Swap's record is durable: its victims have left the log, and their frames may be freed.
    pub fn swapped(&self, swap: &Swap) {
        let mut queues = self.queues();
        let pending = queues.passes.swapped(swap);
        let mut list = self.list.change();
        for segment in &swap.add {
            let life = list.life(*segment);
            let life = life.expect("a survivor is listed from its opening");
            if *life == Life::Unswapped {
                *life = Life::Settled;
            }
            queues.survivors.no_longer_as_closed(*segment);
        }
        list.remove(&swap.remove);
        self.disk.swapped(list.count()); // D10: found segments only become fewer
        drop(list);
        if let Some(Pending { held, done, .. }) = pending {
            held.iter().for_each(|window| self.marks.let_go(*window));
            if let Some(done) = done {
                done.store(true, Ordering::Release);
            }
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        self.progress.fetch_add(1, Ordering::Relaxed);
        queues.end_token(&self.token, &swap.remove);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// The swaps of a log with one head and room for 75 segments.
    pub fn swaps() -> Swaps {
        let options = LogOptions {
            disk_segments_max: 100,
            disk_segments_room: 100,
            pending_passes_max: 4,
            ..LogOptions::new(1)
        };
        Swaps::new(&options, 100, 1)
    }
}
