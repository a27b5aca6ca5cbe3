//! Closing: all accepted writes are on disk, no more are accepted, the directory is released.
//!
//! **Invariants** (with store::S2)
//! - E1: the gate is shut while no thread is inside the engine, and an entering thread checks it
//!   inside. So every operation either ended its work in memory before the last commit begins, or
//!   finds the gate shut and does nothing. An operation that had to leave for a moment, to wait for
//!   memory, has checked the gate before: the engine refuses its writes (`Log::closed`).
//! - E2: an operation that waits for its commit meanwhile gets the result of the last commit.
//! - E3: the lock is released last: threads and cleaners have ended, a snapshot in progress has
//!   too, and commits are refused (`closed`).
//! - E4: a close that found no space changed nothing: the gate is opened again, and the threads
//!   continue.
//! - E6: in a fork of the process that opened the store, every call that may fail returns
//!   [`Error::Closed`], and the others touch no file: the files are the parent's. Checked before a
//!   lock is waited for, and again before a commit, since a closure under a guard may fork.

use crate::durable::{Common, Durable, Local};
use crate::reentrancy;
use crate::store::DurableStore;
use crate::{Error, Store};
use duramen_base::ids::Level;
use duramen_format::control::Record;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl Store {
    /// Makes everything durable, records a clean end, so that the next start is fast, and releases
    /// the directory: when this returns, it can be opened again. Every operation of every session
    /// and handle returns [`Error::Closed`] from now on; an operation in progress completes
    /// durably, or returns an error. Waits for closures that other threads run in the store.
    ///
    /// ```
    /// # use duramen::{Error, Options, Store, Table};
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// let mut session = store.session()?;
    /// store.close()?;
    /// assert!(matches!(session.set(Table::DEFAULT, "key", "value"), Err(Error::Closed)));
    /// assert!(matches!(store.close(), Err(Error::Closed)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// If the disk has no room, nothing is lost: then nothing was closed, and the store continues
    /// to serve; try again.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: nothing was closed. [`Error::DiskFailed`]: it is closed, and
    /// unacknowledged writes may be lost. [`Error::Closed`] if it was closed before.
    /// [`Error::Nested`].
    pub fn close(&self) -> Result<(), Error> {
        self.close_unless(|| false).map(drop)
    }

    /// As [`close`](Self::close), for a member of a cluster, whose backups may never answer: it
    /// stops waiting for them when `gives_up` holds. Returns the approximate number of bytes that
    /// they have not confirmed then, beside records about tables; `None`: everything is durable.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    #[doc(hidden)]
    pub fn close_unless(&self, gives_up: impl Fn() -> bool) -> Result<Option<u64>, Error> {
        reentrancy::check(&self.engine)?;
        let _one_at_a_time = self.gate.begin();
        self.gate.check(&self.engine)?;
        self.gate.shut(&self.engine, true);
        let Some(durable) = &self.durable else {
            return Ok(None);
        };
        let result = durable.end(gives_up);
        if matches!(result, Err(Error::DiskFull(_))) {
            self.gate.shut(&self.engine, false); // E4
        } else {
            // A cleaner may write to the flash device, which belongs to the next owner from now on.
            self.engine.end_cleaners();
            durable.log.durable.leave(); // E3
        }
        durable.log.waiters.tell();
        result
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.engine.is_inherited() {
            std::mem::forget(self.durable.take()); // E6: its threads, its locks, its files
            return;
        }
        let Some(durable) = &self.durable else {
            return;
        };
        if let Some(threads) = &durable.threads {
            threads.end(); // store::S2
        }
        // A cleaner in its hook would keep the log, and so the directory, beyond this point, and
        // would end the engine itself.
        let inner = &durable.log.durable;
        inner.common.engine.end_cleaners();
        if !self.gate.is_shut() {
            inner.let_go();
            inner.leave();
        }
    }
}

impl DurableStore {
    /// Ends all work with everything on disk; or, without space, lets it continue as before.
    /// A member that `gives_up` to wait for its backups ends without them; see
    /// [`Store::close_unless`].
    fn end(&self, gives_up: impl Fn() -> bool) -> Result<Option<u64>, Error> {
        let durable = &self.log.durable;
        let log = durable.common.log();
        let appended = log.appended();
        let written = self.log.wait_unless(&appended, Level::Synced, gives_up);
        let written = written.map(|all| (!all).then(|| log.undurable_bytes()));
        if matches!(written, Err(Error::DiskFull(_))) {
            return written;
        }
        self.snapshots.end();
        if let Some(threads) = &self.threads {
            threads.end();
        }
        let done = written.and_then(|missing| durable.shut_down().map(|()| missing));
        if matches!(done, Err(Error::DiskFull(_))) {
            self.snapshots.go_on();
            if let Some(threads) = &self.threads {
                threads.go_on()?;
            }
        }
        done
    }
}

impl Durable {
    /// Syncs everything, writes it to frames, and records the clean end. Without room for that the
    /// sync is enough: the next start then reads the log as after a crash.
    fn shut_down(&self) -> Result<(), Error> {
        let common = &self.common;
        let written = common.log().appended();
        common.engine.heads().close_all();
        let closed = self.commit_once(&mut common.lock(), Level::Synced);
        let Some(local) = self.local() else {
            // Its log is recovered, or empty: no restart reads it. The commit of a member waits for
            // no backup.
            return closed;
        };
        if closed.is_err() && common.log().reached(&written) < Level::Synced {
            return closed;
        }
        if let Some(heat) = &local.heat {
            heat.write_last(&common.engine);
        }
        match closed.and_then(|()| local.tidy_up(common)) {
            Err(Error::DiskFull(_)) => Ok(()),
            done => done,
        }
    }

    /// For a store that was not closed: makes all appends durable, if possible.
    fn let_go(&self) {
        // After a panic in a commit the state is unknown: the next start must determine it.
        if let Ok(mut commit) = self.common.commit.lock() {
            let _ = self.commit_once(&mut commit, Level::Synced);
        }
    }

    /// When this returns, commits are refused and the directory is released. A member's directory
    /// belongs to its node.
    fn leave(&self) {
        if let Some(local) = self.local() {
            let commit = self.common.commit.lock();
            let commit = commit.unwrap_or_else(PoisonError::into_inner);
            local.closed.store(true, Ordering::Release);
            drop(commit);
            local.backup.leave();
        }
    }
}

impl Local {
    fn tidy_up(&self, common: &Common) -> Result<(), Error> {
        self.finish_repairs(common)?;
        self.backup.flusher().end_growth();
        while self.step(common)? {}
        self.write_clean_shutdown(common)?;
        self.backup.close()?;
        Ok(())
    }

    /// Records a clean end: it is the last record, so commits are refused from here on.
    fn write_clean_shutdown(&self, common: &Common) -> Result<(), Error> {
        let mut commit = common.lock();
        commit.master.record(Record::CleanShutdown {
            next_segment: common.log().numbers().next_segment_id(),
            safe_version: common.engine.version_floor(),
        });
        self.commit(common, &mut commit, Level::Synced)?;
        self.closed.store(true, Ordering::Release);
        Ok(())
    }
}
