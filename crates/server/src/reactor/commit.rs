//! The commits that held replies wait for, and what happens after one.

use super::connection::WaitsFor;
use super::connections::Token;
use super::hold::Checked;
use super::{Reactor, Traffic};
use duramen_base::ids::Level;
use duramen_config::clock;
use std::sync::Arc;

impl Reactor {
    /// After each round: starts a commit for the held replies, and releases the replies that are
    /// durable now. Returns the level of a commit that this thread is to make.
    pub(super) fn tend_held(&mut self) -> Option<Level> {
        if self.traffic.holds.is_empty() {
            return None;
        }
        if self.traffic.holds.is_due(self.traffic.thread.here()) {
            self.traffic.release_held();
        }
        let here = self.traffic.thread.here();
        let all_write = self.traffic.holds.all_write(self.traffic.connections.len())
            && !self.traffic.flash.is_busy();
        let may_commit = all_write && self.standby.may_commit(here.now_ms);
        self.traffic.holds.next_commit(here, may_commit)
    }

    /// Commits on this thread, and releases the replies that are durable then. Returns `None` if
    /// the disk answered late and another thread serves the clients now.
    pub(super) fn commit_here(self: Box<Self>, level: Level) -> Option<Box<Self>> {
        let Some(durability) = self.traffic.thread.shared().durability().cloned() else {
            return Some(self);
        };
        let standby = Arc::clone(&self.standby);
        let ticket = match standby.put_aside(self) {
            Ok(ticket) => ticket,
            Err(mut reactor) => {
                let traffic = &mut reactor.traffic;
                traffic.holds.demand_commit(traffic.thread.here());
                return Some(reactor);
            }
        };
        let began_ms = clock::coarse_ms();
        let has_committed = durability.log().try_commit_here(level);
        let now_ms = clock::coarse_ms();
        standby.note_commit(now_ms, now_ms - began_ms);
        let mut reactor = standby.take_back(&ticket)?;
        // Otherwise another thread commits now, and wakes this thread to try again.
        if has_committed {
            reactor.traffic.holds.has_committed();
            reactor.traffic.release_held();
        }
        Some(reactor)
    }
}

impl Traffic {
    /// Releases the held replies that are durable now.
    fn release_held(&mut self) {
        let (mut tokens, failure) = self.holds.begin_check(self.thread.here());
        let failure = failure.as_deref();
        tokens.retain(|token| self.still_held(*token, failure));
        self.holds
            .end_check(self.thread.here(), tokens, failure, &mut self.releases);
        self.settle_native();
    }

    fn still_held(&mut self, token: Token, failure: Option<&str>) -> bool {
        let Some(mut connection) = self.connections.take(token) else {
            return false; // It was closed meanwhile.
        };
        let here = self.thread.here();
        match self
            .holds
            .check(here, &mut connection, failure, &mut self.releases)
        {
            checked @ (Checked::Free | Checked::Held) => {
                self.connections.put(token, connection);
                return matches!(checked, Checked::Held);
            }
            Checked::Released => {}
        }
        if !self.send(&mut connection) {
            self.close_taken(token, connection);
            return false;
        }
        if connection.waits_for == WaitsFor::Turn {
            self.connections.continue_soon(token);
        } else if connection.waits_for == WaitsFor::Input && !connection.closing {
            self.waits
                .pause_crowding(self.thread.here(), token, &mut connection);
        }
        self.settle(token, connection);
        false
    }
}
