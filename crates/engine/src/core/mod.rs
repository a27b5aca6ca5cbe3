//! The data that sessions and cleaners share: space, heads, indexes, epochs, and the limits of live
//! data.

pub mod actors;
pub mod cleaning;
pub mod damage;
pub mod departures;
mod doubt;
pub mod flash;
pub mod listeners;
pub mod resize;
pub mod slots;
pub mod sound;
mod tracker;
pub mod watches;
mod windows;
pub mod workers;
pub mod writes;

use crate::epoch::{Epochs, SESSIONS_MAX, SlotId, VISITORS};
use crate::exclusive::Door;
use crate::index::arena::Arena;
use crate::index::{Index, Partition, Resources};
use crate::log::Log;
use crate::space::{Purpose, SEGMENT_HEADER_BYTES, Space, segment_bytes_of};
use crate::table::Registry;
use crate::topology::Topology;
use crate::{Error, Mode, Options, TableId};
use actors::Actors;
use cleaning::cleaners::Cleaners;
use doubt::DoubtedClock;
use duramen_base::limits::STORE_BYTES_MIN;
use duramen_base::ticks::Ticks;
use duramen_base::units::MIB;
use duramen_base::waits::{LongWait, NOTHING, Resource};
use duramen_format::hash::KeyHasher;
use flash::cleared::Cleared;
use flash::tier::Tier;
use listeners::Listeners;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use workers::{Workers, open_segments};

/// A store whose live data may take less than its memory divided by this is refused.
const LIVE_PART_MIN: u64 = 8;
/// Live data above this part of the segments' budget are refused (store mode): the cleaner needs
/// some dead bytes to find.
const LIVE_PART_MAX: f64 = 0.98;

/// The shared data of a store. Work that needs several of its fields is done by views of it:
/// `Windows`, `Need`, `Slots`, `Demotion`.
pub struct Core {
    /// Behaviour at the memory limit. Relaxed: it decides about each entry and each write alone.
    evicts: AtomicBool,
    clock: DoubtedClock,
    /// The memory of segments.
    pub space: Space,
    /// The windows whose bytes are on flash; `None`: all are in memory.
    tier: Option<Box<Tier>>,
    /// The memory of indexes.
    arena: Arena,
    /// The door through which sessions and cleaners enter, and those who are inside.
    pub door: Door,
    pub tables: Registry,
    /// Heads, and the counters of all that change the store.
    pub actors: Actors,
    pub cleaners: Cleaners,
    /// Memory of all structures that exist from the start, in bytes.
    overhead: u64,
    /// `None`: the store is memory alone.
    pub log: Option<Box<Log>>,
    /// The entries that clears have left to be counted.
    cleared: Cleared,
    pub listeners: Listeners,
    /// No version that is given in this run is lower (load::R11). Set before sessions are used, so
    /// Relaxed.
    load_floor: AtomicU64,
}

/// The memory budget, if a store can have it.
fn checked_budget(options: &Options) -> Result<u64, Error> {
    let bytes = options.memory_bytes;
    let (minimum, maximum) = (STORE_BYTES_MIN, crate::space::MEMORY_BYTES_MAX);
    if bytes < minimum && !options.tiny {
        return Err(Error::BudgetTooSmall { bytes, minimum });
    }
    if options.memory_bytes_max() > maximum {
        let bytes = options.memory_bytes_max();
        return Err(Error::BudgetTooLarge { bytes, maximum });
    }
    Ok(bytes)
}

