//! Clusters under faults, from seeds.

mod planted;
mod silent;

use duramen_base::planted::Bug;
use duramen_sim::cluster::runs::{self, Budget};
use duramen_sim::cluster::{Class, Plan, Profile, ZONES, planted as bugs, run};
use duramen_wire::native::message::ReplicaLayout;

#[test]
fn nothing_goes_wrong_where_nothing_goes_wrong() {
    let budget = Budget::of_tier(20, 20);
    let begun = std::time::Instant::now();
    let summary = runs::profile(budget, 1, Profile::Calm);
    println!(
        "{:?} per run, {} operations",
        begun.elapsed() / summary.runs as u32,
        summary.operations
    );
    assert!(summary.failures.is_empty());
}

/// Seeds that once failed, each for a fault of the code or of the simulator.
const FAILED_BEFORE: [u64; 27] = [
    8, 18, 48, 58, 60, 462, 610, 1247, 1324, 1356, 1441, 1492, 1971, 2483, 2728, 2751, 2790, 2819,
    3789, 4082, 4167, 4588, 503_920, 702_272, 703_491, 704_179, 901_332,
];

/// Every seed that failed stays in each run of the tests.
#[test]
fn seeds_that_failed_before_pass() {
    let threads = Budget::of_tier(1, 1).threads;
    let summary = runs::these(&FAILED_BEFORE, threads, |seed| {
        Plan::of(Profile::Mixed, seed)
    });
    assert!(summary.failures.is_empty());
    assert_eq!(summary.runs, FAILED_BEFORE.len() as u64);
}

/// `DURAMEN_SIM_RUNS` sets the number of runs, `DURAMEN_SIM_FIRST` the first seed.
#[test]
fn everything_survives_everything() {
    let budget = Budget::of_tier(200, 3_000);
    let begun = std::time::Instant::now();
    let summary = runs::many(budget, 1, |seed| Plan::of(Profile::Mixed, seed));
    println!(
        "{:?} per run, {} operations, {} unknown",
        begun.elapsed() / summary.runs as u32,
        summary.operations,
        summary.unknown
    );
    println!("{}", summary.coverage);
    assert!(summary.failures.is_empty());
    assert_eq!(summary.runs, budget.runs);
    if summary.runs >= 1_000 {
        let missing = summary.coverage.missing();
        // Flipped bits have a test of their own.
        assert_eq!(missing, [Class::MemoryFlip, Class::WireFlip], "never fired");
    }
}

fn resettled(seed: u64) -> Plan {
    let plan = Plan::of(Profile::Mixed, seed);
    Plan {
        resettled: true,
        frames: 2 * plan.frames, // disks grow with memory
        ..plan
    }
}

/// Servers restart with more memory or less, with more heads, and without the flash that they had.
/// `DURAMEN_SIM_FIRST` and the others as above; `DURAMEN_SIM_SEED=n` runs one seed.
#[test]
fn restarts_with_other_settings_are_survived() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("DURAMEN_SIM_SEED") {
        let violations = run(resettled(seed)).violations;
        return assert!(violations.is_empty(), "{violations:?}");
    }
    let budget = Budget::of_tier(30, 300);
    let first = number("DURAMEN_SIM_FIRST").unwrap_or(1);
    let summary = runs::many(budget, first, resettled);
    println!("{} runs, {} operations", summary.runs, summary.operations);
    assert!(summary.failures.is_empty());
}

/// All servers were in one rack, or a server died and the living others of some master were all in
/// one rack: every write of that master waited for ever. `DURAMEN_SIM_FIRST` and the others as
/// above.
#[test]
fn racks_that_are_too_few_hold_up_nobody() {
    let few_racks = |seed| Plan {
        racks: 1 + seed as usize % 2,
        layout: match seed % 4 {
            0 | 1 => ReplicaLayout::Copysets { scatter: 2 },
            2 => ZONES,
            _ => ReplicaLayout::Scatter,
        },
        ..Plan::of(Profile::Mixed, seed)
    };
    let budget = Budget::of_tier(20, 200);
    let first = std::env::var("DURAMEN_SIM_FIRST").ok();
    let first = first.and_then(|first| first.parse().ok()).unwrap_or(1);
    let summary = runs::many(budget, first, few_racks);
    println!("{} runs, {} operations", summary.runs, summary.operations);
    assert!(summary.failures.is_empty());
}

