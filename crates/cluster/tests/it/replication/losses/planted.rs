//! Each planted violation of a rule is found, and the same history passes without it: otherwise
//! these tests would prove nothing.

use super::{config, live};
use duramen_base::planted::{Bug, found_by, with_bug};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Finds the bug by its recorded seed.
fn must_be_found(bug: Bug, seed: u64) {
    let fails = |seed: u64| catch_unwind(AssertUnwindSafe(|| live(seed, config()))).is_err();
    found_by(seed, 0..3000, |seed| {
        with_bug(bug, || fails(seed)).then(|| format!("history {seed}"))
    });
    assert!(!fails(seed), "seed {seed} fails without {bug:?}");
}

#[test]
fn o10_a_control_head_that_is_not_noted_is_found() {
    must_be_found(Bug::FloorIgnored, 0);
}

#[test]
fn o11_a_closed_segment_is_not_made_good_for_is_found() {
    must_be_found(Bug::ClosedNotRefilled, 0);
}

#[test]
fn o12_a_replica_dropped_before_its_backup_is_known_is_found() {
    must_be_found(Bug::DroppedUnseen, 530);
}

#[test]
fn a_refused_opening_that_is_not_lost_is_found() {
    must_be_found(Bug::RefusedForgotten, 25);
}

#[test]
fn a_sync_that_began_before_is_found() {
    must_be_found(Bug::SyncCoversAll, 1281);
}

#[test]
fn o8_the_epoch_stays_is_found() {
    must_be_found(Bug::EpochStays, 596);
}

#[test]
fn o7_a_control_segment_goes_on_is_found() {
    must_be_found(Bug::ControlGoesOn, 1);
}
