//! Selection of victims by cost-benefit, with ages in log time.
//!
//! With zones a pass takes its victims from one zone, so that the backups of the zone have all of
//! them: of all zones, from the one whose pass has the best ratio of benefit to cost.
//!
//! Paper: [Rumble14 §9] the corrected formula `(1 - u) · segmentAge / u`, where the age is that of
//! the *segment*: survivors start young, so a segment that was just cleaned is left alone for a
//! while. Differs: age counts bytes appended to the store, not seconds, so an idle night does not
//! make everything old.

use crate::core::Core;
use crate::core::cleaning::fruitless::{DIED_PART, Fruitless, Rounds};
use crate::core::flash::{FLASH_DEAD_PART, FLASH_LIVE_PART_MAX};
use crate::log::Log;
use crate::space::Purpose;
use crate::space::segment::State;
use crate::space::{SEGLET_BYTES, SEGMENT_HEADER_BYTES};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use std::collections::BTreeMap;

/// Victims per selection: enough to sort by age, few enough that the choice is fresh.
const VICTIMS_MAX: usize = 16;
/// A segment with a larger live part frees too little to be worth a survivor [Rumble14 §7].
const LIVE_PART_MAX: f64 = 0.98;
/// Dead part of a segment that makes a pass worthwhile, whatever other passes gain: after the pass
/// that part is gone.
const DEAD_PART: f64 = 1.0 - LIVE_PART_MAX;
/// Maximum victims of a round whose unused ends may be all that it could gain.
const ROUND_VICTIMS_MAX: u64 = 64;
/// Maximum live part of a victim in a cache, where live entries may be evicted as well.
const CACHE_LIVE_PART_MAX: f64 = 0.5;

/// Claims the best victims of a node, oldest first. Empty: nothing is worth cleaning.
/// `oldest_first`: eviction wants cold entries, not dead ones. `on_flash`: segments on flash, else
/// segments in memory.
pub fn select(
    core: &Core,
    node: usize,
    oldest_first: bool,
    on_flash: bool,
    fruitless: &mut Fruitless,
) -> Vec<u32> {
    let most = if on_flash {
        FLASH_LIVE_PART_MAX
    } else {
        LIVE_PART_MAX
    };
    select_emptier(core, node, oldest_first, on_flash, most, fruitless)
}

/// Claims victims on flash of a cache, and returns whether their entries are evicted. Half-empty
/// segments are cleaned, and live entries stay. If there are none, or the index is too large, the
/// oldest segments are evicted, except for entries that were read.
pub fn select_on_flash_of_cache(
    core: &Core,
    node: usize,
    fruitless: &mut Fruitless,
) -> (Vec<u32>, bool) {
    if !core.need().index_is_large() {
        let emptier = select_emptier(core, node, false, true, CACHE_LIVE_PART_MAX, fruitless);
        if !emptier.is_empty() {
            return (emptier, false);
        }
    }
    (select(core, node, true, true, fruitless), true)
}

/// As [`select`], but only segments with at most this live part, unless the oldest are wanted.
/// After a fruitless round, only segments in which entries have died: a pass over these reduces the
/// dead bytes, so the number of such passes is bounded too.
fn select_emptier(
    core: &Core,
    node: usize,
    oldest_first: bool,
    on_flash: bool,
    most: f64,
    fruitless: &mut Fruitless,
) -> Vec<u32> {
    let now = core.actors.log_time();
    let now_ms = core.clock().believed_ms(); // core::doubt::DC3: only believed expiry counts
    let segment_bytes = core.space.segment_bytes() as u64;
    let mut candidates: Vec<(f64, u32)> = Vec::new();
    let mut with_dead: Vec<(f64, u32)> = Vec::new();
    for window in core.space.windows_of_node(node) {
        let segment = &core.space.segments[window as usize];
        if segment.state() != State::Closed || !is_where(core, window, on_flash) {
            continue;
        }
        let (committed, dead_part) = if on_flash {
            (segment_bytes as f64, FLASH_DEAD_PART)
        } else {
            (f64::from(segment.committed_bytes()).max(1.0), DEAD_PART)
        };
        let live = core
            .live_in(window)
            .saturating_sub(u64::from(segment.expired_estimate(now_ms)));
        let u = live as f64 / committed;
        let age = (now.saturating_sub(segment.opened_tick()) + segment_bytes) as f64;
        if oldest_first {
            candidates.push((age, window));
        } else if u <= most {
            let candidate = ((1.0 - u) * age / u.max(1e-6), window);
            candidates.push(candidate);
            if core.space.segments[window as usize].dead_beside(live) as f64
                >= dead_part * committed
            {
                with_dead.push(candidate);
            }
        }
    }
    if !oldest_first {
        let (total, died) = (candidates.len() as u64, core.died_bytes());
        let may_gain = fruitless.may_gain(total, ROUND_VICTIMS_MAX, died, segment_bytes);
        if !may_gain {
            candidates = with_dead;
        }
        if on_flash {
            core.cleaners.pacer.note_passes(!may_gain);
        }
    }
    let closed_total = candidates.len();
    candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    // A small store must leave something for the other cleaners.
    let wanted = (closed_total / 16).clamp(1, VICTIMS_MAX);
    let mut victims = claim(core, candidates, wanted, For::Level { on_flash });
    victims.sort_unstable_by_key(|window| core.space.segments[*window as usize].opened_tick());
    victims
}

