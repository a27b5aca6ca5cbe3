//! Tablets that drained servers recover, and that move on.

use super::*;
use duramen_wire::native::message::{MigrationDone, MigrationOutcome};

/// A minute in which all moves succeed.
fn live(case: &mut Case) {
    for _ in 0..60 {
        for moving in case.rig.status().migrations {
            let done = ToCoordinator::MigrationDone(MigrationDone {
                migration: moving.migration,
                server: moving.to,
                outcome: MigrationOutcome::Complete {
                    creation: SegmentId(60),
                },
            });
            case.rig.ask(moving.to, done).expect("an answer at once");
        }
        case.rig.live(1_000_000);
    }
}

fn drain_waits_for(case: &Case, server: ServerId) -> Option<String> {
    let shares = case.rig.leader.coordinator.overview().servers;
    let share = shares.into_iter().find(|share| share.server == server);
    share.expect("a member").waits_for
}

/// It owned nothing when it was drained, so it was called drained; then it got the tablet that it
/// was replaying, and kept it.
#[test]
fn what_a_server_recovers_while_it_is_drained_moves_on() {
    let mut case = crashed(4);
    let shelves = whole(&case);
    case.show(&shelves);
    let asked = case.start_one();
    assert_eq!(drain_waits_for(&case, asked.to), None);
    case.rig.admin(Admin::Drain { server: asked.to });
    let why = drain_waits_for(&case, asked.to).expect("it is not drained yet");
    assert!(why.contains("parts: 1"), "{why}");
    case.report(&asked, REPLAYED);
    assert_eq!(owner(&case.rig, case.table), asked.to);
    live(&mut case);
    assert_ne!(owner(&case.rig, case.table), asked.to);
    assert_eq!(drain_waits_for(&case, asked.to), None);
}

/// All masters that are left are drained, so one of them recovers the tablet. Nothing moved it when
/// a server was added.
#[test]
fn what_a_drained_server_had_to_recover_moves_to_a_new_one() {
    let mut case = case(4);
    for server in case.left.clone() {
        case.rig.admin(Admin::Drain { server });
    }
    case.rig.crash(case.dead);
    let shelves = whole(&case);
    case.show(&shelves);
    let asked = case.start_one();
    case.report(&asked, REPLAYED);
    assert_eq!(owner(&case.rig, case.table), asked.to);
    case.rig.live(3_000_000);
    let why = drain_waits_for(&case, asked.to).expect("nobody takes it");
    assert!(why.contains("no other server"), "{why}");
    let new = case.rig.enlist(9, None);
    live(&mut case);
    assert_eq!(owner(&case.rig, case.table), new);
}
