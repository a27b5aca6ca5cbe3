//! The store as its owner uses it: created from options, entered by sessions, with tables and
//! figures.

use crate::cleaner;
use crate::cleaner::index_search::IndexSearch;
use crate::core::damage::EntryDamage;
use crate::core::resize::set_budget;
use crate::core::writes::Written;
use crate::core::{Core, Visitor};
use crate::counters::add;
use crate::log::{Log, Relocation};
use crate::space::Purpose;
use crate::topology::Topology;
use crate::{Decision, Departure, Error, KeyHash, Mode, Options, TableChange, TableId, TableInfo};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::origin::Origin;
use duramen_base::waits::{self, NOTHING, Resource, Wait};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

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

    /// Whether this process is a fork of the one that made the store: then its threads do not exist
    /// here, and a lock may be held for ever.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.origin.is_inherited()
    }

    /// From now on `listener` hears of keys that leave without a request, as far as
    /// [`want_departures`](Self::want_departures) says. Only the first listener counts. It is
    /// called by threads in the store, so it must neither enter the store nor wait.
    pub fn when_departed(
        &self,
        listener: impl Fn(Departure, TableId, &[u8]) + Send + Sync + 'static,
    ) {
        self.core.listeners.departures.listen(Box::new(listener));
    }

    /// Sets the listener to entries that do not match their checksum. Only the first one counts; it
    /// must not enter the store.
    pub fn when_damaged(&self, listener: impl Fn(&EntryDamage) + Send + Sync + 'static) {
        self.core.listeners.damages.listen(Box::new(listener));
    }

    /// Tells the listener of [`when_damaged`](Self::when_damaged), and counts, the damage that the
    /// owner of the log has found in a segment of it.
    pub fn tell_damage(&self, segment: SegmentId, is_mended: bool, what: String) {
        self.core.listeners.damages.tell(EntryDamage {
            segment,
            is_mended,
            what,
        });
    }

    /// Sets the listener to cleaning that is given up: of a segment, and why. Its segments stay on
    /// disk until the next start. Only the first listener counts; it must not enter the store.
    pub fn when_given_up(&self, listener: impl Fn(SegmentId, &str) + Send + Sync + 'static) {
        self.core
            .listeners
            .damages
            .listen_given_up(Box::new(listener));
    }

    /// This survivor of a pass will never be durable: its pass is given up, so that later ones do
    /// not wait for it. False: it is no survivor that waits for its Swap.
    pub fn give_up_pass_of(&self, survivor: SegmentId, why: &str) -> bool {
        let is_first = self
            .log()
            .and_then(|log| log.swaps().give_up_pass_of(survivor));
        if is_first == Some(true) {
            self.core.listeners.damages.tell_given_up(survivor, why);
        }
        is_first.is_some()
    }

    /// Whether the listener hears of these departures. While it hears of expired keys, they leave
    /// soon after their time, or when they are met.
    pub fn want_departures(&self, departure: Departure, wanted: bool) {
        self.core.listeners.departures.want(departure, wanted);
    }

    /// From now on `listener` hears of all keys that guards have written or removed, while
    /// [`want_writes`](Self::want_writes) says so: when the writes are visible, before the guard
    /// has ended. Only the first listener counts. It is called as that of
    /// [`when_departed`](Self::when_departed). Emptied tables and moved tablets are no writes.
    pub fn when_written(&self, listener: impl Fn(&[Written]) + Send + Sync + 'static) {
        self.core.listeners.writes.listen(Box::new(listener));
    }

    /// Whether the listener hears of writes: of all those of guards that begin after this. Guards
    /// of before have ended when an exclusive guard begins. The listener to departures then hears
    /// of all of them too.
    pub fn want_writes(&self, wanted: bool) {
        self.core.listeners.departures.want_all(wanted);
        self.core.listeners.writes.want(wanted);
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Changes the behaviour at the memory limit. A segment whose eviction has begun is still
    /// finished. A store that becomes a cache has counted no reads before.
    pub fn set_mode(&self, mode: Mode) {
        self.core.set_mode(mode);
    }

    /// The longest time that a writer has waited for memory since the last call; zero: none has.
    pub fn take_longest_stall(&self) -> Duration {
        self.core.cleaners.pacer.take_longest_stall()
    }

    /// One step of cleaning as a cleaner thread does it, of about `quota_bytes` of victims, as if
    /// memory were short. For a caller without cleaner threads that decides the time itself (a
    /// simulator). False: there was nothing to do.
    pub fn clean_step(&self, quota_bytes: u64) -> bool {
        let core = &self.core;
        let mut context = core.cleaners.lock(0);
        core.windows().take_back_released();
        core.windows().reap(context.seat.node());
        core.watch_flash();
        if let Some(demotion) = core.demotion() {
            demotion.tend_promoted(context.seat.node());
        }
        let me = context.seat.me();
        let step = context.step(core, quota_bytes, me, false, true);
        core.windows().reap(context.seat.node());
        step == crate::cleaner::context::Step::Worked
    }

    /// Whether a writer that needs another segment gets one at once. For a caller for whom waiting
    /// in real time changes nothing (a simulator).
    pub fn opens_at_once(&self) -> bool {
        let core = &self.core;
        let has_memory = |node| core.space.free_windows(node) > 0;
        (0..core.space.nodes()).all(has_memory) && core.disk_has_room(Purpose::Head)
    }

    /// Demotes a segment as a cleaner thread does it, as if memory were short. For a caller without
    /// such threads (a simulator). False: no segment may go to flash, or there is no flash.
    pub fn demote_step(&self) -> bool {
        let core = &self.core;
        let context = core.cleaners.lock(0);
        let demotion = core.demotion();
        let demoted = demotion.is_some_and(|it| it.demote_one(context.seat.node()));
        core.windows().reap(context.seat.node());
        demoted
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

    /// True if segments may go to a flash device.
    pub fn has_flash(&self) -> bool {
        self.core.tier().is_some()
    }

    /// The hard budget, in bytes, as it was last set.
    pub fn memory_bytes(&self) -> u64 {
        self.core.space.budget.limit()
    }

    /// Sets the hard budget, in bytes: at most
    /// [`Options::memory_bytes_max`](crate::Options::memory_bytes_max). More can be used at once.
    /// Of less, memory is given back in the background ([`Stats::excess_bytes`] says how much has
    /// to be); writes go on meanwhile. A cache then evicts what does not fit.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`], [`Error::BudgetTooLarge`]; [`Error::BudgetBelowData`]: a store's
    /// live data do not fit; [`Error::BudgetBusy`]: less memory, while data is loaded, or while
    /// it is not known how much a clear left. Nothing was changed.
    ///
    /// [`Stats::excess_bytes`]: crate::Stats::excess_bytes
    pub fn set_memory(&self, bytes: u64) -> Result<(), Error> {
        set_budget(self.core(), bytes)
    }

    /// # Errors
    /// [`Error::TableExists`], [`Error::BadTableName`], [`Error::TooManyTables`],
    /// [`Error::OutOfMemory`]; [`Error::TooManySessions`] if memory must be found first and there
    /// is no free slot to do so.
    pub fn create_table(self: &Arc<Self>, name: &str) -> Result<TableId, Error> {
        self.create_table_with(name, None)
    }

    /// As [`create_table`](Self::create_table), at a level; `None` = the default of the store's
    /// log.
    ///
    /// # Errors
    /// Those of [`create_table`](Self::create_table).
    pub fn create_table_with(
        self: &Arc<Self>,
        name: &str,
        level: Option<Level>,
    ) -> Result<TableId, Error> {
        self.create_table_told(name, level, |_| {})
    }

    /// As [`create_table_with`](Self::create_table_with). `tell` gets the id before any thread can
    /// find the table.
    ///
    /// # Errors
    /// Those of [`create_table_with`](Self::create_table_with).
    #[doc(hidden)]
    pub fn create_table_told(
        self: &Arc<Self>,
        name: &str,
        level: Option<Level>,
        tell: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        let floor = self.version_floor();
        self.make_table(None, name, level, floor, |table| {
            tell(table);
            if let Some(log) = self.log() {
                log.changes().publish(TableChange::Create {
                    table,
                    name: name.to_owned(),
                    level,
                    floor,
                });
            }
        })
    }

    /// Makes a table that has this id in the whole cluster. Other servers may send objects of any
    /// version to it.
    ///
    /// # Errors
    /// As [`create_table`](Self::create_table).
    pub fn adopt_table(
        self: &Arc<Self>,
        id: TableId,
        name: &str,
        level: Option<Level>,
    ) -> Result<(), Error> {
        let version = self.version_floor();
        self.make_table(Some(id), name, level, version, |table| {
            if let Some(log) = self.log() {
                log.changes().publish(TableChange::Create {
                    table,
                    name: name.to_owned(),
                    level,
                    floor: 0, // no object is dead because of its age
                });
            }
        })?;
        Ok(())
    }

    /// Restores a table after a restart. Table 0 exists already and gets this floor and level. New
    /// writes to the table get versions from `floor` on.
    ///
    /// # Errors
    /// As [`create_table`](Self::create_table).
    pub fn restore_table(
        self: &Arc<Self>,
        id: TableId,
        name: &str,
        floor: u64,
        level: Option<Level>,
    ) -> Result<(), Error> {
        if id != TableId::DEFAULT {
            self.make_table(Some(id), name, level, floor, |_| {})?;
        }
        self.core.tables.each_index(|other, index| {
            if other.whole() == id {
                index.set_level(level);
                index.set_replay_floor(floor);
                for partition in index.partitions() {
                    partition.raise_floor(floor.saturating_sub(1));
                }
            }
        });
        Ok(())
    }

    fn make_table(
        self: &Arc<Self>,
        id: Option<TableId>,
        name: &str,
        level: Option<Level>,
        floor: u64,
        publish: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        let index = self.core.new_index(floor);
        index.set_level(level);
        let bytes = index.overhead_bytes();
        let mut search = IndexSearch::default();
        while !self.core.space.charge_beside_segments(bytes) {
            self.brief_session()?.make_index_room(&mut search)?;
        }
        let created = self.core.tables.create_at(id, name, || index, publish);
        if created.is_err() {
            self.core.space.budget.release(bytes);
        }
        created
    }

    /// A table's own level; `None` = the default of the store's log.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn table_level(&self, table: TableId) -> Result<Option<Level>, Error> {
        let mut found = Err(Error::NoSuchTable(table));
        self.core.tables.each(|id, _, index| {
            if id == table {
                found = Ok(index.level());
            }
        });
        found
    }

    /// Sets a table's own level, for later writes. Must not be called while this thread holds a
    /// guard.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::TooManySessions`].
    pub fn set_table_level(
        self: &Arc<Self>,
        table: TableId,
        level: Option<Level>,
    ) -> Result<(), Error> {
        let mut session = self.brief_session()?;
        // no drop comes between the lookup of the table and the change's place in the log
        let _guard = session.pin();
        self.core.tables.set_level(table, level)?;
        if let Some(log) = self.log() {
            log.changes()
                .publish(TableChange::SetLevel { table, level });
        }
        Ok(())
    }

    /// Closes the segments of all heads, so that everything appended so far is in closed ones.
    /// Waits for threads that are writing.
    pub fn close_heads(&self) {
        let Some(log) = self.log() else {
            return;
        };
        let _noted = waits::note(Resource::Head, NOTHING);
        for head in self.core.actors.heads() {
            let mut tail = head.tail.lock().expect("head");
            log.streams()
                .close_head(&self.core.space, head.number, &mut tail);
        }
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

    /// The threads of this process that have waited for a tenth of a second or longer, each with
    /// the resource that it waits for and those that it holds.
    pub fn waits(&self) -> Vec<Wait> {
        waits::longer_than(waits::LONG)
    }

    /// As [`Guard::hash`](crate::Guard::hash), without a guard.
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.core.tables.hash(key)
    }

    pub fn table_id(&self, name: &str) -> Option<TableId> {
        let mut found = None;
        self.core.tables.each(|id, other, _| {
            if other == name {
                found = Some(id);
            }
        });
        found
    }

    /// True if the table exists: it was made, and not dropped since.
    pub fn has_table(&self, table: TableId) -> bool {
        self.core.tables.has(table)
    }

    pub fn tables(&self) -> Vec<TableInfo> {
        let mut tables = Vec::new();
        self.core.tables.each(|id, name, _| {
            tables.push(TableInfo {
                id,
                name: name.to_owned(),
                objects: self.core.actors.objects(id),
            });
        });
        tables
    }

    /// Objects in a table, including expired ones that no thread has met yet. Parts are no objects
    /// of a table: [`TableId::parts`] has those that live.
    pub fn objects(&self, table: TableId) -> u64 {
        if self.has_table(table.whole()) {
            self.core.actors.objects(table)
        } else {
            0
        }
    }

    /// Objects in a table that expire at some time.
    pub fn expiring_objects(&self, table: TableId) -> u64 {
        if self.has_table(table) {
            self.core.actors.expiring(table)
        } else {
            0
        }
    }

    /// Drops a table and its objects; the default table can only be cleared. Must not be called
    /// while this thread holds a guard: it waits until there is none.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], also for the default table; [`Error::TooManySessions`].
    pub fn drop_table(self: &Arc<Self>, table: TableId) -> Result<(), Error> {
        if table == TableId::DEFAULT {
            return Err(Error::NoSuchTable(table));
        }
        let mut session = self.brief_session()?;
        let guard = session.pin_exclusive();
        guard.empty(table, |table, floor| TableChange::Drop { table, floor })?;
        for index in self.core.tables.remove(table).into_iter().flatten() {
            self.core.space.budget.release(index.overhead_bytes());
        }
        Ok(())
    }

    /// Removes every object of a table at one instant, for all sessions. Must not be called while
    /// this thread holds a guard: use [`Guard::clear`](crate::Guard::clear) of an exclusive one.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::TooManySessions`].
    pub fn clear_table(self: &Arc<Self>, table: TableId) -> Result<(), Error> {
        self.brief_session()?.pin_exclusive().clear(table)
    }
}

