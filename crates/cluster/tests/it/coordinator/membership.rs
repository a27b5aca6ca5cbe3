//! Membership: enlisting, crashing, and the notices of both.

use crate::coordinator::rig::{PendingCall, Rig, enlist};
use duramen_base::ids::{
    ClientId, ListVersion, MigrationId, RecoveryId, SegmentId, ServerId, TabletsVersion,
};
use duramen_base::planted::{Bug, plant, with_bug};
use duramen_cluster::coordinator::store::MetaStore;
use duramen_cluster::coordinator::{Input, Sign};
use duramen_cluster::membership::{Applied, Members};
use duramen_wire::native::message::{
    Admin, CoordinatorAnswer, FromCoordinator, MigrationDone, MigrationOutcome, PartitionDone,
    PartitionOutcome, Refusal, ServerAnswer, ServerChange, ServerListUpdate, ServerStatus,
    ToCoordinator,
};

#[test]
fn a_member_is_stored_before_it_is_told() {
    let mut rig = Rig::new();
    rig.leader.stores = false;
    assert_eq!(rig.ask(ServerId::NONE, enlist(1, 1, None)), None);
    assert!(rig.asked.is_empty() && rig.answers.is_empty());
    rig.leader.stores = true;
    let (token, batch) = rig.leader.waiting.pop_front().expect("a batch");
    rig.leader.store.commit(&batch).unwrap();
    rig.handle(Input::Persisted { token });
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
    let again = rig.enlist_as(1, 99, Some(first));
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
    assert_eq!(rig.enlist_as(1, 99, Some(first)), again);
    // A server that is declared crashed is told so.
    let suspect = ToCoordinator::Suspect {
        server: again,
        list_version: Default::default(),
    };
    let answer = rig.ask(first, suspect);
    assert_eq!(
        answer,
        Some(CoordinatorAnswer::Refused(Refusal::NotUp(first)))
    );
}

/// Sends a leader that slept while another one took over a request about state that only the other
/// one has; returns whether it answered.
fn denied_by_who_slept(question: ToCoordinator) -> bool {
    let mut rig = Rig::new();
    let member = rig.enlist_some(2)[0];
    rig.be_good();
    let mut next = rig.leader.store.peer("another");
    rig.leader.store.expire();
    next.acquire().unwrap().expect("nobody leads");
    rig.leader.stores = false;
    let denied = rig.ask(member, question).is_some();
    if let Some((_, batch)) = rig.leader.waiting.pop_front() {
        let reason = rig.leader.store.commit(&batch).unwrap_err().to_string();
        rig.handle(Input::StoreFailed { reason });
        let is_refused = |answer| matches!(answer, &CoordinatorAnswer::Refused(Refusal::Store(_)));
        assert!(rig.answers.values().any(is_refused));
    }
    denied
}

/// coordinator::K8. (A target that got `Stale` from a leader that had lost the lead never reported
/// again, and its source stayed locked.)
#[test]
fn who_slept_does_not_deny_what_came_after_it() {
    let questions = [
        ToCoordinator::MigrationDone(MigrationDone {
            migration: MigrationId(77),
            server: ServerId::new(0, 1),
            outcome: MigrationOutcome::Complete {
                creation: SegmentId(5),
            },
        }),
        ToCoordinator::PartitionDone(PartitionDone {
            recovery: RecoveryId(77),
            partition: 0,
            server: ServerId::new(0, 1),
            outcome: PartitionOutcome::Replayed {
                creation: SegmentId(5),
                bytes: 1,
                entries: 1,
            },
        }),
        ToCoordinator::AreAlive {
            clients: vec![ClientId(77)],
        },
        ToCoordinator::ClientLease {
            client: Some(ClientId(77)),
        },
        ToCoordinator::Confirm {
            server: ServerId::new(7, 1),
            list_version: ListVersion(1),
            tablets_version: TabletsVersion(1),
        },
        ToCoordinator::Servers,
    ];
    for question in questions {
        assert!(!denied_by_who_slept(question.clone()), "{question:?}");
        let _bug = plant(Bug::DeniesAtOnce);
        assert!(denied_by_who_slept(question.clone()), "{question:?}");
    }
}