impl Core {
    pub fn new(options: &Options, topology: &Topology) -> Result<Core, Error> {
        let memory_bytes = checked_budget(options)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let heads = match options.heads {
            0 => cores,
            heads => heads,
        };
        let nodes = topology.nodes();
        let wanted = (heads, options.cleaners);
        // A log may have been made with longer segments, for more memory.
        let workers = Workers::borne(memory_bytes, segment_bytes_of(options), wanted, nodes);
        let (heads, contexts) = (workers.heads, workers.contexts());
        // Without a log deletes write nothing, but an update in a full store first needs a window.
        let log = options.log.as_ref();
        let doubts_clock = log.is_some_and(|log| log.doubts_clock);
        let tombstone_reserve = log.map_or(1, |_| heads.div_ceil(nodes));
        let reserve = contexts.div_ceil(nodes);
        let space = Space::new(options, topology, reserve, tombstone_reserve)?;
        let log = log.map(|log| Box::new(Log::new(log, &space, heads)));
        let epochs = Epochs::new(SESSIONS_MAX + VISITORS + contexts, Ticks::detect());
        let windows = space.segments.len();
        let cleaners = Cleaners::new(&workers, nodes, &epochs)?;
        let hasher = KeyHasher::new(options.hash_seed.unwrap_or_else(random_seed));
        let mut core = Core {
            evicts: AtomicBool::new(options.mode == Mode::Cache),
            clock: DoubtedClock::new(options.clock.clone(), doubts_clock),
            cleared: Cleared::new(hasher.clone()),
            arena: Arena::new(options.memory_bytes_max() / 2, options.huge_pages, topology)?,
            listeners: Listeners::new(hasher.clone()),
            tables: Registry::new(hasher),
            actors: Actors::new((heads, contexts), log.is_some(), windows, topology),
            cleaners,
            overhead: 0,
            log,
            load_floor: AtomicU64::new(0),
            door: Door::new(epochs),
            tier: Tier::new(options, &space),
            space,
        };
        core.overhead = core.sum_overhead();
        let overhead = core.overhead;
        if !core.space.budget.charge(overhead) {
            return Err(Error::BudgetTooSmall {
                bytes: memory_bytes,
                minimum: overhead + STORE_BYTES_MIN,
            });
        }
        core.check_live_limit(options.tiny)?;
        core.watch_flash(); // the share of promoted copies (promoted::P4)
        core.clock.believed_ms(); // from now on a jump is noticed
        Ok(core)
    }

    /// Refuses memory in which the heads and cleaners leave almost nothing for data: the segments
    /// of a log that was made for more memory may be too long for it.
    fn check_live_limit(&self, tiny: bool) -> Result<(), Error> {
        let bytes = self.space.budget.limit();
        if tiny || self.live_limit() >= bytes / LIVE_PART_MIN {
            return Ok(());
        }
        let taken = self.overhead + self.open_bytes();
        Err(Error::BudgetTooSmall {
            bytes,
            minimum: (taken + STORE_BYTES_MIN).next_multiple_of(MIB),
        })
    }

    /// The clock by which objects expire.
    #[inline(always)]
    pub fn clock(&self) -> &DoubtedClock {
        &self.clock
    }

    /// The windows whose bytes are on flash; `None`: all are in memory.
    #[inline(always)]
    pub fn tier(&self) -> Option<&Tier> {
        self.tier.as_deref()
    }

    /// The entries that clears have left to be counted.
    #[inline(always)]
    pub fn cleared(&self) -> &Cleared {
        &self.cleared
    }

