//! Access to entries that may be cold: finds their bytes, and fetches them from the device.

use super::bulk::Image;
use super::holding::{Holding, bytes_of};
use super::tier::Tier;
use crate::Error;
use crate::core::Core;
use crate::core::sound::InMemory;
use crate::device::{Cold, Fetched};
use crate::space::Space;
use duramen_disk::Aligned;
use duramen_format::entry::{self, Damage};
use std::sync::atomic::Ordering;

/// Shortest piece that is read, and the longest entry that a first read is sized for.
const GUESS_BYTES_MIN: u32 = 256;

/// The result of a read for a [`Cold`].
pub(crate) enum Read {
    /// The entry, verified, in words.
    Entry(Vec<u64>),
    Longer(Cold),
    /// The entry is not there any more.
    Gone,
}

impl Tier {
    /// The read that is needed for the entry at a location, which was found in the index under the
    /// caller's pin.
    pub(crate) fn cold(&self, space: &Space, location: u64, guess_bytes: u32) -> Cold {
        let window = space.window_of(location);
        let slot = self.windows[window].slot.load(Ordering::Relaxed);
        let start = self.slot_at(slot);
        Cold {
            location,
            incarnation: space.segments[window].incarnation(),
            slot,
            offset: start + u64::from(space.offset_in_window(location)),
            bytes: guess_bytes.max(GUESS_BYTES_MIN),
            end: start + self.segment_bytes as u64,
        }
    }

    /// True if the bytes read for `cold` were of its segment until now (core::flash::F3), and the
    /// data known about its window are of that segment.
    fn was_there(&self, space: &Space, cold: &Cold) -> bool {
        let window = space.window_of(cold.location) as u32;
        self.is_there(space, window, cold.incarnation, cold.slot)
    }

    /// True if the bytes read from a slot were of this incarnation of a window until now
    /// (core::flash::F3).
    pub(super) fn is_there(&self, space: &Space, window: u32, incarnation: u32, slot: u32) -> bool {
        std::sync::atomic::fence(Ordering::SeqCst); // after the read
        let known = &self.windows[window as usize];
        space.segments[window as usize].incarnation() == incarnation
            && known.slot.load(Ordering::SeqCst) == slot
            && known.warmth.is_cold()
    }

    /// Verifies the bytes that were read.
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: these are not the bytes that were written.
    pub(crate) fn verify(&self, core: &Core, cold: &Cold, bytes: &[u8]) -> Result<Read, Error> {
        let space = &core.space;
        let (_, mask) = self.place_of(space.window_of(cold.location) as u32);
        let found = bytes.get(cold.skip()..).unwrap_or(&[]);
        let mut words: Vec<u64> = mask.words(cold.offset, found).collect();
        if !self.was_there(space, cold) {
            return Ok(Read::Gone);
        }
        let found = bytes_of(&words);
        match entry::parse(found) {
            Ok(entry) => {
                words.truncate(entry.padded_bytes / size_of::<u64>());
                Ok(Read::Entry(words))
            }
            Err(Damage::Truncated { needed, .. })
                if needed > found.len() && cold.offset + needed as u64 <= cold.end =>
            {
                Ok(Read::Longer(Cold {
                    bytes: needed as u32,
                    ..*cold
                }))
            }
            Err(_) => match mended_from_flash(core, self, cold) {
                Some(words) => Ok(Read::Entry(words)), // mended::M2: the bit was put back
                None => {
                    self.figures.read_errors.fetch_add(1, Ordering::Relaxed);
                    Err(Error::FlashFailed)
                }
            },
        }
    }

    /// Verifies the bytes that were read, and adds the entry to `holding`.
    pub(crate) fn accept(
        &self,
        core: &Core,
        holding: &Holding,
        cold: &Cold,
        bytes: &[u8],
    ) -> Result<Fetched, Error> {
        self.figures.asked.fetch_add(1, Ordering::Relaxed);
        match self.verify(core, cold, bytes)? {
            Read::Entry(words) => {
                holding.put(cold, words);
                Ok(Fetched::Held)
            }
            Read::Longer(longer) => Ok(Fetched::Longer(longer)),
            Read::Gone => Ok(Fetched::Gone),
        }
    }

