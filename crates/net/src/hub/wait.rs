//! The hub's wait for events: it spins for a moment before it sleeps, where that pays
//! ([`duramen_base::spin`]).

use duramen_base::spin::{IdleMode, Spinner, Spinning};
use rustix::event::epoll::{self, Event};
use rustix::time::Timespec;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct Waits {
    spinner: Spinner,
    /// Longest spin; zero: none.
    pub longest_spin: Duration,
}

impl Waits {
    /// Waits for events, at most for the timeout, and appends them to `ready`, which is empty.
    pub fn wait(&mut self, epoll: &OwnedFd, ready: &mut Vec<Event>, timeout: Option<Timespec>) {
        if self.longest_spin.is_zero()
            || timeout.is_some_and(|it| it.tv_sec == 0 && it.tv_nsec == 0)
        {
            return poll(epoll, ready, timeout);
        }
        let spin_us = self.longest_spin.as_micros() as u64;
        let since = Instant::now();
        let mut way = IdleMode::Sleep;
        if self.spinner.pays(spin_us)
            && let Some(_right) = Spinning::begin()
        {
            way = IdleMode::Spin;
            self.spin(epoll, ready, timeout);
        }
        if ready.is_empty() {
            poll(epoll, ready, timeout);
        }
        if let Some(first) = ready.first() {
            self.spinner.work_came_after(since.elapsed(), way, spin_us);
            self.spinner.round_had(ready.len(), first.data.u64());
        }
    }

    fn spin(&mut self, epoll: &OwnedFd, ready: &mut Vec<Event>, timeout: Option<Timespec>) {
        let timeout = timeout.and_then(|it| Duration::try_from(it).ok());
        let longest = timeout.unwrap_or(Duration::MAX).min(self.longest_spin);
        let since = Instant::now();
        let mut before = Duration::ZERO;
        loop {
            poll(epoll, ready, Some(Timespec::default()));
            let waited = since.elapsed();
            self.spinner.look_took(waited - before);
            before = waited;
            if !ready.is_empty() {
                return;
            }
            if waited >= longest {
                return self.spinner.gave_up();
            }
        }
    }
}

fn poll(epoll: &OwnedFd, ready: &mut Vec<Event>, timeout: Option<Timespec>) {
    // EINTR or any other error: an empty round, then the next one.
    let _ = epoll::wait(
        epoll,
        rustix::buffer::spare_capacity(ready),
        timeout.as_ref(),
    );
}
