//! Received bytes of a connection, cut into messages that share the receive buffer.
//!
//! **Invariants**
//! - P1: a buffer grows at most to twice the length of the received bytes, or by one small piece,
//!   and never beyond the frame that it waits for.

use duramen_wire::native::Slice;
use duramen_wire::native::codec::{
    Frame, FrameError, HEADER_BYTES, Header, Parsed, parse_frame, payload_at,
};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Bytes received at once when no larger frame is known to come.
const PIECE_BYTES: usize = 64 << 10;
/// Longer buffers are large: they are kept for reuse only while large frames arrive.
const KEPT_BYTES_MAX: usize = 512 << 10;
const KEPT_MAX: usize = 32;
/// Maximum bytes of large buffers that are kept: buffers being filled, by several peers at once,
/// and buffers being processed.
const LARGE_BYTES_MAX: usize = 64 << 20;
/// The lengths of large buffers are multiples of this.
const ROUND_BYTES: usize = 256 << 10;
/// Longer frames get their own buffer.
const LARGE_BYTES: usize = 256 << 10;
/// The payload of a large frame begins at a multiple of this, so it can be written past the page
/// cache without a copy.
const PAGE_BYTES: usize = 4096;

/// A complete frame whose checksum is right. It keeps all bytes alive that were received with it.
#[derive(Clone, Debug)]
pub struct Message {
    buffer: Arc<Vec<u8>>,
    header: Header,
    /// Start of the body; start and end of the payload.
    body: usize,
    payload: usize,
    end: usize,
}

impl Message {
    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn body(&self) -> &[u8] {
        &self.buffer[self.body..self.payload]
    }

    pub fn payload(&self) -> &[u8] {
        &self.buffer[self.payload..self.end]
    }

    /// The payload, to be passed on.
    pub fn payload_shared(&self) -> Slice {
        match self.payload == self.end {
            true => Slice::default(),
            false => Slice::of(self.buffer.clone(), self.payload..self.end),
        }
    }

    /// The frame, for the decoders of `wire`.
    pub fn frame(&self) -> Frame<'_> {
        Frame {
            header: self.header,
            body: self.body(),
            payload: self.payload(),
        }
    }
}

/// Buffers that may be reused once all messages in them are gone.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    lent: VecDeque<Arc<Vec<u8>>>,
    /// Total bytes of the large ones.
    large_bytes: usize,
    /// Whether a large buffer was used since the last [`sweep`](Self::sweep).
    in_use: bool,
}

impl Buffers {
    /// A buffer of at least `bytes`, and not much more; a large one only if it is free already.
    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let is_large = bytes > KEPT_BYTES_MAX;
        self.in_use |= is_large;
        let fits = |buffer: &Arc<Vec<u8>>| {
            buffer.len() >= bytes && (buffer.len() > KEPT_BYTES_MAX) == is_large
        };
        let free = |buffer: &mut Arc<Vec<u8>>| fits(buffer) && Arc::get_mut(buffer).is_some();
        let at = self.lent.iter_mut().position(free)?;
        let buffer = Arc::into_inner(self.lent.remove(at)?)?;
        if is_large {
            self.large_bytes -= buffer.len();
        }
        Some(buffer)
    }

    fn piece(&mut self) -> Vec<u8> {
        self.take(PIECE_BYTES)
            .unwrap_or_else(|| vec![0; PIECE_BYTES])
    }

    fn lend(&mut self, buffer: Vec<u8>) -> Arc<Vec<u8>> {
        let bytes = buffer.len();
        let buffer = Arc::new(buffer);
        if bytes > KEPT_BYTES_MAX {
            self.large_bytes += bytes;
        }
        self.lent.push_back(Arc::clone(&buffer));
        while self.lent.len() > KEPT_MAX || self.large_bytes > LARGE_BYTES_MAX {
            let is_large = |kept: &Arc<Vec<u8>>| kept.len() > KEPT_BYTES_MAX;
            let at = match self.large_bytes > LARGE_BYTES_MAX {
                true => self.lent.iter().position(is_large).unwrap_or_default(),
                false => 0,
            };
            let Some(dropped) = self.lent.remove(at) else {
                break;
            };
            if is_large(&dropped) {
                self.large_bytes -= dropped.len();
            }
        }
        buffer
    }

    /// Called periodically: returns large buffers to the system if they were not used since the
    /// last call.
    pub fn sweep(&mut self) {
        if !std::mem::take(&mut self.in_use) {
            self.lent.retain(|kept| kept.len() <= KEPT_BYTES_MAX);
            self.large_bytes = 0;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes,
    Nothing,
    End,
    Failed(Errno),
}

/// Receives once; also returns the number of bytes.
pub(crate) fn receive_into(socket: impl AsFd, room: &mut [u8]) -> (Received, usize) {
    match rustix::net::recv(socket, room, RecvFlags::DONTWAIT) {
        Ok((0, _)) => (Received::End, 0),
        Ok((bytes, _)) => (Received::Bytes, bytes),
        Err(Errno::AGAIN | Errno::INTR) => (Received::Nothing, 0),
        Err(errno) => (Received::Failed(errno), 0),
    }
}

/// Received bytes that are not a whole frame yet.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// The buffer, with the received bytes in `start..end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Total length of the frame at the beginning; 0 if it is not known.
    needed: usize,
}

