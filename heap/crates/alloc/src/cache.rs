//! The object cache: objects in RAM, packed; those that the program used lately and those not on
//! flash yet.
//!
//! **Invariants**
//! - C1: a dirty object leaves only after it was written to flash; if flash does not take it, it
//!   stays.
//! - C2: segments never exceed the limit: a new object makes room first.
//! - C3: a look-up finds the bytes that were put or patched last under its name.
//! - C4: a new object evicts a few objects, ahead of need, and not a segment of 500 at once, for
//!   which all other threads would wait.
//!
//! **Concurrency** shards with a lock each, taken last except for flash's. This file touches no
//! page of the arena.
//!
//! **Layout** an object: `name 40 bits | bytes 13 | dirty 1 | live 1 | uses 2`, then its bytes, to
//! a multiple of 8. Objects follow each other in segments of 64 KiB of two queues. The index has
//! four bytes per object: its offset, in units of 8 bytes.
//!
//! Paper: [Badam11 §3.2]; differs: S3-FIFO (a small queue for new objects, a main one for objects
//! that were used there or came back soon) instead of LRU: no list to be relinked at each use, and
//! objects of any lengths lie side by side, without a heap.

use crate::mapping::Mapping;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SEGMENT_BYTES: usize = 64 << 10;
const HEADER_BYTES: usize = 8;
const UNITS: usize = 8;
/// Fewest segments of a working shard: one of each queue is filled, and one is free.
const SEGMENTS_LEAST: usize = 8;
/// Smallest cache, in bytes.
pub(crate) const BYTES_LEAST: u64 = (SEGMENTS_LEAST * SEGMENT_BYTES) as u64 + (64 << 10);
/// Least bytes of a shard: 24 segments.
const SHARD_BYTES: u64 = 3 << 19;
const SHARDS_MAX: u64 = 16;
/// Shortest object of which there are many: a unit.
const OBJECT_BYTES: usize = 128 + HEADER_BYTES;
const KEY_BITS: u32 = 40;
/// Segments that may be filled before one must be emptied at once.
const SEGMENTS_AHEAD: usize = 3;
/// Bytes examined for eviction for each new byte: some of the used objects stay.
const AHEAD: usize = 3;
/// Bytes of new objects between two evictions: evicting several objects at once makes better
/// use of the processor's cache.
const AHEAD_BYTES: usize = 2 << 10;

/// Writes a dirty object to flash.
pub type Spill<'s, E> = &'s dyn Fn(u64, &[u8]) -> Result<(), E>;

/// The cache: shards with a lock each; see the file's head.
pub struct Cache {
    shards: Box<[Mutex<Shard>]>,
}

/// Counts of the objects in RAM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub objects: u64,
    pub bytes: u64,
    pub evicted: u64,
    pub spilled: u64,
}

struct Shard {
    memory: Mapping,
    free: Vec<u32>,
    in_use: usize,
    limit: usize,
    index: Vec<u32>,
    objects: usize,
    /// Fingerprints of objects that left the small queue lately.
    ghost: Vec<u16>,
    queues: [Queue; 2],
    evicted: u64,
    spilled: u64,
}

const SMALL: usize = 0;
const MAIN: usize = 1;

/// Segments in the order in which they were filled; the last one is being filled.
#[derive(Default)]
struct Queue {
    segments: VecDeque<(u32, usize)>,
    /// Offset, in the first segment, of the next object to be evicted.
    cursor: usize,
}

#[derive(Clone, Copy)]
struct Header(u64);

impl Header {
    fn new(key: u64, bytes: usize, dirty: bool, uses: u64) -> Header {
        assert!(key < 1 << KEY_BITS, "pages are numbered by 40 bits");
        Header(key | (bytes as u64) << 40 | u64::from(dirty) << 53 | 1 << 54 | uses << 55)
    }

    fn key(self) -> u64 {
        self.0 & ((1 << KEY_BITS) - 1)
    }

    fn bytes(self) -> usize {
        (self.0 >> 40 & 0x1fff) as usize
    }

    fn dirty(self) -> bool {
        self.0 >> 53 & 1 == 1
    }

    fn live(self) -> bool {
        self.0 >> 54 & 1 == 1
    }

    fn uses(self) -> u64 {
        self.0 >> 55 & 3
    }

    fn footprint(self) -> usize {
        footprint(self.bytes())
    }
}

const fn footprint(bytes: usize) -> usize {
    (HEADER_BYTES + bytes).next_multiple_of(8)
}

