//! The whole durable store on the simulated disk: random histories, with a power cut or a kill at
//! any operation of the disk, several lives in a row. All promised data are there, no state that
//! was shown reverts, groups are whole.
//!
//! A run takes the same seeds every time; in the full tier it then takes as many fresh ones. A seed
//! that fails is printed with the command that replays it. `DURAMEN_SIM_SEED=n` runs one seed;
//! `DURAMEN_SIM_RUNS=n` runs so many, all fixed.

mod clock;
mod decay;
mod life;
mod model;

use duramen_base::planted::{Bug, found_by, with_bug};
use duramen_base::test_tier;
use duramen_engine::FlipPart;
use life::{Life, Setting};
use std::time::{SystemTime, UNIX_EPOCH};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is a number")),
    )
}

/// The seeds of a test: `quick` fixed ones, or in the full tier `full` ones and as many fresh ones.
fn seeds(quick: u64, full: u64) -> Box<dyn Iterator<Item = u64>> {
    if let Some(seed) = number("DURAMEN_SIM_SEED") {
        return Box::new(std::iter::once(seed));
    }
    if let Some(runs) = number("DURAMEN_SIM_RUNS") {
        return Box::new(0..runs);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let first = since.expect("a clock after 1970").as_millis() as u64 * 1000;
    let fixed = test_tier::runs(quick, full);
    Box::new((0..fixed).chain(first..first + test_tier::runs(0, full)))
}

fn run(test: &str, quick: u64, full: u64, body: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let mut histories = 0;
    for seed in seeds(quick, full) {
        if let Err(panic) = std::panic::catch_unwind(|| body(seed)) {
            eprintln!(
                "replay: DURAMEN_SIM_SEED={seed} cargo test -p duramen-sim --test it store::{test}"
            );
            std::panic::resume_unwind(panic);
        }
        histories += 1;
    }
    println!("{test}: {histories} histories");
}

/// Every operation of a short history is a cut point, by power and by kill.
#[test]
fn scenario_01_02_03_every_cut_point_of_short_histories() {
    run("scenario_01_02_03_every_cut_point", 2, 4, |seed| {
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

/// As the tests below, with few live data and much cleaning.
#[test]
fn scenario_08_random_cuts_of_histories_with_much_cleaning() {
    run("scenario_08_random_cuts", 170, 240, |seed| {
        let mut life = Life::new(&Setting::cleaned(seed), seed);
        for _ in 0..6 {
            life.live_until_cut();
        }
        life.check();
    });
}

/// Longer histories with new segments, cleaning, swaps, snapshots; several lives on one disk.
#[test]
fn scenario_03_08_10_random_cuts_of_long_histories() {
    run("scenario_03_08_10_random_cuts", 20, 120, |seed| {
        let setting = Setting::long(seed);
        let mut life = Life::new(&setting, seed);
        for _ in 0..4 {
            life.live_until_cut();
        }
        life.check();
    });
}

/// A kill in the middle of the creation, then a start that continues it, then a power cut: the
/// names had never been synced.
#[test]
fn history_262_after_a_killed_creation() {
    let mut life = Life::new(&Setting::long(262), 262);
    for _ in 0..4 {
        life.live_until_cut();
    }
    life.check();
}

/// Scenario 20: bits flip on the disk of a whole store. With one replica there is no source for a
/// repair: the store is refused, or the flip was where no data are.
#[test]
fn scenario_20_flipped_bits_are_refused_or_harmless() {
    let refused = std::sync::atomic::AtomicU64::new(0);
    run("scenario_20", 10, 60, |seed| {
        let mut life = Life::new(&Setting::long(seed), seed);
        let times = life.live_and_rot(6);
        refused.fetch_add(times, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(refused.into_inner() > 0, "no flip hit what counts");
}

/// Bits flip in memory, one of an entry at most, amid cleaning, commits, power cuts and kills: each
/// key has its state, at all times. Each read is compared with the model.
#[test]
fn scenario_20_bits_that_flip_in_memory_are_never_seen() {
    let flips = std::sync::atomic::AtomicU64::new(0);
    run("scenario_20_bits_that_flip", 100, 800, |seed| {
        let mut life = Life::new(&Setting::flipped(seed, FlipPart::Any), seed);
        lives(&mut life);
        life.check();
        flips.fetch_add(life.flips, std::sync::atomic::Ordering::Relaxed);
    });
    let flips = flips.into_inner();
    println!("{flips} flipped bits");
    assert!(flips > 50, "{flips}");
}

// Each of these planted bugs must be found by the random histories, or these prove nothing.

#[test]
fn trap_1_replay_of_everything_is_found() {
    find(Bug::ReplayEverything, 104, Setting::cleaned, lives);
}

#[test]
fn trap_2_frames_freed_before_the_swap_are_found() {
    find(Bug::FreeBeforeSwap, 65, Setting::cleaned, lives);
}

#[test]
fn trap_4_hits_that_do_not_wait_are_found() {
    find(Bug::HitsDoNotWait, 56, Setting::hot, lives);
}

#[test]
fn trap_4_misses_that_do_not_wait_are_found() {
    find(Bug::MissesDoNotWait, 146, Setting::hot, lives);
}

#[test]
fn trap_8_damage_that_is_skipped_is_found() {
    find(Bug::DamageIsSkipped, 0, Setting::long, |life| {
        life.live_and_rot(4);
    });
}

#[test]
fn trap_9_a_swap_before_its_frames_is_found() {
    find(Bug::SwapBeforeFrames, 15, Setting::cleaned, lives);
}

#[test]
fn an_answer_before_the_sync_is_found() {
    find(Bug::AnswerBeforeSync, 3, Setting::hot, lives);
}

#[test]
fn an_old_control_head_is_found() {
    find(Bug::OldControlHead, 1, Setting::long, lives);
}

fn lives(life: &mut Life) {
    for _ in 0..4 {
        life.live_until_cut();
    }
}

/// Finds the bug by its recorded seed.
fn find(bug: Bug, seed: u64, setting: fn(u64) -> Setting, history: fn(&mut Life)) {
    found_by(seed, 0..400, |seed| {
        let lived = std::panic::catch_unwind(|| {
            with_bug(bug, || history(&mut Life::new(&setting(seed), seed)));
        });
        lived.err().map(|_| format!("history {seed}"))
    });
    // Without the bug this history passes: so the bug was found, and nothing else.
    history(&mut Life::new(&setting(seed), seed));
}
