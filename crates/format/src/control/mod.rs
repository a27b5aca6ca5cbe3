//! Records of the control log: which segments and tables make up a server's data.
//!
//! **Layout** (little endian; records follow the segment's header without gaps, each padded with
//! zeros to a multiple of 8):
//!
//! ```text
//! 0      1       4            8        12      16
//! +------+-------+------------+--------+-------+---------- - - -+-----+
//! | kind |   0   | bytes u32, | CRC32C |   0   | body by kind   | 0s  |
//! |  u8  |       | all of it  |        |       |                |     |
//! +------+-------+------------+--------+-------+---------- - - -+-----+
//! Snapshot          next_segment u64, safe_version u64, records u32
//! AddOpen           segment u64, epoch u64, head u32, kind u8
//! Closed            segment u64, length u32, crc u32
//! Swap              version_floor u64, added u32, removed u32, added x {segment u64, epoch u64, length u32, crc u32}, removed x u64
//! Pass              first u64, count u32, victims u32, victims x u64
//! TableCreate       table u32, level u8 (255 none), floor u64, name bytes u16, name
//! TableDrop, TableClear   table u32, floor u64
//! TableLevel        table u32, level u8 (255 none)
//! SafeVersion       version u64
//! SegmentEpoch      segment u64, epoch u64
//! SegmentGeneration segment u64, generation u64, length u32, crc u32
//! CleanShutdown     next_segment u64, safe_version u64
//! TableStats        table u32, parts u32, parts x {entries u64, bytes u64}: of older programs, without effect
//! Segments          count u32, count x {id less the one before varint, epoch varint, generation varint, head varint,
//!                   kind u8 (+ 128 closed), if closed: length u32, crc u32}; ids grow; varint: LEB128
//! ```
//!
//! **Invariants**
//! - R1: the CRC32C covers every byte of the padded record, with the CRC field itself read as zero.
//! - R2: kind is never zero, so zeroed space is not a record.
//! - R3: lengths and counts are checked against the record's own size before any field is read: no
//!   input makes the parser panic or allocate more than a small multiple of its length.
//!
//! Kind 15 (zone map) is reserved for the cluster.
//!
//! Paper: [Rumble14 §4] the log digest; differs: a log of changes that starts with a snapshot,
//! one for all heads (docs/traps.md, trap 16).

use crate::certificate::Certificate;
use crate::segment::Kind as SegmentKind;
use duramen_base::ids::{Level, SegmentId};

/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: usize = 16;
/// Records start on multiples of this many bytes.
pub const ALIGN_BYTES: usize = 8;
/// Longest table name, in bytes.
pub const TABLE_NAME_BYTES_MAX: usize = 128;
/// True if the name is allowed for a table: non-empty UTF-8 without white space and control
/// characters, so that lists and commands can show it. The coordinator and the engines of its
/// servers use this one rule, because a name that an engine refuses stops all further messages to
/// it.
pub fn is_table_name(name: &str) -> bool {
    let is_shown = |c: char| !c.is_control() && !c.is_whitespace();
    !name.is_empty() && name.len() <= TABLE_NAME_BYTES_MAX && name.chars().all(is_shown)
}

/// Maximum bytes of a [`Record::TableCreate`].
pub const TABLE_RECORD_BYTES_MAX: u64 = 160;

const CRC_AT: usize = 8;
/// The bytes that give a record's length.
pub(crate) const LENGTH_AT: std::ops::Range<usize> = 4..8;
const NO_LEVEL: u8 = 255;

