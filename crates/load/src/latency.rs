//! Latencies as percentiles, never as means.

use hdrhistogram::Histogram;

/// Nanoseconds, recorded with three significant digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

/// Longest recorded latency: one hour; longer ones are recorded as this.
const LONGEST_NS: u64 = 3_600_000_000_000;

impl Default for Latencies {
    fn default() -> Latencies {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        Latencies(histogram.expect("the bounds are constants that the histogram accepts"))
    }
}

impl Latencies {
    #[inline]
    pub fn record_ns(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Records `count` operations that all took `ns`.
    #[inline]
    pub fn record_many_ns(&mut self, ns: u64, count: u64) {
        self.0.saturating_record_n(ns.max(1), count);
    }

    pub fn add(&mut self, other: &Latencies) {
        self.0
            .add(&other.0)
            .expect("all histograms have the same bounds");
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    pub fn at_us(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e3
    }

    pub fn summary(&self) -> Summary {
        Summary {
            operations: self.0.len(),
            p50_us: self.at_us(0.50),
            p99_us: self.at_us(0.99),
            p99_9_us: self.at_us(0.999),
            p99_99_us: self.at_us(0.9999),
            max_us: self.0.max() as f64 / 1e3,
        }
    }

    /// Points (microseconds, share of operations that took longer), the reverse cumulative plot of
    /// Rumble14 Figure 9.
    pub fn exceedance(&self) -> Vec<(f64, f64)> {
        let total = self.0.len().max(1) as f64;
        let mut below = 0u64;
        let mut points = Vec::new();
        for bucket in self.0.iter_recorded() {
            below += bucket.count_since_last_iteration();
            let over = (total - below as f64) / total;
            if over > 0.0 {
                points.push((bucket.value_iterated_to() as f64 / 1e3, over));
            }
        }
        points
    }
}

/// The percentiles of every row, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    pub operations: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p99_9_us: f64,
    pub p99_99_us: f64,
    pub max_us: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_values() {
        let mut latencies = Latencies::default();
        for ns in 1..=100_000u64 {
            latencies.record_ns(ns);
        }
        let summary = latencies.summary();
        let near = |found: f64, want: f64| (found - want).abs() / want < 0.002;
        assert!(near(summary.p50_us, 50.0), "{summary:?}");
        assert!(near(summary.p99_us, 99.0), "{summary:?}");
        assert!(near(summary.p99_9_us, 99.9), "{summary:?}");
        assert_eq!(summary.operations, 100_000);
    }

    #[test]
    fn histograms_add_up_and_exceedance_falls() {
        let (mut one, mut other) = (Latencies::default(), Latencies::default());
        one.record_many_ns(1_000, 90);
        other.record_many_ns(1_000_000, 10);
        one.add(&other);
        assert_eq!(one.count(), 100);
        let points = one.exceedance();
        assert_eq!(
            points.len(),
            1,
            "the slowest value is exceeded by none: {points:?}"
        );
        assert!((points[0].1 - 0.10).abs() < 1e-9);
    }
}
