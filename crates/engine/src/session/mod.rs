//! Sessions and guards: a thread's access to the store.
//!
//! A session belongs to one thread at a time; it appends to one head and owns one reclaim slot. A
//! guard is one batch: it pins the memory that it sees. Reads borrow the guard, so no slice of the
//! log outlives the pin. Writes borrow it mutably, because a write that has to find memory first
//! unpins for a moment.

mod cold;
pub(crate) mod draft;
mod lock_tables;
pub(crate) mod locks;
mod notes;
pub(crate) mod order;
mod reads;
pub(crate) mod roll;
mod summed;
pub(crate) mod verified;

pub use locks::Locks;
pub use notes::{Notes, TypedWrite};

use crate::core::Core;
use crate::core::flash::Holding;
use crate::core::sound::InMemory;
use crate::epoch::SlotId;
use crate::head::{Head, Tail};
use crate::index::bucket::{Slot, View};
use crate::index::prefetch::{prefetch, prefetch_pair};
use crate::index::{Index, Partition};
use crate::log::Position;
use crate::space::Purpose;
use crate::{Error, KeyHash, Object, Stamp, Store, TableChange, TableId};
use duramen_base::expiry::is_expired;
use duramen_base::ids::{Level, RouteHash};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::{AtomicU64, MutexGuard};
use duramen_base::waits::{self, NOTHING, Resource};
use duramen_format::entry::{self, Entry};
use duramen_format::hash;
use lock_tables::LockTables;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use summed::Summed;
use verified::{Found, Verify};

/// Most bytes of the scratch buffer that a session keeps between guards: one that was filled with a
/// large value would stay with each thread.
const SCRATCH_KEPT_MAX: usize = 256 << 10;

/// One thread's access to the store (its head, its reclaim slot). `Send`, not shareable: use one
/// per thread.
pub struct Session {
    store: Arc<Store>,
    slot: SlotId,
    me: u16,
    head: usize,
    scratch: Vec<u8>,
    carried: Carried,
    notes: Notes,
    /// Memory for the locks of its next step.
    lock_tables: LockTables<'static>,
}

/// State that a session keeps from guard to guard.
pub(crate) struct Carried {
    /// Bytes that the session has appended, and those at the writer's last check of the memory
    /// pressure (`pacer`).
    pub appended: u64,
    pub taxed: u64,
    /// Bytes of the entries that its guards have found.
    pub met: Cell<u64>,
    /// A writer has waited for memory, for longer than a moment (`write::NOTED_WAIT`).
    pub waited: bool,
    /// Sixteen times the average bytes of an entry: the length that `prefetch_entry` fetches.
    pub entry_bytes: Cell<u32>,
    /// Copies of entries that are on flash.
    pub holding: Holding,
    /// The least version that its next writes give; 0 = any.
    pub version_at_least: u64,
}

impl Store {
    /// Creates a session for one thread. Sessions share the heads in turn.
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    pub fn session(self: &Arc<Self>) -> Result<Session, Error> {
        let slot = self.core().epochs.register_session()?;
        Ok(Session::new(self.clone(), slot))
    }

    /// A session for one short step, which is possible beside the most sessions.
    ///
    /// # Errors
    /// [`Error::TooManySessions`]: many such steps are in progress as well.
    pub fn brief_session(self: &Arc<Self>) -> Result<Session, Error> {
        let slot = self.core().epochs.register()?;
        Ok(Session::new(self.clone(), slot))
    }
}

impl Session {
    /// As [`Guard::take_waited`].
    pub fn take_waited(&mut self) -> bool {
        std::mem::take(&mut self.carried.waited)
    }

    fn new(store: Arc<Store>, slot: SlotId) -> Session {
        let head = store.next_head();
        let carried = Carried {
            appended: 0,
            met: Cell::new(0),
            taxed: 0,
            waited: false,
            entry_bytes: Cell::new(16 * 128),
            holding: Holding::default(),
            version_at_least: 0,
        };
        Session {
            me: slot.0 as u16 + 1,
            store,
            slot,
            head,
            scratch: Vec::new(),
            carried,
            notes: Notes::default(),
            lock_tables: LockTables::default(),
        }
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// As [`Guard::met_bytes`].
    pub fn met_bytes(&self) -> u64 {
        self.carried.met.get() + self.carried.appended
    }

    /// Bytes that its guards have appended to the log.
    #[inline]
    pub fn appended_bytes(&self) -> u64 {
        self.carried.appended
    }

    pub(crate) fn holding(&self) -> &Holding {
        &self.carried.holding
    }

    pub(crate) fn holding_mut(&mut self) -> &mut Holding {
        &mut self.carried.holding
    }

    /// Enters the store for one batch of operations.
    #[inline]
    pub fn pin(&mut self) -> Guard<'_> {
        self.store.core().enter(self.slot);
        self.guard(false)
    }

