//! Room for a group, set aside before its first entry. Then the group's appends cannot fail for
//! want of memory, of a segment, or of the disk, and the group is done as a whole or not at all.
//!
//! **Invariants**
//! - R1: a group with room for its appends opens no window that was not set aside, waits for no
//!   memory, and is not refused because the disk has filled up. So a caller whose writes are known
//!   in advance requests room first, and fails there.
//! - R2: windows that were set aside belong to the guard, and no other thread has seen them; unused
//!   ones go back to the store at the end of the group.
//! - R3: a group that is longer than a segment continues in the next ones, and is collected as a
//!   whole (engine::log::L2). It is one step only if a commit is one step, and if it is no longer
//!   than a commit may be: for a member of a cluster, each segment has certificates of its own. A
//!   longer group is refused.
//! - R4: live data do not fill the reserve of removals. A window that was opened for deletes takes
//!   another entry only if a window could be opened for that entry now. Otherwise each delete would
//!   open a window of the reserve, rewrites would fill it, and in the end no delete would find one.
//! - R5: a step that has looked at its keys, locked or alone, meets none on flash once it has
//!   room. To seek room, its guard renews its pin, and what it met in memory may be on flash
//!   afterwards. Such entries are read before room is granted: a device that fails is an error of a
//!   step that has written nothing. The locks name the keys. A guard that is alone has none, so its
//!   caller names them ([`Pin::warm_alone`]). One gap is open: a promoted copy that the step has
//!   met may be given up, and its write then reads the device.

use crate::core::Core;
use crate::session::append::Appender;
use crate::session::order::settle_alone;
use crate::session::roll::{roll, takes};
use crate::session::{Guard, Pin};
use crate::space::{Purpose, SEGMENT_HEADER_BYTES};
use crate::{Error, LogOptions};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::{ALIGN_BYTES, NewObject, NewTombstone};

/// Maximum bytes that a group is going to append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    objects_bytes: usize,
    tombstones_bytes: usize,
    /// Bytes of its longest entry.
    longest_bytes: usize,
}

impl Room {
    /// Adds an object with this key and `value_bytes` of value.
    pub fn put(&mut self, key: &[u8], value_bytes: usize) {
        let longest = NewObject {
            table: u32::MAX,
            version: u64::MAX,
            expires_at_ms: Some(u64::MAX),
            key,
            value: &[],
            victim: SegmentId(u64::MAX),
            is_typed: false,
        };
        let bytes = (longest.padded_bytes() + value_bytes).next_multiple_of(ALIGN_BYTES);
        self.objects_bytes += bytes;
        self.longest_bytes = self.longest_bytes.max(bytes);
    }

    /// The bytes of its appends in this store: a tombstone is needed only with a log.
    pub(crate) fn bytes_in(&self, core: &Core) -> usize {
        let tombstones = core.log.as_ref().map_or(0, |_| self.tombstones_bytes);
        match has_bug(Bug::GroupsOverSegments) {
            true => self.longest_bytes,
            false => self.objects_bytes + tombstones,
        }
    }

    /// The purpose for which an appender takes memory for it.
    pub(crate) fn purpose_of(&self, append: &Appender<'_>) -> Purpose {
        if self.objects_bytes == 0 {
            Purpose::Tombstones
        } else {
            append.purpose()
        }
    }

    /// Whether its objects take no more than those of another.
    pub(crate) fn fits_into(&self, other: &Room) -> bool {
        self.objects_bytes <= other.objects_bytes
    }

    /// Adds the removal of a key.
    pub fn remove(&mut self, key: &[u8]) {
        let tombstone = NewTombstone {
            table: u32::MAX,
            version: u64::MAX,
            key,
            victim: SegmentId(u64::MAX),
        };
        let bytes = tombstone.padded_bytes();
        self.tombstones_bytes += bytes;
        self.longest_bytes = self.longest_bytes.max(bytes);
    }
}

