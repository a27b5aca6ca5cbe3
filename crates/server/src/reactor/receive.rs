//! Receiving: from sockets into the thread's buffer, or into the connection's own buffer if a
//! request is long, or must wait.

use super::GROUP_INPUT_BYTES;
use super::backlog::Backlog;
use super::connection::Connection;
use super::here::Here;
use super::output::BufferPool;
use duramen_config::seldom;
use duramen_tls::{Plain, ROOM_BYTES_MIN, TlsError};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Maximum bytes received from one connection in one round.
const RECEIVE_BYTES: usize = 64 << 10;
/// Partial requests up to this size are joined with their rest in the thread's buffer; longer ones
/// grow in place.
const JOIN_BYTES_MAX: usize = 16 << 10;
/// Maximum memory that a long request reserves ahead of its bytes.
const RESERVE_BYTES_MAX: usize = 1 << 20;
/// The bound of tls::H3: a storm of new connections delays other clients by only a few
/// milliseconds.
const HANDSHAKES_MAX: usize = 8;

/// The buffer into which all connections of a group receive.
pub(super) struct Receive {
    bytes: Box<[u8]>,
    used: usize,
    /// Steps of handshakes that this round may still do (tls::H3).
    handshakes_left: usize,
}

impl Receive {
    pub(super) fn new() -> Receive {
        let size = GROUP_INPUT_BYTES + JOIN_BYTES_MAX + RECEIVE_BYTES;
        Receive {
            bytes: vec![0; size].into_boxed_slice(),
            used: 0,
            handshakes_left: 0,
        }
    }

