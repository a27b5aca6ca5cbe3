//! The lost part of a damaged segment, and the rest of it.
//!
//! Several replicas are put together entry by entry. Bytes that no replica has, and that one
//! flipped bit does not explain ([`mend`]), are *lost*. A loss is named completely, so
//! that an operator can accept it by its token: `duramen accept-loss`, docs/protocols.md,
//! "Accepting a loss".
//!
//! **Invariants**
//! - Y1: the image is *proved* if its certificate matches: then every byte is as it was written,
//!   though perhaps of memory that had flipped bits by then. All other entries of it count.
//! - Y2: of an image that is not proved, the entries in front of the first damaged one count. The
//!   bytes behind it may be those of an older segment in the same frame, whole entries with good
//!   sums: what had been deleted would come back. If no entry is damaged, all of them are lost.
//! - Y3: behind an entry whose header is not plausible, the place of the next entry is not known:
//!   a client may have put entries into a value. Entries that are found there are lost too, and
//!   named.
//! - Y4: each entry that is lost is a *claim* if its header is plausible: its key had this version
//!   then, or was removed. An older version of this key must not appear.
//!   Its version is the one before the damage, if a flipped bit of it and one other explain that.
//! - Y6: if the end of the segment is not known, everything behind the certificate is lost, with
//!   any key.
//! - Y5: equal images give equal tokens, on each server and at each attempt.

use crate::certificate::Certificate;
use crate::checksum::crc32c_append;
use crate::entry::{self, Entry, Kind as EntryKind, NewTombstone, VERSION_MAX};
use crate::mend;
use crate::segment::{HEADER_BYTES, Header};
use duramen_base::ids::{SegmentId, TableId};
use std::fmt;
use std::ops::Range;

/// Versions above this one are not believed: a damaged header must not use up the versions.
const VERSION_BELIEVED_MAX: u64 = VERSION_MAX / 2;
/// Bits of an entry that are its version.
const VERSION_BITS: Range<usize> = 8..64;
/// Entries begin at multiples of this.
const STEP: usize = entry::ALIGN_BYTES;
/// Consecutive sound entries by which the next entry is found; fewer at the end of the segment.
const FOUND_AGAIN: u32 = 4;
/// A search verifies at most this many times the bytes of the segment: a client may have filled a
/// value with headers of long entries.
const VERIFIED_MAX: usize = 16;
/// End of a range of which the end is not known (Y6).
const END_UNKNOWN: u32 = u32::MAX;
/// Maximum number of consecutive damaged entries that are separated by their headers.
const DAMAGED_RUN_MAX: usize = 16;

/// An entry that is lost, by its own header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Place of its first byte.
    pub at: u32,
    pub kind: EntryKind,
    pub table: u32,
    pub key: Box<[u8]>,
    pub version: u64,
    /// Whether the entry's own sum is right: then the bytes in front of it are damaged (Y2, Y3).
    pub is_whole: bool,
}

impl Claim {
    fn of(at: usize, entry: &Entry<'_>, is_whole: bool) -> Claim {
        Claim {
            at: at as u32,
            kind: entry.kind,
            table: entry.table,
            key: entry.key.into(),
            version: entry.version.min(VERSION_BELIEVED_MAX),
            is_whole,
        }
    }

    /// The claim of the damaged entry in these bytes, whose header is plausible (Y4).
    fn of_damaged(at: usize, bytes: &[u8], entry: &Entry<'_>) -> Claim {
        let version = mended_version(bytes).unwrap_or(entry.version);
        Claim::of(at, &Entry { version, ..*entry }, false)
    }
}