    /// Reads an entry and waits for it.
    pub(crate) fn fetch(
        &self,
        core: &Core,
        holding: &Holding,
        mut cold: Cold,
    ) -> Result<(), Error> {
        loop {
            let (offset, length) = cold.span();
            let mut memory = Aligned::zeroed(length);
            let into = memory.bytes_mut();
            if self.device.read_any(offset, into).is_err() {
                self.figures.read_errors.fetch_add(1, Ordering::Relaxed);
                return Err(Error::FlashFailed);
            }
            let figures = &self.figures;
            figures.fetched.fetch_add(1, Ordering::Relaxed);
            figures
                .fetched_bytes
                .fetch_add(length as u64, Ordering::Relaxed);
            match self.accept(core, holding, &cold, into)? {
                Fetched::Longer(longer) => cold = longer,
                Fetched::Held | Fetched::Gone => return Ok(()),
            }
        }
    }

    /// As [`locate`]. Not inlined: otherwise it would be part of every loop over slots, also in
    /// stores without a tier.
    #[inline(never)]
    fn locate(
        &self,
        space: &Space,
        stamp: u64,
        holding: &Holding,
        location: u64,
    ) -> Option<InMemory> {
        if self.is_in_memory(space.window_of(location), stamp) {
            return Some(InMemory::in_window(space, location));
        }
        let (at, available) = self.copy_of(space, holding, location)?;
        Some(InMemory {
            at,
            available,
            is_copy: true,
        })
    }

    /// Probable address of an entry, to be prefetched; `None`: the entry is on the device alone.
    /// Not inlined, as `locate`.
    #[inline(never)]
    pub(crate) fn probably_at(&self, space: &Space, location: u64) -> Option<*const u8> {
        if self.is_cold(space.window_of(location)) {
            return self.promoted.peek(space, location);
        }
        Some(space.at(location))
    }

    /// A copy of a cold entry, if there is one, and the bytes that may be read there.
    #[cold]
    fn copy_of(
        &self,
        space: &Space,
        holding: &Holding,
        location: u64,
    ) -> Option<(*const u8, usize)> {
        let incarnation = space.segments[space.window_of(location)].incarnation();
        if let Some(copy) = holding.get(location, incarnation) {
            self.figures.held_hits.fetch_add(1, Ordering::Relaxed);
            return Some(copy);
        }
        self.promoted.get(space, location, incarnation)
    }
}

/// The bytes of an entry that the index points to under the pin of `stamp`; `None`: on the device
/// alone.
#[inline(always)]
pub(crate) fn locate(
    core: &Core,
    stamp: impl FnOnce() -> u64,
    holding: &Holding,
    location: u64,
) -> Option<InMemory> {
    let space = &core.space;
    match core.tier() {
        None => Some(InMemory::in_window(space, location)),
        Some(tier) => tier.locate(space, stamp(), holding, location),
    }
}

/// The bytes of an entry that the index points to, for a thread that is pinned by `stamp` and may
/// wait for the device. A copy lives as long as `holding` does.
pub(crate) fn locate_now(
    core: &Core,
    stamp: u64,
    holding: &Holding,
    location: u64,
) -> Result<*const u8, Error> {
    loop {
        if let Some(here) = locate(core, || stamp, holding, location) {
            return Ok(here.at);
        }
        if let Some(tier) = core.tier() {
            let cold = tier.cold(&core.space, location, GUESS_BYTES_MIN);
            tier.fetch(core, holding, cold)?;
        }
    }
}

/// The words of an entry that did not match its checksum when it was read from flash alone: reads
/// all of its segment again (mended::M2). `None`: the entry has more damage, or is gone. Its
/// segment then counts as unreadable, and is not read again for a while (core::flash::F5): so a
/// device that fails costs no more than one such read now and then.
#[cold]
fn mended_from_flash(core: &Core, tier: &Tier, cold: &Cold) -> Option<Vec<u64>> {
    let window = core.space.window_of(cold.location);
    if tier.is_bad(window) {
        return None;
    }
    let image = Image::read(core, window as u32, cold.incarnation).ok()??;
    let from = core.space.offset_in_window(cold.location) as usize;
    let words = image.mended_entry(core, from);
    if words.is_none() {
        tier.was_readable(window as u32, false);
    }
    words
}
