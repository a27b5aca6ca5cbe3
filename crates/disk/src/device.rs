//! The device: a file or partition, read and written without the page cache.
//!
//! **Invariants**
//! - V1: reads and writes begin and end at a multiple of the device's alignment, as does their
//!   memory. A device that cannot be opened without the page cache takes the same.
//! - V2: a device with an alignment that this crate cannot use is refused when it is opened.
//! - V3: no file of a durable store is ever used, whether a server has it open (the lock) or not
//!   (its name, its first blocks); nor is a heap's checkpoint.

use crate::error::Error;
use crate::memory::{ALIGNMENT_MAX, Aligned, BYTES_MAX, BYTES_MIN, Cut, SECTOR_BYTES, UNIT_BYTES};
use duramen_base::lock::{claim_alone, file_of_store, is_block_device, lock_alone};
use duramen_base::open::{open_data, open_to_read};
use duramen_base::private::FILE_MODE;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A block device. Everything may be called from several threads at once.
pub trait Device: Send + Sync {
    /// Reads all of `into` from byte `at` on.
    ///
    /// # Errors
    /// Those of the device.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` from byte `at` on.
    ///
    /// # Errors
    /// Those of the device: some, all or none of the bytes may be written.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all writes durable.
    ///
    /// # Errors
    /// Those of the device: it is not known which writes are durable.
    fn sync(&self) -> io::Result<()>;

    fn bytes(&self) -> u64;

    /// Reads, and the memory that they go to, begin and end at multiples of this number of bytes: a
    /// power of two, at least [`SECTOR_BYTES`] and at most 4,096. Writes begin and end at multiples
    /// of 4,096 bytes.
    fn alignment(&self) -> usize {
        SECTOR_BYTES
    }

    /// Whether the device is stored in the file with this metadata, so that replacing the file
    /// would destroy the device.
    fn lies_in(&self, _found: &Metadata) -> bool {
        false
    }

    /// The descriptor for io_uring; `None`: the device is read by [`read_at`](Self::read_at) alone.
    fn descriptor(&self) -> Option<RawFd> {
        None
    }

    /// For an encrypted device: decrypts bytes that were read from the
    /// [`descriptor`](Self::descriptor) at byte `at`. They begin and end at multiples of the
    /// device's alignment.
    fn decrypt(&self, _at: u64, _bytes: &mut [u8]) {}

    /// Reads all of `into` from byte `at` on, for any offset and any memory: reads outside of the
    /// device's alignment are widened, and copied.
    ///
    /// # Errors
    /// Those of the device.
    fn read_any(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let cut = Cut::new(at, into.len(), self.alignment());
        let is_aligned = into.as_ptr().addr().is_multiple_of(self.alignment());
        if cut.bytes == into.len() && is_aligned {
            return self.read_at(at, into);
        }
        let mut around = Aligned::zeroed(cut.bytes);
        self.read_at(cut.at, around.bytes_mut())?;
        into.copy_from_slice(&around.bytes()[cut.skip..cut.skip + into.len()]);
        Ok(())
    }
}

/// A file or partition of the system, locked for this process.
pub struct FileDevice {
    file: File,
    bytes: u64,
    past_cache: bool,
    alignment: usize,
}

impl FileDevice {
    /// Opens the file, or creates it with `bytes` bytes if it does not exist; 0 = its present
    /// length. A partition has its own length.
    ///
    /// # Errors
    /// [`Error::InUse`], [`Error::OfStore`], [`Error::TooSmall`], [`Error::TooLargeDevice`],
    /// [`Error::Alignment`], [`Error::Open`].
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
        let in_use = || Error::InUse {
            path: path.display().to_string(),
        };
        let (file, past_cache) = open(path).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => in_use(),
            _ => failed("opening")(error),
        })?;
        // The lock may be held by in-flight requests of a killed process until they have ended.
        match lock_alone(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use()),
            Err(TryLockError::Error(error)) => return Err(failed("locking")(error)),
        }
        if let Some(what) = store_part(path) {
            return Err(of_store(what.to_owned()));
        }
        let found = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(io::Error::from);
        let found = found.map_err(failed("looking how long it is:"))?;
        let unit = UNIT_BYTES as u64;
        let wanted = bytes - bytes % unit;
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let has = match wanted {
            0 => found,
            _ if is_file => wanted,
            _ => found.min(wanted),
        };
        let has = has - has % unit;
        check_length(has)?;
        if is_file {
            check_limit(has).map_err(failed("using all of"))?;
            allocate(&file, has, found).map_err(failed("allocating all of"))?;
        }
        let alignment = if past_cache {
            direct_alignment(&file).map_err(failed("asking for the alignment of"))?
        } else {
            SECTOR_BYTES
        };
        if !alignment.is_power_of_two() || alignment > ALIGNMENT_MAX {
            return Err(Error::Alignment {
                path: path.display().to_string(),
                bytes: alignment,
                most: ALIGNMENT_MAX,
            });
        }
        let device = FileDevice {
            file,
            bytes: has,
            past_cache,
            alignment,
        };
        // The reported alignment may be too small: detect this now, not at the first object.
        let mut probe = Aligned::zeroed(alignment);
        device
            .read_at(alignment as u64, probe.bytes_mut())
            .map_err(failed("reading a sector past the page cache of"))?;
        Ok(device)
    }

    /// Whether reads and writes bypass the page cache.
    pub fn is_past_cache(&self) -> bool {
        self.past_cache
    }
}

