//! The space of the device: free, live and held blocks, and the choice of the next block.
//!
//! **Invariants**
//! - S1: a block is in the free list if and only if its state is `Free`. It gets there from `Flash`
//!   when it has no live object and is not held; one compare-and-exchange decides which thread puts
//!   it there.
//! - S2: `live` of a block counts the locations in object tables that point into it, and
//!   `live_bytes` the bytes that their objects take there. The bytes are subtracted first: a block
//!   without a live object has no live byte.
//! - S3: no two blocks that were ever written to this device have the same sequence: its high half
//!   is drawn anew for each life, its low half counts.
//! - S4: a held block is not filled again: the last checkpoint, or the one that is about to replace
//!   it, needs its objects.
//!
//! **Concurrency** counts are atomic; the free list has a lock of its own, taken last.
//!
//! Paper: [Badam11 §3.5]; differs: live bytes are counted instead of free bytes, and live objects
//! as well; a block whose count is 0 is free without being read.

use crate::layout::{BLOCK_BYTES, BLOCK_HEADER_BYTES, block_of};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The place of a block's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Nowhere: the block may be filled.
    Free = 0,
    /// In an image, perhaps also on flash.
    Buffered = 1,
    /// On flash.
    Flash = 2,
}

/// The last checkpoint needs it.
const LAST: u8 = 1;
/// The checkpoint that is about to replace the last one needs it.
const NEXT: u8 = 2;

/// One block.
#[derive(Default)]
pub(crate) struct Block {
    state: AtomicU8,
    /// [`LAST`] and [`NEXT`] (S4).
    held: AtomicU8,
    /// An object in it cannot be read: the block is not collected until all of it is freed.
    damaged: AtomicBool,
    /// Locations that point into it (S2).
    live: AtomicU32,
    /// Bytes of their objects, headers included.
    live_bytes: AtomicU32,
    /// Bytes for objects, dead ones included. For a full block: without its end, where the next
    /// object had no room.
    room: AtomicU32,
    sequence: AtomicU64,
}

impl Block {
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Free,
            1 => State::Buffered,
            _ => State::Flash,
        }
    }

    pub fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire)
    }

    pub fn live(&self) -> u32 {
        self.live.load(Ordering::Acquire)
    }

    pub fn room(&self) -> u32 {
        self.room.load(Ordering::Relaxed)
    }

    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire) != 0
    }

    pub fn set_damaged(&self) {
        self.damaged.store(true, Ordering::Relaxed);
    }

    /// Live bytes, with their share of the bytes that no object can use: a full block of which
    /// nothing is dead is wholly live.
    pub fn live_bytes(&self) -> u64 {
        let live = u64::from(self.live_bytes.load(Ordering::Acquire));
        let room = u64::from(self.room());
        BLOCK_BYTES as u64 * live.min(room) / room.max(1)
    }

    fn needed(&self, by: u8) -> u8 {
        if self.live() > 0 { by } else { 0 }
    }

    /// Whether moving the rest frees enough garbage.
    fn is_worth_it(&self) -> bool {
        self.state() == State::Flash
            && !self.damaged.load(Ordering::Relaxed)
            && self.live_bytes() + GAIN_LEAST <= BLOCK_BYTES as u64
    }
}

/// All blocks; block 0 is the superblock's and never used.
pub(crate) struct Space {
    blocks: Box<[Block]>,
    free: Mutex<VecDeque<u32>>,
    /// High half of the sequences of this life (S3).
    life: u32,
    next: AtomicU32,
}

/// Number of blocks ahead of the hand among which the emptiest is taken: nearly sequential, and
/// never far from the best.
const LOOK_AHEAD: u32 = 64;
/// Least garbage of a victim: with less, moving its objects does not pay.
const GAIN_LEAST: u64 = BLOCK_BYTES as u64 / 32;
/// Bytes for objects in a block.
const ROOM_BYTES: u32 = (BLOCK_BYTES - BLOCK_HEADER_BYTES) as u32;

/// A block in a checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Kept {
    pub sequence: u64,
    pub room: u32,
    /// Live objects.
    pub live: u32,
    pub live_bytes: u32,
}

impl Space {
    /// All blocks free. `life`: drawn for this life.
    pub fn new(blocks: u32, life: u32) -> Space {
        Space {
            blocks: (0..blocks).map(|_| Block::default()).collect(),
            free: Mutex::new((1..blocks).collect()),
            life,
            next: AtomicU32::new(1),
        }
    }

    /// The space of a checkpoint, which describes the first blocks. Blocks with live objects are
    /// held.
    pub fn restored(found: &[Kept], blocks: u32, life: u32) -> Space {
        let space = Space::new(blocks, life);
        let mut free = VecDeque::new();
        for (number, (block, kept)) in space.blocks.iter().zip(found).enumerate() {
            block.sequence.store(kept.sequence, Ordering::Relaxed);
            block.room.store(kept.room, Ordering::Relaxed);
            block.live.store(kept.live, Ordering::Relaxed);
            block.live_bytes.store(kept.live_bytes, Ordering::Relaxed);
            if kept.live > 0 {
                block.state.store(State::Flash as u8, Ordering::Release);
                block.held.store(LAST, Ordering::Release);
            } else if number > 0 {
                free.push_back(number as u32);
            }
        }
        free.extend(found.len().max(1) as u32..blocks);
        *space.free_list() = free;
        space
    }

