//! One cleaner's work: victims, position, survivor. A step is bounded, so that a writer can do one in passing.
//!
//! **Invariants**
//! - C1: a victim is retired only when every entry of it that the index pointed to has been moved or removed.
//! - C2: survivors take no more than their victims gave: one window per context is kept in reserve (S4), a context works
//!   at one victim at a time, and a victim is smaller than a window.
//! - C3: a cleaner never waits for a transaction (it may wait for memory, that is for this cleaner): it skips the entry and
//!   comes back to the victim later.
//! - C4: an entry's bytes are copied before its bucket is locked, and published under the lock if it is still alive.
//!
//! Paper: [Rumble14 §3, §6], [Merritt17 §3.4]; differs: a survivor stays open over passes until it is full, so that no
//! memory is lost to half-empty survivors, and entries are looked up in groups with their buckets prefetched.

use crate::cleaner::select::select;
use crate::core::Core;
use crate::counters::{Counters, add};
use crate::epoch::SlotId;
use crate::head::Tail;
use crate::index::bucket::{self, Locking, Slot, View};
use crate::index::{Index, Partition};
use crate::space::{Purpose, SEGLET_BYTES, SEGMENT_HEADER_BYTES, Space};
use crate::{KeyHash, Mode, TableId};
use duramen_base::sync::AtomicU64;
use duramen_format::entry::{self, Entry};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Entries looked up together: their bucket lines are fetched in parallel.
const GROUP: usize = 32;
/// A group of large entries is cut short here, so that a step stays short.
const GROUP_BYTES: usize = 32 << 10;
/// Of the live bytes of a segment that is evicted from, at most this part is kept [Rumble14 §8.6].
const KEEP_PART_MAX: f64 = 0.75;

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was scanned; call again.
    Worked,
    /// Nothing is worth cleaning.
    Idle,
    /// Somebody is alone in the store, or no window is free for a survivor yet: try again later.
    Blocked,
}

/// The cleaner's statistics, written by the context's holder.
#[derive(Default)]
#[repr(align(128))]
pub struct Tally {
    pub passes: Counter,
    pub compactions: Counter,
    pub segments_cleaned: Counter,
    pub survivors: Counter,
    pub bytes_scanned: Counter,
    pub bytes_relocated: Counter,
    pub bytes_freed: Counter,
    pub busy_ns: Counter,
    /// Victims chosen and not yet retired.
    pub victims: Counter,
}
type Counter = std::sync::atomic::AtomicU64;

/// The victim being cleaned.
struct Current {
    window: u32,
    /// Offsets in the region.
    at: usize,
    end: usize,
    evict: bool,
    /// Live bytes kept and dropped so far (eviction).
    kept: u64,
    dropped: u64,
    /// An entry was skipped (C3).
    skipped: bool,
    /// The survivor takes this victim alone and is cut to its length afterwards.
    compacting: bool,
    /// By the counters nothing in it is alive.
    dead: bool,
}

pub struct Context {
    number: usize,
    node: usize,
    slot: SlotId,
    survivor: Tail,
    victims: VecDeque<u32>,
    current: Option<Current>,
}

/// Where the index points to a candidate.
type Found<'a> = (View<'a>, &'a AtomicU64, Slot);

/// An entry of the group being looked at.
struct Candidate<'a> {
    location: u64,
    entry: Entry<'a>,
    partition: &'a Partition,
    tag: u64,
}

impl Context {
    pub fn new(number: usize, node: usize, slot: SlotId) -> Context {
        Context {
            number,
            node,
            slot,
            survivor: Tail::default(),
            victims: VecDeque::new(),
            current: None,
        }
    }

    pub fn node(&self) -> usize {
        self.node
    }

