//! The store, as its owner uses it.
//!
//! **Invariants**
//! - S1: a change of tables is in the engine's queue before any write that depends on it can be
//!   made, and is durable before its caller gets the result. A server holds its client's reply
//!   instead.
//! - S2: threads hold the store weakly or not at all: when the last owner drops it, they are ended
//!   and joined, and all appends are synced; only [`Store::close`] records a clean end (`closing`).

use crate::durable::{Durable, Local};
use crate::gate::Gate;
use crate::load::Loaded;
use crate::restart;
use crate::snapshot::Snapshots;
use crate::threads::Threads;
use crate::writer::LogWriter;
use crate::{
    DiskMode, DiskState, DurabilityStats, Error, MemoryStats, Options, Progress, SnapshotReport,
    reentrancy,
};
use duramen_backup::disk::{Disk, keyed};
use duramen_backup::os::OsDisk;
use duramen_base::ids::Level;
use duramen_engine::Position;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Tables of objects, in memory and, with a directory, on disk. Shared by [`Arc`]; every thread
/// that reads or writes takes a [`Session`](crate::Session) of its own.
///
/// It ends with [`close`](Store::close): everything is on disk then, the directory is free, and all
/// its sessions return [`Error::Closed`]. A store that is merely dropped, with its last session,
/// syncs its writes; writes acknowledged at [`Level::Synced`] need neither. Its memory is released
/// with the last [`Arc`].
///
/// ```
/// use duramen::{Options, Store, Table};
///
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().join("store");
/// let store = Store::open(Options::new(&dir, 64 << 20))?;
/// store.session()?.set(Table::DEFAULT, "key", "value")?;
/// store.close()?;
///
/// let store = Store::open(Options::new(&dir, 64 << 20))?;
/// assert!(store.session()?.exists(Table::DEFAULT, "key")?);
/// store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Store {
    pub(crate) engine: Arc<duramen_engine::Store>,
    pub(crate) durable: Option<DurableStore>,
    pub(crate) gate: Gate,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field(
                "dir",
                &self.options().and_then(|options| options.dir.as_ref()),
            )
            .field("closed", &self.gate.is_shut())
            .finish_non_exhaustive()
    }
}

/// The additional part of a store with a directory.
pub(crate) struct DurableStore {
    /// Dropped first: ends the threads.
    pub(crate) threads: Option<Threads>,
    pub(crate) log: Arc<LogWriter>,
    loaded: Loaded,
    pub(crate) snapshots: Snapshots,
}

impl DurableStore {
    /// Removes objects that had expired before the restart, even if the clock was put back since.
    fn remove_revived(&self) -> Result<(), Error> {
        let durable = &self.log.durable;
        let engine = &durable.common.engine;
        let appended = || durable.common.log().appended();
        let mut revived = engine.revived();
        let mut session = engine.brief_session()?;
        while revived.step(&mut session)? {
            self.log.wait(&appended(), Level::Buffered)?;
        }
        self.log.wait(&appended(), Level::Synced)?;
        // No object that is live by the present clock is to be lost.
        durable.local().map_or(Ok(()), Local::forget_former_clock)
    }
}

