//! Detects backups that are alive, but do not carry out requests (remote::Q8).
//!
//! A backup with a hung disk still answers pings, and one that only this server cannot reach
//! answers all other servers' pings. Neither is ever declared crashed, and each would hold up this
//! log for ever.
//!
//! **Concurrency** none: one owner, [`Remote`](super::Remote).

use super::PATIENCE_US;
use duramen_cluster::replication::BackupId;
use std::collections::{BTreeMap, BTreeSet};

/// Unanswered requests, [`PATIENCE_US`] apart, after which a backup is silent.
const ASKED_MAX: u32 = 8;
/// No server has answered anything for this long: this server itself may be cut off.
const CUT_OFF_US: u64 = 1_000_000;

/// The part of a backup that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Disk,
    Lease,
}

struct InVain {
    asked: u32,
    /// When the last of them was counted.
    counted_us: u64,
}

/// The unanswered requests of all backups; see the module.
#[derive(Default)]
pub(super) struct Silence {
    in_vain: BTreeMap<(BackupId, Need), InVain>,
    /// When any server last answered.
    heard_us: u64,
}

impl Silence {
    /// Some server answered this one.
    pub fn heard(&mut self, now_us: u64) {
        self.heard_us = self.heard_us.max(now_us);
    }

    /// `backup` carried out a request.
    pub fn answered(&mut self, backup: BackupId, need: Need) {
        self.in_vain.remove(&(backup, need));
    }

    /// A request to `backup` was not answered in time.
    pub fn in_vain(&mut self, now_us: u64, backup: BackupId, need: Need) {
        if self.heard_us + CUT_OFF_US < now_us {
            return self.in_vain.clear();
        }
        let known = self.in_vain.entry((backup, need)).or_insert(InVain {
            asked: 0,
            counted_us: 0,
        });
        let since_us = now_us - known.counted_us;
        if since_us > 2 * PATIENCE_US {
            known.asked = 0; // this server was stopped meanwhile, or sent no request
        } else if since_us < PATIENCE_US {
            return;
        }
        known.asked += 1;
        known.counted_us = now_us;
    }

    /// Drops the state of a backup.
    pub fn forget(&mut self, backup: BackupId) {
        self.in_vain.retain(|(known, _), _| *known != backup);
    }

    /// Backups with unanswered requests for long.
    pub fn silent(&self) -> BTreeSet<BackupId> {
        let long = self
            .in_vain
            .iter()
            .filter(|(_, vain)| vain.asked >= ASKED_MAX);
        long.map(|((backup, _), _)| *backup).collect()
    }
}