/// A server's list after all updates in some order.
fn list_after(order: &[usize]) -> (ListVersion, usize) {
    let mut members = Members::new();
    let mut rig = Rig::new();
    rig.enlist(1, None);
    let full = ServerListUpdate::Full(match rig.ask(ServerId::NONE, ToCoordinator::Servers) {
        Some(CoordinatorAnswer::Servers(list)) => list,
        other => panic!("{other:?}"),
    });
    members.apply(&full);
    rig.be_good();
    let mut steps = Vec::new();
    for n in 2..=4 {
        rig.enlist(n, None);
        let told = rig.asked_where(|a| {
            matches!(a.question, FromCoordinator::Servers(_)) && a.to == ServerId::new(0, 1)
        });
        for asked in told {
            let FromCoordinator::Servers(update) = &asked.question else {
                continue;
            };
            steps.push(update.clone());
            let answer = ServerAnswer::Confirmed {
                list_version: update.version(),
                tablets_version: Default::default(),
            };
            rig.reply(&asked, answer);
        }
    }
    assert_eq!(steps.len(), 3);
    for n in order {
        members.apply(&steps[*n]);
    }
    (members.version(), members.up().count())
}

/// Scenario 28: lost, repeated and late updates.
#[test]
fn a_list_is_never_a_mixture() {
    assert_eq!(list_after(&[0, 1, 2]).1, 4);
    assert_eq!(list_after(&[0, 0, 1, 0, 2, 1]).1, 4);
    for order in [&[1, 2][..], &[0, 2], &[2, 0], &[1, 0, 2]] {
        let (version, count) = list_after(order);
        // One server more per version, from version 2 on.
        assert_eq!(version.0 as usize, count + 1, "{order:?}");
        let (version, count) = with_bug(Bug::SkipsVersions, || list_after(order));
        assert_ne!(version.0 as usize, count + 1, "not found: {order:?}");
    }
}

#[test]
fn who_missed_a_step_gets_the_full_list() {
    let mut rig = Rig::new();
    let first = rig.enlist(1, None);
    rig.be_good();
    rig.enlist(2, None);
    let [asked] = &rig
        .asked_where(|a| a.to == first && matches!(a.question, FromCoordinator::Servers(_)))[..]
    else {
        panic!();
    };
    assert!(matches!(
        asked.question,
        FromCoordinator::Servers(ServerListUpdate::Step { .. })
    ));
    // It answers with its list, which is older than the start of the step.
    let answer = ServerAnswer::Confirmed {
        list_version: ListVersion(1),
        tablets_version: Default::default(),
    };
    rig.reply(asked, answer);
    let [asked] = &rig
        .asked_where(|a| a.to == first && matches!(a.question, FromCoordinator::Servers(_)))[..]
    else {
        panic!();
    };
    let FromCoordinator::Servers(update) = &asked.question else {
        panic!();
    };
    let mut members = Members::new();
    assert!(matches!(members.apply(update), Applied::Changed(_)));
    assert_eq!(members.up().count(), 2);
}

#[test]
fn a_full_list_says_who_crashed_and_went_before_who_came() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    rig.create_table("a", 3);
    let full = |rig: &mut Rig| match rig.ask(ServerId::NONE, ToCoordinator::Servers) {
        Some(CoordinatorAnswer::Servers(list)) => ServerListUpdate::Full(list),
        other => panic!("{other:?}"),
    };
    let mut members = Members::new();
    let before = full(&mut rig);
    members.apply(&before);
    rig.crash(servers[0]);
    let name = "a".to_owned();
    rig.admin(Admin::DropTable { name }); // nothing delays it
    rig.enlist_as(1, 9, Some(servers[0]));
    let Applied::Changed(changes) = members.apply(&full(&mut rig)) else {
        panic!();
    };
    assert!(
        matches!(&changes[..], [ServerChange::Crashed(a), ServerChange::Removed(b), ServerChange::Added(c)]
            if *a == servers[0] && *b == servers[0] && c.server.slot == servers[0].slot),
        "{changes:?}"
    );
    assert_eq!(members.apply(&before), Applied::Old);
}