impl Store {
    /// Opens the store in the directory of `options`, which is created if it does not exist, and
    /// loads every acknowledged write; about a million objects of 128 bytes per second and core.
    /// Without a directory the store is in memory alone.
    ///
    /// ```
    /// use duramen::{Error, Options, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let dir = dir.path().join("store");
    /// let store = Store::open(Options::new(&dir, 64 << 20))?;
    /// // One at a time has a directory open, in this process or another.
    /// assert!(matches!(Store::open(Options::new(&dir, 64 << 20)), Err(Error::Disk(_))));
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Disk`]: not ours, in use, or of a newer format; [`Error::Damaged`];
    /// [`Error::Misfit`]; [`Error::Thread`]; [`Error::Engine`]. Nothing on the disk was changed
    /// then.
    pub fn open(options: Options) -> Result<Arc<Store>, Error> {
        Store::open_with_progress(options, |_| {})
    }

    /// As [`open`](Store::open). `progress` is called from time to time, from several threads,
    /// until everything is loaded.
    ///
    /// ```
    /// use duramen::{Options, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let options = Options::new(dir.path().join("store"), 64 << 20);
    /// let store = Store::open_with_progress(options, |progress| {
    ///     println!("{} of {} bytes", progress.bytes_done, progress.bytes_total);
    /// })?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`open`](Store::open).
    pub fn open_with_progress(
        options: Options,
        progress: impl Fn(&Progress) + Send + Sync,
    ) -> Result<Arc<Store>, Error> {
        let Some(dir) = options.dir.clone() else {
            return Store::in_memory(&options);
        };
        let disk = Arc::new(OsDisk::new(&dir, options.mode));
        let disk = keyed(disk, options.encryption_key.clone());
        Store::open_on(disk, options, true, &progress)
    }

    fn in_memory(options: &Options) -> Result<Arc<Store>, Error> {
        if options.level > Level::Memory {
            return Err(Error::NoDirectory(options.level));
        }
        Ok(Arc::new(Store {
            engine: duramen_engine::Store::new(options.engine.clone())?,
            durable: None,
            gate: Gate::default(),
        }))
    }

