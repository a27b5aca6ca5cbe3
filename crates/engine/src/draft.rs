//! Drafts: the writes of a step that is not decided yet. While a guard has a draft, its operations
//! change the draft alone, and see the draft's values before the store's. A draft is dropped without
//! a trace, or applied as one group ([`Guard::apply`]).
//!
//! **Invariants**
//! - P1: an operation under a draft takes no lock and appends nothing.
//! - P2: a draft knows the stamp of each key that it has read from the store or changed, as it was
//!   when the key was first met. If all of them still hold while the keys are locked
//!   ([`Guard::still_holds`]), the step has seen one moment: that of the locks.
//! - P3: under the locks of its keys, with its stamps checked and its room set aside, no write of a
//!   draft can fail.
//!
//! A walk ([`Guard::scan_as`]) shows the draft's values, but the stamps of the keys that it shows
//! are not kept.

use crate::room::Room;
use crate::session::Guard;
use crate::{Decision, Error, KeyHash, Object, Outcome, Stamp, TableId};
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Memory of a key of a draft beside the bytes of key and value: its places in the tables here.
const KEY_COST_BYTES: usize = 160;

/// A key of the store, as the draft first met it.
struct Met {
    table: TableId,
    hash: KeyHash,
    key: Box<[u8]>,
    stamp: Stamp,
}

/// A key that the draft has changed.
struct Changed {
    table: TableId,
    hash: KeyHash,
    key: Box<[u8]>,
    /// `None`: it is removed.
    value: Option<Value>,
    /// The version that the step is told: it grows with each change.
    version: u64,
    /// The store has no such key.
    is_new: bool,
}

struct Value {
    bytes: Vec<u8>,
    is_typed: bool,
    expires_at_ms: Option<u64>,
}

impl Changed {
    fn object(&self, now_ms: u64) -> Option<Object<'_>> {
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
    fn counts(&self) -> bool {
        self.value.is_some() || !self.is_new
    }
}

type Places = HashMap<(TableId, KeyHash), usize>;

/// See the head of this file.
pub struct Draft {
    met: RefCell<Vec<Met>>,
    met_places: RefCell<Places>,
    changed: Vec<Changed>,
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

