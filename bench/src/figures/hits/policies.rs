//! Simulated caches with a budget of bytes: LRU, S3-FIFO, and LFU by samples as Redis has it.
//!
//! Keys are numbers below a bound, so that a table by key stands for a hash table. Each policy
//! charges for the memory that a real one would take for an object beside key and value.

use crate::harness::Random;
use std::collections::VecDeque;

/// A cache that is asked for a key, and given the object if it has not got it.
pub(super) trait Policy {
    /// True if the key was here. `bytes`: of its key and value.
    fn request(&mut self, key: u32, bytes: u64) -> bool;

    /// Objects that are here.
    fn objects(&self) -> u64;
}

/// Memory for an object with `overhead` bytes beside it, in units of 8 bytes as allocators have.
fn charged(bytes: u64, overhead: u64) -> u64 {
    (bytes + overhead).next_multiple_of(8)
}

/// Two links of the order, the chain and the bucket of the hash table, hash, lengths.
const LRU_OVERHEAD: u64 = 48;
/// The place in a queue instead of two links.
const S3_FIFO_OVERHEAD: u64 = 40;
/// A key that is remembered: its hash.
const GHOST_BYTES: u64 = 8;
/// No order: the counter is beside the lengths.
const LFU_OVERHEAD: u64 = 32;

/// The object that was used least lately leaves.
pub(super) struct Lru {
    /// Neighbours by key: older, newer. The last entry is the head of the ring.
    links: Vec<(u32, u32)>,
    charge: fn(u64) -> u64,
    budget: u64,
    used: u64,
    objects: u64,
    bytes: fn(u32) -> u64,
}

const NOWHERE: u32 = u32::MAX;

impl Lru {
    /// `bytes`: of the object of a key.
    pub(super) fn new(keys: u32, budget: u64, bytes: fn(u32) -> u64) -> Lru {
        Lru::charging(keys, budget, bytes, |bytes| charged(bytes, LRU_OVERHEAD))
    }

    /// One with a limit of objects instead of bytes.
    pub(super) fn of_objects(keys: u32, objects: u64, bytes: fn(u32) -> u64) -> Lru {
        Lru::charging(keys, objects, bytes, |_| 1)
    }

    fn charging(keys: u32, budget: u64, bytes: fn(u32) -> u64, charge: fn(u64) -> u64) -> Lru {
        let mut links = vec![(NOWHERE, NOWHERE); keys as usize + 1];
        links[keys as usize] = (keys, keys);
        Lru {
            links,
            charge,
            budget,
            used: 0,
            objects: 0,
            bytes,
        }
    }

    fn head(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    fn unlink(&mut self, key: u32) {
        let (older, newer) = self.links[key as usize];
        self.links[older as usize].1 = newer;
        self.links[newer as usize].0 = older;
        self.links[key as usize] = (NOWHERE, NOWHERE);
    }

    fn link_newest(&mut self, key: u32) {
        let head = self.head();
        let newest = self.links[head as usize].0;
        self.links[key as usize] = (newest, head);
        self.links[newest as usize].1 = key;
        self.links[head as usize].0 = key;
    }
}

impl Policy for Lru {
    fn request(&mut self, key: u32, bytes: u64) -> bool {
        if self.links[key as usize].0 != NOWHERE {
            self.unlink(key);
            self.link_newest(key);
            return true;
        }
        self.used += (self.charge)(bytes);
        self.objects += 1;
        while self.used > self.budget && self.objects > 1 {
            let oldest = self.links[self.head() as usize].1;
            self.unlink(oldest);
            self.used -= (self.charge)((self.bytes)(oldest));
            self.objects -= 1;
        }
        self.link_newest(key);
        false
    }

    fn objects(&self) -> u64 {
        self.objects
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    None,
    Small,
    Main,
    Ghost,
}

/// S3-FIFO (SOSP'23): a small queue for new objects, a main one for those that were used in it or
/// came back soon, and the hashes of those that left.
pub(super) struct S3Fifo {
    /// By key: its queue, its uses up to three, and the number of its last entry among ghosts.
    states: Vec<(Queue, u8, u32)>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: VecDeque<(u32, u32)>,
    ghosts_live: u64,
    next_ghost: u32,
    small_bytes: u64,
    main_bytes: u64,
    budget: u64,
    bytes: fn(u32) -> u64,
}

impl S3Fifo {
    pub(super) fn new(keys: u32, budget: u64, bytes: fn(u32) -> u64) -> S3Fifo {
        S3Fifo {
            states: vec![(Queue::None, 0, 0); keys as usize],
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: VecDeque::new(),
            ghosts_live: 0,
            next_ghost: 0,
            small_bytes: 0,
            main_bytes: 0,
            budget,
            bytes,
        }
    }

    fn used(&self) -> u64 {
        self.small_bytes + self.main_bytes + GHOST_BYTES * self.ghosts_live
    }

