//! Ways to others: one per address and role, opened when something is to be asked, opened again after a break.

use crate::connection::ConnectionId;
use crate::output::Output;
use duramen_wire::native::codec::Role;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A link that nobody uses is forgotten after this time.
const IDLE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Opened by the next question, but not before `retry`.
    Idle,
    /// Questions wait until `retry`.
    Waiting,
    /// Its name is being looked up.
    Resolving,
    /// Questions wait for the other side's hello.
    Opening(ConnectionId),
    Open(ConnectionId),
}

#[derive(Debug)]
pub(crate) struct Link {
    pub address: String,
    pub role: Role,
    pub state: State,
    /// What waits for the other side's hello.
    pub queue: Output,
    /// Asked, not answered.
    pub outstanding: BTreeSet<u64>,
    /// Attempts without any answer, in a row.
    failures: u32,
    pub retry: Instant,
    used: Instant,
}

impl Link {
    /// Something was answered: whoever is there is well.
    pub fn answered(&mut self) {
        self.failures = 0;
    }

    /// The connection is gone, or could not be made. Returns what nobody will answer.
    pub fn broke(&mut self, now: Instant, least: Duration, most: Duration) -> Vec<u64> {
        self.queue = Output::default();
        self.state = State::Idle;
        // The first attempt after a success is made at once.
        let wait = match self.failures {
            0 => Duration::ZERO,
            failures => (least * (1 << failures.min(16))).min(most),
        };
        self.retry = now + wait;
        self.failures += 1;
        std::mem::take(&mut self.outstanding).into_iter().collect()
    }
}

/// All links of a hub.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: Vec<Option<Link>>,
    by_address: HashMap<String, Vec<(Role, usize)>>,
}

impl Links {
    /// The link to this address in this role.
    pub fn find(&mut self, address: &str, role: Role, now: Instant) -> usize {
        let known = self.by_address.get(address).into_iter().flatten();
        if let Some((_, link)) = known.into_iter().find(|(known, _)| *known == role) {
            let link = *link;
            self.get_mut(link).used = now;
            return link;
        }
        let link = Link {
            address: address.to_owned(),
            role,
            state: State::Idle,
            queue: Output::default(),
            outstanding: BTreeSet::new(),
            failures: 0,
            retry: now,
            used: now,
        };
        let free = self.links.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.links.push(None);
            self.links.len() - 1
        });
        self.links[number] = Some(link);
        let of_address = self.by_address.entry(address.to_owned()).or_default();
        of_address.push((role, number));
        number
    }

    /// # Panics
    /// If it was forgotten: only idle ones are.
    pub fn get_mut(&mut self, link: usize) -> &mut Link {
        self.links[link].as_mut().expect("it is known")
    }

    /// `None`: it was forgotten meanwhile.
    pub fn try_get_mut(&mut self, link: usize) -> Option<&mut Link> {
        self.links.get_mut(link)?.as_mut()
    }

    /// The links to this address.
    pub fn to(&self, address: &str) -> Vec<usize> {
        let known = self.by_address.get(address).into_iter().flatten();
        known.map(|(_, link)| *link).collect()
    }

    /// Forgets those that have been idle for long.
    pub fn sweep(&mut self, now: Instant) {
        for (number, slot) in self.links.iter_mut().enumerate() {
            let is_old = |link: &Link| link.state == State::Idle && now > link.used + IDLE;
            if let Some(link) = slot.take_if(|link| is_old(link))
                && let Some(of_address) = self.by_address.get_mut(&link.address)
            {
                of_address.retain(|(_, known)| *known != number);
                if of_address.is_empty() {
                    self.by_address.remove(&link.address);
                }
            }
        }
    }
}