/// Hollow segments that are cleaned at once while flash is not short: the longest burst of
/// background reads (background_reads::F8).
const HOLLOW_MAX: usize = 4;

/// Claims segments on flash with almost no live data, emptiest first.
pub fn select_hollow(core: &Core, node: usize) -> Vec<u32> {
    let demotion = core.demotion();
    let hollow = |window: &u32| demotion.is_some_and(|it| it.is_hollow(*window));
    let windows = core.space.windows_of_node(node).filter(hollow);
    let mut candidates: Vec<(u64, u32)> = windows.map(|w| (core.live_in(w), w)).collect();
    candidates.sort_unstable();
    // Wholly dead segments are not read.
    let dead = candidates.partition_point(|(live, _)| *live == 0);
    let candidates = candidates.into_iter().map(|(_, window)| (0.0, window));
    let what_for = For::Level { on_flash: true };
    claim(core, candidates.collect(), dead.max(HOLLOW_MAX), what_for)
}

/// As [`select_hollow`], for segments that may be victims of a pass, if they are more than the
/// survivors that the pass would need.
pub fn select_hollow_on_disk(core: &Core, log: &Log, node: usize) -> Vec<u32> {
    let demotion = core.demotion();
    let mut candidates: Vec<(u64, u32)> = settled_windows(core, log, node)
        .into_iter()
        .filter(|window| demotion.is_some_and(|it| it.is_hollow(*window)))
        .map(|window| (core.live_in(window), window))
        .collect();
    candidates.sort_unstable();
    candidates.truncate(HOLLOW_MAX);
    let live: u64 = candidates.iter().map(|(live, _)| live).sum();
    let survivors = live.div_ceil(core.space.segment_bytes() as u64);
    if candidates.len() as u64 <= survivors || log.swaps().disk().room_for_survivors() <= survivors
    {
        return Vec::new();
    }
    let candidates = candidates.into_iter().map(|(_, window)| (0.0, window));
    claim(core, candidates.collect(), HOLLOW_MAX, For::PassOnFlash)
}

/// True if the window's bytes are readable on flash, or are in memory, as `on_flash` demands.
fn is_where(core: &Core, window: u32, on_flash: bool) -> bool {
    match core.tier() {
        Some(tier) => tier.is_cold(window as usize) == on_flash && !tier.is_bad(window as usize),
        None => !on_flash,
    }
}

/// Maximum live data that a pass moves, in segments (RAMCloud).
const PASS_SEGMENTS_MAX: u64 = 10;
/// Maximum victims of a pass: each nearly empty victim is quickly done, many are not.
const PASS_VICTIMS_MAX: usize = 64;
/// Cost of a pass besides its live bytes, in segments: its record, a sync of every replica, and the
/// wait for both. Without it, a pass within a zone would take a single empty victim.
const PASS_COST: f64 = 1.0 / 16.0;
/// Segments compacted between two looks at everything.
const COMPACTIONS_MAX: usize = 4;

/// Estimate of the bytes of a window that cleaning would have to keep. `now_ms`: the time that is
/// believed (core::doubt::DC3).
fn needed_bytes(core: &Core, log: &Log, window: u32, now_ms: u64) -> u64 {
    let segment = &core.space.segments[window as usize];
    let droppable = log
        .swaps()
        .rescan()
        .droppable(window, segment.incarnation());
    let expired = match core.is_loading() {
        true => 0, // expired entries stay until the load ends (load::R5)
        false => segment.expired_estimate(now_ms),
    };
    core.live_in(window)
        .saturating_sub(u64::from(expired))
        .saturating_sub(u64::from(droppable))
}

