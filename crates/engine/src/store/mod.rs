//! The store as its owner uses it: it is created from options, has tables and figures, and is
//! entered by sessions.

mod heads;
mod segments;
mod tables;

use crate::cleaner;
use crate::cleaner::context::{Caller, Step};
use crate::core::listeners::Listeners;
use crate::core::resize::set_budget;
use crate::core::{Core, Visitor};
use crate::counters::add;
use crate::log::Log;
use crate::space::Purpose;
use crate::topology::Topology;
use crate::{Decision, Error, KeyHash, Mode, Options};
use duramen_base::origin::Origin;
pub use heads::Heads;
pub use segments::Segments;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
pub use tables::Tables;

/// Tables of objects in log-structured memory. Shared by [`Arc`]; when the last reference is
/// dropped, the cleaners are joined and the memory is returned.
pub struct Store {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    next_head: AtomicUsize,
    origin: Origin,
}

impl Store {
    /// # Errors
    /// [`Error::BudgetTooSmall`], [`Error::BudgetTooLarge`], [`Error::Reserve`].
    pub fn new(options: Options) -> Result<Arc<Store>, Error> {
        Store::with_topology(&options, &Topology::detect())
    }

    pub(crate) fn with_topology(
        options: &Options,
        topology: &Topology,
    ) -> Result<Arc<Store>, Error> {
        let core = Arc::new(Core::new(options, topology)?);
        core.tables
            .create("default", || core.new_index(core.version_max() + 1), |_| {})?;
        let threads = cleaner::start(&core).map_err(|e| Error::Reserve {
            bytes: 0,
            reason: format!("starting a cleaner thread: {e}"),
        })?;
        Ok(Arc::new(Store {
            core,
            threads: Mutex::new(threads),
            next_head: AtomicUsize::new(0),
            origin: Origin::here(),
        }))
    }

    /// Whether this process is a fork of the one that made the store. The store's threads do not
    /// exist in a fork, and its locks may be held for ever.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.origin.is_inherited()
    }

    /// The listeners to departures, damage and writes.
    pub fn listeners(&self) -> &Listeners {
        &self.core.listeners
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Changes the behaviour at the memory limit. A segment whose eviction has begun is still
    /// finished. Reads are counted only while the store is a cache.
    pub fn set_mode(&self, mode: Mode) {
        self.core.set_mode(mode);
    }

    /// The longest time that a writer has waited for memory since the last call; zero: none has.
    pub fn take_longest_stall(&self) -> Duration {
        self.core.cleaners.pacer.take_longest_stall()
    }

    /// One step of cleaning as a cleaner thread does it, of about `quota_bytes` of victims, as if
    /// memory were short. For a caller without cleaner threads that decides the time itself (a
    /// simulator). Returns false if there was nothing to do.
    pub fn clean_step(&self, quota_bytes: u64) -> bool {
        let core = &self.core;
        let mut context = core.cleaners.lock(0);
        core.windows().take_back_released();
        core.windows().reap(context.seat.node());
        core.watch_flash();
        if let Some(demotion) = core.demotion() {
            demotion.tend_promoted(context.seat.node());
        }
        let caller = Caller::outside(context.seat.me());
        let step = context.step(core, quota_bytes, caller);
        core.windows().reap(context.seat.node());
        step == Step::Worked
    }

    /// Whether a writer that needs another segment gets one at once. For a caller for whom waiting
    /// in real time changes nothing (a simulator).
    pub fn opens_at_once(&self) -> bool {
        let core = &self.core;
        let has_memory = |node| core.space.free_windows(node) > 0;
        (0..core.space.nodes()).all(has_memory) && core.disk_has_room(Purpose::Head)
    }

    pub(crate) fn next_head(&self) -> usize {
        self.next_head.fetch_add(1, Ordering::Relaxed) % self.core.actors.heads().len()
    }

    /// The log, for the writer that makes it durable; `None` if the store is in memory alone.
    pub fn log(&self) -> Option<&Log> {
        self.core.log.as_deref()
    }

    /// A number above every object version that was ever given.
    pub fn version_floor(&self) -> u64 {
        self.core.version_max() + 1
    }

    /// The hard budget, in bytes, as it was last set.
    pub fn memory_bytes(&self) -> u64 {
        self.core.space.budget.limit()
    }

    /// Sets the hard budget, in bytes: at most
    /// [`Options::memory_bytes_max`](crate::Options::memory_bytes_max). A higher budget can be used
    /// at once. With a lower one, memory is given back in the background, and writes go on
    /// meanwhile; [`Stats::excess_bytes`] says how much is still to be given back. A cache then
    /// evicts the entries that do not fit.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`], [`Error::BudgetTooLarge`]; [`Error::BudgetBelowData`]: a store's
    /// live data do not fit; [`Error::BudgetBusy`]: the budget cannot be lowered while data is
    /// loaded, or while it is not known how much data a clear left. Nothing was changed.
    ///
    /// [`Stats::excess_bytes`]: crate::Stats::excess_bytes
    pub fn set_memory(&self, bytes: u64) -> Result<(), Error> {
        set_budget(self.core(), bytes)
    }

    /// Runs `run` while every session is between guards, and keeps them out meanwhile. Must not be
    /// called while this thread holds a guard: it waits until there is none.
    pub fn alone<T>(&self, run: impl FnOnce() -> T) -> T {
        let core = &*self.core;
        let visitor = Visitor::wait(core);
        core.door.enter_alone(visitor.slot);
        let result = run();
        core.door.leave(visitor.slot);
        core.door.leave_alone();
        result
    }

    /// As [`Guard::hash`](crate::Guard::hash), without a guard.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.core.tables.hash(key)
    }
}

