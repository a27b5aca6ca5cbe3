//! A participant crashes, at any moment of a migration (docs/traps.md, scenario 34).

use super::scenarios::{is_over, moving};
use super::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Source,
    Target,
    Coordinator,
    /// It receives and sends no messages, and is not told that it was declared crashed.
    CutSource,
}

/// Moments of a migration at which the victim crashes.
const MOMENTS: usize = 14;

/// Returns also whether the migration was still running.
fn crash_after(events: usize, victim: Victim, seed: u64) -> (World, bool) {
    let (mut world, from, to) = moving(seed);
    let (was_over, _) = world.work_for_events(events, is_over);
    match victim {
        Victim::Source => world.kill(from),
        Victim::Target => world.kill(to),
        Victim::Coordinator => world.net.change_leader(),
        Victim::CutSource => {
            let others = (0..4)
                .filter(|n| *n != from)
                .chain([crate::node::net::COORDINATOR]);
            world.net.cut(from, others);
        }
    }
    world.work_until(5_000_000, |_| false);
    world.check();
    (world, !was_over)
}

/// Crashes at some moments, spread over the whole migration.
fn sweep(victim: Victim, seed: u64) {
    let (mut world, ..) = moving(seed);
    let (_, events) = world.work_for_events(usize::MAX, is_over);
    assert!(events > 100, "{victim:?}: {events} events are too few");
    let mut under_way = 0;
    for moment in 0..MOMENTS {
        let after = events * moment / MOMENTS;
        let (world, was_under_way) = crash_after(after, victim, seed);
        world.expect_right(&format!("{victim:?} after {after} events, seed {seed}"));
        under_way += usize::from(was_under_way);
    }
    // Some runs need fewer events than the first one: the store's own threads take their time.
    assert!(under_way >= MOMENTS / 3, "{victim:?}: {under_way} moments");
}

#[test]
fn scenario_34_the_source_crashes_at_any_moment() {
    sweep(Victim::Source, 101);
}

#[test]
fn scenario_34_the_target_crashes_at_any_moment() {
    sweep(Victim::Target, 102);
}

#[test]
fn scenario_34_the_coordinator_crashes_at_any_moment() {
    sweep(Victim::Coordinator, 103);
}

#[test]
#[ignore = "full tier"]
fn a_zombie_source_serves_nothing_old() {
    sweep(Victim::CutSource, 104);
}
