//! A disk whose commits wait for the test's permission.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use duramen_backup::disk::{Disk, File, Front, Fronted};
use duramen_format::wal::RING_AT;

/// Longest wait for another thread, which is busy at most.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The outcome of a durable write of the write-ahead log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "not every test has all of them")]
pub enum Outcome {
    Done,
    Full,
    Broken,
}

/// The commits that wait for their outcome, in the order of their arrival.
#[derive(Default)]
pub struct Gate {
    writes: Mutex<Writes>,
    changed: Condvar,
}

#[derive(Default)]
struct Writes {
    /// Writes wait.
    is_shut: bool,
    outcomes: Vec<Option<Outcome>>,
    ended: usize,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Writes> {
        self.writes.lock().unwrap()
    }

    pub fn shut(&self) {
        *self.lock() = Writes {
            is_shut: true,
            ..Writes::default()
        };
    }

    pub fn open(&self) {
        self.lock().is_shut = false;
        self.changed.notify_all();
    }

    fn wait_until(&self, what: impl Fn(&Writes) -> bool) {
        let writes = self.lock();
        let waited = self
            .changed
            .wait_timeout_while(writes, PATIENCE, |w| !what(w));
        assert!(!waited.unwrap().1.timed_out(), "the other thread came");
    }

    /// Waits until so many writes have arrived.
    pub fn arrived(&self, count: usize) {
        self.wait_until(|writes| writes.outcomes.len() >= count);
    }

    /// Lets a write end, and waits for it.
    pub fn end(&self, number: usize, outcome: Outcome) {
        let before = self.lock().ended;
        self.lock().outcomes[number] = Some(outcome);
        self.changed.notify_all();
        self.wait_until(|writes| writes.ended > before);
    }
}

struct Gated {
    below: Arc<dyn File>,
    gate: Arc<Gate>,
}

impl Front for Gated {
    fn below(&self) -> &dyn File {
        &*self.below
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        let mut writes = self.gate.lock();
        if at < RING_AT || !writes.is_shut {
            drop(writes);
            return self.below.write_durably(at, bytes);
        }
        let number = writes.outcomes.len();
        writes.outcomes.push(None);
        self.gate.changed.notify_all();
        let gate = &self.gate;
        let outcome = |w: &Writes| {
            if w.is_shut {
                w.outcomes[number]
            } else {
                Some(Outcome::Done)
            }
        };
        let waits = |w: &mut Writes| outcome(w).is_none();
        let (mut writes, waited) = gate
            .changed
            .wait_timeout_while(writes, PATIENCE, waits)
            .unwrap();
        assert!(!waited.timed_out(), "the test lets it end");
        let written = match outcome(&writes) {
            Some(Outcome::Full) => Err(std::io::ErrorKind::StorageFull.into()),
            Some(Outcome::Broken) => Err(std::io::Error::other("broken")),
            _ => self.below.write_durably(at, bytes),
        };
        writes.ended += 1;
        gate.changed.notify_all();
        written
    }

    fn writes_apart(&self, _bytes: usize) -> bool {
        true
    }
}

/// The disk behind a gate, which is open.
pub fn gated(below: Arc<dyn Disk>) -> (Arc<dyn Disk>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let told = gate.clone();
    let disk = Fronted::new(below, move |below| -> Arc<dyn File> {
        let gate = told.clone();
        Arc::new(Gated { below, gate })
    });
    (Arc::new(disk), gate)
}
