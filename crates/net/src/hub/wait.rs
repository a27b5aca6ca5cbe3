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
        self.spinner.spin(longest, || {
            poll(epoll, ready, Some(Timespec::default()));
            (!ready.is_empty()).then_some(())
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn a_spin_ends_with_an_event_or_in_time() {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        epoll::add(&epoll, &bell, EventData::new_u64(7), EventFlags::IN).unwrap();
        let mut waits = Waits {
            longest_spin: Duration::from_millis(3),
            ..Waits::default()
        };
        let mut ready = Vec::with_capacity(4);
        let since = Instant::now();
        waits.spin(&epoll, &mut ready, None);
        assert!(ready.is_empty() && since.elapsed() >= waits.longest_spin);
        // A due timer is not late because of a spin.
        waits.longest_spin = Duration::from_secs(3600);
        let soon = Timespec::try_from(Duration::from_millis(2)).unwrap();
        waits.spin(&epoll, &mut ready, Some(soon));
        assert!(ready.is_empty());
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        waits.spin(&epoll, &mut ready, None);
        assert_eq!(ready[0].data.u64(), 7);
    }
}
