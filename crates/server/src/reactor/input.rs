//! From events to requests: each ready connection is received from and parsed, as long as there is
//! room for the replies that its client does not take.
//!
//! A client may send a long pipeline and read no reply before the last request is sent. It waits
//! for us to receive, and we wait for it to take replies; so one side must keep the bytes.
//!
//! **Invariants**
//! - R1: a connection whose unsent replies exceed `output-pause` runs its requests, and is received
//!   from, only while the buffers of all connections together leave room (`pipeline-memory`):
//!   requests run while the first half of that room lasts, and up to `behind::AHEAD_PART` of
//!   `output-limit`, so that a later large reply still fits; bytes are received while any of the
//!   room is left.
//! - R2: a connection that waits for this room is looked at every `behind::BEHIND_MS`: other
//!   clients leave room without an event of its own.
//! - R3: one connection at a time has the turn: it may use a second room of the same size alone.
//!   Otherwise several connections could share the room, and each would wait for the part that the
//!   others have. Connections with bytes to receive wait for the turn in the order of their
//!   requests, and do not stall meanwhile. The turn ends when all that was received has run and is
//!   taken down to `output-pause`, so all connections together never have more than twice the room.
//! - R4: while others wait, the client that has the turn must take its replies, if there are any.
//!   It has `output-stall` once, and once more for each part of them as large as the room. If its
//!   pipeline does not fit even alone, it must begin to take them within `behind::FULL_MS`.
//!   Otherwise it is closed.

use super::Traffic;
use super::backlog::Backlog;
use super::behind::has_room_for_parked;
use super::connection::{Connection, Parsed, WaitsFor};
use super::connections::Token;
use super::here::Here;
use super::next::Next;
use super::receive::{Received, Source, note_received};
use super::round::{Ready, TURN_REQUESTS_MAX};
use duramen_wire::resp::{Consumed, Limits, Requests, parse_requests};
use rustix::event::epoll::EventFlags;

/// After so many bytes the requests of one connection are parsed in its next turn. Others wait
/// meanwhile: less than a millisecond, unless one request is that long.
const PARSED_BYTES_MAX: usize = 128 << 10;

impl Traffic {
    /// Receives once from a readable connection and puts it into the group if that completed a
    /// request.
    pub(super) fn receive(&mut self, token: Token) {
        if self.groups.is_full() || self.input.is_full() {
            self.run_group();
        }
        if let Some(mut connection) = self.connections.take(token) {
            let next = self.receive_once(&mut connection);
            self.go(token, connection, next);
        }
    }

    fn receive_once(&mut self, connection: &mut Connection) -> Next {
        if connection.held.is_some() || connection.waits_for == WaitsFor::Flash {
            return Next::Mute;
        }
        if connection.waits_for == WaitsFor::Key {
            return self.receive_parked(connection);
        }
        // reactor::I4, for callers without an event of epoll.
        if !connection.interest.contains(EventFlags::IN) {
            return Next::Rest;
        }
        let here = self.thread.here();
        if connection.waits_for == WaitsFor::Input && !self.behind.may_run(here, connection) {
            connection.waits_for = WaitsFor::Output { ended: false };
        }
        match connection.waits_for {
            WaitsFor::Input => {}
            WaitsFor::Output { .. } => return self.receive_behind(connection),
            // A script whose client has gone is dropped, even if the script only stands in line; so
            // is an EXEC, or a combination that runs in parts. TCP does not show whether a client
            // that sends nothing more still reads: the server waits for it until its script is
            // busy.
            WaitsFor::Turn
                if let Some(is_busy) = self.executor.script_of(&connection.client)
                    && connection.has_left(is_busy) =>
            {
                return Next::Close;
            }
            // Bytes that a waiting connection sent earlier come first.
            _ => return Next::Rest,
        }
        let before = connection.input.len();
        let received = self.input.receive(here, connection, &mut self.buffers);
        self.buffers.note_memory(connection);
        match received {
            Received::Bytes(source) => {
                let received = match &source {
                    Source::Shared(range) => range.len() - before,
                    Source::Own => connection.input.len() - before,
                };
                note_received(here, connection, received);
                Next::Parse(source)
            }
            Received::Nothing => Next::Rest,
            Received::Progress => Next::Settle,
            Received::End if connection.unsent_bytes() > 0 => {
                connection.closing = true;
                Next::Settle
            }
            Received::End | Received::Failed => Next::Close,
        }
    }

    /// Receives once behind the requests that wait until the client takes its replies.
    fn receive_behind(&mut self, connection: &mut Connection) -> Next {
        let here = self.thread.here();
        if !self.behind.may_receive(here, connection) {
            return Next::Mute;
        }
        let received = self.input.receive_more(here, connection);
        self.buffers.note_memory(connection);
        match received {
            Received::Bytes(_) => {
                connection.taken_at_ms = here.now_ms; // a client that still sends does not stall
                Next::Settle
            }
            Received::Nothing => Next::Rest,
            Received::Progress => Next::Settle,
            Received::End => {
                // The end is noticed again when the client's requests have run.
                connection.waits_for = WaitsFor::Output { ended: true };
                Next::Settle
            }
            Received::Failed => Next::Close,
        }
    }