/// The version of an entry with two flipped bits, at least one of them in the version; the highest
/// if several pairs of bits explain the damage. If a damaged version were believed as it is, an
/// older value could appear.
fn mended_version(bytes: &[u8]) -> Option<u64> {
    if bytes.len() > mend::SURE_BYTES_MAX {
        return None;
    }
    let with_bit = |bit: usize| {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        mend::entry(&mut bytes)?;
        let entry = entry::parse(&bytes).ok()?;
        (entry.padded_bytes == bytes.len()).then_some(entry.version)
    };
    VERSION_BITS.filter_map(with_bit).max()
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, version) = (TableId(self.table).whole(), self.version);
        let key = mend::key_in(self.table, &self.key);
        let key = match TableId(self.table).is_parts() {
            true => format!("part {key}"),
            false => format!("`{key}`"),
        };
        match self.kind {
            EntryKind::Object => write!(f, "{key} of table {table}, version {version}")?,
            EntryKind::Tombstone => {
                write!(
                    f,
                    "the removal of {key} of table {table}, version {version}"
                )?;
            }
            EntryKind::Completion => write!(f, "the answer to a request, in table {table}")?,
        }
        if self.is_whole {
            f.write_str(" (whole, behind damage)")
        } else {
            f.write_str(" (as its damaged header says)")
        }
    }
}

/// The lost part of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub segment: SegmentId,
    pub certificate: Certificate,
    /// The lost ranges, in order. A range within the segment's header means that the header alone
    /// is lost.
    pub ranges: Vec<Range<u32>>,
    /// The claims, in the order of their places.
    pub claims: Vec<Claim>,
}

impl Loss {
    /// The name of exactly this loss (Y5).
    pub fn token(&self) -> u32 {
        let Certificate { length, crc } = self.certificate;
        let mut bytes = Vec::new();
        let mut words = vec![self.segment.0, u64::from(length), u64::from(crc)];
        for range in &self.ranges {
            words.extend([u64::from(range.start), u64::from(range.end)]);
        }
        for claim in &self.claims {
            words.extend([claim.at, claim.table, claim.kind as u32].map(u64::from));
            words.push(claim.version);
        }
        words
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
        let keys = self.claims.iter();
        keys.fold(crc32c_append(0, &bytes), |crc, claim| {
            crc32c_append(crc, &claim.key)
        })
    }

    /// Lost bytes, as far as known.
    pub fn bytes(&self) -> u64 {
        let ranges = self.ranges.iter().filter(|range| range.end < END_UNKNOWN);
        ranges.map(|range| u64::from(range.end - range.start)).sum()
    }

    /// A line for each range, each followed by at most `claims_max` lines for its claims.
    pub fn lines(&self, claims_max: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for range in &self.ranges {
            let (segment, Range { start, end }) = (self.segment, range);
            if *end == END_UNKNOWN {
                let what = "to an unknown end: any key may have been in it";
                lines.push(format!("segment {segment}, from byte {start} {what}"));
                continue;
            }
            let claims = self.claims.iter().filter(|claim| range.contains(&claim.at));
            let what = match claims.clone().next() {
                _ if *end as usize <= HEADER_BYTES => ": its header, no entry",
                Some(_) => " held:",
                None => ": which keys were in it is not known",
            };
            lines.push(format!("segment {segment}, bytes {start}..{end}{what}"));
            let shown = claims.clone().take(claims_max);
            lines.extend(shown.map(|claim| format!("  {claim}")));
            let more = claims.count().saturating_sub(claims_max);
            if more > 0 {
                lines.push(format!("  and {more} more"));
            }
        }
        lines
    }
}

/// The rest of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// The header and every entry that counts, one after another.
    pub sound: Vec<u8>,
    pub loss: Option<Loss>,
}

impl Examined {
    /// Notes that nothing says how long this segment was (Y6).
    pub fn lose_end(&mut self, segment: SegmentId, certificate: Certificate) {
        let loss = self.loss.get_or_insert_with(|| Loss {
            segment,
            certificate,
            ranges: Vec::new(),
            claims: Vec::new(),
        });
        loss.ranges.push(certificate.length..END_UNKNOWN);
    }

    /// The rest, and a tombstone for each claim: a replay of these bytes shows no older version.
    pub fn with_tombstones(&self) -> Vec<u8> {
        let mut bytes = self.sound.clone();
        let claims = self.loss.iter().flat_map(|loss| &loss.claims);
        for claim in claims.filter(|claim| claim.kind != EntryKind::Completion) {
            let tombstone = NewTombstone {
                table: claim.table,
                version: claim.version,
                key: &claim.key,
                victim: self
                    .loss
                    .as_ref()
                    .map_or(SegmentId::NONE, |loss| loss.segment),
            };
            let at = bytes.len();
            bytes.resize(at + tombstone.padded_bytes(), 0);
            tombstone.write_to(&mut bytes[at..]);
        }
        bytes
    }
}

