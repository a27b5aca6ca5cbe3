//! The need for cleaning: whether memory is short, and what makes room.

use crate::core::Core;
use crate::core::cleaning::shrink::Look;

/// A cache evicts when this part of the segments' budget is live: cleaning stays cheap.
pub const CACHE_LIVE_PART: f64 = 0.92;
/// Part of the budget that a cache's index may take before the cache evicts; the arena has room for
/// half of the budget.
const INDEX_PART: f64 = 0.35;
/// Maximum memory of the log, in multiples of its live bytes, while there is something to clean.
/// With half of it live, cleaning costs about one relocation in three writes. That is less than the
/// first touch of as much fresh memory, and memory stays in proportion to the data whatever the
/// budget.
const FOOTPRINT: f64 = 2.0;
/// The same with a log, in multiples of live bytes and tombstones. Cleaning is dearer there: every
/// dead entry must be examined, and an entry that dies young leaves a tombstone which only the
/// disk's cleaning can end. The longer cleaning waits, the more of it becomes unnecessary.
const FOOTPRINT_WITH_LOG: f64 = 3.0;

/// The need of a store for cleaning, demotion and eviction.
#[derive(Clone, Copy)]
pub struct Need<'c> {
    core: &'c Core,
}

impl Core {
    pub fn need(&self) -> Need<'_> {
        Need { core: self }
    }
}

