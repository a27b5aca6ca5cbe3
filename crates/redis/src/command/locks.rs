//! The keys of commands on several keys: their hashes, hints to memory, locks, and room for their
//! writes.

use super::context::{Context, Done, Failure};
use super::flag;
use super::outcome::Unfinished;
use super::spec::Request;
use super::{ENTRIES_AHEAD, GROUP_KEYS, KEYS_KEPT, cold, run};
use duramen_engine::{Error, Guard, KeyHash, ROOM_ATTEMPTS_MAX, Room, TableId};

/// Keys whose buckets are hinted ahead: few enough that their lines stay in the first-level cache
/// until they are used.
const BUCKETS_AHEAD: usize = 128;

/// Hashes the keys of a request that has more of them than a group holds.
pub(crate) fn hash_keys(
    guard: &Guard<'_>,
    table: TableId,
    request: &Request<'_>,
    hashes: &mut Vec<KeyHash>,
) {
    for at in request.key_positions() {
        let hash = guard.hash(request.arg(at));
        if hashes.len() < BUCKETS_AHEAD {
            guard.pin().prefetch_bucket(table, hash);
        }
        hashes.push(hash);
    }
}

impl Context<'_> {
    /// Whether a request that must be tried again may have met a SWAPDB. In a cluster its keys move
    /// instead. A request with locked keys has looked at its table since it locked them.
    #[inline]
    pub(crate) fn may_be_outdated(&self) -> bool {
        self.shared.membership().is_none() && !self.locked
    }

    /// Runs one part of a command whose parts each have a result of their own. If the part did
    /// nothing because of a SWAPDB (keys::K1), it runs again on the table that is selected now.
    pub(crate) fn part<T>(
        &mut self,
        guard: &mut Guard<'_>,
        mut run: impl FnMut(TableId, &mut Guard<'_>) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        loop {
            let done = run(self.table, guard);
            if !matches!(done, Err(Error::TryAgain)) || !self.may_be_outdated() {
                return done.map_err(Failure::from);
            }
            guard.pin_mut().renew();
            run::take_table_again(self)?;
        }
    }

    /// Hints the entries of the first keys, unless the group has done so.
    pub(crate) fn hint_first(&self, guard: &Guard<'_>) {
        let hashes = self.request.hashes;
        if hashes.len() > GROUP_KEYS {
            for hash in hashes.iter().take(ENTRIES_AHEAD) {
                guard.pin().prefetch_entry(self.table, *hash);
            }
        }
    }

    /// Hints the entry and the bucket of keys some positions after key `n`.
    #[inline]
    pub(crate) fn hint_next(&self, guard: &Guard<'_>, n: usize) {
        let hashes = self.request.hashes;
        if let Some(hash) = hashes.get(n + ENTRIES_AHEAD) {
            guard.pin().prefetch_entry(self.table, *hash);
        }
        if let Some(hash) = hashes.get(n + BUCKETS_AHEAD) {
            guard.pin().prefetch_bucket(self.table, *hash);
        }
    }

    /// Locks keys of the selected table, and sets aside room for the writes to come, unless EXEC
    /// has done so.
    fn lock(&mut self, guard: &mut Guard<'_>, room: Room) -> Result<(), Failure> {
        if self.locked {
            return self.set_aside(guard, room);
        }
        let (table, hashes) = (self.table, self.request.hashes.iter());
        self.thread.buffers.locks.clear();
        self.thread
            .buffers
            .locks
            .extend(hashes.map(|hash| (table, *hash)));
        let locked = guard.lock_keys_for(&self.thread.buffers.locks, room);
        self.thread.buffers.locks.clear();
        self.thread.buffers.locks.shrink_to(KEYS_KEPT);
        match locked {
            // A DEL must succeed in a full store too.
            Err(Error::OutOfMemory { .. }) if !self.request.spec.has(flag::DENYOOM) => {
                Err(Failure::Unfinished(Unfinished::NeedsAlone))
            }
            locked => Ok(locked?),
        }
    }

    /// Sets aside room for the writes to come under the locks, so that they happen completely or
    /// not at all. EXEC does this for all its commands.
    pub(crate) fn set_aside(&self, guard: &mut Guard<'_>, room: Room) -> Done {
        if !self.thread.exec.runs() {
            guard.set_aside(room)?;
        }
        Ok(())
    }

    /// Checks, before the first write of a command on several keys, that none of the keys is
    /// damaged: so all writes happen or none does (verified::V5). EXEC checks the keys of all its
    /// commands.
    pub(crate) fn all_sound(&self, guard: &Guard<'_>) -> Done {
        if self.thread.exec.runs() && guard.draft().is_none() {
            return Ok(());
        }
        for key in self.request.keys(self.table) {
            guard.pin().check_sound(key.table, key.hash, key.bytes)?;
        }
        Ok(())
    }

    pub(crate) fn unlock(&self, guard: &mut Guard<'_>) {
        if !self.locked {
            guard.unlock_keys();
        }
    }

    /// As [`locked`](Self::locked), for keys that must be locked only because of flash
    /// (cold::C1).
    pub(crate) fn locked_for_flash(
        &mut self,
        guard: &mut Guard<'_>,
        run: impl FnOnce(&mut Self, &mut Guard<'_>) -> Done,
    ) -> Done {
        if !self.thread.has_tier() {
            return run(self, guard);
        }
        self.locked(guard, Room::default(), |ctx, guard| {
            cold::warm_own(ctx, guard)?;
            run(ctx, guard)
        })
    }

    /// Runs `run` with the keys locked, when the size of its writes is known only after the keys
    /// were read: `run` notes the size and sets room aside. If memory is missing, `run` is repeated
    /// after memory was searched without the locks, so that no other user of the keys waits.
    pub(crate) fn locked_for_room(
        &mut self,
        guard: &mut Guard<'_>,
        keys: &[(TableId, KeyHash)],
        mut run: impl FnMut(&mut Self, &mut Guard<'_>, &mut Room) -> Done,
    ) -> Done {
        let mut room = Room::default();
        if self.locked {
            return run(self, guard, &mut room);
        }
        let mut attempt = 0;
        loop {
            guard.lock_keys_expecting(keys, room)?;
            let done = run(self, guard, &mut room);
            attempt += 1;
            let again = guard.pin().locks().was_starved() && attempt < ROOM_ATTEMPTS_MAX;
            guard.unlock_keys();
            if !(again && done.as_ref().is_err_and(Failure::is_out_of_memory)) {
                return done;
            }
        }
    }

    /// Runs `run` with the keys locked, and with room for its writes.
    pub(crate) fn locked(
        &mut self,
        guard: &mut Guard<'_>,
        room: Room,
        run: impl FnOnce(&mut Self, &mut Guard<'_>) -> Done,
    ) -> Done {
        self.lock(guard, room)?;
        let done = run(self, guard);
        self.unlock(guard);
        done
    }
}
