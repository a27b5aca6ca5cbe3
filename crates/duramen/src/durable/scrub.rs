//! Scrubbing: frames are read again and verified, one at a time, then the write-ahead log;
//! continuously or on request.
//!
//! `repair` handles the damage.

use super::Durable;
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
}

impl Scrub {
    pub fn new(interval: Duration) -> Scrub {
        Scrub {
            interval_us: AtomicU64::new(interval.as_micros() as u64),
            left: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }

    pub fn set_interval(&self, interval: Duration) {
        self.interval_us
            .store(interval.as_micros() as u64, Ordering::Relaxed);
    }

    pub fn progress(&self) -> ScrubProgress {
        ScrubProgress {
            // Pairs with the Release in `scrub_step`.
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
}

impl Durable {
    /// Schedules the verification of all data on disk, one frame after the other. Returns their
    /// number.
    pub fn begin_scrub(&self) -> u64 {
        let Some(local) = self.local() else {
            return 0; // the node verifies the replicas of others
        };
        let total = local.backup.scrubber().scrubbable();
        local.scrub.total.store(total, Ordering::Relaxed);
        local.scrub.left.store(total, Ordering::Relaxed);
        total
    }

    /// Verifies one replica, as far as it is in a frame, or the write-ahead log. Returns whether
    /// there was one.
    ///
    /// # Errors
    /// As [`background_step`](Self::background_step): the repair of found damage begins.
    pub fn scrub_step(&self) -> Result<bool, Error> {
        let Some(local) = self.local() else {
            return Ok(false);
        };
        self.check_open(local)?;
        let found = local.backup.scrubber().step()?;
        let left = &local.scrub.left;
        if found == ScrubStep::Idle {
            left.store(0, Ordering::Relaxed);
            return Ok(false);
        }
        local.scrubbed.fetch_add(1, Ordering::Relaxed);
        match found {
            ScrubStep::Damaged { .. } => drop(self.repair(local)?),
            ScrubStep::DamagedLog(damage) => local.repairs.log_damaged(&damage),
            ScrubStep::Idle | ScrubStep::Good { .. } | ScrubStep::GoodLog { .. } => {}
        }
        // After the repair was counted: a caller that sees 0 left sees the found damage as well. If
        // another scrub was requested meanwhile, one frame is verified twice.
        let _ = left.fetch_update(Ordering::Release, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        });
        Ok(true)
    }
}
