//! Creates a store, and detects an existing one.
//!
//! **Invariants**
//! - K1: nothing is ever overwritten except our own unfinished creation, proven as such: the
//!   superblock is written last, and until the store was opened once, the write-ahead log has no
//!   header but its first.
//! - K2: a copy of a store is not a store before its end: its superblock is written first, durably
//!   and under a durable name, and is marked as unfinished until everything else is durable. A copy
//!   cut short at any time is refused and never taken for an empty store.

use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use duramen_format::frame;
use duramen_format::superblock::{self, COPY_AT, Damage, Superblock};
use duramen_format::wal::{self, HEADER_AT, Header, RING_AT, Salts};

use crate::buffer::BufferBytes;
use crate::disk::{BLOCK_BYTES, Disk, OpenHow};
use crate::encryption::{self, Ciphers};
use crate::error::Error;
use crate::region::{self, FRAMES, LOCK, Region, SUPERBLOCK, SUPERBLOCK_BYTES, WAL};
use crate::scan;
use crate::types::{Expected, Geometry, Identity, WAL_BYTES_MAX, WAL_BYTES_MIN};

/// Largest segment, in bytes: eight times the engine's segments with the largest memory. Limits the
/// space that a forged superblock can make us reserve.
const SEGMENT_BYTES_MAX: u32 = 64 << 20;

/// Sequence of the header block that creation writes; every opening writes a greater one.
const FIRST_SEQUENCE: u64 = 1;

/// Generation of the superblock of a created store, of a finished snapshot, and of a restored
/// store.
const FIRST_GENERATION: u64 = 1;
const SNAPSHOT_GENERATION: u64 = FIRST_GENERATION + 1;
pub(crate) const RESTORED_GENERATION: u64 = SNAPSHOT_GENERATION + 1;
/// Generation of the write-ahead log in a snapshot that was not opened since: each opening adds
/// one.
const SNAPSHOT_OPENINGS: u64 = 1;

/// Bytes of the write-ahead log that have space in a copy, which writes one short commit. The log
/// itself is as long as the original's, because its length limits transactions.
const COPY_RING_BYTES: u64 = 1 << 20;

/// Bytes that a device writes as a whole or not at all.
const SECTOR_BYTES: usize = 512;

/// The contents of a disk.
#[derive(Debug)]
pub(crate) enum Probe {
    /// Nothing, or an interrupted creation.
    Empty,
    /// A store.
    Store(Box<Superblock>),
}

/// Detects the contents of a disk without writing.
///
/// # Errors
/// The contents are not a store, or one that this program can't open.
pub(crate) fn probe(disk: &dyn Disk) -> Result<Probe, Error> {
    let place = disk.label();
    if disk.is_raw() {
        let found = superblock_of(disk, &place, is_unused(disk))?;
        if matches!(found, Probe::Empty) && !is_blank(disk)? {
            let found = "data of something else in its first MiB (a RAID, a volume, a file system; to give it up for lost: \
                         `wipefs --all` and 1 MiB of zeros)";
            return Err(Error::NotDuramen {
                place,
                found: found.to_owned(),
            }); // K1
        }
        return Ok(found);
    }
    let names = match disk.names() {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Probe::Empty),
        Err(error) => return Err(Error::io(&place, "list files", error)),
    };
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has(SUPERBLOCK) {
        return superblock_of(disk, &place, has(WAL) && is_unused(disk));
    }
    let ours = [LOCK, WAL, FRAMES];
    // A file system puts `lost+found` into its root; it holds no data.
    let foreign = names
        .iter()
        .find(|name| !ours.contains(&name.as_str()) && *name != "lost+found");
    if let Some(foreign) = foreign {
        return Err(Error::NotDuramen {
            place,
            found: format!("`{foreign}` and no superblock"),
        });
    }
    if !has(WAL) && !has(FRAMES) || has(WAL) && is_unused(disk) {
        Ok(Probe::Empty)
    } else {
        Err(Error::DamagedSuperblock {
            place,
            reason: "the file is gone".to_owned(),
        }) // K1
    }
}