/// Windows of a node whose segments may be victims (levels::V1).
fn closed_windows<'a>(core: &'a Core, log: &'a Log, node: usize) -> impl Iterator<Item = u32> + 'a {
    let segments = &core.space.segments;
    let with_cold = core.need().may_clean_cold(node);
    core.space.windows_of_node(node).filter(move |window| {
        segments[*window as usize].is_closed()
            && log.is_victim_to_be(*window)
            && (with_cold || !core.is_cold(*window))
            && !core
                .tier()
                .is_some_and(|tier| tier.is_bad(*window as usize))
    })
}

/// Windows of a node whose segments may be victims of a pass (swap::D3).
fn settled_windows(core: &Core, log: &Log, node: usize) -> Vec<u32> {
    let needs = log.swaps().list().needs();
    closed_windows(core, log, node)
        .filter(|window| needs.is_settled(log.segment_of(*window as usize)))
        .collect()
}

/// Claims segments to compact: those that free the most bytes per copied byte.
pub fn select_memory(core: &Core, log: &Log, node: usize) -> Vec<u32> {
    let now_ms = core.clock().believed_ms();
    let mut total = 0;
    let mut candidates: Vec<(f64, u32)> = Vec::new();
    // A segment on flash takes no memory, and a whole slot, however short it is.
    for window in closed_windows(core, log, node).filter(|window| is_where(core, *window, false)) {
        total += 1;
        let committed = u64::from(core.space.segments[window as usize].committed_bytes());
        let live = needed_bytes(core, log, window, now_ms);
        let kept = if live == 0 {
            0
        } else {
            (live + SEGMENT_HEADER_BYTES as u64).next_multiple_of(SEGLET_BYTES as u64)
        };
        if kept < committed {
            candidates.push(((committed - kept) as f64 / live.max(1) as f64, window));
        }
    }
    candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    claim(
        core,
        candidates,
        (total / 16).clamp(1, COMPACTIONS_MAX),
        For::Level { on_flash: false },
    )
}

/// Claims the victims of a combined pass, oldest first: by cost-benefit on disk, where every
/// segment takes a whole frame. Empty: nothing would be gained. `oldest_first`: eviction wants cold
/// entries, not dead ones.
pub fn select_disk(
    core: &Core,
    log: &Log,
    node: usize,
    oldest_first: bool,
    rounds: &mut Rounds,
) -> Vec<u32> {
    let (now, now_ms) = (core.actors.log_time(), core.clock().believed_ms());
    let segment_bytes = core.space.segment_bytes() as u64;
    let mut candidates: Vec<DiskCandidate> = Vec::new();
    for window in settled_windows(core, log, node) {
        let live = needed_bytes(core, log, window, now_ms);
        let u = live as f64 / segment_bytes as f64;
        let tick = core.space.segments[window as usize].opened_tick();
        let age = (now.saturating_sub(tick) + segment_bytes) as f64;
        if oldest_first {
            candidates.push((age, window, live));
        } else if u <= LIVE_PART_MAX {
            candidates.push(((1.0 - u) * age / u.max(1e-6), window, live));
        }
    }
    let total = candidates.len() as u64;
    let mut in_zone = log.options().zone_count() > 1;
    if !oldest_first {
        let next = rounds.next(in_zone, total, core.died_bytes(), segment_bytes);
        core.cleaners.pacer.note_passes(next.is_none());
        let Some(reach) = next else {
            return Vec::new();
        };
        in_zone = reach;
    }
    candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let room = log.swaps().disk().room_for_survivors().saturating_sub(1);
    let limits = PassLimits {
        live_max: (total / 8).clamp(1, PASS_SEGMENTS_MAX).min(room) * segment_bytes,
        room: room * segment_bytes,
        segment_bytes,
        survivor_bytes: segment_bytes
            .saturating_sub(SEGMENT_HEADER_BYTES as u64 + rounds.unused_bytes())
            .max(1),
    };
    let zone_of = |window| log.options().zone_of(log.segment_of(window as usize));
    let chosen = match in_zone {
        true => limits.best_in_zone(candidates, zone_of),
        false => limits.pass(candidates),
    };
    if !oldest_first && !limits.gains(&chosen) {
        return select_to_merge(core, log, node, room);
    }
    let chosen = chosen.into_iter().map(|(score, window, _)| (score, window));
    let mut victims = claim(core, chosen.collect(), PASS_VICTIMS_MAX, For::Pass);
    victims.sort_unstable_by_key(|window| core.space.segments[*window as usize].opened_tick());
    victims
}

