//! Reclaiming with a thread for each role: one unlinks and retires, another reaps, a third reads.
//!
//! A reaper once took its bound before it locked the list of retired windows, and the bound was
//! "anything" while all threads were outside. Then a reader pinned itself and found a segment, the
//! segment was retired, and the reaper freed it under the reader. The models of that time did not
//! detect it, because one thread both retired and reaped.

use super::{Arc, Content, epochs, exhaust, thread};
use duramen_base::planted::{Bug, plant};
use duramen_base::sync::{AtomicU64, Ordering};
use duramen_engine::Options;
use duramen_engine::parts::{Epochs, Purpose, SlotId, Space, Topology};

const KEY: u64 = 77;
const GARBAGE: u64 = 0;

/// One window is retired and free, another holds the key.
struct World {
    space: Space,
    epochs: Epochs,
    reader: SlotId,
    /// The window that the index points to, plus 1; 0 = none.
    link: AtomicU64,
    content: Content,
}

impl World {
    fn new() -> Arc<World> {
        let (epochs, [reader]) = epochs();
        let mut options = Options::new(8 << 20);
        options.huge_pages = false;
        let space = Space::new(&options, &Topology::single(), 0, 0).expect("address space");
        let window = || {
            let window = space.acquire(0, Purpose::Survivor, 0, 0);
            window.expect("an empty store has room")
        };
        let (dead, live) = (window(), window());
        space.retire(0, dead, &epochs);
        Arc::new(World {
            space,
            epochs,
            reader,
            link: AtomicU64::new(u64::from(live) + 1),
            content: Content::new(KEY),
        })
    }

    fn read(&self) {
        self.epochs.pin(self.reader);
        if self.link.load(Ordering::Acquire) != 0 {
            assert_eq!(self.content.read(), KEY, "reused under a pin");
        }
        self.epochs.unpin(self.reader);
    }

    fn unlink(&self) {
        let window = self.link.swap(0, Ordering::AcqRel) - 1;
        self.space.retire(0, window as u32, &self.epochs);
    }

    fn reap(&self) {
        if self.space.reap(0, &self.epochs, |_| {}) == 2 {
            self.content.write(GARBAGE);
        }
    }
}

fn scenario() {
    let world = World::new();
    let run = |work: fn(&World)| {
        let world = world.clone();
        thread::spawn(move || work(&world))
    };
    let threads = [run(World::read), run(World::reap)];
    world.unlink();
    for thread in threads {
        thread.join().expect("a role");
    }
}

#[test]
fn who_reaps_is_neither_who_retires_nor_who_reads() {
    let schedules = exhaust(scenario);
    assert!(
        schedules > 100,
        "only {schedules} schedules of three threads"
    );
}

#[test]
#[should_panic(expected = "Concurrent read and write")]
fn broken_a_bound_that_nobody_bounds() {
    let _bug = plant(Bug::QuietWithoutBound);
    exhaust(scenario);
}
