//! The cleaners of a store: threads, and the contexts in which these and helping writers work.

use super::seat::Seat;
use super::{Context, Pacer, Tally};
use crate::Error;
use crate::core::workers::Workers;
use crate::epoch::Epochs;
use duramen_base::sync::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The cleaners of a store.
pub struct Cleaners {
    /// One context per cleaner thread, then those that helping writers share.
    contexts: Box<[Mutex<Context>]>,
    /// The figures of each context, outside of the contexts' locks.
    tallies: Box<[Tally]>,
    /// Contexts before this one belong to cleaner threads.
    threads: usize,
    /// The number of nodes: the contexts of one node are so many places apart.
    nodes: usize,
    /// Figures about the load.
    pub pacer: Pacer,
    bell: Bell,
    /// Number of times that a thread looked for work and found none.
    idle_looks: AtomicU64,
}

/// Wakes the threads.
#[derive(Default)]
struct Bell {
    shutdown: AtomicBool,
    sleeping: AtomicBool,
    lock: std::sync::Mutex<()>,
    bell: Condvar,
}

impl Cleaners {
    /// # Errors
    /// There are too few slots for the contexts.
    pub fn new(workers: &Workers, nodes: usize, epochs: &Epochs) -> Result<Cleaners, Error> {
        let contexts = 0..workers.contexts();
        let context = |n| {
            let seat = Seat::new(n, n % nodes, epochs.register()?);
            Ok(Mutex::new(Context::new(seat)))
        };
        Ok(Cleaners {
            tallies: contexts.clone().map(|_| Tally::default()).collect(),
            contexts: contexts.map(context).collect::<Result<_, Error>>()?,
            threads: workers.cleaners,
            nodes,
            pacer: Pacer::default(),
            bell: Bell::default(),
            idle_looks: AtomicU64::new(0),
        })
    }

    /// The number of cleaner threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The number of contexts.
    pub fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// The contexts that helping writers share.
    pub fn helpers(&self) -> Range<usize> {
        self.threads..self.contexts()
    }

    /// Waits for a context.
    pub fn lock(&self, context: usize) -> MutexGuard<'_, Context> {
        self.contexts[context].lock().expect("cleaning context")
    }

    /// A context, if no other thread works in it.
    pub fn try_lock(&self, context: usize) -> Option<MutexGuard<'_, Context>> {
        self.contexts[context].try_lock().ok()
    }

    /// The figures of a context.
    pub fn tally(&self, context: usize) -> &Tally {
        &self.tallies[context]
    }

    /// The sum of a figure of all contexts.
    pub fn sum(&self, figure: impl Fn(&Tally) -> &AtomicU64) -> u64 {
        let figures = self.tallies.iter().map(figure);
        figures.map(|figure| figure.load(Ordering::Relaxed)).sum()
    }

    /// Victims retired and survivors opened since the start.
    pub fn gain(&self) -> (u64, u64) {
        (
            self.sum(|tally| &tally.segments_cleaned),
            self.sum(|tally| &tally.survivors),
        )
    }

    /// Victims of a node that are chosen and not yet retired.
    pub fn victims(&self, node: usize) -> u64 {
        let tallies = self.tallies.iter().skip(node).step_by(self.nodes);
        tallies
            .map(|tally| tally.victims.load(Ordering::Relaxed))
            .sum()
    }

    /// Wakes the threads. Cheap when they are awake. A wakeup that a race loses delays a cleaner by
    /// one tick of its timer.
    pub fn wake(&self) {
        if self.bell.sleeping.swap(false, Ordering::Relaxed) {
            self.bell.bell.notify_all();
        }
    }

    /// Lets the calling cleaner thread sleep until it is woken, but not longer than `length`.
    pub fn nap(&self, length: Duration) {
        let guard = self.bell.lock.lock().expect("cleaner's bell");
        self.bell.sleeping.store(true, Ordering::Relaxed);
        if !self.are_ending() {
            drop(self.bell.bell.wait_timeout(guard, length));
        }
    }

    /// Lets the threads end.
    pub fn end(&self) {
        self.bell.shutdown.store(true, Ordering::Release);
        self.bell.bell.notify_all();
    }

    /// True if the threads have to end.
    pub fn are_ending(&self) -> bool {
        self.bell.shutdown.load(Ordering::Acquire)
    }

    /// Notes that a cleaner thread found nothing to do.
    pub fn note_idle_look(&self) {
        self.idle_looks.fetch_add(1, Ordering::Release);
    }

    /// Number of times that a thread looked for work and found none.
    pub fn idle_looks(&self) -> u64 {
        self.idle_looks.load(Ordering::Acquire)
    }
}
