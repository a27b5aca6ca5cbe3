//! The descriptors that a hub watches, and its wait for their events: it spins for a moment before
//! it sleeps, where that pays ([`duramen_base::spin`]).

use super::options::Limits;
use crate::connection::{Connection, ConnectionId, Phase};
use duramen_base::spin::{IdleMode, Spinner, Spinning};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

const BELL: u64 = u64::MAX;
/// Numbers of listeners count down from here.
const LISTENER: u64 = u64::MAX - 1;
const LISTENERS_MAX: usize = 64;
const EVENTS_MAX: usize = 256;

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Bell,
    Listener(usize),
    Connection(ConnectionId),
}

impl Source {
    pub fn of(event: &Event) -> Source {
        match event.data.u64() {
            BELL => Source::Bell,
            data if data > LISTENER - LISTENERS_MAX as u64 => {
                Source::Listener((LISTENER - data) as usize)
            }
            data => Source::Connection(ConnectionId(data)),
        }
    }
}

#[derive(Debug)]
pub(super) struct Poller {
    epoll: OwnedFd,
    spinner: Spinner,
    /// Longest spin before a sleep; zero if the hub never spins.
    longest_spin: Duration,
}

impl Poller {
    /// Watches the bell of a hub.
    pub fn new(bell: impl AsFd) -> Result<Poller, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, bell, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Poller {
            epoll,
            spinner: Spinner::default(),
            longest_spin: Duration::ZERO,
        })
    }

    pub fn set_longest_spin(&mut self, longest: Duration) {
        self.longest_spin = longest;
    }

    pub fn watch_listener(&self, number: usize, fd: impl AsFd) -> Result<(), Errno> {
        assert!(number < LISTENERS_MAX, "a few listeners");
        let data = EventData::new_u64(LISTENER - number as u64);
        epoll::add(&self.epoll, fd, data, EventFlags::IN)
    }

    pub fn let_listener_rest(&self, number: usize, fd: impl AsFd, rests: bool) {
        let data = EventData::new_u64(LISTENER - number as u64);
        let flags = match rests {
            true => EventFlags::empty(),
            false => EventFlags::IN,
        };
        // This fails only for lack of kernel memory; then the next timer tries it again.
        let _ = epoll::modify(&self.epoll, fd, data, flags);
    }

    /// Starts to watch a new connection. It fails only for lack of kernel memory.
    pub fn watch(&self, connection: &mut Connection, interest: EventFlags) -> Result<(), Errno> {
        connection.interest = interest;
        let data = EventData::new_u64(connection.id.0);
        epoll::add(&self.epoll, &connection.fd, data, interest)
    }

    /// Watches a connection for what it needs now. A peer that does not take its answers is not
    /// read from (net::W1).
    pub fn update(&self, connection: &mut Connection, limits: &Limits) {
        if matches!(connection.phase, Phase::Connecting { .. }) {
            return;
        }
        let mut wanted = EventFlags::empty();
        let is_paused = connection.is_theirs()
            && (connection.unsent_bytes() > limits.pause_bytes
                || connection.unanswered > limits.pause_questions);
        if !is_paused {
            wanted |= EventFlags::IN;
        }
        if connection.unsent_bytes() > 0 {
            wanted |= EventFlags::OUT;
        }
        if wanted != connection.interest {
            connection.interest = wanted;
            let data = EventData::new_u64(connection.id.0);
            // This fails only for lack of kernel memory; then the sweep finds the connection
            // stalled.
            let _ = epoll::modify(&self.epoll, &connection.fd, data, wanted);
        }
    }

    /// Stops to watch a connection, which stays open.
    pub fn unwatch(&self, fd: impl AsFd) -> Result<(), Errno> {
        epoll::delete(&self.epoll, fd)
    }

    /// Waits for events, at most for the timeout.
    pub fn wait(&mut self, timeout: Option<Timespec>) -> Vec<Event> {
        let mut ready = Vec::with_capacity(EVENTS_MAX);
        if self.longest_spin.is_zero()
            || timeout.is_some_and(|it| it.tv_sec == 0 && it.tv_nsec == 0)
        {
            poll(&self.epoll, &mut ready, timeout);
            return ready;
        }
        let spin_us = self.longest_spin.as_micros() as u64;
        let since = Instant::now();
        let mut way = IdleMode::Sleep;
        if self.spinner.pays(spin_us)
            && let Some(_right) = Spinning::begin()
        {
            way = IdleMode::Spin;
            self.spin(&mut ready, timeout);
        }
        if ready.is_empty() {
            poll(&self.epoll, &mut ready, timeout);
        }
        if let Some(first) = ready.first() {
            self.spinner.work_came_after(since.elapsed(), way, spin_us);
            self.spinner.round_had(ready.len(), first.data.u64());
        }
        ready
    }

    fn spin(&mut self, ready: &mut Vec<Event>, timeout: Option<Timespec>) {
        let timeout = timeout.and_then(|it| Duration::try_from(it).ok());
        let longest = timeout.unwrap_or(Duration::MAX).min(self.longest_spin);
        let epoll = &self.epoll;
        self.spinner.spin(longest, || {
            poll(epoll, ready, Some(Timespec::default()));
            (!ready.is_empty()).then_some(())
        });
    }
}

fn poll(epoll: &OwnedFd, ready: &mut Vec<Event>, timeout: Option<Timespec>) {
    // After EINTR or any other error this round is empty, and the next one follows.
    let _ = epoll::wait(
        epoll,
        rustix::buffer::spare_capacity(ready),
        timeout.as_ref(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn a_spin_ends_with_an_event_or_in_time() {
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut poller = Poller::new(&bell).unwrap();
        poller.set_longest_spin(Duration::from_millis(3));
        let mut ready = Vec::with_capacity(4);
        let since = Instant::now();
        poller.spin(&mut ready, None);
        assert!(ready.is_empty() && since.elapsed() >= poller.longest_spin);
        // A due timer is not late because of a spin.
        poller.set_longest_spin(Duration::from_secs(3600));
        let soon = Timespec::try_from(Duration::from_millis(2)).unwrap();
        poller.spin(&mut ready, Some(soon));
        assert!(ready.is_empty());
        rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        poller.spin(&mut ready, None);
        assert_eq!(Source::of(&ready[0]), Source::Bell);
    }
}
