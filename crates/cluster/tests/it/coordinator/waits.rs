//! The waits of an operator: each case is a line, with its server and its reason.

use crate::coordinator::rig::{Rig, enlist};
use duramen_base::ids::ServerId;
use duramen_cluster::coordinator::Sign;
use duramen_wire::native::message::{
    Admin, AdminAnswer, CoordinatorAnswer, Means, ServerRoom, ToCoordinator, Wait,
};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 100 * MIB;

fn waits(rig: &mut Rig) -> Vec<Wait> {
    match rig.admin(Admin::Waits) {
        CoordinatorAnswer::Admin(AdminAnswer::Waits(waits)) => waits,
        other => panic!("{other:?}"),
    }
}

fn room(rig: &mut Rig, server: ServerId, used: u64) {
    let room = ServerRoom {
        used_bytes: used * MIB,
        limit_bytes: LIMIT,
        replicas: 0,
        segments_sharing_rack: 0,
    };
    let noted = rig.ask(server, ToCoordinator::Room { server, room });
    assert_eq!(noted, Some(CoordinatorAnswer::Noted));
}

fn free_frames(rig: &mut Rig, server: ServerId, free: u64) {
    let question = ToCoordinator::DiskRoom {
        server,
        free,
        frames: 1_000,
    };
    assert_eq!(rig.ask(server, question), Some(CoordinatorAnswer::Noted));
}

/// Servers with a table, of which each has so many MiB.
fn cluster(servers: u64, used: u64) -> (Rig, Vec<ServerId>) {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(servers);
    rig.create_table("a", servers.len() as u32);
    rig.be_good();
    servers.iter().for_each(|id| room(&mut rig, *id, used));
    (rig, servers)
}

/// The only line: of this server, now or soon, with these words.
fn is_one(rig: &mut Rig, server: Option<ServerId>, is_now: bool, words: &[&str]) {
    let found = waits(rig);
    let [wait] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((wait.server, wait.is_now), (server, is_now), "{wait:?}");
    for word in words {
        assert!(wait.reason.contains(word), "{word}: {wait:?}");
    }
}

#[test]
fn a_cluster_that_is_well_waits_for_nothing() {
    let (mut rig, _) = cluster(4, 50);
    assert_eq!(waits(&mut rig), []);
    // A cluster without servers has no client that writes.
    assert_eq!(waits(&mut Rig::new()), []);
}

#[test]
fn servers_that_are_missing_are_counted() {
    let (mut rig, _) = cluster(2, 10);
    is_one(&mut rig, None, true, &["2 of the 3 servers", "2 replicas"]);
}

/// The warning comes while writes still succeed.
#[test]
fn memory_that_gets_full_is_named_before_it_is() {
    let (mut rig, servers) = cluster(6, 50);
    room(&mut rig, servers[2], 84);
    assert_eq!(waits(&mut rig), []);
    room(&mut rig, servers[2], 85);
    is_one(
        &mut rig,
        Some(servers[2]),
        false,
        &["85 %", "85 MiB", "100 MiB"],
    );
    room(&mut rig, servers[2], 100);
    is_one(&mut rig, Some(servers[2]), true, &["is full", "100 MiB"]);
}

#[test]
fn data_that_would_find_no_room_after_a_crash_is_named() {
    let (mut rig, servers) = cluster(4, 70);
    assert_eq!(waits(&mut rig), []);
    room(&mut rig, servers[1], 84);
    room(&mut rig, servers[2], 80);
    // 30 + 20 + 30 MiB are free on the others.
    is_one(&mut rig, Some(servers[1]), false, &["84 MiB", "80 MiB"]);
    // Recovered data takes a little more room.
    room(&mut rig, servers[1], 73);
    room(&mut rig, servers[2], 70);
    assert_eq!(waits(&mut rig), []);
    let (mut rig, servers) = cluster(4, 74);
    is_one(&mut rig, Some(servers[3]), false, &["74 MiB", "78 MiB"]);
}

#[test]
fn disks_without_room_for_new_copies_are_named() {
    let (mut rig, servers) = cluster(4, 50);
    // A frame has 128 KiB.
    servers
        .iter()
        .for_each(|id| free_frames(&mut rig, *id, 300));
    assert_eq!(waits(&mut rig), []);
    servers
        .iter()
        .for_each(|id| free_frames(&mut rig, *id, 200));
    let found = waits(&mut rig);
    assert!(found.len() == 1 && !found[0].is_now, "{found:?}");
    assert!(found[0].reason.contains("the disks of the others"));
    servers
        .iter()
        .for_each(|id| free_frames(&mut rig, *id, 900));
    free_frames(&mut rig, servers[3], 0);
    is_one(&mut rig, Some(servers[3]), true, &["no room for copies"]);
}

