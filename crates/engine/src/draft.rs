//! Drafts: the writes of a step that is not decided yet. While a guard has a draft, its operations
//! change the draft alone, and see its values before those of the store. A draft is dropped without
//! a trace, or applied as one group ([`Draft::apply`]).
//!
//! **Invariants**
//! - P1: an operation under a draft takes no lock and appends nothing.
//! - P2: a draft knows the stamp of each key that it has read from the store or changed, as it was
//!   when the key was first met. If all of them still hold while the keys are locked
//!   ([`Draft::holds_when_locked`]), the step has seen one moment: that of the locks. A key that
//!   came and went meanwhile is absent at that moment too. Without locks there is no such moment
//!   ([`Draft::still_holds`]): a step that has told its client versions has told those that were
//!   due when the key was first met.
//! - P3: under the locks of its keys, with its stamps checked and its room set aside, no write of a
//!   draft can fail. The stamps are of verified entries (verified::V6), so none is damaged, and
//!   none is on flash once the room is there (room::R5).
//!
//! A walk ([`Walks::scan_as`](crate::Walks::scan_as)) shows the draft's values, but the stamps of
//! the keys that it shows are not kept.

use crate::room::Room;
use crate::session::Guard;
use crate::session::draft::{Draft, Value};
use crate::{Decision, Error, KeyHash, Object, Outcome, Stamp, TableId};
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

impl Draft {
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

    /// Whether its writes replace data of about the same size (`Guard::rewrites`), or remove as
    /// much as they add.
    pub fn rewrites(&self) -> bool {
        if self.rewrites {
            return true;
        }
        let (mut new, mut old) = (Room::default(), Room::default());
        for one in self.changed.iter().filter(|one| one.counts()) {
            if let Some(value) = &one.value {
                new.put(&one.key, value.bytes.len());
            }
            if !one.is_new {
                old.put(&one.key, one.was_bytes);
            }
        }
        new.fits_into(&old)
    }
}

impl Draft {
    /// The number by which the objects of a table will change with it.
    pub fn objects(&self, table: TableId) -> i64 {
        let changed = self.changed.iter().filter(|one| one.table == table);
        changed
            .map(|one| i64::from(one.value.is_some()) - i64::from(!one.is_new))
            .sum()
    }

    /// P2: whether no key has changed since the draft has met it.
    ///
    /// # Errors
    /// [`Error::Cold`]: an entry has gone to flash since.
    pub fn still_holds(&self, guard: &Guard<'_>) -> Result<bool, Error> {
        self.compare(guard, Stamp::still_holds)
    }

    /// P2: whether all keys, which are locked, are as the draft has met them.
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: an entry has gone to flash since, and cannot be read.
    pub fn holds_when_locked(&self, guard: &Guard<'_>) -> Result<bool, Error> {
        self.compare(guard, |then, now| {
            let are_absent = matches!((then, now), (Stamp::Absent { .. }, Stamp::Absent { .. }));
            are_absent && !self.tells_versions || then.still_holds(now)
        })
    }

