//! A rule broken on purpose is found.

use crate::{enumerate, history, once};
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
