//! One connection: its socket, its partial request, its unsent replies, what the commands know
//! about it.

use super::flash::Parked;
use super::hold::Held;
use super::native::Native;
use crate::exec::Client;
use crate::shared::ClientRecord;
use duramen_wire::resp::ParseState;
use rustix::event::epoll::EventFlags;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    pub(super) client: Client,
    pub(super) record: Arc<ClientRecord>,
    pub(super) parse: ParseState,
    /// None: it speaks RESP.
    pub(super) native: Option<Native>,
    /// Received and not run yet; no memory if empty.
    pub(super) input: Vec<u8>,
    /// Replies; the first `sent` bytes are with the kernel. No memory if empty, between rounds.
    pub(super) output: Vec<u8>,
    pub(super) sent: usize,
    /// Its last replies that were held became errors after `reply-timeout`.
    pub(super) gave_up: bool,
    /// When the client last took replies, in milliseconds of the server's clock.
    pub(super) taken_at_ms: u64,
    /// What epoll watches.
    pub(super) interest: EventFlags,
    /// Close when the replies are out; nothing more is read.
    pub(super) closing: bool,
    pub(super) waits_for: WaitsFor,
    /// Replies that wait for the log; nothing is received meanwhile, whatever `waits_for` says.
    pub(super) held: Option<Held>,
    /// Its replies wait for those of requests that wait for flash, at most until then, in
    /// milliseconds of the server's clock; 0 = they
    /// do not.
    pub(super) corked_until_ms: u64,
    /// What is fetched from flash for the requests that run next.
    pub(super) parked: Option<Box<Parked>>,
}

/// What must happen before a connection's next requests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// Its socket must become readable: `input` holds no whole request.
    Input,
    /// Nothing but the next round, and its held replies: `input` holds whole requests. Unless it is
    /// held, the reactor's `again` list names it.
    Turn,
    /// Its client must take replies: `input` holds whole requests.
    Output,
    /// The end of `CLIENT PAUSE`, in milliseconds of the server's clock: `input` holds whole
    /// requests, the reactor's
    /// `paused` list names it.
    Pause { until_ms: u64 },
    /// What its requests need from flash (`Connection::parked`): `input` holds whole requests.
    Flash,
}

/// How a send ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// The kernel's buffer is full.
    Part,
    /// The peer is gone.
    Failed,
}

/// Most bytes that one send hands to the kernel: enough for full speed, and other connections get
/// their turn.
const SEND_BYTES_MAX: usize = 1 << 20;

impl Connection {
    pub(super) fn new(fd: OwnedFd, record: Arc<ClientRecord>, now_ms: u64) -> Connection {
        Connection {
            fd,
            client: Client::new(Arc::clone(&record)),
            record,
            parse: ParseState::new(),
            native: None,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            gave_up: false,
            taken_at_ms: now_ms,
            interest: EventFlags::IN,
            closing: false,
            waits_for: WaitsFor::Input,
            held: None,
            corked_until_ms: 0,
            parked: None,
        }
    }

    /// How long the input must be before it holds the next whole request, as far as that is known.
    pub(super) fn bytes_needed(&self) -> usize {
        match &self.native {
            Some(native) => native.bytes_needed,
            None => self.parse.bytes_needed(),
        }
    }

    /// Unsent replies that may go out now.
    pub(super) fn sendable_bytes(&self) -> usize {
        if self.corked_until_ms > 0 {
            return 0;
        }
        let end = self
            .held
            .as_ref()
            .map_or(self.output.len(), |held| held.from);
        end - self.sent
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Drops what is with the kernel: the output is then as long as what is unsent, and that has a
    /// limit.
    pub(super) fn drop_sent(&mut self) {
        if self.sent > 0 {
            self.output.drain(..self.sent);
            if let Some(held) = &mut self.held {
                held.from -= self.sent;
            }
            self.sent = 0;
        }
    }

    /// Sends what the kernel takes, with one system call.
    pub(super) fn send(&mut self, now_ms: u64) -> (Sent, usize) {
        let end = self.sent + self.sendable_bytes();
        let unsent = self.output.get(self.sent..end).unwrap_or_default();
        if unsent.is_empty() {
            let all = self.unsent_bytes() == 0;
            return (if all { Sent::All } else { Sent::Part }, 0);
        }
        let chunk = unsent.get(..SEND_BYTES_MAX).unwrap_or(unsent);
        match rustix::net::send(&self.fd, chunk, SendFlags::NOSIGNAL) {
            Ok(bytes) => {
                self.sent += bytes;
                self.taken_at_ms = now_ms;
                if self.sent == self.output.len() {
                    return (Sent::All, bytes);
                }
                // Keep the unsent part at the front before the sent part outweighs it.
                if self.sent >= self.output.len() / 2 {
                    self.drop_sent();
                }
                (Sent::Part, bytes)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => (Sent::Part, 0),
            Err(_) => (Sent::Failed, 0),
        }
    }

    /// Ends the stream so that the peer still gets the last reply: closing a socket with unread
    /// input resets it, which may overtake the reply.
    pub(super) fn say_goodbye(&self) {
        let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
        let mut unread = [0u8; 4096];
        for _ in 0..GOODBYE_READS {
            match rustix::net::recv(&self.fd, &mut unread, RecvFlags::DONTWAIT) {
                Ok((bytes, _)) if bytes > 0 => {}
                _ => break,
            }
        }
    }
}

/// Bounds what a flooding client can make its own goodbye cost.
const GOODBYE_READS: usize = 16;
