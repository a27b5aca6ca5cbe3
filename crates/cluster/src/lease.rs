//! Read leases: a master reads as long as all holders of control segments of its log grant it
//! leases.
//!
//! A recovery has to reach one of those holders, because only they have the list of the log. So
//! when the leases that they gave have run out, the old master has stopped serving, even if it
//! cannot be told (docs/protocols.md, "Leases").
//!
//! **Rules**
//! - E1: a master counts a lease from when it *sent* the answered request, a holder from when it
//!   *received* it.
//! - E2: a master serves a read only if, after it was executed, the leases of all holders of all
//!   eligible control segments run.
//! - E3: the holder's clock may run faster than the master's by a tenth: the master's lease is
//!   shorter by that.
//! - E4: a holder that was restarted has lost its grants: for one lease from its start it counts as
//!   having granted all.
//!
//! Times are microseconds of a monotonic clock of the process, from any origin.
//!
//! Paper: [Ousterhout15 §7.10] zombies are only made unlikely there; differs: reads are never wrong
//! (docs/traps.md, trap 26).

use crate::replication::BackupId;
use std::collections::BTreeMap;

/// The rate of a holder's clock relative to the master's, at most (E3), in percent.
const DRIFT_PERCENT: u64 = 110;

/// The leases of a master.
#[derive(Clone, Debug)]
pub struct MasterLease {
    lease_us: u64,
    /// The end of each holder's lease.
    until: BTreeMap<BackupId, u64>,
}

impl MasterLease {
    /// `lease_us`: the lease of a holder after an answer.
    pub fn new(lease_us: u64) -> MasterLease {
        MasterLease {
            lease_us: lease_us * 100 / DRIFT_PERCENT,
            until: BTreeMap::new(),
        }
    }

    /// A holder has answered a request that was sent at `sent_us` (E1).
    pub fn granted(&mut self, holder: BackupId, sent_us: u64) {
        let until = self.until.entry(holder).or_default();
        *until = (*until).max(sent_us + self.lease_us);
    }

    /// The time until which reads are served; 0 if some holder has granted nothing, or there is no
    /// holder: then no recovery would ask for the log (collect::G1).
    pub fn until(&self, holders: impl IntoIterator<Item = BackupId>) -> u64 {
        holders
            .into_iter()
            .map(|holder| self.until.get(&holder).copied().unwrap_or(0))
            .min()
            .unwrap_or(0)
    }

    /// E2: whether a reply may leave now.
    pub fn is_valid(&self, now_us: u64, holders: impl IntoIterator<Item = BackupId>) -> bool {
        now_us < self.until(holders)
    }

    /// The holders to ask now, because less than half of the lease is left.
    pub fn due(&self, now_us: u64, holders: impl IntoIterator<Item = BackupId>) -> Vec<BackupId> {
        let left = |holder: &BackupId| {
            let until = self.until.get(holder).copied().unwrap_or(0);
            until.saturating_sub(now_us)
        };
        holders
            .into_iter()
            .filter(|holder| left(holder) < self.lease_us / 2)
            .collect()
    }

    /// Drops all holders except these.
    pub fn keep(&mut self, holders: &[BackupId]) {
        self.until.retain(|holder, _| holders.contains(holder));
    }
}

/// The leases that a backup has granted to the masters of logs.
#[derive(Clone, Debug)]
pub struct HolderLease {
    lease_us: u64,
    started_us: u64,
    /// When each log's master was answered last.
    answered: BTreeMap<u64, u64>,
}

impl HolderLease {
    pub fn new(lease_us: u64, started_us: u64) -> HolderLease {
        HolderLease {
            lease_us,
            started_us,
            answered: BTreeMap::new(),
        }
    }

    /// A request of this log was received at `received_us` and is answered. Not for a fenced log.
    pub fn grant(&mut self, log: u64, received_us: u64) {
        let answered = self.answered.entry(log).or_default();
        *answered = (*answered).max(received_us);
    }

    /// The time for which the log's master may still read because of this holder, in microseconds.
    pub fn left(&self, log: u64, now_us: u64) -> u64 {
        let last = self.answered.get(&log).copied().unwrap_or(0);
        let from = last.max(self.started_us); // E4
        (from + self.lease_us).saturating_sub(now_us)
    }

    /// The log is recovered: no master reads from it.
    pub fn forget(&mut self, log: u64) {
        self.answered.remove(&log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_base::random::Random;

    const HOLDERS: [BackupId; 2] = [BackupId(1), BackupId(2)];

    #[test]
    fn all_holders_must_grant_and_the_oldest_counts() {
        let mut lease = MasterLease::new(110_000);
        assert!(!lease.is_valid(0, HOLDERS));
        lease.granted(BackupId(1), 5_000);
        assert!(!lease.is_valid(6_000, HOLDERS));
        lease.granted(BackupId(2), 2_000);
        assert_eq!(lease.until(HOLDERS), 102_000);
        assert!(lease.is_valid(101_999, HOLDERS) && !lease.is_valid(102_000, HOLDERS));
        assert_eq!(lease.due(53_000, HOLDERS), [BackupId(2)]);
        lease.granted(BackupId(2), 1_000); // late, and for an older request
        assert_eq!(lease.until(HOLDERS), 102_000);
        lease.keep(&[BackupId(1)]);
        assert!(!lease.is_valid(6_000, HOLDERS));
        assert!(
            !lease.is_valid(6_000, []),
            "without a log nothing is served"
        );
    }

    /// With any delays and, within a tenth, any clocks: while the master reads, the holder's lease
    /// runs.
    #[test]
    fn scenario_27_a_holder_never_says_less_than_the_master_believes() {
        let (mut master, mut holder) = (MasterLease::new(1_000), HolderLease::new(1_000, 0));
        let mut random = Random::new(7);
        let mut roll = |sides: u64| random.below(sides);
        // Times of the master; the holder's clock runs faster by up to a tenth.
        let (mut now, rate) = (0u64, 110);
        let mut read = 0;
        for _ in 0..20_000 {
            let sent = now;
            now += roll(400);
            holder.grant(9, now * rate / 100);
            let answer_is_lost = roll(4) == 0;
            let received = now;
            now = received + roll(400);
            if !answer_is_lost {
                master.granted(BackupId(1), sent);
            }
            now += roll(900);
            if master.is_valid(now, [BackupId(1)]) {
                read += 1;
                assert!(holder.left(9, now * rate / 100) > 0 || answer_is_lost);
                let left = holder.left(9, now * rate / 100);
                assert!(left > 0, "at {now}: read, and nothing left");
            }
        }
        assert!(read > 1_000);
    }

    #[test]
    fn a_restarted_holder_is_taken_to_have_granted() {
        let holder = HolderLease::new(1_000, 500);
        assert_eq!(holder.left(9, 700), 800);
        assert_eq!(holder.left(9, 1_500), 0);
    }
}
