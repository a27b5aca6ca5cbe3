//! One cleaner's work: victims, position, survivor. A step is bounded, so a writer can execute one
//! in passing.
//!
//! **Invariants**
//! - C1: a victim is retired only when every entry of it that the index pointed to has been moved
//!   or removed.
//! - C2: survivors take no more memory than their victims gave: each context has one window in
//!   reserve (engine::space::S4), a context works at one victim at a time, and a victim is smaller
//!   than a window. A victim from flash gives no memory: its survivors leave the reserve of the
//!   other contexts.
//! - C3: a cleaner never waits for a transaction, as the transaction may wait for memory and so for
//!   this cleaner. It skips the entry and returns to the victim later.
//! - C5: a victim is verified as a whole before the first entry of it is moved or dropped
//!   (sound::V1). If that fails, it stays claimed for ever, so that nobody cleans it (sound::V2).
//!   It also stays claimed if an entry is damaged later; then its pass is given up
//!   (swap::given_up).
//! - C6: an entry is dead only if no damaged slot may be its own (bucket::B7). If that slot cannot
//!   be put back, the victim stays as in C5; but a pass that evicts counts the entry as evicted: a
//!   victim that stays would keep the pass's token for ever (given_up::GU3).
//! - C4: an entry's bytes are copied before its bucket is locked, and published under the lock if
//!   the entry is still alive.
//!
//! Paper: [Rumble14 §3, §6], [Merritt17 §3.2]; differs: a survivor stays open over several passes
//! until it is full, so that no memory is lost to half-empty survivors. Entries are looked up in
//! groups with their buckets prefetched.

use crate::cleaner::balance::Load;
use crate::cleaner::candidate::{Candidate, GROUP, NotLocked, find_all};
use crate::cleaner::levels::is_short;
use crate::cleaner::select::{select, select_hollow, select_on_flash_of_cache};
use crate::core::Core;
use crate::core::cleaning::{Context, Current, Kind, Tally};
use crate::core::flash::Demotion;
use crate::core::sound;
use crate::counters::add;
use crate::index::bucket::{self, Locking, Slot, View};
use crate::log::{Log, Trace};
use crate::space::{Purpose, SEGLET_BYTES, SEGMENT_HEADER_BYTES, Space};
use crate::{Departure, TableId};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::AtomicU64;
use duramen_format::entry::{self, Entry};
use duramen_format::recipe::Fate;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// A group of large entries is cut short here, so that a step stays short.
const GROUP_BYTES: usize = 32 << 10;
/// Bytes of a victim that are verified together: less than the second cache of a core.
const VERIFY_BYTES: usize = 128 << 10;
/// Bytes that are verified in the time in which one is cleaned.
const VERIFY_RATE: usize = 4;
/// A postponed entry that is examined again counts as this many bytes scanned.
const SMALL_ENTRY_BYTES: usize = 64;
/// Largest part of the live bytes that is kept of a segment under eviction [Rumble14 §8.6].
const KEEP_PART_MAX: f64 = 0.75;

/// The caller of a step.
#[derive(Clone, Copy)]
pub struct Caller {
    /// The lock owner: a helping writer's own number, so that it passes the buckets of its own
    /// transaction.
    pub me: u16,
    /// It holds a resource that an exclusive session waits for.
    pub is_inside: bool,
    /// It may wait for a flash device.
    pub may_wait: bool,
}

