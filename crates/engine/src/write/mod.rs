//! Writes: one locked read-modify-write, and all operations that are built from it.
//!
//! Order within one update: home bucket locked → closure decides → entry appended to the session's
//! head → slot published → bucket unlocked. So no two sessions ever write one key at the same time,
//! and the index never points to bytes that are not written.
//!
//! **Concurrency**: lock order is head, then buckets. No thread waits for memory with a bucket
//! locked, or with its head locked while outside, except for a transaction. And no thread waits for
//! a head while pinned, because its holder may be such a transaction.

mod expired;
mod lost;
mod memory;

use crate::cleaner::index_search::IndexSearch;
use crate::core::Core;
use crate::counters::Counters;
use crate::head::Tail;
use crate::index::Index;
use crate::index::bucket::{Locking, Slot};
use crate::index::change::{Change, Counted, Dropped};
use crate::log::Log;
use crate::session::append::Appender;
use crate::session::draft::Draft;
use crate::session::order::Buried;
use crate::session::roll::{roll, takes};
use crate::session::verified::Found;
use crate::session::{Guard, Locked, Observed, Pin};
use crate::space::{Purpose, Space};
use crate::{Condition, Decision, Error, Incremented, KeyHash, Object, Outcome, TableId};
use duramen_base::ids::SegmentId;
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use duramen_base::number::parse_integer;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::NewObject;

impl Locked<'_> {
    #[inline(always)]
    fn change<'a>(&'a self, space: &'a Space, counters: &'a Counters) -> Change<'a> {
        Change {
            partition: self.partition,
            view: self.view,
            space,
            counters,
        }
    }
}

/// Result of a put.
enum Put {
    Done(u64),
    /// No window is free: the caller finds memory and starts again.
    NoSpace,
    /// The head has a new segment, and the entry that was found may have moved there.
    LookAgain,
    /// The index has no room and no memory to grow, or must be grown with no lock held.
    IndexFull,
}

/// The object that a change has found.
#[derive(Clone, Copy)]
struct Met {
    /// Its version; `None`: there is none, or it has expired.
    before: Option<u64>,
    /// The first byte of its value, if the value is typed.
    first: Option<u8>,
    was_expired: bool,
}

impl Met {
    #[inline(always)]
    fn new(object: Option<Object<'_>>, locked: &Locked<'_>) -> Met {
        let typed = object.filter(|object| object.is_typed);
        Met {
            before: object.map(|object| object.version),
            first: typed.and_then(|object| object.value.first().copied()),
            was_expired: object.is_none() && locked.found.is_some(),
        }
    }

    #[inline(always)]
    fn outcome(self, after: Option<u64>) -> Outcome {
        Outcome {
            before: self.before,
            after,
        }
    }
}

#[inline]
fn check_key(key: &[u8]) -> Result<(), Error> {
    let (bytes, limit) = (key.len(), KEY_BYTES_MAX);
    if bytes > limit {
        return Err(Error::KeyTooLarge { bytes, limit });
    }
    Ok(())
}