pub(crate) fn status_of(rig: &Rig, server: ServerId) -> Option<ServerStatus> {
    let status = rig.status();
    let of = status.servers.iter().find(|s| s.server == server);
    of.map(|s| s.status)
}

fn suspect(rig: &mut Rig, by: ServerId, server: ServerId) {
    let question = ToCoordinator::Suspect {
        server,
        list_version: Default::default(),
    };
    assert_eq!(rig.ask(by, question), Some(CoordinatorAnswer::Noted));
}

pub(crate) fn pings_to(rig: &mut Rig, to: ServerId) -> Vec<PendingCall> {
    rig.asked_where(|a| a.to == to && matches!(a.question, FromCoordinator::Ping { .. }))
}

#[test]
fn a_suspect_is_asked_twice_before_it_is_called_crashed() {
    let mut rig = Rig::new();
    let [by, suspected] = rig.enlist_some(2)[..] else {
        panic!();
    };
    rig.be_good();
    suspect(&mut rig, by, suspected);
    suspect(&mut rig, by, suspected); // one check, however many suspect it
    assert_eq!(pings_to(&mut rig, suspected).len(), 1);
    rig.pass(130_000);
    assert_eq!(status_of(&rig, suspected), Some(ServerStatus::Up));
    let second = pings_to(&mut rig, suspected);
    let FromCoordinator::Ping { nonce } = second[0].question else {
        panic!();
    };
    let list_version = Default::default();
    rig.reply(
        &second[0],
        ServerAnswer::Pong {
            nonce,
            list_version,
        },
    );
    rig.pass(60_000);
    assert_eq!(status_of(&rig, suspected), Some(ServerStatus::Up));
    rig.live(6_000_000); // slow answers make the coordinator patient for a while
    suspect(&mut rig, by, suspected);
    rig.pass_without(260_000, &[suspected], None);
    assert_eq!(status_of(&rig, suspected), None); // it owned nothing: its replicas are not needed
}

#[test]
fn refused_connections_are_a_quick_verdict() {
    let mut rig = Rig::new();
    let [by, suspected] = rig.enlist_some(2)[..] else {
        panic!();
    };
    rig.be_good();
    suspect(&mut rig, by, suspected);
    rig.pass_without(100_000, &[suspected], Some(Sign::Dead));
    assert_eq!(status_of(&rig, suspected), None);
}

/// The number of servers that are declared crashed within a time in which some of them do not
/// answer.
fn crashes(servers: u64, gone: &[u32], sign: Option<Sign>, us: u64) -> usize {
    let mut rig = Rig::new();
    rig.enlist_some(servers);
    rig.be_good();
    let gone: Vec<ServerId> = gone.iter().map(|slot| ServerId::new(*slot, 1)).collect();
    rig.pass_without(us, &gone, sign);
    servers as usize - rig.status().servers.len()
}

/// A standby with a wrong token took over, and all servers were declared crashed within half a
/// second, each new life too. The same happened with a name that could not be looked up, and with a
/// leader that was cut off from all servers.
#[test]
fn a_coordinators_own_failure_is_nobodys_death() {
    let long_us = 20_000_000;
    for sign in [
        Some(Sign::Denied),
        Some(Sign::Unknown),
        Some(Sign::Dead),
        None,
    ] {
        for servers in [1, 2, 3, 5] {
            let all: Vec<u32> = (0..servers as u32).collect();
            let crashed = crashes(servers, &all, sign, long_us);
            assert_eq!(crashed, 0, "all of {servers}, {sign:?}");
        }
        assert_eq!(crashes(5, &[0, 1, 2], sign, long_us), 0, "{sign:?}");
    }
    let all = [0, 1, 2];
    let judged = with_bug(Bug::JudgesAlone, || crashes(3, &all, None, long_us));
    assert_eq!(judged, 3, "not found");
    // A possible fault of this process gives no quick verdict about a single server either.
    let quick = || crashes(3, &[1], Some(Sign::Unknown), 1_000_000);
    assert_eq!(quick(), 0);
    assert_eq!(with_bug(Bug::OwnFaultIsDeath, quick), 1, "not found");
    assert_eq!(
        crashes(3, &[1], Some(Sign::Unknown), long_us),
        1,
        "but it is one at last"
    );
}

