//! The log writer: makes what was appended durable, in groups that form by themselves.
//!
//! **Invariants**
//! - W1: who waits for a position has asked for a commit that began after the position was
//!   appended, or commits on its own thread; so nobody waits for company (docs/protocols.md, "Group
//!   commit").
//! - W2: `ended` grows before waiters are woken and watchers called; who read it before looking at
//!   its position and finds it unchanged under `waiting`'s lock is woken by the commit that it may
//!   have missed.
//!
//! **Concurrency**: any thread may commit, one at a time (`commit`'s lock). The writer's own thread
//! commits for those who can't wait (a reactor), and ships what nobody asked for. No lock of this
//! file is held while another is taken.

use crate::commit::{Commit, Durable};
use crate::threads::Bell;
use crate::{DiskState, Error};
use duramen_base::ids::Level;
use duramen_engine::Position;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

/// Writes at level `memory` are handed to the operating system within this time.
pub(crate) const SHIP_WITHIN: Duration = Duration::from_millis(100);
/// While so many bytes are not durable, it ships this often: otherwise the next synced write would
/// wait for a large commit.
const SHIP_BYTES: u64 = 1 << 20;
const SHIP_OFTEN: Duration = Duration::from_millis(10);
/// What is only buffered is synced within about this time: bounds what a power cut takes from the
/// lower levels.
const SYNC_WITHIN: Duration = Duration::from_secs(1);
/// A waiter looks again at least this often, should the machine be so busy that nobody commits for
/// it.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Makes what was appended durable; waits for it, or says when it is. Shared by all threads.
pub struct LogWriter {
    pub(crate) durable: Arc<Durable>,
    /// The highest level that somebody asked the writer's thread for, as a number.
    demanded: AtomicU8,
    /// The thread sleeps, or is about to: it must be woken.
    asleep: AtomicBool,
    bell: Mutex<()>,
    ring: Condvar,
    waiters: AtomicUsize,
    waiting: Mutex<()>,
    progress: Condvar,
    watchers: RwLock<Vec<Arc<dyn Fn() + Send + Sync>>>,
    pub(crate) stop: AtomicBool,
    pub(crate) background: Bell,
    /// The writer's thread runs.
    pub(crate) threaded: AtomicBool,
    commit_window: Duration,
}

impl LogWriter {
    pub(crate) fn new(durable: Arc<Durable>, commit_window: Duration) -> LogWriter {
        LogWriter {
            durable,
            demanded: AtomicU8::new(0),
            asleep: AtomicBool::new(false),
            bell: Mutex::new(()),
            ring: Condvar::new(),
            waiters: AtomicUsize::new(0),
            waiting: Mutex::new(()),
            progress: Condvar::new(),
            watchers: RwLock::new(Vec::new()),
            stop: AtomicBool::new(false),
            background: Bell::default(),
            threaded: AtomicBool::new(false),
            commit_window,
        }
    }

    /// The level that everything up to `position` has reached. Cheap.
    pub fn reached(&self, position: &Position) -> Level {
        self.durable.log().reached(position)
    }

    /// Waits until `position` has reached `level`, committing on this thread if nobody else is at
    /// it.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`]: whether the write survives is then unknown.
    pub fn wait(&self, position: &Position, level: Level) -> Result<(), Error> {
        loop {
            let before = self.durable.ended.load(Ordering::Acquire); // W2
            if self.reached(position) >= level {
                return Ok(());
            }
            match self.durable.try_lock() {
                // Somebody may have committed it between the two looks.
                Some(_) if self.reached(position) >= level => return Ok(()),
                Some(commit) => {
                    self.commit_here(commit, level)?;
                    if self.durable.remote.is_some() && self.reached(position) < level {
                        self.wait_for_end(before); // the answers of backups end it
                    }
                }
                None => self.wait_for_end(before),
            }
            self.durable.health.check()?;
        }
    }

    /// Waits until a commit has ended since `before` was read.
    fn wait_for_end(&self, before: u64) {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let guard = self.waiting.lock().expect("waiters");
        if self.durable.ended.load(Ordering::SeqCst) == before {
            drop(self.progress.wait_timeout(guard, LOOK_AGAIN));
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Asks for everything appended so far to reach `level` soon, and returns at once; watchers are
    /// called when it has.
    pub fn demand(&self, level: Level) {
        self.demanded.fetch_max(level as u8, Ordering::SeqCst);
        self.wake();
    }

    /// Lets the writer's thread look around.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            drop(self.bell.lock().expect("the writer's bell"));
            self.ring.notify_one();
        }
    }

