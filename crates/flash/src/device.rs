//! A file or partition, past the page cache.
//!
//! **Invariants**
//! - V1: what is read and written begins at a sector, ends at a sector, and lies in memory at a sector's alignment; a device that
//!   cannot be opened past the page cache (tmpfs) takes the same.
//! - V2: no file of a durable store's is ever used, whether a server has it open (the lock) or not (its name, its first blocks).

use crate::error::Error;
use crate::layout::{BLOCK_BYTES, BLOCKS_MAX};
use duramen_base::lock::{file_of_store, lock_alone};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Where blocks lie. Everything may be called from several threads at once.
pub trait Device: Send + Sync {
    /// Reads all of `into` from byte `at` on.
    ///
    /// # Errors
    /// The device's.
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` from byte `at` on.
    ///
    /// # Errors
    /// The device's: some, all or none of it may be written.
    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all that was written durable.
    ///
    /// # Errors
    /// The device's: what of it is durable is not known.
    fn sync(&self) -> io::Result<()>;

    fn bytes(&self) -> u64;

    /// For io_uring; `None`: it is read by [`read`](Self::read) alone.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }
}

/// A file or partition of the system's, locked for this process.
pub struct FileDevice {
    file: File,
    bytes: u64,
    past_cache: bool,
}

/// The least that is worth it: the superblock's block, two that are filled, one that is collected.
const BLOCKS_MIN: u64 = 8;

impl FileDevice {
    /// Opens the file, or makes it `bytes` long if it does not exist; 0 = as long as it is. A partition has its own length.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::OfStore`], [`Error::TooSmall`], [`Error::TooLargeDevice`], [`Error::Open`].
    pub fn open(path: &Path, bytes: u64) -> Result<FileDevice, Error> {
        let of_store = |what| Error::OfStore {
            path: path.display().to_string(),
            what,
        };
        if let Some(name) = file_of_store(path) {
            return Err(of_store(format!("the file `{name}` of a store")));
        }
        let failed = |doing| {
            move |source| Error::Open {
                doing,
                path: path.display().to_string(),
                source,
            }
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let direct = rustix::fs::open(path, flags | OFlags::DIRECT, mode);
        let (file, past_cache): (OwnedFd, bool) = match direct {
            Ok(file) => (file, true),
            Err(rustix::io::Errno::INVAL) => {
                let opened = rustix::fs::open(path, flags, mode).map_err(io::Error::from);
                (opened.map_err(failed("opening"))?, false)
            }
            Err(error) => return Err(failed("opening")(error.into())),
        };
        let file = File::from(file);
        // Requests of a process that was killed hold the file until they have ended.
        match lock_alone(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse {
                    path: path.display().to_string(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed("locking")(error)),
        }
        if let Some(what) = store_part(path) {
            return Err(of_store(what.to_owned()));
        }
        let found = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(io::Error::from);
        let found = found.map_err(failed("looking how long it is:"))?;
        let block = BLOCK_BYTES as u64;
        let wanted = bytes - bytes % block;
        let has = if wanted > found && is_file(&file) {
            check_length(wanted)?;
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, wanted)
                .map_err(|error| failed("making it so long:")(error.into()))?;
            wanted
        } else if wanted > 0 {
            found.min(wanted)
        } else {
            found
        };
        let has = has - has % block;
        check_length(has)?;
        Ok(FileDevice {
            file,
            bytes: has,
            past_cache,
        })
    }

    /// Whether reads and writes go past the page cache.
    pub fn is_past_cache(&self) -> bool {
        self.past_cache
    }
}

/// What of a durable store begins in this file or on this device. Each part of one begins with a block that has a checksum at its
/// end, and may have it twice; nothing that is written here can look like that.
fn store_part(path: &Path) -> Option<&'static str> {
    const BLOCK: usize = 4096;
    const PARTS: [(&[u8], &str, [u64; 2]); 3] = [
        (b"DURAMEN\0", "a store", [0, 64 << 10]),
        (b"DWAL", "the write-ahead log of a store", [0, 4 << 10]),
        (b"DFRM", "the frames of a store", [0, 8 << 10]),
    ];
    let file = File::open(path).ok()?;
    let begins = |magic: &[u8], at| {
        let mut block = [0; BLOCK];
        file.read_exact_at(&mut block, at).is_ok()
            && block.starts_with(magic)
            && block[BLOCK - 4..] == crc32c::crc32c(&block[..BLOCK - 4]).to_le_bytes()
    };
    let found = PARTS
        .iter()
        .find(|(magic, _, places)| places.iter().any(|at| begins(magic, *at)));
    found.map(|(_, what, _)| *what)
}

fn check_length(bytes: u64) -> Result<(), Error> {
    let (least, most) = (
        BLOCKS_MIN * BLOCK_BYTES as u64,
        BLOCKS_MAX * BLOCK_BYTES as u64,
    );
    if bytes < least {
        return Err(Error::TooSmall { bytes, least });
    }
    if bytes > most {
        return Err(Error::TooLargeDevice { bytes, most });
    }
    Ok(())
}

fn is_file(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}

impl Device for FileDevice {
    fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}
