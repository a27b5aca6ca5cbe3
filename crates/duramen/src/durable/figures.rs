//! Collects the figures of a store's durable side.

use super::{Durable, Local};
use crate::{DurabilityStats, Latency};
use std::sync::atomic::Ordering;

impl Durable {
    /// The figures of this side; the store adds its own.
    pub fn stats(&self) -> DurabilityStats {
        let (segments_listed, appended_bytes) = {
            let commit = self.lock();
            (
                commit.master.state().segments.len() as u64,
                commit.appended_bytes,
            )
        };
        DurabilityStats {
            disk: self.disk_state(),
            undurable_bytes: self.log().undurable_bytes(),
            segments_listed,
            appended_bytes,
            ..self.local().map_or_else(Default::default, Local::stats)
        }
    }
}

impl Local {
    fn stats(&self) -> DurabilityStats {
        let backup = self.backup.stats();
        DurabilityStats {
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
