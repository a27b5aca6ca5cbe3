//! Servers join, own tablets, notice crashed ones, and drop what is not theirs any more.

use crate::node::net::{Net, Server, TABLE};
use duramen_base::ids::{RouteHash, TableId};
use duramen_node::Route;
use duramen_wire::native::message::{Admin, AdminAnswer, CoordinatorAnswer, Refusal};
use std::collections::BTreeSet;

fn hashes() -> impl Iterator<Item = RouteHash> {
    (0..64).map(|n| RouteHash(n << 58 | 77))
}

fn served_by(net: &Net, table: TableId, hash: RouteHash) -> Vec<usize> {
    let serves = |s: &Server| s.is_alive && s.view.route(table, hash) == Route::Serve;
    let servers = net.servers.iter().enumerate();
    servers.filter(|(_, s)| serves(s)).map(|(n, _)| n).collect()
}

fn is_served_once(net: &Net, table: TableId) -> bool {
    hashes().all(|hash| served_by(net, table, hash).len() == 1)
}

/// Runs until `is_done`; returns whether that came in time. At each moment nothing is served twice.
fn run(net: &mut Net, for_us: u64, is_done: impl Fn(&Net) -> bool) -> bool {
    net.run(for_us, |net| {
        for hash in hashes() {
            let servers = served_by(net, TABLE, hash);
            let now_us = net.now_us;
            assert!(servers.len() <= 1, "at {now_us}: {hash} by {servers:?}");
        }
        is_done(net)
    })
}

/// Servers that have joined, over a network that loses every tenth message.
fn joined(seed: u64) -> Net {
    let mut net = Net::new(seed, 3);
    net.lost_percent = 10;
    assert!(run(&mut net, 20_000_000, Net::all_joined), "seed {seed}");
    net
}

#[test]
fn three_members_join_own_each_tablet_once_and_notice_who_is_gone() {
    let mut crash_us = Vec::new();
    for seed in 1..=8 {
        let mut net = joined(seed);
        let answer = net.create_table(3);
        assert!(
            matches!(answer, CoordinatorAnswer::Admin(AdminAnswer::Table(_))),
            "{answer:?}"
        );
        let knows = |server: &Server| {
            let route = |hash| server.view.route(TABLE, hash);
            hashes().all(|hash| matches!(route(hash), Route::Serve | Route::Moved(_)))
        };
        let all = |net: &Net| is_served_once(net, TABLE) && net.servers.iter().all(knows);
        assert!(
            run(&mut net, 20_000_000, all),
            "seed {seed}: not everything is served"
        );
        let owners = |net: &Net| -> Vec<Vec<usize>> {
            let owners = hashes().map(|hash| served_by(net, TABLE, hash));
            owners.collect()
        };
        let mut expected = owners(&net);
        let distinct: BTreeSet<usize> = expected.iter().flatten().copied().collect();
        assert_eq!(distinct.len(), 3, "each has a third");
        for server in &net.servers {
            let engine = server.store.as_ref().expect("it is a master").engine();
            assert_eq!(engine.tables().find("t"), Some(TABLE));
            assert_eq!(server.ended, None);
        }
        // One goes silent. No server serves its tablets: there are too few backups to recover it.
        let dead = net.servers[2].node.member().id();
        net.kill(2);
        net.lost_percent = 0;
        let died_us = net.now_us;
        let is_up = |server: &Server| server.node.member().members().is_up(dead);
        let noticed = |net: &Net| !net.servers[..2].iter().any(is_up);
        assert!(
            run(&mut net, 5_000_000, noticed),
            "seed {seed}: nobody noticed"
        );
        crash_us.push(net.now_us - died_us);
        run(&mut net, 2_000_000, |_| false);
        expected
            .iter_mut()
            .for_each(|owners| owners.retain(|n| *n < 2));
        assert_eq!(owners(&net), expected, "seed {seed}");
        assert!(
            net.servers[..2].iter().all(|server| server.ended.is_none()),
            "nobody else is accused"
        );
    }
    // Each member pings a random other one, so a silent one may be left out a few times.
    let mean_us = crash_us.iter().sum::<u64>() / crash_us.len() as u64;
    let is_soon = |took_us: &u64| *took_us <= 1_000_000;
    assert!(
        mean_us <= 500_000 && crash_us.iter().all(is_soon),
        "silence is noticed too late: {crash_us:?}"
    );
}

