//! The options with which a store is opened.

use crate::DiskMode;
use duramen_base::ids::Level;
use duramen_base::units::{GIB, MIB};
use duramen_cipher::KeySource;
use std::path::PathBuf;
use std::time::Duration;

/// The options with which a [`Store`](crate::Store) is opened: the place of its data, its memory
/// budget, and the level at which a write is acknowledged. The two constructors choose defaults for
/// everything else; the other methods change one option each.
///
/// ```
/// use duramen::{Level, Options};
///
/// // 64 MiB of memory, in a directory; a write returns when it survives the end of the process.
/// let options = Options::new("/var/lib/app/store", 64 << 20).level(Level::Buffered);
/// // No directory at all: for tests, or for what may be lost.
/// let options = Options::memory(64 << 20);
/// # let _ = options;
/// ```
// The server and the simulator set the fields; they are no part of the stable API.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of the data; created if it does not exist. In mode `raw` a device or a
    /// preallocated file. `None` = in memory alone.
    #[doc(hidden)]
    pub dir: Option<PathBuf>,
    /// Memory budget and other options of the engine. Its `log` field is filled in here.
    #[doc(hidden)]
    pub engine: duramen_engine::Options,
    /// The level at which a write is acknowledged, if neither table nor request sets one.
    #[doc(hidden)]
    pub level: Level,
    #[doc(hidden)]
    pub mode: DiskMode,
    /// Bytes of the write-ahead log. Only used when the directory is created.
    #[doc(hidden)]
    pub wal_bytes: u64,
    /// Most bytes that frames may take. 0 = `disk_expansion` times the memory budget.
    #[doc(hidden)]
    pub disk_bytes: u64,
    /// Segments on disk for each segment of memory. Paper: [Rumble14 §5.2] uses 2.
    #[doc(hidden)]
    pub disk_expansion: f64,
    /// Whether memory is also compacted alone; if not, it is cleaned together with the disk only,
    /// for comparison.
    #[doc(hidden)]
    pub two_levels: bool,
    /// Longest time that a commit waits for more writers. 0 = no wait: writes that arrive during a
    /// commit form the next one.
    #[doc(hidden)]
    pub commit_window: Duration,
    /// Interval at which one frame is read again and verified; 0 = only on request
    /// ([`Store::scrub`](crate::Store::scrub)).
    #[doc(hidden)]
    pub scrub_interval: Duration,
    /// With a flash tier: interval at which the hashes of hot keys are stored, longer if it would
    /// cost too much; 0 = never.
    #[doc(hidden)]
    pub heat_interval: Duration,
    /// Threads that load segments at a restart; 0 = two per core.
    #[doc(hidden)]
    pub restart_threads: usize,
    /// Versions of a new store begin above this one: its objects come from elsewhere.
    #[doc(hidden)]
    pub version_floor: u64,
    /// Name of the cluster; a directory of another one is refused.
    #[doc(hidden)]
    pub cluster: String,
    /// The key of an encrypted store; `None`: it is not encrypted.
    #[doc(hidden)]
    pub encryption_key: Option<KeySource>,
}

