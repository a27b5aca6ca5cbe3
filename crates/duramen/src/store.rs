//! The store as its owner sees it.
//!
//! **Invariants**
//! - S1: a change of tables is in the engine's queue before anything that depends on it can be written, and is waited for
//!   before its caller is answered.
//! - S2: threads hold the store weakly or not at all: when the last owner lets go, they are ended and joined, and what was
//!   appended is synced; only [`Store::close`] notes a clean end.

use crate::commit::Durable;
use crate::restart::{self, Loaded};
use crate::snapshot::Snapshots;
use crate::threads::Threads;
use crate::{
    DurabilityStats, Error, LogWriter, Mode, Options, Progress, Repair, Session, SnapshotReport,
};
use duramen_backup::disk::Disk;
use duramen_backup::os::OsDisk;
use duramen_backup::{Backup, Copies};
use duramen_base::ids::Level;
use duramen_engine::{Position, TableId};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Tables of objects, in memory and, with a directory, on disk. Shared by [`Arc`].
pub struct Store {
    engine: Arc<duramen_engine::Store>,
    durable: Option<DurableStore>,
    level: Level,
    closed: AtomicBool,
}

/// What a store with a directory has besides.
struct DurableStore {
    /// Dropped first: ends the threads.
    threads: Option<Threads>,
    log: Arc<LogWriter>,
    loaded: Loaded,
    snapshots: Snapshots,
}

impl Store {
    /// Opens the store in `options.dir`, made if it does not exist; without one the store is in memory alone. `progress` is
    /// called now and then, from several threads, until everything is loaded.
    ///
    /// # Errors
    /// [`Error::Disk`]: not ours, in use, of another cluster or a newer format; [`Error::Damaged`]; [`Error::Misfit`];
    /// [`Error::Engine`]. Nothing on the disk was changed then.
    pub fn open(
        options: Options,
        progress: impl Fn(&Progress) + Send + Sync,
    ) -> Result<Arc<Store>, Error> {
        let Some(dir) = options.dir.clone() else {
            return Store::in_memory(&options);
        };
        let disk = OsDisk::new(&dir, options.mode);
        Store::open_on(Arc::new(disk), options, true, &progress)
    }

    fn in_memory(options: &Options) -> Result<Arc<Store>, Error> {
        if options.level > Level::Memory {
            return Err(Error::NoDirectory(options.level));
        }
        Ok(Arc::new(Store {
            engine: duramen_engine::Store::new(options.engine.clone())?,
            durable: None,
            level: Level::Memory,
            closed: AtomicBool::new(false),
        }))
    }

    /// As [`open`](Self::open), on any disk. Without `threads` nothing happens by itself: whoever drives the store calls
    /// [`LogWriter::try_commit_here`] and [`background_step`](Self::background_step).
    #[doc(hidden)]
    pub fn open_on(
        disk: Arc<dyn Disk>,
        options: Options,
        threads: bool,
        progress: &(dyn Fn(&Progress) + Send + Sync),
    ) -> Result<Arc<Store>, Error> {
        let (durable, loaded) = restart::open(
            disk,
            &options,
            if threads { options.restart_threads } else { 1 },
            progress,
        )?;
        let store = Store::start(durable, loaded, options, threads)?;
        if loaded.has_revived {
            store.remove_revived()?;
        }
        Ok(store)
    }

    /// What had expired before the restart stays away for good, though the clock was put back
    /// since.
    fn remove_revived(&self) -> Result<(), Error> {
        let Some(DurableStore { log, .. }) = &self.durable else {
            return Ok(());
        };
        let appended = || self.engine.log().expect("it has one").appended();
        let mut revived = self.engine.revived();
        let mut session = self.engine.session()?;
        while revived.step(&mut session)? {
            log.wait(&appended(), Level::Buffered)?;
        }
        log.wait(&appended(), Level::Synced)?;
        // From here on the clock counts as it is, so that nothing that lives by it is lost.
        log.durable.clock_floor_ms.store(0, Ordering::Relaxed);
        log.durable.note_clock()
    }

