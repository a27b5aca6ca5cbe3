//! Operations on many keys in one call, with overlapping cache misses. Not atomic: each key is an
//! operation of its own, with a result of its own, in the order given [Ousterhout15 §3]. For one
//! atomic step over several keys see `lock_keys`.

use crate::{Condition, Error, Guard, Incremented, KeyHash, Object, Outcome, TableId};

/// Number of keys whose bucket lines, and then entries, are fetched together: about the number of
/// cache misses that a core can have in flight.
const GROUP: usize = 16;

/// One part of a [`Many::write`].
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    /// As in [`Object`].
    pub expires_at_ms: Option<u64>,
    pub condition: Condition,
}

impl<'a> Part<'a> {
    /// Stores the value unconditionally, without expiry.
    pub fn new(key: &'a [u8], value: &'a [u8]) -> Part<'a> {
        Part {
            key,
            value,
            expires_at_ms: None,
            condition: Condition::Always,
        }
    }
}

/// Operations of a guard on many keys of a table.
pub struct Many<'g, 's> {
    guard: &'g mut Guard<'s>,
    table: TableId,
}

impl<'s> Guard<'s> {
    /// The guard's operations on many keys of this table.
    #[inline]
    pub fn many(&mut self, table: TableId) -> Many<'_, 's> {
        Many { guard: self, table }
    }
}

impl<'s> Many<'_, 's> {
    /// Runs an operation for each key, in order, after it has started to fetch the data of the next
    /// ones: all buckets of a group, then all its entries. `run` gets the position of the key in
    /// `keys`.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; no operation was run then.
    #[inline]
    pub fn each<'k>(
        &mut self,
        keys: impl ExactSizeIterator<Item = &'k [u8]> + Clone,
        mut run: impl FnMut(&mut Guard<'s>, usize, KeyHash, &'k [u8]),
    ) -> Result<(), Error> {
        let (guard, table) = (&mut *self.guard, self.table);
        guard.pin().index(table)?;
        let mut hashes = [KeyHash(0); GROUP];
        let total = keys.len();
        let mut left = keys;
        for first in (0..total).step_by(GROUP) {
            let group = left.clone().take(GROUP);
            for (hash, key) in hashes.iter_mut().zip(group.clone()) {
                *hash = guard.hash(key);
                guard.pin().prefetch_bucket(table, *hash);
            }
            let hashes = &hashes[..GROUP.min(total - first)];
            for hash in hashes {
                guard.pin().prefetch_entry(table, *hash);
            }
            for (n, (hash, key)) in hashes.iter().zip(group).enumerate() {
                run(guard, first + n, *hash, key);
            }
            left.by_ref().take(GROUP).for_each(drop);
        }
        Ok(())
    }

    /// Reads many keys; `show` gets each object, or `None`, with the position of its key.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn read(
        &mut self,
        keys: &[&[u8]],
        mut show: impl FnMut(usize, Option<Object<'_>>),
    ) -> Result<(), Error> {
        let (table, mut result) = (self.table, Ok(()));
        self.each(keys.iter().copied(), |guard, n, hash, key| {
            match guard.read(table, hash, key) {
                Ok(found) => show(n, found),
                Err(error) => result = Err(error),
            }
        })?;
        result
    }

    /// Writes many objects, each under its condition; `done` gets each part's own outcome.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; every other error is a part's own.
    pub fn write(
        &mut self,
        parts: &[Part<'_>],
        mut done: impl FnMut(usize, Result<Outcome, Error>),
    ) -> Result<(), Error> {
        let (table, keys) = (self.table, parts.iter().map(|part| part.key));
        self.each(keys, |guard, n, hash, key| {
            let part = &parts[n];
            let (value, expires) = (part.value, part.expires_at_ms);
            let written = guard.conditional_write(table, hash, key, value, expires, part.condition);
            done(n, written);
        })
    }

    /// Removes many keys; `done` gets each part's own outcome.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn remove(
        &mut self,
        keys: &[&[u8]],
        mut done: impl FnMut(usize, Result<Outcome, Error>),
    ) -> Result<(), Error> {
        let table = self.table;
        self.each(keys.iter().copied(), |guard, n, hash, key| {
            done(n, guard.remove(table, hash, key));
        })
    }

    /// Increments many integers, each by its own amount; `done` gets each part's own result.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; every other error is a part's own.
    pub fn increment(
        &mut self,
        parts: &[(&[u8], i64)],
        mut done: impl FnMut(usize, Result<Incremented<i64>, Error>),
    ) -> Result<(), Error> {
        let (table, keys) = (self.table, parts.iter().map(|(key, _)| *key));
        self.each(keys, |guard, n, hash, key| {
            done(n, guard.increment(table, hash, key, parts[n].1));
        })
    }
}
