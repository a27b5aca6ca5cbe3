//! The file of a checkpoint: a header, and a stream of bytes cut into pieces that are read and
//! verified in any order, each alone.
//!
//! - F1: a piece's checksum begins from its checkpoint and its number: no piece of another
//!   checkpoint, or from another place, passes.
//! - F2: the file is exactly as long as its header requires: memory for its contents is taken only
//!   after this check.
//!
//! **Concurrency** many threads may read pieces of one file.
//!
//! **Layout** little-endian. Each piece begins at a multiple of 4 KiB, so that it can be read
//! without the page cache; entries of 4, 8 or 16 bytes never span two pieces.
//!
//! ```text
//! header   0       8        12       16      24           32       40           48             4092
//!          +-------+--------+--------+-------+------------+--------+------------+--------------+-----+
//!          | magic | format | blocks | store | checkpoint | tables | blob bytes | stream bytes | crc |
//!          |       |  u32   |  u32   |  u64  |    u64     |  u64   |    u64     |     u64      | u32 |
//!          +-------+--------+--------+-------+------------+--------+------------+--------------+-----+
//! piece    0       4        8        16                                           at most 256 KiB
//!          +-------+--------+--------+--------------------------------------------+
//!          |  crc  | bytes  | number | bytes of the stream                        |
//!          |  u32  |  u32   |  u64   |                                            |
//!          +-------+--------+--------+--------------------------------------------+
//! ```
//!
//! Paper: [Badam11 §3.6].

use crate::error::Error;
use crate::layout::ALIGNMENT_MAX;
use duramen_base::open::{open_data, open_to_read};
use duramen_disk::{Aligned, direct_alignment};
use rustix::fs::OFlags;
use std::cmp::Ordering;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

pub(crate) const MAGIC: [u8; 8] = *b"DURACKPT";
/// Format 1 was one sequence of chunks, read in order. Format 2 had no lengths of objects.
const FORMAT: u32 = 3;
pub(crate) const HEADER_BYTES: usize = 4096;
/// Unit of reading: long enough for a device, short enough that many are in flight and that little
/// memory is touched.
const PIECE_BYTES: usize = 256 << 10;
const PIECE_HEADER_BYTES: usize = 16;
/// Bytes of the stream in a piece.
pub(crate) const STREAM_BYTES: usize = PIECE_BYTES - PIECE_HEADER_BYTES;

/// Header of a checkpoint's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub store: u64,
    pub checkpoint: u64,
    pub blocks: u32,
    pub tables: u32,
    pub blob_bytes: u64,
    /// Bytes of the stream in all pieces together.
    pub stream_bytes: u64,
}

fn damaged(what: &str, why: &'static str) -> Error {
    Error::DamagedCheckpoint {
        what: what.to_owned(),
        why,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes[at..].first_chunk().expect("within the header");
    u32::from_le_bytes(*field)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes[at..].first_chunk().expect("within the header");
    u64::from_le_bytes(*field)
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &FORMAT.to_le_bytes());
        put(12, &self.blocks.to_le_bytes());
        put(16, &self.store.to_le_bytes());
        put(24, &self.checkpoint.to_le_bytes());
        put(32, &u64::from(self.tables).to_le_bytes());
        put(40, &self.blob_bytes.to_le_bytes());
        put(48, &self.stream_bytes.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], what: &str) -> Result<Header, Error> {
        if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
            return Err(Error::Foreign {
                what: what.to_owned(),
            });
        }
        let (body, crc) = bytes[..HEADER_BYTES].split_at(HEADER_BYTES - 4);
        if crc != crc32c::crc32c(body).to_le_bytes() {
            return Err(damaged(what, "its header"));
        }
        let format = u32_at(body, 8);
        let (what, found) = (what.to_owned(), format.min(u16::MAX.into()) as u16);
        let known = FORMAT as u16;
        match format.cmp(&FORMAT) {
            Ordering::Less => return Err(Error::Older { what, found, known }),
            Ordering::Equal => {}
            Ordering::Greater => return Err(Error::Newer { what, found, known }),
        }
        Ok(Header {
            blocks: u32_at(body, 12),
            store: u64_at(body, 16),
            checkpoint: u64_at(body, 24),
            tables: u32_at(body, 32),
            blob_bytes: u64_at(body, 40),
            stream_bytes: u64_at(body, 48),
        })
    }

    fn pieces(&self) -> u64 {
        self.stream_bytes.div_ceil(STREAM_BYTES as u64)
    }

    /// Length of the whole file; `None`: the length is impossible.
    fn file_bytes(&self) -> Option<u64> {
        let headers = self.pieces() * PIECE_HEADER_BYTES as u64 + HEADER_BYTES as u64;
        self.stream_bytes.checked_add(headers)
    }

    /// Bytes of the stream in piece `number`, which exists.
    fn stream_bytes_of(&self, number: u64) -> usize {
        let before = number * STREAM_BYTES as u64;
        (self.stream_bytes - before).min(STREAM_BYTES as u64) as usize
    }

    /// The checksum of a piece (F1).
    fn checksum(&self, number: u64, piece: &[u8]) -> u32 {
        let mut seed = [0; 24];
        seed[..8].copy_from_slice(&self.store.to_le_bytes());
        seed[8..16].copy_from_slice(&self.checkpoint.to_le_bytes());
        seed[16..].copy_from_slice(&number.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c(&seed), &piece[4..])
    }
}

/// Offset of piece `number`.
fn piece_at(number: u64) -> u64 {
    HEADER_BYTES as u64 + number * PIECE_BYTES as u64
}

