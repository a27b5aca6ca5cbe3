//! The write-ahead log: two header blocks, then a ring of commits.
//!
//! **Layout** (little endian; everything starts on a multiple of 4096 bytes):
//!
//! ```text
//! header block, at 0 and at 4096, the newer counts:
//! 0        4         6       8        16         24           32         40        48        56                64
//! +--------+---------+-------+--------+----------+------------+----------+---------+---------+-----------------+----
//! | "DWAL" | version | flags | server | sequence | generation | tail lsn | tail at | end lsn | tail generation |
//! +--------+---------+-------+--------+----------+------------+----------+---------+---------+-----------------+----
//! 64      72      76      80                            2128                       4080   4092
//! +-------+-------+-------+-----------------------------+--------------------------+------+--------+
//! | clock | salts | marks | generation, salt; and so on | mark of 32 bytes; so on  | zero | CRC32C |
//! +-------+-------+-------+-----------------------------+--------------------------+------+--------+
//!
//! mark: frame u32, kind u8, zeros, segment u64, log id u64, stamp u64
//!
//! commit, at 8192 and beyond:
//! 0        4         6   8      16    24           32            40      44        48     52      60       64
//! +--------+---------+---+------+-----+------------+-------------+-------+---------+------+-------+--------+---------+-------------+
//! | "DCMT" | version | 0 | salt | lsn | generation | durable lsn | bytes | records | CRC  | clock | CRC32C | records | 0s to 4096n |
//! |        |         |   |      |     |            |             | of    |         | of   |       | of the |         |             |
//! |        |         |   |      |     |            |             | body  |         | body |       | header |         |             |
//! +--------+---------+---+------+-----+------------+-------------+-------+---------+------+-------+--------+---------+-------------+
//!
//! record: 48 bytes, then its payload, padded with zeros to a multiple of 8:
//! 0         8        16      24       28        32           36         40      42     43  44      48
//! +---------+--------+-------+--------+---------+------------+----------+-------+------+---+-------+----------+
//! | segment | log id | epoch | offset | payload | certified  | certified| flags | kind | 0 | frame | payload  |
//! |   u64   |  u64   |  u64  |  u32   | bytes   | length u32 | CRC u32  |  u16  |  u8  |   |  u32  |          |
//! +---------+--------+-------+--------+---------+------------+----------+-------+------+---+-------+----------+
//! ```
//!
//! **Invariants**
//! - W1: a commit counts as a whole or not at all: both its CRCs match, and its records fill the
//!   body exactly.
//! - W2: the next commit has the next lsn and no lower generation, and starts after this one's last
//!   block, or at the start of the ring.
//! - W3: `durable lsn` was on stable storage when the commit was written. If a commit cannot be
//!   read although a later one records it as durable, it was damaged, not torn.
//! - W4: generations count the openings of the store. They prevent that commits of an earlier run,
//!   which a power cut had separated from the log's end, are taken for its continuation.
//! - W5: bytes are a commit only if they have their generation's salt. Salts are random, and stored
//!   in the header blocks alone: neither a client, whose bytes are in the ring too, nor another
//!   store's log, nor a diverged copy of this one has them. Both header blocks have the salt of a
//!   generation before its first commit is written.
//! - W6: a header has the stamps of slots that nothing else would miss: of open replicas, and of
//!   control segments. Their commits may be gone. A frame whose slots are older, or blank, has lost
//!   a write, or is an older copy. Later headers repeat that of a replica for as long as it exists.

use duramen_base::ids::SegmentId;

use crate::bytes::{Writer, is_sealed, u8_at, u16_at, u32_at, u64_at};
use crate::certificate::Certificate;
use crate::segment::Kind;

/// Unit of everything in the log, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Places of the two header blocks.
pub const HEADER_AT: [u64; 2] = [0, 4096];
/// Start of the ring.
pub const RING_AT: u64 = 8192;
/// Bytes of a commit before its records.
pub const COMMIT_BYTES: usize = 64;
/// Bytes of a record before its payload.
pub const RECORD_BYTES: usize = 48;
/// Version of the layout. Version 1, of builds before the first release, had no salts.
pub const VERSION: u16 = 2;
/// Maximum salts in a header. There are as many only if a store was opened this often without its
/// log being trimmed.
pub const SALTS_MAX: usize = 128;

/// The first bytes of a header block, as a number.
pub const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"DWAL");
const COMMIT_MAGIC: u32 = u32::from_le_bytes(*b"DCMT");
const FLAG_CLEAN: u16 = 1;