    /// Receives behind a request that waits (key_waits::K3).
    fn receive_parked(&mut self, connection: &mut Connection) -> Next {
        let here = self.thread.here();
        if !has_room_for_parked(here, connection) {
            return Next::Mute;
        }
        let received = self.input.receive_more(here, connection);
        self.buffers.note_memory(connection);
        match received {
            Received::Bytes(_) | Received::Progress => Next::Settle,
            Received::Nothing => Next::Rest,
            Received::End | Received::Failed => Next::Close,
        }
    }

    /// Puts a connection with whole requests from the last round into the group.
    pub(super) fn continue_connection(&mut self, token: Token) {
        let Some(mut connection) = self.connections.take(token) else {
            return;
        };
        let next = self.continue_once(token, &mut connection);
        let adds = matches!(next, Next::Parse(_));
        self.go(token, connection, next);
        if adds && self.groups.is_full() {
            self.run_group();
        }
    }

    fn continue_once(&mut self, token: Token, connection: &mut Connection) -> Next {
        if connection.held.is_some() {
            // The release of its held replies continues the connection.
            connection.waits_for = WaitsFor::Turn;
            return Next::Rest;
        }
        connection.waits_for = WaitsFor::Input;
        let here = self.thread.here();
        if !connection.closing && self.waits.pause_crowding(here, token, connection) {
            self.executor.give_up_place(&mut connection.client); // key_waits::K2
            return Next::Settle;
        }
        if connection.input.is_empty() || connection.closing {
            return Next::Settle;
        }
        if !self.behind.may_run(here, connection) {
            // The client must take its replies first; `writable` or a sweep continues the
            // connection. Meanwhile it keeps no fetched entries.
            self.flash.unpark(here, connection, &mut self.executor);
            self.executor.give_up_place(&mut connection.client); // key_waits::K2
            connection.waits_for = WaitsFor::Output { ended: false };
            return Next::Settle;
        }
        Next::Parse(Source::Own)
    }

    pub(super) fn parse(&mut self, token: Token, mut connection: Box<Connection>, source: Source) {
        if connection.native.is_some() {
            return self.parse_native(token, connection, source);
        }
        let here = self.thread.here();
        let (known, limits) = connection.take_parsed(|it| limits(here, it));
        let input = match &source {
            Source::Shared(range) => self.input.get(range),
            Source::Own => connection.input.get(),
        };
        let (requests, parsed) = match known {
            // More input may have come meanwhile.
            Some(known) => (known.requests, Ok(consumed(known.bytes, input))),
            None => {
                let mut requests = self.groups.table();
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
            self.groups.give_back(requests);
            if let Source::Shared(range) = &source {
                connection.input = Backlog::from(self.input.get(range));
            }
            return self.settle(token, connection);
        }
        if let Source::Shared(range) = &source {
            self.input.keep(range);
        }
        if connection.output.is_empty() {
            connection.output = self.buffers.take(connection.replies_bytes);
        }
        connection.fit_sent();
        self.groups.add(Ready {
            replies_from: connection.output.len(),
            token,
            connection,
            requests,
            source,
            limits,
            parsed,
        });
    }

    /// Continues the connections for which there is room now (R2).
    pub(super) fn resume_behind(&mut self) {
        self.behind.begin(self.thread.here());
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
        if matches!(connection.waits_for, WaitsFor::Output { .. })
            && self.behind.may_run(self.thread.here(), connection)
        {
            connection.waits_for = WaitsFor::Turn;
            if connection.held.is_none() {
                self.connections.continue_soon(token);
            }
        }
    }
}

/// The limits for the requests of a connection.
fn limits(here: Here<'_>, connection: &Connection) -> Limits {
    let config = here.config;
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

/// The result of [`parse_requests`] for requests of so many bytes at the front of `input`.
fn consumed(bytes: usize, input: &[u8]) -> Consumed {
    let more = bytes < input.len();
    Consumed { bytes, more }
}

impl Connection {
    /// Keeps requests that did not run parsed, because parsing them again would take long.
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

    /// The requests that were kept parsed, and the limits of their parsing, which hold for the rest
    /// of the input too. Without such requests, the limits of `now`.
    fn take_parsed(&mut self, now: impl FnOnce(&Connection) -> Limits) -> (Option<Parsed>, Limits) {
        let known = self.parsed.take();
        let limits = match &known {
            Some(known) => known.limits,
            None => now(self),
        };
        (known, limits)
    }
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