fn mixed(key: u64) -> u64 {
    let mixed = (key ^ key >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Cache {
    /// A cache of at most `bytes` of RAM, its index included.
    pub fn new(bytes: u64) -> std::io::Result<Cache> {
        let shards = (bytes / SHARD_BYTES).clamp(1, SHARDS_MAX);
        let shards = 1 << shards.ilog2();
        let made: std::io::Result<Vec<_>> = (0..shards)
            .map(|_| Shard::new(bytes / shards).map(Mutex::new))
            .collect();
        Ok(Cache {
            shards: made?.into(),
        })
    }

    fn shard(&self, key: u64) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[mixed(key) as usize & (self.shards.len() - 1)];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies bytes of an object, from byte `from` on. Returns false if the object is not in the
    /// cache.
    pub fn get(&self, key: u64, from: usize, into: &mut [u8]) -> bool {
        self.shard(key).get(key, from, into)
    }

    /// Puts a whole object. A clean one does not replace a cached one.
    ///
    /// # Errors
    /// Those of flash, if it does not take an object that would have to leave (C1).
    pub fn put<E>(
        &self,
        key: u64,
        bytes: &[u8],
        dirty: bool,
        spill: Spill<'_, E>,
    ) -> Result<(), E> {
        let mut shard = self.shard(key);
        if !dirty && shard.find(key).is_some() || dirty && shard.patch(key, 0, bytes) {
            return Ok(());
        }
        shard.insert(key, bytes, dirty, spill)
    }

    /// Changes a part of an object, which is dirty then. Returns false if the object is not in the
    /// cache.
    pub fn patch(&self, key: u64, from: usize, bytes: &[u8]) -> bool {
        self.shard(key).patch(key, from, bytes)
    }

    /// Drops an object, dirty or not.
    pub fn remove(&self, key: u64) {
        self.shard(key).remove(key);
    }

    /// Writes all dirty objects to flash; they stay in the cache, clean.
    ///
    /// # Errors
    /// Of flash.
    pub fn clean<E>(&self, spill: Spill<'_, E>) -> Result<(), E> {
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.clean(spill)?;
        }
        Ok(())
    }

    /// Sets the limit to `bytes` of RAM; the use stays a little above it if flash does not take an
    /// object that would have to leave.
    ///
    /// # Errors
    /// Of flash.
    pub fn limit<E>(&self, bytes: u64, spill: Spill<'_, E>) -> Result<(), E> {
        for shard in &self.shards {
            let mut locked = shard.lock().unwrap_or_else(PoisonError::into_inner);
            locked.shrink(bytes / self.shards.len() as u64, spill)?;
        }
        Ok(())
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            counts.objects += shard.objects as u64;
            counts.bytes += (shard.in_use * SEGMENT_BYTES) as u64;
            counts.evicted += shard.evicted;
            counts.spilled += shard.spilled;
        }
        counts
    }
}

/// Entries of an index and of a ghost for `bytes` bytes of segments.
fn entries(bytes: usize) -> usize {
    bytes / OBJECT_BYTES * 5 / 4 + 64
}

impl Shard {
    fn new(bytes: u64) -> std::io::Result<Shard> {
        let segments = Shard::segments(bytes);
        let entries = entries(segments * SEGMENT_BYTES);
        Ok(Shard {
            memory: Mapping::new(segments * SEGMENT_BYTES)?,
            free: (0..segments as u32).rev().collect(),
            in_use: 0,
            limit: segments,
            index: vec![0; entries],
            objects: 0,
            ghost: vec![0; entries],
            queues: Default::default(),
            evicted: 0,
            spilled: 0,
        })
    }

    /// Segments that fit into `bytes` bytes together with index and ghost.
    fn segments(bytes: u64) -> usize {
        let each = SEGMENT_BYTES + entries(SEGMENT_BYTES) * (4 + 2);
        (bytes as usize / each).max(SEGMENTS_LEAST)
    }

    fn header(&self, at: usize) -> Header {
        let bytes = &self.memory.bytes()[at..at + HEADER_BYTES];
        Header(u64::from_le_bytes(
            *bytes.first_chunk().expect("eight bytes"),
        ))
    }

    fn set_header(&mut self, at: usize, header: Header) {
        let bytes = &mut self.memory.bytes_mut()[at..at + HEADER_BYTES];
        bytes.copy_from_slice(&header.0.to_le_bytes());
    }

