//! Libraries of functions of the cluster: changed one after the other, told to all, kept by the
//! next leader.

use crate::coordinator::rig::Rig;
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{
    CLUSTER_FUNCTIONS_BYTES_MAX, ClusterFunctions, CoordinatorAnswer, FromCoordinator, Refusal,
    ToCoordinator,
};

fn functions(revision: u64, texts: &[&str]) -> ClusterFunctions {
    let texts = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    ClusterFunctions { revision, texts }
}

fn ask(rig: &mut Rig, question: ToCoordinator) -> ClusterFunctions {
    match rig.ask(ServerId::NONE, question) {
        Some(CoordinatorAnswer::Functions(functions)) => (*functions).clone(),
        other => panic!("{other:?}"),
    }
}

fn set(rig: &mut Rig, new: &ClusterFunctions) -> ClusterFunctions {
    ask(rig, ToCoordinator::SetFunctions(new.clone()))
}

/// Answers the pushes of functions; returns who was sent which revision.
fn told(rig: &mut Rig) -> Vec<(ServerId, u64)> {
    rig.told_revisions(|question| match question {
        FromCoordinator::Functions(newest) => Some(newest.revision),
        _ => None,
    })
}

#[test]
fn a_change_counts_only_if_it_was_made_from_the_newest_functions() {
    let mut rig = Rig::new();
    let before = rig.layout();
    assert_eq!(ask(&mut rig, ToCoordinator::Functions), functions(0, &[]));
    let first = functions(1, &["#!lua name=a\n"]);
    assert_eq!(set(&mut rig, &first), first);
    assert_eq!(set(&mut rig, &first), first, "repeated");
    let second = functions(2, &[]);
    assert_eq!(set(&mut rig, &second), second);
    assert_eq!(set(&mut rig, &functions(2, &["x"])), second);
    assert_eq!(set(&mut rig, &functions(4, &["x"])), second, "too new");
    assert!(rig.layout() > before, "an older program refuses it");
    rig.fail_over();
    assert_eq!(ask(&mut rig, ToCoordinator::Functions), second);
    let text = "x".repeat(CLUSTER_FUNCTIONS_BYTES_MAX);
    let question = ToCoordinator::SetFunctions(functions(3, &[&text, "y"]));
    let answer = rig.ask(ServerId::NONE, question);
    let is_refused = matches!(
        answer,
        Some(CoordinatorAnswer::Refused(Refusal::Invalid(_)))
    );
    assert!(is_refused, "{answer:?}");
}

#[test]
fn all_servers_are_told_and_new_ones_too() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    rig.be_good();
    assert_eq!(told(&mut rig), [], "there are none");
    set(&mut rig, &functions(1, &["x"]));
    let mut all: Vec<(ServerId, u64)> = servers.iter().map(|server| (*server, 1)).collect();
    assert_eq!(told(&mut rig), all);
    rig.live(5_000_000);
    assert_eq!(told(&mut rig), [], "they have confirmed them");
    let new = rig.enlist(9, None);
    assert_eq!(told(&mut rig), [(new, 1)]);
    set(&mut rig, &functions(2, &["y"]));
    let lost = rig.asked_where(|call| matches!(call.question, FromCoordinator::Functions(_)));
    assert_eq!(lost.len(), 4);
    set(&mut rig, &functions(3, &["z"]));
    assert_eq!(told(&mut rig), [], "one is in flight");
    rig.live(3_000_000);
    all.push((new, 1));
    all.sort_unstable();
    let newest: Vec<_> = all.iter().map(|(server, _)| (*server, 3)).collect();
    assert_eq!(told(&mut rig), newest);
}