/// The coordinators balance while servers crash, drain and join again: nothing is lost, and moves
/// end. `DURAMEN_SIM_FIRST` and the others as above.
#[test]
fn tablets_that_move_by_themselves_lose_nothing_and_come_to_rest() {
    let balanced = |seed| Plan {
        // Pauses grow beyond the time for which nothing may move at the end.
        balance_after_us: Some(400_000),
        room_us: 200_000,
        ..Plan::of(Profile::Mixed, seed)
    };
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("DURAMEN_SIM_SEED") {
        let violations = run(balanced(seed)).violations;
        return assert!(violations.is_empty(), "{violations:?}");
    }
    let budget = Budget::of_tier(20, 200);
    let first = number("DURAMEN_SIM_FIRST").unwrap_or(1);
    let summary = runs::many(budget, first, balanced);
    println!("{} runs, {} operations", summary.runs, summary.operations);
    assert!(summary.failures.is_empty());
}

#[test]
fn simulated_balance_that_swings_is_found() {
    let found = |bug| {
        let plan = Plan {
            balance_after_us: Some(100_000),
            tablets: 1,
            bug,
            ..Plan::calm(5, 4, 2)
        };
        run(plan).violations
    };
    assert_eq!(found(None), [""; 0]);
    let swings = found(Some(Bug::BalanceSwings));
    let is_it = |text: &String| text.contains("without end") || text.contains("uneven");
    assert!(swings.iter().any(is_it), "{swings:?}");
}

/// Backups build survivors from their own replicas, while servers crash and lose power at any
/// moment of it: no acknowledged write is lost, and no removed key comes back. `DURAMEN_SIM_FIRST`
/// and the others as above.
#[test]
fn scenario_37_38_zones_that_clean_lose_nothing_and_bring_nothing_back() {
    let budget = Budget::of_tier(10, 60);
    let summary = runs::many(budget, 1, |seed| Plan::shaped(bugs::Shape::Zones, seed));
    println!("{} runs, {} operations", summary.runs, summary.operations);
    println!("{}", summary.coverage);
    assert!(summary.failures.is_empty());
    assert!(summary.coverage.count(Class::Recipe) > 0);
    if summary.runs >= 30 {
        assert!(summary.coverage.count(Class::RecipeRefused) > 0);
    }
}

/// All servers stop and start again, and nobody adds one: everything is served again.
/// `DURAMEN_SIM_FIRST` and the others as above.
#[test]
fn scenario_25_a_cluster_that_stops_as_a_whole_comes_back() {
    let budget = Budget::of_tier(8, 100);
    let first = std::env::var("DURAMEN_SIM_FIRST").ok();
    let first = first.and_then(|first| first.parse().ok()).unwrap_or(1);
    let shape = bugs::Shape::FullRestart;
    let summary = runs::many(budget, first, |seed| Plan::shaped(shape, seed));
    println!("{} runs, {} operations", summary.runs, summary.operations);
    assert!(summary.failures.is_empty());
}

/// As full as docs/operations.md allows: all servers stop and start again, and nobody adds one.
/// Everything is served again, and what waits for a server that stays away was said before.
/// `DURAMEN_SIM_FIRST` and the others as above; `DURAMEN_SIM_SEED=n` runs one seed.
#[test]
fn a_full_cluster_that_stops_as_a_whole_comes_back() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    if let Some(seed) = number("DURAMEN_SIM_SEED") {
        let violations = run(Plan::full_stop(seed)).violations;
        return assert!(violations.is_empty(), "{violations:?}");
    }
    let budget = Budget::of_tier(4, 16);
    let first = number("DURAMEN_SIM_FIRST").unwrap_or(1);
    let summary = runs::many(budget, first, Plan::full_stop);
    println!(
        "{} runs, {} operations, well after {} ms",
        summary.runs,
        summary.operations,
        summary.slowest_healing_us / 1_000
    );
    assert!(summary.failures.is_empty());
}

/// Servers that handle each message late are alive, one of them or all: none is called crashed.
/// `DURAMEN_SIM_FIRST` and the others as above.
#[test]
fn slow_servers_are_not_dead() {
    let budget = Budget::of_tier(20, 200);
    let summary = runs::many(budget, 1, |seed| Plan::shaped(bugs::Shape::Busy, seed));
    println!("{} runs, {} operations", summary.runs, summary.operations);
    assert!(summary.failures.is_empty());
}

/// Scenario 20: no key is unreadable or wrong, and no member is lost for it.
#[test]
fn scenario_20_bits_that_flip_in_memory_and_on_the_way_change_nothing() {
    let budget = Budget::of_tier(40, 1_000);
    let summary = runs::many(budget, 1, |seed| Plan::shaped(bugs::Shape::Flips, seed));
    println!("{}", summary.coverage);
    assert!(summary.failures.is_empty());
    for class in [Class::MemoryFlip, Class::WireFlip] {
        assert!(summary.coverage.count(class) > 0, "{class:?}");
    }
}