    /// Scans about `quota_bytes` of victims. `me`: the lock owner (a helping writer's own number, so that it passes the
    /// buckets of its own transaction); `alone`: the caller holds what an exclusive session waits for.
    pub fn step(&mut self, core: &Core, quota_bytes: u64, me: u16, alone: bool) -> Step {
        let started = Instant::now();
        let tally = &core.tallies[self.number];
        let mut left = quota_bytes as i64;
        let result = loop {
            if self.current.is_none() && !self.next_victim(core, tally) {
                break if left == quota_bytes as i64 {
                    Step::Idle
                } else {
                    Step::Worked
                };
            }
            if !core.try_enter(self.slot, alone) {
                break Step::Blocked;
            }
            let group = self.clean_group(core, me);
            core.epochs.unpin(self.slot);
            match group {
                Some(bytes) => {
                    add(&tally.bytes_scanned, bytes as u64);
                    left -= bytes as i64;
                }
                None => break Step::Blocked,
            }
            self.finish_if_done(core, tally);
            if left <= 0 {
                break Step::Worked;
            }
        };
        add(&tally.busy_ns, started.elapsed().as_nanos() as u64);
        result
    }

    /// Takes the next victim, selecting new ones if need be. False: there is none.
    fn next_victim(&mut self, core: &Core, tally: &Tally) -> bool {
        let evict = core.must_evict();
        if self.victims.is_empty() {
            self.victims.extend(select(core, self.node, evict));
            add(&tally.passes, u64::from(!self.victims.is_empty()));
            tally
                .victims
                .store(self.victims.len() as u64, Ordering::Relaxed);
        }
        let Some(window) = self.victims.pop_front() else {
            return false;
        };
        let segment = &core.space.segments[window as usize];
        let start = core.space.offset_of(window);
        let end = start + segment.appended_bytes() as usize;
        let live = core.live_in(window);
        core.pacer
            .note_victim(live, u64::from(segment.committed_bytes()));
        // Accounting is exact, so nothing has to be looked at in a dead segment. Debug builds look all the same.
        let skip_all = live == 0 && !cfg!(debug_assertions);
        self.current = Some(Current {
            window,
            at: if skip_all {
                end
            } else {
                start + SEGMENT_HEADER_BYTES
            },
            end,
            evict,
            kept: 0,
            dropped: 0,
            skipped: false,
            compacting: false,
            dead: live == 0,
        });
        true
    }

    /// Retires the current victim if it has been scanned to its end (C1).
    fn finish_if_done(&mut self, core: &Core, tally: &Tally) {
        let Some(current) = self.current.take_if(|current| current.at >= current.end) else {
            return;
        };
        if current.skipped {
            self.victims.push_back(current.window);
            return;
        }
        if current.compacting {
            self.close_survivor(core);
        }
        add(&tally.segments_cleaned, 1);
        add(
            &tally.bytes_freed,
            u64::from(core.space.segments[current.window as usize].committed_bytes()),
        );
        let victims = tally.victims.load(Ordering::Relaxed);
        core.space.retire(self.node, current.window, &core.epochs);
        tally
            .victims
            .store(victims.saturating_sub(1), Ordering::Relaxed);
    }

