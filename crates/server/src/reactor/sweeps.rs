//! When the regular checks of all connections, and of the pool of buffers, are due.

use super::connections::Connections;
use super::here::Here;
use super::watch::Watch;

/// Interval of the checks for idle and stalled clients.
pub(super) const SWEEP_MS: u64 = 1_000;

#[derive(Default)]
pub(super) struct Sweeps {
    next_ms: u64,
    /// When large buffers that nobody uses are freed.
    next_pool_ms: u64,
    /// Whether there may be clients that must give a password within `login-timeout`.
    has_strangers: bool,
    /// Whether there may be connections whose handshake of TLS is not over.
    has_handshakes: bool,
}

impl Sweeps {
    /// Whether there is anything to check.
    pub(super) fn are_needed(
        &self,
        here: Here<'_>,
        connections: &Connections,
        watch: &Watch,
    ) -> bool {
        (here.config.timeout_s > 0 && connections.len() > 0)
            || (here.config.output_stall_s > 0 && watch.with_output() > 0)
            || self.has_strangers
            || self.has_handshakes
    }

    /// Whether the time of the next check has come.
    pub(super) fn are_due(&self, here: Here<'_>) -> bool {
        here.now_ms >= self.next_ms
    }

    /// A check of all connections begins, which notes strangers and handshakes again.
    pub(super) fn begin(&mut self, here: Here<'_>) {
        self.next_ms = here.now_ms + SWEEP_MS;
        self.has_strangers = false;
        self.has_handshakes = false;
    }

    /// Whether the pool is to be swept now.
    pub(super) fn take_pool_due(&mut self, here: Here<'_>) -> bool {
        let is_due = here.now_ms >= self.next_pool_ms;
        if is_due {
            self.next_pool_ms = here.now_ms + SWEEP_MS;
        }
        is_due
    }

    /// A client that may have to give a password.
    #[inline]
    pub(super) fn note_stranger(&mut self, is_stranger: bool) {
        self.has_strangers |= is_stranger;
    }

    /// A handshake of TLS is not over.
    pub(super) fn note_handshake(&mut self) {
        self.has_handshakes = true;
    }
}
