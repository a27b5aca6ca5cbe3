//! Doubt of a wall clock that has jumped ahead.
//!
//! An expired object leaves the index, and nothing is written: the log on disk still has it, and
//! the clock keeps it away at the next start. If the clock had jumped ahead and was set back
//! since, that object would be live at the next start, although it was absent before. So the wall
//! clock is believed only as far as a steady clock supports it.
//!
//! **Invariants**
//! - DC1: an object leaves the index without a trace only if it has expired by the believed clock.
//!   An object that has expired by the wall clock alone stays in the index until a tombstone
//!   removes it (docs/protocols.md, "Restart" 8).
//! - DC3: cleaning and admission count an entry as expired by the believed clock alone. Other
//!   entries are kept (DC1): cleaning that counted them as expired would take a segment of them for
//!   empty, and copy it whole again and again.
//! - DC4: a clock that was ahead from the start, or for longer than it is doubted, let objects
//!   leave without a trace. When it is set back, they count as evicted: until their segments have
//!   left the log, a key that is created or removed in place of such an object names these
//!   segments (swap::D11). So each write that is acknowledged after the step outlives any restart.
//!   The step is noticed within a second; a key that is created before that is not covered. The
//!   step may come at any time, so some of the segments are not listed on disk yet (swap::D12).
//! - DC2: keys that wait for their tombstones are bounded in number and bytes. The expiry pass
//!   finds the others again.

use crate::log::Log;
use crate::space::{Purpose, Space};
use crate::{Clock, TableId};
use duramen_base::expiry::is_expired;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::Mutex;
use duramen_format::entry::Entry;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The origin of the steady clock.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
/// The wall clock is believed if it is ahead by no more than this: time servers correct less at
/// once in normal operation, and both clocks are read one after the other.
const SLACK_MS: u64 = 1_000;
/// A jump is believed when it has lasted for as long as it was, and after this time in any case:
/// then the former time was wrong.
const DOUBTED_MS: u64 = 3_600_000;
/// Keys, and bytes of keys, that wait for their tombstones.
const KEYS_MAX: usize = 1 << 16;
const KEY_BYTES_MAX: usize = 4 << 20;

/// The last time at which the wall clock was believed.
#[derive(Clone, Copy)]
struct Anchor {
    steady_ms: u64,
    wall_ms: u64,
}

/// The clock of a store, the part of it that is believed, and the keys that wait for tombstones.
pub struct DoubtedClock {
    clock: Clock,
    /// Whether the wall clock is doubted at all: the store has a log that needs it.
    is_doubted: bool,
    anchor: Mutex<Option<Anchor>>,
    /// The wall clock was set back, and that is not announced yet (DC4).
    was_set_back: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    keys: Vec<(TableId, Box<[u8]>)>,
    bytes: usize,
}

impl Clock {
    /// A clock that no setting of the wall clock moves, in milliseconds. `None`: there is none,
    /// and the wall clock is believed.
    fn steady_ms(&self) -> Option<u64> {
        match self {
            Clock::System => Some(ORIGIN.elapsed().as_millis() as u64),
            Clock::Manual(_) => None,
            Clock::Stepped { steady_ms, .. } => Some(steady_ms.load(Ordering::Relaxed)),
        }
    }
}

impl Anchor {
    /// The time that the wall clock shows at this moment, unless it was set.
    fn expected_ms(&self, steady_ms: u64) -> u64 {
        let passed_ms = steady_ms.saturating_sub(self.steady_ms);
        self.wall_ms.saturating_add(passed_ms)
    }

    /// The part of the wall clock that is believed at this moment.
    fn believed_ms(&self, steady_ms: u64, wall_ms: u64) -> u64 {
        let passed_ms = steady_ms.saturating_sub(self.steady_ms);
        let expected_ms = self.expected_ms(steady_ms);
        let ahead_ms = wall_ms.saturating_sub(expected_ms);
        match ahead_ms <= SLACK_MS || passed_ms >= ahead_ms.min(DOUBTED_MS) {
            true => wall_ms,
            false => expected_ms,
        }
    }
}

impl DoubtedClock {
    pub fn new(clock: Clock, is_doubted: bool) -> DoubtedClock {
        DoubtedClock {
            clock,
            is_doubted,
            anchor: Mutex::default(),
            was_set_back: AtomicBool::new(false),
            waiting: Mutex::default(),
        }
    }

