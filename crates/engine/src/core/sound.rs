//! Verification of entries in memory, before anything decides by them or copies them.
//!
//! Memory may change a bit at any time. A copy gets the sums of a sound entry, and a decision by a
//! wrong field may lose an object: after that no sum shows the damage.
//!
//! **Invariants**
//! - V1: cleaning, expiry, clears, purges, exports and side logs use an entry only as it was
//!   verified by its own checksum. One flipped bit is put back in a copy of the entry; the
//!   segment itself is never changed, because readers take no lock.
//! - V2: an entry with more damage keeps its segment: nobody cleans the segment, and the damage is
//!   reported. Nothing is dropped or moved from the segment, so its replicas on disk stay listed.

use super::Core;
use super::damage::{EntryDamage, Finding};
use crate::space::Space;
use duramen_base::ids::SegmentId;
use duramen_format::entry::{self, Damage, ENTRY_BYTES_MAX, Entry};
use duramen_format::mend::{self, Mended};

/// The bytes of an entry.
#[derive(Clone, Copy)]
pub struct InMemory {
    pub at: *const u8,
    /// Readable bytes from there on: up to the end of the window, or of the copy.
    pub available: usize,
    /// Whether these are the bytes of a copy, not of the entry in its own window.
    pub is_copy: bool,
}

impl InMemory {
    /// The bytes at a location, in its own window.
    #[inline(always)]
    pub fn in_window(space: &Space, location: u64) -> InMemory {
        InMemory {
            at: space.at(location),
            available: space.segment_bytes() - space.offset_in_window(location) as usize,
            is_copy: false,
        }
    }
}

/// A verified entry.
pub struct Sound<'a> {
    /// Not to be used longer than `copy` exists.
    pub entry: Entry<'a>,
    /// The bytes of `entry`, if a bit of it was put back; words, because entries are aligned.
    pub copy: Option<Vec<u64>>,
}

/// Verifies the entry at `location`, whose segment ends at the offset `end` of the region. The
/// damage is reported once.
///
/// # Safety
/// The bytes between are initialised and in memory. Those of the entry stay unchanged for `'a`;
/// those behind it may be written meanwhile.
#[inline]
pub unsafe fn verify<'a>(core: &Core, location: u64, end: usize) -> Result<Sound<'a>, Damage> {
    let available = end.saturating_sub(Space::offset(location));
    let here = InMemory {
        at: core.space.at(location),
        available,
        is_copy: false,
    };
    // SAFETY: as the caller promises.
    match unsafe { entry::parse_at(here.at, available) } {
        Ok(entry) => Ok(Sound { entry, copy: None }),
        Err(damage) => {
            // SAFETY: as the caller promises.
            let words = unsafe { mended_copy(core, location, here) }.ok_or(damage)?;
            // SAFETY: the copy was verified, and the caller promises to keep it.
            let entry = unsafe { entry::parse_trusted(words.as_ptr().cast()) };
            let copy = Some(words);
            Ok(Sound { entry, copy })
        }
    }
}

/// As [`verify`], for an entry that the index points to under the caller's pin, and that is in
/// memory.
#[inline]
pub fn at(core: &Core, location: u64) -> Result<Sound<'_>, Damage> {
    let window = core.space.window_of(location);
    let end = core.space.offset_of(window as u32) + core.space.segment_bytes();
    // SAFETY: all of the region is readable. The index pointed to the entry under the pin: it is
    // not changed or reused before the pin ends (epoch::E2, engine::space::S3), and its memory
    // stays as long (core::flash::F2). The caller does not use it for longer.
    unsafe { verify(core, location, end) }
}

/// The verified words of an entry with damage, of which the flipped bit is put back. `None`: one
/// bit does not explain the damage. The damage is reported once.
///
/// # Safety
/// As [`verify`], for the bytes of `here`, which are the entry at `location` or a copy of it.
#[cold]
pub unsafe fn mended_copy(core: &Core, location: u64, here: InMemory) -> Option<Vec<u64>> {
    let window = core.space.window_of(location);
    let segment = &core.space.segments[window];
    let in_window = core.space.offset_in_window(location) as usize;
    let mut length = here.available.min(ENTRY_BYTES_MAX);
    if !here.is_copy {
        // No memory behind the segment's end is touched, as it may not be backed. A window that was
        // read back from flash has nothing committed.
        let end = segment.committed_bytes().max(segment.appended_bytes()) as usize;
        length = length.min(end.saturating_sub(in_window));
    }
    // Another copy may be there later, so what was found in one is no verdict.
    let place = match here.is_copy {
        true => (here.at as u64, u64::MAX),
        false => (location, u64::from(segment.incarnation())),
    };
    let known = core.listeners.damages.known(place);
    if known == Some(Finding::Unexplained) && !here.is_copy {
        return None; // it was searched before
    }
    // SAFETY: as the caller promises.
    let mut bytes = unsafe { bytes_at(here.at, length) };
    let known = known.and_then(Finding::flip);
    let flip = known.filter(|flip| flip.restores(&mut bytes));
    let flip = flip.or_else(|| mend::entry(&mut bytes));
    let mended = match (flip, entry::parse(&bytes)) {
        (Some(flip), Ok(entry)) => Ok((Mended::of(in_window, &entry, flip), entry.padded_bytes)),
        (_, Err(damage)) => Err(damage),
        (None, Ok(_)) => return None, // another thread changes the bytes meanwhile
    };
    let log = core.log.as_ref();
    let told = EntryDamage {
        segment: log.map_or(SegmentId::NONE, |log| log.segment_of(window)),
        is_mended: mended.is_ok(),
        what: match &mended {
            Ok((mended, _)) => mended.to_string(),
            Err(damage) => format!("byte {in_window}: {damage}"),
        },
    };
    let damages = &core.listeners.damages;
    damages.tell_once(place, Finding::of(flip), told);
    let (_, length) = mended.ok()?;
    let (words, _) = bytes.get(..length)?.as_chunks();
    Some(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// A copy of what may be an entry at a location, to be verified; empty if there is none. `None`: it
/// would be on flash. For searches of an entry to which no slot points (`core::slots`). Pinned.
#[cold]
pub fn bytes_of_guess(core: &Core, location: u64) -> Option<Vec<u8>> {
    let window = core.space.window_of(location);
    let Some(segment) = core.space.segments.get(window) else {
        return Some(Vec::new()); // beyond the region
    };
    if core.is_cold(window as u32) {
        return None;
    }
    let here = InMemory::in_window(&core.space, location);
    // As in `mended_copy`.
    let end = segment.committed_bytes().max(segment.appended_bytes()) as usize;
    let available = end.saturating_sub(core.space.offset_in_window(location) as usize);
    // SAFETY: a location is a multiple of 8 bytes, and the bytes are backed memory of the region.
    // They may be written meanwhile, so the copy may be of anything: the caller verifies it.
    let bytes = unsafe {
        let header = entry::header_at(here.at, available);
        let length = header.map_or(0, |header| header.padded_bytes());
        bytes_at(here.at, length.min(available).min(ENTRY_BYTES_MAX))
    };
    Some(bytes)
}

/// A copy of memory of which a part may be written meanwhile.
///
/// # Safety
/// `at` is aligned as entries are, and the bytes are readable.
unsafe fn bytes_at(at: *const u8, length: usize) -> Vec<u8> {
    let words = (0..length / 8).flat_map(|n| {
        // SAFETY: as the caller promises. Volatile, because bytes behind the entry may change.
        let word: u64 = unsafe { at.cast::<u64>().add(n).read_volatile() };
        word.to_ne_bytes()
    });
    words.collect()
}
