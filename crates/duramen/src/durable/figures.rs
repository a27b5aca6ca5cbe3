//! Collects the figures of a store's durable side.

use super::{Commit, Durable, Local};
use crate::{DurabilityStats, Latency};
use std::sync::atomic::{AtomicU64, Ordering};

/// Figures of the committing thread for threads that do not wait for it: `commit`'s lock is held
/// while the disk works.
#[derive(Default)]
pub(crate) struct Figures {
    segments_listed: AtomicU64,
    appended_bytes: AtomicU64,
}

impl Figures {
    /// The caller holds `commit`'s lock.
    pub fn note(&self, commit: &Commit) {
        let listed = commit.master.state().segments.len() as u64;
        self.segments_listed.store(listed, Ordering::Relaxed);
        self.appended_bytes
            .store(commit.appended_bytes, Ordering::Relaxed);
    }
}

impl Durable {
    /// The figures of this side; the store adds its own. Waits for no disk.
    pub fn stats(&self) -> DurabilityStats {
        DurabilityStats {
            disk: self.disk_state(),
            undurable_bytes: self.log().undurable_bytes(),
            segments_listed: self.figures.segments_listed.load(Ordering::Relaxed),
            appended_bytes: self.figures.appended_bytes.load(Ordering::Relaxed),
            ..self.local().map_or_else(Default::default, Local::stats)
        }
    }
}

impl Local {
    fn stats(&self) -> DurabilityStats {
        let backup = self.backup.stats();
        DurabilityStats {
            encryption_key: self.backup.encryption_key(),
            wal_bytes: backup.wal_bytes,
            wal_used_bytes: backup.wal_used_bytes,
            frames: u64::from(backup.frames),
            frames_used: u64::from(backup.frames_used),
            frame_bytes: u64::from(backup.frame_bytes),
            commits: backup.commits,
            syncs: backup.syncs,
            sync: match self.meter.count() {
                0 => Latency::default(),
                _ => self.meter.latency(),
            },
            wal_written_bytes: backup.wal_written_bytes,
            frame_written_bytes: backup.frame_written_bytes,
            scrubbed_frames: self.scrubbed.load(Ordering::Relaxed),
            bad_frames: self.bad_frames.load(Ordering::Relaxed),
            scrub_repaired: self.repairs.repaired(),
            scrub_pending: self.repairs.waiting(),
            scrub_lost: self.repairs.lost(),
            quarantined_frames: u64::from(backup.quarantined),
            scrub: self.scrub.progress(),
            ..DurabilityStats::default()
        }
    }
}
