//! The overview for operators: the shares of the servers, the served tablets, the room of each
//! server, in messages that stay small for a million tablets.

use crate::coordinator::rig::Rig;
use duramen_base::ids::{KeyRange, MigrationId, RouteHash, SegmentId, ServerId, TableId};
use duramen_wire::native::codec::{Envelope, encode_coordinator_answer};
use duramen_wire::native::message::{
    Admin, AdminAnswer, CoordinatorAnswer, FromCoordinator, MigrationDone, MigrationOutcome,
    Overview, PAGE_TABLETS_MAX, RangeLoad, Refusal, ServerRoom, TabletPage, ToCoordinator,
};

const MIB: u64 = 1 << 20;

fn overview(rig: &mut Rig) -> Overview {
    match rig.admin(Admin::Overview) {
        CoordinatorAnswer::Admin(AdminAnswer::Overview(overview)) => *overview,
        other => panic!("{other:?}"),
    }
}

/// The served tablets, and all of them, by both kinds of requests, which must agree.
fn served(rig: &mut Rig) -> (usize, usize) {
    let status = rig.status();
    let served = status.tablets.iter().filter(|route| route.served).count();
    let told = overview(rig);
    assert_eq!(told.tablets as usize, status.tablets.len());
    let unserved = told.tablets_unserved as usize;
    assert_eq!(status.tablets.len() - unserved, served);
    (served, status.tablets.len())
}

fn migrate(rig: &mut Rig, table: TableId, range: KeyRange, to: ServerId) -> CoordinatorAnswer {
    rig.admin(Admin::Migrate { table, range, to })
}

fn begun(answer: CoordinatorAnswer) -> MigrationId {
    match answer {
        CoordinatorAnswer::Admin(AdminAnswer::Migrating(begun)) => begun[0],
        other => panic!("{other:?}"),
    }
}