    /// Milliseconds since the Unix epoch, by the wall clock.
    #[inline(always)]
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The part of the wall clock that is believed: objects that expired up to this time may leave
    /// the index without a trace (DC1).
    pub fn believed_ms(&self) -> u64 {
        let wall_ms = self.now_ms();
        let Some(steady_ms) = self.clock.steady_ms().filter(|_| self.is_doubted) else {
            return wall_ms;
        };
        if has_bug(Bug::ClockBelieved) {
            return wall_ms;
        }
        let mut anchor = self.anchor.lock().expect("an anchor");
        let is_back = |anchor: Anchor| wall_ms + SLACK_MS < anchor.expected_ms(steady_ms);
        if anchor.is_some_and(is_back) {
            self.was_set_back.store(true, Ordering::Relaxed);
        }
        let believed_ms = anchor.map_or(wall_ms, |anchor| anchor.believed_ms(steady_ms, wall_ms));
        if believed_ms == wall_ms {
            *anchor = Some(Anchor { steady_ms, wall_ms });
        }
        believed_ms
    }

    /// Looks at the clock, to notice a jump or a step back (DC4). The caller holds no lock of the
    /// log.
    pub fn watch(&self, log: Option<&Log>, space: &Space) {
        self.believed_ms();
        let Some(log) = log.filter(|log| !log.arrivals().is_loading()) else {
            return;
        };
        if !self.was_set_back.swap(false, Ordering::Relaxed) || has_bug(Bug::SetBackUnseen) {
            return;
        }
        // Objects that expire by the present clock would not come back.
        let now_ms = self.now_ms();
        let segments = (0..).zip(&space.segments);
        let segments = segments.filter(|(_, it)| it.is_in_log() && it.last_expiry_ms() >= now_ms);
        let segments = segments.map(|(window, _)| log.segment_of(window));
        let segments = segments.collect();
        log.swaps().announce_expired(segments, log.numbers());
    }

    /// True if this object has expired and may leave the index without a trace (DC1).
    pub fn may_forget(&self, entry: &Entry<'_>) -> bool {
        let has_expired = is_expired(entry.expires_at_ms, self.now_ms());
        let is_sure = has_expired && is_expired(entry.expires_at_ms, self.believed_ms());
        if has_expired && !is_sure {
            self.note_doubted(TableId(entry.table), entry.key);
        }
        is_sure
    }

    /// Notes a key that has expired by the wall clock alone, for `Store::remove_doubted`.
    pub fn note_doubted(&self, table: TableId, key: &[u8]) {
        let mut waiting = self.waiting.lock().expect("doubted keys");
        if waiting.keys.len() < KEYS_MAX && waiting.bytes + key.len() <= KEY_BYTES_MAX {
            waiting.bytes += key.len();
            waiting.keys.push((table, key.into()));
        }
    }

    /// Takes the keys that wait for tombstones; none if the disk has no room for these.
    pub fn take_doubted(&self, log: Option<&Log>, space: &Space) -> Vec<(TableId, Box<[u8]>)> {
        self.watch(log, space); // a jump is noticed only if the clock is read before it
        if log.is_some_and(|log| !log.swaps().disk().has_room(Purpose::Tombstones)) {
            return Vec::new(); // the caller may be the thread that makes it
        }
        let waiting = std::mem::take(&mut *self.waiting.lock().expect("doubted keys"));
        let mut keys = waiting.keys;
        keys.sort_unstable();
        keys.dedup(); // the pass may have found a segment twice
        keys
    }
}

#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod tests {
    use crate::{Clock, Error, LogOptions, Options, Store, TableId};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// One key with damage kept all others that waited with it.
    #[test]
    fn a_key_with_damage_keeps_no_other_from_leaving() {
        const T: TableId = TableId::DEFAULT;
        let wall_ms = Arc::new(AtomicU64::new(1_000_000));
        let store = Store::new(Options {
            huge_pages: false,
            cleaners: 0,
            clock: Clock::Stepped {
                wall_ms: wall_ms.clone(),
                steady_ms: Arc::default(),
            },
            log: Some(LogOptions {
                doubts_clock: true,
                ..LogOptions::new(7)
            }),
            ..Options::new(64 << 20)
        });
        let store = store.unwrap();
        let mut session = store.session().unwrap();
        for key in [b"a", b"b"] {
            let mut guard = session.pin();
            let hash = guard.hash(key);
            let written = guard.write(T, hash, key, &[7; 100], Some(1_001_000));
            written.unwrap();
        }
        wall_ms.fetch_add(60_000, Ordering::Relaxed);
        for key in [b"a", b"b"] {
            store.core().clock().note_doubted(T, key);
        }
        assert!(store.flips().entry(T, b"a", &[8 * 40, 8 * 77 + 3]));
        assert_eq!(store.remove_doubted(), Err(Error::Damaged));
        assert_eq!(store.tables().objects(T), 1);
    }
}
