//! The lock of a file or directory that one process uses alone.

use std::fs::{File, TryLockError};
use std::time::{Duration, Instant};

/// A process that was killed may hold its lock until the kernel has ended its last request.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(5);

/// Locks the file for this process alone; waits up to 2 s for one that has just been killed.
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
