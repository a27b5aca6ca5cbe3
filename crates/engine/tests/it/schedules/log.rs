//! Append, roll, close, clean, retire and reuse of windows: the real `Space`, `Tail` and segment
//! table. Each entry takes a window of its own, so that every append rolls.

use super::{Arc, Content, buckets, check, epochs, locked, thread};
use duramen_base::sync::Ordering;
use duramen_engine::Options;
use duramen_engine::parts::bucket::{self, Bucket, Locking, Slot, View};
use duramen_engine::parts::{
    Epochs, Purpose, SEGMENT_HEADER_BYTES, SlotId, Space, State, Tail, Topology,
};

const TAG: u64 = 3;
const WRITER: u16 = 1;
const CLEANER: u16 = 2;
/// Content of another entry in a reused window.
const OTHERS: u64 = 1_000;

struct World {
    memory: Vec<Bucket>,
    space: Space,
    epochs: Epochs,
    slots: [SlotId; 2],
    /// Content of the one entry of each window.
    log: Vec<Content>,
}

impl World {
    fn new() -> Arc<World> {
        let (epochs, slots) = epochs();
        let mut options = Options::new(6 << 20);
        options.huge_pages = false;
        let space = Space::new(&options, &Topology::single(), 0, 0).expect("address space");
        let log = space.segments.iter().map(|_| Content::new(0)).collect();
        Arc::new(World {
            memory: buckets(2),
            space,
            epochs,
            slots,
            log,
        })
    }

    fn view(&self) -> View<'_> {
        View::new(&self.memory)
    }

    fn location_in(&self, window: u32) -> u64 {
        Space::location(self.space.offset_of(window) + SEGMENT_HEADER_BYTES)
    }

    fn open(&self, purpose: Purpose) -> Option<u32> {
        self.space.reap(0, &self.epochs, |_| {});
        self.space.acquire(0, purpose, 0, 0)
    }

    /// Rolls the head and appends an entry; returns its window.
    fn append(&self, tail: &mut Tail, content: u64) -> Option<u32> {
        let window = self.open(Purpose::Head)?;
        tail.roll(&self.space, window);
        tail.take(self.space.segment_bytes() - SEGMENT_HEADER_BYTES);
        self.log[window as usize].write(content);
        tail.record(&self.space);
        Some(window)
    }

    fn publish(&self, window: u32) {
        let location = self.location_in(window);
        match self.view().find(TAG, WRITER, |_| true) {
            Some((place, slot)) => bucket::publish(place, slot.moved_to(location)),
            None => assert!(self.view().insert(TAG, Slot::new(TAG, location))),
        }
    }

    /// Bucket locked, entry appended, slot published, bucket unlocked: as `Guard::update`.
    fn write(&self, tail: &mut Tail, content: u64) -> bool {
        self.epochs.pin(self.slots[0]);
        let home = self.view().home(TAG);
        let written = locked(self.view(), home, WRITER, || {
            let window = self.append(tail, content)?;
            self.publish(window);
            Some(())
        });
        self.epochs.unpin(self.slots[0]);
        written.is_some()
    }

    /// Cleans every closed segment, then uses the windows that became free.
    fn clean(&self) {
        for window in 0..self.space.segments.len() as u32 {
            let segment = &self.space.segments[window as usize];
            if segment.state() == State::Closed && segment.claim() {
                self.epochs.pin(self.slots[1]);
                let done = self.save(window);
                self.epochs.unpin(self.slots[1]);
                if done {
                    self.space.retire(0, window, &self.epochs);
                }
            }
        }
        if let Some(window) = self.open(Purpose::Head) {
            self.log[window as usize].write(OTHERS);
        }
    }

    /// Relocates the entry of a victim if it is alive. False: there was no room for it.
    fn save(&self, window: u32) -> bool {
        let from = self.location_in(window);
        let Some((place, _)) = self.view().find_location(TAG, from) else {
            return true;
        };
        let Some(to) = self.open(Purpose::Survivor) else {
            return false;
        };
        self.log[to as usize].write(self.log[window as usize].read());
        let home = self.view().home(TAG);
        assert_eq!(self.view().try_lock(home, CLEANER), Locking::Taken);
        let slot = Slot(place.load(Ordering::Relaxed));
        if slot.location() == from {
            bucket::publish(place, slot.moved_to(self.location_in(to)));
        }
        self.view().unlock(home);
        true
    }

    fn check(&self, expected: u64) {
        let (_, slot) = self.view().find(TAG, WRITER, |_| true).expect("the key");
        let window = self.space.window_of(slot.location());
        assert!(self.space.segments[window].is_in_log(), "the index dangles");
        assert_eq!(
            self.log[window].read(),
            expected,
            "the index points to another's entry"
        );
    }
}

/// `write` writes twice and returns the content; a cleaner works meanwhile.
fn write_while_cleaning(write: impl Fn(&World, &mut Tail) -> u64 + Copy + Send + Sync + 'static) {
    check(move || {
        let world = World::new();
        let cleaner = {
            let world = world.clone();
            thread::spawn(move || world.clean())
        };
        let expected = write(&world, &mut Tail::default());
        cleaner.join().expect("cleaner");
        world.check(expected);
    });
}

#[test]
fn the_index_never_dangles() {
    write_while_cleaning(|world, tail| {
        assert!(world.write(tail, 1));
        if world.write(tail, 2) { 2 } else { 1 }
    });
}

/// Nibble's put (docs/traps.md, trap 15): the segment is rolled and closed between the append and
/// the index's update.
#[test]
#[should_panic(expected = "the index points to another's entry")]
fn broken_a_segment_closed_before_its_entry_is_published() {
    write_while_cleaning(|world, tail| {
        let window = world.append(tail, 1).expect("an empty store has room");
        tail.close(&world.space);
        locked(world.view(), world.view().home(TAG), WRITER, || {
            world.publish(window)
        });
        1
    });
}