    /// Commits everything appended so far at `level` on this thread, unless a commit is under way:
    /// then does nothing and returns false. For a writer who is alone, this saves the way to the
    /// writer's thread and back. A failure shows in [`failure`](Self::failure) and in
    /// [`wait`](Self::wait).
    pub fn try_commit_here(&self, level: Level) -> bool {
        let Some(commit) = self.durable.try_lock() else {
            return false;
        };
        let _ = self.commit_here(commit, level);
        true
    }

    /// One commit, whatever else is under way.
    pub(crate) fn commit_now(&self, level: Level) -> Result<(), Error> {
        self.commit_here(self.durable.lock(), level)
    }

    fn commit_here(&self, mut commit: MutexGuard<'_, Commit>, level: Level) -> Result<(), Error> {
        let result = self.durable.commit_once(&mut commit, level);
        drop(commit);
        self.tell();
        result
    }

    /// Wakes who waits and calls who watches.
    pub(crate) fn tell(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            drop(self.waiting.lock().expect("waiters"));
            self.progress.notify_all();
        }
        let watchers = self.watchers.read().expect("watchers");
        for watcher in &*watchers {
            watcher();
        }
    }

    /// Calls `waker` after every commit, from whichever thread made it, well or not. Short, and not
    /// back into this.
    pub fn watch(&self, waker: Arc<dyn Fn() + Send + Sync>) {
        self.watchers.write().expect("watchers").push(waker);
    }

    /// Why writes are refused for good; `None` while they are not.
    pub fn failure(&self) -> Option<String> {
        match self.durable.health.get() {
            DiskState::Failed(reason) => Some(reason),
            DiskState::Ok | DiskState::Full => None,
        }
    }

    pub(crate) fn has_thread(&self) -> bool {
        self.threaded.load(Ordering::Relaxed)
    }

    /// Whether the disk takes commits.
    pub fn disk(&self) -> DiskState {
        self.durable.health.get()
    }

    /// The writer's thread: commits what is demanded, ships what nobody asked for, until `stop`.
    pub(crate) fn run(&self) {
        self.threaded.store(true, Ordering::Relaxed);
        let mut synced = Instant::now();
        let mut pause = SHIP_WITHIN;
        while !self.stop.load(Ordering::Acquire) {
            let demanded = Level::from_number(self.demanded.swap(0, Ordering::SeqCst));
            let mut level = demanded.unwrap_or(Level::Memory);
            if level > Level::Memory {
                if !self.commit_window.is_zero() {
                    std::thread::sleep(self.commit_window); // asked for by configuration
                }
            } else if !self.sleep(pause) {
                continue; // somebody rang
            }
            let durable = &self.durable;
            if level == Level::Memory {
                // Nobody asks: ship, and sync what was shipped a while ago.
                let late = synced.elapsed() >= SYNC_WITHIN;
                let unsynced = durable.unsynced.load(Ordering::Relaxed);
                let behind = durable.log().undurable_bytes();
                pause = if behind >= SHIP_BYTES {
                    SHIP_OFTEN
                } else {
                    SHIP_WITHIN
                };
                if behind == 0 && !unsynced && durable.health.check().is_ok() {
                    continue;
                }
                level = if late { Level::Synced } else { Level::Buffered };
            }
            let result = self.commit_now(level);
            if level == Level::Synced {
                synced = Instant::now();
            }
            if result.is_err() {
                // A demand that can't be met now is met when there is space; its waiters were told.
                self.sleep(SHIP_WITHIN);
            }
        }
    }

    /// Sleeps until somebody rings or it is time to ship; returns whether it is time.
    fn sleep(&self, time: Duration) -> bool {
        let guard = self.bell.lock().expect("the writer's bell");
        self.asleep.store(true, Ordering::SeqCst);
        // SeqCst: either this sees the demand, or `wake` sees that we sleep.
        if self.demanded.load(Ordering::SeqCst) > 0 || self.stop.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        let (_guard, timeout) = self
            .ring
            .wait_timeout_while(guard, time, |()| self.asleep.load(Ordering::SeqCst))
            .expect("the writer's bell");
        self.asleep.store(false, Ordering::SeqCst);
        timeout.timed_out()
    }
}
