//! dashmap in its common use as a store: a fast hash and boxed values. The peer of figures in
//! process.

use dashmap::DashMap;

type Hash = std::hash::BuildHasherDefault<rapidhash::fast::RapidHasher<'static>>;

/// Numbers of keys, and values.
pub type Map = DashMap<u64, Box<[u8]>, Hash>;

/// An empty map.
pub fn new() -> Map {
    Map::with_hasher(Hash::default())
}
