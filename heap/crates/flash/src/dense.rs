//! Compaction before a checkpoint: live objects leave sparse blocks. A checkpoint holds whole
//! blocks, and the dead bytes in them are lost room.
//!
//! **Invariants**
//! - N1: a checkpoint holds at most half of the blocks, less a few, as long as live objects fill at
//!   most nine tenths of these. So the other half has room for all live data once more, and a
//!   writer finds room however much it writes until the next checkpoint.
//! - N2: meanwhile writers get one block for each [`TURNS`](crate::core::TURNS) emptied ones: they
//!   continue, and the work ends.
//! - N3: a block that a checkpoint holds is emptied only while there are free blocks beside the
//!   collector's reserve, because emptying it frees nothing.
//!
//! **Concurrency** the flusher empties blocks, so that there is one collector; the thread that
//! makes the checkpoint waits without a lock.

use crate::core::{Core, Dense, RESERVE};
use crate::error::Error;
use crate::layout::BLOCK_BYTES;
use duramen_disk::Aligned;
use std::sync::PoisonError;

/// Blocks that writers and the collector fill and keep beside the live ones.
const APART: usize = 8;
/// Target for the live part of a checkpoint's blocks, on average, in percent, if it would otherwise
/// need more than half of all blocks.
const DENSE_PERCENT: u64 = 90;
/// Blocks that may become sparse between the end of this work and a checkpoint.
const LATE: usize = 4;
/// Plans that are made, each for the rest of the previous one.
const PLANS: u32 = 8;

impl Core {
    /// Blocks that a checkpoint may hold (N1).
    fn held_most(&self) -> usize {
        let half = (self.space.len() as usize - 1) / 2;
        let (live_bytes, _) = self.space.kept_bytes();
        let dense = live_bytes * 100 / DENSE_PERCENT / BLOCK_BYTES as u64 + 1;
        half.saturating_sub(APART).max(dense as usize)
    }

    /// Whether the live data fits into half of the blocks, but a checkpoint of it would hold more.
    pub fn is_sparse(&self) -> bool {
        let half = (self.space.len() as usize - 1) / 2;
        let most = self.held_most();
        most <= half && self.space.needed() > most + LATE
    }

    /// Empties sparse blocks until the rest are few enough for a checkpoint, or until that gains
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn make_dense(&self) -> Result<(), Error> {
        let mut before = usize::MAX;
        for _ in 0..PLANS {
            let needed = self.space.needed();
            let victims = self.space.sparse(self.held_most());
            if victims.is_empty() || needed >= before {
                break;
            }
            before = needed;
            let mut queue = self.queue();
            queue.dense = Some(Dense {
                victims,
                emptied: 0,
            });
            self.work.notify_one();
            while queue.dense.is_some() && queue.failure.is_none() {
                queue = self
                    .room
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if queue.failure.is_some() {
                queue.dense = None;
                drop(queue);
                return Err(self.failure());
            }
        }
        Ok(())
    }

    /// For the flusher: moves the live objects of a block elsewhere, if it is still worth it.
    pub fn empty(&self, number: u32, buffer: &mut Aligned) -> Result<(), Error> {
        let is_free_enough = self.space.free_blocks() > RESERVE + 2;
        let gives_room = !self.space.block(number).is_held();
        let mut went_on = true;
        if self.space.is_worth_it(number) && (gives_room || is_free_enough) {
            went_on = self.move_out(number, buffer)?; // N3: only with blocks to spare
        }
        if let Some(dense) = &mut self.queue().dense {
            dense.emptied += 1;
            if !went_on {
                dense.victims.clear();
            }
        }
        self.made_room();
        Ok(())
    }
}