    fn home(&self, key: u64) -> usize {
        (((mixed(key) >> 32) * self.index.len() as u64) >> 32) as usize
    }

    fn next(&self, entry: usize) -> usize {
        if entry + 1 == self.index.len() {
            0
        } else {
            entry + 1
        }
    }

    /// Finds an object: its entry of the index, and its offset.
    fn find(&self, key: u64) -> Option<(usize, usize)> {
        let mut entry = self.home(key);
        loop {
            let at = (self.index[entry] as usize).checked_sub(1)? * UNITS;
            if self.header(at).key() == key {
                return Some((entry, at));
            }
            entry = self.next(entry);
        }
    }

    fn get(&mut self, key: u64, from: usize, into: &mut [u8]) -> bool {
        let Some((_, at)) = self.find(key) else {
            return false;
        };
        let mut header = self.header(at);
        assert!(from + into.len() <= header.bytes(), "within the object");
        let start = at + HEADER_BYTES + from;
        into.copy_from_slice(&self.memory.bytes()[start..start + into.len()]);
        if header.uses() < 3 {
            header.0 += 1 << 55;
            self.set_header(at, header);
        }
        true
    }

    fn patch(&mut self, key: u64, from: usize, bytes: &[u8]) -> bool {
        let Some((_, at)) = self.find(key) else {
            return false;
        };
        let header = self.header(at);
        assert!(from + bytes.len() <= header.bytes(), "within the object");
        let start = at + HEADER_BYTES + from;
        self.memory.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        self.set_header(at, Header(header.0 | 1 << 53));
        true
    }

    fn remove(&mut self, key: u64) {
        let Some((entry, at)) = self.find(key) else {
            return;
        };
        let header = self.header(at);
        self.set_header(at, Header(header.0 & !(1 << 54)));
        self.unlink(entry);
    }

    /// Empties an entry of the index; entries behind it move up, so that they are still found.
    fn unlink(&mut self, entry: usize) {
        let length = self.index.len();
        let (mut hole, mut at) = (entry, entry);
        loop {
            at = self.next(at);
            let found = self.index[at];
            let Some(object) = (found as usize).checked_sub(1) else {
                break;
            };
            let home = self.home(self.header(object * UNITS).key());
            if (at + length - home) % length >= (at + length - hole) % length {
                self.index[hole] = found;
                hole = at;
            }
        }
        self.index[hole] = 0;
        self.objects -= 1;
    }

    /// A fingerprint, and its index in the ghost.
    fn ghostly(&self, key: u64) -> (usize, u16) {
        let mixed = mixed(!key);
        let place = (((mixed >> 32) * self.ghost.len() as u64) >> 32) as usize;
        (place, mixed as u16 | 1)
    }

    fn insert<E>(
        &mut self,
        key: u64,
        bytes: &[u8],
        dirty: bool,
        spill: Spill<'_, E>,
    ) -> Result<(), E> {
        let (place, fingerprint) = self.ghostly(key);
        let queue = if self.ghost[place] == fingerprint {
            MAIN
        } else {
            SMALL
        };
        let size = footprint(bytes.len());
        let mut moves = SEGMENT_BYTES;
        while self.objects * 8 >= self.index.len() * 7 {
            self.evict(&mut moves, spill)?;
        }
        if !self.has_room(queue, size) {
            while self.in_use + 2 > self.limit {
                self.evict(&mut moves, spill)?;
            }
        }
        let at = self.append(queue, size);
        self.set_header(at, Header::new(key, bytes.len(), dirty, 0));
        let start = at + HEADER_BYTES;
        self.memory.bytes_mut()[start..start + bytes.len()].copy_from_slice(bytes);
        self.link(key, at);
        if at / AHEAD_BYTES != (at + size) / AHEAD_BYTES {
            self.evict_ahead(size, &mut moves, spill);
        }
        Ok(())
    }

    /// Examines some objects for eviction, for some new ones (C4). A failure is ignored: there is
    /// still room, and an operation that finds none reports the error.
    fn evict_ahead<E>(&mut self, bytes: usize, moves: &mut usize, spill: Spill<'_, E>) {
        let mut left = AHEAD * bytes.max(AHEAD_BYTES);
        while left > 0 && self.in_use + SEGMENTS_AHEAD > self.limit {
            let Ok(seen) = self.evict(moves, spill) else {
                return;
            };
            left = left.saturating_sub(seen);
        }
    }

