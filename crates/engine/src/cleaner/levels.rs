//! The cleaner's two levels in a store with a log: compaction and combined cleaning.
//!
//! *Compaction* moves the needed entries of one segment into a smaller window. The segment keeps
//! its id, its frame stays as it is, and no byte goes to disk. If no entry is needed, the segment
//! continues without a window. *Combined cleaning* is a pass: it moves the needed entries of
//! several segments, oldest first, into survivors, which are new segments that are written to
//! frames. A Swap then replaces the victims (`log::swap`).
//!
//! **Invariants**
//! - V1: victims are durably closed; those of a pass are also settled (swap::D3). A context checks
//!   its victims again once it has claimed them: another context may have cleaned the window, and a
//!   head filled it.
//! - V2: an entry is needed if it is: an object that the index points to; a tombstone whose victim
//!   is listed and does not leave with it; a completion that its tracker keeps; a dead object with
//!   an embedded victim that would be needed as a tombstone (of one version less, so that another
//!   copy of the object itself is not killed). The dead object leaves a real tombstone: it is
//!   *materialised*.
//! - V3: the part of an entry that is kept takes no more bytes than the entry did, so a compacted
//!   segment never grows.
//! - V4: before a cache with a log evicts an object, it announces that the object's segment has to
//!   leave the disk: by a pass that evicts, or, if any other work has no room for a survivor, for
//!   that segment alone. Until it has left, the creation of an absent key names the announcement,
//!   so that an evicted object cannot come back after the key was deleted again (swap::D11).
//! - V5: a token (swap::D11) ends. While tombstones accumulate, the segments that it stands for are
//!   relocated, one between two other passes: nothing else takes those that are full of live data,
//!   and each tombstone that names the token is needed until the last of them has left.
//!
//! Paper: [Rumble14 §4-7]; differs: victims of a pass are emptied one after the other, so their
//! memory is free long before the pass ends, and a reserve of one window per cleaner is enough;
//! compaction may leave no seglet at all.

use super::balance::{Load, Work};
use super::candidate::{Candidate, Doubt};
use super::rescan::rescan;
use super::select::{
    select_disk, select_hollow_on_disk, select_memory, select_wanted, want_of_token,
};
use crate::core::Core;
use crate::core::cleaning::{Context, Current, Goal, Kind, PassAtWork, Tally};
use crate::counters::{add, sub};
use crate::log::{Log, Pass, Swap};
use crate::space::{Purpose, Space};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::{self, Entry, NewTombstone};
use duramen_format::recipe::{Fate, Parts};
use duramen_format::segment;
use std::sync::atomic::Ordering;

/// Victims cleaned per segment that is searched for droppable tombstones: no event makes a
/// tombstone dead.
const CLEANED_PER_RESCAN: u32 = 5;
/// Segments searched when there is nothing else left to gain.
const RESCANS_WHEN_DRY: usize = 8;

impl Load {
    /// The figures of this moment.
    pub(super) fn of(core: &Core, log: &Log) -> Load {
        let budget = core.segment_budget().max(1) as f64;
        let pending = |node| core.space.waiting(node).0 * core.space.segment_bytes();
        let promoted = core.promoted_bytes();
        let waiting: usize = (0..core.space.nodes()).map(pending).sum();
        let used = core
            .segment_bytes_committed()
            .saturating_sub(waiting as u64 + promoted);
        let on_flash = core.tier().map_or(0, |tier| tier.statistics().used_bytes);
        let (disk_segments, disk_segments_max) = log.swaps().disk().room();
        Load {
            used_part: used as f64 / budget,
            live_part: core.live_in_memory() as f64 / budget,
            tombstone_part: core.actors.tombstone_bytes() as f64 / (budget + on_flash as f64),
            disk_segments,
            disk_segments_max,
            compaction_is_dry: log.swaps().turn().is_dry(),
            two_levels: log.options().two_levels,
        }
    }
}

/// True if memory or disk is short, so that cleaning is more than relocation.
pub(super) fn is_short(core: &Core, node: usize) -> bool {
    let need = core.need();
    let disk = core
        .log
        .as_ref()
        .map(|log| Load::of(core, log).disk_is_low());
    need.is_low(node) || disk == Some(true) || need.is_giving_back()
}