    /// Whether the group is to run before more is received.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.used >= GROUP_INPUT_BYTES
    }

    /// Called once per round (tls::H3).
    pub(super) fn allow_handshakes(&mut self) {
        self.handshakes_left = HANDSHAKES_MAX;
    }

    /// Empties the buffer after the group has run.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    pub(super) fn get(&self, range: &Range<usize>) -> &[u8] {
        self.bytes.get(range.clone()).unwrap_or_default()
    }

    /// Keeps the bytes received into this range until the group has run.
    pub(super) fn keep(&mut self, range: &Range<usize>) {
        self.used = range.end;
    }

    /// Room for `bytes` behind `before` bytes that are not there yet.
    fn room(&mut self, before: usize, bytes: usize) -> &mut [u8] {
        let start = self.used + before;
        let room = self.bytes.get_mut(start..start + bytes);
        room.expect("a group ends before the buffer does")
    }

    /// Puts `before` in front of the `received` bytes in the room; returns the range of both.
    fn join(&mut self, before: &[u8], received: usize) -> Range<usize> {
        let range = self.copy_in(before);
        range.start..range.end + received
    }

    fn copy_in(&mut self, bytes: &[u8]) -> Range<usize> {
        let range = self.used..self.used + bytes.len();
        self.bytes[range.clone()].copy_from_slice(bytes);
        range
    }

    /// Drops the first `consumed` bytes of the input and keeps the rest; with `None`, drops all of
    /// it.
    pub(super) fn keep_rest(
        &self,
        connection: &mut Connection,
        source: &Source,
        consumed: Option<usize>,
        buffers: &mut BufferPool,
    ) {
        match (source, consumed) {
            (Source::Shared(range), Some(consumed)) => {
                let rest = self.get(range).get(consumed..).unwrap_or_default();
                if !rest.is_empty() {
                    connection.input = Backlog::from(rest);
                }
            }
            (Source::Own, Some(consumed)) if consumed < connection.input.len() => {
                connection.input.consume(consumed);
            }
            (Source::Own, _) => {
                let memory = std::mem::take(&mut connection.input).into_memory();
                buffers.give_back(memory);
            }
            (Source::Shared(_), None) => {}
        }
    }

    /// Receives once from a connection that has no whole request: into this buffer, or, behind a
    /// long request, into its own.
    #[inline]
    pub(super) fn receive(
        &mut self,
        here: Here<'_>,
        connection: &mut Connection,
        buffers: &mut BufferPool,
    ) -> Received {
        let partial = connection.input.len();
        let left = left_for(here, connection);
        if connection.tls.is_some() {
            return self.receive_encrypted(here, connection, false, left);
        }
        if partial > JOIN_BYTES_MAX {
            lend_memory(connection, buffers);
            return receive_own(connection, left);
        }
        let start = self.used;
        let bytes = left.unwrap_or(RECEIVE_BYTES).min(RECEIVE_BYTES);
        let room = self.room(partial, bytes);
        let received = match connection.native.as_mut().and_then(|it| it.local.as_mut()) {
            Some(local) => local.receive(&connection.fd, room),
            None => {
                rustix::net::recv(&connection.fd, room, RecvFlags::empty()).map(|(bytes, _)| bytes)
            }
        };
        Received::new(received, |bytes| {
            if partial > 0 {
                self.copy_in(connection.input.get());
                connection.input = Backlog::default();
            }
            Source::Shared(start..start + partial + bytes)
        })
    }

    /// Receives once behind requests that wait: not all that the kernel has (input::R1).
    pub(super) fn receive_more(&mut self, here: Here<'_>, connection: &mut Connection) -> Received {
        let before = connection.input.len();
        let received = match connection.tls {
            None => receive_own(connection, Some(usize::MAX)),
            Some(_) => self.receive_encrypted(here, connection, true, None),
        };
        if let Received::Bytes(_) = received {
            note_received(here, connection, connection.input.len() - before);
        }
        received
    }

    /// Receives once from a connection with TLS: into this buffer, or, behind a long request or if
    /// `own`, into its own.
    fn receive_encrypted(
        &mut self,
        here: Here<'_>,
        connection: &mut Connection,
        own: bool,
        left: Option<usize>,
    ) -> Received {
        if connection.is_handshaking() {
            if self.handshakes_left == 0 {
                return Received::Nothing;
            }
            self.handshakes_left -= 1;
        }
        let partial = connection.input.len();
        let joins = !own && partial <= JOIN_BYTES_MAX;
        // A client without a password has two records of room beyond its limit.
        let room = left.map_or(RECEIVE_BYTES, |left| {
            left.clamp(ROOM_BYTES_MIN, RECEIVE_BYTES)
        });
        let before = if joins { partial } else { 0 };
        let room = self.room(before, room);
        let Some(tls) = &mut connection.tls else {
            return Received::Failed;
        };
        let received = tls.session.receive(&connection.fd, room);
        match received {
            Ok(duramen_tls::Received::Plain(bytes)) => {
                let source = match joins {
                    true => {
                        let joined = self.join(connection.input.get(), bytes);
                        connection.input = Default::default();
                        Source::Shared(joined)
                    }
                    false => {
                        let plain = room.get(..bytes).unwrap_or_default();
                        connection
                            .input
                            .with_exact_room(bytes)
                            .extend_from_slice(plain);
                        Source::Own
                    }
                };
                handshake_moved(here, connection);
                Received::Bytes(source)
            }
            Ok(duramen_tls::Received::Progress) => {
                handshake_moved(here, connection);
                Received::Progress
            }
            Ok(duramen_tls::Received::Nothing) => Received::Nothing,
            Ok(duramen_tls::Received::End) => Received::End,
            Err(error) => {
                tls_failed(here, connection, &error);
                Received::Failed
            }
        }
    }
}

/// The buffer with the input of a turn.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// In the thread's buffer.
    Shared(Range<usize>),
    /// In the connection's own buffer.
    Own,
}

pub(super) enum Received {
    Bytes(Source),
    Nothing,
    /// Bytes of TLS that are no data; some may have to be sent.
    Progress,
    /// The peer has closed its side.
    End,
    Failed,
}