/// A coordinator that is down is first started with an empty store. Members must continue as if it
/// did not answer, whether they have the id of their cluster or not.
#[test]
fn a_coordinator_with_an_empty_store_ends_nobody() {
    let plan = |seed| Plan {
        empty_store: true,
        ..Plan::of(Profile::Mixed, seed)
    };
    let budget = Budget::of_tier(30, 300);
    let summary = runs::many(budget, 1, plan);
    println!("{} runs, {} operations", summary.runs, summary.operations);
    assert!(summary.failures.is_empty());
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 1..4 {
        let one = run(Plan::of(Profile::Mixed, seed));
        let other = run(Plan::of(Profile::Mixed, seed));
        assert_eq!(one.trace, other.trace, "seed {seed}");
    }
}

#[test]
#[ignore = "for one seed: DURAMEN_SIM_SEED"]
fn by_hand_replay() {
    let seed = std::env::var("DURAMEN_SIM_SEED").unwrap().parse().unwrap();
    let outcome = run(Plan::of(Profile::Mixed, seed));
    assert!(
        outcome.violations.is_empty(),
        "{}",
        outcome.violations.join("\n")
    );
}

#[test]
#[ignore = "for whoever tunes the plans: DURAMEN_SIM_BUG, DURAMEN_SIM_RUNS"]
fn by_hand_sweep() {
    let wanted = std::env::var("DURAMEN_SIM_BUG").unwrap_or_default();
    let most = Budget::of_tier(60, 60).runs;
    for (bug, shape) in bugs::ALL {
        let name = format!("{bug:?}");
        if !name.contains(&wanted) {
            continue;
        }
        let begun = std::time::Instant::now();
        let found = (1..=most).find_map(|seed| {
            let plan = Plan {
                bug: Some(*bug),
                ..Plan::shaped(*shape, seed)
            };
            run(plan)
                .violations
                .into_iter()
                .next()
                .map(|why| (seed, why))
        });
        let seconds = begun.elapsed().as_secs_f32();
        match found {
            Some((seed, why)) => {
                let why: String = why.chars().take(130).collect();
                println!("{name:40} seed {seed:3} {seconds:5.1} s {why:?}");
            }
            None => println!("{name:40} NOT FOUND {seconds:5.1} s"),
        }
    }
}

/// The number of seeds of [`everything_survives_everything`] that find a bug.
#[test]
#[ignore = "takes long: DURAMEN_SIM_BUG, DURAMEN_SIM_RUNS"]
fn by_hand_rates() {
    let wanted = std::env::var("DURAMEN_SIM_BUG").unwrap_or_default();
    let runs = Budget::of_tier(100, 100).runs;
    for (bug, _) in bugs::ALL {
        let name = format!("{bug:?}");
        if !name.contains(&wanted) {
            continue;
        }
        let finds = |seed: &u64| {
            let plan = Plan {
                bug: Some(*bug),
                ..Plan::of(Profile::Mixed, *seed)
            };
            !run(plan).violations.is_empty()
        };
        let found = (1..=runs).filter(finds).count();
        println!("{name:40} {found} of {runs}");
    }
}

#[test]
fn what_provokes_bugs_does_no_harm_without_them() {
    for shape in bugs::Shape::ALL {
        let budget = Budget::of_tier(3, 30);
        let summary = runs::many(budget, 1, |seed| Plan::shaped(*shape, seed));
        assert!(summary.failures.is_empty(), "{shape:?}");
    }
}

#[test]
#[ignore = "for one seed of a shape: DURAMEN_SIM_SEED, DURAMEN_SIM_SHAPE, DURAMEN_SIM_BUG"]
fn by_hand_replay_shaped() {
    let of = |name: &str| std::env::var(name).unwrap_or_default();
    let seed = of("DURAMEN_SIM_SEED").parse().unwrap();
    let bug = of("DURAMEN_SIM_BUG");
    let planted = bugs::ALL
        .iter()
        .find(|(known, _)| format!("{known:?}") == bug);
    let shape = bugs::Shape::ALL.iter();
    let shape = shape
        .copied()
        .find(|shape| format!("{shape:?}") == of("DURAMEN_SIM_SHAPE"));
    let plan = Plan {
        bug: planted.map(|(bug, _)| *bug),
        ..Plan::shaped(shape.or(planted.map(|(_, shape)| *shape)).unwrap(), seed)
    };
    let outcome = run(plan);
    assert!(
        outcome.violations.is_empty(),
        "{}",
        outcome.violations.join("\n")
    );
}