    /// Cleans the next entries of the victim; returns the bytes passed, `None` if no survivor could be had. Pinned.
    fn clean_group(&mut self, core: &Core, me: u16) -> Option<usize> {
        let (from, end) = self
            .current
            .as_ref()
            .map(|current| (current.at, current.end))?;
        let mut group: [Option<Candidate<'_>>; GROUP] = [const { None }; GROUP];
        let mut at = from;
        for place in &mut group {
            if at >= end || at - from >= GROUP_BYTES {
                break;
            }
            let location = Space::location(at);
            // SAFETY: a closed segment holds whole entries from its header to `appended`; it is this cleaner's victim.
            let entry = unsafe { entry::parse_trusted(core.space.at(location)) };
            at += entry.padded_bytes;
            // A table that was dropped, or whose id was given again, does not point here.
            if let Ok(index) = core.tables.index(TableId(entry.table)) {
                *place = Some(Candidate::new(core, index, location, entry));
            }
        }
        // All lookups before the first move: their misses overlap, which they would not across the locks of the moves.
        let mut found: [Option<Found<'_>>; GROUP] = [const { None }; GROUP];
        for (found, candidate) in found.iter_mut().zip(group.iter().flatten()) {
            *found = candidate.find();
        }
        debug_assert!(
            found.iter().all(Option::is_none) || self.current.as_ref().is_none_or(|c| !c.dead),
            "an entry of a segment without live bytes is referenced"
        );
        for (found, candidate) in found.into_iter().zip(group.iter().flatten()) {
            if let Some((view, place, slot)) = found {
                self.clean_entry(core, candidate, view, place, slot, me)?;
            }
        }
        self.survivor.record(&core.space);
        if let Some(current) = &mut self.current {
            current.at = at;
        }
        Some(at - from)
    }

    /// Moves or drops one live entry. `None`: no room in a survivor.
    fn clean_entry(
        &mut self,
        core: &Core,
        candidate: &Candidate<'_>,
        view: View<'_>,
        place: &AtomicU64,
        slot: Slot,
        me: u16,
    ) -> Option<()> {
        let counters = &core.context_counters[self.number];
        let bytes = candidate.entry.padded_bytes;
        let current = self.current.as_mut()?;
        let expires_at_ms = candidate.entry.expires_at_ms;
        if expires_at_ms != 0 && expires_at_ms <= core.clock.now_ms() {
            let dropped = candidate.drop_from_index(core, counters, me);
            current.skipped |= dropped == Some(false);
            add(&counters.expired, u64::from(dropped == Some(true)));
            return Some(());
        }
        if current.evict && !current.keeps(slot, bytes) {
            let dropped = candidate.drop_from_index(core, counters, me);
            current.skipped |= dropped == Some(false);
            add(&counters.evicted, u64::from(dropped == Some(true)));
            return Some(());
        }
        let evict = current.evict;
        if !self.survivor.fits(bytes) && self.open_survivor(core).is_none() {
            if core.mode == Mode::Store {
                return None;
            }
            // A cache never stops for want of room to save something.
            let dropped = candidate.drop_from_index(core, counters, me);
            add(&counters.evicted, u64::from(dropped == Some(true)));
            return (dropped != Some(false)).then_some(());
        }
        let to = self.survivor.take(bytes);
        let location = Space::location(to);
        // SAFETY: source: a whole entry of the victim, pinned; target: bytes this context just took in its own survivor.
        unsafe {
            core.space
                .at(candidate.location)
                .copy_to_nonoverlapping(core.space.at(location), bytes)
        }; // C4
        match candidate.lock(view, place, me) {
            Ok((view, home, place, locking)) => {
                let slot = Slot(place.load(duramen_base::sync::Ordering::Relaxed));
                // Having survived an eviction costs half of what it was read.
                let access = if evict {
                    slot.access() / 2
                } else {
                    slot.access()
                };
                bucket::publish(place, slot.moved_to(location).with_access(access));
                if locking == Locking::Taken {
                    view.unlock(home);
                }
                if expires_at_ms != 0
                    && let Some(window) = self.survivor.window()
                {
                    self.survivor.record(&core.space);
                    core.space.segments[window as usize].note_expiry(bytes as u32, expires_at_ms);
                }
                counters.note_moved(core.space.window_of(candidate.location), bytes);
                add(&core.tallies[self.number].bytes_relocated, bytes as u64);
            }
            Err(gone) => {
                self.survivor.give_back(bytes);
                if let (Gone::Busy, Some(current)) = (gone, &mut self.current) {
                    current.skipped = true;
                }
            }
        }
        Some(())
    }

    /// Closes the survivor at its present length. Its tail goes first: once closed, it may be another cleaner's victim.
    fn close_survivor(&mut self, core: &Core) {
        self.survivor.record(&core.space);
        if let Some(window) = self.survivor.window() {
            core.space.cut_tail(window);
            self.survivor.close(&core.space);
        }
    }

    /// Opens the next survivor: a whole window, or, when memory is out, one just long enough for this victim.
    fn open_survivor(&mut self, core: &Core) -> Option<()> {
        self.survivor.record(&core.space);
        if let Some(window) = self.survivor.window()
            && (core.space.segments[window as usize].committed_bytes() as usize)
                < core.space.segment_bytes()
        {
            // A huge page may have backed more of it than was charged.
            self.close_survivor(core);
        }
        let tally = &core.tallies[self.number];
        if let Some(window) = core.open_window(self.node, Purpose::Survivor, 0) {
            self.survivor.roll(&core.space, window);
            add(&tally.survivors, 1);
            return Some(());
        }
        // Compaction [Rumble14 §5]: what is left of the budget is less than a window, but may hold this victim's live bytes.
        let current = self.current.as_mut()?;
        let live = core.live_in(current.window) as usize + SEGMENT_HEADER_BYTES + SEGLET_BYTES;
        let window =
            core.space
                .acquire_partial(self.node, live, core.clock.now_ms(), core.log_time())?;
        core.space.segments[window as usize].set_dead_base(core.dead_sum(window));
        self.survivor.roll(&core.space, window);
        current.compacting = true;
        add(&tally.compactions, 1);
        Some(())
    }
}

impl Current {
    /// Second chance by access count, with a lid on how much is kept [Rumble14 §8.6].
    fn keeps(&mut self, slot: Slot, bytes: usize) -> bool {
        let seen = self.kept + self.dropped;
        // The first entries of a victim have no history: they get the average of the lid.
        let over = seen > 0 && self.kept as f64 > KEEP_PART_MAX * seen as f64;
        let keep = slot.access() > if over { 3 } else { 0 }
            && (!over || slot.access() > 3 && self.kept < seen);
        if keep {
            self.kept += bytes as u64;
        } else {
            self.dropped += bytes as u64;
        }
        keep
    }
}

/// Why an entry could not be locked.
enum Gone {
    /// The index points elsewhere by now.
    Dead,
    /// A transaction holds the bucket.
    Busy,
}

impl<'a> Candidate<'a> {
    fn new(core: &'a Core, index: &'a Index, location: u64, entry: Entry<'a>) -> Candidate<'a> {
        let hash = KeyHash(core.hasher.hash(entry.key));
        let partition = index.partition(hash);
        let tag = index.tag(hash);
        let view = partition.view();
        if view.len() != 0 {
            crate::session::prefetch_pair(view.line(view.home(tag)));
        }
        Candidate {
            location,
            entry,
            partition,
            tag,
        }
    }

    /// The slot that points to this entry, if it is alive. An entry of a closed segment that is not referenced now never
    /// will be (H1), so no lock is needed to find it dead.
    fn find(&self) -> Option<Found<'a>> {
        let view = self.partition.view();
        if view.len() == 0 {
            return None;
        }
        view.find_location(self.tag, self.location)
            .map(|(place, slot)| (view, place, slot))
    }

    /// Locks the entry's bucket and makes sure that `place`, or its successor in a newer view, still points to it.
    fn lock(
        &self,
        mut view: View<'a>,
        mut place: &'a AtomicU64,
        me: u16,
    ) -> Result<(View<'a>, usize, &'a AtomicU64, Locking), Gone> {
        loop {
            let home = view.home(self.tag);
            match view.try_lock(home, me) {
                Locking::Busy => return Err(Gone::Busy),
                Locking::Moved => {
                    self.partition.wait_for_move(view);
                    (view, place, _) = self.find().ok_or(Gone::Dead)?;
                }
                locking => {
                    let slot = Slot(place.load(duramen_base::sync::Ordering::Relaxed));
                    if slot.location() == self.location && slot.tag() == self.tag {
                        return Ok((view, home, place, locking));
                    }
                    if locking == Locking::Taken {
                        view.unlock(home);
                    }
                    return Err(Gone::Dead);
                }
            }
        }
    }

    /// Removes the entry's key from its table. `Some(true)`: done; `None`: it was dead already; `Some(false)`: busy.
    pub fn drop_from_index(&self, core: &Core, counters: &Counters, me: u16) -> Option<bool> {
        let (view, place, _) = self.find()?;
        match self.lock(view, place, me) {
            Ok((view, home, place, locking)) => {
                self.partition.raise_floor(self.entry.version);
                view.remove(self.tag, place);
                self.partition.count_remove();
                counters.note_dead(core.space.window_of(self.location), self.entry.padded_bytes);
                counters.note_objects(TableId(self.entry.table), -1);
                let expiring = i64::from(self.entry.expires_at_ms != 0);
                counters.note_expiring(TableId(self.entry.table), -expiring);
                if locking == Locking::Taken {
                    view.unlock(home);
                    if self.partition.wants_shrinking(view.len()) {
                        let _ = self.partition.resize(0, me, core.resources());
                    }
                }
                Some(true)
            }
            Err(Gone::Dead) => None,
            Err(Gone::Busy) => Some(false),
        }
    }
}

/// Drops the expired entries of one segment, which may still be open: only what is recorded as appended is looked at.
fn expire_segment(core: &Core, window: u32, number: usize, slot: SlotId, me: u16) {
    let segment = &core.space.segments[window as usize];
    let counters = &core.context_counters[number];
    let start = core.space.offset_of(window);
    let mut at = start + SEGMENT_HEADER_BYTES;
    let mut waiting = (0u32, u64::MAX);
    let incarnation = segment.incarnation();
    loop {
        if !core.try_enter(slot, false) {
            return;
        }
        // A window that is in the log under the pin is not reused until the pin ends. It may have been reused before: then
        // what we remember of it is void. The state first: who sees it opened again sees its new number too.
        let usable = segment.is_in_log() && segment.incarnation() == incarnation;
        let seen_bytes = segment.expiring_bytes(); // before `end`: what is counted here is appended
        let end = start + segment.appended_bytes() as usize;
        let mut looked = 0;
        while usable && at < end && looked < 8 * GROUP {
            let location = Space::location(at);
            // SAFETY: entries are whole up to `appended` (Release in `set_appended`), and the pin keeps the window.
            let entry = unsafe { entry::parse_trusted(core.space.at(location)) };
            at += entry.padded_bytes;
            looked += 1;
            if entry.expires_at_ms == 0 {
                continue;
            }
            if entry.expires_at_ms > core.clock.now_ms() {
                waiting = (
                    waiting.0 + entry.padded_bytes as u32,
                    waiting.1.min(entry.expires_at_ms),
                );
            } else if let Ok(index) = core.tables.index(TableId(entry.table)) {
                let candidate = Candidate::new(core, index, location, entry);
                if candidate.drop_from_index(core, counters, me) == Some(true) {
                    add(&counters.expired, 1);
                }
            }
        }
        if usable && at >= end {
            let again_ms = core.clock.now_ms() + 1000;
            segment.reset_expiry(seen_bytes, waiting.0, waiting.1, again_ms);
        }
        core.epochs.unpin(slot);
        if !usable || at >= end {
            return;
        }
    }
}

impl Context {
    /// Runs the expiry pass over one segment, as this context.
    pub fn expire(&self, core: &Core, window: u32) {
        expire_segment(core, window, self.number, self.slot, self.me());
    }

    /// Pins this context's slot; false if somebody is, or wants to be, alone in the store.
    pub fn enter(&self, core: &Core) -> bool {
        core.try_enter(self.slot, false)
    }

    pub fn leave(&self, core: &Core) {
        core.epochs.unpin(self.slot);
    }

    /// The lock owner number of this context.
    pub fn me(&self) -> u16 {
        self.slot.0 as u16 + 1
    }
}