    /// Joins the durable side with threads, if it is to have some.
    pub(crate) fn start(
        durable: Durable,
        loaded: Loaded,
        options: Options,
        threads: bool,
    ) -> Result<Arc<Store>, Error> {
        let engine = durable.engine.clone();
        let log = Arc::new(LogWriter::new(Arc::new(durable), options.commit_window));
        let hook = Arc::downgrade(&log);
        engine.log().expect("it has one").on_demand(move || {
            if let Some(log) = hook.upgrade() {
                if threads {
                    log.demand(Level::Synced);
                    log.background.ring(); // it may wait for a swap
                } else {
                    log.try_commit_here(Level::Synced);
                    let _ = log.durable.background_step(); // its failure shows in the next commit
                }
            }
        });
        let threads = if threads {
            Some(Threads::start(&log)?)
        } else {
            None
        };
        Ok(Arc::new(Store {
            level: options.level,
            durable: Some(DurableStore {
                threads,
                log,
                loaded,
                snapshots: Snapshots::default(),
            }),
            engine,
            closed: AtomicBool::new(false),
        }))
    }

    /// One step of what the background thread does; whether there was anything. For a store opened without threads.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`].
    #[doc(hidden)]
    pub fn background_step(&self) -> Result<bool, Error> {
        match &self.durable {
            Some(durable) => {
                let durable = &durable.log.durable;
                let relocated = durable.relocation_step();
                Ok(durable.background_step()? || relocated)
            }
            None => Ok(false),
        }
    }

    /// Verifies one frame; whether there was one. For a store opened without threads.
    ///
    /// # Errors
    /// As [`background_step`](Self::background_step).
    #[doc(hidden)]
    pub fn scrub_step(&self) -> Result<bool, Error> {
        match &self.durable {
            Some(durable) => durable.log.durable.scrub_step(),
            None => Ok(false),
        }
    }

    /// Has all frames read again and verified, one after the other in the background; [`stats`](Self::stats) says how far it
    /// is. Returns how many there are; `None` if the store has no directory.
    pub fn scrub(&self) -> Option<u64> {
        let log = &self.durable.as_ref()?.log;
        let total = log.durable.begin_scrub();
        log.background.ring();
        Some(total)
    }

    /// One frame is verified in this time from now on; 0 = none, unless somebody asks.
    pub fn set_scrub_interval(&self, interval: Duration) {
        if let Some(durable) = &self.durable {
            durable.log.durable.scrub.set_interval(interval);
        }
    }

    /// Calls `hook` for each replica on disk that is damaged now, or is found to be, and for what becomes of it. Short, from
    /// the background's thread, and not back into this. Only the last hook counts.
    pub fn watch_repairs(&self, hook: impl Fn(&Repair) + Send + Sync + 'static) {
        if let Some(durable) = &self.durable {
            durable.log.durable.repairs.watch(Box::new(hook));
        }
    }

    /// The memory side: tables, sessions, guards. What is written through it becomes durable by [`log`](Self::log).
    pub fn engine(&self) -> &Arc<duramen_engine::Store> {
        &self.engine
    }

    /// The durable side; `None` if the store has no directory.
    pub fn log(&self) -> Option<&LogWriter> {
        self.durable.as_ref().map(|durable| &*durable.log)
    }

    /// A blocking way into the store for one thread: each call returns when it has reached its table's level.
    ///
    /// # Errors
    /// [`Error::Engine`]: too many sessions.
    pub fn session(self: &Arc<Self>) -> Result<Session, Error> {
        Session::new(self.clone())
    }

    /// The level of writes where neither table nor request says otherwise: the one that the store was opened with, or what
    /// [`set_default_level`](Self::set_default_level) made of it.
    pub fn default_level(&self) -> Level {
        self.engine
            .log()
            .map_or(self.level, |log| log.default_level())
    }

    /// Changes the default level until the store is closed.
    ///
    /// # Errors
    /// [`Error::NoDirectory`].
    pub fn set_default_level(&self, level: Level) -> Result<(), Error> {
        match self.engine.log() {
            Some(log) => log.set_default_level(level),
            None if level > Level::Memory => return Err(Error::NoDirectory(level)),
            None => {}
        }
        Ok(())
    }

    /// The level of writes to this table; the store's default if the table has none of its own.
    pub fn level(&self, table: TableId) -> Level {
        self.table_level(table).unwrap_or(self.default_level())
    }

