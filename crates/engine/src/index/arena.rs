//! The memory of all indexes: ranges of cache lines in one region backed by huge pages, charged to
//! the budget.
//!
//! **Invariant**
//! - A1: every 2 MiB page that a range touches is charged; a page is given back only
//!   when no range touches it.
//!
//! **Concurrency**: one lock, taken when a partition changes size, never on the path of an
//! operation.

use super::bucket::Bucket;
use crate::Error;
use crate::space::budget::Budget;
use crate::space::region::{HUGE_PAGE_BYTES, Region};
use crate::topology::Topology;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const LINE_BYTES: usize = size_of::<Bucket>();
const LINES_PER_PAGE: usize = HUGE_PAGE_BYTES / LINE_BYTES;

pub struct Arena {
    region: Region,
    state: Mutex<State>,
    committed: AtomicU64,
    allocated: AtomicU64,
}

struct State {
    /// Free ranges: first line → number of lines; neighbours are merged.
    free: BTreeMap<usize, usize>,
    /// Pages that are charged.
    committed: Vec<bool>,
    /// Ranges that readers may still see: (stamp, first line, lines), oldest first.
    retired: VecDeque<(u64, usize, usize)>,
}

impl Arena {
    /// `bytes`: address space, an upper limit of the memory of all indexes.
    pub fn new(bytes: u64, huge_pages: bool, topology: &Topology) -> Result<Arena, Error> {
        let pages = (bytes as usize).div_ceil(HUGE_PAGE_BYTES).max(1);
        let region = Region::reserve(pages * HUGE_PAGE_BYTES, huge_pages)?;
        topology.spread(region.at(0), pages * HUGE_PAGE_BYTES);
        let state = State {
            free: BTreeMap::from([(0, pages * LINES_PER_PAGE)]),
            committed: vec![false; pages],
            retired: VecDeque::new(),
        };
        Ok(Arena {
            region,
            state: Mutex::new(state),
            committed: AtomicU64::new(0),
            allocated: AtomicU64::new(0),
        })
    }

    /// `lines` zeroed buckets, or `None` if the budget or the address space does not allow them.
    /// `charge` charges bytes to the budget, or refuses.
    pub fn allocate(&self, lines: usize, charge: impl FnOnce(u64) -> bool) -> Option<*mut Bucket> {
        let mut state = self.state.lock().expect("index arena");
        // First fit: keeps the indexes at the low end, so that pages at the high end empty and can
        // be given back.
        let first = state
            .free
            .iter()
            .find(|(_, length)| **length >= lines)
            .map(|(first, _)| *first)?;
        if !self.charge_pages(&mut state, first, lines, charge) {
            return None;
        }
        let length = state.free.remove(&first)?;
        if length > lines {
            state.free.insert(first + lines, length - lines);
        }
        drop(state);
        self.allocated
            .fetch_add((lines * LINE_BYTES) as u64, Ordering::Relaxed);
        let at = self.region.at(first * LINE_BYTES);
        // SAFETY: the range was free, so no other user has it; it is inside the region.
        unsafe { at.write_bytes(0, lines * LINE_BYTES) };
        Some(at.cast())
    }

