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
//!
//! **Layout**: `head` and `tail` count bytes from the creation on; the place in the ring is their
//! remainder by the capacity.

use std::collections::VecDeque;

use duramen_format::wal::{Header, RING_AT, Salts};

/// A commit that a restart would read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live {
    pub(crate) lsn: u64,
    pub(crate) start: u64,
    pub(crate) generation: u64,
}

/// The ring's state.
pub(crate) struct Ring {
    pub(crate) server: u64,
    pub(crate) capacity: u64,
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

    /// The start of a commit of this size, as a position; `None` if it doesn't fit now (G1).
    pub(crate) fn place(&self, bytes: u64) -> Option<u64> {
        let left = self.capacity - self.head % self.capacity;
        let start = if left < bytes {
            self.head + left // a commit is one write: it does not wrap around
        } else {
            self.head
        };
        (start + bytes - self.tail <= self.capacity).then_some(start)
    }

    /// The place of a position in the region.
    pub(crate) fn at(&self, position: u64) -> u64 {
        RING_AT + position % self.capacity
    }

    /// Bytes that a restart would read, with those skipped between.
    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
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
        self.committed_lsn += 1;
        self.live.push_back(Live {
            lsn: self.committed_lsn,
            start,
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
}