    /// The level that the table has been given; `None` = none of its own, or no such table.
    pub fn table_level(&self, table: TableId) -> Option<Level> {
        self.engine.table_level(table).ok().flatten()
    }

    /// Gives a table a level of its own, durably; `None` takes it away.
    ///
    /// # Errors
    /// [`Error::Engine`]: no such table; [`Error::NoDirectory`]; as [`LogWriter::wait`].
    pub fn set_level(&self, table: TableId, level: Option<Level>) -> Result<(), Error> {
        self.check_level(level)?;
        self.engine.set_table_level(table, level)?;
        self.wait_for_changes()
    }

    /// Makes a table, durably. `level`: as in [`set_level`](Self::set_level).
    ///
    /// # Errors
    /// As [`set_level`](Self::set_level).
    pub fn create_table(&self, name: &str, level: Option<Level>) -> Result<TableId, Error> {
        self.create_table_told(name, level, |_| {})
    }

    /// As [`create_table`](Self::create_table). `tell` learns the id before anybody can find the table.
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn create_table_told(
        &self,
        name: &str,
        level: Option<Level>,
        tell: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        self.check_level(level)?;
        let table = self.engine.create_table_told(name, level, tell)?;
        self.wait_for_changes()?;
        Ok(table)
    }

    /// Drops a table and its objects, durably. Must not be called while this thread holds a guard.
    ///
    /// # Errors
    /// As [`set_level`](Self::set_level).
    pub fn drop_table(&self, table: TableId) -> Result<(), Error> {
        self.engine.drop_table(table)?;
        self.wait_for_changes()
    }

    /// Removes all objects of these tables at one moment, durably. Must not be called while this thread holds a guard.
    ///
    /// # Errors
    /// As [`set_level`](Self::set_level).
    pub fn clear_tables(&self, tables: &[TableId]) -> Result<(), Error> {
        let mut session = self.engine.session()?;
        let guard = session.pin_exclusive();
        for table in tables {
            guard.clear(*table)?;
        }
        drop(guard); // what it did is published here
        self.wait_for_changes()
    }

    fn check_level(&self, level: Option<Level>) -> Result<(), Error> {
        match level {
            Some(level) if level > Level::Memory && self.durable.is_none() => {
                Err(Error::NoDirectory(level))
            }
            _ => Ok(()),
        }
    }

    /// S1.
    fn wait_for_changes(&self) -> Result<(), Error> {
        match (&self.durable, self.engine.log()) {
            (Some(durable), Some(log)) => durable.log.wait(&log.appended(), Level::Synced),
            _ => Ok(()),
        }
    }

    /// Makes a result durable, or waits until what it shows is.
    pub(crate) fn settle(&self, position: &Position, level: Level) -> Result<(), Error> {
        match &self.durable {
            Some(durable) if level > Level::Memory => durable.log.wait(position, level),
            _ => Ok(()),
        }
    }

    /// Copies everything, as it is at one moment, into a new directory that [`open`](Self::open) opens. Nobody is stopped
    /// meanwhile. `dir` must not exist, or be empty.
    ///
    /// # Errors
    /// [`Error::NoDirectory`], [`Error::SnapshotRunning`], [`Error::Disk`], as [`LogWriter::wait`].
    pub fn snapshot(
        &self,
        dir: &Path,
        progress: impl Fn(&Progress) + Send + Sync,
    ) -> Result<SnapshotReport, Error> {
        let disk = OsDisk::new(dir, Mode::Buffered);
        self.snapshot_to(Arc::new(disk), &progress)
    }

    /// As [`snapshot`](Self::snapshot), to any empty disk.
    #[doc(hidden)]
    pub fn snapshot_to(
        &self,
        disk: Arc<dyn Disk>,
        progress: &(dyn Fn(&Progress) + Send + Sync),
    ) -> Result<SnapshotReport, Error> {
        match &self.durable {
            Some(durable) if durable.log.durable.remote.is_some() => Err(Error::NotHere),
            Some(durable) => durable.snapshots.take(&durable.log, disk, progress),
            None => Err(Error::NoDirectory(Level::Buffered)),
        }
    }

