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
//! **Concurrency**: `Parts` has a lock of its own, held for an instant. A thread that collects
//! holds it, so a commit in progress cannot take newer appends before the parts.

use super::commit::{Commit, PART_OF_WAL};
use super::{Durable, Local};
use crate::Error;
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

/// The cut of the snapshot in progress, under the commit's lock.
#[derive(Default)]
pub(crate) enum NextCut {
    #[default]
    None,
    /// The commit of the last part is in progress, or is retried.
    Due,
    Made(Cut),
}

impl Commit {
    /// The collected part is written: makes the cut if it was the last one (C2). Segments of the
    /// cut are not freed until they are unpinned.
    pub fn make_cut(&mut self) {
        if !matches!(self.next_cut, NextCut::Due) {
            return;
        }
        let state = self.master.control().state().clone();
        let open = self.open_certificates();
        let segments = state.segments.iter();
        let certificates = segments.map(|(id, listed)| {
            let known = listed.closed.or_else(|| open.get(id).copied());
            let known = known.expect("a listed segment is closed, or open and known");
            (*id, known)
        });
        let certificates = certificates.collect();
        self.master.pin();
        self.next_cut = NextCut::Made(Cut {
            state,
            certificates,
        });
    }
}

impl Durable {
    /// Collects the next part of a commit. Returns whether something was left.
    pub(super) fn collect(&self, commit: &mut Commit, local: &Local) -> bool {
        let mut parts = local.parts.lock();
        let Some((part, is_last)) = parts.pop_front() else {
            return self.collect_part(&mut commit.collected, local);
        };
        debug_assert!(commit.collected.is_empty(), "C2");
        commit.collected = part;
        if is_last {
            commit.next_cut = NextCut::Due;
        }
        true
    }

    fn collect_part(&self, out: &mut Collected, local: &Local) -> bool {
        let bytes_max = local.backup.flusher().ring_bytes() / PART_OF_WAL;
        self.log().collect_part(out, bytes_max)
    }

    /// Makes a cut of this moment, synced. One thread at a time.
    ///
    /// # Errors
    /// As [`commit_once`](Self::commit_once); the engine has no session.
    pub fn cut(&self, local: &Local) -> Result<Cut, Error> {
        let mut session = self.engine.brief_session()?;
        let alone = session.pin_exclusive();
        self.collect_all(local); // C1
        drop(alone);
        let mut commit = self.lock();
        loop {
            let done = self.commit_once(&mut commit, Level::Synced);
            match std::mem::take(&mut commit.next_cut) {
                NextCut::Made(cut) if done.is_ok() => return Ok(cut),
                NextCut::Made(_) => commit.master.replicas_mut().unpin_all(),
                NextCut::None | NextCut::Due => {}
            }
            if let Err(error) = done {
                for (_, is_last) in &mut *local.parts.lock() {
                    *is_last = false; // C3
                }
                return Err(error);
            }
        }
    }

    /// Collects everything that was appended so far.
    fn collect_all(&self, local: &Local) {
        let mut parts = local.parts.lock();
        loop {
            let mut part = Collected::default();
            let is_cut = self.collect_part(&mut part, local);
            parts.push_back((part, !is_cut));
            if !is_cut {
                return;
            }
        }
    }
}
