//! Connections whose first request waits for elements (BLPOP): how they park, and which events show
//! the request again.
//!
//! **Invariants**
//! - K1: a parked connection (`WaitsFor::Key`) costs no work: it is in the queues of its keys
//!   (`Shared::waiters`), and in [`Waits::ends`] if its wait has an end.
//! - K2: a client gives up its place if it is to look again but its requests cannot run now, or if
//!   its connection is closing. So no other client waits for this client's disk, or until this
//!   client takes its replies (waiters::W3).
//! - K3: the end of a parked client is noticed: it is received from, behind its request, as long as
//!   there is room (`behind::PARKED_BYTES_MAX`); then epoll watches for the end of its stream
//!   alone.
//! - K4: a client that was woken by a request of its thread looks in the next round, which begins
//!   without a system call; the round after that takes events, so a chain of clients that wake each
//!   other keeps nobody out.
//! - K5: a client that `CLIENT PAUSE` holds is closed when it ends its stream, as by Redis: its
//!   request would take effect much later, and nobody would get the reply. Earlier replies are sent
//!   to it first. A client whose request is only put off, because of reserved keys or of keys that
//!   no server serves, is still served after it has ended its stream, as by a Redis that runs a
//!   script.

use super::connection::{Connection, WaitsFor};
use super::connections::{Connections, Token};
use super::here::Here;
use duramen_config::clock;
use duramen_redis::command::AGAIN_MS;
use duramen_redis::executor::Executor;
use duramen_redis::pubsub::is_crowded;
use std::collections::BTreeSet;

/// Only `CLIENT PAUSE` holds requests for longer: those that are put off are shown again after
/// `AGAIN_MS`.
const PUT_OFF_MS_MAX: u64 = 10 * AGAIN_MS;

/// Pause of a client that has made a mailbox crowded, until it is looked at again.
const CROWDED_PAUSE_MS: u64 = 1;

/// The parked and the paused connections of a thread.
#[derive(Default)]
pub(super) struct Waits {
    /// Ends of waits, in milliseconds of the server's clock.
    ends: BTreeSet<(u64, Token)>,
    /// Connections that `CLIENT PAUSE` holds back.
    paused: Vec<Token>,
    /// Whether some of the connections that continue in the next round were woken (K4).
    shows_woken: bool,
}

impl Connection {
    /// Whether the connection is paused, and is closed when its client ends its stream (K3, K5).
    pub(super) fn is_watched_in_pause(&self) -> bool {
        let WaitsFor::Pause { until_ms } = self.waits_for else {
            return false;
        };
        self.held.is_none()
            && self.unsent_bytes() == 0
            && (self.client.key_wait.waits() || until_ms > clock::now_ms() + PUT_OFF_MS_MAX)
    }
}

impl Waits {
    /// The first end of a wait.
    pub(super) fn first_end_ms(&self) -> Option<u64> {
        self.ends.first().map(|(end_ms, _)| *end_ms)
    }

    pub(super) fn has_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    /// The first end of a pause.
    pub(super) fn first_pause_end(&self, connections: &Connections) -> Option<u64> {
        self.paused
            .iter()
            .filter_map(|token| connections.get(*token))
            .filter_map(|connection| match connection.waits_for {
                WaitsFor::Pause { until_ms } => Some(until_ms),
                _ => None,
            })
            .min()
    }

    /// Parks a connection whose first request waits for elements. It is out of its slot.
    pub(super) fn await_key(&mut self, here: Here<'_>, token: Token, connection: &mut Connection) {
        connection.waits_for = WaitsFor::Key;
        connection.end_turn(here.doors); // others want the turn of the long pipelines (input::R3)
        self.note_end(token, connection);
    }

    fn note_end(&mut self, token: Token, connection: &Connection) {
        let end_ms = connection.client.key_wait.deadline_ms();
        if end_ms > 0 {
            self.ends.insert((end_ms, token));
        }
    }

    /// The connection, which is out of its slot, runs no request until this time, in milliseconds
    /// of the server's clock. The wait of its first request may end before. It keeps its place: the
    /// clients behind it are paused too.
    pub(super) fn pause(&mut self, token: Token, connection: &mut Connection, until_ms: u64) {
        connection.waits_for = WaitsFor::Pause { until_ms };
        self.paused.push(token);
        if connection.client.key_wait.waits() {
            self.note_end(token, connection);
        }
    }

