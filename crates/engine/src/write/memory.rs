//! Memory for writes: of a head that has no room, and of the index.
//!
//! The lock order is that of [`write`](super).

use crate::Error;
use crate::cleaner::index_search::IndexSearch;
use crate::cleaner::pacer::Waiting;
use crate::index::{Partition, Resize};
use crate::session::Guard;
use crate::space::Purpose;
use duramen_base::sync::Backoff;
use std::time::{Duration, Instant};

/// A head's segment is closed for its dead entries if they are at least a segment divided by this.
const DEAD_PART_TO_CLOSE: u64 = 8;
/// A shorter wait for memory delays nobody else noticeably.
const NOTED_WAIT: Duration = Duration::from_millis(2);
/// Pause of a writer that waits for index memory.
#[cfg(not(any(loom, shuttle)))]
const FLASH_PAUSE: Duration = Duration::from_micros(200);

impl Guard<'_> {
    /// Finds memory for an append: cleans, and waits for readers to leave retired windows. No
    /// bucket is locked, except those of a transaction; values that were read may not be used
    /// again.
    #[cold]
    pub(crate) fn make_room(&mut self, purpose: Purpose) -> Result<(), Error> {
        let began = Instant::now();
        let found = self.seek_room(purpose);
        self.carried.waited |= began.elapsed() >= NOTED_WAIT;
        found
    }

    fn seek_room(&mut self, purpose: Purpose) -> Result<(), Error> {
        // A transaction stays inside (its views must not go) but takes a fresh stamp each time, so
        // that memory becomes free. It is never outside, not even for an instant: another guard
        // could then become alone.
        let (core, slot) = (self.core, self.slot);
        if !self.locks.are_taken() && !self.alone {
            // No thread may wait for this head while its holder waits for readers to leave, or for
            // a guard that is alone.
            self.tail = None;
            self.left = true;
            core.epochs.unpin(slot);
            let found = core.find_memory(self.head, self.me, Waiting::Outside, purpose);
            core.enter(slot);
            return self.or_close_head(found, purpose);
        }
        if self.locks.was_starved() {
            return Err(core.out_of_memory());
        }
        let waiting = match self.locks.are_brief() {
            _ if self.alone => Waiting::Alone(slot),
            true => Waiting::Briefly(slot),
            false => Waiting::Inside(slot),
        };
        let found = core.find_memory(self.head, self.me, waiting, purpose);
        let found = self.or_close_head(found, purpose);
        if found.is_err() {
            self.locks.starve();
        }
        found
    }

    /// Cleaning frees nothing while all dead entries are in open segments, which it leaves alone.
    /// In this case, closes the head's own segment, so that room is sought once more.
    fn or_close_head(&mut self, found: Result<(), Error>, purpose: Purpose) -> Result<(), Error> {
        let core = self.core;
        if !matches!(found, Err(Error::OutOfMemory { .. })) || core.refuses(purpose) {
            return found;
        }
        // No thread waits for a head while pinned.
        let mut taken = None;
        let tail = match &mut self.tail {
            Some(tail) => tail,
            None => match self.head.tail.try_lock() {
                Ok(tail) => taken.insert(tail),
                Err(_) => return found,
            },
        };
        let Some(window) = tail.window().filter(|_| !tail.in_group()) else {
            return found;
        };
        let dead = u64::from(tail.length()).saturating_sub(core.live_in(window));
        if dead < core.space.segment_bytes() as u64 / DEAD_PART_TO_CLOSE {
            return found;
        }
        match &core.log {
            None => drop(tail.close(&core.space)),
            Some(log) => log.close_head(&core.space, self.head.number, tail),
        }
        core.wakeup.ring();
        Ok(())
    }

    /// Gives memory of free windows to the index, which lacks some; cleans if there is no free
    /// window.
    #[cold]
    pub(crate) fn make_index_room(&mut self, search: &mut IndexSearch) -> Result<(), Error> {
        self.core.evict_for_index();
        if search.next(self.core)? {
            if !self.locks.are_taken() && !self.alone {
                self.tail = None; // others may append meanwhile
            }
            self.press_flash();
            self.carried.waited = true;
        }
        let node = self.head.node;
        // With a tier in any case: segments that leave memory wait for our pin too.
        if !self.core.space.release_one(node) || self.core.tier.is_some() {
            self.make_room(Purpose::Head)?;
            self.core.space.release_one(node);
        }
        Ok(())
    }

    /// Requests the demotion of a segment, and yields the core to the thread that does it. The
    /// index may take more than one segment has.
    fn press_flash(&self) {
        if let Some(tier) = &self.core.tier {
            tier.press(self.core.clock.now_ms());
            self.core.wakeup.ring();
            self.core.reap(self.head.node);
            #[cfg(not(any(loom, shuttle)))]
            std::thread::sleep(FLASH_PAUSE);
        }
    }

    #[cold]
    pub(super) fn grow_index(
        &mut self,
        partition: &Partition,
        search: &mut IndexSearch,
    ) -> Result<(), Error> {
        match partition.resize(1, self.me, self.core.resources()) {
            Resize::Done => Ok(()),
            Resize::Damaged if self.core.mends_partition(partition) => Ok(()),
            Resize::Damaged => Err(Error::Damaged),
            Resize::NoMemory => self.make_index_room(search),
            Resize::Busy => {
                if self.locks.are_taken() {
                    // A key that the transaction did not lock, in a bucket that it did: it would
                    // wait for itself.
                    if !search.tries() {
                        return Err(self.core.out_of_memory());
                    }
                }
                Backoff::new().wait();
                Ok(())
            }
        }
    }
}