impl Caller {
    /// A caller that holds nothing for which others wait.
    pub fn outside(me: u16) -> Caller {
        Caller {
            me,
            is_inside: false,
            may_wait: true,
        }
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Some bytes were scanned; call again.
    Worked,
    /// No segment is worth cleaning.
    Idle,
    /// Another guard is alone in the store, a transaction holds an entry, or no window is free for
    /// a survivor: try again later.
    Blocked,
}

impl Context {
    /// Scans about `quota_bytes` of victims.
    pub fn step(&mut self, core: &Core, quota_bytes: u64, caller: Caller) -> Step {
        let started = Instant::now();
        self.caller_may_wait = caller.may_wait;
        let tally = self.seat.tally(core);
        // A step may demote in the middle of a victim too, which may be waiting for memory. A
        // victim from flash gives no memory, so its survivors may have to go to flash before it is
        // empty.
        if self.demotes(core) {
            add(&tally.busy_ns, started.elapsed().as_nanos() as u64);
            return Step::Worked;
        }
        let wants = |demotion: Demotion<'_>| demotion.is_wanted(self.seat.node(), false);
        if !self.may_wait(core) && self.current.is_none() && core.demotion().is_some_and(wants) {
            // cleaning would gain little, and a thread that serves requests does not demote
            core.cleaners.wake();
            return Step::Idle;
        }
        if let Some(current) = &mut self.current {
            current.is_stale = true;
        }
        let mut left = quota_bytes as i64;
        let result = loop {
            if self.current.is_none() && !self.next_victim(core, tally) {
                break if left == quota_bytes as i64 {
                    Step::Idle
                } else {
                    Step::Worked
                };
            }
            if !core.door.try_enter(self.seat.slot(), caller.is_inside) {
                break Step::Blocked;
            }
            if let Some(bytes) = self.verify_some(core, tally) {
                self.seat.leave(core);
                left -= bytes as i64;
                if left <= 0 {
                    break Step::Worked;
                }
                continue;
            }
            let group = self.clean_group(core, caller.me);
            self.seat.leave(core);
            match group {
                Some(bytes) => {
                    add(&tally.bytes_scanned, bytes as u64);
                    left -= bytes as i64;
                }
                None => break Step::Blocked,
            }
            if !self.finish_if_done(core, tally) {
                break Step::Blocked; // C3: do not wait for the transaction
            }
            if left <= 0 {
                break Step::Worked;
            }
        };
        add(&tally.busy_ns, started.elapsed().as_nanos() as u64);
        result
    }

    /// Takes the next victim, and selects new ones if there is none left. Returns false if there is
    /// no victim.
    fn next_victim(&mut self, core: &Core, tally: &Tally) -> bool {
        let evict = core.need().must_evict();
        if self.victims.is_empty() {
            match &core.log {
                None => {
                    self.plain.finish(tally);
                    let (victims, evicts) = self.select_plain(core, evict, tally);
                    self.victims.extend(victims);
                    self.plain.set_evict(evicts);
                    add(&tally.passes, u64::from(!self.victims.is_empty()));
                }
                Some(log) => self.choose(core, log, tally, evict),
            }
            tally
                .victims
                .store(self.victims.len() as u64, Ordering::Relaxed);
        }
        let Some(window) = self.next_readable(core, tally) else {
            return false;
        };
        let warmed = core.is_cold(window);
        let segment = &core.space.segments[window as usize];
        let start = core.space.offset_of(window);
        let end = start + segment.appended_bytes() as usize;
        let live = core.live_in(window);
        if !warmed {
            core.cleaners
                .pacer
                .note_victim(live, u64::from(segment.committed_bytes()));
        }
        let (kind, evict) = match (&core.log, &self.pass) {
            (None, _) => (Kind::Plain, self.plain.evict()),
            (Some(_), None) => (Kind::Compact, false),
            (Some(_), Some(pass)) => (Kind::Combine, pass.evicts()),
        };
        // Accounting is exact, so a dead segment need not be scanned. Debug builds scan it all the
        // same. With a log, dead objects may still be needed as tombstones.
        let skip_all = live == 0 && kind == Kind::Plain && (warmed || !cfg!(debug_assertions));
        self.current = Some(Current {
            window,
            kind,
            segment: core
                .log
                .as_ref()
                .map_or(SegmentId::NONE, |log| log.segment_of(window as usize)),
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
            postponed: Vec::new(),
            again: Vec::new(),
            compacting: false,
            announced: false,
            dead: live == 0,
            verified: if skip_all {
                end
            } else {
                start + SEGMENT_HEADER_BYTES
            },
            mended: BTreeMap::new(),
            is_stale: false,
            warmed,
            trace: traced(core, window),
        });
        true
    }

