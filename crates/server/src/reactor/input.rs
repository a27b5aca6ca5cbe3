//! Receiving and parsing: from sockets into the thread's buffer, or into the connection's own
//! buffer if a request is long, or must wait.
//!
//! A client may send a long pipeline and read no reply before the last request is sent. It waits
//! for us to receive, and we wait for it to take replies; so one side must keep the bytes.
//!
//! **Invariants**
//! - R1: a connection whose unsent replies exceed `output-pause` runs its requests, and is received
//!   from, only while the buffers of all connections together leave room (`pipeline-memory`):
//!   requests run in the first half of it and up to [`AHEAD_PART`] of `output-limit`, so that a
//!   later large reply still fits; they are received in all of it.
//! - R2: a connection that waits for this room is looked at every [`BEHIND_MS`]: other clients
//!   leave room without an event of its own.
//! - R3: one connection at a time has a turn: it may have as much again for itself. Otherwise
//!   several could share the room, and each would wait for the rest of it. Connections with bytes
//!   to receive wait for the turn in the order of their requests, and do not stall meanwhile. The
//!   turn ends when all that was received has run and is taken down to `output-pause`, so all
//!   connections together never have more than twice the room.
//! - R4: while others wait, the client that has the turn must take its replies, when there are any
//!   to take: for each part of the size of the room it has `output-stall`, and once more. If its
//!   pipeline does not fit even alone, it must begin to take them within [`FULL_MS`]. Otherwise it
//!   is closed.

use super::backlog::Backlog;
use super::connection::{Connection, Parsed, RoomTurn, WaitsFor};
use super::connections::Token;
use super::round::{Ready, Recycled};
use super::{GROUP_INPUT_BYTES, GROUP_REQUESTS, Traffic};
use duramen_redis::shared::Shared;
use duramen_wire::resp::{Consumed, Limits, ParseState, Requests, parse_requests};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Maximum bytes received from one connection in one round.
pub(super) const RECEIVE_BYTES: usize = 64 << 10;
/// Partial requests up to this size are joined with their rest in the thread's buffer; longer ones
/// grow in place.
pub(super) const JOIN_BYTES_MAX: usize = 16 << 10;
/// Maximum memory that a long request reserves ahead of its bytes.
const RESERVE_BYTES_MAX: usize = 1 << 20;
/// See R1.
const AHEAD_PART: usize = 16;
/// See R2.
pub(super) const BEHIND_MS: u64 = 100;
/// See R4.
const FULL_MS: u64 = 5_000;
/// After so many bytes the requests of one connection are parsed in its next turn. Others wait
/// meanwhile: less than a millisecond, unless one request is that long.
const PARSED_BYTES_MAX: usize = 128 << 10;
/// Bytes of the request that waits for elements and of those behind it from which nothing more is
/// received. The end of a client that has sent more is hidden behind bytes that its own system
/// keeps.
const BEHIND_BYTES_MAX: usize = 1 << 20;
/// Maximum requests of one connection that run in one turn.
pub(super) const TURN_REQUESTS_MAX: usize = 1024;

/// The buffer into which all connections of a group receive.
pub(super) struct InputBuffer {
    bytes: Box<[u8]>,
    used: usize,
}

