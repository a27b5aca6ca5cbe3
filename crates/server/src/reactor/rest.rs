//! How a thread waits for work: at once, by spinning, or by sleeping in the kernel.

use super::connections::Token;
use super::local::{LOOKS_AT_SOCKETS, ROUNDS_OF_RINGS};
use super::{Reactor, ZERO};
use duramen_base::spin::{IdleMode, Spinner, Spinning};
use duramen_config::{Poll, clock};
use rustix::event::epoll;
use rustix::time::Timespec;
use std::time::{Duration, Instant};

/// While spinning, one look in this many covers all connections. The others cover only the
/// connection that was last active, which saves a system call per request.
const LOOKS_AT_HOT: u32 = 8;

/// How the thread waited lately.
#[derive(Default)]
pub(super) struct Rest {
    spinner: Spinner,
    /// The connection of the last round, if it was the only one and its client does not wait for a
    /// key: spinning polls it directly.
    hot: Option<Token>,
    /// Whether the last round did not ask for events.
    without_events: bool,
}

impl Rest {
    #[inline]
    pub(super) fn hot(&self) -> Option<Token> {
        self.hot
    }

    /// Work has come for this connection.
    #[inline]
    pub(super) fn note_active(&mut self, token: Token) {
        self.hot = Some(token);
    }

    /// A round had work for so many connections.
    #[inline]
    pub(super) fn round_had(&mut self, connections: usize, sends_nothing: impl Fn(Token) -> bool) {
        if let Some(hot) = self.hot.filter(|_| connections > 0) {
            self.spinner.round_had(connections, hot.number());
        }
        if connections > 1 || self.hot.is_some_and(sends_nothing) {
            self.hot = None;
        }
    }

    /// Whether the next round does not ask for events, because clients were woken (`wakes`) and the
    /// last round has asked (key_waits::K4).
    fn does_without_events(&mut self, wakes: bool) -> bool {
        self.without_events = wakes && !self.without_events;
        self.without_events
    }
}

impl Reactor {
    /// Fills `events`: at once if there is work left, after spinning if that pays, otherwise after
    /// sleeping in the kernel.
    pub(super) fn wait(&mut self, events: &mut Vec<epoll::Event>) {
        self.look_at_rings();
        if self.traffic.flash.is_busy() {
            let here = self.traffic.thread.here();
            self.traffic.flash.start_fetches(
                here,
                &mut self.traffic.connections,
                &self.traffic.watch,
            );
        }
        let wakes = self.traffic.waits.take_shows_woken();
        if self.rest.does_without_events(wakes) {
            return;
        }
        // After the last look at its mailbox the thread may have posted to itself, with no signal.
        if self.traffic.connections.soon() > 0 || self.traffic.releases.has_posted() {
            return self.poll_events(events, Some(ZERO));
        }
        if self.traffic.has_ready() {
            return self.poll_sockets(events, ROUNDS_OF_RINGS);
        }
        let (poll, spin_us) = {
            let config = self.traffic.thread.here().config;
            (config.poll, config.poll_spin_us)
        };
        match poll {
            Poll::Off => {}
            Poll::Busy => return self.poll_sockets(events, LOOKS_AT_SOCKETS),
            Poll::Adaptive if self.rest.spinner.is_candidate() => {
                return self.spin_or_sleep(events, spin_us);
            }
            Poll::Adaptive => {}
        }
        self.sleep(events);
    }

    fn sleep(&mut self, events: &mut Vec<epoll::Event>) {
        let timeout = match self.rings.may_sleep(&mut self.traffic.connections) {
            true => self.patience(),
            false => Some(ZERO),
        };
        self.traffic.me().counters.sleeps.add(1);
        self.poll_events(events, timeout);
        if !self.traffic.holds.is_empty() {
            self.traffic.me().commits.woke();
        }
    }

    /// Waits in the better way, and reports the time to the spinner.
    fn spin_or_sleep(&mut self, events: &mut Vec<epoll::Event>, spin_us: u64) {
        let since = Instant::now();
        let mut way = IdleMode::Sleep;
        if self.rest.spinner.pays(spin_us)
            && let Some(right) = Spinning::begin()
        {
            let found = self.spin(events, spin_us);
            drop(right);
            if found {
                return;
            }
            way = IdleMode::Spin;
        }
        self.sleep(events);
        if !events.is_empty() {
            self.rest
                .spinner
                .work_came_after(since.elapsed(), way, spin_us);
        }
    }

    /// Spins for at most `spin_us`. Returns true if there is work: in `events`, in the mailbox, or
    /// already received.
    fn spin(&mut self, events: &mut Vec<epoll::Event>, spin_us: u64) -> bool {
        let started = Instant::now();
        let mut before = Duration::ZERO;
        for look in 0u32.. {
            self.look_at_rings();
            if self.traffic.has_ready() {
                // A ring had input.
            } else if self.rings.has_awake() && (self.rest.hot.is_none() || self.hot_is_local()) {
                self.poll_sockets(events, LOOKS_AT_SOCKETS);
            } else if look % LOOKS_AT_HOT == LOOKS_AT_HOT - 1 {
                self.poll_events(events, Some(ZERO));
            } else if !self.traffic.holds.is_empty() || self.traffic.flash.is_busy() {
                // The hot connection waits for a commit or for flash, and that is seen without a
                // system call.
                std::hint::spin_loop();
            } else if let Some(token) = self.rest.hot {
                self.traffic.receive(token);
            } else {
                self.poll_events(events, Some(ZERO));
            }
            let waited = started.elapsed();
            self.rest.spinner.look_took(waited - before);
            before = waited;
            let found = !events.is_empty()
                || self.traffic.has_ready()
                || self.traffic.holds.may_release(self.traffic.thread.here())
                || self.traffic.flash.has_come();
            if found || waited.as_micros() as u64 >= spin_us {
                self.traffic
                    .me()
                    .counters
                    .spin_ns
                    .add(waited.as_nanos() as u64);
                if found {
                    self.rest
                        .spinner
                        .work_came_after(waited, IdleMode::Spin, spin_us);
                } else {
                    self.rest.spinner.gave_up();
                }
                return found;
            }
        }
        false
    }

    pub(super) fn poll_events(
        &mut self,
        events: &mut Vec<epoll::Event>,
        timeout: Option<Timespec>,
    ) {
        self.traffic.me().beat.sleeps();
        self.traffic.watch.wait(events, timeout.as_ref());
        self.traffic.me().beat.came_back(clock::coarse_ms());
    }
}
