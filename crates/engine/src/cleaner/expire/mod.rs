//! The expiry pass over one segment: expired entries that are durable leave the index. Entries that
//! could still vanish stay, because a miss would not have a position to depend on.

use super::candidate::{Candidate, GROUP};
use crate::core::Core;
use crate::core::cleaning::Context;
use crate::core::cleaning::seat::Seat;
use crate::core::flash::tier::background_reads::Expiries;
use crate::core::sound::{self, Sound};
use crate::counters::{Counters, add};
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use crate::{Departure, TableId};
use duramen_base::expiry::is_expired;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry;

/// The entry at `location`. It is verified if it has expired, or if `verifies_all` (sound::V1).
/// `None`: the entry has damage.
///
/// # Safety
/// As [`sound::verify`].
unsafe fn look<'a>(
    core: &Core,
    location: u64,
    end: usize,
    verifies_all: bool,
) -> Option<Sound<'a>> {
    if verifies_all {
        // SAFETY: as the caller promises.
        return unsafe { sound::verify(core, location, end) }.ok();
    }
    let length = end - Space::offset(location);
    // SAFETY: as the caller promises.
    let bytes: &'a [u8] = unsafe { std::slice::from_raw_parts(core.space.at(location), length) };
    let entry = entry::parse_again(bytes).ok()?;
    let now_ms = core.clock().now_ms();
    let has_expired = entry.expires_at_ms != 0 && is_expired(entry.expires_at_ms, now_ms);
    if has_expired && !has_bug(Bug::ExpiresUnverified) {
        entry::parse(bytes).ok()?;
    }
    Some(Sound { entry, copy: None })
}

/// Whether this incarnation of a window may be examined, and its bytes are where the caller expects
/// them. The caller is pinned: a window that is in the log under the pin is not reused until the
/// pin ends.
fn is_usable(core: &Core, window: u32, incarnation: u32, warmed: bool) -> bool {
    let segment = &core.space.segments[window as usize];
    // The state is loaded first: a thread that sees the window opened again also sees its new
    // incarnation. It may have been reused before the pin, also by a side log (swap::D6).
    segment.is_in_log()
        && segment.incarnation() == incarnation
        && core.is_cold(window) == warmed
        && !core.is_held(window)
}

/// Drops the expired entries of one segment. The segment may still be open: only the part that is
/// recorded as appended is examined. `warmed`: it is on flash, and the caller has claimed it and
/// read it back.
fn expire_segment(core: &Core, window: u32, warmed: bool, seat: Seat) {
    let segment = &core.space.segments[window as usize];
    let counters = seat.counters(core);
    let start = core.space.offset_of(window);
    let mut at = start + SEGMENT_HEADER_BYTES;
    let mut waiting = segment.waiting_expiry();
    let mut expiries = Expiries::new(core.clock().now_ms());
    let believed_ms = core.clock().believed_ms();
    let incarnation = segment.incarnation();
    // Set once an entry has damage: the length of an entry that is not verified may then be wrong.
    let mut verifies_all = false;
    loop {
        if !seat.enter(core) {
            return;
        }
        let usable = is_usable(core, window, incarnation, warmed);
        // read before `end`: all bytes that are counted here lie before it
        let seen = segment.seen_expiry();
        let end = start + segment.appended_bytes() as usize;
        let mut looked = 0;
        while usable && at < end && looked < 8 * GROUP {
            let location = Space::location(at);
            // SAFETY: entries are whole up to `appended` (Release in `set_appended`), and the pin
            // keeps the window.
            let sound = unsafe { look(core, location, end, verifies_all) };
            let Some(Sound { entry, copy: _copy }) = sound else {
                if verifies_all {
                    at = end; // sound::V2: nothing behind damage expires
                    break;
                }
                (verifies_all, at) = (true, start + SEGMENT_HEADER_BYTES);
                waiting = segment.waiting_expiry();
                expiries = Expiries::new(core.clock().now_ms());
                continue;
            };
            at += entry.padded_bytes;
            looked += 1;
            if entry.expires_at_ms == 0 {
                continue;
            }
            let has_expired = is_expired(entry.expires_at_ms, core.clock().now_ms());
            if !has_expired || core.space.is_undurable(location) {
                waiting.note(entry.padded_bytes, entry.expires_at_ms);
                expiries.note(entry.expires_at_ms, entry.padded_bytes);
            } else if let Ok(index) = core.tables.index(TableId(entry.table)) {
                let candidate = Candidate::new(core, index, location, entry, false);
                if drop_expired(core, &candidate, believed_ms, counters, seat.me()) == Some(false) {
                    waiting.note(entry.padded_bytes, entry.expires_at_ms);
                    expiries.note(core.clock().now_ms(), entry.padded_bytes);
                }
            }
        }
        if usable && at >= end {
            let again_ms = core.clock().now_ms() + 1000;
            segment.reset_expiry(&seen, &waiting, again_ms);
            if let (Some(tier), true) = (core.tier(), warmed) {
                tier.set_due(window, &expiries);
            }
        }
        seat.leave(core);
        if !usable || at >= end {
            return;
        }
    }
}

/// Drops an expired entry. `Some(false)`: the entry is due once more, because a transaction holds
/// its bucket, or because its tombstone has to be written first (core::doubt::DC1).
fn drop_expired(
    core: &Core,
    candidate: &Candidate<'_>,
    believed_ms: u64,
    counters: &Counters,
    me: u16,
) -> Option<bool> {
    let (table, key) = (TableId(candidate.entry.table), candidate.entry.key);
    if !is_expired(candidate.entry.expires_at_ms, believed_ms) {
        candidate.find()?;
        core.clock().note_doubted(table, key);
        return Some(false);
    }
    let dropped = candidate.drop_from_index(core, counters, me);
    if dropped == Some(true) {
        add(&counters.expired, 1);
        core.listeners
            .departures
            .tell(Departure::Expired, table, key);
    }
    dropped
}

/// Runs the expiry pass over one segment, as the holder of the context in this seat.
pub fn expire(core: &Core, window: u32, seat: Seat) {
    expire_segment(core, window, false, seat);
}

/// As [`expire`], for a segment on flash, which is read for this by a context that has read no
/// other.
pub fn expire_cold(core: &Core, window: u32, context: &Context) {
    let Some(demotion) = core.demotion() else {
        return;
    };
    let segment = &core.space.segments[window as usize];
    if context.has_warmed() || !segment.claim() {
        return;
    }
    // Looked at again: in between, a side log may have got the window (swap::D6).
    let is_free = core.is_cold(window) && !core.is_held(window);
    if is_free && demotion.warm(window) {
        expire_segment(core, window, true, context.seat);
        core.space.memory.decommit(window);
    }
    segment.unclaim();
}

#[cfg(all(test, debug_assertions))]
mod tests;