    /// Verifies the next entries of the victim (C5). Returns the bytes that this counts for.
    /// `None`: all are verified. Pinned.
    fn verify_some(&mut self, core: &Core, tally: &Tally) -> Option<usize> {
        let current = self.current.as_mut()?;
        if current.verified >= current.end || has_bug(Bug::CopiesUnverified) {
            if let Some(pass) = &mut self.pass {
                pass.leaves(current.segment);
            }
            return None;
        }
        let from = current.verified;
        let limit = current.end.min(from + VERIFY_BYTES);
        while current.verified < limit {
            let location = Space::location(current.verified);
            // SAFETY: a closed segment is initialised from its header to `appended`, and this
            // cleaner's victim; its bytes do not change, and copies are kept with it.
            let Ok(sound) = (unsafe { sound::verify(core, location, current.end) }) else {
                self.keep_damaged(core, tally);
                return Some(VERIFY_BYTES / VERIFY_RATE);
            };
            if let Some(copy) = sound.copy {
                current.mended.insert(current.verified, copy);
            }
            current.verified += sound.entry.padded_bytes;
        }
        Some((current.verified - from) / VERIFY_RATE)
    }

    /// The victim has an entry that cannot be mended: nothing of the victim was moved, and it stays
    /// claimed (C5). A victim that was read back from flash is read again by the next cleaner.
    fn keep_damaged(&mut self, core: &Core, tally: &Tally) {
        let Some(current) = self.current.take() else {
            return;
        };
        self.give_up(core, current.window);
        if current.warmed {
            core.space.memory.decommit(current.window);
            core.space.segments[current.window as usize].unclaim();
        }
        tally.end_victim();
    }

    /// Demotes a segment instead of cleaning, if memory needs it; at most at every other step while
    /// cleaning is needed too.
    fn demotes(&mut self, core: &Core) -> bool {
        let (Some(demotion), Some(tier)) = (core.demotion(), core.tier()) else {
            return false;
        };
        let others = tier.is_short()
            || core
                .log
                .as_ref()
                .is_some_and(|log| Load::of(core, log).disk_is_low());
        let turn = !(others && self.demoted);
        self.demoted = turn
            && self.may_wait(core)
            && demotion.is_wanted(
                self.seat.node(),
                self.current.as_ref().is_some_and(|current| current.warmed),
            )
            && demotion.demote_one(self.seat.node());
        self.demoted
    }

    /// True if this step may wait for a device: its caller may wait, and memory was set aside for
    /// the segments that this context reads (core::flash::F6), or there are no cleaner threads.
    pub(super) fn may_wait(&self, core: &Core) -> bool {
        self.caller_may_wait && self.seat.number() < core.cleaners.threads()
            || core.cleaners.threads() == 0
    }

    /// Victims of a store without a log, and whether their entries are evicted: segments on flash
    /// if that is full, else segments in memory. A cache with a tier evicts from flash, because
    /// entries in memory are newer.
    fn select_plain(&mut self, core: &Core, must_evict: bool, tally: &Tally) -> (Vec<u32>, bool) {
        let evict = if !core.need().evicts_from_flash() {
            must_evict
        } else if self.may_wait(core) && core.need().flash_wants_eviction() {
            let (victims, evicts) =
                select_on_flash_of_cache(core, self.seat.node(), self.plain.rounds(true));
            if let Some(demotion) = core.demotion() {
                demotion.note_eviction();
            }
            if !victims.is_empty() {
                self.plain.begin(evicts, true, tally);
                return (victims, evicts);
            }
            must_evict // flash has no segment that could go
        } else {
            false
        };
        (self.select_to_clean(core, evict, tally), evict)
    }

