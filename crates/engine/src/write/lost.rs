//! Removal of a key of which the log has lost an entry (docs/protocols.md, "Accepting a loss").

use super::{Met, remove_met};
use crate::cleaner::index_search::IndexSearch;
use crate::session::Guard;
use crate::session::order::Buried;
use crate::space::Purpose;
use crate::{Error, KeyHash, TableId};
use duramen_base::ids::SegmentId;
use duramen_format::entry::NewTombstone;

impl Guard<'_> {
    /// The log has lost an entry of this key: `version` of it, in the segment `lost`. Removes the
    /// key, unless it has a newer version. The lost entry may have been the only one that named
    /// the segment of an older version, so a tombstone takes its place, whether the key is there
    /// or not. It names `lost`, which [`Swaps::announce_lost`](crate::Swaps::announce_lost) has
    /// announced.
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub fn bury_lost(
        &mut self,
        table: TableId,
        (hash, key): (KeyHash, &[u8]),
        lost: SegmentId,
        (version, is_object): (u64, bool),
    ) -> Result<(), Error> {
        let core = self.pin.core();
        let log = core.log.as_deref().expect("a store with a log");
        let mut index_search = IndexSearch::default();
        if table.is_parts() {
            self.make_parts(table)?; // all of its parts may be lost
        }
        loop {
            self.append.take_head(&mut self.pin);
            let index = self.pin.index(table)?;
            let Some(locked) = self.pin.lock_key(index, hash, key)? else {
                self.append
                    .make_index_room(&mut self.pin, &mut index_search)?;
                continue;
            };
            let found = locked.found.map(|(_, _, entry)| entry.version);
            let is_older = |found: u64| found < version || !is_object && found == version;
            if found.is_some_and(is_older) {
                let object = locked
                    .found
                    .and_then(|(_, _, entry)| self.pin.object(entry));
                let met = Met::new(object, &locked);
                remove_met(self, (table, index), (hash, key), locked, met)?;
                continue; // the key is absent now, or was not removed yet
            }
            let Guard {
                pin, append, seen, ..
            } = &mut *self;
            if !append.may_append(pin, seen, log, hash, &locked)? {
                continue;
            }
            // Above every version that an absent key has had (index::X3).
            let next = found.unwrap_or(locked.partition.floor().max(version + 1));
            let tombstone = NewTombstone {
                table: table.0,
                version: next - 1,
                key,
                victim: lost,
            };
            let buried = match next {
                0 | 1 => Ok(Buried::Done), // there is no older version
                _ => append.append_tombstone(pin, log, hash, &locked, &tombstone),
            };
            locked.unlock();
            match buried? {
                Buried::Done => {
                    append.note_own(seen, log, index);
                    return Ok(());
                }
                Buried::LookAgain => {}
                Buried::NoSpace => append.make_room(pin, Purpose::Tombstones)?,
            }
        }
    }
}