fn refusal(answer: CoordinatorAnswer) -> String {
    match answer {
        CoordinatorAnswer::Refused(Refusal::Invalid(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn complete(rig: &mut Rig, migration: MigrationId, server: ServerId) {
    let done = ToCoordinator::MigrationDone(MigrationDone {
        migration,
        server,
        outcome: MigrationOutcome::Complete {
            creation: SegmentId(9),
        },
    });
    let answer = rig.ask(server, done);
    assert!(matches!(answer, Some(CoordinatorAnswer::Accepted { .. })));
}

fn owner(rig: &Rig, table: TableId, at: RouteHash) -> ServerId {
    let tablets = rig.status().tablets;
    let mut of = tablets.iter().filter(|t| t.table == table);
    of.find(|t| t.range.contains(at)).expect("a tablet").owner
}

#[test]
fn what_its_owner_has_not_confirmed_is_not_served() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    let table = rig.create_table("a", 3);
    assert_eq!(served(&mut rig), (0, 3));
    rig.be_good();
    assert_eq!(served(&mut rig), (3, 3));
    // Split: both parts have the state of the old tablet, confirmed or not.
    let at = RouteHash(77);
    rig.admin(Admin::Split { table, at });
    assert_eq!(served(&mut rig), (4, 4));
    rig.be_good();
    // Moved: its source has released it, and its target may not have been told.
    let from = owner(&rig, table, at);
    let to = *servers.iter().find(|server| **server != from).expect("two");
    let migration = begun(migrate(
        &mut rig,
        table,
        KeyRange::new(at, RouteHash(99)),
        to,
    ));
    rig.be_good();
    let before = served(&mut rig);
    assert_eq!(before.0, before.1);
    complete(&mut rig, migration, to);
    assert_eq!(served(&mut rig), (before.1 - 1, before.1));
    rig.admin(Admin::Split {
        table,
        at: RouteHash(88),
    });
    assert_eq!(served(&mut rig), (before.1 - 1, before.1 + 1), "both parts");
    rig.be_good();
    assert_eq!(served(&mut rig), (before.1 + 1, before.1 + 1));
}

#[test]
fn an_earlier_confirmation_says_nothing_of_later_tablets() {
    let mut rig = Rig::new();
    rig.enlist_some(1);
    rig.be_good();
    rig.create_table("a", 2);
    let is_told = |asked: &crate::coordinator::rig::PendingCall| {
        matches!(asked.question, FromCoordinator::Tablets(_))
    };
    let first = rig.asked_where(is_told).pop().expect("told");
    let FromCoordinator::Tablets(tablets) = &first.question else {
        panic!("{first:?}");
    };
    let version = tablets.version;
    rig.create_table("b", 2);
    let confirmed = duramen_wire::native::message::ServerAnswer::Confirmed {
        list_version: Default::default(),
        tablets_version: version,
    };
    rig.reply(&first, confirmed);
    assert_eq!(served(&mut rig), (2, 4));
    rig.be_good();
    assert_eq!(served(&mut rig), (4, 4));
}

#[test]
fn a_new_leader_waits_for_their_word_and_the_dead_serve_nothing() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    rig.create_table("a", 6);
    rig.be_good();
    assert_eq!(served(&mut rig), (6, 6));
    rig.fail_over();
    assert_eq!(served(&mut rig), (0, 6));
    rig.live(100_000);
    assert_eq!(served(&mut rig), (6, 6));
    rig.crash(servers[0]);
    assert_eq!(served(&mut rig), (4, 6));
    assert_eq!(overview(&mut rig).servers.len(), 3);
}

fn report(rig: &mut Rig, server: ServerId, table: TableId, bytes: u64, room: ServerRoom) {
    let loads = vec![RangeLoad {
        table,
        range: KeyRange::ALL,
        bytes,
        records: 1,
    }];
    rig.ask(server, ToCoordinator::Loads { server, loads });
    rig.ask(server, ToCoordinator::Room { server, room });
}

fn room(used_bytes: u64, limit_bytes: u64) -> ServerRoom {
    ServerRoom {
        used_bytes,
        limit_bytes,
        replicas: 0,
        segments_sharing_rack: 0,
    }
}

#[test]
fn nothing_is_moved_to_where_it_does_not_fit() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    let table = rig.create_table("a", 1);
    rig.be_good();
    let from = owner(&rig, table, RouteHash(0));
    let [small, large] = [0, 1].map(|n| {
        let mut others = servers.iter().filter(|server| **server != from);
        *others.nth(n).expect("three servers")
    });
    report(&mut rig, from, table, 64 * MIB, room(64 * MIB, 80 * MIB));
    rig.ask(
        small,
        ToCoordinator::Room {
            server: small,
            room: room(MIB, 20 * MIB),
        },
    );
    let before = rig.status();
    let why = refusal(migrate(&mut rig, table, KeyRange::ALL, small));
    for said in [64 * MIB, MIB, 20 * MIB] {
        assert!(why.contains(&said.to_string()), "{why}");
    }
    let after = rig.status();
    assert_eq!(after.tablets, before.tablets, "not even cut");
    assert_eq!(after.map_version, before.map_version);
    // A quarter of it fits; then there is no room for another one.
    let quarter =
        |n: u64| KeyRange::new(RouteHash(n << 62), RouteHash((n << 62) | (u64::MAX >> 2)));
    let first = begun(migrate(&mut rig, table, quarter(0), small));
    rig.be_good();
    let why = refusal(migrate(&mut rig, table, quarter(1), small));
    assert!(
        why.contains(&format!("{} more are on their way", 16 * MIB)),
        "{why}"
    );
    complete(&mut rig, first, small);
    rig.be_good();
    // For a target with unknown room, the target itself refuses.
    begun(migrate(&mut rig, table, quarter(1), large));
}

#[test]
fn a_drained_server_goes_where_there_is_room() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    let table = rig.create_table("a", 1);
    rig.be_good();
    let from = owner(&rig, table, RouteHash(0));
    report(&mut rig, from, table, 64 * MIB, room(64 * MIB, 80 * MIB));
    for server in servers.iter().copied().filter(|server| *server != from) {
        let room = room(0, 20 * MIB);
        rig.ask(server, ToCoordinator::Room { server, room });
    }
    rig.admin(Admin::Drain { server: from });
    let waits = |rig: &mut Rig| {
        let shares = overview(rig).servers;
        let mut of = shares.into_iter().filter(|share| share.server == from);
        of.next().expect("a share").waits_for
    };
    assert!(waits(&mut rig).is_some_and(|why| why.contains("room")));
    assert!(rig.status().migrations.is_empty());
    let roomy = *servers.iter().find(|server| **server != from).expect("one");
    rig.ask(
        roomy,
        ToCoordinator::Room {
            server: roomy,
            room: room(0, 100 * MIB),
        },
    );
    rig.live(2_000_000);
    assert_eq!(waits(&mut rig), None);
    let status = rig.status();
    assert_eq!(status.migrations[0].to, roomy);
}

