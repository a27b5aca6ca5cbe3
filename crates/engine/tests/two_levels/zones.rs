//! Cleaning with zones: each survivor comes from one zone, and can be built from the replicas of
//! its victims, whatever was compacted, expired, evicted or crashed before.

use crate::model::{Plan, Went, run};

fn went(plan: impl Fn(u64) -> Plan, seeds: u64) -> Went {
    let mut total = Went::default();
    for seed in 0..seeds {
        let went = run(seed, &plan(seed));
        total.swaps += went.swaps;
        total.built += went.built;
        total.sent += went.sent;
        total.compactions += went.compactions;
        total.evictions += went.evictions;
    }
    total
}

/// Segments that a start has loaded have no known origin, so only histories with few crashes build
/// most survivors.
#[test]
fn survivors_are_what_backups_build_of_their_victims() {
    let plan = |seed| {
        let mut plan = Plan {
            steps: 3_000,
            crashes: [0, 0, 10][seed as usize % 3],
            expiry: seed % 2 == 0,
            ..Plan::new()
        };
        plan.setup.zones = 1 + seed % 4;
        plan
    };
    let total = went(plan, 40);
    println!("{total:?}");
    assert!(total.built > 100 && total.compactions > 100, "{total:?}");
}

#[test]
fn survivors_of_a_cache_are_what_backups_build() {
    let plan = |seed| {
        let mut plan = Plan {
            steps: 3_000,
            keys: 200,
            value_bytes: 1_000_000,
            crashes: seed % 2,
            ..Plan::new()
        };
        plan.setup.mode = duramen_engine::Mode::Cache;
        plan.setup.disk_segments_max = 60;
        plan.setup.zones = 2 + seed;
        plan
    };
    let total = went(plan, 3);
    println!("{total:?}");
    assert!(total.built > 20 && total.evictions > 50, "{total:?}");
}
