//! The durable store of a server, and its snapshots.
//!
//! **Concurrency.** Every method may be called from any thread. [`LogWriter::wait`] waits for the
//! disk: no reactor thread uses it.

mod place;

pub(crate) use place::SnapshotPaths;

use duramen::internals::{LogWriter, Repair, RepairStep};
use duramen::{DiskState, DurabilityStats, Store};
use duramen_base::ids::Level;
use duramen_base::private::is_open_to_others;
use duramen_config::{ServerConfig, ServerError, seldom};
use duramen_engine::{Log, Position};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Progress of loading the data.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The progress of the engine; `None`: loading has only begun.
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
    /// A directory; replaces the snapshot that may be there.
    Replacing(PathBuf),
    /// A new directory in this folder, named after the time. Only the newest `keep` of such
    /// snapshots stay.
    Numbered { folder: PathBuf, keep: usize },
}

#[derive(Debug)]
pub struct Job {
    dir: PathBuf,
    began: Instant,
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    /// The result, and the time that the snapshot took; `None`: the snapshot is being made.
    result: Mutex<Option<(Result<(), String>, Duration)>>,
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
        let result = lock(&self.result);
        result.as_ref().map(|(result, _)| result.clone())
    }

    pub fn bytes_done(&self) -> u64 {
        self.bytes_done.load(Ordering::Relaxed)
    }

    /// 0 = not known yet.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total.load(Ordering::Relaxed)
    }

    /// From its begin to its end, or to now.
    pub fn elapsed(&self) -> Duration {
        let result = lock(&self.result);
        result
            .as_ref()
            .map_or_else(|| self.began.elapsed(), |(_, took)| *took)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn end(&self, result: Result<(), String>) {
        *lock(&self.result) = Some((result, self.began.elapsed()));
    }
}