/// Writes a stream.
pub(crate) struct Writer {
    file: File,
    header: Header,
    piece: Vec<u8>,
    number: u64,
}

impl Writer {
    /// Writes to a file that must not exist yet.
    pub fn create(path: &Path, header: Header) -> io::Result<Writer> {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        piece.resize(PIECE_HEADER_BYTES, 0);
        Ok(Writer {
            file: create(path)?,
            header,
            piece,
            number: 0,
        })
    }

    pub fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = PIECE_BYTES - self.piece.len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len() == PIECE_BYTES {
                self.write()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let bytes = self.piece.len() - PIECE_HEADER_BYTES;
        self.piece[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
        self.piece[8..16].copy_from_slice(&self.number.to_le_bytes());
        let crc = self.header.checksum(self.number, &self.piece);
        self.piece[..4].copy_from_slice(&crc.to_le_bytes());
        self.file.write_all_at(&self.piece, piece_at(self.number))?;
        self.number += 1;
        self.piece.truncate(PIECE_HEADER_BYTES);
        Ok(())
    }

    /// Completes the file and makes it durable.
    pub fn finish(mut self) -> io::Result<()> {
        let rest = self.piece.len() - PIECE_HEADER_BYTES;
        let put = self.number * STREAM_BYTES as u64 + rest as u64;
        assert_eq!(
            put, self.header.stream_bytes,
            "a stream is as long as was said (F2)"
        );
        if rest > 0 {
            self.write()?;
        }
        self.file.write_all_at(&self.header.encode(), 0)?;
        self.file.flush()?;
        self.file.sync_all()
    }
}

/// Reads a stream.
pub(crate) struct Pieces {
    file: File,
    what: String,
    pub header: Header,
    /// The header and the first piece, which one read returns.
    first: Aligned,
}

/// Memory for a piece that is read.
pub(crate) struct Room(Aligned);

impl Room {
    pub fn new() -> Room {
        Room(Aligned::zeroed(PIECE_BYTES))
    }
}

impl Pieces {
    /// # Errors
    /// [`Error::Foreign`], [`Error::Older`], [`Error::Newer`], [`Error::DamagedCheckpoint`],
    /// [`Error::Device`].
    pub fn open(path: &Path) -> Result<Pieces, Error> {
        let what = path.display().to_string();
        // A pipe would wait for a writer, for ever.
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(Error::Foreign { what });
        }
        let file = open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => Error::NoCheckpoint {
                what: what.clone(),
                source,
            },
            _ => Error::device("opening the checkpoint")(source),
        })?;
        let mut first = Aligned::zeroed(HEADER_BYTES + PIECE_BYTES);
        let found = read_up_to(&file, first.bytes_mut(), 0)?;
        let header = Header::decode(&first.bytes()[..found], &what)?;
        let length = file
            .metadata()
            .map_err(Error::device("looking at the checkpoint"))?
            .len();
        match header.file_bytes() {
            Some(bytes) if bytes == length => {} // F2: exactly the required length
            Some(bytes) if bytes < length => {
                return Err(damaged(&what, "it is longer than it says"));
            }
            _ => return Err(damaged(&what, "it is cut off")),
        }
        Ok(Pieces {
            file,
            what,
            header,
            first,
        })
    }

    /// Number of pieces.
    pub fn count(&self) -> u64 {
        self.header.pieces()
    }

    /// An error that refuses the checkpoint.
    pub fn damaged(&self, why: &'static str) -> Error {
        damaged(&self.what, why)
    }

    /// The bytes of the stream in piece `number`, which exists.
    ///
    /// # Errors
    /// [`Error::DamagedCheckpoint`], [`Error::Device`].
    pub fn read<'b>(&'b self, number: u64, room: &'b mut Room) -> Result<&'b [u8], Error> {
        let bytes = self.header.stream_bytes_of(number);
        let whole = PIECE_HEADER_BYTES + bytes;
        let piece = if number == 0 {
            self.first.bytes()[HEADER_BYTES..].get(..whole)
        } else {
            let found = read_up_to(&self.file, room.0.bytes_mut(), piece_at(number))?;
            room.0.bytes()[..found].get(..whole)
        };
        let piece = piece.ok_or_else(|| self.damaged("it is cut off"))?;
        let says = (u32_at(piece, 0), u32_at(piece, 4), u64_at(piece, 8));
        if says != (self.header.checksum(number, piece), bytes as u32, number) {
            return Err(self.damaged("the checksum of a part does not hold"));
        }
        Ok(&piece[PIECE_HEADER_BYTES..])
    }
}

/// Makes a file that other users of the machine cannot read: it has the program's memory.
fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    open_data(options.mode(0o600), OFlags::empty(), path)
}

/// Opens the file without the page cache, because its data is read only once; with it, if the file
/// system cannot read pieces directly.
fn open(path: &Path) -> io::Result<File> {
    let direct = open_data(File::options().read(true), OFlags::DIRECT, path);
    let fits = |file: &File| direct_alignment(file).is_ok_and(|bytes| bytes <= ALIGNMENT_MAX);
    match direct {
        Ok(file) if fits(&file) => Ok(file),
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(error),
        Ok(_) | Err(_) => open_to_read(path),
    }
}

/// Fills `into`, up to the end of the file; returns the number of bytes.
fn read_up_to(file: &File, into: &mut [u8], at: u64) -> Result<usize, Error> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], at + done as u64) {
            Ok(0) => break,
            Ok(bytes) => {
                done += bytes;
                if !done.is_multiple_of(ALIGNMENT_MAX) {
                    break; // the end: no direct read begins within a sector
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::device("reading the checkpoint")(error)),
        }
    }
    Ok(done)
}