    /// Room for its writes.
    pub fn room(&self) -> Room {
        let mut room = Room::default();
        for changed in self.changed.iter().filter(|changed| changed.counts()) {
            match &changed.value {
                Some(value) => room.put(&changed.key, value.bytes.len()),
                None => room.remove(&changed.key),
            }
        }
        room
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

    fn find(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Option<&Changed> {
        let is_key = |one: &Changed| one.table == table && *one.key == *key;
        let at = place(&self.changed_places, &self.changed, (table, hash), is_key)?;
        self.changed.get(at)
    }

    /// P2.
    fn meet(
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

    fn change(
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

impl Guard<'_> {
    /// From now on, operations change this draft.
    pub fn begin_draft(&mut self, draft: Box<Draft>) {
        self.draft = Some(draft);
    }

    /// Ends the draft; operations change the store again. `None`: there is no draft.
    pub fn end_draft(&mut self) -> Option<Box<Draft>> {
        self.draft.take()
    }

    /// Whether the store refuses new data for want of memory.
    pub fn is_full(&self) -> bool {
        self.core.refuses(crate::space::Purpose::Head)
    }

    /// P2: whether all keys are as the draft has met them. Under their locks, or to be read once.
    ///
    /// # Errors
    /// [`Error::Cold`]: an entry has gone to flash since.
    pub fn still_holds(&self, draft: &Draft) -> Result<bool, Error> {
        for met in draft.met.borrow().iter() {
            match self.stamp(met.table, met.hash, &met.key) {
                Ok(stamp) if met.stamp.still_holds(&stamp) => {}
                Ok(_) | Err(Error::NoSuchTable(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Makes the changes of a draft (P3).
    ///
    /// # Panics
    /// If the store refuses one of them.
    pub fn apply(&mut self, draft: &Draft) {
        for changed in draft.changed.iter().filter(|changed| changed.counts()) {
            let (table, hash, key) = (changed.table, changed.hash, &changed.key);
            let done = match &changed.value {
                Some(value) => {
                    let bytes = (&value.bytes[..], value.is_typed);
                    self.write_as(table, hash, key, bytes, value.expires_at_ms)
                }
                None => self.remove(table, hash, key),
            };
            if let Err(error) = done {
                panic!("a change of a draft that had room for it was refused: {error}"); // P3
            }
        }
    }

    /// The object of the store, and its stamp.
    fn read_stamped(
        &self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<(Option<Object<'_>>, Stamp), Error> {
        let index = self.index(table)?;
        let found = self.find(index, hash, key)?;
        let object = found.and_then(|entry| self.object(entry));
        let stamp = match object {
            Some(object) => Stamp::Present {
                version: object.version,
            },
            None => {
                if found.is_some() {
                    self.expire_now(table, index, hash, key);
                }
                self.stamp_of_absent(table, hash, key)?
            }
        };
        Ok((object, stamp))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn read_in_draft<'g>(
        &'g self,
        draft: &'g Draft,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<Object<'g>>, Error> {
        if let Some(changed) = draft.find(table, hash, key) {
            return Ok(changed.object(self.now_ms()));
        }
        let (object, stamp) = self.read_stamped(table, hash, key)?;
        draft.meet((table, hash, key), stamp)?;
        Ok(object)
    }

    /// The stamp of a key that the draft has changed.
    pub(crate) fn stamp_in_draft(
        &self,
        draft: &Draft,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Option<Stamp> {
        let changed = draft.find(table, hash, key)?;
        Some(match changed.object(self.now_ms()) {
            Some(object) => Stamp::Present {
                version: object.version,
            },
            None => Stamp::Absent {
                removals: changed.version,
                expired: 0,
            },
        })
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn update_in_draft<'v>(
        &mut self,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        decide: &mut dyn FnMut(Option<Object<'_>>, &mut Vec<u8>) -> Decision<'v>,
    ) -> Result<Outcome, Error> {
        let Some(mut draft) = self.draft.take() else {
            return Err(Error::TryAgain); // the caller has looked
        };
        let mut scratch = std::mem::take(self.scratch);
        scratch.clear();
        let done = self.change_draft(&mut draft, (table, hash, key), &mut scratch, decide);
        *self.scratch = scratch;
        self.draft = Some(draft);
        done
    }

    fn change_draft<'v>(
        &self,
        draft: &mut Draft,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        scratch: &mut Vec<u8>,
        decide: &mut dyn FnMut(Option<Object<'_>>, &mut Vec<u8>) -> Decision<'v>,
    ) -> Result<Outcome, Error> {
        // No object has such a key: DEL of several keys continues with the next.
        if key.len() > KEY_BYTES_MAX {
            let outcome = Outcome {
                before: None,
                after: None,
            };
            return match decide(None, scratch) {
                Decision::Remove | Decision::Keep => Ok(outcome),
                _ => Err(Error::KeyTooLarge {
                    bytes: key.len(),
                    limit: KEY_BYTES_MAX,
                }),
            };
        }
        let object = self.read_in_draft(draft, table, hash, key)?;
        let before = object.map(|object| object.version);
        let decision = decide(object, scratch);
        let is_past = |at_ms: Option<u64>| at_ms.is_some_and(|at_ms| at_ms <= self.now_ms());
        let value = match decision {
            Decision::Keep => {
                return Ok(Outcome {
                    before,
                    after: before,
                });
            }
            Decision::Put {
                value,
                expires_at_ms,
            } if !is_past(expires_at_ms) => Some((value.to_vec(), false, expires_at_ms)),
            Decision::PutScratch { expires_at_ms } if !is_past(expires_at_ms) => {
                Some((scratch.clone(), false, expires_at_ms))
            }
            Decision::PutTyped { expires_at_ms } if !is_past(expires_at_ms) => {
                Some((scratch.clone(), true, expires_at_ms))
            }
            _ => None,
        };
        if let Some((bytes, ..)) = &value
            && bytes.len() > VALUE_BYTES_MAX
        {
            return Err(Error::ValueTooLarge {
                bytes: bytes.len(),
                limit: VALUE_BYTES_MAX,
            });
        }
        if value.is_none() && before.is_none() && draft.find(table, hash, key).is_none() {
            return Ok(Outcome {
                before,
                after: None,
            });
        }
        let value = value.map(|(bytes, is_typed, expires_at_ms)| Value {
            bytes,
            is_typed,
            expires_at_ms,
        });
        let is_put = value.is_some();
        let version = draft.change((table, hash, key), value, before)?;
        Ok(Outcome {
            before,
            after: is_put.then_some(version),
        })
    }

    /// The objects of a walk as the draft has them.
    pub(crate) fn show_in_draft(
        &self,
        draft: &Draft,
        table: TableId,
        object: Object<'_>,
        show: &mut dyn FnMut(Object<'_>),
    ) {
        match draft.find(table, self.hash(object.key), object.key) {
            None => show(object),
            Some(changed) => changed.object(self.now_ms()).into_iter().for_each(show),
        }
    }

    /// The objects that only the draft has.
    pub(crate) fn show_new(&self, draft: &Draft, table: TableId, show: &mut dyn FnMut(Object<'_>)) {
        let new = draft
            .changed
            .iter()
            .filter(|one| one.is_new && one.table == table);
        new.filter_map(|one| one.object(self.now_ms()))
            .for_each(show);
    }
}
