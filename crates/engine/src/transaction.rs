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
use crate::room::{Room, set_room_aside, set_windows_aside};
use crate::session::append::Appender;
use crate::session::order::unsettled;
use crate::session::roll::{roll, takes};
use crate::session::{Guard, Pin};
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
/// times would be enough, except for keys that others write all the time.
const SETTLE_ATTEMPTS_MAX: u32 = 4;
/// Room in the head that a transaction requests at its beginning: enough for most of them.
const HEAD_ROOM_BYTES: usize = 256 << 10;
/// Maximum number of times that a step whose memory was taken by others unlocks its keys and looks
/// for more.
pub const ROOM_ATTEMPTS_MAX: u32 = 8;

impl Guard<'_> {
    /// Makes the operations of this guard on these keys one atomic step: other sessions see all of
    /// them or none, from the first call until [`unlock_keys`](Self::unlock_keys). Writes in
    /// between must be to these keys only. A second call ends the first step and begins another.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::OutOfMemory`] if the index has no room for the keys;
    /// [`Error::Damaged`] if it cannot make room; [`Error::TryAgain`].
    pub fn lock_keys(&mut self, keys: &[(TableId, KeyHash)]) -> Result<(), Error> {
        self.unlock_keys();
        lock_all(self, keys, Room::default())
    }

    /// As [`lock_keys`](Self::lock_keys), for a caller that has found memory for about `room`
    /// before. With keys locked, memory is sought for a moment only, so
    /// [`set_aside`](Self::set_aside) may fail although others would make room. Then
    /// [`Locks::was_starved`](crate::Locks::was_starved) is true, and the caller unlocks and tries
    /// again, a few times.
    ///
    /// # Errors
    /// Those of [`lock_keys`](Self::lock_keys).
    pub fn lock_keys_expecting(
        &mut self,
        keys: &[(TableId, KeyHash)],
        room: Room,
    ) -> Result<(), Error> {
        self.unlock_keys();
        lock_briefly(self, keys, room)
    }

    /// As [`lock_keys`](Self::lock_keys), with room for the writes of the step: they cannot fail
    /// for want of memory or disk, and the step is done as a whole or not at all
    /// ([`set_aside`](Self::set_aside)). The caller looks at its keys afterwards: their entries
    /// may be on flash.
    ///
    /// # Errors
    /// Those of [`lock_keys`](Self::lock_keys) and of [`set_aside`](Self::set_aside).
    pub fn lock_keys_for(&mut self, keys: &[(TableId, KeyHash)], room: Room) -> Result<(), Error> {
        for attempt in 1.. {
            self.unlock_keys();
            let done = set_windows_aside(&mut self.append, &mut self.pin, room) // T5
                .and_then(|()| lock_briefly(self, keys, room))
                .and_then(|()| set_room_aside(self, room, false));
            let again = attempt < ROOM_ATTEMPTS_MAX && self.pin.locks().was_starved();
            if done.is_err() {
                self.unlock_keys();
            }
            if !(again && matches!(done, Err(Error::OutOfMemory { .. }))) {
                return done;
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Ends the atomic step: others see it. Does nothing if there is none.
    pub fn unlock_keys(&mut self) {
        self.append.give_room_back(self.pin.core());
        let_go(&mut self.pin, &mut self.append);
    }
}

/// Locks the keys, and keeps the windows that were set aside.
fn lock_briefly(
    guard: &mut Guard<'_>,
    keys: &[(TableId, KeyHash)],
    room: Room,
) -> Result<(), Error> {
    lock_all(guard, keys, room)?;
    guard.pin.locks_mut().make_brief();
    Ok(())
}

fn lock_all(guard: &mut Guard<'_>, keys: &[(TableId, KeyHash)], room: Room) -> Result<(), Error> {
    let own;
    let keys = match keys.is_sorted_by(|a, b| a < b) {
        true => keys,
        false => {
            own = in_order(keys);
            &own
        }
    };
    let Guard {
        pin, append, seen, ..
    } = guard;
    let (core, me) = (pin.core(), pin.me());
    append.settle_before(pin, seen, keys);
    seek_memory(append, pin, room);
    let (mut index_search, mut settle_attempts) = (IndexSearch::default(), 0);
    let mut waiting = LongWait::new(Resource::Key, &[Resource::Pin, Resource::Head]);
    loop {
        append.take_head(pin); // T4: the head before the buckets
        let mut tables = pin.locks_mut().take_tables();
        for (table, hash) in keys {
            let index = pin.index(*table)?;
            tables.add(index.partition(*hash), index.tag(*hash));
        }
        if !tables.reserve_room(core, me)? {
            append.make_index_room(pin, &mut index_search)?;
            continue;
        }
        if !tables.lock_buckets(me) {
            tables.unreserve();
        } else if pin.locks_mut().open(tables) {
            if let Err(error) = pin.check_generation() {
                let_go(pin, append);
                return Err(error);
            }
            let unsettled = unsettled(core, append.stream(), keys);
            if settle_attempts < SETTLE_ATTEMPTS_MAX && !unsettled.is_empty() {
                settle_attempts += 1;
                let_go(pin, append);
                append.settle_before(pin, seen, keys); // T7: with nothing locked
                continue;
            }
            pin.locks_mut().set_unsettled(unsettled);
            append.begin_group(core);
            return Ok(());
        } else {
            let_go(pin, append);
        }
        waiting.wait();
    }
}

/// T5: while nothing is locked, finds room in the head for `room`, or for most transactions; or a
/// window and a segment on disk to continue in. If there is no room, the writes report that.
fn seek_memory<'s>(append: &mut Appender<'s>, pin: &mut Pin<'s>, room: Room) {
    let core = pin.core();
    let (bytes, purpose) = (room.bytes_in(core), room.purpose_of(append));
    let purpose = if bytes == 0 { Purpose::Head } else { purpose };
    for _ in 0..ROOM_ATTEMPTS_MAX {
        append.take_head(pin);
        let is_ahead = append.windows_ahead() > 0;
        let (head, tail) = (append.head(), append.tail());
        // A window that is left for removals alone has no room for writes that are known
        // beforehand.
        let is_open = bytes == 0 || takes(core, tail, purpose);
        if is_open && tail.fits(bytes.max(HEAD_ROOM_BYTES)) || is_ahead {
            return;
        }
        if core.space.free_windows(head.node) > 0 && core.disk_has_room(purpose) {
            // Writes that fit the head go there; others continue in a new segment anyway, which is
            // taken now.
            let is_ready =
                is_open && tail.fits(bytes) || roll(core, head, tail, bytes, purpose) != Ok(false);
            if is_ready {
                return;
            }
        }
        if append.make_room(pin, purpose).is_err() {
            return;
        }
    }
}

/// As [`Guard::unlock_keys`], but keeps the windows that were set aside.
fn let_go<'s>(pin: &mut Pin<'s>, append: &mut Appender<'s>) {
    let (core, me) = (pin.core(), pin.me());
    let Some(step) = pin.locks_mut().take() else {
        return;
    };
    // The group ends before any other thread can see its keys, so that a thread that sees one may
    // append over it and be collected.
    if let Some(log) = &core.log {
        if !pin.is_alone() {
            append.end_group(log);
        }
        append.note_removals(log, step.removed());
    }
    pin.locks_mut().end(step, core, me);
}
