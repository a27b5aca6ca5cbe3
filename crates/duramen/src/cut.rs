//! The cut of a snapshot: the state of the log at one moment between two operations.
//!
//! **Invariants**
//! - C1: no thread waits for the disk while the others are kept out of the engine. The appends of
//!   the moment are only collected there, in parts that each fit a commit; commits write them
//!   later.
//! - C2: commits take all collected parts, in order, before newer appends. So the commit of the
//!   last part has all operations before the moment, and none after it: its thread makes the cut.
//! - C3: parts stay until a commit takes them, also if their snapshot is given up.
//!
//! **Concurrency**: `Parts` has a lock of its own, held for an instant. A thread that collects holds
//! it, so a commit in progress cannot take newer appends before the parts.

use crate::Error;
use crate::commit::{Commit, Durable};
use duramen_base::ids::{Level, SegmentId};
use duramen_cluster::control::State;
use duramen_engine::Collected;
use duramen_format::certificate::Certificate;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

/// The state at the moment of a snapshot.
pub(crate) struct Cut {
    pub state: State,
    /// Certificate of each listed segment.
    pub certificates: BTreeMap<SegmentId, Certificate>,
}

/// Appends that a snapshot has collected and no commit has taken yet; with `true` behind the last
/// part of the moment.
#[derive(Default)]
pub(crate) struct Parts(Mutex<VecDeque<(Collected, bool)>>);

impl Parts {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Collected, bool)>> {
        self.0.lock().expect("collected parts")
    }
}

/// The next cut, under the commit's lock.
#[derive(Default)]
pub(crate) enum Next {
    #[default]
    None,
    /// The commit of the last part is in progress, or is retried.
    Due,
    Made(Cut),
}

impl Durable {
    /// Collects the next part of a commit. Returns whether something was left.
    pub fn collect(&self, commit: &mut Commit) -> bool {
        let mut parts = self.parts.lock();
        let Some((part, is_last)) = parts.pop_front() else {
            return self
                .log()
                .collect_part(&mut commit.collected, self.part_bytes_max());
        };
        debug_assert!(commit.collected.is_empty(), "C2");
        commit.collected = part;
        if is_last {
            commit.next_cut = Next::Due;
        }
        true
    }

    /// The collected part is written: makes the cut if it was the last one (C2). Segments of the
    /// cut are not freed until they are unpinned.
    pub fn make_cut(&self, commit: &mut Commit) {
        if !matches!(commit.next_cut, Next::Due) {
            return;
        }
        let state = commit.master.state().clone();
        let open = commit.open_certificates();
        let segments = state.segments.iter();
        let certificates = segments.map(|(id, listed)| {
            let known = listed.closed.or_else(|| open.get(id).copied());
            let known = known.expect("a listed segment is closed, or open and known");
            (*id, known)
        });
        let certificates = certificates.collect();
        commit.master.pin();
        commit.next_cut = Next::Made(Cut {
            state,
            certificates,
        });
    }

    /// Makes a cut of this moment, synced. One thread at a time.
    ///
    /// # Errors
    /// As [`commit_once`](Self::commit_once); the engine has no session.
    pub fn cut(&self) -> Result<Cut, Error> {
        let mut session = self.engine.session()?;
        let alone = session.pin_exclusive();
        self.collect_all(); // C1
        drop(alone);
        let mut commit = self.lock();
        loop {
            let done = self.commit_once(&mut commit, Level::Synced);
            match std::mem::take(&mut commit.next_cut) {
                Next::Made(cut) if done.is_ok() => return Ok(cut),
                Next::Made(_) => commit.master.unpin_all(),
                next => commit.next_cut = next,
            }
            if let Err(error) = done {
                self.give_up_cut(&mut commit);
                return Err(error);
            }
        }
    }

    /// Collects everything that was appended so far.
    fn collect_all(&self) {
        let mut parts = self.parts.lock();
        loop {
            let mut part = Collected::default();
            let is_cut = self.log().collect_part(&mut part, self.part_bytes_max());
            parts.push_back((part, !is_cut));
            if !is_cut {
                return;
            }
        }
    }

    fn give_up_cut(&self, commit: &mut Commit) {
        commit.next_cut = Next::None;
        for (_, is_last) in &mut *self.parts.lock() {
            *is_last = false; // C3
        }
    }
}
