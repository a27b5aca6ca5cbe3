//! A graceful stop: accept no new connections, receive once more from every socket, send the
//! replies, end.

use super::Reactor;
use super::connection::WaitsFor;
use std::time::{Duration, Instant};

impl Reactor {
    /// First step, executed once: requests that clients have sent so far still run.
    pub(super) fn begin_drain(&mut self) {
        if self.traffic.thread.stop_deadline().is_some() {
            return;
        }
        self.acceptor.close();
        for token in self.traffic.connections.tokens() {
            self.traffic.receive(token);
        }
        self.traffic.run_group();
        let timeout_ms = self.traffic.thread.here().config.stop_timeout_ms;
        let deadline = Instant::now() + Duration::from_millis(timeout_ms);
        self.traffic.thread.stop_at(deadline);
        for token in self.traffic.connections.tokens() {
            if let Some(connection) = self.traffic.connections.take(token) {
                self.traffic.settle(token, connection);
            }
        }
    }

    /// Whether every client has its replies, or the time is up.
    pub(super) fn drained(&mut self) -> bool {
        self.begin_drain();
        let traffic = &mut self.traffic;
        traffic.holds.demand_commit(traffic.thread.here());
        let waiting = self.traffic.connections.tokens().into_iter().any(|token| {
            self.traffic
                .connections
                .get(token)
                .is_some_and(|connection| {
                    connection.unsent_bytes() > 0
                        || matches!(
                            connection.waits_for,
                            WaitsFor::Turn | WaitsFor::Output { .. } | WaitsFor::Flash
                        )
                })
        });
        let late = self
            .traffic
            .thread
            .stop_deadline()
            .is_some_and(|deadline| Instant::now() >= deadline);
        if waiting && late {
            tracing::warn!(
                thread = self.traffic.thread.number(),
                clients = self.traffic.watch.with_output(),
                "the stop timeout is over: closing clients that have not taken their replies"
            );
        }
        !waiting || late
    }
}