/// One change of the segments and tables that make up a server's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The first record of each control segment: the list of segments is empty, and the next
    /// `records` records fill it.
    Snapshot {
        /// Every id that was given before this was written is below this one.
        next_segment: SegmentId,
        safe_version: u64,
        records: u32,
    },
    /// The segment is part of the log from now on.
    AddOpen {
        segment: SegmentId,
        epoch: u64,
        head: u32,
        kind: SegmentKind,
    },
    /// The segment ends with these bytes.
    Closed {
        segment: SegmentId,
        certificate: Certificate,
    },
    /// The atomic commit of a cleaning pass.
    Swap {
        /// Highest version that may have been given to a key of which the log keeps no trace.
        version_floor: u64,
        add: Vec<Added>,
        remove: Vec<SegmentId>,
    },
    /// A cleaning pass began: the ids `first..first + count` are for the survivors that it makes of
    /// `victims`.
    Pass(Pass),
    TableCreate {
        table: u32,
        /// Entries of this id with a lower version do not belong to the table.
        floor: u64,
        level: Option<Level>,
        name: String,
    },
    TableDrop {
        table: u32,
        floor: u64,
    },
    /// Entries of the table below `floor` are dead.
    TableClear {
        table: u32,
        floor: u64,
    },
    TableLevel {
        table: u32,
        level: Option<Level>,
    },
    /// No object version at or below this one is given again.
    SafeVersion {
        version: u64,
    },
    /// Replicas of the open segment at a lower replication epoch are not valid any more.
    SegmentEpoch {
        segment: SegmentId,
        epoch: u64,
    },
    /// The closed segment was rewritten without its dead entries; older images are not valid any
    /// more.
    SegmentGeneration {
        segment: SegmentId,
        generation: u64,
        certificate: Certificate,
    },
    /// The last record of a log whose server ended in order.
    CleanShutdown {
        next_segment: SegmentId,
        safe_version: u64,
    },
    /// The distribution of a table's objects over the hash space. Older programs wrote it; it has
    /// no effect.
    TableStats {
        table: u32,
        parts: Vec<PartStats>,
    },
    /// Lists segments, in the order of their ids, as [`AddOpen`](Record::AddOpen),
    /// [`Closed`](Record::Closed) and [`SegmentGeneration`](Record::SegmentGeneration) do, in a
    /// fifth of their bytes: for snapshots.
    Segments(Vec<ListedSegment>),
}

/// A segment of a [`Record::Segments`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedSegment {
    pub segment: SegmentId,
    pub epoch: u64,
    pub generation: u64,
    pub head: u32,
    pub kind: SegmentKind,
    /// Its content, if it is closed.
    pub closed: Option<Certificate>,
}

/// Number and bytes of entries in one part of the hash space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartStats {
    pub entries: u64,
    /// Bytes of their entries.
    pub bytes: u64,
}

/// A survivor that a [`Record::Swap`] lists: closed, with this content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    pub segment: SegmentId,
    pub epoch: u64,
    pub certificate: Certificate,
}

/// A cleaning pass whose result is not listed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    pub first: SegmentId,
    pub count: u32,
    pub victims: Vec<SegmentId>,
}

/// The reason why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("a record of {needed} bytes, {available} are there")]
    Truncated { needed: usize, available: usize },
    #[error("a record of {bytes} bytes: no record is")]
    Length { bytes: u32 },
    #[error("the record does not match its CRC32C")]
    Checksum,
    #[error("unknown kind of record {found}: written by a newer program")]
    Kind { found: u8 },
    #[error("field `{field}` of a record of kind {kind} is out of range")]
    Field { kind: u8, field: &'static str },
}

const SNAPSHOT: u8 = 1;
const ADD_OPEN: u8 = 2;
const CLOSED: u8 = 3;
const SWAP: u8 = 4;
const PASS: u8 = 5;
const TABLE_CREATE: u8 = 6;
const TABLE_DROP: u8 = 7;
const TABLE_CLEAR: u8 = 8;
const TABLE_LEVEL: u8 = 9;
const SAFE_VERSION: u8 = 10;
const SEGMENT_EPOCH: u8 = 11;
const SEGMENT_GENERATION: u8 = 12;
const CLEAN_SHUTDOWN: u8 = 13;
const TABLE_STATS: u8 = 14;
const SEGMENTS: u8 = 16;
/// Bit in the kind of a listed segment.
const IS_CLOSED: u8 = 128;
const LISTED_BYTES_MIN: usize = 5;
/// Maximum bytes of a listed segment whose id is less than 2^14 above the one before, and whose
/// epoch, generation and head are below 2^14.
pub const LISTED_BYTES_USUAL: u64 = 17;
const ADDED_BYTES: usize = 24;
const PART_BYTES: usize = 16;

/// The CRC32C of a record (R1).
fn sum_of(record: &[u8]) -> u32 {
    let (head, rest) = record.split_at_checked(CRC_AT).unwrap_or((record, &[]));
    let body = rest.get(4..).unwrap_or_default();
    [&[0; 4][..], body]
        .iter()
        .fold(crc32c::crc32c(head), |crc, part| {
            crc32c::crc32c_append(crc, part)
        })
}

/// The difference between the stored and the computed sum of the record at the start of `bytes`,
/// and the record's length; `None`: no record can have this length.
pub(crate) fn sum_difference(bytes: &[u8]) -> Option<(u32, usize)> {
    let total = crate::bytes::u32_at(bytes, LENGTH_AT.start) as usize;
    let record = bytes.get(..total)?;
    let stored = crate::bytes::u32_at(record, CRC_AT);
    (total >= RECORD_HEADER_BYTES).then(|| (stored ^ sum_of(record), total))
}