impl<'s> Guard<'s> {
    /// Read-modify-write of one key, atomic against every other session. The closure gets the
    /// object (or `None`) and an empty scratch buffer. It may be called again if memory had to be
    /// found first, so it must reset its own state.
    ///
    /// # Errors
    /// Limits, [`Error::NoSuchTable`], [`Error::OutOfMemory`], [`Error::TryAgain`]: nothing was
    /// changed.
    #[inline]
    pub fn update<'v>(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        mut decide: impl FnMut(Option<Object<'_>>, &mut Vec<u8>) -> Decision<'v>,
    ) -> Result<Outcome, Error> {
        if self.draft().is_some() {
            return Draft::update(self, (table, hash, key), &mut decide);
        }
        check_key(key)?;
        let mut index_search = IndexSearch::default();
        loop {
            self.append.take_head(&mut self.pin);
            // A transaction has checked its generation when it locked its keys, and a thread that
            // waits for guards waits for the transaction's head.
            if !self.pin.locks().are_taken() {
                self.pin.check_generation()?;
            }
            // The index is looked up each time: a guard that had to wait was outside meanwhile, and
            // the table may have been dropped.
            let index = self.pin.index(table)?;
            let Some(locked) = self.pin.lock_key(index, hash, key)? else {
                self.append
                    .make_index_room(&mut self.pin, &mut index_search)?;
                continue;
            };
            let object = locked
                .found
                .and_then(|(_, _, entry)| self.pin.object(entry));
            let met = Met::new(object, &locked);
            self.append.scratch.clear();
            let decision = decide(object, self.append.scratch);
            if let Decision::Keep = decision {
                return Ok(keep_met(self, (table, index), (hash, key), &locked, met));
            }
            let Some(new) = to_put(&self.pin, &decision) else {
                match remove_met(self, (table, index), (hash, key), locked, met)? {
                    Some(outcome) => return Ok(outcome),
                    None => continue,
                }
            };
            match put_met(self, (table, index), (hash, key), &locked, met, new)? {
                Put::Done(version) => return Ok(met.outcome(Some(version))),
                Put::LookAgain => {}
                Put::NoSpace => {
                    let purpose = self.append.purpose();
                    self.append.make_room(&mut self.pin, purpose)?;
                }
                Put::IndexFull => {
                    let (pin, partition) = (&mut self.pin, locked.partition);
                    self.append.grow_index(pin, partition, &mut index_search)?;
                }
            }
        }
    }

    /// Stores a value unconditionally.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    #[inline]
    pub fn write(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Result<Outcome, Error> {
        self.update(table, hash, key, |_, _| Decision::Put {
            value,
            expires_at_ms,
        })
    }

    /// As [`write`](Self::write), for a value that another object had.
    ///
    /// # Errors
    /// Those of [`write`](Self::write).
    pub fn write_as(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        (value, is_typed): (&[u8], bool),
        expires_at_ms: Option<u64>,
    ) -> Result<Outcome, Error> {
        if !is_typed {
            return self.write(table, hash, key, value, expires_at_ms);
        }
        self.update(table, hash, key, |_, scratch| {
            scratch.extend_from_slice(value);
            Decision::PutTyped { expires_at_ms }
        })
    }

    /// Removes the object, if there is one. Never fails for want of memory.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn remove(&mut self, table: TableId, hash: KeyHash, key: &[u8]) -> Result<Outcome, Error> {
        if self.draft().is_some() {
            return Draft::update(self, (table, hash, key), &mut |_, _| Decision::Remove);
        }
        let (core, index) = (self.pin.core(), self.pin.index(table)?);
        // An object that a load evicted may be on disk though its partition has never had a key.
        let log = core.log.as_deref();
        let is_certain = || log.is_none_or(|log| log.swaps().eviction_victim() == SegmentId::NONE);
        let is_empty = index.partition(hash).view().len() == 0 && is_certain();
        // No object can have such a key: a command over several keys continues with the next.
        if key.len() > KEY_BYTES_MAX || is_empty {
            let partition = index.partition(hash);
            self.seen.observe_absence(core, index, partition, hash);
            return Ok(Outcome {
                before: None,
                after: None,
            });
        }
        self.update(table, hash, key, |_, _| Decision::Remove)
    }

    /// Stores a value if `condition` holds. Paper: [Ousterhout15 §3] conditional write.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`] with the version found; otherwise as [`update`](Self::update).
    pub fn conditional_write(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
        condition: Condition,
    ) -> Result<Outcome, Error> {
        let mut failed = None;
        let outcome = self.update(table, hash, key, |found, _| {
            let current = found.map(|object| object.version);
            let holds = match condition {
                Condition::Always => true,
                Condition::Absent => current.is_none(),
                Condition::Present => current.is_some(),
                Condition::Version(wanted) => current == Some(wanted),
                Condition::NewerThan(offered) => current.is_none_or(|current| current < offered),
            };
            failed = (!holds).then_some(current);
            if holds {
                Decision::Put {
                    value,
                    expires_at_ms,
                }
            } else {
                Decision::Keep
            }
        })?;
        match failed {
            Some(current) => Err(Error::ConditionFailed { current }),
            None => Ok(outcome),
        }
    }

    /// Adds to a decimal integer (absent = 0), keeping the expiry.
    ///
    /// # Errors
    /// [`Error::NotAnInteger`], [`Error::Overflow`], [`Error::WrongType`]; otherwise as
    /// [`update`](Self::update).
    pub fn increment(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        by: i64,
    ) -> Result<Incremented<i64>, Error> {
        add(self, table, hash, key, |found| {
            let old = found.map_or(Ok(0), |value| {
                parse_integer(value).ok_or(Error::NotAnInteger)
            })?;
            let new = old.checked_add(by).ok_or(Error::Overflow)?;
            Ok((new, new.to_string()))
        })
    }

    /// Adds to a decimal floating-point number (absent = 0), keeping the expiry. Stores the
    /// shortest text that reads back as the same number.
    ///
    /// # Errors
    /// [`Error::NotAFloat`], [`Error::NotFinite`], [`Error::WrongType`]; otherwise as
    /// [`update`](Self::update).
    pub fn increment_float(
        &mut self,
        table: TableId,
        hash: KeyHash,
        key: &[u8],
        by: f64,
    ) -> Result<Incremented<f64>, Error> {
        add(self, table, hash, key, |found| {
            let text = found.map_or(Ok("0"), |value| {
                std::str::from_utf8(value).map_err(|_| Error::NotAFloat)
            })?;
            let old = text
                .parse::<f64>()
                .ok()
                .filter(|old| old.is_finite())
                .ok_or(Error::NotAFloat)?;
            let new = old + by;
            if !new.is_finite() {
                return Err(Error::NotFinite);
            }
            Ok((new, new.to_string()))
        })
    }
}