/// Score, window and live bytes of a segment that may be a victim.
type DiskCandidate = (f64, u32, u64);

/// Limits of a pass, in bytes.
struct PassLimits {
    /// Live bytes that it moves, if it gains a segment with them.
    live_max: u64,
    /// Live bytes that there is room for.
    room: u64,
    segment_bytes: u64,
    /// Live bytes that fill a survivor: entries are not divided.
    survivor_bytes: u64,
}

impl PassLimits {
    /// True if these victims are more segments than their survivors.
    fn gains(&self, victims: &[DiskCandidate]) -> bool {
        let live: u64 = victims.iter().map(|(_, _, live)| live).sum();
        victims.len() as u64 > live.div_ceil(self.segment_bytes)
    }

    /// The first candidates, as many as the limits allow.
    fn pass(&self, mut candidates: Vec<DiskCandidate>) -> Vec<DiskCandidate> {
        candidates.truncate(PASS_VICTIMS_MAX);
        let mut sum = 0;
        let taken = (0..candidates.len()).take_while(|count| {
            // Nearly full segments free one only when there are many of them.
            let (before, live) = (sum, candidates[*count].2);
            sum += live;
            let gains = *count as u64 > before.div_ceil(self.segment_bytes);
            (sum <= self.live_max || !gains) && sum <= self.room
        });
        let taken = taken.count();
        candidates.truncate(taken);
        candidates
    }

    /// The best pass over segments of one zone. If none of these gains a segment, the best one over
    /// all segments: the backups get its survivors as bytes. `candidates`: the best first.
    fn best_in_zone(
        &self,
        candidates: Vec<DiskCandidate>,
        zone_of: impl Fn(u32) -> u64,
    ) -> Vec<DiskCandidate> {
        let mut by_zone: BTreeMap<u64, Vec<DiskCandidate>> = BTreeMap::new();
        for candidate in &candidates {
            let of_zone = by_zone.entry(zone_of(candidate.1)).or_default();
            of_zone.push(*candidate);
        }
        let passes = by_zone.into_values().filter_map(|of_zone| {
            let mut pass = self.pass(of_zone);
            let (worth, count) = self.best_start(&pass)?;
            pass.truncate(count);
            Some((worth, pass))
        });
        let best = passes.max_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or_else(|| self.pass(candidates), |(_, pass)| pass)
    }

    /// The number of the first victims whose pass is worth most, and its worth: benefit to cost,
    /// less the part of the freed bytes that the last survivor leaves unused. A zone has fewer
    /// segments than the log, so a pass of the usual length would take some with much live data.
    /// `None`: no start gains a segment.
    fn best_start(&self, victims: &[DiskCandidate]) -> Option<(f64, usize)> {
        let segment_bytes = self.segment_bytes as f64;
        let (mut benefit, mut live) = (0.0, 0);
        let mut best: Option<(f64, usize)> = None;
        for (count, (score, _, its)) in (1..).zip(victims) {
            benefit += score * (*its as f64).max(1.0);
            live += its;
            let freed = (count as u64).saturating_sub(live.div_ceil(self.survivor_bytes));
            let dead = count as f64 - live as f64 / segment_bytes;
            let cost = live as f64 + PASS_COST * segment_bytes;
            let worth = benefit / cost * freed as f64 / dead;
            if freed > 0 && best.is_none_or(|(known, _)| worth > known) {
                best = Some((worth, count));
            }
        }
        best
    }
}

/// Claims victims of a pass that need not free a segment, on a disk without room for heads. It
/// gathers the dead bytes and the unused ends of several segments into one short survivor, which is
/// a victim of the next pass, until a segment is free. Otherwise scattered removals would fill the
/// reserve for their tombstones before any few segments had enough dead bytes for one.
fn select_to_merge(core: &Core, log: &Log, node: usize, room: u64) -> Vec<u32> {
    if log.swaps().disk().has_room(Purpose::Head) {
        return Vec::new();
    }
    let now_ms = core.clock().believed_ms();
    let mut candidates: Vec<Mergeable> = settled_windows(core, log, node)
        .into_iter()
        .map(|window| Mergeable {
            needed: needed_bytes(core, log, window, now_ms),
            appended: u64::from(core.space.segments[window as usize].appended_bytes()),
            window,
        })
        .collect();
    candidates.sort_unstable_by_key(|segment| segment.needed);
    candidates.truncate(PASS_VICTIMS_MAX);
    candidates.truncate(mergeable(
        &candidates,
        room,
        core.space.segment_bytes() as u64,
    ));
    let chosen = candidates.iter().map(|segment| (0.0, segment.window));
    claim(core, chosen.collect(), PASS_VICTIMS_MAX, For::Pass)
}

