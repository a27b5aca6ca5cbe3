//! The lock of a file or directory that one process uses alone, and the names of a store's files,
//! so that no other program uses them for its own data.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest wait for a lock: a process that was killed may hold its lock until the kernel has ended
/// its last request.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(5);

/// Locks the file for this process alone; waits up to 2 s for a process that has just been killed.
///
/// # Errors
/// [`TryLockError::WouldBlock`] if another process has it.
pub fn lock_alone(file: &File) -> Result<(), TryLockError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(RETRY),
            result => return result,
        }
    }
}

/// Whether a path names a block device, which must be claimed before it is written
/// ([`claim_alone`]).
pub fn is_block_device(path: &Path) -> bool {
    let found = path.metadata();
    found.is_ok_and(|found| found.file_type().is_block_device())
}

/// Opens a block device by `open`, which opens it with `O_EXCL`: the kernel then refuses a device
/// that is mounted or part of another device (RAID, LVM, swap), and a mount as long as it is open.
/// Other descriptors of it are opened without that flag. Waits up to 2 s for a process that has
/// just been killed.
///
/// # Errors
/// [`io::ErrorKind::ResourceBusy`] if it is used otherwise; those of `open`.
pub fn claim_alone(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    let until = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(RETRY);
            }
            result => return result,
        }
    }
}

/// Names of all files in a store's directory.
pub const STORE_FILES: [&str; 8] = [
    "LOCK",
    "superblock",
    "wal",
    "frames",
    "heat",
    "heat.new",
    "accepted-loss",
    "accepted-loss.new",
];

/// The store file that this path names: it has such a name, and a superblock is beside it. The file
/// need not exist.
pub fn file_of_store(path: &Path) -> Option<&'static str> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = path.file_name()?;
    let ours = STORE_FILES.into_iter().find(|ours| name == *ours)?;
    path.with_file_name("superblock").exists().then_some(ours)
}