    fn cost(&self, key: u32) -> u64 {
        charged((self.bytes)(key), S3_FIFO_OVERHEAD)
    }

    fn evict(&mut self) {
        if self.main.is_empty() || self.small_bytes >= self.budget / 10 {
            self.evict_small();
        } else {
            self.evict_main();
        }
        while self.ghosts_live > self.objects() {
            let Some((key, number)) = self.ghosts.pop_front() else {
                break;
            };
            let state = &mut self.states[key as usize];
            if (state.0, state.2) == (Queue::Ghost, number) {
                state.0 = Queue::None;
                self.ghosts_live -= 1;
            }
        }
    }

    fn evict_small(&mut self) {
        while let Some(key) = self.small.pop_front() {
            let cost = self.cost(key);
            self.small_bytes -= cost;
            let state = &mut self.states[key as usize];
            if state.1 > 1 {
                (state.0, state.1) = (Queue::Main, 0);
                self.main.push_back(key);
                self.main_bytes += cost;
                continue;
            }
            *state = (Queue::Ghost, 0, self.next_ghost);
            self.ghosts.push_back((key, self.next_ghost));
            self.next_ghost = self.next_ghost.wrapping_add(1);
            self.ghosts_live += 1;
            return;
        }
    }

    fn evict_main(&mut self) {
        while let Some(key) = self.main.pop_front() {
            let state = &mut self.states[key as usize];
            if state.1 == 0 {
                state.0 = Queue::None;
                self.main_bytes -= self.cost(key);
                return;
            }
            state.1 -= 1;
            self.main.push_back(key);
        }
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, key: u32, bytes: u64) -> bool {
        let state = &mut self.states[key as usize];
        if matches!(state.0, Queue::Small | Queue::Main) {
            state.1 = (state.1 + 1).min(3);
            return true;
        }
        let was_here = state.0 == Queue::Ghost;
        if was_here {
            state.0 = Queue::None;
            self.ghosts_live -= 1;
        }
        let cost = charged(bytes, S3_FIFO_OVERHEAD);
        while self.used() + cost > self.budget && self.objects() > 0 {
            self.evict();
        }
        let state = &mut self.states[key as usize];
        state.1 = 0;
        if was_here {
            state.0 = Queue::Main;
            self.main.push_back(key);
            self.main_bytes += cost;
        } else {
            state.0 = Queue::Small;
            self.small.push_back(key);
            self.small_bytes += cost;
        }
        false
    }

    fn objects(&self) -> u64 {
        (self.small.len() + self.main.len()) as u64
    }
}

/// Redis's counter: a new object begins with this, and each further step is rarer by 10.
const COUNTER_NEW: u8 = 5;
const LOG_FACTOR: f64 = 10.0;
/// Requests in the minute in which a counter loses one: 17,000 requests a second.
const MINUTE: u64 = 1_000_000;

/// The least counter of some objects leaves, as `allkeys-lfu`.
pub(super) struct Lfu {
    /// By key: place among those here, counter, minute of its last use.
    states: Vec<(u32, u8, u32)>,
    here: Vec<u32>,
    samples: usize,
    requests: u64,
    used: u64,
    budget: u64,
    random: Random,
    bytes: fn(u32) -> u64,
}

impl Lfu {
    /// `samples`: objects that are compared for each that leaves.
    pub(super) fn new(keys: u32, budget: u64, bytes: fn(u32) -> u64, samples: usize) -> Lfu {
        Lfu {
            states: vec![(NOWHERE, 0, 0); keys as usize],
            here: Vec::new(),
            samples,
            requests: 0,
            used: 0,
            budget,
            random: Random::new(16),
            bytes,
        }
    }

    fn minute(&self) -> u32 {
        (self.requests / MINUTE) as u32
    }

    /// The counter, less one for each minute without a use.
    fn counter(&self, key: u32) -> u8 {
        let (_, counter, minute) = self.states[key as usize];
        counter.saturating_sub((self.minute() - minute).min(255) as u8)
    }

    fn evict(&mut self) {
        let mut least = (u8::MAX, 0);
        for sample in 0..self.samples {
            let place = self.random.index(self.here.len());
            let counter = self.counter(self.here[place]);
            if sample == 0 || counter < least.0 {
                least = (counter, place);
            }
        }
        let key = self.here.swap_remove(least.1);
        self.states[key as usize].0 = NOWHERE;
        if let Some(moved) = self.here.get(least.1) {
            self.states[*moved as usize].0 = least.1 as u32;
        }
        self.used -= charged((self.bytes)(key), LFU_OVERHEAD);
    }
}

impl Policy for Lfu {
    fn request(&mut self, key: u32, bytes: u64) -> bool {
        self.requests += 1;
        if self.states[key as usize].0 != NOWHERE {
            let counter = self.counter(key);
            let above = f64::from(counter.saturating_sub(COUNTER_NEW));
            let is_counted = self.random.unit() < 1.0 / (above * LOG_FACTOR + 1.0);
            let minute = self.minute();
            let state = &mut self.states[key as usize];
            (state.1, state.2) = (counter.saturating_add(u8::from(is_counted)), minute);
            return true;
        }
        let cost = charged(bytes, LFU_OVERHEAD);
        while self.used + cost > self.budget && !self.here.is_empty() {
            self.evict();
        }
        self.states[key as usize] = (self.here.len() as u32, COUNTER_NEW, self.minute());
        self.here.push(key);
        self.used += cost;
        false
    }

