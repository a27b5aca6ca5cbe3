//! The tables of a store, as its owner uses them: made, counted, cleared, dropped.

use crate::cleaner::index_search::IndexSearch;
use crate::{Error, Store, TableChange, TableId, TableInfo};
use duramen_base::ids::Level;
use std::sync::Arc;

impl Store {
    /// # Errors
    /// [`Error::TableExists`], [`Error::BadTableName`], [`Error::TooManyTables`],
    /// [`Error::OutOfMemory`]; [`Error::TooManySessions`] if memory must be found first and there
    /// is no free slot to do so.
    pub fn create_table(self: &Arc<Self>, name: &str) -> Result<TableId, Error> {
        self.create_table_with(name, None)
    }

    /// As [`create_table`](Self::create_table), at a level; `None` = the default of the store's
    /// log.
    ///
    /// # Errors
    /// Those of [`create_table`](Self::create_table).
    pub fn create_table_with(
        self: &Arc<Self>,
        name: &str,
        level: Option<Level>,
    ) -> Result<TableId, Error> {
        self.create_table_told(name, level, |_| {})
    }

    /// As [`create_table_with`](Self::create_table_with). `tell` gets the id before any thread can
    /// find the table.
    ///
    /// # Errors
    /// Those of [`create_table_with`](Self::create_table_with).
    #[doc(hidden)]
    pub fn create_table_told(
        self: &Arc<Self>,
        name: &str,
        level: Option<Level>,
        tell: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        let floor = self.version_floor();
        self.make_table(None, name, level, floor, |table| {
            tell(table);
            if let Some(log) = self.log() {
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
    /// version to it.
    ///
    /// # Errors
    /// As [`create_table`](Self::create_table).
    pub fn adopt_table(
        self: &Arc<Self>,
        id: TableId,
        name: &str,
        level: Option<Level>,
    ) -> Result<(), Error> {
        let version = self.version_floor();
        self.make_table(Some(id), name, level, version, |table| {
            if let Some(log) = self.log() {
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

    /// Restores a table after a restart. Table 0 exists already and gets this floor and level. New
    /// writes to the table get versions from `floor` on.
    ///
    /// # Errors
    /// As [`create_table`](Self::create_table).
    pub fn restore_table(
        self: &Arc<Self>,
        id: TableId,
        name: &str,
        floor: u64,
        level: Option<Level>,
    ) -> Result<(), Error> {
        if id != TableId::DEFAULT {
            self.make_table(Some(id), name, level, floor, |_| {})?;
        }
        self.core.tables.each_index(|other, index| {
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

    fn make_table(
        self: &Arc<Self>,
        id: Option<TableId>,
        name: &str,
        level: Option<Level>,
        floor: u64,
        publish: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        let index = self.core.new_index(floor);
        index.set_level(level);
        let bytes = index.overhead_bytes();
        let mut search = IndexSearch::default();
        while !self.core.space.charge_beside_segments(bytes) {
            self.brief_session()?.make_index_room(&mut search)?;
        }
        let created = self.core.tables.create_at(id, name, || index, publish);
        if created.is_err() {
            self.core.space.budget.release(bytes);
        }
        created
    }

    pub fn table_id(&self, name: &str) -> Option<TableId> {
        let mut found = None;
        self.core.tables.each(|id, other, _| {
            if other == name {
                found = Some(id);
            }
        });
        found
    }

    /// True if the table exists: it was made, and not dropped since.
    pub fn has_table(&self, table: TableId) -> bool {
        self.core.tables.has(table)
    }

    pub fn tables(&self) -> Vec<TableInfo> {
        let mut tables = Vec::new();
        self.core.tables.each(|id, name, _| {
            tables.push(TableInfo {
                id,
                name: name.to_owned(),
                objects: self.core.actors.objects(id),
            });
        });
        tables
    }

    /// Objects in a table, including expired ones that no thread has met yet. Parts are no objects
    /// of a table: [`TableId::parts`] has those that live.
    pub fn objects(&self, table: TableId) -> u64 {
        if self.has_table(table.whole()) {
            self.core.actors.objects(table)
        } else {
            0
        }
    }

    /// Objects in a table that expire at some time.
    pub fn expiring_objects(&self, table: TableId) -> u64 {
        if self.has_table(table) {
            self.core.actors.expiring(table)
        } else {
            0
        }
    }

    /// A table's own level; `None` = the default of the store's log.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn table_level(&self, table: TableId) -> Result<Option<Level>, Error> {
        let mut found = Err(Error::NoSuchTable(table));
        self.core.tables.each(|id, _, index| {
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
    pub fn set_table_level(
        self: &Arc<Self>,
        table: TableId,
        level: Option<Level>,
    ) -> Result<(), Error> {
        let mut session = self.brief_session()?;
        // no drop comes between the lookup of the table and the change's place in the log
        let _guard = session.pin();
        self.core.tables.set_level(table, level)?;
        if let Some(log) = self.log() {
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
    pub fn clear_table(self: &Arc<Self>, table: TableId) -> Result<(), Error> {
        self.brief_session()?.pin_exclusive().clear(table)
    }

    /// Drops a table and its objects; the default table can only be cleared. Must not be called
    /// while this thread holds a guard: it waits until there is none.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], also for the default table; [`Error::TooManySessions`].
    pub fn drop_table(self: &Arc<Self>, table: TableId) -> Result<(), Error> {
        if table == TableId::DEFAULT {
            return Err(Error::NoSuchTable(table));
        }
        let mut session = self.brief_session()?;
        let guard = session.pin_exclusive();
        guard.empty(table, |table, floor| TableChange::Drop { table, floor })?;
        for index in self.core.tables.remove(table).into_iter().flatten() {
            self.core.space.budget.release(index.overhead_bytes());
        }
        Ok(())
    }
}