    /// As [`open`](Self::open), on any disk. Without `threads` nothing happens by itself: the
    /// caller drives the store with [`LogWriter::try_commit_here`] and
    /// [`background_step`](Self::background_step).
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
        let has_revived = loaded.has_revived;
        let store = Store::start(durable, loaded, options, threads)?;
        if let Some(durable) = store.durable.as_ref().filter(|_| has_revived) {
            durable.remove_revived()?;
        }
        Ok(store)
    }

    /// Joins the durable side with threads, if it has any.
    pub(crate) fn start(
        durable: Durable,
        loaded: Loaded,
        options: Options,
        threads: bool,
    ) -> Result<Arc<Store>, Error> {
        let engine = durable.common.engine.clone();
        let log = Arc::new(LogWriter::new(Arc::new(durable), options.commit_window));
        let hook = Arc::downgrade(&log);
        log.durable.common.log().on_demand(move || {
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
            durable: Some(DurableStore {
                threads,
                log,
                loaded,
                snapshots: Snapshots::default(),
            }),
            engine,
            gate: Gate::default(),
        }))
    }

    /// One step of the background thread's work; returns whether there was any. For a store that
    /// was opened without threads.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`].
    #[doc(hidden)]
    pub fn background_step(&self) -> Result<bool, Error> {
        match &self.durable {
            Some(durable) => {
                let durable = &durable.log.durable;
                let relocated = durable.common.relocation_step();
                let worked = durable.background_step()?;
                // No failure of a disk: it is tried again later.
                let removed = durable.common.engine.remove_doubted().unwrap_or(false);
                Ok(worked || relocated || removed)
            }
            None => Ok(false),
        }
    }

    /// Verifies all data on disk, one segment after the other in the background; damage is repaired
    /// from memory. Returns the number of segments; [`stats`](Self::stats) has the progress.
    /// `None`: the store has no directory, or is closed.
    ///
    /// ```
    /// # use duramen::{Options, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// store.scrub();
    /// while store.stats().is_some_and(|stats| stats.scrub.left > 0) {
    ///     std::thread::sleep(std::time::Duration::from_millis(1));
    /// }
    /// assert!(store.stats().is_some_and(|stats| stats.is_sound()));
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scrub(&self) -> Option<u64> {
        let log = &self.durable.as_ref()?.log;
        if self.gate.is_shut() || self.engine.is_inherited() {
            return None;
        }
        let total = log.durable.local().map_or(0, Local::begin_scrub); // a node verifies a member's
        log.background.ring();
        Some(total)
    }

    /// Calls `hook` when the disk has become full, has failed, or takes writes again. The hook must
    /// be short, and must not call the store. Only the first hook counts.
    #[doc(hidden)]
    pub fn watch_disk(&self, hook: impl Fn(&DiskState) + Send + Sync + 'static) {
        if let Some(durable) = &self.durable {
            durable.log.durable.common.health.watch(Box::new(hook));
        }
    }

    /// The memory side: tables, sessions, guards. Writes through it become durable by
    /// [`log`](Self::log).
    #[doc(hidden)]
    pub fn engine(&self) -> &Arc<duramen_engine::Store> {
        &self.engine
    }

    /// The durable side; `None` if the store has no directory.
    #[doc(hidden)]
    pub fn log(&self) -> Option<&LogWriter> {
        self.durable.as_ref().map(|durable| &*durable.log)
    }

    /// Waits until all changes of tables so far are durable (S1).
    pub(crate) fn wait_for_changes(&self) -> Result<(), Error> {
        match (&self.durable, self.engine.log()) {
            (Some(durable), Some(log)) => durable.log.wait(&log.appended(), Level::Synced),
            _ => Ok(()),
        }
    }

    /// Makes a result durable, or waits until the data that it shows is durable.
    pub(crate) fn settle(&self, position: &Position, level: Level) -> Result<(), Error> {
        match &self.durable {
            Some(durable) if level > Level::Memory => durable.log.wait(position, level),
            _ => Ok(()),
        }
    }

    /// Copies all data, as it is at one moment, into a new directory that [`open`](Self::open)
    /// opens: a backup. Other sessions continue meanwhile. `dir` must not exist, or be empty. A
    /// close of the store ends the snapshot.
    ///
    /// ```
    /// use duramen::{Options, Store, Table};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let (live, monday) = (dir.path().join("live"), dir.path().join("monday"));
    /// let store = Store::open(Options::new(&live, 64 << 20))?;
    /// let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "key", "on monday")?;
    /// store.snapshot(&monday)?;
    /// session.set(Table::DEFAULT, "key", "later")?;
    /// # store.close()?;
    ///
    /// let copy = Store::open(Options::new(&monday, 64 << 20))?;
    /// let value = copy.session()?.get(Table::DEFAULT, "key")?.expect("it was there");
    /// assert_eq!(value.bytes, b"on monday");
    /// # copy.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDirectory`], [`Error::SnapshotRunning`], [`Error::Disk`], [`Error::DiskFull`],
    /// [`Error::DiskFailed`], [`Error::Closed`], [`Error::Nested`]: the files in `dir` are no
    /// store, and can be removed.
    pub fn snapshot(&self, dir: impl AsRef<Path>) -> Result<SnapshotReport, Error> {
        self.snapshot_with_progress(dir, |_| {})
    }

    /// As [`snapshot`](Self::snapshot). `progress` is called for each segment; it must not call the
    /// store.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("live"), 64 << 20))?;
    /// let report = store.snapshot_with_progress(dir.path().join("copy"), |progress| {
    ///     println!("{} of {} bytes", progress.bytes_done, progress.bytes_total);
    /// })?;
    /// println!("{} bytes in {:?}", report.bytes, report.elapsed);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`snapshot`](Self::snapshot).
    pub fn snapshot_with_progress(
        &self,
        dir: impl AsRef<Path>,
        progress: impl Fn(&Progress) + Send + Sync,
    ) -> Result<SnapshotReport, Error> {
        let disk = Arc::new(OsDisk::new(dir.as_ref(), DiskMode::Buffered));
        let durable = self.durable.as_ref();
        let key = durable.and_then(|durable| durable.log.durable.options.encryption_key.clone());
        self.snapshot_to(keyed(disk, key), &progress)
    }

    /// As [`snapshot`](Self::snapshot), to any empty disk.
    #[doc(hidden)]
    pub fn snapshot_to(
        &self,
        disk: Arc<dyn Disk>,
        progress: &(dyn Fn(&Progress) + Send + Sync),
    ) -> Result<SnapshotReport, Error> {
        self.gate.check(&self.engine)?;
        let _inside = reentrancy::enter(&self.engine); // `close` waits for it
        let Some(DurableStore { log, snapshots, .. }) = &self.durable else {
            return Err(Error::NoDirectory(Level::Buffered));
        };
        let local = log.durable.local().ok_or(Error::NotHere)?;
        snapshots.take(log, local, disk, progress)
    }

    /// Figures of the disk's side; `None` if the store has no directory. For those of memory see
    /// [`memory`](Self::memory).
    ///
    /// ```
    /// # use duramen::{DiskState, Options, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// let stats = store.stats().expect("it has a directory");
    /// assert_eq!(stats.disk, DiskState::Ok);
    /// println!("a sync takes {:?}", stats.sync.p99);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// The options with which the store was opened; `None` without a directory.
    #[doc(hidden)]
    pub fn options(&self) -> Option<&Options> {
        self.durable
            .as_ref()
            .map(|durable| &durable.log.durable.options)
    }

    /// Figures of memory; in a forked process all are 0 (closing::E6).
    ///
    /// ```
    /// # use duramen::{Options, Store};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// let memory = store.memory();
    /// assert_eq!(memory.budget_bytes, 64 << 20);
    /// assert!(memory.live_bytes <= memory.capacity_bytes);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn memory(&self) -> MemoryStats {
        if self.engine.is_inherited() {
            return MemoryStats::default(); // a lock may be held by a thread that does not exist
        }
        let stats = self.engine.stats();
        MemoryStats {
            budget_bytes: self.engine.memory_bytes(),
            capacity_bytes: stats.segment_budget_bytes,
            live_bytes: stats.live_bytes,
            index_bytes: stats.index_bytes,
            committed_bytes: stats.committed_bytes,
            excess_bytes: stats.excess_bytes,
            objects: stats.objects,
            expired: stats.entries_expired,
            evicted: stats.entries_evicted,
        }
    }

    /// Sets the memory budget, in bytes; it ends with this store. A higher one holds at once, at
    /// most up to [`Options::memory_max`](crate::Options::memory_max). After a lower one, memory is
    /// given back in the background while operations go on
    /// ([`MemoryStats::excess_bytes`](crate::MemoryStats::excess_bytes) falls to 0); a cache then
    /// evicts the data that does not fit.
    ///
    /// ```
    /// # use duramen::{Options, Store};
    /// let store = Store::open(Options::memory(128 << 20))?;
    /// store.set_memory(64 << 20)?;
    /// assert_eq!(store.memory().budget_bytes, 64 << 20);
    /// store.set_memory(128 << 20)?;
    /// assert!(store.set_memory(256 << 20).is_err(), "beyond its beginning");
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Engine`]: the budget is out of range, or does not hold the data; nothing is
    /// changed. [`Error::Closed`].
    pub fn set_memory(&self, bytes: u64) -> Result<(), Error> {
        self.gate.check(&self.engine)?;
        self.engine.set_memory(bytes).map_err(Error::from)
    }

    /// Makes all earlier writes, of all sessions, durable, whatever their level.
    ///
    /// ```
    /// # use duramen::{Level, Options, Store, Table};
    /// # let dir = tempfile::tempdir()?;
    /// let options = Options::new(dir.path().join("store"), 64 << 20).level(Level::Memory);
    /// let store = Store::open(options)?;
    /// store.session()?.set(Table::DEFAULT, "key", "value")?; // returns at once
    /// store.flush()?; // it is on disk now
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`], [`Error::Closed`], [`Error::Nested`].
    pub fn flush(&self) -> Result<(), Error> {
        self.gate.check(&self.engine)?;
        self.wait_for_changes()
    }
}
