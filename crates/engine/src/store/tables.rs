//! The tables of a store, as its owner uses them: made, counted, cleared, dropped.

use crate::cleaner::index_search::IndexSearch;
use crate::{Error, Store, TableChange, TableId, TableInfo};
use duramen_base::ids::Level;
use std::sync::Arc;

/// The tables of a store; from [`Store::tables`].
#[derive(Clone, Copy)]
pub struct Tables<'s> {
    store: &'s Arc<Store>,
}

impl Store {
    /// Its tables.
    #[inline]
    pub fn tables(self: &Arc<Self>) -> Tables<'_> {
        Tables { store: self }
    }
}

impl Tables<'_> {
    /// Makes a table.
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::BadTableName`], [`Error::TooManyTables`],
    /// [`Error::OutOfMemory`]; [`Error::TooManySessions`] if memory must be found first and there
    /// is no free slot to do so.
    pub fn create(self, name: &str) -> Result<TableId, Error> {
        self.create_with(name, None)
    }

    /// As [`create`](Self::create), at a level; `None` = the default of the store's log.
    ///
    /// # Errors
    /// Those of [`create`](Self::create).
    pub fn create_with(self, name: &str, level: Option<Level>) -> Result<TableId, Error> {
        self.create_told(name, level, |_| {})
    }

    /// As [`create_with`](Self::create_with). `tell` gets the id before any thread can find the
    /// table.
    ///
    /// # Errors
    /// Those of [`create_with`](Self::create_with).
    #[doc(hidden)]
    pub fn create_told(
        self,
        name: &str,
        level: Option<Level>,
        tell: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        let floor = self.store.version_floor();
        self.make(None, name, level, floor, |table| {
            tell(table);
            if let Some(log) = self.store.log() {
                log.changes().publish(TableChange::Create {
                    table,
                    name: name.to_owned(),
                    level,
                    floor,
                });
            }
        })
    }

    /// Makes a table that has this id in the whole cluster. Other servers may send objects of any
    /// version to the table.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn adopt(self, id: TableId, name: &str, level: Option<Level>) -> Result<(), Error> {
        let version = self.store.version_floor();
        self.make(Some(id), name, level, version, |table| {
            if let Some(log) = self.store.log() {
                log.changes().publish(TableChange::Create {
                    table,
                    name: name.to_owned(),
                    level,
                    floor: 0, // no object is dead because of its age
                });
            }
        })?;
        Ok(())
    }

    /// Restores a table after a restart. Table 0 exists already, and gets this floor and level. New
    /// writes to the table get versions from `floor` on.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn restore(
        self,
        id: TableId,
        name: &str,
        floor: u64,
        level: Option<Level>,
    ) -> Result<(), Error> {
        if id != TableId::DEFAULT {
            self.make(Some(id), name, level, floor, |_| {})?;
        }
        self.store.core.tables.each_index(|other, index| {
            if other.whole() == id {
                index.set_level(level);
                index.set_replay_floor(floor);
                for partition in index.partitions() {
                    partition.raise_floor(floor.saturating_sub(1));
                }
            }
        });
        Ok(())
    }

    fn make(
        self,
        id: Option<TableId>,
        name: &str,
        level: Option<Level>,
        floor: u64,
        publish: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        let index = self.store.core.new_index(floor);
        index.set_level(level);
        let bytes = index.overhead_bytes();
        let mut search = IndexSearch::default();
        while !self.store.core.space.charge_beside_segments(bytes) {
            self.store.brief_session()?.make_index_room(&mut search)?;
        }
        let created = self
            .store
            .core
            .tables
            .create_at(id, name, || index, publish);
        if created.is_err() {
            self.store.core.space.budget.release(bytes);
        }
        created
    }

    /// The table of this name, if there is one.
    pub fn find(self, name: &str) -> Option<TableId> {
        let mut found = None;
        self.store.core.tables.each(|id, other, _| {
            if other == name {
                found = Some(id);
            }
        });
        found
    }

    /// True if the table exists: it was made, and not dropped since.
    pub fn has(self, table: TableId) -> bool {
        self.store.core.tables.has(table)
    }

    /// All tables.
    pub fn list(self) -> Vec<TableInfo> {
        let mut tables = Vec::new();
        self.store.core.tables.each(|id, name, _| {
            tables.push(TableInfo {
                id,
                name: name.to_owned(),
                objects: self.store.core.actors.objects(id),
            });
        });
        tables
    }

    /// Objects in a table, including expired ones that no thread has met yet. Parts are no objects
    /// of a table: [`TableId::parts`] has those that live.
    pub fn objects(self, table: TableId) -> u64 {
        if self.has(table.whole()) {
            self.store.core.actors.objects(table)
        } else {
            0
        }
    }

    /// Objects in a table that expire at some time.
    pub fn expiring_objects(self, table: TableId) -> u64 {
        if self.has(table) {
            self.store.core.actors.expiring(table)
        } else {
            0
        }
    }

    /// A table's own level; `None` = the default of the store's log.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn level(self, table: TableId) -> Result<Option<Level>, Error> {
        let mut found = Err(Error::NoSuchTable(table));
        self.store.core.tables.each(|id, _, index| {
            if id == table {
                found = Ok(index.level());
            }
        });
        found
    }

    /// Sets a table's own level, for later writes. Must not be called while this thread holds a
    /// guard.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::TooManySessions`].
    pub fn set_level(self, table: TableId, level: Option<Level>) -> Result<(), Error> {
        let mut session = self.store.brief_session()?;
        // no drop comes between the lookup of the table and the change's place in the log
        let _guard = session.pin();
        self.store.core.tables.set_level(table, level)?;
        if let Some(log) = self.store.log() {
            log.changes()
                .publish(TableChange::SetLevel { table, level });
        }
        Ok(())
    }

    /// Removes every object of a table at one instant, for all sessions. Must not be called while
    /// this thread holds a guard: use [`Guard::clear`](crate::Guard::clear) of an exclusive one.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::TooManySessions`].
    pub fn clear(self, table: TableId) -> Result<(), Error> {
        self.store.brief_session()?.pin_exclusive().clear(table)
    }

    /// Drops a table and its objects; the default table can only be cleared. Must not be called
    /// while this thread holds a guard: it waits until there is none.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], also for the default table; [`Error::TooManySessions`].
    pub fn drop(self, table: TableId) -> Result<(), Error> {
        if table == TableId::DEFAULT {
            return Err(Error::NoSuchTable(table));
        }
        let mut session = self.store.brief_session()?;
        let guard = session.pin_exclusive();
        guard.empty(table, |table, floor| TableChange::Drop { table, floor })?;
        for index in self.store.core.tables.remove(table).into_iter().flatten() {
            self.store.core.space.budget.release(index.overhead_bytes());
        }
        Ok(())
    }
}
