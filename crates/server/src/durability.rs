//! The durable layer as the server uses it: the durable store, snapshots, and the wake-up of
//! threads that wait for either.
//!
//! **Concurrency.** Every method may be called from any thread. [`Durability::wait`] and table
//! changes wait for the disk; reactor threads use them only in rare cases.

use crate::config::{DiskMode, ServerConfig};
use crate::error::ServerError;
use crate::exec::databases;
use crate::shared::{Message, Shared, Stop};
use duramen::internals::{Copies, LogWriter, Repair, RepairStep, is_store, remove_store};
use duramen::{DiskState, DurabilityStats, Store};
use duramen_base::ids::Level;
use duramen_engine::{Position, TableId};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Progress of loading the data.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// None: loading has only begun.
    pub now: Option<duramen::Progress>,
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(now) = &self.now else {
            return f.write_str("it has just begun");
        };
        if now.phase == duramen::Phase::Making {
            return f
                .write_str("there is nothing to load: the files of a new directory are laid out");
        }
        if now.bytes_total == 0 {
            return write!(f, "{} entries so far", now.entries_done);
        }
        write!(
            f,
            "{} % of {} MB",
            self.percent().unwrap_or(0),
            now.bytes_total >> 20
        )?;
        match now.eta() {
            Some(left) => write!(f, ", about {} s left", left.as_secs() + 1),
            None => Ok(()),
        }
    }
}

impl Progress {
    pub fn percent(&self) -> Option<u64> {
        let now = self.now.as_ref()?;
        (now.bytes_done * 100).checked_div(now.bytes_total)
    }
}

/// Destination of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// `dump` in the snapshot directory; replaces the previous one.
    Dump,
    /// A new directory.
    Directory(PathBuf),
}

#[derive(Debug)]
pub struct Job {
    dir: PathBuf,
    began: Instant,
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    /// None: the snapshot is being made.
    result: Mutex<Option<Result<(), String>>>,
}

impl Job {
    fn new(dir: PathBuf) -> Job {
        Job {
            dir,
            began: Instant::now(),
            bytes_done: AtomicU64::new(0),
            bytes_total: AtomicU64::new(0),
            result: Mutex::default(),
        }
    }

    /// None while the snapshot is being made.
    pub fn result(&self) -> Option<Result<(), String>> {
        lock(&self.result).clone()
    }

    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Ordering::Relaxed)
    }

    /// 0 = not known yet.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total.load(Ordering::Relaxed)
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// A stop that waits until all data is on disk.
#[derive(Debug, Default)]
pub struct Stopping {
    /// None: the data is being written.
    result: Mutex<Option<Result<(), String>>>,
}

impl Stopping {
    /// None while the data is being written; an error gives the reason why the server runs on.
    pub fn result(&self) -> Option<Result<(), String>> {
        lock(&self.result).clone()
    }
}

impl Shared {
    /// Stops the server after all acknowledged writes are on disk; otherwise unwritten data would
    /// be lost. `anyway`: if they cannot be written, stop nevertheless. Returns at once; `None`:
    /// the server stops now, as there is nothing to write.
    pub fn stop_written(&self, how: Stop, anyway: bool) -> Option<Arc<Stopping>> {
        // A member's log is on other servers; and a write that was answered after it was on disk
        // cannot be lost.
        let alone = self.membership().is_none() && self.commands.answered_early();
        let durability = self.durability().filter(|_| alone);
        let Some(durability) = durability.filter(|durability| durability.has_unwritten()) else {
            self.stop(how);
            return None;
        };
        let stopping = Arc::new(Stopping::default());
        let (durability, shared) = (Arc::clone(durability), self.this());
        let told = Arc::clone(&stopping);
        self.ending.ask(true);
        let write = move || {
            let written = durability.store.flush();
            let Some(shared) = shared else { return };
            let result = match written {
                Ok(()) => Ok(how),
                Err(why) if anyway => {
                    tracing::error!("stopping, and giving up what is not on disk: {why}");
                    Ok(Stop::AtOnce)
                }
                Err(why) => {
                    tracing::error!(
                        "not stopping: {why}; what was acknowledged and is not on disk would be lost. Make room, or give it up with SHUTDOWN NOSAVE"
                    );
                    shared.ending.ask(false);
                    Err(why.to_string())
                }
            };
            *lock(&told.result) = Some(result.clone().map(|_| ()));
            if let Ok(how) = result {
                shared.stop(how);
            }
            wake(&shared);
        };
        let thread = std::thread::Builder::new().name("stop".to_owned());
        if let Err(error) = thread.spawn(write) {
            self.ending.ask(false);
            *lock(&stopping.result) = Some(Err(format!("cannot start a thread: {error}")));
        }
        Some(stopping)
    }
}

