//! Crashed servers are recovered by others.

use crate::node::net::{Net, Server, TABLE, settings};
use duramen_base::ids::RouteHash;
use duramen_format::hash::KeyHasher;
use duramen_node::Route;
use duramen_wire::native::message::ClusterSettings;
use std::collections::BTreeMap;

/// The values in the memory of the present owners.
pub fn served(net: &Net) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    for n in 0..41u64 {
        let key = format!("key {n}").into_bytes();
        for server in net.servers.iter().filter(|server| server.is_alive) {
            let store = server.store.as_ref().unwrap();
            let mut session = store.engine().session().unwrap();
            let guard = session.pin();
            let hash = guard.hash(&key);
            let route = KeyHasher::new(1).route(&key);
            if server.view.route(TABLE, route) == Route::Serve
                && let Some(object) = guard.read(TABLE, hash, &key).unwrap()
            {
                let known = found.insert(key.clone(), object.value.to_vec());
                assert!(known.is_none(), "served twice");
            }
        }
    }
    found
}

/// Whether each hash is served by one living server.
pub fn everything_is_served(net: &Net) -> bool {
    let alive = net.servers.iter().filter(|server| server.is_alive);
    let mut hashes = (0..64).map(|n| RouteHash(n << 58 | 77));
    hashes.all(|hash| {
        let serves = |server: &&Server| server.view.route(TABLE, hash) == Route::Serve;
        alive.clone().filter(serves).count() == 1
    })
}

#[test]
fn who_crashed_is_recovered_by_others_with_all_that_it_acknowledged() {
    let mut owners_max = 0;
    for seed in 1..=5 {
        let settings = ClusterSettings {
            partition_bytes: if seed % 2 == 0 { 1 << 20 } else { 1 << 30 },
            ..settings()
        };
        let mut net = Net::with(seed, 5, settings);
        let first = net.begin();
        let mut model = BTreeMap::new();
        for n in 0..60u64 {
            let key = format!("key {}", n % 41).into_bytes();
            let value = vec![b'a' + (n % 26) as u8; 20_000 + net.random.below(100_000) as usize];
            assert!(net.write(first, &key, &value), "seed {seed}, write {n}");
            model.insert(key, value);
        }
        net.servers[first].is_alive = false;
        let is_recovered = net.run(20_000_000, everything_is_served);
        assert!(is_recovered, "seed {seed}: the first is not recovered");
        assert!(served(&net) == model, "seed {seed}");
        // Recovered data are in the logs of their new owners: one of them may crash at once, with
        // later writes too.
        let owners: Vec<usize> = (0..5).filter(|n| net.serves_some(*n)).collect();
        owners_max = owners_max.max(owners.len());
        let second = net.owner_of(b"key 0");
        assert!(net.write(second, b"key 0", b"after"), "seed {seed}");
        model.insert(b"key 0".to_vec(), b"after".to_vec());
        net.servers[second].is_alive = false;
        let is_recovered = net.run(30_000_000, everything_is_served);
        assert!(is_recovered, "seed {seed}: the second is not recovered");
        assert!(served(&net) == model, "seed {seed}");
        for server in net.servers.iter().filter(|server| server.is_alive) {
            assert_eq!(server.ended, None, "seed {seed}");
        }
    }
    assert!(owners_max > 1, "partitions went to several servers");
}