/// Copies are refused while disks still have room, kept for recoveries: a member was away
/// all day, its data was at one copy each, and the status said that all is well.
#[test]
fn segments_that_lack_copies_are_named() {
    let (mut rig, servers) = cluster(4, 50);
    let server = servers[1];
    let short = |rig: &mut Rig, segments_short| {
        let question = ToCoordinator::Means(Means {
            server,
            given_bytes: 0,
            segments_short,
        });
        let noted = rig.ask(server, question);
        assert_eq!(noted, Some(CoordinatorAnswer::Noted));
    };
    short(&mut rig, 7);
    let words = ["7 segments", "copies than 2"];
    is_one(&mut rig, Some(server), false, &words);
    short(&mut rig, 0);
    assert_eq!(waits(&mut rig), []);
}

#[test]
fn a_recovery_without_copies_and_a_drain_without_room_are_named() {
    let (mut rig, servers) = cluster(4, 50);
    rig.crash(servers[0]);
    rig.be_good();
    rig.pass(3_000_000);
    let found = waits(&mut rig);
    let waits_for = |wait: &&Wait| wait.server == Some(servers[0]) && wait.is_now;
    let wait = found.iter().find(waits_for).expect("it is recovered");
    assert!(wait.reason.contains("is not served: "), "{wait:?}");

    let (mut rig, servers) = cluster(3, 101);
    rig.admin(Admin::Drain { server: servers[1] });
    rig.be_good();
    let found = waits(&mut rig);
    let drains = |wait: &&Wait| wait.server == Some(servers[1]) && wait.reason.contains("drained");
    assert_eq!(found.iter().filter(drains).count(), 1, "{found:?}");
}

/// It was told so itself, and nobody else.
#[test]
fn a_server_that_cannot_join_is_named_for_a_while() {
    let (mut rig, _) = cluster(4, 50);
    rig.begin(ServerId::NONE, enlist(77, 77, None));
    for ping in rig.pings_of(77) {
        rig.sign(&ping, Sign::Denied);
    }
    is_one(
        &mut rig,
        None,
        true,
        &["server-77:1", "cannot join", "not admit"],
    );
    let ToCoordinator::Enlist(mut wrong) = enlist(78, 78, None) else {
        panic!();
    };
    wrong.segment_bytes *= 2;
    rig.begin(ServerId::NONE, ToCoordinator::Enlist(wrong));
    assert_eq!(waits(&mut rig).len(), 2);
    rig.live(11_000_000);
    assert_eq!(waits(&mut rig), []);
}

/// Each check of such a member succeeds, so the status said that all is well while its clients
/// waited.
#[test]
fn a_member_that_is_reached_and_not_heard_is_named() {
    let (mut rig, servers) = cluster(4, 50);
    let mute = servers[1];
    let others = [servers[0], servers[2], servers[3]];
    rig.live_asking(14_000_000, &others);
    assert_eq!(waits(&mut rig), []);
    rig.live_asking(2_000_000, &others);
    let words = ["anything for 16 s", "firewall", "duramen crash"];
    is_one(&mut rig, Some(mute), true, &words);
    rig.live_asking(1_000_000, &[mute]);
    assert_eq!(waits(&mut rig), []);
    // If most are not heard, it may be the fault of this coordinator.
    rig.live_asking(20_000_000, &others[..1]);
    assert_eq!(waits(&mut rig), []);
}

/// The list is bounded, whatever happens.
#[test]
fn there_are_never_too_many_lines() {
    let (mut rig, servers) = cluster(200, 100);
    let found = waits(&mut rig);
    assert_eq!(servers.len(), 200);
    assert_eq!(found.len(), 64);
    assert!(found[63].reason.starts_with("and 13"), "{:?}", found[63]);
}

#[test]
fn leaders_that_may_not_judge_say_so() {
    let (mut rig, servers) = cluster(5, 50);
    rig.pass_without(2_000_000, &servers[1..], None);
    let found = waits(&mut rig);
    assert!(found[0].reason.contains("do not answer"), "{found:?}");
    assert!(found[0].is_now && found[0].server.is_none());
}