/// Snapshots of this run.
#[derive(Default)]
struct Snapshots {
    /// The snapshot in progress, or the last one.
    latest: Option<Arc<Job>>,
    /// Requested while another snapshot was being made.
    next: Option<Target>,
    /// When the last successful snapshot ended, in seconds since the Unix epoch.
    saved_s: u64,
    /// Number of successful snapshots.
    saves: u64,
}

/// The log of a durable server, and its snapshots.
pub struct Durability {
    store: Arc<Store>,
    snapshots: Mutex<Snapshots>,
}

impl Durability {
    /// Opens the data directory and loads everything in it into memory.
    ///
    /// # Errors
    /// [`ServerError::Store`]: nothing was changed.
    pub fn open(
        config: &ServerConfig,
        engine: duramen_engine::Options,
        dir: PathBuf,
        progress: impl Fn(&duramen::Progress) + Send + Sync,
    ) -> Result<Durability, ServerError> {
        let defaults = duramen::Options::new(&dir, config.memory_bytes);
        let options = duramen::Options {
            engine,
            level: config.write_level(),
            mode: config.disk_mode,
            wal_bytes: match config.wal_bytes {
                0 => defaults.wal_bytes,
                bytes => bytes,
            },
            disk_bytes: config.disk_bytes,
            scrub_interval: Duration::from_millis(config.scrub_interval_ms),
            disk_expansion: config.disk_expansion_percent as f64 / 100.0,
            restart_threads: config.restart_threads,
            ..defaults
        };
        if let Ok(place) = Place::new(config, Target::Dump)
            && let Err(error) = place.clear()
        {
            tracing::warn!(dir = %place.fresh.display(), "the beginning of a snapshot is left: {error}");
        }
        let store = Store::open_with_progress(options, progress)?;
        if let Some(damage) = store.hint_damage() {
            tracing::warn!(
                "what was read often before the start is not all known ({damage}): it is fetched from flash when it is asked for"
            );
        }
        if let Some((asked, raised)) = store.raised_disk() {
            tracing::warn!(
                "`disk-size` is {} MiB, and with so many threads the log needs {} MiB: it gets these",
                asked >> 20,
                raised >> 20
            );
        }
        if let Some((room, wanted)) = store.lacking_room() {
            tracing::warn!(
                "the directory was made for {} MiB of log, and the settings ask for {}: writes are refused when that is full; a snapshot \
                 taken now has the room, if it is served instead",
                room >> 20,
                wanted >> 20
            );
        }
        store.watch_repairs(log_repair);
        Ok(Durability {
            store,
            snapshots: Mutex::default(),
        })
    }