    fn select_to_clean(&mut self, core: &Core, evict: bool, tally: &Tally) -> Vec<u32> {
        if self.may_wait(core)
            && let Some(tier) = core.tier()
            && tier.is_short()
        {
            let cold = select(core, self.seat.node(), evict, true, self.plain.rounds(true));
            if !cold.is_empty() {
                self.plain.begin(evict, true, tally);
                return cold;
            }
        }
        if self.may_clean_hollow(core) {
            let hollow = select_hollow(core, self.seat.node());
            if !hollow.is_empty() || !self.has_more_than_hollow(core) {
                return hollow;
            }
        }
        self.plain.begin(evict, false, tally);
        select(
            core,
            self.seat.node(),
            evict,
            false,
            self.plain.rounds(false),
        )
    }

    /// True if hollow segments on flash should be cleaned now, and this context may wait for the
    /// device.
    pub(super) fn may_clean_hollow(&self, core: &Core) -> bool {
        let tier = core.tier();
        self.may_wait(core) && tier.is_some_and(|tier| tier.wants_hollow())
    }

    /// The search found no hollow segment. Returns true if cleaning is needed for another reason.
    pub(super) fn has_more_than_hollow(&self, core: &Core) -> bool {
        if let Some(tier) = core.tier() {
            tier.background_reads.note_hollow(false); // until the next search
        }
        is_short(core, self.seat.node()) || core.need().flash_wants_cleaning()
    }

    /// The next victim whose bytes are in memory. A victim on flash is read back; one that cannot
    /// be read, or may not be read any more, is given up.
    fn next_readable(&mut self, core: &Core, tally: &Tally) -> Option<u32> {
        loop {
            let window = self.victims.pop_front()?;
            let Some(demotion) = core.demotion().filter(|_| core.is_cold(window)) else {
                return Some(window);
            };
            let dead = core.log.is_none() && core.live_in(window) == 0;
            if !dead && !self.may_wait(core) {
                self.victims.push_front(window); // a cleaner thread will read it
                return None;
            }
            if dead || core.need().may_clean_cold(self.seat.node()) && demotion.warm(window) {
                return Some(window);
            }
            self.give_up(core, window);
            core.space.segments[window as usize].unclaim();
            tally.end_victim();
        }
    }

    /// Retires the current victim if it has been scanned to its end (C1). Returns false if a
    /// transaction holds some of its entries: with a log this context can do no other work until
    /// the transaction ends.
    fn finish_if_done(&mut self, core: &Core, tally: &Tally) -> bool {
        let is_done = |current: &mut Current| current.at >= current.end && current.again.is_empty();
        let Some(mut current) = self.current.take_if(is_done) else {
            return true;
        };
        if current.skipped && current.kind == Kind::Plain {
            if current.warmed {
                // the victim is read again, and other segments may be read before that
                core.space.memory.decommit(current.window);
            }
            self.victims.push_back(current.window);
            return true;
        }
        if !current.postponed.is_empty() {
            current.again = std::mem::take(&mut current.postponed);
            self.current = Some(current);
            return false;
        }
        if current.compacting {
            self.close_survivor(core);
        }
        if current.warmed
            && let Some(demotion) = core.demotion()
        {
            demotion.cool(current.window);
        }
        let committed = core.space.segments[current.window as usize].committed_bytes();
        let kept = match &core.log {
            Some(log) if current.kind == Kind::Compact => {
                self.finish_compaction(core, log, &mut current)
            }
            _ => 0,
        };
        let appended = core.space.segments[current.window as usize].appended_bytes();
        self.plain
            .note_emptied(u64::from(appended).saturating_sub(SEGMENT_HEADER_BYTES as u64));
        add(&tally.segments_cleaned, 1);
        add(&tally.bytes_freed, u64::from(committed - kept));
        core.space
            .retire(self.seat.node(), current.window, core.door.epochs());
        tally.end_victim();
        true
    }

