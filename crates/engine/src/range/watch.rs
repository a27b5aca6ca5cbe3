//! Watches: mark the keys that are written to a range while it is copied elsewhere, the dirty keys
//! of a migration.
//!
//! **Invariants**
//! - W1: from the return of [`Ranges::watch`] on, every write and removal of a key of the
//!   range is marked before its guard ends and after it can be seen, with the version that it gave
//!   or removed. So a thread that has taken the mark finds the marked version, or a newer one.
//!   (Within a transaction the mark comes before: a thread that looks for the key waits for the
//!   transaction's end.) So after [`Store::quiesce`] the marks of all writes that began before are
//!   there.
//! - W2: a mark outlives the object: if a key is absent when its mark is handled, it was removed,
//!   or has expired, at the marked version or later.
//! - W3: the bytes of marks are bounded, and that bound is charged to the memory budget before the
//!   watch begins, twice: once for marks that were taken and are being sent. A write that cannot be
//!   marked (too many marks, or the table was cleared) makes the whole copy void:
//!   [`Dirty::start_again`]. A further pass would not be enough, as it does not show removed keys.
//!
//! Without a watch a write pays one load of a line that is never written.

use super::{Ranges, contains_key};
use crate::cleaner::index_search::IndexSearch;
use crate::core::Core;
use crate::core::watches::{Dirty, Marks, Watched, Watches};
use crate::{Error, Store, TableId};
use duramen_base::ids::KeyRange;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::waits::{self, LongWait, NOTHING, Resource};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Marks may take at most the memory budget divided by this, as long as they are being made: a
/// table of small objects can be rewritten by a twentieth before a round has to interrupt the
/// copying.
const MARKS_PART: u64 = 64;
/// Maximum for any budget: with marks of half a million keys the rounds are too long already.
const BYTES_MAX: u64 = 64 << 20;
/// In a full store a watch begins with fewer bytes, but at least with these: about the size of a
/// page of the index.
const BYTES_MIN: usize = 64 << 10;

/// Bytes of an entry besides its key and value, about.
const ENTRY_BYTES: usize = 48;

/// Marks the writes to a range, until it is dropped.
pub struct Watch {
    store: Arc<Store>,
    watched: Arc<Watched>,
    charged_bytes: u64,
}

impl Ranges<'_> {
    /// Maximum bytes that marks should take.
    pub fn marks_bytes_max(self) -> usize {
        (self.store.core().space.budget.limit() / MARKS_PART).min(BYTES_MAX) as usize
    }

    /// Begins to mark the writes to a range. Between two calls of [`Watch::take`], marks take at
    /// most `bytes_max` bytes, or fewer if there is not enough memory. Waits for guards that began
    /// before ([`Store::quiesce`]); must not be called with a guard held.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::TooManySessions`].
    pub fn watch(self, table: TableId, range: KeyRange, bytes_max: usize) -> Result<Watch, Error> {
        let bytes_max = self.charge_marks(bytes_max)?;
        let watched = Arc::new(Watched {
            table,
            range,
            marks: Marks::new(bytes_max),
        });
        let core = self.store.core();
        let watches = &core.listeners.watches;
        let mut list = watches.list.write().expect("watches");
        list.push(watched.clone());
        watches.any.store(true, Ordering::SeqCst);
        drop(list);
        wait_for_guards(core); // W1: guards that have not seen the watch are gone then
        Ok(Watch {
            store: self.store.clone(),
            watched,
            charged_bytes: charge_of(bytes_max),
        })
    }

    /// W3: charges `bytes_max` bytes of marks, or fewer; returns the number.
    fn charge_marks(self, bytes_max: usize) -> Result<usize, Error> {
        let core = self.store.core();
        let (mut bytes, mut search) = (bytes_max, IndexSearch::default());
        while !core.space.charge_beside_segments(charge_of(bytes)) {
            if bytes / 2 >= BYTES_MIN {
                bytes /= 2;
            } else {
                self.store.brief_session()?.make_index_room(&mut search)?;
            }
        }
        core.listeners
            .watches
            .charged
            .fetch_add(charge_of(bytes), Ordering::Relaxed);
        Ok(bytes)
    }
}

