//! The tablet map as thousands of members follow it: step by step, without a gap.

use crate::coordinator::rig::Rig;
use duramen_base::ids::{KeyRange, MapVersion, MigrationId, RouteHash, ServerId, TableId};
use duramen_base::random::Random;
use duramen_wire::native::message::{
    Admin, AdminAnswer, CoordinatorAnswer, MapStep, TabletMap, ToCoordinator,
};

fn whole(rig: &mut Rig) -> TabletMap {
    let question = ToCoordinator::Map {
        table: None,
        since: MapVersion(0),
    };
    match rig.ask(ServerId::NONE, question) {
        Some(CoordinatorAnswer::Map(map)) => map,
        other => panic!("{other:?}"),
    }
}

fn changes(rig: &mut Rig, since: MapVersion) -> CoordinatorAnswer {
    let question = ToCoordinator::MapChanges { since };
    rig.ask(ServerId::NONE, question).expect("an answer")
}

/// Applies a step as a member does.
fn take(map: &mut TabletMap, step: &MapStep) {
    assert_eq!(step.since, map.version);
    map.version = step.version;
    map.tablets.retain(|route| {
        let touches = |(table, range): &(TableId, KeyRange)| {
            *table == route.table && range.overlaps(&route.range)
        };
        !step.ranges.iter().any(touches)
    });
    map.tablets.extend(&step.tablets);
    map.tablets.sort_by_key(|route| (route.table, route.range));
    for owner in step.tablets.iter().map(|route| route.owner) {
        assert!(step.servers.iter().any(|(server, _)| *server == owner));
    }
}

/// A command that changes the map, or is refused.
fn change(rig: &mut Rig, random: &mut Random, servers: &[ServerId], begun: &mut Vec<MigrationId>) {
    let tables: Vec<TableId> = rig.status().tables.iter().map(|t| t.table).collect();
    let table = tables[random.index(tables.len())];
    let hash = RouteHash(random.below(64) << 58);
    let to = servers[random.index(servers.len())];
    let admin = match random.below(9) {
        0 => Admin::CreateTable {
            name: format!("t{}", random.below(4)),
            servers: 1 + random.below(5) as u32,
            level: None,
        },
        1 => Admin::DropTable {
            name: format!("t{}", random.below(4)),
        },
        2 if servers.len() > 3 && random.one_in(4) => Admin::CrashServer { server: to },
        2..5 => Admin::Split { table, at: hash },
        5..8 => Admin::Migrate {
            table,
            range: KeyRange::new(hash, RouteHash(hash.0 | u64::MAX >> 6)),
            to,
        },
        _ => match begun.pop() {
            Some(migration) => Admin::AbortMigration { migration },
            None => return,
        },
    };
    if let CoordinatorAnswer::Admin(AdminAnswer::Migrating(ids)) = rig.admin(admin) {
        begun.extend(ids);
    }
}

/// map::W2, for members that ask at different times.
#[test]
fn whoever_follows_the_steps_has_the_map() {
    let mut steps = 0;
    for seed in 0..20u64 {
        let mut rig = Rig::new();
        let servers = rig.enlist_some(5);
        rig.create_table("t0", 4);
        let mut random = Random::new(seed);
        let mut begun = Vec::new();
        let mut members: Vec<TabletMap> = (0..3).map(|_| whole(&mut rig)).collect();
        for _ in 0..80 {
            change(&mut rig, &mut random, &servers, &mut begun);
            let map = whole(&mut rig);
            let member = &mut members[random.index(3)];
            match changes(&mut rig, member.version) {
                CoordinatorAnswer::MapIsCurrent => {}
                CoordinatorAnswer::MapStep(step) => {
                    take(member, &step);
                    steps += 1;
                }
                other => panic!("{other:?}"),
            }
            assert_eq!(
                (member.version, &member.tablets),
                (map.version, &map.tablets)
            );
        }
    }
    assert!(steps > 400, "{steps}");
}

/// A member that is too far behind, knows no version, or has a version that was never given gets
/// the whole map.
#[test]
fn who_cannot_follow_gets_the_whole_map() {
    let mut rig = Rig::new();
    rig.enlist_some(3);
    rig.create_table("a", 4);
    let old = whole(&mut rig).version;
    assert_eq!(changes(&mut rig, old), CoordinatorAnswer::MapIsCurrent);
    for strange in [MapVersion(0), MapVersion(old.0 + 5)] {
        assert!(matches!(
            changes(&mut rig, strange),
            CoordinatorAnswer::Map(_)
        ));
    }
    rig.create_table("b", 1 << 14);
    rig.create_table("c", 1 << 14);
    assert!(matches!(changes(&mut rig, old), CoordinatorAnswer::Map(_)));
    // A new leader can only give steps from its start on.
    let known = whole(&mut rig).version;
    rig.fail_over();
    assert!(matches!(changes(&mut rig, old), CoordinatorAnswer::Map(_)));
    let CoordinatorAnswer::MapStep(step) = changes(&mut rig, known) else {
        panic!("what it began with is known");
    };
    assert!(step.tablets.is_empty() && step.version > known);
}

/// map::W1: while the store is slow, changes wait for it together. A member that was shown some of
/// them must not take them for all.
#[test]
fn what_was_shown_changes_only_with_its_version() {
    let mut rig = Rig::new();
    rig.enlist_some(3);
    let table = rig.create_table("a", 1);
    rig.be_good();
    rig.leader.stores = false;
    let cut = |rig: &mut Rig, slot: u16| {
        let at = RouteHash::first_of_slot(slot);
        let split = ToCoordinator::Admin(Admin::Split { table, at });
        assert_eq!(
            rig.ask(ServerId::NONE, split),
            None,
            "it waits for the store"
        );
    };
    cut(&mut rig, 100); // in flight to the store
    cut(&mut rig, 200);
    let question = ToCoordinator::Map {
        table: None,
        since: MapVersion(0),
    };
    assert_eq!(rig.ask(ServerId::NONE, question), None, "it is not stored");
    cut(&mut rig, 300);
    rig.store_all();
    rig.leader.stores = true;
    let shown = rig.answers.values().find_map(|answer| match answer {
        CoordinatorAnswer::Map(map) => Some(map.clone()),
        _ => None,
    });
    let mut shown = shown.expect("it is stored now");
    assert_eq!(shown.tablets.len(), 3);
    let CoordinatorAnswer::MapStep(step) = changes(&mut rig, shown.version) else {
        panic!("the third cut is newer");
    };
    take(&mut shown, &step);
    assert_eq!(shown.tablets, whole(&mut rig).tablets);
}
