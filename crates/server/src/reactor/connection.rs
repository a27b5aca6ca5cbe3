//! One connection: its socket, its partial request, its unsent replies, and its state for the
//! commands.

use super::backlog::{Backlog, has_slack};
use super::held::HeldReplies;
use super::parked::Parked;
use super::ring::Local;
use super::tls::Tls;
use duramen_redis::state::{Client, Mode, Shared};
use duramen_redis::threads::ClientRecord;
use duramen_tls::Session;
use duramen_wire::resp::{Limits, ParseState, Requests};
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) struct Connection {
    pub(super) fd: OwnedFd,
    pub(super) client: Client,
    pub(super) record: Arc<ClientRecord>,
    pub(super) parse: ParseState,
    /// The requests at the front of its input, parsed, if they are long and are shown again soon.
    pub(super) parsed: Option<Parsed>,
    /// The state of TLS; `None` if the connection is not encrypted.
    pub(super) tls: Option<Tls>,
    /// The state of the native protocol; `None` if the protocol is RESP.
    pub(super) native: Option<Native>,
    /// Bytes that were received but have not run; without memory if empty.
    pub(super) input: Backlog,
    /// Replies; the kernel has taken the first `sent` bytes. Between rounds without memory if
    /// empty.
    pub(super) output: Vec<u8>,
    pub(super) sent: usize,
    /// Bytes of replies to expect from its next turn: those of the last turn, or half of the former
    /// value if that is more.
    pub(super) replies_bytes: usize,
    /// Capacity of both buffers when it was last looked at (`BufferPool::note_memory`).
    pub(super) memory: usize,
    /// Whether its last held replies became errors after `reply-timeout`.
    pub(super) gave_up: bool,
    /// When the client last took replies, in milliseconds of the server's clock.
    pub(super) taken_at_ms: u64,
    pub(super) turn: RoomTurn,
    /// The events that epoll watches.
    pub(super) interest: EventFlags,
    /// Whether to close the connection once its replies are sent; nothing more is read from it.
    pub(super) closing: bool,
    pub(super) waits_for: WaitsFor,
    /// Replies that wait for the log; nothing is received meanwhile, even if `waits_for` is
    /// `Input`.
    pub(super) held: Option<HeldReplies>,
    /// The client's state after the last turn whose replies did not become errors.
    pub(super) mode: Mode,
    /// Whether the replies of its last turn waited for the disk.
    pub(super) writes: bool,
    /// Whether its last effects may have made a mailbox crowded.
    pub(super) crowds: bool,
    /// Whether it got messages in this round that are not sent yet.
    pub(super) has_messages: bool,
    /// The connection's replies wait for those of requests that need flash, at most until this
    /// time, in milliseconds of the server's clock; 0 = they do not wait.
    pub(super) corked_until_ms: u64,
    /// Entries fetched from flash for the next requests.
    pub(super) parked: Option<Box<Parked>>,
}

/// Additional state of a native client's connection.
#[derive(Default)]
pub(super) struct Native {
    /// Length of the next frame in bytes, its header included; 0 = not known yet.
    pub(super) bytes_needed: usize,
    /// The memory through which the frames of a client on this machine come and go.
    pub(super) local: Option<Local>,
}

/// Requests that were parsed, and have not run.
pub(super) struct Parsed {
    pub(super) requests: Requests,
    pub(super) bytes: usize,
    /// The limits that were used for parsing; the settings may have changed since.
    pub(super) limits: Limits,
}

/// The event that must occur before a connection's next requests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// Its socket must become readable: `input` has no whole request.
    Input,
    /// The next round, and the release of its held replies: `input` has whole requests. Unless the
    /// connection is held, it is in `Connections::soon`.
    Turn,
    /// Its client must take replies, or other clients must leave room for more (input::R1). `input`
    /// grows meanwhile, unless there is no room, or the client has sent all (`ended`).
    Output { ended: bool },
    /// The end of `CLIENT PAUSE`, in milliseconds of the server's clock: `input` has whole
    /// requests, and the connection is in the reactor's `paused` list.
    Pause { until_ms: u64 },
    /// Entries on flash for its requests (`Connection::parked`): `input` has whole requests.
    Flash,
    /// Elements under keys of its first request, which is in `input`; perhaps others are behind it.
    Key,
}

/// Its part in the turn of the long pipelines (input::R3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoomTurn {
    None,
    Waits,
    Has {
        since_ms: u64,
        /// Bytes that its client had taken before.
        sent_bytes: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// The kernel's buffer is full.
    Part,
    /// The peer is gone.
    Failed,
}

/// Maximum bytes of one send: enough for full speed, and other connections get their turn.
const SEND_BYTES_MAX: usize = 1 << 20;

impl Connection {
    /// Logs in as the default user, who needs no password.
    pub(super) fn log_in_by_default(&mut self, shared: &Shared) {
        self.client.log_in_by_default(shared);
        self.mode = self.client.mode();
    }

