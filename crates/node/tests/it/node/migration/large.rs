//! Moves of much: large objects that are written all the time, and many completion records. Little
//! is under way at a time, and nothing stops the clients in vain.

use super::scenarios::is_over;
use super::world::World;
use crate::node::net::{Event, Net, TABLE};
use duramen_base::ids::{KeyRange, RouteHash, RpcId};
use duramen_engine::Completions;
use duramen_format::entry::Completion;
use duramen_node::{Clients, NodeInput, ReceivedRequest};
use duramen_wire::native::message::{
    Admin, CoordinatorAnswer, MigrationPhase, Peer, ToCoordinator,
};
use std::cell::Cell;
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// Bytes of entries on their way from a source to a target.
fn under_way(net: &Net) -> usize {
    let bytes = net.queue.events().map(|event| match event {
        Event::ToNode(
            _,
            _,
            NodeInput::Request(ReceivedRequest {
                question: Peer::MigrateEntries(_),
                payload,
                ..
            }),
        ) => payload.len(),
        _ => 0,
    });
    bytes.sum()
}

/// A world of large values, in which no message is lost or repeated: a repetition is no news.
fn large(seed: u64, keys: usize) -> (World, usize, usize) {
    let mut world = World::new(seed, 4, keys);
    world.net.lost_percent = 0;
    world.value_bytes = 1_000_000;
    world.fill();
    let from = world.net.owner().unwrap();
    (world, from, (from + 1) % 4)
}

/// 64 objects were copied at once, whatever their size, and 256 were left for the lock.
#[test]
fn little_of_large_objects_is_under_way_at_a_time() {
    let (mut world, _, to) = large(201, 12);
    world.move_to(to);
    let most = Cell::new(0);
    let looks = |net: &Net| {
        most.set(most.get().max(under_way(net)));
        is_over(net)
    };
    assert!(world.work_until(60_000_000, looks), "no end");
    assert!((1..=3 * MIB).contains(&most.get()), "{} bytes", most.get());
    world.check();
    world.expect_right("large objects");
}

/// The dead versions of hot keys filled the target's side log, which found that out while the
/// source was locked.
#[test]
#[ignore = "full tier"]
fn a_tablet_that_is_written_faster_than_it_is_sent_stays_and_is_served_all_the_time() {
    let (mut world, from, to) = large(211, 24);
    world.move_to(to);
    let is_locked = |net: &Net| net.owner() != Some(from);
    let ends = |net: &Net| is_over(net) || is_locked(net);
    for _ in 0..200_000 {
        (0..24).for_each(|n| world.act(n, 9));
        if world.net.run(5_000, ends) {
            break;
        }
    }
    assert!(is_over(&world.net), "it locked, or had no end");
    assert_eq!(world.net.owner(), Some(from));
    let ended = world.ended();
    assert_eq!(
        ended.last().unwrap().phase,
        MigrationPhase::GivenUp,
        "{ended:?}"
    );
    world.check();
    world.expect_right("it stays");
}

/// Executes twenty requests of each of so many clients.
fn execute(world: &mut World, server: usize, clients: usize) {
    for _ in 0..clients {
        let lease = ToCoordinator::ClientLease { client: None };
        let CoordinatorAnswer::Lease { client, .. } = world.net.person_asks(lease) else {
            panic!("no lease");
        };
        for id in 4..24 {
            clients_of(world, server).met(&Completion {
                table: TABLE.0,
                route: RouteHash(77),
                client,
                rpc: RpcId(id),
                ack: RpcId(3),
                result: b"the answer",
            });
        }
    }
}

fn clients_of(world: &World, server: usize) -> Arc<Clients> {
    world.net.servers[server].clients.clone().unwrap()
}

/// All records were exported after the lock, in one piece, and sent at once.
#[test]
fn records_go_before_the_lock_and_few_are_under_way_at_a_time() {
    let mut world = World::new(221, 4, 4);
    world.net.lost_percent = 0;
    world.fill();
    let from = world.net.owner().unwrap();
    let to = (from + 1) % 4;
    execute(&mut world, from, 1_000);
    let all = clients_of(&world, from)
        .export(TABLE, &KeyRange::ALL)
        .unwrap();
    world.move_to(to);
    let (most, locked) = (Cell::new(0), Cell::new(0));
    let looks = |net: &Net| {
        let bytes = under_way(net);
        most.set(most.get().max(bytes));
        if net.owner().is_none() {
            locked.set(locked.get().max(bytes));
        }
        is_over(net) || net.owner() == Some(to)
    };
    assert!(world.net.run(60_000_000, looks), "no end");
    let moved = clients_of(&world, to)
        .export(TABLE, &KeyRange::ALL)
        .unwrap();
    assert!(most.get() <= MIB / 2, "{} of {}", most.get(), all.len());
    assert!(locked.get() <= MIB / 16, "{} after the lock", locked.get());
    assert_eq!(moved.len(), all.len(), "each goes along");
}

/// All that a failed move had brought is taken back, its records too (migration::M4).
#[test]
fn a_move_that_fails_leaves_no_records() {
    let mut world = World::new(231, 4, 4);
    world.net.lost_percent = 0;
    world.fill();
    let from = world.net.owner().unwrap();
    let to = (from + 1) % 4;
    execute(&mut world, from, 50);
    world.move_to(to);
    let has_some = |net: &Net| net.servers[to].clients.as_ref().unwrap().size().1 > 0;
    assert!(world.net.run(60_000_000, has_some), "no records come");
    let migration = world.net.leader.coordinator.status().migrations[0].migration;
    world.net.admin(Admin::AbortMigration { migration });
    world.net.run(3_000_000, |_| false);
    assert_eq!(clients_of(&world, to).size().1, 0);
    assert_eq!(world.net.owner(), Some(from));
}
