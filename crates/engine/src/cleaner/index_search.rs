//! Decides how long a writer searches for index memory.

use super::pacer::{STUCK_DEVICE_AGAIN, WAIT_MAX, Waited};
use crate::Error;
use crate::core::Core;
use std::time::{Duration, Instant};

/// Maximum attempts of one operation, more than it can need. An operation that has made all of them
/// lacks something else, for example address space.
const ATTEMPTS_MAX: u32 = 64;
/// A search that ends in vain shortens the searches that begin within this time after it.
const VAIN_FOR_MS: u64 = 1_000;

/// The search of one operation.
#[derive(Default)]
pub(crate) struct IndexSearch {
    attempts: u32,
    waited: Option<Waited>,
}

impl IndexSearch {
    /// Counts another attempt that no device can help. Returns false if there were too many.
    pub(crate) fn tries(&mut self) -> bool {
        self.attempts += 1;
        self.attempts <= ATTEMPTS_MAX
    }

    /// Counts another attempt. Returns whether the writer has to wait before it for a cleaner
    /// thread, which moves segments to flash or counts cleared tables. The writer's thread serves
    /// no other request meanwhile.
    ///
    /// # Errors
    /// The search has taken too long.
    pub(crate) fn next(&mut self, core: &Core) -> Result<bool, Error> {
        if !core.need().waits_for_flash() {
            return match self.tries() {
                true => Ok(false),
                false => Err(core.out_of_memory()),
            };
        }
        let now = Instant::now();
        let waited = self.waited.get_or_insert_with(|| Waited::since(now));
        if waited.look(now) <= patience(core) {
            return Ok(true);
        }
        core.cleaners.pacer.note_index_vain(core.clock().now_ms());
        Err(core.out_of_memory())
    }
}

/// Longest wait of a writer for index memory. It is short if another writer waited in vain lately,
/// because the writers of a thread wait one after the other.
fn patience(core: &Core) -> Duration {
    let vain_ms = core.cleaners.pacer.index_vain_ms();
    if vain_ms > 0 && core.clock().now_ms().abs_diff(vain_ms) < VAIN_FOR_MS {
        STUCK_DEVICE_AGAIN
    } else {
        WAIT_MAX
    }
}
