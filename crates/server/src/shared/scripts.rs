//! The scripts that the server knows, and those that run for long.
//!
//! **Concurrency.** The cache has one lock, taken once for each script that is run by its name. The
//! list of long scripts is locked when one is suspended for the first time, and when it ends.

use super::Background;
use duramen_script::{Cache, Machine};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Texts of scripts that the server keeps, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Interpreters that may wait for being dropped: they hold their memory.
const DISCARDED_MAX: usize = 4;

/// See the head of this file.
pub(crate) struct Scripts {
    pub(crate) cache: Cache,
    /// Grows with `SCRIPT FLUSH`.
    pub(crate) flushes: AtomicU64,
    long: Mutex<Vec<Arc<LongScript>>>,
    /// Drops interpreters with much garbage: that takes milliseconds.
    discards: Background,
    /// Interpreters that are to be dropped.
    discarded: Arc<()>,
}

/// A script that was suspended.
#[derive(Debug, Default)]
pub(crate) struct LongScript {
    /// `SCRIPT KILL` was called.
    killed: AtomicBool,
}

impl Default for Scripts {
    fn default() -> Scripts {
        Scripts {
            cache: Cache::new(CACHE_BYTES),
            flushes: AtomicU64::new(0),
            long: Mutex::default(),
            discards: Background::new("discards"),
            discarded: Arc::new(()),
        }
    }
}

impl LongScript {
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }
}

impl Scripts {
    fn long(&self) -> std::sync::MutexGuard<'_, Vec<Arc<LongScript>>> {
        self.long.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin_long(&self) -> Arc<LongScript> {
        let script = Arc::new(LongScript::default());
        self.long().push(Arc::clone(&script));
        script
    }

    pub(crate) fn end_long(&self, script: &Arc<LongScript>) {
        self.long().retain(|known| !Arc::ptr_eq(known, script));
    }

    /// Drops an interpreter, on another thread if fewer than [`DISCARDED_MAX`] wait for that.
    pub(crate) fn discard(&self, machine: Machine) {
        if Arc::strong_count(&self.discarded) <= DISCARDED_MAX {
            let one = Arc::clone(&self.discarded);
            // If no thread can be had, it is dropped here.
            let _ = self.discards.give(move || drop((machine, one)));
        }
    }

    /// `SCRIPT KILL`: all long scripts end when they run the next time. False: there is none.
    pub(crate) fn kill(&self) -> bool {
        let long = self.long();
        for script in long.iter() {
            script.killed.store(true, Ordering::Relaxed);
        }
        !long.is_empty()
    }
}
