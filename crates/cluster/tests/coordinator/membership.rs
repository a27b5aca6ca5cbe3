//! Who is a member: enlisting, crashing, and being told of it.

use crate::rig::{Rig, enlist};
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{
    CoordinatorAnswer, FromCoordinator, Refusal, ServerChange, ServerListUpdate,
};

#[test]
fn a_member_is_stored_before_it_is_told() {
    let mut rig = Rig::new();
    rig.stores = false;
    assert_eq!(rig.ask(ServerId::NONE, enlist(1, 1, None)), None);
    assert!(rig.asked.is_empty() && rig.answers.is_empty());
    rig.stores = true;
    rig.pass(0);
    let (token, batch) = rig.waiting.pop_front().expect("a batch");
    duramen_cluster::coordinator::store::MetaStore::commit(&mut rig.store, &batch).unwrap();
    rig.handle(duramen_cluster::coordinator::Input::Persisted { token });
    let answers: Vec<_> = rig.answers.values().collect();
    assert!(
        matches!(answers[..], [CoordinatorAnswer::Enlisted(_)]),
        "{answers:?}"
    );
}

#[test]
fn a_replaced_server_crashes_before_its_successor_is_added() {
    let mut rig = Rig::new();
    let [first, _] = rig.enlist_some(2)[..] else {
        panic!();
    };
    rig.be_good();
    let again = match rig.ask(ServerId::NONE, enlist(1, 99, Some(first))) {
        Some(CoordinatorAnswer::Enlisted(enlisted)) => enlisted.server,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (again.slot, again.generation),
        (first.slot, first.generation + 1)
    );
    let steps = rig.asked_where(|a| matches!(a.question, FromCoordinator::Servers(_)));
    let FromCoordinator::Servers(ServerListUpdate::Step { changes, .. }) = &steps[0].question
    else {
        panic!("{steps:?}");
    };
    assert!(
        matches!(&changes[..], [ServerChange::Crashed(old), .., ServerChange::Added(new)]
            if *old == first && new.server == again),
        "{changes:?}"
    );
    // The same request again, as the answer was lost: the same server.
    match rig.ask(ServerId::NONE, enlist(1, 99, Some(first))) {
        Some(CoordinatorAnswer::Enlisted(enlisted)) => assert_eq!(enlisted.server, again),
        other => panic!("{other:?}"),
    }
    // Who is called crashed hears it.
    let suspect = duramen_wire::native::message::ToCoordinator::Suspect {
        server: again,
        list_version: Default::default(),
    };
    let answer = rig.ask(first, suspect);
    assert_eq!(
        answer,
        Some(CoordinatorAnswer::Refused(Refusal::NotUp(first)))
    );
}