impl Store {
    /// The replica of this segment is damaged: the next cleaning pass takes it, whatever that
    /// gains. A repeated call has no effect. An open segment is taken when it is closed
    /// ([`close_heads`](Store::close_heads)), one whose cleaning was given up never.
    pub fn relocate(&self, segment: SegmentId) {
        let Some(log) = self.log() else {
            return;
        };
        if log.swaps().relocate(segment) {
            self.core().cleaners.wake();
        }
    }

    /// Progress of a segment's relocation.
    pub fn relocation(&self, segment: SegmentId) -> Relocation {
        let Some(log) = self.log() else {
            return Relocation::Done;
        };
        let swaps = log.swaps();
        // Looked up first, as a pass that begins meanwhile moves a segment from one of these places
        // to another.
        let has_source = swaps.turn().is_taken()
            || swaps.queues().passes().is_victim(segment)
            || swaps.queues().passes().is_emptied(segment)
            || self.has_window(log, segment);
        if !swaps.is_durable_segment(segment) {
            Relocation::Done
        } else if has_source {
            Relocation::Waiting
        } else {
            Relocation::NoSource
        }
    }

    fn has_window(&self, log: &Log, segment: SegmentId) -> bool {
        let mut windows = self.core().space.segments.iter().enumerate();
        windows.any(|(window, known)| known.is_in_log() && log.segment_of(window) == segment)
    }

