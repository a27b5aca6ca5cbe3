//! Replicas on other servers, and the leases of their holders.

use crate::node::net::{COORDINATOR, LEASE_MS, Net, TABLE, settings};
use duramen_backup::ReplicaId;
use duramen_base::ids::Level;
use duramen_cluster::replication::{Rejection, Ticket};

use duramen_wire::native::message::Admin;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

#[test]
fn what_is_acknowledged_is_on_two_other_servers_disks_whoever_crashes() {
    let mut fetched = 0;
    for seed in 1..=5 {
        let mut net = Net::new(seed, 4);
        let owner = net.begin();
        let log = net.servers[owner].node.member().id();
        let others: Vec<usize> = (0..4).filter(|n| *n != owner).collect();
        let mut model = BTreeMap::new();
        let mut crashed = None;
        for n in 0..80u64 {
            let key = format!("key {}", n % 41).into_bytes();
            let value = vec![b'a' + (n % 26) as u8; 20_000 + net.random.below(100_000) as usize];
            let is_done = net.write(owner, &key, &value);
            let store = net.servers[owner].store.as_ref().unwrap();
            let waits_for = store.log().unwrap().describe();
            assert!(is_done, "seed {seed}, write {n}: {waits_for}");
            model.insert(key, value);
            if n % 10 == 3 && crashed.is_none() {
                let gone = others[net.random.below(3) as usize];
                assert!(net.recover(log, &[gone]) == model, "seed {seed}, write {n}");
            }
            if n == 40 {
                // The holder of most replicas, so of closed segments too.
                let held = |n: &usize| net.servers[*n].backup.replicas_of(log.number()).len();
                let victim = others.iter().copied().max_by_key(held).unwrap();
                net.servers[victim].is_alive = false;
                crashed = Some(victim);
            }
        }
        let crashed = crashed.unwrap();
        net.run(3_000_000, |_| false);
        for other in others.iter().copied().filter(|n| *n != crashed) {
            let found = net.recover(log, &[crashed, other]);
            let store = net.servers[owner].store.as_ref().unwrap();
            assert!(
                found == model,
                "seed {seed}: {}",
                store.log().unwrap().describe()
            );
        }
        let own = &net.servers[owner].backup;
        assert!(own.replicas_of(log.number()).is_empty(), "never at itself");
        for (n, server) in net.servers.iter().enumerate() {
            assert_eq!(server.ended, None, "seed {seed}: server {n}");
        }
        assert!(net.run(2_000_000, |net| net.reads(owner)));
        fetched += net.fetched;
    }
    assert!(
        fetched > 0,
        "closed segments were made good for from others"
    );
}

#[test]
fn who_is_cut_off_from_the_holders_of_its_control_segment_stops_reading() {
    let mut net = Net::new(3, 4);
    let owner = net.begin();
    assert!(net.write(owner, b"key", b"value"));
    assert!(net.run(5_000_000, |net| net.reads(owner)));
    // Without writes, the lease is renewed.
    for _ in 0..100 {
        net.run(20_000, |_| false);
        assert!(net.reads(owner), "at {}", net.now_us);
    }
    net.cut(owner, (0..4).filter(|n| *n != owner));
    net.run(u64::from(LEASE_MS) * 1000 + 25_000, |_| false);
    assert!(!net.reads(owner));
    net.cut.clear();
    assert_eq!(
        net.servers[owner].ended, None,
        "the coordinator still heard it"
    );
    assert!(net.run(5_000_000, |net| net.reads(owner)));
}

#[test]
fn scenario_27_a_zombie_reads_nothing_once_a_backup_has_said_so() {
    for seed in 1..=8 {
        let mut net = Net::new(seed, 4);
        let owner = net.begin();
        let server = net.servers[owner].node.member().id();
        assert!(net.write(owner, b"key", b"value"));
        assert!(net.run(5_000_000, |net| net.reads(owner)));
        // The owner receives no messages, but its own messages may still arrive.
        for other in (0..4).filter(|n| *n != owner).chain([COORDINATOR]) {
            net.cut.insert((other, owner));
        }
        net.admin(Admin::CrashServer { server });
        net.run(3_000_000, |_| false); // `check` runs all the time
        assert!(!net.quiet.is_empty(), "seed {seed}: a holder was asked");
        assert!(!net.write(owner, b"late", b"late"), "seed {seed}");
        // It is told at last.
        net.cut.clear();
        assert!(net.run(5_000_000, |net| net.servers[owner].ended.is_some()));
        let store = net.servers[owner].store.as_ref().unwrap();
        assert!(store.log().unwrap().failure().is_some());
    }
}

