//! Drafts: the writes of a step that is not decided yet. While a guard has a draft, its operations
//! change the draft alone, and see its values before those of the store. A draft is dropped without
//! a trace, or applied as one group ([`Guard::apply`]).
//!
//! **Invariants**
//! - P1: an operation under a draft takes no lock and appends nothing.
//! - P2: a draft knows the stamp of each key that it has read from the store or changed, as it was
//!   when the key was first met. If all of them still hold while the keys are locked
//!   ([`Guard::holds_when_locked`]), the step has seen one moment: that of the locks. A key that
//!   came and went meanwhile is absent at that moment too. Without locks there is no such moment
//!   ([`Guard::still_holds`]), and a step that was told versions was told those of the first.
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

impl Guard<'_> {
    /// From now on, operations change this draft.
    pub fn begin_draft(&mut self, draft: Box<Draft>) {
        self.draft = Some(draft);
    }

    /// Ends the draft; operations change the store again. `None`: there is no draft.
    pub fn end_draft(&mut self) -> Option<Box<Draft>> {
        self.draft.take()
    }

    #[inline]
    pub fn has_draft(&self) -> bool {
        self.draft.is_some()
    }

    /// The draft that its operations change.
    #[inline]
    pub fn draft_mut(&mut self) -> Option<&mut Draft> {
        self.draft.as_deref_mut()
    }

    /// The number by which the objects of a table will change with the draft.
    pub fn objects_of_draft(&self, table: TableId) -> i64 {
        let changed = self.draft.iter().flat_map(|draft| &draft.changed);
        changed
            .filter(|one| one.table == table)
            .map(|one| i64::from(one.value.is_some()) - i64::from(!one.is_new))
            .sum()
    }

    /// Whether the store refuses new data for want of memory.
    pub fn is_full(&self) -> bool {
        self.core.refuses(crate::space::Purpose::Head)
    }

    /// P2: whether no key has changed since the draft has met it.
    ///
    /// # Errors
    /// [`Error::Cold`]: an entry has gone to flash since.
    pub fn still_holds(&self, draft: &Draft) -> Result<bool, Error> {
        self.compare(draft, Stamp::still_holds)
    }

    /// P2: whether all keys, which are locked, are as the draft has met them.
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: an entry has gone to flash since, and cannot be read.
    pub fn holds_when_locked(&self, draft: &Draft) -> Result<bool, Error> {
        self.compare(draft, |then, now| {
            let are_absent = matches!((then, now), (Stamp::Absent { .. }, Stamp::Absent { .. }));
            are_absent && !draft.tells_versions || then.still_holds(now)
        })
    }

    fn compare(
        &self,
        draft: &Draft,
        holds: impl Fn(&Stamp, &Stamp) -> bool,
    ) -> Result<bool, Error> {
        for met in draft.met.borrow().iter() {
            match self.stamp(met.table, met.hash, &met.key) {
                Ok(stamp) if holds(&met.stamp, &stamp) => {}
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
        for changed in &draft.changed {
            let (table, hash, key) = (changed.table, changed.hash, &changed.key);
            if changed.value.is_none()
                && let Ok(index) = self.index(table)
            {
                // index::X3, for the versions that were told before the key was removed.
                index.partition(hash).raise_floor(changed.version);
            }
            if !changed.counts() {
                continue;
            }
            let noted = self.notes.written();
            self.carried.version_at_least = changed.version;
            let done = match &changed.value {
                Some(value) => {
                    let bytes = (&value.bytes[..], value.is_typed);
                    self.write_as(table, hash, key, bytes, value.expires_at_ms)
                }
                None => self.remove(table, hash, key),
            };
            self.carried.version_at_least = 0;
            if let Err(error) = done {
                panic!("a change of a draft that had room for it was refused: {error}"); // P3
            }
            if let Some(client) = draft.reads.reader_after(key, changed.change) {
                self.notes.add_reader(noted, client);
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

    /// The version of an object that the store would make under an absent key now.
    fn first_version(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Result<u64, Error> {
        let floor = self.index(table)?.partition(hash).floor().max(1);
        Ok(match self.stamp_of_absent(table, hash, key)? {
            Stamp::Absent { expired, .. } => floor.max(expired + 1),
            Stamp::Present { .. } => floor,
        })
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
                removals: changed.change,
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
        let value = match decision {
            Decision::Keep => {
                return Ok(Outcome {
                    before,
                    after: before,
                });
            }
            decision => self.decided(decision, scratch),
        };
        if let Some(value) = &value
            && value.bytes.len() > VALUE_BYTES_MAX
        {
            return Err(Error::ValueTooLarge {
                bytes: value.bytes.len(),
                limit: VALUE_BYTES_MAX,
            });
        }
        if value.is_none() && before.is_none() && draft.find(table, hash, key).is_none() {
            return Ok(Outcome {
                before,
                after: None,
            });
        }
        let is_put = value.is_some();
        let first = match before {
            Some(_) => self.core.version_after(0),
            None => self.first_version(table, hash, key)?,
        };
        let met = object.map(|object| (object.version, object.value.len()));
        let version = draft.change((table, hash, key), value, (met, first))?;
        Ok(Outcome {
            before,
            after: is_put.then_some(version),
        })
    }

    /// The value of a decision to change an object; `None`: the object is to be removed.
    fn decided(&self, decision: Decision<'_>, scratch: &[u8]) -> Option<Value> {
        let (bytes, is_typed, expires_at_ms) = match decision {
            Decision::Put {
                value,
                expires_at_ms,
            } => (value, false, expires_at_ms),
            Decision::PutScratch { expires_at_ms } => (scratch, false, expires_at_ms),
            Decision::PutTyped { expires_at_ms } => (scratch, true, expires_at_ms),
            Decision::Remove | Decision::Keep => return None,
        };
        (!self.is_past(expires_at_ms)).then(|| Value {
            bytes: bytes.to_vec(),
            is_typed,
            expires_at_ms,
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
