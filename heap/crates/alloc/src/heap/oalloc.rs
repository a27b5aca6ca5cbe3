//! `ssd_oalloc`: objects handed out one by one, and arrays of them. Also frees whatever was
//! allocated.
//!
//! **Invariants**
//! - O1: an object that is handed out reads as zeros.
//! - O2: a freed address was handed out as the beginning of an object, and is freed once.
//!
//! **Concurrency** as in `pool`.

use super::Heap;
use crate::chunk::{Chunk, Kind, rounded};
use crate::error::Error;
use crate::pool::{Pool, lock};
use std::cell::Cell;
use std::sync::{Arc, PoisonError};

/// Longer objects have a run of addresses of their own.
const POOLED_BYTES: usize = 32 << 10;
/// Longest object, and array, in bytes.
pub(crate) const OBJECT_BYTES_MAX: usize = 1 << 30;

impl Heap {
    /// Allocates one object, or an array of them, each on pages of its own; returns the first
    /// address.
    pub fn allocate_objects(&self, count: usize, bytes: usize) -> Result<usize, Error> {
        if count == 0 || bytes == 0 || bytes > OBJECT_BYTES_MAX || u32::try_from(count).is_err() {
            return Err(Error::Invalid(format!(
                "{count} objects of {bytes} bytes: at least one of each, objects of at most {OBJECT_BYTES_MAX} bytes"
            )));
        }
        let is_pooled = count == 1 && bytes <= POOLED_BYTES;
        let bytes = rounded(bytes) as u32;
        if !is_pooled {
            return self.allocate(|| self.allocate_array(count, bytes));
        }
        let again = Cell::new(false);
        let address = self.allocate(|| {
            let (address, is_again) = self.allocate_one(bytes)?;
            again.set(is_again);
            Ok(address)
        })?;
        if again.into_inner() {
            // O1. No other thread knows the object, and no lock is held (touch::T1).
            self.zero_or_free(address, bytes as usize)?;
        }
        Ok(address)
    }

    fn allocate_array(&self, count: usize, bytes: u32) -> Result<usize, Error> {
        let array = Chunk::new(0, 0, count as u32, bytes, Kind::Array);
        let flash = array.flash_bytes_of_all();
        self.reserve_flash(flash, array.tables_bytes())?;
        let chunk = self.paging.add_chunk(count as u32, bytes, Kind::Array);
        let chunk = chunk.inspect_err(|_| self.usage.release(flash))?;
        self.usage.count(u64::from(bytes) * count as u64);
        Ok(self.paging.address_of(chunk.first))
    }

    /// One object, and whether it holds what a former one held: it shares its unit with others, so
    /// it may not have been dropped when it was freed.
    fn allocate_one(&self, bytes: u32) -> Result<(usize, bool), Error> {
        let pool = self.pools.of(bytes);
        let mut pool = lock(&pool);
        let (chunk, object, again) = self.take_one(&mut pool, bytes)?;
        drop(pool);
        let first = chunk.first + u64::from(object) * chunk.stride();
        let address = self.paging.address_of(first);
        self.usage.count(u64::from(bytes));
        Ok((address, again && chunk.unit_pages() > 1))
    }

    /// Takes an object out of a pool, and counts flash for its unit unless that is counted already.
    fn take_one(&self, pool: &mut Pool, bytes: u32) -> Result<(Arc<Chunk>, u32, bool), Error> {
        let flash = Chunk::new(0, 0, 1, bytes, Kind::Array).flash_bytes();
        if let Err(full) = self.reserve_flash(flash, 0) {
            let mut chunks = pool.chunks.iter();
            let taken = chunks.find_map(|chunk| Some((Arc::clone(chunk), chunk.take_shared()?)));
            return taken
                .map(|(chunk, object)| (chunk, object, true))
                .ok_or(full);
        }
        let taken = match pool.take() {
            Some(taken) => taken,
            None => {
                let grown = self
                    .paging
                    .add_chunk(pool.next_objects(), bytes, Kind::Pool);
                let chunk = grown.inspect_err(|_| self.usage.release(flash))?;
                pool.chunks.push(chunk);
                pool.take().expect("a new chunk has free objects")
            }
        };
        if taken.0.shares_unit(taken.1) {
            self.usage.release(flash);
        }
        Ok(taken)
    }