    /// For a member of a cluster: its log is on other servers.
    pub(crate) fn of_member(store: Arc<Store>) -> Durability {
        Durability {
            store,
            snapshots: Mutex::default(),
        }
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    fn log(&self) -> &LogWriter {
        self.store
            .log()
            .expect("a store with a directory has a log")
    }

    /// From now on every commit wakes the reactor threads that wait for one.
    pub(crate) fn watch(&self, shared: &Arc<Shared>) {
        let shared = Arc::downgrade(shared);
        self.log().watch(Arc::new(move || {
            if let Some(shared) = shared.upgrade() {
                wake(&shared);
            }
        }));
    }

    /// Restores the levels of the tables, and the databases.
    ///
    /// # Errors
    /// [`ServerError::Engine`].
    pub(crate) fn restore(
        &self,
        shared: &Shared,
        engine: &Arc<duramen_engine::Store>,
    ) -> Result<(), ServerError> {
        shared.commands.note_level(self.store.default_level());
        for table in engine.tables() {
            let level = engine.table_level(table.id)?;
            shared.commands.set_level(table.id, level);
        }
        Ok(databases::restore(shared, engine)?)
    }

    /// The level that a position has reached. Cheap.
    #[inline]
    pub fn reached(&self, position: &Position) -> Level {
        self.log().reached(position)
    }

    /// Requests a commit of everything appended so far; returns at once.
    pub fn demand(&self, level: Level) {
        self.log().demand(level);
    }

    /// Commits on this thread, unless another thread is committing; false = nothing was done.
    pub fn commit_here(&self, level: Level) -> bool {
        self.log().try_commit_here(level)
    }

    /// Waits for the disk.
    ///
    /// # Errors
    /// As `LogWriter::wait`.
    pub fn wait(&self, position: &Position, level: Level) -> Result<(), duramen::Error> {
        self.log().wait(position, level)
    }

    /// The reason why the last appended data does not become durable now; None: it does.
    pub fn failure(&self) -> Option<String> {
        match self.log().disk() {
            DiskState::Ok => None,
            DiskState::Full => Some("the disk is full".to_owned()),
            DiskState::Failed(why) => Some(format!("the disk failed: {why}")),
        }
    }

    /// Creates a table; waits until it is durable.
    ///
    /// # Errors
    /// As `duramen::Store::create_table_told`.
    pub fn create_table(
        &self,
        name: &str,
        level: Option<Level>,
        tell: impl FnOnce(TableId),
    ) -> Result<TableId, duramen::Error> {
        self.store.create_table_told(name, level, tell)
    }

    /// Drops a table; waits until that is durable.
    ///
    /// # Errors
    /// As `duramen::Store::drop_table`.
    pub fn drop_table(&self, table: TableId) -> Result<(), duramen::Error> {
        self.store.drop_table(table)
    }

    /// Number of other servers that have a write when it has reached its level; 0: this server is
    /// not a member of a cluster.
    pub fn replicas(&self) -> usize {
        self.log().replicas().unwrap_or(0)
    }

    pub fn set_scrub_interval(&self, ms: u64) {
        self.store.set_scrub_interval(Duration::from_millis(ms));
    }

    /// Starts to verify all frames; returns their number.
    pub fn scrub(&self) -> u64 {
        self.store.scrub().unwrap_or(0)
    }

    /// Memory of data not yet on disk.
    pub(crate) fn copies(&self) -> Copies {
        self.store.copies()
    }

    pub fn stats(&self) -> DurabilityStats {
        self.store
            .stats()
            .expect("a store with a directory has figures")
    }

    /// Whether written data is not on disk yet.
    fn has_unwritten(&self) -> bool {
        let log = self.store.engine().log();
        log.is_some_and(|log| !log.appended().is_none())
    }

    /// Makes all data durable and notes that the stop was clean.
    ///
    /// # Errors
    /// As `duramen::Store::close`.
    pub fn close(&self) -> Result<(), duramen::Error> {
        self.store.close()
    }

    /// When the last successful snapshot ended, in seconds since the Unix epoch; 0 = there was
    /// none.
    pub fn saved_s(&self) -> u64 {
        lock(&self.snapshots).saved_s
    }

    /// Number of successful snapshots since the start.
    pub fn saves(&self) -> u64 {
        lock(&self.snapshots).saves
    }

    /// The snapshot in progress, or the last one.
    pub fn snapshot_job(&self) -> Option<Arc<Job>> {
        lock(&self.snapshots).latest.clone()
    }

    pub fn snapshot_running(&self) -> bool {
        self.snapshot_job()
            .is_some_and(|job| job.result().is_none())
    }

    /// Makes another snapshot when the one in progress has ended.
    pub fn snapshot_after(&self, target: Target) {
        lock(&self.snapshots).next = Some(target);
    }

    /// Starts a snapshot on its own thread.
    ///
    /// # Errors
    /// A text, if another snapshot is in progress or the target exists already.
    pub fn snapshot(&self, shared: &Shared, target: Target) -> Result<Arc<Job>, String> {
        let mut snapshots = lock(&self.snapshots);
        if let Some(job) = &snapshots.latest
            && job.result().is_none()
        {
            return Err(format!(
                "ERR Background save already in progress: to {}",
                job.dir().display()
            ));
        }
        let config = shared.config();
        let place = Place::new(&config, target)?;
        let job = Arc::new(Job::new(place.shown().to_owned()));
        snapshots.latest = Some(Arc::clone(&job));
        drop(snapshots);
        let made = Arc::clone(&job);
        let shared = shared.this();
        std::thread::Builder::new()
            .name("snapshot".to_owned())
            .spawn(move || {
                if let Some(shared) = shared
                    && let Some(durability) = shared.durability()
                {
                    durability.make(&shared, &place, &made);
                }
            })
            .map_err(|error| {
                let text = format!("ERR cannot start a thread: {error}");
                *lock(&job.result) = Some(Err(text.clone()));
                text
            })?;
        Ok(job)
    }

    fn make(&self, shared: &Arc<Shared>, place: &Place, job: &Arc<Job>) {
        tracing::info!(dir = %job.dir().display(), "making a snapshot");
        let result = place.make(|dir| {
            let report = self.store.snapshot_with_progress(dir, |progress| {
                job.bytes_done.store(progress.bytes_done, Ordering::Relaxed);
                job.bytes_total
                    .store(progress.bytes_total, Ordering::Relaxed);
            });
            report.map_err(|error| error.to_string())
        });
        match &result {
            Ok(report) => tracing::info!(
                dir = %job.dir().display(),
                segments = report.segments,
                bytes = report.bytes,
                ms = report.elapsed.as_millis() as u64,
                "the snapshot is done"
            ),
            Err(why) => tracing::error!(dir = %job.dir().display(), "the snapshot failed: {why}"),
        }
        let next = {
            let mut snapshots = lock(&self.snapshots);
            if result.is_ok() {
                snapshots.saved_s = now_s();
                snapshots.saves += 1;
            }
            *lock(&job.result) = Some(result.map(|_| ()));
            snapshots.next.take()
        };
        wake(shared);
        if let Some(target) = next
            && let Err(why) = self.snapshot(shared, target)
        {
            tracing::error!("the scheduled snapshot failed: {why}");
        }
    }
}

/// Paths of a snapshot in progress.
struct Place {
    /// The path to which it is written.
    fresh: PathBuf,
    /// The path that it gets when it is complete; it replaces an older snapshot there.
    then: Option<PathBuf>,
}

impl Place {
    fn new(config: &ServerConfig, target: Target) -> Result<Place, String> {
        match target {
            Target::Directory(dir) => Ok(Place {
                fresh: dir,
                then: None,
            }),
            Target::Dump => {
                let folder = if config.snapshot_dir.is_empty() {
                    if config.disk_mode == DiskMode::Raw {
                        return Err(
                            "ERR disk-mode raw has no place for a snapshot: set snapshot-dir"
                                .to_owned(),
                        );
                    }
                    config.data_dir().unwrap_or_default().join("snapshots")
                } else {
                    PathBuf::from(&config.snapshot_dir)
                };
                Ok(Place {
                    fresh: folder.join("dump.new"),
                    then: Some(folder.join("dump")),
                })
            }
        }
    }