const RECORD_OPEN: u16 = 1;
const RECORD_CLOSE: u16 = 2;
const RECORD_CERTIFIED: u16 = 4;
const RECORD_IN_FRAME: u16 = 8;
const RECORD_FLAGS: u16 = RECORD_OPEN | RECORD_CLOSE | RECORD_CERTIFIED | RECORD_IN_FRAME;

/// The reason why bytes are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("{needed} bytes are needed, {available} are there")]
    Truncated { needed: usize, available: usize },
    #[error("nothing was written here")]
    Foreign,
    #[error("format version {found}, known is {VERSION}")]
    Version { found: u16 },
    #[error("a CRC32C does not match")]
    Checksum,
    #[error("a field makes no sense")]
    Field,
}

/// Maximum marks in a header.
pub const MARKS_MAX: usize = 61;
const MARKS_AT: usize = SALTS_AT + SALTS_MAX * SALT_BYTES;
const MARK_BYTES: usize = 32;

const SALTS_AT: usize = 80;
const SALT_BYTES: usize = 16;

/// The salts that mark the commits of each generation that may still be read (W5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salts(Vec<(u64, u64)>);

impl Salts {
    /// The salt of a generation's commits: that of the last opening up to it.
    pub fn of(&self, generation: u64) -> Option<u64> {
        let after = self.0.partition_point(|(from, _)| *from <= generation);
        let (_, salt) = self.0.get(after.checked_sub(1)?)?;
        Some(*salt)
    }

    /// True if this is the head of a commit of this log.
    pub fn has(&self, commit: &Commit) -> bool {
        self.of(commit.generation) == Some(commit.salt)
    }

    /// Adds the salt of a generation, which is greater than all before. If there is no room for
    /// another one, the generation has the last one's salt.
    pub fn add(&mut self, generation: u64, salt: u64) {
        if self.0.len() < SALTS_MAX {
            self.0.push((generation, salt));
        }
    }

    /// Forgets the salts that no generation from this one on has.
    pub fn forget_before(&mut self, generation: u64) {
        let after = self.0.partition_point(|(from, _)| *from <= generation);
        self.0.drain(..after.saturating_sub(1));
    }

    fn write_to(&self, out: &mut Writer<'_>) {
        out.u32(72, self.0.len() as u32);
        for (n, (generation, salt)) in self.0.iter().enumerate() {
            let at = SALTS_AT + n * SALT_BYTES;
            out.u64(at, *generation).u64(at + 8, *salt);
        }
    }

    fn decode(block: &[u8]) -> Result<Salts, Damage> {
        let count = u32_at(block, 72) as usize;
        if count > SALTS_MAX {
            return Err(Damage::Field);
        }
        let places = (0..count).map(|n| SALTS_AT + n * SALT_BYTES);
        let salts: Vec<_> = places
            .map(|at| (u64_at(block, at), u64_at(block, at + 8)))
            .collect();
        if salts.is_sorted_by(|one, next| one.0 < next.0) {
            Ok(Salts(salts))
        } else {
            Err(Damage::Field)
        }
    }
}

/// A replica that would not be missed without its mark (W6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The replica's frame; `u32::MAX`: not known.
    pub frame: u32,
    pub kind: Kind,
    pub segment: SegmentId,
    pub log: u64,
    pub held: Held,
}

/// The part of a marked replica that was there when the mark was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// A slot with this stamp: a restart must find it, or one after it in the same frame.
    Slot(u64),
    /// A restart did not find the whole instance with this replication epoch.
    Lost(u64),
}

impl Mark {
    fn write_to(&self, at: usize, out: &mut Writer<'_>) {
        let (is_lost, number) = match self.held {
            Held::Slot(stamp) => (0, stamp),
            Held::Lost(epoch) => (1, epoch),
        };
        out.u32(at, self.frame)
            .u8(at + 4, self.kind as u8)
            .u8(at + 5, is_lost)
            .u64(at + 8, self.segment.0)
            .u64(at + 16, self.log)
            .u64(at + 24, number);
    }

    fn decode(block: &[u8], at: usize) -> Result<Mark, Damage> {
        Ok(Mark {
            frame: u32_at(block, at),
            kind: Kind::from_number(u8_at(block, at + 4)).ok_or(Damage::Field)?,
            segment: SegmentId(u64_at(block, at + 8)),
            log: u64_at(block, at + 16),
            held: match (u8_at(block, at + 5), u64_at(block, at + 24)) {
                (0, stamp) => Held::Slot(stamp),
                (1, epoch) => Held::Lost(epoch),
                _ => return Err(Damage::Field),
            },
        })
    }

