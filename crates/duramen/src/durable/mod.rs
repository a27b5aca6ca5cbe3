//! The durable side of a store: the engine's log and its replicas, on the local disk (`commit`,
//! `background`) or on other servers (`remote`).

mod background;
mod commit;
mod copies;
mod cut;
mod figures;
mod groups;
mod health;
mod preallocation;
mod remote;
mod repair;
mod scrub;
mod survivors;

use cut::Parts;
use figures::Figures;
use health::Health;
use preallocation::Preallocation;
use repair::Repairs;
use scrub::Scrub;

pub(crate) use commit::{Commit, LOCAL};
pub use copies::Bytes;
pub(crate) use cut::Cut;
pub(crate) use remote::Remote;
pub use remote::{Backups, Call, ToBackups};
pub use repair::{Repair, RepairStep};

use crate::bell::Bell;
use crate::heat::Heat;
use crate::meter::Meter;
use crate::{DiskState, Error, Options};
use duramen_backup::Backup;
use duramen_cluster::replication::Master;
use duramen_engine::{Clock, Log};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// The durable side of one store. All of it can be called without any background thread.
pub(crate) struct Durable {
    pub options: Options,
    pub common: Common,
    pub replicas: Replicas,
}

/// The part that is the same wherever the replicas are: appends come from its engine, and it
/// reports the levels that they have reached.
pub(crate) struct Common {
    pub engine: Arc<duramen_engine::Store>,
    pub commit: Mutex<Commit>,
    pub figures: Figures,
    pub health: Health,
    /// Number of ended commits, successful or not. Written before waiters are woken (`writer`).
    pub ended: AtomicU64,
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
    clock: Clock,
    /// The former clock, as long as there are keys that a clock put back would make live again;
    /// else 0.
    clock_floor_ms: AtomicU64,
    preallocation: Preallocation,
    /// Collected by a snapshot, and taken by the next commits.
    parts: Parts,
    pub repairs: Repairs,
    pub scrub: Scrub,
    /// A side log's segment that is not written, because of its damage; 0: there is none.
    held: AtomicU64,
    /// The store has ended and its directory is released: commits are refused. Stored under
    /// `commit`'s lock; Release pairs with Acquire at the loads.
    pub closed: AtomicBool,
    /// The file of hot keys; `None` without a flash tier or a directory.
    pub heat: Option<Heat>,
}

impl Local {
    /// `clock_floor_ms`: see the field.
    pub fn new(
        backup: Backup,
        options: &Options,
        heat: Option<Heat>,
        clock_floor_ms: u64,
    ) -> Local {
        Local {
            backup,
            meter: Arc::default(),
            clock: options.engine.clock.clone(),
            clock_floor_ms: AtomicU64::new(clock_floor_ms),
            preallocation: Preallocation::default(),
            parts: Parts::default(),
            repairs: Repairs::default(),
            scrub: Scrub::new(options.scrub_interval),
            held: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            heat,
        }
    }

    /// # Errors
    /// [`Error::Closed`].
    fn check_open(&self, common: &Common) -> Result<(), Error> {
        if self.closed.load(Ordering::Acquire) || common.engine.is_inherited() {
            return Err(Error::Closed);
        }
        Ok(())
    }
}

impl Common {
    fn new(engine: Arc<duramen_engine::Store>, master: Master) -> Common {
        let commit = Commit::new(master);
        let figures = Figures::default();
        figures.note(&commit);
        Common {
            engine,
            commit: Mutex::new(commit),
            figures,
            health: Health::default(),
            ended: AtomicU64::new(0),
            unsynced: AtomicBool::new(false),
        }
    }

    /// The engine's side of the log.
    pub fn log(&self) -> &Log {
        self.engine.log().expect("a durable store has a log")
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

    /// Whether the disk takes writes that add data.
    pub fn disk_state(&self) -> DiskState {
        self.health.state(self.log())
    }

    /// Records the result of a background step: a failure of the device stops the whole store, and
    /// while there is no space no write waits for room from cleaning.
    pub fn note(&self, done: Result<(), &Error>) {
        if let Err(Error::DiskFailed(reason)) = done {
            self.health
                .set(DiskState::Failed(reason.clone()), self.log());
        }
        self.log()
            .refusals()
            .set_cannot_clean(matches!(done, Err(Error::DiskFull(_))));
    }
}

impl Durable {
    pub fn new(
        options: &Options,
        engine: Arc<duramen_engine::Store>,
        master: Master,
        replicas: Replicas,
    ) -> Durable {
        Durable {
            options: options.clone(),
            common: Common::new(engine, master),
            replicas,
        }
    }

    /// The replica on the local disk; `None`: a member of a cluster.
    pub fn local(&self) -> Option<&Local> {
        match &self.replicas {
            Replicas::Local(local) => Some(local),
            Replicas::Remote(_) => None,
        }
    }

    /// The replicas on other servers; `None`: a single server.
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
}