    fn objects(&self) -> u64 {
        self.here.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 80;

    fn of(_: u32) -> u64 {
        BYTES
    }

    /// One letter per request: `h` = hit, `m` = miss.
    fn answers(policy: &mut impl Policy, keys: &[u32]) -> String {
        let answer = |key: &u32| {
            if policy.request(*key, BYTES) {
                'h'
            } else {
                'm'
            }
        };
        keys.iter().map(answer).collect()
    }

    #[test]
    fn lru_drops_what_was_used_least_lately() {
        let mut lru = Lru::new(10, 3 * (BYTES + LRU_OVERHEAD), of);
        // 0 is used again, so that 1 makes room for 3, and 2 for 1.
        assert_eq!(answers(&mut lru, &[0, 1, 2, 0, 3, 0, 1, 3, 2]), "mmmhmhmhm");
        assert_eq!(lru.objects(), 3);
    }

    #[test]
    fn lru_counts_the_bytes_of_each_object() {
        let bytes = |key: u32| u64::from(key) * 100;
        let mut lru = Lru::new(10, 1000, bytes);
        assert!(!lru.request(1, 100) && !lru.request(2, 200) && !lru.request(4, 400));
        assert_eq!(lru.objects(), 3, "152 + 248 + 448 bytes");
        assert!(!lru.request(3, 300));
        assert_eq!(lru.objects(), 2, "448 + 352 bytes");
        assert_eq!(Lru::of_objects(10, 2, bytes).budget, 2);
    }

    #[test]
    fn s3_fifo_keeps_what_is_used_through_a_scan() {
        let budget = 10 * (BYTES + S3_FIFO_OVERHEAD);
        let mut cache = S3Fifo::new(1000, budget, of);
        assert_eq!(answers(&mut cache, &[1, 1, 1, 2, 2, 2]), "mhhmhh");
        let scan: Vec<u32> = (100..200).collect();
        assert_eq!(answers(&mut cache, &scan), "m".repeat(100));
        assert_eq!(answers(&mut cache, &[1, 2]), "hh");
        let mut lru = Lru::new(1000, budget, of);
        answers(&mut lru, &[1, 1, 1, 2, 2, 2]);
        answers(&mut lru, &scan);
        assert_eq!(answers(&mut lru, &[1, 2]), "mm");
    }

    #[test]
    fn s3_fifo_puts_what_comes_back_soon_into_the_main_queue() {
        let mut cache = S3Fifo::new(1000, 10 * (BYTES + S3_FIFO_OVERHEAD), of);
        answers(&mut cache, &(0..11).collect::<Vec<u32>>());
        assert_eq!(cache.states[0].0, Queue::Ghost);
        assert_eq!(answers(&mut cache, &[0]), "m");
        assert_eq!(cache.states[0].0, Queue::Main);
        assert!(cache.used() <= cache.budget);
        // A ghost that came back leaves an entry behind it, which is not its next one.
        answers(&mut cache, &(100..150).collect::<Vec<u32>>());
        assert_eq!(
            cache.ghosts_live,
            cache.states.iter().filter(|s| s.0 == Queue::Ghost).count() as u64
        );
    }

    #[test]
    fn lfu_drops_what_was_used_least_often() {
        // With many samples the choice is exact but for chance of one in 10^13.
        let mut cache = Lfu::new(10, 3 * (BYTES + LFU_OVERHEAD), of, 100);
        assert_eq!(answers(&mut cache, &[0, 0, 0, 1, 1, 1, 2, 3]), "mhhmhhmm");
        assert_eq!(answers(&mut cache, &[0, 1, 3, 2]), "hhhm");
        assert_eq!(cache.objects(), 3);
    }

    #[test]
    fn lfu_forgets_by_the_minute() {
        let mut cache = Lfu::new(10, 1 << 20, of, 5);
        answers(&mut cache, &[0, 0]);
        assert_eq!(
            cache.counter(0),
            COUNTER_NEW + 1,
            "the first use always counts"
        );
        cache.requests += 3 * MINUTE;
        assert_eq!(cache.counter(0), COUNTER_NEW - 2);
        cache.requests += 300 * MINUTE;
        assert_eq!(cache.counter(0), 0);
    }
}
