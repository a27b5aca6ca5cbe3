//! Scrubbing: frames are read again and verified, one at a time, then the write-ahead log;
//! continuously or on request.
//!
//! `repair` handles the damage.

use super::{Common, Local};
use crate::{Error, ScrubProgress};
use duramen_backup::ScrubStep;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Schedule of verification. Figures for any thread: each is independent, hence Relaxed.
pub(crate) struct Scrub {
    /// Microseconds per frame; 0 = only on request.
    interval_us: AtomicU64,
    left: AtomicU64,
    total: AtomicU64,
    /// Frames that were verified, and commits of the write-ahead log.
    verified: AtomicU64,
}

impl Scrub {
    pub fn new(interval: Duration) -> Scrub {
        Scrub {
            interval_us: AtomicU64::new(interval.as_micros() as u64),
            left: AtomicU64::new(0),
            total: AtomicU64::new(0),
            verified: AtomicU64::new(0),
        }
    }

    pub fn set_interval(&self, interval: Duration) {
        self.interval_us
            .store(interval.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn progress(&self) -> ScrubProgress {
        ScrubProgress {
            // Pairs with the Release in `count`.
            left: self.left.load(Ordering::Acquire),
            total: self.total.load(Ordering::Relaxed),
        }
    }

    /// Whether a frame must be verified now, if the last one was verified at `since`.
    pub fn is_due(&self, since: Instant) -> bool {
        let interval = self.interval_us.load(Ordering::Relaxed);
        self.is_asked_for() || interval > 0 && since.elapsed() >= Duration::from_micros(interval)
    }

    pub fn is_asked_for(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    pub fn verified(&self) -> u64 {
        self.verified.load(Ordering::Relaxed)
    }

    /// A requested scrub has one less to verify, and the caller has counted the damage that was
    /// found: a caller of `progress` that sees 0 left sees it as well. If another scrub was
    /// requested meanwhile, one frame is verified twice.
    fn count(&self) {
        let _ = self
            .left
            .fetch_update(Ordering::Release, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
    }
}

impl Local {
    /// Schedules the verification of all data on disk, one frame after the other. Returns their
    /// number.
    pub fn begin_scrub(&self) -> u64 {
        let total = self.backup.scrubber().scrubbable();
        self.scrub.total.store(total, Ordering::Relaxed);
        self.scrub.left.store(total, Ordering::Relaxed);
        total
    }

    /// Verifies one replica, as far as it is in a frame, or the write-ahead log. Returns whether
    /// there was one.
    ///
    /// # Errors
    /// As [`step`](Self::step): the repair of found damage begins.
    pub fn scrub_step(&self, common: &Common) -> Result<bool, Error> {
        self.check_open(common)?;
        let found = self.backup.scrubber().step()?;
        if found == ScrubStep::Idle {
            self.scrub.left.store(0, Ordering::Relaxed);
            return Ok(false);
        }
        self.scrub.verified.fetch_add(1, Ordering::Relaxed);
        match found {
            ScrubStep::Damaged { .. } => drop(self.repair(common)?),
            ScrubStep::DamagedLog(damage) => self.repairs.log_damaged(&damage),
            ScrubStep::Idle | ScrubStep::Good { .. } | ScrubStep::GoodLog { .. } => {}
        }
        self.scrub.count();
        Ok(true)
    }
}
