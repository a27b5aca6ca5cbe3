//! The real device: a directory, or one preallocated file or partition.
//!
//! **Invariants**
//! - O1: a file has at most two descriptors, through the page cache and past it; no range is dirty
//!   in the page cache while it is written past it, as the kernel writes back and drops such pages
//!   first.
//! - O2: a block device is claimed by the descriptor of the lock, so none is written that is
//!   mounted or part of another device.
//!
//! Durable commits go past the page cache with `RWF_DSYNC` in every mode: one call, and the
//! shortest way to the medium (measured: 90 µs, where `pwrite` and `fdatasync` take 117). Large
//! reads and writes past the page cache are split and have several parts in flight (`parallel`).

use std::any::Any;
use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use duramen_base::lock::{STORE_FILES, claim_alone, file_of_store, is_block_device, lock_alone};
use duramen_base::open::{above_standard, forget_cached, open_data};
use duramen_base::origin::Origin;
use duramen_base::private;
use duramen_disk::Parallel;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use crate::buffer::Buffer;
use crate::create::{self, Probe};
use crate::disk::{BLOCK_BYTES, Disk, File, OpenHow};
use crate::error::Error;
pub use crate::region::SUPERBLOCK;
use crate::region::{FRAMES, LOCK, WAL};
use crate::types::Mode;

const BLOCK: usize = BLOCK_BYTES as usize;
/// `f_type` of OpenZFS.
const ZFS: i64 = 0x2fc1_2fc1;
/// `f_type` of btrfs.
const BTRFS: i64 = 0x9123_683e;
/// Bytes copied at once where the caller's memory is not aligned for the device.
const BOUNCE_BYTES: usize = 1 << 20;
/// Aligned buffers kept for reuse: one for each of the few threads that read at restart.
const BOUNCES_MAX: usize = 4;

/// A directory on a file system, or a raw device.
pub struct OsDisk {
    path: PathBuf,
    mode: Mode,
    parallel: Arc<Parallel>,
}

impl OsDisk {
    /// The directory `path` (created with the store if it does not exist), or in raw mode the file
    /// or partition `path`.
    pub fn new(path: &Path, mode: Mode) -> OsDisk {
        OsDisk {
            path: path.to_path_buf(),
            mode,
            parallel: Arc::new(Parallel::new(true)),
        }
    }

    /// As [`new`](Self::new), with threads in place of io_uring.
    pub fn without_uring(path: &Path, mode: Mode) -> OsDisk {
        OsDisk {
            parallel: Arc::new(Parallel::new(false)),
            ..OsDisk::new(path, mode)
        }
    }

    fn locked(&self, files: Vec<fs::File>) -> io::Result<Locked> {
        let held: io::Result<_> = files.iter().map(fs::File::try_clone).collect();
        self.parallel.hold(held?)?;
        Ok(Locked::new(files))
    }

    fn open_with(&self, path: &Path, how: OpenHow, flags: OFlags) -> io::Result<fs::File> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(how != OpenHow::Read)
            .create(how == OpenHow::Create)
            .truncate(false)
            .mode(private::FILE_MODE);
        open_data(&mut options, flags, path)
    }
}

/// Files that stay locked until this value is dropped. io_uring rings may use the files for longer.
struct Locked {
    files: Vec<fs::File>,
    origin: Origin,
}