/// Whether the beginning of a raw device has only bytes that our creation writes: a superblock, of
/// which a power cut may have left the first or the last sector alone. Other programs put their
/// headers anywhere into the first MiB: RAID at 4 KiB, ext4 at 1 KiB, LVM at 512 bytes.
fn is_blank(disk: &dyn Disk) -> Result<bool, Error> {
    let mut bytes = vec![0; region::RAW_WAL_AT as usize];
    let read = |bytes: &mut [u8]| {
        let start = region::superblock(disk, OpenHow::Read)?;
        let there = start.bytes()?.min(bytes.len() as u64) as usize;
        start.read_at(0, &mut bytes[..there])
    };
    read(&mut bytes)
        .map_err(|error| Error::io(&disk.label(), "read the beginning of the device", error))?;
    for at in COPY_AT.map(|at| at as usize) {
        let block = &mut bytes[at..at + superblock::BLOCK_BYTES];
        block[..SECTOR_BYTES].fill(0);
        block[superblock::BLOCK_BYTES - SECTOR_BYTES..].fill(0);
    }
    Ok(bytes.iter().all(|byte| *byte == 0))
}

/// Whether no opening ever wrote a header into the write-ahead log: there is none, or the one of
/// its creation, or one that was torn during the creation (the other is blank then).
fn is_unused(disk: &dyn Disk) -> bool {
    let Ok(wal) = region::wal(disk, OpenHow::Read) else {
        return false;
    };
    let Ok(bytes) = wal.bytes() else { return false };
    let mut blank = 0;
    for at in HEADER_AT {
        let mut block = vec![0; BLOCK_BYTES as usize];
        let there = bytes.saturating_sub(at).min(BLOCK_BYTES) as usize;
        if there > 0 && wal.read_at(at, &mut block[..there]).is_err() {
            return false;
        }
        match Header::decode(&block) {
            Ok(header) if header.sequence > FIRST_SEQUENCE => return false,
            Ok(_) => {}
            Err(_) if block.iter().all(|byte| *byte == 0) => blank += 1,
            // A foreign file may have any name.
            Err(_) if !is_torn_header(&block) => return false,
            Err(_) => {}
        }
    }
    blank > 0
}

/// Whether a block can be a header of which a power cut left only some sectors: all its nonzero
/// bytes are at places that a header uses.
fn is_torn_header(block: &[u8]) -> bool {
    let is_zero = |part: Option<&[u8]>| part.is_none_or(|part| part.iter().all(|byte| *byte == 0));
    let begins =
        block.starts_with(&wal::HEADER_MAGIC.to_le_bytes()) || is_zero(block.get(..SECTOR_BYTES));
    begins && is_zero(block.get(SECTOR_BYTES..block.len().saturating_sub(SECTOR_BYTES)))
}

/// Both copies of a superblock, as read.
#[derive(Default)]
struct Copies {
    /// The newer valid copy.
    best: Option<Superblock>,
    /// The version of a copy in another format.
    other_version: Option<u16>,
    damages: Vec<Damage>,
}

impl Copies {
    fn read(region: &region::Region) -> Copies {
        let mut copies = Copies::default();
        for at in COPY_AT {
            let mut block = vec![0; superblock::BLOCK_BYTES];
            match region.read_at(at, &mut block) {
                Ok(()) => copies.add(&block),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    copies.damages.push(Damage::Blank);
                }
                Err(_) => copies.damages.push(Damage::Checksum),
            }
        }
        copies
    }

    fn add(&mut self, block: &[u8]) {
        match Superblock::decode(block) {
            Ok(found) => {
                let best = self.best.take();
                let best = best.filter(|best| !found.is_newer_than(best));
                self.best = best.or(Some(found));
            }
            Err(Damage::Version { found }) => self.other_version = Some(found),
            // A power cut lost the first sector, but not the others.
            Err(Damage::Foreign) if block.iter().take(512).all(|byte| *byte == 0) => {
                self.damages.push(Damage::Checksum);
            }
            Err(damage) => self.damages.push(damage),
        }
    }
}

