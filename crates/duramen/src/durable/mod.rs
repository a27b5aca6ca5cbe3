//! The durable side of a store: the engine's log and its replicas, on the local disk (`commit`,
//! `background`) or on other servers (`remote`).

mod background;
mod commit;
mod cut;
mod figures;
mod flight;
mod health;
mod preallocation;
mod remote;
mod repair;
mod scrub;

use cut::Parts;
use figures::Figures;
use health::Health;
use preallocation::Preallocation;
use repair::Repairs;

pub(crate) use commit::{Commit, LOCAL};
pub(crate) use cut::Cut;
pub(crate) use remote::Remote;
pub use remote::{Backups, Bytes, Call, ToBackups};
pub use repair::{Repair, RepairStep};
pub(crate) use scrub::Scrub;

use crate::bell::Bell;
use crate::heat::Heat;
use crate::meter::Meter;
use crate::{Error, Options};
use duramen_backup::Backup;
use duramen_cluster::replication::Master;
use duramen_engine::Log;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// The durable side of one store. All of it can be called without any background thread.
pub(crate) struct Durable {
    pub options: Options,
    pub engine: Arc<duramen_engine::Store>,
    pub replicas: Replicas,
    pub commit: Mutex<Commit>,
    pub figures: Figures,
    pub health: Health,
    /// Number of ended commits, successful or not. Written before waiters are woken (`writer`).
    pub ended: AtomicU64,
    /// The former clock, as long as there are keys that a clock put back would make live again;
    /// else 0.
    pub clock_floor_ms: AtomicU64,
    /// A side log's segment that is not written, because of its damage; 0: there is none.
    pub held: AtomicU64,
    /// A commit at level buffered has not been followed by a sync yet.
    pub unsynced: AtomicBool,
}

/// The replicas of a log.
#[expect(clippy::large_enum_variant, reason = "a store has one of them")]
pub(crate) enum Replicas {
    /// A single server: one replica, on its own disk.
    Local(Local),
    /// A member of a cluster: on other servers.
    Remote(Remote),
}

/// The replica of the log on the local disk.
pub(crate) struct Local {
    pub backup: Backup,
    pub meter: Arc<Meter>,
    preallocation: Preallocation,
    /// Collected by a snapshot, and taken by the next commits.
    parts: Parts,
    /// Frames that were verified, and those that were found damaged.
    scrubbed: AtomicU64,
    bad_frames: AtomicU64,
    pub repairs: Repairs,
    pub scrub: Scrub,
    /// The store has ended and its directory is released: commits are refused. Stored under
    /// `commit`'s lock; Release pairs with Acquire at the loads.
    pub closed: AtomicBool,
    /// Only with a flash tier and a directory.
    pub heat: Option<Heat>,
}

impl Local {
    pub fn new(backup: Backup, scrub_interval: Duration, heat: Option<Heat>) -> Local {
        Local {
            backup,
            meter: Arc::default(),
            preallocation: Preallocation::default(),
            parts: Parts::default(),
            scrubbed: AtomicU64::new(0),
            bad_frames: AtomicU64::new(0),
            repairs: Repairs::default(),
            scrub: Scrub::new(scrub_interval),
            closed: AtomicBool::new(false),
            heat,
        }
    }
}

impl Durable {
    pub fn new(
        options: &Options,
        engine: Arc<duramen_engine::Store>,
        master: Master,
        replicas: Replicas,
    ) -> Durable {
        let commit = Commit::new(master);
        let figures = Figures::default();
        figures.note(&commit);
        Durable {
            options: options.clone(),
            engine,
            replicas,
            commit: Mutex::new(commit),
            figures,
            health: Health::default(),
            ended: AtomicU64::new(0),
            clock_floor_ms: AtomicU64::new(0),
            held: AtomicU64::new(0),
            unsynced: AtomicBool::new(false),
        }
    }

    /// # Errors
    /// [`Error::Closed`].
    fn check_open(&self, local: &Local) -> Result<(), Error> {
        if local.closed.load(Ordering::Acquire) || self.engine.is_inherited() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// The engine's side of the log.
    pub fn log(&self) -> &Log {
        self.engine.log().expect("a durable store has a log")
    }

    /// `None`: a member of a cluster.
    pub fn local(&self) -> Option<&Local> {
        match &self.replicas {
            Replicas::Local(local) => Some(local),
            Replicas::Remote(_) => None,
        }
    }

    /// `None`: a single server.
    pub fn remote(&self) -> Option<&Remote> {
        match &self.replicas {
            Replicas::Local(_) => None,
            Replicas::Remote(remote) => Some(remote),
        }
    }

    /// Ends the pause of the thread that stores or sends hints of hot keys; `None`: there is none.
    pub fn hint_bell(&self) -> Option<&Bell> {
        match &self.replicas {
            Replicas::Local(local) => local.heat.as_ref().map(|heat| &heat.bell),
            Replicas::Remote(remote) => remote.hints.as_ref().map(|hints| &hints.bell),
        }
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
}
