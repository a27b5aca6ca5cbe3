//! Several keys as one atomic step: their home buckets stay locked, and readers of them wait
//! (bucket::B3).
//!
//! **Invariants**
//! - T1: buckets are locked in hash order within tables in id order, so two transactions never wait
//!   for each other in a ring.
//! - T2: room for one insert per declared key is set aside before the first lock, so no insert of a
//!   transaction ever has to resize a partition whose buckets it holds.
//! - T3: a resizer gives up at a bucket of a transaction, so a transaction never waits for a
//!   resizer that waits for it.
//! - T4: the head is locked before the buckets, as in every write: the holder of the head may be
//!   waiting for such a bucket.
//! - T5: a thread that waits for a transaction may be pinned, and so hold back the memory that the
//!   transaction waits for. So memory is sought before the first lock; later, the transaction gives
//!   up when there is no progress any more.
//! - T6: with a log, the entries of a transaction are one group of one head (`session::roll`): a
//!   crash keeps all or none.
//! - T7: a transaction waits with nothing locked for predecessors that can still be lost in other
//!   heads: it locks the keys, looks them up, unlocks them, waits, and locks them again. Keys that
//!   others write all the time still have predecessors after a few rounds. For these it waits with
//!   the keys locked, before room is granted, so a disk that is full by then refuses the step as a
//!   whole.
//! - T8: a step reads only keys that it has locked: a reader waits for the locks of another step,
//!   which may wait for this one's. Other keys are read on a draft, before the locks.

use crate::cleaner::index_search::IndexSearch;
use crate::room::Room;
use crate::session::Guard;
use crate::session::roll::{roll, takes};
use crate::space::Purpose;
use crate::{Error, KeyHash, TableId};
use duramen_base::waits::{LongWait, Resource};