    pub(super) fn new(fd: OwnedFd, record: Arc<ClientRecord>, now_ms: u64) -> Connection {
        let client = Client::new(Arc::clone(&record));
        Connection {
            mode: client.mode(),
            fd,
            client,
            record,
            parse: ParseState::new(),
            parsed: None,
            tls: None,
            native: None,
            input: Backlog::default(),
            output: Vec::new(),
            sent: 0,
            replies_bytes: 0,
            memory: 0,
            gave_up: false,
            taken_at_ms: now_ms,
            turn: RoomTurn::None,
            interest: EventFlags::IN,
            closing: false,
            waits_for: WaitsFor::Input,
            held: None,
            writes: false,
            crowds: false,
            has_messages: false,
            corked_until_ms: 0,
            parked: None,
        }
    }

    /// Length that the input must have before it contains the next whole request, as far as known.
    pub(super) fn bytes_needed(&self) -> usize {
        match &self.native {
            Some(native) => native.bytes_needed,
            None => self.parse.bytes_needed(),
        }
    }

    /// Unsent replies that may be sent now, and encrypted bytes that the socket has not taken.
    pub(super) fn sendable_bytes(&self) -> usize {
        self.sendable_plain() + self.encrypted_unsent()
    }

    /// Unsent replies that may be sent now, and are not encrypted if the connection has TLS.
    fn sendable_plain(&self) -> usize {
        if self.corked_until_ms > 0 || self.is_handshaking() {
            return 0;
        }
        let end = self
            .held
            .as_ref()
            .map_or(self.output.len(), |held| held.from);
        end - self.sent
    }