/// Puts replicas of a data segment together. Their bytes may be damaged in any way; a
/// piece that could not be read is zeros. `header`: what the log says about the segment.
pub fn examine(images: &[Vec<u8>], header: &Header, certificate: Certificate) -> Examined {
    let length = certificate.length as usize;
    let fitted = images.iter().map(|image| {
        let mut image = image.clone();
        image.resize(length, 0);
        image
    });
    let mut images: Vec<Vec<u8>> = fitted.collect();
    if let Some(proved) = images.iter().position(|image| certificate.matches(image)) {
        images = vec![images.swap_remove(proved)];
        return Walk::new(images, true).end(header, certificate);
    }
    let merged = Walk::new(images.clone(), false);
    if merged.first_gap.is_none() {
        let mut whole = merged.head_of(header).to_vec();
        whole.extend(&merged.sound);
        if certificate.matches(&whole) {
            return Examined {
                sound: whole,
                loss: None,
            }; // Y1
        }
    }
    // Y2: a whole entry of one replica proves nothing about another replica.
    let walks = images
        .into_iter()
        .map(|image| Walk::new(vec![image], false));
    let mut walks: Vec<Walk> = walks.collect();
    walks.sort_by(|a, b| {
        let of = |walk: &Walk| (walk.has_head(header), walk.first_gap);
        of(a).cmp(&of(b)).then_with(|| a.images.cmp(&b.images)) // Y5: one order on each server
    });
    let Some(mut longest) = walks.pop() else {
        return merged.end(header, certificate);
    };
    let differences = walks.iter().filter_map(|other| longest.difference(other));
    if let Some(at) = differences.min() {
        longest.lose_from(at);
    }
    walks
        .iter()
        .chain([&merged])
        .for_each(|other| longest.learn(other));
    longest.end(header, certificate)
}

/// A walk through replicas of one segment, all of the same length.
struct Walk {
    images: Vec<Vec<u8>>,
    is_proved: bool,
    /// The entries that count, without the header.
    sound: Vec<u8>,
    /// The place of each of them in the segment, and in `sound`.
    places: Vec<(usize, usize)>,
    first_gap: Option<usize>,
    ranges: Vec<Range<u32>>,
    claims: Vec<Claim>,
    /// The [`runs`] of each image, behind the first place where entries were searched for.
    runs: Vec<Vec<u32>>,
}

impl Walk {
    fn new(images: Vec<Vec<u8>>, is_proved: bool) -> Walk {
        let mut walk = Walk {
            images,
            is_proved,
            sound: Vec::new(),
            places: Vec::new(),
            first_gap: None,
            ranges: Vec::new(),
            claims: Vec::new(),
            runs: Vec::new(),
        };
        let (mut at, mut is_lost) = (HEADER_BYTES, false);
        while at < walk.length() {
            at = match walk.entry(at) {
                Some(next) if is_lost => walk.lose(at, next, true),
                Some(next) => next,
                None => {
                    walk.first_gap.get_or_insert(at);
                    let by_header = walk.end_by_header(at);
                    is_lost |= !walk.is_proved || by_header.is_none(); // Y2, Y3
                    let next = by_header.or_else(|| walk.find_again(at));
                    let end = next.unwrap_or(walk.length());
                    walk.lose(at, end, false)
                }
            };
        }
        walk
    }

    fn length(&self) -> usize {
        self.images.first().map_or(0, Vec::len)
    }