    fn charge_pages(
        &self,
        state: &mut State,
        first: usize,
        lines: usize,
        charge: impl FnOnce(u64) -> bool,
    ) -> bool {
        let pages = first / LINES_PER_PAGE..(first + lines).div_ceil(LINES_PER_PAGE);
        let bare = state.committed[pages.clone()]
            .iter()
            .filter(|committed| !**committed)
            .count();
        let bytes = (bare * HUGE_PAGE_BYTES) as u64;
        if !charge(bytes) {
            return false;
        }
        state.committed[pages].fill(true);
        self.committed.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Frees a range once no session that was pinned before `stamp` is inside.
    pub fn retire(&self, stamp: u64, at: *mut Bucket, lines: usize) {
        let first = self.line_of(at);
        let mut state = self.state.lock().expect("index arena");
        let place = state
            .retired
            .partition_point(|(other, _, _)| *other <= stamp);
        state.retired.insert(place, (stamp, first, lines));
    }

    /// Frees the ranges that were retired before `quiet`.
    pub fn reap(&self, quiet: u64) {
        let mut state = self.state.lock().expect("index arena");
        while let Some((stamp, first, lines)) = state.retired.front().copied()
            && stamp < quiet
        {
            state.retired.pop_front();
            self.allocated
                .fetch_sub((lines * LINE_BYTES) as u64, Ordering::Relaxed);
            free(&mut state.free, first, lines);
        }
    }

    /// Gives free pages back to the system while more than 1/32 of the committed memory is free.
    pub fn trim(&self, budget: &Budget) {
        let mut state = self.state.lock().expect("index arena");
        let committed = self.committed.load(Ordering::Relaxed);
        let mut spare = committed - self.allocated.load(Ordering::Relaxed).min(committed);
        let mut pages = Vec::new();
        for (first, length) in state.free.iter().rev() {
            let whole = first.div_ceil(LINES_PER_PAGE)..(first + length) / LINES_PER_PAGE;
            for page in whole
                .rev()
                .filter(|page| state.committed.get(*page).copied().unwrap_or(false))
            {
                if spare <= committed / 32 {
                    break;
                }
                spare -= (HUGE_PAGE_BYTES as u64).min(spare);
                pages.push(page);
            }
        }
        for page in pages {
            self.region
                .decommit(page * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES);
            state.committed[page] = false;
            self.committed
                .fetch_sub(HUGE_PAGE_BYTES as u64, Ordering::Relaxed);
            budget.release(HUGE_PAGE_BYTES as u64);
        }
    }

    /// True if `lines` would fit into a hole below `at`.
    pub fn fits_below(&self, at: *const Bucket, lines: usize) -> bool {
        let first = self.line_of(at);
        let state = self.state.lock().expect("index arena");
        state
            .free
            .range(..first)
            .any(|(_, length)| *length >= lines)
    }

    /// The end of the lowest hole of at least `lines`, if a view lies there that the caller can
    /// move: that view keeps the hole from growing.
    pub fn end_of_lowest_hole(
        &self,
        lines: usize,
        can_move: impl Fn(*const Bucket) -> bool,
    ) -> Option<*const Bucket> {
        let state = self.state.lock().expect("index arena");
        let holes = state.free.iter().filter(|(_, length)| **length >= lines);
        holes
            .map(|(first, length)| self.region.at((first + length) * LINE_BYTES))
            .map(|end| end.cast_const().cast())
            .find(|end| can_move(*end))
    }

    fn line_of(&self, at: *const Bucket) -> usize {
        (at as usize - self.region.at(0) as usize) / LINE_BYTES
    }

    /// Bytes charged to the budget.
    pub fn committed_bytes(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Bytes of buckets in use, retired ones included.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }
}

/// Puts a range into the free map, merging it with its neighbours.
fn free(map: &mut BTreeMap<usize, usize>, mut first: usize, mut lines: usize) {
    if let Some((&before, &length)) = map.range(..first).next_back()
        && before + length == first
    {
        map.remove(&before);
        first = before;
        lines += length;
    }
    if let Some(length) = map.remove(&(first + lines)) {
        lines += length;
    }
    map.insert(first, lines);
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::units::MIB;

    #[test]
    fn ranges_are_reused_and_pages_go_back() {
        let budget = Budget::new(8 * MIB, 8 * MIB);
        let arena = Arena::new(64 * MIB, true, &Topology::single()).unwrap();
        let page = LINES_PER_PAGE;
        let a = arena.allocate(page, |bytes| budget.charge(bytes)).unwrap();
        let b = arena.allocate(page, |bytes| budget.charge(bytes)).unwrap();
        let c = arena
            .allocate(2 * page, |bytes| budget.charge(bytes))
            .unwrap();
        assert!(
            arena.allocate(1, |bytes| budget.charge(bytes)).is_none(),
            "the budget is hard"
        );
        arena.retire(5, a, page);
        arena.retire(6, b, page);
        arena.reap(6);
        assert_eq!(
            arena.allocate(page, |bytes| budget.charge(bytes)),
            Some(a),
            "only what was retired before 6 is free"
        );
        arena.reap(7);
        arena.retire(8, a, page);
        arena.retire(8, c, 2 * page);
        arena.reap(9);
        assert_eq!((arena.allocated_bytes(), budget.used()), (0, 8 * MIB));
        arena.trim(&budget);
        assert_eq!((arena.committed_bytes(), budget.used()), (0, 0));
        assert_eq!(
            arena.state.lock().unwrap().free.len(),
            1,
            "neighbours merge"
        );
    }
}
