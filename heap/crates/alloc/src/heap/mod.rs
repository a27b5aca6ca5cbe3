//! The heap of a process: what is allocated, above the pages that show it.
//!
//! **Invariants**
//! - A1: the newest content of a unit is, in this order: in its dirty pages, in the cache, on
//!   flash; nowhere: zeros.
//! - A2: RAM: pages shown, their page tables, cache, object tables and the memory of the flash
//!   store are within the budget; growth is taken from the cache before it is used.
//! - A3: allocated data fits on flash: it was counted before an address was handed out.
//! - A4: a page that the program has taken away (`madvise`) has its last saved content again when
//!   it is touched; no code waits for it, nor touches it. It must not take pages away while other
//!   calls of the library or faults use the same pages: the header says so.
//!
//! **Concurrency** an allocation or a free holds `changing` shared; the arrival and eviction of a
//! page, see `paging`, know nothing of it.
//!
//! Paper: [Badam11 §3.2, Figure 1].

pub(crate) mod checkpoint;
mod malloc;
pub(crate) mod oalloc;
mod usage;

use crate::budget::Budget;
use crate::error::Error;
use crate::memory::Memory;
use crate::pager::Pager;
use crate::paging::{Paging, Tables};
use crate::pool::{self, Pools};
use crate::stats::Stats;
use duramen_flash::ObjectStore;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use usage::Usage;

/// Addresses that a program may store for a later life [`crate::set_root`].
pub(crate) const ROOTS: usize = 16;

/// The heap; see the file's head.
pub(crate) struct Heap {
    paging: Paging,
    pools: Pools,
    memory: Mutex<Memory>,
    usage: Usage,
    roots: [AtomicUsize; ROOTS],
    /// Held shared during an allocation or a free, exclusively by a checkpoint and by an allocation
    /// that finds no RAM or addresses.
    changing: RwLock<()>,
}

impl Heap {
    pub fn new(pager: Pager, store: ObjectStore, budget: Budget, tables: Tables) -> Heap {
        Heap {
            paging: Paging::new(pager, store, &budget, tables),
            pools: Pools::default(),
            memory: Mutex::default(),
            usage: Usage::new(budget.flash),
            roots: Default::default(),
            changing: RwLock::new(()),
        }
    }

    /// The arena of a heap that is given up.
    pub fn into_pager(self) -> Pager {
        self.paging.into_pager()
    }

    /// The pages of the heap.
    #[inline]
    pub fn paging(&self) -> &Paging {
        &self.paging
    }

    pub fn root(&self, number: usize) -> usize {
        self.roots[number].load(Ordering::Acquire)
    }

    pub fn set_root(&self, number: usize, address: usize) {
        self.roots[number].store(address, Ordering::Release);
    }

    pub fn stats(&self) -> Stats {
        Stats {
            allocated_bytes: self.usage.allocated_bytes(),
            allocations: self.usage.allocations(),
            ..self.paging.stats()
        }
    }

    /// Counts flash for an allocation (A3), if there is RAM for its tables.
    fn reserve_flash(&self, bytes: u64, tables_bytes: u64) -> Result<(), Error> {
        self.usage.could_reserve(bytes)?;
        self.paging.units().could_charge(tables_bytes)?;
        self.usage.reserve(bytes)
    }

    /// Allocates. If RAM or addresses do not suffice, removes the chunks without objects and tries
    /// again: an allocation never fails because of freed objects. Other threads neither allocate
    /// nor free meanwhile: they could take the RAM and leave it to empty chunks again.
    fn allocate(&self, once: impl Fn() -> Result<usize, Error>) -> Result<usize, Error> {
        let changing = self.changing.read().unwrap_or_else(PoisonError::into_inner);
        let lacks = |done: &Result<usize, Error>| {
            matches!(done, Err(Error::Budget { .. } | Error::NoAddresses { .. }))
        };
        let mut done = once();
        if lacks(&done) {
            self.remove_empty_chunks(); // while other threads continue
            done = once();
        }
        if !lacks(&done) {
            return done;
        }
        drop(changing);
        let _alone = self
            .changing
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        self.remove_empty_chunks();
        once()
    }

    /// Removes the chunks of pools and of memory without objects. The caller holds no lock of
    /// theirs, and each is held for one or two chunks here (pool::L1).
    fn remove_empty_chunks(&self) {
        for pool in self.pools.all() {
            let mut pool = pool::lock(&pool);
            while let Some(chunk) = pool.empty()
                && self.paging.remove_chunk(&chunk).is_ok()
            {
                pool.forget(&chunk);
            }
        }
        while self.remove_empty_run() {}
    }

    /// Fills an object that was just allocated with zeros; if flash fails, frees it.
    pub fn zero_or_free(&self, object: usize, bytes: usize) -> Result<(), Error> {
        let zeroed = self.paging.zero(object, bytes);
        zeroed.inspect_err(|_| self.give_up(object))
    }

    /// Copies from one object into another one that was just allocated; if flash fails, frees the
    /// new one.
    pub fn copy_or_free(&self, from: usize, into: usize, bytes: usize) -> Result<(), Error> {
        let copied = self.paging.copy(from, into, bytes);
        copied.inspect_err(|_| self.give_up(into))
    }

    /// Frees an object that the program does not know. If that fails as well, it is lost.
    fn give_up(&self, object: usize) {
        let _ = self.free(object);
    }
}

#[cfg(test)]
mod tests;