impl Locked {
    fn new(files: Vec<fs::File>) -> Locked {
        Locked {
            files,
            origin: Origin::here(),
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.origin.is_inherited() {
            return; // the lock is the parent's
        }
        for file in &self.files {
            let _ = file.unlock();
        }
    }
}

impl Disk for OsDisk {
    fn open(&self, name: &str, how: OpenHow) -> io::Result<Arc<dyn File>> {
        let path = if self.is_raw() {
            self.path.clone()
        } else {
            self.path.join(name)
        };
        let cached = self.open_with(&path, how, OFlags::empty())?;
        if how == OpenHow::Create {
            write_in_place(&cached);
        }
        let direct = self.open_with(&path, how, OFlags::DIRECT);
        let direct = match (self.mode, direct) {
            (_, Ok(file)) => Some(file),
            // The file system does not support it (tmpfs): then only commits are a little slower.
            (Mode::Buffered, Err(_)) => None,
            (_, Err(error)) => return Err(error),
        };
        let had_name = has_name(&cached);
        Ok(Arc::new(OsFile {
            cached,
            had_name,
            direct,
            mode: self.mode,
            parallel: self.parallel.clone(),
            bounces: Mutex::new(Vec::new()),
        }))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    fn lock(&self) -> io::Result<Box<dyn Any + Send + Sync>> {
        if self.path.as_os_str().is_empty() {
            // With an empty path, files would be made in the working directory.
            let text = "the path is empty";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        if self.is_raw() {
            if let Some(name) = file_of_store(&self.path) {
                let text = format!("it is the file `{name}` of a store in a directory");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            let open = |flags| self.open_with(&self.path, OpenHow::ReadWrite, flags);
            let file = if is_block_device(&self.path) {
                claim_alone(|| open(OFlags::EXCL))? // O2
            } else {
                open(OFlags::empty())?
            };
            lock_alone(&file)?;
            return Ok(Box::new(self.locked(vec![file])?));
        }
        private::make_dir(&self.path)?;
        let file = self.open_with(&self.path.join(LOCK), OpenHow::Create, OFlags::empty())?;
        lock_alone(&file)?;
        // The process id is for people; on a full disk it is not written.
        let _ = write_process_id(&file);
        let mut files = vec![file];
        // Locks the directory as well, since the file may be deleted. Not every file system
        // supports it.
        let dir = above_standard(fs::File::open(&self.path)?)?;
        match lock_alone(&dir) {
            Ok(()) => files.push(dir),
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(_)) => {}
        }
        Ok(Box::new(self.locked(files)?))
    }

    fn lock_files(&self) -> io::Result<Box<dyn Any + Send + Sync>> {
        let names = [SUPERBLOCK, WAL, FRAMES].iter().filter(|_| !self.is_raw());
        let mut files = Vec::new();
        for name in names {
            let path = self.path.join(name);
            let file = self.open_with(&path, OpenHow::ReadWrite, OFlags::empty())?;
            match lock_alone(&file) {
                Ok(()) => files.push(file),
                Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(TryLockError::Error(_)) => {} // not every file system supports it
            }
        }
        Ok(Box::new(Locked::new(files)))
    }

    /// Makes a new file: a link in its place is replaced, not followed. A file that root makes gets
    /// the owner of the directory, because the server runs as that user.
    fn put_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path.join(format!("{name}.new"));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = private::make_new_file(&path)?;
        let owner = fs::metadata(&self.path)?;
        if file.metadata()?.uid() == 0 && owner.uid() != 0 {
            std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
        }
        file.write_all_at(bytes, 0)?;
        file.sync_all()?;
        fs::rename(&path, self.path.join(name))?;
        self.sync_dir()
    }

    fn sync_dir(&self) -> io::Result<()> {
        if self.is_raw() {
            return Ok(());
        }
        let path = fs::canonicalize(&self.path)?;
        let dir = fs::File::open(&path)?;
        let device = dir.metadata()?.dev();
        dir.sync_all()?;
        // The directory itself may be new, and so may those above it. A directory on another file
        // system, or one without permission, existed before.
        for parent in path.ancestors().skip(1) {
            match fs::File::open(parent) {
                Ok(parent) if parent.metadata()?.dev() == device => parent.sync_all()?,
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => return Err(error),
                Ok(_) => break,
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let existing = self
            .path
            .ancestors()
            .find(|path| path.exists())
            .unwrap_or(Path::new("."));
        let existing = if existing == Path::new("") {
            Path::new(".")
        } else {
            existing
        };
        let found = rustix::fs::statvfs(existing)?;
        Ok(found.f_bavail * found.f_frsize)
    }

    fn is_raw(&self) -> bool {
        self.mode == Mode::Raw
    }

    fn label(&self) -> String {
        self.path.display().to_string()
    }
}

/// Writes this process's id into the lock's file, unless the file has other contents.
fn write_process_id(mut file: &fs::File) -> io::Result<()> {
    let mut known = String::new();
    file.read_to_string(&mut known)?;
    if known
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'\n')
    {
        file.set_len(0)?;
        file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)?;
    }
    Ok(())
}

/// Whether the directory is empty or has a store or the beginning of one; false if there is no such
/// directory.
///
/// # Errors
/// The directory has other contents.
pub fn is_store(dir: &Path) -> io::Result<bool> {
    Ok(contents(dir)?.is_some())
}

/// The store, or the beginning of one, in a directory; None: there is no such directory.
fn contents(dir: &Path) -> io::Result<Option<Probe>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let name = entry?.file_name();
        if STORE_FILES.iter().all(|ours| name.as_os_str() != *ours) {
            let text = format!(
                "it holds `{}`, which is not part of a store",
                name.display()
            );
            return Err(io::Error::other(text));
        }
    }
    match create::probe(&OsDisk::new(dir, Mode::Buffered)) {
        Ok(found) => Ok(Some(found)),
        Err(Error::Unfinished { .. }) => Ok(Some(Probe::Empty)),
        Err(error) => Err(io::Error::other(error.to_string())),
    }
}

