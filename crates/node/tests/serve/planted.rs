//! Each planted violation of a rule is found.

use crate::{cold, enumerate, history, once};
use duramen_node::serve::Bug;

fn is_found_by_histories(bug: Bug) {
    let found = (0..400).find_map(|seed| history::run(seed, Some(bug)).err());
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
    let found = once::groups_are_whole(2_000_000, Some(Bug::RecordApart));
    assert!(found.is_err(), "a crash between them is possible");
}

#[test]
fn a_cut_that_is_skipped_is_found() {
    let found = (0..60).find_map(|seed| enumerate::run(seed, Some(Bug::CutIsSkipped)).err());
    assert!(found.is_some());
}

#[test]
fn what_counts_as_executed_while_it_waits_for_flash_is_found() {
    let found = cold::each_operation_once(Some(Bug::ColdIsNotAbandoned));
    assert!(found.is_err(), "it is never executed");
}

#[test]
fn parts_that_are_done_before_the_others_wait_are_found() {
    let found = cold::parts_once(Some(Bug::PartsBeforeTheyWait));
    assert!(found.is_err(), "they are done twice");
}