/// The keys in the order in which they are locked (T1).
#[cold]
fn in_order(keys: &[(TableId, KeyHash)]) -> Vec<(TableId, KeyHash)> {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Maximum number of times that a transaction unlocks its keys to wait for their predecessors. Two
/// would be enough, except for keys that others write all the time.
const SETTLE_ATTEMPTS_MAX: u32 = 4;
/// Room in the head that a transaction requests at its beginning: enough for most of them.
const HEAD_ROOM_BYTES: usize = 256 << 10;
/// Maximum number of times that a step whose memory was taken by others unlocks its keys and looks
/// for more.
pub const ROOM_ATTEMPTS_MAX: u32 = 8;

impl<'s> Guard<'s> {
    /// Makes the operations of this guard on these keys one atomic step: other sessions see all of
    /// them or none, from the first call until [`unlock_keys`](Self::unlock_keys). Writes in
    /// between must be to these keys only. A second call ends the first step and begins another.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::OutOfMemory`] if the index has no room for the keys;
    /// [`Error::Damaged`] if it cannot make room; [`Error::TryAgain`].
    pub fn lock_keys(&mut self, keys: &[(TableId, KeyHash)]) -> Result<(), Error> {
        self.unlock_keys();
        self.lock_all(keys, Room::default())
    }

    /// As [`lock_keys`](Self::lock_keys), for a caller that has found memory for about `room`
    /// before. With keys locked, memory is sought for a moment only, so
    /// [`set_aside`](Self::set_aside) may fail although others would make room. Then
    /// [`Locks::was_starved`](crate::Locks::was_starved) is true, and the caller unlocks and tries
    /// again, a few times.
    ///
    /// # Errors
    /// As there.
    pub fn lock_keys_expecting(
        &mut self,
        keys: &[(TableId, KeyHash)],
        room: Room,
    ) -> Result<(), Error> {
        self.unlock_keys();
        self.lock_briefly(keys, room)
    }

    /// As [`lock_keys`](Self::lock_keys), with room for the writes of the step: they cannot fail
    /// for want of memory or disk, and the step is done as a whole or not at all
    /// ([`set_aside`](Self::set_aside)). The caller looks at its keys afterwards: their entries
    /// may be on flash.
    ///
    /// # Errors
    /// As both.
    pub fn lock_keys_for(&mut self, keys: &[(TableId, KeyHash)], room: Room) -> Result<(), Error> {
        for attempt in 1.. {
            self.unlock_keys();
            let done = self
                .set_windows_aside(room) // T5
                .and_then(|()| self.lock_briefly(keys, room))
                .and_then(|()| self.set_room_aside(room, false));
            let again = attempt < ROOM_ATTEMPTS_MAX && self.locks.was_starved();
            if done.is_err() {
                self.unlock_keys();
            }
            if !(again && matches!(done, Err(Error::OutOfMemory { .. }))) {
                return done;
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Locks the keys, and keeps the windows that were set aside.
    fn lock_briefly(&mut self, keys: &[(TableId, KeyHash)], room: Room) -> Result<(), Error> {
        self.lock_all(keys, room)?;
        self.locks.make_brief();
        Ok(())
    }

    fn lock_all(&mut self, keys: &[(TableId, KeyHash)], room: Room) -> Result<(), Error> {
        let own;
        let keys = match keys.is_sorted_by(|a, b| a < b) {
            true => keys,
            false => {
                own = in_order(keys);
                &own
            }
        };
        self.settle_before(keys);
        self.seek_memory(room);
        let (mut index_search, mut settle_attempts) = (IndexSearch::default(), 0);
        let mut waiting = LongWait::new(Resource::Key, &[Resource::Pin, Resource::Head]);
        loop {
            self.take_head(); // T4
            let mut tables = self.locks.take_tables();
            for (table, hash) in keys {
                let index = self.index(*table)?;
                tables.add(index.partition(*hash), index.tag(*hash));
            }
            if !tables.reserve_room(self.core, self.me)? {
                self.make_index_room(&mut index_search)?;
                continue;
            }
            if !tables.lock_buckets(self.me) {
                tables.unreserve();
            } else if self.locks.open(tables) {
                if let Err(error) = self.check_generation() {
                    self.let_go();
                    return Err(error);
                }
                let unsettled = self.unsettled(keys);
                if settle_attempts < SETTLE_ATTEMPTS_MAX && !unsettled.is_empty() {
                    settle_attempts += 1;
                    self.let_go();
                    self.settle_before(keys); // T7
                    continue;
                }
                self.locks.set_unsettled(unsettled);
                if let Some(log) = &self.core.log
                    && let Some(tail) = &mut self.tail
                {
                    log.begin_group(tail);
                }
                return Ok(());
            } else {
                self.let_go();
            }
            waiting.wait();
        }
    }

    /// T5: while nothing is locked, finds room in the head for `room`, or for most transactions; or
    /// a window and a segment on disk to continue in. If there is none, the writes report it.
    fn seek_memory(&mut self, room: Room) {
        let (bytes, purpose) = (self.bytes_of(room), self.purpose_of(room));
        let purpose = if bytes == 0 { Purpose::Head } else { purpose };
        for _ in 0..ROOM_ATTEMPTS_MAX {
            self.take_head();
            let (core, head) = (self.core, self.head);
            let tail = self.tail.as_mut().expect("just taken");
            // Room that is left for removals alone is no room for known writes.
            let is_open = bytes == 0 || takes(core, tail, purpose);
            if is_open && tail.fits(bytes.max(HEAD_ROOM_BYTES)) || !self.ahead.is_empty() {
                return;
            }
            if core.space.free_windows(head.node) > 0 && core.disk_has_room(purpose) {
                // Writes that fit the head go there; others continue in a new segment anyway, which
                // is taken now.
                let is_ready = is_open && tail.fits(bytes)
                    || roll(core, head, tail, bytes, purpose) != Ok(false);
                if is_ready {
                    return;
                }
            }
            if self.make_room(purpose).is_err() {
                return;
            }
        }
    }

    /// Ends the atomic step: others see it. Does nothing if there is none.
    pub fn unlock_keys(&mut self) {
        self.give_room_back();
        self.let_go();
    }

    /// As [`unlock_keys`](Self::unlock_keys), but keeps the windows that were set aside.
    fn let_go(&mut self) {
        let Some(step) = self.locks.take() else {
            return;
        };
        // Before any other thread can see the keys, so that a thread that sees one may append over
        // it and be collected.
        if let Some(log) = &self.core.log {
            if let Some(tail) = &mut self.tail
                && !self.alone
            {
                log.end_group(self.head.number, tail);
            }
            self.note_removals(log, step.removed());
        }
        self.locks.end(step, self.core, self.me);
    }
}