    /// Enters the store alone: waits until every other session is between guards and keeps them
    /// out. For steps that must be atomic over everything (`FLUSHALL`, a transaction with such a
    /// command).
    pub fn pin_exclusive(&mut self) -> Guard<'_> {
        let core = self.store.core();
        core.exclusive.enter_alone(&core.epochs, self.slot);
        self.guard(true)
    }

    #[inline(always)]
    fn guard(&mut self, alone: bool) -> Guard<'_> {
        let core = self.store.core();
        Guard {
            core,
            slot: self.slot,
            me: self.me,
            head: core.head_in_use(self.head),
            tail: None,
            scratch: &mut self.scratch,
            carried: &mut self.carried,
            notes: &mut self.notes,
            now_ms: Cell::new(0),
            locks: Locks::new(&mut self.lock_tables),
            draft: None,
            alone,
            own: None,
            seen: Cell::new(false),
            observed: RefCell::default(),
            changes: RefCell::default(),
            left: false,
            ahead: Vec::new(),
            granted: false,
            puts: Purpose::Head,
            counts_reads: true,
            decides: false,
            summed: Summed::default(),
            generation: core
                .watches
                .generation
                .load(std::sync::atomic::Ordering::SeqCst),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.store.is_inherited() {
            self.store.core().epochs.unregister(self.slot);
        }
    }
}

/// The slot that [`Guard::read_seen`] found; none if the key was absent.
#[derive(Clone, Copy)]
pub struct Seen<'g>(Option<(View<'g>, usize, &'g AtomicU64, Slot)>);

/// A pinned session: memory it has seen is not reused until it is dropped. Keep it for one batch,
/// not longer.
pub struct Guard<'s> {
    pub(crate) core: &'s Core,
    pub(crate) slot: SlotId,
    pub(crate) me: u16,
    pub(crate) head: &'s Head,
    /// The head's lock, from the first write on (head::H1).
    pub(crate) tail: Option<MutexGuard<'s, Tail>>,
    pub(crate) scratch: &'s mut Vec<u8>,
    pub(crate) carried: &'s mut Carried,
    pub(crate) notes: &'s mut Notes,
    now_ms: Cell<u64>,
    pub(crate) locks: Locks<'s>,
    /// Its operations change this draft instead of the store.
    pub(crate) draft: Option<Box<draft::Draft>>,
    /// No other session is in the store.
    pub(crate) alone: bool,
    /// With a log: end of the last own append to this head, and the highest level of the tables
    /// written.
    pub(crate) own: Option<(u64, Level)>,
    /// `observed` is not empty.
    pub(crate) seen: Cell<bool>,
    pub(crate) observed: RefCell<Position>,
    /// Changes that this exclusive guard made to tables, with their numbers in the log.
    pub(crate) changes: RefCell<Vec<(u64, TableChange)>>,
    /// Generation at the last check of allowed writes (`range::watch`).
    pub(crate) generation: u64,
    /// The guard has been outside since.
    pub(crate) left: bool,
    /// Windows that its next group has set aside (room::R2).
    pub(crate) ahead: Vec<u32>,
    /// The open group has room for all its appends (room::R1).
    pub(crate) granted: bool,
    /// The purpose for which its writes take memory.
    pub(crate) puts: Purpose,
    /// Its reads count for eviction.
    pub(crate) counts_reads: bool,
    /// Its reads decide a write (verified::V6).
    pub(crate) decides: bool,
    /// The long entries that it has verified under its pin (verified::V8).
    pub(crate) summed: Summed,
}

/// A locked home bucket and the slot and entry that were found in it.
pub(crate) struct Locked<'s> {
    pub(crate) partition: &'s Partition,
    pub(crate) view: View<'s>,
    pub(crate) home: usize,
    pub(crate) tag: u64,
    /// The lock belongs to the guard's transaction and outlives the update.
    pub(crate) in_transaction: bool,
    pub(crate) found: Option<(&'s AtomicU64, Slot, Entry<'s>)>,
}

