//! Scenarios of 90-traps.md §I that need several backups, by name.

use super::{World, config, finish, seeds};

/// Survivors are on their way when a backup is lost: open segments go on at a higher epoch, the control log in a new segment.
/// Whenever everybody crashes, the log is complete.
#[test]
fn scenario_12_survivors_are_open_when_the_epochs_grow() {
    let mut on_their_way = 0;
    for seed in seeds() {
        let mut world = World::new(seed, config(false));
        for head in [0, 1, 0, 1] {
            world.append(head);
            world.append(head);
            world.roll_head(head);
        }
        finish(&mut world);
        world.promise();
        world.clean();
        world.append(1);
        for _ in 0..world.dice.roll(8) {
            world.poll();
            world.deliver();
        }
        on_their_way += world.swaps.len();
        let lost = world.dice.roll(world.backups.len());
        world.lose(lost);
        for step in 0..60 {
            if step % 8 == 0 {
                world.append(step % 2);
            }
            world.poll();
            world.deliver();
            world.promise();
            world.check_recovery();
        }
        finish(&mut world);
        world.promise();
        world.check_recovery();
        assert!(world.swaps.is_empty() && world.losses == 1);
    }
    assert!(on_their_way > 50, "{on_their_way}");
}