impl Context {
    /// Chooses the next victims, either for a compaction, or for a pass, which it then begins. All
    /// victims of the last pass, if there was one, are done.
    pub(super) fn choose(&mut self, core: &Core, log: &Log, tally: &Tally, evict: bool) {
        self.finish_pass(core, log);
        if self.since_rescan >= CLEANED_PER_RESCAN {
            self.since_rescan = 0;
            rescan(core, log, self.seat);
        }
        let loading = core.is_loading();
        if !loading && log.swaps().relocations.is_asking() {
            if self.begin_pass(core, log, tally, Goal::Relocate) {
                return;
            }
            if !is_short(core, self.seat.node()) {
                return; // there was no other reason to clean
            }
        }
        if !loading && self.may_clean_hollow(core) {
            if self.begin_pass(core, log, tally, Goal::Hollow) {
                return;
            }
            if !self.has_more_than_hollow(core) {
                return;
            }
        }
        let load = Load::of(core, log);
        if !loading && load.tombstones_accumulate() {
            want_of_token(core, log, self.seat.node()); // the next choice takes that segment
        }
        let work = if evict && !loading {
            Work::Combine
        } else {
            load.decide(true)
        };
        let flash_is_short = core.tier().is_some_and(|tier| tier.is_short());
        let combine = (work == Work::Combine || flash_is_short) && !loading;
        let goal = if evict { Goal::Evict } else { Goal::Free };
        if combine && self.begin_pass(core, log, tally, goal) {
            return;
        }
        if combine
            && core.need().flash_wants_eviction()
            && self.begin_pass(core, log, tally, Goal::Evict)
        {
            return;
        }
        if !load.two_levels && !loading {
            return;
        }
        self.victims
            .extend(select_memory(core, log, self.seat.node()));
        if !self.victims.is_empty() {
            log.swaps().turn().set_dry(false);
            return;
        }
        // This finds tombstones that may be dropped by now. Combined cleaning then frees memory
        // that compaction cannot.
        for _ in 0..RESCANS_WHEN_DRY {
            if !rescan(core, log, self.seat) {
                break;
            }
        }
        log.swaps().turn().set_dry(true);
        if !combine && !loading {
            self.begin_pass(core, log, tally, goal);
        }
    }

    /// Selects victims for a pass and announces the pass. Returns false if it is not this context's
    /// turn, or if there is nothing to gain.
    fn begin_pass(&mut self, core: &Core, log: &Log, tally: &Tally, goal: Goal) -> bool {
        let evict = goal == Goal::Evict;
        // A helper works only while writers wait. A pass that it left half done would keep the
        // other contexts from passes of their own.
        if self.seat.number() >= core.cleaners.threads() && core.cleaners.threads() > 0 {
            return false;
        }
        let swaps = log.swaps();
        if !swaps.try_take_turn() {
            return false;
        }
        let windows = match goal {
            Goal::Relocate => select_wanted(core, log, self.seat.node()),
            Goal::Hollow => select_hollow_on_disk(core, log, self.seat.node()),
            Goal::Free | Goal::Evict => {
                select_disk(core, log, self.seat.node(), evict, &mut self.rounds)
            }
        };
        let empty = swaps.take_empty();
        if windows.is_empty() && empty.is_empty() {
            swaps.turn().end();
            return false;
        }
        let in_memory = windows
            .iter()
            .map(|window| log.segment_of(*window as usize));
        let victims: Vec<SegmentId> = in_memory.chain(empty.iter().copied()).collect();
        // Other victims leave once they are known to be sound (context::C5); tombstones name older
        // segments.
        let leaving = empty.clone();
        // Each survivor may have to be shorter than a window, when memory is very short.
        let count = (4 * windows.len() as u64 + 4) * log.options().zone_count();
        let first = log.numbers().new_segment_ids(count);
        let zone = victims
            .first()
            .map_or(0, |victim| log.options().zone_of(*victim));
        swaps.announce(
            Pass {
                first,
                count: count as u32,
                victims: victims.clone(),
            },
            evict,
        );
        let appended = |window: &u32| core.space.segments[*window as usize].appended_bytes();
        let victim_bytes = windows
            .iter()
            .map(|window| u64::from(appended(window)))
            .sum();
        self.victims.extend(windows);
        self.remembered.forget();
        self.pass = Some(PassAtWork {
            victims,
            leaving,
            survivors: Vec::new(),
            parts: None,
            next: first.0
                + (zone + log.options().zone_count() - log.options().zone_of(first))
                    % log.options().zone_count(),
            end: first.0 + count,
            goal,
            victim_bytes,
            survivor_bytes: 0,
            is_given_up: false,
            has_evicted: false,
        });
        add(&tally.passes, 1);
        true
    }

