//! State that the commands of all threads share beyond the store: databases, pauses, monitors, the
//! slow log, command counters.
//!
//! **Concurrency.** Every request reads [`CommandState::gate`] and `CommandState::dbs`, and only
//! rare commands write them, so their lines stay shared in every core's cache. Each counter has one
//! writer, its thread. The mutexes guard cold paths only.

use super::levels::Levels;
use super::reserved::Reservations;
use crate::figures::counters::{CommandCounters, Counter, ThreadCommands};
use crate::figures::slow_log::SlowLog;
use crate::figures::totals::Baseline;
use crate::state::db::DBS;
use crate::threads::clients::ClientRecord;
use duramen_base::ids::Level;
use duramen_config::EventClasses;
use duramen_engine::{KeyHash, Log, Position, TableId};
use duramen_wire::native::message::TableEntry;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The value in `CommandState::dbs` for a database without a table.
const NO_TABLE: u32 = u32::MAX;

/// Bits of `CommandState::gate`.
pub mod global {
    pub const PAUSED: u32 = 1;
    pub(crate) const MONITORED: u32 = 1 << 1;
    /// Databases were exchanged, and a crash can still undo that.
    pub(crate) const EXCHANGED: u32 = 1 << 2;
    /// The log has failed. Each request is then a turn of its own: an error that a request gets
    /// because its data is not durable replaces no other reply.
    pub(crate) const FAILED: u32 = 1 << 3;
    /// A script or EXEC has reserved keys.
    pub const RESERVED: u32 = 1 << 4;
}

/// The part of the server's shared state that belongs to the commands.
#[derive(Debug)]
pub struct CommandState {
    gate: AtomicU32,
    /// The classes of events that are published. Relaxed: a request that reads an old value counts
    /// as one that came before the change.
    events: AtomicU32,
    dbs: [AtomicU32; DBS],
    /// How often SWAPDB changed the table behind each database. Written by a thread that is
    /// exclusive in the store, read under a guard.
    exchanges: [AtomicU64; DBS],
    pub levels: Levels,
    /// End of `CLIENT PAUSE`, in milliseconds of the server's clock, times 2, plus 1 if only writes
    /// wait; 0 = no pause.
    pause: AtomicU64,
    pub(crate) threads: Box<[ThreadCommands]>,
    reserved: Mutex<Reservations>,
    /// Held while a database gets its table, and while two are exchanged: each table is behind at
    /// most one database. A thread that holds it waits for nothing but the log's memory, during an
    /// exchange.
    places: Mutex<()>,
    /// The position on which the exchanged mapping depends, until it is synced, with the databases
    /// that were exchanged, one bit each.
    exchanged: Mutex<(Position, u16)>,
    monitors: Mutex<Vec<Arc<ClientRecord>>>,
    /// The highest reported memory in use, in bytes.
    pub(crate) used_memory_peak: AtomicU64,
    /// Average time to live of the keys of each database, in milliseconds, as estimated last.
    pub(crate) ttl_ms: [AtomicU64; DBS],
    slow_log: Mutex<SlowLog>,
    /// The counters' values at the last `CONFIG RESETSTAT`.
    baseline: Mutex<Baseline>,
    /// 40 hexadecimal digits that identify this run of the server.
    pub(crate) run_id: String,
}

impl CommandState {
    pub fn new(threads: usize, commands: usize) -> CommandState {
        let thread = |_| ThreadCommands {
            commands: (0..commands).map(|_| CommandCounters::default()).collect(),
            errors: std::array::from_fn(|_| Counter::default()),
        };
        CommandState {
            gate: AtomicU32::new(0),
            events: AtomicU32::new(0),
            dbs: std::array::from_fn(|db| {
                AtomicU32::new(if db == 0 {
                    TableId::DEFAULT.0
                } else {
                    NO_TABLE
                })
            }),
            exchanges: std::array::from_fn(|_| AtomicU64::new(0)),
            levels: Levels::new(),
            pause: AtomicU64::new(0),
            threads: (0..threads).map(thread).collect(),
            reserved: Mutex::default(),
            places: Mutex::default(),
            exchanged: Mutex::default(),
            monitors: Mutex::default(),
            used_memory_peak: AtomicU64::new(0),
            ttl_ms: std::array::from_fn(|_| AtomicU64::new(0)),
            slow_log: Mutex::default(),
            baseline: Mutex::default(),
            run_id: run_id(),
        }
    }