/// Whether this directory is a snapshot that no server has used as its data directory.
pub fn is_snapshot(dir: &Path) -> bool {
    create::is_snapshot(&OsDisk::new(dir, Mode::Buffered))
}

/// Whether the directory has a snapshot that no server has used, or the beginning of one, or is
/// empty; false if there is no such directory.
///
/// # Errors
/// The directory has other contents, a server's data among them, or is a symbolic link.
pub fn is_copy(dir: &Path) -> io::Result<bool> {
    if dir.is_symlink() {
        return Err(io::Error::other("it is a symbolic link"));
    }
    match contents(dir)? {
        Some(Probe::Store(found)) if !found.unfinished && !is_snapshot(dir) => {
            Err(io::Error::other("it is the data directory of a server"))
        }
        found => Ok(found.is_some()),
    }
}

/// The id of the store that the directory has, or of which it has a copy; `None`: it has none yet,
/// or there is no such directory. Reads a few blocks.
///
/// # Errors
/// The directory has other contents.
pub fn store_of(dir: &Path) -> io::Result<Option<u64>> {
    match contents(dir)? {
        Some(Probe::Store(found)) => Ok(Some(found.server)),
        _ => Ok(None),
    }
}

/// Removes a snapshot, or the beginning of one, with its directory; does nothing if there is no
/// such directory. The files are removed under another name of the directory, so that a removal
/// that is interrupted can be continued: [`finish_removal`].
///
/// # Errors
/// As [`is_copy`], or a server has it open: nothing is changed.
pub fn remove_copy(dir: &Path) -> io::Result<()> {
    finish_removal(dir)?;
    if !is_copy(dir)? {
        return Ok(());
    }
    let lock = OsDisk::new(dir, Mode::Buffered).lock()?;
    fs::rename(dir, removed_name(dir))?;
    drop(lock);
    finish_removal(dir)
}

