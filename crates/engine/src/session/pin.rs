//! A guard's presence in the store: its pin, and all that holds for as long as the pin lasts.

use super::entries::{Carried, Entries};
use super::lock_tables::LockTables;
use super::locks::Locks;
use super::work::Work;
use crate::core::Core;
use crate::epoch::SlotId;
use crate::index::Index;
use crate::index::prefetch::{prefetch, prefetch_pair};
use crate::space::Purpose;
use crate::{Error, KeyHash, Object, TableId};
use duramen_base::expiry::is_expired;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::Entry;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// A pinned place in the store. While it lasts, memory that was seen is not reused, and the locked
/// keys stay locked.
pub struct Pin<'s> {
    entries: Entries<'s>,
    /// No other session is in the store.
    alone: bool,
    now_ms: Cell<u64>,
    /// Generation at the last check of allowed writes (`range::watch`).
    generation: u64,
    /// Whether the guard has been outside since that check.
    left: bool,
    /// Whether the guard's reads count for eviction.
    counts_reads: bool,
    /// Whether the guard's reads decide a write (verified::V6).
    decides: bool,
    locks: Locks<'s>,
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
            entries: Entries::new(core, slot, carried),
            alone,
            now_ms: Cell::new(0),
            generation: core.listeners.watches.generation.load(Ordering::SeqCst),
            left: false,
            counts_reads: true,
            decides: false,
            locks: Locks::new(tables),
        }
    }

    #[inline(always)]
    pub(crate) fn core(&self) -> &'s Core {
        self.entries.core()
    }

    /// Owner number of its locks.
    #[inline(always)]
    pub(crate) fn me(&self) -> u16 {
        self.entries.me()
    }

    /// The entries that are seen under it.
    #[inline(always)]
    pub(crate) fn entries(&self) -> &Entries<'s> {
        &self.entries
    }

    /// The counts of its session.
    #[inline(always)]
    pub fn work(&self) -> &Work {
        self.entries.work()
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

    /// Whether the guard is in the middle of an atomic step: it has locked keys, or is alone.
    #[inline(always)]
    pub(crate) fn is_in_step(&self) -> bool {
        self.locks.are_taken() || self.alone
    }

    /// Milliseconds since the Unix epoch, read once per guard.
    #[inline]
    pub(crate) fn now_ms(&self) -> u64 {
        if self.now_ms.get() == 0 {
            self.now_ms.set(self.core().clock().now_ms());
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
        self.core().tables.hash(key)
    }

    #[inline(always)]
    pub(crate) fn index(&self, table: TableId) -> Result<&'s Index, Error> {
        self.core().tables.index(table)
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
                let Some(at) = self.entries.probably_at(location) else {
                    return;
                };
                let bytes = self.work().entry_bytes() as usize;
                for ahead in (0..bytes).step_by(64) {
                    prefetch(at.wrapping_add(ahead));
                }
                prefetch(at.wrapping_add(bytes - 1));
            }
        }
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
            let (core, slot) = (self.core(), self.entries.slot());
            core.door.leave(slot);
            core.door.enter(slot);
        }
        self.renew();
        self.entries.part_ends();
        self.now_ms.set(0);
    }

    /// Leaves the store for a wait, while `work` is done. Values that were read may not be used
    /// again.
    #[inline]
    pub(crate) fn outside<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let (core, slot) = (self.core(), self.entries.slot());
        self.left = true;
        core.door.leave(slot);
        let done = work();
        core.door.enter(slot);
        done
    }

    /// As [`outside`](Self::outside), but the guard enters again only together with the result of
    /// `work`: if another session wants to be alone, the result is dropped, and `work` is done
    /// again.
    #[inline]
    pub(crate) fn outside_until<T>(&mut self, mut work: impl FnMut() -> T) -> T {
        let (core, slot) = (self.core(), self.entries.slot());
        self.left = true;
        loop {
            core.door.leave(slot);
            let got = work();
            if core.door.try_enter(slot, false) {
                return got;
            }
            drop(got);
            core.door.enter(slot);
        }
    }

    /// Called before the caller checks again which writes are allowed: this guard's further writes
    /// rely on that check, whatever changed before it. For guards that serve several requests. See
    /// [`Store::quiesce`](crate::Store::quiesce).
    #[inline(always)]
    pub fn renew(&mut self) {
        self.generation = self
            .core()
            .listeners
            .watches
            .generation
            .load(Ordering::SeqCst);
        self.left = false;
    }

    /// Makes the checks of other guards stale: guards that are outside, to find memory or another
    /// head, or that wait for this guard, get [`Error::TryAgain`] when they write or lock keys. For
    /// a guard that is alone in the store.
    pub fn outdate_others(&self) {
        assert!(self.alone, "others are outside only while one is alone");
        self.core()
            .listeners
            .watches
            .generation
            .fetch_add(1, Ordering::SeqCst);
    }

    /// # Errors
    /// [`Error::TryAgain`] if this guard has been outside while a thread waited for that.
    #[inline(always)]
    pub(crate) fn check_generation(&self) -> Result<(), Error> {
        // Relaxed: a guard that has been outside entered again by a full barrier, and a guard that
        // never left is waited for.
        if self.left
            && self.generation
                != self
                    .core()
                    .listeners
                    .watches
                    .generation
                    .load(Ordering::Relaxed)
        {
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

    /// verified::V6: whether a read may use an entry without its sum. `has_draft`: the read is one
    /// of a draft.
    #[inline(always)]
    pub(super) fn trusts(&self, has_draft: bool) -> bool {
        has_bug(Bug::ReadsUnverified)
            || self.core().listeners.damages.trusts_reads() && !self.may_decide(has_draft)
    }

    /// verified::V6: whether a read of the guard may decide a write now.
    #[cold]
    fn may_decide(&self, has_draft: bool) -> bool {
        let may = self.decides || has_draft || self.locks.are_taken();
        may && !has_bug(Bug::DecisionsUnverified)
    }

    /// Forgets the entries that were handed in. References that the guard returned may not be used
    /// any more.
    pub fn forget_fetched(&mut self) {
        self.entries.forget_fetched();
    }

    /// The hard budget of the store, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.core().space.budget.limit()
    }

    /// Whether the store refuses new data for want of memory.
    pub fn is_full(&self) -> bool {
        self.core().refuses(Purpose::Head)
    }

    /// Ends the pin: its guard ends, and holds nothing any more.
    #[inline]
    pub(super) fn end(&mut self) {
        let core = self.core();
        core.door.leave(self.entries.slot());
        self.entries.part_ends();
        if self.alone {
            core.door.leave_alone();
        }
    }
}