impl Record {
    /// The record's name in messages.
    pub fn name(&self) -> &'static str {
        self.kind().1
    }

    /// The number of its kind, and the name.
    fn kind(&self) -> (u8, &'static str) {
        match self {
            Record::Snapshot { .. } => (SNAPSHOT, "snapshot"),
            Record::AddOpen { .. } => (ADD_OPEN, "add-open"),
            Record::Closed { .. } => (CLOSED, "closed"),
            Record::Swap { .. } => (SWAP, "swap"),
            Record::Pass(_) => (PASS, "pass"),
            Record::TableCreate { .. } => (TABLE_CREATE, "table-create"),
            Record::TableDrop { .. } => (TABLE_DROP, "table-drop"),
            Record::TableClear { .. } => (TABLE_CLEAR, "table-clear"),
            Record::TableLevel { .. } => (TABLE_LEVEL, "table-level"),
            Record::SafeVersion { .. } => (SAFE_VERSION, "safe-version"),
            Record::SegmentEpoch { .. } => (SEGMENT_EPOCH, "segment-epoch"),
            Record::SegmentGeneration { .. } => (SEGMENT_GENERATION, "segment-generation"),
            Record::CleanShutdown { .. } => (CLEAN_SHUTDOWN, "clean-shutdown"),
            Record::TableStats { .. } => (TABLE_STATS, "table-stats"),
            Record::Segments(_) => (SEGMENTS, "segments"),
        }
    }

    /// Appends the record to `out`.
    ///
    /// # Panics
    /// If a table's name is longer than [`TABLE_NAME_BYTES_MAX`]: the engine refuses such names.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[self.kind().0, 0, 0, 0]);
        out.extend_from_slice(&[0; RECORD_HEADER_BYTES - 4]);
        self.encode_body(out);
        out.resize(start + (out.len() - start).next_multiple_of(ALIGN_BYTES), 0);
        let record = &mut out[start..];
        let bytes = u32::try_from(record.len()).expect("a record is shorter than 4 GiB");
        record[4..8].copy_from_slice(&bytes.to_le_bytes());
        let crc = crc32c::crc32c(record); // R1: the field for the sum is still zero
        record[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        let mut to = Put(out);
        match self {
            Record::Snapshot {
                next_segment,
                safe_version,
                records,
            } => to.u64(next_segment.0).u64(*safe_version).u32(*records),
            Record::AddOpen {
                segment,
                epoch,
                head,
                kind,
            } => to.u64(segment.0).u64(*epoch).u32(*head).u8(*kind as u8),
            Record::Closed {
                segment,
                certificate,
            } => to.u64(segment.0).certificate(*certificate),
            Record::Swap {
                version_floor,
                add,
                remove,
            } => to
                .u64(*version_floor)
                .count(add.len())
                .count(remove.len())
                .added(add)
                .ids(remove),
            Record::Pass(pass) => to
                .u64(pass.first.0)
                .u32(pass.count)
                .count(pass.victims.len())
                .ids(&pass.victims),
            Record::TableCreate {
                table,
                floor,
                level,
                name,
            } => {
                assert!(name.len() <= TABLE_NAME_BYTES_MAX, "table name too long");
                to.u32(*table).level(*level).u64(*floor);
                to.u16(name.len() as u16).bytes(name.as_bytes())
            }
            Record::TableDrop { table, floor } | Record::TableClear { table, floor } => {
                to.u32(*table).u64(*floor)
            }
            Record::TableLevel { table, level } => to.u32(*table).level(*level),
            Record::SafeVersion { version } => to.u64(*version),
            Record::SegmentEpoch { segment, epoch } => to.u64(segment.0).u64(*epoch),
            Record::SegmentGeneration {
                segment,
                generation,
                certificate,
            } => to.u64(segment.0).u64(*generation).certificate(*certificate),
            Record::CleanShutdown {
                next_segment,
                safe_version,
            } => to.u64(next_segment.0).u64(*safe_version),
            Record::TableStats { table, parts } => to.u32(*table).parts(parts),
            Record::Segments(listed) => to.listed(listed),
        };
    }

    /// Reads the record at the start of untrusted `bytes`; also returns its length.
    ///
    /// # Errors
    /// [`Damage`]; the start of the next record is unknown then.
    pub fn decode(bytes: &[u8]) -> Result<(Record, usize), Damage> {
        let header: &[u8; RECORD_HEADER_BYTES] = bytes.first_chunk().ok_or(Damage::Truncated {
            needed: RECORD_HEADER_BYTES,
            available: bytes.len(),
        })?;
        let [kind, _, _, _, l0, l1, l2, l3, c0, c1, c2, c3, ..] = *header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        let total = length as usize;
        if total < RECORD_HEADER_BYTES || !total.is_multiple_of(ALIGN_BYTES) {
            return Err(Damage::Length { bytes: length });
        }
        let record = bytes.get(..total).ok_or(Damage::Truncated {
            needed: total,
            available: bytes.len(),
        })?;
        if sum_of(record) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(Damage::Checksum); // R1
        }
        let mut take = Take {
            kind,
            rest: record.split_at(RECORD_HEADER_BYTES).1,
        };
        Ok((Record::decode_body(&mut take)?, total))
    }

    fn decode_body(from: &mut Take<'_>) -> Result<Record, Damage> {
        Ok(match from.kind {
            SNAPSHOT => Record::Snapshot {
                next_segment: from.id("next_segment")?,
                safe_version: from.u64("safe_version")?,
                records: from.u32("records")?,
            },
            ADD_OPEN => Record::AddOpen {
                segment: from.id("segment")?,
                epoch: from.u64("epoch")?,
                head: from.u32("head")?,
                kind: SegmentKind::from_number(from.u8("kind")?).ok_or(from.field("kind"))?,
            },
            CLOSED => Record::Closed {
                segment: from.id("segment")?,
                certificate: from.certificate()?,
            },
            SWAP => Record::decode_swap(from)?,
            PASS => {
                let (first, count) = (from.id("first")?, from.u32("count")?);
                let victims = from.count("victims", 8)?;
                Record::Pass(Pass {
                    first,
                    count,
                    victims: from.ids("victims", victims)?,
                })
            }
            TABLE_CREATE => Record::decode_table(from)?,
            TABLE_DROP => Record::TableDrop {
                table: from.u32("table")?,
                floor: from.u64("floor")?,
            },
            TABLE_CLEAR => Record::TableClear {
                table: from.u32("table")?,
                floor: from.u64("floor")?,
            },
            TABLE_LEVEL => Record::TableLevel {
                table: from.u32("table")?,
                level: from.level()?,
            },
            SAFE_VERSION => Record::SafeVersion {
                version: from.u64("version")?,
            },
            SEGMENT_EPOCH => Record::SegmentEpoch {
                segment: from.id("segment")?,
                epoch: from.u64("epoch")?,
            },
            SEGMENT_GENERATION => Record::SegmentGeneration {
                segment: from.id("segment")?,
                generation: from.u64("generation")?,
                certificate: from.certificate()?,
            },
            CLEAN_SHUTDOWN => Record::CleanShutdown {
                next_segment: from.id("next_segment")?,
                safe_version: from.u64("safe_version")?,
            },
            TABLE_STATS => Record::decode_stats(from)?,
            SEGMENTS => Record::decode_segments(from)?,
            found => return Err(Damage::Kind { found }),
        })
    }

    fn decode_swap(from: &mut Take<'_>) -> Result<Record, Damage> {
        let version_floor = from.u64("version_floor")?;
        let added = from.count("added", ADDED_BYTES)?;
        let removed = from.count("removed", 8)?;
        let mut add = Vec::with_capacity(added);
        for _ in 0..added {
            add.push(Added {
                segment: from.id("segment")?,
                epoch: from.u64("epoch")?,
                certificate: from.certificate()?,
            });
        }
        Ok(Record::Swap {
            version_floor,
            add,
            remove: from.ids("removed", removed)?,
        })
    }

    fn decode_stats(from: &mut Take<'_>) -> Result<Record, Damage> {
        let table = from.u32("table")?;
        let count = from.count("parts", PART_BYTES)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(PartStats {
                entries: from.u64("entries")?,
                bytes: from.u64("bytes")?,
            });
        }
        Ok(Record::TableStats { table, parts })
    }

    fn decode_segments(from: &mut Take<'_>) -> Result<Record, Damage> {
        let count = from.count("segments", LISTED_BYTES_MIN)?;
        let mut listed = Vec::with_capacity(count);
        let mut before = 0_u64;
        for _ in 0..count {
            let beyond = from.varint("segment")?;
            before = before.checked_add(beyond).ok_or(from.field("segment"))?;
            let (epoch, generation) = (from.varint("epoch")?, from.varint("generation")?);
            let head = u32::try_from(from.varint("head")?).map_err(|_| from.field("head"))?;
            let kind = from.u8("kind")?;
            let closed = match kind & IS_CLOSED {
                0 => None,
                _ => Some(from.certificate()?),
            };
            listed.push(ListedSegment {
                segment: SegmentId(before),
                epoch,
                generation,
                head,
                kind: SegmentKind::from_number(kind & !IS_CLOSED).ok_or(from.field("kind"))?,
                closed,
            });
        }
        Ok(Record::Segments(listed))
    }

    fn decode_table(from: &mut Take<'_>) -> Result<Record, Damage> {
        let table = from.u32("table")?;
        let level = from.level()?;
        let floor = from.u64("floor")?;
        let bytes = usize::from(from.u16("name")?);
        if bytes > TABLE_NAME_BYTES_MAX {
            return Err(from.field("name"));
        }
        let name = from.take(bytes, "name")?;
        Ok(Record::TableCreate {
            table,
            floor,
            level,
            name: std::str::from_utf8(name)
                .map_err(|_| from.field("name"))?
                .to_owned(),
        })
    }
}