/// All members stop and come back at each other's addresses, as machines do when addresses are
/// assigned anew. Each of them answered, while it enlisted, the check of the life that had been at
/// its new address. So the coordinator took that life to be alive, and refused the process with its
/// data for good.
#[test]
fn members_that_come_back_at_each_others_addresses_are_members_again() {
    for seed in 1..=8 {
        let mut net = joined(seed);
        (0..3).for_each(|n| net.kill(n));
        net.servers.rotate_left(1);
        (0..3).for_each(|n| net.start(n));
        let is_again = |server: &Server| server.node.member().id().generation == 2;
        let ended = |net: &Net| net.servers.iter().any(|server| server.ended.is_some());
        let joined = |net: &Net| net.all_joined() && net.servers.iter().all(is_again);
        let is_done = |net: &Net| ended(net) || joined(net);
        assert!(run(&mut net, 10_000_000, is_done), "seed {seed}");
        for server in &net.servers {
            assert_eq!(server.ended, None, "seed {seed}");
        }
    }
}

#[test]
fn who_is_called_crashed_serves_nothing_more() {
    let mut net = joined(3);
    net.create_table(3);
    let all = |net: &Net| is_served_once(net, TABLE);
    assert!(run(&mut net, 20_000_000, all));
    let server = net.servers[1].node.member().id();
    net.admin(Admin::CrashServer { server });
    // It gets no message about it: it learns it from the answer to its report.
    assert!(net.run(5_000_000, |net| net.servers[1].ended.is_some()));
    let view = net.servers[1].view.clone();
    assert!(hashes().all(|hash| view.route(TABLE, hash) == Route::ClusterDown));
}

#[test]
fn what_is_not_listed_any_more_is_gone_before_anything_else_is_served() {
    let mut net = joined(5);
    net.create_table(3);
    let all = |net: &Net| is_served_once(net, TABLE);
    assert!(run(&mut net, 20_000_000, all));
    for n in 0..100u32 {
        let key = n.to_le_bytes();
        assert!(net.write(net.owner_of(&key), &key, b"value"));
    }
    let objects = |net: &Net, table| {
        let engines = net.servers.iter().map(|s| s.store.as_ref().unwrap());
        engines
            .map(|s| s.engine().tables().objects(table))
            .sum::<u64>()
    };
    assert_eq!(objects(&net, TABLE), 100);
    net.admin(Admin::DropTable {
        name: "t".to_owned(),
    });
    // The name is refused until the members have confirmed lists without the table.
    let is_refused =
        |answer| matches!(answer, CoordinatorAnswer::Refused(Refusal::NotReady { .. }));
    assert!(is_refused(net.create_table(3)));
    let end_us = net.now_us + 20_000_000;
    while is_refused(net.create_table(3)) {
        assert!(net.now_us < end_us, "the name never becomes free");
        run(&mut net, 10_000, |_| false);
    }
    let next = TableId(TABLE.0 + 1);
    assert!(run(&mut net, 20_000_000, |net| is_served_once(net, next)));
    for server in &net.servers {
        let engine = server.store.as_ref().unwrap().engine();
        assert_eq!(engine.tables().find("t"), Some(next));
    }
    assert_eq!(objects(&net, next), 0);
    assert!(served_by(&net, TABLE, RouteHash(1)).is_empty());
}

/// One of two other backups is being drained when a life begins. The new life never knew it: its
/// log lacked a replica, and each write waited until the drain was cancelled.
#[test]
fn a_life_that_begins_during_a_drain_uses_the_draining_backup_if_there_is_no_other() {
    for seed in 1..=3 {
        let mut net = Net::new(seed, 3);
        assert!(run(&mut net, 20_000_000, Net::all_joined), "seed {seed}");
        let server = net.servers[1].node.member().id();
        net.admin(Admin::Drain { server });
        net.kill(0);
        net.start(0);
        let has_both = |net: &Net| {
            let log = net.servers[0].node.member().id();
            let holds = |server: &Server| !server.backup.replicas_of(log.number()).is_empty();
            log.generation == 2 && net.servers[1..].iter().all(holds)
        };
        assert!(run(&mut net, 20_000_000, has_both), "seed {seed}");
        assert_eq!(
            net.servers[1].node.member().id(),
            server,
            "it is no other life"
        );
    }
}