    /// Ends the pass whose victims are all empty: its survivors are closed, and wait for their
    /// frames and the Swap.
    fn finish_pass(&mut self, core: &Core, log: &Log) {
        if self.pass.is_some() {
            self.close_pass_survivor(core, log);
        }
        let Some(pass) = self.pass.take() else {
            return;
        };
        if pass.goal == Goal::Free {
            let victims = (pass.victims.len() as u64, pass.victim_bytes);
            let survivors = (pass.survivors.len() as u64, pass.survivor_bytes);
            self.rounds.pass_ended(victims, survivors);
        }
        let swap = Swap {
            add: pass.survivors,
            remove: pass.victims,
            version_floor: core.version_max(),
        };
        self.remembered.forget(); // no victim has left until the Swap is durable
        if pass.is_given_up {
            log.swaps().give_up_work(swap, pass.has_evicted);
        } else {
            // After the last lookup in the index: everything that its answers depended on was
            // appended before (log::L4, swap::D2).
            log.swaps().scanned(swap, log.appended());
        }
        log.swaps().relocations.pass_ended();
        log.swaps().turn().end();
        log.swaps().turn().set_dry(false);
        log.demand();
    }

    /// A victim cannot be read, or has damage: it stays in the log, and so do all entries that
    /// name it.
    pub(super) fn give_up(&mut self, core: &Core, window: u32) {
        if let (Some(pass), Some(log)) = (&mut self.pass, &core.log) {
            let segment = log.segment_of(window as usize);
            pass.victims.retain(|victim| *victim != segment);
        }
    }

    /// Handles an entry to which the index did not point. `None`: there is no room for its
    /// tombstone, or the index has to be asked again, or a damaged slot stops the victim here.
    pub(super) fn meet_dead(
        &mut self,
        core: &Core,
        candidate: &Candidate<'_>,
        all_dead: bool,
    ) -> Option<()> {
        let counters = self.seat.counters(core);
        core.cleared()
            .meet(&core.space, &candidate.entry, candidate.location, counters); // cleared::K1
        let doubt = match all_dead {
            true => Doubt::None,
            false => candidate.doubt(core),
        };
        let is_evicting = self.current.as_ref().is_some_and(|current| current.evict);
        match (doubt, &core.log) {
            (Doubt::None, Some(log)) => self.bury(core, log, candidate),
            (Doubt::Stays, Some(log)) if is_evicting => {
                self.note_evicted(); // context::C6: it counts as evicted
                self.bury(core, log, candidate)
            }
            (Doubt::None, None) => Some(()),
            (Doubt::PutBack, _) => None,
            (Doubt::Stays, _) => {
                self.survivor.record(&core.space);
                let why = "a slot of the index that cannot be put back may be that of an entry";
                self.stop_at_damage(core, why);
                None
            }
        }
    }