    pub fn resources(&self) -> Resources<'_> {
        Resources {
            arena: &self.arena,
            space: &self.space,
            epochs: self.door.epochs(),
        }
    }

    /// Resizes a partition after an operation of owner `me`, if its load requires it. The caller
    /// holds no bucket lock.
    #[cold]
    pub fn resize(&self, partition: &Partition, me: u16) {
        // A refusal (no memory, a transaction) does no harm: the next insert tries again, until the
        // view is full.
        let _ = partition.resize(0, me, self.resources());
    }

    /// True if the window is part of a side log that has not become part of the log yet.
    pub fn is_held(&self, window: u32) -> bool {
        self.log
            .as_ref()
            .is_some_and(|log| log.swaps().marks().is_held(window))
    }

    /// Padded bytes of live entries in a window.
    pub fn live_in(&self, window: u32) -> u64 {
        let segment = &self.space.segments[window as usize];
        let appended =
            u64::from(segment.appended_bytes()).saturating_sub(SEGMENT_HEADER_BYTES as u64);
        let dead = self
            .actors
            .dead_in(window)
            .wrapping_sub(segment.dead_base());
        appended.saturating_sub(dead)
    }

    /// Bytes of the budget that segments can take.
    pub fn segment_budget(&self) -> u64 {
        let other = self.arena.committed_bytes() + self.overhead_bytes();
        self.space.budget.limit().saturating_sub(other)
    }

    /// Whether entries are evicted when memory is short. If not, writes are refused.
    #[inline(always)]
    pub fn is_cache(&self) -> bool {
        self.evicts.load(Ordering::Relaxed)
    }

    pub fn set_mode(&self, mode: Mode) {
        self.evicts.store(mode == Mode::Cache, Ordering::Relaxed);
    }

    /// Live bytes beyond which writes are refused. Leaves room for the heads, the survivors and
    /// their reserve, and a few dead bytes.
    pub fn live_limit(&self) -> u64 {
        // If the live data are more than cleaning can pack beside these, cleaning finds nothing to
        // gain, and the write is refused.
        let usable = self.segment_budget().saturating_sub(self.open_bytes());
        (usable as f64 * LIVE_PART_MAX) as u64 + self.flash_capacity()
    }

    /// Bytes of the windows that heads, survivors and their reserves leave empty.
    fn open_bytes(&self) -> u64 {
        let for_tombstones = if self.log.is_some() {
            self.actors.heads().len()
        } else {
            self.space.nodes()
        };
        let open = open_segments(
            self.actors.heads().len(),
            self.cleaners.contexts(),
            for_tombstones,
        );
        (open * self.space.segment_bytes()) as u64
    }

    /// True if more is alive than writes may fill. Expired entries do not count as alive, even
    /// those that no thread has met yet. Nor do cleared ones, as long as their size is unknown.
    pub fn is_full(&self) -> bool {
        self.has_more_than(self.live_limit())
    }

    /// True if the store takes no more writes for this purpose. Deletes go on, because they make
    /// room.
    pub fn refuses(&self, purpose: Purpose) -> bool {
        if self.is_cache() {
            return false;
        }
        match purpose {
            Purpose::Head | Purpose::Side | Purpose::Promoted => self.is_full(),
            Purpose::Rewrite => {
                self.has_more_than(self.live_limit() + self.space.segment_bytes() as u64)
            }
            Purpose::Tombstones | Purpose::Survivor | Purpose::Compacted => false,
        }
    }

    /// As [`is_full`](Self::is_full), with another limit.
    pub fn has_more_than(&self, limit: u64) -> bool {
        let live = self.actors.live_bytes();
        if live <= limit || self.cleared.is_pending() {
            return false;
        }
        live.saturating_sub(self.expired_bytes()) > limit
    }

    /// Estimated bytes of expired entries that no thread has met yet.
    pub fn expired_bytes(&self) -> u64 {
        let now_ms = self.clock.believed_ms(); // doubt::DC3: only believed expiry counts
        let segments = self.space.segments.iter();
        segments
            .filter(|segment| segment.is_in_log())
            .map(|segment| u64::from(segment.expired_estimate(now_ms)))
            .sum()
    }

    /// Bytes that have died since the start, or have expired.
    pub fn died_bytes(&self) -> u64 {
        self.actors.dead_bytes() + self.expired_bytes()
    }

    pub fn out_of_memory(&self) -> Error {
        Error::OutOfMemory {
            live_bytes: self.actors.live_bytes(),
            limit_bytes: self.live_limit(),
        }
    }

    /// A new index. `floor`: above every version ever given.
    pub fn new_index(&self, floor: u64) -> Index {
        Index::new(self.space.budget.start(), floor)
    }

    /// Makes the index that an entry of this table needs, if it is the first part of its table.
    /// Returns false if there is no memory for the index. The caller is pinned.
    #[inline]
    pub fn prepare_index(&self, table: TableId) -> bool {
        !table.is_parts() || self.tables.index(table).is_ok() || self.make_parts(table)
    }

    #[cold]
    fn make_parts(&self, table: TableId) -> bool {
        if self.tables.index(table.whole()).is_err() {
            return true; // the entry belongs to no table
        }
        let index = self.new_index(self.version_max() + 1); // index::X3: above all given
        let bytes = index.overhead_bytes();
        if !self.space.charge_beside_segments(bytes) {
            return false;
        }
        if !self.tables.create_parts(table, index) {
            self.space.budget.release(bytes); // another thread was first
        }
        true
    }

    /// The largest object version that any write has given so far, or may have given before a
    /// restart.
    pub fn version_max(&self) -> u64 {
        let before = self
            .log
            .as_ref()
            .map_or(0, |log| log.numbers().version_floor());
        self.actors.version_max().max(before.saturating_sub(1))
    }

    /// The version of an object that replaces one of this version.
    #[inline(always)]
    pub fn version_after(&self, version: u64) -> u64 {
        (version + 1).max(self.load_floor.load(Ordering::Relaxed))
    }

    /// Sets the floor of the versions that are given in this run (load::R11).
    pub fn set_load_floor(&self, version: u64) {
        self.load_floor.store(version, Ordering::Relaxed);
    }

    /// Memory of the structures that exist from the start, of marks, and of the tracker.
    pub fn overhead_bytes(&self) -> u64 {
        self.overhead + self.listeners.charged_bytes()
    }

    fn sum_overhead(&self) -> u64 {
        self.space.overhead_bytes()
            + self.tier.as_ref().map_or(0, |tier| tier.overhead_bytes())
            + self.log.as_ref().map_or(0, |log| log.overhead_bytes())
            + self.door.epochs().bytes()
            + self.actors.overhead_bytes()
            + (TableId::INDEX_PLACES * 8) as u64
    }

    /// True while segments of a log are being loaded.
    pub fn is_loading(&self) -> bool {
        self.log
            .as_ref()
            .is_some_and(|log| log.arrivals().is_loading())
    }

    /// Whether the disk has room for another segment for this purpose.
    pub fn disk_has_room(&self, purpose: Purpose) -> bool {
        let log = self.log.as_ref();
        log.is_none_or(|log| log.swaps().disk().has_room(purpose))
    }

    /// Bytes charged for segments now.
    pub fn segment_bytes_committed(&self) -> u64 {
        self.space
            .budget
            .used()
            .saturating_sub(self.arena.committed_bytes() + self.overhead_bytes())
    }
}

/// A slot of the epochs' table that a thread without a session has for one call.
pub(crate) struct Visitor<'a> {
    pub(crate) core: &'a Core,
    pub(crate) slot: SlotId,
}

impl<'a> Visitor<'a> {
    /// Waits until there is a slot: those of sessions come and go.
    pub(crate) fn wait(core: &'a Core) -> Visitor<'a> {
        let mut waiting = LongWait::new(Resource::Place, NOTHING);
        loop {
            if let Ok(slot) = core.door.epochs().register() {
                return Visitor { core, slot };
            }
            waiting.wait();
        }
    }

    /// The lock owner number of the slot.
    pub(crate) fn me(&self) -> u16 {
        self.slot.0 as u16 + 1
    }
}

impl Drop for Visitor<'_> {
    fn drop(&mut self) {
        self.core.door.epochs().unregister(self.slot);
    }
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library seeds its map keys with the operating system's randomness.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u64(COUNT.fetch_add(1, Ordering::Relaxed));
    hasher.finish()
}