impl Options {
    /// A store in `dir`, which is created if it does not exist, with a memory budget of
    /// `memory_bytes`: a hard limit for data, index and tables, at least
    /// [`MEMORY_BYTES_MIN`](crate::MEMORY_BYTES_MIN). Writes are acknowledged at [`Level::Synced`].
    /// Beside the budget a store takes buffers for data in flight to the disk.
    ///
    /// The disk takes up to about twice the budget for data [Rumble14 §5.2] and a quarter of it,
    /// 64 MiB to 1 GiB, for the write-ahead log; an empty store takes a small part of that.
    ///
    /// ```
    /// use duramen::{Options, Store};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(dir: impl Into<PathBuf>, memory_bytes: u64) -> Options {
        Options {
            dir: Some(dir.into()),
            level: Level::Synced,
            ..Options::memory(memory_bytes)
        }
    }

    /// A store without a directory: its data ends with it. All writes are acknowledged at
    /// [`Level::Memory`]. `memory_bytes` as in [`new`](Self::new).
    ///
    /// ```
    /// use duramen::{Options, Store};
    ///
    /// let store = Store::open(Options::memory(64 << 20))?;
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn memory(memory_bytes: u64) -> Options {
        Options {
            dir: None,
            engine: duramen_engine::Options::new(memory_bytes),
            level: Level::Memory,
            mode: DiskMode::Buffered,
            wal_bytes: default_wal_bytes(memory_bytes),
            disk_bytes: 0,
            disk_expansion: 2.0,
            two_levels: true,
            commit_window: Duration::ZERO,
            scrub_interval: Duration::from_secs(1),
            heat_interval: Duration::from_secs(10),
            restart_threads: 0,
            version_floor: 0,
            cluster: "duramen".to_owned(),
            encryption_key: None,
        }
    }

    /// Encrypts everything that the store writes: its directory, which is created so, and its
    /// snapshots. The key is read when the store is opened and for each snapshot; it is not kept. A
    /// directory that is not encrypted, or that has another key, is refused.
    ///
    /// ```
    /// # use duramen::{KeySource, Options};
    /// let key = KeySource::File("/etc/app/key".into());
    /// let options = Options::new("data", 64 << 20).encryption_key(key);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn encryption_key(mut self, key: KeySource) -> Options {
        self.encryption_key = Some(key);
        self
    }

    /// The level at which a write is acknowledged, if neither its table nor its session sets one.
    ///
    /// ```
    /// # use duramen::{Level, Options};
    /// let options = Options::new("data", 64 << 20).level(Level::Memory);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn level(mut self, level: Level) -> Options {
        self.level = level;
        self
    }

    /// A cache: when memory is full, objects that were not read recently or often are evicted, and
    /// writes continue [Rumble14 §8.6]. Otherwise writes are refused
    /// ([`Error::OutOfMemory`](crate::Error::OutOfMemory)), and nothing is lost.
    ///
    /// ```
    /// # use duramen::Options;
    /// let options = Options::memory(64 << 20).cache();
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn cache(mut self) -> Options {
        self.engine.mode = duramen_engine::Mode::Cache;
        self
    }

    /// Highest memory budget that [`Store::set_memory`](crate::Store::set_memory) can set later.
    /// The store reserves address space and some tables for it, and counts it in its default size
    /// on disk. Without it, that is the budget with which the store is opened.
    ///
    /// ```
    /// # use duramen::Options;
    /// let options = Options::memory(64 << 20).memory_max(256 << 20);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn memory_max(mut self, bytes: u64) -> Options {
        self.engine.memory_bytes_max = bytes;
        self
    }

    /// Most bytes of data on disk, including dead data that is not yet cleaned. Should be 1.5 times
    /// the memory budget or more; the less, the more is written by cleaning. 0 = twice the memory
    /// budget. An existing store keeps the room with which it was created, if that is less.
    ///
    /// ```
    /// # use duramen::Options;
    /// let options = Options::new("data", 1 << 30).disk_bytes(4 << 30);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn disk_bytes(mut self, bytes: u64) -> Options {
        self.disk_bytes = bytes;
        self
    }

    /// Bytes of the write-ahead log; used only when the directory is created. A larger log takes
    /// longer bursts of writes before they wait for data files, and makes a start after a crash
    /// longer.
    ///
    /// ```
    /// # use duramen::Options;
    /// let options = Options::new("data", 64 << 20).wal_bytes(16 << 20);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn wal_bytes(mut self, bytes: u64) -> Options {
        self.wal_bytes = bytes;
        self
    }

    /// The way to write files: through the page cache (the default), bypassing it, or to one
    /// device.
    ///
    /// ```
    /// # use duramen::{DiskMode, Options};
    /// let options = Options::new("data", 64 << 20).disk_mode(DiskMode::Direct);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn disk_mode(mut self, mode: DiskMode) -> Options {
        self.mode = mode;
        self
    }

    /// Number of segments that threads write to at the same time, each thread to its own: as many
    /// as threads write all the time. 0 (the default) = one per core. Each takes 2 to 8 MiB of
    /// memory.
    ///
    /// ```
    /// # use duramen::Options;
    /// let options = Options::new("data", 64 << 20).heads(1); // for a program with one thread
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn heads(mut self, heads: usize) -> Options {
        self.engine.heads = heads;
        self
    }

    /// Threads that clean memory in the background (1 by default). 0 = none: writers clean when
    /// they must. A small store starts fewer: one for each 16 MiB.
    ///
    /// ```
    /// # use duramen::Options;
    /// let options = Options::new("data", 64 << 20).cleaners(2);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn cleaners(mut self, threads: usize) -> Options {
        self.engine.cleaners = threads;
        self
    }

    /// Whether huge pages are requested from the kernel (the default): reads are faster, and memory
    /// is taken in steps of 2 MiB.
    ///
    /// ```
    /// # use duramen::Options;
    /// let options = Options::memory(64 << 20).huge_pages(false);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn huge_pages(mut self, on: bool) -> Options {
        self.engine.huge_pages = on;
        self
    }

    /// Longest time that a commit waits for more writers. 0 (the default) = no wait: writes that
    /// arrive during a commit form the next one, so groups form by themselves.
    ///
    /// ```
    /// # use duramen::Options;
    /// # use std::time::Duration;
    /// let options = Options::new("data", 64 << 20).commit_window(Duration::from_micros(200));
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn commit_window(mut self, window: Duration) -> Options {
        self.commit_window = window;
        self
    }

    /// Interval at which one segment on disk is read again and verified (1 second by default); 0 =
    /// only on request ([`Store::scrub`](crate::Store::scrub)).
    ///
    /// ```
    /// # use duramen::Options;
    /// # use std::time::Duration;
    /// let options = Options::new("data", 64 << 20).scrub_interval(Duration::ZERO);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn scrub_interval(mut self, interval: Duration) -> Options {
        self.scrub_interval = interval;
        self
    }
}

/// A quarter of the memory, within bounds: enough to absorb the frames that are being written,
/// small enough to scan quickly.
fn default_wal_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / 4).clamp(64 * MIB, GIB)
}