/// Appends fields.
struct Put<'a>(&'a mut Vec<u8>);

impl Put<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    /// LEB128: 7 bits a byte, the lowest first.
    fn varint(&mut self, mut value: u64) -> &mut Self {
        while value >= 128 {
            self.u8(value as u8 | 128);
            value >>= 7;
        }
        self.u8(value as u8)
    }

    fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).expect("fewer than 2^32 segments"))
    }

    fn certificate(&mut self, certificate: Certificate) -> &mut Self {
        self.u32(certificate.length).u32(certificate.crc)
    }

    fn level(&mut self, level: Option<Level>) -> &mut Self {
        self.u8(level.map_or(NO_LEVEL, |level| level as u8))
    }

    fn ids(&mut self, ids: &[SegmentId]) -> &mut Self {
        for id in ids {
            self.u64(id.0);
        }
        self
    }

    fn added(&mut self, added: &[Added]) -> &mut Self {
        for one in added {
            self.u64(one.segment.0)
                .u64(one.epoch)
                .certificate(one.certificate);
        }
        self
    }

    fn parts(&mut self, parts: &[PartStats]) -> &mut Self {
        self.count(parts.len());
        for part in parts {
            self.u64(part.entries).u64(part.bytes);
        }
        self
    }

    fn listed(&mut self, listed: &[ListedSegment]) -> &mut Self {
        self.count(listed.len());
        let mut before = 0;
        for one in listed {
            let beyond = one.segment.0.checked_sub(before).expect("ids grow");
            before = one.segment.0;
            self.varint(beyond)
                .varint(one.epoch)
                .varint(one.generation)
                .varint(one.head.into());
            match one.closed {
                None => self.u8(one.kind as u8),
                Some(closed) => self.u8(one.kind as u8 | IS_CLOSED).certificate(closed),
            };
        }
        self
    }
}

