//! An estimate of a device's speed, from the times of its reads.
//!
//! It decays: a read counts for an eighth of it. So a device that becomes slower, or is busy for a
//! while, is noticed after some reads, and a single slow read changes little.
//!
//! **Concurrency**: any thread notes and reads; of two reads that are noted at once, one may not
//! count.
//!
//! Paper: [Ousterhout15 §7.1]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A read counts for one part of so many: the estimate follows within about as many reads.
const DECAY: u64 = 8;

/// The estimate, in bytes per second; 0: nothing was measured yet.
#[derive(Debug, Default)]
pub(crate) struct ReadSpeed(AtomicU64);

impl ReadSpeed {
    pub(crate) fn note(&self, bytes: u64, took: Duration) {
        let took_ns = took.as_nanos().max(1);
        let measured = u128::from(bytes) * 1_000_000_000 / took_ns;
        let measured = u64::try_from(measured).unwrap_or(u64::MAX).max(1);
        // Relaxed: pairs with itself alone; nothing else depends on the number.
        let known = self.0.load(Ordering::Relaxed);
        let next = match known {
            0 => measured,
            _ => known - known / DECAY + measured / DECAY,
        };
        self.0.store(next.max(1), Ordering::Relaxed);
    }

    pub(crate) fn bytes_per_s(&self) -> u64 {
        self.0.load(Ordering::Relaxed) // pairs with `note`
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_estimate_is_the_first_read_and_then_follows_slowly() {
        let speed = ReadSpeed::default();
        assert_eq!(speed.bytes_per_s(), 0);
        speed.note(1_000, MS);
        assert_eq!(speed.bytes_per_s(), 1_000_000);
        speed.note(1_000, 100 * MS); // one slow read
        let after_one = speed.bytes_per_s();
        assert!((850_000..900_000).contains(&after_one), "{after_one}");
        for _ in 0..40 {
            speed.note(1_000, 100 * MS);
        }
        let slow = speed.bytes_per_s();
        assert!((10_000..20_000).contains(&slow), "{slow}");
        for _ in 0..40 {
            speed.note(1_000, MS);
        }
        let fast = speed.bytes_per_s();
        assert!((950_000..=1_000_000).contains(&fast), "{fast}");
    }

    #[test]
    fn no_read_is_too_fast_or_too_slow_for_a_number() {
        let speed = ReadSpeed::default();
        speed.note(u64::MAX, Duration::ZERO);
        assert_eq!(speed.bytes_per_s(), u64::MAX);
        for _ in 0..2_000 {
            speed.note(1, Duration::MAX);
        }
        assert!(speed.bytes_per_s() >= 1);
    }
}