impl Store {
    /// Waits until every guard that began before has ended or has been outside; delays no other
    /// guard. A guard that has been outside meanwhile, to find memory or another head, gets
    /// [`Error::TryAgain`] for its writes. So after a change of the condition by which writes are
    /// allowed, and this call, no write follows that was allowed before. Must not be called with a
    /// guard held.
    pub fn quiesce(&self) {
        self.core()
            .listeners
            .watches
            .generation
            .fetch_add(1, Ordering::SeqCst);
        if has_bug(Bug::QuiesceDoesNotWait) {
            return;
        }
        wait_for_guards(self.core());
    }
}

fn wait_for_guards(core: &Core) {
    let stamp = core.door.epochs().retire_stamp();
    let mut waiting = LongWait::new(Resource::Pin, NOTHING);
    while core.door.epochs().quiet_before() <= stamp {
        waiting.wait();
    }
    // A transaction that waits for memory takes fresh stamps (transaction::T5), but keeps its
    // head.
    let _noted = waits::note(Resource::Head, NOTHING);
    for head in core.actors.heads() {
        drop(head.tail.lock().expect("head"));
    }
}

/// Bytes charged for marks (W3).
fn charge_of(marks_bytes: usize) -> u64 {
    2 * marks_bytes as u64
}

impl Watches {
    /// W1: called after a key was written or removed, before the guard ends.
    #[inline(always)]
    pub(crate) fn note_written(
        &self,
        table: TableId,
        key: &[u8],
        value_bytes: usize,
        version: u64,
    ) {
        if self.any.load(Ordering::Relaxed) {
            self.mark(table, key, value_bytes, version);
        }
    }

    #[cold]
    #[inline(never)]
    fn mark(&self, table: TableId, key: &[u8], value_bytes: usize, version: u64) {
        for watched in self.list.read().expect("watches").iter() {
            if watched.table == table.whole()
                && contains_key(&self.hasher, &watched.range, table, key)
            {
                let hash = self.hasher.hash(key);
                let key = (table.is_parts(), key);
                watched.marks.mark(hash, key, value_bytes, version);
            }
        }
    }

    /// W3: all keys of a table were removed at once.
    pub(crate) fn note_cleared(&self, table: TableId) {
        for watched in self.list.read().expect("watches").iter() {
            if watched.table == table {
                watched.marks.start_again.store(true, Ordering::Release);
            }
        }
    }
}

impl Watch {
    /// True if half of the room for marks is used: they should be taken.
    pub fn is_half_full(&self) -> bool {
        let marks = &self.watched.marks;
        marks.bytes.load(Ordering::Relaxed) >= marks.bytes_max / 2
    }

    /// Number of keys marked now.
    pub fn marked(&self) -> usize {
        self.watched.marks.count.load(Ordering::Relaxed)
    }

    /// Bytes of the marked keys' present entries, about.
    pub fn marked_bytes(&self) -> usize {
        let marks = &self.watched.marks;
        marks.object_bytes.load(Ordering::Relaxed) + self.marked() * ENTRY_BYTES
    }

    /// Takes the marks: later writes are marked anew.
    pub fn take(&self) -> Dirty {
        self.watched.marks.take()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let watches = &self.store.core().listeners.watches;
        let mut list = watches.list.write().expect("watches");
        list.retain(|watched| !Arc::ptr_eq(watched, &self.watched));
        watches.any.store(!list.is_empty(), Ordering::SeqCst);
        drop(list);
        watches
            .charged
            .fetch_sub(self.charged_bytes, Ordering::Relaxed);
        self.store.core().space.budget.release(self.charged_bytes);
    }
}
