//! Rolling a head to a new segment, and keeping a group of entries in one segment.
//!
//! A group whose length is known beforehand has its room set aside (`room`), and is never moved.
//! The rest of this text is about other groups.
//!
//! A group (a transaction, or the writes of an exclusive guard) is collected as a whole and is in
//! one segment, under one certificate. So a crash keeps all of it or nothing. When its segment is
//! full, its entries so far are copied to the start of the next one and cut off the old one. No
//! other thread has seen them: readers of their keys wait for the transaction, and the consumer is
//! not shown an open group.

use crate::core::Core;
use crate::head::{Head, Tail};
use crate::index::bucket;
use crate::log::Log;
use crate::space::{Purpose, SEGMENT_HEADER_BYTES, Space};
use crate::{Error, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::{self, Entry, Kind};
use std::ops::Range;

/// True if entries for this purpose may go into the head's open window (room::R4).
#[inline(always)]
pub(crate) fn takes(core: &Core, tail: &Tail, purpose: Purpose) -> bool {
    !tail.is_for_deletes() || reserve_takes(core, purpose)
}

#[cold]
fn reserve_takes(core: &Core, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Head => false,
        Purpose::Tombstones => true,
        _ => !core.refuses(purpose) && core.disk_has_room(purpose),
    }
}

/// Gives the head a fresh window for an entry of `bytes`. `Ok(false)`: none is free now.
///
/// # Errors
/// [`Error::OutOfMemory`], [`Error::GroupTooLarge`].
#[cold]
pub(crate) fn roll(
    core: &Core,
    head: &Head,
    tail: &mut Tail,
    bytes: usize,
    purpose: Purpose,
) -> Result<bool, Error> {
    if core.refuses(purpose) {
        return Err(core.out_of_memory());
    }
    core.space.tend_scarcity();
    let is_full = core.refuses(Purpose::Head);
    if tail.is_for_deletes() && purpose != Purpose::Tombstones && tail.fits(bytes) {
        if purpose != Purpose::Head {
            return Ok(takes(core, tail, purpose));
        }
        // The reserve for tombstones is full again, in memory and on disk: the window becomes an
        // ordinary one.
        let is_spare = core.space.free_windows(head.node) > 0 && core.disk_has_room(purpose);
        tail.set_for_deletes(!is_spare);
        return Ok(is_spare);
    }
    let limit = core.space.segment_bytes() - SEGMENT_HEADER_BYTES;
    let needed = tail.group().len() + bytes;
    if tail.in_group() && needed > limit {
        return Err(Error::GroupTooLarge {
            bytes: needed,
            limit,
        });
    }
    let mut for_deletes = is_full;
    let mut window = core.windows().open(head.node, Purpose::Head, head.number);
    if window.is_none() && matches!(purpose, Purpose::Tombstones | Purpose::Rewrite) {
        for_deletes = true;
        window = core.windows().open(head.node, purpose, head.number);
    }
    if window.is_none() && purpose == Purpose::Tombstones && core.space.reserves.are_scarce() {
        window = core.windows().open_short(head.node, needed, head.number);
    }
    let Some(window) = window else {
        return Ok(false);
    };
    match &core.log {
        None => tail.roll(&core.space, window),
        Some(log) => continue_in(core, log, head, tail, window),
    }
    tail.set_for_deletes(for_deletes);
    // Wakes the cleaners, which clean or prepare the next window.
    core.cleaners.wake();
    Ok(true)
}

/// Continues in `window`, and moves the open group there.
fn continue_in(core: &Core, log: &Log, head: &Head, tail: &mut Tail, window: u32) {
    let in_group = tail.in_group();
    if has_bug(Bug::GroupsOverSegments) {
        tail.end_group();
    }
    let group = tail.group();
    let old = tail.window();
    // The group is copied before the old window is closed, because the memory of its tail may go
    // back to the system then. SAFETY: source: bytes that this head appended to its own window;
    // target: a fresh window of its own, where the group is going to be taken below. A group is
    // shorter than a window (checked by the caller).
    unsafe {
        let to = core.space.offset_of(window) + SEGMENT_HEADER_BYTES;
        let from = core.space.at(Space::location(group.start));
        from.copy_to_nonoverlapping(core.space.at(Space::location(to)), group.len());
    }
    tail.cut_group();
    tail.end_group();
    let streams = log.streams();
    streams.enter(log.windows(), &core.space, head.number, tail, window);
    if in_group {
        tail.begin_group();
    }
    let stream = streams.of_head(head.number);
    if let Some(old) = old.filter(|_| !group.is_empty()) {
        let to = tail.take(group.len());
        tail.record(&core.space);
        move_group(core, head, group, old, to, window);
        // Nothing of the new segment is collected before the whole group is there
        // (engine::log::L2).
        stream.publish(tail.position(), true);
    } else {
        stream.publish(tail.position(), false);
    }
}

/// Moves a group's entries in the index and the counters from the old window to the new one.
fn move_group(core: &Core, head: &Head, group: Range<usize>, old: u32, to: usize, new: u32) {
    let (mut at, mut dead) = (group.start, 0);
    let segments = &core.space.segments;
    while at < group.end {
        let copy = Space::location(to + at - group.start);
        // SAFETY: whole entries that this head appended, and `continue_in` copied.
        let entry = unsafe { entry::parse_trusted(core.space.at(copy)) };
        if entry.kind == Kind::Object {
            if !point_to(core, &entry, Space::location(at), copy) {
                dead += entry.padded_bytes as u64;
            }
            if entry.expires_at_ms != 0 {
                let (bytes, expires_at_ms) = (entry.padded_bytes as u32, entry.expires_at_ms);
                segments[old as usize].take_back_expiry(bytes, expires_at_ms);
                segments[new as usize].note_expiry(bytes, expires_at_ms);
            }
        }
        at += entry.padded_bytes;
    }
    head.counters.move_dead(old as usize, new as usize, dead);
}

/// Makes the slot that points to `from` point to `to`. Returns false if there is none: the entry is
/// dead. The guard holds the locks of its group's keys, or is alone.
fn point_to(core: &Core, entry: &Entry<'_>, from: u64, to: u64) -> bool {
    let Ok(index) = core.tables.index(TableId(entry.table)) else {
        return false;
    };
    let hash = core.tables.hash(entry.key);
    let view = index.partition(hash).view();
    if view.len() == 0 {
        return false;
    }
    match view.find_location(index.tag(hash), from) {
        Some((place, slot)) => {
            bucket::publish(place, slot.moved_to(to));
            true
        }
        None => false,
    }
}
