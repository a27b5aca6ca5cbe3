//! Positions in the write-ahead log: live commits, the place of the next commit, the start for a
//! restart.
//!
//! **Invariants**
//! - G1: bytes between `tail` and `head` are never written again; `tail` moves only after the
//!   header block with the new tail is durable. So the blocks that any valid header leads to are
//!   intact.
//! - G2: `durable_lsn <= committed_lsn`; a slot is only written with an lsn that is durable
//!   (frame::P3).
//! - G3: no commit is written before both header blocks have its generation with its salt
//!   (wal::W4, wal::W5). Until then nothing is written here: a store that was only opened is
//!   unchanged.
//! - G4: a commit lies where the file system has given space (`ready`), so no commit meets a full
//!   disk. A ring with less space than its capacity gets more when commits fill it; if the file
//!   system has no more, the ring stays as it is, and commits wait for frames earlier.
//!
//! **Layout**: `head` and `tail` count bytes from the creation on; the place in the ring is their
//! remainder by the capacity.

use std::collections::VecDeque;
use std::io;

use duramen_base::planted::{Bug, has_bug};
use duramen_format::wal::{Header, RING_AT, Salts};

use crate::disk::BLOCK_BYTES;
use crate::error::is_full;
use crate::region::Region;

/// A ring that is filled by half in less time gets more space: a store with few writes needs
/// little of it, and one with many has time to write frames before commits wait for them.
const FILLED_WITHIN_MS: u64 = 10_000;

/// A commit that a restart would read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) lsn: u64,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) generation: u64,
}

/// The ring's state.
pub(crate) struct Ring {
    pub(crate) server: u64,
    pub(crate) capacity: u64,
    /// Bytes of it, from its start on, in which commits may lie (G4).
    pub(crate) ready: u64,
    /// Bytes of it that have space; those behind `ready` are filled with zeros first, because the
    /// first write to fresh space costs a sync of the file system's journal.
    pub(crate) reserved: u64,
    /// The file system had no more space when it was asked last.
    pub(crate) is_refused: bool,
    /// Bytes of commits, and the owner's clock, when half of `ready` had last been filled.
    pub(crate) filled: (u64, u64),
    /// The last bytes that were skipped because a commit did not fit before the end: from, to.
    pub(crate) skip: (u64, u64),
    pub(crate) generation: u64,
    /// Salts of this generation, and of those with live commits.
    pub(crate) salts: Salts,
    /// Whether both header blocks have this generation (G3).
    pub(crate) begun: bool,
    pub(crate) head: u64,
    pub(crate) tail: u64,
    pub(crate) committed_lsn: u64,
    pub(crate) durable_lsn: u64,
    /// Sequence of the newest header block.
    pub(crate) sequence: u64,
    pub(crate) live: VecDeque<Live>,
    /// The owner's clock, in milliseconds since the Unix epoch.
    pub(crate) clock_ms: u64,
    /// The owner's clock in the newest header.
    pub(crate) header_clock_ms: u64,
}

impl Ring {
    /// The mark of this generation's commits.
    pub(crate) fn salt(&self) -> u64 {
        let salt = self.salts.of(self.generation);
        salt.expect("an opening adds its salt")
    }

    /// The start of a commit of this size, as a position; `None` if it doesn't fit now (G1, G4).
    pub(crate) fn place(&self, bytes: u64) -> Option<u64> {
        let ready = match has_bug(Bug::CommitBeyondSpace) {
            true => self.capacity,
            false => self.ready,
        };
        let at = self.head % self.capacity;
        let start = if at + bytes > ready {
            self.head + self.capacity - at // a commit is one write: it does not wrap around
        } else {
            self.head
        };
        (bytes <= ready && start + bytes - self.tail <= self.capacity).then_some(start)
    }

