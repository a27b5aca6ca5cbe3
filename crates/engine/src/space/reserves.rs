//! The windows of each node that stay free for cleaning and for deletes.

use super::Purpose;
use super::pool::Pool;
use duramen_base::sync::{AtomicBool, AtomicUsize, Ordering};

/// Windows that a load leaves on each node if it can (space::S5).
const SPARE_OF_LOADING: usize = 2;

/// The reserves of a store, besides those that each pool has for survivors (engine::space::S4).
pub struct Reserves {
    /// Windows per node that tombstones, and rewrites, may take beyond the limit of heads.
    tombstones: usize,
    /// Windows of each node that a load leaves; 0: no segments are being loaded. A load may use the
    /// reserves of writers, which fill up again afterwards.
    loading: AtomicUsize,
    /// The reserves have not been whole since the load (space::S5).
    scarce: AtomicBool,
}

impl Reserves {
    pub(super) fn new(tombstones: usize) -> Reserves {
        Reserves {
            tombstones,
            loading: AtomicUsize::new(0),
            scarce: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    pub fn are_scarce(&self) -> bool {
        // Relaxed: the flag is set before any session is used, and a thread that sees its end late
        // does no harm.
        self.scarce.load(Ordering::Relaxed)
    }

    pub(super) fn set_scarce(&self, scarce: bool) {
        self.scarce.store(scarce, Ordering::Relaxed);
    }

    /// Windows that stay free for other purposes.
    pub(super) fn beside(&self, pool: &Pool, purpose: Purpose) -> usize {
        match purpose {
            Purpose::Head | Purpose::Side | Purpose::Promoted => pool.reserve() + self.tombstones,
            Purpose::Tombstones if self.are_scarce() => 1, // space::S5: one window for cleaning
            Purpose::Tombstones | Purpose::Rewrite => pool.reserve(),
            Purpose::Survivor | Purpose::Compacted => 0,
        }
    }

    /// Windows that are free if each context that cleans has one (engine::space::S4), or if all of
    /// them have one beside that of a survivor (engine::space::S5).
    pub(super) fn of_contexts(&self, pool: &Pool) -> usize {
        match self.are_scarce() {
            true => 2,
            false => pool.reserve(),
        }
    }

    /// Windows that are missing in a pool's reserve for other purposes (engine::space::S4).
    pub(super) fn missing(&self, pool: &Pool, purpose: Purpose) -> usize {
        self.beside(pool, purpose).saturating_sub(pool.backed())
    }

    /// Begins a load of segments.
    pub fn begin_loading(&self) {
        self.loading.store(SPARE_OF_LOADING, Ordering::Relaxed);
    }

    /// Lets a load that has no other memory leave one window only, for compaction.
    pub fn leave_less(&self) {
        self.loading.store(1, Ordering::Relaxed);
    }

    pub(super) fn end_loading(&self) {
        self.loading.store(0, Ordering::Relaxed);
    }

    /// Windows of each node that the load leaves; 0: there is no load.
    pub fn spare_of_loading(&self) -> usize {
        self.loading.load(Ordering::Relaxed)
    }

    /// True while a load leaves windows on every node, and not only on the node of the segment that
    /// it loads.
    pub(super) fn are_of_all_nodes(&self) -> bool {
        self.spare_of_loading() == SPARE_OF_LOADING
    }

    /// Windows that are missing in a pool for what a load leaves.
    pub(super) fn missing_of_loading(&self, pool: &Pool) -> usize {
        self.spare_of_loading().saturating_sub(pool.backed())
    }
}