impl Need<'_> {
    /// Windows of a node that the store should need for its present live data: the smaller of the
    /// node's share of the budget and `FOOTPRINT` times the live bytes. Beyond it, cleaning is
    /// cheaper than touching fresh memory.
    fn footprint_windows(self, node_share: f64) -> f64 {
        let core = self.core;
        let window = core.space.segment_bytes() as f64;
        let hard = core.segment_budget().saturating_sub(core.promoted_bytes()) as f64 / window;
        let users = core.actors.heads().len() + core.cleaners.contexts();
        let slack = (2 * users + 4) as f64;
        let wanted = if core.log.is_some() {
            let needed = core.live_in_memory() + core.actors.tombstone_bytes();
            FOOTPRINT_WITH_LOG * needed as f64
        } else {
            FOOTPRINT * core.live_in_memory() as f64
        };
        (wanted / window + slack).min(hard) * node_share
    }

    /// Free windows of a node over the number at which cleaning starts, F <= min(0.1, (1 - L) / 2)
    /// of the memory [Rumble14 §5.2]. 1 or less: clean; 0: the next head has to wait.
    pub fn ease(self, node: usize) -> f64 {
        let space = &self.core.space;
        let share = 1.0 / space.nodes() as f64;
        let footprint = self.footprint_windows(share);
        let live = self.core.live_in_memory() as f64 / space.segment_bytes() as f64 * share;
        let low = ((1.0 - live / footprint.max(1.0)).max(0.0) / 2.0).min(0.1) * footprint;
        let free = (space.free_windows(node) as f64).min(footprint - self.windows_in_use(node));
        free.max(0.0) / low.max(1.0)
    }

    /// Windows of a node with entries in them. If several nodes share the budget: the node's share
    /// of all.
    fn windows_in_use(self, node: usize) -> f64 {
        let space = &self.core.space;
        let committed = self.core.segment_bytes_committed();
        let committed = committed.saturating_sub(self.core.promoted_bytes());
        let committed = committed as f64 / space.segment_bytes() as f64;
        committed / space.nodes() as f64 - space.waiting(node).1 as f64
    }

    pub fn is_low(self, node: usize) -> bool {
        self.ease(node) <= 1.0
    }

    /// True while the store grows: windows are then backed ahead of the heads, which would have to
    /// touch that memory anyway.
    pub fn is_filling(self, node: usize) -> bool {
        self.ease(node) > 1.0
    }

    /// True if a load should take as little memory as possible: less than an eighth of the budget
    /// is free, which is about the size of an index.
    pub fn is_near_limit(self) -> bool {
        let budget = &self.core.space.budget;
        budget.free() < budget.limit() / 8
    }

    /// True while memory is to be given back to the system.
    pub fn is_giving_back(self) -> bool {
        self.core.cleaners.pacer.is_shrinking() || self.is_lowering()
    }

    /// True while memory has to be given back for a lowered budget, as far as cleaning frees any.
    fn is_lowering(self) -> bool {
        self.core.space.budget.is_above_limit() && !self.core.cleaners.pacer.lowers_in_vain()
    }

    /// Decides whether to give memory back. Called by the first cleaner thread now and then.
    pub fn watch_live_size(self) {
        let core = self.core;
        let segment_bytes = core.space.segment_bytes();
        let (heads, contexts) = (core.actors.heads().len(), core.cleaners.contexts());
        let live = core.live_in_memory();
        let slack = (4 + heads + 2 * contexts) * segment_bytes;
        let goal = live + live / 8 + slack as u64;
        // The effort ends at this floor, below the goal at which it begins, so it does not depend
        // on how much a single step frees.
        let floor = live + live / 16 + (contexts * segment_bytes) as u64;
        let calm = (live + live / 2).max(goal + goal / 16);
        let committed = core.segment_bytes_committed();
        let log_time = core.actors.log_time();
        let budget = &core.space.budget;
        core.cleaners
            .pacer
            .watch_lowering(budget.is_above_limit(), budget.used(), log_time);
        core.cleaners.pacer.watch_shrinking(Look {
            live,
            committed: committed.saturating_sub(core.promoted_bytes()),
            goal,
            floor,
            calm,
            log_time: core.actors.log_time(),
        });
    }

    /// True if a cache is so full that cleaning must evict.
    pub fn must_evict(self) -> bool {
        let core = self.core;
        core.is_cache()
            && (core.cleaners.pacer.evicts_by_force()
                || self.evicts_from_flash() && self.index_is_large()
                || core.actors.live_bytes() as f64 > CACHE_LIVE_PART * core.live_limit() as f64
                    && !core.cleared().is_pending())
    }

    /// True if this is a cache that evicts entries on flash, and not those in memory.
    pub fn evicts_from_flash(self) -> bool {
        let tier = self.core.tier();
        self.core.is_cache() && tier.is_some_and(|tier| !tier.has_failed())
    }

    /// True if the tier needs a cleaner thread, to demote or to clean segments on flash.
    pub fn flash_wants_cleaning(self) -> bool {
        let wants = self.core.tier().is_some_and(|tier| {
            tier.is_short()
                || (tier.pressure.is_on() && tier.has_room(false))
                || tier.wants_hollow()
        });
        wants || self.flash_wants_eviction()
    }

    /// True if a cache has more on flash than there is room for, or than its index should take.
    pub fn flash_wants_eviction(self) -> bool {
        let tier = self.core.tier();
        let is_short = || tier.is_some_and(|tier| tier.is_short() || self.index_is_large());
        self.evicts_from_flash() && is_short()
    }

    /// True if entries on flash take nearly as much index as is allowed, or as could be found. If
    /// its memory is in pieces, a part of the index finds no place to grow before it has reached
    /// its limit.
    pub fn index_is_large(self) -> bool {
        let core = self.core;
        let tier = core.tier();
        core.arena.allocated_bytes() as f64 > INDEX_PART * core.space.budget.limit() as f64
            || tier.is_some_and(|tier| tier.pressure.is_by_index())
    }

    /// True if cold segments may be victims. Once the device has failed, survivors of cold segments
    /// stay in memory, so cleaning these frees no memory. It is then done only for the sake of the
    /// disk, while memory is not short (context::C2).
    pub fn may_clean_cold(self, node: usize) -> bool {
        let tier = self.core.tier();
        tier.is_some_and(|tier| !tier.has_failed()) || !self.is_low(node)
    }

    /// True if a writer without memory should wait for a cleaner thread: the device can take a
    /// segment, or has to be cleaned before it can, or copies have to give memory back.
    pub fn waits_for_flash(self) -> bool {
        let demotion = self.core.demotion();
        demotion.is_some_and(|demotion| demotion.is_worth_a_wait())
    }
}
