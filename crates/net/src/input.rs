//! What was received on a connection: cut into messages that share the buffer they arrived in.
//!
//! **Invariants**
//! - P1: a buffer grows at most to twice what has arrived, or by one small piece, and never beyond the frame that it waits for.

use duramen_wire::native::codec::{Frame, FrameError, HEADER_BYTES, Header, Parsed, parse_frame};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

/// What is received at once when nothing larger is known to come.
const PIECE_BYTES: usize = 64 << 10;
/// Buffers beyond this are not kept for reuse.
const KEPT_BYTES_MAX: usize = 512 << 10;
const KEPT_MAX: usize = 32;

/// A whole frame whose checksum was right. Holding it holds what was received together with it.
#[derive(Clone, Debug)]
pub struct Message {
    buffer: Arc<Vec<u8>>,
    header: Header,
    /// Where the body begins, where the payload begins, where it ends.
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

    /// For the decoders of `wire`.
    pub fn frame(&self) -> Frame<'_> {
        Frame {
            header: self.header,
            body: self.body(),
            payload: self.payload(),
        }
    }
}

/// Buffers that may be used again once all messages in them are gone.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    lent: VecDeque<Arc<Vec<u8>>>,
}

impl Buffers {
    fn take(&mut self) -> Vec<u8> {
        let free = self.lent.front_mut().and_then(Arc::get_mut);
        if let Some(buffer) = free {
            let mut buffer = std::mem::take(buffer);
            self.lent.pop_front();
            buffer.clear();
            return buffer;
        }
        Vec::with_capacity(PIECE_BYTES)
    }

    fn lend(&mut self, buffer: Vec<u8>) -> Arc<Vec<u8>> {
        let is_kept = buffer.capacity() <= KEPT_BYTES_MAX;
        let buffer = Arc::new(buffer);
        if is_kept {
            if self.lent.len() == KEPT_MAX {
                self.lent.pop_front();
            }
            self.lent.push_back(Arc::clone(&buffer));
        }
        buffer
    }
}

/// How receiving ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Bytes,
    Nothing,
    End,
    Failed(Errno),
}

/// Bytes that are no whole frame yet.
#[derive(Debug, Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    /// What the frame at the beginning needs in all; 0: not known.
    needed: usize,
}

impl Input {
    pub fn with(bytes: Vec<u8>) -> Input {
        Input { bytes, needed: 0 }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Takes away the first bytes: they were no frame.
    pub fn skip(&mut self, bytes: usize) {
        self.bytes.drain(..bytes);
    }

    /// Receives once.
    pub fn receive(&mut self, socket: impl AsFd, buffers: &mut Buffers) -> Received {
        if self.bytes.capacity() == 0 {
            self.bytes = buffers.take();
        }
        let have = self.bytes.len();
        // P1
        let room = match self.needed.checked_sub(have) {
            Some(missing) if missing > 0 => missing.min(have.max(PIECE_BYTES)),
            _ => PIECE_BYTES,
        };
        self.bytes.reserve_exact(room);
        let spare = rustix::buffer::spare_capacity(&mut self.bytes);
        match rustix::net::recv(socket, spare, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Received::End,
            Ok(_) => Received::Bytes,
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(errno) => Received::Failed(errno),
        }
    }

    /// Cuts out all whole frames, in order. Those before a malformed one are whole, and are lost with it: the connection ends.
    pub fn cut(
        &mut self,
        limit: usize,
        buffers: &mut Buffers,
        mut found: impl FnMut(Message),
    ) -> Result<(), FrameError> {
        if self.bytes.len() < self.needed {
            return Ok(());
        }
        let mut frames = Vec::new();
        let mut at = 0;
        self.needed = loop {
            if at == self.bytes.len() {
                break 0;
            }
            match parse_frame(&self.bytes[at..], limit)? {
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
        let mut rest = Vec::new();
        if at < self.bytes.len() {
            rest = buffers.take();
            rest.extend_from_slice(&self.bytes[at..]);
        }
        let buffer = buffers.lend(std::mem::replace(&mut self.bytes, rest));
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
