//! The store as its owner sees it.

use crate::{DurabilityStats, Error, LogWriter, Options, Progress, Session, SnapshotReport};
use duramen_base::ids::Level;
use duramen_engine::{Guard, TableId};
use std::path::Path;
use std::sync::Arc;

/// Tables of objects, in memory and, with a directory, on disk. Shared by [`Arc`].
pub struct Store {
    engine: Arc<duramen_engine::Store>,
    log: Option<LogWriter>,
    level: Level,
}

impl Store {
    /// Opens the store in `options.dir`, made if it does not exist; without one the store is in memory alone. `progress` is
    /// called now and then, from several threads, until everything is loaded.
    ///
    /// # Errors
    /// [`Error::Directory`]: not ours, in use, of another cluster or a newer format; [`Error::Damaged`]; [`Error::Engine`].
    pub fn open(
        options: Options,
        progress: impl Fn(&Progress) + Send + Sync,
    ) -> Result<Arc<Store>, Error> {
        let _ = progress;
        Ok(Arc::new(Store {
            engine: duramen_engine::Store::new(options.engine)?,
            log: None,
            level: options.level,
        }))
    }

    /// The memory side: tables, sessions, guards. What is written through it becomes durable by [`log`](Self::log).
    pub fn engine(&self) -> &Arc<duramen_engine::Store> {
        &self.engine
    }

    /// The durable side; `None` if the store has no directory.
    pub fn log(&self) -> Option<&LogWriter> {
        self.log.as_ref()
    }

    /// A blocking way into the store for one thread: each call returns when it has reached its table's level.
    ///
    /// # Errors
    /// [`Error::Engine`]: too many sessions.
    pub fn session(self: &Arc<Self>) -> Result<Session, Error> {
        Session::new(self.clone())
    }

    /// The level of writes where neither table nor request says otherwise.
    pub fn default_level(&self) -> Level {
        self.level
    }

    /// The level of writes to this table; the store's default if the table has none of its own.
    pub fn level(&self, _table: TableId) -> Level {
        self.level
    }

    /// Gives a table a level of its own, durably; `None` takes it away.
    ///
    /// # Errors
    /// [`Error::Engine`]: no such table; [`Error::NoDirectory`]; as [`LogWriter::wait`].
    pub fn set_level(&self, table: TableId, level: Option<Level>) -> Result<(), Error> {
        let _ = table;
        match level {
            Some(level) if level != Level::Memory => Err(Error::NoDirectory(level)),
            _ => Ok(()),
        }
    }

    /// Makes a table, durably. `level`: as in [`set_level`](Self::set_level).
    ///
    /// # Errors
    /// As [`set_level`](Self::set_level).
    pub fn create_table(&self, name: &str, level: Option<Level>) -> Result<TableId, Error> {
        let table = self.engine.create_table(name)?;
        self.set_level(table, level)?;
        Ok(table)
    }

    /// Drops a table and its objects, durably. Must not be called while this thread holds a guard.
    ///
    /// # Errors
    /// As [`set_level`](Self::set_level).
    pub fn drop_table(&self, table: TableId) -> Result<(), Error> {
        Ok(self.engine.drop_table(table)?)
    }

    /// Removes all objects of these tables, durably before anybody can see it. `guard` must be exclusive; it waits for the disk.
    ///
    /// # Errors
    /// As [`set_level`](Self::set_level).
    pub fn clear(&self, guard: &Guard<'_>, tables: &[TableId]) -> Result<(), Error> {
        for table in tables {
            guard.clear(*table)?;
        }
        Ok(())
    }

    /// Copies everything, as it is at one moment, into a new directory that [`open`](Self::open) opens. Nobody is stopped meanwhile.
    ///
    /// # Errors
    /// [`Error::NoDirectory`], [`Error::SnapshotRunning`], [`Error::Directory`], as [`LogWriter::wait`].
    pub fn snapshot(
        &self,
        dir: &Path,
        progress: impl Fn(&Progress) + Send + Sync,
    ) -> Result<SnapshotReport, Error> {
        let _ = (dir, progress);
        Err(Error::NoDirectory(Level::Buffered))
    }

    /// Figures of the durable side; `None` if the store has no directory.
    pub fn stats(&self) -> Option<DurabilityStats> {
        None
    }

    /// Makes everything durable and notes that the end was clean, so that the next start is fast. Later writes are refused.
    ///
    /// # Errors
    /// As [`LogWriter::wait`].
    pub fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}
