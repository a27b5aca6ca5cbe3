//! SegmentInfo: the data about the segment in each window, one cache line per segment [Merritt17
//! §3.4].
//!
//! Live bytes are `appended - (sum of the actors' dead counters - dead_base)`: writers count the
//! entries that they kill in their own counters (`counters`), so an overwrite writes no line here.

use duramen_base::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The state of a window; see engine::space::S2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Unbacked,
    /// Free, backed by memory.
    Backed,
    Head,
    Survivor,
    Closed,
    /// Chosen by a cleaner; only this cleaner may change the state.
    Victim,
    Retired,
    /// Holds copies of entries whose segments are on flash (`flash::promoted`); no part of the log.
    Promoted,
}

impl State {
    fn of(raw: u8) -> State {
        [
            State::Unbacked,
            State::Backed,
            State::Head,
            State::Survivor,
            State::Closed,
            State::Victim,
            State::Retired,
            State::Promoted,
        ][raw as usize]
    }
}

#[repr(align(64))]
pub struct Segment {
    state: AtomicU8,
    /// Bytes charged to the budget for this window.
    committed: AtomicU32,
    /// Bytes from the window's start to the end of its last entry.
    appended: AtomicU32,
    /// Bytes of entries that expire, and the range of their times (ms since the Unix epoch).
    expiring: AtomicU32,
    expires_first_ms: AtomicU64,
    expires_last_ms: AtomicU64,
    /// Sum of the actors' dead counters for this window when it was opened.
    dead_base: AtomicU64,
    opened_ms: AtomicU64,
    /// Log time when it was opened: bytes appended to the store so far.
    opened_tick: AtomicU64,
    /// Number of times that the window was opened.
    incarnation: AtomicU32,
}

impl Default for Segment {
    fn default() -> Segment {
        Segment {
            state: AtomicU8::new(State::Unbacked as u8),
            committed: AtomicU32::new(0),
            appended: AtomicU32::new(0),
            expiring: AtomicU32::new(0),
            expires_first_ms: AtomicU64::new(u64::MAX),
            expires_last_ms: AtomicU64::new(0),
            dead_base: AtomicU64::new(0),
            opened_ms: AtomicU64::new(0),
            opened_tick: AtomicU64::new(0),
            incarnation: AtomicU32::new(0),
        }
    }
}

impl Segment {
    pub(super) fn open(&self, state: State, committed_bytes: u32, now_ms: u64, tick: u64) {
        self.committed.store(committed_bytes, Ordering::Relaxed);
        self.appended
            .store(super::SEGMENT_HEADER_BYTES as u32, Ordering::Relaxed);
        self.expiring.store(0, Ordering::Relaxed);
        self.expires_first_ms.store(u64::MAX, Ordering::Relaxed);
        self.expires_last_ms.store(0, Ordering::Relaxed);
        self.opened_ms.store(now_ms, Ordering::Relaxed);
        self.opened_tick.store(tick, Ordering::Relaxed);
        self.incarnation.fetch_add(1, Ordering::Relaxed);
        self.set_state(state);
    }

    pub fn state(&self) -> State {
        // Acquire pairs with Release in `set_state`: a thread that sees Closed sees every entry of
        // the segment published.
        State::of(self.state.load(Ordering::Acquire))
    }