impl Guard<'_> {
    /// Sets room aside for the writes of the open step: from here on it cannot fail for want of
    /// memory or disk. Called between [`lock_keys`](Self::lock_keys) and its first write, or under
    /// an exclusive guard. All that the step has met in memory is still there, or was read from
    /// flash (R5).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DiskFull`], [`Error::DiskFailed`],
    /// [`Error::GroupTooLarge`], [`Error::Crowded`], [`Error::FlashFailed`]: nothing was written.
    ///
    /// # Panics
    /// Outside of both.
    pub fn set_aside(&mut self, room: Room) -> Result<(), Error> {
        set_room_aside(self, room, true)
    }
}

/// As [`Guard::set_aside`]. `has_looked`: the step has looked at its keys. If not, it does so under
/// its room, and nothing is read for it here.
pub(crate) fn set_room_aside(
    guard: &mut Guard<'_>,
    room: Room,
    has_looked: bool,
) -> Result<(), Error> {
    if room == Room::default() || guard.draft().is_some() {
        return Ok(());
    }
    let Guard { pin, append, .. } = guard;
    assert!(pin.is_in_step(), "room is set aside for a step");
    let (core, stamp) = (pin.core(), pin.entries().stamp());
    if let Some(log) = &core.log {
        log.refusals().check()?;
    }
    if pin.is_alone() {
        settle_alone(core, append.stream())?;
    } else {
        pin.settle_locked()?;
    }
    if room.objects_bytes > 0 && pin.locks().are_crowded() {
        return Err(Error::Crowded);
    }
    let bytes = room.bytes_in(core);
    let purpose = room.purpose_of(append);
    set_windows_aside(append, pin, room)?;
    while append.windows_ahead() == 0 {
        append.take_head(pin);
        let (head, tail) = (append.head(), append.tail());
        if tail.fits(bytes) && takes(core, tail, purpose) {
            break;
        }
        if !roll(core, head, tail, bytes, purpose)? {
            append.make_room(pin, purpose)?;
        }
    }
    if has_looked && pin.entries().stamp() != stamp {
        pin.warm_locked()?; // R5: nothing is on flash afterwards
    }
    append.grant();
    Ok(())
}

/// Sets windows aside for a group that is longer than a segment. Also before keys are locked: then
/// others can go on while memory is sought.
pub(crate) fn set_windows_aside<'s>(
    append: &mut Appender<'s>,
    pin: &mut Pin<'s>,
    room: Room,
) -> Result<(), Error> {
    let core = pin.core();
    let one = core.space.segment_bytes() - SEGMENT_HEADER_BYTES;
    let bytes = room.bytes_in(core);
    if bytes <= one {
        return Ok(());
    }
    let most = core
        .log
        .as_ref()
        .map_or(u64::MAX, |log| log.options().group_bytes_max);
    let limit = one.max(usize::try_from(most).unwrap_or(usize::MAX));
    if bytes > limit || room.longest_bytes > one {
        return Err(Error::GroupTooLarge { bytes, limit }); // R3: it would not be one step
    }
    let purpose = room.purpose_of(append);
    let more_bytes = room.objects_bytes as u64;
    let is_head = !core.is_cache() && purpose == Purpose::Head;
    if core.refuses(purpose)
        || is_head && core.has_more_than(core.live_limit().saturating_sub(more_bytes))
    {
        return Err(core.out_of_memory());
    }
    // Each segment is filled until the next entry does not fit.
    let wanted = bytes.div_ceil(one - room.longest_bytes + 8);
    while append.windows_ahead() < wanted {
        match core.windows().set_aside(append.head().node, purpose) {
            Some(window) => append.put_ahead(window),
            None => append.make_room(pin, purpose)?,
        }
    }
    Ok(())
}

impl LogOptions {
    /// Number of segments that the longest group takes at once.
    pub fn group_segments_max(&self, segment_bytes: u64) -> u64 {
        // Each segment is filled until the next entry does not fit. It is at least half full then,
        // because two of the longest entries fit into it.
        self.group_bytes_max
            .saturating_mul(2)
            .div_ceil(segment_bytes)
    }
}
