//! The scripts that the server knows, and those that run for long.
//!
//! **Concurrency.** The cache has one lock, taken once for each script that is run by its name. The
//! list of long scripts is locked when one is suspended for the first time, and when it ends.

use super::libraries::Registry;
use crate::threads::background::Background;
use crate::threads::start::Starter;
use duramen_config::{REDIS_VERSION, REDIS_VERSION_NUMBER};
use duramen_script::{Cache, Limits, Machine, Program};
use duramen_wire::resp::Args;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Texts of scripts that the server keeps, in bytes.
const CACHE_BYTES: usize = 64 << 20;

/// Maximum arguments of a long script that are kept for FUNCTION STATS: copies of very many might
/// take milliseconds.
const TOLD_MAX: usize = 1_024;

/// Maximum interpreters that wait to be dropped, and hold their memory, before scripts that need a
/// new interpreter wait.
const DISCARDED_MAX: usize = 4;

/// The limits of an interpreter.
pub(crate) fn limits(memory_bytes: usize) -> Limits {
    Limits {
        memory_bytes,
        version: REDIS_VERSION,
        version_number: REDIS_VERSION_NUMBER,
    }
}

/// See the head of this file.
pub(crate) struct Scripts {
    pub(crate) cache: Cache,
    /// The libraries of functions.
    pub(crate) libraries: Registry,
    /// Grows with `SCRIPT FLUSH`, and when libraries have changed: older interpreters are not used
    /// again.
    generation: AtomicU64,
    long: Mutex<Vec<Arc<LongScript>>>,
    /// Drops interpreters with much garbage: that takes milliseconds.
    discards: Background,
    /// Interpreters that wait to be dropped: each has a reference to this.
    discarded: Arc<()>,
}

/// A script or function that was suspended.
#[derive(Debug)]
pub(crate) struct LongScript {
    /// Whether `SCRIPT KILL` or `FUNCTION KILL` was called.
    killed: AtomicBool,
    pub(crate) is_function: bool,
    pub(crate) name: String,
    /// The request, or its first arguments and how many more there are.
    pub(crate) request: Vec<Vec<u8>>,
    pub(crate) started: Instant,
}

/// Result of `SCRIPT KILL` and `FUNCTION KILL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Killed {
    Some,
    /// No script of this kind is long, but one of the other kind is.
    Others,
    None,
}

impl Scripts {
    pub(crate) fn new(starter: Starter) -> Scripts {
        Scripts {
            cache: Cache::new(CACHE_BYTES),
            libraries: Registry::default(),
            generation: AtomicU64::new(0),
            long: Mutex::default(),
            discards: Background::new("discards", starter),
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

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// From now on older interpreters are not used again.
    pub(crate) fn renew(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn begin_long(
        &self,
        program: &Program,
        args: Args<'_>,
        started: Instant,
    ) -> Arc<LongScript> {
        let told = args.into_iter().take(TOLD_MAX);
        let mut request: Vec<Vec<u8>> = told.map(<[u8]>::to_vec).collect();
        if args.len() > TOLD_MAX {
            let more = args.len() - TOLD_MAX;
            request.push(format!("... ({more} more arguments)").into_bytes());
        }
        let script = Arc::new(LongScript {
            killed: AtomicBool::new(false),
            is_function: matches!(program, Program::Function { .. }),
            name: program.name().to_owned(),
            request,
            started,
        });
        self.long().push(Arc::clone(&script));
        script
    }

    pub(crate) fn end_long(&self, script: &Arc<LongScript>) {
        self.long().retain(|known| !Arc::ptr_eq(known, script));
    }

    /// Drops an interpreter on another thread.
    pub(crate) fn discard(&self, machine: Machine) {
        let one = Arc::clone(&self.discarded);
        // If there is no thread for it, the interpreter is dropped here.
        let _ = self.discards.give(move || drop((machine, one)));
    }

    /// Whether so many interpreters wait to be dropped that no new one is to be made.
    pub(crate) fn are_many_discarded(&self) -> bool {
        Arc::strong_count(&self.discarded) > DISCARDED_MAX
    }

    /// Lets no interpreter be dropped before the sender is dropped.
    #[cfg(test)]
    pub(crate) fn hold_discards(&self) -> std::sync::mpsc::SyncSender<()> {
        let (open, gate) = std::sync::mpsc::sync_channel(0);
        let held = self.discards.give(move || gate.recv().unwrap_or_default());
        held.expect("room for one more");
        open
    }

    /// The function that has run for longest, of those that were suspended.
    pub(crate) fn longest_function(&self) -> Option<Arc<LongScript>> {
        let long = self.long();
        let functions = long.iter().filter(|script| script.is_function);
        functions.min_by_key(|script| script.started).cloned()
    }

    /// Lets all long scripts, or all long functions, end when they run the next time.
    pub(crate) fn kill(&self, functions: bool) -> Killed {
        let long = self.long();
        let mut killed = if long.is_empty() {
            Killed::None
        } else {
            Killed::Others
        };
        for script in long.iter().filter(|it| it.is_function == functions) {
            script.killed.store(true, Ordering::Relaxed);
            killed = Killed::Some;
        }
        killed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::start::STARTER;
    use std::time::Duration;

    /// Of more than four that waited, each was dropped by the thread that serves clients: up to 64
    /// MB of small pieces.
    #[test]
    fn all_interpreters_are_dropped_by_another_thread() {
        const NUMBER: usize = 16;
        let scripts = Scripts::new(STARTER);
        let held = scripts.hold_discards();
        for _ in 0..NUMBER {
            let machine = Machine::new(limits(1 << 20)).expect("memory for a stack");
            scripts.discard(machine);
        }
        let waiting = || Arc::strong_count(&scripts.discarded) - 1;
        assert_eq!(waiting(), NUMBER, "none is dropped here");
        assert!(scripts.are_many_discarded());
        drop(held);
        let began = Instant::now();
        while waiting() > 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "{}", waiting());
            std::thread::yield_now();
        }
        assert!(!scripts.are_many_discarded());
    }
}
