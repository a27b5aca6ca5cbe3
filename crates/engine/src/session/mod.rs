//! Sessions and guards: a thread's access to the store.
//!
//! A session belongs to one thread at a time; it appends to one head and owns one reclaim slot. A
//! guard is one batch: it pins the memory that it sees. Reads borrow the guard, so no slice of the
//! log outlives the pin. Writes borrow it mutably, because a write that has to find memory first
//! unpins for a moment.
//!
//! A guard has parts, each with its own fields: a [`Pin`] with the locked keys, an `Appender`,
//! what it has [`Observed`], a [`Draft`] and [`Notes`]. Its own methods are those that need several
//! of them.

pub(crate) mod append;
mod cold;
pub(crate) mod draft;
pub(crate) mod entries;
mod lock_tables;
mod locks;
mod notes;
pub(crate) mod observed;
pub(crate) mod order;
pub(crate) mod pin;
mod reads;
pub(crate) mod roll;
mod summed;
pub(crate) mod verified;
mod work;

pub use locks::Locks;
pub use notes::{Notes, TypedWrite};
pub use observed::Observed;
pub use pin::Pin;
pub use work::Work;

use crate::cleaner::pacer::{LOOK_EVERY_BYTES, pay_tax};
use crate::core::flash::Holding;
use crate::epoch::SlotId;
use crate::index::bucket::{Slot, View};
use crate::index::{Index, Partition};
use crate::space::Purpose;
use crate::{Error, KeyHash, Object, Stamp, Store, TableId};
use append::Appender;
use draft::Draft;
use duramen_base::ids::RouteHash;
use duramen_base::sync::AtomicU64;
use duramen_format::entry::Entry;
use duramen_format::hash;
use entries::Carried;
use lock_tables::LockTables;
use std::sync::Arc;
use verified::Found;

/// Most bytes of the scratch buffer that a session keeps between guards: otherwise a buffer that
/// was filled with a large value would stay with each thread.
const SCRATCH_KEPT_MAX: usize = 256 << 10;

/// One thread's access to the store (its head, its reclaim slot). `Send`, not shareable: use one
/// per thread.
pub struct Session {
    store: Arc<Store>,
    slot: SlotId,
    head: usize,
    scratch: Vec<u8>,
    carried: Carried,
    notes: Notes,
    /// Memory for the locks of its next step.
    lock_tables: LockTables<'static>,
}

impl Store {
    /// Creates a session for one thread. Sessions share the heads in turn.
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    pub fn session(self: &Arc<Self>) -> Result<Session, Error> {
        let slot = self.core().door.epochs().register_session()?;
        Ok(Session::new(self.clone(), slot))
    }

    /// A session for one short step. It is possible even while the maximum number of sessions
    /// exists.
    ///
    /// # Errors
    /// [`Error::TooManySessions`]: many such steps are in progress as well.
    pub fn brief_session(self: &Arc<Self>) -> Result<Session, Error> {
        let slot = self.core().door.epochs().register()?;
        Ok(Session::new(self.clone(), slot))
    }
}

impl Session {
    fn new(store: Arc<Store>, slot: SlotId) -> Session {
        Session {
            head: store.next_head(),
            store,
            slot,
            scratch: Vec::new(),
            carried: Carried::default(),
            notes: Notes::default(),
            lock_tables: LockTables::default(),
        }
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The work of its guards so far.
    #[inline]
    pub fn work(&self) -> &Work {
        &self.carried.work
    }

    fn holding(&self) -> &Holding {
        &self.carried.holding
    }

    fn holding_mut(&mut self) -> &mut Holding {
        &mut self.carried.holding
    }

    /// Enters the store for one batch of operations.
    #[inline]
    pub fn pin(&mut self) -> Guard<'_> {
        self.store.core().door.enter(self.slot);
        self.guard(false)
    }

    /// Enters the store alone: waits until every other session is between guards and keeps them
    /// out. For steps that must be atomic over everything (`FLUSHALL`, a transaction with such a
    /// command).
    pub fn pin_exclusive(&mut self) -> Guard<'_> {
        let core = self.store.core();
        core.door.enter_alone(self.slot);
        self.guard(true)
    }

    #[inline(always)]
    fn guard(&mut self, alone: bool) -> Guard<'_> {
        let core = self.store.core();
        let is_scarce = core.space.reserves.are_scarce();
        let head = core.actors.head_in_use(self.head, is_scarce);
        let (carried, tables) = (&mut self.carried, &mut self.lock_tables);
        Guard {
            pin: Pin::new(core, self.slot, alone, carried, tables),
            append: Appender::new(head, &mut self.scratch),
            seen: Observed::default(),
            draft: None,
            notes: &mut self.notes,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.store.is_inherited() {
            self.store.core().door.epochs().unregister(self.slot);
        }
    }
}