    /// The end of the entry at `at`, which some replica has. It is added to those that count.
    fn entry(&mut self, at: usize) -> Option<usize> {
        let bytes_max = if self.is_proved {
            usize::MAX
        } else {
            mend::SURE_BYTES_MAX
        };
        let is_sound = |image: &Vec<u8>| entry::parse(&image[at..]).is_ok();
        let found = self.images.iter().position(is_sound).or_else(|| {
            let mut images = self.images.iter_mut();
            images.position(|image| mend::entry_at(image, at, bytes_max).is_some())
        })?;
        let image = &self.images[found];
        let end = at + entry::parse(&image[at..]).ok()?.padded_bytes;
        self.places.push((at, self.sound.len()));
        self.sound.extend_from_slice(&image[at..end]);
        Some(end)
    }

    /// Notes lost bytes and their claim. Returns their end.
    fn lose(&mut self, at: usize, end: usize, is_whole: bool) -> usize {
        if is_whole && let Some((_, start)) = self.places.pop() {
            self.sound.truncate(start);
        }
        let claims = self.images.iter().find_map(|image| {
            let entry = if is_whole {
                entry::parse(&image[at..]).ok()?
            } else {
                entry::parse_again(&image[at..]).ok()?
            };
            let bytes = image.get(at..end)?;
            (at + entry.padded_bytes == end).then(|| {
                if is_whole {
                    Claim::of(at, &entry, true)
                } else {
                    Claim::of_damaged(at, bytes, &entry)
                }
            })
        });
        self.claims.extend(claims);
        match self.ranges.last_mut() {
            Some(last) if last.end as usize == at => last.end = end as u32,
            _ => self.ranges.push(at as u32..end as u32),
        }
        end
    }

    /// The end of a damaged entry by its own header, if a sound entry or the end of the segment is
    /// there, or behind a few more that are damaged.
    fn end_by_header(&self, at: usize) -> Option<usize> {
        let mut images = self.images.iter();
        images.find_map(|image| {
            let next = |at: usize| {
                let shape = entry::parse_again(image.get(at..)?).ok()?;
                Some(at + shape.padded_bytes)
            };
            let is_end = |end: usize| {
                let mut images = self.images.iter();
                end == self.length() || images.any(|image| entry::parse(&image[end..]).is_ok())
            };
            let ends = std::iter::successors(next(at), |at| next(*at));
            let is_plausible = ends.take(DAMAGED_RUN_MAX).any(is_end);
            next(at).filter(|_| is_plausible)
        })
    }

    /// The place behind `from` at which entries begin again, in some replica.
    fn find_again(&mut self, from: usize) -> Option<usize> {
        if self.runs.is_empty() {
            self.runs = self.images.iter().map(|image| runs(image, from)).collect();
        }
        let found = self.runs.iter().filter_map(|runs| next_run(runs, from));
        found.min()
    }

    /// The header of a replica that has the right one, or a new one.
    fn head_of(&self, header: &Header) -> [u8; HEADER_BYTES] {
        let mut heads = self.images.iter().filter_map(|image| image.first_chunk());
        let is_it = |head: &&[u8; HEADER_BYTES]| {
            let found = Header::decode(*head);
            found.is_ok_and(|found| found.segment == header.segment && found.log == header.log)
        };
        heads.find(is_it).copied().unwrap_or(header.encode())
    }

    fn has_head(&self, header: &Header) -> bool {
        let head = self.head_of(header);
        self.images.iter().any(|image| image.starts_with(&head))
    }

    /// The bytes of the entry that begins at `at`.
    fn bytes_at(&self, at: usize) -> Option<&[u8]> {
        let n = self.places.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        let next = self
            .places
            .get(n + 1)
            .map_or(self.sound.len(), |(_, start)| *start);
        self.sound.get(self.places[n].1..next)
    }

    /// The first place at which both replicas have a whole entry, and not the same.
    fn difference(&self, other: &Walk) -> Option<usize> {
        let end = other.first_gap.unwrap_or(other.length());
        let mut places = self.places.iter().map(|(at, _)| *at);
        let is_other = |at: &usize| *at < end && self.bytes_at(*at) != other.bytes_at(*at);
        places.find(is_other)
    }

