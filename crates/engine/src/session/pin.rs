//! A guard's presence in the store: its pin, and all that holds for as long as the pin lasts.

use super::lock_tables::LockTables;
use super::locks::Locks;
use super::summed::Summed;
use crate::core::Core;
use crate::core::flash::Holding;
use crate::core::sound::InMemory;
use crate::epoch::SlotId;
use crate::index::Index;
use crate::index::prefetch::{prefetch, prefetch_pair};
use crate::space::Purpose;
use crate::{Error, KeyHash, Object, TableId};
use duramen_base::expiry::is_expired;
use duramen_base::ids::RouteHash;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::{self, Entry};
use duramen_format::hash;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Fractions of a byte in which the average length of an entry is kept.
const LENGTH_PARTS: u32 = 16;
/// Lines of 64 bytes, beyond which the hardware prefetches better.
const PREFETCHED_LINES: usize = 20;

/// What a session has counted, and the copies that it holds, from one guard to the next.
pub(super) struct Carried {
    /// Bytes that the session has appended, and those at the writer's last check of the memory
    /// pressure (`pacer`).
    appended: Cell<u64>,
    taxed: Cell<u64>,
    /// Bytes of the entries that its guards have found.
    met: Cell<u64>,
    /// A writer has waited for memory, for longer than a moment (`write::NOTED_WAIT`).
    waited: Cell<bool>,
    /// The average bytes of an entry, in [`LENGTH_PARTS`]: the length that is prefetched.
    entry_bytes: Cell<u32>,
    /// Copies of entries that are on flash.
    pub(super) holding: Holding,
}

impl Default for Carried {
    fn default() -> Carried {
        Carried {
            appended: Cell::new(0),
            taxed: Cell::new(0),
            met: Cell::new(0),
            waited: Cell::new(false),
            entry_bytes: Cell::new(LENGTH_PARTS * 128),
            holding: Holding::default(),
        }
    }
}

impl Carried {
    /// Bytes that the session has appended to the log.
    #[inline(always)]
    pub(super) fn appended_bytes(&self) -> u64 {
        self.appended.get()
    }

    #[inline(always)]
    pub(super) fn met_bytes(&self) -> u64 {
        self.met.get() + self.appended.get()
    }

    #[inline]
    pub(super) fn take_waited(&self) -> bool {
        self.waited.take()
    }
}

/// A pinned place in the store. While it lasts, memory that was seen is not reused, and the locked
/// keys stay locked.
pub struct Pin<'s> {
    core: &'s Core,
    slot: SlotId,
    /// Owner number of its locks.
    me: u16,
    /// No other session is in the store.
    alone: bool,
    now_ms: Cell<u64>,
    /// Generation at the last check of allowed writes (`range::watch`).
    generation: u64,
    /// It has been outside since.
    left: bool,
    /// Its reads count for eviction.
    counts_reads: bool,
    /// Its reads decide a write (verified::V6).
    decides: bool,
    /// The long entries that it has verified (verified::V8).
    summed: Summed,
    locks: Locks<'s>,
    carried: &'s mut Carried,
}

