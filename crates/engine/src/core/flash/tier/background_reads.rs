//! Background reads of the flash device: their rate limit, and which segments they read.
//!
//! Entries on flash that die (deleted, cleared, expired) are dead by the counters alone. Their slot
//! of the device, and the index slots of expired ones, become free when their segment is read.
//! While flash is short, cleaning does that. Otherwise a cleaner thread reads segments of which a
//! large part has expired (`cleaner::expire`), and cleans those that have almost no live data
//! (*hollow*). It rests three times as long as it has read.
//!
//! **Invariants**
//! - F8: background reads take at most a quarter of the time of one reader of the device, in bursts
//!   of some segments.

use duramen_base::expiry::is_expired;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Length of a rest, in multiples of the reading before it (F8).
const REST: u32 = 3;
/// Slowest read that counts fully, in bytes per ms. A slower read was slow because the machine
/// stood still, which is no reason to rest.
const SLOWEST_BYTES_PER_MS: u64 = 20_000;
/// Longest rest.
const REST_MAX: Duration = Duration::from_secs(1);
/// Longest burst of background reads.
const BURST: Duration = Duration::from_millis(25);
/// A segment is hollow if its live data are at most its length divided by this.
pub(crate) const HOLLOW_PART: u64 = 16;
/// Number of octaves of the time until an entry expires, in ms, and number of steps of each octave.
const OCTAVES: usize = 64;
const STEPS: usize = 4;

pub(crate) struct BackgroundReads {
    began: Instant,
    /// Nanoseconds from `began` until background reads may go on.
    rests_until: AtomicU64,
    /// The last look found hollow segments.
    hollow: AtomicBool,
}

impl Default for BackgroundReads {
    fn default() -> BackgroundReads {
        BackgroundReads {
            began: Instant::now(),
            rests_until: AtomicU64::new(0),
            hollow: AtomicBool::new(false),
        }
    }
}

impl BackgroundReads {
    /// Milliseconds since the tier was opened.
    pub fn elapsed_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// True if background reads may begin (F8).
    pub(crate) fn are_rested(&self) -> bool {
        self.is_rested(Instant::now())
    }

    /// True if background reads that began after a rest may go on.
    pub(crate) fn are_in_burst(&self) -> bool {
        self.is_in_burst(Instant::now())
    }

    /// Records that `bytes` of a segment were read since `started`.
    pub(crate) fn was_read(&self, bytes: usize, started: Instant) {
        let spent = started.elapsed();
        self.spent(bytes as u64, spent, Instant::now());
    }

    /// Notes whether there are hollow segments.
    pub(crate) fn note_hollow(&self, any: bool) {
        self.hollow.store(any, Ordering::Relaxed);
    }

    /// True if there are hollow segments, and background reads may begin.
    pub(crate) fn want_hollow(&self) -> bool {
        self.hollow.load(Ordering::Relaxed) && self.are_rested()
    }

    fn is_rested(&self, now: Instant) -> bool {
        let now = now.duration_since(self.began).as_nanos() as u64;
        now >= self.rests_until.load(Ordering::Relaxed)
    }

    /// Records that `bytes` were read from the device in `time`, until now.
    fn spent(&self, bytes: u64, time: Duration, now: Instant) {
        let now = now.duration_since(self.began).as_nanos() as u64;
        let rests_until = self.rests_until.load(Ordering::Relaxed).max(now);
        let time = time.min(Duration::from_millis(bytes / SLOWEST_BYTES_PER_MS + 1));
        let rest = (REST * time).as_nanos() as u64;
        // a long rest is cut, however much was cleaned because flash was short
        let most = now + REST_MAX.as_nanos() as u64;
        // If two threads call this at once, one of the two times may be lost.
        self.rests_until
            .store((rests_until + rest).min(most), Ordering::Relaxed);
    }

    /// True if a burst that began after a rest may go on.
    fn is_in_burst(&self, now: Instant) -> bool {
        let now = now.duration_since(self.began).as_nanos() as u64;
        let rests_until = self.rests_until.load(Ordering::Relaxed);
        rests_until.saturating_sub(now) < (REST * BURST).as_nanos() as u64
    }
}

/// Expiry times of a segment's entries: the bytes that expire, by the time until they do.
pub(crate) struct Expiries {
    now_ms: u64,
    expired_bytes: u64,
    bytes: [u64; OCTAVES * STEPS],
}

impl Expiries {
    pub(crate) fn new(now_ms: u64) -> Expiries {
        Expiries {
            now_ms,
            expired_bytes: 0,
            bytes: [0; OCTAVES * STEPS],
        }
    }