impl<'s> Guard<'s> {
    /// Milliseconds since the Unix epoch, read once per guard.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        if self.now_ms.get() == 0 {
            self.now_ms.set(self.core.clock.now_ms());
        }
        self.now_ms.get()
    }

    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(self.core.hasher.hash(key))
    }

    /// The route hash of a key with this hash, its place in a cluster.
    #[inline(always)]
    pub fn route(&self, hash: KeyHash, key: &[u8]) -> RouteHash {
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
                let bytes = self.carried.entry_bytes.get() as usize / 16;
                for ahead in (0..bytes).step_by(64) {
                    prefetch(at.wrapping_add(ahead));
                }
                prefetch(at.wrapping_add(bytes - 1));
            }
        }
    }

    /// Leaves the store and enters it again: memory that was read before may be reused now. For
    /// guards that are kept over several batches.
    pub fn refresh(&mut self) {
        if !self.alone && !self.locks.are_taken() {
            self.tail = None; // no session may wait for this head while we wait to enter
            self.core.epochs.unpin(self.slot);
            self.core.enter(self.slot);
        }
        self.renew();
        self.summed.forget();
        self.carried.holding.part_ends();
        self.now_ms.set(0);
    }

    /// Takes the head's lock, for this guard to keep. Values that were read may not be used again:
    /// the guard may have been outside meanwhile.
    #[inline(always)]
    pub(crate) fn take_head(&mut self) {
        if self.tail.is_none() {
            match self.head.tail.try_lock() {
                Ok(tail) => self.tail = Some(tail),
                Err(_) => self.wait_for_head(),
            }
            if self.alone
                && let Some(log) = &self.core.log
                && let Some(tail) = &mut self.tail
            {
                log.begin_group(tail);
            }
        }
    }

    /// Another session has this head. It may be waiting for memory that our pin would hold back, or
    /// may be alone soon.
    #[cold]
    fn wait_for_head(&mut self) {
        debug_assert!(!self.locks.are_taken(), "a transaction has its head");
        self.left |= !self.alone;
        loop {
            if !self.alone {
                self.core.epochs.unpin(self.slot);
            }
            let noted = waits::note(
                Resource::Head,
                if self.alone {
                    &[Resource::Door, Resource::Pin]
                } else {
                    NOTHING
                },
            );
            let tail = self.head.tail.lock().expect("head");
            drop(noted);
            if self.alone || self.core.try_enter(self.slot, false) {
                self.tail = Some(tail);
                return;
            }
            drop(tail);
            self.core.enter(self.slot);
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

    /// The object, or `None` if absent or expired.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    #[inline(always)]
    pub fn read(
        &self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<Object<'_>>, Error> {
        if let Some(draft) = &self.draft {
            return draft.read(self, table, hash, key);
        }
        let index = self.index(table)?;
        let Some(entry) = self.find(index, hash, key)? else {
            return Ok(None);
        };
        let object = self.object(entry);
        if object.is_none() {
            self.expire_now(table, index, hash, key);
        }
        Ok(object)
    }

    /// As [`read`](Self::read); also returns a token with which the same guard can check later
    /// whether the key is unchanged. For reads of several keys that must all have been true at one
    /// moment.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    #[inline(always)]
    pub fn read_seen(
        &self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<(Option<Object<'_>>, Seen<'_>), Error> {
        if let Some(draft) = &self.draft {
            return Ok((draft.read(self, table, hash, key)?, Seen(None)));
        }
        let index = self.index(table)?;
        let Some((view, place, slot, entry)) = self.find_slot(index, hash, key)? else {
            self.observe_absence(index, index.partition(hash), hash);
            return Ok((None, Seen(None)));
        };
        let home = view.home(index.tag(hash));
        let object = self.object(entry);
        if object.is_none() {
            self.expire_now(table, index, hash, key);
        }
        Ok((object, Seen(object.map(|_| (view, home, place, slot)))))
    }

    /// True if the key that [`read_seen`](Self::read_seen) found is unchanged. Also false for a key
    /// that was absent (read it again), and for one that a cleaner has moved.
    #[inline(always)]
    pub fn is_unchanged(&self, seen: &Seen<'_>) -> bool {
        seen.0
            .is_some_and(|(view, home, place, slot)| view.still_holds(home, place, slot))
    }

    #[inline(always)]
    pub(crate) fn find(
        &self,
        index: &Index,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<Entry<'s>>, Error> {
        let Some((_, _, _, entry)) = self.find_slot(index, hash, key)? else {
            self.observe_absence(index, index.partition(hash), hash);
            return Ok(None);
        };
        Ok(Some(entry))
    }

    #[inline(always)]
    fn find_slot<'i>(
        &self,
        index: &'i Index,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<(View<'i>, &'i AtomicU64, Slot, Entry<'s>)>, Error> {
        let partition = index.partition(hash);
        debug_assert!(
            self.locks.may_read(partition, index.tag(hash)),
            "a key is read under locks that do not include its own"
        );
        let (view, place, slot, here) = loop {
            let view = partition.view();
            if view.len() == 0 {
                return Ok(None);
            }
            match self.find_in(view, index.tag(hash), key, Verify::AsSet) {
                Some((place, slot, Found::Key(here))) => break (view, place, slot, here),
                Some((_, slot, Found::Cold)) => self.meet_cold(slot.location())?,
                Some((_, _, Found::Damaged)) => return Err(Error::Damaged),
                None | Some((_, _, Found::Other)) => return Ok(None),
            }
        };
        let entry = self.entry_at(here);
        if here.is_copy && self.counts_reads {
            self.served_copy(slot, here);
        }
        if self.core.space.is_undurable(slot.location()) {
            self.observe_entry(index, slot.location());
        }
        if self.core.is_cache() && self.counts_reads {
            crate::index::bucket::touch(place, slot);
        }
        self.meet_bytes(entry.padded_bytes);
        let bytes = entry.padded_bytes.min(20 * 64) as u32;
        let average = self.carried.entry_bytes.get();
        // An exponential average over 16 reads, of 20 lines at most: beyond that the hardware
        // prefetcher is faster.
        self.carried.entry_bytes.set(average - average / 16 + bytes);
        Ok(Some((view, place, slot, entry)))
    }

    /// Identifies the key's present state.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn stamp(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Result<Stamp, Error> {
        if let Some(draft) = &self.draft
            && let Some(stamp) = draft.stamp(self.now_ms(), table, hash, key)
        {
            return Ok(stamp);
        }
        if let Some(object) = self.read(table, hash, key)? {
            return Ok(Stamp::Present {
                version: object.version,
            });
        }
        self.stamp_of_absent(table, hash, key)
    }

    /// The stamp of a key that a read has not found.
    pub(crate) fn stamp_of_absent(
        &self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Stamp, Error> {
        // Only now: the read may have removed an expired object. A key that was created since then
        // is present, or its removal is counted here, and then it is absent now.
        let index = self.index(table)?;
        let removals = index.partition(hash).removals(index.tag(hash));
        let found = self.find(index, hash, key)?;
        let expired = found.filter(|entry| self.object(*entry).is_none());
        Ok(Stamp::Absent {
            removals,
            expired: expired.map_or(0, |entry| entry.version),
        })
    }

    /// Bytes the object takes in the log and the index; `None` if absent.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn footprint_bytes(
        &self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<u64>, Error> {
        let index = self.index(table)?;
        let found = self
            .find(index, hash, key)?
            .filter(|entry| self.object(*entry).is_some());
        Ok(found.map(|entry| {
            let partition = index.partition(hash);
            let bucket_bytes = (partition.view().len() * 64) as u64;
            entry.padded_bytes as u64 + bucket_bytes / partition.count().max(1) as u64
        }))
    }

    /// The keys that it has locked.
    pub fn locks(&self) -> &Locks<'s> {
        &self.locks
    }

    /// What is noted about its writes.
    #[inline]
    pub fn notes(&mut self) -> &mut Notes {
        self.notes
    }

    /// A client begins to read a key. `remember` notes the client for the listener to writes, and
    /// returns whether it was not noted before: then changes of the key before, under this guard or
    /// in its draft, are no news for it. In a draft, only the first read of a key counts.
    ///
    /// # Errors
    /// [`Error::GroupTooLarge`]: the draft has no memory for another key.
    #[cold]
    pub fn begin_read(
        &mut self,
        client: u64,
        key: &[u8],
        remember: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        match &mut self.draft {
            Some(draft) => draft.begin_read(client, key, remember),
            None => {
                self.notes.begin_read(client, key, remember);
                Ok(())
            }
        }
    }

    /// Whether the store refuses new data for want of memory.
    pub fn is_full(&self) -> bool {
        self.core.refuses(Purpose::Head)
    }

    /// Whether all other sessions are kept out ([`Session::pin_exclusive`]).
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// From now on, writes replace data of about the same size (`on`), so a store that is full for
    /// others accepts them: a new expiry, a new name. They may exceed the limit of live data
    /// slightly, as far as `Purpose::Rewrite` allows.
    #[inline(always)]
    pub fn rewrites(&mut self, on: bool) {
        self.puts = if on { Purpose::Rewrite } else { Purpose::Head };
    }

    /// Whether reads from now on count: a cache evicts last what was read often, and entries on
    /// flash that are read repeatedly get a copy in memory.
    #[inline(always)]
    pub fn counts_reads(&mut self, on: bool) {
        self.counts_reads = on;
    }

    /// Number of recent reads of a key by which a cache evicts: 0 to 7. It is halved each time that
    /// eviction spares the key, and does not grow in a store. `None`: the key is absent. This read
    /// does not count.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn recent_reads(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<u64>, Error> {
        let counts = std::mem::replace(&mut self.counts_reads, false);
        let reads = self.access_of(table, hash, key);
        self.counts_reads = counts;
        reads
    }

    fn access_of(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Result<Option<u64>, Error> {
        if self.read(table, hash, key)?.is_none() {
            return Ok(None);
        }
        let found = self.find_slot(self.index(table)?, hash, key)?;
        Ok(Some(found.map_or(0, |(_, _, slot, _)| slot.access())))
    }

    /// Bytes that the guards of this session have appended to the log.
    #[inline(always)]
    pub fn appended_bytes(&self) -> u64 {
        self.carried.appended
    }

    /// Bytes of all entries that the guards of this session have found or appended: a measure of
    /// their work.
    #[inline(always)]
    pub fn met_bytes(&self) -> u64 {
        self.carried.met.get() + self.carried.appended
    }

    #[inline(always)]
    pub(crate) fn meet_bytes(&self, bytes: usize) {
        self.carried.met.set(self.carried.met.get() + bytes as u64);
    }

    /// Whether a write of this session has waited for memory since the last call: for milliseconds,
    /// in which its thread served no other request.
    #[inline]
    pub fn take_waited(&mut self) -> bool {
        std::mem::take(&mut self.carried.waited)
    }

    pub fn memory_bytes(&self) -> u64 {
        self.core.space.budget.limit()
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.unlock_keys();
        self.notes.tell_replaced(&self.core.departures);
        if self.alone {
            self.publish_alone();
        }
        self.notes.tell_written(&self.core.writes);
        let wrote = self.tail.take().is_some();
        if self.scratch.capacity() > SCRATCH_KEPT_MAX {
            *self.scratch = Vec::new();
        }
        self.core.epochs.unpin(self.slot);
        self.carried.holding.part_ends();
        if self.alone {
            self.core.exclusive.leave_alone();
        } else if wrote {
            let appended = self.carried.appended - self.carried.taxed;
            if appended >= crate::cleaner::pacer::LOOK_EVERY_BYTES {
                self.carried.taxed = self.carried.appended;
                self.core.pay_tax(appended, self.head, self.me);
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Decision, Options};

    /// One `SETRANGE` of a value of 1 MB per thread stayed with each thread for ever.
    #[test]
    fn a_large_scratch_buffer_is_given_back() {
        let store = Store::new(Options::new(64 << 20)).expect("a store");
        let mut session = store.session().expect("a session");
        for bytes in [1 << 20, 1 << 10] {
            let mut guard = session.pin();
            let hash = guard.hash(b"key");
            let written = guard.update(TableId::DEFAULT, hash, b"key", |_, scratch| {
                scratch.resize(bytes, 1);
                Decision::PutScratch {
                    expires_at_ms: None,
                }
            });
            written.expect("there is room");
            drop(guard);
            assert!(session.scratch.capacity() <= SCRATCH_KEPT_MAX);
        }
        assert!(session.scratch.capacity() > 0, "a small one stays");
    }

    /// `EXEC` that is alone waited for its head, exchanged two databases, and was refused the next
    /// write as outdated by itself.
    #[test]
    fn a_guard_that_is_alone_does_not_leave_while_it_waits_for_its_head() {
        let store = Store::new(Options::new(64 << 20)).expect("a store");
        let mut session = store.session().expect("a session");
        let mut guard = session.pin_exclusive();
        guard.wait_for_head();
        guard.outdate_others();
        let hash = guard.hash(b"key");
        let written = guard.write(TableId::DEFAULT, hash, b"key", b"value", None);
        written.expect("it was inside all the time");
    }
}
