//! The flusher: the thread that writes full blocks and collects garbage.
//!
//! **Invariants**
//! - F1: an object is relocated only while its owner's location is still the one that was read,
//!   checked and changed under the lock of the filled blocks.
//! - F2: objects of a victim are relocated from its end to its beginning: of two objects of one
//!   owner in one sector only the last one is relocated.
//! - F3: collecting continues with the last [`RESERVE`](crate::core::RESERVE) free blocks, which no
//!   writer gets. Writers do not share the collector's block either: their objects would take the
//!   room that a victim needs, and without a free block nothing could be collected any more,
//!   however much is dead.
//!
//! Paper: [Badam11 §3.5]; differs: of the next blocks the emptiest is taken; empty ones are not
//! read at all.

use crate::core::{Core, Work};
use crate::error::Error;
use crate::image::Image;
use crate::layout::{
    BLOCK_BYTES, BLOCK_HEADER_BYTES, BlockHeader, Owner, SECTORS_PER_BLOCK, footprint, location,
    object_at,
};
use duramen_disk::Aligned;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Core {
    /// Main loop of the thread.
    pub(crate) fn flush_until_stopped(self: &Arc<Core>) {
        let mut hand = 0;
        let mut victim = Aligned::zeroed(BLOCK_BYTES);
        loop {
            let Some(work) = self.wait_for_work() else {
                return;
            };
            let done = match work {
                Work::Write(image) => self.write_image(image),
                Work::Collect => self.collect(&mut hand, &mut victim),
                Work::Empty(number) => self.empty(number, &mut victim),
            };
            if let Err(error) = done {
                self.fail(error);
                return;
            }
        }
    }

    /// Writes one image, and releases its memory.
    fn write_image(&self, image: Arc<Image>) -> Result<(), Error> {
        let block = image.block;
        let at = u64::from(block) * BLOCK_BYTES as u64;
        {
            let content = image.read();
            self.device
                .write_at(at, content.bytes())
                .map_err(Error::device("writing a block to flash"))?;
        }
        self.counters
            .bytes_written
            .fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
        self.space.written(block);
        // From now on it may be a victim: a search before has not seen it.
        self.counters.released.fetch_add(1, Ordering::Release);
        self.images.remove(block);
        self.recycle(image);
        Ok(())
    }

    /// Moves the live objects of one victim elsewhere.
    fn collect(&self, hand: &mut u32, buffer: &mut Aligned) -> Result<(), Error> {
        // Loaded before the search; a block that is released behind the search would otherwise
        // never be found.
        let released = self.counters.released.load(Ordering::Acquire);
        let Some(number) = self.space.victim(hand) else {
            self.nothing_to_collect(released);
            return Ok(());
        };
        if !self.move_out(number, buffer)? {
            self.nothing_to_collect(released);
            return Ok(());
        }
        self.made_room();
        Ok(())
    }

    /// Moves the live objects of a block elsewhere. Returns false if there was no block to move
    /// them to.
    pub(crate) fn move_out(&self, number: u32, buffer: &mut Aligned) -> Result<bool, Error> {
        let sequence = self.space.block(number).sequence();
        let at = u64::from(number) * BLOCK_BYTES as u64;
        if self.device.read_at(at, buffer.bytes_mut()).is_err() {
            // Its objects stay in their place: a read of one of them reports the error.
            self.space.block(number).set_damaged();
            return Ok(true);
        }
        self.counters
            .bytes_collected
            .fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
        let objects = objects_of(buffer.bytes(), sequence);
        for (owner, at, from, to) in objects.into_iter().rev() {
            let payload = &buffer.bytes()[from..to];
            let went_on = self.relocate(owner, location(number, at), payload)?; // F2
            if !went_on {
                return Ok(false);
            }
        }
        let block = self.space.block(number);
        if block.live() > 0 && block.sequence() == sequence {
            // It may have been freed or overwritten meanwhile; if it stays, one of its objects
            // cannot be read.
            block.set_damaged();
        }
        Ok(true)
    }

    /// Writes waiting images, on the calling thread.
    pub(crate) fn write_waiting(&self) -> Result<(), Error> {
        while let Some(image) = self.next_image() {
            if let Err(error) = self.write_image(image) {
                self.fail(error);
                return Err(self.failure());
            }
        }
        Ok(())
    }

    /// Moves one object, if it is still its owner's (F1). Returns false if there is no block to
    /// move it to. Each victim gives more room than it takes, except for a victim that a checkpoint
    /// began to hold meanwhile or that has a damaged object.
    fn relocate(&self, owner: Owner, from: u32, payload: &[u8]) -> Result<bool, Error> {
        let Ok(table) = self.tables.of(owner) else {
            return Ok(true); // its table is gone
        };
        if table.get(owner.index) != Some(from) {
            return Ok(true);
        }
        let mut filling = self.filling();
        let image = loop {
            match filling.collector.as_ref() {
                Some(image) if image.has_room(payload.len()) => break Arc::clone(image),
                _ => {}
            }
            if let Some(full) = filling.collector.take() {
                self.hand_over(full, true);
            }
            filling.collector = self.new_image(0);
            if filling.collector.is_none() {
                drop(filling);
                if self.space.free_blocks() == 0 {
                    return Ok(false);
                }
                // Waiting images had the memory that a new image needs.
                self.write_waiting()?;
                filling = self.filling();
            }
        };
        if table.get(owner.index) != Some(from) {
            return Ok(true);
        }
        let at = image.append(owner, payload);
        let moved = table.relocate(owner.index, from, location(image.block, at));
        let bytes = table.footprint(owner.index);
        if moved {
            self.space.appended(image.block, bytes);
        }
        drop(filling);
        if moved {
            self.counters
                .bytes_relocated
                .fetch_add(footprint(payload.len()) as u64, Ordering::Relaxed);
            self.space.release(from, bytes);
        }
        Ok(true)
    }
}

