//! The data about the segment in each window: one cache line per segment [Merritt17 §3.4], and a
//! second one for the bytes that expire.
//!
//! Live bytes are `appended - (sum of the actors' dead counters - dead_base)`: writers count the
//! entries that they kill in their own counters (`counters`), so an overwrite writes no line here.

use super::SEGMENT_HEADER_BYTES;
use super::expiring::{Expiring, Sample, Waiting};
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
    /// Holds copies of entries whose segments are on flash (`tier::promoted`); no part of the log.
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

#[repr(C, align(64))]
pub struct Segment {
    state: AtomicU8,
    /// Bytes charged to the budget for this window.
    committed: AtomicU32,
    /// Bytes from the window's start to the end of its last entry.
    appended: AtomicU32,
    /// Number of times that the window was opened.
    incarnation: AtomicU32,
    /// Sum of the actors' dead counters for this window when it was opened.
    dead_base: AtomicU64,
    opened_ms: AtomicU64,
    /// Log time when it was opened: bytes appended to the store so far.
    opened_tick: AtomicU64,
    expiring: Expiring,
}

impl Default for Segment {
    fn default() -> Segment {
        Segment {
            state: AtomicU8::new(State::Unbacked as u8),
            committed: AtomicU32::new(0),
            appended: AtomicU32::new(0),
            incarnation: AtomicU32::new(0),
            dead_base: AtomicU64::new(0),
            opened_ms: AtomicU64::new(0),
            opened_tick: AtomicU64::new(0),
            expiring: Expiring::default(),
        }
    }
}

impl Segment {
    pub(super) fn open(&self, state: State, committed_bytes: u32, now_ms: u64, tick: u64) {
        self.committed.store(committed_bytes, Ordering::Relaxed);
        self.appended
            .store(super::SEGMENT_HEADER_BYTES as u32, Ordering::Relaxed);
        self.expiring.open(now_ms);
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

    /// Closes the segment of a full head or survivor: from now on it is immutable and may be
    /// cleaned.
    pub fn close(&self) {
        debug_assert!(matches!(self.state(), State::Head | State::Survivor));
        self.set_state(State::Closed);
    }

    /// Claims a closed segment for one cleaner. Returns false if another cleaner was faster.
    pub fn claim(&self) -> bool {
        let (from, to) = (State::Closed as u8, State::Victim as u8);
        self.state
            .compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Gives the claim up.
    pub fn unclaim(&self) {
        debug_assert!(self.state() == State::Victim);
        self.set_state(State::Closed);
    }

    /// Records how far the segment is filled. Called by the segment's one appender.
    #[inline(always)]
    pub fn set_appended(&self, bytes: u32) {
        // Release pairs with Acquire in `appended_bytes`: entries are whole up to here.
        self.appended.store(bytes, Ordering::Release);
    }

    /// Called by the segment's one appender for an entry that expires, after the entry was recorded
    /// as appended.
    pub fn note_expiry(&self, entry_bytes: u32, expires_at_ms: u64) {
        self.expiring.note(entry_bytes, expires_at_ms);
    }

    /// Notes that the segment on disk has an entry with this expiry, of which memory may have
    /// nothing.
    pub fn note_gone_expiry(&self, expires_at_ms: u64) {
        self.expiring.note_gone(expires_at_ms);
    }

    /// Latest expiry of all entries that the segment has on disk; 0 = none expires.
    pub fn last_expiry_ms(&self) -> u64 {
        self.expiring.last_ms()
    }

    /// Takes back what was noted for an entry that expires: it was moved elsewhere before any other
    /// thread saw it.
    pub fn take_back_expiry(&self, entry_bytes: u32, expires_at_ms: u64) {
        self.expiring.take_back(entry_bytes, expires_at_ms);
    }

    /// Estimated bytes that have expired by `now_ms`.
    pub fn expired_estimate(&self, now_ms: u64) -> u32 {
        self.expiring.expired(now_ms)
    }

    /// True if an entry may have expired by `now_ms`, however few the estimate says.
    pub fn may_have_expired(&self, now_ms: u64) -> bool {
        self.expiring.has_begun(now_ms)
    }

    /// The bytes that expire, as recorded so far: for [`reset_expiry`](Self::reset_expiry).
    pub fn seen_expiry(&self) -> Sample {
        self.expiring.seen()
    }

    /// An empty collection of waiting entries, to be filled for
    /// [`reset_expiry`](Self::reset_expiry).
    pub fn waiting_expiry(&self) -> Waiting {
        self.expiring.waiting()
    }

    /// Notes that the expiry pass has examined every entry that was counted in `seen`, and that
    /// those in `waiting` wait. If more were appended meanwhile, it has to examine the segment
    /// again after `again_ms`.
    pub fn reset_expiry(&self, seen: &Sample, waiting: &Waiting, again_ms: u64) {
        self.expiring.reset(seen, waiting, again_ms);
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

    /// Bytes of entries that were appended and are not live; `live`: the live bytes.
    pub fn dead_beside(&self, live: u64) -> u64 {
        let entries = u64::from(self.appended_bytes()).saturating_sub(SEGMENT_HEADER_BYTES as u64);
        entries.saturating_sub(live)
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
        self.expiring.sum()
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
const _: () = assert!(size_of::<Segment>() == 128);