/// Two bits flip in an entry that is acknowledged, and then a write of its segment is damaged on
/// the way. The head waited for ever, while the member counted as well. Its life ends, and others
/// recover what is acknowledged.
#[test]
fn a_member_whose_memory_cannot_be_stored_any_more_ends_its_life() {
    let mut net = Net::new(5, 4);
    let owner = net.begin();
    assert!(net.write(owner, b"key", &[6; 500]));
    let log = net.servers[owner].node.member().id();
    let store = net.servers[owner].store.clone().unwrap();
    let engine = store.engine();
    let mut session = engine.session().unwrap();
    let mut guard = session.pin();
    let hash = guard.hash(b"late");
    guard.write(TABLE, hash, b"late", &[5; 500], None).unwrap();
    drop(guard);
    drop(session);
    let writer = store.log().unwrap();
    writer.try_commit_here(Level::Synced);
    assert!(engine.flips().entry(TABLE, b"key", &[8 * 200, 8 * 210]));
    for ticket in 0..10_000 {
        writer.answered(Ticket(ticket), Err(Rejection::Damaged));
    }
    assert!(net.run(1_000_000, |net| net.servers[owner].ended.is_some()));
    let reason = net.servers[owner].ended.clone().unwrap();
    assert!(reason.contains("certificate"), "{reason}");
    let found = net.recover(log, &[]);
    assert_eq!(found.get(&b"key"[..]), Some(&vec![6; 500]));
}

/// Writes some segments, and returns the replicas that each other server has more.
fn replicas_of_new_segments(net: &mut Net, owner: usize, round: u32) -> BTreeMap<usize, usize> {
    let log = net.servers[owner].node.member().id().number();
    let held = |net: &Net, n: usize| -> BTreeSet<ReplicaId> {
        let replicas = net.servers[n].backup.replicas_of(log);
        replicas.iter().map(|replica| replica.id()).collect()
    };
    let others = (0..net.servers.len()).filter(|n| *n != owner);
    let before: BTreeMap<usize, BTreeSet<ReplicaId>> = others.map(|n| (n, held(net, n))).collect();
    let value = vec![7; settings().segment_bytes as usize / 6];
    for n in 0..50 {
        let key = format!("round {round} key {n}").into_bytes();
        assert!(net.write(owner, &key, &value), "write {n}");
    }
    let more =
        |(n, known): (&usize, &BTreeSet<ReplicaId>)| (*n, held(net, *n).difference(known).count());
    before.iter().map(more).collect()
}

/// Each server enlisted with an unknown speed, so placement was by count: a slow disk got as many
/// replicas as a fast one, and made each recovery as slow as itself.
#[test]
fn masters_place_by_the_speeds_that_the_backups_measure() {
    let mut net = Net::new(11, 5);
    let owner = net.begin();
    let even = replicas_of_new_segments(&mut net, owner, 1);
    let all: usize = even.values().sum();
    assert!(all >= 16, "{even:?}");
    assert!(even.values().all(|count| *count >= all / 8), "{even:?}");
    // The disks' first reads show that one of them is slow; one is not measured.
    let others: Vec<usize> = even.keys().copied().collect();
    let bytes = u64::from(settings().segment_bytes);
    for (n, ms) in [(others[0], 80), (others[1], 8), (others[2], 8)] {
        net.servers[n]
            .backup
            .reader()
            .note_read(bytes, Duration::from_millis(ms));
    }
    let speeds = |net: &Net, reader: usize| -> Vec<u64> {
        let members = net.servers[reader].node.member().members();
        let id = |n: &usize| net.servers[*n].node.member().id();
        let speed = |n: &usize| members.get(id(n)).expect("a member").read_bytes_per_s;
        others.iter().map(speed).collect()
    };
    let expected = [bytes * 25 / 2, bytes * 125, bytes * 125, 0];
    let is_told = |net: &Net| (0..5).all(|reader| speeds(net, reader) == expected);
    assert!(net.run(300_000_000, is_told), "{:?}", speeds(&net, owner));
    let uneven = replicas_of_new_segments(&mut net, owner, 2);
    let all: usize = uneven.values().sum();
    assert!(all >= 16 && uneven[&others[0]] <= all / 12, "{uneven:?}");
    // An unknown disk counts as a usual one.
    assert!(uneven[&others[3]] >= all / 5, "{uneven:?}");
    // Another leader has the speeds too.
    net.change_leader();
    assert!(net.run(10_000_000, |_| false) || is_told(&net));
}
