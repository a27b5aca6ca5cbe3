//! Flips bits in memory, for tests: builds with debug assertions only.

use crate::core::{Core, Visitor};
use crate::index::bucket::{self, Slot};
use crate::load::key_is;
use crate::space::Space;
use crate::{Store, TableId};
use duramen_format::entry;

/// The part of an entry in which a bit flips.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum FlipPart {
    Any,
    Version,
    Key,
    Value,
}

/// The bits of a store's memory; from [`Store::flips`].
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Flips<'s> {
    core: &'s Core,
}

impl Store {
    /// The bits of its memory.
    #[doc(hidden)]
    pub fn flips(&self) -> Flips<'_> {
        Flips { core: self.core() }
    }
}

impl Flips<'_> {
    /// Flips bits of the entry that the index has for a key, counted from its first one. Returns
    /// false if there is no such entry in memory. No other thread may use the key meanwhile.
    pub fn entry(self, table: TableId, key: &[u8], bits: &[usize]) -> bool {
        let core = self.core;
        let visitor = Visitor::wait(core);
        core.door.enter(visitor.slot);
        let hash = core.tables.hash(key);
        let found = core.tables.index(table).ok().and_then(|index| {
            let (view, tag) = (index.partition(hash).view(), index.tag(hash));
            let mut found = None;
            if view.len() != 0 {
                view.each_tagged(tag, |slot| {
                    let is_cold = core.is_cold(core.space.window_of(slot.location()) as u32);
                    let at = core.space.at(slot.location());
                    if !is_cold && key_is(at, key) {
                        found = Some(at);
                    }
                });
            }
            found
        });
        if let Some(at) = found {
            for bit in bits {
                // SAFETY: the entry is in memory under the pin, and the bit is one of it or of the
                // bytes behind it in the same region; the caller keeps other threads away.
                unsafe { *at.add(bit / 8) ^= 1 << (bit % 8) };
            }
        }
        core.door.leave(visitor.slot);
        found.is_some()
    }

    /// Flips bits of the slot that the index has for a key. Returns false if there is no such slot.
    /// An entry on flash counts as the key's by its tag alone. No other thread may use the key
    /// meanwhile.
    pub fn slot(self, table: TableId, key: &[u8], bits: &[usize]) -> bool {
        let core = self.core;
        let visitor = Visitor::wait(core);
        core.door.enter(visitor.slot);
        let hash = core.tables.hash(key);
        let index = core.tables.index(table).ok();
        let view = index.map(|index| (index.partition(hash).view(), index.tag(hash)));
        let found = view.filter(|(view, _)| view.len() != 0);
        let found = found.and_then(|(view, tag)| {
            view.find(tag, visitor.me(), |slot| {
                let window = core.space.window_of(slot.location()) as u32;
                core.is_cold(window) || key_is(core.space.at(slot.location()), key)
            })
        });
        if let Some((place, slot)) = found {
            let flips = bits.iter().fold(0u64, |flips, bit| flips ^ (1 << *bit));
            bucket::publish(place, Slot(slot.0 ^ flips));
        }
        core.door.leave(visitor.slot);
        found.is_some()
    }

    /// As [`entry`](Self::entry), for the `n`th of all entries of closed segments in memory, dead
    /// ones and tombstones included. Returns false if there are fewer.
    pub fn nth_entry(self, n: usize, bits: &[usize]) -> bool {
        let core = self.core;
        let mut left = n;
        for (window, segment) in core.space.segments.iter().enumerate() {
            if !segment.is_closed() || core.is_cold(window as u32) {
                continue;
            }
            let start = core.space.offset_of(window as u32);
            let end = start + segment.appended_bytes() as usize;
            let mut at = start + crate::space::SEGMENT_HEADER_BYTES;
            while at < end {
                let place = core.space.at(Space::location(at));
                if left == 0 {
                    for bit in bits {
                        // SAFETY: as in `entry`.
                        unsafe { *place.add(bit / 8) ^= 1 << (bit % 8) };
                    }
                    return true;
                }
                left -= 1;
                // SAFETY: a closed segment holds whole entries from its header to `appended`.
                at += unsafe { entry::header_trusted(place) }.padded_bytes();
            }
        }
        false
    }

    /// Flips one bit of this part of one entry in memory. `random` chooses the entry among all of
    /// the log without damage: in closed and open segments, dead ones and tombstones included.
    /// Returns false if there is none. No other thread may use the store meanwhile.
    pub fn some(self, part: FlipPart, random: u64) -> bool {
        let core = self.core;
        let mut found = Vec::new();
        for (window, segment) in core.space.segments.iter().enumerate() {
            if !segment.is_in_log() || core.is_cold(window as u32) {
                continue;
            }
            let start = core.space.offset_of(window as u32);
            let end = start + segment.appended_bytes() as usize;
            let mut at = start + crate::space::SEGMENT_HEADER_BYTES;
            while at < end {
                let place = core.space.at(Space::location(at));
                // SAFETY: entries are whole up to `appended`, and nobody changes them meanwhile.
                let Ok(entry) = (unsafe { entry::parse_at(place, end - at) }) else {
                    break; // its length is not known
                };
                // SAFETY: a whole entry.
                let header = unsafe { entry::header_trusted(place) };
                let (key, value) = (header.key_start, header.key_start + header.key_bytes);
                let bytes = match part {
                    FlipPart::Any => 0..entry.padded_bytes,
                    FlipPart::Version => 1..8,
                    FlipPart::Key => key..value,
                    FlipPart::Value => value..value + header.value_bytes,
                };
                if !bytes.is_empty() {
                    found.push((at, bytes));
                }
                at += entry.padded_bytes;
            }
        }
        let count = found.len() as u64;
        if count == 0 {
            return false;
        }
        let (at, bytes) = &found[(random % count) as usize];
        let bit = (random / count) as usize % (8 * bytes.len());
        let byte = core
            .space
            .at(Space::location(*at))
            .wrapping_add(bytes.start + bit / 8);
        // SAFETY: as in `entry`.
        unsafe { *byte ^= 1 << (bit % 8) };
        true
    }
}
