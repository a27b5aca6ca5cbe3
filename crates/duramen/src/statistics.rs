//! How the objects of each table are spread over the hash space: written down now and then, for whoever has to divide the
//! tables among recovery masters when this server is gone.
//!
//! A guess that is some minutes old does for that, so it is made by looking at a sample of the index, on the background's
//! thread, and only when the number of objects has changed a good deal.

use crate::commit::Durable;
use duramen_format::control::{PartStats, Record};

/// Changes of fewer objects are not worth a record of 4 KB.
const OBJECTS_MIN: u64 = 10_000;

/// True if what was known of so many objects says little of so many.
fn is_stale(known: u64, objects: u64) -> bool {
    objects.abs_diff(known) > known / 8 + OBJECTS_MIN
}

impl Durable {
    /// Records the spread of tables that have changed much since it was recorded last; true if it did. Goes with the next
    /// commit.
    pub fn statistics_step(&self) -> bool {
        if self.engine.has_flash() {
            return false; // it would read flash, and what members are divided by they tell the coordinator themselves
        }
        let mut any = false;
        for table in self.engine.tables() {
            let id = table.id.0;
            let known = {
                let commit = self.lock();
                let stats = commit.master.state().stats.get(&id);
                stats.map_or(0, |parts| parts.iter().map(|part| part.entries).sum())
            };
            if !is_stale(known, table.objects) {
                continue;
            }
            let Ok(found) = self.engine.range_statistics(table.id) else {
                continue; // dropped meanwhile
            };
            let parts = found.parts.iter().map(|part| PartStats {
                entries: part.entries,
                bytes: part.bytes,
            });
            let parts = parts.collect();
            let mut commit = self.lock();
            // Its creation may not be recorded yet, or its end already.
            if commit.master.state().tables.contains_key(&id) {
                commit
                    .master
                    .record(Record::TableStats { table: id, parts });
                any = true;
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::is_stale;

    #[test]
    fn small_changes_are_not_written_down() {
        assert!(!is_stale(0, 10_000) && is_stale(0, 10_001));
        assert!(!is_stale(1_000_000, 1_100_000) && is_stale(1_000_000, 1_200_000));
        assert!(is_stale(1_000_000, 0));
    }
}