    /// All entries from this place on are lost.
    fn lose_from(&mut self, from: usize) {
        while let Some((at, _)) = self.places.last().copied().filter(|(at, _)| *at >= from) {
            let bytes = self.bytes_at(at).unwrap_or_default();
            if let Ok(entry) = entry::parse(bytes) {
                self.claims.push(Claim::of(at, &entry, true));
            }
            let (_, start) = self.places.pop().unwrap_or_default();
            self.sound.truncate(start);
        }
        self.claims.sort_by_key(|claim| claim.at);
        self.first_gap = Some(from);
        self.ranges = std::iter::once(from as u32..self.length() as u32).collect();
    }

    /// Claims that another replica makes about the lost entries.
    fn learn(&mut self, other: &Walk) {
        let Some(gap) = self.first_gap else { return };
        let whole = other.places.iter().filter_map(|(at, _)| {
            let entry = entry::parse(other.bytes_at(*at)?).ok()?;
            Some(Claim::of(*at, &entry, true))
        });
        for claim in whole.chain(other.claims.iter().cloned()) {
            let is_known = |known: &Claim| {
                (known.at, &known.key, known.version) == (claim.at, &claim.key, claim.version)
            };
            if claim.at as usize >= gap && !self.claims.iter().any(is_known) {
                self.claims.push(claim);
            }
        }
        self.claims
            .sort_by(|a, b| (a.at, &a.key, a.version).cmp(&(b.at, &b.key, b.version)));
    }

    fn end(mut self, header: &Header, certificate: Certificate) -> Examined {
        let (head, has_head) = (self.head_of(header), self.has_head(header));
        if !self.is_proved && (self.first_gap.is_none() || !has_head) {
            // Y2: the bytes of another segment, or older ones.
            self = self.all_lost();
        } else if !has_head {
            self.ranges.insert(0, 0..HEADER_BYTES as u32);
        }
        let mut sound = head.to_vec();
        sound.append(&mut self.sound);
        let loss = Loss {
            segment: header.segment,
            certificate,
            ranges: self.ranges,
            claims: self.claims,
        };
        let is_lost = !loss.ranges.is_empty();
        Examined {
            sound,
            loss: is_lost.then_some(loss),
        }
    }

    fn all_lost(self) -> Walk {
        let mut claims = self.claims;
        claims.extend(self.places.iter().filter_map(|(at, start)| {
            let entry = entry::parse(&self.sound[*start..]).ok()?;
            Some(Claim::of(*at, &entry, true))
        }));
        claims.sort_by_key(|claim| claim.at);
        let end = self.images.first().map_or(0, Vec::len) as u32;
        Walk {
            sound: Vec::new(),
            places: Vec::new(),
            ranges: std::iter::once(0..end).collect(),
            claims,
            ..self
        }
    }
}

/// The place behind `from` at which several sound entries follow each other.
pub fn find_again(bytes: &[u8], from: usize) -> Option<usize> {
    next_run(&runs(bytes, from), from)
}

/// The number of consecutive sound entries from each place on that is behind `from`, computed
/// backwards.
fn runs(bytes: &[u8], from: usize) -> Vec<u32> {
    let last = bytes.len() - bytes.len() % STEP;
    let mut runs = vec![0u32; last / STEP + 1];
    let mut verified_left = VERIFIED_MAX * bytes.len();
    let mut at = last;
    while at > from + STEP {
        at -= STEP;
        let Ok(shape) = entry::parse_again(&bytes[at..]) else {
            continue;
        };
        let Some(left) = verified_left.checked_sub(shape.padded_bytes) else {
            break;
        };
        verified_left = left;
        if entry::parse(&bytes[at..]).is_ok() {
            let next = at + shape.padded_bytes;
            runs[at / STEP] = if next == bytes.len() {
                FOUND_AGAIN
            } else {
                runs.get(next / STEP).map_or(0, |run| run + 1).max(1)
            };
        }
    }
    runs
}

fn next_run(runs: &[u32], from: usize) -> Option<usize> {
    let first = (from + STEP) / STEP;
    let found = runs[first.min(runs.len())..]
        .iter()
        .position(|run| *run >= FOUND_AGAIN);
    found.map(|found| (first + found) * STEP)
}

#[cfg(test)]
mod tests;