    /// A step of relocation, for a store without cleaner threads. False: there was nothing to do.
    pub fn relocation_step(&self, quota_bytes: u64) -> bool {
        let asks = self
            .log()
            .is_some_and(|log| log.swaps().relocations.is_asking());
        asks && self.core().cleaners.threads() == 0 && self.clean_step(quota_bytes)
    }

    /// Closes the segment if it is a head's open one. Does nothing if another thread is using that
    /// head.
    pub fn close_head_of(&self, segment: SegmentId) {
        let Some(log) = self.log() else {
            return;
        };
        let core = self.core();
        for head in core.actors.heads() {
            let Ok(mut tail) = head.tail.try_lock() else {
                continue;
            };
            let window = tail.window();
            if window.is_some_and(|window| log.segment_of(window as usize) == segment) {
                log.streams()
                    .close_head(&core.space, head.number, &mut tail);
            }
        }
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
            // With its key locked, a guard cleans, and waits for memory for a moment only: the
            // caller may be the thread that frees it.
            match guard.lock_keys_expecting(&[(*table, hash)], Default::default()) {
                Err(Error::NoSuchTable(_)) => continue,
                locked => locked?,
            }
            let removed = guard.update(*table, hash, key, |object, _| {
                is_expired = object.is_none();
                match is_expired {
                    true => Decision::Remove,
                    false => Decision::Keep, // it was replaced, or the clock was set back
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
            // Handles of threads that do not exist here: even to drop them would be an error.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.end_cleaners();
    }
}
