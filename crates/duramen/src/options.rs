//! How a durable store is opened.

use duramen_base::ids::Level;
use duramen_base::units::{GIB, MIB};
use std::path::PathBuf;
use std::time::Duration;

pub use duramen_backup::Mode;

/// How a [`Store`](crate::Store) is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the data lives; made if it does not exist. In mode `raw` a device or a preallocated file.
    /// `None` = in memory alone.
    pub dir: Option<PathBuf>,
    /// Memory budget and the rest of the engine. Its `log` field is filled in here.
    pub engine: duramen_engine::Options,
    /// What a write has to reach before it is acknowledged, where neither table nor request says otherwise.
    pub level: Level,
    pub mode: Mode,
    /// Bytes of the write-ahead log. Only used when the directory is made.
    pub wal_bytes: u64,
    /// Most bytes that frames may take. 0 = `disk_expansion` times the memory budget.
    pub disk_bytes: u64,
    /// Segments on disk for each segment of memory. Paper: [Rumble14 §5.2] uses 2.
    pub disk_expansion: f64,
    /// False: no compaction in memory; memory and disk are cleaned together only. For comparison.
    pub two_levels: bool,
    /// Longest time that a commit waits for company. 0 = never: what arrives during a commit forms the next one.
    pub commit_window: Duration,
    /// One frame is read again and verified in this time; 0 = only when somebody asks ([`Store::scrub`](crate::Store::scrub)).
    pub scrub_interval: Duration,
    /// With a flash tier: what is read often is written down this often, or less so that it costs little; 0 = never.
    pub heat_interval: Duration,
    /// Threads that load segments at a restart; 0 = two per core.
    pub restart_threads: usize,
    /// Versions of a store that is made begin above this one: its objects come from elsewhere.
    pub version_floor: u64,
    /// Name of the cluster; a directory of another one is refused.
    pub cluster: String,
    /// A bug for tests to find.
    #[cfg(feature = "planted")]
    pub planted: Option<crate::Bug>,
}

impl Options {
    /// The defaults for a store in `dir` with a memory budget of `memory_bytes`.
    pub fn new(dir: impl Into<PathBuf>, memory_bytes: u64) -> Options {
        Options {
            dir: Some(dir.into()),
            level: Level::Synced,
            ..Options::memory(memory_bytes)
        }
    }

    /// The defaults for a store without a directory.
    pub fn memory(memory_bytes: u64) -> Options {
        Options {
            dir: None,
            engine: duramen_engine::Options::new(memory_bytes),
            level: Level::Memory,
            mode: Mode::Buffered,
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
            #[cfg(feature = "planted")]
            planted: None,
        }
    }
}

/// A quarter of the memory, within bounds: enough to absorb the frames that are being written, small enough to scan quickly.
fn default_wal_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / 4).clamp(64 * MIB, GIB)
}
