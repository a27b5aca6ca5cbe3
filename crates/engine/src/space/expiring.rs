//! The entries of a segment that expire: their bytes, by the time between the segment's opening and
//! their expiry. From these, an estimate of the bytes that have expired.
//!
//! Entries with short and with long times to live are often neighbours. Each bucket covers four
//! times the time of the one before it: so an entry that lives long does not hide those that have
//! expired.

use duramen_base::expiry::is_expired;
use duramen_base::sync::{AtomicU32, AtomicU64, Ordering};

const BUCKETS: usize = 16;
/// The first bucket ends at 2^10 ms, about a second. The last begins at 2^38 ms, almost nine years.
const FIRST_BITS: usize = 10;

/// The bucket of an entry that expires this long after the opening.
fn bucket_of(after_ms: u64) -> usize {
    let octave = after_ms.checked_ilog2().unwrap_or(0) as usize;
    ((octave + 2).saturating_sub(FIRST_BITS) / 2).min(BUCKETS - 1)
}

/// Time from the opening to the end of a bucket.
fn end_of(bucket: usize) -> u64 {
    if bucket == BUCKETS - 1 {
        u64::MAX
    } else {
        1 << (FIRST_BITS + 2 * bucket)
    }
}

#[repr(C)]
pub(super) struct Expiring {
    /// The first and the last time of expiry, in milliseconds since the Unix epoch.
    first_ms: AtomicU64,
    last_ms: AtomicU64,
    /// The time of the opening: constant while the window is open.
    origin_ms: AtomicU64,
    bytes: [AtomicU32; BUCKETS],
}

/// The bytes of each bucket, at one time.
pub struct Sample([u32; BUCKETS]);

/// The entries of a segment that the expiry pass has examined and that wait.
pub struct Waiting {
    origin_ms: u64,
    first_ms: u64,
    bytes: [u32; BUCKETS],
}

impl Waiting {
    pub fn note(&mut self, entry_bytes: usize, expires_at_ms: u64) {
        self.first_ms = self.first_ms.min(expires_at_ms);
        self.bytes[bucket_of(expires_at_ms.saturating_sub(self.origin_ms))] += entry_bytes as u32;
    }
}

