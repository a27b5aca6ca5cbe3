//! Object tables: the location of each object.
//!
//! **Invariants**
//! - T1: a location changes only under the lock of the block that is being filled. Its former
//!   target is released after that: a checkpoint, which holds the lock, never counts fewer live
//!   objects than its locations show.
//!
//! **Concurrency** readers take a table's handle and load; Release of a store pairs with Acquire in
//! `get`, so that a thread that sees a location sees the bytes in its image.
//!
//! - T2: `cells` holds the locations, and behind them, if lengths differ, the length of each object
//!   that has a location. A length changes with its location, under the same lock.
//!
//! **Layout** four bytes per object, or eight if lengths differ, allocated as zeros: memory that is
//! never used is never touched.
//!
//! Paper: [Badam11 §3.3].

use crate::error::Error;
use crate::layout::{Owner, footprint};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// No location (layout::L3).
pub(crate) const NOWHERE: u32 = 0;

/// Locations of the objects of one table.
pub(crate) struct Table {
    /// The locations, and the lengths behind them (T2).
    cells: Box<[AtomicU32]>,
    objects: u32,
    /// Longest object, in bytes.
    pub bytes_max: u32,
}

/// A location that was replaced, and the bytes that its object takes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Old {
    pub location: u32,
    pub bytes: u32,
}

impl Table {
    /// A table without objects. `one_length`: each object is counted as `bytes_max` bytes.
    pub fn new(objects: u32, bytes_max: u32, one_length: bool) -> Table {
        let cells = vec![NOWHERE; objects as usize * if one_length { 1 } else { 2 }];
        Table {
            // Collected in place: no second copy, and untouched zeros stay untouched.
            cells: cells.into_iter().map(AtomicU32::new).collect(),
            objects,
            bytes_max,
        }
    }

    pub fn len(&self) -> u32 {
        self.objects
    }

    pub fn is_of_one_length(&self) -> bool {
        self.lengths().is_empty()
    }

    pub fn cells(&self) -> &[AtomicU32] {
        &self.cells
    }

    pub fn locations(&self) -> &[AtomicU32] {
        &self.cells[..self.objects as usize]
    }

    fn lengths(&self) -> &[AtomicU32] {
        &self.cells[self.objects as usize..]
    }

    /// Bytes that an object with a location takes in its block. Under the filled block's lock (T2).
    pub fn footprint(&self, index: u32) -> u32 {
        let length = self.lengths().get(index as usize);
        let length = length.map_or(self.bytes_max, |cell| cell.load(Ordering::Relaxed));
        footprint(length as usize) as u32
    }

    pub fn get(&self, index: u32) -> Option<u32> {
        let cell = self.locations().get(index as usize)?;
        Some(cell.load(Ordering::Acquire))
    }

    /// Places an object of `length` bytes; under the filled block's lock (T1). Returns the former
    /// place.
    pub fn set(&self, index: u32, location: u32, length: usize) -> Old {
        let bytes = self.footprint(index);
        if let Some(cell) = self.lengths().get(index as usize) {
            cell.store(length as u32, Ordering::Relaxed);
        }
        let location = self.locations()[index as usize].swap(location, Ordering::AcqRel);
        Old { location, bytes }
    }

    /// Changes a location, under the filled block's lock (T1). Returns false if the location is not
    /// `from` any more.
    pub fn relocate(&self, index: u32, from: u32, to: u32) -> bool {
        self.locations().get(index as usize).is_some_and(|cell| {
            cell.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
        })
    }
}

/// All tables.
#[derive(Default)]
pub(crate) struct Tables(RwLock<BTreeMap<u32, Arc<Table>>>);

impl Tables {
    /// # Errors
    /// [`Error::NoSuchOwner`].
    pub fn of(&self, owner: Owner) -> Result<Arc<Table>, Error> {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let table = tables.get(&owner.table);
        let objects = table.map_or(0, |table| table.len());
        match table {
            Some(table) if owner.index < objects => Ok(Arc::clone(table)),
            _ => Err(Error::NoSuchOwner { owner, objects }),
        }
    }

    /// # Errors
    /// [`Error::TableExists`].
    pub fn add(&self, number: u32, table: Table) -> Result<(), Error> {
        let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match tables.entry(number) {
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Arc::new(table));
                Ok(())
            }
            std::collections::btree_map::Entry::Occupied(_) => {
                Err(Error::TableExists { table: number })
            }
        }
    }

    /// Places of a table.
    pub fn objects_of(&self, number: u32) -> Option<u32> {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        tables.get(&number).map(|table| table.len())
    }

    pub fn remove(&self, number: u32) -> Option<Arc<Table>> {
        let mut tables = self.0.write().unwrap_or_else(PoisonError::into_inner);
        tables.remove(&number)
    }

    pub fn all(&self) -> Vec<(u32, Arc<Table>)> {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        tables
            .iter()
            .map(|(number, table)| (*number, Arc::clone(table)))
            .collect()
    }

    /// Bytes of memory that locations may take.
    pub fn bytes(&self) -> u64 {
        let tables = self.0.read().unwrap_or_else(PoisonError::into_inner);
        tables
            .values()
            .map(|table| table.cells().len() as u64 * 4)
            .sum()
    }
}
