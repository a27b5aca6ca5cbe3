//! Jobs: work that takes longer than a node may. The node outputs a job, a thread of the driver
//! runs it, and its result is passed back.
//!
//! **Invariants**
//! - T1: [`Node::handle`](crate::Node::handle) takes about a millisecond at most; work that walks
//!   an index, waits for guards or verifies megabytes is a job.
//! - T2: jobs may run in any order, side by side. A part that needs an order issues its next job
//!   when the one before is done.
//!
//! **Concurrency** a job owns its data, and any thread may run it. Must not be run with a guard of
//! the store held.
//!
//! Paper: [Ousterhout15 §6] (worker threads beside a dispatch thread)

use crate::member::Order;
use crate::migration;
use crate::order::Purging;
use crate::recovery;
use duramen_engine::Error;
use duramen_wire::native::message::RangeLoad;
use std::fmt;

/// A job: run it, and pass in its result as [`NodeInput::JobDone`](crate::NodeInput::JobDone).
pub struct Job {
    name: &'static str,
    work: Box<dyn FnOnce() -> JobResult + Send>,
}

/// The end of a job.
#[derive(Clone, Debug)]
pub struct JobDone {
    pub(crate) result: JobResult,
}

/// The result of a job.
#[derive(Clone, Debug)]
pub(crate) enum JobResult {
    Obeyed(Order, Result<(), Error>),
    /// One slice; the rest of the purge.
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

    /// The kind of work, for figures.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the job. Takes from microseconds to, rarely, seconds.
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
