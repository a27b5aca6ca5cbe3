//! An estimate of a device's speed, from the times of its reads.
//!
//! It is the mean of the times, not of the speeds: a recovery waits for the slow reads. The mean
//! decays: a read counts for an eighth of it. So a device that becomes slower, or is busy for a
//! while, is noticed after some reads. A single slow read changes little: none counts as more than
//! twice as slow as the mean.
//!
//! **Concurrency**: any thread notes and reads; of two reads that are noted at once, one may not
//! count.
//!
//! Paper: [Ousterhout15 §7.1]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A read counts for one part of so many: the estimate follows within about as many reads.
const DECAY: u64 = 8;
/// Times are those of a read of this many bytes.
const UNIT: u128 = 1 << 20;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// The mean time of a read of [`UNIT`] bytes, in nanoseconds; 0: nothing was measured yet.
#[derive(Debug, Default)]
pub(crate) struct ReadSpeed(AtomicU64);

impl ReadSpeed {
    pub(crate) fn note(&self, bytes: u64, took: Duration) {
        let took_ns = took.as_nanos().saturating_mul(UNIT) / u128::from(bytes.max(1));
        let took_ns = u64::try_from(took_ns).unwrap_or(u64::MAX).max(1);
        // Relaxed: no other data depends on the number.
        let known_ns = self.0.load(Ordering::Relaxed);
        let next_ns = match known_ns {
            0 => took_ns,
            _ => {
                // The mean changes by at least one, so that small numbers change too.
                let counted_ns = took_ns.min(known_ns.saturating_mul(2));
                let by_ns = (counted_ns.abs_diff(known_ns)).div_ceil(DECAY);
                match counted_ns > known_ns {
                    true => known_ns.saturating_add(by_ns),
                    false => known_ns - by_ns,
                }
            }
        };
        self.0.store(next_ns.max(1), Ordering::Relaxed);
    }

    /// 0: nothing was measured yet.
    pub(crate) fn bytes_per_s(&self) -> u64 {
        let bytes_per_s = match self.0.load(Ordering::Relaxed) {
            0 => return 0,
            mean_ns => UNIT * NS_PER_SECOND / u128::from(mean_ns), // pairs with `note`
        };
        u64::try_from(bytes_per_s).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The estimate after reads of 1,000 bytes in so many milliseconds each.
    fn after(speed: &ReadSpeed, reads: impl IntoIterator<Item = u32>) -> u64 {
        for ms in reads {
            speed.note(1_000, ms * MS);
        }
        speed.bytes_per_s()
    }

    #[test]
    fn the_estimate_is_the_first_read_and_then_follows_slowly() {
        let speed = ReadSpeed::default();
        assert_eq!(speed.bytes_per_s(), 0);
        let first = after(&speed, [1]);
        assert!((999_000..=1_000_000).contains(&first), "{first}");
        let after_one = after(&speed, [100]); // one slow read
        assert!((850_000..900_000).contains(&after_one), "{after_one}");
        let slow = after(&speed, [100; 60]);
        assert!((9_990..11_000).contains(&slow), "{slow}");
        let fast = after(&speed, [1; 60]);
        assert!((950_000..=1_000_000).contains(&fast), "{fast}");
    }

    /// The mean of the speeds was near that of the fast half: a disk with a limit of 25 MB in a
    /// second, which lets a read after a pause pass unhindered, was measured as 160.
    #[test]
    fn fast_reads_do_not_make_up_for_slow_ones() {
        let mixed = after(&ReadSpeed::default(), [1, 19].repeat(60));
        assert!((90_000..200_000).contains(&mixed), "{mixed}"); // the mean of the speeds: 526,000
    }

    #[test]
    fn no_read_is_too_fast_or_too_slow_for_a_number() {
        let speed = ReadSpeed::default();
        speed.note(u64::MAX, Duration::ZERO);
        assert!(speed.bytes_per_s() > 1 << 49);
        for _ in 0..2_000 {
            speed.note(0, Duration::MAX);
        }
        assert_eq!(speed.bytes_per_s(), 1);
        for _ in 0..2_000 {
            speed.note(u64::MAX, Duration::ZERO);
        }
        assert!(speed.bytes_per_s() > 1 << 49);
    }
}
