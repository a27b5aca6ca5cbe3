//! Tables of a store: names, ids, and one index each, or two: a table with large collections has
//! one more for their parts. Each entry names its index by its table's id, of which bit 31 says
//! that it is a part (`TableId::parts`).
//!
//! **Invariants**
//! - T1: a table's index is at its id's place, and no two tables have one place at a time. If
//!   another table has the place of an id, the id belongs to no table.
//! - T2: no id that was ever seen here is given to another table, so a client that still uses the
//!   id of a dropped table never reaches another one. Ids from elsewhere (a coordinator, a log) may
//!   be any, by T1 and T3.
//! - T3: the id of a table is below 2^31, so no table is taken for the parts of another one.
//! - T4: the index of parts is made before the first part is appended or loaded, and goes with its
//!   table. It has the level and the floors of the table, whichever of the two was made or changed
//!   first. It is never made anew for a table that stays: a floor would be lost (index::X3).

use crate::index::Index;
use crate::{Error, KeyHash, TableId};
use duramen_base::ids::Level;
use duramen_base::limits::TABLES_MAX;
use duramen_base::sync::Mutex;
use duramen_format::control::is_table_name;
use duramen_format::hash::KeyHasher;
use std::sync::atomic::{AtomicPtr, Ordering};

/// **Concurrency**: a session finds an index by id under its pin, without a lock. The registry's
/// lock serialises threads that create, drop or count tables. An index is freed only by a thread
/// that is alone in the store and holds that lock. A thread pins before it takes the lock, never
/// with the lock held: the thread that is alone waits for it. The changes of tables are locked
/// under it, and so are the locks behind those (`log`, Lock order).
pub struct Registry {
    /// The hash of the keys of all tables.
    hasher: KeyHasher,
    /// The indexes, by [`TableId::index_place`].
    indexes: Box<[AtomicPtr<Index>]>,
    names: Mutex<Names>,
}

/// The tables by place.
struct Names {
    /// The id and the name of each table, by place.
    tables: Vec<Option<(TableId, String)>>,
    /// Above every id that was ever seen here (T2).
    next: TableId,
}