    fn decode_all(block: &[u8]) -> Result<Vec<Mark>, Damage> {
        let count = u32_at(block, 76) as usize;
        if count > MARKS_MAX {
            return Err(Damage::Field);
        }
        let places = (0..count).map(|n| MARKS_AT + n * MARK_BYTES);
        places.map(|at| Mark::decode(block, at)).collect()
    }
}

/// The start of a restart's read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub server: u64,
    /// Of two valid header blocks the one with the greater sequence counts.
    pub sequence: u64,
    /// Openings of the store so far (W4).
    pub generation: u64,
    /// The first commit that is still needed, or the next one to be written.
    pub tail_lsn: u64,
    /// The place of that commit, in bytes from the start of the write-ahead log.
    pub tail_at: u64,
    /// Lowest generation that the commit at the tail may have (W4).
    pub tail_generation: u64,
    /// After a clean shutdown: the lsn after the last commit. 0 otherwise.
    pub end_lsn: u64,
    /// The writer's clock, in milliseconds since the Unix epoch: objects that had expired by then
    /// stay absent. 0 = not known.
    pub clock_ms: u64,
    /// Salts of all generations from the tail's on (W5).
    pub salts: Salts,
    /// The marks, at most [`MARKS_MAX`] (W6). Headers of earlier builds have none.
    pub marks: Vec<Mark>,
}

/// The first bytes, if they are a block of this kind, undamaged and of this version.
fn sealed(bytes: &[u8], needed: usize, magic: u32) -> Result<&[u8], Damage> {
    let block = bytes.get(..needed).ok_or(Damage::Truncated {
        needed,
        available: bytes.len(),
    })?;
    if u32_at(block, 0) != magic {
        return Err(Damage::Foreign);
    }
    if !is_sealed(block) {
        return Err(Damage::Checksum);
    }
    match u16_at(block, 4) {
        VERSION => Ok(block),
        found => Err(Damage::Version { found }),
    }
}

impl Header {
    /// The block's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let mut out = Writer::new(&mut block);
        out.u32(0, HEADER_MAGIC)
            .u16(4, VERSION)
            .u16(6, if self.end_lsn == 0 { 0 } else { FLAG_CLEAN })
            .u64(8, self.server)
            .u64(16, self.sequence)
            .u64(24, self.generation)
            .u64(32, self.tail_lsn)
            .u64(40, self.tail_at)
            .u64(48, self.end_lsn)
            .u64(56, self.tail_generation)
            .u64(64, self.clock_ms);
        self.salts.write_to(&mut out);
        let marks = self.marks.iter().take(MARKS_MAX);
        out.u32(76, marks.len() as u32);
        for (n, mark) in marks.enumerate() {
            mark.write_to(MARKS_AT + n * MARK_BYTES, &mut out);
        }
        out.seal();
        block
    }

    /// Reads a header block from untrusted bytes.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(bytes: &[u8]) -> Result<Header, Damage> {
        let block = sealed(bytes, BLOCK_BYTES, HEADER_MAGIC)?;
        let header = Header {
            server: u64_at(block, 8),
            sequence: u64_at(block, 16),
            generation: u64_at(block, 24),
            tail_lsn: u64_at(block, 32),
            tail_at: u64_at(block, 40),
            end_lsn: u64_at(block, 48),
            tail_generation: u64_at(block, 56),
            clock_ms: u64_at(block, 64),
            salts: Salts::decode(block)?,
            marks: Mark::decode_all(block)?,
        };
        let placed = header.tail_at >= RING_AT && header.tail_at.is_multiple_of(BLOCK_BYTES as u64);
        if placed {
            Ok(header)
        } else {
            Err(Damage::Field)
        }
    }
}

/// The head of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Salt of its generation (W5).
    pub salt: u64,
    /// Number of the commit, from 1.
    pub lsn: u64,
    pub generation: u64,
    /// Greatest lsn known to be on stable storage when this was written (W3).
    pub durable_lsn: u64,
    /// Bytes of the records with their payloads.
    pub body_bytes: u32,
    pub records: u32,
    /// CRC32C of the body.
    pub body_crc: u32,
    /// As [`Header::clock_ms`].
    pub clock_ms: u64,
}

