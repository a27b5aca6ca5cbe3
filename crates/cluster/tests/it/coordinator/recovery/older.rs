//! Crashed lives that later ones have followed, which the coordinator's older store does not know
//! (older::A3).

use super::*;
use crate::coordinator::rig::enlist;

const SECOND: u64 = 1_000_000;

/// The life after this one.
fn next_of(server: ServerId) -> ServerId {
    ServerId::new(server.slot, server.generation + 1)
}

/// Another member has replicas of this life.
fn is_told(case: &mut Case, life: ServerId) {
    let logs = vec![life];
    let answer = case.rig.ask(case.left[0], ToCoordinator::AreGone { logs });
    let none = CoordinatorAnswer::Gone { logs: Vec::new() };
    assert_eq!(answer, Some(none));
}

/// The machine comes with a life that this one was.
fn comes_after(case: &mut Case, life: ServerId) {
    let answer = case.rig.ask(ServerId::NONE, enlist(77, 77, Some(life)));
    let is_refused = matches!(
        answer,
        Some(CoordinatorAnswer::Refused(Refusal::Invalid(_)))
    );
    assert!(is_refused, "{answer:?}");
}

/// Whether some master is to recover the dead server's tablets within ten seconds.
fn is_recovered(case: &mut Case) -> bool {
    let shelves = whole(case);
    (0..10).any(|_| {
        case.show(&shelves);
        case.rig.live(SECOND);
        !case.rig.orders().is_empty()
    })
}

/// The recovery waits, the tablets have the owner that they had, and people are told why.
fn waits_for_newest_store(case: &Case, life: ServerId) {
    let why = case.waits_for().unwrap_or_default();
    assert!(why.contains(&format!("never had a server {life}")), "{why}");
    assert_eq!(owner(&case.rig, case.table), case.dead);
}

/// The story: a coordinator was given a copy of its store from before a member's last start. The
/// copy had the member's former life as UP, and called it crashed. Its replicas were still whole,
/// so others served its old values, and clients wrote over them.
#[test]
fn a_former_life_is_not_recovered_with_an_older_store() {
    let ways: [fn(&mut Case, ServerId); 2] = [is_told, comes_after];
    for told in ways {
        let check = || {
            let mut case = case(4);
            let life = next_of(case.dead);
            told(&mut case, life);
            case.rig.crash(case.dead);
            if is_recovered(&mut case) {
                return false;
            }
            waits_for_newest_store(&case, life);
            true
        };
        assert!(check());
        assert!(!with_bug(Bug::FormerLifeServes, check), "not found");
    }
}

/// The coordinator hears of the later life when a master is at it already.
#[test]
fn a_recovery_of_a_former_life_is_given_up() {
    let mut case = crashed(4);
    let shelves = whole(&case);
    case.show(&shelves);
    let first = case.start_one();
    let life = next_of(case.dead);
    is_told(&mut case, life);
    let aborts = case
        .rig
        .asked_where(|asked| matches!(asked.question, FromCoordinator::AbortRecovery { .. }));
    assert!(matches!(&aborts[..], [abort] if abort.to == first.to));
    assert_eq!(case.report(&first, REPLAYED), CoordinatorAnswer::Stale);
    assert!(!is_recovered(&mut case));
    waits_for_newest_store(&case, life);
}

#[test]
fn a_later_life_of_one_server_stops_no_other_recovery() {
    let mut case = case(4);
    let other = next_of(case.left[1]);
    is_told(&mut case, other);
    case.rig.crash(case.dead);
    let shelves = whole(&case);
    assert!(case.recovers(&shelves).is_some());
}
