//! What is written to a range while it is copied elsewhere: the dirty keys of a migration.
//!
//! **Invariants**
//! - W1: from the return of [`Store::watch_range`] on, every write and removal of a key of the range is marked before its
//!   guard ends and after it can be seen, with the version that it gave or took: who has taken the mark finds what it is of, or
//!   something newer. (Within a transaction before: who looks for the key waits for its end.) So after [`Store::quiesce`] the
//!   marks of everything that began before are there.
//! - W2: a mark outlives the object: a key that is absent when its mark is looked at was removed, or has expired, at the
//!   marked version or later.
//! - W3: marks are bounded. What cannot be marked (too many, or the table was cleared) makes the whole copy void:
//!   [`Dirty::start_again`]. A further pass would not do, for it does not show what has gone.
//!
//! Without a watch a write pays one load of a line that is never written.

use super::contains;
use crate::core::Core;
use crate::log::Bug;
use crate::session::Guard;
use crate::{Error, Store, TableId};
use duramen_base::ids::KeyRange;
use duramen_base::sync::{self, Backoff, Mutex};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// One if schedules are explored: they differ in nothing but their number.
const SHARDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// The watches of a store, and what else guards look at while ranges come and go.
#[derive(Default)]
pub struct Watches {
    any: AtomicBool,
    list: RwLock<Vec<Arc<Watched>>>,
    /// Calls of [`Store::quiesce`].
    pub(crate) generation: AtomicU64,
}

/// Keys, each with the highest version that was given to it or taken from it.
struct Shard(Mutex<HashMap<Box<[u8]>, u64>>);

/// What is marked and not taken yet.
pub struct Marks {
    shards: [Shard; SHARDS],
    count: sync::AtomicUsize,
    keys_max: usize,
    start_again: sync::AtomicBool,
}

struct Watched {
    table: TableId,
    range: KeyRange,
    marks: Marks,
}

/// Keys that were written or removed since a watch began or was last asked.
#[derive(Debug, Default)]
pub struct Dirty {
    /// Each with the highest version that was given to it or taken from it.
    pub keys: Vec<(Box<[u8]>, u64)>,
    /// Not everything is known (W3): give up what was copied, and begin with a new watch.
    pub start_again: bool,
}

/// Marks what is written to a range, until it is dropped.
pub struct Watch {
    store: Arc<Store>,
    watched: Arc<Watched>,
}

impl Store {
    /// Begins to mark what is written to a range, `keys_max` keys at most between two calls of [`Watch::take`]. Waits for
    /// guards that began before ([`quiesce`](Self::quiesce)); must not be called with a guard held.
    pub fn watch_range(
        self: &Arc<Self>,
        table: TableId,
        range: KeyRange,
        keys_max: usize,
    ) -> Watch {
        let watched = Arc::new(Watched {
            table,
            range,
            marks: Marks::new(keys_max),
        });
        let watches = &self.core().watches;
        let mut list = watches.list.write().expect("watches");
        list.push(watched.clone());
        watches.any.store(true, Ordering::SeqCst);
        drop(list);
        self.wait_for_guards(); // W1: whoever has not seen it is gone then
        Watch {
            store: self.clone(),
            watched,
        }
    }

    /// Waits until every guard that began before has ended or has been outside; nobody is held up. Writes of guards that have
    /// been outside meanwhile, in search of memory or of a head, are refused with [`Error::TryAgain`]. So if somebody changes
    /// what decides whether a write is allowed, and then calls this, no write that was allowed before follows it. Must not
    /// be called with a guard held.
    pub fn quiesce(&self) {
        self.core()
            .watches
            .generation
            .fetch_add(1, Ordering::SeqCst);
        if self
            .log()
            .is_some_and(|log| log.has_bug(Bug::QuiesceDoesNotWait))
        {
            return;
        }
        self.wait_for_guards();
    }

