//! Each planted violation of a rule is found.

use crate::serve::{cold, enumerate, history, once};
use duramen_base::planted::{Bug, with_bug};

fn is_found_by_histories(bug: Bug) {
    let found = (0..400).find_map(|seed| with_bug(bug, || history::run(seed)).err());
    assert!(found.is_some(), "{bug:?} is not noticed");
}

#[test]
fn a_view_that_is_not_looked_at_is_found() {
    is_found_by_histories(Bug::ViewIsNotLookedAt);
}

#[test]
fn a_tenure_that_is_not_looked_at_is_found() {
    is_found_by_histories(Bug::TenureIsNotLookedAt);
}

#[test]
fn what_is_abandoned_after_its_effect_is_found() {
    is_found_by_histories(Bug::AbandonAfterEffect);
}

#[test]
fn failures_that_are_not_recorded_are_found() {
    is_found_by_histories(Bug::FailuresAreNotRecorded);
}

#[test]
fn what_is_finished_before_it_is_durable_is_found() {
    is_found_by_histories(Bug::FinishBeforeDurable);
}

#[test]
fn a_record_apart_from_its_effect_is_found() {
    let found = with_bug(Bug::RecordApart, || once::groups_are_whole(2_000_000));
    assert!(found.is_err(), "a crash between them is possible");
}

#[test]
fn a_cut_that_is_skipped_is_found() {
    let found = (0..60).find_map(|seed| with_bug(Bug::CutIsSkipped, || enumerate::run(seed)).err());
    assert!(found.is_some());
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
