//! Work that takes longer than a node may: it comes out, is run by whoever has threads, and its
//! result comes back.
//!
//! **Invariants**
//! - T1: [`Node::handle`](crate::Node::handle) takes about a millisecond at most; what walks an
//!   index, waits for guards or verifies megabytes is a job.
//! - T2: jobs may run in any order, side by side. Who needs an order gives the next one out when
//!   the one before is done.
//!
//! **Concurrency** a job owns what it needs, and may be run by any thread. Must not be run with a
//! guard of the store held.
//!
//! Paper: [Ousterhout15 §6] (worker threads beside a dispatch thread)

use crate::member::Order;
use crate::migration;
use crate::order::Purging;
use crate::recovery;
use duramen_engine::Error;
use duramen_wire::native::message::RangeLoad;
use std::fmt;

/// Run it, and hand in what comes out as [`NodeInput::JobDone`](crate::NodeInput::JobDone).
pub struct Job {
    name: &'static str,
    work: Box<dyn FnOnce() -> JobResult + Send>,
}

/// That a job is done.
#[derive(Clone, Debug)]
pub struct JobDone {
    pub(crate) result: JobResult,
}

/// What came of a job.
#[derive(Clone, Debug)]
pub(crate) enum JobResult {
    Obeyed(Order, Result<(), Error>),
    /// A slice; what is left.
    Purged(Result<(), Error>, Option<Purging>),
    Counted(Vec<RangeLoad>),
    Recovery(recovery::Done),
    Migration(migration::Done),
}

impl Job {
    pub(crate) fn new(
        name: &'static str,
        work: impl FnOnce() -> JobResult + Send + 'static,
    ) -> Job {
        Job {
            name,
            work: Box::new(work),
        }
    }

    /// What kind of work it is, for figures.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Takes from microseconds to, rarely, seconds.
    pub fn run(self) -> JobDone {
        JobDone {
            result: (self.work)(),
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} job", self.name)
    }
}