/// Adds to the number that a key has: `next` gets its text.
fn add<T>(
    guard: &mut Guard<'_>,
    table: TableId,
    hash: KeyHash,
    key: &[u8],
    next: impl Fn(Option<&[u8]>) -> Result<(T, String), Error>,
) -> Result<Incremented<T>, Error> {
    let mut result = Err(Error::NotAnInteger);
    let outcome = guard.update(table, hash, key, |found, scratch| {
        let old = found.map(|object| object.string()).transpose();
        match old.and_then(&next) {
            Ok((value, text)) => {
                result = Ok(value);
                scratch.extend_from_slice(text.as_bytes());
                Decision::PutScratch {
                    expires_at_ms: found.and_then(|object| object.expires_at_ms),
                }
            }
            Err(error) => {
                result = Err(error);
                Decision::Keep
            }
        }
    })?;
    Ok(Incremented {
        value: result?,
        version: outcome.after.unwrap_or_default(),
    })
}

/// `is_granted`: the open group has room for all its appends.
#[inline(always)]
fn check_put(locked: &Locked<'_>, value: &[u8], is_granted: bool) -> Result<(), Error> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::ValueTooLarge {
            bytes: value.len(),
            limit: VALUE_BYTES_MAX,
        });
    }
    // A transaction with room has checked all its buckets before its first write (room::R1).
    let is_checked = is_granted && locked.in_transaction;
    if locked.found.is_none() && !is_checked && locked.view.is_crowded(locked.tag) {
        return Err(Error::Crowded); // bucket::B6: no further key for a client
    }
    Ok(())
}

/// The value that a decision puts.
#[derive(Clone, Copy)]
struct New<'v> {
    /// The value; `None`: it is in the scratch buffer.
    value: Option<&'v [u8]>,
    is_typed: bool,
    expires_at_ms: Option<u64>,
}

/// The value that a decision puts; `None`: the object is to be removed.
#[inline(always)]
fn to_put<'v>(pin: &Pin<'_>, decision: &Decision<'v>) -> Option<New<'v>> {
    let (value, is_typed, expires_at_ms) = match *decision {
        Decision::Put {
            value,
            expires_at_ms,
        } => (Some(value), false, expires_at_ms),
        Decision::PutScratch { expires_at_ms } => (None, false, expires_at_ms),
        Decision::PutTyped { expires_at_ms } => (None, true, expires_at_ms),
        Decision::Remove | Decision::Keep => return None,
    };
    (!pin.is_past(expires_at_ms)).then_some(New {
        value,
        is_typed,
        expires_at_ms,
    })
}