    fn link(&mut self, key: u64, at: usize) {
        let mut entry = self.home(key);
        while self.index[entry] != 0 {
            entry = self.next(entry);
        }
        self.index[entry] = (at / UNITS) as u32 + 1;
        self.objects += 1;
    }

    fn has_room(&self, queue: usize, size: usize) -> bool {
        let last = self.queues[queue].segments.back();
        last.is_some_and(|(_, end)| end + size <= SEGMENT_BYTES)
    }

    /// Takes room for `size` bytes at the end of a queue; returns the offset.
    fn append(&mut self, queue: usize, size: usize) -> usize {
        if !self.has_room(queue, size) {
            let segment = self.free.pop().expect("a segment is free (C2)");
            self.in_use += 1;
            self.queues[queue].segments.push_back((segment, 0));
        }
        let last = self.queues[queue].segments.back_mut();
        let (segment, end) = last.expect("there is one now");
        let at = *segment as usize * SEGMENT_BYTES + *end;
        *end += size;
        at
    }

    /// Examines the next object of the queue whose turn it is; returns its bytes. `moves`: bytes of
    /// used objects that may still be kept.
    fn evict<E>(&mut self, moves: &mut usize, spill: Spill<'_, E>) -> Result<usize, E> {
        let (small, main) = (
            self.queues[SMALL].segments.len(),
            self.queues[MAIN].segments.len(),
        );
        let is_small = main == 0 || small > 0 && (small > (self.in_use / 10).max(1) || main < 2);
        let queue = if is_small { SMALL } else { MAIN };
        let (segment, end) = *self.queues[queue]
            .segments
            .front()
            .expect("something is in use");
        let cursor = self.queues[queue].cursor;
        if cursor >= end {
            self.queues[queue].segments.pop_front();
            self.queues[queue].cursor = 0;
            self.free.push(segment);
            self.in_use -= 1;
            return Ok(0);
        }
        let at = segment as usize * SEGMENT_BYTES + cursor;
        let header = self.header(at);
        let size = header.footprint();
        if header.live() {
            let is_last = self.queues[queue].segments.len() == 1;
            let has_room = self.has_room(MAIN, size) || self.in_use < self.limit; // C2
            if header.uses() > 0 && *moves >= size && !is_last && has_room {
                *moves -= size;
                self.keep(at, header, queue);
            } else {
                self.drop_object(at, header, queue, spill)?;
            }
        }
        self.queues[queue].cursor += size;
        Ok(size)
    }

    /// Moves a used object to the end of the main queue.
    fn keep(&mut self, at: usize, header: Header, queue: usize) {
        let (entry, found) = self.find(header.key()).expect("a live object is found");
        assert_eq!(found, at, "an object is live in one place");
        let to = self.append(MAIN, header.footprint());
        let memory = self.memory.bytes_mut();
        memory.copy_within(at..at + header.footprint(), to);
        let uses = if queue == SMALL { 0 } else { header.uses() - 1 };
        self.set_header(to, Header(header.0 & !(3 << 55) | uses << 55));
        self.index[entry] = (to / UNITS) as u32 + 1;
    }

    fn drop_object<E>(
        &mut self,
        at: usize,
        header: Header,
        queue: usize,
        spill: Spill<'_, E>,
    ) -> Result<(), E> {
        let key = header.key();
        if header.dirty() {
            let start = at + HEADER_BYTES;
            spill(key, &self.memory.bytes()[start..start + header.bytes()])?; // C1
            self.spilled += 1;
        }
        self.evicted += 1;
        self.remove(key);
        if queue == SMALL {
            let (place, fingerprint) = self.ghostly(key);
            self.ghost[place] = fingerprint;
        }
        Ok(())
    }

    fn clean<E>(&mut self, spill: Spill<'_, E>) -> Result<(), E> {
        for queue in [SMALL, MAIN] {
            for nth in 0..self.queues[queue].segments.len() {
                let (segment, end) = self.queues[queue].segments[nth];
                let mut cursor = if nth == 0 {
                    self.queues[queue].cursor
                } else {
                    0
                };
                while cursor < end {
                    let at = segment as usize * SEGMENT_BYTES + cursor;
                    let header = self.header(at);
                    if header.live() && header.dirty() {
                        let start = at + HEADER_BYTES;
                        spill(
                            header.key(),
                            &self.memory.bytes()[start..start + header.bytes()],
                        )?;
                        self.spilled += 1;
                        self.set_header(at, Header(header.0 & !(1 << 53)));
                    }
                    cursor += header.footprint();
                }
            }
        }
        Ok(())
    }

