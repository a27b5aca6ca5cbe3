//! The search for tombstones that may be dropped by now.

use crate::TableId;
use crate::core::Core;
use crate::core::cleaning::seat::Seat;
use crate::log::Log;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use duramen_format::entry;

/// Searches one segment for tombstones that may be dropped by now, so that the segment does not
/// count as fuller than it is. Returns false if no segment's result could have changed.
pub(super) fn rescan(core: &Core, log: &Log, seat: Seat) -> bool {
    let Some(window) = next_window(core, log, seat) else {
        return false;
    };
    if !seat.enter(core) {
        return false;
    }
    let segment = &core.space.segments[window as usize];
    let incarnation = segment.incarnation();
    let done = log.swaps().swaps_done();
    let (mut kept, mut droppable) = (0, 0);
    // A window that is closed under the pin is not reused before the pin ends. One that is in
    // memory stays there until then.
    if segment.is_closed() && !core.is_cold(window) {
        let start = core.space.offset_of(window);
        let end = start + segment.appended_bytes() as usize;
        let mut at = start + SEGMENT_HEADER_BYTES;
        let needs = log.swaps().list().needs();
        while at < end {
            // SAFETY: a closed segment is initialised from its header to `appended`; the pin
            // keeps the window.
            let rest =
                unsafe { std::slice::from_raw_parts(core.space.at(Space::location(at)), end - at) };
            // The result is an estimate: nothing is dropped because of it, so only lengths are
            // checked.
            let Ok(entry) = entry::parse_again(rest) else {
                break;
            };
            at += entry.padded_bytes;
            let needed = match entry.kind {
                entry::Kind::Object => continue,
                entry::Kind::Tombstone => needs.tombstone(entry.victim, &[]),
                entry::Kind::Completion => core.listeners.tracker.keeps(&entry),
            };
            let bytes = entry.padded_bytes as u32;
            if needed && core.tables.index(TableId(entry.table)).is_ok() {
                kept += bytes;
            } else {
                droppable += bytes;
            }
        }
        drop(needs);
        log.swaps()
            .rescan()
            .note(window, incarnation, done, kept, droppable);
    }
    seat.leave(core);
    true
}

fn next_window(core: &Core, log: &Log, seat: Seat) -> Option<u32> {
    let windows = core.space.windows_of_node(seat.node());
    let (rescan, done) = (log.swaps().rescan(), log.swaps().swaps_done());
    let is_due = |window: &u32| {
        let segment = &core.space.segments[*window as usize];
        segment.is_closed()
            && !core.is_cold(*window)
            && log.is_victim_to_be(*window)
            && rescan.is_wanted(*window, segment.incarnation(), done)
    };
    let from = rescan.cursor(windows.len());
    let found = windows
        .clone()
        .skip(from)
        .chain(windows.clone().take(from))
        .find(is_due)?;
    rescan.set_cursor((found - windows.start) as usize + 1);
    Some(found)
}