    /// Sets the space with which the ring begins: `first` bytes, or more if live commits lie behind
    /// them or if more of the file was `written`. A start reserves the space again, because a copy
    /// may have holes.
    pub(crate) fn begin(&mut self, first: u64, written: u64) {
        let written = written.saturating_sub(RING_AT) / BLOCK_BYTES * BLOCK_BYTES;
        self.ready = first.max(self.reach()).max(written).min(self.capacity);
        self.reserved = self.ready;
    }

    /// Whether the newest commits lie before the oldest one in the file.
    pub(crate) fn wraps(&self) -> bool {
        self.head / self.capacity > self.tail / self.capacity
    }

    /// The bytes from the start on in which live commits lie. A ring that has wrapped around need
    /// not have used its whole capacity: commits go round in the part that is ready (G4).
    pub(crate) fn reach(&self) -> u64 {
        let end = |live: &Live| live.start % self.capacity + live.bytes;
        self.live.iter().map(end).max().unwrap_or(0)
    }

    /// The place of a position in the region.
    pub(crate) fn at(&self, position: u64) -> u64 {
        RING_AT + position % self.capacity
    }

    /// Bytes that a restart would read.
    pub(crate) fn used(&self) -> u64 {
        let (from, to) = self.skip;
        let skipped = if self.tail <= from { to - from } else { 0 };
        self.head - self.tail - skipped
    }

    /// The size that it has, or could have if commits needed it.
    pub(crate) fn size(&self) -> u64 {
        if self.is_refused {
            self.reserved
        } else {
            self.capacity
        }
    }

