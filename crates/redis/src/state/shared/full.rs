//! Writes that are refused for lack of memory: a line in the log when that begins and when it
//! ends.

use crate::threads::background::Background;
use crate::threads::start::Starter;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Refusals count as ended when there was none for this time.
const QUIET: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Refusals since the start.
pub(crate) struct Refusals {
    state: Arc<State>,
    /// The thread that waits for the end of the present refusals.
    watch: Background,
}

#[derive(Debug, Default)]
struct State {
    /// Replies to clients of Redis's protocol. Relaxed: it counts only.
    count: AtomicU64,
    /// Whether refusals go on, and a thread waits for their end. Relaxed: a refusal at the moment
    /// of a change may be counted in either line of the log.
    are_watched: AtomicBool,
}

impl Refusals {
    pub(super) fn new(starter: Starter) -> Refusals {
        Refusals {
            state: Arc::default(),
            watch: Background::new("refusals", starter),
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.state.count.load(Ordering::Relaxed)
    }

    /// Counts an error reply, if it refuses a write for lack of memory.
    #[inline]
    pub(crate) fn note_if_full(&self, code: &str, text: &str) {
        if code == "OOM" || code == "EXECABORT" && text.contains(": OOM ") {
            self.note_full(text);
        }
    }

    #[cold]
    fn note_full(&self, text: &str) {
        let before = self.state.count.fetch_add(1, Ordering::Relaxed);
        if self.state.are_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::warn!("writes are refused for lack of memory from now on: {text}");
        let state = Arc::downgrade(&self.state);
        let given = self.watch.give(move || watch(&state, before));
        if given.is_err() {
            self.state.are_watched.store(false, Ordering::Relaxed);
        }
    }
}

/// Waits for the end of the present refusals. `before`: the number of refusals before these.
fn watch(state: &Weak<State>, before: u64) {
    let (mut seen, mut since) = (before, Instant::now());
    while let Some(state) = state.upgrade() {
        let now = state.count.load(Ordering::Relaxed);
        if now != seen {
            (seen, since) = (now, Instant::now());
        } else if since.elapsed() >= QUIET {
            state.are_watched.store(false, Ordering::Relaxed);
            let refused = now - before;
            return tracing::info!(
                "no write was refused for lack of memory for {QUIET:?}: {refused} were, before that"
            );
        }
        drop(state);
        std::thread::sleep(LOOK_EVERY);
    }
}