    /// Replies, encrypted ones included, that the socket has not taken.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.output.len() - self.sent + self.encrypted_unsent()
    }

    /// Whether its client has sent bytes that are not received yet.
    pub(super) fn has_unreceived(&mut self) -> bool {
        match self.local_mut() {
            Some(local) => local.readable() > 0,
            None => rustix::io::ioctl_fionread(&self.fd).is_ok_and(|bytes| bytes > 0),
        }
    }

    /// Whether the client will not read replies, because its side is closed or reset. With `half`,
    /// a client counts too that sends nothing more but may still read.
    pub(super) fn has_left(&self, half: bool) -> bool {
        let mut left = PollFlags::HUP | PollFlags::ERR;
        left.set(PollFlags::RDHUP, half);
        let mut socket = [PollFd::new(&self.fd, PollFlags::RDHUP)];
        let polled = poll(&mut socket, Some(&Timespec::default()));
        polled.is_ok() && socket[0].revents().intersects(left)
    }

    /// Drops the bytes that the kernel has taken: the output is then as long as its unsent part,
    /// which has a limit.
    pub(super) fn drop_sent(&mut self) {
        if self.sent > 0 {
            self.output.drain(..self.sent);
            if let Some(held) = &mut self.held {
                held.from -= self.sent;
            }
            self.sent = 0;
        }
    }

    /// As [`drop_sent`](Self::drop_sent), unless the unsent part is much longer: moving that costs
    /// more than the sent bytes take.
    pub(super) fn fit_sent(&mut self) {
        if self.sent >= self.output.len() / 8 {
            self.drop_sent();
        }
    }

    /// After a turn, whose replies begin at `from` in the output.
    #[inline]
    pub(super) fn note_replies(&mut self, from: usize) {
        let bytes = self.output.len() - from;
        self.replies_bytes = bytes.max(self.replies_bytes / 2);
    }

    /// Capacity of its buffers.
    pub(super) fn memory(&self) -> usize {
        self.input.capacity() + self.output.capacity() + self.encrypted_unsent()
    }

    /// Whether the output has more memory than its unsent replies need.
    pub(super) fn has_slack(&self) -> bool {
        has_slack(self.output.capacity(), self.unsent_bytes())
    }

    /// Gives back memory that the unsent replies do not need. They move into `roomy`, or into a
    /// buffer of the right length, and the former buffer is returned; a long one is shrunk in place
    /// instead.
    pub(super) fn fit_output(&mut self, roomy: Option<Vec<u8>>) -> Vec<u8> {
        if self.output.capacity() > KEPT_BYTES_MAX && roomy.is_none() {
            self.drop_sent();
            self.output.shrink_to_fit();
            return Vec::new();
        }
        let rest = self.output.get(self.sent..).unwrap_or_default();
        let mut fitting = roomy.unwrap_or_else(|| Vec::with_capacity(rest.len()));
        fitting.extend_from_slice(rest);
        if let Some(held) = &mut self.held {
            held.from -= self.sent;
        }
        self.sent = 0;
        std::mem::replace(&mut self.output, fitting)
    }

    /// Sends as much as the kernel takes, with one system call.
    pub(super) fn send(&mut self, now_ms: u64) -> (Sent, usize) {
        let sendable = self.sendable_plain();
        if self.tls.is_some() {
            return self.send_encrypted(sendable.min(SEND_BYTES_MAX), now_ms);
        }
        let end = self.sent + sendable;
        let unsent = self.output.get(self.sent..end).unwrap_or_default();
        if unsent.is_empty() {
            let all = self.unsent_bytes() == 0;
            return (if all { Sent::All } else { Sent::Part }, 0);
        }
        let local = self
            .native
            .as_mut()
            .and_then(|native| native.local.as_mut());
        let taken = match local {
            Some(local) => local.send(&self.fd, unsent),
            None => {
                let chunk = unsent.get(..SEND_BYTES_MAX).unwrap_or(unsent);
                rustix::net::send(&self.fd, chunk, SendFlags::NOSIGNAL)
            }
        };
        match taken {
            Ok(bytes) => {
                self.sent += bytes;
                self.taken_at_ms = now_ms;
                if self.sent == self.output.len() {
                    return (Sent::All, bytes);
                }
                // Move the unsent part to the front before a long sent part is longer.
                if self.sent >= self.output.len() / 2 && self.sent > SEND_BYTES_MAX {
                    self.drop_sent();
                }
                (Sent::Part, bytes)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => (Sent::Part, 0),
            Err(_) => (Sent::Failed, 0),
        }
    }

    /// From now on it carries TLS.
    pub(super) fn begin_tls(&mut self, session: Box<Session>, now_ms: u64) {
        self.tls = Some(Tls::new(session, now_ms));
        self.client.note_tls();
    }

    /// Encrypted bytes that its socket has not taken.
    pub(super) fn encrypted_unsent(&self) -> usize {
        self.tls.as_ref().map_or(0, |tls| tls.session.unsent())
    }

    /// Received bytes that have not run: plain ones, and those of a record in part.
    pub(super) fn query_bytes(&self) -> usize {
        let partial = self.tls.as_ref().map_or(0, |tls| tls.session.partial());
        self.input.len() + partial
    }

    /// Its client has said that it sends nothing more, and all that it sent is received.
    pub(super) fn has_ended(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.session.has_ended())
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| !tls.is_open())
    }

    /// As [`send`](Self::send), for a connection with TLS, of which `plain_bytes` may be sent.
    fn send_encrypted(&mut self, plain_bytes: usize, now_ms: u64) -> (Sent, usize) {
        let Some(tls) = &mut self.tls else {
            return (Sent::Failed, 0);
        };
        let plain = self.output.get(self.sent..self.sent + plain_bytes);
        let sent = match tls.session.send(&self.fd, plain.unwrap_or_default()) {
            Ok(sent) => sent,
            Err(_) => return (Sent::Failed, 0),
        };
        self.sent += sent.plain;
        if sent.wire > 0 {
            self.taken_at_ms = now_ms;
        }
        if self.unsent_bytes() == 0 {
            return (Sent::All, sent.wire);
        }
        if self.sent >= self.output.len() / 2 {
            self.drop_sent();
        }
        (Sent::Part, sent.wire)
    }

    /// Records in the client's record that the kernel has taken bytes.
    pub(super) fn note_sent(&self, bytes: usize, now_ms: u64) {
        let record = &self.record;
        let total = record.sent_bytes.load(Ordering::Relaxed) + bytes as u64;
        record.sent_bytes.store(total, Ordering::Relaxed);
        record.active_at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether its first request waits for elements, so that its next one does not come soon.
    pub(super) fn waits_for_key(&self) -> bool {
        self.waits_for == WaitsFor::Key
    }

    /// Whether it waits for input alone, and bytes may go to its socket before anything else.
    pub(super) fn is_quiet(&self) -> bool {
        self.output.is_empty()
            && self.interest == EventFlags::IN
            && self.waits_for == WaitsFor::Input
            && self.held.is_none()
            && self.corked_until_ms == 0
            && self.turn == RoomTurn::None
            && !self.closing
            && self.tls.is_none()
            && self.native.is_none()
    }

    /// Sends bytes that are not in the output, if the connection [is quiet](Self::is_quiet).
    /// Returns the number that the kernel has taken; `None` if the peer is gone.
    pub(super) fn send_straight(&mut self, bytes: &[u8], now_ms: u64) -> Option<usize> {
        let chunk = bytes.get(..SEND_BYTES_MAX).unwrap_or(bytes);
        match rustix::net::send(&self.fd, chunk, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                self.taken_at_ms = now_ms;
                Some(sent)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Some(0),
            Err(_) => None,
        }
    }

    /// Ends the stream so that the peer still gets the last reply. Closing a socket with unread
    /// input resets the connection, and the reset may overtake the reply.
    pub(super) fn say_goodbye(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.session.say_goodbye(&self.fd);
        }
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

/// Larger buffers go back to the allocator: a turn's replies and one value fit into this.
pub(super) const KEPT_BYTES_MAX: usize = (2 << 20) + (64 << 10);
/// Bounds the work that a flooding client causes at its own close.
const GOODBYE_READS: usize = 32;
