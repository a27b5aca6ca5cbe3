//! One side's view of the two rings: a stream to read, a stream to write.

use crate::Corrupt;
use crate::memory::{Memory, Ring};
use std::io;
use std::os::fd::OwnedFd;

/// One side of the two rings.
#[derive(Debug)]
pub struct Rings {
    memory: Memory,
    /// The ring that this side reads, and the one that it writes.
    incoming: Ring,
    outgoing: Ring,
    /// This side's counters, and the last valid ones of the other side (shm::M1).
    read: u64,
    written_by_other: u64,
    written: u64,
    read_by_other: u64,
}

/// The result of a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Moved {
    /// The bytes that were copied; 0 if there were none, or there was no room.
    pub bytes: usize,
    /// Whether the other side sleeps and waits for this, so that its bell is to be rung.
    pub wakes: bool,
}

const NONE: Moved = Moved {
    bytes: 0,
    wakes: false,
};

impl Rings {
    /// Makes the memory; returns the server's side, and the descriptor for the client.
    /// `ring_bytes`: size of each ring, a power of two.
    ///
    /// # Errors
    /// No memory or no descriptors are left, or the size is not allowed.
    pub fn make(ring_bytes: usize) -> io::Result<(Rings, OwnedFd)> {
        let (memory, fd) = Memory::make(ring_bytes)?;
        Ok((Rings::new(memory, Ring::Client, Ring::Server), fd))
    }

    /// Returns the client's side of memory that a server made.
    ///
    /// # Errors
    /// The descriptor is not such memory of this size.
    pub fn adopt(fd: &OwnedFd, ring_bytes: usize) -> io::Result<Rings> {
        let memory = Memory::adopt(fd, ring_bytes)?;
        Ok(Rings::new(memory, Ring::Server, Ring::Client))
    }

    /// Whether the other side has taken all that this side wrote. Also true if the other side wrote
    /// an impossible counter.
    pub fn is_all_taken(&self) -> bool {
        let control = self.memory.control(self.outgoing);
        let room = control.room(self.written, self.size());
        room.map_or(true, |room| room >= self.size())
    }

    /// Gives the memory back to the system, even if the other side keeps its mapping. That side
    /// then reads zeros, which are impossible counters once bytes have passed. This side is not
    /// used afterwards.
    pub fn give_back(&self) {
        self.memory.give_back();
    }

    fn new(memory: Memory, incoming: Ring, outgoing: Ring) -> Rings {
        Rings {
            memory,
            incoming,
            outgoing,
            read: 0,
            written_by_other: 0,
            written: 0,
            read_by_other: 0,
        }
    }

    /// Size of each ring, in bytes.
    pub fn ring_bytes(&self) -> usize {
        self.memory.ring_bytes()
    }

    fn size(&self) -> u64 {
        self.memory.ring_bytes() as u64
    }

    /// Bytes that can be read now.
    ///
    /// # Errors
    /// The other side wrote an impossible counter.
    #[inline]
    pub fn readable(&mut self) -> Result<usize, Corrupt> {
        let control = self.memory.control(self.incoming);
        let unread = control.unread(self.read, self.size())?;
        // shm::M1: counters never fall.
        if unread < self.written_by_other.wrapping_sub(self.read) {
            return Err(Corrupt);
        }
        self.written_by_other = self.read.wrapping_add(unread);
        Ok(unread as usize)
    }

    /// Copies bytes out, as many as there are and fit.
    ///
    /// # Errors
    /// The other side wrote an impossible counter.
    #[inline]
    pub fn read(&mut self, out: &mut [u8]) -> Result<Moved, Corrupt> {
        let unread = self.readable()?;
        let bytes = unread.min(out.len());
        if bytes == 0 {
            return Ok(NONE);
        }
        self.memory.get(self.incoming, self.read, &mut out[..bytes]);
        self.read = self.read.wrapping_add(bytes as u64);
        let (left, size) = ((unread - bytes) as u64, self.size());
        let wakes = self
            .memory
            .control(self.incoming)
            .took(self.read, left, size);
        Ok(Moved { bytes, wakes })
    }

    /// Bytes that can be written now. The answer may be too low if it is at least `wanted`.
    #[inline]
    fn room(&mut self, wanted: usize) -> Result<usize, Corrupt> {
        let unread = self.written.wrapping_sub(self.read_by_other);
        let room = (self.size() - unread) as usize;
        // The other side's counter is looked at only when its last value is too old.
        if room >= wanted {
            return Ok(room);
        }
        let control = self.memory.control(self.outgoing);
        let room = control.room(self.written, self.size())?;
        let read = self.written.wrapping_sub(self.size() - room);
        // shm::M1: counters never fall.
        if read.wrapping_sub(self.read_by_other) > self.size() {
            return Err(Corrupt);
        }
        self.read_by_other = read;
        Ok(room as usize)
    }

    /// Whether a byte can be written now.
    ///
    /// # Errors
    /// The other side wrote an impossible counter.
    #[inline]
    pub fn has_room(&mut self) -> Result<bool, Corrupt> {
        Ok(self.room(1)? > 0)
    }

    /// Copies bytes in, as many as there is room for.
    ///
    /// # Errors
    /// The other side wrote an impossible counter.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> Result<Moved, Corrupt> {
        let count = bytes.len().min(self.room(bytes.len())?);
        if count == 0 {
            return Ok(NONE);
        }
        self.memory
            .put(self.outgoing, self.written, &bytes[..count]);
        self.written = self.written.wrapping_add(count as u64);
        let wakes = self.memory.control(self.outgoing).wrote(self.written);
        Ok(Moved {
            bytes: count,
            wakes,
        })
    }

    /// Announces that this side sleeps until there are bytes. Returns false if there are some, so
    /// that it must not sleep.
    ///
    /// # Errors
    /// The other side wrote an impossible counter.
    pub fn may_sleep_for_bytes(&mut self) -> Result<bool, Corrupt> {
        let control = self.memory.control(self.incoming);
        control.reader_may_sleep(self.read, self.size())
    }

    /// Announces that this side sleeps until half of its ring is free. Returns false if half is
    /// free, so that it must not sleep.
    ///
    /// # Errors
    /// The other side wrote an impossible counter.
    pub fn may_sleep_for_room(&mut self) -> Result<bool, Corrupt> {
        let control = self.memory.control(self.outgoing);
        control.writer_may_sleep(self.written, self.size())
    }

    /// This side reads again: it needs no bell for bytes.
    pub fn reads(&self) {
        self.memory.control(self.incoming).reader_is_awake();
    }

    /// This side writes again: it needs no bell for room.
    pub fn writes(&self) {
        self.memory.control(self.outgoing).writer_is_awake();
    }
}
