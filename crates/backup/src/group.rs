//! Group commit for the chunks of several masters: one write and one sync, then everybody is
//! answered.
//!
//! Paper: [Beineke18 §IV] the primary log, which takes what all masters send; differs: who sends
//! waits for the sync, and the time that a group waits for company is found by looking at how it
//! came together last time.
//!
//! **Invariants**
//! - Y1: a chunk is answered after a commit that it was staged before has ended, at the level that
//!   this one reached.
//! - Y2: who is alone never waits: a group waits only for logs that were in the two before, and at
//!   most for half of what a commit takes.
//!
//! **Concurrency**: `submit` from any thread, `run` from one at a time. No lock is held during a
//! commit but the backup's own.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use duramen_base::ids::Level;

use crate::backup::Backup;
use crate::error::Error;
use crate::types::Chunk;

/// Longest that a group waits for company, in microseconds.
const WINDOW_MAX_MICROS: u64 = 1_000;

/// Whom to answer, and what.
#[derive(Debug)]
pub struct Answered<T> {
    pub tag: T,
    /// The level that the chunk has reached.
    pub level: Level,
}

/// What waits for the next commit.
struct Waiting<T> {
    tags: Vec<T>,
    level: Level,
    logs: BTreeSet<u64>,
    /// When the first of them came, in microseconds.
    since: u64,
}

struct Inner<T> {
    waiting: Waiting<T>,
    /// Logs in the last group and in the one before: with two groups that take turns, both.
    last: BTreeSet<u64>,
    before: BTreeSet<u64>,
    /// When the last commit ended.
    ended: u64,
    /// How long a commit takes, in microseconds, smoothed.
    commit_micros: u64,
}

/// Chunks on their way into one backup. Times are microseconds of any clock that does not go back.
pub struct Group<T> {
    inner: Mutex<Inner<T>>,
}

impl<T> Default for Group<T> {
    fn default() -> Group<T> {
        Group {
            inner: Mutex::new(Inner {
                waiting: Waiting::new(),
                last: BTreeSet::new(),
                before: BTreeSet::new(),
                ended: 0,
                commit_micros: 0,
            }),
        }
    }
}

impl<T> Waiting<T> {
    fn new() -> Waiting<T> {
        Waiting {
            tags: Vec::new(),
            level: Level::Buffered,
            logs: BTreeSet::new(),
            since: 0,
        }
    }
}

impl<T> Group<T> {
    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stages a chunk; `tag` comes back from [`run`](Self::run) when it has reached `level`.
    ///
    /// # Errors
    /// As [`Backup::stage_of`]: the chunk was not taken, and its tag will not come back.
    pub fn submit(
        &self,
        backup: &Backup,
        log: u64,
        chunk: Chunk<'_>,
        level: Level,
        tag: T,
        now: u64,
    ) -> Result<(), Error> {
        backup.stage_of(log, chunk)?;
        // After the staging: a tag that is taken by `run` was staged before (Y1).
        let mut inner = self.inner();
        let waiting = &mut inner.waiting;
        if waiting.tags.is_empty() {
            waiting.since = now;
        }
        waiting.tags.push(tag);
        waiting.level = waiting.level.max(level);
        waiting.logs.insert(log);
        Ok(())
    }

    /// When the next commit should begin: `None` if nobody waits, a time that has passed if at
    /// once.
    pub fn due(&self) -> Option<u64> {
        let inner = self.inner();
        let waiting = &inner.waiting;
        if waiting.tags.is_empty() {
            return None;
        }
        let missing = inner.last.union(&inner.before);
        if missing.into_iter().all(|log| waiting.logs.contains(log)) {
            return Some(waiting.since); // Y2
        }
        // Whoever was answered by the last commit needs a moment to send again.
        let from = waiting.since.max(inner.ended);
        Some(from + (inner.commit_micros / 2).min(WINDOW_MAX_MICROS))
    }

    /// Commits what waits. Returns whom to answer; nobody if nobody waits. `clock` gives the time.
    ///
    /// # Errors
    /// As [`Backup::commit`]; [`Error::Full`]: all stay in the group, run again later.
    pub fn run(&self, backup: &Backup, clock: &dyn Fn() -> u64) -> Result<Vec<Answered<T>>, Error> {
        let group = {
            let mut inner = self.inner();
            if inner.waiting.tags.is_empty() {
                return Ok(Vec::new());
            }
            std::mem::replace(&mut inner.waiting, Waiting::new())
        };
        let began = clock();
        let committed = match backup.commit(group.level) {
            Ok(committed) => committed,
            #[cfg(feature = "planted")]
            Err(Error::Full { .. }) if backup.planted(crate::planted::Bug::FullIsStored) => {
                crate::types::Committed {
                    level: group.level,
                    ..Default::default()
                }
            }
            Err(error) => {
                self.put_back(group);
                return Err(error);
            }
        };
        let ended = clock();
        let took = ended.saturating_sub(began);
        let mut guard = self.inner();
        let inner = &mut *guard;
        inner.ended = ended;
        inner.commit_micros = (inner.commit_micros * 7 + took) / 8;
        inner.before = std::mem::replace(&mut inner.last, group.logs);
        drop(guard);
        let level = committed.level.min(group.level);
        let answered = |tag| Answered { tag, level };
        Ok(group.tags.into_iter().map(answered).collect())
    }

    fn put_back(&self, mut group: Waiting<T>) {
        let mut inner = self.inner();
        let newer = std::mem::replace(&mut inner.waiting, Waiting::new());
        group.tags.extend(newer.tags);
        group.level = group.level.max(newer.level);
        group.logs.extend(newer.logs);
        inner.waiting = group;
    }
}
