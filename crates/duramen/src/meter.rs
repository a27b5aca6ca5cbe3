//! Meter: durations of syncs, as percentiles at the cost of one counter each.

use crate::Latency;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets per power of two: an error of at most an eighth.
const STEPS: u32 = 8;
/// Number of buckets, for durations up to 2^32 microseconds.
const BUCKETS: usize = 32 * STEPS as usize;

/// Counts durations. Written by the committing thread, read by any thread: Relaxed, because each
/// figure is independent.
pub(crate) struct Meter {
    buckets: [AtomicU64; BUCKETS],
    count: AtomicU64,
    sum_us: AtomicU64,
    last_us: AtomicU64,
    max_us: AtomicU64,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter {
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            count: AtomicU64::new(0),
            sum_us: AtomicU64::new(0),
            last_us: AtomicU64::new(0),
            max_us: AtomicU64::new(0),
        }
    }
}

/// The bucket of a duration: its power of two, then its eighth within that.
fn bucket(us: u64) -> usize {
    let us = us.clamp(1, u64::from(u32::MAX));
    let power = us.ilog2();
    let part = ((us << 3) >> power) as u32 & (STEPS - 1);
    (power * STEPS + part) as usize
}

/// The upper end of a bucket, in microseconds.
fn upper(bucket: usize) -> u64 {
    let (power, part) = (bucket as u32 / STEPS, bucket as u64 % u64::from(STEPS));
    ((u64::from(STEPS) + part + 1) << power) >> 3
}

impl Meter {
    pub fn synced(&self, took: Duration) {
        let us = took.as_micros() as u64;
        self.buckets[bucket(us)].fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
        self.last_us.store(us, Relaxed);
        self.max_us.fetch_max(us, Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Number of syncs so far, and their total microseconds.
    pub fn totals(&self) -> (u64, u64) {
        // In this order: a concurrent sync is missing in the count or in both.
        (self.count.load(Relaxed), self.sum_us.load(Relaxed))
    }

    pub fn latency(&self) -> Latency {
        let counts: Vec<u64> = self
            .buckets
            .iter()
            .map(|bucket| bucket.load(Relaxed))
            .collect();
        let total: u64 = counts.iter().sum();
        let at = |percent: u64| {
            let wanted = (total * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += count;
                seen >= wanted
            });
            Duration::from_micros(found.map_or(0, upper))
        };
        Latency {
            last: Duration::from_micros(self.last_us.load(Relaxed)),
            average: Duration::from_micros(self.sum_us.load(Relaxed) / self.count().max(1)),
            p50: at(50),
            p99: at(99),
            max: Duration::from_micros(self.max_us.load(Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_an_eighth() {
        let meter = Meter::default();
        for us in 1..=10_000 {
            meter.synced(Duration::from_micros(us));
        }
        let latency = meter.latency();
        let near = |found: Duration, wanted: u64| {
            let found = found.as_micros() as u64;
            assert!(found >= wanted && found <= wanted + wanted / 7, "{found}");
        };
        near(latency.p50, 5_000);
        near(latency.p99, 9_900);
        assert_eq!(latency.max, Duration::from_micros(10_000));
        assert_eq!(latency.average, Duration::from_micros(5_000));
    }

    #[test]
    fn every_duration_has_a_bucket_that_contains_it() {
        for us in (0..100_000).chain([u64::from(u32::MAX), u64::MAX]) {
            assert!(upper(bucket(us)) >= us.min(u64::from(u32::MAX)));
        }
    }
}
