//! The whole durable store on the simulated disk: random histories, the power cut or the process killed at any operation of the
//! disk, several lives in a row. What was promised is there, nothing that was shown reverts, groups are whole.
//!
//! `DURAMEN_SIM_SEED=n` runs one seed; `DURAMEN_SIM_RUNS=n` runs more of them.

mod life;
mod model;

use duramen::Bug;
use life::{Life, Setting};

/// Runs of a test; more by `DURAMEN_SIM_RUNS`.
fn seeds(runs: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    match number("DURAMEN_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("DURAMEN_SIM_RUNS").unwrap_or(runs),
    }
}

fn run(test: &str, runs: u64, body: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in seeds(runs) {
        if let Err(panic) = std::panic::catch_unwind(|| body(seed)) {
            eprintln!(
                "replay: DURAMEN_SIM_SEED={seed} cargo test -p duramen-sim --test store {test}"
            );
            std::panic::resume_unwind(panic);
        }
    }
}

/// Scenarios 1-3, 8, 10 of 90-traps.md §I: every operation of a short history is a cut point, by power and by kill.
#[test]
fn every_cut_point_of_short_histories() {
    run("every_cut_point", 2, |seed| {
        let setting = Setting::short(seed);
        let operations = Life::count_operations(&setting);
        assert!(operations > 20, "{operations}");
        for operation in 0..operations {
            for fault in life::FAULTS {
                Life::new(&setting, operation ^ seed << 20).live_and_die(operation, fault);
            }
        }
    });
}

/// Longer histories with rolls, cleaning, swaps, snapshots; several lives on one disk.
#[test]
fn random_cuts_of_long_histories() {
    run("random_cuts", 8, |seed| {
        let setting = Setting::long(seed);
        let mut life = Life::new(&setting, seed);
        for _ in 0..4 {
            life.live_until_cut();
        }
        life.check();
    });
}

/// What finds nothing proves nothing: each of these must be found by the random histories.
#[test]
fn planted_bugs_are_found() {
    use duramen_engine::Bug as Engine;
    let hot = [Bug::AnswerBeforeSync, Bug::Engine(Engine::HitsDoNotWait)];
    let long = [Bug::ReplayEverything, Bug::OldControlHead];
    for bug in hot {
        find(bug, Setting::hot);
    }
    for bug in long {
        find(bug, Setting::long);
    }
}

fn find(bug: Bug, setting: fn(u64) -> Setting) {
    let found = (0..100).find(|seed| {
        let lives = std::panic::catch_unwind(|| {
            let mut life = Life::new(&setting(*seed).with(bug), *seed);
            for _ in 0..4 {
                life.live_until_cut();
            }
        });
        lives.is_err()
    });
    println!("{bug:?}: found by history {found:?}");
    assert!(found.is_some(), "{bug:?} was not found");
}
