//! Migrations without crashes during the move.

use super::world::World;
use crate::node::net::{COORDINATOR, Net, TABLE};
use duramen_base::ids::{KeyRange, RouteHash, RpcId};
use duramen_base::planted::{Bug, has_bug};
use duramen_engine::Completions;
use duramen_format::entry::Completion;
use duramen_wire::native::message::{
    Admin, AdminAnswer, CoordinatorAnswer, MigrationPhase, Refusal, ToCoordinator,
};

/// Moves everything from its owner to another server, with clients at work. Returns the world, the
/// owner and the other server.
pub fn moving(seed: u64) -> (World, usize, usize) {
    let mut world = World::new(seed, 4, 24);
    world.fill();
    let from = world.net.owner().unwrap();
    let to = (from + 1) % 4;
    world.move_to(to);
    (world, from, to)
}

pub fn is_over(net: &Net) -> bool {
    net.leader.coordinator.status().migrations.is_empty()
}

/// The tablet moves, clients continue, and the new owner crashes.
pub fn there_and_recovered(seed: u64) -> World {
    let (mut world, from, to) = moving(seed);
    assert!(world.work_until(60_000_000, is_over), "seed {seed}: no end");
    world.work(30);
    let ended = world.ended();
    let phase = ended.last().unwrap().phase;
    assert_eq!(phase, MigrationPhase::Done, "seed {seed}: {ended:?}");
    assert!(
        !world.serves(from) || has_bug(Bug::SourceServesOn),
        "seed {seed}"
    );
    world.check();
    // It is in the target's log: its recovery finds all of it.
    world.kill(to);
    world.check();
    world
}

#[test]
fn a_tablet_moves_under_writers_and_nothing_is_lost() {
    for seed in 1..=4 {
        let world = there_and_recovered(seed);
        world.expect_right(&format!("seed {seed}"));
    }
}

/// Many messages are lost.
pub fn over_a_bad_network(seed: u64) -> World {
    let (mut world, ..) = moving(seed);
    world.net.lost_percent = 25;
    world.work_until(60_000_000, is_over);
    world.check();
    world
}

#[test]
fn a_bad_network_loses_nothing() {
    for seed in 11..=13 {
        over_a_bad_network(seed).expect_right(&format!("seed {seed}"));
    }
}

/// The target reaches too few backups from the lock on, and crashes when it would be the owner.
pub fn without_backups(seed: u64) -> World {
    let (mut world, from, to) = moving(seed);
    let is_locked = |net: &Net| net.owner() != Some(from);
    assert!(world.work_until(60_000_000, is_locked), "seed {seed}");
    world.net.cut(to, (0..4).filter(|n| *n != from && *n != to));
    let source = world.id(from);
    let has_moved = |net: &Net| {
        let tablets = net.leader.coordinator.status().tablets;
        tablets.iter().all(|tablet| tablet.owner != source)
    };
    let has_moved = world.work_until(6_000_000, has_moved);
    assert!(
        !has_moved || has_bug(Bug::ReportedBeforeDurable),
        "seed {seed}"
    );
    world.kill(to);
    world.check();
    world
}

#[test]
fn a_target_that_reaches_no_backups_owns_nothing() {
    without_backups(81).expect_right("the source went on");
}

/// The target cannot store anything: its links to backups are cut, and it is well otherwise. The
/// source used to lock all the same, and no server served the tablet during all that time.
#[test]
fn a_target_that_stores_nothing_is_found_before_the_source_locks() {
    for seed in 101..=103 {
        let (mut world, from, to) = moving(seed);
        world.net.cut(to, (0..4).filter(|n| *n != from && *n != to));
        world.net.do_pings_pass = true;
        let is_locked = |net: &Net| net.owner() != Some(from);
        assert!(!world.work_until(10_000_000, is_locked), "seed {seed}");
        assert!(!is_over(&world.net), "seed {seed}: it waits");
        world.check();
        world.expect_right(&format!("seed {seed}"));
    }
}

/// The same from the moment of the lock on, for some seconds.
pub fn stores_nothing_from_the_lock_on(seed: u64) -> World {
    let (mut world, from, to) = moving(seed);
    let is_locked = |net: &Net| net.owner() != Some(from);
    assert!(world.work_until(60_000_000, is_locked), "seed {seed}");
    world.net.lost_percent = 0; // each lost message is repeated only after seconds
    world.net.cut(to, (0..4).filter(|n| *n != from && *n != to));
    // No list reports the end of the migration, and the coordinator has no report of it before it
    // could be told otherwise.
    world.net.cut(to, [COORDINATOR]);
    world.net.cut(from, [COORDINATOR]);
    world.net.do_pings_pass = true;
    let serves_again = |net: &Net| net.owner() == Some(from);
    let served = world.work_until(8_000_000, serves_again);
    assert!(served, "seed {seed}: not served for 8 s");
    world.work(60);
    world.check();
    world
}

