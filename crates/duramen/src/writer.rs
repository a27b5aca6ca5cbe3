//! The log writer: makes appends durable, in groups that form by themselves.
//!
//! **Invariants**
//! - W1: a thread that waits for a position has requested a commit that began after the append of
//!   the position, or commits itself; so no thread waits for more writers (docs/protocols.md,
//!   "Group commit").
//! - W2: `ended` grows before waiters are woken and watchers called. A waiter that read it before
//!   checking its position, and finds it unchanged under the lock of `waiters`, is woken by the
//!   commit that it may have missed.
//!
//! **Concurrency**: any thread may commit, one at a time (`commit`'s lock). The writer's own thread
//! commits for threads that can't wait (a reactor), and writes unrequested data at intervals. No
//! lock of `demand` and `waiters` is held while another is taken.

use crate::bell::Bell;
use crate::demand::Demand;
use crate::durable::{Commit, Durable};
use crate::waiters::Waiters;
use crate::{DiskState, Error};
use duramen_base::ids::Level;
use duramen_engine::Position;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Writes at level `memory` are passed to the operating system within this time.
pub(crate) const SHIP_WITHIN: Duration = Duration::from_millis(100);
/// With more undurable bytes than this, the thread writes at the shorter interval: otherwise the
/// next synced write would wait for a large commit.
const SHIP_BYTES: u64 = 1 << 20;
const SHIP_OFTEN: Duration = Duration::from_millis(10);
/// Buffered data is synced within about this time: bounds the loss of the lower levels in a power
/// cut.
const SYNC_WITHIN: Duration = Duration::from_secs(1);

/// Makes appends durable, and waits for or reports their durability. Shared by all threads.
pub struct LogWriter {
    pub(crate) durable: Arc<Durable>,
    pub(crate) demand: Demand,
    pub(crate) waiters: Waiters,
    pub(crate) stop: AtomicBool,
    pub(crate) background: Bell,
    /// Ends the thread that removes doubted keys, before the others.
    pub(crate) stop_doubts: AtomicBool,
    pub(crate) doubts: Bell,
    /// The writer's thread is running.
    pub(crate) threaded: AtomicBool,
    commit_window: Duration,
}

impl LogWriter {
    pub(crate) fn new(durable: Arc<Durable>, commit_window: Duration) -> LogWriter {
        LogWriter {
            durable,
            demand: Demand::default(),
            waiters: Waiters::default(),
            stop: AtomicBool::new(false),
            background: Bell::default(),
            stop_doubts: AtomicBool::new(false),
            doubts: Bell::default(),
            threaded: AtomicBool::new(false),
            commit_window,
        }
    }

    /// The level of everything up to `position`. Cheap.
    pub fn reached(&self, position: &Position) -> Level {
        self.durable.common.log().reached(position)
    }

    /// Waits until `position` has reached `level`; commits on this thread if no other thread does.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`]: it is then unknown whether the write survives.
    pub fn wait(&self, position: &Position, level: Level) -> Result<(), Error> {
        self.wait_unless(position, level, || false).map(drop)
    }

    /// As [`wait`](Self::wait), until `gives_up` holds: then it returns false. `gives_up` is
    /// checked each time that a commit has ended, and every 50 ms.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) fn wait_unless(
        &self,
        position: &Position,
        level: Level,
        gives_up: impl Fn() -> bool,
    ) -> Result<bool, Error> {
        let common = &self.durable.common;
        loop {
            let before = common.ended.load(Ordering::Acquire); // W2
            if self.reached(position) >= level {
                return Ok(true);
            }
            if common.engine.is_inherited() {
                return Err(Error::Closed); // closing::E6
            }
            match common.try_lock() {
                // Another thread may have committed it between the two checks.
                Some(_) if self.reached(position) >= level => return Ok(true),
                Some(commit) => {
                    self.commit_here(commit, level)?;
                    if self.durable.remote().is_some() && self.reached(position) < level {
                        self.waiters.wait(&common.ended, before); // the answers of backups end it
                    }
                }
                None => self.waiters.wait(&common.ended, before),
            }
            common.health.check()?;
            if self.reached(position) < level && gives_up() {
                return Ok(false);
            }
        }
    }

    /// Requests `level` for all earlier appends, and returns at once; watchers are called when it
    /// is reached.
    pub fn demand(&self, level: Level) {
        self.demand.raise(level);
    }

    /// Commits all earlier appends at `level` on this thread, unless a commit is in progress: then
    /// it does nothing and returns false. For a single writer, this saves the switch to the
    /// writer's thread and back. A failure shows in [`failure`](Self::failure) and in
    /// [`wait`](Self::wait).
    pub fn try_commit_here(&self, level: Level) -> bool {
        let Some(commit) = self.durable.common.try_lock() else {
            return false;
        };
        let _ = self.commit_here(commit, level);
        true
    }

    /// One commit, even if another one is in progress: waits for it first.
    pub(crate) fn commit_now(&self, level: Level) -> Result<(), Error> {
        self.commit_here(self.durable.common.lock(), level)
    }

    fn commit_here(&self, mut commit: MutexGuard<'_, Commit>, level: Level) -> Result<(), Error> {
        let result = self.durable.commit_once(&mut commit, level);
        drop(commit);
        self.waiters.tell();
        result
    }

    /// Calls `waker` after every commit, successful or not, on the committing thread. It must be
    /// short, and must not call the log writer.
    pub fn watch(&self, waker: Arc<dyn Fn() + Send + Sync>) {
        self.waiters.watch(waker);
    }

    /// The reason why writes are refused permanently; `None` while they are not.
    pub fn failure(&self) -> Option<String> {
        match self.durable.common.health.get() {
            DiskState::Failed(reason) => Some(reason),
            DiskState::Ok | DiskState::Full => None,
        }
    }

    pub(crate) fn has_thread(&self) -> bool {
        self.threaded.load(Ordering::Relaxed)
    }

    /// Whether the disk takes commits.
    pub fn disk(&self) -> DiskState {
        self.durable.common.health.get()
    }

    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`]: the disk took no commit the last time.
    pub fn check_disk(&self) -> Result<(), Error> {
        self.durable.common.health.check()
    }

    /// Main loop of the writer's thread: commits on demand, writes unrequested data at intervals,
    /// until `stop`.
    pub(crate) fn run(&self) {
        self.threaded.store(true, Ordering::Relaxed);
        let mut synced = Instant::now();
        let mut pause = SHIP_WITHIN;
        while !self.stop.load(Ordering::Acquire) {
            let mut level = self.demand.take();
            if level > Level::Memory {
                if !self.commit_window.is_zero() {
                    std::thread::sleep(self.commit_window); // as configured
                }
            } else if !self.demand.sleep(pause, &self.stop) {
                continue; // a demand came
            }
            let common = &self.durable.common;
            if level == Level::Memory {
                // No demand: write, and sync data that was written some time ago.
                let late = synced.elapsed() >= SYNC_WITHIN;
                let unsynced = common.unsynced.load(Ordering::Relaxed);
                let behind = common.log().undurable_bytes();
                pause = if behind >= SHIP_BYTES {
                    SHIP_OFTEN
                } else {
                    SHIP_WITHIN
                };
                if behind == 0 && !unsynced && common.health.check().is_ok() {
                    continue;
                }
                level = if late { Level::Synced } else { Level::Buffered };
            }
            let result = self.commit_now(level);
            if level == Level::Synced {
                synced = Instant::now();
            }
            if result.is_err() {
                // A demand that can't be met now is met when there is space; its waiters got the
                // error.
                self.demand.sleep(SHIP_WITHIN, &self.stop);
            }
        }
    }
}
