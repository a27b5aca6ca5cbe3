//! Finds memory for writes: for a head that has no room, and for the index.
//!
//! The lock order is that of [`write`](super).

use crate::cleaner::index_search::IndexSearch;
use crate::cleaner::pacer::{Waiting, find_memory};
use crate::core::Core;
use crate::index::{Partition, Resize};
use crate::session::append::Appender;
use crate::session::{Guard, Pin, Session};
use crate::space::Purpose;
use crate::{Error, TableId};
use duramen_base::sync::Backoff;
use std::time::{Duration, Instant};

/// A head's segment is closed for its dead entries if they are at least a segment divided by this.
const DEAD_PART_TO_CLOSE: u64 = 8;
/// A shorter wait for memory delays nobody else noticeably.
const NOTED_WAIT: Duration = Duration::from_millis(2);
/// Pause of a writer that waits for index memory.
#[cfg(not(any(loom, shuttle)))]
const FLASH_PAUSE: Duration = Duration::from_micros(200);

impl<'s> Appender<'s> {
    /// Finds memory for an append: cleans, and waits for readers to leave retired windows. No
    /// bucket is locked, except those of a transaction; values that were read may not be used
    /// again.
    #[cold]
    pub(crate) fn make_room(&mut self, pin: &mut Pin<'s>, purpose: Purpose) -> Result<(), Error> {
        let began = Instant::now();
        let found = self.seek_room(pin, purpose);
        if began.elapsed() >= NOTED_WAIT {
            pin.work().note_waited();
        }
        found
    }

    fn seek_room(&mut self, pin: &mut Pin<'s>, purpose: Purpose) -> Result<(), Error> {
        // A transaction stays inside, because its views must not go, but takes a fresh stamp each
        // time, so that memory becomes free. The transaction is never outside, not even for an
        // instant: another guard could then become alone.
        let (core, head) = (pin.core(), self.head());
        let (slot, me) = (pin.entries().slot(), pin.me());
        if !pin.is_in_step() {
            // No thread may wait for this head while its holder waits for readers to leave, or for
            // a guard that is alone.
            self.let_head_go();
            let found = pin.outside(|| find_memory(core, head, me, Waiting::Outside, purpose));
            return self.or_close_head(core, found, purpose);
        }
        if pin.locks().was_starved() {
            return Err(core.out_of_memory());
        }
        let waiting = match pin.locks().are_brief() {
            _ if pin.is_alone() => Waiting::Alone(slot),
            true => Waiting::Briefly(slot),
            false => Waiting::Inside(slot),
        };
        let found = find_memory(core, head, me, waiting, purpose);
        let found = self.or_close_head(core, found, purpose);
        if found.is_err() {
            pin.locks_mut().starve();
        }
        found
    }

    /// Cleaning frees nothing while all dead entries are in open segments, which it does not take.
    /// In this case, closes the head's own segment, so that room is sought once more.
    fn or_close_head(
        &mut self,
        core: &Core,
        found: Result<(), Error>,
        purpose: Purpose,
    ) -> Result<(), Error> {
        if !matches!(found, Err(Error::OutOfMemory { .. })) || core.refuses(purpose) {
            return found;
        }
        // No thread waits for a head while pinned.
        let (head, mut taken) = (self.head(), None);
        let tail = match self.taken() {
            Some(tail) => tail,
            None => match head.tail.try_lock() {
                Ok(tail) => &mut **taken.insert(tail),
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
            Some(log) => log.streams().close_head(&core.space, head.number, tail),
        }
        core.cleaners.wake();
        Ok(())
    }

    /// Gives memory of free windows to the index, which lacks some; cleans if there is no free
    /// window.
    #[cold]
    pub(crate) fn make_index_room(
        &mut self,
        pin: &mut Pin<'s>,
        search: &mut IndexSearch,
    ) -> Result<(), Error> {
        let (core, node) = (pin.core(), self.head().node);
        if let Some(demotion) = core.demotion() {
            demotion.evict_for_index();
        }
        if search.next(core)? {
            if !pin.is_in_step() {
                self.let_head_go(); // others may append meanwhile
            }
            press_flash(core, node);
            pin.work().note_waited();
        }
        // With a tier the guard leaves in any case: segments that leave memory wait for our pin
        // too.
        if !core.space.release_one(node) || core.tier().is_some() {
            self.make_room(pin, Purpose::Head)?;
            core.space.release_one(node);
        }
        Ok(())
    }

    #[cold]
    pub(super) fn grow_index(
        &mut self,
        pin: &mut Pin<'s>,
        partition: &Partition,
        search: &mut IndexSearch,
    ) -> Result<(), Error> {
        let core = pin.core();
        match partition.resize(1, pin.me(), core.resources()) {
            Resize::Done => Ok(()),
            Resize::Damaged if core.slots().mend_partition(partition) => Ok(()),
            Resize::Damaged => Err(Error::Damaged),
            Resize::NoMemory => self.make_index_room(pin, search),
            Resize::Busy => {
                if pin.locks().are_taken() {
                    // A transaction that writes a key that it did not lock, in a bucket that it did
                    // lock, would wait for itself.
                    if !search.tries() {
                        return Err(core.out_of_memory());
                    }
                }
                Backoff::new().wait();
                Ok(())
            }
        }
    }
}

impl Guard<'_> {
    /// Makes sure that the table can have parts. To be called before the first of them is written,
    /// with no key locked.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`]; [`Error::OutOfMemory`].
    pub fn make_parts(&mut self, table: TableId) -> Result<(), Error> {
        let Guard { pin, append, .. } = self;
        let mut search = IndexSearch::default();
        while !pin.core().prepare_index(table.parts()) {
            append.make_index_room(pin, &mut search)?;
        }
        pin.index(table.parts()).map(drop)
    }
}

impl Session {
    /// As [`Appender::make_index_room`], under a guard of its own.
    ///
    /// # Errors
    /// Those of [`Appender::make_index_room`].
    pub(crate) fn make_index_room(&mut self, search: &mut IndexSearch) -> Result<(), Error> {
        let mut guard = self.pin();
        guard.append.make_index_room(&mut guard.pin, search)
    }
}

/// Requests the demotion of a segment, and yields the core to the thread that does it. The index
/// may take more than one segment has.
fn press_flash(core: &Core, node: usize) {
    if let Some(demotion) = core.demotion() {
        demotion.press();
        core.cleaners.wake();
        core.windows().reap(node);
        #[cfg(not(any(loom, shuttle)))]
        std::thread::sleep(FLASH_PAUSE);
    }
}