/// Reads both copies of the superblock. `unused`: blank copies mean an unfinished creation, not
/// damage.
fn superblock_of(disk: &dyn Disk, place: &str, unused: bool) -> Result<Probe, Error> {
    let region = region::superblock(disk, OpenHow::Read)
        .map_err(|error| Error::io(place, "open the superblock", error))?;
    let Copies {
        best,
        other_version,
        damages,
    } = Copies::read(&region);
    let place = || place.to_owned();
    let known = superblock::VERSION_ENCRYPTED;
    match (other_version, best) {
        (Some(found), _) if found > known => {
            let place = place();
            return Err(Error::NewerFormat {
                place,
                found,
                known,
            });
        }
        (Some(found), _) => {
            let place = place();
            return Err(Error::OlderFormat {
                place,
                found,
                oldest: superblock::VERSION,
                known,
            });
        }
        (None, Some(found)) => return Ok(Probe::Store(Box::new(found))),
        (None, None) => {}
    }
    let foreign = damages.contains(&Damage::Foreign);
    if unused && !foreign {
        return Ok(Probe::Empty); // K1: torn during the creation
    }
    // K2: only a copy has a superblock before it has a write-ahead log.
    let blank = damages.iter().all(|damage| *damage == Damage::Blank);
    if blank && !disk.is_raw() && region::wal(disk, OpenHow::Read).is_err() {
        return Err(Error::Unfinished { place: place() });
    }
    if foreign && (disk.is_raw() || !unused) {
        let found = "other data".to_owned();
        let place = place();
        return Err(Error::NotDuramen { place, found });
    }
    let first = damages.first();
    Err(Error::DamagedSuperblock {
        place: place(),
        reason: first.map_or_else(|| "unreadable".to_owned(), ToString::to_string),
    })
}

/// Checks sizes before anything is written. `wal_bytes`: the bytes of the write-ahead log that need
/// space now.
fn check(
    disk: &dyn Disk,
    geometry: &Geometry,
    identity: &Identity,
    wal_bytes: u64,
) -> Result<(), Error> {
    let wrong = |what: &str| Error::Options {
        what: what.to_owned(),
    };
    if identity.cluster.len() > superblock::CLUSTER_BYTES_MAX {
        return Err(wrong("the cluster's name may have 64 bytes at most"));
    }
    if identity.server == 0 {
        return Err(wrong("a server's id is never 0"));
    }
    let fits = (WAL_BYTES_MIN..=WAL_BYTES_MAX).contains(&geometry.wal_bytes);
    if !fits || !geometry.wal_bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(wrong(
            "the write-ahead log needs at least 64 KiB and at most 1 PiB, in multiples of 4 KiB",
        ));
    }
    let segment = u64::from(geometry.segment_bytes);
    let fits = (1..=SEGMENT_BYTES_MAX).contains(&geometry.segment_bytes);
    if !fits || !segment.is_multiple_of(BLOCK_BYTES) || geometry.frames == 0 {
        return Err(wrong(
            "segments have a multiple of 4 KiB and 64 MiB at most, and there is at least one frame",
        ));
    }
    let place = disk.label();
    let (needed, available) = if disk.is_raw() {
        let file = region::superblock(disk, OpenHow::ReadWrite)
            .map_err(|error| Error::io(&place, "open the device", error))?;
        let available = file
            .bytes()
            .map_err(|error| Error::io(&place, "measure the device", error))?;
        (region::raw_bytes(geometry), available)
    } else {
        // Frames take their space when they are used; a first segment has to fit.
        let needed = SUPERBLOCK_BYTES + wal_bytes + frame::data_start(geometry.frames) + segment;
        let available = disk
            .free_bytes()
            .map_err(|error| Error::io(&place, "measure free space", error))?;
        (needed, available)
    };
    if available < needed {
        return Err(Error::TooSmall {
            place,
            needed,
            available,
        });
    }
    Ok(())
}

/// The purpose of a format of an empty disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A store.
    Store,
    /// A copy of a store; it becomes a store by [`finish`] (K2).
    Copy,
}