    /// `expires_at_ms`: 0 = never.
    pub(crate) fn note(&mut self, expires_at_ms: u64, entry_bytes: usize) {
        if expires_at_ms == 0 {
            return;
        }
        if is_expired(expires_at_ms, self.now_ms) {
            self.expired_bytes += entry_bytes as u64;
            return;
        }
        let left = (expires_at_ms - self.now_ms).max(1);
        let octave = left.ilog2();
        let step = ((u128::from(left) * STEPS as u128) >> octave) as usize - STEPS;
        self.bytes[octave as usize * STEPS + step] += entry_bytes as u64;
    }

    /// Time when half of these bytes will have expired; or all, if they are only a small part of
    /// the segment. `u64::MAX`: no entry expires.
    pub(crate) fn due_ms(&self, segment_bytes: usize) -> u64 {
        let all: u64 = self.expired_bytes + self.bytes.iter().sum::<u64>();
        let few = all <= segment_bytes as u64 / HOLLOW_PART;
        let wanted = if few { all } else { all / 2 }.max(1);
        let mut sum = self.expired_bytes;
        if sum >= wanted {
            return self.now_ms;
        }
        let due = self.bytes.iter().position(|bytes| {
            sum += bytes;
            sum >= wanted
        });
        due.map_or(u64::MAX, |place| {
            let (octave, step) = (place / STEPS, place % STEPS);
            let end = ((STEPS + step + 1) as u128) << octave;
            let left = u64::try_from(end.div_ceil(STEPS as u128)).unwrap_or(u64::MAX);
            self.now_ms.saturating_add(left)
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_due_when_half_of_what_expires_in_it_has() {
        const NOW: u64 = 1_000_000;
        let due = |times: &[(u64, usize)]| {
            let mut expiries = Expiries::new(NOW);
            times
                .iter()
                .for_each(|(time, bytes)| expiries.note(*time, *bytes));
            expiries.due_ms(1 << 20)
        };
        assert_eq!(due(&[]), u64::MAX);
        assert_eq!(due(&[(0, 1 << 20)]), u64::MAX);
        // A few keys that live long do not count. Never before half has expired, and never later by
        // more than a quarter of the time.
        let most = due(&[
            (NOW + 1000, 700_000),
            (u64::MAX, 1),
            (NOW + 99_999, 300_000),
        ]);
        assert!((NOW + 1000..=NOW + 1250).contains(&most), "{most}");
        let half = due(&[(NOW + 5000, 100_000), (NOW + 90_000, 100_001)]);
        assert!((NOW + 5000..=NOW + 6250).contains(&half), "{half}");
        // If they are a small part of the segment: when all have expired.
        let few = due(&[(NOW + 10, 100), (NOW + 100_000, 10)]);
        assert!((NOW + 100_000..=NOW + 125_000).contains(&few), "{few}");
        assert_eq!(due(&[(NOW - 10, 1 << 19), (NOW - 1, 1 << 19)]), NOW);
        assert_eq!(due(&[(NOW - 10, 1 << 19), (NOW + 10, 1 << 19)]), NOW);
        // A key exists in the millisecond of its time of expiry.
        for at in [NOW, NOW + 1, NOW + 7, NOW + 8, NOW + 500] {
            let due = due(&[(at, 1 << 19)]);
            assert!(due > at && due <= at + 2 + (at - NOW) / 4, "{at}: {due}");
        }
        assert_eq!(due(&[(u64::MAX, 1 << 19)]), u64::MAX);
    }

    #[test]
    fn a_quarter_of_the_time_is_spent_reading_at_most() {
        let background_reads = BackgroundReads::default();
        let at = |ms| background_reads.began + Duration::from_millis(ms);
        assert!(background_reads.is_rested(at(0)));
        // A burst of four reads.
        for n in 1..=4 {
            background_reads.spent(1 << 20, Duration::from_millis(5), at(5 * n));
            assert!(background_reads.is_in_burst(at(5 * n)));
        }
        assert!(!background_reads.is_rested(at(64)) && background_reads.is_rested(at(65)));
        background_reads.spent(8 << 20, Duration::from_millis(30), at(100));
        assert!(!background_reads.is_in_burst(at(100)) && background_reads.is_in_burst(at(120)));
        // A machine that stood still during a read.
        background_reads.spent(1 << 20, Duration::from_secs(60), at(70_000));
        assert!(!background_reads.is_rested(at(70_158)) && background_reads.is_rested(at(70_160)));
    }
}
