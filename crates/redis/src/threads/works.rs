//! The threads for work that would delay those that serve clients.

use super::background::Background;
use super::start::Starter;
use std::io;

/// The thread that does a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Work with files: a hung disk must not keep users from being removed.
    Files,
    /// Changes of a cluster's users, which wait for the coordinator.
    Users,
    /// Waits of `CLIENT PAUSE` for the requests before it.
    Pauses,
}

/// See the head of this file.
pub(crate) struct Works {
    starter: Starter,
    files: Background,
    users: Background,
    pauses: Background,
}

impl Works {
    pub(crate) fn new(starter: Starter) -> Works {
        Works {
            starter,
            files: Background::new("file-work", starter),
            users: Background::new("user-changes", starter),
            pauses: Background::new("pauses", starter),
        }
    }

    /// Gives a piece of work to one of the threads.
    ///
    /// # Errors
    /// As [`Background::give`].
    pub(crate) fn give(
        &self,
        kind: Kind,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), String> {
        let thread = match kind {
            Kind::Files => &self.files,
            Kind::Users => &self.users,
            Kind::Pauses => &self.pauses,
        };
        thread.give(work)
    }

    /// Starts a thread of its own for a piece of work.
    pub(crate) fn start(
        &self,
        name: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        self.starter.start(name, work)
    }

    /// The function that starts threads, for work that starts a thread itself.
    pub(crate) fn starter(&self) -> Starter {
        self.starter
    }
}
