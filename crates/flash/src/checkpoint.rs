//! What a later process needs to go on: object tables, blocks, and a blob of the caller's.
//!
//! **Invariants**
//! - C1: when a checkpoint is whole under its name, every object that it tells of is on the device and synced.
//! - C2: a block that the last whole checkpoint needs is not filled again (space's S4) before a later one is whole. So after a crash
//!   at any moment either the one or the other can be used.
//! - C3: a device says which checkpoint it still honours. Another one, an older one or one of another device is refused.
//!
//! **Layout** a header of 4 KiB, then chunks of at most 1 MiB, each `bytes u32 | crc u32 | bytes`. The chunks' bytes, joined:
//!
//! ```text
//! blocks   (sequence u64, objects u32) each
//! tables   number u32, objects u32, longest u32, 0 u32, locations u32 ...
//! caller   its blob
//! ```
//!
//! Paper: [Badam11 §3.6]; differs: a checkpoint is a file of its own, written beside the last one and renamed over it.

use crate::device::Device;
use crate::error::Error;
use crate::layout::{FORMAT, SECTORS_PER_BLOCK, SUPERBLOCK_BYTES, Superblock, block_of};
use crate::memory::Aligned;
use crate::space::Space;
use crate::store::{ObjectStore, Options, drawn};
use crate::table::{NOWHERE, Table, Tables};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

const MAGIC: [u8; 8] = *b"DURACKPT";
const HEADER_BYTES: usize = 4096;
const CHUNK_BYTES: usize = 1 << 20;
const BLOCK_ENTRY_BYTES: u64 = 12;
const TABLE_ENTRY_BYTES: u64 = 16;

/// What [`ObjectStore::restore`] found.
pub struct Restored {
    pub store: ObjectStore,
    /// As it was given to [`ObjectStore::checkpoint`].
    pub blob: Vec<u8>,
}

/// The newest superblock; `None`: there is none.
pub(crate) fn superblock_of(device: &dyn Device) -> Result<Option<Superblock>, Error> {
    let mut both = Aligned::zeroed(2 * SUPERBLOCK_BYTES);
    device
        .read(0, both.bytes_mut())
        .map_err(Error::device("reading the superblock"))?;
    let mut newest: Option<Superblock> = None;
    for copy in both.bytes().chunks(SUPERBLOCK_BYTES) {
        let found = Superblock::decode(copy).map_err(|found| Error::Newer {
            what: "the flash file".to_owned(),
            found,
            known: FORMAT,
        })?;
        newest = newest.max_by_version(found);
    }
    Ok(newest)
}

trait Newest {
    fn max_by_version(self, other: Self) -> Self;
}

impl Newest for Option<Superblock> {
    fn max_by_version(self, other: Self) -> Self {
        match (self, other) {
            (Some(one), Some(two)) if two.version > one.version => Some(two),
            (None, other) => other,
            (one, _) => one,
        }
    }
}

/// Writes one of the two copies, the older one, and syncs.
pub(crate) fn write_superblock(device: &dyn Device, superblock: &Superblock) -> Result<(), Error> {
    let mut copy = Aligned::zeroed(SUPERBLOCK_BYTES);
    copy.bytes_mut().copy_from_slice(&superblock.encode());
    let at = superblock.version % 2 * SUPERBLOCK_BYTES as u64;
    device
        .write(at, copy.bytes())
        .and_then(|()| device.sync())
        .map_err(Error::device("writing the superblock"))
}

