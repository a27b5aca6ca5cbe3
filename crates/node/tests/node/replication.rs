//! Replicas on other servers, and the leases of their holders.

use crate::net::{COORDINATOR, LEASE_MS, Net};
use duramen_wire::native::message::Admin;
use std::collections::BTreeMap;

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
