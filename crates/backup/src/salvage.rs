//! Reads as many bytes as possible of the segments in a stopped store that a restart refuses: for
//! `duramen fsck --repair`.
//!
//! Reads only. No certificate counts here any more: the caller trusts only the checksum of each
//! entry.
//! - A segment's bytes come from its frame, from that frame's tail, and from every sound commit
//!   that names it, later ones over earlier ones. Bytes in none of them are missing.
//! - A frame with two damaged slots is identified by the header of the segment in it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use duramen_base::ids::SegmentId;
use duramen_cipher::KeySource;
use duramen_format::frame::{self, State};
use duramen_format::segment::{HEADER_BYTES, Header as SegmentHeader, Kind};
use duramen_format::wal::Record;

use crate::create::{self, Probe, Purpose};
use crate::disk::{BLOCK_BYTES, Disk, OpenHow};
use crate::error::Error;
use crate::rebuild::{self, FoundSlot};
use crate::region::Region;
use crate::scan::{self, Reader};
use crate::types::{Expected, Geometry, Identity};

/// A stopped store that can be read only in part.
pub struct Salvage {
    identity: Identity,
    geometry: Geometry,
    frames: Option<Region>,
    /// Bytes of the file with the write-ahead log.
    wal_there: u64,
    sources: BTreeMap<SegmentId, Source>,
    key: Option<KeySource>,
    /// The last commit that was durable according to a frame's slot.
    durable_lsn: u64,
    /// Damage of the write-ahead log: commits are missing.
    pub wal_damage: Option<String>,
}

/// The sources of a segment's bytes.
struct Source {
    kind: Kind,
    frame: Option<u32>,
    /// Bytes from the start that are in the frame; the tail's follow.
    in_frame: u32,
    tail: Vec<u8>,
    /// Pieces from commits, in their order: offset and bytes.
    pieces: Vec<(u32, Vec<u8>)>,
}

/// The readable bytes of a segment.
pub struct Remains {
    /// The bytes, with zeros where one is missing.
    pub bytes: Vec<u8>,
    /// The missing ranges, in order.
    pub missing: Vec<Range<usize>>,
}

impl Source {
    fn new(kind: Kind) -> Source {
        Source {
            kind,
            frame: None,
            in_frame: 0,
            tail: Vec::new(),
            pieces: Vec::new(),
        }
    }

    fn end(&self) -> usize {
        let pieces = self.pieces.iter();
        let last = pieces.map(|(at, bytes)| *at as usize + bytes.len()).max();
        last.unwrap_or(0)
            .max(self.in_frame as usize + self.tail.len())
    }
}

impl Salvage {
    /// Searches a disk for segments.
    ///
    /// # Errors
    /// There is no store, or neither copy of its superblock can be read.
    pub fn new(disk: &dyn Disk) -> Result<Salvage, Error> {
        let place = disk.label();
        let Probe::Store(superblock) = create::probe(disk)? else {
            return Err(Error::Absent { place });
        };
        let accepted = create::accept(disk, *superblock, &Expected::default(), Purpose::Store)?;
        let held = Arc::default();
        let wal = accepted.wal(disk, OpenHow::Read, &held);
        let mut salvage = Salvage {
            frames: accepted.frames(disk, OpenHow::Read, &held).ok(),
            identity: accepted.identity,
            geometry: accepted.geometry,
            wal_there: 0,
            sources: BTreeMap::new(),
            key: disk.key().cloned(),
            durable_lsn: 0,
            wal_damage: None,
        };
        salvage.take_slots();
        match wal {
            Ok(wal) => {
                salvage.wal_there = wal.bytes().unwrap_or(0);
                salvage.take_commits(&wal, &place);
            }
            Err(error) => salvage.wal_damage = Some(error.damage()),
        }
        Ok(salvage)
    }

    /// The key of the store, if it is encrypted.
    pub fn key(&self) -> Option<&KeySource> {
        self.key.as_ref()
    }

