//! The state that all clients of an episode share.

use super::plan::Plan;
use super::watch::Watch;
use crate::resp::Reply;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};

/// Counters that all counting clients share.
pub(crate) const COUNTERS: usize = 4;

/// The state that all clients of an episode share.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) plan: Plan,
    pub(crate) watch: Arc<Watch>,
    /// Acknowledged increments, and those with unknown outcome. Relaxed: they are read after all
    /// clients have ended.
    pub(crate) counted: [AtomicI64; COUNTERS],
    pub(crate) uncertain: [AtomicI64; COUNTERS],
    /// Held by the client that lists all keys of a store with flash: that reads every key on flash,
    /// which takes seconds for one client and many times longer for many at once.
    pub(crate) listing: Mutex<()>,
}

impl Setting {
    pub(crate) fn new(plan: Plan, watch: Arc<Watch>) -> Setting {
        Setting {
            plan,
            watch,
            counted: Default::default(),
            uncertain: Default::default(),
            listing: Mutex::default(),
        }
    }
}

/// Whether an error means that nothing was done, for a reason that a run causes: no memory, no
/// disk, a group that is too large, or entries on flash that are too large together.
pub(crate) fn is_refusal(reply: &Reply) -> bool {
    const REFUSALS: [&str; 6] = [
        "OOM ",
        "MISCONF ",
        "EXECABORT ",
        "TRYAGAIN",
        "ERR this command would write",
        "ERR this request needs",
    ];
    matches!(reply, Reply::Error(text) if REFUSALS.iter().any(|start| text.starts_with(start)))
}