impl Commit {
    /// Bytes that the commit takes in the ring.
    pub fn padded_bytes(&self) -> u64 {
        padded_bytes(self.body_bytes as usize)
    }

    /// Writes the head into the first [`COMMIT_BYTES`] of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn write_to(&self, out: &mut [u8]) {
        Writer::new(&mut out[..COMMIT_BYTES])
            .u32(0, COMMIT_MAGIC)
            .u16(4, VERSION)
            .u64(8, self.salt)
            .u64(16, self.lsn)
            .u64(24, self.generation)
            .u64(32, self.durable_lsn)
            .u32(40, self.body_bytes)
            .u32(44, self.records)
            .u32(48, self.body_crc)
            .u64(52, self.clock_ms)
            .seal();
    }

    /// Reads the head alone from untrusted bytes; does not check the body.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(bytes: &[u8]) -> Result<Commit, Damage> {
        let block = sealed(bytes, COMMIT_BYTES, COMMIT_MAGIC)?;
        Ok(Commit {
            salt: u64_at(block, 8),
            lsn: u64_at(block, 16),
            generation: u64_at(block, 24),
            durable_lsn: u64_at(block, 32),
            body_bytes: u32_at(block, 40),
            records: u32_at(block, 44),
            body_crc: u32_at(block, 48),
            clock_ms: u64_at(block, 52),
        })
    }

    /// Verifies a body (W1) and returns its records, checked to fill it exactly.
    ///
    /// # Errors
    /// [`Damage`]: then the whole commit does not count.
    pub fn records<'a>(&self, body: &'a [u8]) -> Result<Vec<Record<'a>>, Damage> {
        let needed = self.body_bytes as usize;
        let body = body.get(..needed).ok_or(Damage::Truncated {
            needed,
            available: body.len(),
        })?;
        if crc32c::crc32c(body) != self.body_crc {
            return Err(Damage::Checksum);
        }
        // A record takes at least 48 bytes, which limits the memory that a false count could
        // reserve.
        let mut records = Vec::with_capacity((self.records as usize).min(needed / RECORD_BYTES));
        let mut rest = body;
        while !rest.is_empty() {
            let (record, bytes) = Record::decode(rest)?;
            records.push(record);
            rest = rest.get(bytes..).unwrap_or(&[]);
        }
        if records.len() == self.records as usize {
            Ok(records)
        } else {
            Err(Damage::Field)
        }
    }
}

/// Bytes that a commit with a body of this size takes in the ring.
pub fn padded_bytes(body_bytes: usize) -> u64 {
    (COMMIT_BYTES + body_bytes).next_multiple_of(BLOCK_BYTES) as u64
}

/// Some bytes of a segment, or the information that they are in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    pub segment: SegmentId,
    /// The server that owns the segment.
    pub log: u64,
    pub epoch: u64,
    /// Offset in the segment at which the payload starts.
    pub offset: u32,
    pub payload: &'a [u8],
    /// The segment's valid part from now on.
    pub certificate: Option<Certificate>,
    pub open: bool,
    pub close: bool,
    pub kind: Kind,
    /// All bytes before `offset` are in this frame.
    pub frame: Option<u32>,
}

impl<'a> Record<'a> {
    /// Bytes of the record with payload and padding.
    pub fn padded_bytes(&self) -> usize {
        (RECORD_BYTES + self.payload.len()).next_multiple_of(8)
    }

    /// The bytes before the payload.
    ///
    /// # Panics
    /// If the payload has 4 GiB or more.
    pub fn head(&self) -> [u8; RECORD_BYTES] {
        let length = u32::try_from(self.payload.len()).expect("a payload is part of a segment");
        let certificate = self.certificate.unwrap_or_default();
        let flags = [
            (self.open, RECORD_OPEN),
            (self.close, RECORD_CLOSE),
            (self.certificate.is_some(), RECORD_CERTIFIED),
            (self.frame.is_some(), RECORD_IN_FRAME),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(0, |flags, (_, flag)| flags | flag);
        let mut head = [0; RECORD_BYTES];
        Writer::new(&mut head)
            .u64(0, self.segment.0)
            .u64(8, self.log)
            .u64(16, self.epoch)
            .u32(24, self.offset)
            .u32(28, length)
            .u32(32, certificate.length)
            .u32(36, certificate.crc)
            .u16(40, flags)
            .u8(42, self.kind as u8)
            .u32(44, self.frame.unwrap_or(0));
        head
    }

    /// Appends the record, padded, to a body.
    ///
    /// # Panics
    /// As [`head`](Self::head).
    pub fn append_to(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.head());
        body.extend_from_slice(self.payload);
        body.resize(body.len().next_multiple_of(8), 0);
    }

