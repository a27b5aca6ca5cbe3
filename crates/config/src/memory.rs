//! The setting `memory`: its division between the engine and other users, and its highest value.

use super::ServerConfig;
use duramen_base::limits::{KEY_BYTES_MAX, STORE_BYTES_MIN, VALUE_BYTES_MAX};

/// The heap of a server that writes to a directory: buffers for the disk, and memory that was freed
/// but is kept.
const HEAP_BYTES: u64 = 8 << 20;
/// Least bytes that a thread may fetch from flash at once: two of the largest entries.
pub const FETCH_BYTES_MIN: usize = 2 * (KEY_BYTES_MAX + VALUE_BYTES_MAX + 4096);
/// Memory of a reactor thread that works on fetched entries: a reply and a changed value of the
/// greatest length. The heap has room for those of two threads.
pub(super) const FETCH_WORK_BYTES: u64 = 2 << 20;
/// Highest `memory-max`, in multiples of `memory` at the start: the engine's tables for it take at
/// most about a hundredth of `memory`.
const MAX_PER_MEMORY: u64 = 16;

impl ServerConfig {
    /// The highest value that `memory` can have while the server runs.
    pub fn memory_max(&self) -> u64 {
        self.memory_bytes_max.max(self.memory_bytes)
    }

    /// Puts the value in place of a `memory-max` of 0, and bounds it; returns whether it was too
    /// high. Called once, at the start.
    pub fn settle_memory_max(&mut self) -> bool {
        let wanted = self.memory_max();
        self.memory_bytes_max = wanted.min(self.memory_bytes.saturating_mul(MAX_PER_MEMORY));
        self.memory_bytes_max < wanted
    }

    /// Lowers `memory` to `memory-max` if it is a share of the memory that this process may use:
    /// such a share grows with the limit of a container. Returns whether `memory` was higher.
    pub fn cap_memory_share(&mut self) -> bool {
        let max = self.memory_bytes_max;
        let is_above = self.memory_percent > 0 && max > 0 && self.memory_bytes > max;
        if is_above {
            self.memory_bytes = max;
        }
        is_above
    }

    /// The engine's part of `memory` at the start. `fetch_bytes` is the number of bytes that each
    /// reactor thread may fetch from flash at once. The rest is for entries fetched from flash, and
    /// for the part of the log buffer and the heap of a server with a directory that exceeds a
    /// tenth of `memory`. So the process stays within 1.1 times `memory` and 10 MB.
    pub fn engine_bytes(&self, fetch_bytes: usize) -> u64 {
        self.engine_bytes_of(self.memory_bytes, self.memory_bytes, fetch_bytes)
    }

    /// The highest value of the engine's part.
    pub fn engine_bytes_max(&self, fetch_bytes: usize) -> u64 {
        self.engine_bytes_of(self.memory_max(), self.memory_bytes, fetch_bytes)
    }

    /// The engine's part of `memory_bytes` in a server that was started with `start_bytes`, which
    /// determined the size of its log buffer.
    pub fn engine_bytes_of(&self, memory_bytes: u64, start_bytes: u64, fetch_bytes: usize) -> u64 {
        let threads = self.reactor_threads() as u64;
        let fetched = match fetch_bytes as u64 {
            0 => 0,
            each => each * threads + FETCH_WORK_BYTES * threads.saturating_sub(2),
        };
        let taken = fetched + self.bytes_beside(memory_bytes, start_bytes);
        let left = memory_bytes.saturating_sub(taken);
        if memory_bytes >= start_bytes {
            left.max(STORE_BYTES_MIN)
        } else {
            left
        }
    }

    /// The part of the log buffer and the heap that a tenth of `memory_bytes` has no room for.
    pub(super) fn bytes_beside(&self, memory_bytes: u64, start_bytes: u64) -> u64 {
        let beside = match self.data_dir() {
            Some(_) => duramen_backup::Options::copies_of(start_bytes) + HEAP_BYTES,
            None => 0,
        };
        beside.saturating_sub(memory_bytes / 10)
    }

    /// Most reactor threads with which a server with flash stays within its memory, at least one:
    /// each may fetch the longest entries, however small `memory` is.
    pub fn threads_with_flash(&self) -> usize {
        let each = FETCH_BYTES_MIN as u64;
        let beside = self.bytes_beside(self.memory_bytes, self.memory_bytes);
        let room = self.memory_bytes.saturating_sub(beside + STORE_BYTES_MIN);
        let fits = |threads: &u64| each * threads + FETCH_WORK_BYTES * (threads - 2) <= room;
        let most = (3..=256).take_while(fits).last();
        most.unwrap_or((room / each).clamp(1, 2)) as usize
    }
}