impl ObjectStore {
    /// Makes everything that was written up to now last: after this, [`restore`](Self::restore) brings back this very state,
    /// whatever happens to this process. Writers wait meanwhile. `blob` is kept with it.
    ///
    /// # Errors
    /// [`Error::Device`]: the checkpoint before, if there is one, holds on.
    pub fn checkpoint(&self, path: &Path, blob: &[u8]) -> Result<(), Error> {
        let core = &self.core;
        let mut filling = core.filling();
        core.flush(&mut filling)?;
        core.device
            .sync()
            .map_err(Error::device("syncing the flash file"))?; // C1
        let mut superblock = core
            .superblock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let next = Superblock {
            version: superblock.version + 1,
            checkpoint: superblock.checkpoint + 1,
            ..*superblock
        };
        let beside = beside(path);
        let written = self.write_file(&beside, &next, blob);
        written
            .and_then(|()| std::fs::rename(&beside, path))
            .and_then(|()| sync_parent(path))
            .map_err(Error::device("writing the checkpoint"))?;
        write_superblock(&*core.device, &next)?;
        *superblock = next;
        core.space.hold_live(); // C2
        drop(superblock);
        drop(filling);
        core.made_room();
        Ok(())
    }

    /// The last checkpoint is not needed any more: what it alone holds is free, and it is refused from now on.
    ///
    /// # Errors
    /// [`Error::Device`]: it holds on.
    pub fn give_up_checkpoint(&self) -> Result<(), Error> {
        let core = &self.core;
        let filling = core.filling();
        let mut superblock = core
            .superblock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let next = Superblock {
            version: superblock.version + 1,
            checkpoint: superblock.checkpoint + 2, // neither the last one nor one that was about to be
            ..*superblock
        };
        write_superblock(&*core.device, &next)?;
        *superblock = next;
        core.space.hold_none();
        drop(superblock);
        drop(filling);
        core.made_room();
        Ok(())
    }

    fn write_file(&self, path: &Path, superblock: &Superblock, blob: &[u8]) -> io::Result<()> {
        let core = &self.core;
        let tables = core.tables.all();
        let mut file = File::create(path)?;
        file.write_all(&[0; HEADER_BYTES])?;
        let mut chunks = Chunks::new(&mut file);
        for block in 0..core.space.len() {
            let block = core.space.block(block);
            chunks.put(&block.sequence().to_le_bytes())?;
            chunks.put(&block.count().to_le_bytes())?;
        }
        for (number, table) in &tables {
            for field in [*number, table.len(), table.bytes_max, 0] {
                chunks.put(&field.to_le_bytes())?;
            }
            for location in table.locations() {
                chunks.put(&location.load(Ordering::Relaxed).to_le_bytes())?;
            }
        }
        chunks.put(blob)?;
        chunks.finish()?;
        let header = Header {
            store: superblock.store,
            checkpoint: superblock.checkpoint,
            blocks: superblock.blocks,
            tables: tables.len() as u32,
            blob_bytes: blob.len() as u64,
        };
        rustix::io::pwrite(&file, &header.encode(), 0)?;
        file.sync_all()
    }

    /// Goes on where the checkpoint at `path` was made. Objects are read when they are wanted; this reads what the checkpoint says
    /// and nothing else.
    ///
    /// # Errors
    /// [`Error::Foreign`], [`Error::Newer`], [`Error::DamagedCheckpoint`], [`Error::Superseded`], [`Error::Device`]: nothing was
    /// changed.
    pub fn restore(options: Options, path: &Path) -> Result<Restored, Error> {
        let what = path.display().to_string();
        let file = File::open(path).map_err(Error::device("opening the checkpoint"))?;
        let header = Header::read(&file, &what)?;
        let mut superblock = checked_superblock(&*options.device, &header, &what)?;
        let contents = Contents::read(&file, &header, &what)?;
        let life = contents.new_life();
        let space = Space::restored(&contents.blocks, life);
        if superblock.checkpoint != header.checkpoint {
            // It was made, and the crash came before the device could say so.
            superblock.version += 1;
            superblock.checkpoint = header.checkpoint;
            write_superblock(&*options.device, &superblock)?;
        }
        let store = ObjectStore::start(options, superblock, space, contents.tables)?;
        Ok(Restored {
            store,
            blob: contents.blob,
        })
    }
}

