//! Masters that answer the coordinator, and whose own requests do not arrive (recovery::Y7).

use super::*;
use duramen_base::ids::{ListVersion, TabletsVersion};

const SECOND: u64 = 1_000_000;

/// The orders to give a partition back.
fn aborts(case: &mut Case) -> Vec<PendingCall> {
    let rig = &mut case.rig;
    rig.asked_where(|asked| matches!(asked.question, FromCoordinator::AbortRecovery { .. }))
}

/// A recovery in progress, its master's order, and the other masters.
fn under_way() -> (Case, PendingCall, Vec<ServerId>) {
    let mut case = crashed(4);
    let shelves = whole(&case);
    case.show(&shelves);
    let first = case.start_one();
    let others = case.left.iter().copied();
    let others: Vec<ServerId> = others.filter(|id| *id != first.to).collect();
    assert_eq!(others.len(), 2);
    (case, first, others)
}

/// Its master has not been heard, and is told to give the partition back.
fn taken_back() -> (Case, PendingCall, PendingCall) {
    let (mut case, first, others) = under_way();
    case.rig.live_asking(14 * SECOND, &others);
    assert!(aborts(&mut case).is_empty(), "too early");
    let abort = (0..50).find_map(|_| {
        case.rig.live_asking(SECOND / 10, &others);
        aborts(&mut case).pop()
    });
    let abort = abort.expect("it is told to stop");
    assert_eq!(abort.to, first.to);
    case.rig.orders(); // reminders of the order
    (case, first, abort)
}

fn confirmed() -> ServerAnswer {
    ServerAnswer::Confirmed {
        list_version: ListVersion(1),
        tablets_version: TabletsVersion(0),
    }
}

/// A firewall dropped what a member sent to the coordinator. Each check of it succeeded, so it was
/// given a part of a recovery whose end it could not report: the recovery never ended.
#[test]
fn a_partition_is_taken_back_from_a_master_that_is_not_heard() {
    let check = |reports: bool| {
        let (mut case, first, abort) = taken_back();
        let why = case.waits_for().unwrap_or_default();
        // It is heard again just now: it drops what it has, so its report is too late.
        let late = reports.then(|| case.report(&first, REPLAYED));
        case.rig.reply(&abort, confirmed());
        (case, first, why, late)
    };
    for reports in [false, true] {
        let (mut case, first, why, late) = check(reports);
        assert!(why.contains("give partition 0 back"), "{why}");
        assert!(matches!(late, None | Some(CoordinatorAnswer::Stale)));
        let second = case.start_one();
        assert_ne!(second.to, first.to);
        assert_eq!(order(&second).recovery, order(&first).recovery);
        assert_eq!(case.report(&first, REPLAYED), CoordinatorAnswer::Stale);
        let accepted = case.report(&second, REPLAYED);
        assert!(matches!(accepted, CoordinatorAnswer::Accepted { .. }));
        assert_eq!(owner(&case.rig, case.table), second.to);
    }
    let (_, _, _, late) = with_bug(Bug::TakenBackCounts, || check(true));
    assert_ne!(late, Some(CoordinatorAnswer::Stale), "not found");
}

/// recovery::Y3: as long as it has not confirmed, nobody else gets it. It may end meanwhile.
#[test]
fn nobody_gets_it_before_it_is_given_back() {
    let (mut case, first, _) = taken_back();
    case.rig.live(3 * SECOND);
    assert!(case.rig.orders().is_empty());
    assert!(!aborts(&mut case).is_empty(), "it is told again");
    case.rig.crash(first.to);
    let second = case.start_one();
    assert_ne!(second.to, first.to);
}

/// A master that was not drained and not heard kept drained ones from standing in. So if all heard
/// masters were drained, nothing was recovered.
#[test]
fn who_is_not_heard_gets_nothing_to_recover() {
    for (n, are_drained) in (0..3).flat_map(|n| [(n, false), (n, true)]) {
        let mut case = case(4);
        let mute = case.left[n];
        let mut others = case.left.clone();
        others.retain(|id| *id != mute);
        others.push(case.dead);
        case.rig.live_asking(16 * SECOND, &others);
        others.retain(|id| are_drained && *id != case.dead);
        for server in others {
            case.rig.admin(Admin::Drain { server });
        }
        case.rig.crash(case.dead);
        let shelves = whole(&case);
        case.show(&shelves);
        assert_ne!(case.start_one().to, mute);
    }
}

/// unheard::W1: the fault is the coordinator's own, or a new leader has not heard the members yet.
#[test]
fn if_few_members_are_heard_nobody_is_judged() {
    let (mut case, first, others) = under_way();
    case.rig.live_asking(20 * SECOND, &others[..1]);
    assert!(aborts(&mut case).is_empty());
    case.rig.orders();
    let accepted = case.report(&first, REPLAYED);
    assert!(matches!(accepted, CoordinatorAnswer::Accepted { .. }));
}
