//! Reconciles a store with the coordinator's list of tablets: creates and drops tables, and purges
//! ranges that other servers own.

use crate::serve::Clients;
use duramen_base::ids::{KeyRange, TableId, TabletsVersion};
use duramen_engine::{self as engine, Error, Store};
use duramen_wire::native::message::TableEntry;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Steps of a slice: some 10 ms of work, and of reading from flash.
const SLICE_STEPS: usize = 64;

/// Brings the tables of a store to those of a list of tablets. See `Reconciliation::run`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconciliation {
    pub version: TabletsVersion,
    /// All existing tables.
    pub tables: Vec<TableEntry>,
}

/// Removes objects of these ranges, which other servers own. See [`Purge::begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Purge {
    pub table: TableId,
    pub ranges: Vec<KeyRange>,
}

impl Reconciliation {
    /// Waits for guards that began before the view changed, drops tables that are gone, and creates
    /// new ones. May be repeated. Must not be called with a guard held. The completion records of a
    /// dropped table's keys are dropped too (rifl::L6).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooManySessions`], [`Error::TooManyTables`]: run it again
    /// later; until then none of its new tables is served. [`Error::BadTableName`]: the coordinator
    /// has names that this program does not allow.
    pub fn run(&self, store: &Arc<Store>, clients: &Clients) -> Result<(), Error> {
        store.quiesce(); // the view was changed before: no write that the old one allowed follows
        let there = store.tables().list();
        for table in &there {
            let named = self.tables.iter().find(|entry| entry.table == table.id);
            let is_gone = named.is_none_or(|entry| entry.name != table.name);
            if is_gone && table.id != TableId::DEFAULT {
                store.tables().drop(table.id)?;
                clients.purge(table.id, &KeyRange::ALL);
            }
        }
        let there = store.tables().list();
        for entry in &self.tables {
            if there.iter().any(|table| table.id == entry.table) {
                if store.tables().level(entry.table)? != entry.level {
                    store.tables().set_level(entry.table, entry.level)?;
                }
            } else {
                store
                    .tables()
                    .adopt(entry.table, &entry.name, entry.level)?;
            }
        }
        Ok(())
    }
}

impl Purge {
    /// Waits for guards that began before the view changed. The completion records of the purged
    /// keys are dropped too (rifl::L6). Must not be called with a guard held.
    pub fn begin(&self, store: &Arc<Store>, clients: &Clients) -> Purging {
        store.quiesce(); // the view was changed before: no write that the old one allowed follows
        for range in &self.ranges {
            clients.purge(self.table, range);
        }
        let purge = store.ranges().begin_purge(self.table, &self.ranges);
        Purging(Arc::new(Mutex::new(purge)))
    }
}

/// A purge in progress; clones are the same purge.
#[derive(Clone)]
pub struct Purging(Arc<Mutex<engine::Purge>>);

impl Purging {
    /// Runs one slice: all reads from flash together may take much longer than other jobs can wait.
    /// Must not be called with a guard held. Returns false after the last slice.
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: the entries to be removed cannot be read.
    pub fn slice(&self) -> Result<bool, Error> {
        let mut purge = self.0.lock().expect("no slice panics");
        for _ in 0..SLICE_STEPS {
            match purge.step() {
                Ok(true) => {}
                Ok(false) | Err(Error::NoSuchTable(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}

impl fmt::Debug for Purging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a purge, {:?} so far",
            self.0.lock().expect("no slice panics").purged()
        )
    }
}