#[test]
fn a_rack_with_a_third_of_the_servers_is_judged() {
    let rack = [0, 3, 6];
    for sign in [Some(Sign::Dead), None] {
        assert_eq!(crashes(9, &rack, sign, 3_000_000), 3);
    }
    assert_eq!(crashes(2, &[1], None, 3_000_000), 1);
}

/// Nine servers, of which the last five are drained and own nothing; how many are left when these
/// are gone for 5 s.
fn left_of_nine(gone: std::ops::Range<usize>, sign: Option<Sign>) -> usize {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(9);
    rig.be_good();
    for server in &servers[4..] {
        rig.admin(Admin::Drain { server: *server });
    }
    rig.pass_without(5_000_000, &servers[gone], sign);
    rig.status().servers.len()
}

/// Five of nine servers were drained and stopped together. From then on more than half of the
/// servers did not answer, and the next death was never noticed.
#[test]
fn most_servers_may_be_drained_and_stopped_at_once() {
    assert_eq!(left_of_nine(4..9, Some(Sign::Dead)), 4, "they are judged");
    assert_eq!(left_of_nine(3..9, Some(Sign::Dead)), 3, "with one more");
    // Drained servers that answer show that the leader hears most of the cluster.
    assert_eq!(left_of_nine(0..4, Some(Sign::Dead)), 5);
    assert_eq!(left_of_nine(0..3, None), 6);
    // If they are silent, it is the leader that may be cut off.
    assert_eq!(left_of_nine(4..9, None), 9);
    assert_eq!(left_of_nine(3..9, None), 9);
}

/// The power of most servers fails: none is declared crashed until some are back as new lives, and
/// then the rest is.
#[test]
fn most_servers_gone_are_no_verdict_until_enough_are_back() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(5);
    rig.be_good();
    rig.pass_without(5_000_000, &servers[1..], None);
    assert_eq!(rig.status().servers.len(), 5);
    assert_eq!(rig.unfit, Some(true), "another leader may hear them");
    rig.enlist_as(2, 22, Some(servers[1]));
    rig.enlist_as(3, 33, Some(servers[2]));
    rig.pass_without(3_000_000, &servers[1..], None);
    let up = |rig: &Rig, id: ServerId| status_of(rig, id) == Some(ServerStatus::Up);
    assert!(servers[1..].iter().all(|id| !up(&rig, *id)));
    assert!(up(&rig, servers[0]) && up(&rig, ServerId::new(2, 2)));
}

/// A leader that all servers refuse resigns at once; one that is cut off, after a while; one that
/// reaches enough servers, never.
#[test]
fn a_leader_that_cannot_judge_resigns() {
    let unfit = |gone: usize, sign: Option<Sign>, us: u64| {
        let mut rig = Rig::new();
        let servers = rig.enlist_some(4);
        rig.be_good();
        rig.fail_over();
        rig.pass_without(us, &servers[..gone], sign);
        rig.unfit
    };
    assert_eq!(unfit(4, Some(Sign::Denied), 1_000), Some(true));
    assert_eq!(unfit(4, None, 1_000_000), Some(false));
    assert_eq!(unfit(4, None, 5_000_000), Some(true));
    assert_eq!(unfit(3, Some(Sign::Unknown), 5_000_000), Some(true));
    assert_eq!(unfit(2, None, 5_000_000), None);
    assert_eq!(unfit(0, None, 5_000_000), None);
}

/// Members were called crashed when the coordinator's network was whole again: their connections
/// still waited for TCP's next retransmission, and two silences of 125 ms came from that.
#[test]
fn connections_that_stayed_silent_are_opened_anew_when_the_network_is_back() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(5);
    rig.be_good();
    suspect(&mut rig, servers[0], servers[1]);
    rig.pass_without(2_000_000, &servers, None);
    assert!(rig.reopened.is_empty());
    rig.pass_without(700_000, &servers[..2], None);
    let status = rig.status().servers;
    let silent = |server: &ServerId| {
        let is_it = |entry: &&duramen_wire::native::message::ServerEntry| entry.server == *server;
        status
            .iter()
            .find(is_it)
            .map(|entry| entry.addresses.native.clone())
    };
    for server in &servers[2..] {
        assert!(
            !rig.reopened.contains(&silent(server).expect("UP")),
            "{server}"
        );
    }
    assert!(rig.reopened.len() >= 2, "{:?}", rig.reopened);
}