    fn compare(
        &self,
        guard: &Guard<'_>,
        holds: impl Fn(&Stamp, &Stamp) -> bool,
    ) -> Result<bool, Error> {
        for met in self.met.borrow().iter() {
            match guard.stamp(met.table, met.hash, &met.key) {
                Ok(stamp) if holds(&met.stamp, &stamp) => {}
                Ok(_) | Err(Error::NoSuchTable(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Makes its changes (P3).
    ///
    /// # Panics
    /// If the store refuses one of them.
    pub fn apply(&self, guard: &mut Guard<'_>) {
        for changed in &self.changed {
            let (table, hash, key) = (changed.table, changed.hash, &changed.key);
            if changed.value.is_none()
                && let Ok(index) = guard.pin.index(table)
            {
                // index::X3 covers the versions that the step has told before the key was removed.
                index.partition(hash).raise_floor(changed.version);
            }
            if !changed.counts() {
                continue;
            }
            let noted = guard.notes.written();
            guard.append.set_version_at_least(changed.version);
            let done = match &changed.value {
                Some(value) => {
                    let bytes = (&value.bytes[..], value.is_typed);
                    guard.write_as(table, hash, key, bytes, value.expires_at_ms)
                }
                None => guard.remove(table, hash, key),
            };
            guard.append.set_version_at_least(0);
            if let Err(error) = done {
                panic!("a change of a draft that had room for it was refused: {error}"); // P3
            }
            if let Some(client) = self.reads.reader_after(key, changed.change) {
                guard.notes.add_reader(noted, client);
            }
        }
    }

    /// A read under the draft.
    #[cold]
    #[inline(never)]
    pub(crate) fn read<'g>(
        &'g self,
        guard: &'g Guard<'_>,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<Object<'g>>, Error> {
        if let Some(changed) = self.find(table, hash, key) {
            return Ok(changed.object(guard.now_ms()));
        }
        let (object, stamp) = read_stamped(guard, table, hash, key)?;
        self.meet((table, hash, key), stamp)?;
        Ok(object)
    }

    /// The stamp of a key that the draft has changed.
    pub(crate) fn stamp(
        &self,
        now_ms: u64,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
    ) -> Option<Stamp> {
        let changed = self.find(table, hash, key)?;
        Some(match changed.object(now_ms) {
            Some(object) => Stamp::Present {
                version: object.version,
            },
            None => Stamp::Absent {
                removals: changed.change,
                expired: 0,
            },
        })
    }

    /// An update under the guard's draft.
    #[cold]
    #[inline(never)]
    pub(crate) fn update<'v>(
        guard: &mut Guard<'_>,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        decide: &mut dyn FnMut(Option<Object<'_>>, &mut Vec<u8>) -> Decision<'v>,
    ) -> Result<Outcome, Error> {
        let Some(mut draft) = guard.end_draft() else {
            return Err(Error::TryAgain); // the caller has checked that there is one
        };
        let mut scratch = std::mem::take(guard.append.scratch);
        scratch.clear();
        let done = draft.decide(guard, (table, hash, key), &mut scratch, decide);
        *guard.append.scratch = scratch;
        guard.begin_draft(draft);
        done
    }

    fn decide<'v>(
        &mut self,
        guard: &Guard<'_>,
        (table, hash, key): (TableId, KeyHash, &[u8]),
        scratch: &mut Vec<u8>,
        decide: &mut dyn FnMut(Option<Object<'_>>, &mut Vec<u8>) -> Decision<'v>,
    ) -> Result<Outcome, Error> {
        // No object can have such a key: a DEL of several keys continues with the next.
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
        let object = self.read(guard, table, hash, key)?;
        let before = object.map(|object| object.version);
        let decision = decide(object, scratch);
        let value = match decision {
            Decision::Keep => {
                return Ok(Outcome {
                    before,
                    after: before,
                });
            }
            decision => decided(guard, decision, scratch),
        };
        if let Some(value) = &value
            && value.bytes.len() > VALUE_BYTES_MAX
        {
            return Err(Error::ValueTooLarge {
                bytes: value.bytes.len(),
                limit: VALUE_BYTES_MAX,
            });
        }
        if value.is_none() && before.is_none() && self.find(table, hash, key).is_none() {
            return Ok(Outcome {
                before,
                after: None,
            });
        }
        let is_put = value.is_some();
        let first = match before {
            Some(_) => guard.pin.core().version_after(0),
            None => first_version(guard, table, hash, key)?,
        };
        let met = object.map(|object| (object.version, object.value.len()));
        let version = self.change((table, hash, key), value, (met, first))?;
        Ok(Outcome {
            before,
            after: is_put.then_some(version),
        })
    }

    /// Shows the objects of a walk as the draft has them.
    pub(crate) fn show(
        &self,
        guard: &Guard<'_>,
        table: TableId,
        object: Object<'_>,
        show: &mut dyn FnMut(Object<'_>),
    ) {
        match self.find(table, guard.hash(object.key), object.key) {
            None => show(object),
            Some(changed) => changed.object(guard.now_ms()).into_iter().for_each(show),
        }
    }

    /// Shows the objects that only the draft has.
    pub(crate) fn show_new(&self, now_ms: u64, table: TableId, show: &mut dyn FnMut(Object<'_>)) {
        let new = self
            .changed
            .iter()
            .filter(|one| one.is_new && one.table == table);
        new.filter_map(|one| one.object(now_ms)).for_each(show);
    }
}

/// The object of the store, and its stamp.
fn read_stamped<'g>(
    guard: &'g Guard<'_>,
    table: TableId,
    hash: KeyHash,
    key: &[u8],
) -> Result<(Option<Object<'g>>, Stamp), Error> {
    let index = guard.pin.index(table)?;
    let found = guard.find(index, hash, key)?;
    let object = found.and_then(|hit| guard.pin.object(hit.entry));
    let stamp = match object {
        Some(object) => Stamp::Present {
            version: object.version,
        },
        None => {
            if found.is_some() {
                guard.pin.expire_now(table, index, hash, key);
            }
            Stamp::of_absent(guard, table, hash, key)?
        }
    };
    Ok((object, stamp))
}

/// The version of an object that the store would make under an absent key now.
fn first_version(
    guard: &Guard<'_>,
    table: TableId,
    hash: KeyHash,
    key: &[u8],
) -> Result<u64, Error> {
    let floor = guard.pin.index(table)?.partition(hash).floor().max(1);
    Ok(match Stamp::of_absent(guard, table, hash, key)? {
        Stamp::Absent { expired, .. } => floor.max(expired + 1),
        Stamp::Present { .. } => floor,
    })
}

/// The value of a decision to change an object; `None`: the object is to be removed.
fn decided(guard: &Guard<'_>, decision: Decision<'_>, scratch: &[u8]) -> Option<Value> {
    let (bytes, is_typed, expires_at_ms) = match decision {
        Decision::Put {
            value,
            expires_at_ms,
        } => (value, false, expires_at_ms),
        Decision::PutScratch { expires_at_ms } => (scratch, false, expires_at_ms),
        Decision::PutTyped { expires_at_ms } => (scratch, true, expires_at_ms),
        Decision::Remove | Decision::Keep => return None,
    };
    (!guard.pin.is_past(expires_at_ms)).then(|| Value {
        bytes: bytes.to_vec(),
        is_typed,
        expires_at_ms,
    })
}