    /// Figures of the durable side; `None` if the store has no directory.
    pub fn stats(&self) -> Option<DurabilityStats> {
        let durable = self.durable.as_ref()?;
        let mut stats = durable.log.durable.stats();
        stats.level = self.default_level();
        stats.loaded_bytes = durable.loaded.bytes;
        stats.loaded_entries = durable.loaded.entries;
        stats.load_duration = durable.loaded.took;
        stats.clean_start = durable.loaded.clean;
        durable.snapshots.fill(&mut stats);
        Some(stats)
    }

    /// Memory of what is on its way to disk, beside the budget; zeros without a directory, and for
    /// a member of a cluster.
    pub fn copies(&self) -> Copies {
        let durable = self.durable.as_ref();
        let backup = durable.and_then(|durable| durable.log.durable.backup.as_ref());
        backup.map_or_else(Copies::default, Backup::copies)
    }

    /// What could not be used of the hints about what was hot, for a person; `None`: nothing to say.
    pub fn hint_damage(&self) -> Option<String> {
        let heat = self.durable.as_ref()?.log.durable.heat.as_ref()?;
        heat.damage()
    }

    /// Bytes of log that the directory has room for, and that the options ask for, if those are more; `None`: there is room. A
    /// snapshot has it, too.
    pub fn lacking_room(&self) -> Option<(u64, u64)> {
        let durable = &self.durable.as_ref()?.log.durable;
        restart::lacking_room(durable.backup().geometry(), &durable.options)
    }

    /// How the store was opened; `None` without a directory.
    pub fn options(&self) -> Option<&Options> {
        self.durable
            .as_ref()
            .map(|durable| &durable.log.durable.options)
    }

    /// Makes everything that was written so far durable, whatever its level.
    ///
    /// # Errors
    /// As [`LogWriter::wait`].
    pub fn flush(&self) -> Result<(), Error> {
        self.wait_for_changes()
    }

    /// Makes everything durable and notes that the end was clean, so that the next start is fast. Writes after it are lost:
    /// the caller has ended its own users first. What the disk has no room for is not lost: then nothing was closed, and the
    /// store serves on; try again.
    ///
    /// # Errors
    /// As [`flush`](Self::flush); [`Error::Closed`] if it is.
    pub fn close(&self) -> Result<(), Error> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Err(Error::Closed);
        }
        let Some(durable) = &self.durable else {
            return Ok(());
        };
        let result = self.flush().and_then(|()| {
            if let Some(threads) = &durable.threads {
                threads.end();
            }
            durable.log.durable.shut_down()
        });
        if matches!(result, Err(Error::DiskFull(_))) {
            self.closed.store(false, Ordering::Release);
        }
        durable.log.tell();
        result
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(durable) = &self.durable {
            if let Some(threads) = &durable.threads {
                threads.end(); // S2
            }
            // A cleaner in its hook would keep the log, and so the directory, beyond this, and end the engine by itself.
            durable.log.durable.engine.end_cleaners();
            if !self.closed.load(Ordering::Acquire) {
                durable.log.durable.let_go();
            }
        }
    }
}

impl Durable {
    /// Everything synced and in frames, and a record that says so. Without room for that it is enough that everything is
    /// synced: the next start then takes the log as after a crash.
    fn shut_down(&self) -> Result<(), Error> {
        let written = self.log().appended();
        self.engine.close_heads();
        let closed = self.commit_once(&mut self.lock(), Level::Synced);
        if self.remote.is_some() {
            return closed; // its log is recovered, or empty: nobody restarts from it
        }
        if closed.is_err() && self.log().reached(&written) < Level::Synced {
            return closed;
        }
        if let Some(heat) = &self.heat {
            heat.write_last(&self.engine);
        }
        match closed.and_then(|()| self.tidy_up()) {
            Err(Error::DiskFull(_)) => Ok(()),
            done => done,
        }
    }

    fn tidy_up(&self) -> Result<(), Error> {
        self.finish_repairs()?;
        while self.background_step()? {}
        self.write_clean_shutdown()?;
        self.backup().close()?;
        Ok(())
    }

    /// The last owner forgot to close: what was appended is made durable all the same, if it can be.
    fn let_go(&self) {
        // After a panic in a commit nothing is known: then the next start has to tell.
        if let Ok(mut commit) = self.commit.lock() {
            let _ = self.commit_once(&mut commit, Level::Synced);
        }
    }
}
