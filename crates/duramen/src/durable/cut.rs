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

use super::{Common, Local};
use crate::Error;
use duramen_base::ids::{Level, SegmentId};
use duramen_cluster::control::State;
use duramen_cluster::replication::Master;
use duramen_engine::{Collected, Log};
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

    /// Takes the next part, of at most so many bytes, for a commit: a collected one, else newer
    /// appends. Returns whether something was left.
    pub fn collect(
        &self,
        log: &Log,
        bytes_max: u64,
        out: &mut Collected,
        next_cut: &mut NextCut,
    ) -> bool {
        let mut parts = self.lock();
        let Some((part, is_last)) = parts.pop_front() else {
            return log.collect_part(out, bytes_max);
        };
        debug_assert!(out.is_empty(), "C2");
        *out = part;
        if is_last {
            *next_cut = NextCut::Due;
        }
        true
    }

    /// Collects everything that was appended so far.
    fn collect_all(&self, log: &Log, bytes_max: u64) {
        let mut parts = self.lock();
        loop {
            let mut part = Collected::default();
            let is_cut = log.collect_part(&mut part, bytes_max);
            parts.push_back((part, !is_cut));
            if !is_cut {
                return;
            }
        }
    }

    /// Their snapshot is given up (C3).
    fn make_no_cut(&self) {
        for (_, is_last) in &mut *self.lock() {
            *is_last = false;
        }
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

impl NextCut {
    /// A collected part is written: makes the cut if it was the last one (C2). Segments of the cut
    /// are not freed until they are unpinned. `open`: certificates of the segments that heads write
    /// to.
    pub fn make(&mut self, master: &mut Master, open: &BTreeMap<SegmentId, Certificate>) {
        if !matches!(self, NextCut::Due) {
            return;
        }
        let state = master.control().state().clone();
        let segments = state.segments.iter();
        let certificates = segments.map(|(id, listed)| {
            let known = listed.closed.or_else(|| open.get(id).copied());
            let known = known.expect("a listed segment is closed, or open and known");
            (*id, known)
        });
        let certificates = certificates.collect();
        master.pin();
        *self = NextCut::Made(Cut {
            state,
            certificates,
        });
    }
}

impl Local {
    /// Makes a cut of this moment, synced. One thread at a time.
    ///
    /// # Errors
    /// As [`commit`](Self::commit); the engine has no session.
    pub fn cut(&self, common: &Common) -> Result<Cut, Error> {
        let mut session = common.engine.brief_session()?;
        let alone = session.pin_exclusive();
        self.parts.collect_all(common.log(), self.part_bytes()); // C1
        drop(alone);
        let mut commit = common.lock();
        loop {
            let done = self.commit(common, &mut commit, Level::Synced);
            match std::mem::take(&mut commit.next_cut) {
                NextCut::Made(cut) if done.is_ok() => return Ok(cut),
                NextCut::Made(_) => commit.master.replicas_mut().unpin_all(),
                NextCut::None | NextCut::Due => {}
            }
            if let Err(error) = done {
                self.parts.make_no_cut();
                return Err(error);
            }
        }
    }
}