/// Puts an object in the place of the one that was found, unlocks, and reports the write.
#[inline(always)]
fn put_met<'s>(
    guard: &mut Guard<'s>,
    (table, index): (TableId, &'s Index),
    (hash, key): (KeyHash, &[u8]),
    locked: &Locked<'s>,
    met: Met,
    new: New<'_>,
) -> Result<Put, Error> {
    let core = guard.pin.core();
    if let Some(log) = core.log.as_deref() {
        let (pin, seen) = (&mut guard.pin, &guard.seen);
        if !guard.append.may_append(pin, seen, log, hash, locked)? {
            return Ok(Put::LookAgain);
        }
    }
    // The scratch buffer leaves the guard while a value is borrowed from it.
    let scratch = std::mem::take(guard.append.scratch);
    let value = new.value.unwrap_or(&scratch);
    let value_bytes = value.len();
    if has_bug(Bug::MarkedBeforeSeen) {
        let version = met.before.map_or(1, |version| version + 1);
        core.listeners
            .watches
            .note_written(table, key, value_bytes, version);
    }
    let value = (value, new.is_typed);
    let put = guard
        .append
        .put_locked(&guard.pin, (table, key), locked, value, new.expires_at_ms);
    *guard.append.scratch = scratch;
    locked.unlock();
    if let Ok(Put::Done(version)) = put {
        if !has_bug(Bug::MarkedBeforeSeen) {
            core.listeners
                .watches
                .note_written(table, key, value_bytes, version); // range::watch::W1
        }
        note_put(
            guard,
            (table, index),
            (hash, key),
            locked,
            met,
            new.is_typed,
        );
    }
    put
}

/// Leaves the object that was found, or its absence, and unlocks.
#[inline(always)]
fn keep_met(
    guard: &Guard<'_>,
    (table, index): (TableId, &Index),
    (hash, key): (KeyHash, &[u8]),
    locked: &Locked<'_>,
    met: Met,
) -> Outcome {
    guard
        .seen
        .observe_locked(guard.pin.core(), index, hash, locked);
    locked.unlock();
    if met.was_expired {
        guard.pin.expire_now(table, index, hash, key);
    }
    met.outcome(met.before)
}

/// Removes the object that was found, and reports the removal. `None`: nothing was done yet, and
/// the caller looks again.
#[inline(always)]
fn remove_met<'s>(
    guard: &mut Guard<'s>,
    (table, index): (TableId, &'s Index),
    (hash, key): (KeyHash, &[u8]),
    locked: Locked<'s>,
    met: Met,
) -> Result<Option<Outcome>, Error> {
    let Guard {
        pin,
        append,
        seen,
        notes,
        ..
    } = guard;
    let (core, was_there) = (pin.core(), locked.found.is_some());
    if !append.remove_locked(pin, seen, (table, index), (hash, key), locked)? {
        return Ok(None);
    }
    if was_there {
        notes.note_key(&core.listeners.writes, table, key);
    }
    notes.note_gone(table, hash, met.first, None);
    if met.was_expired {
        notes.note_replaced(&core.listeners.departures, table, key);
    }
    Ok(Some(met.outcome(None)))
}

/// Reports a put, and lets the index grow.
#[inline(always)]
fn note_put(
    guard: &mut Guard<'_>,
    (table, index): (TableId, &Index),
    (hash, key): (KeyHash, &[u8]),
    locked: &Locked<'_>,
    met: Met,
    is_typed: bool,
) {
    let (core, notes) = (guard.pin.core(), &mut *guard.notes);
    if let Some(log) = core.log.as_deref() {
        guard.append.note_own(&guard.seen, log, index);
    }
    if locked.found.is_none()
        && !guard.pin.locks().are_taken()
        && locked.partition.wants_growth(locked.view.len())
    {
        core.resize(locked.partition, guard.pin.me());
    }
    notes.note_key(&core.listeners.writes, table, key);
    let mut first_now = None;
    if is_typed {
        first_now = guard.append.scratch.first().copied();
        notes.note_typed(table, hash, first_now);
    }
    notes.note_gone(table, hash, met.first, first_now);
    if met.was_expired {
        notes.note_replaced(&core.listeners.departures, table, key);
    }
}

