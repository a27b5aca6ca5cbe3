//! Crashed servers are recovered over slow links, without more traffic than needed.

use crate::node::net::{Net, Slow, settings};
use crate::node::recovery::{everything_is_served, served};
use duramen_wire::native::message::ClusterSettings;
use std::collections::BTreeMap;

/// Requests that were on their way were repeated: the links were full of copies, and nothing
/// arrived in time. A log of 30 MB took minutes at 100 Mbit/s, with 20 times its bytes sent.
#[test]
fn a_crash_behind_slow_links_is_recovered_without_repetitions() {
    let settings = ClusterSettings {
        partition_bytes: 4 << 20,
        ..settings()
    };
    let mut net = Net::with(7, 4, settings);
    let first = net.begin();
    let mut model = BTreeMap::new();
    let mut bytes = 0;
    for n in 0..41u64 {
        let key = format!("key {n}").into_bytes();
        let value = vec![n as u8; 300_000];
        assert!(net.write(first, &key, &value), "write {n}");
        bytes += value.len() as u64;
        model.insert(key, value);
    }
    net.lost_percent = 0;
    net.slow = Some(Slow {
        bytes_per_s: 1_000_000,
        bytes: 0,
        free_us: BTreeMap::new(),
    });
    net.servers[first].is_alive = false;
    let began_us = net.now_us;
    assert!(net.run(120_000_000, everything_is_served), "not recovered");
    let (took_us, sent) = (net.now_us - began_us, net.slow.as_ref().unwrap().bytes);
    println!("{bytes} bytes: recovered in {took_us} us, {sent} bytes sent");
    assert!(served(&net) == model);
    // Each byte is read once, and written to two backups.
    assert!(sent < 4 * bytes, "{sent} bytes sent for {bytes}");
    for server in net.servers.iter().filter(|server| server.is_alive) {
        assert_eq!(server.ended, None);
    }
}