#[test]
fn a_source_whose_target_stores_nothing_serves_again_after_some_seconds() {
    for seed in 111..=113 {
        stores_nothing_from_the_lock_on(seed).expect_right(&format!("seed {seed}"));
    }
}

/// The coordinator dies during a migration and stays away. A locked tablet stayed locked, although
/// source and target were well, and one that was not locked yet was locked then.
#[test]
fn a_coordinator_that_is_away_keeps_no_tablet_from_its_clients() {
    for seed in 121..=126 {
        let (mut world, from, _) = moving(seed);
        if seed % 2 == 0 {
            let is_locked = |net: &Net| net.owner() != Some(from);
            assert!(world.work_until(60_000_000, is_locked), "seed {seed}");
        }
        // With a report of the end, only the coordinator would know the owner.
        world.net.loses_ends = true;
        world.net.lost_percent = 0; // each lost message is repeated only after seconds
        for n in 0..4 {
            world.net.cut(n, [COORDINATOR]);
        }
        world.net.do_pings_pass = true;
        let serves = |net: &Net| net.owner() == Some(from);
        world.net.run(5_000_000, |_| false);
        for _ in 0..20 {
            assert!(serves(&world.net), "seed {seed}: not served");
            world.work(20);
        }
        world.check();
        world.expect_right(&format!("seed {seed}"));
    }
}

/// After its lock, the source receives no message, not even that the target owns the tablet.
pub fn deaf_from_the_lock_on(seed: u64) -> World {
    let (mut world, from, to) = moving(seed);
    let is_locked = |net: &Net| net.owner() != Some(from);
    assert!(world.work_until(60_000_000, is_locked), "seed {seed}");
    world.net.cut.insert((COORDINATOR, from));
    world.net.cut.insert((to, from));
    world.net.do_pings_pass = true;
    for _ in 0..40 {
        world.work(100);
        if world.servers_of(RouteHash(1)).len() > 1 {
            world.accuse("source and target serve it".to_owned());
        }
    }
    world.check();
    world
}

#[test]
fn a_source_that_hears_nothing_serves_nothing() {
    for seed in 131..=133 {
        deaf_from_the_lock_on(seed).expect_right(&format!("seed {seed}"));
    }
}

/// The target's report that it has everything is lost, and the migration is given up.
pub fn given_up_at_its_end(seed: u64) -> World {
    let (mut world, from, _) = moving(seed);
    world.net.loses_ends = true;
    // The source serves nothing from its last message on, even if it is told otherwise. It may take
    // a while to come to that: lost messages are repeated after seconds.
    let has_locked = world.work_until(60_000_000, |net| net.owner() != Some(from));
    assert!(has_locked, "seed {seed}: not sent");
    world.net.admin(Admin::CreateTable {
        name: "other".to_owned(),
        servers: 1,
        level: None,
    });
    world.work(60);
    assert!(!is_over(&world.net), "seed {seed}: nothing is between two");
    if !world.servers_of(RouteHash(1)).is_empty() {
        world.accuse("somebody serves what is between two".to_owned());
    }
    let under_way = world.net.leader.coordinator.status().migrations;
    for status in under_way {
        let migration = status.migration;
        world.net.admin(Admin::AbortMigration { migration });
    }
    world.work(60);
    world.check();
    world
}

#[test]
fn who_is_told_of_an_abort_goes_on_and_who_is_not_waits() {
    for seed in 21..=23 {
        given_up_at_its_end(seed).expect_right(&format!("seed {seed}"));
    }
}

/// Versions of removed keys, which are not sent, are not given again.
pub fn removed_before(seed: u64) -> World {
    let mut world = World::new(seed, 4, 4);
    world.fill();
    for _ in 0..40 {
        world.set(0, true);
    }
    world.set(0, false);
    let to = (world.net.owner().unwrap() + 1) % 4;
    world.move_to(to);
    world.net.run(60_000_000, is_over);
    world.net.run(1_000_000, |_| false);
    world.set(0, true);
    world.check();
    world
}

#[test]
fn scenario_18_versions_grow_though_what_had_them_is_gone() {
    removed_before(31).expect_right("removed, moved, written");
}

/// A request was executed at the source; checks whether the target, and then the server that
/// recovers it, has the answer.
pub fn with_an_answer(seed: u64) -> World {
    let mut world = World::new(seed, 4, 4);
    world.fill();
    let from = world.net.owner().unwrap();
    let to = (from + 1) % 4;
    let lease = ToCoordinator::ClientLease { client: None };
    let CoordinatorAnswer::Lease { client, .. } = world.net.person_asks(lease) else {
        panic!("seed {seed}: no lease");
    };
    let record = Completion {
        table: TABLE.0,
        route: RouteHash(77),
        client,
        rpc: RpcId(9),
        ack: RpcId(3),
        result: b"the answer",
    };
    let mut bytes = vec![0; record.padded_bytes()];
    record.write_to(&mut bytes);
    let known = |world: &World, n: usize| {
        let clients = world.net.servers[n].clients.as_ref().unwrap();
        clients.export(TABLE, &KeyRange::ALL)
    };
    world.net.servers[from]
        .clients
        .as_ref()
        .unwrap()
        .met(&record);
    world.move_to(to);
    assert!(world.work_until(60_000_000, is_over), "seed {seed}: no end");
    world.check();
    if known(&world, to).as_ref() != Some(&bytes) {
        world.accuse("the target does not know what was answered".to_owned());
    }
    assert_eq!(
        known(&world, from),
        Some(Vec::new()),
        "it is somebody else's"
    );
    world.kill(to);
    world.check();
    let next = world.net.owner().unwrap();
    if known(&world, next).as_ref() != Some(&bytes) {
        world.accuse("nobody knows what was answered".to_owned());
    }
    world
}

