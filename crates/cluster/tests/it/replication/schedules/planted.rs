//! Each planted violation of a rule of replication is found, with three replicas: otherwise these
//! tests would prove nothing.

use super::{config, live};
use duramen_base::planted::{Bug, found_by, plant};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Finds the bug by its recorded seed.
fn must_be_found(bug: Bug, seed: u64) {
    let why = found_by(seed, 0..40_000, |seed| {
        let _bug = plant(bug);
        let panic = catch_unwind(AssertUnwindSafe(|| live(seed, config(false)))).err()?;
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Some(text.unwrap_or_default())
    });
    println!("{bug:?}: {why}");
    // Without the bug this schedule passes: so the bug was found, and nothing else.
    live(seed, config(false));
}

#[test]
fn o1_listed_before_it_is_open_is_found() {
    must_be_found(Bug::ListedBeforeOpen, 0);
}

#[test]
fn o2_data_before_it_is_listed_is_found() {
    must_be_found(Bug::DataBeforeListed, 3);
}

#[test]
fn o3_data_before_the_predecessor_is_found() {
    must_be_found(Bug::DataBeforePredecessor, 0);
}

#[test]
fn o4_closed_before_it_is_whole_is_found() {
    must_be_found(Bug::ClosedBeforeWhole, 0);
}

#[test]
fn o5_swap_before_its_survivors_is_found() {
    must_be_found(Bug::SwapBeforeSurvivors, 9);
}

#[test]
fn o6_freed_before_the_swap_is_found() {
    must_be_found(Bug::FreeBeforeSwap, 0);
}

#[test]
fn o7_roll_before_complete_is_found() {
    must_be_found(Bug::RollBeforeComplete, 341);
}

#[test]
fn o7_close_before_the_snapshot_is_found() {
    must_be_found(Bug::CloseBeforeSnapshot, 0);
}

#[test]
fn o7_more_before_the_close_is_found() {
    must_be_found(Bug::MoreBeforeClose, 0);
}

#[test]
fn o7_control_segment_freed_early_is_found() {
    must_be_found(Bug::FreeControlEarly, 0);
}

#[test]
fn o8_old_epochs_count_is_found() {
    must_be_found(Bug::OldEpochCounts, 544);
}

#[test]
fn o8_counts_before_the_epoch_is_found() {
    must_be_found(Bug::CountsBeforeEpoch, 539);
}

#[test]
fn o8_epoch_before_all_of_it_is_found() {
    must_be_found(Bug::EpochBeforeAll, 40);
}

#[test]
fn o8_the_epoch_stays_is_found() {
    must_be_found(Bug::EpochStays, 2);
}

#[test]
fn o8_a_control_segment_goes_on_is_found() {
    must_be_found(Bug::ControlGoesOn, 14);
}

#[test]
fn o9_pinned_is_freed_is_found() {
    must_be_found(Bug::PinnedFreed, 7);
}

/// Found by its scenario: it takes two losses at once, which random histories of three replicas
/// hardly have.
#[test]
fn o12_the_last_replica_is_freed_is_found() {
    let _bug = plant(Bug::LastFreed);
    let run = super::scenarios::the_last_good_replica_is_kept;
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it is found");
    let text = panic
        .downcast_ref::<String>()
        .expect("an assertion's words");
    assert!(text.contains("the last one is freed"), "{text}");
}

#[test]
fn o12_acknowledged_bytes_of_an_open_segment_that_are_freed_are_found() {
    let _bug = plant(Bug::LastOpenFreed);
    let run = super::damage::a_fault_of_the_master_frees_nothing;
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("it is found");
    let text = panic
        .downcast_ref::<String>()
        .expect("an assertion's words");
    assert!(text.contains("frees acknowledged bytes"), "{text}");
}

#[test]
fn o14_what_does_not_fit_counts_is_found() {
    must_be_found(Bug::TooLongIsWritten, 51);
}

#[test]
fn o14_a_snapshot_beside_an_older_one_is_found() {
    must_be_found(Bug::SnapshotCountsBesideOlder, 2829);
}

/// The first 8,000 schedules do not find it: the tail of a segment was lost although the next one
/// had data.
#[test]
fn o3_a_predecessor_without_its_epoch_is_found() {
    must_be_found(Bug::PredecessorMayShrink, 28339);
}
