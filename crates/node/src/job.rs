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

use crate::reconciliation::{Purging, Reconciliation};
use duramen_base::ids::RecoveryId;
use duramen_engine::{Error, SideCommit, SideError};
use duramen_wire::native::Slice;
use duramen_wire::native::message::{RangeLoad, SegmentLoss};
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
    Obeyed(Reconciliation, Result<(), Error>),
    /// One slice of a purge has ended; the rest of the purge, if there is any.
    Purged(Result<(), Error>, Option<Purging>),
    Counted(Vec<RangeLoad>),
    Recovery(RunId, RecoveryCompletion),
    /// A job of the migration with this number has ended.
    Migration(u64, MigrationCompletion),
}

/// Names the replay of a partition.
pub(crate) type RunId = (RecoveryId, u32);

/// The result of a job of a recovery.
#[derive(Clone, Debug)]
pub(crate) enum RecoveryCompletion {
    Replayed {
        segment: usize,
        attempt: u32,
        bytes: usize,
        result: Result<u64, SideError>,
    },
    /// A segment of which no replica was whole.
    PutTogether {
        segment: usize,
        /// The error is the loss.
        result: Result<Result<u64, SideError>, SegmentLoss>,
    },
    Committed(Result<SideCommit, SideError>),
    Aborted,
}

/// The result of a job of a migration. An error is the reason, for people.
#[derive(Clone, Debug)]
pub(crate) enum MigrationCompletion {
    Exported(Result<Exported, String>),
    /// The result of the message with this number; false if its bytes are damaged, so that it has
    /// to be sent again.
    Replayed(u64, Result<bool, String>),
    TakenBack,
}

/// The result of a step of a migration's source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exported {
    /// Each is a message.
    pub chunks: Vec<Slice>,
    /// The step must be repeated for the rest.
    pub more: bool,
    /// The step is to be repeated somewhat later: requests are not durable yet.
    pub waits: bool,
    /// Number of keys that are marked by now.
    pub marked: usize,
    /// Bytes that would be left for the lock by now, about.
    pub left_bytes: usize,
    pub safe_version: u64,
    pub bytes_total: u64,
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