impl<'s> Pin<'s> {
    /// The slot is pinned.
    #[inline(always)]
    pub(super) fn new(
        core: &'s Core,
        slot: SlotId,
        alone: bool,
        carried: &'s mut Carried,
        tables: &'s mut LockTables<'static>,
    ) -> Pin<'s> {
        Pin {
            core,
            slot,
            me: slot.0 as u16 + 1,
            alone,
            now_ms: Cell::new(0),
            generation: core.watches.generation.load(Ordering::SeqCst),
            left: false,
            counts_reads: true,
            decides: false,
            summed: Summed::default(),
            locks: Locks::new(tables),
            carried,
        }
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &'s Core {
        self.core
    }

    /// Owner number of its locks.
    #[inline(always)]
    pub(crate) fn me(&self) -> u16 {
        self.me
    }

    #[inline(always)]
    pub(crate) fn slot(&self) -> SlotId {
        self.slot
    }

    /// The stamp of its pin.
    #[inline(always)]
    pub(crate) fn stamp(&self) -> u64 {
        self.core.epochs.stamp_of(self.slot)
    }

    /// Whether all other sessions are kept out
    /// ([`Session::pin_exclusive`](crate::Session::pin_exclusive)).
    #[inline(always)]
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// The keys that are locked.
    #[inline(always)]
    pub fn locks(&self) -> &Locks<'s> {
        &self.locks
    }

    #[inline(always)]
    pub(crate) fn locks_mut(&mut self) -> &mut Locks<'s> {
        &mut self.locks
    }

    /// Whether it is in the middle of an atomic step: it has locked keys, or is alone.
    #[inline(always)]
    pub(crate) fn is_in_step(&self) -> bool {
        self.locks.are_taken() || self.alone
    }

    /// Milliseconds since the Unix epoch, read once per guard.
    #[inline]
    pub(crate) fn now_ms(&self) -> u64 {
        if self.now_ms.get() == 0 {
            self.now_ms.set(self.core.clock.now_ms());
        }
        self.now_ms.get()
    }

    /// Whether a time of expiry is over.
    #[inline]
    pub(crate) fn is_past(&self, expires_at_ms: Option<u64>) -> bool {
        expires_at_ms.is_some_and(|at_ms| is_expired(at_ms, self.now_ms()))
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(self.core.hasher.hash(key))
    }

    #[inline(always)]
    pub(crate) fn route(&self, hash: KeyHash, key: &[u8]) -> RouteHash {
        RouteHash::of(hash::slot(key), hash.0)
    }

    #[inline(always)]
    pub(crate) fn index(&self, table: TableId) -> Result<&'s Index, Error> {
        self.core.tables.index(table)
    }

    /// First step of a batch: starts fetching the bucket's line.
    #[inline(always)]
    pub fn prefetch_bucket(&self, table: TableId, hash: KeyHash) {
        if let Ok(index) = self.index(table) {
            let view = index.partition(hash).view();
            if view.len() != 0 {
                prefetch_pair(view.line(view.home(index.tag(hash))));
            }
        }
    }

    /// Second step of a batch, some operations later: starts fetching the entry's first lines.
    #[inline(always)]
    pub fn prefetch_entry(&self, table: TableId, hash: KeyHash) {
        if let Ok(index) = self.index(table) {
            let view = index.partition(hash).view();
            if view.len() != 0
                && let Some(location) = view.peek(index.tag(hash))
            {
                let Some(at) = self.probably_at(location) else {
                    return;
                };
                let bytes = self.entry_bytes() as usize;
                for ahead in (0..bytes).step_by(64) {
                    prefetch(at.wrapping_add(ahead));
                }
                prefetch(at.wrapping_add(bytes - 1));
            }
        }
    }

    /// The entry of a location found in the index under this pin, which was verified, or is trusted
    /// (verified::V6).
    #[inline(always)]
    pub(crate) fn entry_at(&self, here: InMemory) -> Entry<'s> {
        // SAFETY: the index pointed to this location under our pin, so a whole entry was published
        // there (Acquire in `find`), and neither writer nor cleaner changes or reuses it before the
        // pin ends (epoch::E2, engine::space::S3); or it is a verified copy that the session holds,
        // or that is promoted (core::flash::F4).
        unsafe { entry::parse_trusted(here.at) }
    }

    /// An entry as an object, `None` if it has expired.
    #[inline(always)]
    pub(crate) fn object(&self, entry: Entry<'s>) -> Option<Object<'s>> {
        let expires_at_ms = if entry.expires_at_ms == 0 {
            None
        } else if is_expired(entry.expires_at_ms, self.now_ms()) && !has_bug(Bug::ExpiredIsShown) {
            return None;
        } else {
            Some(entry.expires_at_ms)
        };
        Some(Object {
            key: entry.key,
            value: entry.value,
            version: entry.version,
            expires_at_ms,
            is_typed: entry.is_typed,
        })
    }

    /// Leaves the store and enters it again, unless keys are locked or it is alone: memory that was
    /// seen before may be reused now.
    pub(super) fn refresh(&mut self) {
        if !self.is_in_step() {
            self.core.epochs.unpin(self.slot);
            self.core.enter(self.slot);
        }
        self.renew();
        self.summed.forget();
        self.carried.holding.part_ends();
        self.now_ms.set(0);
    }

    /// Leaves the store for a wait, while `work` is done. Values that were read may not be used
    /// again.
    #[inline]
    pub(crate) fn outside<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.left = true;
        self.core.epochs.unpin(self.slot);
        let done = work();
        self.core.enter(self.slot);
        done
    }

    /// As [`outside`](Self::outside), but comes back only with what `work` has got for it: if
    /// another session wants to be alone, that is dropped, and `work` is done again.
    #[inline]
    pub(crate) fn outside_until<T>(&mut self, mut work: impl FnMut() -> T) -> T {
        self.left = true;
        loop {
            self.core.epochs.unpin(self.slot);
            let got = work();
            if self.core.try_enter(self.slot, false) {
                return got;
            }
            drop(got);
            self.core.enter(self.slot);
        }
    }

    /// Called before the caller checks again which writes are allowed: this guard's further writes
    /// rely on that check, whatever changed before it. For guards that serve several requests. See
    /// [`Store::quiesce`](crate::Store::quiesce).
    #[inline(always)]
    pub fn renew(&mut self) {
        self.generation = self.core.watches.generation.load(Ordering::SeqCst);
        self.left = false;
    }

    /// Makes the checks of other guards stale: guards that are outside, to find memory or another
    /// head, or that wait for this guard, get [`Error::TryAgain`] when they write or lock keys. For
    /// a guard that is alone in the store.
    pub fn outdate_others(&self) {
        assert!(self.alone, "others are outside only while one is alone");
        self.core.watches.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// # Errors
    /// [`Error::TryAgain`] if this guard has been outside while a thread waited for that.
    #[inline(always)]
    pub(crate) fn check_generation(&self) -> Result<(), Error> {
        // Relaxed: it came in again by a full barrier. A guard that never left is waited for.
        if self.left && self.generation != self.core.watches.generation.load(Ordering::Relaxed) {
            Err(Error::TryAgain)
        } else {
            Ok(())
        }
    }

    /// Whether reads from now on count: a cache evicts last what was read often, and entries on
    /// flash that are read repeatedly get a copy in memory.
    #[inline(always)]
    pub fn set_counts_reads(&mut self, on: bool) {
        self.counts_reads = on;
    }

    #[inline(always)]
    pub(super) fn counts_reads(&self) -> bool {
        self.counts_reads
    }

    /// Whether what is read from now on decides what the same command writes (verified::V6).
    #[inline(always)]
    pub fn set_decides(&mut self, on: bool) {
        self.decides = on;
    }

    /// verified::V6: whether what it reads now may decide a write, with or without a draft.
    #[cold]
    pub(super) fn may_decide(&self, has_draft: bool) -> bool {
        let may = self.decides || has_draft || self.locks.are_taken();
        may && !has_bug(Bug::DecisionsUnverified)
    }

    #[inline(always)]
    pub(super) fn holding(&self) -> &Holding {
        &self.carried.holding
    }

    pub(super) fn summed(&self) -> &Summed {
        &self.summed
    }

    /// Forgets the entries that were handed in. References that the guard returned may not be used
    /// any more.
    pub fn forget_fetched(&mut self) {
        self.summed.forget();
        self.carried.holding.forget();
    }

    /// Bytes that the guards of this session have appended to the log.
    #[inline(always)]
    pub fn appended_bytes(&self) -> u64 {
        self.carried.appended_bytes()
    }

    /// So many bytes were appended.
    #[inline(always)]
    pub(crate) fn note_appended(&self, bytes: usize) {
        let appended = &self.carried.appended;
        appended.set(appended.get() + bytes as u64);
    }

    /// Bytes that were appended since the last call that returned some, if they are as many.
    #[inline]
    pub(super) fn take_untaxed(&self, least: u64) -> Option<u64> {
        let appended = self.carried.appended.get();
        let untaxed = appended - self.carried.taxed.get();
        (untaxed >= least).then(|| {
            self.carried.taxed.set(appended);
            untaxed
        })
    }

    /// Bytes of all entries that the guards of this session have found or appended: a measure of
    /// their work.
    #[inline(always)]
    pub fn met_bytes(&self) -> u64 {
        self.carried.met_bytes()
    }

    #[inline(always)]
    pub(crate) fn meet_bytes(&self, bytes: usize) {
        let met = &self.carried.met;
        met.set(met.get() + bytes as u64);
    }

    /// The average bytes of an entry that was read.
    #[inline(always)]
    pub(super) fn entry_bytes(&self) -> u32 {
        self.carried.entry_bytes.get() / LENGTH_PARTS
    }

    /// An entry of so many bytes was read.
    #[inline(always)]
    pub(super) fn note_length(&self, bytes: usize) {
        let bytes = bytes.min(PREFETCHED_LINES * 64) as u32;
        let average = &self.carried.entry_bytes;
        // An exponential average over 16 reads.
        average.set(average.get() - average.get() / LENGTH_PARTS + bytes);
    }

    /// Whether a write of this session has waited for memory since the last call: for milliseconds,
    /// in which its thread served no other request.
    #[inline]
    pub fn take_waited(&self) -> bool {
        self.carried.take_waited()
    }

    /// A write has waited for memory.
    pub(crate) fn note_waited(&self) {
        self.carried.waited.set(true);
    }

    /// The hard budget of the store, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.core.space.budget.limit()
    }

    /// Whether the store refuses new data for want of memory.
    pub fn is_full(&self) -> bool {
        self.core.refuses(Purpose::Head)
    }

    /// Its guard ends, and holds nothing any more.
    #[inline]
    pub(super) fn end(&mut self) {
        self.core.epochs.unpin(self.slot);
        self.carried.holding.part_ends();
        if self.alone {
            self.core.exclusive.leave_alone();
        }
    }
}