/// Continues an interrupted [`remove_copy`] of this directory.
///
/// # Errors
/// A file cannot be removed, or is not of a store.
pub fn finish_removal(dir: &Path) -> io::Result<()> {
    let removed = removed_name(dir);
    let files = STORE_FILES
        .iter()
        .map(|name| fs::remove_file(removed.join(name)));
    for done in files.chain(std::iter::once_with(|| fs::remove_dir(&removed))) {
        match done {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// `.NAME.removed` beside the directory: no name that people choose.
fn removed_name(dir: &Path) -> PathBuf {
    let name = dir.file_name().unwrap_or_default().display().to_string();
    dir.with_file_name(format!(".{name}.removed"))
}

struct OsFile {
    cached: fs::File,
    /// Whether the file had a name when it was opened: some file systems do not count names.
    had_name: bool,
    direct: Option<fs::File>,
    mode: Mode,
    parallel: Arc<Parallel>,
    bounces: Mutex<Vec<Buffer>>,
}

impl OsFile {
    /// The descriptor past the page cache, if this mode uses it for everything.
    fn past_cache(&self) -> Option<&fs::File> {
        self.direct.as_ref().filter(|_| self.mode != Mode::Buffered)
    }

    /// The descriptor past the page cache, if a large read of this range goes that way in mode
    /// buffered too: data that is not in the cache (a restart after a power cut) is read without a
    /// copy and without filling the cache with data that is not read again. The check uses the
    /// range's last page, since the system may have read the first ones ahead.
    fn past_cold_cache(&self, at: u64, into: &[u8]) -> Option<&fs::File> {
        let large = Parallel::pays(into.len()) && is_aligned(at, &into[..BLOCK]);
        self.direct
            .as_ref()
            .filter(|_| large && !is_cached(&self.cached, at + into.len() as u64 - 1))
    }

    fn with_bounce<T>(&self, body: impl FnOnce(&mut Buffer) -> io::Result<T>) -> io::Result<T> {
        let kept = self
            .bounces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let mut bounce = kept.unwrap_or_else(|| Buffer::with_capacity(BOUNCE_BYTES));
        bounce.clear();
        let result = body(&mut bounce);
        let mut bounces = self.bounces.lock().unwrap_or_else(PoisonError::into_inner);
        if bounces.len() < BOUNCES_MAX {
            bounces.push(bounce);
        }
        result
    }

    /// Reads any range past the page cache, by way of aligned memory.
    fn read_bounced(&self, file: &fs::File, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.with_bounce(|bounce| {
            let mut done = 0;
            while done < into.len() {
                let from = at + done as u64;
                let lead = (from % BLOCK_BYTES) as usize;
                let count = (into.len() - done).min(BOUNCE_BYTES - lead);
                bounce.resize_zeroed((lead + count).next_multiple_of(BLOCK));
                // The last block may be a partial one at the end of the file.
                read_most(file, from - lead as u64, bounce.bytes_mut(), lead + count)?;
                into[done..done + count].copy_from_slice(&bounce.bytes()[lead..lead + count]);
                done += count;
            }
            Ok(())
        })
    }

    /// Reads any range past the page cache, large ones in parallel.
    fn read_direct(&self, file: &fs::File, at: u64, into: &mut [u8]) -> io::Result<()> {
        let whole = into.len() - into.len() % BLOCK;
        let (blocks, rest) = into.split_at_mut(whole);
        if !blocks.is_empty() {
            if !is_aligned(at, blocks) {
                self.read_bounced(file, at, blocks)?;
            } else if Parallel::pays(blocks.len()) {
                self.parallel.read(file, at, blocks)?;
            } else {
                file.read_exact_at(blocks, at)?;
            }
        }
        if rest.is_empty() {
            Ok(())
        } else {
            self.read_bounced(file, at + whole as u64, rest)
        }
    }

    fn write_with(&self, at: u64, bytes: &[u8], flags: ReadWriteFlags) -> io::Result<()> {
        let past = if flags.contains(ReadWriteFlags::DSYNC) {
            self.direct.as_ref()
        } else {
            self.past_cache()
        };
        let Some(file) = past else {
            return write_all(&self.cached, at, bytes, flags);
        };
        if is_aligned(at, bytes) {
            return self.write_aligned(file, at, bytes, flags);
        }
        assert!(
            at.is_multiple_of(BLOCK_BYTES) && bytes.len().is_multiple_of(BLOCK),
            "a backup writes whole blocks"
        );
        self.with_bounce(|bounce| {
            for (index, part) in bytes.chunks(BOUNCE_BYTES).enumerate() {
                bounce.clear();
                bounce.extend(part);
                let at = at + (index * BOUNCE_BYTES) as u64;
                self.write_aligned(file, at, bounce.bytes(), flags)?;
            }
            Ok(())
        })
    }

    fn write_aligned(
        &self,
        file: &fs::File,
        at: u64,
        bytes: &[u8],
        flags: ReadWriteFlags,
    ) -> io::Result<()> {
        if Parallel::pays(bytes.len()) {
            self.parallel.write(file, at, &[bytes])?;
            if flags.contains(ReadWriteFlags::DSYNC) {
                file.sync_data()?;
            }
            return Ok(());
        }
        write_all(file, at, bytes, flags)
    }
}

impl File for OsFile {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let past = self.past_cache();
        match past.or_else(|| self.past_cold_cache(at, into)) {
            Some(file) => self.read_direct(file, at, into),
            None => self.cached.read_exact_at(into, at),
        }
    }

    fn read_medium(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        match &self.direct {
            Some(file) => self.read_direct(file, at, into),
            None => self.cached.read_exact_at(into, at),
        }
    }

    fn forget_cached(&self) -> io::Result<()> {
        forget_cached(&self.cached)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_with(at, bytes, ReadWriteFlags::empty())
    }

    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        let total = parts.iter().map(|part| part.len()).sum();
        if let Some(file) = &self.direct
            && Parallel::pays(total)
            && parts
                .iter()
                .all(|part| part.is_empty() || is_aligned(at, part))
        {
            return self.parallel.write(file, at, parts);
        }
        let mut at = at;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            match &self.direct {
                Some(file) if is_aligned(at, part) => {
                    write_all(file, at, part, ReadWriteFlags::empty())?;
                }
                _ => self.write_at(at, part)?,
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_with(at, bytes, ReadWriteFlags::DSYNC)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.cached.sync_data()
    }

    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        if self.mode != Mode::Raw {
            rustix::fs::fallocate(&self.cached, FallocateFlags::empty(), at, bytes)?;
        }
        if !zero {
            return Ok(());
        }
        let zeros = vec![0; BOUNCE_BYTES];
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(BOUNCE_BYTES as u64) as usize;
            self.cached.write_all_at(&zeros[..part], at + done)?;
            done += part as u64;
        }
        // Later writes past the page cache must not meet dirty pages in it (O1). After a failed
        // sync earlier writes may be lost, whatever its reason (disk::D3).
        let synced = self.cached.sync_data();
        synced.map_err(|error| io::Error::other(error.to_string()))
    }

    fn fill_holes(&self, at: u64, bytes: u64) -> io::Result<u64> {
        let bytes = bytes.min(self.bytes()?.saturating_sub(at));
        if bytes == 0 || self.mode == Mode::Raw || !reserves(&self.cached) {
            return Ok(bytes);
        }
        match rustix::fs::fallocate(&self.cached, FallocateFlags::empty(), at, bytes) {
            Ok(()) => Ok(bytes),
            Err(Errno::NOSPC | Errno::DQUOT) => {
                // Reserved space may count as a hole.
                let hole = rustix::fs::seek(&self.cached, SeekFrom::Hole(at))?;
                Ok(bytes.min(hole.saturating_sub(at)))
            }
            Err(_) => Ok(bytes), // a file system that cannot
        }
    }

    fn first_hole(&self) -> io::Result<u64> {
        let hole = match self.mode {
            Mode::Raw => None,
            Mode::Buffered | Mode::Direct => rustix::fs::seek(&self.cached, SeekFrom::Hole(0)).ok(),
        };
        hole.map_or_else(|| self.bytes(), Ok) // some file systems do not tell
    }

    fn is_removed(&self) -> bool {
        self.had_name && !has_name(&self.cached)
    }

    fn bytes(&self) -> io::Result<u64> {
        // A partition's length is not in its metadata.
        let end = rustix::fs::seek(&self.cached, SeekFrom::End(0))?;
        Ok(end)
    }
}

