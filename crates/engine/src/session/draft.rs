//! The keys that a draft has met and changed (`crate::draft`).

use super::reads::DraftReads;
use crate::{Error, KeyHash, Object, Stamp, TableId};
use duramen_base::expiry::is_expired;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Maximum number of keys of a list without a table of places, which is searched from its start.
const SEARCHED_MAX: usize = 8;
/// Memory of a draft's key beside the bytes of key and value: its places in the tables of this
/// file.
const KEY_COST_BYTES: usize = 160;
/// Memory of a key that a client tracks, beside twice its name, because the server has the name
/// too.
const READ_COST_BYTES: usize = 128;

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
    /// The version that the step sees: it grows with each change. The store gives the same version,
    /// unless it must give a larger one.
    pub(crate) version: u64,
    /// The store has no such key.
    pub(crate) is_new: bool,
    /// Bytes of the value that the store has.
    pub(crate) was_bytes: usize,
    /// The number of its last change among all changes of the draft.
    pub(crate) change: u64,
}

pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_typed: bool,
    pub(crate) expires_at_ms: Option<u64>,
}

impl Changed {
    pub(crate) fn object(&self, now_ms: u64) -> Option<Object<'_>> {
        let value = self.value.as_ref()?;
        let expires_at_ms = value.expires_at_ms;
        if expires_at_ms.is_some_and(|at_ms| is_expired(at_ms, now_ms)) {
            return None;
        }
        Some(Object {
            key: &self.key,
            value: &value.bytes,
            version: self.version,
            expires_at_ms,
            is_typed: value.is_typed,
        })
    }

    /// Whether the store has to change for this key.
    pub(crate) fn counts(&self) -> bool {
        self.value.is_some() || !self.is_new
    }
}

/// The first place of each hash in a list of more than [`SEARCHED_MAX`] keys. A shorter list has
/// none.
type Places = HashMap<(TableId, KeyHash), usize>;

/// A key in a list.
trait Key {
    fn is(&self, key: (TableId, KeyHash, &[u8])) -> bool;
    fn hash(&self) -> (TableId, KeyHash);
}

impl Key for Met {
    fn is(&self, (table, hash, key): (TableId, KeyHash, &[u8])) -> bool {
        self.hash == hash && self.table == table && *self.key == *key
    }

    fn hash(&self) -> (TableId, KeyHash) {
        (self.table, self.hash)
    }
}

impl Key for Changed {
    fn is(&self, (table, hash, key): (TableId, KeyHash, &[u8])) -> bool {
        self.hash == hash && self.table == table && *self.key == *key
    }

    fn hash(&self) -> (TableId, KeyHash) {
        (self.table, self.hash)
    }
}

/// The writes of a step that is not decided yet: see `Guard::begin_draft`.
pub struct Draft {
    pub(crate) met: RefCell<Vec<Met>>,
    met_places: RefCell<Places>,
    pub(crate) changed: Vec<Changed>,
    changed_places: Places,
    /// Number of changes so far.
    changes: u64,
    /// All its writes give back about as much memory as they take.
    pub(crate) rewrites: bool,
    /// The step may have told its client versions of objects.
    pub(crate) tells_versions: bool,
    pub(crate) reads: DraftReads,
    bytes: Cell<usize>,
    bytes_max: usize,
}

/// The place of a key in a list; two keys may have one hash.
fn place<T: Key>(places: &Places, list: &[T], key: (TableId, KeyHash, &[u8])) -> Option<usize> {
    if list.len() <= SEARCHED_MAX {
        return list.iter().position(|one| one.is(key));
    }
    let first = *places.get(&(key.0, key.1))?;
    match list.get(first).is_some_and(|one| one.is(key)) {
        true => Some(first),
        false => list.iter().position(|one| one.is(key)),
    }
}

