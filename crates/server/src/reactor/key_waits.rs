//! Connections whose first request waits for elements (BLPOP): how they park, and what shows the
//! request again.
//!
//! **Invariants**
//! - K1: a parked connection (`WaitsFor::Key`) costs no work: it is in the queues of its keys
//!   (`shared::Shared::waiters`), and in [`KeyWaits::ends`] if its wait has an end.
//! - K2: a client that is told to look, and whose requests cannot run now, gives up its place, and
//!   so does one whose connection is closing: no other client waits for its disk, or until it takes
//!   its replies (waiters::W3).
//! - K3: the end of a parked client is noticed: it is received from, behind its request, as long as
//!   there is room ([`INPUT_BYTES_MAX`]); then epoll watches for the end of its stream alone.
//! - K4: a client that was woken by a request of its thread looks in the next round, which begins
//!   without a system call; the round after that takes events, so a chain of clients that wake each
//!   other keeps nobody out.
//! - K5: a client that `CLIENT PAUSE` holds is closed when it ends its stream, as by Redis: its
//!   request would take effect much later, and nobody would get the reply. It is sent earlier
//!   replies first. One whose request is only put off, because of reserved keys or of keys that no
//!   server serves, is served if it sends nothing more, as by a Redis that runs a script.

use super::Reactor;
use super::connection::{Connection, WaitsFor};
use super::connections::Token;
use super::input::Received;
use duramen_config::clock;
use duramen_redis::command::AGAIN_MS;
use std::collections::BTreeSet;

/// Bytes of the request that waits and of those behind it from which nothing more is received. The
/// end of a client that has sent more is hidden behind bytes that its own system keeps.
const INPUT_BYTES_MAX: usize = 1 << 20;
/// Only `CLIENT PAUSE` holds requests for longer: those that are put off are shown again after
/// `AGAIN_MS`.
const PUT_OFF_MS_MAX: u64 = 10 * AGAIN_MS;

/// The parked connections of a thread.
#[derive(Default)]
pub(super) struct KeyWaits {
    /// Ends of waits, in milliseconds of the server's clock.
    ends: BTreeSet<(u64, Token)>,
}

impl KeyWaits {
    /// The first end of a wait.
    pub(super) fn first_end_ms(&self) -> Option<u64> {
        self.ends.first().map(|(end_ms, _)| *end_ms)
    }
}

impl Connection {
    /// Whether it is paused, and is closed when its client ends its stream (K3, K5).
    pub(super) fn is_watched_in_pause(&self) -> bool {
        let WaitsFor::Pause { until_ms } = self.waits_for else {
            return false;
        };
        self.held.is_none()
            && self.unsent_bytes() == 0
            && (self.client.waits_for_key() || until_ms > clock::now_ms() + PUT_OFF_MS_MAX)
    }
}

impl Reactor {
    /// Parks a connection whose first request waits for elements. It is out of its slot.
    pub(super) fn await_key(&mut self, token: Token, connection: &mut Connection) {
        connection.waits_for = WaitsFor::Key;
        self.end_turn(connection); // others want the turn of the long pipelines (input::R3)
        let end_ms = connection.client.key_wait_deadline_ms();
        if end_ms > 0 {
            self.key_waits.ends.insert((end_ms, token));
        }
    }

    /// The connection, which is out of its slot, runs no request until this time, in milliseconds
    /// of the server's clock. The wait of its first request may end before. It keeps its place: the
    /// clients behind it are paused too.
    pub(super) fn pause(&mut self, token: Token, connection: &mut Connection, until_ms: u64) {
        connection.waits_for = WaitsFor::Pause { until_ms };
        self.paused.push(token);
        if connection.client.waits_for_key() {
            let end_ms = connection.client.key_wait_deadline_ms();
            if end_ms > 0 {
                self.key_waits.ends.insert((end_ms, token));
            }
        }
    }

    /// Ends the parking of a connection, if it is parked, or paused on its way back.
    pub(super) fn leave_parking(&mut self, token: Token, connection: &mut Connection) -> bool {
        let is_paused = matches!(connection.waits_for, WaitsFor::Pause { .. });
        let is_parked =
            connection.waits_for == WaitsFor::Key || is_paused && connection.client.waits_for_key();
        if is_paused {
            connection.client.note_blocked(false);
        }
        if is_parked {
            let end_ms = connection.client.key_wait_deadline_ms();
            self.key_waits.ends.remove(&(end_ms, token));
        }
        is_parked
    }

    /// The connection, which is out of its slot, is closed.
    pub(super) fn end_key_wait(&mut self, token: Token, connection: &mut Connection) {
        self.leave_parking(token, connection);
        connection.client.end_key_wait(self.thread.shared(), true);
    }

    /// Shows the request of a parked connection again, in the next round.
    fn show_again(&mut self, token: Token) {
        let Some(mut connection) = self.connections.take(token) else {
            return;
        };
        let is_held = connection.held.is_some();
        if self.leave_parking(token, &mut connection) {
            connection.waits_for = WaitsFor::Turn;
            match is_held {
                true => self.executor.give_up_place(&mut connection.client), // K2
                false => self.connections.continue_soon(token),
            }
        }
        self.connections.put(token, connection);
    }

    /// A client was told to look again.
    pub(super) fn show_client_again(&mut self, client: u64) {
        if let Some(token) = self.token_of(client) {
            self.show_again(token);
        }
    }

    /// After a group: clients of this thread that were woken by its requests look before the next
    /// requests of other clients run.
    pub(super) fn show_woken(&mut self) {
        let woken = self.executor.take_woken();
        if woken.is_empty() {
            return;
        }
        let others = self.connections.take_soon();
        for client in woken {
            self.show_client_again(client);
        }
        self.shows_woken |= self.connections.soon() > 0;
        self.connections.continue_behind(others);
    }

    /// Shows requests again whose time is over.
    pub(super) fn end_key_waits(&mut self) {
        let now_ms = clock::now_ms();
        while let Some((end_ms, token)) = self.key_waits.ends.first().copied()
            && end_ms <= now_ms
        {
            self.key_waits.ends.remove(&(end_ms, token));
            self.show_again(token);
        }
    }

    /// Shows requests again whose keys other members serve now.
    pub(super) fn show_moved(&mut self) {
        if self.thread.shared().membership().is_none() {
            return;
        }
        for token in self.connections.tokens() {
            let connection = self.connections.get(token);
            let parked = connection.filter(|it| it.waits_for == WaitsFor::Key);
            if parked.is_some_and(|it| self.executor.has_lost_keys(&it.client)) {
                self.show_again(token);
            }
        }
    }

    /// Receives behind a request that waits (K3).
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
        connection.input.len() < INPUT_BYTES_MAX
            && self
                .thread
                .shared()
                .sum(|counters| &counters.query_buffer_bytes)
                < bytes_max
    }
}
