//! Makes a store as the coordinator's list of tablets says.

use crate::member::Order;
use crate::ranges::Ranges;
use crate::serve::Clients;
use duramen_base::ids::{KeyRange, TableId};
use duramen_engine::{Error, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Order {
    /// Waits for guards that began before the view changed, drops tables that are gone, purges what is not owned any more, and
    /// makes what is new. Repeating it is harmless. Must not be called with a guard held. What is remembered of clients' requests
    /// goes with what it is about (rifl L6).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooManySessions`], [`Error::TooManyTables`]: run it again later; meanwhile nothing that
    /// it was to make is served. [`Error::BadTableName`]: the coordinator knows names that this program does not allow.
    /// [`Error::TryAgain`]: `stop` said so. [`Error::FlashFailed`]: what is to go cannot be read.
    pub fn run(
        &self,
        store: &Arc<Store>,
        clients: &Clients,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        store.quiesce(); // the view was changed before: no write that it allowed follows
        let there = store.tables();
        for table in &there {
            let named = self.tables.iter().find(|entry| entry.table == table.id);
            let is_gone = named.is_none_or(|entry| entry.name != table.name);
            if is_gone && table.id != TableId::DEFAULT {
                store.drop_table(table.id)?;
                clients.purge(table.id, &KeyRange::ALL);
            }
        }
        purge(store, clients, self.purge.iter().copied(), stop)?;
        let there = store.tables();
        for entry in &self.tables {
            if there.iter().any(|table| table.id == entry.table) {
                if store.table_level(entry.table)? != entry.level {
                    store.set_table_level(entry.table, entry.level)?;
                }
            } else {
                store.adopt_table(entry.table, &entry.name, entry.level)?;
            }
        }
        Ok(())
    }
}

/// Objects of these ranges go: they were replayed here, and belong to somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forget {
    pub ranges: Ranges,
}

impl Forget {
    /// Repeating it is harmless. Must not be called with a guard held.
    ///
    /// # Errors
    /// As [`Order::run`]: run it again later.
    pub fn run(
        &self,
        store: &Arc<Store>,
        clients: &Clients,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        purge(store, clients, self.ranges.iter(), stop)
    }
}

/// Takes ranges out of a store, all of a table in one pass, step by step: what of them lies on flash is read, which may take long.
fn purge(
    store: &Arc<Store>,
    clients: &Clients,
    ranges: impl Iterator<Item = (TableId, KeyRange)>,
    stop: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let mut tables: BTreeMap<TableId, Vec<KeyRange>> = BTreeMap::new();
    for (table, range) in ranges {
        clients.purge(table, &range);
        tables.entry(table).or_default().push(range);
    }
    for (table, ranges) in tables {
        let mut purge = store.begin_purge(table, &ranges);
        loop {
            match purge.step() {
                Ok(false) | Err(Error::NoSuchTable(_)) => break,
                Ok(true) if stop() => return Err(Error::TryAgain),
                Ok(true) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