    /// The bits that send every client's requests through all checks; 0 = none.
    #[inline]
    pub fn gate(&self) -> u32 {
        self.gate.load(Ordering::Relaxed)
    }

    /// The classes of events that are published; none if nobody can hear of them.
    #[inline]
    pub(crate) fn events(&self) -> EventClasses {
        EventClasses::from_bits(self.events.load(Ordering::Relaxed))
    }

    pub(crate) fn set_events(&self, classes: EventClasses) {
        let bits = classes.in_use().bits();
        self.events.store(bits, Ordering::Relaxed);
    }

    /// The table behind a database; `None` = it has none yet.
    #[inline]
    pub(crate) fn table(&self, db: u8) -> Option<TableId> {
        let table = self.dbs.get(usize::from(db))?.load(Ordering::Relaxed);
        (table != NO_TABLE).then_some(TableId(table))
    }

    /// The tables behind all databases.
    pub(crate) fn tables(&self) -> [Option<TableId>; DBS] {
        std::array::from_fn(|db| self.table(db as u8))
    }

    /// Removes a dropped table from its database.
    pub(crate) fn forget_table(&self, table: TableId) {
        for place in &self.dbs {
            let (gone, none) = (table.0, NO_TABLE);
            // A table that was assigned meanwhile stays. Relaxed: the store itself decides which
            // tables exist.
            let _ = place.compare_exchange(gone, none, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(crate) fn lock_places(&self) -> MutexGuard<'_, ()> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_table(&self, db: u8, table: Option<TableId>) {
        if let Some(place) = self.dbs.get(usize::from(db)) {
            place.store(table.map_or(NO_TABLE, |table| table.0), Ordering::Relaxed);
        }
    }

    /// Sets all databases at once. The caller is exclusive in the store, so all other threads see
    /// the gate together with the databases. `position`: the change is lost in a crash unless this
    /// position is synced.
    pub(crate) fn set_tables(&self, places: &[Option<TableId>], position: &Position) {
        let mut changed = 0;
        for (db, table) in (0..).zip(places) {
            if *table != self.table(db) {
                changed |= 1 << db;
                // Relaxed: a thread that reads the number enters the store after this, or had left
                // it before.
                self.exchanges[usize::from(db)].fetch_add(1, Ordering::Relaxed);
            }
            self.set_table(db, *table);
        }
        if !position.is_none() {
            let mut exchanged = self.exchanged();
            exchanged.0.join(position);
            exchanged.1 |= changed;
            self.gate.fetch_or(global::EXCHANGED, Ordering::Relaxed);
        }
    }

    /// Notes whether the log fails now, for a while or for ever.
    pub fn note_failed_log(&self, fails: bool) {
        if fails == (self.gate() & global::FAILED != 0) {
            return; // a write to the gate would cost all threads a cache miss
        }
        match fails {
            true => self.gate.fetch_or(global::FAILED, Ordering::Relaxed),
            false => self.gate.fetch_and(!global::FAILED, Ordering::Relaxed),
        };
    }

    /// A number that differs from an earlier one if SWAPDB put another table behind the database
    /// since.
    pub(crate) fn exchanges(&self, db: u8) -> u64 {
        let exchanges = self.exchanges.get(usize::from(db));
        exchanges.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The position that a reply must wait for if it depends on the table behind `db`, or, without
    /// `db`, behind any database; `None`: it need not wait.
    #[cold]
    pub(crate) fn awaited_exchange(&self, log: Option<&Log>, db: Option<u8>) -> Option<Position> {
        let mut exchanged = self.exchanged();
        if log.is_some_and(|log| log.reached(&exchanged.0) < Level::Synced) {
            let concerns = db.is_none_or(|db| exchanged.1 & (1 << db) != 0);
            return concerns.then(|| exchanged.0.clone());
        }
        *exchanged = (Position::default(), 0);
        self.gate.fetch_and(!global::EXCHANGED, Ordering::Relaxed);
        None
    }

    /// Notes that COPY or MOVE has made data of one table visible in another one (databases::I2).
    pub(crate) fn spread_exchange(&self, from: TableId, to: TableId) {
        if self.gate() & global::EXCHANGED == 0 {
            return;
        }
        let is_concerned = |db: &u8| [Some(from), Some(to)].contains(&self.table(*db));
        let concerned = (0..DBS as u8).filter(is_concerned);
        let both = concerned.fold(0, |both, db| both | 1 << db);
        let mut exchanged = self.exchanged();
        if exchanged.1 & both != 0 {
            exchanged.1 |= both;
        }
    }

    fn exchanged(&self) -> MutexGuard<'_, (Position, u16)> {
        self.exchanged
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// In a cluster: takes over the coordinator's list of tables whenever it changes. Database 0 is
    /// the table `db0`, and there is no other database, as in Redis Cluster. An empty list: no
    /// table is known yet.
    pub fn adopt_tables(&self, tables: &[TableEntry]) {
        let first = tables.iter().find(|entry| entry.name == "db0");
        self.set_table(0, first.map(|entry| entry.table));
        for db in 1..DBS as u8 {
            self.set_table(db, None);
        }
        for entry in tables {
            self.levels.set(entry.table, entry.level);
        }
    }

    /// The database that a table is behind.
    pub(crate) fn db_of(&self, table: TableId) -> Option<u8> {
        let place = self
            .dbs
            .iter()
            .position(|db| db.load(Ordering::Relaxed) == table.0)?;
        u8::try_from(place).ok()
    }

    /// Begins a pause. As in Redis, this makes a present pause neither shorter nor less strict.
    pub(crate) fn pause(&self, until_ms: u64, writes_only: bool, now_ms: u64) {
        let join = |old: u64| {
            let (old_ms, was_writes_only) = (old >> 1, old & 1 != 0);
            let (until_ms, writes_only) = match old_ms > now_ms {
                true => (until_ms.max(old_ms), writes_only && was_writes_only),
                false => (until_ms, writes_only),
            };
            Some(until_ms.min(u64::MAX >> 1) << 1 | u64::from(writes_only))
        };
        let at = Ordering::SeqCst;
        let _ = self.pause.fetch_update(at, at, join);
        self.gate.fetch_or(global::PAUSED, at);
    }

    pub(crate) fn unpause(&self) {
        self.pause.store(0, Ordering::SeqCst);
        self.open_unless_paused();
    }

    /// Ends the pause with this number, and no other one.
    fn end_pause(&self, pause: u64) {
        let at = Ordering::SeqCst;
        if self.pause.compare_exchange(pause, 0, at, at).is_ok() {
            self.open_unless_paused();
        }
    }

    /// Clears the mark of the pause in the gate, unless there is a pause. A pause that begins
    /// meanwhile sets its end before the gate: so its end is seen here, or it sets the gate after
    /// this.
    fn open_unless_paused(&self) {
        let at = Ordering::SeqCst; // for both, as the comment above needs
        self.gate.fetch_and(!global::PAUSED, at);
        if self.pause.load(at) != 0 {
            self.gate.fetch_or(global::PAUSED, at);
        }
    }

    /// Reserves more keys for a client, for `most` at most. Must be called each time that its
    /// request is shown. Returns false if another client has reserved keys, and this one stands in
    /// line.
    pub(crate) fn reserve(
        &self,
        client: u64,
        keys: impl Iterator<Item = KeyHash>,
        most: Duration,
    ) -> bool {
        let mut reserved = self.reserved();
        let now = Instant::now();
        let is_added = reserved.add(client, keys.map(KeyHash::number), (now, most));
        self.gate.fetch_or(global::RESERVED, Ordering::Relaxed);
        is_added
    }

    /// As [`reserve`](Self::reserve), for a client that may be in line: the line has its keys.
    /// Returns `None` if the client is not in line.
    pub(crate) fn show_in_line(&self, client: u64) -> Option<bool> {
        if !self.has_reserved() {
            return None;
        }
        let mut reserved = self.reserved();
        let is_first = reserved.show(client, Instant::now());
        self.note_reserved(&reserved);
        is_first
    }

    /// Ends a client's reservation, or its place in the line.
    pub(crate) fn release(&self, client: u64) {
        let mut reserved = self.reserved();
        reserved.remove(client, Instant::now());
        self.note_reserved(&reserved);
    }

    /// Returns the number of another client's reservation if a write of a client to these keys
    /// waits for it. `put_off`: the number of the reservation for which the write waits already, or
    /// 0.
    #[inline]
    pub(crate) fn reservation(
        &self,
        client: (u64, u64),
        keys: impl Iterator<Item = KeyHash>,
    ) -> Option<u64> {
        if !self.has_reserved() {
            return None;
        }
        let keys = keys.map(KeyHash::number);
        let mut reserved = self.reserved();
        let bars = reserved.bars(client, keys, Instant::now());
        self.note_reserved(&reserved);
        bars
    }

    /// Whether the reservation with this number, for which a write waits, has not ended yet.
    pub(crate) fn reservation_lasts(&self, number: u64) -> bool {
        if !self.has_reserved() {
            return false;
        }
        let mut reserved = self.reserved();
        let lasts = reserved.lasts(number, Instant::now());
        self.note_reserved(&reserved);
        lasts
    }

    /// Opens the gate if nobody has reserved keys. That may be so while a request goes on whose
    /// reservation has ended by its time.
    fn note_reserved(&self, reserved: &Reservations) {
        if !reserved.is_any() {
            self.gate.fetch_and(!global::RESERVED, Ordering::Relaxed);
        }
    }

    /// Whether a client may have reserved keys.
    #[inline]
    pub(crate) fn has_reserved(&self) -> bool {
        self.gate() & global::RESERVED != 0
    }

    /// Whether a step of a client on these keys would run in vain now, because another one has
    /// reserved some of them.
    pub(crate) fn stops(&self, client: u64, keys: impl Iterator<Item = KeyHash>) -> bool {
        let keys = keys.map(KeyHash::number);
        self.has_reserved() && self.reserved().stops(client, keys, Instant::now())
    }

    /// Whether a client has reserved keys.
    pub(crate) fn is_reserving(&self, client: u64) -> bool {
        self.has_reserved() && self.reserved().is_of(client)
    }

    fn reserved(&self) -> MutexGuard<'_, Reservations> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the current pause and whether only writes wait; ends a pause that is over.
    pub(crate) fn paused(&self, now_ms: u64) -> Option<(u64, bool)> {
        let pause = self.pause.load(Ordering::Relaxed);
        if pause == 0 {
            return None;
        }
        if pause >> 1 <= now_ms {
            self.end_pause(pause);
            return None;
        }
        Some((pause >> 1, pause & 1 != 0))
    }

    pub(crate) fn slow_log(&self) -> MutexGuard<'_, SlowLog> {
        self.slow_log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn baseline(&self) -> MutexGuard<'_, Baseline> {
        self.baseline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn monitors(&self) -> MutexGuard<'_, Vec<Arc<ClientRecord>>> {
        self.monitors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes these monitors: no more requests are sent to them.
    pub(crate) fn end_monitors(&self, ended: &[Arc<ClientRecord>]) {
        let mut monitors = self.monitors();
        monitors.retain(|monitor| ended.iter().all(|ended| ended.id != monitor.id));
        self.set_monitored(!monitors.is_empty());
    }

    /// Sets whether there are monitors. Must be called while [`monitors`](Self::monitors) is held.
    pub(crate) fn set_monitored(&self, monitored: bool) {
        if monitored {
            self.gate.fetch_or(global::MONITORED, Ordering::Relaxed);
        } else {
            self.gate.fetch_and(!global::MONITORED, Ordering::Relaxed);
        }
    }
}

fn run_id() -> String {
    use std::hash::{BuildHasher, Hasher, RandomState};
    // The standard library seeds these from the system's randomness.
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}{:08x}", word(), word(), word() as u32)
}
