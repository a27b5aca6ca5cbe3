//! Keeps cleaner threads off the processors of writers.
//!
//! A scheduler may wake a cleaner on a writer's processor while another processor is idle, and run
//! the two there in turns of several milliseconds until its next balancing. The writer then stands
//! still for as long, without need (measured: 9 to 27 ms, once or twice a second). So writers note
//! their processor, once per some kilobytes appended. A cleaner that runs on a noted processor
//! moves to one without a note, if there is one.

use crate::core::Core;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::time::{Duration, Instant};

/// Lifetime of a note: after it, a writer that goes on repeats the note.
const BELIEVED_FOR: Duration = Duration::from_millis(10);

/// One cleaner thread's view of the writers' processors.
pub struct CpuAffinity {
    /// Processors that the thread may use; `None`: the system does not report them, so the thread
    /// is never moved.
    allowed: Option<CpuSet>,
    /// Bytes appended by each head at the last look.
    appended: Vec<u64>,
    looked: Option<Instant>,
    /// Processors of heads that were written to between the last two looks.
    busy: CpuSet,
    /// The thread may only use those processors of `allowed` that are not busy.
    confined: bool,
}

impl CpuAffinity {
    /// To be called on the cleaner's own thread.
    pub fn new(heads: usize) -> CpuAffinity {
        CpuAffinity {
            allowed: sched_getaffinity(None).ok(),
            appended: vec![0; heads],
            looked: None,
            busy: CpuSet::new(),
            confined: false,
        }
    }

    /// Moves the calling cleaner thread if it runs on a writer's processor. Cheap enough for every
    /// step.
    pub fn keep(&mut self, core: &Core) {
        let Some(allowed) = self.allowed else {
            return;
        };
        if self.looked.is_none_or(|at| at.elapsed() >= BELIEVED_FOR) {
            self.looked = Some(Instant::now());
            self.look(core);
            if self.confined {
                // Busy processors may be free by now, and free ones busy.
                self.confined = sched_setaffinity(None, &allowed).is_err();
            }
        }
        if !self.confined && self.busy.is_set(sched_getcpu()) {
            let free = without(&allowed, &self.busy);
            self.confined = free.count() > 0 && sched_setaffinity(None, &free).is_ok();
        }
    }

    fn look(&mut self, core: &Core) {
        self.busy.clear();
        for (head, before) in core.actors.heads().iter().zip(&mut self.appended) {
            let appended = head.counters.appended();
            if std::mem::replace(before, appended) != appended
                && let Some(processor) = head.processor.last()
                && processor < CpuSet::MAX_CPU
            {
                self.busy.set(processor);
            }
        }
    }
}

/// The processors of `allowed` that are not in `busy`.
fn without(allowed: &CpuSet, busy: &CpuSet) -> CpuSet {
    let mut free = *allowed;
    for processor in 0..CpuSet::MAX_CPU {
        if busy.is_set(processor) {
            free.unset(processor);
        }
    }
    free
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Options, Store, TableId};

    #[test]
    fn a_cleaner_leaves_a_writers_processor_and_may_come_back() {
        let Ok(allowed) = sched_getaffinity(None) else {
            return eprintln!("skipped: no affinities here");
        };
        if allowed.count() < 2 {
            return eprintln!("skipped: one processor only");
        }
        let options = Options {
            heads: 1,
            cleaners: 0,
            ..Options::new(64 << 20)
        };
        let store = Store::new(options).unwrap();
        let core = store.core();
        let mut affinity = CpuAffinity::new(1);
        // This thread is writer and cleaner in one, so it finds the writer on its own processor.
        let mut session = store.session().unwrap();
        for key in 0..200u32 {
            let (mut guard, key) = (session.pin(), key.to_le_bytes());
            let hash = guard.hash(&key);
            guard
                .write(TableId::DEFAULT, hash, &key, &[1; 100], None)
                .unwrap();
        }
        core.actors.heads()[0].processor.note();
        let writer = core.actors.heads()[0].processor.last().unwrap();
        affinity.keep(core);
        let now = sched_getaffinity(None).unwrap();
        if affinity.busy.is_set(sched_getcpu()) {
            // It was moved between the note and the look, to a processor where it may stay.
            assert!(affinity.confined);
        }
        if affinity.confined {
            assert!(!now.is_set(writer) && now.count() == allowed.count() - 1);
            assert_ne!(sched_getcpu(), writer);
        }
        // No writer has appended since: after a while the cleaner may use every processor again.
        affinity.looked = None;
        affinity.keep(core);
        assert!(!affinity.confined);
        assert_eq!(sched_getaffinity(None).unwrap().count(), allowed.count());
    }

    #[test]
    fn if_every_processor_has_a_writer_the_cleaner_shares() {
        let mut allowed = CpuSet::new();
        (0..3).for_each(|n| allowed.set(n));
        let mut busy = CpuSet::new();
        busy.set(1);
        assert_eq!(without(&allowed, &busy).count(), 2);
        (0..3).for_each(|n| busy.set(n));
        assert_eq!(without(&allowed, &busy).count(), 0);
    }
}