impl Input {
    pub fn with(bytes: Vec<u8>) -> Input {
        Input {
            start: 0,
            end: bytes.len(),
            buffer: bytes,
            needed: 0,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes().to_vec()
    }

    /// Drops the first bytes: they were no frame.
    pub fn skip(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "no more than has arrived");
        self.start += bytes;
    }

    /// Receives once.
    pub fn receive(&mut self, socket: impl AsFd, buffers: &mut Buffers) -> Received {
        let (received, bytes) = receive_into(socket, self.room(buffers));
        self.end += bytes;
        received
    }

    /// Receives once from a peer that has not proved itself: at most `most` of its bytes are kept
    /// at a time.
    pub fn receive_of_stranger(&mut self, socket: impl AsFd, most: usize) -> Received {
        let (received, bytes) = receive_into(socket, self.room_of_stranger(most));
        self.end += bytes;
        received
    }

    /// The room for the next bytes; [`filled`](Self::filled) says how many came.
    pub fn room(&mut self, buffers: &mut Buffers) -> &mut [u8] {
        self.make_room(buffers);
        // If this frame is large, only its bytes are received: the next frame then begins in its
        // own buffer, and nothing is moved.
        let until = match self.needed > LARGE_BYTES {
            true => (self.start + self.needed).min(self.buffer.len()),
            false => self.buffer.len(),
        };
        &mut self.buffer[self.end..until]
    }

    /// As [`room`](Self::room), for a peer that has not proved itself.
    pub fn room_of_stranger(&mut self, most: usize) -> &mut [u8] {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        self.buffer.resize(most.max(self.end), 0);
        &mut self.buffer[self.end..]
    }

    /// Appends these bytes.
    pub fn append(&mut self, bytes: &[u8]) {
        self.buffer.truncate(self.end);
        self.buffer.extend_from_slice(bytes);
        self.end = self.buffer.len();
    }

