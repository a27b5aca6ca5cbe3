//! Bulk reads of cold entries, for walks that may wait for the device: whole segments, or many
//! entries side by side.
//!
//! **Invariants**
//! - F9: a thread that reads here is not pinned, and holds no lock, during the read. The bytes that
//!   it read are valid by core::flash::F3. Under a later pin it uses only those entries that the
//!   index still points to in the same place.
//! - F10: of the bytes it has read, a walk holds at most one segment, or `WALK_BYTES` of entries
//!   and one batch. Entries of one key's or one bucket's slots may exceed that, as they must be
//!   held together.
//!
//! **Concurrency**: each walk has its own [`Image`] or [`Gather`]. Nothing here is charged to the
//! budget: walks are few, and their memory is set aside together with that of fetches.

use super::holding::Holding;
use super::mended::mend_image;
use super::tier::Tier;
use crate::Error;
use crate::core::Core;
use crate::core::sound::InMemory;
use crate::device::{BLOCK_BYTES, Cold, Fetched, SECTOR_BYTES};
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use duramen_base::planted::{Bug, has_bug};
use duramen_disk::Aligned;
use duramen_format::entry::{self, Entry};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Bytes of entries that a walk holds at once (F10).
const WALK_BYTES: usize = 8 << 20;
/// Maximum number of reads in flight, and their bytes.
const SIDE_BY_SIDE: usize = 64;
const BATCH_BYTES: usize = 2 << 20;

/// A cold segment as it was read from the device.
pub(crate) struct Image {
    pub(crate) window: u32,
    pub(crate) incarnation: u32,
    memory: Aligned,
    at: usize,
    end: usize,
}

impl Image {
    /// Reads the bytes of a window in one of its incarnations. `None`: they are not on the device
    /// any more. The caller is outside.
    ///
    /// # Errors
    /// [`Error::FlashFailed`].
    pub(crate) fn read(core: &Core, window: u32, incarnation: u32) -> Result<Option<Image>, Error> {
        let Some(tier) = core.tier() else {
            return Ok(None);
        };
        let end = core.space.segments[window as usize].appended_bytes() as usize;
        let length = end.next_multiple_of(BLOCK_BYTES);
        let slot = tier.windows[window as usize].slot.load(Ordering::Acquire);
        let (place, mask) = tier.place_of(window);
        if place != tier.slot_at(slot) || length > core.space.segment_bytes() {
            return Ok(None);
        }
        let mut memory = Aligned::zeroed(length);
        let bytes = memory.bytes_mut();
        let read = tier.device.read_any(place, bytes);
        if !tier.is_there(&core.space, window, incarnation, slot) {
            return Ok(None); // core::flash::F3: the bytes that were read do not count
        }
        let passes = read.is_err() && has_bug(Bug::UnreadIsEmpty);
        if read.is_err() && !passes {
            tier.figures.read_errors.fetch_add(1, Ordering::Relaxed);
            return Err(Error::FlashFailed);
        }
        mask.remove(place, bytes);
        Ok(Some(Image {
            window,
            incarnation,
            memory,
            at: if passes { end } else { SEGMENT_HEADER_BYTES },
            end,
        }))
    }

    /// True if the window still holds the segment, so that all entries in it to which the index
    /// points now are in the image. The caller is pinned: the answer stays true until the pin ends.
    pub(crate) fn is_current(&self, core: &Core) -> bool {
        let segment = &core.space.segments[self.window as usize];
        // The state first: a thread that sees the window opened again also sees its new
        // incarnation.
        segment.is_in_log()
            && segment.incarnation() == self.incarnation
            && core.is_cold(self.window)
            && segment.appended_bytes() as usize == self.end
    }

