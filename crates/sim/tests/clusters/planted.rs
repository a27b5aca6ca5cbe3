//! Bugs that simulated clusters must find, each with the faults that expose it and the first seed
//! that is tried.

use duramen_sim::cluster::planted;
use duramen_sim::cluster::{Plan, run};

/// Seeds that are tried.
const SEEDS: u64 = 30;

fn find(name: &str, first: u64) {
    let mut all = planted::ALL.iter();
    let planted = all.find(|planted| planted.name == name).expect(name);
    let found = (first..first + SEEDS).find_map(|seed| {
        let plan = Plan {
            bug: Some(planted.bug),
            ..Plan::shaped(planted.shape, seed)
        };
        let why = run(plan).violations.into_iter().next()?;
        Some((seed, why))
    });
    let (seed, why) = found.unwrap_or_else(|| panic!("{name} is not found"));
    let why: String = why.chars().take(160).collect();
    println!("| {name} | seed {seed} | {why} |");
    let without = run(Plan::shaped(planted.shape, seed)).violations;
    assert!(
        without.is_empty(),
        "seed {seed} without {name}: {without:?}"
    );
}

#[test]
fn simulated_old_attempt_that_counts_is_found() {
    find("Cluster::OldAttemptCounts", 8);
}

#[test]
fn simulated_removal_that_is_too_early_is_found() {
    find("Cluster::RemovedTooEarly", 1);
}

#[test]
fn simulated_recovery_in_parts_is_found() {
    find("Cluster::RecoversInParts", 3);
}

#[test]
fn simulated_old_control_head_is_found() {
    find("Cluster::OldControlHead", 7);
}

#[test]
fn simulated_completion_that_is_forgotten_is_found() {
    find("Cluster::CompletionForgotten", 40);
}

#[test]
fn simulated_version_that_is_reused_is_found() {
    find("Cluster::VersionReused", 1);
}

#[test]
fn simulated_verdicts_of_who_hears_nobody_are_found() {
    find("Cluster::JudgesAlone", 1);
}

#[test]
fn simulated_own_faults_that_are_deaths_are_found() {
    find("Cluster::OwnFaultIsDeath", 1);
}

#[test]
fn simulated_segment_listed_before_it_is_open_is_found() {
    find("Replication::ListedBeforeOpen", 3);
}

#[test]
fn simulated_data_before_they_are_listed_are_found() {
    find("Replication::DataBeforeListed", 2);
}

#[test]
fn simulated_close_before_it_is_whole_is_found() {
    find("Replication::ClosedBeforeWhole", 4);
}

#[test]
fn simulated_free_before_the_swap_is_found() {
    find("Replication::FreeBeforeSwap", 1);
}

#[test]
fn simulated_epoch_before_all_is_found() {
    find("Replication::EpochBeforeAll", 40);
}

#[test]
fn simulated_epoch_that_stays_is_found() {
    find("Replication::EpochStays", 1);
}

#[test]
fn simulated_control_segment_that_goes_on_is_found() {
    find("Replication::ControlGoesOn", 1);
}

#[test]
fn simulated_repetition_beside_the_first_is_found() {
    find("Rifl::InProgressRunsAgain", 1);
}

#[test]
fn simulated_acknowledged_request_that_runs_again_is_found() {
    find("Rifl::AcknowledgedRunsAgain", 1);
}

#[test]
fn simulated_log_that_is_not_met_is_found() {
    find("Rifl::LogForgotten", 2);
}

#[test]
fn simulated_living_client_that_is_forgotten_is_found() {
    find("Rifl::ForgetsTheLiving", 1);
}

/// Found by the first run that checked a cluster at rest: 200 requests a second about clients that
/// were gone.
#[test]
fn simulated_questions_that_come_ever_sooner_are_found() {
    find("Rifl::AsksEverSooner", 1);
}

#[test]
fn simulated_source_that_serves_on_is_found() {
    find("Node::SourceServesOn", 1);
}

#[test]
fn simulated_unlock_by_any_list_is_found() {
    find("Node::AnyListUnlocks", 5);
}

#[test]
fn simulated_last_message_taken_for_all_is_found() {
    find("Node::LastIsEnough", 91);
}

#[test]
fn simulated_report_before_it_is_durable_is_found() {
    find("Node::ReportedBeforeDurable", 2);
}

#[test]
fn simulated_safe_version_that_stays_is_found() {
    find("Node::SafeVersionStays", 8);
}

#[test]
fn simulated_rounds_that_are_lost_are_found() {
    find("Node::RoundsAreLost", 1);
}

#[test]
fn simulated_view_that_is_not_looked_at_is_found() {
    find("Serve::ViewIsNotLookedAt", 1);
}

#[test]
fn simulated_abandon_after_the_effect_is_found() {
    find("Serve::AbandonAfterEffect", 1);
}

#[test]
fn simulated_answer_before_it_is_durable_is_found() {
    find("Serve::FinishBeforeDurable", 1);
}

#[test]
fn simulated_ids_that_are_given_again_are_found() {
    find("Cluster::IdsReused", 1);
}

#[test]
fn simulated_name_that_is_given_at_once_is_found() {
    find("Cluster::NameAtOnce", 1);
}

#[test]
fn simulated_unread_segments_taken_for_empty_are_found() {
    find("Engine::UnreadIsEmpty", 1);
}

#[test]
fn simulated_commits_without_room_that_count_are_found() {
    find("Backup::FullIsStored", 1);
}

#[test]
fn simulated_suspicions_that_are_verdicts_are_found() {
    find("Cluster::SuspicionIsVerdict", 1);
}

#[test]
fn simulated_expired_objects_that_are_shown_are_found() {
    find("Engine::ExpiredIsShown", 1);
}

#[test]
fn simulated_hits_that_do_not_wait_are_found() {
    find("Engine::HitsDoNotWait", 1);
}

#[test]
fn simulated_misses_that_do_not_wait_are_found() {
    find("Engine::MissesDoNotWait", 2);
}

#[test]
fn simulated_swap_before_its_reasons_is_found() {
    find("Engine::SwapBeforeReasons", 7);
}

#[test]
fn simulated_forgotten_tombstone_is_found() {
    find("Engine::SideForgetsTombstones", 11);
}

#[test]
fn simulated_lower_version_that_wins_is_found() {
    find("Engine::SideLastWins", 2);
}

#[test]
fn simulated_victim_without_a_name_is_found() {
    find("Engine::SideNamesNoVictim", 2);
}

/// Each bug in the list has a test in this file.
#[test]
fn every_bug_has_a_test() {
    let tests = include_str!("planted.rs");
    for planted in planted::ALL {
        assert!(
            tests.contains(&format!("find(\"{}\"", planted.name)),
            "{}",
            planted.name
        );
    }
    assert!(planted::ALL.len() >= 30);
}