#[test]
fn a_coordinator_that_stood_still_blames_nobody() {
    let crashes = || {
        let mut rig = Rig::new();
        let [by, suspected] = rig.enlist_some(2)[..] else {
            panic!();
        };
        rig.be_good();
        suspect(&mut rig, by, suspected);
        rig.pass_without(130_000, &[suspected], None); // one ping missed
        rig.pass_without(1_000, &[suspected], None); // others answer
        // Then the machine stops for a while, and runs its timers before it reads the messages that
        // have arrived.
        rig.now_us += 210_000;
        rig.handle(Input::Tick);
        rig.be_good();
        rig.pass(50_000);
        status_of(&rig, suspected).is_none()
    };
    assert!(!crashes());
    assert!(with_bug(Bug::LateVerdict, crashes), "not found");
}

#[test]
fn what_is_told_again_has_a_newer_version() {
    let versions = || {
        let mut rig = Rig::new();
        let [server] = rig.enlist_some(1)[..] else {
            panic!();
        };
        rig.create_table("a", 1);
        let told: Vec<_> = rig
            .be_good()
            .into_iter()
            .filter(|(to, _)| *to == server)
            .collect();
        told.iter().map(|(_, tablets)| tablets.version).max()
    };
    let before = versions().expect("told");
    assert!(before.0 > 0);
    assert_eq!(with_bug(Bug::VersionReused, versions), None, "not found");
}

#[test]
fn old_ids_crash_first_whatever_the_order_of_the_request() {
    let crashed_first = || {
        let mut rig = Rig::new();
        let servers = rig.enlist_some(2);
        rig.be_good();
        rig.enlist_as(1, 99, Some(servers[0]));
        let steps = rig.asked_where(|a| matches!(a.question, FromCoordinator::Servers(_)));
        let FromCoordinator::Servers(ServerListUpdate::Step { changes, .. }) = &steps[0].question
        else {
            panic!("{steps:?}");
        };
        matches!(changes[0], ServerChange::Crashed(_))
    };
    assert!(crashed_first());
    assert!(
        !with_bug(Bug::AddedBeforeCrashed, crashed_first),
        "not found"
    );
}

#[test]
fn nothing_is_told_that_is_not_stored() {
    let told_early = || {
        let mut rig = Rig::new();
        rig.enlist_some(2);
        rig.be_good();
        rig.leader.stores = false;
        let created = rig.ask(
            ServerId::NONE,
            ToCoordinator::Admin(Admin::CreateTable {
                name: "a".to_owned(),
                servers: 1,
                level: None,
            }),
        );
        created.is_some()
            || rig
                .asked
                .iter()
                .any(|a| !matches!(a.question, FromCoordinator::Ping { .. }))
    };
    assert!(!told_early());
    assert!(
        with_bug(Bug::TellsBeforePersisting, told_early),
        "not found"
    );
}

#[test]
fn a_store_that_fails_is_said_to_everybody_who_waits() {
    let mut rig = Rig::new();
    rig.leader.stores = false;
    assert_eq!(rig.ask(ServerId::NONE, enlist(1, 1, None)), None);
    assert_eq!(rig.ask(ServerId::NONE, enlist(2, 2, None)), None);
    let reason = "gone".to_owned();
    rig.handle(Input::StoreFailed { reason });
    assert_eq!(rig.answers.len(), 2);
    let later = rig.ask(ServerId::NONE, ToCoordinator::Servers);
    for answer in rig.answers.values().chain(later.as_ref()) {
        assert!(
            matches!(answer, CoordinatorAnswer::Refused(Refusal::Store(_))),
            "{answer:?}"
        );
    }
    assert!(rig.leader.coordinator.is_stopped());
}