    /// Reads the record at the start of untrusted bytes; also returns its padded length.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn decode(bytes: &'a [u8]) -> Result<(Record<'a>, usize), Damage> {
        let truncated = |needed| Damage::Truncated {
            needed,
            available: bytes.len(),
        };
        let head = bytes
            .get(..RECORD_BYTES)
            .ok_or_else(|| truncated(RECORD_BYTES))?;
        let length = u32_at(head, 28) as usize;
        let padded = (RECORD_BYTES + length).next_multiple_of(8);
        let whole = bytes.get(..padded).ok_or_else(|| truncated(padded))?;
        let flags = u16_at(head, 40);
        let kind = Kind::from_number(u8_at(head, 42)).ok_or(Damage::Field)?;
        let offset = u32_at(head, 24);
        if flags & !RECORD_FLAGS != 0 || offset.checked_add(length as u32).is_none() {
            return Err(Damage::Field);
        }
        let record = Record {
            segment: SegmentId(u64_at(head, 0)),
            log: u64_at(head, 8),
            epoch: u64_at(head, 16),
            offset,
            payload: whole
                .get(RECORD_BYTES..RECORD_BYTES + length)
                .unwrap_or_default(),
            certificate: (flags & RECORD_CERTIFIED != 0).then(|| Certificate {
                length: u32_at(head, 32),
                crc: u32_at(head, 36),
            }),
            open: flags & RECORD_OPEN != 0,
            close: flags & RECORD_CLOSE != 0,
            kind,
            frame: (flags & RECORD_IN_FRAME != 0).then(|| u32_at(head, 44)),
        };
        Ok((record, padded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::assert_noticed;

    fn example() -> Record<'static> {
        Record {
            segment: SegmentId(0x0102),
            log: 0x11,
            epoch: 3,
            offset: 64,
            payload: b"hello",
            certificate: Some(Certificate {
                length: 69,
                crc: 0xdead_beef,
            }),
            open: true,
            close: false,
            kind: Kind::Head,
            frame: None,
        }
    }

    fn commit(records: &[Record<'_>]) -> (Commit, Vec<u8>) {
        let mut body = Vec::new();
        for record in records {
            record.append_to(&mut body);
        }
        let commit = Commit {
            salt: 0x11,
            lsn: 7,
            generation: 2,
            durable_lsn: 6,
            body_bytes: body.len() as u32,
            records: records.len() as u32,
            body_crc: crc32c::crc32c(&body),
            clock_ms: 0x0102,
        };
        (commit, body)
    }

    #[test]
    fn golden_bytes_of_a_record() {
        let mut body = Vec::new();
        example().append_to(&mut body);
        assert_eq!(
            body,
            b"\x02\x01\0\0\0\0\0\0\x11\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x40\0\0\0\x05\0\0\0\x45\0\0\0\xef\xbe\xad\xde\
              \x05\0\x01\0\0\0\0\0hello\0\0\0"
        );
        assert_eq!(body.len(), example().padded_bytes());
        assert_eq!(Record::decode(&body), Ok((example(), 56)));
    }

    #[test]
    fn golden_bytes_of_a_commit() {
        let (commit, body) = commit(&[example()]);
        let mut head = [0xee; COMMIT_BYTES];
        commit.write_to(&mut head);
        assert_eq!(
            &head[..48],
            b"DCMT\x02\0\0\0\x11\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x38\0\0\0\x01\0\0\0"
        );
        assert_eq!(head[48..52], crc32c::crc32c(&body).to_le_bytes());
        assert_eq!(head[52..60], *b"\x02\x01\0\0\0\0\0\0");
        assert_eq!(head[60..], crc32c::crc32c(&head[..60]).to_le_bytes());
        assert_eq!(Commit::decode(&head), Ok(commit));
        assert_eq!(commit.padded_bytes(), 4096);
        assert_eq!(padded_bytes(4096 - COMMIT_BYTES), 4096);
        assert_eq!(padded_bytes(4096 - COMMIT_BYTES + 1), 8192);
    }

    #[test]
    fn golden_bytes_of_a_header() {
        let header = Header {
            server: 1,
            sequence: 2,
            generation: 3,
            tail_lsn: 4,
            tail_at: 0x2000,
            tail_generation: 6,
            end_lsn: 0,
            clock_ms: 7,
            salts: Salts(vec![(3, 0x3333), (5, 0x5555)]),
            marks: vec![
                Mark {
                    frame: 8,
                    kind: Kind::Control,
                    segment: SegmentId(9),
                    log: 10,
                    held: Held::Slot(11),
                },
                Mark {
                    frame: u32::MAX,
                    kind: Kind::Head,
                    segment: SegmentId(12),
                    log: 13,
                    held: Held::Lost(14),
                },
            ],
        };
        let block = header.encode();
        assert_eq!(
            &block[2128..2160],
            b"\x08\0\0\0\x03\0\0\0\x09\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0\x0b\0\0\0\0\0\0\0"
        );
        assert_eq!(
            &block[2160..2192],
            b"\xff\xff\xff\xff\x01\x01\0\0\x0c\0\0\0\0\0\0\0\x0d\0\0\0\0\0\0\0\x0e\0\0\0\0\0\0\0"
        );
        assert_eq!(
            &block[..112],
            b"DWAL\x02\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\0\x20\0\0\0\0\0\0\
              \0\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\
              \x07\0\0\0\0\0\0\0\x02\0\0\0\x02\0\0\0\
              \x03\0\0\0\0\0\0\0\x33\x33\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x55\x55\0\0\0\0\0\0"
        );
        assert_eq!(Header::decode(&block).as_ref(), Ok(&header));
        let clean = Header {
            end_lsn: 9,
            ..header
        };
        assert_eq!(clean.encode()[6], 1);
        assert_noticed(&block, |bytes| Header::decode(bytes).is_err());
    }

    #[test]
    fn each_generation_has_a_salt() {
        let mut salts = Salts::default();
        assert_eq!(salts.of(7), None);
        salts.add(3, 33);
        salts.add(5, 55);
        let of = |salts: &Salts| [2, 3, 4, 5, 9].map(|generation| salts.of(generation));
        assert_eq!(of(&salts), [None, Some(33), Some(33), Some(55), Some(55)]);
        let (commit, _) = commit(&[example()]);
        let marked = |generation, salt| Commit {
            generation,
            salt,
            ..commit
        };
        assert!(salts.has(&marked(4, 33)) && salts.has(&marked(5, 55)));
        assert!(!salts.has(&marked(2, 33)) && !salts.has(&marked(5, 33)));
        salts.forget_before(4);
        assert_eq!(salts.of(3), Some(33)); // generation 4 has it too
        salts.forget_before(5);
        assert_eq!(of(&salts), [None, None, None, Some(55), Some(55)]);
        for generation in 6..1000 {
            salts.add(generation, generation);
        }
        assert_eq!(salts.0.len(), SALTS_MAX);
        assert_eq!(salts.of(900), Some(4 + SALTS_MAX as u64)); // no room: it has the last one's
        let mut block = vec![0; BLOCK_BYTES];
        salts.write_to(&mut Writer::new(&mut block));
        assert_eq!(Salts::decode(&block), Ok(salts.clone()));
        salts.0.swap(3, 4);
        salts.write_to(&mut Writer::new(&mut block));
        assert_eq!(Salts::decode(&block), Err(Damage::Field));
        block[72..76].copy_from_slice(&129u32.to_le_bytes());
        assert_eq!(Salts::decode(&block), Err(Damage::Field));
    }

    #[test]
    fn other_versions_are_refused_by_name() {
        for found in [1, 3] {
            let (commit, _) = commit(&[example()]);
            let mut head = [0; COMMIT_BYTES];
            commit.write_to(&mut head);
            head[4] = found as u8;
            let crc = crc32c::crc32c(&head[..60]);
            head[60..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Commit::decode(&head), Err(Damage::Version { found }));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_of_a_commit_is_noticed() {
        let second = Record {
            frame: Some(5),
            close: true,
            payload: &[9; 100],
            ..example()
        };
        let (commit, body) = commit(&[example(), second]);
        assert_eq!(commit.records(&body), Ok(vec![example(), second]));
        let mut head = [0; COMMIT_BYTES];
        commit.write_to(&mut head);
        assert_noticed(&head, |bytes| Commit::decode(bytes).is_err());
        assert_noticed(&body, |bytes| commit.records(bytes).is_err());
    }
}
