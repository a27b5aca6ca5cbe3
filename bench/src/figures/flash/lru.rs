//! An LRU cache, to be measured beside the allocator's: the policy of Badam11.
//!
//! It is made as fast as possible: all objects have one length, so that room never has to be
//! searched for or joined.
//!
//! **Concurrency** shards with a lock each, as in the allocator's cache.
//!
//! **Layout** a slot for each object: its key with a bit for dirty, and its neighbours in the order
//! of use; its bytes; an index of four bytes per object and a quarter more.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes of each object.
pub const OBJECT_BYTES: usize = 128;
const SHARD_BYTES: u64 = 4 << 20;
const SHARDS_MAX: u64 = 16;
const DIRTY: u64 = 1 << 63;
const NOBODY: u32 = u32::MAX;

/// An LRU cache; see the file's head.
pub struct Lru(Box<[Mutex<Shard>]>);

#[derive(Clone, Copy)]
struct Slot {
    /// With [`DIRTY`].
    key: u64,
    /// Neighbours in the order of use.
    older: u32,
    newer: u32,
}

struct Shard {
    index: Vec<u32>,
    slots: Vec<Slot>,
    bytes: Vec<u8>,
    slots_max: usize,
    oldest: u32,
    newest: u32,
    written: u64,
}

fn mixed(key: u64) -> u64 {
    let mixed = (key ^ key >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Lru {
    /// A cache with at most `bytes` of RAM.
    pub fn new(bytes: u64) -> Lru {
        let shards = 1 << (bytes / SHARD_BYTES).clamp(1, SHARDS_MAX).ilog2();
        let each = (bytes / shards) as usize;
        let shards = (0..shards).map(|_| Mutex::new(Shard::new(each)));
        Lru(shards.collect())
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        let shard = &self.0[mixed(key) as usize & (self.0.len() - 1)];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies an object; false: it is not here.
    pub fn get(&self, key: u64, into: &mut [u8; OBJECT_BYTES]) -> bool {
        let mut shard = self.shard(key);
        let Some((_, slot)) = shard.find(key) else {
            return false;
        };
        let at = slot as usize * OBJECT_BYTES;
        into.copy_from_slice(&shard.bytes[at..at + OBJECT_BYTES]);
        shard.use_now(slot);
        true
    }

    /// Puts an object. A clean one does not replace an existing one.
    pub fn put(
        &self,
        key: u64,
        bytes: &[u8; OBJECT_BYTES],
        dirty: bool,
        spill: &dyn Fn(u64, &[u8]),
    ) {
        let mut shard = self.shard(key);
        let slot = match shard.find(key) {
            Some(_) if !dirty => return,
            Some((_, slot)) => slot,
            None => shard.add(key, spill),
        };
        shard.slots[slot as usize].key |= DIRTY * u64::from(dirty);
        let at = slot as usize * OBJECT_BYTES;
        shard.bytes[at..at + OBJECT_BYTES].copy_from_slice(bytes);
        shard.use_now(slot);
    }

    /// Number of dirty objects that left.
    pub fn written(&self) -> u64 {
        let shards = self.0.iter();
        let shards = shards.map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        shards.map(|shard| shard.written).sum()
    }
}

impl Shard {
    fn new(bytes: usize) -> Shard {
        let each = OBJECT_BYTES + size_of::<Slot>() + 5;
        let slots_max = bytes / each;
        Shard {
            index: vec![0; slots_max * 5 / 4 + 64],
            slots: Vec::with_capacity(slots_max),
            bytes: vec![0; slots_max * OBJECT_BYTES],
            slots_max,
            oldest: NOBODY,
            newest: NOBODY,
            written: 0,
        }
    }

    fn home(&self, key: u64) -> usize {
        (((mixed(key) >> 32) * self.index.len() as u64) >> 32) as usize
    }

    /// The entry of the index, and the slot.
    fn find(&self, key: u64) -> Option<(usize, u32)> {
        let mut entry = self.home(key);
        loop {
            let slot = self.index[entry].checked_sub(1)?;
            if self.slots[slot as usize].key & !DIRTY == key {
                return Some((entry, slot));
            }
            entry = (entry + 1) % self.index.len();
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { older, newer, .. } = self.slots[slot as usize];
        match self.slots.get_mut(older as usize) {
            Some(its) => its.newer = newer,
            None => self.oldest = newer,
        }
        match self.slots.get_mut(newer as usize) {
            Some(its) => its.older = older,
            None => self.newest = older,
        }
    }

    fn use_now(&mut self, slot: u32) {
        if self.newest == slot {
            return;
        }
        self.unlink(slot);
        self.link_newest(slot);
    }

    fn link_newest(&mut self, slot: u32) {
        let older = self.newest;
        match self.slots.get_mut(older as usize) {
            Some(its) => its.newer = slot,
            None => self.oldest = slot,
        }
        let its = &mut self.slots[slot as usize];
        (its.older, its.newer) = (older, NOBODY);
        self.newest = slot;
    }

    /// A slot for a new key: a fresh one, or the oldest object's.
    fn add(&mut self, key: u64, spill: &dyn Fn(u64, &[u8])) -> u32 {
        let fresh = Slot {
            key,
            older: NOBODY,
            newer: NOBODY,
        };
        let slot = if self.slots.len() < self.slots_max {
            self.slots.push(fresh);
            self.slots.len() as u32 - 1
        } else {
            let slot = self.oldest;
            self.drop_object(slot, spill);
            self.slots[slot as usize] = fresh;
            slot
        };
        self.link_newest(slot);
        let mut entry = self.home(key);
        while self.index[entry] != 0 {
            entry = (entry + 1) % self.index.len();
        }
        self.index[entry] = slot + 1;
        slot
    }

    fn drop_object(&mut self, slot: u32, spill: &dyn Fn(u64, &[u8])) {
        let key = self.slots[slot as usize].key;
        if key & DIRTY != 0 {
            let at = slot as usize * OBJECT_BYTES;
            spill(key & !DIRTY, &self.bytes[at..at + OBJECT_BYTES]);
            self.written += 1;
        }
        let (entry, _) = self.find(key & !DIRTY).expect("what is in a slot is found");
        self.unlink(slot);
        // Entries behind an emptied one move up.
        let length = self.index.len();
        let (mut hole, mut at) = (entry, entry);
        loop {
            at = (at + 1) % length;
            let Some(other) = self.index[at].checked_sub(1) else {
                break;
            };
            let home = self.home(self.slots[other as usize].key & !DIRTY);
            if (at + length - home) % length >= (at + length - hole) % length {
                self.index[hole] = other + 1;
                hole = at;
            }
        }
        self.index[hole] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Random;
    use std::cell::RefCell;

    /// Checked against a list in the order of use.
    #[test]
    fn what_was_used_least_lately_leaves() {
        let lru = Lru::new(20_000);
        let most = lru.0[0].lock().unwrap().slots_max;
        assert!(most > 100, "{most} objects fit");
        let mut model: Vec<(u64, u8, bool)> = Vec::new();
        let left = RefCell::new(Vec::new());
        let spill = |key: u64, bytes: &[u8]| left.borrow_mut().push((key, bytes[5]));
        let mut rng = Random::new(1);
        let mut found = [0; OBJECT_BYTES];
        let mut expected = Vec::new();
        for step in 0..50_000u64 {
            let (key, value) = (rng.below(300), step as u8);
            let place = model.iter().position(|(other, _, _)| *other == key);
            if rng.below(2) == 0 {
                assert_eq!(lru.get(key, &mut found), place.is_some(), "key {key}");
                if let Some(place) = place {
                    let its = model.remove(place);
                    assert_eq!(found[5], its.1);
                    model.push(its);
                }
                continue;
            }
            let dirty = rng.below(3) == 0;
            lru.put(key, &[value; OBJECT_BYTES], dirty, &spill);
            match place {
                Some(_) if !dirty => {}
                Some(place) => {
                    model.remove(place);
                    model.push((key, value, true));
                }
                None => {
                    if model.len() == most {
                        let (key, value, dirty) = model.remove(0);
                        expected.extend(dirty.then_some((key, value)));
                    }
                    model.push((key, value, dirty));
                }
            }
        }
        assert_eq!(*left.borrow(), expected);
        assert_eq!(lru.written(), expected.len() as u64);
    }
}
