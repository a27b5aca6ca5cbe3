//! Exclusive entry: a thread that is alone in the store really is, and all threads get in in the
//! end.

use super::{Arc, Content, check, epochs, thread};
use duramen_engine::parts::{Door, SlotId};

struct World {
    door: Door,
    slots: [SlotId; 2],
    /// Read inside; written only by the thread that is alone.
    data: Content,
}

fn share(visit: impl Fn(&World) + Copy + Send + Sync + 'static) {
    check(move || {
        let (epochs, slots) = epochs();
        let world = Arc::new(World {
            door: Door::new(epochs),
            slots,
            data: Content::new(0),
        });
        let visitor = {
            let world = world.clone();
            thread::spawn(move || visit(&world))
        };
        world.door.enter_alone(world.slots[1]);
        world.data.write(1);
        world.data.write(2);
        world.door.leave(world.slots[1]);
        world.door.leave_alone();
        visitor.join().expect("visitor");
    });
}

/// One attempt to enter: a checker is not fair, and would let the exclusive thread and the entering
/// one wait for each other for ever.
fn visit(world: &World, inside: impl Fn(&World)) {
    if world.door.try_enter(world.slots[0], false) {
        inside(world);
        world.door.leave(world.slots[0]);
    }
}

fn look(world: &World) {
    assert_ne!(world.data.read(), 1, "torn: who was alone was seen at work");
}

#[test]
fn nobody_is_inside_with_who_is_alone() {
    share(|world| {
        for _ in 0..2 {
            visit(world, look);
        }
    });
}

/// A fresh stamp by pinning over the old one, as a transaction takes while it waits for memory.
#[test]
fn a_fresh_stamp_keeps_one_inside() {
    share(|world| {
        visit(world, |world| {
            look(world);
            world.door.epochs().pin(world.slots[0]);
            look(world);
        });
    });
}

#[test]
#[cfg_attr(loom, should_panic(expected = "Causality violation"))]
#[cfg_attr(shuttle, should_panic(expected = "torn: "))]
fn broken_a_fresh_stamp_by_way_of_outside() {
    share(|world| {
        visit(world, |world| {
            look(world);
            world.door.leave(world.slots[0]);
            world.door.epochs().pin(world.slots[0]);
            look(world);
        });
    });
}

#[test]
#[cfg_attr(loom, should_panic(expected = "Causality violation"))]
#[cfg_attr(shuttle, should_panic(expected = "torn: "))]
fn broken_a_visitor_that_does_not_ask() {
    share(|world| {
        world.door.epochs().pin(world.slots[0]);
        look(world);
        world.door.leave(world.slots[0]);
    });
}
