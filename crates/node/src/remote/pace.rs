//! Detects backups that store writes much more slowly than the others (remote::Q9).
//!
//! A failing or overloaded disk may need seconds for each write and still never be silent for long.
//! Each write waits for the slowest of its backups, so one such disk sets the pace of every log
//! with an open segment there.
//!
//! **Concurrency** none: one owner, [`Remote`](super::Remote).

use duramen_cluster::replication::BackupId;
use std::collections::BTreeMap;

/// Shortest mean time of a write on a slow backup.
pub(crate) const SLOW_US: u64 = 250_000;
/// Least multiple of the others' median.
const TIMES: u64 = 10;
/// Shortest time between the first and the last slow answer, and fewest slow answers.
const LONG_US: u64 = 4_000_000;
const ANSWERS: u32 = 4;
/// Older figures of another backup say nothing about now.
const RECENT_US: u64 = 10_000_000;
/// Weight of a new time in the mean: 1 / 2^`SHIFT`.
const SHIFT: u32 = 3;

struct Pace {
    mean_us: u64,
    heard_us: u64,
    /// The mean of the others at the last answer, if this backup was slow in comparison.
    others_us: Option<u64>,
    /// Its slow answers since its mean is slow, and when the first and the last of them came.
    slow_answers: u32,
    first_us: u64,
    last_us: u64,
}

/// A slow backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slow {
    pub backup: BackupId,
    /// Mean time of a synced write there, and the median of the others' means.
    pub mean_us: u64,
    pub others_us: u64,
}

/// The times that synced writes take on all backups; see the module.
#[derive(Default)]
pub(super) struct Paces {
    known: BTreeMap<BackupId, Pace>,
}

impl Paces {
    /// `backup` has stored a write, `took_us` after it was sent.
    pub fn stored(&mut self, now_us: u64, backup: BackupId, took_us: u64) {
        let others_us = self.median_of_others(now_us, backup);
        let pace = self.known.entry(backup).or_insert(Pace {
            mean_us: took_us,
            heard_us: now_us,
            others_us: None,
            slow_answers: 0,
            first_us: now_us,
            last_us: now_us,
        });
        pace.heard_us = now_us;
        pace.mean_us = pace.mean_us - (pace.mean_us >> SHIFT) + (took_us >> SHIFT);
        let mean_us = pace.mean_us;
        pace.others_us =
            others_us.filter(|others| mean_us >= SLOW_US.max(others.saturating_mul(TIMES)));
        if pace.others_us.is_none() {
            pace.slow_answers = 0;
        } else if took_us >= SLOW_US {
            // Others do not count: one long stall keeps the mean slow for many of them.
            if pace.slow_answers == 0 {
                pace.first_us = now_us;
            }
            pace.slow_answers += 1;
            pace.last_us = now_us;
        }
    }

    /// The lower of the two in the middle, if their number is even: two of three may be slow.
    fn median_of_others(&self, now_us: u64, backup: BackupId) -> Option<u64> {
        let others = self.known.iter();
        let mut others: Vec<u64> = others
            .filter(|(known, pace)| **known != backup && pace.heard_us + RECENT_US > now_us)
            .map(|(_, pace)| pace.mean_us)
            .collect();
        let middle = others.len().checked_sub(1)? / 2;
        Some(*others.select_nth_unstable(middle).1)
    }

    /// Drops the figures of a backup.
    pub fn forget(&mut self, backup: BackupId) {
        self.known.remove(&backup);
    }

    /// Backups that have been slow for long.
    pub fn slow(&self) -> Vec<Slow> {
        let slow = self.known.iter().filter_map(|(backup, pace)| {
            let is_long = pace.last_us >= pace.first_us + LONG_US;
            let is_long = is_long && pace.slow_answers >= ANSWERS;
            Some(Slow {
                backup: *backup,
                mean_us: pace.mean_us,
                others_us: pace.others_us.filter(|_| is_long)?,
            })
        });
        slow.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000;
    const SECOND: u64 = 1_000 * MS;

    /// For `for_us`, each backup with its time of a write stores one after the other.
    fn after(paces: &mut Paces, from_us: u64, for_us: u64, times: &[u64]) -> Vec<u64> {
        for (n, took_us) in (0..).zip(times) {
            let mut now_us = from_us;
            while now_us < from_us + for_us {
                now_us += took_us;
                paces.stored(now_us, BackupId(n), *took_us);
            }
        }
        paces.slow().iter().map(|slow| slow.backup.0).collect()
    }

    #[test]
    fn a_backup_is_slow_in_comparison_and_for_long() {
        let found = |for_us, times: &[u64]| after(&mut Paces::default(), 0, for_us, times);
        assert_eq!(found(10 * SECOND, &[MS, MS, 700 * MS]), [2]);
        assert_eq!(found(10 * SECOND, &[MS, 700 * MS, 800 * MS]), [1, 2]);
        assert_eq!(found(20 * SECOND, &[MS, 3 * SECOND]), [1], "2 replicas");
        for times in [
            [700 * MS, 700 * MS, 700 * MS], // this server, or the network
            [100 * MS, 100 * MS, 900 * MS],
            [MS, MS, 200 * MS],
        ] {
            assert!(found(10 * SECOND, &times).is_empty(), "{times:?}");
        }
        assert!(found(4 * SECOND - 1, &[MS, MS, 700 * MS]).is_empty());
        assert!(found(20 * SECOND, &[700 * MS]).is_empty(), "no other");
    }

    /// The mean was slow for the four writes after the stall, which took some seconds.
    #[test]
    fn one_stall_of_a_quiet_log_does_not_make_it_slow() {
        for writes in [1, 4] {
            let mut paces = Paces::default();
            for second in (2..60).step_by(2) {
                let now_us = second * SECOND;
                paces.stored(now_us, BackupId(0), MS);
                paces.stored(now_us, BackupId(1), MS);
                let stalls = second == 20;
                for _ in 0..if stalls { writes } else { 1 } {
                    let took_us = if stalls { 3_900 * MS } else { MS };
                    paces.stored(now_us, BackupId(2), took_us);
                }
                assert!(paces.slow().is_empty(), "{writes} at {second} s");
            }
        }
    }

    #[test]
    fn a_stall_or_old_figures_do_not_make_it_slow() {
        let mut paces = Paces::default();
        assert!(after(&mut paces, 0, 5 * SECOND, &[MS, MS, MS]).is_empty());
        paces.stored(8 * SECOND, BackupId(2), 3 * SECOND);
        assert!(after(&mut paces, 8 * SECOND, 6 * SECOND, &[MS, MS, MS]).is_empty());
        // It becomes slow when the others have not stored anything for long.
        for n in 0..20 {
            paces.stored((30 + n) * SECOND, BackupId(2), 900 * MS);
        }
        assert!(paces.slow().is_empty());
        // An answer in time ends it, and so does the removal of its figures.
        let slow = &[MS, MS, 900 * MS];
        assert_eq!(after(&mut paces, 60 * SECOND, 9 * SECOND, slow), [2]);
        let fast = &[MS, MS, MS];
        assert!(after(&mut paces, 70 * SECOND, SECOND, fast).is_empty());
        assert_eq!(after(&mut paces, 80 * SECOND, 9 * SECOND, slow), [2]);
        paces.forget(BackupId(2));
        assert!(paces.slow().is_empty());
    }
}
