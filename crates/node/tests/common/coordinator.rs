//! The real coordinator, its store in memory, and random numbers from a seed.

use duramen_cluster::coordinator::store::{Memory, MetaStore};
use duramen_cluster::coordinator::{Config, Coordinator, Output};
use duramen_wire::native::message::ClusterSettings;

/// A leader over an empty store, at time 0.
pub fn coordinator(seed: u64, settings: ClusterSettings) -> (Memory, Coordinator, Vec<Output>) {
    let mut meta = Memory::new("one");
    meta.acquire().unwrap().expect("nobody else leads");
    let config = Config {
        cluster: "test".to_owned(),
        new_id: duramen_base::ids::ClusterId(1),
        name: "coordinator:1".to_owned(),
        term: 1,
        seed,
        settings,
    };
    let (coordinator, outputs) = Coordinator::open(0, &meta.load().unwrap(), config).unwrap();
    (meta, coordinator, outputs)
}
