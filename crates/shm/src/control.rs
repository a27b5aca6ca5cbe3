//! The four shared words of a ring, and how one side sleeps until the other one wakes it.
//!
//! **Invariants**
//! - M4: a side that sleeps is woken by the next byte of data, or of room, that it waits for. The
//!   sleeper stores its flag, passes a fence, and sleeps only if it then still finds nothing. The
//!   other side stores its counter, passes a fence, and loads the flag. The fences are SeqCst, so
//!   at least one of the two sees what the other one stored. The side that sees the flag takes it
//!   back with a swap and rings the bell: once per sleep.
//! - M5: a writer sleeps while less than half of the ring is free, and is woken when half of it is:
//!   so a long message costs one wake-up for each half ring, not one for each read. A writer that
//!   waits for a half also has a bounded number of turns, however little its reader takes at a
//!   time. Every reader that wants the rest of a message reads past the half.
//!
//! **Concurrency**: each counter has one writer. Both sides write the flags: 1 by the sleeper, 0 by
//! either.

use crate::Corrupt;
use duramen_base::sync::Padded;
use duramen_base::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The shared words of a ring. Each has its own cache lines: the two sides write different ones.
#[derive(Default)]
#[repr(C)]
pub struct Control {
    written: Padded<AtomicU64>,
    read: Padded<AtomicU64>,
    reader_sleeps: Padded<AtomicU32>,
    writer_sleeps: Padded<AtomicU32>,
}

impl Control {
    /// The reader's view: unread bytes behind the `read` ones.
    ///
    /// # Errors
    /// The other side wrote an impossible counter (shm::M1).
    #[inline]
    pub fn unread(&self, read: u64, size: u64) -> Result<u64, Corrupt> {
        // Acquire: pairs with Release in `wrote`; the bytes are there.
        let unread = self.written.0.load(Ordering::Acquire).wrapping_sub(read);
        if unread > size {
            return Err(Corrupt);
        }
        Ok(unread)
    }

    /// The writer's view: room behind the `written` bytes.
    ///
    /// # Errors
    /// The other side wrote an impossible counter (shm::M1).
    #[inline]
    pub fn room(&self, written: u64, size: u64) -> Result<u64, Corrupt> {
        // Acquire: pairs with Release in `took`; the reader has copied the bytes.
        let unread = written.wrapping_sub(self.read.0.load(Ordering::Acquire));
        size.checked_sub(unread).ok_or(Corrupt)
    }

    /// Publishes written bytes. Returns true if the bell is to be rung.
    #[inline]
    #[must_use]
    pub fn wrote(&self, written: u64) -> bool {
        // Release: pairs with Acquire in `unread`.
        self.written.0.store(written, Ordering::Release);
        fence(Ordering::SeqCst); // M4: pairs with the fence in `reader_may_sleep`
        wakes(&self.reader_sleeps.0)
    }

    /// Gives back the room of read bytes; `left` is the number of unread bytes. Returns true if the
    /// bell is to be rung.
    #[inline]
    #[must_use]
    pub fn took(&self, read: u64, left: u64, size: u64) -> bool {
        // Release: pairs with Acquire in `room`.
        self.read.0.store(read, Ordering::Release);
        if size - left < wanted_room(size) {
            return false; // M5
        }
        fence(Ordering::SeqCst); // M4: pairs with the fence in `writer_may_sleep`
        wakes(&self.writer_sleeps.0)
    }

    /// Announces that the reader sleeps. Returns false if it must not sleep, because there are
    /// bytes.
    ///
    /// # Errors
    /// The other side wrote an impossible counter (shm::M1).
    pub fn reader_may_sleep(&self, read: u64, size: u64) -> Result<bool, Corrupt> {
        // Relaxed: the fence orders it.
        self.reader_sleeps.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // M4: pairs with the fence in `wrote`
        let may = self.unread(read, size)? == 0;
        if !may {
            self.reader_is_awake();
        }
        Ok(may)
    }

    /// Announces that the writer sleeps. Returns false if it must not sleep, because half of the
    /// ring is free.
    ///
    /// # Errors
    /// The other side wrote an impossible counter (shm::M1).
    pub fn writer_may_sleep(&self, written: u64, size: u64) -> Result<bool, Corrupt> {
        // Relaxed: the fence orders it.
        self.writer_sleeps.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // M4: pairs with the fence in `took`
        let may = self.room(written, size)? < wanted_room(size); // M5
        if !may {
            self.writer_is_awake();
        }
        Ok(may)
    }

    /// The reader woke for another reason: no bell is needed any more.
    #[inline]
    pub fn reader_is_awake(&self) {
        // Relaxed: if the other side sees this store late, it rings one bell in vain.
        self.reader_sleeps.0.store(0, Ordering::Relaxed);
    }

    /// As [`reader_is_awake`](Self::reader_is_awake), for the writer.
    #[inline]
    pub fn writer_is_awake(&self) {
        // Relaxed: as in `reader_is_awake`.
        self.writer_sleeps.0.store(0, Ordering::Relaxed);
    }
}

/// Free bytes for which a writer wakes: half of the ring.
#[inline]
fn wanted_room(size: u64) -> u64 {
    size.div_ceil(2)
}

/// Whether the sleeper is to be woken; takes its flag back.
#[inline]
fn wakes(sleeps: &AtomicU32) -> bool {
    // Relaxed: the caller's fence orders the load; the swap only chooses who rings.
    sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
}
