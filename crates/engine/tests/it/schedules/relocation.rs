//! Read, overwrite, relocation and reclaim of one key in a view that stays.

use super::{Arc, Content, buckets, check, epochs, locked, thread};
use duramen_engine::parts::bucket::{self, Bucket, Locking, Slot, View};
use duramen_engine::parts::{Epochs, SlotId};

const TAG: u64 = 5;
const KEY: u64 = 77;
const GARBAGE: u64 = 0;
const CLEANER: u16 = 9;

/// A log of four places: the key's entry is in the first, a survivor has room in the second, a head
/// in the third.
struct World {
    memory: Vec<Bucket>,
    log: [Content; 4],
    epochs: Epochs,
    slots: [SlotId; 2],
}

impl World {
    fn new() -> Arc<World> {
        let (epochs, slots) = epochs();
        let world = World {
            memory: buckets(2),
            log: [GARBAGE, KEY, GARBAGE, GARBAGE].map(Content::new),
            epochs,
            slots,
        };
        let view = world.view();
        locked(view, view.home(TAG), 1, || {
            assert!(view.insert(TAG, Slot::new(TAG, 1)));
        });
        Arc::new(world)
    }

    fn view(&self) -> View<'_> {
        View::new(&self.memory)
    }

    fn find(&self, me: u16) -> Option<u64> {
        let is_it = |slot: Slot| self.log[slot.location() as usize].read() & 0xff == KEY;
        self.view()
            .find(TAG, me, is_it)
            .map(|(_, slot)| slot.location())
    }

    /// The cleaner's steps for a live entry: copy, lock, look again, publish.
    fn relocate(&self, from: u64, to: u64) {
        let Some((place, _)) = self.view().find_location(TAG, from) else {
            return;
        };
        self.log[to as usize].write(self.log[from as usize].read());
        let home = self.view().home(TAG);
        assert_eq!(self.view().try_lock(home, CLEANER), Locking::Taken);
        let slot = Slot(place.load(duramen_base::sync::Ordering::Relaxed));
        if slot.location() == from {
            bucket::publish(place, slot.moved_to(to));
        }
        self.view().unlock(home);
    }

    /// Uses a place again if no reader can see it any more; the caller has unlinked it.
    fn reclaim(&self, location: u64) {
        let stamp = self.epochs.retire_stamp();
        if self.epochs.quiet_before() > stamp {
            self.log[location as usize].write(GARBAGE);
        }
    }

    fn overwrite(&self, to: u64) {
        let view = self.view();
        locked(view, view.home(TAG), 1, || {
            let (place, slot) = view.find(TAG, 1, |_| true).expect("the key is there");
            self.log[to as usize].write(KEY | 1 << 8);
            bucket::publish(place, slot.moved_to(to));
        });
    }
}

/// One thread reads, one relocates the entry and reclaims its place.
fn read_while(
    read: impl Fn(&World) + Copy + Send + Sync + 'static,
    clean: impl Fn(&World) + Copy + Send + Sync + 'static,
) {
    check(move || {
        let world = World::new();
        let reader = {
            let world = world.clone();
            thread::spawn(move || read(&world))
        };
        clean(&world);
        reader.join().expect("reader");
    });
}

fn pinned_read(world: &World) {
    world.epochs.pin(world.slots[0]);
    assert!(
        world.find(1).is_some(),
        "torn: the key was there all the time"
    );
    world.epochs.unpin(world.slots[0]);
}

fn clean(world: &World) {
    world.relocate(1, 2);
    world.reclaim(1);
}

#[test]
fn readers_see_an_entry_wherever_it_moves() {
    read_while(pinned_read, clean);
}

#[test]
#[cfg_attr(loom, should_panic(expected = "Causality violation"))]
#[cfg_attr(shuttle, should_panic(expected = "torn: "))]
fn broken_a_reader_without_a_pin() {
    read_while(
        |world| {
            assert!(
                world.find(1).is_some(),
                "torn: the key was there all the time"
            )
        },
        clean,
    );
}

/// Nibble's pin (docs/traps.md, trap 14). Shuttle does not model store buffers, so it cannot detect
/// this one.
#[cfg(loom)]
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_a_pin_without_a_barrier() {
    read_while(
        |world| {
            world.epochs.pin_without_fence(world.slots[0]);
            assert!(
                world.find(1).is_some(),
                "torn: the key was there all the time"
            );
            world.epochs.unpin(world.slots[0]);
        },
        clean,
    );
}

#[test]
#[cfg_attr(loom, should_panic(expected = "Causality violation"))]
#[cfg_attr(shuttle, should_panic(expected = "torn: "))]
fn broken_reclaim_that_asks_nobody() {
    read_while(pinned_read, |world| {
        world.relocate(1, 2);
        world.log[1].write(GARBAGE);
    });
}

#[test]
#[cfg_attr(loom, should_panic(expected = "Causality violation"))]
#[cfg_attr(shuttle, should_panic(expected = "torn: "))]
fn broken_a_slot_published_before_its_entry() {
    read_while(pinned_read, |world| {
        let view = world.view();
        locked(view, view.home(TAG), CLEANER, || {
            let (place, slot) = view.find(TAG, CLEANER, |_| true).expect("the key is there");
            bucket::publish(place, slot.moved_to(2));
            world.log[2].write(KEY);
        });
    });
}

/// One thread overwrites, one relocates: the new value must win, and no thread may read reused
/// memory.
fn overwrite_while(clean: impl Fn(&World) + Copy + Send + Sync + 'static) {
    check(move || {
        let world = World::new();
        let cleaner = {
            let world = world.clone();
            thread::spawn(move || {
                world.epochs.pin(world.slots[1]);
                clean(&world);
                world.epochs.unpin(world.slots[1]);
            })
        };
        world.epochs.pin(world.slots[0]);
        world.overwrite(3);
        world.epochs.unpin(world.slots[0]);
        cleaner.join().expect("cleaner");
        assert_eq!(world.find(1), Some(3), "the overwrite was lost");
        assert_eq!(world.log[3].read(), KEY | 1 << 8);
    });
}

#[test]
fn an_overwrite_wins_over_a_relocation() {
    overwrite_while(|world| world.relocate(1, 2));
}

#[test]
#[should_panic(expected = "the overwrite was lost")]
fn broken_a_relocation_without_the_lock() {
    overwrite_while(|world| {
        let Some((place, slot)) = world.view().find_location(TAG, 1) else {
            return;
        };
        world.log[2].write(world.log[1].read());
        bucket::publish(place, slot.moved_to(2));
    });
}
