//! Synced commits of several threads that overlap: each holds `commit`'s lock until its part is
//! staged, and waits for the disk without it (docs/protocols.md, "Group commit").
//!
//! **Invariants** (with those of `commit`)
//! - V1: the parts of overlapping commits are collected and staged in one order, under the lock,
//!   and the backup makes them durable in this order (flights::F1). So when a commit has returned,
//!   everything that was collected before it is durable too.
//! - V2: a commit overlaps only if it is synced, nothing is staged or buffered from before, and it
//!   has one part. So all that it finds completed is synced, and it changes neither `unsynced` nor
//!   the staged data of others.
//! - V3: without the lock a commit completes its own positions, which only advance, and notes the
//!   sends that are synced; the next holder of the lock tells them to the rules. It notes sends of
//!   its own and earlier ones, never those of a commit that began later.
//! - V4: a commit without space gives its positions back under the lock, as staged, before it
//!   counts as ended: so no commit returns without them.
//!
//! **Concurrency**: any thread. `count` grows under the lock, and shrinks after all effects of a
//! commit.

use super::commit::Commit;
use super::{Durable, LOCAL, Local, Replicas};
use crate::Error;
use duramen_backup::FLIGHTS_MAX;
use duramen_base::ids::Level;
use duramen_cluster::replication::Ticket;
use duramen_engine::Collected;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A commit that overlaps usually holds the lock for less. The next one waits that long before it
/// leaves its appends to a later commit.
const STAGED_WITHIN: Duration = Duration::from_micros(50);

/// Commits in progress.
#[derive(Default)]
pub(crate) struct Overlap {
    /// Commits that wait for the disk without the lock. Release pairs with Acquire: a thread that
    /// finds 0 finds their effects.
    count: AtomicUsize,
    /// The sends before this ticket are synced (V3). Release pairs with Acquire.
    acked: AtomicU64,
    /// A commit holds the lock while it waits for the disk. Only a hint, so Relaxed.
    alone: AtomicBool,
}

/// A commit that has staged its part.
struct Staged {
    collected: Collected,
    /// The first send of later commits.
    end: Ticket,
}

/// The beginning of a commit.
enum Begun {
    /// It has to be written.
    Staged(Staged),
    /// There was nothing to write.
    Empty,
    /// It was written as a whole, under the lock.
    Ended,
}

impl Overlap {
    /// Runs a commit that keeps the lock.
    pub fn alone<T>(&self, commit: impl FnOnce() -> T) -> T {
        self.alone.store(true, Ordering::Relaxed);
        let done = commit();
        self.alone.store(false, Ordering::Relaxed);
        done
    }

    /// Tells the rules the sends that commits without the lock have synced (V3).
    pub fn tell_rules(&self, commit: &mut Commit) {
        let acked = self.acked.load(Ordering::Acquire);
        if acked > commit.told {
            commit.told = acked;
            commit
                .master
                .acked_before(LOCAL, Ticket(acked), Level::Synced);
            commit.acknowledged = true;
        }
    }

    fn is_full(&self) -> bool {
        self.count.load(Ordering::Acquire) >= FLIGHTS_MAX
    }
}

impl Durable {
    /// The lock, for a commit of this thread. `None`: other commits are in progress, and this one
    /// should wait for the end of one of them. Never waits for the disk.
    pub fn try_begin(&self) -> Option<MutexGuard<'_, Commit>> {
        let mut commit = self.try_lock();
        if self.remote().is_some() {
            return commit;
        }
        let since = Instant::now();
        while commit.is_none() {
            let waits_long = self.overlap.alone.load(Ordering::Relaxed)
                || self.overlap.is_full()
                || since.elapsed() >= STAGED_WITHIN;
            if waits_long {
                return None;
            }
            std::thread::yield_now();
            commit = self.try_lock();
        }
        let mut commit = commit.filter(|_| !self.overlap.is_full())?;
        self.overlap.tell_rules(&mut commit);
        Some(commit)
    }

    /// The lock, for a commit of this thread. `None`: as many commits as may overlap are in
    /// progress. Waits for one that keeps the lock.
    pub fn begin(&self, level: Level) -> Option<MutexGuard<'_, Commit>> {
        let commit = self.lock();
        let waits = level == Level::Synced && self.overlap.is_full();
        (!waits).then_some(commit)
    }

    /// Makes all appends so far reach `level`, beside commits of other threads if possible. False:
    /// there was nothing to do, but other threads' commits of earlier appends have not ended.
    ///
    /// # Errors
    /// As [`commit_once`](Self::commit_once).
    pub fn commit_beside(
        &self,
        mut commit: MutexGuard<'_, Commit>,
        level: Level,
    ) -> Result<bool, Error> {
        let local = match &self.replicas {
            Replicas::Local(local) if level == Level::Synced && self.may_overlap(&commit) => local,
            _ => return self.commit_once(&mut commit, level).map(|()| true),
        };
        self.check_open(local)?;
        let result = match self.begin_beside(&mut commit, local) {
            Ok(Begun::Staged(staged)) => {
                drop(commit);
                self.finish_beside(local, staged)
            }
            Ok(Begun::Empty) if self.overlap.count.load(Ordering::Acquire) > 0 => return Ok(false),
            Ok(Begun::Empty | Begun::Ended) => Ok(()),
            Err(error) => Err(error),
        };
        self.note_end(&result);
        result.map(|()| true)
    }

    /// V2, as far as it is known before the part is collected.
    fn may_overlap(&self, commit: &Commit) -> bool {
        !commit.staged && !self.unsynced.load(Ordering::Relaxed)
    }

    /// Collects and stages the part of a commit.
    fn begin_beside(&self, commit: &mut Commit, local: &Local) -> Result<Begun, Error> {
        self.prepare(local)?;
        let is_cut = self.collect(commit, local);
        if is_cut || commit.next_cut.is_due() {
            let parts = || self.commit_parts(commit, local, Level::Synced, is_cut);
            return self.overlap.alone(parts).map(|()| Begun::Ended);
        }
        if !self.stage_collected(commit, local)? {
            return Ok(Begun::Empty);
        }
        commit.staged = false; // from now on this thread's (V4)
        self.overlap.count.fetch_add(1, Ordering::Relaxed);
        Ok(Begun::Staged(Staged {
            collected: std::mem::take(&mut commit.collected),
            end: commit.master.next_ticket(),
        }))
    }

    /// Writes a staged part, and reports the result (commit::G2).
    fn finish_beside(&self, local: &Local, mut staged: Staged) -> Result<(), Error> {
        let started = Instant::now();
        let committed = local.backup.commit(Level::Synced);
        match &committed {
            Ok(_) => {
                local.meter.synced(started.elapsed());
                self.log().complete(&mut staged.collected, Level::Synced);
                self.overlap
                    .acked
                    .fetch_max(staged.end.0, Ordering::Release);
                self.overlap.count.fetch_sub(1, Ordering::Release);
            }
            Err(_) => {
                let mut commit = self.lock();
                commit.collected.take_ends(&staged.collected);
                commit.staged = true; // V4
                self.overlap.count.fetch_sub(1, Ordering::Release);
            }
        }
        committed.map(drop).map_err(Error::from)
    }
}