/// Opens or creates the file, or claims the block device; also whether it is past the page cache.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let mut options = File::options();
    options.read(true).write(true).mode(FILE_MODE);
    let open = |more| {
        if is_block_device(path) {
            claim_alone(|| open_data(&mut options.clone(), more | OFlags::EXCL, path))
        } else {
            open_data(&mut options.clone(), more | OFlags::CREATE, path)
        }
    };
    match open(OFlags::DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Ok((open(OFlags::empty())?, false))
        }
        Err(error) => Err(error),
    }
}

/// The part of a durable store, or of a heap's checkpoint, that begins in this file or on this
/// device. Each such part begins with a block that has a checksum at its end, perhaps two times; no
/// data that this crate writes can look like that.
fn store_part(path: &Path) -> Option<&'static str> {
    const BLOCK: usize = 4096;
    const PARTS: [(&[u8], &str, [u64; 2]); 4] = [
        (b"DURAMEN\0", "a store", [0, 64 << 10]),
        (b"DWAL", "the write-ahead log of a store", [0, 4 << 10]),
        (b"DFRM", "the frames of a store", [0, 8 << 10]),
        (b"DURACKPT", "a checkpoint of an SSD heap", [0, 0]),
    ];
    let file = open_to_read(path).ok()?;
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
    if bytes < BYTES_MIN {
        let least = BYTES_MIN;
        return Err(Error::TooSmall { bytes, least });
    }
    if bytes > BYTES_MAX {
        let most = BYTES_MAX;
        return Err(Error::TooLargeDevice { bytes, most });
    }
    Ok(())
}

/// Refuses a length beyond `ulimit -f`: the kernel ends a process that writes there.
fn check_limit(bytes: u64) -> io::Result<()> {
    let most = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    if bytes <= most {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("it has {bytes} bytes, and this process may write {most} (`ulimit -f`)"),
    ))
}

/// In statx: the kernel reports the alignment of direct reads and writes [Linux 6.1].
const DIRECT_ALIGNMENT: StatxFlags = StatxFlags::from_bits_retain(0x2000);

/// Alignment of reads and writes that bypass the page cache, at least a sector.
pub fn direct_alignment(file: &File) -> io::Result<usize> {
    let told = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, DIRECT_ALIGNMENT);
    if let Ok(told) = told
        && told.stx_mask & DIRECT_ALIGNMENT.bits() != 0
    {
        // If both are zero, there is no direct access after all, and no alignment.
        let most = told.stx_dio_offset_align.max(told.stx_dio_mem_align);
        return Ok((most as usize).max(SECTOR_BYTES));
    }
    if file.metadata()?.file_type().is_block_device() {
        let sector = rustix::fs::ioctl_blksszget(file)?;
        return Ok((sector as usize).max(SECTOR_BYTES));
    }
    Ok(ALIGNMENT_MAX) // not known: the largest possible one
}

/// Makes a file at least `bytes` long and allocates its holes, so that no write runs out of space
/// later. On file systems that cannot do so, a file that is long enough stays as it is, and zeros
/// are written behind a shorter one.
fn allocate(file: &File, bytes: u64, found: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => write_zeros(file, found, bytes),
        done => done.map_err(io::Error::from),
    }
}

/// Writes whole blocks of zeros behind the file's end. The length must be a multiple of a unit.
fn write_zeros(file: &File, found: u64, bytes: u64) -> io::Result<()> {
    let zeros = Aligned::zeroed(UNIT_BYTES);
    let mut at = found.next_multiple_of(ALIGNMENT_MAX as u64);
    while at < bytes {
        let length = (bytes - at).min(UNIT_BYTES as u64) as usize;
        file.write_all_at(&zeros.bytes()[..length], at)?;
        at += length as u64;
    }
    Ok(())
}

impl Device for FileDevice {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn lies_in(&self, found: &Metadata) -> bool {
        // If the file cannot be examined, it may be this one.
        let name = |of: &Metadata| (of.dev(), of.ino());
        self.file
            .metadata()
            .map_or(true, |own| name(&own) == name(found))
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file system without `fallocate` could not have a flash file.
    #[test]
    fn zeros_are_written_behind_what_a_file_has() {
        let file = tempfile::tempfile().expect("a file");
        let bytes = BYTES_MIN + UNIT_BYTES as u64;
        file.write_all_at(b"content", 5_000).expect("written");
        write_zeros(&file, 5_007, bytes).expect("written");
        let mut all = vec![1; bytes as usize];
        file.read_exact_at(&mut all, 0).expect("as long as wanted");
        let (before, rest) = all.split_at(5_000);
        let (content, zeros) = rest.split_at(7);
        assert_eq!(content, b"content");
        assert!(before.iter().chain(zeros).all(|byte| *byte == 0));
        assert_eq!(file.metadata().expect("it is there").len(), bytes);
    }
}
