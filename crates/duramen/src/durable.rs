//! The durable side of a store: the engine's log and its replicas, on the local disk (`commit`,
//! `background`) or on other servers (`remote`).

mod ahead;
mod background;
mod commit;
mod figures;
mod health;
mod remote;
mod repair;
mod scrub;

pub(crate) use ahead::Ahead;
pub(crate) use commit::{Commit, LOCAL};
pub(crate) use health::Health;
pub(crate) use remote::Remote;
pub use remote::{Backups, Bytes, Call};
pub(crate) use repair::Repairs;
pub use repair::{Repair, RepairStep};
pub(crate) use scrub::Scrub;

use crate::heat::Heat;
use crate::hints::Hints;
use crate::meter::Meter;
use crate::{Error, Options};
use duramen_backup::Backup;
use duramen_engine::Log;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// The durable side of one store. All of it can be called without any background thread.
pub(crate) struct Durable {
    pub options: Options,
    pub engine: Arc<duramen_engine::Store>,
    /// The local replicas of the log; `None` for a member of a cluster, whose replicas are on other
    /// servers.
    pub backup: Option<Backup>,
    /// For a member of a cluster: the connection to its backups.
    pub remote: Option<Remote>,
    pub commit: Mutex<Commit>,
    pub health: Health,
    pub meter: Arc<Meter>,
    /// Number of ended commits, successful or not. Written before waiters are woken (`writer`).
    pub ended: AtomicU64,
    /// The former clock, as long as there are keys that a clock put back would make live again;
    /// else 0.
    pub clock_floor_ms: AtomicU64,
    /// A commit at level buffered has not been followed by a sync yet.
    pub unsynced: AtomicBool,
    pub ahead: Ahead,
    /// Frames that were verified, and those that were found damaged.
    pub scrubbed: AtomicU64,
    pub bad_frames: AtomicU64,
    pub repairs: Repairs,
    pub scrub: Scrub,
    /// The store has ended and its directory is released: commits are refused. Stored under
    /// `commit`'s lock; Release pairs with Acquire at the loads.
    pub closed: AtomicBool,
    /// Only with a flash tier and a directory.
    pub heat: Option<Heat>,
    /// Only for a member of a cluster with a flash tier.
    pub hints: Option<Hints>,
}

impl Durable {
    /// The engine's side of the log.
    pub fn log(&self) -> &Log {
        self.engine.log().expect("a durable store has a log")
    }

    /// The local disk of a single server.
    pub fn backup(&self) -> &Backup {
        self.backup
            .as_ref()
            .expect("a member's replicas are not its own")
    }

    pub fn lock(&self) -> MutexGuard<'_, Commit> {
        self.commit
            .lock()
            .expect("no thread panics while it commits")
    }

    /// As [`lock`](Self::lock); `None` if another thread commits.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Commit>> {
        match self.commit.try_lock() {
            Ok(commit) => Some(commit),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => panic!("no thread panics while it commits"),
        }
    }

    /// # Errors
    /// [`Error::Closed`].
    pub fn check_open(&self) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Ok(())
    }
}