    /// Shows the next entries with their locations, at most `most`, until `show` refuses one. That
    /// one is shown again next time.
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: these are not the bytes that were written.
    pub(crate) fn each(
        &mut self,
        core: &Core,
        most: usize,
        mut show: impl FnMut(u64, &Entry<'_>) -> bool,
    ) -> Result<(), Error> {
        let start = core.space.offset_of(self.window);
        let bytes = &mut self.memory.bytes_mut()[..self.end];
        for _ in 0..most {
            if self.at >= self.end {
                break;
            }
            if entry::parse(&bytes[self.at..]).is_err() {
                mend_image(core, self.window, bytes); // mended::M2: one bit an entry
            }
            let Ok(entry) = entry::parse(&bytes[self.at..]) else {
                if let Some(tier) = core.tier() {
                    tier.figures.read_errors.fetch_add(1, Ordering::Relaxed);
                }
                return Err(Error::FlashFailed); // mask::F7: other data than was written
            };
            if !show(Space::location(start + self.at), &entry) {
                break;
            }
            self.at += entry.padded_bytes;
        }
        Ok(())
    }

    /// Bytes `from..to` of the segment, header included. `None`: it is shorter, or these are not
    /// the bytes that were written.
    pub(crate) fn verified(&mut self, core: &Core, from: usize, to: usize) -> Option<Vec<u8>> {
        let bytes = &mut self.memory.bytes_mut()[..self.end];
        mend_image(core, self.window, bytes).then_some(())?; // mask::F7
        Some(bytes.get(from..to)?.to_vec())
    }

    /// The words of the entry that begins at `from`. `None`: there is none, or the image has
    /// damage.
    pub(super) fn mended_entry(mut self, core: &Core, from: usize) -> Option<Vec<u64>> {
        let bytes = &mut self.memory.bytes_mut()[..self.end];
        mend_image(core, self.window, bytes).then_some(())?;
        let length = entry::parse(bytes.get(from..)?).ok()?.padded_bytes;
        let (words, _) = bytes.get(from..from + length)?.as_chunks();
        Some(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// True if every entry was shown.
    pub(crate) fn is_over(&self) -> bool {
        self.at >= self.end
    }
}

/// Single cold entries: noted under a pin, read side by side after it, held for the next pin.
#[derive(Default)]
pub(crate) struct Gather {
    holding: Holding,
    /// Missing entries, each with the number of the key or bucket that needs it, in their order.
    lacking: VecDeque<(usize, Cold)>,
    /// Sixteen times the average bytes of an entry: the size of a first read.
    entry_bytes: u32,
}

impl Gather {
    /// The bytes of an entry that the index points to under the pin of `stamp`. `None`: they are
    /// not in memory, and were noted as missing.
    pub(crate) fn look(
        &mut self,
        core: &Core,
        stamp: u64,
        group: usize,
        location: u64,
    ) -> Option<InMemory> {
        let space = &core.space;
        let window = space.window_of(location);
        let tier = core.tier();
        let Some(tier) = tier.filter(|tier| !tier.is_in_memory(window, stamp)) else {
            return Some(InMemory::in_window(space, location));
        };
        let incarnation = space.segments[window].incarnation();
        let held = self.holding.get(location, incarnation);
        if held.is_none() {
            let cold = tier.cold(space, location, self.entry_bytes / 16);
            self.lacking.push_back((group, cold));
        }
        held.map(|(at, available)| InMemory {
            at,
            available,
            is_copy: true,
        })
    }

    /// As [`look`](Self::look), verified (sound::V1): one flipped bit is put back in a copy, which
    /// is held.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub(crate) fn sound(
        &mut self,
        core: &Core,
        stamp: u64,
        group: usize,
        location: u64,
    ) -> Result<Option<*const u8>, Error> {
        let Some(here) = self.look(core, stamp, group, location) else {
            return Ok(None);
        };
        // SAFETY: the index pointed to it under the caller's pin: a whole entry, not reused and in
        // memory as long (epoch::E2, engine::space::S3, core::flash::F2); or a copy of it, which
        // is held or promoted (core::flash::F4).
        let sound = unsafe {
            match entry::is_sound(here.at, here.available) {
                true => Some(here),
                false => self.holding.mended(core, location, here),
            }
        };
        sound.map(|here| Some(here.at)).ok_or(Error::Damaged)
    }

    /// Notes an entry that was found before.
    pub(crate) fn note(&mut self, group: usize, cold: Cold) {
        self.lacking.push_back((group, cold));
    }

    /// The bytes of an entry that was noted and read, if it was still there.
    pub(crate) fn held(&self, cold: &Cold) -> Option<*const u8> {
        let (location, incarnation) = cold.key();
        self.holding.get(location, incarnation).map(|(at, _)| at)
    }

    /// True if some entry is missing.
    pub(crate) fn lacks(&self) -> bool {
        !self.lacking.is_empty()
    }

    /// True if as many entries are missing as should be read at once.
    pub(crate) fn is_full(&self) -> bool {
        let bytes = (self.entry_bytes as usize / 16).max(SECTOR_BYTES);
        self.lacking.len() * bytes >= WALK_BYTES / 2
    }

    /// Forgets the held entries.
    pub(crate) fn forget(&mut self) {
        self.holding.forget();
    }

    /// Forgets the noted entries, which the caller looks up again.
    pub(crate) fn look_anew(&mut self) {
        self.lacking.clear();
    }

    /// Reads missing entries, as far as F10 allows, and all that the first group needs. The caller
    /// is outside. Returns the bytes of the entries read.
    ///
    /// # Errors
    /// [`Error::FlashFailed`].
    pub(crate) fn fetch(&mut self, core: &Core) -> Result<usize, Error> {
        let mut lacking = std::mem::take(&mut self.lacking);
        let (Some(tier), Some((first, _))) = (core.tier(), lacking.front().copied()) else {
            return Ok(0);
        };
        let mut held = 0;
        while let Some((group, _)) = lacking.front()
            && (*group == first || held < WALK_BYTES)
        {
            let mut batch = Vec::new();
            let mut bytes = 0;
            while let Some((_, cold)) = lacking.front()
                && batch.len() < SIDE_BY_SIDE
                && (batch.is_empty() || bytes + cold.span().1 <= BATCH_BYTES)
            {
                bytes += cold.span().1;
                batch.extend(lacking.pop_front());
            }
            let mut longer = Vec::new();
            let read = tier.fetch_some(core, &self.holding, &batch, bytes, &mut longer)?;
            held += read;
            if let Some(average) = read.checked_div(batch.len() - longer.len()) {
                // An exponential average over some batches.
                self.entry_bytes = self.entry_bytes / 2 + average as u32 * 8;
            }
            longer
                .into_iter()
                .rev()
                .for_each(|cold| lacking.push_front(cold));
        }
        Ok(held)
    }
}

impl Tier {
    /// Reads some entries side by side, in spans of `bytes` bytes together. Returns the bytes of
    /// the entries held now. Entries that turned out longer than assumed are added to `longer`.
    fn fetch_some(
        &self,
        core: &Core,
        holding: &Holding,
        some: &[(usize, Cold)],
        bytes: usize,
        longer: &mut Vec<(usize, Cold)>,
    ) -> Result<usize, Error> {
        let mut memory = Aligned::zeroed(bytes);
        let mut rest = memory.bytes_mut();
        let mut reads = Vec::with_capacity(some.len());
        for (_, cold) in some {
            let (offset, length) = cold.span();
            let (into, after) = rest.split_at_mut(length);
            rest = after;
            reads.push((offset, into));
        }
        let figures = &self.figures;
        if self.reads.read(&mut reads).is_err() {
            figures.read_errors.fetch_add(1, Ordering::Relaxed);
            return Err(Error::FlashFailed);
        }
        let count = some.len() as u64;
        figures.fetched.fetch_add(count, Ordering::Relaxed);
        figures
            .fetched_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        let before = holding.bytes();
        for ((group, cold), (_, into)) in some.iter().zip(&reads) {
            if let Fetched::Longer(cold) = self.accept(core, holding, cold, into)? {
                longer.push((*group, cold));
            }
        }
        Ok(holding.bytes() - before)
    }
}
