//! Events by time: idle clients, stalled clients, pauses, deadlines. A server without any of these
//! never wakes up.

use super::behind::{BEHIND_MS, keeps_turn_too_long};
use super::connection::WaitsFor;
use super::connections::Token;
use super::here::Here;
use super::sweeps::SWEEP_MS;
use super::{Reactor, Timespec, Traffic, ZERO, tracking};
use duramen_config::{clock, seldom};
use duramen_redis::figures::Event;
use std::time::{Duration, Instant};

/// A commit that was not possible, or a read that the kernel did not accept, is tried again after
/// this time at the latest: rare, and too short for any client to notice.
const RETRY: Duration = Duration::from_millis(2);
/// The clock of rounds is at most this far behind.
const TICK_MS: u64 = 10;

impl Reactor {
    /// The longest time to sleep in the kernel: [`sleep_limit`](Self::sleep_limit), or zero if
    /// replies may be released now.
    pub(super) fn patience(&mut self) -> Option<Timespec> {
        match self.traffic.holds.may_sleep(self.traffic.thread.here()) {
            true => self.sleep_limit(),
            false => Some(ZERO),
        }
    }

    /// Longest time to sleep in the kernel; None = until an event.
    fn sleep_limit(&mut self) -> Option<Timespec> {
        let mut limit: Option<Duration> = None;
        let mut at_most = |duration: Duration| {
            limit = Some(limit.map_or(duration, |limit| limit.min(duration)));
        };
        let here = self.traffic.thread.here();
        if self
            .traffic
            .sweeps
            .are_needed(here, &self.traffic.connections, &self.traffic.watch)
        {
            at_most(Duration::from_millis(SWEEP_MS));
        }
        if self.traffic.buffers.has_large() {
            at_most(Duration::from_millis(SWEEP_MS));
        }
        if self.traffic.behind.is_any() {
            at_most(Duration::from_millis(BEHIND_MS));
        }
        if let Some(pause) = tracking::pause(self.traffic.thread.here()) {
            at_most(pause);
        }
        if let Some(until_ms) = self
            .traffic
            .waits
            .first_pause_end(&self.traffic.connections)
        {
            // The clock of rounds is up to one tick behind.
            at_most(Duration::from_millis(
                until_ms.saturating_sub(self.traffic.thread.now_ms()) + 5,
            ));
        }
        if self.traffic.holds.tries_again() {
            // If the obstacle to the commit was not another commit, nothing wakes this thread.
            at_most(RETRY);
        }
        if self.traffic.flash.is_stuck() {
            at_most(RETRY);
        }
        if let Some(until_ms) = self.traffic.flash.corked_until_ms() {
            at_most(Duration::from_millis(
                until_ms.saturating_sub(self.traffic.thread.now_ms()) + 1,
            ));
        }
        if let Some(deadline_ms) = self.traffic.holds.deadline_ms() {
            at_most(Duration::from_millis(
                deadline_ms.saturating_sub(self.traffic.thread.now_ms()) + 5,
            ));
        }
        if let Some(end_ms) = self.traffic.waits.first_end_ms() {
            at_most(Duration::from_millis(
                end_ms.saturating_sub(clock::now_ms()),
            ));
        }
        if let Some(deadline) = self.traffic.thread.stop_deadline() {
            at_most(deadline.saturating_duration_since(Instant::now()));
        }
        limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        })
    }
}

impl Traffic {
    /// Called after each round.
    pub(super) fn sweep(&mut self) {
        let here = self.thread.here();
        if self.sweeps.are_due(here) && self.sweeps.are_needed(here, &self.connections, &self.watch)
        {
            self.close_late();
        }
        if self.buffers.has_large() && self.sweeps.take_pool_due(self.thread.here()) {
            self.buffers.sweep();
        }
        if self.behind.is_due(self.thread.here()) {
            self.resume_behind();
        }
        // The clock of rounds is up to one tick behind.
        if let Some(end_ms) = self.waits.first_end_ms()
            && end_ms <= self.thread.now_ms() + TICK_MS
        {
            self.waits.show_late(&mut self.connections, &self.executor);
        }
        // Pauses end last here, so that the end of a pause cannot make a client late.
        if self.waits.has_paused() {
            let here = self.thread.here();
            self.waits
                .resume_paused(here, here.now_ms, &mut self.connections);
        }
    }

    /// Closes clients that are idle, stalled, or late with the password.
    fn close_late(&mut self) {
        let (timeout_ms, stall_ms, login_ms) = {
            let here = self.thread.here();
            let config = here.config;
            let login_s = match here.shared.acl().is_open() {
                true => 0,
                false => config.login_timeout_s,
            };
            (
                config.timeout_s * 1_000,
                config.output_stall_s * 1_000,
                login_s * 1_000,
            )
        };
        self.sweeps.begin(self.thread.here());
        for token in self.connections.tokens() {
            let Some(connection) = self.connections.get(token) else {
                continue;
            };
            if let Some(tls) = connection
                .tls
                .as_ref()
                .filter(|_| connection.is_handshaking())
            {
                match tls.is_late(self.thread.now_ms()) {
                    true => self.close_stalled_handshake(token),
                    false => self.sweeps.note_handshake(),
                }
                continue;
            }
            let since_ms = connection.client.login().stranger_since_ms();
            let is_stranger = login_ms > 0 && !connection.client.is_authenticated();
            self.sweeps.note_stranger(is_stranger);
            let unsent = connection.sendable_bytes() > 0;
            let stalled_ms = self.thread.now_ms().saturating_sub(connection.taken_at_ms);
            let is_paused = matches!(connection.waits_for, WaitsFor::Pause { .. });
            let is_stalled = unsent && !is_paused && stalled_ms >= stall_ms;
            if stall_ms > 0
                && (is_stalled || keeps_turn_too_long(self.thread.here(), connection, stall_ms))
            {
                self.me().counters.output_closed.add(1);
                seldom!(
                    warn,
                    client = connection.record.id,
                    peer = %connection.record.peer,
                    stalled_ms,
                    "closing a client that does not take its replies (output-stall)"
                );
                self.close(token);
            } else if is_stranger
                // The requests of a paused client may hold the password.
                && !is_paused
                && self.thread.now_ms().saturating_sub(since_ms) >= login_ms
            {
                self.me().counters.logins_timed_out.add(1);
                self.close(token);
            } else if timeout_ms > 0
                && connection.held.is_none()
                && matches!(
                    connection.waits_for,
                    WaitsFor::Input | WaitsFor::Output { .. }
                )
                && !connection.client.record().monitors()
                && !connection.record.is_subscribed()
                && connection.record.idle_ms(self.thread.now_ms()) >= timeout_ms
            {
                self.me().counters.idle_closed.add(1);
                self.close(token);
            }
        }
    }

    /// See tls::H4.
    fn close_stalled_handshake(&mut self, token: Token) {
        self.me().counters.tls_failed.add(1);
        self.close(token);
    }
}

/// The processor time before a round, if `LATENCY` wants to know of long ones.
#[inline]
pub(super) fn begin_timed_round(here: Here<'_>) -> Option<Duration> {
    (here.config.slow.event_ms > 0).then(clock::thread_time)
}

#[inline]
pub(super) fn end_timed_round(here: Here<'_>, began: Option<Duration>) {
    let Some(began) = began else {
        return;
    };
    let took = clock::thread_time().saturating_sub(began);
    let from_ms = here.config.slow.event_ms;
    if from_ms > 0 && took >= Duration::from_millis(from_ms) {
        here.shared.figures.latency().add(Event::Round, took);
    }
}