    /// Whether the connection must not run requests now (effects::D2); it is paused then.
    #[inline]
    pub(super) fn pause_crowding(
        &mut self,
        here: Here<'_>,
        token: Token,
        connection: &mut Connection,
    ) -> bool {
        if !connection.crowds {
            return false;
        }
        connection.crowds = is_crowded(here.shared);
        if connection.crowds {
            let until_ms = here.now_ms + CROWDED_PAUSE_MS;
            connection.waits_for = WaitsFor::Pause { until_ms };
            self.paused.push(token);
        }
        connection.crowds
    }

    /// Ends the parking of a connection, if it is parked, or paused on its way back.
    fn leave(&mut self, token: Token, connection: &mut Connection) -> bool {
        let is_paused = matches!(connection.waits_for, WaitsFor::Pause { .. });
        let is_parked = connection.waits_for == WaitsFor::Key
            || is_paused && connection.client.key_wait.waits();
        if is_paused {
            connection.client.record().note_blocked(false);
        }
        if is_parked {
            let end_ms = connection.client.key_wait.deadline_ms();
            self.ends.remove(&(end_ms, token));
        }
        is_parked
    }

    /// The connection, which is out of its slot, is closed.
    pub(super) fn end(&mut self, here: Here<'_>, token: Token, connection: &mut Connection) {
        self.leave(token, connection);
        connection.client.end_key_wait(here.shared, true);
    }

    /// Shows the request of a parked connection again, in the next round.
    fn show_again(&mut self, token: Token, connections: &mut Connections, executor: &Executor) {
        let Some(mut connection) = connections.take(token) else {
            return;
        };
        let is_held = connection.held.is_some();
        if self.leave(token, &mut connection) {
            connection.waits_for = WaitsFor::Turn;
            match is_held {
                true => executor.give_up_place(&mut connection.client), // K2
                false => connections.continue_soon(token),
            }
        }
        connections.put(token, connection);
    }

    /// Shows the request of a client again that has been woken by a message.
    pub(super) fn show_client_again(
        &mut self,
        here: Here<'_>,
        client: u64,
        connections: &mut Connections,
        executor: &Executor,
    ) {
        if let Some(token) = connections.of_client(here, client) {
            self.show_again(token, connections, executor);
        }
    }

    /// After a group: clients of this thread that were woken by its requests look before the next
    /// requests of other clients run.
    pub(super) fn show_woken(
        &mut self,
        here: Here<'_>,
        connections: &mut Connections,
        executor: &mut Executor,
    ) {
        let woken = executor.take_woken();
        if woken.is_empty() {
            return;
        }
        let others = connections.take_soon();
        for client in woken {
            self.show_client_again(here, client, connections, executor);
        }
        self.shows_woken |= connections.soon() > 0;
        connections.continue_behind(others);
    }

    /// Whether clients were woken since the last call (K4).
    pub(super) fn take_shows_woken(&mut self) -> bool {
        std::mem::take(&mut self.shows_woken)
    }

    /// Shows requests again whose wait has reached its end.
    pub(super) fn show_late(&mut self, connections: &mut Connections, executor: &Executor) {
        let now_ms = clock::now_ms();
        while let Some((end_ms, token)) = self.ends.first().copied()
            && end_ms <= now_ms
        {
            self.ends.remove(&(end_ms, token));
            self.show_again(token, connections, executor);
        }
    }

    /// Shows requests again whose keys other members serve now.
    pub(super) fn show_moved(
        &mut self,
        here: Here<'_>,
        connections: &mut Connections,
        executor: &mut Executor,
    ) {
        if here.shared.membership().is_none() {
            return;
        }
        for token in connections.tokens() {
            let connection = connections.get(token);
            let parked = connection.filter(|it| it.waits_for == WaitsFor::Key);
            if parked.is_some_and(|it| executor.has_lost_keys(&it.client)) {
                self.show_again(token, connections, executor);
            }
        }
    }

    /// Continues the paused connections whose pause ends at or before `end_ms`; the executor may
    /// pause them again.
    pub(super) fn resume_paused(
        &mut self,
        here: Here<'_>,
        end_ms: u64,
        connections: &mut Connections,
    ) {
        let mut paused = std::mem::take(&mut self.paused);
        paused.retain(|token| {
            let Some(mut connection) = connections.take(*token) else {
                return false;
            };
            let keep = match connection.waits_for {
                WaitsFor::Pause { until_ms } if until_ms > end_ms => true,
                WaitsFor::Pause { .. } => {
                    self.leave(*token, &mut connection);
                    connection.waits_for = WaitsFor::Turn;
                    connection.taken_at_ms = here.now_ms; // nothing was received from it
                    connections.continue_soon(*token);
                    false
                }
                _ => false,
            };
            connections.put(*token, connection);
            keep
        });
        self.paused = paused;
    }
}