    /// So many bytes were written into the room.
    pub fn filled(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.buffer.len(), "no more than there was room");
    }

    /// Makes room for more bytes, as much as P1 allows; for a large frame, its payload will start
    /// on a page.
    fn make_room(&mut self, buffers: &mut Buffers) {
        let have = self.end - self.start;
        let missing = self.needed.saturating_sub(have);
        let room = match missing {
            0 => PIECE_BYTES,
            missing => missing.min(have.max(PIECE_BYTES)),
        };
        if have == 0 && self.buffer.len() >= PIECE_BYTES {
            (self.start, self.end) = (0, 0);
        }
        let left = self.buffer.len() - self.end;
        if left >= room.min(PIECE_BYTES) {
            return;
        }
        let larger = match self.needed > LARGE_BYTES {
            true => {
                let free = buffers.take(self.needed + PAGE_BYTES);
                // A whole buffer serves later frames of about this length; the system provides its
                // memory as it is used.
                let unit = if room == missing { ROUND_BYTES } else { 1 };
                let bytes = (have + room + PAGE_BYTES).next_multiple_of(unit);
                free.unwrap_or_else(|| vec![0; bytes])
            }
            false if have + room <= PIECE_BYTES => buffers.piece(),
            false => vec![0; have + room],
        };
        self.move_to(larger);
    }

    fn move_to(&mut self, larger: Vec<u8>) {
        let arrived = self.start..self.end;
        let before = std::mem::replace(&mut self.buffer, larger);
        self.start = match payload_at(&before[arrived.clone()]) {
            Some(payload) if self.needed > LARGE_BYTES => {
                let at = self.buffer.as_ptr().addr() + payload;
                at.next_multiple_of(PAGE_BYTES) - at
            }
            _ => 0,
        };
        self.end = self.start + arrived.len();
        self.buffer[self.start..self.end].copy_from_slice(&before[arrived]);
    }

    /// Cuts out all whole frames, in order. Frames before a malformed one are valid, but are lost
    /// with it, because the connection ends.
    pub fn cut(
        &mut self,
        limit: usize,
        buffers: &mut Buffers,
        mut found: impl FnMut(Message),
    ) -> Result<(), FrameError> {
        if self.end - self.start < self.needed {
            return Ok(());
        }
        let mut frames = Vec::new();
        let mut at = self.start;
        self.needed = loop {
            if at == self.end {
                break 0;
            }
            match parse_frame(&self.buffer[at..self.end], limit)? {
                Parsed::Incomplete { needed } => break needed,
                Parsed::Frame { frame, bytes } => {
                    let body = at + HEADER_BYTES;
                    let payload = body + frame.body.len();
                    frames.push((frame.header, body, payload, at + bytes));
                    at += bytes;
                }
            }
        };
        if frames.is_empty() {
            return Ok(());
        }
        let rest = at..self.end;
        (self.start, self.end) = (0, rest.len());
        let next = match rest.len() {
            0 => Vec::new(),
            bytes if bytes <= PIECE_BYTES => buffers.piece(),
            bytes => vec![0; bytes],
        };
        let buffer = std::mem::replace(&mut self.buffer, next);
        self.buffer[..self.end].copy_from_slice(&buffer[rest]);
        let buffer = buffers.lend(buffer);
        for (header, body, payload, end) in frames {
            found(Message {
                buffer: Arc::clone(&buffer),
                header,
                body,
                payload,
                end,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_wire::native::codec::{Envelope, encode_peer};
    use duramen_wire::native::message::Peer;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::OwnedFd;

    const LIMIT: usize = 16 << 20;

    fn frame(request: u64, payload: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let envelope = Envelope {
            request,
            ..Envelope::default()
        };
        encode_peer(&mut out, &envelope, &Peer::Ping { nonce: request }, payload);
        out.extend((0..payload).map(|n| (n as u64 * 7 + request) as u8));
        out
    }

    struct Rig {
        ends: (OwnedFd, OwnedFd),
        input: Input,
        buffers: Buffers,
    }

    impl Rig {
        fn new() -> Rig {
            let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
            Rig {
                ends: socketpair(family, kind, SocketFlags::NONBLOCK, None).expect("a pair"),
                input: Input::default(),
                buffers: Buffers::default(),
            }
        }

        /// Sends all bytes in steps of `step`, and receives.
        fn pass(&mut self, bytes: &[u8], step: usize) -> Vec<Message> {
            let mut found = Vec::new();
            for mut part in bytes.chunks(step) {
                while !part.is_empty() {
                    part = &part[rustix::io::write(&self.ends.0, part).expect("room")..];
                    loop {
                        let got = self.input.receive(&self.ends.1, &mut self.buffers);
                        let cut = self.input.cut(LIMIT, &mut self.buffers, |m| found.push(m));
                        cut.expect("whole frames");
                        if got == Received::Nothing {
                            break;
                        }
                    }
                }
            }
            found
        }
    }

    #[test]
    fn large_payloads_lie_on_pages_and_small_frames_between_them_are_whole() {
        for step in [1_000, 50_000, 100_000] {
            let mut rig = Rig::new();
            let lengths = [10, 300_000, 0, 1_000_001, 5_000, 1_000_000, 4_000_000, 3];
            let mut sent = Vec::new();
            for (n, length) in (1..).zip(lengths) {
                sent.extend(frame(n, length));
            }
            let found = rig.pass(&sent, step);
            assert_eq!(found.len(), lengths.len());
            for ((n, length), message) in (1..).zip(lengths).zip(&found) {
                let payload = message.payload_shared();
                let is_it = |(at, byte): (usize, &u8)| *byte == (at as u64 * 7 + n) as u8;
                assert!(payload.len() == length && payload.iter().enumerate().all(is_it));
                assert_eq!(message.payload(), &payload[..]);
                assert!(length < LARGE_BYTES || payload.as_ptr().addr().is_multiple_of(PAGE_BYTES));
            }
        }
    }

    #[test]
    fn large_buffers_are_used_again_and_go_when_nothing_large_comes() {
        let mut rig = Rig::new();
        let first = rig.pass(&frame(1, 2_000_000), 60_000);
        let at = first[0].payload().as_ptr();
        let other = rig.pass(&frame(2, 2_000_000), 60_000);
        assert_ne!(other[0].payload().as_ptr(), at, "somebody has the first");
        drop(first);
        let again = rig.pass(&frame(3, 1_900_000), 60_000);
        assert_eq!(again[0].payload().as_ptr(), at);
        drop((other, again));
        rig.buffers.sweep();
        assert!(rig.buffers.large_bytes > 4_000_000);
        rig.buffers.sweep();
        assert_eq!(rig.buffers.large_bytes, 0);
        assert!(
            rig.buffers
                .lent
                .iter()
                .all(|kept| kept.len() <= KEPT_BYTES_MAX)
        );
        // The bytes kept are bounded, even while other threads hold them.
        let held: Vec<_> = (0..9)
            .map(|n| rig.pass(&frame(n, 9_000_000), 60_000))
            .collect();
        assert!(rig.buffers.large_bytes <= LARGE_BYTES_MAX && held.len() == 9);
    }
}