/// Reads fields from the front of a body.
struct Take<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Take<'a> {
    fn field(&self, field: &'static str) -> Damage {
        Damage::Field {
            kind: self.kind,
            field,
        }
    }

    fn take(&mut self, bytes: usize, field: &'static str) -> Result<&'a [u8], Damage> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(self.field(field))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Damage> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(self.field(field))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self, field: &'static str) -> Result<u8, Damage> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, Damage> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, Damage> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    fn u64(&mut self, field: &'static str) -> Result<u64, Damage> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    fn varint(&mut self, field: &'static str) -> Result<u64, Damage> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8(field)?;
            let bits = u64::from(byte & 127);
            // Numbers of more than 64 bits and forms that are longer than needed are refused, so
            // that a number has one form.
            if bits << shift >> shift != bits || byte == 0 && shift > 0 {
                return Err(self.field(field));
            }
            value |= bits << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(self.field(field))
    }

    fn id(&mut self, field: &'static str) -> Result<SegmentId, Damage> {
        Ok(SegmentId(self.u64(field)?))
    }

    fn certificate(&mut self) -> Result<Certificate, Damage> {
        Ok(Certificate {
            length: self.u32("length")?,
            crc: self.u32("crc")?,
        })
    }

    fn level(&mut self) -> Result<Option<Level>, Damage> {
        match self.u8("level")? {
            NO_LEVEL => Ok(None),
            number => Level::from_number(number)
                .map(Some)
                .ok_or(self.field("level")),
        }
    }

    /// A number of items of `each` bytes, which must fit into the rest (R3).
    fn count(&mut self, field: &'static str, each: usize) -> Result<usize, Damage> {
        let count = self.u32(field)? as usize;
        if count > self.rest.len() / each {
            return Err(self.field(field));
        }
        Ok(count)
    }

    fn ids(&mut self, field: &'static str, count: usize) -> Result<Vec<SegmentId>, Damage> {
        if count > self.rest.len() / 8 {
            return Err(self.field(field)); // R3: more than the bytes can hold
        }
        (0..count).map(|_| self.id(field)).collect()
    }
}

#[cfg(test)]
mod tests;