impl Default for Expiring {
    fn default() -> Expiring {
        Expiring {
            first_ms: AtomicU64::new(u64::MAX),
            last_ms: AtomicU64::new(0),
            origin_ms: AtomicU64::new(0),
            bytes: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl Expiring {
    pub fn open(&self, now_ms: u64) {
        self.first_ms.store(u64::MAX, Ordering::Relaxed);
        self.last_ms.store(0, Ordering::Relaxed);
        self.origin_ms.store(now_ms, Ordering::Relaxed);
        for bytes in &self.bytes {
            bytes.store(0, Ordering::Relaxed);
        }
    }

    fn bucket(&self, expires_at_ms: u64) -> &AtomicU32 {
        let after_ms = expires_at_ms.saturating_sub(self.origin_ms.load(Ordering::Relaxed));
        &self.bytes[bucket_of(after_ms)]
    }

    pub fn note(&self, entry_bytes: u32, expires_at_ms: u64) {
        // AcqRel pairs with `seen` and `reset`: a thread that sees the sum sees the entry as
        // appended.
        self.bucket(expires_at_ms)
            .fetch_add(entry_bytes, Ordering::AcqRel);
        let first = self.first_ms.load(Ordering::Relaxed).min(expires_at_ms);
        // Release pairs with `reset`: it sees the bytes of an entry whose time it replaces.
        self.first_ms.store(first, Ordering::Release);
        let last = self.last_ms.load(Ordering::Relaxed).max(expires_at_ms);
        self.last_ms.store(last, Ordering::Relaxed);
    }

    /// Latest expiry of all entries that were ever in the segment, however it was compacted.
    pub fn last_ms(&self) -> u64 {
        self.last_ms.load(Ordering::Relaxed)
    }

    /// Notes that there was an entry with this expiry, which memory does not have.
    pub fn note_gone(&self, expires_at_ms: u64) {
        self.last_ms.fetch_max(expires_at_ms, Ordering::Relaxed);
    }

    pub fn take_back(&self, entry_bytes: u32, expires_at_ms: u64) {
        let less = |sum: u32| Some(sum.saturating_sub(entry_bytes));
        let _ = self
            .bucket(expires_at_ms)
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
    }

    /// Bytes that expire at some time.
    pub fn sum(&self) -> u32 {
        let bytes = self.bytes.iter();
        bytes.map(|bytes| bytes.load(Ordering::Acquire)).sum()
    }

    /// True if some entry may have expired by `now_ms`.
    pub fn has_begun(&self, now_ms: u64) -> bool {
        is_expired(self.first_ms.load(Ordering::Relaxed), now_ms)
    }

    /// Estimated bytes that have expired by `now_ms`: those of past buckets, and a part
    /// of the present one, as if its times were spread evenly.
    pub fn expired(&self, now_ms: u64) -> u32 {
        let first = self.first_ms.load(Ordering::Relaxed);
        if !is_expired(first, now_ms) {
            return 0;
        }
        let last = self.last_ms.load(Ordering::Relaxed);
        let origin = self.origin_ms.load(Ordering::Relaxed);
        let (mut sum, mut begin) = (0, first);
        for (bucket, bytes) in self.bytes.iter().enumerate() {
            if !is_expired(begin, now_ms) {
                break;
            }
            let bytes = bytes.load(Ordering::Relaxed);
            let end = origin.saturating_add(end_of(bucket));
            let until = end.min(last);
            sum += if is_expired(until, now_ms) {
                bytes
            } else {
                let passed = (now_ms - 1 - begin) as f64 / (until - begin) as f64;
                (f64::from(bytes) * passed) as u32
            };
            begin = first.max(end);
        }
        sum
    }

    /// The bytes as counted so far.
    pub fn seen(&self) -> Sample {
        let load = |bucket: usize| self.bytes[bucket].load(Ordering::Acquire);
        Sample(std::array::from_fn(load))
    }

    pub fn waiting(&self) -> Waiting {
        Waiting {
            origin_ms: self.origin_ms.load(Ordering::Relaxed),
            first_ms: u64::MAX,
            bytes: [0; BUCKETS],
        }
    }

    pub fn reset(&self, seen: &Sample, waiting: &Waiting, again_ms: u64) {
        // The time is replaced first: an append that is counted below lowers it again. Acquire
        // pairs with `note`: the bytes of an entry whose time is replaced here are seen below.
        self.first_ms.swap(waiting.first_ms, Ordering::AcqRel);
        let mut settled = true;
        for (bucket, bytes) in self.bytes.iter().enumerate() {
            let (seen, waiting) = (seen.0[bucket], waiting.bytes[bucket]);
            let later = |now: u32| Some(now.saturating_sub(seen).saturating_add(waiting));
            let before = bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, later);
            settled &= before == Ok(seen);
        }
        if !settled {
            self.first_ms.fetch_min(again_ms, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000_000;
    const DAY: u64 = 86_400_000;
    /// The time from the begin of a bucket to its end.
    const LATE: u64 = 4;

    fn with(entries: impl IntoIterator<Item = (u32, u64)>) -> Expiring {
        let expiring = Expiring::default();
        expiring.open(NOW);
        for (bytes, expires_at_ms) in entries {
            expiring.note(bytes, expires_at_ms);
        }
        expiring
    }

    #[test]
    fn buckets_cover_all_times() {
        let mut bits = 0;
        for after_ms in (0..64).map(|bits| 1u64 << bits).flat_map(|n| [n - 1, n]) {
            let bucket = bucket_of(after_ms);
            assert!(after_ms < end_of(bucket) || bucket == BUCKETS - 1);
            assert!(bucket == 0 || after_ms >= end_of(bucket - 1));
            bits = bits.max(bucket);
        }
        assert_eq!((bucket_of(u64::MAX), bits), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn times_of_one_kind_are_spread_evenly() {
        let expiring = with((0..1000).map(|n| (100, NOW + 10_000 + n)));
        assert_eq!(expiring.sum(), 100_000);
        assert_eq!(expiring.expired(NOW + 10_000), 0);
        assert!((49_000..51_000).contains(&expiring.expired(NOW + 10_500)));
        assert!(expiring.expired(NOW + 10_999) < 100_000);
        assert_eq!(expiring.expired(NOW + 11_000), 100_000);
    }

    #[test]
    fn an_entry_that_lives_long_hides_no_expired_ones() {
        for (one_of, long_ms) in [(3, 100_000_000), (1000, DAY), (5, DAY), (1000, 400 * DAY)] {
            let all = 6000;
            let is_long = |n: u64| n.is_multiple_of(one_of);
            let short = 100 * (all - all / one_of) as u32;
            let expiring = with((0..all).map(|n| {
                let left = if is_long(n) { long_ms } else { 10_000 };
                (100, NOW + left + n % 100)
            }));
            assert_eq!(expiring.expired(NOW + 10_000), 0);
            assert_eq!(expiring.expired(NOW + LATE * 10_000), short);
            // An eighth, for which the expiry pass waits, is soon there.
            assert!(expiring.expired(NOW + 12_000) > expiring.sum() / 8);
            assert_eq!(expiring.expired(NOW + long_ms / LATE), short);
            assert_eq!(expiring.expired(NOW + long_ms + 100), 600_000);
        }
    }

    #[test]
    fn entries_that_had_expired_before_the_opening_count() {
        let expiring = with([(100, NOW - DAY), (100, NOW - 1), (100, NOW + DAY)]);
        assert_eq!(expiring.expired(NOW + 2000), 200);
        assert!(expiring.expired(NOW + DAY) < 300);
        assert_eq!(expiring.expired(NOW + DAY + 1), 300);
        assert_eq!(with([(100, u64::MAX - 1)]).expired(u64::MAX), 100);
        assert_eq!(with([]).expired(u64::MAX), 0);
    }

    #[test]
    fn a_pass_leaves_the_entries_that_wait() {
        let expiring = with([(100, NOW + 5000), (200, NOW + 6000), (400, NOW + DAY)]);
        let seen = expiring.seen();
        let mut waiting = expiring.waiting();
        waiting.note(200, NOW + 6000);
        waiting.note(400, NOW + DAY);
        expiring.reset(&seen, &waiting, NOW + 5999);
        assert_eq!(expiring.sum(), 600);
        assert_eq!(expiring.expired(NOW + 6000), 0);
        assert_eq!(expiring.expired(NOW + 17_000), 200);
        // One is appended after the pass has seen the sum.
        let seen = expiring.seen();
        let mut waiting = expiring.waiting();
        expiring.note(50, NOW + 7000);
        waiting.note(400, NOW + DAY);
        expiring.reset(&seen, &waiting, NOW + 8000);
        assert_eq!(expiring.sum(), 450);
        assert!(!expiring.has_begun(NOW + 8000) && expiring.has_begun(NOW + 8001));
        assert_eq!(expiring.expired(NOW + 17_000), 50);
        expiring.take_back(50, NOW + 7000);
        assert_eq!(expiring.sum(), 400);
    }
}