/// Objects of a block with valid checksums: owner, offset, and payload. Behind a damaged one the
/// search continues at each multiple of 8.
fn objects_of(block: &[u8], sequence: u64) -> Vec<(Owner, usize, usize, usize)> {
    let header = BlockHeader::read(block).filter(|header| header.sequence == sequence);
    let (count, end) = header.map_or((0, BLOCK_BYTES), |header| {
        (header.count as usize, header.bytes as usize)
    });
    let mut objects = Vec::with_capacity(count.min(BLOCK_BYTES / SECTORS_PER_BLOCK as usize));
    let mut at = BLOCK_HEADER_BYTES;
    while at < end {
        match object_at(block, at, sequence) {
            Some(found) => {
                objects.push((found.owner, at, found.from, found.to));
                at += footprint(found.to - found.from);
            }
            None => at += 8,
        }
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::put_object;

    #[test]
    fn a_damaged_object_hides_no_other() {
        let mut block = vec![0; BLOCK_BYTES];
        let mut at = BLOCK_HEADER_BYTES;
        let mut starts = Vec::new();
        for index in 0..50 {
            starts.push(at);
            at = put_object(&mut block, at, 4, Owner { table: 1, index }, &[7; 100]);
        }
        let header = BlockHeader {
            sequence: 4,
            count: 50,
            bytes: at as u32,
            store: 1,
        };
        header.put(&mut block);
        assert_eq!(objects_of(&block, 4).len(), 50);
        block[starts[10] + 40] ^= 1;
        block[starts[20] + 8] ^= 0xff; // its length
        let left = objects_of(&block, 4);
        let missing = |index: u32| left.iter().all(|(owner, ..)| owner.index != index);
        assert_eq!(left.len(), 48);
        assert!(missing(10) && missing(20));
        assert_eq!(
            objects_of(&block, 5).len(),
            0,
            "of another life of the block"
        );
    }
}
