//! Figures of the durable side.

use duramen_base::ids::Level;
use duramen_cipher::KeyId;
use std::time::{Duration, SystemTime};

/// Whether the disk takes writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DiskState {
    #[default]
    Ok,
    /// Writes are refused until there is space.
    Full,
    /// Writes are refused until a restart; the reason is for a person.
    Failed(String),
}

/// Latencies of the last few thousand events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    pub last: Duration,
    pub average: Duration,
    pub p50: Duration,
    pub p99: Duration,
    pub max: Duration,
}

/// Progress of a requested scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Replicas, and the write-ahead log, still to be verified; 0 = it is done.
    pub left: u64,
    /// Their number when it began.
    pub total: u64,
}

/// Figures of memory, from [`Store::memory`](crate::Store::memory). Lengths are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The present budget: a hard limit for data, index and tables.
    pub budget_bytes: u64,
    /// Part of the budget that segments may take: the rest is index and tables.
    pub capacity_bytes: u64,
    /// Bytes of existing objects, headers included. Writes are refused at about 0.98 of the
    /// capacity.
    pub live_bytes: u64,
    pub index_bytes: u64,
    /// Bytes of segments that are backed by memory now.
    pub committed_bytes: u64,
    /// Bytes in use beyond a budget that was lowered, which have not been given back yet.
    pub excess_bytes: u64,
    /// Objects in all tables; expired ones that no operation has met yet count too.
    pub objects: u64,
    /// Objects that an operation or the cleaner found expired since the start, and objects that a
    /// cache evicted.
    pub expired: u64,
    pub evicted: u64,
}

/// Figures of the disk's side, from [`Store::stats`](crate::Store::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DurabilityStats {
    /// The store's default level.
    pub level: Level,
    pub disk: DiskState,
    /// The id of the master key that opened the store; `None`: it is not encrypted.
    pub encryption_key: Option<KeyId>,
    /// Bytes that are appended and not yet synced: a power cut now could lose those of levels below
    /// `synced`.
    pub undurable_bytes: u64,
    pub wal_bytes: u64,
    pub wal_used_bytes: u64,
    pub frames: u64,
    pub frames_used: u64,
    pub frame_bytes: u64,
    /// Segments of the data, as listed by the control log.
    pub segments_listed: u64,
    /// In a store with a disk of its own: its segments, those in progress included, and the number
    /// from which on writes are refused, as the disk has room for no more.
    pub log_segments: u64,
    pub log_segments_max: u64,
    pub commits: u64,
    pub syncs: u64,
    pub sync: Latency,
    /// Bytes written to the device since the start: to the write-ahead log, and to frames.
    pub wal_written_bytes: u64,
    pub frame_written_bytes: u64,
    /// Bytes appended by users since the start, headers included.
    pub appended_bytes: u64,
    /// In a cluster's member: bytes that were sent to backups for survivors of cleaning passes, as
    /// copies or as recipes.
    pub cleaning_network_bytes: u64,
    /// Survivors sent as recipes, one for each replica; and those that a backup could not build.
    pub recipes_sent: u64,
    pub recipes_refused: u64,
    /// In a cluster's member: writes whose bytes a backup found damaged. They were sent again.
    pub damaged_sends: u64,
    pub snapshot_running: bool,
    pub last_snapshot: Option<SystemTime>,
    /// Whether the last snapshot succeeded; `None` = there was none.
    pub last_snapshot_ok: Option<bool>,
    pub last_snapshot_duration: Duration,
    /// Bytes and entries that the last restart found, and the time that it took.
    pub loaded_bytes: u64,
    pub loaded_entries: u64,
    pub load_duration: Duration,
    /// Whether the last end was a clean shutdown.
    pub clean_start: bool,
    pub scrubbed_frames: u64,
    /// Replicas that were found damaged since the start.
    pub bad_frames: u64,
    /// Flipped bits that were put back since the start, or by it: on disk, or in memory before they
    /// were written there.
    pub flipped_bits: u64,
    /// The number of damaged replicas that are replaced, that are not yet, and that cannot be
    /// (these are among the pending ones).
    pub scrub_repaired: u64,
    pub scrub_pending: u64,
    pub scrub_lost: u64,
    /// Frames that are not used in this run, or only if there is no other: data in them went bad.
    pub quarantined_frames: u64,
    /// The progress of a requested scrub.
    pub scrub: ScrubProgress,
}

impl DurabilityStats {
    /// Every part of the data has a good copy on disk, as far as checks have found.
    ///
    /// ```
    /// # use duramen::{Options, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// assert!(store.stats().is_some_and(|stats| stats.is_sound()));
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_sound(&self) -> bool {
        self.scrub_pending == 0
    }

    /// Bytes written to the device for each byte appended; 0 if nothing was.
    ///
    /// ```
    /// # use duramen::{Options, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// let stats = store.stats().expect("it has a directory");
    /// assert_eq!(stats.write_amplification(), 0.0);
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_amplification(&self) -> f64 {
        if self.appended_bytes == 0 {
            return 0.0;
        }
        (self.wal_written_bytes + self.frame_written_bytes) as f64 / self.appended_bytes as f64
    }
}