impl InputBuffer {
    pub(super) fn new() -> InputBuffer {
        let size = GROUP_INPUT_BYTES + JOIN_BYTES_MAX + RECEIVE_BYTES;
        InputBuffer {
            bytes: vec![0; size].into_boxed_slice(),
            used: 0,
        }
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
    pub(super) fn room(&mut self, before: usize, bytes: usize) -> &mut [u8] {
        let start = self.used + before;
        let room = self.bytes.get_mut(start..start + bytes);
        room.expect("a group ends before the buffer does")
    }

    /// Puts `before` in front of the `received` bytes in the room; returns the range of both.
    pub(super) fn join(&mut self, before: &[u8], received: usize) -> Range<usize> {
        let range = self.copy_in(before);
        range.start..range.end + received
    }

    fn copy_in(&mut self, bytes: &[u8]) -> Range<usize> {
        let range = self.used..self.used + bytes.len();
        self.bytes[range.clone()].copy_from_slice(bytes);
        range
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

impl Traffic {
    /// Receives once from a readable connection and puts it into the group if that completed a
    /// request.
    pub(super) fn receive(&mut self, token: Token) {
        if self.ready_requests >= GROUP_REQUESTS || self.input.used >= GROUP_INPUT_BYTES {
            self.run_group();
        }
        let Some(mut connection) = self.connections.take(token) else {
            return;
        };
        if connection.held.is_some() || connection.waits_for == WaitsFor::Flash {
            return self.mute(token, connection);
        }
        if connection.waits_for == WaitsFor::Key {
            return self.receive_parked(token, connection);
        }
        // reactor::I4, for callers without an event of epoll.
        if !connection.interest.contains(EventFlags::IN) {
            return self.connections.put(token, connection);
        }
        if connection.waits_for == WaitsFor::Input && !self.may_run(&mut connection) {
            connection.waits_for = WaitsFor::Output { ended: false };
        }
        match connection.waits_for {
            WaitsFor::Input => {}
            WaitsFor::Output { .. } => return self.receive_behind(token, connection),
            // A script whose client has gone is dropped, also if it stands in line, as is an EXEC
            // or a combination in parts. TCP does not tell whether a client that sends nothing more
            // still reads: it is waited for until its script is busy.
            WaitsFor::Turn
                if let Some(is_busy) = self.executor.script_of(&connection.client)
                    && connection.has_left(is_busy) =>
            {
                return self.close_taken(token, connection);
            }
            // Bytes that a waiting connection sent earlier come first.
            _ => return self.connections.put(token, connection),
        }
        let before = connection.input.len();
        let received = self.receive_into(&mut connection);
        self.note_memory(&mut connection);
        match received {
            Received::Bytes(source) => {
                let received = match &source {
                    Source::Shared(range) => range.len() - before,
                    Source::Own => connection.input.len() - before,
                };
                self.note_received(&connection, received);
                self.parse(token, connection, source);
            }
            Received::Nothing => self.connections.put(token, connection),
            Received::Progress => self.settle(token, connection),
            Received::End if connection.unsent_bytes() > 0 => {
                connection.closing = true;
                self.settle(token, connection);
            }
            Received::End | Received::Failed => self.close_taken(token, connection),
        }
    }

    /// Nothing more is received from a connection now: epoll does not report it.
    pub(super) fn mute(&mut self, token: Token, mut connection: Box<Connection>) {
        self.watch_exactly(token, &mut connection);
        self.connections.put(token, connection);
    }

    pub(super) fn note_received(&self, connection: &Connection, bytes: usize) {
        self.me().counters.net_input_bytes.add(bytes as u64);
        let record = &connection.record;
        record
            .active_at_ms
            .store(self.thread.now_ms(), Ordering::Relaxed);
        let total = record.received_bytes.load(Ordering::Relaxed) + bytes as u64;
        record.received_bytes.store(total, Ordering::Relaxed);
    }

    /// Receives once behind the requests that wait until the client takes its replies.
    fn receive_behind(&mut self, token: Token, mut connection: Box<Connection>) {
        if !self.may_receive(&mut connection) {
            return self.mute(token, connection);
        }
        match self.receive_more(&mut connection) {
            Received::Bytes(_) => {
                connection.taken_at_ms = self.thread.now_ms(); // a client that still sends does not stall
                self.settle(token, connection);
            }
            Received::Nothing => self.connections.put(token, connection),
            Received::Progress => self.settle(token, connection),
            Received::End => {
                // Noticed again when its requests have run.
                connection.waits_for = WaitsFor::Output { ended: true };
                self.settle(token, connection);
            }
            Received::Failed => self.close_taken(token, connection),
        }
    }

    /// Receives behind a request that waits (key_waits::K3).
    pub(super) fn receive_parked(&mut self, token: Token, mut connection: Box<Connection>) {
        if !self.has_room_behind(&connection) {
            return self.mute(token, connection);
        }
        match self.receive_more(&mut connection) {
            Received::Bytes(_) | Received::Progress => self.settle(token, connection),
            Received::Nothing => self.connections.put(token, connection),
            Received::End | Received::Failed => self.close_taken(token, connection),
        }
    }

    /// Whether more may be received from a parked connection.
    pub(super) fn has_room_behind(&mut self, connection: &Connection) -> bool {
        let bytes_max = self.thread.here().config.pipeline_bytes_max();
        connection.input.len() < BEHIND_BYTES_MAX
            && self
                .thread
                .shared()
                .sum(|counters| &counters.query_buffer_bytes)
                < bytes_max
    }

    /// Receives once behind requests that wait: not all that the kernel has (R1).
    pub(super) fn receive_more(&mut self, connection: &mut Connection) -> Received {
        let before = connection.input.len();
        let received = match connection.tls {
            None => receive_own(connection, Some(usize::MAX)),
            Some(_) => self.receive_encrypted(connection, true, None),
        };
        self.note_memory(connection);
        if let Received::Bytes(_) = received {
            self.note_received(connection, connection.input.len() - before);
        }
        received
    }

    fn receive_into(&mut self, connection: &mut Connection) -> Received {
        let partial = connection.input.len();
        let left = self.left_for(connection);
        if connection.tls.is_some() {
            return self.receive_encrypted(connection, false, left);
        }
        if partial > JOIN_BYTES_MAX {
            self.lend_memory(connection);
            return receive_own(connection, left);
        }
        let start = self.input.used;
        let bytes = left.unwrap_or(RECEIVE_BYTES).min(RECEIVE_BYTES);
        let room = self.input.room(partial, bytes);
        let received = match connection.native.as_mut().and_then(|it| it.local.as_mut()) {
            Some(local) => local.receive(&connection.fd, room),
            None => {
                rustix::net::recv(&connection.fd, room, RecvFlags::empty()).map(|(bytes, _)| bytes)
            }
        };
        Received::new(received, |bytes| {
            if partial > 0 {
                self.input.copy_in(connection.input.get());
                connection.input = Backlog::default();
            }
            Source::Shared(start..start + partial + bytes)
        })
    }

    /// A long request that is to be received into memory of the pool, if it has such memory. Only
    /// as many as the pool keeps have more than they have sent.
    fn lend_memory(&mut self, connection: &mut Connection) {
        let needed = connection.bytes_needed();
        if needed > connection.input.capacity()
            && let Some(memory) = self.buffers.take_large(needed)
        {
            let before = connection.input.move_to(memory);
            self.buffers.give_back(before);
        }
    }

    /// Puts a connection with whole requests from the last round into the group.
    pub(super) fn continue_connection(&mut self, token: Token) {
        let Some(mut connection) = self.connections.take(token) else {
            return;
        };
        if connection.held.is_some() {
            // Its release continues it.
            connection.waits_for = WaitsFor::Turn;
            return self.connections.put(token, connection);
        }
        connection.waits_for = WaitsFor::Input;
        let here = self.thread.here();
        if !connection.closing && self.waits.pause_crowding(here, token, &mut connection) {
            self.executor.give_up_place(&mut connection.client); // key_waits::K2
            return self.settle(token, connection);
        }
        if connection.input.is_empty() || connection.closing {
            return self.settle(token, connection);
        }
        if !self.may_run(&mut connection) {
            // The client must take its replies first; `writable` or a sweep continues the
            // connection. Meanwhile it keeps no fetched entries.
            self.flash
                .unpark(self.thread.here(), &mut connection, &mut self.executor);
            self.executor.give_up_place(&mut connection.client); // key_waits::K2
            connection.waits_for = WaitsFor::Output { ended: false };
            return self.settle(token, connection);
        }
        self.parse(token, connection, Source::Own);
        if self.ready_requests >= GROUP_REQUESTS {
            self.run_group();
        }
    }

    fn parse(&mut self, token: Token, mut connection: Box<Connection>, source: Source) {
        if connection.native.is_some() {
            return self.parse_native(token, connection, source);
        }
        let (known, limits) = connection.take_parsed(|it| self.limits(it));
        let input = match &source {
            Source::Shared(range) => self.input.get(range),
            Source::Own => connection.input.get(),
        };
        let (requests, parsed) = match known {
            // More input may have come meanwhile.
            Some(known) => (known.requests, Ok(consumed(known.bytes, input))),
            None => {
                let mut requests = self.recycled.requests();
                let state = &mut connection.parse;
                let parsed = parse_requests(input, &limits, state, &mut requests);
                (requests, parsed)
            }
        };
        let nothing = parsed
            == Ok(Consumed {
                bytes: 0,
                more: false,
            });
        if nothing {
            self.recycled.give_back(requests);
            if let Source::Shared(range) = &source {
                connection.input = Backlog::from(self.input.get(range));
            }
            return self.settle(token, connection);
        }
        if let Source::Shared(range) = &source {
            self.input.keep(range);
        }
        self.ready_requests += requests.len().max(1);
        if connection.output.is_empty() {
            connection.output = self.buffers.take(connection.replies_bytes);
        }
        connection.fit_sent();
        self.ready.push(Ready {
            replies_from: connection.output.len(),
            token,
            connection,
            requests,
            source,
            limits,
            parsed,
        });
    }

    /// Bytes that may be received from a client that has not authenticated: here it never has more
    /// than `preauth-limit`, whether its requests run or not. None: it has authenticated.
    fn left_for(&mut self, connection: &Connection) -> Option<usize> {
        if connection.client.is_authenticated() || self.thread.shared().acl.is_open() {
            return None;
        }
        let config = self.thread.here().config;
        let left = config
            .preauth_limit_bytes
            .saturating_sub(connection.input.len());
        Some(left.max(1)) // a request that is too long is known by its next byte
    }

    /// Whether the connection's requests run before its client takes more replies.
    #[inline]
    pub(super) fn may_run(&mut self, connection: &mut Connection) -> bool {
        !self.is_behind(connection) || self.may_run_ahead(connection)
    }

    /// Whether the connection is received from before its client takes more replies.
    #[inline]
    pub(super) fn may_receive(&mut self, connection: &mut Connection) -> bool {
        !self.is_behind(connection) || self.pipeline_room(connection) > 0
    }

    /// Whether its client takes its replies too slowly.
    #[inline]
    pub(super) fn is_behind(&mut self, connection: &Connection) -> bool {
        let config = self.thread.here().config;
        connection.unsent_bytes() > config.output_pause_bytes
    }

    #[cold]
    fn may_run_ahead(&mut self, connection: &mut Connection) -> bool {
        let config = self.thread.here().config;
        let (limit, half) = (config.output_limit_bytes, config.pipeline_bytes_max() / 2);
        connection.unsent_bytes() <= limit / AHEAD_PART && self.pipeline_room(connection) > half
    }

    /// Bytes that may still be buffered for clients that do not take their replies (R1).
    #[cold]
    fn pipeline_room(&mut self, connection: &mut Connection) -> u64 {
        let bytes_max = self.thread.here().config.pipeline_bytes_max();
        if !connection.client.is_authenticated() && !self.thread.shared().acl.is_open() {
            if connection.turn == RoomTurn::Waits {
                connection.end_turn(self.thread.shared());
            }
            return 0;
        }
        self.has_behind = true;
        let buffered = self
            .thread
            .shared()
            .sum(|counters| &counters.query_buffer_bytes)
            + self
                .thread
                .shared()
                .sum(|counters| &counters.output_buffer_bytes);
        match bytes_max.saturating_sub(buffered) {
            0 if self.has_turn(connection) => {
                let own = connection.input.len() + connection.unsent_bytes();
                bytes_max.saturating_sub(own as u64)
            }
            room => room,
        }
    }

    /// Whether the connection has the turn, for which it asks if it needs it (R3).
    fn has_turn(&mut self, connection: &mut Connection) -> bool {
        if matches!(connection.turn, RoomTurn::Has { .. }) {
            return true;
        }
        if !connection.has_unreceived() {
            connection.end_turn(self.thread.shared()); // it can take its replies
            return false;
        }
        let has = self.thread.shared().pipeline_turn.ask(connection.record.id);
        connection.turn = match has {
            true => RoomTurn::Has {
                since_ms: self.thread.now_ms(),
                sent_bytes: connection.record.sent_bytes.load(Ordering::Relaxed),
            },
            false => RoomTurn::Waits,
        };
        connection.taken_at_ms = self.thread.now_ms();
        has
    }

    /// Ends its turn, or its wait for it, if it does not need more room.
    pub(super) fn settle_turn(&mut self, connection: &mut Connection) {
        if connection.turn == RoomTurn::None {
            return;
        }
        let is_behind = self.is_behind(connection);
        let sendable = connection.sendable_bytes();
        let is_over = match &mut connection.turn {
            RoomTurn::None => false,
            // A connection that waits for something else does not ask, and would block the others.
            RoomTurn::Waits => {
                let asks = !connection.closing
                    && connection.held.is_none()
                    && matches!(
                        connection.waits_for,
                        WaitsFor::Input | WaitsFor::Turn | WaitsFor::Output { ended: false }
                    );
                !is_behind || !asks
            }
            RoomTurn::Has {
                since_ms,
                sent_bytes,
            } => {
                if sendable == 0 {
                    // R4: its client cannot take anything.
                    *since_ms = self.thread.now_ms();
                    *sent_bytes = connection.record.sent_bytes.load(Ordering::Relaxed);
                }
                !is_behind && connection.held.is_none() && connection.waits_for == WaitsFor::Input
            }
        };
        if is_over {
            connection.end_turn(self.thread.shared());
        }
    }

    /// Whether the connection keeps others waiting for the turn for too long (R4).
    pub(super) fn keeps_turn_too_long(&self, connection: &Connection, stall_ms: u64) -> bool {
        let RoomTurn::Has {
            since_ms,
            sent_bytes,
        } = connection.turn
        else {
            return false;
        };
        let bytes_max = self.thread.shared().config().pipeline_bytes_max().max(1);
        let taken = connection.record.sent_bytes.load(Ordering::Relaxed) - sent_bytes;
        let allowed_ms = stall_ms.saturating_add(stall_ms.saturating_mul(taken) / bytes_max);
        let is_full = (connection.input.len() + connection.unsent_bytes()) as u64 >= bytes_max;
        let since = |then_ms| self.thread.now_ms().saturating_sub(then_ms);
        (since(since_ms) >= allowed_ms || is_full && since(connection.taken_at_ms) >= FULL_MS)
            && connection.sendable_bytes() > 0
            && self.thread.shared().pipeline_turn.is_wanted()
    }

    /// Continues the connections for which there is room now (R2).
    pub(super) fn resume_behind(&mut self) {
        self.next_behind_ms = self.thread.now_ms() + BEHIND_MS;
        self.has_behind = false;
        for token in self.connections.tokens() {
            let waits = self.connections.get(token).is_some_and(|connection| {
                connection.unsent_bytes() > 0
                    || matches!(connection.waits_for, WaitsFor::Output { .. })
            });
            if !waits {
                continue;
            }
            if let Some(mut connection) = self.connections.take(token) {
                self.resume_run(token, &mut connection);
                self.settle(token, connection);
            }
        }
    }

    /// Its requests run in the next round, if they waited for the client to take replies.
    pub(super) fn resume_run(&mut self, token: Token, connection: &mut Connection) {
        if matches!(connection.waits_for, WaitsFor::Output { .. }) && self.may_run(connection) {
            connection.waits_for = WaitsFor::Turn;
            if connection.held.is_none() {
                self.connections.continue_soon(token);
            }
        }
    }

    pub(super) fn limits(&mut self, connection: &Connection) -> Limits {
        let config = self.thread.here().config;
        if connection.client.is_authenticated() {
            Limits {
                args_max: config.args_limit,
                bulk_bytes_max: config.request_limit_bytes,
                request_bytes_max: config.request_limit_bytes + REQUEST_OVERHEAD_BYTES,
                requests_max: TURN_REQUESTS_MAX,
                parsed_bytes_max: PARSED_BYTES_MAX,
                ..Limits::default()
            }
        } else {
            let strangers = Limits::unauthenticated();
            Limits {
                bulk_bytes_max: strangers.bulk_bytes_max.min(config.preauth_limit_bytes),
                inline_bytes_max: strangers.inline_bytes_max.min(config.preauth_limit_bytes),
                request_bytes_max: config.preauth_limit_bytes,
                ..strangers
            }
        }
    }
}

/// Receives once into the connection's own buffer; at most `left` bytes, or about as many as the
/// buffer's size allows.
pub(super) fn receive_own(connection: &mut Connection, left: Option<usize>) -> Received {
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

/// The result of [`parse_requests`] for requests of so many bytes at the front of `input`.
fn consumed(bytes: usize, input: &[u8]) -> Consumed {
    let more = bytes < input.len();
    Consumed { bytes, more }
}

impl Connection {
    /// Ends its turn, or its wait for it (R3).
    pub(super) fn end_turn(&mut self, shared: &Shared) {
        if std::mem::replace(&mut self.turn, RoomTurn::None) != RoomTurn::None {
            shared.pipeline_turn.leave(self.record.id);
        }
    }

    /// Keeps requests that did not run: their parsing would take long again.
    pub(super) fn keep_parsed(
        &mut self,
        requests: Requests,
        bytes: usize,
        limits: Limits,
    ) -> Option<Requests> {
        if bytes <= PARSED_BYTES_MAX {
            return Some(requests);
        }
        self.parsed = Some(Parsed {
            requests,
            bytes,
            limits,
        });
        None
    }

    /// Those requests, if there are any, and their limits, which hold for their rest too; else
    /// those of `now`.
    fn take_parsed(&mut self, now: impl FnOnce(&Connection) -> Limits) -> (Option<Parsed>, Limits) {
        let known = self.parsed.take();
        let limits = match &known {
            Some(known) => known.limits,
            None => now(self),
        };
        (known, limits)
    }
}

/// Length of the first `executed` requests of `input`; None: all of it.
pub(super) fn bytes_of(
    limits: &Limits,
    input: &[u8],
    executed: usize,
    recycled: &mut Recycled,
) -> Option<usize> {
    if executed == 0 {
        return Some(0);
    }
    let limits = Limits {
        requests_max: executed,
        ..*limits
    };
    let mut requests = recycled.requests();
    let parsed = parse_requests(input, &limits, &mut ParseState::new(), &mut requests);
    recycled.give_back(requests);
    parsed.ok().map(|consumed| consumed.bytes)
}

/// Room for the frame around an argument of the largest size.
const REQUEST_OVERHEAD_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_redis::threads::ClientRecord;
    use std::sync::Arc;

    /// The rest of requests that had been parsed with larger limits was searched with those of
    /// now, which do not find it.
    #[test]
    fn requests_that_are_kept_keep_their_limits() {
        let address = "127.0.0.1:1".parse().expect("an address");
        let record = Arc::new(ClientRecord::new(1, 0, 0, 3, address, address, 1));
        let file = std::fs::File::open("/dev/null").expect("it is there");
        let mut connection = Connection::new(file.into(), record, 1);
        let limits = Limits {
            args_max: 7,
            ..Limits::default()
        };
        let mut keep = |bytes| {
            let given_back = connection.keep_parsed(Requests::new(), bytes, limits);
            let (kept, used) = connection.take_parsed(|_| Limits::default());
            assert_ne!(given_back.is_some(), kept.is_some());
            (kept.map(|kept| kept.bytes), used.args_max)
        };
        let now = Limits::default().args_max;
        assert_eq!(keep(PARSED_BYTES_MAX), (None, now));
        let long = PARSED_BYTES_MAX + 1;
        assert_eq!(keep(long), (Some(long), 7));
    }
}
