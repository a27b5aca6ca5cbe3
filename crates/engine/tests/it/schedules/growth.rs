//! Growth of a partition under readers, writers, cleaners and transactions: the real `Partition`,
//! whose views are switched.

use super::{Arc, check, epochs, thread};
use duramen_base::sync::{Backoff, Ordering};
use duramen_engine::Options;
use duramen_engine::parts::bucket::{self, Locking, Slot};
use duramen_engine::parts::{Arena, Epochs, Partition, Resize, Resources, SlotId, Space, Topology};

const TAG: u64 = 3;
const OTHER: u64 = 1 << 20;

/// A partition of two buckets with one key at location 1.
struct World {
    // Dropped in this order: the arena owns the partition's views.
    partition: Partition,
    arena: Arena,
    space: Space,
    epochs: Epochs,
    slots: [SlotId; 2],
}

impl World {
    fn new() -> Arc<World> {
        let (epochs, slots) = epochs();
        let mut options = Options::new(4 << 20);
        options.huge_pages = false;
        let world = World {
            partition: Partition::new(1),
            arena: Arena::new(0, false, &Topology::single()).expect("a model arena"),
            space: Space::new(&options, &Topology::single(), 0, 0).expect("address space"),
            epochs,
            slots,
        };
        world.insert(TAG, 1);
        Arc::new(world)
    }

    fn resources(&self) -> Resources<'_> {
        Resources {
            arena: &self.arena,
            space: &self.space,
            epochs: &self.epochs,
        }
    }

    fn insert(&self, tag: u64, location: u64) {
        let (view, home, locking) = self
            .partition
            .lock(tag, 1, self.resources())
            .expect("memory");
        assert_eq!(locking, Locking::Taken);
        assert!(self.partition.count_insert(view.len(), false));
        assert!(view.insert(tag, Slot::new(tag, location)));
        view.unlock(home);
    }

    fn find(&self, tag: u64) -> Option<u64> {
        let found = self.partition.view().find(tag, 1, |_| true);
        found.map(|(_, slot)| slot.location())
    }

    /// Doubles the partition and frees the old view when no reader sees it.
    fn grow(&self) {
        self.epochs.pin(self.slots[1]);
        while self.partition.resize(6, 9, self.resources()) == Resize::Busy {
            Backoff::new().wait();
        }
        self.epochs.unpin(self.slots[1]);
        self.arena.reap(self.epochs.quiet_before());
    }
}

/// `work` runs while the partition grows; then `then` examines the result.
fn while_growing(
    work: impl Fn(&World) + Copy + Send + Sync + 'static,
    then: impl Fn(&World) + Copy + Send + Sync + 'static,
) {
    check(move || {
        let world = World::new();
        let worker = {
            let world = world.clone();
            thread::spawn(move || work(&world))
        };
        world.grow();
        worker.join().expect("worker");
        assert_eq!(world.partition.view().len(), 4);
        then(&world);
    });
}

fn pinned(
    work: impl Fn(&World) + Copy + Send + Sync + 'static,
) -> impl Fn(&World) + Copy + Send + Sync {
    move |world: &World| {
        world.epochs.pin(world.slots[0]);
        work(world);
        world.epochs.unpin(world.slots[0]);
    }
}

#[test]
fn a_key_is_found_while_its_partition_grows() {
    while_growing(
        pinned(|world| {
            assert_eq!(
                world.find(TAG),
                Some(1),
                "torn: the key was there all the time"
            )
        }),
        |world| assert_eq!(world.find(TAG), Some(1)),
    );
}

#[test]
#[should_panic(expected = "torn: ")]
fn broken_a_reader_in_a_view_without_a_pin() {
    while_growing(
        |world| {
            assert_eq!(
                world.find(TAG),
                Some(1),
                "torn: the key was there all the time"
            )
        },
        |_| {},
    );
}

#[test]
fn an_insert_during_growth_is_kept() {
    while_growing(pinned(|world| world.insert(OTHER, 2)), |world| {
        assert_eq!((world.find(TAG), world.find(OTHER)), (Some(1), Some(2)))
    });
}

#[test]
#[should_panic(expected = "a key was lost while the view grew")]
fn broken_an_insert_without_the_lock() {
    while_growing(
        pinned(|world| {
            let view = world.partition.view();
            assert!(world.partition.count_insert(view.len(), false));
            assert!(view.insert(OTHER, Slot::new(OTHER, 2)));
        }),
        |world| {
            let found = (world.find(TAG), world.find(OTHER));
            assert_eq!(
                found,
                (Some(1), Some(2)),
                "a key was lost while the view grew"
            );
        },
    );
}

/// The cleaner's steps during a growth: as `Candidate::lock`.
fn relocate(world: &World) {
    loop {
        let view = world.partition.view();
        let (place, _) = view.find_location(TAG, 1).expect("nobody else moves it");
        let home = view.home(TAG);
        match view.try_lock(home, 2) {
            Locking::Moved => world.partition.wait_for_move(view),
            locking => {
                assert_eq!(locking, Locking::Taken);
                let slot = Slot(place.load(Ordering::Relaxed));
                bucket::publish(place, slot.moved_to(7));
                view.unlock(home);
                return;
            }
        }
    }
}

#[test]
fn a_relocation_during_growth_is_kept() {
    while_growing(pinned(relocate), |world| {
        assert_eq!(world.find(TAG), Some(7));
    });
}

#[test]
#[should_panic(expected = "the relocation was lost")]
fn broken_a_relocation_during_growth_without_the_home_lock() {
    while_growing(
        pinned(|world| {
            let (place, slot) = world
                .partition
                .view()
                .find_location(TAG, 1)
                .expect("the key");
            bucket::publish(place, slot.moved_to(7));
        }),
        |world| assert_eq!(world.find(TAG), Some(7), "the relocation was lost"),
    );
}

/// A transaction holds a bucket while another thread wants to grow the partition: the resizer gives
/// way, and both end.
#[test]
fn a_transaction_and_a_resizer_do_not_wait_for_each_other() {
    while_growing(
        pinned(|world| {
            let (view, home, locking) = world
                .partition
                .lock(TAG, 1, world.resources())
                .expect("memory");
            assert_eq!(locking, Locking::Taken);
            view.begin_transaction(home);
            let (place, slot) = view.find(TAG, 1, |_| true).expect("the key");
            bucket::publish(place, slot.moved_to(5));
            view.unlock(home);
        }),
        |world| assert_eq!(world.find(TAG), Some(5)),
    );
}