#[test]
fn scenario_31_what_was_answered_goes_along() {
    with_an_answer(91).expect_right("an answer");
}

#[test]
fn scenario_35_away_and_back_with_removals_between() {
    for seed in 41..=42 {
        let (mut world, from, to) = moving(seed);
        for back in [from, to, from] {
            assert!(world.work_until(60_000_000, is_over), "seed {seed}: no end");
            world.work(40);
            world.check();
            world.expect_right(&format!("seed {seed}"));
            world.move_to(back);
        }
        assert!(world.work_until(60_000_000, is_over));
        world.check();
        // Its entries from earlier times are in its log too, but do not belong to the tablet.
        world.kill(from);
        world.check();
        world.expect_right(&format!("seed {seed}, recovered"));
    }
}

#[test]
fn what_moves_is_neither_split_nor_moved_twice_and_parts_move_alone() {
    let (mut world, from, to) = moving(51);
    let at = RouteHash(1 << 63);
    let busy = |answer: CoordinatorAnswer| match answer {
        CoordinatorAnswer::Refused(Refusal::NotReady { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    let split = Admin::Split { table: TABLE, at };
    assert!(busy(world.net.admin(split.clone())).contains("being moved"));
    let other = (to + 1) % 4;
    assert!(busy(world.migrate(KeyRange::ALL, other)).contains("being moved"));
    assert!(world.work_until(60_000_000, is_over));
    let done = CoordinatorAnswer::Admin(AdminAnswer::Done);
    assert_eq!(world.net.admin(split), done);
    let upper = KeyRange::new(at, RouteHash::MAX);
    let answer = world.migrate(upper, from);
    assert!(matches!(answer, CoordinatorAnswer::Admin(_)), "{answer:?}");
    world.work(20);
    assert!(world.work_until(60_000_000, is_over));
    world.net.run(2_000_000, |_| false);
    assert_eq!(world.servers_of(RouteHash(1)), [to]);
    assert_eq!(world.servers_of(at), [from]);
    world.check();
    world.expect_right("in two parts");
}

#[test]
fn a_table_is_dropped_while_it_moves() {
    for events in [1, 40, 120, 250] {
        let (mut world, ..) = moving(61);
        world.work_for_events(events, is_over);
        let name = "t".to_owned();
        world.net.admin(Admin::DropTable { name });
        world.net.run(3_000_000, |_| false);
        assert!(is_over(&world.net));
        for server in &world.net.servers {
            assert_eq!(server.ended, None, "after {events} events");
            let tables = server.store.as_ref().unwrap().engine().tables().list();
            assert!(tables.iter().all(|table| table.id != TABLE));
        }
    }
}

/// A drain waited without end for a target that its source did not reach.
#[test]
fn a_target_that_is_not_reached_is_given_up() {
    let mut world = World::new(73, 4, 24);
    let from = world.net.owner().unwrap();
    let to = (from + 1) % 4;
    world.fill();
    world.net.cut(from, [to]);
    world.move_to(to);
    assert!(world.work_until(30_000_000, is_over));
    let last = world.ended().pop().unwrap();
    assert_eq!(last.phase, MigrationPhase::GivenUp);
    assert!(last.reason.unwrap().contains("does not answer this server"));
    world.net.cut.clear();
    world.work(20);
    assert_eq!(world.servers_of(RouteHash(1)), [from]);
    world.check();
    world.expect_right("at its source");
}

#[test]
fn who_has_no_room_says_so() {
    let mut world = World::new(71, 4, 24);
    let from = world.net.owner().unwrap();
    let to = (from + 1) % 4;
    world.value_bytes = 500_000;
    world.fill();
    world.crowd(to);
    world.move_to(to);
    assert!(world.work_until(60_000_000, is_over));
    let ended = world.ended();
    let last = ended.last().unwrap();
    assert_eq!(last.phase, MigrationPhase::GivenUp);
    let reason = last.reason.clone().unwrap();
    let words = ["no room", "memory", "disk is full"]; // on a slow machine the last comes first
    assert!(words.iter().any(|word| reason.contains(word)), "{reason}");
    world.work(20);
    assert_eq!(world.net.owner(), Some(from), "it serves on");
    world.check();
    world.expect_right("refused");
}
