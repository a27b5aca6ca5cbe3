//! Cleaning with zones: each survivor comes from one zone, and can be built from the replicas of
//! its victims, whatever was compacted, expired, evicted or crashed before.

use crate::two_levels::disk::Setup;
use crate::two_levels::model::{Plan, Went, run};
use crate::two_levels::scenarios::{fresh, get, listed, put, remove, seal};
use duramen_base::test_tier;

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
            steps: 2_000,
            crashes: [0, 0, 10][seed as usize % 3],
            expiry: seed % 2 == 0,
            ..Plan::new()
        };
        plan.setup.zones = 1 + seed % 4;
        plan
    };
    let seeds = test_tier::runs(6, 12);
    let total = went(plan, seeds);
    println!("{total:?}");
    let least = 8 * seeds;
    assert!(
        total.built > least && total.compactions > least,
        "{total:?}"
    );
}

#[test]
#[ignore = "full tier"]
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

/// Three objects fill a segment but for a tenth, so by their bytes ten segments fit nine survivors,
/// and in truth none. Such passes end, and begin again only when enough has died to gain something.
#[test]
fn passes_within_zones_that_gain_nothing_end() {
    let setup = Setup {
        heads: 1,
        disk_segments_max: 40,
        zones: 2,
        ..Setup::small()
    };
    let running = fresh(&setup);
    let mut session = running.store.session().unwrap();
    let value = vec![7; duramen_engine::segment_bytes(setup.memory_bytes) as usize * 3 / 10];
    for key in 0..66u8 {
        put(&mut session, &[key], &value).unwrap();
        running.writer(|writer, log| writer.settle(log));
    }
    seal(&running);
    let before = listed(&running);
    let clean = |rounds| {
        for _ in 0..rounds {
            running.store.clean_step(1 << 30);
            running.writer(|writer, log| writer.settle(log));
        }
        running.store.stats().cleaner.passes
    };
    let passes = clean(100);
    assert_eq!(clean(100), passes, "they never end");
    assert!(passes > 0 && passes < 40, "{passes} passes");
    assert_eq!(listed(&running), before);
    for key in 0..33u8 {
        assert!(remove(&mut session, &[key]).unwrap());
    }
    seal(&running);
    clean(100);
    let after = listed(&running);
    assert!(after <= before / 2 + 3, "{before} segments, then {after}");
    for key in 0..66u8 {
        let expected = (key >= 33).then_some(&value[..]);
        assert_eq!(get(&mut session, &[key]).as_deref(), expected);
    }
}