/// Adds a key that the list does not have.
fn add<T: Key>(places: &mut Places, list: &mut Vec<T>, one: T) {
    list.push(one);
    let first = match list.len() {
        ..=SEARCHED_MAX => return,
        // From now on all keys have their places.
        len if places.is_empty() => {
            places.reserve(2 * len);
            0
        }
        len => len - 1,
    };
    for (at, one) in list.iter().enumerate().skip(first) {
        places.entry(one.hash()).or_insert(at);
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
            changes: 0,
            rewrites: true,
            tells_versions: false,
            reads: DraftReads::default(),
            bytes: Cell::new(0),
            bytes_max,
        }
    }

    /// Number of keys that a client has begun to read in it.
    pub fn reads(&self) -> usize {
        self.reads.len()
    }

    /// Memory of its keys and values.
    pub fn bytes(&self) -> usize {
        self.bytes.get()
    }

    /// The next command of the step writes; `rewrites`: data of about the same size.
    pub fn note_command(&mut self, rewrites: bool) {
        self.rewrites &= rewrites;
    }

    /// The next command of the step tells versions of objects.
    pub fn note_versions(&mut self) {
        self.tells_versions = true;
    }

    /// Whether the draft changes nothing.
    pub fn is_empty(&self) -> bool {
        !self.changed.iter().any(Changed::counts)
    }

    /// All keys that it has met, to be locked.
    pub fn keys(&self) -> Vec<(TableId, KeyHash)> {
        let met = self.met.borrow();
        met.iter().map(|met| (met.table, met.hash)).collect()
    }

    /// The hashes of the keys that it changes.
    pub fn changed_keys(&self) -> impl Iterator<Item = KeyHash> {
        let changed = self.changed.iter().filter(|changed| changed.counts());
        changed.map(|changed| changed.hash)
    }

    /// Whether this holds for each key that it has met.
    pub fn all_met(&self, mut holds: impl FnMut(TableId, KeyHash, &[u8]) -> bool) -> bool {
        let met = self.met.borrow();
        met.iter().all(|met| holds(met.table, met.hash, &met.key))
    }

    /// All keys that its client has begun to read are remembered again, by `remember` as in
    /// [`Guard::begin_read`](crate::Guard::begin_read).
    pub fn remember_again(&mut self, remember: &mut dyn FnMut(&[u8]) -> bool) {
        self.reads.remember_again(remember);
    }

    /// Whether it removes keys and writes none.
    pub fn only_removes(&self) -> bool {
        self.changed.iter().all(|one| one.value.is_none())
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
        let at = place(&self.changed_places, &self.changed, (table, hash, key))?;
        self.changed.get(at)
    }

    pub(crate) fn begin_read(
        &mut self,
        client: u64,
        key: &[u8],
        remember: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        if !self.reads.has(key) {
            self.charge(2 * key.len() + READ_COST_BYTES)?;
            self.reads.add(client, key, self.changes, remember());
        }
        Ok(())
    }

    /// Notes a key with its stamp, when the draft first meets it (draft::P2).
    pub(crate) fn meet(
        &self,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        stamp: Stamp,
    ) -> Result<(), Error> {
        let (mut met, mut places) = (self.met.borrow_mut(), self.met_places.borrow_mut());
        if place(&places, &met, (table, hash, key)).is_some() {
            return Ok(());
        }
        self.charge(key.len() + KEY_COST_BYTES)?;
        let one = Met {
            table,
            hash,
            key: key.into(),
            stamp,
        };
        add(&mut places, &mut met, one);
        Ok(())
    }

    /// Changes a key. `before`: version and bytes of the value that the draft has met; `first`: the
    /// version of a new key, or the least version of a key that is there.
    pub(crate) fn change(
        &mut self,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        value: Option<Value>,
        (before, first): (Option<(u64, usize)>, u64),
    ) -> Result<u64, Error> {
        let bytes = value.as_ref().map_or(0, |value| value.bytes.len());
        self.charge(bytes + KEY_COST_BYTES + key.len())?;
        self.changes += 1;
        let at = place(&self.changed_places, &self.changed, (table, hash, key));
        if let Some(changed) = at.and_then(|at| self.changed.get_mut(at)) {
            let old = changed.value.as_ref().map_or(0, |value| value.bytes.len());
            self.bytes.set(
                self.bytes
                    .get()
                    .saturating_sub(old + KEY_COST_BYTES + key.len()),
            );
            changed.value = value;
            changed.version += 1;
            changed.change = self.changes;
            return Ok(changed.version);
        }
        let version = before.map_or(first, |(version, _)| first.max(version + 1));
        let one = Changed {
            table,
            hash,
            key: key.into(),
            value,
            version,
            is_new: before.is_none(),
            was_bytes: before.map_or(0, |(_, bytes)| bytes),
            change: self.changes,
        };
        add(&mut self.changed_places, &mut self.changed, one);
        Ok(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few keys are searched, more have places; each hash has three keys here.
    #[test]
    fn each_number_of_keys_is_found() {
        let table = TableId(1);
        let names: Vec<String> = (0..4 * SEARCHED_MAX).map(|n| format!("k{n}")).collect();
        let key = |n: usize| (table, KeyHash(n as u64 / 3), names[n].as_bytes());
        let mut draft = Draft::new(1 << 20);
        for n in 0..names.len() {
            for _ in 0..2 {
                draft.meet(key(n), Stamp::Present { version: 1 }).unwrap();
                let value = Value {
                    bytes: names[n].clone().into_bytes(),
                    is_typed: false,
                    expires_at_ms: None,
                };
                draft.change(key(n), Some(value), (None, 1)).unwrap();
            }
            assert_eq!((draft.keys().len(), draft.changed.len()), (n + 1, n + 1));
            for other in 0..names.len() {
                let (table, hash, name) = key(other);
                let found = draft.find(table, hash, name);
                assert_eq!(found.is_some(), other <= n, "{other} of {n}");
                assert!(found.is_none_or(|found| found.key[..] == *name && found.version == 2));
            }
        }
    }
}
