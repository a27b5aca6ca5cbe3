//! Tables of a store: names, ids, and one index each.

use crate::counters::TABLES_MAX;
use crate::index::Index;
use crate::{Error, TableId};
use duramen_base::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

/// **Concurrency**: a session finds an index by id under its pin, without a lock. The registry's lock serialises whoever
/// creates, drops or counts tables; an index is freed only by who is alone in the store and holds that lock.
pub struct Tables {
    indexes: Box<[AtomicPtr<Index>]>,
    names: Mutex<Vec<Option<String>>>,
}

impl Tables {
    pub fn new() -> Tables {
        Tables {
            indexes: (0..TABLES_MAX)
                .map(|_| AtomicPtr::new(std::ptr::null_mut()))
                .collect(),
            names: Mutex::new(Vec::new()),
        }
    }

    /// The index of a table. The caller is pinned for as long as it uses it.
    #[inline(always)]
    pub fn index(&self, table: TableId) -> Result<&Index, Error> {
        let slot = self
            .indexes
            .get(table.0 as usize)
            .ok_or(Error::NoSuchTable(table))?;
        // Acquire pairs with Release in `create`: the index is built before it is seen.
        // SAFETY: made by `create` from a box; freed by `remove`, whose caller is alone in the store (no pin is active).
        unsafe { slot.load(Ordering::Acquire).as_ref() }.ok_or(Error::NoSuchTable(table))
    }

    /// `publish` learns the id before anybody can find the table.
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

    /// As [`create`](Self::create), with this id if one is given; [`Error::TableExists`] too if it is taken.
    pub fn create_at(
        &self,
        id: Option<TableId>,
        name: &str,
        index: impl FnOnce() -> Index,
        publish: impl FnOnce(TableId),
    ) -> Result<TableId, Error> {
        if name.is_empty()
            || name.len() > 128
            || !name.chars().all(|c| !c.is_control() && !c.is_whitespace())
        {
            return Err(Error::BadTableName(name.to_owned()));
        }
        let mut names = self.names.lock().expect("table registry");
        if names.iter().flatten().any(|other| other == name) {
            return Err(Error::TableExists(name.to_owned()));
        }
        let free = names.iter().position(Option::is_none);
        let id = id.map_or(free.unwrap_or(names.len()), |id| id.0 as usize);
        if id >= TABLES_MAX {
            return Err(Error::TooManyTables { limit: TABLES_MAX });
        }
        if id >= names.len() {
            names.resize(id + 1, None);
        }
        if names[id].is_some() {
            return Err(Error::TableExists(name.to_owned()));
        }
        names[id] = Some(name.to_owned());
        publish(TableId(id as u32));
        self.indexes[id].store(Box::into_raw(Box::new(index())), Ordering::Release);
        Ok(TableId(id as u32))
    }

    /// Removes a table. The caller is alone in the store.
    pub fn remove(&self, table: TableId) -> Option<Box<Index>> {
        let mut names = self.names.lock().expect("table registry");
        *names.get_mut(table.0 as usize)? = None;
        let index = self.indexes[table.0 as usize].swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: made by `create` from a box, and taken out of the one place that had it; no session is inside.
        (!index.is_null()).then(|| unsafe { Box::from_raw(index) })
    }

    /// Calls `f` for each table, keeping tables from being dropped meanwhile.
    pub fn each(&self, mut f: impl FnMut(TableId, &str, &Index)) {
        let names = self.names.lock().expect("table registry");
        for (id, name) in names.iter().enumerate() {
            let id = TableId(id as u32);
            if let Some(name) = name
                && let Ok(index) = self.index(id)
            {
                f(id, name, index);
            }
        }
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        for slot in &mut self.indexes {
            let index = *slot.get_mut();
            if !index.is_null() {
                // SAFETY: made by `create` from a box; with `&mut self` nobody else can see it.
                drop(unsafe { Box::from_raw(index) });
            }
        }
    }
}