    /// An object of a victim was evicted (given_up::GU3).
    pub(super) fn note_evicted(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.has_evicted = true;
        }
    }

    /// The victim cannot be finished, and its first entries may have left it. The victim stays
    /// claimed and unchanged, its replicas stay, and its pass or its compaction is given up
    /// (swap::given_up).
    #[cold]
    pub(super) fn stop_at_damage(&mut self, core: &Core, why: &str) {
        let Some(mut current) = self.current.take() else {
            return;
        };
        match (&core.log, current.kind) {
            (Some(log), Kind::Compact) => {
                log.swaps().keep(current.segment); // given_up::GU4, before another thread sees it
                if let Some(window) = self.survivor.window() {
                    self.close_compacted(core, log, &mut current, window);
                }
            }
            (Some(_), _) => {
                if let Some(pass) = &mut self.pass {
                    pass.is_given_up = true;
                }
                // The other victims were not begun.
                while let Some(window) = self.victims.pop_front() {
                    self.give_up(core, window);
                    core.space.segments[window as usize].unclaim();
                }
            }
            (None, _) if current.compacting => self.close_survivor(core),
            (None, _) => {}
        }
        if current.warmed {
            core.space.memory.decommit(current.window);
            if core.log.is_none() {
                core.space.segments[current.window as usize].unclaim(); // what has left it is dead there
            }
        }
        let left = self.victims.len() as u64;
        let tally = self.seat.tally(core);
        tally.victims.store(left, Ordering::Relaxed);
        core.listeners.damages.tell_given_up(current.segment, why);
    }

    fn close_pass_survivor(&mut self, core: &Core, log: &Log) {
        if let Some(window) = self.survivor.window() {
            // Before it is closed: any cleaner may take a closed segment as a victim (V1).
            self.survivor.record(&core.space);
            let length = core.space.segments[window as usize].appended_bytes();
            let segment = log.segment_of(window as usize);
            if let Some(pass) = &mut self.pass {
                pass.survivor_bytes += u64::from(length);
            }
            let parts = self.pass.as_mut().and_then(|pass| pass.parts.take());
            log.swaps().closed_survivor(segment, window, length, parts);
            self.close_survivor(core);
        }
    }

    /// Opens a window for the compacted segment, or for the pass's next survivor.
    pub(super) fn open_with_log(&mut self, core: &Core, log: &Log) -> Option<()> {
        self.survivor.record(&core.space);
        let (kind, victim, segment) = self
            .current
            .as_ref()
            .map(|current| (current.kind, current.window, current.segment))?;
        let (segment, header_kind, purpose) = match (&mut self.pass, kind) {
            (Some(pass), Kind::Combine) => {
                assert!(pass.next < pass.end, "a pass of too many survivors");
                let next = SegmentId(pass.next);
                (next, segment::Kind::Survivor, Purpose::Survivor)
            }
            _ => {
                assert!(self.survivor.window().is_none(), "a compacted segment grew"); // V3
                (segment, segment::Kind::Head, Purpose::Compacted)
            }
        };
        if let Some(full) = self.survivor.window() {
            let full = &core.space.segments[full as usize];
            let unused = full.committed_bytes().saturating_sub(full.appended_bytes());
            self.rounds.note_unused(u64::from(unused));
        }
        self.close_pass_survivor(core, log);
        self.leaves_reserve(core).then_some(())?;
        let windows = core.windows();
        let window = windows.open(self.seat.node(), purpose, 0).or_else(|| {
            // The rest of the budget is less than a window, but the victim's own length is enough
            // (V3).
            let bytes = core.space.segments[victim as usize].appended_bytes() as usize;
            windows.open_partial(self.seat.node(), bytes)
        })?;
        log.windows()
            .give(&core.space, window, segment, header_kind, 0);
        if purpose == Purpose::Compacted {
            let segments = &core.space.segments;
            let last_ms = segments[victim as usize].last_expiry_ms(); // core::doubt::DC4
            segments[window as usize].note_gone_expiry(last_ms);
        }
        self.survivor.roll(&core.space, window);
        if let (Some(pass), Kind::Combine) = (&mut self.pass, kind) {
            pass.next += log.options().zone_count();
            pass.parts = log.windows().has_origins().then(Parts::default);
            pass.survivors.push(segment);
            log.swaps().opened_survivor(segment);
            add(&self.seat.tally(core).survivors, 1);
        }
        Some(())
    }

    /// Ends the compaction of a segment: the new window replaces the victim's. Returns the bytes it
    /// keeps.
    pub(super) fn finish_compaction(
        &mut self,
        core: &Core,
        log: &Log,
        current: &mut Current,
    ) -> u32 {
        add(&self.seat.tally(core).compactions, 1);
        self.since_rescan += 1;
        let swaps = log.swaps();
        let segment = current.segment;
        swaps.queues().survivors().no_longer_as_closed(segment);
        let Some(window) = self.survivor.window() else {
            swaps.queues().passes().emptied(segment);
            return 0;
        };
        self.close_compacted(core, log, current, window);
        let committed = |window: u32| core.space.segments[window as usize].committed_bytes();
        let kept = committed(window);
        assert!(
            kept <= committed(current.window),
            "a compacted segment grew"
        ); // V3
        kept
    }

    /// Closes the new window of a segment that was compacted: its age and origin are those of the
    /// old window.
    fn close_compacted(&mut self, core: &Core, log: &Log, current: &mut Current, window: u32) {
        let old = &core.space.segments[current.window as usize];
        let new = &core.space.segments[window as usize];
        new.set_opened(old.opened_ms(), old.opened_tick());
        if let Some(trace) = &mut current.trace {
            let made = trace.made.take();
            log.windows().set_origin(&core.space, window, made);
        }
        self.close_survivor(core);
    }

    /// Keeps the part of a dead entry that is still needed (V2). `None`: no room.
    pub(super) fn bury(&mut self, core: &Core, log: &Log, candidate: &Candidate<'_>) -> Option<()> {
        let counters = self.seat.counters(core);
        let entry = &candidate.entry;
        let from = core.space.window_of(candidate.location);
        if entry.kind == entry::Kind::Completion {
            return self.keep_completion(core, candidate);
        }
        let is_tombstone = entry.kind == entry::Kind::Tombstone;
        let careless = !is_tombstone && has_bug(Bug::NotMaterialised);
        if careless || !self.is_needed(log, entry) {
            if is_tombstone {
                counters.note_moved(from, entry.padded_bytes);
                sub(&counters.tombstones, entry.padded_bytes as u64);
            }
            return Some(());
        }
        let tombstone = NewTombstone::of_dead(entry);
        let bytes = tombstone.padded_bytes();
        debug_assert!(bytes <= entry.padded_bytes); // V3: never longer
        self.room_for(core, bytes)?;
        let to = self.survivor.take(bytes);
        let at = core.space.at(Space::location(to));
        // SAFETY: bytes that this context just took in its own survivor.
        tombstone.write_to(unsafe { std::slice::from_raw_parts_mut(at, bytes) });
        self.copied(Fate::Buried);
        if is_tombstone {
            counters.note_moved(from, bytes);
        } else {
            add(&counters.tombstones, bytes as u64);
        }
        Some(())
    }

    /// Keeps a completion record as it is, or drops it. `None`: no room.
    fn keep_completion(&mut self, core: &Core, candidate: &Candidate<'_>) -> Option<()> {
        let counters = self.seat.counters(core);
        let entry = &candidate.entry;
        let (from, bytes) = (core.space.window_of(candidate.location), entry.padded_bytes);
        if core.listeners.tracker.keeps(entry) {
            self.room_for(core, bytes)?;
            let to = core.space.at(Space::location(self.survivor.take(bytes)));
            // SAFETY: source: a whole verified entry of the victim, or its copy (context::C5);
            // target: bytes that this context just took in its own survivor.
            unsafe {
                candidate.source.copy_to_nonoverlapping(to, bytes);
            }
            self.copied(Fate::Kept);
        } else {
            sub(&counters.tombstones, bytes as u64);
        }
        counters.note_moved(from, bytes);
        Some(())
    }

    fn is_needed(&mut self, log: &Log, entry: &Entry<'_>) -> bool {
        if entry.victim == SegmentId::NONE {
            return false;
        }
        let own = self.current.as_ref().map(|current| current.segment);
        if own == Some(entry.victim) {
            return false; // both leave together
        }
        let leaving = self.pass.as_ref().map_or(&[][..], |pass| &pass.leaving);
        let ask = || log.swaps().list().needs().tombstone(entry.victim, leaving);
        self.remembered
            .get(log.swaps().list().serial(), entry.victim, ask)
    }
}
