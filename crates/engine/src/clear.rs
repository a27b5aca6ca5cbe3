//! Clearing a table: all of its objects and parts die at one instant, for all sessions.

use crate::core::Core;
use crate::core::sound;
use crate::counters::Counters;
use crate::index::Index;
use crate::session::{Guard, Pin};
use crate::space::Space;
use crate::{Error, TableChange, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry;
use std::collections::BTreeSet;
use std::ops::Range;

/// Number of objects that a clear counts itself while all sessions wait: 1 ms.
const FEW_OBJECTS: u64 = 8192;

impl Guard<'_> {
    /// Removes every object of a table. Only under
    /// [`pin_exclusive`](crate::Session::pin_exclusive).
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    ///
    /// # Panics
    /// If the guard is not exclusive.
    pub fn clear(&self, table: TableId) -> Result<(), Error> {
        if self.seen.has_cleared(table) && self.pin.core().actors.entries(table) == 0 {
            return Ok(()); // a second clear would only write another record
        }
        self.empty(table, |table, floor| TableChange::Clear { table, floor })
    }

    pub(crate) fn empty(
        &self,
        table: TableId,
        change: impl FnOnce(TableId, u64) -> TableChange,
    ) -> Result<(), Error> {
        assert!(
            self.pin.is_alone(),
            "clearing a table takes an exclusive guard"
        );
        let core = self.pin.core();
        if table.is_parts() {
            return Err(Error::NoSuchTable(table)); // parts are cleared with their table
        }
        let whole = core.tables.index(table)?;
        let mut indexes = vec![whole];
        if !has_bug(Bug::ClearLeavesParts) {
            indexes.extend(core.tables.index(table.parts()).ok()); // table::T4: parts go too
        }
        let counters = &core.actors.heads()[0].counters;
        let entries = core.actors.entries(table);
        // No other guard is inside, so the counters of any actor may be written (head::H1: no head
        // is in the middle of an append).
        let mut others = 0;
        core.tables.each(|id, _, _| {
            others += if id == table {
                0
            } else {
                core.actors.entries(id)
            };
        });
        let later = others > 0 && entries > 0 && may_count_later(core, entries);
        if others == 0 {
            kill_everything(core, counters);
        } else if !later {
            indexes
                .iter()
                .for_each(|index| kill_index(&self.pin, index));
        }
        core.listeners.watches.note_cleared(table);
        for id in indexes.iter().map(|index| index.table) {
            counters.note_objects(id, -(core.actors.objects(id) as i64));
            counters.note_expiring(id, -(core.actors.expiring(id) as i64));
        }
        // Every version ever given is below this floor, so versions of re-created keys still only
        // grow.
        let floor = core.version_max() + 1;
        let removed = self.seen.note_change(core, whole, change(table, floor));
        if later {
            for index in indexes {
                core.cleared().add(index.table, index.take(floor, removed));
            }
            count_group(core, self.append.group(), counters);
        } else {
            let with = core.resources();
            indexes
                .iter()
                .for_each(|index| index.clear(floor, removed, with));
        }
        core.cleaners.wake();
        Ok(())
    }
}

/// Counts the entries of one index as dead, while all sessions wait: those in memory, and those
/// on flash only if they cannot be left for later (cleared::K2).
fn kill_index(pin: &Pin<'_>, index: &Index) {
    let core = pin.core();
    let counters = &core.actors.heads()[0].counters;
    let mut cold = BTreeSet::new();
    for partition in index.partitions() {
        let view = partition.view();
        for bucket in 0..view.len() {
            view.each_homed(bucket, pin.me(), |slot| {
                let window = core.space.window_of(slot.location());
                match pin.entries().memory_of(slot.location()) {
                    Some(here) if !here.is_copy => {
                        // An entry of unknown length stays counted as live: its segment stays
                        // (sound::V2).
                        if let Ok(sound) = sound::at(core, slot.location()) {
                            counters.note_dead(window, sound.entry.padded_bytes);
                        }
                    }
                    _ => {
                        cold.insert(window as u32);
                    }
                }
            });
        }
    }
    for window in cold {
        let Some(demotion) = core.demotion() else {
            break;
        };
        demotion.each_entry(window, |location, entry| {
            let hash = core.tables.hash(entry.key);
            let view = index.partition(hash).view();
            if TableId(entry.table) == index.table
                && view.len() != 0
                && view.find_location(index.tag(hash), location).is_some()
            {
                counters.note_dead(window as usize, entry.padded_bytes);
            }
        });
    }
}

/// True if the `entries` of a table that is being cleared may be counted afterwards (cleared::K2),
/// and are many or on flash.
fn may_count_later(core: &Core, entries: u64) -> bool {
    let sides = core
        .log
        .as_ref()
        .is_some_and(|log| log.arrivals().has_sides());
    let on_flash = core.tier().map_or(0, |tier| tier.statistics().used_bytes);
    let mut windows = 0..core.space.segments.len() as u32;
    (entries > FEW_OBJECTS || on_flash > 0)
        && core.cleared().has_room()
        && core.cleaners.threads() > 0
        && !sides
        && !core.is_loading()
        && !windows.any(|window| core.is_held(window))
}

/// Counts the entries of the guard's own group that a clear has left to be counted (cleared::K2).
/// The guard is alone.
fn count_group(core: &Core, group: Range<usize>, counters: &Counters) {
    let mut at = group.start;
    while at < group.end {
        let location = Space::location(at);
        // SAFETY: whole entries that this guard appended.
        let entry = unsafe { entry::parse_trusted(core.space.at(location)) };
        at += entry.padded_bytes;
        core.cleared().meet(&core.space, &entry, location, counters);
    }
}

/// Counts all entries of all segments as dead.
fn kill_everything(core: &Core, counters: &Counters) {
    // Tombstones are alive in their windows, but not in the sum.
    counters.note_all_dead(core.actors.live_bytes());
    for (window, segment) in core.space.segments.iter().enumerate() {
        if segment.is_in_log() {
            counters.note_moved(window, core.live_in(window as u32) as usize);
        }
    }
    core.cleared().forget(core);
}