/// Writes an empty store onto an empty disk. The caller holds the lock and has probed.
///
/// # Errors
/// The disk is too small, full or fails; the next attempt detects the partial creation and
/// overwrites it.
pub(crate) fn format(
    disk: &dyn Disk,
    geometry: &Geometry,
    identity: &Identity,
    purpose: Purpose,
) -> Result<(), Error> {
    let (ring_bytes, needed_bytes) = ring_space(geometry, purpose, disk.is_raw());
    check(disk, geometry, identity, needed_bytes)?;
    let place = disk.label();
    let superblock = Superblock {
        block_bytes: BLOCK_BYTES as u32,
        server: identity.server,
        hash_seed: identity.hash_seed,
        created_ms: now_ms(),
        generation: FIRST_GENERATION,
        unfinished: purpose == Purpose::Copy,
        wal_bytes: geometry.wal_bytes,
        segment_bytes: geometry.segment_bytes,
        frames: geometry.frames,
        cluster: identity.cluster.clone(),
        encryption: None,
    };
    let superblock = encryption::begin(disk, superblock)?;
    if purpose == Purpose::Copy {
        write_first(disk, &place, &superblock)?; // K2: a copy's superblock is first
    }
    let step = |doing| {
        let place = &place;
        move |error| Error::io(place, doing, error)
    };
    let how = if disk.is_raw() {
        OpenHow::ReadWrite
    } else {
        OpenHow::Create
    };
    let making = "create the write-ahead log";
    let wal = region::wal(disk, how).map_err(step(making))?;
    // The rest of the file is a hole: it gets space when commits need it (ring::G4).
    wal.allocate(0, RING_AT + ring_bytes, true)
        .and_then(|()| wal.allocate(geometry.wal_bytes - BLOCK_BYTES, BLOCK_BYTES, true))
        .map_err(step(making))?;
    let header = Header {
        server: identity.server,
        sequence: FIRST_SEQUENCE,
        generation: 0,
        tail_lsn: 1,
        tail_at: RING_AT,
        tail_generation: 0,
        end_lsn: 1,
        clock_ms: 0,
        salts: Salts::default(),
        marks: Vec::new(),
    };
    wal.write_at(HEADER_AT[(FIRST_SEQUENCE % 2) as usize], &header.encode())
        .map_err(step(making))?;
    wal.sync().map_err(step(making))?;
    let making = "create the frames";
    let frames = region::frames(disk, how, geometry.wal_bytes).map_err(step(making))?;
    make_slots(disk, &frames, geometry).map_err(step(making))?;
    frames.sync().map_err(step(making))?;
    match purpose {
        Purpose::Store => write_first(disk, &place, &superblock), // K1: written last
        Purpose::Copy => disk.sync_dir().map_err(step("create the files")),
    }
}

/// The bytes of the ring that get space now, and those of the write-ahead log for which the disk
/// has to have room.
fn ring_space(geometry: &Geometry, purpose: Purpose, is_raw: bool) -> (u64, u64) {
    let first = region::ring_bytes_first(geometry, is_raw);
    match purpose {
        Purpose::Copy if !is_raw => {
            let few = first.min(COPY_RING_BYTES);
            (few, RING_AT + few)
        }
        Purpose::Copy | Purpose::Store => (first, geometry.wal_bytes),
    }
}

/// Makes the slots of all frames. In a file they are a hole, and each gets space with its frame
/// (`Frames::grow`); on a device, something else may lie there.
fn make_slots(disk: &dyn Disk, frames: &Region, geometry: &Geometry) -> io::Result<()> {
    let bytes = frame::data_start(geometry.frames);
    match disk.is_raw() {
        true => frames.allocate(0, bytes, true),
        false => frames.allocate(bytes - BLOCK_BYTES, BLOCK_BYTES, true),
    }
}

/// Writes the first superblock, durably and under a durable name.
pub(crate) fn write_first(
    disk: &dyn Disk,
    place: &str,
    superblock: &Superblock,
) -> Result<(), Error> {
    let step = |error| Error::io(place, "create the superblock", error);
    let how = if disk.is_raw() {
        OpenHow::ReadWrite
    } else {
        OpenHow::Create
    };
    let region = region::superblock(disk, how).map_err(step)?;
    if !disk.is_raw() {
        region.allocate(0, SUPERBLOCK_BYTES, true).map_err(step)?;
    }
    let block = superblock.encode();
    for at in COPY_AT {
        region.write_durably(at, &block).map_err(step)?;
    }
    disk.sync_dir().map_err(step)
}

/// Turns a copy into a store: both superblocks are marked so, one after the other. The caller holds
/// the lock, and everything else of the copy is durable (K2).
///
/// # Errors
/// The state of the disk is then unknown: it opens as the whole store, or is refused.
pub(crate) fn finish(disk: &dyn Disk) -> Result<(), Error> {
    let place = disk.label();
    let Probe::Store(mut superblock) = probe(disk)? else {
        return Err(Error::Absent { place });
    };
    superblock.unfinished = false;
    superblock.generation += 1;
    let step = |error| Error::io(&place, "write the superblock", error);
    let region = region::superblock(disk, OpenHow::ReadWrite).map_err(step)?;
    let block = superblock.encode();
    for at in COPY_AT {
        region.write_durably(at, &block).map_err(step)?;
    }
    Ok(())
}

