//! The types that callers of a flash tier use.

pub use duramen_disk::{Device, SECTOR_BYTES};

use duramen_disk::ALIGNMENT_MAX;
use std::sync::Arc;

/// Writes begin and end at multiples of this many bytes.
pub(crate) const BLOCK_BYTES: usize = ALIGNMENT_MAX;

/// The tier of a store: a device that this store uses alone. Its contents need not outlive the
/// process: the tier reads only bytes that it has written itself.
#[derive(Clone)]
pub struct FlashOptions {
    pub device: Arc<dyn Device>,
}

impl FlashOptions {
    /// Slots that the device has for segments of this length.
    pub(crate) fn slots(&self, segment_bytes: u64) -> u32 {
        (self.device.bytes() / segment_bytes).min(u64::from(u32::MAX / 2)) as u32
    }
}

impl std::fmt::Debug for FlashOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlashOptions")
            .field("bytes", &self.device.bytes())
            .finish()
    }
}

/// An entry that must be read from the device before an operation can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cold {
    pub(crate) location: u64,
    pub(crate) incarnation: u32,
    pub(crate) slot: u32,
    /// Byte of the device at which the entry starts.
    pub(crate) offset: u64,
    /// Assumed length of the entry, in bytes.
    pub(crate) bytes: u32,
    /// Byte of the device at which its segment's slot ends.
    pub(crate) end: u64,
}

impl Cold {
    /// The span to read: offset in the device and length in bytes, both multiples of
    /// [`SECTOR_BYTES`].
    pub fn span(&self) -> (u64, usize) {
        let sector = SECTOR_BYTES as u64;
        let start = self.offset - self.offset % sector;
        let end = (self.offset + u64::from(self.bytes)).next_multiple_of(sector);
        (start, (end.min(self.end) - start) as usize)
    }

    /// Identifies the entry, independent of its assumed length.
    pub fn key(&self) -> (u64, u32) {
        (self.location, self.incarnation)
    }

    /// Offset of the entry in the span.
    pub(crate) fn skip(&self) -> usize {
        (self.offset % SECTOR_BYTES as u64) as usize
    }
}

/// The number of lengths, from the first on, that fit together into `most` bytes; at least one.
pub fn first_within(lengths: impl Iterator<Item = usize>, most: usize) -> usize {
    let mut sum = 0;
    let fitting = lengths.take_while(|bytes| {
        sum += bytes;
        sum <= most
    });
    fitting.count().max(1)
}

/// The outcome of a read for a [`Cold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// The session holds the entry: repeat the operation.
    Held,
    /// The entry is longer than assumed: read this span and hand it in.
    Longer(Cold),
    /// The entry is not there any more: repeat the operation, which finds its new place.
    Gone,
}

/// The tier's figures; all are zero in a store without a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlashStats {
    /// Bytes of the device that segments can take.
    pub bytes: u64,
    /// Bytes that segments take, each a whole slot.
    pub used_bytes: u64,
    /// Bytes of live entries among these, as last summed.
    pub live_bytes: u64,
    pub segments: u64,
    /// Memory that promoted entries take, in bytes.
    pub promoted_bytes: u64,
    /// Since the start: segments written to the device, and segments on it that were cleaned.
    pub segments_demoted: u64,
    pub segments_cleaned: u64,
    /// Entries that the engine read from the device, and the bytes read for them. A server that
    /// parks requests counts its own reads.
    pub fetches: u64,
    pub fetched_bytes: u64,
    /// Lookups of cold entries that were served by a just fetched entry, or by promoted copies.
    pub held_hits: u64,
    pub promoted_hits: u64,
    pub promotions: u64,
    /// Entries copied to memory after a restart because they were hot before it, and keys that are
    /// still to be tried.
    pub refilled: u64,
    pub refill_left: u64,
    pub read_errors: u64,
    pub write_errors: u64,
    /// A write to the device failed: the tier writes no more to it.
    pub is_off: bool,
}