impl Store {
    /// Writes tombstones for keys that have expired by a wall clock that is not believed
    /// (core::doubt). Returns whether there were any. To be called at least once in some seconds,
    /// but not while this thread holds a guard, nor by a thread that others wait for: it waits as
    /// writers do.
    ///
    /// # Errors
    /// As [`Guard::remove`](crate::Guard::remove); the keys are found again later.
    pub fn remove_doubted(self: &Arc<Self>) -> Result<bool, Error> {
        let core = self.core();
        let keys = core.clock().take_doubted(core.log.as_deref(), &core.space);
        if keys.is_empty() {
            return Ok(false);
        }
        let mut session = self.brief_session()?;
        let mut done = Ok(true);
        for (table, key) in &keys {
            let mut guard = session.pin();
            let (hash, mut is_expired) = (guard.hash(key), false);
            // A guard with a locked key cleans, and waits for memory for a moment only: the caller
            // may be the thread that frees memory.
            match guard.lock_keys_expecting(&[(*table, hash)], Default::default()) {
                Err(Error::NoSuchTable(_)) => continue,
                locked => locked?,
            }
            let removed = guard.update(*table, hash, key, |object, _| {
                is_expired = object.is_none();
                match is_expired {
                    true => Decision::Remove,
                    false => Decision::Keep, // the object was replaced, or the clock was set back
                }
            });
            let _ = guard.order().take_position(); // no reply depends on it
            match removed {
                Ok(_) if is_expired => self
                    .core
                    .actors
                    .as_guest(|counters| add(&counters.expired, 1)),
                Ok(_) | Err(Error::NoSuchTable(_)) => {}
                Err(Error::Damaged) => done = Err(Error::Damaged), // of this key alone
                Err(error) => return Err(error),
            }
        }
        done
    }
}

impl Store {
    /// Ends the cleaner threads and waits for them, so that none is in the hook of
    /// [`Log::on_demand`](crate::Log::on_demand) any more. For use before the end of the store,
    /// which does it too.
    pub fn end_cleaners(&self) {
        self.core.cleaners.end();
        let threads = std::mem::take(
            &mut *self
                .threads
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner()),
        );
        for thread in threads {
            // A cleaner that panicked has written so to stderr; there is nothing left to clean.
            let _ = thread.join();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The handles are of threads that do not exist here: even to drop them would be an
            // error.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.end_cleaners();
    }
}