/// Whether the disk has a snapshot that no server has used as its data directory. Writes nothing.
pub(crate) fn is_snapshot(disk: &dyn Disk) -> bool {
    let Ok(Probe::Store(found)) = probe(disk) else {
        return false;
    };
    let Ok(wal) = region::wal(disk, OpenHow::Read) else {
        return false;
    };
    let (header, _) = scan::headers(&wal, found.server);
    !found.unfinished
        && found.generation == SNAPSHOT_GENERATION
        && header.is_some_and(|header| header.generation <= SNAPSHOT_OPENINGS)
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// A store whose superblock was accepted.
pub(crate) struct Accepted {
    pub(crate) identity: Identity,
    pub(crate) geometry: Geometry,
    /// The superblock, with its secrets.
    pub(crate) superblock: Superblock,
    pub(crate) ciphers: Option<Ciphers>,
}

impl Accepted {
    /// A copy of the superblock with the secrets of the accepted one, if they have one box.
    pub(crate) fn revealed(&self, mut copy: Superblock) -> Superblock {
        if copy.encryption == self.superblock.encryption {
            copy.hash_seed = self.superblock.hash_seed;
            copy.cluster.clone_from(&self.superblock.cluster);
        }
        copy
    }

    /// The region of the write-ahead log. `held` counts the memory of encrypted writes.
    ///
    /// # Errors
    /// [`Error::DamagedFile`]: it is gone; [`Error::Io`].
    pub(crate) fn wal(
        &self,
        disk: &dyn Disk,
        how: OpenHow,
        held: &Arc<BufferBytes>,
    ) -> Result<Region, Error> {
        let cipher = self.ciphers.as_ref().map(|ciphers| &ciphers.wal);
        let opened = region::wal(disk, how).map(|wal| wal.encrypted(cipher, RING_AT, held));
        opened.map_err(|error| Error::opening(&disk.label(), WAL, error))
    }

    /// As [`wal`](Self::wal), for the region of the frames.
    ///
    /// # Errors
    /// As [`wal`](Self::wal).
    pub(crate) fn frames(
        &self,
        disk: &dyn Disk,
        how: OpenHow,
        held: &Arc<BufferBytes>,
    ) -> Result<Region, Error> {
        let cipher = self.ciphers.as_ref().map(|ciphers| &ciphers.frames);
        let opened = region::frames(disk, how, self.geometry.wal_bytes);
        opened
            .map(|frames| frames.encrypted(cipher, 0, held))
            .map_err(|error| Error::opening(&disk.label(), FRAMES, error))
    }
}

/// The contents of a superblock, if it is valid and belongs to the expected owner.
///
/// # Errors
/// [`Error::Unfinished`], [`Error::OtherCluster`], [`Error::OtherServer`],
/// [`Error::DamagedSuperblock`]; those of [`encryption::unlock`].
pub(crate) fn accept(
    disk: &dyn Disk,
    found: Superblock,
    expected: &Expected,
    purpose: Purpose,
) -> Result<Accepted, Error> {
    let place = &disk.label();
    if found.unfinished && purpose == Purpose::Store {
        return Err(Error::Unfinished {
            place: place.to_owned(),
        }); // K2
    }
    let (found, ciphers) = encryption::unlock(disk, found)?;
    if let Some(cluster) = &expected.cluster
        && *cluster != found.cluster
    {
        return Err(Error::OtherCluster {
            place: place.to_owned(),
            found: found.cluster.clone(),
            expected: cluster.clone(),
        });
    }
    if let Some(server) = expected.server
        && server != found.server
    {
        return Err(Error::OtherServer {
            place: place.to_owned(),
            found: found.server,
            expected: server,
        });
    }
    let sound = u64::from(found.block_bytes) == BLOCK_BYTES
        && (RING_AT + 1..=WAL_BYTES_MAX).contains(&found.wal_bytes)
        && found.wal_bytes.is_multiple_of(BLOCK_BYTES)
        && (1..=SEGMENT_BYTES_MAX).contains(&found.segment_bytes)
        && u64::from(found.segment_bytes).is_multiple_of(BLOCK_BYTES)
        && found.frames > 0;
    if !sound {
        return Err(Error::DamagedSuperblock {
            place: place.to_owned(),
            reason: "its sizes make no sense".to_owned(),
        });
    }
    let identity = Identity {
        cluster: found.cluster.clone(),
        server: found.server,
        hash_seed: found.hash_seed,
    };
    let geometry = Geometry {
        segment_bytes: found.segment_bytes,
        wal_bytes: found.wal_bytes,
        frames: found.frames,
    };
    Ok(Accepted {
        identity,
        geometry,
        superblock: found,
        ciphers,
    })
}