/// Whether the file still has a name; also true if that cannot be found out.
fn has_name(file: &fs::File) -> bool {
    file.metadata().map_or(true, |found| found.nlink() > 0)
}

/// Whether the page at this place is in the page cache; also true if the file system does not tell.
fn is_cached(file: &fs::File, at: u64) -> bool {
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    let read = rustix::io::preadv2(file, &mut into, at, ReadWriteFlags::NOWAIT);
    read != Err(Errno::AGAIN)
}

/// Whether the file system of the file reserves space. ZFS stores no zeros, writes elsewhere each
/// time, and refuses a reservation that is longer than its free space, whatever the file has.
fn reserves(file: &fs::File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type != ZFS)
}

/// Makes btrfs overwrite an empty file in place, as other file systems do: otherwise each write
/// needs new space, and a full disk would refuse deletions too. It then keeps no checksums of its
/// own; the store has some for every byte.
fn write_in_place(file: &fs::File) {
    let is_btrfs = rustix::fs::fstatfs(file).is_ok_and(|found| found.f_type == BTRFS);
    let is_empty = file.metadata().is_ok_and(|found| found.len() == 0);
    if let (true, Ok(flags)) = (is_btrfs && is_empty, rustix::fs::ioctl_getflags(file)) {
        // If the kernel refuses, the file stays as it is.
        let _ = rustix::fs::ioctl_setflags(file, flags | rustix::fs::IFlags::NOCOW);
    }
}