/// The slot that [`Guard::read_seen`] found; none if the key was absent.
#[derive(Clone, Copy)]
pub struct Seen<'g>(Option<(View<'g>, usize, &'g AtomicU64, Slot)>);

impl Seen<'_> {
    /// True if the key is unchanged, as long as the guard that found it is pinned. Also false for a
    /// key that was absent (read it again), and for one that a cleaner has moved.
    #[inline(always)]
    pub fn is_unchanged(&self) -> bool {
        self.0
            .is_some_and(|(view, home, place, slot)| view.still_holds(home, place, slot))
    }
}

/// A pinned session: memory it has seen is not reused until it is dropped. Keep it for one batch,
/// not longer.
pub struct Guard<'s> {
    pub(crate) pin: Pin<'s>,
    pub(crate) append: Appender<'s>,
    pub(crate) seen: Observed,
    /// The guard's operations change this draft instead of the store.
    draft: Option<Box<Draft>>,
    pub(crate) notes: &'s mut Notes,
}

/// An entry that a guard has found, and its slot.
#[derive(Clone, Copy)]
pub(crate) struct Hit<'i, 's> {
    view: View<'i>,
    place: &'i AtomicU64,
    slot: Slot,
    pub(crate) entry: Entry<'s>,
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

impl Locked<'_> {
    #[inline(always)]
    pub(crate) fn unlock(&self) {
        if !self.in_transaction {
            self.view.unlock(self.home);
        }
    }
}

impl<'s> Guard<'s> {
    /// The guard's place in the store, with the keys that it has locked.
    #[inline(always)]
    pub fn pin(&self) -> &Pin<'s> {
        &self.pin
    }

    #[inline(always)]
    pub fn pin_mut(&mut self) -> &mut Pin<'s> {
        &mut self.pin
    }

    /// The positions that its replies depend on.
    #[inline(always)]
    pub fn order(&self) -> &Observed {
        &self.seen
    }

    /// The notes about its writes.
    #[inline]
    pub fn notes(&mut self) -> &mut Notes {
        self.notes
    }

    /// Milliseconds since the Unix epoch, read once per guard.
    #[inline]
    pub fn now_ms(&self) -> u64 {
        self.pin.now_ms()
    }

    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.pin.hash(key)
    }

    /// The route hash of a key with this hash, its place in a cluster.
    #[inline(always)]
    pub fn route(&self, hash: KeyHash, key: &[u8]) -> RouteHash {
        RouteHash::of(hash::slot(key), hash.0)
    }

    /// Leaves the store and enters it again: memory that was read before may be reused now. For
    /// guards that are kept over several batches.
    pub fn refresh(&mut self) {
        if !self.pin.is_in_step() {
            self.append.let_head_go(); // no session may wait for this head while we wait to enter
        }
        self.pin.refresh();
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
        let index = self.pin.index(table)?;
        let Some(hit) = self.find(index, hash, key)? else {
            return Ok(None);
        };
        let object = self.pin.object(hit.entry);
        if object.is_none() {
            self.pin.expire_now(table, index, hash, key);
        }
        Ok(object)
    }

    /// As [`read`](Self::read); also returns a token that tells later whether the key is unchanged.
    /// For reads of several keys that must all have been true at one moment.
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
        let (pin, index) = (&self.pin, self.pin.index(table)?);
        let Some(hit) = self.find(index, hash, key)? else {
            return Ok((None, Seen(None)));
        };
        let home = hit.view.home(index.tag(hash));
        let object = pin.object(hit.entry);
        if object.is_none() {
            pin.expire_now(table, index, hash, key);
        }
        let seen = (hit.view, home, hit.place, hit.slot);
        Ok((object, Seen(object.map(|_| seen))))
    }

    /// The key's entry, which may have expired. The entry, or its absence, counts as seen by the
    /// guard.
    #[inline(always)]
    pub(crate) fn find<'i>(
        &self,
        index: &'i Index,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<Hit<'i, 's>>, Error> {
        let (pin, core, entries) = (&self.pin, self.pin.core(), self.pin.entries());
        let (partition, tag) = (index.partition(hash), index.tag(hash));
        debug_assert!(
            pin.locks().may_read(partition, tag),
            "a key is read under locks that do not include its own"
        );
        let trusts = pin.trusts(self.draft.is_some());
        let found = loop {
            let view = partition.view();
            if view.len() == 0 {
                break None;
            }
            match entries.find_in(view, tag, key, trusts) {
                Some((place, slot, Found::Key(here))) => break Some((view, place, slot, here)),
                Some((_, slot, Found::Cold)) => {
                    entries.meet_cold(slot.location(), pin.is_in_step())?;
                }
                Some((_, _, Found::Damaged)) => return Err(Error::Damaged),
                None | Some((_, _, Found::Other)) => break None,
            }
        };
        let Some((view, place, slot, here)) = found else {
            self.seen.observe_absence(core, index, partition, hash);
            return Ok(None);
        };
        let entry = entries.entry_at(here);
        if here.is_copy && pin.counts_reads() {
            entries.served_copy(slot, here);
        }
        if core.space.is_undurable(slot.location()) {
            self.seen.observe_entry(core, index, slot.location());
        }
        if core.is_cache() && pin.counts_reads() {
            crate::index::bucket::touch(place, slot);
        }
        pin.work().meet_bytes(entry.padded_bytes);
        pin.work().note_length(entry.padded_bytes);
        Ok(Some(Hit {
            view,
            place,
            slot,
            entry,
        }))
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
        Stamp::of_absent(self, table, hash, key)
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
        let index = self.pin.index(table)?;
        let found = self
            .find(index, hash, key)?
            .filter(|hit| self.pin.object(hit.entry).is_some());
        Ok(found.map(|hit| {
            let partition = index.partition(hash);
            let bucket_bytes = (partition.view().len() * 64) as u64;
            hit.entry.padded_bytes as u64 + bucket_bytes / partition.count().max(1) as u64
        }))
    }

    /// From now on, operations change this draft.
    pub fn begin_draft(&mut self, draft: Box<Draft>) {
        self.draft = Some(draft);
    }

    /// Ends the draft; operations change the store again. `None`: there is no draft.
    pub fn end_draft(&mut self) -> Option<Box<Draft>> {
        self.draft.take()
    }

    /// The draft that its operations change.
    #[inline]
    pub fn draft(&self) -> Option<&Draft> {
        self.draft.as_deref()
    }

    /// As [`draft`](Self::draft), to be changed.
    #[inline]
    pub fn draft_mut(&mut self) -> Option<&mut Draft> {
        self.draft.as_deref_mut()
    }

    /// A client begins to read a key. `remember` notes the client for the listener to writes, and
    /// returns whether the client was not noted before: then earlier changes of the key, under this
    /// guard or in its draft, are no news for the client. In a draft, only the first read of a key
    /// counts.
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

    /// From now on, writes replace data of about the same size (`on`), so a store that is full for
    /// others accepts them: a new expiry, a new name. They may exceed the limit of live data
    /// slightly, as far as `Purpose::Rewrite` allows.
    #[inline(always)]
    pub fn rewrites(&mut self, on: bool) {
        let purpose = if on { Purpose::Rewrite } else { Purpose::Head };
        self.append.set_purpose(purpose);
    }

    /// The number of recent reads of a key, 0 to 7, by which a cache evicts. The number is halved
    /// each time that eviction spares the key, and does not grow in store mode. `None`: the key is
    /// absent. This read does not count.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn recent_reads(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<u64>, Error> {
        let counts = self.pin.counts_reads();
        self.pin.set_counts_reads(false);
        let reads = self.read(table, hash, key).map(|object| object.is_some());
        let reads = reads.and_then(|is_there| {
            let index = self.pin.index(table)?;
            let found = match is_there {
                true => self.find(index, hash, key)?,
                false => return Ok(None),
            };
            Ok(Some(found.map_or(0, |hit| hit.slot.access())))
        });
        self.pin.set_counts_reads(counts);
        reads
    }
}