    /// Frees the object, array or block that begins at an address (O2).
    pub fn free(&self, address: usize) -> Result<(), Error> {
        let bad = |why| Error::BadPointer { address, why };
        if !self.paging.contains(address) {
            return Err(bad("it does not lie in memory of this library"));
        }
        let _changing = self.changing.read().unwrap_or_else(PoisonError::into_inner);
        let page = self.paging.page_of(address);
        let chunk = self.paging.units().atm().chunk(page);
        let chunk = chunk.ok_or_else(|| bad("nothing is allocated there"))?;
        if chunk.kind == Kind::Memory {
            return self.free_memory(address, &chunk);
        }
        let begins = address == self.paging.address_of(page);
        match chunk.object(page).filter(|_| begins) {
            Some(object) if chunk.kind == Kind::Pool => self.free_one(address, &chunk, object),
            Some(0) => {
                if !chunk.leave() {
                    return Err(Error::DoubleFree { address }); // by another thread, just now
                }
                let flash = chunk.flash_bytes_of_all();
                let removed = self.paging.remove_chunk(&chunk);
                removed.inspect_err(|_| chunk.stay())?;
                self.usage.release(flash);
                self.usage
                    .uncount(u64::from(chunk.object_bytes) * u64::from(chunk.objects));
                Ok(())
            }
            Some(_) => Err(bad(
                "it is an element of an array, which is freed as a whole",
            )),
            None => Err(bad("it lies within an object")),
        }
    }

    fn free_one(&self, address: usize, chunk: &Chunk, object: u32) -> Result<(), Error> {
        let pool = self.pools.of(chunk.object_bytes);
        let mut pool = lock(&pool);
        if !chunk.is_used(object) {
            return Err(if object < chunk.fresh() {
                Error::DoubleFree { address }
            } else {
                Error::BadPointer {
                    address,
                    why: "no object has been allocated there",
                }
            });
        }
        let shares = chunk.shares_unit(object);
        if !shares {
            let first = chunk.first + u64::from(object) * chunk.stride();
            for page in first..first + chunk.stride() {
                let place = chunk.place(page).expect("a page of an object has a place");
                self.paging.forget(&place)?; // O1
            }
        }
        chunk.give_back(object);
        // A chunk that cannot be removed now stays in the pool.
        while chunk.is_empty()
            && let Some(spare) = pool.spare()
            && self.paging.remove_chunk(&spare).is_ok()
        {
            pool.forget(&spare);
        }
        drop(pool);
        if !shares {
            self.usage.release(chunk.flash_bytes());
        }
        self.usage.uncount(u64::from(chunk.object_bytes));
        Ok(())
    }

    /// Whether an address is in an array, which is freed as a whole and cannot become longer.
    pub fn is_of_array(&self, address: usize) -> bool {
        let chunk = self.paging.chunk_at(address);
        chunk.is_some_and(|chunk| chunk.kind == Kind::Array && chunk.objects > 1)
    }

    /// Usable bytes at the address of an object, an array's first element included.
    pub fn usable_bytes(&self, address: usize) -> Option<usize> {
        let chunk = self.paging.chunk_at(address)?;
        match chunk.kind {
            Kind::Memory => self.memory_bytes(address, &chunk),
            Kind::Pool | Kind::Array => {
                let page = self.paging.page_of(address);
                let object = chunk.object(page)?;
                let begins = address == self.paging.address_of(page) && chunk.is_used(object);
                begins.then_some(chunk.object_bytes as usize)
            }
        }
    }
}
