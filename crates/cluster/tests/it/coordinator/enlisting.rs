//! Enlisting of members: strangers, copies, and lives that are over.

use crate::coordinator::membership::{pings_to, status_of};
use crate::coordinator::rig::{Rig, enlist};
use duramen_base::ids::ServerId;
use duramen_base::planted::{Bug, with_bug};
use duramen_cluster::coordinator::{Input, Sign};
use duramen_wire::native::message::{
    Admin, AdminAnswer, CoordinatorAnswer, Enlist, Refusal, ServerAnswer, ServerStatus,
    ToCoordinator, Wait,
};

fn refused_enlist(rig: &mut Rig, change: impl FnOnce(&mut Enlist)) -> Refusal {
    let ToCoordinator::Enlist(mut request) = enlist(50, 50, None) else {
        panic!();
    };
    change(&mut request);
    match rig.ask(ServerId::NONE, ToCoordinator::Enlist(request)) {
        Some(CoordinatorAnswer::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

/// Repeats the request as the answer says, among living servers.
fn refused_in_the_end(rig: &mut Rig, change: impl Fn(&mut Enlist)) -> Refusal {
    for _ in 0..20 {
        match refused_enlist(rig, &change) {
            Refusal::NotReady { after_ms, .. } => rig.live(u64::from(after_ms) * 1000),
            refusal => return refusal,
        }
    }
    panic!("asked to come again for ever");
}

#[test]
fn strangers_are_refused_clearly() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(2);
    let cluster = refused_enlist(&mut rig, |e| e.cluster = "other".to_owned());
    assert!(matches!(cluster, Refusal::WrongCluster { .. }));
    let text = |refusal: Refusal| refusal.to_string();
    let segments = refused_enlist(&mut rig, |e| e.segment_bytes = 1 << 21);
    assert!(text(segments).contains("131072 bytes in this cluster, 2097152"));
    let foreign = refused_enlist(&mut rig, |e| e.replaces = Some(ServerId::new(7, 3)));
    assert!(text(foreign).contains("never had a server 7.3"));
    let newer = refused_enlist(&mut rig, |e| e.replaces = Some(ServerId::new(0, 9)));
    assert!(text(newer).contains("never had a server 0.9"));
    let disk = refused_enlist(&mut rig, |e| e.replaces = Some(servers[0]));
    assert!(text(disk).contains("another disk"));
    let nothing = refused_enlist(&mut rig, |e| {
        e.roles.master = false;
        e.roles.backup = false;
    });
    assert!(text(nothing).contains("master"));
    // A copied disk: the other server is asked whether it lives.
    let copy = refused_enlist(&mut rig, |e| e.disk = 1);
    assert!(matches!(copy, Refusal::NotReady { .. }), "{copy}");
    let copy = refused_in_the_end(&mut rig, |e| e.disk = 1);
    assert!(text(copy).contains("one is a copy of the other"));
    let other = rig.reopen_as("other").expect("refused");
    assert!(other.to_string().contains("cluster `test`, not `other`"));
}

/// A copied directory has the id of the life that continues: that life is not ended because of it.
#[test]
fn a_copy_does_not_take_the_place_of_who_lives() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(2);
    let old = servers[0];
    let copy = |e: &mut Enlist| {
        e.disk = 1;
        e.replaces = Some(old);
    };
    let first = refused_enlist(&mut rig, copy);
    assert!(matches!(first, Refusal::NotReady { .. }), "{first}");
    let again = refused_in_the_end(&mut rig, copy);
    assert!(again.to_string().contains("server 0.1 is alive"), "{again}");
    assert_eq!(status_of(&rig, old), Some(ServerStatus::Up));
    // Later it ends, which that check does not show, and its directory is used at another address.
    rig.live(500_000);
    let ToCoordinator::Enlist(mut request) = enlist(50, 51, Some(old)) else {
        panic!();
    };
    request.disk = 1;
    let question = ToCoordinator::Enlist(request);
    let first = rig.ask(ServerId::NONE, question.clone());
    let waits = matches!(
        &first,
        Some(CoordinatorAnswer::Refused(Refusal::NotReady { .. }))
    );
    assert!(waits, "{first:?}");
    rig.pass(300_000); // the check is not answered
    let next = rig.ask(ServerId::NONE, question);
    assert!(
        matches!(next, Some(CoordinatorAnswer::Enlisted(_))),
        "{next:?}"
    );
    // No other process is at its own address.
    let here = ToCoordinator::Enlist(Enlist {
        nonce: 52,
        ..match enlist(2, 2, Some(servers[1])) {
            ToCoordinator::Enlist(request) => request,
            _ => panic!(),
        }
    });
    let next = rig.ask(ServerId::NONE, here);
    assert!(
        matches!(next, Some(CoordinatorAnswer::Enlisted(_))),
        "{next:?}"
    );
}

/// Each of two copies that asked in turn restarted the other's doubt: both waited for as long as
/// both ran.
#[test]
fn many_copies_of_who_lives_are_each_refused_in_the_end() {
    for copies in [2, 16, 40] {
        let mut rig = Rig::new();
        let old = rig.enlist_some(2)[0];
        let mut waiting: Vec<u64> = (100..100 + copies).collect();
        for _ in 0..60 {
            waiting.retain(|nonce| {
                let refusal = refused_enlist(&mut rig, |e| {
                    e.nonce = *nonce;
                    e.disk = 1;
                    e.replaces = Some(old);
                });
                matches!(refusal, Refusal::NotReady { .. })
            });
            rig.live(300_000);
        }
        assert!(waiting.is_empty(), "{waiting:?} of {copies}");
        assert_eq!(status_of(&rig, old), Some(ServerStatus::Up));
    }
}

/// Members came back at each other's addresses and were refused for good, as copies of each other.
/// An answer that a server gave before it ended arrives after its next life has asked: it is no
/// proof. Nor is a server alive if the process that is now at its address claims that it is over.
#[test]
fn an_answer_from_before_the_end_is_no_proof_of_life() {
    let mut rig = Rig::new();
    let old = rig.enlist_some(2)[0];
    let moved = |e: &mut Enlist| {
        e.disk = 1;
        e.replaces = Some(old);
    };
    let first = refused_enlist(&mut rig, moved);
    assert!(matches!(first, Refusal::NotReady { .. }), "{first}");
    rig.be_good(); // the answer in flight
    let again = refused_enlist(&mut rig, moved);
    assert!(matches!(again, Refusal::NotReady { .. }), "{again}");
    for _ in 0..2 {
        for asked in pings_to(&mut rig, old) {
            rig.reply(&asked, ServerAnswer::Refused(Refusal::NotUp(old)));
        }
        rig.pass(70_000);
    }
    assert_ne!(status_of(&rig, old), Some(ServerStatus::Up));
    let ToCoordinator::Enlist(mut request) = enlist(50, 50, Some(old)) else {
        panic!();
    };
    request.disk = 1;
    let next = rig.ask(ServerId::NONE, ToCoordinator::Enlist(request));
    let is_in = matches!(next, Some(CoordinatorAnswer::Enlisted(_)));
    assert!(is_in, "{next:?}");
}

#[test]
fn a_second_disk_of_the_dead_is_welcome_once_that_is_known() {
    let mut rig = Rig::new();
    rig.enlist_some(1);
    let again = refused_enlist(&mut rig, |e| e.disk = 1); // at another address
    assert!(matches!(again, Refusal::NotReady { .. }));
    rig.pass(300_000); // the check is not answered
    let ToCoordinator::Enlist(mut request) = enlist(50, 51, None) else {
        panic!();
    };
    request.disk = 1;
    let answer = rig.ask(ServerId::NONE, ToCoordinator::Enlist(request));
    assert!(matches!(answer, Some(CoordinatorAnswer::Enlisted(_))));
}

/// A whole cluster came back with other addresses, and there was no route to the old ones: no
/// server answered, so the leader could not judge, and no member was let in.
#[test]
fn servers_that_all_have_moved_replace_lives_that_cannot_be_reached() {
    let mut rig = Rig::new();
    let old = rig.enlist_some(3);
    let refused = refused_enlist(&mut rig, |e| {
        e.disk = 1;
        e.replaces = Some(old[0]);
    });
    assert!(matches!(refused, Refusal::NotReady { .. }), "{refused}");
    rig.pass_without(4_000_000, &old, Some(Sign::Unknown));
    assert_ne!(status_of(&rig, old[0]), Some(ServerStatus::Up));
    for other in &old[1..] {
        let status = status_of(&rig, *other);
        assert_eq!(status, Some(ServerStatus::Up), "no server claims its disk");
    }
}

/// A process ends after it was made a member, and before it had stored its id: the next one at its
/// address, with its disk, can't name it, and answers the check of that life.
#[test]
fn a_life_that_never_knew_its_id_is_replaced_by_the_next() {
    let mut rig = Rig::new();
    let first = rig.enlist(1, None);
    rig.live(100_000);
    let second = rig.enlist_as(1, 51, None);
    assert!(first != second);
    assert_ne!(status_of(&rig, first), Some(ServerStatus::Up));
    assert_eq!(status_of(&rig, second), Some(ServerStatus::Up));
}

#[test]
fn the_same_request_is_the_same_server() {
    let twice = || {
        let mut rig = Rig::new();
        let first = rig.enlist(1, None);
        rig.fail_over(); // the answer was lost, and the leader
        let second = match rig.ask(ServerId::NONE, enlist(1, 1, None)) {
            Some(CoordinatorAnswer::Enlisted(enlisted)) => Some(enlisted.server),
            _ => None,
        };
        second == Some(first)
    };
    assert!(twice());
    assert!(!with_bug(Bug::EnlistsTwice, twice), "not found");
}

fn is_unreached(answer: Option<&CoordinatorAnswer>) -> bool {
    let Some(CoordinatorAnswer::Refused(Refusal::NotReady { reason, .. })) = answer else {
        return false;
    };
    reason.contains("cannot reach this member at the address that it announces, server-9:1")
}

#[test]
fn a_server_that_is_not_reached_is_no_member() {
    let mut rig = Rig::new();
    rig.enlist_some(3);
    rig.create_table("a", 3);
    rig.be_good();
    let before = rig.status();
    let before_all = before.list_version;
    for sign in [
        Some(Sign::Unknown),
        Some(Sign::Dead),
        Some(Sign::Denied),
        None,
    ] {
        let first = rig.begin(ServerId::NONE, enlist(9, 9, None));
        let again = rig.begin(ServerId::NONE, enlist(9, 9, None)); // delivered twice
        let pings = rig.pings_of(9);
        assert_eq!(pings.len(), 1, "one ping for both");
        assert_eq!(pings[0].address, "server-9:1");
        assert_eq!(rig.answers.get(&first), None);
        match sign {
            Some(sign) => rig.sign(&pings[0], sign),
            None => rig.live(500_000),
        }
        for reply in [first, again] {
            let answer = rig.answers.get(&reply);
            assert!(is_unreached(answer), "{sign:?}: {answer:?}");
        }
        rig.pong(&pings[0]); // too late
        let now = rig.status();
        assert_eq!(now.list_version, before_all, "the list is as before");
        assert_eq!(now.servers.len(), 3);
    }
    // When it is reached, it is a member.
    let id = rig.enlist(9, None);
    assert!(rig.status().servers.iter().any(|s| s.server == id));
}

#[test]
fn a_caller_whose_claim_has_become_wrong_is_refused_when_it_is_reached() {
    let mut rig = Rig::new();
    rig.enlist_some(2);
    let old = rig.enlist(5, None);
    rig.crash(old);
    let one = rig.begin(ServerId::NONE, enlist(5, 50, Some(old)));
    let other = rig.begin(ServerId::NONE, enlist(5, 51, Some(old)));
    let (ping, late) = (rig.pings_of(50), rig.pings_of(51));
    assert_eq!(ping[0].to, ServerId::new(old.slot, old.generation + 1));
    rig.pong(&ping[0]);
    let Some(CoordinatorAnswer::Enlisted(enlisted)) = rig.answers.get(&one) else {
        panic!("{:?}", rig.answers.get(&one));
    };
    let first = enlisted.server;
    rig.pong(&late[0]);
    // It has the same address and disk: the life that was just added is over.
    let Some(CoordinatorAnswer::Enlisted(enlisted)) = rig.answers.get(&other) else {
        panic!("{:?}", rig.answers.get(&other));
    };
    assert!(enlisted.server > first);
    let up = |id| {
        let servers = rig.status().servers;
        servers
            .iter()
            .any(|s| s.server == id && s.status == ServerStatus::Up)
    };
    assert!(!up(first) && up(enlisted.server));
}

#[test]
fn a_new_leader_and_a_failed_store_forget_a_caller_and_it_asks_again() {
    let mut rig = Rig::new();
    rig.enlist_some(2);
    let first = rig.begin(ServerId::NONE, enlist(9, 9, None));
    let reason = "the store is away".to_owned();
    rig.handle(Input::StoreFailed { reason });
    let refused = rig.answers.get(&first);
    assert!(
        matches!(refused, Some(CoordinatorAnswer::Refused(Refusal::Store(_)))),
        "{refused:?}"
    );
    rig.fail_over();
    rig.be_good();
    assert_eq!(rig.status().servers.len(), 2);
    rig.enlist(9, None);
    assert_eq!(rig.status().servers.len(), 3);
}

/// Those of the logs that the coordinator calls gone.
fn gone(rig: &mut Rig, sender: ServerId, logs: &[ServerId]) -> Vec<ServerId> {
    let logs = logs.to_vec();
    match rig.ask(sender, ToCoordinator::AreGone { logs }) {
        Some(CoordinatorAnswer::Gone { logs }) => logs,
        other => panic!("{other:?}"),
    }
}

fn waits(rig: &mut Rig) -> Vec<Wait> {
    match rig.admin(Admin::Waits) {
        CoordinatorAnswer::Admin(AdminAnswer::Waits(waits)) => waits,
        other => panic!("{other:?}"),
    }
}

/// The story: a coordinator was given a copy of its store from before a member's last start. The
/// other members asked about that member's log, which was in no list, and dropped it.
#[test]
fn a_log_is_gone_only_if_its_server_was_a_member_once() {
    let never_given_stays = || {
        let mut rig = Rig::new();
        let servers = rig.enlist_some(3);
        let next = ServerId::new(servers[1].slot, 2);
        gone(&mut rig, servers[0], &[servers[1], next]).is_empty()
    };
    assert!(never_given_stays());
    assert!(
        !with_bug(Bug::NeverGivenIsGone, never_given_stays),
        "not found"
    );
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    let next = rig.enlist_as(2, 77, Some(servers[1]));
    let both = [servers[1], next];
    assert_eq!(gone(&mut rig, servers[0], &both), [servers[1]]);
    rig.crash(next); // it has no tablets
    assert_eq!(gone(&mut rig, servers[0], &both), both);
    assert!(waits(&mut rig).iter().all(|wait| wait.server.is_none()));
}

/// Such logs show that the store is older than the cluster. An id that one of them has is given to
/// no other server: it would get that log.
#[test]
fn a_store_that_is_older_than_its_cluster_is_named_and_gives_no_id_twice() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    let (newer, added) = (ServerId::new(servers[1].slot, 2), ServerId::new(5, 1));
    // A caller that is no member proves nothing, nor does a slot that no copy lacks.
    gone(&mut rig, ServerId::NONE, &[newer, added]);
    gone(&mut rig, servers[0], &[ServerId::new(1 << 30, 1)]);
    let older = |wait: &Wait| wait.is_now && wait.reason.contains("older than the cluster");
    assert!(!waits(&mut rig).iter().any(older));
    gone(&mut rig, servers[0], &[newer, added]);
    let named: Vec<_> = waits(&mut rig)
        .into_iter()
        .filter(older)
        .map(|wait| wait.server)
        .collect();
    assert_eq!(named, [Some(newer), Some(added)]);
    let ToCoordinator::Enlist(back) = enlist(2, 77, Some(servers[1])) else {
        panic!();
    };
    let refusal = refused_enlist(&mut rig, |e| *e = back).to_string();
    let names = refusal.contains(&format!("never had a server {newer}"));
    assert!(
        names && refusal.contains("Restore the newest store"),
        "{refusal}"
    );
    assert_eq!(rig.enlist(9, None), ServerId::new(6, 1), "not 3 to 5");
}