impl Stamp {
    /// The stamp of a key that a read of this guard has not found.
    pub(crate) fn of_absent(
        guard: &Guard<'_>,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Stamp, Error> {
        // The removals are read only now, because the read before may have removed an expired
        // object. A key that was created since then is present; or its removal is counted here, and
        // it is absent now.
        let index = guard.pin.index(table)?;
        let removals = index.partition(hash).removals(index.tag(hash));
        let found = guard.find(index, hash, key)?;
        let expired = found.filter(|hit| guard.pin.object(hit.entry).is_none());
        Ok(Stamp::Absent {
            removals,
            expired: expired.map_or(0, |hit| hit.entry.version),
        })
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.unlock_keys();
        let core = self.pin.core();
        self.notes.tell_replaced(&core.listeners.departures);
        if self.pin.is_alone()
            && let Some(log) = core.log.as_deref()
        {
            self.seen.publish_alone(log, || self.append.end_group(log));
        }
        self.notes.tell_written(&core.listeners.writes);
        let wrote = self.append.taken().is_some();
        self.append.let_head_go();
        if self.append.scratch.capacity() > SCRATCH_KEPT_MAX {
            *self.append.scratch = Vec::new();
        }
        self.pin.end();
        if wrote
            && !self.pin.is_alone()
            && let Some(bytes) = self.pin.work().take_untaxed(LOOK_EVERY_BYTES)
        {
            pay_tax(core, bytes, self.append.head(), self.pin.me());
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
        guard.append.wait_for_head(&mut guard.pin);
        guard.pin.outdate_others();
        let hash = guard.hash(b"key");
        let written = guard.write(TableId::DEFAULT, hash, b"key", b"value", None);
        written.expect("it was inside all the time");
    }
}
