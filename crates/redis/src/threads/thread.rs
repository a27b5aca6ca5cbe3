//! The part of a reactor thread that other threads see.

use super::bell::Bell;
use super::clients::Registry;
use super::commits::Commits;
use super::mailbox::Mailbox;
use super::watch::Beat;
use crate::figures::counters::ThreadCounters;
use std::sync::Arc;

/// See the head of this file.
pub struct ThreadShared {
    pub counters: ThreadCounters,
    /// When the thread last came back to its loop.
    pub beat: Beat,
    pub mailbox: Mailbox,
    /// Wakes the thread after a commit, if the thread waits for one.
    pub commits: Commits,
    /// The connections that the thread owns.
    pub clients: Registry,
}

impl ThreadShared {
    pub(crate) fn new(bell: Arc<dyn Bell>) -> ThreadShared {
        ThreadShared {
            counters: ThreadCounters::default(),
            beat: Beat::default(),
            mailbox: Mailbox::new(bell),
            commits: Commits::default(),
            clients: Registry::default(),
        }
    }
}
