//! Which backups are there, but do not do what they are asked (Q8).
//!
//! A backup whose disk hangs still answers pings, and one that this server alone cannot reach
//! answers everybody else's. Neither is ever called crashed, and each would hold up this log for
//! ever.
//!
//! **Concurrency** none: one owner, the way to the backups.

use super::PATIENCE_US;
use duramen_cluster::replication::BackupId;
use std::collections::{BTreeMap, BTreeSet};

/// Questions in vain, [`PATIENCE_US`] apart, after which a backup is silent.
const ASKED_MAX: u32 = 8;
/// Nobody has answered anything for this long: this server itself may be cut off.
const CUT_OFF_US: u64 = 1_000_000;

/// What a question needs of a backup.
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

/// See the module.
#[derive(Default)]
pub(super) struct Silence {
    in_vain: BTreeMap<(BackupId, Need), InVain>,
    /// When somebody answered something.
    heard_us: u64,
}

impl Silence {
    /// Some server answered this one.
    pub fn heard(&mut self, now_us: u64) {
        self.heard_us = self.heard_us.max(now_us);
    }

    /// `backup` did what it was asked.
    pub fn answered(&mut self, backup: BackupId, need: Need) {
        self.in_vain.remove(&(backup, need));
    }

    /// A question to `backup` was not answered in time.
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
            known.asked = 0; // this server was stopped meanwhile, or did not ask
        } else if since_us < PATIENCE_US {
            return;
        }
        known.asked += 1;
        known.counted_us = now_us;
    }

    /// Forgets a backup.
    pub fn forget(&mut self, backup: BackupId) {
        self.in_vain.retain(|(known, _), _| *known != backup);
    }

    /// Who was asked in vain for long.
    pub fn silent(&self) -> BTreeSet<BackupId> {
        let long = self
            .in_vain
            .iter()
            .filter(|(_, vain)| vain.asked >= ASKED_MAX);
        long.map(|((backup, _), _)| *backup).collect()
    }
}