impl<'s> Pin<'s> {
    /// Locks the key's home bucket, and finds its entry. `None`: the index lacks memory for it.
    #[inline(always)]
    fn lock_key(
        &self,
        index: &'s Index,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<Locked<'s>>, Error> {
        let (entries, partition) = (self.entries(), index.partition(hash));
        let tag = index.tag(hash);
        loop {
            let Some((view, home, locking)) =
                partition.lock(tag, self.me(), self.core().resources())
            else {
                return Ok(None);
            };
            let mut locked = Locked {
                partition,
                view,
                home,
                tag,
                in_transaction: locking == Locking::Mine,
                found: None,
            };
            match entries.find_verified(view, tag, key) {
                None | Some((_, _, Found::Other)) => {}
                Some((place, slot, Found::Key(here))) => {
                    let entry = entries.entry_at(here);
                    self.work().meet_bytes(entry.padded_bytes);
                    locked.found = Some((place, slot, entry));
                }
                Some((_, slot, Found::Cold)) => {
                    locked.unlock();
                    entries.meet_cold(slot.location(), self.is_in_step())?;
                    continue;
                }
                Some((_, _, Found::Damaged)) => {
                    locked.unlock();
                    return Err(Error::Damaged); // verified::V4: its version is not known
                }
            }
            return Ok(Some(locked));
        }
    }
}

impl<'s> Appender<'s> {
    /// With a log, appends the tombstone of the object that is about to be removed. Returns false
    /// if the bucket was unlocked: the caller looks again.
    fn record_removal(
        &mut self,
        pin: &mut Pin<'s>,
        seen: &Observed,
        log: &Log,
        (table, index): (TableId, &Index),
        key: (KeyHash, &[u8]),
        locked: &Locked<'s>,
    ) -> Result<bool, Error> {
        if locked.found.is_none() {
            seen.observe_absence(pin.core(), index, locked.partition, key.0);
            if log.swaps().eviction_victim() == SegmentId::NONE {
                return Ok(true);
            }
        }
        if !self.may_append(pin, seen, log, key.0, locked)? {
            return Ok(false);
        }
        let buried = self.bury(pin, log, table, key, locked);
        if let Ok(Buried::Done) = buried {
            self.note_own(seen, log, index);
            return Ok(true);
        }
        locked.unlock();
        match buried? {
            Buried::NoSpace => self.make_room(pin, Purpose::Tombstones).map(|()| false),
            Buried::Done | Buried::LookAgain => Ok(false),
        }
    }

    /// Removes the object that was found, and unlocks. Returns false if nothing was done yet: the
    /// caller looks again.
    fn remove_locked(
        &mut self,
        pin: &mut Pin<'s>,
        seen: &Observed,
        (table, index): (TableId, &Index),
        (hash, key): (KeyHash, &[u8]),
        locked: Locked<'s>,
    ) -> Result<bool, Error> {
        let core = pin.core();
        if let Some(log) = core.log.as_deref()
            && !self.record_removal(pin, seen, log, (table, index), (hash, key), &locked)?
        {
            return Ok(false);
        }
        if let Some((place, slot, entry)) = locked.found {
            if has_bug(Bug::MarkedBeforeSeen) {
                core.listeners
                    .watches
                    .note_written(table, key, 0, entry.version);
            }
            let change = locked.change(&core.space, &self.head().counters);
            change.remove(locked.tag, Dropped::new(place, slot, &entry));
            if !has_bug(Bug::RemovalsAreNotMarked) && !has_bug(Bug::MarkedBeforeSeen) {
                // The key is marked only now: an earlier mark could be used while the key is still
                // there (range::watch::W1).
                core.listeners
                    .watches
                    .note_written(table, key, 0, entry.version);
            }
        }
        locked.unlock();
        if !pin.locks().are_taken() && locked.partition.wants_shrinking(locked.view.len()) {
            core.resize(locked.partition, pin.me());
        }
        Ok(true)
    }

