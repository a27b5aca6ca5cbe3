//! Keys that had expired before a restart, and live by the present clock, because it was set back
//! since.
//!
//! The load leaves them in the index, without their values (load::R7), and with an access count
//! that no other key has then. They are removed as any key is, by tombstones that name their
//! segments: so they stay away over the next start too, whatever its clock shows. The caller
//! removes them step by step before the store is used otherwise, and commits between the steps. So
//! neither the keys nor their tombstones need memory beside the budget. Until the last tombstone is
//! durable, the next start needs the time of the clock before it was set back.

use crate::core::flash::{Holding, locate_now};
use crate::core::{Core, Visitor};
use crate::range::Place;
use crate::{Error, Session, Store, TableId};
use duramen_base::expiry::is_expired;
use duramen_format::entry::{self, Kind};
use std::sync::Arc;

/// Access count of a slot whose object has to be removed.
pub(super) const REVIVED: u64 = 6;
/// Maximum number of keys of a step, and maximum bytes of their names.
const STEP_KEYS: usize = 4096;
const STEP_BYTES: usize = 1 << 20;
/// Buckets that are read under one pin.
const STEP_BUCKETS: usize = 256;

/// A walk through the index that removes revived keys.
pub struct Revived {
    store: Arc<Store>,
    until_ms: u64,
    tables: Vec<TableId>,
    place: Place,
    keys: Vec<(TableId, Box<[u8]>)>,
    /// Bytes of `keys`.
    bytes: usize,
}

impl Store {
    /// Begins to remove the keys that had expired before this start, though they live by the
    /// present clock. Must be finished before anything else is written.
    ///
    /// # Panics
    /// If the store has no log.
    pub fn revived(self: &Arc<Self>) -> Revived {
        let log = self.core().log.as_deref().expect("a store with a log");
        let mut tables = Vec::new();
        self.core().tables.each(|table, _, _| tables.push(table));
        Revived {
            store: self.clone(),
            until_ms: log.options().expired_until_ms,
            tables,
            place: Place::START,
            keys: Vec::new(),
            bytes: 0,
        }
    }
}

impl Revived {
    /// Removes some keys; the position of the guards of `session` covers its writes. Returns false
    /// if there are no more.
    ///
    /// # Errors
    /// As [`Guard::remove`](crate::Guard::remove); [`Error::FlashFailed`].
    pub fn step(&mut self, session: &mut Session) -> Result<bool, Error> {
        while !self.has_enough() && !self.tables.is_empty() {
            self.look()?;
        }
        let is_over = self.keys.is_empty();
        self.bytes = 0;
        for (table, key) in self.keys.drain(..) {
            let mut guard = session.pin();
            let hash = guard.hash(&key);
            guard.remove(table, hash, &key)?;
            let _ = guard.order().take_position(); // the caller commits everything
        }
        Ok(!is_over)
    }

    fn has_enough(&self) -> bool {
        self.keys.len() >= STEP_KEYS || self.bytes >= STEP_BYTES
    }

    /// Reads some buckets.
    fn look(&mut self) -> Result<(), Error> {
        let store = self.store.clone();
        let core = store.core();
        let Some(table) = self.tables.last().copied() else {
            return Ok(());
        };
        let visitor = Visitor::wait(core);
        core.door.enter(visitor.slot);
        let mut looked = Ok(());
        // A cache may evict meanwhile, which halves access counts: so it reads every object.
        let is_cache = core.is_cache();
        for _ in 0..STEP_BUCKETS {
            let index = core.tables.index(table).ok();
            let Some(index) = index.filter(|index| !self.place.is_end(index)) else {
                self.tables.pop();
                self.place = Place::START;
                break;
            };
            let Some((view, bucket)) = self.place.bucket(index, &core.space) else {
                continue;
            };
            let (mut marked, place) = (Vec::new(), self.place);
            view.each_homed(bucket, visitor.me(), |slot| {
                if (slot.access() != 0 || is_cache) && place.includes(slot) {
                    marked.push(slot.location());
                }
            });
            looked = marked
                .into_iter()
                .try_for_each(|location| self.note(core, &visitor, table, location));
            if looked.is_err() || self.has_enough() {
                break; // the bucket is read once more, without the keys that were removed
            }
            self.place = self.place.after(view, bucket);
        }
        core.door.leave(visitor.slot);
        looked
    }

    fn note(
        &mut self,
        core: &Core,
        visitor: &Visitor<'_>,
        table: TableId,
        location: u64,
    ) -> Result<(), Error> {
        let holding = Holding::default();
        let stamp = core.door.epochs().stamp_of(visitor.slot);
        let at = locate_now(core, stamp, &holding, location)?;
        // SAFETY: the index pointed to it under our pin: a whole entry, not reused; or a verified
        // copy, which `holding` has.
        let entry = unsafe { entry::parse_trusted(at) };
        let is_one = entry.kind == Kind::Object
            && entry.expires_at_ms != 0
            && is_expired(entry.expires_at_ms, self.until_ms);
        if is_one {
            self.bytes += entry.key.len();
            self.keys.push((table, entry.key.into()));
        }
        Ok(())
    }
}