    /// Cleans the next entries of the victim. Returns the bytes passed, or `None` if it got no
    /// survivor. The caller is pinned.
    fn clean_group(&mut self, core: &Core, me: u16) -> Option<usize> {
        let current = self.current.as_mut()?;
        let (from, end) = (current.at, current.end);
        // Accounting is exact, so no entry of a dead segment is looked up. Debug builds look all of
        // them up.
        let all_dead = current.dead && !cfg!(debug_assertions);
        let again_from = current.again.len().saturating_sub(GROUP);
        let again = current.again.split_off(again_from);
        let mut group: [Option<Candidate<'_>>; GROUP] = [const { None }; GROUP];
        let mut origins: [Option<u32>; GROUP] = [None; GROUP];
        let mut at = from;
        for (n, place) in group.iter_mut().enumerate() {
            let here = again.get(n).copied().unwrap_or(at);
            let is_last = match again.is_empty() {
                true => at >= end || at - from >= GROUP_BYTES,
                false => n >= again.len(),
            };
            if is_last {
                break;
            }
            let location = Space::location(here);
            let Some((source, entry)) = current.verified_entry(core, here) else {
                let why = "more than one bit of an entry changed in memory while it was cleaned";
                self.stop_at_damage(core, why);
                return Some(at - from);
            };
            if again.is_empty() {
                at += entry.padded_bytes;
                origins[n] = current.trace.as_mut().map(Trace::advance);
            }
            // A dropped table, or a table that got the dropped one's id, does not point here.
            if let Ok(index) = core.tables.index(TableId(entry.table)) {
                let unindexed = all_dead || entry.kind == entry::Kind::Completion;
                let candidate = Candidate::new(core, index, location, entry, unindexed);
                *place = Some(candidate.with_source(source));
            } else {
                core.cleared()
                    .meet(&core.space, &entry, location, self.seat.counters(core));
            }
        }
        // All lookups come before the first move: so their cache misses overlap, which they would
        // not across the locks of the moves.
        let found = find_all(&group, all_dead);
        debug_assert!(
            found.iter().all(Option::is_none) || self.current.as_ref().is_none_or(|c| !c.dead),
            "an entry of a segment without live bytes is referenced"
        );
        for (n, (found, candidate)) in found.into_iter().zip(&group).enumerate() {
            let Some(candidate) = candidate else {
                continue;
            };
            if let Some(current) = &mut self.current {
                current.set_origin(origins[n]);
            }
            let cleaned = match found {
                Some((view, place, slot)) => {
                    self.clean_entry(core, candidate, view, place, slot, me)
                }
                None => self.meet_dead(core, candidate, all_dead),
            };
            if cleaned.is_none() {
                if let Some(current) = &mut self.current {
                    current.stop_before(candidate.location, origins[n], again.get(n..));
                }
                self.survivor.record(&core.space);
                return self.current.is_none().then_some(at - from); // C6
            }
        }
        self.survivor.record(&core.space);
        if let Some(current) = &mut self.current {
            current.at = at;
        }
        Some((at - from).max(again.len() * SMALL_ENTRY_BYTES))
    }

    /// Takes an expired or evicted entry out of the index. With a log, leaves its tombstone if one
    /// is needed. `None`: no room.
    fn drop_entry(
        &mut self,
        core: &Core,
        candidate: &Candidate<'_>,
        me: u16,
        departure: Departure,
    ) -> Option<()> {
        let counters = self.seat.counters(core);
        let dropped = candidate.drop_from_index(core, counters, me);
        if dropped == Some(false) {
            self.postpone(candidate.location);
            return Some(());
        }
        if dropped == Some(true) {
            let (table, key) = (TableId(candidate.entry.table), candidate.entry.key);
            match departure {
                Departure::Expired => add(&counters.expired, 1),
                Departure::Evicted => {
                    add(&counters.evicted, 1);
                    self.note_evicted();
                }
            }
            core.listeners.departures.tell(departure, table, key);
        }
        match &core.log {
            Some(log) => self.bury(core, log, candidate),
            None => Some(()),
        }
    }

    /// Returns later to an entry whose bucket a transaction holds (C3).
    fn postpone(&mut self, location: u64) {
        if let Some(current) = &mut self.current {
            current.skipped = true;
            if current.kind != Kind::Plain {
                current.postponed.push(Space::offset(location));
            }
        }
    }

    /// Makes room in the survivor for an entry of the victim.
    pub(super) fn room_for(&mut self, core: &Core, bytes: usize) -> Option<()> {
        if self.survivor.fits(bytes) {
            return Some(());
        }
        match &core.log {
            None => self.open_survivor(core),
            Some(log) => self.open_with_log(core, log),
        }
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
        let counters = self.seat.counters(core);
        let bytes = candidate.entry.padded_bytes;
        let current = self.current.as_mut()?;
        let expires_at_ms = candidate.entry.expires_at_ms;
        // While segments are being loaded, an expired object still keeps older ones away.
        let may_expire = expires_at_ms != 0 && !core.is_loading();
        if may_expire && core.clock().may_forget(&candidate.entry) {
            return self.drop_entry(core, candidate, me, Departure::Expired);
        }
        let evict = current.evict;
        if evict && !current.keeps(slot, bytes) {
            return self.drop_entry(core, candidate, me, Departure::Evicted);
        }
        if self.room_for(core, bytes).is_none() {
            let waits = core.log.is_some() || core.need().evicts_from_flash();
            // A victim whose eviction has begun is finished, even if the store is no cache any
            // more: there may be no room for its survivors otherwise.
            if !evict && (!core.is_cache() || waits && !core.cleaners.pacer.evicts_by_force()) {
                return None;
            }
            // A cache without room to keep an entry evicts it, and goes on.
            if let (Some(log), Some(current)) = (&core.log, &mut self.current) {
                current.announce_eviction(log);
            }
            return self.drop_entry(core, candidate, me, Departure::Evicted);
        }
        let to = self.survivor.take(bytes);
        let location = Space::location(to);
        // SAFETY: source: a whole verified entry of the victim, or its copy (C5); target: bytes
        // that this context just took in its own survivor.
        unsafe {
            candidate
                .source
                .copy_to_nonoverlapping(core.space.at(location), bytes)
        }; // C4
        match candidate.lock(view, place, me) {
            Ok((view, home, place, locking)) => {
                let slot = Slot(place.load(duramen_base::sync::Ordering::Relaxed));
                // Surviving an eviction costs half of the access count.
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
                self.copied(Fate::Kept);
                counters.note_moved(core.space.window_of(candidate.location), bytes);
                add(&self.seat.tally(core).bytes_relocated, bytes as u64);
                Some(())
            }
            Err(gone) => {
                self.survivor.give_back(bytes);
                self.not_moved(core, candidate, gone)
            }
        }
    }

    /// An entry was not moved: another thread has its bucket, or has removed or replaced it.
    fn not_moved(&mut self, core: &Core, candidate: &Candidate<'_>, gone: NotLocked) -> Option<()> {
        match (gone, &core.log) {
            (NotLocked::Busy, _) => self.postpone(candidate.location),
            (NotLocked::Dead, Some(log)) => {
                return self.bury(core, log, candidate);
            }
            (NotLocked::Dead, None) => {}
        }
        Some(())
    }

    /// Closes the survivor at its present length. Its unused tail is cut off first: once closed, it
    /// may be another cleaner's victim.
    pub(super) fn close_survivor(&mut self, core: &Core) {
        self.survivor.record(&core.space);
        if let Some(window) = self.survivor.window() {
            core.space.cut_tail(window);
            self.survivor.close(&core.space);
        }
    }

    /// True if this victim's survivor may take a window now (C2).
    pub(super) fn leaves_reserve(&self, core: &Core) -> bool {
        // Under eviction an entry without room is dropped.
        let gives_none = |current: &Current| current.warmed && !current.evict;
        !self.current.as_ref().is_some_and(gives_none)
            || core.space.reserve_is_whole(self.seat.node())
    }

    /// Opens the next survivor: a whole window, or, if memory is out, one just long enough for this
    /// victim.
    fn open_survivor(&mut self, core: &Core) -> Option<()> {
        self.survivor.record(&core.space);
        if self.current.as_ref().is_some_and(|current| current.warmed) {
            // first, so that it can go to flash if there is no other window
            self.close_survivor(core);
        }
        if let Some(window) = self.survivor.window()
            && (core.space.segments[window as usize].committed_bytes() as usize)
                < core.space.segment_bytes()
        {
            // A huge page may have backed more of it than was charged.
            self.close_survivor(core);
        }
        let tally = self.seat.tally(core);
        self.leaves_reserve(core).then_some(())?;
        let windows = core.windows();
        if let Some(window) = windows.open(self.seat.node(), Purpose::Survivor, 0) {
            self.survivor.roll(&core.space, window);
            add(&tally.survivors, 1);
            return Some(());
        }
        // Compaction [Rumble14 §5]: the rest of the budget is less than a window, but may hold this
        // victim's live bytes.
        let current = self.current.as_mut()?;
        let live = core.live_in(current.window) as usize + SEGMENT_HEADER_BYTES + SEGLET_BYTES;
        let window = windows.open_partial(self.seat.node(), live)?;
        self.survivor.roll(&core.space, window);
        current.compacting = true;
        add(&tally.compactions, 1);
        Some(())
    }
}

/// The origin of a victim's entries, if origins are noted.
fn traced(core: &Core, window: u32) -> Option<Trace> {
    let log = core
        .log
        .as_deref()
        .filter(|log| log.windows().has_origins())?;
    Some(Trace::new(log.windows().take_origin(&core.space, window)))
}

impl Current {
    /// There is no room for an entry: the next group begins with that entry. `again`: the entries
    /// from this one on, if the group has entries that were postponed. Entries that are done are
    /// not examined again: with a log, an entry that was moved looks dead here.
    fn stop_before(&mut self, location: u64, origin: Option<u32>, again: Option<&[usize]>) {
        match again {
            _ if self.kind == Kind::Plain => {}
            Some(again) if !again.is_empty() => self.again.extend_from_slice(again),
            _ => {
                self.at = Space::offset(location);
                if let (Some(trace), Some(origin)) = (&mut self.trace, origin) {
                    trace.rewind(origin);
                }
            }
        }
    }

