//! Users of the cluster: changed one after the other, told to all, kept by the next leader.

use crate::coordinator::rig::Rig;
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{
    CLUSTER_USERS_BYTES_MAX, ClusterUsers, CoordinatorAnswer, FromCoordinator, Refusal,
    ToCoordinator,
};

fn users(revision: u64, rules: &str) -> ClusterUsers {
    ClusterUsers {
        revision,
        rules: rules.as_bytes().to_vec(),
    }
}

fn set(rig: &mut Rig, new: ClusterUsers) -> ClusterUsers {
    match rig.ask(ServerId::NONE, ToCoordinator::SetUsers(new)) {
        Some(CoordinatorAnswer::Users(users)) => (*users).clone(),
        other => panic!("{other:?}"),
    }
}

fn newest(rig: &mut Rig) -> ClusterUsers {
    match rig.ask(ServerId::NONE, ToCoordinator::Users) {
        Some(CoordinatorAnswer::Users(users)) => (*users).clone(),
        other => panic!("{other:?}"),
    }
}

/// Answers the pushes of users; returns who was sent which revision.
fn told(rig: &mut Rig) -> Vec<(ServerId, u64)> {
    rig.told_revisions(|question| match question {
        FromCoordinator::Users(newest) => Some(newest.revision),
        _ => None,
    })
}

#[test]
fn a_change_counts_only_if_it_was_made_from_the_newest_users() {
    let mut rig = Rig::new();
    assert_eq!(newest(&mut rig), ClusterUsers::default());
    let first = users(1, "user ann on ~* +@all");
    assert_eq!(set(&mut rig, first.clone()), first);
    assert_eq!(set(&mut rig, first.clone()), first, "repeated");
    // Two administrators began with revision 1.
    let second = users(2, "user ann off");
    assert_eq!(set(&mut rig, second.clone()), second);
    assert_eq!(set(&mut rig, users(2, "user bob on")), second);
    assert_eq!(set(&mut rig, users(4, "user bob on")), second, "too new");
    rig.fail_over();
    assert_eq!(newest(&mut rig), second);
}

#[test]
fn all_servers_are_told_and_new_ones_too() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    rig.be_good();
    assert_eq!(told(&mut rig), [], "each has its own users");
    set(&mut rig, users(1, "user ann on"));
    let all: Vec<(ServerId, u64)> = servers.iter().map(|server| (*server, 1)).collect();
    assert_eq!(told(&mut rig), all);
    rig.live(5_000_000);
    assert_eq!(told(&mut rig), [], "they have confirmed them");
    let new = rig.enlist(9, None);
    assert_eq!(told(&mut rig), [(new, 1)]);
    rig.fail_over();
    rig.store_all();
    let mut all = all;
    all.push((new, 1));
    all.sort_unstable();
    assert_eq!(
        told(&mut rig),
        all,
        "the new leader does not know who has them"
    );
}

#[test]
fn a_server_that_does_not_answer_is_told_again_and_then_the_newest() {
    let mut rig = Rig::new();
    let server = rig.enlist(1, None);
    rig.be_good();
    set(&mut rig, users(1, "user ann on"));
    let lost = rig.asked_where(|call| matches!(call.question, FromCoordinator::Users(_)));
    assert_eq!(lost.len(), 1);
    set(&mut rig, users(2, "user ann off"));
    assert_eq!(told(&mut rig), [], "one is in flight");
    rig.live(3_000_000);
    assert_eq!(told(&mut rig), [(server, 2)]);
}

#[test]
fn too_many_users_are_refused() {
    let mut rig = Rig::new();
    let rules = vec![b'x'; CLUSTER_USERS_BYTES_MAX + 1];
    let question = ToCoordinator::SetUsers(ClusterUsers { revision: 1, rules });
    let answer = rig.ask(ServerId::NONE, question);
    assert!(
        matches!(
            answer,
            Some(CoordinatorAnswer::Refused(Refusal::Invalid(_)))
        ),
        "{answer:?}"
    );
    assert_eq!(newest(&mut rig), ClusterUsers::default());
}

#[test]
fn a_store_without_users_keeps_its_layout() {
    let mut rig = Rig::new();
    assert_eq!(rig.layout(), 2);
    set(&mut rig, users(1, "user ann on"));
    assert_eq!(rig.layout(), 3);
}
