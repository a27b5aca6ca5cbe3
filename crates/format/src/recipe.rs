//! Recipes: a survivor of a cleaning pass, described by the closed segments that it was copied
//! from. A backup that has these builds the survivor from its own disk.
//!
//! **Layout** (little endian): parts, one after another.
//!
//! ```text
//! 0        8        12    16     20      24          24 + ⌈count / 4⌉
//! +--------+--------+-----+------+-------+-----------+
//! | victim | length | crc | from | count | fates     |
//! |  u64   |  u32   | u32 | u32  |  u32  | 2 b each  |
//! +--------+--------+-----+------+-------+-----------+
//! ```
//!
//! `length` and `crc` are the victim's certificate. The fates are those of its entries `from ..
//! from + count`, the first in the lowest bits.
//!
//! **Invariants**
//! - R1: a recipe and its victims determine the survivor, byte for byte: an entry is dropped, kept
//!   as it is, or buried, and the tombstone that is left of a buried one depends on that entry
//!   alone ([`NewTombstone::of_dead`]).
//! - R2: burying twice is burying once. So it does not matter whether a compaction in memory buried
//!   the entry before the pass did.
//! - R3: a recipe has at most [`PARTS_MAX`] parts, so the work of a build is bounded: a backup
//!   reads one segment for each.
//!
//! Paper: [Beineke18 §VIII] reorganisation by the backups; differs: the master decides which
//! entries are dead, so backups need no versions of their own, and all replicas of a survivor are
//! equal.

use crate::certificate::Certificate;
use crate::entry::{self, Damage, Entry, Kind, NewTombstone};
use crate::segment::{HEADER_BYTES, Header};
use duramen_base::ids::SegmentId;

/// Bytes of a part before its fates.
const PART_BYTES: usize = 24;
/// Maximum parts of a recipe (R3): a pass has at most 64 victims, and a survivor one part for each.
pub const PARTS_MAX: usize = 128;
/// Fates in a byte.
const PER_BYTE: usize = 4;

/// The fate of an entry of a segment that is cleaned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Fate {
    #[default]
    Dropped = 0,
    Kept = 1,
    /// Only the entry's tombstone is kept.
    Buried = 2,
}

impl Fate {
    /// The fate of an entry that first has this fate and then `next` (R2).
    pub fn then(self, next: Fate) -> Fate {
        match (self, next) {
            (Fate::Dropped, _) | (_, Fate::Dropped) => Fate::Dropped,
            (Fate::Buried, _) | (_, Fate::Buried) => Fate::Buried,
            (Fate::Kept, Fate::Kept) => Fate::Kept,
        }
    }
}

/// The fates of consecutive entries, 2 bits each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    bits: Vec<u8>,
    count: u32,
}

impl Fates {
    /// Number of entries.
    pub fn len(&self) -> u32 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The fate of an entry; those behind the last one are dropped.
    pub fn get(&self, n: u32) -> Fate {
        if n >= self.count {
            return Fate::Dropped;
        }
        let byte = self.bits[n as usize / PER_BYTE];
        match byte >> (n as usize % PER_BYTE * 2) & 3 {
            1 => Fate::Kept,
            2 => Fate::Buried,
            _ => Fate::Dropped,
        }
    }

    /// Adds the fate of entry `n`; the entries between the last one and this are dropped. Returns
    /// false, and adds nothing, if the fate of this entry or of a later one is known.
    #[must_use]
    pub fn add(&mut self, n: u32, fate: Fate) -> bool {
        if n < self.count {
            return false;
        }
        self.count = n + 1;
        self.bits
            .resize(self.count.div_ceil(PER_BYTE as u32) as usize, 0);
        self.bits[n as usize / PER_BYTE] |= (fate as u8) << (n as usize % PER_BYTE * 2);
        true
    }

    /// The first entry from `n` on that is not dropped; the number of entries if there is none.
    pub fn next_left(&self, n: u32) -> u32 {
        (n..self.count)
            .find(|n| self.get(*n) != Fate::Dropped)
            .unwrap_or(self.count)
    }

    /// Memory that it takes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bits.capacity() as u64
    }

    /// Gives back memory for fates that will not be added.
    pub fn shrink(&mut self) {
        self.bits.shrink_to_fit();
    }
}

/// Consecutive entries of a survivor that come from one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub victim: SegmentId,
    /// The victim's entry that the first fate is for, counted from 0.
    pub from: u32,
    pub fates: Fates,
}

/// The parts of a survivor, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    parts: Vec<Part>,
}

impl Parts {
    /// Notes that the `n`th entry of `victim` was copied to the survivor.
    pub fn add(&mut self, victim: SegmentId, n: u32, fate: Fate) {
        if let Some(last) = self.parts.last_mut()
            && last.victim == victim
            && n >= last.from
            && last.fates.add(n - last.from, fate)
        {
            return;
        }
        let mut fates = Fates::default();
        let is_added = fates.add(0, fate);
        debug_assert!(is_added, "it is the first");
        self.parts.push(Part {
            victim,
            from: n,
            fates,
        });
    }