/// Snapshots of this run.
#[derive(Default)]
struct Snapshots {
    /// The snapshot in progress, or the last one.
    latest: Option<Arc<Job>>,
    /// The target of a snapshot that was requested while another one was being made.
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

/// Logs a warning if other users can open the data directory: then it was not made by a server, or
/// it was made by an older one.
pub fn warn_if_open_to_others(dir: &Path) {
    if is_open_to_others(dir) {
        tracing::warn!(
            dir = %dir.display(),
            "other users of this machine can open the data directory, and perhaps its files: they could read all data, or lock it, so \
             that no server starts; `chmod -R go= DIR` ends that"
        );
    }
}

/// Logs a warning if a data directory that has no store yet was meant for a file system that is
/// not mounted.
pub fn warn_if_not_mounted(dir: &Path) {
    if !dir.join("superblock").exists()
        && let Some(point) = duramen_config::mounts::missing_above(dir)
    {
        tracing::warn!(
            dir = %dir.display(),
            "a new store begins here, and {} is not mounted, though /etc/fstab has it: if the data is on that file system, stop \
             this server and mount it",
            point.display()
        );
    }
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
            encryption_key: config.key_source(),
            ..defaults
        };
        if let Ok(place) = SnapshotPaths::new(config, Target::Dump, 0)
            && let Err(error) = place.clear()
        {
            tracing::warn!(dir = %place.fresh.display(), "the beginning of a snapshot is left: {error}");
        }
        warn_if_not_mounted(&dir);
        let store = Store::open_with_progress(options, progress)?;
        warn_if_open_to_others(&dir);
        let directory = store.directory();
        if let Some(damage) = directory.and_then(|it| it.hint_damage()) {
            tracing::warn!(
                "what was read often before the start is not all known ({damage}): it is fetched from flash when it is asked for"
            );
        }
        if let Some((asked, raised)) = directory.and_then(|it| it.raised_disk()) {
            tracing::warn!(
                "`disk-size` is {} MiB, and with so many threads the log needs {} MiB: it gets these",
                asked >> 20,
                raised >> 20
            );
        }
        if let Some((room, wanted)) = directory.and_then(|it| it.lacking_room()) {
            tracing::warn!(
                "the directory was made for {} MiB of log, and the settings ask for {}: writes are refused when that is full; a snapshot \
                 taken now has the room, if it is served instead",
                room >> 20,
                wanted >> 20
            );
        }
        if let Some(directory) = directory {
            directory.watch_repairs(log_repair);
        }
        store.watch_disk(log_disk);
        Ok(Durability {
            store,
            snapshots: Mutex::default(),
        })
    }

    /// The layer of a member of a cluster, whose log is on other servers.
    pub fn of_member(store: Arc<Store>) -> Durability {
        Durability {
            store,
            snapshots: Mutex::default(),
        }
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub fn log(&self) -> &LogWriter {
        self.store
            .log()
            .expect("a store with a directory has a log")
    }

    /// The reason for which the last appended data does not become durable now; `None` if it does.
    pub fn failure(&self) -> Option<String> {
        match self.log().disk() {
            DiskState::Ok => None,
            DiskState::Full => Some("the disk is full".to_owned()),
            DiskState::Failed(why) => Some(format!("the disk failed: {why}")),
        }
    }

    /// Number of other servers that have a write when the write has reached its level; 0: this
    /// server is not a member of a cluster.
    pub fn replicas(&self) -> usize {
        self.log().replicas().unwrap_or(0)
    }

    pub fn stats(&self) -> DurabilityStats {
        self.store
            .stats()
            .expect("a store with a directory has figures")
    }

    /// Whether written data is not on disk yet.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.unwritten().is_none()
    }

    /// The written data that is not on disk yet.
    pub fn unwritten(&self) -> Position {
        let log = self.store.engine().log();
        log.map(Log::appended).unwrap_or_default()
    }

    /// Whether all data of `position` is on disk.
    pub fn is_written(&self, position: &Position) -> bool {
        let log = self.store.engine().log();
        log.is_none_or(|log| log.reached(position) == Level::Synced)
    }

    /// A number that grows with each write or sync that the disk has ended.
    pub fn disk_answers(&self) -> u64 {
        self.store.directory().map_or(0, |it| it.answers())
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

    /// Reserves a snapshot, which [`make_snapshot`](Self::make_snapshot) makes.
    ///
    /// # Errors
    /// A text, if another snapshot is in progress or there is no place for one.
    pub(crate) fn begin_snapshot(
        &self,
        config: &ServerConfig,
        target: Target,
    ) -> Result<(SnapshotPaths, Arc<Job>), String> {
        let mut snapshots = lock(&self.snapshots);
        if let Some(job) = &snapshots.latest
            && job.result().is_none()
        {
            return Err(format!(
                "ERR Background save already in progress: to {}",
                job.dir().display()
            ));
        }
        let own = self.store.directory().map_or(0, |it| it.id());
        let place = SnapshotPaths::new(config, target, own)?;
        let job = Arc::new(Job::new(place.shown().to_owned()));
        snapshots.latest = Some(Arc::clone(&job));
        Ok((place, job))
    }

    /// Makes a snapshot on this thread; returns the target of the one that was scheduled after it.
    pub(crate) fn make_snapshot(&self, place: &SnapshotPaths, job: &Job) -> Option<Target> {
        seldom!(info, dir = %job.dir().display(), "making a snapshot");
        let result = place.make(|dir| {
            let report = self.store.snapshot_with_progress(dir, |progress| {
                job.bytes_done.store(progress.bytes_done, Ordering::Relaxed);
                job.bytes_total
                    .store(progress.bytes_total, Ordering::Relaxed);
            });
            report.map_err(|error| error.to_string())
        });
        match &result {
            Ok(report) => seldom!(
                info,
                dir = %job.dir().display(),
                segments = report.segments,
                bytes = report.bytes,
                ms = report.elapsed.as_millis() as u64,
                "the snapshot is done"
            ),
            Err(why) => seldom!(error, dir = %job.dir().display(), "the snapshot failed: {why}"),
        }
        let mut snapshots = lock(&self.snapshots);
        if result.is_ok() {
            snapshots.saved_s = now_s();
            snapshots.saves += 1;
        }
        job.end(result.map(|_| ()));
        snapshots.next.take()
    }
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

fn log_disk(state: &DiskState) {
    match state {
        DiskState::Ok => seldom!(info, "the disk takes writes again"),
        DiskState::Full => seldom!(
            warn,
            "the disk is full: writes are refused until it has room"
        ),
        DiskState::Failed(reason) => tracing::error!(
            "the disk has failed, and all writes are refused from now on: {reason}; replace it, and restart"
        ),
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

    /// `rdb_last_bgsave_time_sec` grew for ever.
    #[test]
    fn the_time_of_a_snapshot_ends_with_it() {
        let job = Job::new(PathBuf::from("dump"));
        job.end(Ok(()));
        let took = job.elapsed();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(job.elapsed(), took);
    }
}
