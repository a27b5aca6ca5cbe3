//! Demotion of a segment to flash: a reader that finds its bytes in memory has them until it
//! leaves.

use super::{Arc, Content, check, epochs, thread};
use duramen_engine::parts::{Epochs, SlotId, Warmth};

struct World {
    warmth: Warmth,
    epochs: Epochs,
    slot: SlotId,
    /// The memory of the window: 7 as long as it is there.
    memory: Content,
}

fn demote(leave: impl Fn(&World, u64) -> bool + Copy + Send + Sync + 'static) {
    check(move || {
        let (epochs, slots) = epochs::<1>();
        let world = Arc::new(World {
            warmth: Warmth::default(),
            epochs,
            slot: slots[0],
            memory: Content::new(7),
        });
        let reader = {
            let world = world.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    world.epochs.pin(world.slot);
                    let stamp = world.epochs.stamp_of(world.slot);
                    if world.warmth.is_in_memory(stamp) {
                        assert_eq!(world.memory.read(), 7, "memory that has gone");
                    }
                    world.epochs.unpin(world.slot);
                }
            })
        };
        let stamp = world.warmth.turn_cold(&world.epochs);
        for _ in 0..2 {
            if leave(&world, stamp) {
                world.memory.write(0);
                break;
            }
        }
        reader.join().expect("reader");
    });
}

#[test]
fn memory_stays_for_who_finds_it() {
    demote(|world, stamp| world.warmth.leave(&world.epochs, stamp));
}

/// A stamp is taken before it is shown, so one scan is not enough.
#[cfg(loom)]
#[test]
#[should_panic(expected = "Causality violation")]
fn broken_memory_goes_after_one_look() {
    demote(|world, stamp| world.warmth.leave_at_once(&world.epochs, stamp));
}