    /// The segments that a backup needs; some may be named twice.
    pub fn victims(&self) -> impl Iterator<Item = SegmentId> {
        self.parts.iter().map(|part| part.victim)
    }

    /// The recipe's bytes. `certificate` gives a victim's certificate, or `None` if that is not
    /// known. The result is `None` if there is no recipe, for that reason or by R3.
    pub fn encode(
        &self,
        certificate: impl Fn(SegmentId) -> Option<Certificate>,
    ) -> Option<Vec<u8>> {
        if self.parts.len() > PARTS_MAX {
            return None;
        }
        let mut out = Vec::new();
        for Part {
            victim,
            from,
            fates,
        } in &self.parts
        {
            let certificate = certificate(*victim)?;
            out.extend_from_slice(&victim.0.to_le_bytes());
            for word in [certificate.length, certificate.crc, *from, fates.count] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.extend_from_slice(&fates.bits);
        }
        Some(out)
    }
}

/// Reasons why a survivor cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError {
    #[error("the recipe ends inside a part")]
    Truncated,
    #[error("the recipe has more than {PARTS_MAX} parts")]
    TooManyParts,
    #[error("the segment has {has} entries, the recipe names number {named}")]
    TooFew { has: u32, named: u32 },
    #[error("the survivor would be longer than its {capacity} bytes")]
    TooLong { capacity: u32 },
    #[error("the segment has bytes that are no entry: {0}")]
    Entry(#[from] Damage),
}

/// The parts of a recipe, with the certificates of their victims.
///
/// # Errors
/// [`RecipeError::Truncated`], [`RecipeError::TooManyParts`].
pub fn decode(mut bytes: &[u8]) -> Result<Vec<(Part, Certificate)>, RecipeError> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        if parts.len() == PARTS_MAX {
            return Err(RecipeError::TooManyParts);
        }
        let (head, rest) = bytes
            .split_first_chunk::<PART_BYTES>()
            .ok_or(RecipeError::Truncated)?;
        let word = |at: usize| crate::bytes::u32_at(head, at);
        let count = word(20);
        let length = (count as usize).div_ceil(PER_BYTE);
        let (fates, rest) = rest
            .split_at_checked(length)
            .ok_or(RecipeError::Truncated)?;
        let part = Part {
            victim: SegmentId(crate::bytes::u64_at(head, 0)),
            from: word(16),
            fates: Fates {
                bits: fates.to_vec(),
                count,
            },
        };
        let certificate = Certificate {
            length: word(8),
            crc: word(12),
        };
        parts.push((part, certificate));
        bytes = rest;
    }
    Ok(parts)
}

/// A survivor that is being built.
pub struct Build {
    bytes: Vec<u8>,
    capacity: u32,
}

impl Build {
    /// Begins the survivor with this header.
    pub fn begin(header: &Header) -> Build {
        Build {
            bytes: header.encode().to_vec(),
            capacity: header.capacity,
        }
    }

    /// Appends the entries of a part. `victim`: all bytes of the segment that the part names.
    ///
    /// # Errors
    /// The segment does not fit the part, or the survivor would be too long.
    pub fn take(&mut self, part: &Part, victim: &[u8]) -> Result<(), RecipeError> {
        let end = part.from.saturating_add(part.fates.len());
        let mut rest = victim.get(HEADER_BYTES..).unwrap_or_default();
        for n in 0..end {
            if rest.is_empty() {
                return Err(RecipeError::TooFew { has: n, named: end });
            }
            let entry = entry::parse_again(rest)?;
            let (whole, after) = rest.split_at(entry.padded_bytes);
            rest = after;
            let Some(fate) = n.checked_sub(part.from).map(|n| part.fates.get(n)) else {
                continue;
            };
            match fate {
                Fate::Dropped => {}
                Fate::Kept => self.bytes.extend_from_slice(whole),
                Fate::Buried => {
                    let tombstone = NewTombstone::of_dead(&entry);
                    let start = self.bytes.len();
                    self.bytes.resize(start + tombstone.padded_bytes(), 0);
                    tombstone.write_to(&mut self.bytes[start..]);
                }
            }
            if self.bytes.len() > self.capacity as usize {
                let capacity = self.capacity;
                return Err(RecipeError::TooLong { capacity });
            }
        }
        Ok(())
    }

    /// The whole survivor.
    pub fn end(self) -> Vec<u8> {
        self.bytes
    }
}

impl<'a> NewTombstone<'a> {
    /// The tombstone that is left of a dead entry which names a victim (R1): its own, or, of an
    /// object, that of the version below it, so that another copy of the object itself is not
    /// killed.
    pub fn of_dead(entry: &Entry<'a>) -> NewTombstone<'a> {
        NewTombstone {
            table: entry.table,
            version: match entry.kind {
                Kind::Tombstone => entry.version,
                Kind::Object | Kind::Completion => entry.version.saturating_sub(1),
            },
            key: entry.key,
            victim: entry.victim,
        }
    }
}
