//! The tables of a store: names, levels, numbers of objects.

use crate::{Error, Store, Table};
use duramen_base::ids::Level;

/// Information about one table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableInfo {
    pub table: Table,
    pub name: String,
    /// Number of objects; expired ones that no operation has met yet count too.
    pub objects: u64,
    /// Its own level; `None` = the store's default.
    pub level: Option<Level>,
}

impl Store {
    /// The table of this name; created durably if there is none.
    ///
    /// ```
    /// # use duramen::{Options, Store};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// let users = store.table("users")?;
    /// assert_eq!(store.table("users")?, users);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`create_table`](Store::create_table).
    pub fn table(&self, name: &str) -> Result<Table, Error> {
        loop {
            if let Some(table) = self.find_table(name) {
                self.gate.check(&self.engine)?;
                return Ok(table);
            }
            match self.create_table(name, None) {
                Err(Error::TableExists(_)) => {} // another thread was first
                made => return made,
            }
        }
    }

    /// The table of this name, if there is one.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// assert_eq!(store.find_table("default"), Some(Table::DEFAULT));
    /// assert_eq!(store.find_table("users"), None);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn find_table(&self, name: &str) -> Option<Table> {
        self.engine.tables().find(name)
    }

    /// All tables, the default one included.
    ///
    /// ```
    /// # use duramen::{Options, Store};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// for info in store.tables() {
    ///     println!("{}: {} objects", info.name, info.objects);
    /// }
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn tables(&self) -> Vec<TableInfo> {
        let tables = self.engine.tables().list().into_iter();
        tables
            .map(|info| TableInfo {
                table: info.id,
                level: self.table_level(info.id),
                name: info.name,
                objects: info.objects,
            })
            .collect()
    }

    /// Number of objects in a table; expired ones that no operation has met yet count too. 0 if
    /// there is no such table.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// assert_eq!(store.count(Table::DEFAULT), 0);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn count(&self, table: Table) -> u64 {
        self.engine.tables().objects(table)
    }

    /// Creates a table, durably. `level`: its own, independent of the store's default; `None` = the
    /// store's default.
    ///
    /// ```
    /// # use duramen::{Level, Options, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// let orders = store.create_table("orders", None)?; // synced, as the store
    /// let sessions = store.create_table("sessions", Some(Level::Memory))?; // never waits
    /// # let _ = (orders, sessions);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TableExists`], [`Error::BadTableName`], [`Error::TooManyTables`],
    /// [`Error::NoDirectory`], [`Error::OutOfMemory`], [`Error::Closed`], [`Error::Nested`];
    /// [`Error::DiskFull`], [`Error::DiskFailed`]: whether it survives is not known.
    pub fn create_table(&self, name: &str, level: Option<Level>) -> Result<Table, Error> {
        let table = self.begin_table(name, level, |_| {})?;
        self.wait_for_changes()?;
        Ok(table)
    }

    /// As [`create_table`](Self::create_table), but the table is durable only when
    /// `Log::changed` of the engine's log is. `tell` gets the id before any other thread can find
    /// the table.
    ///
    /// # Errors
    /// As [`create_table`](Self::create_table).
    #[doc(hidden)]
    pub fn begin_table(
        &self,
        name: &str,
        level: Option<Level>,
        tell: impl FnOnce(Table),
    ) -> Result<Table, Error> {
        self.gate.check(&self.engine)?;
        self.check_level(level)?;
        Ok(self.engine.tables().create_told(name, level, tell)?)
    }

    /// Drops a table and its objects, durably. Not the default one, which
    /// [`clear_tables`](Store::clear_tables) empties. A session that continues to use it gets an
    /// error; no other table gets its id.
    ///
    /// ```
    /// # use duramen::{Error, Options, Store};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// let table = store.table("temporary")?;
    /// store.drop_table(table)?;
    /// let late = store.session()?.set(table, "key", "value");
    /// assert!(matches!(late, Err(Error::NoSuchTable(_))));
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; otherwise as [`create_table`](Store::create_table).
    pub fn drop_table(&self, table: Table) -> Result<(), Error> {
        self.begin_drop(table)?;
        self.wait_for_changes()
    }

    /// As [`drop_table`](Self::drop_table), but the change is durable only when `Log::changed` of
    /// the engine's log is.
    ///
    /// # Errors
    /// As [`drop_table`](Self::drop_table).
    #[doc(hidden)]
    pub fn begin_drop(&self, table: Table) -> Result<(), Error> {
        self.gate.check(&self.engine)?;
        Ok(self.engine.tables().drop(table)?)
    }

    /// Removes all objects of these tables at one moment, durably.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # store.session()?.set(Table::DEFAULT, "key", "value")?;
    /// store.clear_tables(&[Table::DEFAULT])?;
    /// assert_eq!(store.count(Table::DEFAULT), 0);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; otherwise as [`create_table`](Store::create_table).
    pub fn clear_tables(&self, tables: &[Table]) -> Result<(), Error> {
        self.gate.check(&self.engine)?;
        if let Some(gone) = tables
            .iter()
            .find(|table| !self.engine.tables().has(**table))
        {
            return Err(Error::NoSuchTable(*gone));
        }
        let mut session = self.engine.brief_session()?;
        let guard = session.pin_exclusive();
        for table in tables {
            guard.clear(*table)?;
        }
        drop(guard); // publishes its changes
        self.wait_for_changes()
    }

    /// The level of writes if neither table nor session sets one: the level of the options, or the
    /// last [`set_default_level`](Self::set_default_level).
    ///
    /// ```
    /// # use duramen::{Level, Options, Store};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// assert_eq!(store.default_level(), Level::Memory);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn default_level(&self) -> Level {
        self.engine
            .log()
            .map_or(Level::Memory, |log| log.default_level())
    }

    /// Changes the default level until the store is closed.
    ///
    /// ```
    /// # use duramen::{Level, Options, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// store.set_default_level(Level::Buffered)?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDirectory`], [`Error::Closed`], [`Error::Nested`].
    pub fn set_default_level(&self, level: Level) -> Result<(), Error> {
        self.gate.check(&self.engine)?;
        self.check_level(Some(level))?;
        if let Some(log) = self.engine.log() {
            log.set_default_level(level);
        }
        Ok(())
    }

    /// The level of writes to this table: its own, or the store's default.
    ///
    /// ```
    /// # use duramen::{Level, Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// assert_eq!(store.level(Table::DEFAULT), store.default_level());
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn level(&self, table: Table) -> Level {
        self.table_level(table).unwrap_or(self.default_level())
    }

    /// The table's own level; `None` = none of its own, or no such table.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// assert_eq!(store.table_level(Table::DEFAULT), None);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn table_level(&self, table: Table) -> Option<Level> {
        self.engine.tables().level(table).ok().flatten()
    }

    /// Sets a table's own level, durably; `None` removes it.
    ///
    /// ```
    /// # use duramen::{Level, Options, Store, Table};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// store.set_level(Table::DEFAULT, Some(Level::Buffered))?;
    /// assert_eq!(store.level(Table::DEFAULT), Level::Buffered);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::NoDirectory`], [`Error::Closed`], [`Error::Nested`];
    /// [`Error::DiskFull`],
    /// [`Error::DiskFailed`]: whether it survives is not known.
    pub fn set_level(&self, table: Table, level: Option<Level>) -> Result<(), Error> {
        self.gate.check(&self.engine)?;
        self.check_level(level)?;
        self.engine.tables().set_level(table, level)?;
        self.wait_for_changes()
    }

    pub(crate) fn check_level(&self, level: Option<Level>) -> Result<(), Error> {
        match level {
            Some(level) if level > Level::Memory && self.durable.is_none() => {
                Err(Error::NoDirectory(level))
            }
            _ => Ok(()),
        }
    }
}
