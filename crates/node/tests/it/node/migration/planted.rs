//! Each planted violation of a rule is found.

use super::scenarios::{
    deaf_from_the_lock_on, given_up_at_its_end, over_a_bad_network, removed_before,
    stores_nothing_from_the_lock_on, there_and_recovered, with_an_answer, without_backups,
};
use super::world::World;
use duramen_base::planted::{Bug, found_by, with_bug};

/// Finds the bug by its recorded seed.
fn find(bug: Bug, scenario: fn(u64) -> World, seed: u64) {
    found_by(seed, 1..=400, |seed| {
        with_bug(bug, || scenario(seed))
            .wrong
            .map(|wrong| format!("{wrong:?}"))
    });
    // Without the bug the same seed passes: so the bug was found, and nothing else.
    assert_eq!(scenario(seed).wrong, None, "seed {seed}");
}

#[test]
fn a_source_that_serves_on_is_found() {
    find(Bug::SourceServesOn, there_and_recovered, 1);
}

#[test]
fn a_lock_that_any_list_ends_is_found() {
    find(Bug::AnyListUnlocks, given_up_at_its_end, 22);
}

#[test]
fn a_last_message_that_is_taken_for_all_is_found() {
    find(Bug::LastIsEnough, over_a_bad_network, 1);
}

#[test]
fn a_report_before_it_is_durable_is_found() {
    find(Bug::ReportedBeforeDurable, without_backups, 1);
}

#[test]
fn a_target_that_serves_before_it_is_listed_is_found() {
    find(Bug::ServedBeforeListed, given_up_at_its_end, 1);
}

#[test]
fn versions_that_are_given_again_are_found() {
    find(Bug::SafeVersionStays, removed_before, 1);
}

#[test]
fn records_that_stay_at_the_source_are_found() {
    find(Bug::RecordsStay, with_an_answer, 1);
}

#[test]
fn rounds_that_are_lost_are_found() {
    find(Bug::RoundsAreLost, there_and_recovered, 1);
}

#[test]
fn a_purge_before_the_list_says_so_is_found() {
    find(Bug::PurgedEarly, given_up_at_its_end, 5);
}

#[test]
fn a_lock_that_time_ends_is_found() {
    find(Bug::TimeUnlocks, deaf_from_the_lock_on, 44);
}

#[test]
fn a_report_after_a_refusal_is_found() {
    find(Bug::RefusesAndReports, stores_nothing_from_the_lock_on, 1);
}
