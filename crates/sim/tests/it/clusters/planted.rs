//! Bugs that simulated clusters must find, each with the faults that expose it and a seed that
//! finds it.

use duramen_base::planted::{Bug, found_by};
use duramen_sim::cluster::planted;
use duramen_sim::cluster::{Plan, run};

/// Seeds that are tried if the recorded one does not find its bug.
const SEEDS: u64 = 100;

/// Finds the bug by its recorded seed.
fn find(bug: Bug, seed: u64) {
    let mut all = planted::ALL.iter();
    let (_, shape) = *all.find(|(known, _)| *known == bug).expect("it is listed");
    let why = found_by(seed, 1..SEEDS, |seed| {
        let plan = Plan {
            bug: Some(bug),
            ..Plan::shaped(shape, seed)
        };
        run(plan).violations.into_iter().next()
    });
    let why: String = why.chars().take(160).collect();
    println!("| {bug:?} | seed {seed} | {why} |");
    let without = run(Plan::shaped(shape, seed)).violations;
    assert!(
        without.is_empty(),
        "seed {seed} without {bug:?}: {without:?}"
    );
}

#[test]
fn simulated_old_attempt_that_counts_is_found() {
    find(Bug::OldAttemptCounts, 8);
}

#[test]
fn simulated_survivor_that_is_built_and_not_stored_is_found() {
    find(Bug::BuiltNotStored, 1);
}

/// The first write of a transaction over two keys stays in a full segment.
#[test]
fn simulated_group_over_segments_is_found() {
    find(Bug::GroupsOverSegments, 16);
}

#[test]
fn simulated_removal_that_is_too_early_is_found() {
    find(Bug::RemovedTooEarly, 1);
}

#[test]
fn simulated_recovery_in_parts_is_found() {
    find(Bug::RecoversInParts, 6);
}

#[test]
fn simulated_old_control_head_is_found() {
    find(Bug::OldControlHead, 7);
}

#[test]
fn simulated_completion_that_is_forgotten_is_found() {
    find(Bug::CompletionForgotten, 225);
}

#[test]
fn simulated_version_that_is_reused_is_found() {
    find(Bug::VersionReused, 1);
}

#[test]
fn simulated_verdicts_of_who_hears_nobody_are_found() {
    find(Bug::JudgesAlone, 2);
}

#[test]
fn simulated_patience_that_learns_nothing_is_found() {
    find(Bug::PatienceIsFixed, 1);
}

#[test]
fn simulated_segment_listed_before_it_is_open_is_found() {
    find(Bug::ListedBeforeOpen, 2);
}

#[test]
fn simulated_data_before_they_are_listed_are_found() {
    find(Bug::DataBeforeListed, 5);
}

#[test]
fn simulated_close_before_it_is_whole_is_found() {
    find(Bug::ClosedBeforeWhole, 4);
}

#[test]
fn simulated_free_before_the_swap_is_found() {
    find(Bug::FreeBeforeSwap, 5);
}

#[test]
fn simulated_epoch_that_stays_is_found() {
    find(Bug::EpochStays, 104);
}

#[test]
fn simulated_control_segment_that_goes_on_is_found() {
    find(Bug::ControlGoesOn, 1);
}

#[test]
fn simulated_repetition_beside_the_first_is_found() {
    find(Bug::InProgressRunsAgain, 1);
}

#[test]
fn simulated_acknowledged_request_that_runs_again_is_found() {
    find(Bug::AcknowledgedRunsAgain, 1);
}

#[test]
fn simulated_log_that_is_not_met_is_found() {
    find(Bug::LogForgotten, 3);
}

#[test]
fn simulated_living_client_that_is_forgotten_is_found() {
    find(Bug::ForgetsTheLiving, 1);
}

/// Found by the first run that checked a cluster at rest: 200 requests a second about clients that
/// were gone.
#[test]
fn simulated_questions_that_come_ever_sooner_are_found() {
    find(Bug::AsksEverSooner, 4);
}

#[test]
fn simulated_source_that_serves_on_is_found() {
    find(Bug::SourceServesOn, 1);
}

#[test]
fn simulated_unlock_by_any_list_is_found() {
    find(Bug::AnyListUnlocks, 5);
}

#[test]
fn simulated_last_message_taken_for_all_is_found() {
    find(Bug::LastIsEnough, 34);
}

#[test]
fn simulated_report_before_it_is_durable_is_found() {
    find(Bug::ReportedBeforeDurable, 7);
}

#[test]
fn simulated_safe_version_that_stays_is_found() {
    find(Bug::SafeVersionStays, 24);
}

#[test]
fn simulated_rounds_that_are_lost_are_found() {
    find(Bug::RoundsAreLost, 1);
}

#[test]
fn simulated_view_that_is_not_looked_at_is_found() {
    find(Bug::ViewIsNotLookedAt, 1);
}

#[test]
fn simulated_abandon_after_the_effect_is_found() {
    find(Bug::AbandonAfterEffect, 1);
}

#[test]
fn simulated_answer_before_it_is_durable_is_found() {
    find(Bug::FinishBeforeDurable, 1);
}

#[test]
fn simulated_ids_that_are_given_again_are_found() {
    find(Bug::IdsReused, 1);
}

#[test]
fn simulated_name_that_is_given_at_once_is_found() {
    find(Bug::NameAtOnce, 2);
}

#[test]
fn simulated_unread_segments_taken_for_empty_are_found() {
    find(Bug::UnreadIsEmpty, 5);
}

#[test]
fn simulated_suspicions_that_are_verdicts_are_found() {
    find(Bug::SuspicionIsVerdict, 1);
}

#[test]
fn simulated_expired_objects_that_are_shown_are_found() {
    find(Bug::ExpiredIsShown, 2);
}

#[test]
fn simulated_hits_that_do_not_wait_are_found() {
    find(Bug::HitsDoNotWait, 2);
}

#[test]
fn simulated_misses_that_do_not_wait_are_found() {
    find(Bug::MissesDoNotWait, 5);
}

#[test]
fn simulated_swap_before_its_reasons_is_found() {
    find(Bug::SwapBeforeReasons, 3);
}

#[test]
fn simulated_forgotten_tombstone_is_found() {
    find(Bug::SideForgetsTombstones, 1);
}

#[test]
fn simulated_lower_version_that_wins_is_found() {
    find(Bug::SideLastWins, 2);
}

#[test]
fn simulated_victim_without_a_name_is_found() {
    find(Bug::SideNamesNoVictim, 3);
}

/// Each bug in the list has a test in this file.
#[test]
fn every_bug_has_a_test() {
    let tests = include_str!("planted.rs");
    for (bug, _) in planted::ALL {
        assert!(tests.contains(&format!("find(Bug::{bug:?},")), "{bug:?}");
    }
    assert!(planted::ALL.len() >= 30);
}

#[test]
fn simulated_flips_of_reads_that_do_not_verify_are_found() {
    find(Bug::ReadsUnverified, 2);
}

#[test]
fn simulated_flips_that_lose_backups_are_found() {
    find(Bug::DamageLosesBackups, 1);
}