fn is_aligned(at: u64, bytes: &[u8]) -> bool {
    at.is_multiple_of(BLOCK_BYTES)
        && bytes.len().is_multiple_of(BLOCK)
        && bytes.as_ptr().addr().is_multiple_of(BLOCK)
}

fn write_all(
    file: &fs::File,
    mut at: u64,
    mut bytes: &[u8],
    flags: ReadWriteFlags,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = match rustix::io::pwritev2(file, &[IoSlice::new(bytes)], at, flags) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        at += written as u64;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Reads until at least `needed` bytes are read.
fn read_most(file: &fs::File, at: u64, into: &mut [u8], needed: usize) -> io::Result<()> {
    let mut done = 0;
    while done < needed {
        match file.read_at(&mut into[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server was killed while the kernel still wrote for it, and another one began with the same
    /// directory: the old write could have come after the new one's.
    #[test]
    fn the_lock_outlasts_the_process_until_its_last_request_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let disk = || OsDisk::new(folder.path(), Mode::Buffered);
        let killed = disk();
        if !killed.parallel.is_uring() {
            println!("skipped: the kernel offers no io_uring");
            return;
        }
        let lock = killed.lock().unwrap();
        let mut lock = lock.downcast::<Locked>().ok().unwrap();
        // The kernel closes the files of a killed process; its rings end after their requests.
        drop(std::mem::take(&mut lock.files));
        let refused = disk().lock().err().map(|error| error.kind());
        assert_eq!(refused, Some(io::ErrorKind::WouldBlock));
        drop(killed);
        drop(disk().lock().unwrap());
        // Dropped while its rings still exist.
        let (first, second) = (disk(), disk());
        drop(first.lock().unwrap());
        drop(second.lock().unwrap());
    }

    /// All users of the machine could read all data, and lock it.
    #[test]
    fn what_is_made_is_of_no_use_to_other_users() {
        let folder = tempfile::tempdir().unwrap();
        let (above, dir) = (
            folder.path().join("above"),
            folder.path().join("above/store"),
        );
        let disk = OsDisk::new(&dir, Mode::Buffered);
        let _lock = disk.lock().unwrap();
        disk.open(WAL, OpenHow::Create).unwrap();
        for made in [&above, &dir, &dir.join(LOCK), &dir.join(WAL)] {
            let mode = made.metadata().unwrap().mode();
            assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", made.display());
        }
    }

    #[test]
    fn a_file_that_was_deleted_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let disk = OsDisk::new(folder.path(), Mode::Buffered);
        let file = disk.open(WAL, OpenHow::Create).unwrap();
        assert!(!file.is_removed());
        fs::rename(folder.path().join(WAL), folder.path().join(FRAMES)).unwrap();
        assert!(!file.is_removed());
        fs::remove_file(folder.path().join(FRAMES)).unwrap();
        assert!(file.is_removed());
    }
}