    /// Sets the entry of the replicas that is cleaned next; `None`: it is out of order, or not
    /// noted.
    fn set_origin(&mut self, origin: Option<u32>) {
        if let Some(trace) = &mut self.trace {
            trace.set_at(origin);
        }
    }

    /// Announces that entries of this victim will be evicted, for which it may not have been chosen
    /// (levels::V4).
    fn announce_eviction(&mut self, log: &Log) {
        if !self.evict && !self.announced {
            let segments = vec![self.segment];
            log.swaps().announce_evicted(segments, log.numbers());
            self.announced = true;
        }
    }

    /// The bytes of the entry at an offset of the region, and the entry. An entry that an earlier
    /// step has verified is verified again, as a bit may have flipped since. `None`: more than one
    /// bit has.
    fn verified_entry<'a>(&mut self, core: &Core, at: usize) -> Option<(*const u8, Entry<'a>)> {
        let location = Space::location(at);
        if self.is_stale && !self.mended.contains_key(&at) && !has_bug(Bug::CopiesUnverified) {
            // SAFETY: as in `verify_some`.
            let sound = unsafe { sound::verify(core, location, self.end) }.ok()?;
            if let Some(copy) = sound.copy {
                self.mended.insert(at, copy);
            }
        }
        let source: *const u8 = match self.mended.get(&at) {
            Some(copy) => copy.as_ptr().cast(),
            None => core.space.at(location),
        };
        // SAFETY: it was verified there (C5): in the segment, which is this cleaner's victim, or in
        // a copy, which stays until the victim is done.
        Some((source, unsafe { entry::parse_trusted(source) }))
    }

    /// Second chance by access count, with a limit on the part that is kept [Rumble14 §8.6].
    fn keeps(&mut self, slot: Slot, bytes: usize) -> bool {
        let seen = self.kept + self.dropped;
        // The first entries of a victim have no history: they are judged by the average of the
        // limit.
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