/// C3.
fn checked_superblock(
    device: &dyn Device,
    header: &Header,
    what: &str,
) -> Result<Superblock, Error> {
    let superseded = |why| Error::Superseded {
        what: what.to_owned(),
        why,
    };
    let found = superblock_of(device)?
        .ok_or_else(|| superseded("there is no object store in the flash file"))?;
    if found.store != header.store {
        return Err(superseded(
            "it belongs to another flash file, or that was used anew since",
        ));
    }
    if !(found.checkpoint..=found.checkpoint + 1).contains(&header.checkpoint) {
        return Err(superseded("there is a later one"));
    }
    let blocks = device.bytes() / crate::layout::BLOCK_BYTES as u64;
    if found.blocks != header.blocks || u64::from(found.blocks) > blocks {
        return Err(superseded("the flash file has become shorter"));
    }
    Ok(found)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent().filter(|parent| *parent != Path::new("")) {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

struct Header {
    store: u64,
    checkpoint: u64,
    blocks: u32,
    tables: u32,
    blob_bytes: u64,
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
        put(32, &self.tables.to_le_bytes());
        put(40, &self.blob_bytes.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn read(mut file: &File, what: &str) -> Result<Header, Error> {
        let mut bytes = [0; HEADER_BYTES];
        let foreign = || Error::Foreign {
            what: what.to_owned(),
        };
        match file.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(foreign()),
            Err(error) => return Err(Error::device("reading the checkpoint")(error)),
        }
        if bytes[..8] != MAGIC {
            return Err(foreign());
        }
        let (body, crc) = bytes.split_at(HEADER_BYTES - 4);
        if crc != crc32c::crc32c(body).to_le_bytes() {
            return Err(damaged(what, "its header"));
        }
        let u32_at = |at: usize| {
            body[at..]
                .first_chunk::<4>()
                .map_or(0, |f| u32::from_le_bytes(*f))
        };
        let u64_at = |at: usize| {
            body[at..]
                .first_chunk::<8>()
                .map_or(0, |f| u64::from_le_bytes(*f))
        };
        let format = u32_at(8) as u16;
        if format > FORMAT {
            return Err(Error::Newer {
                what: what.to_owned(),
                found: format,
                known: FORMAT,
            });
        }
        Ok(Header {
            blocks: u32_at(12),
            store: u64_at(16),
            checkpoint: u64_at(24),
            tables: u32_at(32),
            blob_bytes: u64_at(40),
        })
    }
}

fn damaged(what: &str, why: &'static str) -> Error {
    Error::DamagedCheckpoint {
        what: what.to_owned(),
        why,
    }
}

/// What stands in a checkpoint behind its header.
struct Contents {
    /// (sequence, objects, live objects)
    blocks: Vec<(u64, u32, u32)>,
    tables: Tables,
    blob: Vec<u8>,
}

impl Contents {
    fn read(file: &File, header: &Header, what: &str) -> Result<Contents, Error> {
        let length = file
            .metadata()
            .map_err(Error::device("looking at the checkpoint"))?
            .len();
        let mut source = Source {
            file,
            what,
            chunk: Vec::new(),
            at: 0,
            left: length.saturating_sub(HEADER_BYTES as u64),
        };
        source.must_hold(u64::from(header.blocks) * BLOCK_ENTRY_BYTES)?;
        let mut blocks = Vec::with_capacity(header.blocks as usize);
        for _ in 0..header.blocks {
            blocks.push((source.u64()?, source.u32()?, 0));
        }
        let tables = Tables::default();
        source.must_hold(u64::from(header.tables) * TABLE_ENTRY_BYTES)?;
        for _ in 0..header.tables {
            read_table(&mut source, &mut blocks, &tables)?;
        }
        source.must_hold(header.blob_bytes)?;
        let mut blob = vec![0; header.blob_bytes as usize];
        source.fill(&mut blob)?;
        if !source.is_at_end() {
            return Err(damaged(what, "it is longer than it says"));
        }
        Ok(Contents {
            blocks,
            tables,
            blob,
        })
    }

    /// A high half of sequences that none of them has.
    fn new_life(&self) -> u32 {
        loop {
            let life = drawn() as u32;
            let taken = |(sequence, _, _): &(u64, u32, u32)| (*sequence >> 32) as u32 == life;
            if !self.blocks.iter().any(taken) {
                return life;
            }
        }
    }
}

fn read_table(
    source: &mut Source<'_>,
    blocks: &mut [(u64, u32, u32)],
    tables: &Tables,
) -> Result<(), Error> {
    let (number, objects, bytes_max) = (source.u32()?, source.u32()?, source.u32()?);
    source.u32()?;
    source.must_hold(u64::from(objects) * 4)?;
    let sectors = blocks.len() as u64 * u64::from(SECTORS_PER_BLOCK);
    let mut locations = vec![NOWHERE; objects as usize];
    for location in &mut locations {
        let found = source.u32()?;
        if found == NOWHERE {
            continue; // never touched, it takes no memory
        }
        if u64::from(found) >= sectors || block_of(found) == 0 {
            return Err(damaged(source.what, "a location beyond the flash file"));
        }
        blocks[block_of(found) as usize].2 += 1;
        *location = found;
    }
    if bytes_max as usize > crate::layout::OBJECT_BYTES_MAX {
        return Err(damaged(source.what, "a table of objects that are too long"));
    }
    tables
        .add(number, Table::with(locations, bytes_max))
        .map_err(|_| damaged(source.what, "a table stands in it twice"))
}

/// Writes bytes as chunks.
struct Chunks<'f> {
    file: &'f mut File,
    chunk: Vec<u8>,
}

impl<'f> Chunks<'f> {
    fn new(file: &'f mut File) -> Chunks<'f> {
        Chunks {
            file,
            chunk: Vec::with_capacity(CHUNK_BYTES),
        }
    }

    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = CHUNK_BYTES - self.chunk.len();
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.chunk.extend_from_slice(now);
            bytes = later;
            if self.chunk.len() == CHUNK_BYTES {
                self.write()?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let crc = crc32c::crc32c(&self.chunk);
        self.file
            .write_all(&(self.chunk.len() as u32).to_le_bytes())?;
        self.file.write_all(&crc.to_le_bytes())?;
        self.file.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.write()
    }
}

/// Reads them back.
struct Source<'f> {
    file: &'f File,
    what: &'f str,
    chunk: Vec<u8>,
    at: usize,
    /// Of the file.
    left: u64,
}

impl Source<'_> {
    /// So many bytes may still come: memory for them is not taken before this is known.
    fn must_hold(&self, bytes: u64) -> Result<(), Error> {
        if bytes > self.left + self.chunk.len() as u64 {
            return Err(damaged(self.what, "it is shorter than it says"));
        }
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        self.at == self.chunk.len() && self.left == 0
    }

    fn next_chunk(&mut self) -> Result<(), Error> {
        let mut header = [0; 8];
        let cut = || damaged(self.what, "it is cut off");
        if self.left < 8 {
            return Err(cut());
        }
        self.file
            .read_exact(&mut header)
            .map_err(Error::device("reading the checkpoint"))?;
        let [a, b, c, d, crc @ ..] = header;
        let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        self.left -= 8;
        if bytes == 0 || bytes > CHUNK_BYTES || bytes as u64 > self.left {
            return Err(damaged(self.what, "it is cut off"));
        }
        self.chunk.resize(bytes, 0);
        self.at = 0;
        self.file
            .read_exact(&mut self.chunk)
            .map_err(Error::device("reading the checkpoint"))?;
        self.left -= bytes as u64;
        if crc32c::crc32c(&self.chunk) != u32::from_le_bytes(crc) {
            return Err(damaged(self.what, "the checksum of a part does not hold"));
        }
        Ok(())
    }

    fn fill(&mut self, mut into: &mut [u8]) -> Result<(), Error> {
        while !into.is_empty() {
            if self.at == self.chunk.len() {
                self.next_chunk()?;
            }
            let count = into.len().min(self.chunk.len() - self.at);
            let (now, later) = std::mem::take(&mut into).split_at_mut(count);
            now.copy_from_slice(&self.chunk[self.at..self.at + count]);
            self.at += count;
            into = later;
        }
        Ok(())
    }

    fn u32(&mut self) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        let mut bytes = [0; 8];
        self.fill(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}