    fn shrink<E>(&mut self, bytes: u64, spill: Spill<'_, E>) -> Result<(), E> {
        let most = self.memory.bytes().len() / SEGMENT_BYTES;
        let before = self.limit;
        self.limit = Shard::segments(bytes).min(most);
        while self.in_use > self.limit {
            self.evict(&mut 0, spill)?;
        }
        // The segments above the new limit go back to the system, and to the front of the list.
        // They stay there, because segments are taken from the end of the list.
        let lost = before.saturating_sub(self.limit);
        for nth in self.free.len() - lost..self.free.len() {
            let at = self.free[nth] as usize * SEGMENT_BYTES;
            self.memory.discard(at, SEGMENT_BYTES);
        }
        self.free.rotate_right(lost);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// The cache with a map behind it, against a map.
    #[test]
    fn cache_and_flash_together_hold_what_was_written_last() {
        let cache = Cache::new(BYTES_LEAST).unwrap();
        let behind: RefCell<BTreeMap<u64, Vec<u8>>> = RefCell::default();
        let spill = |key: u64, bytes: &[u8]| {
            behind.borrow_mut().insert(key, bytes.to_vec());
            Ok::<(), ()>(())
        };
        let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut state = 1u64;
        let mut roll = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let bytes_of = |key: u64| 4 + (key * 37 % 700) as usize;
        for step in 0..200_000u64 {
            let key = roll(9000) * roll(2).max(1);
            match roll(10) {
                0..=3 => {
                    let bytes = vec![(step % 251) as u8; bytes_of(key)];
                    cache.put(key, &bytes, true, &spill).unwrap();
                    model.insert(key, bytes);
                }
                4 => {
                    cache.remove(key);
                    behind.borrow_mut().remove(&key);
                    model.remove(&key);
                }
                5 => {
                    if cache.patch(key, 1, &[9, 9]) {
                        model.get_mut(&key).unwrap()[1..3].copy_from_slice(&[9, 9]);
                    }
                }
                6 if step % 1000 == 0 => cache.limit(BYTES_LEAST - 1 + roll(2), &spill).unwrap(),
                7 if step % 5000 == 0 => {
                    cache.clean(&spill).unwrap();
                    assert_eq!(*behind.borrow(), model, "everything is on flash");
                }
                _ => {
                    let mut found = vec![0; bytes_of(key)];
                    if cache.get(key, 0, &mut found) {
                        assert_eq!(Some(&found), model.get(&key), "object {key}");
                        continue;
                    }
                    let behind = behind.borrow().get(&key).cloned();
                    assert_eq!(behind.as_ref(), model.get(&key), "object {key}");
                    if let Some(bytes) = behind {
                        cache.put(key, &bytes, false, &spill).unwrap();
                    }
                }
            }
        }
        assert!(cache.counts().spilled > 1000, "objects left");
        assert!(cache.counts().bytes <= BYTES_LEAST);
    }

    /// C4, with used objects (which stay) among them, in a large cache and in the smallest.
    #[test]
    fn what_comes_evicts_few_at_once() {
        for bytes in [BYTES_LEAST, 2 * SHARD_BYTES] {
            let cache = Cache::new(bytes).unwrap();
            let spilled = RefCell::new(0);
            let spill = |_: u64, _: &[u8]| {
                *spilled.borrow_mut() += 1;
                Ok::<(), ()>(())
            };
            let (mut most, mut all) = (0, 0);
            for key in 0..60_000 {
                *spilled.borrow_mut() = 0;
                cache.put(key, &[1; 128], true, &spill).unwrap();
                let now = *spilled.borrow();
                (most, all) = (most.max(now), all + now);
                if key % 3 > 0 {
                    cache.get(key - key % 900, 0, &mut [0; 128]);
                }
            }
            assert!(all > 20_000, "{all} objects left");
            assert!(most <= 60, "{most} objects left at once");
        }
    }

    #[test]
    fn what_flash_does_not_take_stays() {
        let cache = Cache::new(BYTES_LEAST).unwrap();
        let refuse = |_: u64, _: &[u8]| Err(());
        let mut put = 0;
        while cache.put(put, &[put as u8; 1000], true, &refuse).is_ok() {
            put += 1;
        }
        assert!(put > 300, "{put} fitted");
        let mut found = [0; 1000];
        for key in 0..put {
            assert!(cache.get(key, 0, &mut found), "object {key}");
            assert_eq!(found, [key as u8; 1000]);
        }
    }
}
