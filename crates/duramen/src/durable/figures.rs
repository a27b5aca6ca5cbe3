//! Collects the figures of a store's durable side.

use super::{Bytes, Commit, Durable, Local};
use crate::{DurabilityStats, Latency};
use std::sync::atomic::{AtomicU64, Ordering};

/// Figures of the committing thread for threads that do not wait for it: `commit`'s lock is held
/// while the disk works.
#[derive(Default)]
pub(crate) struct Figures {
    segments_listed: AtomicU64,
    appended_bytes: AtomicU64,
    cleaning_network_bytes: AtomicU64,
    recipes_sent: AtomicU64,
    recipes_refused: AtomicU64,
    damaged_sends: AtomicU64,
}

impl Figures {
    /// The caller holds `commit`'s lock.
    pub fn note(&self, commit: &Commit) {
        let listed = commit.master.control().state().segments.len() as u64;
        self.segments_listed.store(listed, Ordering::Relaxed);
        self.appended_bytes
            .store(commit.appended_bytes, Ordering::Relaxed);
    }

    /// A survivor of a pass is sent to a backup.
    pub fn note_cleaning(&self, bytes: &Bytes) {
        let sent = match bytes {
            Bytes::Here(bytes) => bytes.len(),
            Bytes::Built { recipe, .. } => {
                self.recipes_sent.fetch_add(1, Ordering::Relaxed);
                recipe.len()
            }
            Bytes::At(_) => 0, // it is read from another backup, as a lost replica is
        };
        self.cleaning_network_bytes
            .fetch_add(sent as u64, Ordering::Relaxed);
    }

    /// A backup has found the bytes of a write damaged.
    pub fn note_damaged(&self) {
        self.damaged_sends.fetch_add(1, Ordering::Relaxed);
    }

    /// A backup did not build a survivor, and is sent its bytes.
    pub fn note_refused_recipe(&self, bytes: u64) {
        self.recipes_refused.fetch_add(1, Ordering::Relaxed);
        self.cleaning_network_bytes
            .fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Durable {
    /// The figures of this side; the store adds its own. Waits for no disk.
    pub fn stats(&self) -> DurabilityStats {
        let log = self.common.log();
        let room = self.local().map(|_| log.swaps().disk().room());
        let (log_segments, log_segments_max) = room.unwrap_or_default();
        let figures = &self.common.figures;
        DurabilityStats {
            log_segments,
            log_segments_max,
            disk: self.common.disk_state(),
            undurable_bytes: log.undurable_bytes(),
            segments_listed: figures.segments_listed.load(Ordering::Relaxed),
            appended_bytes: figures.appended_bytes.load(Ordering::Relaxed),
            cleaning_network_bytes: figures.cleaning_network_bytes.load(Ordering::Relaxed),
            recipes_sent: figures.recipes_sent.load(Ordering::Relaxed),
            recipes_refused: figures.recipes_refused.load(Ordering::Relaxed),
            damaged_sends: figures.damaged_sends.load(Ordering::Relaxed),
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
            scrubbed_frames: self.scrub.verified(),
            bad_frames: self.repairs.found(),
            flipped_bits: backup.flipped_bits,
            scrub_repaired: self.repairs.repaired(),
            scrub_pending: self.repairs.waiting(),
            scrub_lost: self.repairs.lost(),
            quarantined_frames: u64::from(backup.quarantined),
            scrub: self.scrub.progress(),
            ..DurabilityStats::default()
        }
    }
}
