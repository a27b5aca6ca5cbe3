//! The end of a store: what was accepted is on disk, nothing is accepted any more, the directory is
//! free.
//!
//! **Invariants** (with S2 of `store`)
//! - E1: the gate is shut while nobody is inside the engine, and who enters looks at it inside. So
//!   every operation either ended its work in memory before the last commit begins, or finds the
//!   gate shut and does nothing. An operation that had to leave for a moment, to wait for memory,
//!   has looked before: its writes are refused by the engine (`Log::closed`).
//! - E2: an operation that waits for its commit meanwhile gets it from the last one, or its error.
//! - E3: the lock goes last: threads and cleaners have ended, the snapshot under way has too, and
//!   commits are refused (`closed`).
//! - E4: an end that found no space changed nothing: the gate is opened again, and the threads go
//!   on.

use crate::commit::Durable;
use crate::inside;
use crate::store::DurableStore;
use crate::{Error, Store};
use duramen_base::ids::Level;
use duramen_format::control::Record;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

impl Store {
    /// Makes everything durable, notes that the end was clean, so that the next start is fast, and
    /// lets go of the directory: when this returns, it can be opened again. Every operation of
    /// every session and handle answers [`Error::Closed`] from now on; one that is under way
    /// completes durably, or says that it did not. Waits for closures that other threads run in the
    /// store.
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
    /// If the disk has no room, nothing is lost: then nothing was closed, and the store serves on;
    /// try again.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: nothing was closed. [`Error::DiskFailed`]: it is closed, and writes
    /// that were not acknowledged may be lost. [`Error::Closed`] if it was. [`Error::Nested`].
    pub fn close(&self) -> Result<(), Error> {
        inside::check(self)?;
        let _one_at_a_time = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_open()?;
        self.shut(true);
        let Some(durable) = &self.durable else {
            return Ok(());
        };
        let result = durable.end();
        if matches!(result, Err(Error::DiskFull(_))) {
            self.shut(false); // E4
        } else {
            // A cleaner may write to the flash device, which is the next owner's from now on.
            self.engine.end_cleaners();
            durable.log.durable.leave(); // E3
        }
        durable.log.tell();
        result
    }

    /// Shuts the gate, or opens it again (E1).
    fn shut(&self, is_shut: bool) {
        self.engine.alone(|| {
            // Release pairs with Acquire in `is_closed`.
            self.closed.store(is_shut, Ordering::Release);
            if let Some(log) = self.engine.log() {
                log.closed(is_shut);
            }
        });
    }

    /// Whether the gate is shut. It stays as it is while the caller has a guard (E1).
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// For what needs no guard: tables, snapshots. A call that comes too late is refused by the
    /// commit that it asks for.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Nested`].
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        inside::check(self)?;
        if self.is_closed() {
            return Err(Error::Closed);
        }
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Some(durable) = &self.durable else {
            return;
        };
        if let Some(threads) = &durable.threads {
            threads.end(); // S2
        }
        // A cleaner in its hook would keep the log, and so the directory, beyond this, and end the
        // engine by itself.
        let inner = &durable.log.durable;
        inner.engine.end_cleaners();
        if !self.is_closed() {
            inner.let_go();
            inner.leave();
        }
    }
}

impl DurableStore {
    /// Everything is on disk, and nothing runs any more; or, without space, all goes on as before.
    fn end(&self) -> Result<(), Error> {
        let durable = &self.log.durable;
        let written = self.log.wait(&durable.log().appended(), Level::Synced);
        if matches!(written, Err(Error::DiskFull(_))) {
            return written;
        }
        self.snapshots.end();
        if let Some(threads) = &self.threads {
            threads.end();
        }
        let done = written.and_then(|()| durable.shut_down());
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
    /// Everything synced and in frames, and a record that says so. Without room for that it is
    /// enough that everything is synced: the next start then takes the log as after a crash.
    fn shut_down(&self) -> Result<(), Error> {
        let written = self.log().appended();
        self.engine.close_heads();
        let closed = self.commit_once(&mut self.lock(), Level::Synced);
        if self.remote.is_some() {
            return closed; // its log is recovered, or empty: nobody restarts from it
        }
        if closed.is_err() && self.log().reached(&written) < Level::Synced {
            return closed;
        }
        if let Some(heat) = &self.heat {
            heat.write_last(&self.engine);
        }
        match closed.and_then(|()| self.tidy_up()) {
            Err(Error::DiskFull(_)) => Ok(()),
            done => done,
        }
    }

    fn tidy_up(&self) -> Result<(), Error> {
        self.finish_repairs()?;
        while self.background_step()? {}
        self.write_clean_shutdown()?;
        self.backup().close()?;
        Ok(())
    }

    /// Notes a clean end: the last record of all, so commits are refused from here on.
    fn write_clean_shutdown(&self) -> Result<(), Error> {
        let mut commit = self.lock();
        commit.master.record(Record::CleanShutdown {
            next_segment: self.log().next_segment_id(),
            safe_version: self.engine.version_floor(),
        });
        self.commit_once(&mut commit, Level::Synced)?;
        self.closed.store(true, Ordering::Release);
        Ok(())
    }

    /// The last owner forgot to close: what was appended is made durable all the same, if it can
    /// be.
    fn let_go(&self) {
        // After a panic in a commit nothing is known: then the next start has to tell.
        if let Ok(mut commit) = self.commit.lock() {
            let _ = self.commit_once(&mut commit, Level::Synced);
        }
    }

    /// Commits are refused, and the directory is somebody else's, when this returns. A member's is
    /// its node's.
    fn leave(&self) {
        if let Some(backup) = &self.backup {
            let commit = self.commit.lock().unwrap_or_else(PoisonError::into_inner);
            self.closed.store(true, Ordering::Release);
            drop(commit);
            backup.leave();
        }
    }
}
