//! Parts of the device: the superblock, the write-ahead log, the frames.
//!
//! **Layout**: in a directory each is a file of its own. In raw mode they follow each other on one
//! device:
//!
//! ```text
//! 0             1 MiB       1 MiB + WAL, rounded up to 1 MiB
//! +-------------+-----------+--------------------+
//! | superblock  | WAL       | slots and frames   |
//! +-------------+-----------+--------------------+
//! ```

use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use duramen_base::planted::{Bug, has_bug};
use duramen_base::units::MIB;
use duramen_cipher::SectorCipher;
use duramen_format::frame;
use duramen_format::wal::RING_AT;

use crate::buffer::BufferBytes;
use crate::disk::{BLOCK_BYTES, Disk, File, OpenHow};
use crate::encrypted_file::EncryptedFile;
use crate::error::is_full;
use crate::types::Geometry;

/// Names of the files in a directory.
pub const SUPERBLOCK: &str = "superblock";
pub(crate) const WAL: &str = "wal";
pub(crate) const FRAMES: &str = "frames";
pub(crate) const LOCK: &str = "LOCK";

/// Bytes of the superblock's region: two copies, 64 KiB apart.
pub(crate) const SUPERBLOCK_BYTES: u64 = 68 << 10;
/// A new ring has space for the larger of two amounts: its capacity divided by the first, and this
/// many segments.
const RING_PART: u64 = 16;
const RING_SEGMENTS: u64 = 4;
/// Start of the write-ahead log in raw mode.
pub(crate) const RAW_WAL_AT: u64 = MIB;

/// A file, or a part of one.
#[derive(Clone)]
pub(crate) struct Region {
    file: Arc<dyn File>,
    start: u64,
    /// Whether a sync has failed. Locked during each sync: of two at the same time the system
    /// reports a failure to one alone.
    sync_failed: Arc<Mutex<bool>>,
    /// Whether the page cache is known to agree with the medium.
    trusts_cache: Arc<AtomicBool>,
}

impl Region {
    fn open(disk: &dyn Disk, name: &str, how: OpenHow, start: u64) -> io::Result<Region> {
        Ok(Region {
            file: disk.open(name, how)?,
            start,
            sync_failed: Arc::default(),
            trusts_cache: Arc::default(),
        })
    }

    /// The region with everything from its byte `from` on encrypted; without a cipher, the region
    /// stays as it is. `held` counts the memory that writes take.
    pub(crate) fn encrypted(
        mut self,
        cipher: Option<&Arc<SectorCipher>>,
        from: u64,
        held: &Arc<BufferBytes>,
    ) -> Region {
        if let Some(cipher) = cipher {
            let from = self.start + from;
            let file = EncryptedFile::new(self.file, cipher.clone(), from, held.clone());
            self.file = Arc::new(file);
        }
        self
    }

    /// Reads from the medium, until [`trust_cache`](Self::trust_cache).
    pub(crate) fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        if self.trusts_cache.load(Relaxed) || has_bug(Bug::StaleCache) {
            self.file.read_at(self.start + at, into)
        } else {
            self.read_medium(at, into)
        }
    }

    /// Whether reads may be served from the page cache: after a clean end it holds what is on the
    /// medium, after any other end it may not.
    pub(crate) fn trust_cache(&self, trusts: bool) {
        self.trusts_cache.store(trusts, Relaxed);
    }

    pub(crate) fn read_medium(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_medium(self.start + at, into)
    }

    pub(crate) fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(self.start + at, bytes)
    }

    pub(crate) fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.file.write_parts(self.start + at, parts)
    }

    pub(crate) fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_durably(self.start + at, bytes)
    }

    /// Syncs the file. After a failure no later sync succeeds (disk::D3).
    pub(crate) fn sync(&self) -> io::Result<()> {
        let mut failed = self
            .sync_failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *failed && !has_bug(Bug::SyncAgain) {
            return Err(io::Error::other("an earlier sync failed"));
        }
        let synced = self.file.sync_data();
        *failed |= synced.is_err();
        synced
    }

    /// As [`File::forget_cached`], of the whole file.
    pub(crate) fn forget_cached(&self) -> io::Result<()> {
        self.file.forget_cached()
    }

    /// As [`File::allocate`]. Zeros are synced: a failure counts as that of a
    /// [`sync`](Self::sync), except that there is no space for them.
    pub(crate) fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        let at = self.start + at;
        if !zero {
            return self.file.allocate(at, bytes, false);
        }
        let mut failed = self
            .sync_failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let zeroed = self.file.allocate(at, bytes, true);
        *failed |= zeroed.as_ref().is_err_and(|error| !is_full(error));
        zeroed
    }

    /// As [`File::fill_holes`].
    pub(crate) fn fill_holes(&self, at: u64, bytes: u64) -> io::Result<u64> {
        self.file.fill_holes(self.start + at, bytes)
    }

    /// As [`File::first_hole`].
    pub(crate) fn first_hole(&self) -> io::Result<u64> {
        Ok(self.file.first_hole()?.saturating_sub(self.start))
    }

    /// Whether its file lost its name.
    pub(crate) fn is_removed(&self) -> bool {
        self.file.is_removed()
    }

    /// Bytes from the region's start to the end of its file.
    pub(crate) fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.bytes()?.saturating_sub(self.start))
    }
}

/// The superblock's region.
pub(crate) fn superblock(disk: &dyn Disk, how: OpenHow) -> io::Result<Region> {
    Region::open(disk, SUPERBLOCK, how, 0)
}

/// The region of the write-ahead log.
pub(crate) fn wal(disk: &dyn Disk, how: OpenHow) -> io::Result<Region> {
    let start = if disk.is_raw() { RAW_WAL_AT } else { 0 };
    Region::open(disk, WAL, how, start)
}

/// The region of slots and frames.
pub(crate) fn frames(disk: &dyn Disk, how: OpenHow, wal_bytes: u64) -> io::Result<Region> {
    let start = if disk.is_raw() {
        raw_frames_at(wal_bytes)
    } else {
        0
    };
    Region::open(disk, FRAMES, how, start)
}

fn raw_frames_at(wal_bytes: u64) -> u64 {
    RAW_WAL_AT + wal_bytes.next_multiple_of(MIB)
}

/// Bytes of the ring that have space when a store begins, and at each start: a commit of the
/// longest segment takes at most a quarter of them, and an empty store takes little disk. The ring
/// grows from there (ring::G4). A raw device has all of its space from the beginning.
pub(crate) fn ring_bytes_first(geometry: &Geometry, is_raw: bool) -> u64 {
    let whole = geometry.wal_bytes - RING_AT;
    let part = (geometry.wal_bytes / RING_PART).next_multiple_of(BLOCK_BYTES);
    let few = part.max(RING_SEGMENTS * u64::from(geometry.segment_bytes));
    if is_raw { whole } else { few.min(whole) }
}

/// Minimum size of a raw device, in bytes.
pub(crate) fn raw_bytes(geometry: &Geometry) -> u64 {
    raw_frames_at(geometry.wal_bytes)
        + frame::data_start(geometry.frames)
        + u64::from(geometry.frames) * u64::from(geometry.segment_bytes)
}