    fn shown(&self) -> &Path {
        self.then.as_deref().unwrap_or(&self.fresh)
    }

    /// Writes the snapshot, and lets it replace the last one only when it is complete. So once
    /// there was a snapshot, `dump` is a complete one at any moment. The remains of a failed
    /// snapshot are removed; they would keep space that the log needs.
    fn make<T>(&self, write: impl FnOnce(&Path) -> Result<T, String>) -> Result<T, String> {
        let Some(then) = &self.then else {
            return write(&self.fresh);
        };
        let says = |what: &str, path: &Path| {
            let text = format!("cannot {what} {}", path.display());
            move |error: std::io::Error| format!("{text}: {error}")
        };
        let folder = then.parent().unwrap_or(Path::new("/"));
        std::fs::create_dir_all(folder).map_err(says("make", folder))?;
        finish_putting(&self.fresh, then).map_err(says("rename", &self.fresh))?;
        remove_store(&self.fresh).map_err(says("remove", &self.fresh))?;
        is_store(then).map_err(says("replace", then))?;
        let report = write(&self.fresh).inspect_err(|_| {
            let _ = remove_store(&self.fresh); // the next snapshot tries again
        })?;
        put_in_place(&self.fresh, then).map_err(says("rename", &self.fresh))?;
        sync_dir(folder).map_err(says("sync", folder))?;
        remove_store(&self.fresh).map_err(says("remove", &self.fresh))?;
        Ok(report)
    }

