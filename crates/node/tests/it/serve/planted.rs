//! Each planted violation of a rule is found.

use crate::serve::{cold, enumerate, history, once};
use duramen_base::planted::{Bug, found_by, with_bug};

/// Finds the bug by its recorded seed.
fn is_found_by_history(bug: Bug, seed: u64) {
    found_by(seed, 0..400, |seed| {
        let found = with_bug(bug, || history::run(seed)).err();
        found.map(|wrong| format!("{wrong:?}"))
    });
    // Without the bug the same seed passes: so the bug was found, and nothing else.
    assert!(history::run(seed).is_ok(), "seed {seed}");
}

#[test]
fn a_view_that_is_not_looked_at_is_found() {
    is_found_by_history(Bug::ViewIsNotLookedAt, 0);
}

#[test]
fn a_tenure_that_is_not_looked_at_is_found() {
    is_found_by_history(Bug::TenureIsNotLookedAt, 0);
}

#[test]
fn what_is_abandoned_after_its_effect_is_found() {
    is_found_by_history(Bug::AbandonAfterEffect, 0);
}

#[test]
fn failures_that_are_not_recorded_are_found() {
    is_found_by_history(Bug::FailuresAreNotRecorded, 0);
}

#[test]
fn what_is_finished_before_it_is_durable_is_found() {
    is_found_by_history(Bug::FinishBeforeDurable, 0);
}

#[test]
fn a_record_apart_from_its_effect_is_found() {
    let found = with_bug(Bug::RecordApart, || once::groups_are_whole(2_000_000));
    assert!(found.is_err(), "a crash between them is possible");
}

#[test]
fn a_cut_that_is_skipped_is_found() {
    found_by(0, 0..60, |seed| {
        let found = with_bug(Bug::CutIsSkipped, || enumerate::run(seed)).err();
        found.map(|wrong| format!("{wrong:?}"))
    });
}

#[test]
fn what_counts_as_executed_while_it_waits_for_flash_is_found() {
    let found = with_bug(Bug::ColdIsNotAbandoned, cold::each_operation_once);
    assert!(found.is_err(), "it is never executed");
}

#[test]
fn parts_that_are_done_before_the_others_wait_are_found() {
    let found = with_bug(Bug::PartsBeforeTheyWait, cold::parts_once);
    assert!(found.is_err(), "they are done twice");
}
