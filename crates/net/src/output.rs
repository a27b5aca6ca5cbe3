//! Output of a connection: small frames are gathered, large payloads are sent as they are.

use duramen_wire::native::Slice;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::AsFd;

/// Payloads up to this length are copied after their body: cheaper than another piece.
const COPY_MAX: usize = 4 << 10;
/// Frames are gathered in one piece up to this length.
const PIECE_BYTES: usize = 64 << 10;
/// Maximum pieces for one system call.
const PIECES_MAX: usize = 32;

/// Raw bytes after a message.
#[derive(Clone, Debug, Default)]
pub enum Payload {
    #[default]
    None,
    Owned(Vec<u8>),
    Shared(Slice),
}

impl Payload {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::None => &[],
            Payload::Owned(bytes) => bytes,
            Payload::Shared(bytes) => bytes,
        }
    }

    /// Its length in bytes, which encoders need.
    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Flushed {
    All,
    /// The socket accepts no more now; `some` is true if it accepted any bytes.
    Part {
        some: bool,
    },
    Failed(Errno),
}

/// Bytes in order.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pieces: VecDeque<Payload>,
    /// Sent bytes of the first piece.
    sent: usize,
    /// Unsent bytes of all pieces.
    bytes: usize,
}

impl Output {
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends the bytes that `encode` writes, and the payload.
    pub fn push(&mut self, payload: Payload, encode: impl FnOnce(&mut Vec<u8>)) {
        let fits =
            |piece: &Payload| matches!(piece, Payload::Owned(bytes) if bytes.len() < PIECE_BYTES);
        if !self.pieces.back().is_some_and(fits) {
            self.pieces.push_back(Payload::Owned(Vec::new()));
        }
        let Some(Payload::Owned(tail)) = self.pieces.back_mut() else {
            unreachable!("a piece to append to is there");
        };
        let before = tail.len();
        encode(tail);
        let copied = payload.len() <= COPY_MAX;
        if copied {
            tail.extend_from_slice(payload.bytes());
        }
        self.bytes += tail.len() - before;
        if !copied {
            self.bytes += payload.len();
            self.pieces.push_back(payload);
        }
    }

    /// Appends all of `other`.
    pub fn append(&mut self, mut other: Output) {
        assert_eq!(other.sent, 0, "nothing of it is on its way");
        self.pieces.append(&mut other.pieces);
        self.bytes += other.bytes;
    }

    /// Sends as much as the socket takes.
    pub fn flush(&mut self, socket: impl AsFd) -> Flushed {
        let mut some = false;
        while self.bytes > 0 {
            let mut slices = Vec::with_capacity(self.pieces.len().min(PIECES_MAX));
            for (n, piece) in self.pieces.iter().take(PIECES_MAX).enumerate() {
                let from = if n == 0 { self.sent } else { 0 };
                slices.push(IoSlice::new(&piece.bytes()[from..]));
            }
            let sent = rustix::net::sendmsg(
                &socket,
                &slices,
                &mut SendAncillaryBuffer::default(),
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            );
            match sent {
                Ok(bytes) => {
                    some |= bytes > 0;
                    self.consume(bytes);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Flushed::Part { some },
                Err(errno) => return Flushed::Failed(errno),
            }
        }
        self.pieces.clear();
        self.sent = 0;
        Flushed::All
    }

    /// Unsent bytes, as many as lie together; empty if there are none.
    pub fn first(&self) -> &[u8] {
        let first = self.pieces.front().map_or(&[][..], Payload::bytes);
        &first[self.sent..]
    }

    /// Removes the first `bytes` unsent bytes, which were sent or encrypted.
    pub fn consume(&mut self, mut bytes: usize) {
        self.bytes -= bytes;
        while let Some(first) = self.pieces.front() {
            let left = first.len() - self.sent;
            if bytes < left {
                self.sent += bytes;
                return;
            }
            bytes -= left;
            self.sent = 0;
            self.pieces.pop_front();
        }
    }
}