    fn free_list(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn block(&self, block: u32) -> &Block {
        &self.blocks[block as usize]
    }

    pub fn get(&self, block: u32) -> Option<&Block> {
        self.blocks.get(block as usize)
    }

    pub fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    pub fn free_blocks(&self) -> usize {
        self.free_list().len()
    }

    /// A block to be filled, and its sequence; `None`: at most `spare` are free.
    pub fn take(&self, spare: usize) -> Option<(u32, u64)> {
        let mut free = self.free_list();
        if free.len() <= spare {
            return None;
        }
        let number = free.pop_front()?;
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        assert!(next < u32::MAX, "a life writes fewer than 2^32 blocks (S3)");
        let sequence = u64::from(self.life) << 32 | u64::from(next);
        let block = self.block(number);
        block.damaged.store(false, Ordering::Relaxed);
        block.room.store(ROOM_BYTES, Ordering::Relaxed);
        block.sequence.store(sequence, Ordering::Release);
        block.state.store(State::Buffered as u8, Ordering::Release);
        Some((number, sequence))
    }

    /// A location in `block` was created, of an object that takes `bytes` bytes there.
    pub fn appended(&self, block: u32, bytes: u32) {
        let block = self.block(block);
        block.live.fetch_add(1, Ordering::AcqRel);
        block.live_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// The next object had no room in `block`, of which `used` bytes are in use. In a block that is
    /// closed before, unused bytes count as garbage, like dead ones.
    pub fn filled(&self, block: u32, used: usize) {
        let room = used.saturating_sub(BLOCK_HEADER_BYTES) as u32;
        self.block(block).room.store(room, Ordering::Relaxed);
    }

    /// Notes that the location of an object that takes `bytes` bytes there was removed. Returns
    /// true if its block is free now.
    pub fn release(&self, location: u32, bytes: u32) -> bool {
        let number = block_of(location);
        let block = self.block(number);
        let bytes_before = block.live_bytes.fetch_sub(bytes, Ordering::AcqRel);
        let before = block.live.fetch_sub(1, Ordering::AcqRel);
        assert!(
            before > 0 && bytes_before >= bytes,
            "block {number} has no such live object to be released (S2)"
        );
        before == 1 && self.settle(number)
    }

    /// Notes that the bytes of a block are on flash. Returns true if the block is free at once.
    pub fn written(&self, number: u32) -> bool {
        let state = &self.block(number).state;
        state.store(State::Flash as u8, Ordering::Release);
        self.settle(number)
    }

    /// Frees the block if no object of it is needed (S1).
    fn settle(&self, number: u32) -> bool {
        let block = self.block(number);
        if block.live() > 0 || block.is_held() {
            return false;
        }
        let (flash, free) = (State::Flash as u8, State::Free as u8);
        let mut list = self.free_list();
        let changed =
            block
                .state
                .compare_exchange(flash, free, Ordering::AcqRel, Ordering::Acquire);
        if changed.is_ok() {
            list.push_back(number);
        }
        changed.is_ok()
    }

    /// The next checkpoint also needs all blocks that are live now (S4). No block is filled
    /// meanwhile.
    pub fn hold_next(&self) {
        self.hold(|block| block.held.load(Ordering::Relaxed) & LAST | block.needed(NEXT));
    }

    /// The next checkpoint becomes the last one.
    pub fn next_is_last(&self) {
        self.hold(|block| match block.held.load(Ordering::Relaxed) & NEXT {
            0 => 0,
            _ => LAST,
        });
    }

    /// Gives up the next checkpoint.
    pub fn drop_next(&self) {
        self.hold(|block| block.held.load(Ordering::Relaxed) & LAST);
    }

    /// Notes that no checkpoint needs a block any more.
    pub fn hold_none(&self) {
        self.hold(|_| 0);
    }

    fn hold(&self, by: impl Fn(&Block) -> u8) {
        for (number, block) in self.blocks.iter().enumerate().skip(1) {
            block.held.store(by(block), Ordering::Release);
            self.settle(number as u32);
        }
    }

    /// The next block to be collected from `hand` on, which advances; `None`: none is worth it.
    pub fn victim(&self, hand: &mut u32) -> Option<u32> {
        let worth = |number: u32| {
            let block = self.block(number);
            let is_victim = !block.is_held() && block.is_worth_it();
            is_victim.then(|| (block.live_bytes(), number))
        };
        let from = |start: u32| {
            let last = self.len() - 1;
            (0..last).map(move |step| 1 + (start + step) % last)
        };
        let start = *hand;
        let near = from(start)
            .take(LOOK_AHEAD as usize)
            .filter_map(worth)
            .min();
        let found = near.or_else(|| from(start).filter_map(worth).min());
        let (_, number) = found?;
        *hand = number % (self.len() - 1); // the block after it
        Some(number)
    }

    /// Number of blocks with live objects: those that a checkpoint would hold.
    pub fn needed(&self) -> usize {
        let blocks = self.blocks.iter().skip(1);
        blocks.filter(|block| block.live() > 0).count()
    }

    /// Whether moving the live objects of a block elsewhere would leave fewer blocks with live
    /// objects.
    pub fn is_worth_it(&self, number: u32) -> bool {
        let block = self.block(number);
        block.live() > 0 && block.is_worth_it()
    }

    /// The emptiest blocks, the very emptiest last: as many as must be emptied so that only `most`
    /// are needed.
    pub fn sparse(&self, most: usize) -> Vec<u32> {
        let numbers = (1..self.len()).filter(|number| self.is_worth_it(*number));
        // Live bytes and block number in one word: little memory is taken beside the budget.
        let both = |number| self.block(number).live_bytes() << 32 | u64::from(number);
        let mut found: Vec<u64> = numbers.map(both).collect();
        found.sort_unstable();
        let mut left = (self.needed() * BLOCK_BYTES) as u64;
        let mut is_wanted = |both: &u64| {
            let is_much = left > (most * BLOCK_BYTES) as u64;
            left = left.saturating_sub(BLOCK_BYTES as u64 - (both >> 32));
            is_much
        };
        let wanted = found.into_iter().take_while(|both| is_wanted(both));
        let mut sparse: Vec<u32> = wanted.map(|both| both as u32).collect();
        sparse.reverse();
        sparse
    }

    /// Bytes of blocks by the reason that keeps them: live objects (approximately), and the last
    /// checkpoint alone.
    pub fn kept_bytes(&self) -> (u64, u64) {
        let mut kept = (0, 0);
        for block in self
            .blocks
            .iter()
            .skip(1)
            .filter(|block| block.state() != State::Free)
        {
            let live = block.live_bytes();
            kept.0 += live;
            if block.is_held() {
                kept.1 += BLOCK_BYTES as u64 - live;
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::location;

    #[test]
    fn a_block_is_free_when_nothing_of_it_is_needed() {
        let space = Space::new(4, 7);
        let (block, sequence) = space.take(0).unwrap();
        assert_eq!((block, sequence), (1, 7 << 32 | 1));
        let at = location(block, 0);
        space.appended(block, 80);
        space.appended(block, 80);
        assert!(!space.release(at, 80));
        assert!(!space.release(at, 80), "its bytes are not on flash yet");
        assert!(space.written(block));
        assert_eq!(space.free_blocks(), 3);
        // Held by a checkpoint.
        let (block, _) = space.take(0).unwrap();
        space.appended(block, 80);
        assert!(!space.written(block));
        space.hold_next();
        assert!(!space.release(location(block, 0), 80), "held");
        assert_eq!(space.free_blocks(), 2);
        space.next_is_last();
        assert_eq!(space.free_blocks(), 2, "still held");
        space.hold_next();
        space.drop_next();
        assert_eq!(space.free_blocks(), 2, "the last one holds on");
        space.hold_next();
        space.next_is_last();
        assert_eq!(space.free_blocks(), 3);
    }

    #[test]
    fn blocks_behind_those_of_a_checkpoint_are_free() {
        let space = Space::restored(
            &[
                Kept::default(),
                Kept {
                    sequence: 5,
                    room: ROOM_BYTES,
                    live: 1,
                    live_bytes: 80,
                },
                Kept {
                    sequence: 6,
                    ..Kept::default()
                },
            ],
            6,
            7,
        );
        assert_eq!((space.len(), space.free_blocks()), (6, 4));
        let taken: Vec<u32> = (0..4).filter_map(|_| Some(space.take(0)?.0)).collect();
        assert_eq!(taken, [2, 3, 4, 5]);
    }

    #[test]
    fn the_emptiest_block_nearby_is_collected() {
        let space = Space::new(200, 1);
        for _ in 1..200 {
            let (block, _) = space.take(0).unwrap();
            for n in 0..10 {
                if block % 10 == 0 || n > block % 10 {
                    space.appended(block, ROOM_BYTES / 10);
                }
            }
            space.filled(block, BLOCK_HEADER_BYTES + ROOM_BYTES as usize / 10 * 10);
            space.written(block);
        }
        let mut hand = 0;
        assert_eq!(
            space.victim(&mut hand),
            Some(8),
            "of blocks 1 to 64: one of ten is live"
        );
        // Block 9 has no live object, so it is free already; the full ones are never taken.
        assert_eq!(space.victim(&mut hand), Some(18));
        let full = Space::new(3, 1);
        let (block, _) = full.take(0).unwrap();
        full.appended(block, ROOM_BYTES);
        full.written(block);
        assert_eq!(full.victim(&mut 0), None);
    }
}
