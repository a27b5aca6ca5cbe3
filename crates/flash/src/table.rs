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
//! **Layout** four bytes per object, allocated as zeros: memory that is never used is never
//! touched.
//!
//! Paper: [Badam11 §3.3].

use crate::error::Error;
use crate::layout::Owner;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// No location (layout::L3).
pub(crate) const NOWHERE: u32 = 0;

/// Locations of the objects of one table.
pub(crate) struct Table {
    locations: Box<[AtomicU32]>,
    /// Longest object, in bytes.
    pub bytes_max: u32,
}

impl Table {
    pub fn new(objects: u32, bytes_max: u32) -> Table {
        Table::with(vec![NOWHERE; objects as usize], bytes_max)
    }

    pub fn with(locations: Vec<u32>, bytes_max: u32) -> Table {
        // Collected in place: no second copy, and untouched zeros stay untouched.
        let locations = locations.into_iter().map(AtomicU32::new).collect();
        Table {
            locations,
            bytes_max,
        }
    }

    pub fn len(&self) -> u32 {
        self.locations.len() as u32
    }

    pub fn locations(&self) -> &[AtomicU32] {
        &self.locations
    }

    pub fn get(&self, index: u32) -> Option<u32> {
        let cell = self.locations.get(index as usize)?;
        Some(cell.load(Ordering::Acquire))
    }

    /// Under the filled block's lock (T1); returns the former location.
    pub fn set(&self, index: u32, location: u32) -> u32 {
        self.locations[index as usize].swap(location, Ordering::AcqRel)
    }

    /// Under the filled block's lock (T1). False: the location is not `from` any more.
    pub fn relocate(&self, index: u32, from: u32, to: u32) -> bool {
        self.locations.get(index as usize).is_some_and(|cell| {
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
            .map(|table| u64::from(table.len()) * 4)
            .sum()
    }
}