impl Registry {
    pub fn new(hasher: KeyHasher) -> Registry {
        Registry {
            hasher,
            indexes: (0..TableId::INDEX_PLACES)
                .map(|_| AtomicPtr::new(std::ptr::null_mut()))
                .collect(),
            names: Mutex::new(Names {
                tables: vec![None; TABLES_MAX],
                next: TableId::DEFAULT,
            }),
        }
    }

    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(self.hasher.hash(key))
    }

    pub fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// The index of a table, or of its parts; an error if there are none yet. The caller is pinned
    /// for as long as it uses it.
    #[inline(always)]
    pub fn index(&self, table: TableId) -> Result<&Index, Error> {
        // Acquire pairs with Release in `add`: the index is built before it is seen.
        let index = self.indexes[table.index_place()].load(Ordering::Acquire);
        // SAFETY: made by `add` from a box; freed by `remove`, whose caller is alone in the store
        // (no pin is active).
        match unsafe { index.as_ref() } {
            Some(index) if index.table == table => Ok(index),
            _ => Err(Error::NoSuchTable(table)), // T1: nobody or another has the place
        }
    }

    /// True if the table exists.
    pub fn has(&self, table: TableId) -> bool {
        let names = self.names.lock().expect("table registry");
        names.tables[table.place()]
            .as_ref()
            .is_some_and(|(id, _)| *id == table)
    }

    /// Creates a table. `publish` gets the id before any thread can find the table.
    ///
    /// # Errors
    /// Bad or taken name, too many tables.
    pub fn create(
        &self,
        name: &str,
        index: impl FnOnce() -> Index,
        publish: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        self.create_at(None, name, index, publish)
    }

    /// As [`create`](Self::create), with this id if one is given. Also [`Error::TableExists`] if a
    /// table has the id, and [`Error::TooManyTables`] if another has its place, or if the id is
    /// that of a table's parts (T3).
    pub fn create_at(
        &self,
        id: Option<TableId>,
        name: &str,
        index: impl FnOnce() -> Index,
        publish: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        if !is_table_name(name) {
            return Err(Error::BadTableName(name.to_owned()));
        }
        let mut names = self.names.lock().expect("table registry");
        let mut tables = names.tables.iter().flatten();
        if tables.any(|(other, named)| named == name || Some(*other) == id) {
            return Err(Error::TableExists(name.to_owned()));
        }
        let free = |id: TableId| id.first_free(|place| names.tables[place].is_some());
        let id = match id {
            Some(id) => free(id).filter(|found| *found == id),
            None => free(names.next),
        };
        let id = id.ok_or(Error::TooManyTables { limit: TABLES_MAX })?;
        names.tables[id.place()] = Some((id, name.to_owned()));
        names.next = names.next.max(TableId(id.0.wrapping_add(1))); // T2: no id is given twice
        publish(id);
        self.add(id, index());
        Ok(id)
    }

    /// Gives a table the index for its parts. Returns false if it has one, or if there is no such
    /// table.
    pub fn create_parts(&self, table: TableId, index: Index) -> bool {
        let _names = self.names.lock().expect("table registry");
        let Ok(whole) = self.index(table.whole()) else {
            return false;
        };
        let is_new = self.index(table.parts()).is_err();
        if is_new {
            index.follow(whole); // T4: no thread changes these without the registry's lock
            self.add(table.parts(), index);
        }
        is_new
    }

    /// Shows an index to all threads. The registry is locked, and the place is free.
    fn add(&self, table: TableId, index: Index) {
        let mut index = Box::new(index);
        index.table = table;
        self.indexes[table.index_place()].store(Box::into_raw(index), Ordering::Release);
    }

    /// Removes a table and its parts. The caller is alone in the store.
    pub fn remove(&self, table: TableId) -> [Option<Box<Index>>; 2] {
        let mut names = self.names.lock().expect("table registry");
        let entry = &mut names.tables[table.place()];
        if entry.take_if(|(id, _)| *id == table).is_none() {
            return [None, None];
        }
        [table, table.parts()].map(|id| {
            let place = &self.indexes[id.index_place()];
            let index = place.swap(std::ptr::null_mut(), Ordering::AcqRel);
            // SAFETY: made by `add` from a box, and taken out of the one place that had it; no
            // session is inside.
            (!index.is_null()).then(|| unsafe { Box::from_raw(index) })
        })
    }

    /// Sets a table's own level, which is that of its parts (T4). The caller is pinned.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn set_level(&self, table: TableId, level: Option<Level>) -> Result<(), Error> {
        let _names = self.names.lock().expect("table registry");
        self.index(table)?.set_level(level);
        if let Ok(parts) = self.index(table.parts()) {
            parts.set_level(level);
        }
        Ok(())
    }

    /// Calls `f` for each table; no table is dropped meanwhile.
    pub fn each(&self, mut f: impl FnMut(TableId, &str, &Index)) {
        let names = self.names.lock().expect("table registry");
        for (id, name) in names.tables.iter().flatten() {
            if let Ok(index) = self.index(*id) {
                f(*id, name, index);
            }
        }
    }

    /// As [`each`](Self::each), for each index: the index of a table's parts follows that of the
    /// table.
    pub fn each_index(&self, mut f: impl FnMut(TableId, &Index)) {
        self.each(|table, _, index| {
            f(table, index);
            if let Ok(parts) = self.index(table.parts()) {
                f(table.parts(), parts);
            }
        });
    }

    /// The ids of all indexes.
    pub fn index_ids(&self) -> Vec<TableId> {
        let mut ids = Vec::new();
        self.each_index(|id, _| ids.push(id));
        ids
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        for slot in &mut self.indexes {
            let index = *slot.get_mut();
            if !index.is_null() {
                // SAFETY: made by `add` from a box; with `&mut self` no other thread can see it.
                drop(unsafe { Box::from_raw(index) });
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Options, Store};

    fn store() -> std::sync::Arc<Store> {
        Store::new(Options {
            huge_pages: false,
            ..Options::new(64 << 20)
        })
        .expect("a store")
    }

    /// The id of a dropped table once went to the next table that was made, and a session that
    /// still used the dropped one wrote into it.
    #[test]
    fn the_id_of_a_dropped_table_is_nobody_s() {
        let store = store();
        let dropped = store.tables().create("a").unwrap();
        store.tables().drop(dropped).unwrap();
        let made = store.tables().create("b").unwrap();
        assert_ne!(made, dropped);
        let mut session = store.session().unwrap();
        let mut guard = session.pin();
        let hash = guard.hash(b"key");
        let gone = guard.write(dropped, hash, b"key", b"1", None);
        assert!(matches!(gone, Err(Error::NoSuchTable(_))), "{gone:?}");
        assert!(guard.read(made, hash, b"key").unwrap().is_none());
        drop(guard);
        assert!(matches!(
            store.tables().drop(dropped),
            Err(Error::NoSuchTable(_))
        ));
        assert!(store.tables().has(made) && !store.tables().has(dropped));
        assert_eq!(store.tables().objects(dropped), 0);
    }

    /// A level was once set behind the drop of its table, in the order of the log: the writer of
    /// the log met a change of a table that does not exist, and ended the process.
    #[test]
    fn no_level_is_set_behind_a_drop() {
        use crate::{Collected, LogOptions, TableChange};
        use duramen_base::ids::Level;
        use std::sync::atomic::{AtomicBool, AtomicU32};
        let store = Store::new(Options {
            huge_pages: false,
            heads: 2,
            cleaners: 0,
            log: Some(LogOptions::new(7)),
            ..Options::new(64 << 20)
        });
        let store = store.expect("a store");
        let (table, is_over, set) = (AtomicU32::new(0), AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let table = TableId(table.load(Ordering::Relaxed));
                    if table != TableId::DEFAULT {
                        let done = store.tables().set_level(table, Some(Level::Buffered));
                        set.fetch_add(u32::from(done.is_ok()), Ordering::Relaxed);
                    }
                }
            });
            let mut wrong = 0;
            for round in 0..300 {
                let made = store.tables().create("a").unwrap();
                let mut session = store.session().unwrap();
                let mut guard = session.pin();
                for key in 0..200u32 {
                    let key = key.to_le_bytes();
                    let hash = guard.hash(&key);
                    guard.write(made, hash, &key, b"value", None).unwrap();
                }
                drop(guard);
                let before = set.load(Ordering::Relaxed);
                table.store(made.0, Ordering::Relaxed);
                while round % 3 == 0 && set.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
                store.tables().drop(made).unwrap();
                table.store(0, Ordering::Relaxed);
                let log = store.log().unwrap();
                let mut collected = Collected::default();
                log.collect(&mut collected);
                let changes = collected.changes();
                let drop = |change: &TableChange| matches!(change, TableChange::Drop { .. });
                let behind = changes.iter().skip_while(|change| !drop(change)).skip(1);
                wrong += behind
                    .filter(|change| matches!(change, TableChange::SetLevel { table, .. } if *table == made))
                    .count();
                log.complete(&mut collected, Level::Synced);
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(wrong, 0);
        });
    }

    /// A cluster's coordinator gives each id once, so it reaches the 1,025th in the end: a store
    /// once refused that one for ever.
    #[test]
    fn ids_of_any_number_are_taken_if_their_place_is_free() {
        let store = store();
        let n = TABLES_MAX as u32;
        let (first, second) = (TableId(5 * n + 7), TableId(9 * n + 7));
        store.tables().adopt(first, "first", None).unwrap();
        let taken = store.tables().adopt(second, "second", None);
        assert!(
            matches!(taken, Err(Error::TooManyTables { .. })),
            "{taken:?}"
        );
        store.tables().drop(first).unwrap();
        store.tables().adopt(second, "second", None).unwrap();
        assert_eq!(
            store.tables().create("third").unwrap(),
            TableId(second.0 + 1)
        );
        // As many as may exist at once, and then more of them one after the other.
        for round in 0..n + 10 {
            let table = store.tables().create(&format!("round-{round}"));
            store.tables().drop(table.unwrap()).unwrap();
        }
    }
}