    /// Appends an object that replaces the one that was found, and points the slot to it.
    #[inline(always)]
    fn put_locked(
        &mut self,
        pin: &Pin<'s>,
        (table, key): (TableId, &[u8]),
        locked: &Locked<'s>,
        (value, is_typed): (&[u8], bool),
        expires_at_ms: Option<u64>,
    ) -> Result<Put, Error> {
        debug_assert!(!is_typed || !value.is_empty(), "a typed value has a type");
        check_put(locked, value, self.is_granted())?;
        let (core, head) = (pin.core(), self.head());
        let version = match &locked.found {
            Some((_, _, entry)) => core.version_after(entry.version),
            None => locked.partition.floor().max(1),
        }
        .max(self.version_at_least());
        let mut object = NewObject {
            table: table.0,
            version,
            expires_at_ms,
            key,
            value,
            victim: SegmentId::NONE,
            is_typed,
        };
        if let Some(put) = self.find_room(core, locked, &mut object)? {
            return Ok(put);
        }
        if locked.found.is_none()
            && !locked
                .partition
                .count_insert(locked.view.len(), locked.in_transaction)
        {
            return Ok(Put::IndexFull);
        }
        let tail = self.tail();
        let bytes = object.padded_bytes();
        let offset = tail.take(bytes);
        // SAFETY: `take` gave this head `bytes` bytes of its own window (head::H2), which it alone
        // writes while its lock is held.
        object.write_to(unsafe {
            std::slice::from_raw_parts_mut(core.space.at(Space::location(offset)), bytes)
        });
        tail.record(&core.space);
        if let Some(log) = core.log.as_deref() {
            log.streams().publish(head.number, tail);
        }
        if let Some(expires_at_ms) = expires_at_ms
            && let Some(window) = tail.window()
        {
            core.space.segments[window as usize].note_expiry(bytes as u32, expires_at_ms);
        }
        let counters = &head.counters;
        counters.note_append(bytes, key.len() + value.len(), version);
        pin.work().note_appended(bytes);
        let change = locked.change(&core.space, counters);
        let new = Counted::object(table, expires_at_ms.is_some());
        let location = Space::location(offset);
        match locked.found {
            Some((place, slot, old)) => {
                change.replace(
                    Dropped::new(place, slot, &old),
                    slot.moved_to(location),
                    new,
                );
            }
            None => change.insert(locked.tag, Slot::new(locked.tag, location), new),
        }
        Ok(Put::Done(version))
    }

    /// Makes sure that the head has room for an object, and notes the object's victim. `Some`:
    /// there is no room, or the entry that was found may have moved.
    #[inline(always)]
    fn find_room(
        &mut self,
        core: &Core,
        locked: &Locked<'s>,
        object: &mut NewObject<'_>,
    ) -> Result<Option<Put>, Error> {
        let log = core.log.as_deref();
        let (head, purpose) = (self.head(), self.purpose());
        let (is_granted, is_ahead) = (self.is_granted(), self.windows_ahead() > 0);
        let tail = self.tail();
        if let Some(log) = log {
            object.victim = victim_of(log, &core.space, locked, tail);
        }
        let bytes = object.padded_bytes();
        // A rewrite that was granted room keeps it (room::R1), whatever others write meanwhile.
        let is_shut = tail.is_for_deletes()
            && (purpose == Purpose::Head || !is_granted)
            && !takes(core, tail, purpose);
        if tail.fits(bytes) && !is_shut {
            return Ok(None);
        }
        if is_ahead {
            self.go_on(core);
            return Ok(Some(Put::LookAgain));
        }
        if !roll(core, head, tail, bytes + 8, purpose)? {
            return Ok(Some(Put::NoSpace));
        }
        if tail.in_group() {
            return Ok(Some(Put::LookAgain));
        }
        if let Some(log) = log {
            object.victim = victim_of(log, &core.space, locked, tail);
        }
        Ok(None)
    }
}

/// The victim that the next entry has to name: the segment of its predecessor.
#[inline(always)]
fn victim_of(log: &Log, space: &Space, locked: &Locked<'_>, tail: &Tail) -> SegmentId {
    let Some((_, slot, _)) = locked.found else {
        return log.swaps().eviction_victim();
    };
    // A group may still move to another segment, away from the other entries of this segment.
    let own = tail.window().filter(|_| !tail.in_group());
    log.windows().victim(space, slot.location(), own)
}