/// Bytes of an encoded answer.
fn bytes_of(answer: &CoordinatorAnswer) -> usize {
    let mut out = Vec::new();
    encode_coordinator_answer(&mut out, &Envelope::default(), answer);
    out.len()
}

#[test]
fn a_million_tablets_are_told_in_pages() {
    const TABLES: usize = 62;
    const EACH: u32 = 1 << 14;
    let mut rig = Rig::new();
    rig.enlist_some(4);
    rig.be_good();
    for n in 0..TABLES {
        rig.create_table(&format!("table{n}"), EACH);
    }
    rig.be_good();
    let all = TABLES * EACH as usize;
    assert!(all > 1_000_000);
    let answer = rig.admin(Admin::Overview);
    assert!(bytes_of(&answer) < 64 << 10, "{} bytes", bytes_of(&answer));
    let told = overview(&mut rig);
    assert_eq!((told.tablets as usize, told.tablets_unserved), (all, 0));
    assert_eq!(
        told.servers.iter().map(|s| s.tablets).sum::<u64>(),
        told.tablets
    );
    let spread = told.tables.iter().filter(|share| share.tablets > 0);
    assert!(
        spread
            .clone()
            .all(|share| (share.tablets, share.owners) == (u64::from(EACH), 4))
    );
    assert_eq!(spread.count(), TABLES);
    assert!(refusal(rig.admin(Admin::Status)).contains("Tablets"));
    // All of them once, in order, by pages that fit into any frame.
    let status = rig.status();
    let (mut from, mut seen, mut pages) = (None, Vec::new(), 0);
    loop {
        let page = page(&mut rig, None, from, u32::MAX);
        assert!(page.tablets.len() <= PAGE_TABLETS_MAX);
        assert_eq!(page.map_version, status.map_version);
        seen.extend(page.tablets);
        pages += 1;
        match page.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    assert_eq!(pages, all.div_ceil(PAGE_TABLETS_MAX));
    assert!(seen == status.tablets);
    // Of one table.
    let table = status.tables.last().expect("tables").table;
    let first = page(&mut rig, Some(table), None, 10_000);
    assert_eq!(first.tablets.len(), PAGE_TABLETS_MAX);
    let rest = page(&mut rig, Some(table), first.next, 1 << 13);
    assert_eq!((rest.tablets.len(), rest.next), (PAGE_TABLETS_MAX, None));
    assert!(rest.tablets.iter().all(|route| route.table == table));
}

fn page(
    rig: &mut Rig,
    table: Option<TableId>,
    from: Option<(TableId, RouteHash)>,
    most: u32,
) -> TabletPage {
    let answer = rig.admin(Admin::Tablets { table, from, most });
    assert!(bytes_of(&answer) < 1 << 20);
    match answer {
        CoordinatorAnswer::Admin(AdminAnswer::Tablets(page)) => page,
        other => panic!("{other:?}"),
    }
}