    /// Removes the remains of a snapshot whose process was killed.
    fn clear(&self) -> std::io::Result<()> {
        let Some(then) = &self.then else {
            return Ok(());
        };
        finish_putting(&self.fresh, then)?;
        remove_store(&self.fresh)
    }
}

/// Gives `fresh` the name `then`; a file that had that name gets the name of `fresh`.
fn put_in_place(fresh: &Path, then: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    if !then.exists() {
        return std::fs::rename(fresh, then);
    }
    match renameat_with(CWD, fresh, CWD, then, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            // The file system cannot exchange names: for a moment there is no snapshot.
            remove_store(&old_of(then))?;
            std::fs::rename(then, old_of(then))?;
            finish_putting(fresh, then)
        }
        Err(error) => Err(error.into()),
    }
}

/// The name of a replaced snapshot on a file system that cannot exchange names.
fn old_of(then: &Path) -> PathBuf {
    then.with_extension("old")
}

/// Puts a snapshot in place of one that was moved away; does nothing if none was. Only a complete
/// snapshot lets another one be moved away, so `fresh` is complete if there is nothing at `then`.
fn finish_putting(fresh: &Path, then: &Path) -> std::io::Result<()> {
    let old = old_of(then);
    if !old.exists() {
        return Ok(());
    }
    if !then.exists() && fresh.exists() {
        std::fs::rename(fresh, then)?;
    } else if !then.exists() {
        return std::fs::rename(&old, then);
    }
    remove_store(&old)
}

fn sync_dir(dir: &Path) -> std::io::Result<()> {
    std::fs::File::open(dir)?.sync_all()
}

/// Logs a damage found on disk, and its repair.
fn log_repair(repair: &Repair) {
    let Some(segment) = repair.segment else {
        return log_mended(&repair.step);
    };
    let (segment, frame) = (segment.0, repair.frame.map_or(-1, i64::from));
    match &repair.step {
        RepairStep::Found { reason } => tracing::warn!(
            segment,
            frame,
            "a segment on disk is damaged: {reason}; its data is in memory and is being written elsewhere. Do not stop the server before that is done"
        ),
        RepairStep::Repaired { took } => tracing::info!(
            segment,
            frame,
            ms = took.as_millis() as u64,
            "the damaged segment is repaired: what it held lies elsewhere on disk"
        ),
        RepairStep::Lost => tracing::error!(
            segment,
            frame,
            "the damaged segment cannot be repaired: memory has nothing of it, and a restart will refuse the data. Copy what is served now with a client while this server runs, or restore from a snapshot"
        ),
    }
}

/// As [`log_repair`], for the write-ahead log.
fn log_mended(step: &RepairStep) {
    match step {
        RepairStep::Found { reason } => tracing::warn!(
            "the write-ahead log on disk is damaged: {reason}; what it held is in memory and is being written elsewhere. Do not stop the server before that is done"
        ),
        RepairStep::Repaired { .. } => tracing::info!(
            "the write-ahead log is repaired: what the damaged commit held lies elsewhere on disk"
        ),
        RepairStep::Lost => {}
    }
}

/// Makes every thread that waits for the log, or for a snapshot, check again.
pub(crate) fn wake(shared: &Shared) {
    for thread in &shared.threads {
        if thread.commits.committed() {
            thread.mailbox.post(Message::Committed);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a file system that cannot exchange names, a kill between the two moves left `dump.old`
    /// and the complete `dump.new`. The next start removed `dump.new`, and there was no `dump`.
    #[test]
    fn a_snapshot_that_was_being_put_in_place_is_there_after_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let [then, fresh, old] =
            ["dump", "dump.new", "dump.old"].map(|name| folder.path().join(name));
        let make = |dir: &Path, content: &str| {
            std::fs::create_dir(dir).unwrap();
            std::fs::write(dir.join("LOCK"), content).unwrap();
        };
        let place = Place {
            fresh: fresh.clone(),
            then: Some(then.clone()),
        };
        let held = || std::fs::read_to_string(then.join("LOCK")).ok();
        make(&old, "old");
        make(&fresh, "new");
        place.clear().unwrap();
        assert_eq!(held().as_deref(), Some("new"));
        assert!(!fresh.exists() && !old.exists());
        // The kill came before the first move: what is at `dump.new` may be a part.
        make(&fresh, "part");
        place.clear().unwrap();
        assert_eq!(held().as_deref(), Some("new"));
        assert!(!fresh.exists());
        // Or behind the second one.
        make(&old, "old");
        place.clear().unwrap();
        assert_eq!(held().as_deref(), Some("new"));
        assert!(!old.exists());
    }
}
