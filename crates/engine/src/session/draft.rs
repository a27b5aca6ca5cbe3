//! The keys that a draft has met and changed (`crate::draft`).

use crate::{Error, KeyHash, Object, Stamp, TableId};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Memory of a key of a draft beside the bytes of key and value: its places in the tables here.
const KEY_COST_BYTES: usize = 160;

/// A key of the store, as the draft first met it.
pub(crate) struct Met {
    pub(crate) table: TableId,
    pub(crate) hash: KeyHash,
    pub(crate) key: Box<[u8]>,
    pub(crate) stamp: Stamp,
}

/// A key that the draft has changed.
pub(crate) struct Changed {
    pub(crate) table: TableId,
    pub(crate) hash: KeyHash,
    pub(crate) key: Box<[u8]>,
    /// `None`: it is removed.
    pub(crate) value: Option<Value>,
    /// The version that the step is told: it grows with each change.
    pub(crate) version: u64,
    /// The store has no such key.
    pub(crate) is_new: bool,
}

pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_typed: bool,
    pub(crate) expires_at_ms: Option<u64>,
}

impl Changed {
    pub(crate) fn object(&self, now_ms: u64) -> Option<Object<'_>> {
        let value = self.value.as_ref()?;
        if value.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms) {
            return None;
        }
        Some(Object {
            key: &self.key,
            value: &value.bytes,
            version: self.version,
            expires_at_ms: value.expires_at_ms,
            is_typed: value.is_typed,
        })
    }

    /// Whether the store has to change for it.
    pub(crate) fn counts(&self) -> bool {
        self.value.is_some() || !self.is_new
    }
}

type Places = HashMap<(TableId, KeyHash), usize>;

/// The writes of a step that is not decided yet: see `Guard::begin_draft`.
pub struct Draft {
    pub(crate) met: RefCell<Vec<Met>>,
    met_places: RefCell<Places>,
    pub(crate) changed: Vec<Changed>,
    changed_places: Places,
    bytes: Cell<usize>,
    bytes_max: usize,
}

/// The place of a key in a list; two keys may have one hash.
fn place<T>(
    places: &Places,
    list: &[T],
    (table, hash): (TableId, KeyHash),
    is_key: impl Fn(&T) -> bool,
) -> Option<usize> {
    let first = *places.get(&(table, hash))?;
    match list.get(first).is_some_and(&is_key) {
        true => Some(first),
        false => list.iter().position(is_key),
    }
}

impl Draft {
    /// `bytes_max`: maximum memory of its keys and values.
    pub fn new(bytes_max: usize) -> Draft {
        Draft {
            met: RefCell::default(),
            met_places: RefCell::default(),
            changed: Vec::new(),
            changed_places: Places::new(),
            bytes: Cell::new(0),
            bytes_max,
        }
    }

    /// Memory of its keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        !self.changed.iter().any(Changed::counts)
    }

    /// All keys that it has met, to be locked.
    pub fn keys(&self) -> Vec<(TableId, KeyHash)> {
        let met = self.met.borrow();
        met.iter().map(|met| (met.table, met.hash)).collect()
    }

    /// The tables that it changes; some may be named repeatedly.
    pub fn changed_tables(&self) -> impl Iterator<Item = TableId> {
        let changed = self.changed.iter().filter(|changed| changed.counts());
        changed.map(|changed| changed.table)
    }

    fn charge(&self, bytes: usize) -> Result<(), Error> {
        let bytes = self.bytes.get().saturating_add(bytes);
        if bytes > self.bytes_max {
            let limit = self.bytes_max;
            return Err(Error::GroupTooLarge { bytes, limit });
        }
        self.bytes.set(bytes);
        Ok(())
    }

    pub(crate) fn find(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Option<&Changed> {
        let is_key = |one: &Changed| one.table == table && *one.key == *key;
        let at = place(&self.changed_places, &self.changed, (table, hash), is_key)?;
        self.changed.get(at)
    }

    /// draft::P2.
    pub(crate) fn meet(
        &self,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        stamp: Stamp,
    ) -> Result<(), Error> {
        let is_key = |one: &Met| one.table == table && *one.key == *key;
        let (mut met, mut places) = (self.met.borrow_mut(), self.met_places.borrow_mut());
        if place(&places, &met, (table, hash), is_key).is_some() {
            return Ok(());
        }
        self.charge(key.len() + KEY_COST_BYTES)?;
        places.entry((table, hash)).or_insert(met.len());
        met.push(Met {
            table,
            hash,
            key: key.into(),
            stamp,
        });
        Ok(())
    }

    pub(crate) fn change(
        &mut self,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        value: Option<Value>,
        before: Option<u64>,
    ) -> Result<u64, Error> {
        let bytes = value.as_ref().map_or(0, |value| value.bytes.len());
        self.charge(bytes + KEY_COST_BYTES + key.len())?;
        let is_key = |one: &Changed| one.table == table && *one.key == *key;
        let at = place(&self.changed_places, &self.changed, (table, hash), is_key);
        if let Some(changed) = at.and_then(|at| self.changed.get_mut(at)) {
            let old = changed.value.as_ref().map_or(0, |value| value.bytes.len());
            self.bytes.set(
                self.bytes
                    .get()
                    .saturating_sub(old + KEY_COST_BYTES + key.len()),
            );
            changed.value = value;
            changed.version += 1;
            return Ok(changed.version);
        }
        let version = before.unwrap_or(0) + 1;
        self.changed_places
            .entry((table, hash))
            .or_insert(self.changed.len());
        self.changed.push(Changed {
            table,
            hash,
            key: key.into(),
            value,
            version,
            is_new: before.is_none(),
        });
        Ok(version)
    }
}