    /// The owner of the store.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The sizes of the store.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether the write-ahead log is as long as the superblock says, which may be forged.
    pub fn has_whole_wal(&self) -> bool {
        self.wal_there >= self.geometry.wal_bytes
    }

    /// Segments with at least some bytes, listed or not.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, Kind)> {
        self.sources.iter().map(|(id, source)| (*id, source.kind))
    }

    fn take_slots(&mut self) {
        let Some(frames) = self.frames.clone() else {
            return;
        };
        let (log, geometry) = (self.identity.server, self.geometry);
        let mut stamps = BTreeMap::new();
        let mut unknown = Vec::new();
        let visited = rebuild::slots(&frames, &geometry, &mut |found| {
            let FoundSlot {
                frame, slot, tail, ..
            } = found;
            let lsn = slot.map_or(0, |slot| slot.lsn);
            self.durable_lsn = self.durable_lsn.max(lsn);
            match slot.filter(|slot| slot.state != State::Free && slot.log == log) {
                Some(slot) => {
                    let newest = stamps.entry(slot.segment).or_insert(slot.stamp);
                    if *newest <= slot.stamp {
                        *newest = slot.stamp;
                        let source = Source {
                            frame: Some(frame),
                            in_frame: slot.data_bytes(),
                            tail,
                            ..Source::new(slot.kind)
                        };
                        self.sources.insert(slot.segment, source);
                    }
                }
                None if found.broken > 0 => unknown.push(frame),
                None => {}
            }
            Ok(())
        });
        debug_assert!(visited.is_ok(), "the visitor gives no errors");
        for frame in unknown {
            self.take_header(&frames, frame);
        }
    }

    /// Adds a frame with two damaged slots.
    fn take_header(&mut self, frames: &Region, frame: u32) {
        let Geometry {
            frames: count,
            segment_bytes,
            ..
        } = self.geometry;
        let mut block = vec![0; BLOCK_BYTES as usize];
        let at = frame::data_at(frame, count, segment_bytes);
        let header = frames.read_at(at, &mut block).ok();
        let header = header.and_then(|()| SegmentHeader::decode(block.get(..HEADER_BYTES)?).ok());
        if let Some(header) = header.filter(|header| header.log == self.identity.server) {
            self.sources.entry(header.segment).or_insert(Source {
                frame: Some(frame),
                in_frame: segment_bytes,
                ..Source::new(header.kind)
            });
        }
    }

    /// Adds every sound commit in the ring that is not known to be unneeded, in order, even if
    /// others between them are missing.
    fn take_commits(&mut self, wal: &Region, place: &str) {
        let (header, _) = scan::headers(wal, self.identity.server);
        let mut reader = Reader::new(wal, self.geometry.wal_bytes);
        let how = (true, self.durable_lsn);
        let mut mended = Vec::new();
        let mut visit = |found: &scan::Found<'_>| {
            mended.extend(found.mended.map(|body| (found.commit, body.to_vec())));
            Ok(())
        };
        let end = header
            .as_ref()
            .map(|header| scan::scan(&mut reader, place, header, how, &mut visit));
        self.wal_damage = match &end {
            None => Some("neither header of the write-ahead log can be read".to_owned()),
            Some(Err(error)) => Some(error.to_string()),
            Some(Ok(end)) if end.lsn <= self.durable_lsn => Some(format!(
                "the write-ahead log ends before commit {}, and commit {} had been durable",
                end.lsn, self.durable_lsn
            )),
            Some(Ok(_)) => None,
        };
        let from = header.as_ref().map_or(0, |header| header.tail_lsn);
        let salts = header.as_ref().map(|header| &header.salts);
        if let (None, Some(Ok(end)), Some(salts)) = (&self.wal_damage, end, salts) {
            // A start must take such a place for the end of the log, because a power cut may look
            // the same. It is no proof of damage.
            let behind = scan::commits_behind(&mut reader, salts, &end).unwrap_or_default();
            let next = behind.iter().map(|commit| commit.lsn).min();
            self.wal_damage = next.map(|next| {
                format!(
                    "commit {} of the write-ahead log cannot be read, and commit {next} behind it can",
                    end.lsn
                )
            });
        }
        let mut commits = scan::sound_commits(&mut reader, salts, from);
        commits.extend(mended);
        // If two commits have one number, that of the later generation counts.
        commits.sort_by_key(|(commit, _)| (commit.lsn, std::cmp::Reverse(commit.generation)));
        commits.dedup_by_key(|(commit, _)| commit.lsn);
        for (commit, body) in &commits {
            for record in commit.records(body).into_iter().flatten() {
                self.take_record(&record);
            }
        }
    }

    fn take_record(&mut self, record: &Record<'_>) {
        if record.log != self.identity.server || record.segment == SegmentId::NONE {
            return;
        }
        let source = self
            .sources
            .entry(record.segment)
            .or_insert_with(|| Source::new(record.kind));
        if let Some(frame) = record.frame {
            source.frame.get_or_insert(frame);
            if source.frame == Some(frame) && source.in_frame < record.offset {
                source.in_frame = record.offset;
                source.tail.clear();
            }
        }
        if !record.payload.is_empty() {
            source.pieces.push((record.offset, record.payload.to_vec()));
        }
    }

    /// The bytes of a segment, `length` of them if that is known.
    pub fn read(&self, segment: SegmentId, length: Option<u32>) -> Remains {
        let Some(source) = self.sources.get(&segment) else {
            let length = length.unwrap_or(0) as usize;
            return Remains {
                bytes: vec![0; length],
                missing: gaps(Vec::new(), length),
            };
        };
        let capacity = self.geometry.segment_bytes as usize;
        let length = length.map_or(source.end(), |length| length as usize);
        let length = length.min(capacity);
        let mut bytes = vec![0; capacity];
        let mut known = Vec::new();
        if let Some((frame, frames)) = source.frame.zip(self.frames.as_ref()) {
            let at = frame::data_at(frame, self.geometry.frames, self.geometry.segment_bytes);
            let end = (source.in_frame as usize).min(capacity);
            known = read_what_can_be(frames, at, &mut bytes[..end]);
        }
        let pieces = source.pieces.iter().map(|(at, bytes)| (*at, &bytes[..]));
        let tail = (source.in_frame, &source.tail[..]);
        for (at, piece) in std::iter::once(tail).chain(pieces) {
            let range = at as usize..at as usize + piece.len();
            if let Some(place) = bytes.get_mut(range.clone()) {
                place.copy_from_slice(piece);
                known.push(range);
            }
        }
        bytes.truncate(length);
        Remains {
            missing: gaps(known, length),
            bytes,
        }
    }
}

/// Reads block by block if one read fails; returns the ranges that were read.
pub(crate) fn read_what_can_be(frames: &Region, at: u64, into: &mut [u8]) -> Vec<Range<usize>> {
    if frames.read_at(at, into).is_ok() {
        return std::iter::once(0..into.len()).collect();
    }
    let mut known = Vec::new();
    for (number, block) in into.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        let start = number * BLOCK_BYTES as usize;
        if frames.read_at(at + start as u64, block).is_ok() {
            known.push(start..start + block.len());
        } else {
            block.fill(0);
        }
    }
    known
}

/// The parts of `0..length` that no range covers.
fn gaps(mut known: Vec<Range<usize>>, length: usize) -> Vec<Range<usize>> {
    known.sort_by_key(|range| range.start);
    let (mut at, mut gaps) = (0, Vec::new());
    for range in known {
        let start = range.start.min(length);
        if at < start {
            gaps.push(at..start);
        }
        at = at.max(range.end);
    }
    if at < length {
        gaps.push(at..length);
    }
    gaps
}
