//! The arena for model checkers: each view is an allocation of its own, because the checker's
//! atomics are more than their bits and cannot be made by zeroing memory. Freed memory is emptied
//! at once, as its next user would do.

use super::bucket::Bucket;
use crate::Error;
use crate::space::budget::Budget;
use crate::topology::Topology;
use std::sync::Mutex;

pub struct Arena {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All views ever allocated, with their lengths; freed with the arena.
    views: Vec<(usize, usize)>,
    /// Views that readers may still see: (stamp, address, lines).
    retired: Vec<(u64, usize, usize)>,
}

impl Arena {
    pub fn new(_bytes: u64, _huge_pages: bool, _topology: &Topology) -> Result<Arena, Error> {
        Ok(Arena {
            state: Mutex::default(),
        })
    }

    pub fn allocate(&self, lines: usize, charge: impl FnOnce(u64) -> bool) -> Option<*mut Bucket> {
        charge(0).then_some(())?;
        let buckets: Box<[Bucket]> = (0..lines).map(|_| Bucket::empty()).collect();
        let at = Box::into_raw(buckets).cast::<Bucket>();
        let mut state = self.state.lock().expect("model arena");
        state.views.push((at as usize, lines));
        Some(at)
    }

    pub fn retire(&self, stamp: u64, at: *mut Bucket, lines: usize) {
        let mut state = self.state.lock().expect("model arena");
        state.retired.push((stamp, at as usize, lines));
    }

    pub fn reap(&self, quiet: u64) {
        let mut state = self.state.lock().expect("model arena");
        let (free, kept) = std::mem::take(&mut state.retired)
            .into_iter()
            .partition(|(stamp, _, _)| *stamp < quiet);
        state.retired = kept;
        // The lock is released first, because the checker may switch threads while the buckets are
        // emptied.
        drop(state);
        let free: Vec<(u64, usize, usize)> = free;
        for (_, at, lines) in free {
            // SAFETY: allocated above with this length, and freed only with the arena.
            let buckets = unsafe { std::slice::from_raw_parts(at as *const Bucket, lines) };
            buckets.iter().for_each(Bucket::wipe);
        }
    }

    pub fn trim(&self, _budget: &Budget) {}

    pub fn fits_below(&self, _at: *const Bucket, _lines: usize) -> bool {
        false
    }

    pub fn end_of_lowest_hole(
        &self,
        _lines: usize,
        _can_move: impl Fn(*const Bucket) -> bool,
    ) -> Option<*const Bucket> {
        None
    }

    pub fn committed_bytes(&self) -> u64 {
        0
    }

    pub fn allocated_bytes(&self) -> u64 {
        0
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let state = self.state.get_mut().expect("model arena");
        for (at, lines) in state.views.drain(..) {
            let buckets = std::ptr::slice_from_raw_parts_mut(at as *mut Bucket, lines);
            // SAFETY: leaked from a box by `allocate`; every user of it borrowed the arena.
            drop(unsafe { Box::from_raw(buckets) });
        }
    }
}
