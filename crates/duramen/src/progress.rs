//! Progress of a restart or a snapshot.

use std::time::{Duration, Instant};

/// Phase of a restart or a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading the write-ahead log.
    Log,
    /// There was no store: the files of a new one are laid out, which takes as long as the disk
    /// needs to write them.
    Making,
    /// Reading segments and building the index.
    Segments,
    /// Copying segments (a snapshot).
    Copying,
    Done,
}

/// Progress of a restart or a snapshot. Totals are 0 while unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    pub bytes_done: u64,
    pub bytes_total: u64,
    pub entries_done: u64,
    pub entries_total: u64,
    pub elapsed: Duration,
}

impl Progress {
    /// Nothing done yet.
    pub(crate) fn new(phase: Phase, started: Instant) -> Progress {
        Progress {
            phase,
            bytes_done: 0,
            bytes_total: 0,
            entries_done: 0,
            entries_total: 0,
            elapsed: started.elapsed(),
        }
    }

    /// Time left at the pace so far; `None` = unknown.
    ///
    /// ```
    /// # use duramen::{Options, Store};
    /// # let dir = tempfile::tempdir()?;
    /// # let options = Options::new(dir.path().join("store"), 64 << 20);
    /// let store = Store::open_with_progress(options, |progress| {
    ///     if let Some(left) = progress.eta() {
    ///         println!("{} s left", left.as_secs());
    ///     }
    /// })?;
    /// # store.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn eta(&self) -> Option<Duration> {
        if self.bytes_done == 0 || self.bytes_total < self.bytes_done {
            return None;
        }
        let left = (self.bytes_total - self.bytes_done) as f64 / self.bytes_done as f64;
        Some(self.elapsed.mul_f64(left))
    }
}

/// Result of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotReport {
    pub segments: u64,
    pub bytes: u64,
    pub elapsed: Duration,
}