/// One connection that asked for leases without end made the coordinator grow without end.
#[test]
fn the_number_of_clients_leases_is_bounded() {
    let mut rig = Rig::new();
    let lease = |rig: &mut Rig| {
        let question = ToCoordinator::ClientLease { client: None };
        rig.ask(ServerId::NONE, question)
    };
    let is_given = |answer| matches!(answer, Some(CoordinatorAnswer::Lease { .. }));
    let given = (0..200_000).take_while(|_| is_given(lease(&mut rig)));
    assert_eq!(given.count(), 100_000);
    let refused = lease(&mut rig);
    assert!(
        matches!(
            &refused,
            Some(CoordinatorAnswer::Refused(Refusal::NotReady { .. }))
        ),
        "{refused:?}"
    );
    rig.pass(700_000_000); // they end
    assert!(is_given(lease(&mut rig)));
}

#[test]
fn clients_keep_their_leases_over_a_failover() {
    let mut rig = Rig::new();
    let lease = |rig: &mut Rig, client: Option<ClientId>| {
        rig.ask(ServerId::NONE, ToCoordinator::ClientLease { client })
    };
    let Some(CoordinatorAnswer::Lease { client, .. }) = lease(&mut rig, None) else {
        panic!();
    };
    rig.fail_over();
    rig.pass(9_000_000);
    assert!(matches!(
        lease(&mut rig, Some(client)),
        Some(CoordinatorAnswer::Lease { .. })
    ));
    let Some(CoordinatorAnswer::Lease { client: other, .. }) = lease(&mut rig, None) else {
        panic!();
    };
    assert_ne!(client, other);
    let alive = |rig: &mut Rig| {
        let clients = vec![client, other, ClientId(77)];
        match rig.ask(ServerId::NONE, ToCoordinator::AreAlive { clients }) {
            Some(CoordinatorAnswer::ClientsAlive { clients }) => clients,
            answer => panic!("{answer:?}"),
        }
    };
    // With a tenth on top, as clocks differ.
    assert_eq!(alive(&mut rig), [(client, 11_000), (other, 11_000)]);
    rig.pass(13_000_000);
    assert_eq!(alive(&mut rig), []);
    assert!(matches!(
        lease(&mut rig, Some(client)),
        Some(CoordinatorAnswer::Refused(_))
    ));
}

/// The first look after a pause of the process ended the leases of all clients, whose requests to
/// renew them were waiting.
#[test]
fn a_pause_of_the_coordinator_ends_no_lease() {
    let mut rig = Rig::new();
    let lease = |rig: &mut Rig, client: Option<ClientId>| {
        rig.ask(ServerId::NONE, ToCoordinator::ClientLease { client })
    };
    let Some(CoordinatorAnswer::Lease { client, .. }) = lease(&mut rig, None) else {
        panic!();
    };
    rig.pass(1_000_000);
    rig.now_us += 60_000_000;
    rig.handle(Input::Tick);
    assert!(matches!(
        lease(&mut rig, Some(client)),
        Some(CoordinatorAnswer::Lease { .. })
    ));
    // Without another pause it ends as usual.
    rig.pass(13_000_000);
    assert!(matches!(
        lease(&mut rig, Some(client)),
        Some(CoordinatorAnswer::Refused(_))
    ));
}

/// After a report of a version that does not exist, the coordinator assumed for ever that the
/// server had everything.
#[test]
fn a_version_that_was_never_told_is_not_had() {
    let mut rig = Rig::new();
    let server = rig.enlist(1, None);
    rig.be_good();
    let confirm = ToCoordinator::Confirm {
        server,
        list_version: ListVersion(u64::MAX),
        tablets_version: TabletsVersion(u64::MAX),
    };
    rig.ask(server, confirm);
    rig.enlist(2, None);
    rig.create_table("a", 2);
    let told =
        rig.asked_where(|a| a.to == server && !matches!(a.question, FromCoordinator::Ping { .. }));
    let full = |a: &PendingCall| {
        matches!(
            &a.question,
            FromCoordinator::Servers(ServerListUpdate::Full(_))
        )
    };
    assert!(told.iter().any(full), "{told:?}");
    let tablets = |a: &PendingCall| matches!(&a.question, FromCoordinator::Tablets(_));
    assert!(told.iter().any(tablets), "{told:?}");
}
