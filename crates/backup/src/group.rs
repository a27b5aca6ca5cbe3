//! Group commit for the chunks of several masters: one write and one sync, then all are answered.
//!
//! Paper: [Beineke18 §IV] the primary log, which takes the data of all masters; differs: a master
//! waits for the sync, and the time that a group waits for more chunks depends on how the last
//! groups formed.
//!
//! **Invariants**
//! - Y1: a chunk is answered after the end of a commit before which it was staged, at the level
//!   that this commit reached.
//! - Y2: a single master never waits: a group waits only for logs that were in the two groups
//!   before, and at most for half the time of a commit.
//!
//! **Concurrency**: `submit` from any thread, `run` from one at a time. No lock is held during a
//! commit but the backup's own.

use duramen_base::planted::{Bug, has_bug};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use duramen_base::ids::Level;

use crate::backup::Backup;
use crate::error::Error;
use crate::types::Chunk;

/// Longest time that a group waits for more chunks, in microseconds.
const WINDOW_MAX_MICROS: u64 = 1_000;

/// A chunk to be answered.
#[derive(Debug)]
pub struct Answered<T> {
    pub tag: T,
    /// The level that the chunk has reached.
    pub level: Level,
}

/// The chunks that wait for the next commit.
struct Waiting<T> {
    tags: Vec<T>,
    level: Level,
    logs: BTreeSet<u64>,
    /// Arrival of the first of them, in microseconds.
    since: u64,
}

struct Inner<T> {
    waiting: Waiting<T>,
    /// Logs in the last group and in the one before: with two groups that take turns, both count.
    last: BTreeSet<u64>,
    before: BTreeSet<u64>,
    /// End of the last commit.
    ended: u64,
    /// Duration of a commit, in microseconds, smoothed.
    commit_micros: u64,
}

/// Chunks from several masters for one backup. Times are microseconds of any clock that does not go
/// back.
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

    /// Stages a chunk; [`run`](Self::run) returns `tag` when the chunk has reached `level`.
    ///
    /// # Errors
    /// As [`Backup::stage_of`]: the chunk was not accepted, and its tag will not be returned.
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
        // After the staging: a tag that `run` takes was staged before (Y1).
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

    /// When the next commit should begin: `None` if no chunk waits, a time in the past for at once.
    pub fn due(&self) -> Option<u64> {
        let inner = self.inner();
        let waiting = &inner.waiting;
        if waiting.tags.is_empty() {
            return None;
        }
        let missing = inner.last.union(&inner.before);
        if missing.into_iter().all(|log| waiting.logs.contains(log)) {
            return Some(waiting.since); // Y2: no other master is expected
        }
        // A master that was answered by the last commit needs a moment to send again.
        let from = waiting.since.max(inner.ended);
        Some(from + (inner.commit_micros / 2).min(WINDOW_MAX_MICROS))
    }

    /// Commits the waiting chunks. Returns their tags; none if no chunk waits. `clock` gives the
    /// time.
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
            Err(Error::Full { .. }) if has_bug(Bug::FullIsStored) => crate::types::Committed {
                level: group.level,
                ..Default::default()
            },
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