    pub(super) fn set_state(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// A head or survivor is full: from now on it is immutable and may be cleaned.
    pub fn close(&self) {
        debug_assert!(matches!(self.state(), State::Head | State::Survivor));
        self.set_state(State::Closed);
    }

    /// Claims a closed segment for one cleaner. False: another was faster.
    pub fn claim(&self) -> bool {
        let (from, to) = (State::Closed as u8, State::Victim as u8);
        self.state
            .compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Gives the claim up.
    pub(super) fn unclaim(&self) {
        debug_assert!(self.state() == State::Victim);
        self.set_state(State::Closed);
    }

    /// Called by the segment's one appender.
    #[inline(always)]
    pub fn set_appended(&self, bytes: u32) {
        // Release pairs with Acquire in `appended_bytes`: entries are whole up to here.
        self.appended.store(bytes, Ordering::Release);
    }

    /// Called by the segment's one appender for an entry that expires, after the entry was recorded
    /// as appended.
    pub fn note_expiry(&self, entry_bytes: u32, expires_at_ms: u64) {
        // AcqRel pairs with `expiring_bytes` and `reset_expiry`: a thread that sees the sum sees
        // the entry as appended.
        self.expiring.fetch_add(entry_bytes, Ordering::AcqRel);
        let first = self
            .expires_first_ms
            .load(Ordering::Relaxed)
            .min(expires_at_ms);
        self.expires_first_ms.store(first, Ordering::Relaxed);
        let last = self
            .expires_last_ms
            .load(Ordering::Relaxed)
            .max(expires_at_ms);
        self.expires_last_ms.store(last, Ordering::Relaxed);
    }

    /// Entries that expire were moved elsewhere before any other thread saw them.
    pub fn take_back_expiry(&self, entry_bytes: u32) {
        let less = |sum: u32| Some(sum.saturating_sub(entry_bytes));
        let _ = self
            .expiring
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, less);
    }

    /// Estimated bytes that have expired by `now_ms`, assuming that expiry times spread evenly
    /// between the first and the last.
    pub fn expired_estimate(&self, now_ms: u64) -> u32 {
        let expiring = self.expiring.load(Ordering::Relaxed);
        let first = self.expires_first_ms.load(Ordering::Relaxed);
        let last = self.expires_last_ms.load(Ordering::Relaxed);
        if expiring == 0 || now_ms < first {
            0
        } else if now_ms >= last {
            expiring
        } else {
            let passed = (now_ms - first) as f64 / (last - first) as f64;
            (f64::from(expiring) * passed) as u32
        }
    }

    /// The expiry pass has examined every entry that was counted in `seen_bytes`: `left_bytes` of
    /// them wait, until `first_ms` at the earliest. If more were appended meanwhile, it has to
    /// examine the segment again at `again_ms`.
    pub fn reset_expiry(&self, seen_bytes: u32, left_bytes: u32, first_ms: u64, again_ms: u64) {
        // The time first: an append that is counted after the exchange lowers it again.
        self.expires_first_ms.store(first_ms, Ordering::Relaxed);
        let settled = self.expiring.compare_exchange(
            seen_bytes,
            left_bytes,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        if settled.is_err() {
            self.expires_first_ms
                .store(first_ms.min(again_ms), Ordering::Relaxed);
        }
    }

    pub fn set_dead_base(&self, sum: u64) {
        self.dead_base.store(sum, Ordering::Relaxed);
    }

    pub fn dead_base(&self) -> u64 {
        self.dead_base.load(Ordering::Relaxed)
    }

    pub fn committed_bytes(&self) -> u32 {
        self.committed.load(Ordering::Relaxed)
    }

    pub(super) fn set_committed(&self, bytes: u32) {
        self.committed.store(bytes, Ordering::Relaxed);
    }

    pub fn appended_bytes(&self) -> u32 {
        self.appended.load(Ordering::Acquire)
    }

    /// True while entries in it can be alive.
    pub fn is_in_log(&self) -> bool {
        matches!(
            self.state(),
            State::Head | State::Survivor | State::Closed | State::Victim
        )
    }

    pub fn incarnation(&self) -> u32 {
        self.incarnation.load(Ordering::Relaxed)
    }

    /// Bytes of entries that expire at some time, as recorded so far.
    pub fn expiring_bytes(&self) -> u32 {
        self.expiring.load(Ordering::Acquire)
    }

    /// True if it is closed and no cleaner's victim.
    pub fn is_closed(&self) -> bool {
        self.state() == State::Closed
    }

    /// Sets the time of opening, for a segment that is older than its present window.
    pub fn set_opened(&self, now_ms: u64, tick: u64) {
        self.opened_ms.store(now_ms, Ordering::Relaxed);
        self.opened_tick.store(tick, Ordering::Relaxed);
    }

    pub fn opened_ms(&self) -> u64 {
        self.opened_ms.load(Ordering::Relaxed)
    }

    pub fn opened_tick(&self) -> u64 {
        self.opened_tick.load(Ordering::Relaxed)
    }
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Segment>() == 64);
