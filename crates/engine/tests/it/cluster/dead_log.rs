//! The log of a server that died: histories of keys as entries, scattered over segments.

use crate::durable::disk::Name;
use crate::durable::world::State;
use duramen_base::expiry::is_expired;
use duramen_base::ids::SegmentId;
use duramen_base::random::Random;
use duramen_format::entry::{NewObject, NewTombstone};
use std::collections::BTreeMap;

/// The expected state of a key after the replay of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The highest version that was given.
    pub version: u64,
    pub state: Option<State>,
}

pub struct DeadLog {
    /// Entries, one after the other; within and between segments in any order.
    pub segments: Vec<Vec<u8>>,
    pub expected: BTreeMap<Name, Expected>,
    pub version_max: u64,
}

pub fn object(name: &Name, version: u64, state: &State, victim: u64) -> Vec<u8> {
    let object = NewObject {
        table: name.0,
        version,
        expires_at_ms: state.expires_at_ms,
        key: &name.1,
        value: &state.value,
        victim: SegmentId(victim),
        is_typed: false,
    };
    let mut bytes = vec![0; object.padded_bytes()];
    object.write_to(&mut bytes);
    bytes
}

pub fn tombstone(name: &Name, version: u64) -> Vec<u8> {
    let tombstone = NewTombstone {
        table: name.0,
        version,
        key: &name.1,
        victim: SegmentId(12_345),
    };
    let mut bytes = vec![0; tombstone.padded_bytes()];
    tombstone.write_to(&mut bytes);
    bytes
}

impl DeadLog {
    /// A log of `keys` keys with some versions each, of which any except the last may be missing
    /// (as after cleaning).
    pub fn new(random: &mut Random, keys: u64, value_bytes: u64, now_ms: u64) -> DeadLog {
        let mut entries: Vec<Vec<u8>> = Vec::new();
        let mut expected = BTreeMap::new();
        let mut version_max = 0;
        for n in 0..keys {
            let name: Name = (0, format!("key-{n}").into_bytes());
            let mut version = random.below(50);
            let mut last = Expected {
                version,
                state: None,
            };
            for _ in 0..=random.below(5) {
                version += 1 + random.below(3);
                version_max = version_max.max(version);
                let state = State {
                    value: vec![random.below(256) as u8; 1 + random.below(value_bytes) as usize],
                    expires_at_ms: (random.below(8) == 0)
                        .then(|| now_ms - 50 + random.below(2) * 1_000_000),
                };
                entries.push(object(&name, version, &state, random.below(3)));
                let expired = state.expires_at_ms.is_some_and(|at| is_expired(at, now_ms));
                last = Expected {
                    version,
                    state: (!expired).then_some(state),
                };
                if random.below(3) == 0 {
                    entries.push(tombstone(&name, version));
                    last.state = None;
                }
            }
            expected.insert(name, last);
        }
        for left in (1..entries.len()).rev() {
            entries.swap(left, random.below(left as u64 + 1) as usize);
        }
        let mut segments: Vec<Vec<u8>> = vec![Vec::new(); 1 + random.below(6) as usize];
        let many = segments.len() as u64;
        for entry in entries {
            segments[random.below(many) as usize].extend_from_slice(&entry);
        }
        DeadLog {
            segments,
            expected,
            version_max,
        }
    }

    /// The segments in a random order, some of them more than once.
    pub fn in_some_order(&self, random: &mut Random) -> Vec<&[u8]> {
        let mut order: Vec<&[u8]> = self.segments.iter().map(Vec::as_slice).collect();
        for _ in 0..random.below(3) {
            order.push(order[random.below(order.len() as u64) as usize]);
        }
        for left in (1..order.len()).rev() {
            order.swap(left, random.below(left as u64 + 1) as usize);
        }
        order
    }
}