/// A segment that may be a victim of a merging pass.
struct Mergeable {
    /// Bytes that the pass would keep.
    needed: u64,
    /// Bytes that it has.
    appended: u64,
    window: u32,
}

/// Number of the first segments that a merging pass takes, at most `room` segments' worth: the
/// fewest that free a segment, else those whose last survivor is the shortest. That survivor is
/// shorter than each victim by 1/64 of a segment, so a bounded number of passes frees a segment.
fn mergeable(segments: &[Mergeable], room: u64, segment_bytes: u64) -> usize {
    let (mut sum, mut shortest) = (0, u64::MAX);
    let mut best = (u64::MAX, 0);
    for (count, segment) in (1..).zip(segments) {
        sum += segment.needed;
        shortest = shortest.min(segment.appended);
        let survivors = sum.div_ceil(segment_bytes);
        if survivors > room {
            break;
        }
        if survivors < count as u64 {
            return count;
        }
        let last = sum - (survivors - 1) * segment_bytes;
        if last + segment_bytes / DIED_PART <= shortest && last < best.0 {
            best = (last, count);
        }
    }
    best.1
}

/// Claims a segment that must leave its frame, if one can now, even without a gain.
pub fn select_wanted(core: &Core, log: &Log, node: usize) -> Vec<u32> {
    let is_wanted = |window: &u32| {
        let segment = log.segment_of(*window as usize);
        log.swaps().relocations.is_wanted(segment)
    };
    let wanted = settled_windows(core, log, node).into_iter();
    let wanted = wanted.filter(is_wanted).map(|window| (0.0, window));
    let wanted: Vec<(f64, u32)> = wanted.collect();
    // The reserve of survivors stays, or else the log is cleaned first.
    if log.swaps().disk().room_for_survivors() == 0 {
        return Vec::new();
    }
    claim(core, wanted, 1, For::Pass)
}

/// Asks for the relocation of a segment for which a token stands, one at a time (levels::V5).
pub fn want_of_token(core: &Core, log: &Log, node: usize) {
    let swaps = log.swaps();
    if swaps.eviction_victim() == SegmentId::NONE || swaps.relocations.is_asking() {
        return;
    }
    let evicted = swaps.queues().evicted();
    let windows = settled_windows(core, log, node).into_iter();
    let mut segments = windows.map(|window| log.segment_of(window as usize));
    if let Some(segment) = segments.find(|segment| evicted.contains(segment)) {
        swaps.relocate(segment);
    }
}

/// The purpose for which a context claims windows, and whether these must be in memory or on flash.
#[derive(Clone, Copy)]
enum For {
    /// Compaction, or cleaning of a store without a log: in memory or on flash.
    Level { on_flash: bool },
    /// A pass, which takes settled segments alone (swap::D3).
    Pass,
    /// A pass for segments on flash.
    PassOnFlash,
}

/// Claims the first of these that may be victims. Each is checked once it is claimed: since it was
/// looked at, the window may have turned cold, or may have been cleaned and filled again, and the
/// disk may not have its new bytes (levels::V1).
fn claim(core: &Core, candidates: Vec<(f64, u32)>, wanted: usize, what_for: For) -> Vec<u32> {
    let is_in_place = |window: u32| match what_for {
        For::Level { on_flash } => is_where(core, window, on_flash),
        For::Pass => true,
        For::PassOnFlash => is_where(core, window, true),
    };
    let is_on_disk = |window: u32| {
        core.log.as_deref().is_none_or(|log| {
            let segment = log.segment_of(window as usize);
            let is_of_pass = matches!(what_for, For::Pass | For::PassOnFlash);
            log.is_victim_to_be(window)
                && (!is_of_pass || log.swaps().list().needs().is_settled(segment))
        })
    };
    let may_be_victim =
        |window: u32| is_in_place(window) && (is_on_disk(window) || has_bug(Bug::ClaimedUnseen));
    candidates
        .into_iter()
        .map(|(_, window)| window)
        .filter(|window| core.space.segments[*window as usize].claim())
        .filter(|window| {
            let may_be_victim = may_be_victim(*window);
            if !may_be_victim {
                core.space.segments[*window as usize].unclaim();
            }
            may_be_victim
        })
        .take(wanted)
        .collect()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