impl Received {
    fn new(received: Result<usize, Errno>, source: impl FnOnce(usize) -> Source) -> Received {
        match received {
            Ok(0) => Received::End,
            Ok(bytes) => Received::Bytes(source(bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            Err(_) => Received::Failed,
        }
    }
}

/// Counts bytes that were received from a client.
#[inline]
pub(super) fn note_received(here: Here<'_>, connection: &Connection, bytes: usize) {
    here.thread.counters.net_input_bytes.add(bytes as u64);
    let record = &connection.record;
    record.active_at_ms.store(here.now_ms, Ordering::Relaxed);
    let total = record.received_bytes.load(Ordering::Relaxed) + bytes as u64;
    record.received_bytes.store(total, Ordering::Relaxed);
}

/// Bytes that may be received from a client that has not authenticated: here it never has more than
/// `preauth-limit`, whether its requests run or not. `None` for a client that has authenticated.
#[inline]
fn left_for(here: Here<'_>, connection: &Connection) -> Option<usize> {
    if connection.client.is_authenticated() || here.shared.acl().is_open() {
        return None;
    }
    let left = here
        .config
        .preauth_limit_bytes
        .saturating_sub(connection.input.len());
    Some(left.max(1)) // one byte more shows that a request is too long
}

/// A long request that is to be received into memory of the pool, if it has such memory. So only as
/// many connections as the pool has large buffers own more memory than they have sent bytes.
fn lend_memory(connection: &mut Connection, buffers: &mut BufferPool) {
    let needed = connection.bytes_needed();
    if needed > connection.input.capacity()
        && let Some(memory) = buffers.take_large(needed)
    {
        let before = connection.input.move_to(memory);
        buffers.give_back(before);
    }
}

/// Receives once into the connection's own buffer; at most `left` bytes, or about as many as the
/// buffer's size allows.
fn receive_own(connection: &mut Connection, left: Option<usize>) -> Received {
    let partial = connection.input.len();
    let missing = connection.bytes_needed().saturating_sub(partial);
    // The memory grows with the received bytes, not with the declared length.
    let room = missing.clamp(
        RECEIVE_BYTES,
        partial.clamp(RECEIVE_BYTES, RESERVE_BYTES_MAX),
    );
    let Connection {
        fd, native, input, ..
    } = connection;
    let buffer = match left {
        Some(left) => input.with_exact_room(room.min(left)),
        None => input.with_room(room),
    };
    let received = match native.as_mut().and_then(|it| it.local.as_mut()) {
        Some(local) => {
            let before = buffer.len();
            // Only the room that this call uses is cleared: a long request has many such calls.
            let room = local.readable().min(buffer.capacity() - before);
            buffer.resize(before + room, 0);
            let received = local.receive(fd, buffer.get_mut(before..).unwrap_or_default());
            buffer.truncate(before + received.unwrap_or(0));
            received
        }
        None => {
            let room = rustix::buffer::spare_capacity(buffer);
            rustix::net::recv(fd, room, RecvFlags::empty()).map(|(bytes, _)| bytes)
        }
    };
    Received::new(received, |_| Source::Own)
}

/// Plain words to a client that speaks Redis without TLS to a port with TLS.
const PLAIN_REDIS: &[u8] =
    b"-ERR this port speaks TLS: connect with TLS, for example redis-cli --tls\r\n";

/// Sends the handshake's output; counts a handshake that is over.
fn handshake_moved(here: Here<'_>, connection: &mut Connection) {
    let Connection {
        tls: Some(tls), fd, ..
    } = connection
    else {
        return;
    };
    if tls.session.unsent() > 0 {
        // The rest is sent as replies are.
        let _ = tls.session.send(&*fd, &[]);
    }
    if tls.is_open() || tls.session.is_handshaking() {
        return;
    }
    tls.note_open();
    let counters = &here.thread.counters;
    counters.tls_handshakes.add(1);
    counters.tls_resumed.add(tls.session.is_resumed().into());
    if let Some(peer) = tls.session.peer() {
        connection.record.note_certificate(peer);
    }
}

/// Tells the peer and the log why a session is over.
fn tls_failed(here: Here<'_>, connection: &mut Connection, error: &TlsError) {
    let Connection {
        tls: Some(tls), fd, ..
    } = connection
    else {
        return;
    };
    if let TlsError::PlainClient(Plain::Redis) = error {
        let _ = rustix::net::send(&*fd, PLAIN_REDIS, SendFlags::NOSIGNAL);
    } else {
        let _ = tls.session.send(&*fd, &[]); // the alert
    }
    if !tls.is_open() {
        here.thread.counters.tls_failed.add(1);
    }
    if !matches!(error, TlsError::Socket(_) | TlsError::Early) {
        seldom!(
            info,
            client = connection.record.id,
            peer = %connection.record.peer,
            "TLS: {error}: closing the connection"
        );
    }
}
