//! Mistakes that the random histories must find: a test that cannot fail proves nothing. Traps by
//! their numbers in docs/traps.md, "Logs and disks".

use crate::two_levels::disk::Mistake;
use crate::two_levels::model::{Plan, run};
use crate::two_levels::scenarios::deleted_after_a_pass_that_was_cut_off;
use duramen_base::planted::{Bug, found_by, plant};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the history of the recorded seed, which must fail with these words.
fn must_be_found(plan: &Plan, words: &str, seed: u64) {
    let text = found_by(seed, 1000..1100, |seed| {
        let panic = catch_unwind(AssertUnwindSafe(|| run(seed, plan))).err()?;
        let text = panic.downcast_ref::<String>().map_or("", String::as_str);
        let text = panic.downcast_ref::<&str>().unwrap_or(&text);
        Some((*text).to_owned())
    });
    assert!(text.contains(words), "it ended for another reason: {text}");
}

const LOST_OR_BACK: &str = "after the restart";

/// Several passes wait for the disk at once, so that errors between them show.
fn far_ahead(mut plan: Plan) -> Plan {
    plan.setup.pending_passes_max = 4;
    plan
}

fn writer_that(mistake: Mistake) -> Plan {
    far_ahead(Plan {
        mistake,
        ..Plan::new()
    })
}

fn engine_must_be_found(bug: Bug, words: &str, seed: u64) {
    let _bug = plant(bug);
    must_be_found(&far_ahead(Plan::new()), words, seed);
}

#[test]
fn trap_1_a_replay_of_everything_is_found() {
    let mut plan = writer_that(Mistake::ReplaysAll);
    plan.setup.disk_segments_max = 80; // with this mistake no segment ever leaves
    plan.steps = 500;
    plan.crashes = 20;
    must_be_found(&plan, LOST_OR_BACK, 1002);
}

#[test]
fn trap_2_frames_freed_before_the_swap_are_found() {
    must_be_found(&writer_that(Mistake::FreesEarly), "is gone", 1000);
}

#[test]
fn trap_3_a_swap_before_its_reasons_are_durable_is_found() {
    engine_must_be_found(Bug::SwapBeforeReasons, LOST_OR_BACK, 1000);
}

#[test]
fn trap_9_a_survivor_listed_before_its_frame_is_found() {
    engine_must_be_found(Bug::SwapBeforeFrames, "is gone", 1004);
}

#[test]
fn a_pass_that_is_not_announced_is_found() {
    let shown = deleted_after_a_pass_that_was_cut_off(Mistake::ForgetsPasses);
    assert_eq!(shown.as_deref(), Some(&b"v1"[..]));
}

#[test]
fn dead_objects_without_a_tombstone_are_found() {
    engine_must_be_found(Bug::NotMaterialised, LOST_OR_BACK, 1000);
}

#[test]
fn a_restart_that_forgets_what_has_expired_is_found() {
    let _bug = plant(Bug::ExpiredIsForgotten);
    let mut plan = far_ahead(Plan::new());
    plan.expiry = true;
    must_be_found(&plan, LOST_OR_BACK, 1000);
}

#[test]
fn a_restart_that_takes_every_tombstone_for_spare_is_found() {
    engine_must_be_found(Bug::EveryTombstoneIsSpare, LOST_OR_BACK, 1000);
}
