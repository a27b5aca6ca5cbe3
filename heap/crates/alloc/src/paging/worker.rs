//! The working memories of threads that serve faults, kept from one fault to the next: a fault
//! handler allocates none.

use crate::batch::Batch;
use crate::pager::PAGE_BYTES;
use crate::pager::lift::Lift;
use duramen_flash::Scratch;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Working memory of a thread that serves a fault.
pub(crate) struct Worker {
    pub scratch: Scratch,
    pub page: Box<[u8; PAGE_BYTES]>,
    /// Copy of a page that changes.
    pub copy: Vec<u8>,
    /// The bytes from here on are zeros.
    pub filled: usize,
    /// Taken while it is in use.
    pub lift: Option<Lift>,
    pub batch: Batch,
}

/// Workers that are kept for later faults. The first ones have a lift, which takes two descriptors
/// of the program; the others evict without one.
const WORKERS_KEPT: usize = 16;
/// Workers that are made at the start.
const WORKERS_READY: usize = 4;

impl Worker {
    fn new(lift: Option<Lift>) -> Worker {
        Worker {
            scratch: Scratch::new(PAGE_BYTES),
            page: Box::new([0; PAGE_BYTES]),
            copy: Vec::new(),
            filled: 0,
            lift,
            batch: Batch::new(),
        }
    }
}

/// Workers that no thread uses at the moment.
pub(crate) struct Workers {
    kept: Mutex<Vec<Worker>>,
    /// Whether the pager can lift pages.
    lifts: bool,
    /// Number of workers that were to have a lift.
    lifted: AtomicUsize,
}

impl Workers {
    pub fn new(lifts: bool) -> Workers {
        let workers = Workers {
            kept: Mutex::default(),
            lifts,
            lifted: AtomicUsize::new(0),
        };
        for _ in 0..WORKERS_READY {
            workers.give_back(Worker::new(workers.new_lift()));
        }
        workers
    }

    pub fn take(&self) -> Worker {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = kept.pop();
        drop(kept);
        worker.unwrap_or_else(|| Worker::new(self.new_lift()))
    }

    fn new_lift(&self) -> Option<Lift> {
        if !self.lifts || self.lifted.fetch_add(1, Ordering::Relaxed) >= WORKERS_KEPT {
            return None;
        }
        Lift::new()
    }

    pub fn give_back(&self, worker: Worker) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if worker.lift.is_some() || kept.len() < WORKERS_KEPT {
            kept.push(worker);
        }
    }
}
