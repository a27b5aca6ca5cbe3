//! Tables and tablets: created, split, moved, drained, dropped.

use crate::coordinator::rig::Rig;
use duramen_base::ids::{KeyRange, MigrationId, RouteHash, SegmentId, ServerId, TableId};
use duramen_base::planted::{Bug, with_bug};
use duramen_wire::native::message::{
    Admin, AdminAnswer, CoordinatorAnswer, MigrationDone, MigrationOutcome, MigrationPhase,
    MigrationProgress, Refusal, TabletMap, TabletState, Tablets, ToCoordinator,
};
use std::collections::BTreeMap;

fn map(rig: &mut Rig) -> TabletMap {
    let question = ToCoordinator::Map {
        table: None,
        since: Default::default(),
    };
    match rig.ask(ServerId::NONE, question) {
        Some(CoordinatorAnswer::Map(map)) => map,
        other => panic!("{other:?}"),
    }
}

fn owner_of(rig: &mut Rig, table: TableId, at: RouteHash) -> ServerId {
    let tablets = map(rig).tablets;
    let mut at = tablets
        .iter()
        .filter(|t| t.table == table && t.range.contains(at));
    let owner = at.next().expect("a tablet").owner;
    assert_eq!(at.next(), None);
    owner
}

fn invalid(answer: CoordinatorAnswer) -> String {
    match answer {
        CoordinatorAnswer::Refused(Refusal::Invalid(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn done(answer: CoordinatorAnswer) {
    assert_eq!(answer, CoordinatorAnswer::Admin(AdminAnswer::Done));
}

/// The last list that each server was told.
fn last(told: Vec<(ServerId, Tablets)>) -> BTreeMap<ServerId, Tablets> {
    told.into_iter().collect()
}

fn migrate(rig: &mut Rig, table: TableId, range: KeyRange, to: ServerId) -> MigrationId {
    match rig.admin(Admin::Migrate { table, range, to }) {
        CoordinatorAnswer::Admin(AdminAnswer::Migrating(begun)) => {
            assert_eq!(begun.len(), 1);
            begun[0]
        }
        other => panic!("{other:?}"),
    }
}

fn complete(rig: &mut Rig, migration: MigrationId, server: ServerId) -> CoordinatorAnswer {
    let question = ToCoordinator::MigrationDone(MigrationDone {
        migration,
        server,
        outcome: MigrationOutcome::Complete {
            creation: SegmentId(5),
        },
    });
    rig.ask(server, question).expect("an answer at once")
}

#[test]
fn a_table_is_spread_over_servers_by_whole_slots() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    rig.be_good();
    let table = rig.create_table("things", 3);
    let told = last(rig.be_good());
    let mut ranges: Vec<KeyRange> = Vec::new();
    for server in &servers {
        let [tablet] = &told[server].tablets[..] else {
            panic!("{told:?}");
        };
        assert_eq!(tablet.table, table);
        assert!(matches!(tablet.state, TabletState::Normal { .. }));
        assert_eq!(
            tablet.range.first,
            RouteHash::first_of_slot(tablet.range.first.slot())
        );
        ranges.push(tablet.range);
    }
    ranges.sort();
    assert_eq!(ranges[0].first, RouteHash::MIN);
    assert_eq!(ranges[2].last, RouteHash::MAX);
    assert!(
        ranges
            .windows(2)
            .all(|p| p[0].last.next() == Some(p[1].first))
    );
    // Another table goes to the servers with the fewest tablets.
    rig.create_table("few", 1);
    rig.create_table("more", 2);
    let map = map(&mut rig);
    for server in &servers {
        assert_eq!(map.tablets.iter().filter(|t| t.owner == *server).count(), 2);
    }
}

#[test]
fn bad_wishes_are_refused_clearly() {
    let mut rig = Rig::new();
    let create = |name: &str, servers: u32| Admin::CreateTable {
        name: name.to_owned(),
        servers,
        level: None,
    };
    let none = rig.admin(create("a", 1));
    assert!(matches!(
        none,
        CoordinatorAnswer::Refused(Refusal::NotReady { .. })
    ));
    let servers = rig.enlist_some(2);
    let table = rig.create_table("a", 2);
    assert_eq!(invalid(rig.admin(create("a", 1))), "table `a` exists");
    // `table create --servers 5` gave all five tablets to the one server that was up, and that was
    // a success.
    match rig.admin(create("b", 3)) {
        CoordinatorAnswer::Refused(Refusal::NotReady { reason, .. }) => {
            assert!(reason.contains("over 3 servers: 2 are up"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert!(invalid(rig.admin(create("", 1))).contains("name"));
    assert!(invalid(rig.admin(create("b", 0))).contains("tablets"));
    let name = "nothing".to_owned();
    assert!(invalid(rig.admin(Admin::DropTable { name })).contains("no table `nothing`"));
    let foreign = Admin::Split {
        table: TableId(77),
        at: RouteHash(5),
    };
    assert!(invalid(rig.admin(foreign)).contains("no table 77"));
    let range = KeyRange::ALL;
    let to = ServerId::new(9, 1);
    let nobody = Admin::Migrate { table, range, to };
    assert!(invalid(rig.admin(nobody)).contains("9.1 is not UP"));
    let empty = KeyRange::new(RouteHash(5), RouteHash(4));
    let to = servers[0];
    let nothing = Admin::Migrate {
        table,
        range: empty,
        to,
    };
    assert!(invalid(rig.admin(nothing)).contains("empty"));
    // While a tablet moves it is neither split nor moved elsewhere.
    let first = map(&mut rig).tablets[0];
    let other = servers
        .iter()
        .find(|s| **s != first.owner)
        .copied()
        .unwrap();
    migrate(&mut rig, table, first.range, other);
    let at = RouteHash(first.range.first.0 + 1);
    let answer = rig.admin(Admin::Split { table, at });
    assert!(
        matches!(answer, CoordinatorAnswer::Refused(Refusal::NotReady { .. })),
        "{answer:?}"
    );
}

#[test]
fn a_tablet_is_cut_at_any_hash_and_only_once() {
    let mut rig = Rig::new();
    let [server] = rig.enlist_some(1)[..] else {
        panic!();
    };
    let table = rig.create_table("a", 1);
    rig.be_good();
    let at = RouteHash(0x1234_5678_9abc_def0);
    for _ in 0..2 {
        done(rig.admin(Admin::Split { table, at }));
    }
    let told = last(rig.be_good());
    let ranges: Vec<KeyRange> = told[&server].tablets.iter().map(|t| t.range).collect();
    let (low, high) = KeyRange::ALL.split(at).unwrap();
    assert_eq!(ranges, [low, high]);
    // The store has the same state.
    rig.fail_over();
    let told = last(rig.be_good());
    assert_eq!(told[&server].tablets.len(), 2);
}

#[test]
fn a_tablet_moves_in_one_step() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(2);
    let table = rig.create_table("a", 1);
    rig.be_good();
    let from = owner_of(&mut rig, table, RouteHash(0));
    let to = servers.into_iter().find(|s| *s != from).unwrap();
    let mut range = KeyRange::ALL;
    range.last = RouteHash::last_of_slot(99);
    let migration = migrate(&mut rig, table, range, to);
    let told = last(rig.be_good());
    let states: Vec<TabletState> = told[&from].tablets.iter().map(|t| t.state).collect();
    assert!(matches!(states[0], TabletState::Outgoing { migration: m, .. } if m == migration));
    assert!(matches!(states[1], TabletState::Normal { .. })); // the rest was split off
    assert_eq!(
        told[&to].tablets[0].state,
        TabletState::Incoming { migration, from }
    );
    assert_eq!(owner_of(&mut rig, table, range.first), from);
    // Only the target can report that it has everything.
    assert_eq!(
        complete(&mut rig, migration, from),
        CoordinatorAnswer::Stale
    );
    let accepted = complete(&mut rig, migration, to);
    let CoordinatorAnswer::Accepted { since } = accepted else {
        panic!("{accepted:?}");
    };
    assert_eq!(owner_of(&mut rig, table, range.first), to);
    assert_ne!(owner_of(&mut rig, table, range.last.next().unwrap()), to);
    let told = last(rig.be_good());
    assert!(told[&to].version >= since);
    let creation = SegmentId(5);
    assert_eq!(told[&to].tablets[0].state, TabletState::Normal { creation });
    assert_eq!(told[&from].tablets.len(), 1);
    // The answer was lost: the request is repeated, perhaps to another leader.
    assert!(matches!(
        complete(&mut rig, migration, to),
        CoordinatorAnswer::Accepted { .. }
    ));
    rig.fail_over();
    assert!(matches!(
        complete(&mut rig, migration, to),
        CoordinatorAnswer::Accepted { .. }
    ));
}

/// The target crashes; afterwards it reports that it has everything. Returns the owner of the
/// tablet.
fn target_crashes() -> (ServerId, ServerId) {
    let mut rig = Rig::new();
    let [one, two] = rig.enlist_some(2)[..] else {
        panic!();
    };
    let table = rig.create_table("a", 1);
    let from = owner_of(&mut rig, table, RouteHash(0));
    let to = if from == one { two } else { one };
    let migration = migrate(&mut rig, table, KeyRange::ALL, to);
    let question = ToCoordinator::MigrationDone(MigrationDone {
        migration,
        server: to,
        outcome: MigrationOutcome::Complete {
            creation: SegmentId(5),
        },
    });
    rig.leader.stores = false; // the next changes are one step for the store
    rig.ask(
        ServerId::NONE,
        ToCoordinator::Admin(Admin::CrashServer { server: to }),
    );
    rig.ask(to, question);
    (from, owner_of_unstored(&mut rig, table))
}

fn owner_of_unstored(rig: &mut Rig, table: TableId) -> ServerId {
    let status = rig.status();
    let mut tablets = status.tablets.iter().filter(|t| t.table == table);
    tablets.next().expect("a tablet").owner
}

#[test]
fn nothing_moves_to_the_dead() {
    let (from, owner) = target_crashes();
    assert_eq!(owner, from);
    let (from, owner) = with_bug(Bug::MigratedToTheDead, target_crashes);
    assert_ne!(owner, from, "not found");
}

/// The source crashes while its tablet moves; the target reports that it has everything. Two
/// servers would own it: the target, and the one that recovers the source.
fn source_crashes() -> CoordinatorAnswer {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    let table = rig.create_table("a", 1);
    let from = owner_of(&mut rig, table, RouteHash(0));
    let to = servers.into_iter().find(|s| *s != from).unwrap();
    let migration = migrate(&mut rig, table, KeyRange::ALL, to);
    rig.crash(from);
    complete(&mut rig, migration, to)
}

#[test]
fn a_migration_ends_with_its_source() {
    assert_eq!(source_crashes(), CoordinatorAnswer::Stale);
    let answer = with_bug(Bug::MigrationOutlivesSource, source_crashes);
    assert_ne!(answer, CoordinatorAnswer::Stale, "not found");
}

#[test]
fn a_target_without_space_ends_a_migration() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(2);
    let table = rig.create_table("a", 1);
    let from = owner_of(&mut rig, table, RouteHash(0));
    let to = servers.into_iter().find(|s| *s != from).unwrap();
    let migration = migrate(&mut rig, table, KeyRange::ALL, to);
    rig.be_good();
    let failed = ToCoordinator::MigrationDone(MigrationDone {
        migration,
        server: to,
        outcome: MigrationOutcome::Failed {
            reason: "no space".to_owned(),
        },
    });
    assert!(matches!(
        rig.ask(to, failed),
        Some(CoordinatorAnswer::Accepted { .. })
    ));
    let told = last(rig.be_good());
    assert!(matches!(
        told[&from].tablets[0].state,
        TabletState::Normal { .. }
    )); // unlocked
    assert_eq!(told[&to].tablets, []);
    assert_eq!(complete(&mut rig, migration, to), CoordinatorAnswer::Stale);
    let status = rig.status();
    assert_eq!(status.migrations, []);
    let [ended] = &status.migrations_ended[..] else {
        panic!("{status:?}");
    };
    assert_eq!(ended.phase, MigrationPhase::GivenUp);
    assert_eq!(ended.reason.as_deref(), Some("no space"));
}

#[test]
fn its_target_says_how_far_a_migration_is() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(2);
    let table = rig.create_table("a", 1);
    let from = owner_of(&mut rig, table, RouteHash(0));
    let to = servers.into_iter().find(|s| *s != from).unwrap();
    let migration = migrate(&mut rig, table, KeyRange::ALL, to);
    let says = |server, bytes| {
        ToCoordinator::MigrationProgress(MigrationProgress {
            migration,
            server,
            bytes,
            bytes_total: 1000,
            entries: 3,
            phase: MigrationPhase::Copying,
        })
    };
    assert_eq!(rig.status().migrations[0].phase, MigrationPhase::Waiting);
    assert_eq!(rig.ask(to, says(to, 100)), Some(CoordinatorAnswer::Noted));
    rig.ask(from, says(from, 999)); // only the target can count the received bytes
    let under_way = rig.status().migrations[0].clone();
    assert_eq!(
        (under_way.phase, under_way.bytes),
        (MigrationPhase::Copying, 100)
    );
    complete(&mut rig, migration, to);
    rig.be_good();
    let status = rig.status();
    assert_eq!(status.migrations, []);
    let ended = status.migrations_ended.last().unwrap();
    assert_eq!((ended.phase, ended.bytes), (MigrationPhase::Done, 100));
    rig.ask(to, says(to, 100)); // too late: no effect
}

/// From its source's lock on, no server serves a moving tablet. The status called it served during
/// that time.
#[test]
fn what_neither_side_of_a_migration_serves_is_not_called_served() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(2);
    let table = rig.create_table("a", 1);
    rig.live(100_000);
    let from = owner_of(&mut rig, table, RouteHash(0));
    let to = servers.into_iter().find(|s| *s != from).unwrap();
    let migration = migrate(&mut rig, table, KeyRange::ALL, to);
    rig.be_good();
    let says = |server, phase| {
        ToCoordinator::MigrationProgress(MigrationProgress {
            migration,
            server,
            bytes: 0,
            bytes_total: 0,
            entries: 0,
            phase,
        })
    };
    let shown = |rig: &Rig| {
        let overview = rig.leader.coordinator.overview();
        let phase = overview.status.migrations[0].phase;
        let served = rig.status().tablets[0].served;
        (phase, overview.tablets_unserved, served)
    };
    let (copies, switches) = (MigrationPhase::Copying, MigrationPhase::Switching);
    rig.ask(from, says(from, switches));
    rig.ask(to, says(to, copies)); // it has not been told yet
    assert_eq!(shown(&rig), (switches, 0, true)); // usually this phase is over at once
    rig.live(1_100_000);
    assert_eq!(shown(&rig), (switches, 1, false));
    rig.ask(from, says(from, copies)); // it continues to serve
    assert_eq!(shown(&rig), (copies, 0, true));
    rig.ask(to, says(to, switches));
    rig.live(1_100_000);
    assert_eq!(shown(&rig), (switches, 1, false));
    complete(&mut rig, migration, to);
    rig.live(100_000);
    let overview = rig.leader.coordinator.overview();
    assert_eq!(overview.tablets_unserved, 0);
}

#[test]
fn a_drained_server_owns_nothing_and_ends_without_a_recovery() {
    let mut rig = Rig::new();
    let servers = rig.enlist_some(3);
    rig.create_table("a", 9);
    rig.create_table("b", 3);
    rig.be_good();
    let drained = servers[1];
    done(rig.admin(Admin::Drain { server: drained }));
    let mut at_once = 0;
    for _ in 0..20 {
        let migrations = rig.status().migrations;
        at_once = at_once.max(migrations.len());
        for migration in migrations {
            assert_eq!(migration.from, drained);
            complete(&mut rig, migration.migration, migration.to);
        }
        rig.be_good();
    }
    assert!((1..=2).contains(&at_once), "{at_once} at once");
    let status = rig.status();
    assert!(status.tablets.iter().all(|t| t.owner != drained));
    assert_eq!(status.tablets.len(), 12);
    let to = drained;
    let range = KeyRange::ALL;
    let table = status.tablets[0].table;
    assert!(invalid(rig.admin(Admin::Migrate { table, range, to })).contains("drained"));
    rig.crash(drained);
    let status = rig.status();
    assert_eq!((status.recoveries.len(), status.servers.len()), (0, 2));
}

#[test]
fn the_last_server_is_not_drained() {
    let mut rig = Rig::new();
    let [server] = rig.enlist_some(1)[..] else {
        panic!();
    };
    rig.create_table("a", 1);
    assert!(invalid(rig.admin(Admin::Drain { server })).contains("no other server"));
}

#[test]
fn a_dropped_table_is_gone_and_its_id_with_it() {
    let mut rig = Rig::new();
    let [server] = rig.enlist_some(1)[..] else {
        panic!();
    };
    let first = rig.create_table("a", 2);
    rig.be_good();
    let name = "a".to_owned();
    done(rig.admin(Admin::DropTable { name }));
    assert_eq!(last(rig.be_good())[&server].tablets, []);
    let second = rig.create_table("a", 1);
    assert_ne!(first, second);
    let name = "default".to_owned();
    invalid(rig.admin(Admin::DropTable { name }));
    assert_eq!(rig.create_table("default", 1), TableId::DEFAULT);
}

/// A member that had not heard of the drop still served the old table of that name, and accepted
/// writes that were lost.
#[test]
fn a_name_is_not_given_again_before_everybody_knows_that_it_is_free() {
    let mut rig = Rig::new();
    rig.enlist_some(2);
    rig.create_table("a", 2);
    rig.be_good();
    let create = |rig: &mut Rig, name: &str| {
        rig.admin(Admin::CreateTable {
            name: name.to_owned(),
            servers: 1,
            level: None,
        })
    };
    let name = "a".to_owned();
    done(rig.admin(Admin::DropTable { name }));
    let early = create(&mut rig, "a");
    assert!(
        matches!(&early, CoordinatorAnswer::Refused(Refusal::NotReady { .. })),
        "{early:?}"
    );
    rig.create_table("c", 1); // another name need not wait
    rig.fail_over(); // the next leader does not know which names were dropped
    for name in ["a", "b"] {
        let early = create(&mut rig, name);
        assert!(
            matches!(&early, CoordinatorAnswer::Refused(Refusal::NotReady { .. })),
            "{early:?}"
        );
    }
    rig.be_good();
    rig.create_table("a", 1);
}

/// An engine refuses such names, and ids whose place another table has: with a table that the
/// coordinator had accepted, every server stopped for ever.
#[test]
fn a_table_is_made_if_every_engine_takes_it() {
    let mut rig = Rig::new();
    rig.enlist_some(1);
    let create = |rig: &mut Rig, name: &str| {
        rig.admin(Admin::CreateTable {
            name: name.to_owned(),
            servers: 1,
            level: None,
        })
    };
    let is_refused = |answer: &CoordinatorAnswer| matches!(answer, CoordinatorAnswer::Refused(_));
    for name in ["", "a b", "tab\t", "line\n", "nul\0", &"x".repeat(129)] {
        assert!(is_refused(&create(&mut rig, name)), "{name:?}");
    }
    let first = rig.create_table("stays", 1);
    let mut last = first;
    for n in 0..1_100 {
        let name = format!("passes-{n}");
        let table = rig.create_table(&name, 1);
        assert!(table > last, "no id is given twice");
        assert_ne!(table.0 % 1024, first.0 % 1024, "one table in a place");
        assert_ne!(table.0 % 1024, 0, "the default table's place");
        last = table;
        rig.admin(Admin::DropTable { name });
    }
    for n in 0..1_022 {
        rig.create_table(&format!("many-{n}"), 1);
    }
    let one_more = create(&mut rig, "one-more");
    assert!(is_refused(&one_more), "{one_more:?}");
}
