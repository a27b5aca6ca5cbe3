//! Completion records: the answer to a request is stored in the log with its effect, so a request
//! that is sent again takes effect once.
//!
//! The engine writes, keeps and shows the records. Their meaning is the tracker's
//! ([`Completions`]).
//!
//! **Invariants**
//! - Q1: a record is in the group of its effect: a crash leaves both or neither.
//! - Q2: the cleaner drops a record only if the tracker reports that no client can request it any
//!   more.
//! - Q3: a thread that loads or replays a log is shown every record in it, each at least once.
//!
//! Paper: RIFL (Lee, SOSP'15) §3-4; differs: the tracker keeps the answers, so records need no
//! address. Two copies of one record (from a replay that was repeated) both stay until the client
//! has acknowledged.

use crate::session::Guard;
use crate::session::roll::roll;
use crate::space::{Purpose, Space};
use crate::{Completions, Error, Store, TableId};
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_format::entry::Completion;
use std::sync::Arc;

/// Memory is charged for the tracker in steps of this size, and at most `CHARGE_STEPS` steps at
/// once.
const CHARGE_BYTES: u64 = 256 << 10;
const CHARGE_STEPS: usize = 4;

impl Store {
    /// Sets the tracker, before anything is loaded. Until then all records stay. Only the first
    /// call counts.
    pub fn set_completions(&self, completions: Arc<dyn Completions>) {
        self.core().listeners.tracker.set(completions);
    }

    /// Charges the tracker's memory to the budget, some steps at each call, so that about `wanted`
    /// bytes are charged. Returns the bytes that the tracker may use: at most a quarter of the
    /// budget, so that clients leave room for data. A tracker that has met records in a log may
    /// need more, which is charged too. Never waits. Called by one thread at a time.
    pub fn charge_completions(&self, wanted: u64) -> u64 {
        let core = self.core();
        let space = &core.space;
        let limit = space.budget.limit();
        let mut charged = core.listeners.tracker.charged_bytes();
        for _ in 0..CHARGE_STEPS {
            if charged < wanted && charged + CHARGE_BYTES <= limit / 2 {
                let is_there = space.charge_beside_segments(CHARGE_BYTES)
                    || ((0..space.nodes()).any(|node| space.release_one(node))
                        && space.charge_beside_segments(CHARGE_BYTES));
                if !is_there {
                    break;
                }
                charged += CHARGE_BYTES;
            } else if charged >= wanted + 2 * CHARGE_BYTES {
                space.budget.release(CHARGE_BYTES);
                charged -= CHARGE_BYTES;
            } else {
                break;
            }
        }
        core.listeners.tracker.set_charged_bytes(charged);
        charged.min(limit / 4)
    }
}

impl Guard<'_> {
    /// Reserves room for the next `bytes` of entries in the present segment, so that the rest of
    /// this group cannot fail for want of it: for example an effect and its completion.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DiskFull`], [`Error::DiskFailed`],
    /// [`Error::GroupTooLarge`].
    ///
    /// # Panics
    /// Outside of [`lock_keys`](Self::lock_keys) and of an exclusive guard.
    pub fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        let Guard { pin, append, .. } = self;
        assert!(pin.is_in_step(), "a completion belongs to a group");
        let core = pin.core();
        loop {
            append.take_head(pin);
            let (head, tail) = (append.head(), append.tail());
            // Even if the log has just begun to refuse writes: the effect before may have been
            // accepted (Q1).
            if tail.fits(bytes) {
                return Ok(());
            }
            if let Some(log) = &core.log {
                log.refusals().check()?;
            }
            if !roll(core, head, tail, bytes, Purpose::Tombstones)? {
                append.make_room(pin, Purpose::Tombstones)?;
            }
        }
    }

    /// Appends a completion record to the group of its effect (Q1). A store without a log ignores
    /// it.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), but none if enough was reserved; [`Error::ValueTooLarge`];
    /// [`Error::NoSuchTable`].
    ///
    /// # Panics
    /// As [`reserve`](Self::reserve).
    pub fn complete(&mut self, record: &Completion<'_>) -> Result<(), Error> {
        if record.result.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge {
                bytes: record.result.len(),
                limit: VALUE_BYTES_MAX,
            });
        }
        let index = self.pin.index(TableId(record.table))?;
        let bytes = record.padded_bytes();
        self.reserve(bytes)?;
        let core = self.pin.core();
        let Some(log) = core.log.as_deref() else {
            return Ok(());
        };
        let (head, tail) = (self.append.head(), self.append.tail());
        let at = core.space.at(Space::location(tail.take(bytes)));
        // SAFETY: `take` gave this head `bytes` bytes of its own window (head::H2), which it alone
        // writes while its lock is held.
        record.write_to(unsafe { std::slice::from_raw_parts_mut(at, bytes) });
        tail.record(&core.space);
        log.streams().publish(head.number, tail);
        // Like a tombstone: alive in its window until a cleaner drops it, and not counted among the
        // live objects.
        head.counters.note_tombstone(bytes);
        self.pin.work().note_appended(bytes);
        self.append.note_own(&self.seen, log, index);
        Ok(())
    }
}