    /// Asks the file system for as much space again as the ring has, or for less, but for at least
    /// `least` bytes. If it gets none, the ring works with the space that it has.
    ///
    /// # Errors
    /// As the device gives them; a full device is no error.
    pub(crate) fn reserve(&mut self, region: &Region, least: u64) -> io::Result<()> {
        let left = self.capacity - self.reserved;
        let mut more = self.reserved.max(least).min(left);
        self.is_refused = left > 0;
        while more > 0 && more >= least.min(left) {
            match region.allocate(RING_AT + self.reserved, more, false) {
                Ok(()) => {
                    self.reserved += more;
                    self.is_refused = false;
                    return Ok(());
                }
                Err(error) if is_full(&error) => more = more / 2 / BLOCK_BYTES * BLOCK_BYTES,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether commits filled half of `ready` within [`FILLED_WITHIN_MS`], when they have filled
    /// it again. `written_bytes`: all bytes of commits so far.
    pub(crate) fn fills_fast(&mut self, written_bytes: u64) -> bool {
        let (bytes, ms) = self.filled;
        if written_bytes - bytes < self.ready / 2 {
            return false;
        }
        self.filled = (written_bytes, self.clock_ms);
        self.clock_ms.saturating_sub(ms) < FILLED_WITHIN_MS
    }

    /// Bytes of commits that are not known to be durable.
    pub(crate) fn unsynced(&self) -> u64 {
        let first = self
            .live
            .partition_point(|live| live.lsn <= self.durable_lsn);
        let start = self.live.get(first).map_or(self.head, |live| live.start);
        self.head - start
    }

    /// Adds a commit that was written.
    pub(crate) fn written(&mut self, start: u64, bytes: u64) {
        if start > self.head {
            self.skip = (self.head, start);
        }
        self.committed_lsn += 1;
        self.live.push_back(Live {
            lsn: self.committed_lsn,
            start,
            bytes,
            generation: self.generation,
        });
        self.head = start + bytes;
    }

    /// The header block that makes `lsn` the first one for a restart, and the new tail.
    pub(crate) fn header_from(&self, lsn: u64) -> (Header, u64) {
        let first = self.live.iter().find(|live| live.lsn >= lsn);
        let tail = first.map_or(self.head, |live| live.start);
        let tail_generation = first.map_or(self.generation, |live| live.generation);
        let mut salts = self.salts.clone();
        salts.forget_before(tail_generation);
        let header = Header {
            server: self.server,
            sequence: self.sequence + 1,
            generation: self.generation,
            tail_lsn: first.map_or(self.committed_lsn + 1, |live| live.lsn),
            tail_at: self.at(tail),
            tail_generation,
            end_lsn: 0,
            clock_ms: self.clock_ms,
            salts,
            marks: Vec::new(),
        };
        (header, tail)
    }

    /// The header with the present tail.
    pub(crate) fn header(&self) -> Header {
        let tail_lsn = self
            .live
            .front()
            .map_or(self.committed_lsn + 1, |live| live.lsn);
        self.header_from(tail_lsn).0
    }

    /// A header from [`header_from`](Self::header_from) is durable: bytes before its tail may be
    /// used again (G1).
    pub(crate) fn trimmed(&mut self, header: &Header, tail: u64) {
        self.sequence = header.sequence;
        self.tail = tail;
        while self
            .live
            .front()
            .is_some_and(|live| live.lsn < header.tail_lsn)
        {
            self.live.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Ring {
        Ring {
            server: 1,
            capacity: 40_960,
            ready: 40_960,
            reserved: 40_960,
            is_refused: false,
            filled: (0, 0),
            skip: (0, 0),
            generation: 1,
            salts: Salts::default(),
            begun: true,
            head: 0,
            tail: 0,
            committed_lsn: 0,
            durable_lsn: 0,
            sequence: 0,
            live: VecDeque::new(),
            clock_ms: 0,
            header_clock_ms: 0,
        }
    }

    #[test]
    fn a_commit_never_wraps_nor_overwrites() {
        let mut ring = ring();
        for _ in 0..3 {
            let start = ring.place(12_288).unwrap();
            ring.written(start, 12_288);
        }
        assert_eq!(ring.place(8192), None); // 4096 left at the end, nothing at the start
        assert_eq!(ring.place(4096), Some(36_864));
        let (header, tail) = ring.header_from(2);
        assert_eq!((header.tail_lsn, header.tail_at), (2, RING_AT + 12_288));
        assert_eq!(ring.place(8192), None); // not before the header is durable (G1)
        ring.trimmed(&header, tail);
        let start = ring.place(8192).unwrap();
        assert_eq!(ring.at(start), RING_AT);
        ring.durable_lsn = 2;
        assert_eq!(ring.unsynced(), 12_288); // trimmed commits are durable
        ring.durable_lsn = 3;
        assert_eq!(ring.unsynced(), 0);
        ring.written(start, 8192);
        assert_eq!(ring.place(8192), None);
        let (header, tail) = ring.header_from(99);
        ring.trimmed(&header, tail);
        assert_eq!((ring.used(), header.tail_lsn), (0, 5));
    }

    /// A commit was placed where the file had no space, and met a full disk.
    #[test]
    fn a_commit_lies_where_there_is_space() {
        let mut ring = Ring {
            ready: 16_384,
            ..ring()
        };
        assert_eq!(ring.place(20_480), None);
        for _ in 0..3 {
            let start = ring.place(4096).unwrap();
            ring.written(start, 4096);
        }
        assert_eq!(ring.place(8192), None); // the start of the ring is still needed
        assert_eq!(ring.reach(), 12_288);
        let (header, tail) = ring.header_from(3);
        ring.trimmed(&header, tail);
        let start = ring.place(8192).unwrap();
        assert_eq!(ring.at(start), RING_AT); // as if the ring ended at 16 KiB
        ring.written(start, 8192);
        assert_eq!((ring.place(4096), ring.reach()), (None, 12_288));
        assert_eq!(ring.used(), 12_288); // without the skipped bytes
        ring.ready = 20_480;
        assert_eq!(ring.place(4096), None); // behind the wrap, `ready` is no help
        let (header, tail) = ring.header_from(99);
        ring.trimmed(&header, tail);
        assert_eq!(
            ring.place(8192).map(|start| ring.at(start)),
            Some(RING_AT + 8192)
        );
    }
}