    fn wait_for_guards(&self) {
        let core = self.core();
        let stamp = core.epochs.retire_stamp();
        let mut backoff = Backoff::new();
        while core.epochs.quiet_before() <= stamp {
            backoff.wait();
        }
        // A transaction that waits for memory takes fresh stamps (T5), but keeps its head.
        for head in &core.heads {
            drop(head.tail.lock().expect("head"));
        }
    }
}

impl Core {
    /// W1: called by whoever has written or removed a key, before its guard ends.
    #[inline(always)]
    pub(crate) fn note_written(&self, table: TableId, key: &[u8], version: u64) {
        if self.watches.any.load(Ordering::Relaxed) {
            self.mark(table, key, version);
        }
    }

    #[cold]
    #[inline(never)]
    fn mark(&self, table: TableId, key: &[u8], version: u64) {
        for watched in self.watches.list.read().expect("watches").iter() {
            if watched.table == table && contains(self, &watched.range, key) {
                watched.marks.mark(self.hasher.hash(key), key, version);
            }
        }
    }

    /// W3: all keys of a table have gone at once.
    pub(crate) fn note_cleared(&self, table: TableId) {
        for watched in self.watches.list.read().expect("watches").iter() {
            if watched.table == table {
                watched.marks.start_again.store(true, Ordering::Release);
            }
        }
    }
}

impl Marks {
    /// None, and room for `keys_max`.
    pub fn new(keys_max: usize) -> Marks {
        Marks {
            shards: std::array::from_fn(|_| Shard(Mutex::new(HashMap::new()))),
            count: sync::AtomicUsize::new(0),
            keys_max,
            start_again: sync::AtomicBool::new(false),
        }
    }

    /// Marks a key of this hash. The caller has published what it is marked for (W1).
    pub fn mark(&self, hash: u64, key: &[u8], version: u64) {
        let shard = &self.shards[hash as usize % SHARDS];
        let mut keys = shard.0.lock().expect("dirty keys");
        if let Some(known) = keys.get_mut(key) {
            *known = version.max(*known);
        } else if self.count.load(Ordering::Relaxed) < self.keys_max {
            self.count.fetch_add(1, Ordering::Relaxed);
            keys.insert(key.into(), version);
        } else {
            self.start_again.store(true, Ordering::Release);
        }
    }

    /// Takes them: what is written from now on is marked anew.
    pub fn take(&self) -> Dirty {
        let mut keys = Vec::with_capacity(self.count.load(Ordering::Relaxed));
        for shard in &self.shards {
            let taken = std::mem::take(&mut *shard.0.lock().expect("dirty keys"));
            self.count.fetch_sub(taken.len(), Ordering::Relaxed);
            keys.extend(taken);
        }
        Dirty {
            keys,
            start_again: self.start_again.load(Ordering::Acquire),
        }
    }
}

impl Watch {
    /// Keys marked now.
    pub fn marked(&self) -> usize {
        self.watched.marks.count.load(Ordering::Relaxed)
    }

    /// Takes the marks: what is written from now on is marked anew.
    pub fn take(&self) -> Dirty {
        self.watched.marks.take()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let watches = &self.store.core().watches;
        let mut list = watches.list.write().expect("watches");
        list.retain(|watched| !Arc::ptr_eq(watched, &self.watched));
        watches.any.store(!list.is_empty(), Ordering::SeqCst);
    }
}

impl Guard<'_> {
    /// What the caller finds from now on about what it may write is new enough for this guard's further writes, whatever has
    /// been changed since it began: for guards that serve several requests. See [`Store::quiesce`].
    #[inline(always)]
    pub fn renew(&mut self) {
        self.generation = self.core.watches.generation.load(Ordering::SeqCst);
        self.left = false;
    }

    /// # Errors
    /// [`Error::TryAgain`] if this guard has been outside while somebody waited for that.
    #[inline(always)]
    pub(crate) fn check_generation(&self) -> Result<(), Error> {
        // Relaxed: it came in again by a full barrier. Who never left is waited for.
        if self.left && self.generation != self.core.watches.generation.load(Ordering::Relaxed) {
            Err(Error::TryAgain)
        } else {
            Ok(())
        }
    }
}
