//! The thread of a reactor, with its settings and its time: lent to every part that needs them.

use crate::doors::{Door, Doors};
use duramen_config::{ServerConfig, clock};
use duramen_redis::state::{ConfigCache, Shared};
use duramen_redis::threads::ThreadShared;
use std::sync::Arc;
use std::time::Instant;

/// The thread that a reactor belongs to.
pub(super) struct Thread {
    shared: Arc<Shared>,
    doors: Arc<Doors>,
    number: usize,
    config: ConfigCache,
    /// The time of this round, in milliseconds of the server's clock.
    now_ms: u64,
    /// Set by a graceful stop: the time at which clients that do not take their replies are given
    /// up.
    stop_deadline: Option<Instant>,
}

/// Lent for one call: the state of the server, this thread's part of it, the settings as they are
/// now, and the time of this round.
#[derive(Clone, Copy)]
pub(super) struct Here<'a> {
    pub(super) shared: &'a Shared,
    pub(super) doors: &'a Doors,
    /// The part of this thread that others see.
    pub(super) thread: &'a ThreadShared,
    /// The number of this thread.
    pub(super) number: usize,
    pub(super) config: &'a ServerConfig,
    pub(super) now_ms: u64,
    /// A graceful stop has begun: nothing more is received.
    pub(super) stops: bool,
}

impl Thread {
    pub(super) fn new(doors: Arc<Doors>, number: usize) -> Thread {
        let shared = Arc::clone(doors.shared());
        Thread {
            config: ConfigCache::new(&shared),
            shared,
            doors,
            number,
            now_ms: clock::coarse_ms(),
            stop_deadline: None,
        }
    }

    /// Settings may change whenever requests run: not to be kept over that.
    #[inline]
    pub(super) fn here(&mut self) -> Here<'_> {
        Here {
            config: self.config.get(&self.shared),
            shared: &self.shared,
            doors: &self.doors,
            thread: &self.shared.threads[self.number],
            number: self.number,
            now_ms: self.now_ms,
            stops: self.stop_deadline.is_some(),
        }
    }

    pub(super) fn number(&self) -> usize {
        self.number
    }

    #[inline]
    pub(super) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The part of this thread that others see.
    #[inline]
    pub(super) fn me(&self) -> &ThreadShared {
        &self.shared.threads[self.number]
    }

    /// The way by which other threads give connections to this one.
    pub(super) fn door(&self) -> &Door {
        self.doors.door(self.number)
    }

    pub(super) fn doors(&self) -> &Doors {
        &self.doors
    }

    #[inline]
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// A round begins.
    pub(super) fn look_at_clock(&mut self) {
        self.now_ms = clock::coarse_ms();
    }

    pub(super) fn stop_deadline(&self) -> Option<Instant> {
        self.stop_deadline
    }

    /// Sockets were received from once more: from now on only replies are sent.
    pub(super) fn stop_at(&mut self, deadline: Instant) {
        self.stop_deadline = Some(deadline);
    }
}
