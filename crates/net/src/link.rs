//! Links to peers: one per address and role, opened when there is a question to send, and reopened
//! after a break.
//!
//! **Invariants**
//! - L1: a peer that was reached once stays reachable while its name cannot be looked up: the link
//!   uses the address of its last valid hello. A refusal there never counts as the peer's end: the
//!   name may have another address by now. A lookup that ends late counts for the attempt that is
//!   under way, or for the next one: each attempt may give up before its own lookup ends.

use crate::Reason;
use crate::connection::ConnectionId;
use crate::output::Output;
use duramen_wire::native::codec::Role;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// An unused link is dropped after this time.
const IDLE: Duration = Duration::from_secs(60);
/// The result of a lookup that no attempt waited for is used within this time.
const FOUND: Duration = Duration::from_secs(10);
/// A certificate that is not accepted is logged again after this time.
const COMPLAIN_AGAIN: Duration = Duration::from_secs(10);
/// Most addresses of dropped links that are kept: more than all servers of a cluster.
const DROPPED_MAX: usize = 20_000;

/// An open question, whose link has moved something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moving {
    pub request: u64,
    /// Bytes have arrived: the other side's process works, and not its system alone.
    pub has_received: bool,
}

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

/// The addresses of a link's name, which are tried one after another.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// The address of the last valid hello of the other side.
    good: Option<SocketAddr>,
    left: VecDeque<SocketAddr>,
    trying: Option<SocketAddr>,
    /// Failures of this attempt.
    failed: Vec<(SocketAddr, Reason)>,
    /// Why this attempt is made without a lookup (L1).
    unknown: Option<String>,
}

impl Addresses {
    /// Starts a new attempt, at the address of the last valid hello.
    pub fn begin(&mut self, mut addresses: Vec<SocketAddr>) {
        addresses.sort_by_key(|address| Some(*address) != self.good);
        self.left = addresses.into();
        self.trying = None;
        self.failed.clear();
        self.unknown = None;
    }

    /// As [`begin`](Self::begin), at the address of the last valid hello alone, because the name
    /// cannot be looked up. False: there is no such address.
    pub fn begin_unknown(&mut self, reason: &str) -> bool {
        self.begin(Vec::from_iter(self.good));
        self.unknown = Some(reason.to_owned());
        self.good.is_some()
    }

    /// The lookup that this attempt did not wait for has ended. False: the attempt had waited.
    pub fn learn(&mut self, addresses: &[SocketAddr]) -> bool {
        if self.unknown.take().is_none() {
            return false;
        }
        if self.trying.is_some_and(|at| !addresses.contains(&at)) {
            self.good = None; // L1: the name has other addresses now
        }
        let others = addresses.iter().filter(|at| Some(**at) != self.trying);
        self.left.extend(others);
        true
    }

    /// The next address, and whether more follow.
    pub fn next(&mut self) -> Option<(SocketAddr, bool)> {
        self.trying = self.left.pop_front();
        self.trying.map(|address| (address, !self.left.is_empty()))
    }

    pub fn failed(&mut self, reason: Reason) {
        self.failed
            .extend(self.trying.take().map(|address| (address, reason)));
    }

    pub fn succeeded(&mut self) {
        self.good = self.trying.take();
    }

    /// Reason why the attempt failed. `NobodyListens`, if all addresses refused, or the one at
    /// which the peer was last: of the others it is not known whether the peer ever listens there.
    pub fn conclude(&mut self) -> Reason {
        let failed = std::mem::take(&mut self.failed);
        if let Some(reason) = self.unknown.take() {
            return Reason::Unreachable(reason); // L1
        }
        let is_refused = |reason: &Reason| *reason == Reason::NobodyListens;
        let was_good = |at: &SocketAddr| Some(*at) == self.good;
        let nobody = failed
            .iter()
            .any(|(at, reason)| was_good(at) && is_refused(reason));
        let mut others = failed.into_iter().map(|(_, reason)| reason).peekable();
        let Some(first) = others.peek().cloned() else {
            return Reason::Unreachable("the name has no address".to_owned());
        };
        match nobody {
            true => Reason::NobodyListens,
            false => others.find(|reason| !is_refused(reason)).unwrap_or(first),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    pub address: String,
    pub role: Role,
    pub state: State,
    pub addresses: Addresses,
    /// A lookup of its name has not ended.
    pub is_looking_up: bool,
    /// The result of a lookup that ended between two attempts.
    found: Option<(Instant, Vec<SocketAddr>)>,
    /// Until then the attempt waits for it, if it could do without.
    pub lookup_until: Instant,
    /// Output that waits for the other side's hello.
    pub queue: Output,
    /// Questions that were sent and are not answered. Each with the end of its bytes in the link's
    /// stream.
    pub outstanding: BTreeMap<u64, u64>,
    /// The bytes of all questions since the last break.
    pub asked_bytes: u64,
    /// As many of them as the other side's system had acknowledged at the last look, and whether
    /// bytes have arrived since then ([`Hub::moving`](crate::Hub::moving)).
    pub taken_bytes: u64,
    pub has_received: bool,
    /// Consecutive attempts without any answer.
    failures: u32,
    pub retry: Instant,
    /// When TLS failed and that was logged.
    complained: Option<Instant>,
    used: Instant,
}

impl Link {
    /// A question of so many bytes was queued.
    pub fn asked(&mut self, request: u64, bytes: usize) {
        if self.outstanding.is_empty() {
            self.has_received = false; // those were for others
        }
        self.asked_bytes += bytes as u64;
        self.outstanding.insert(request, self.asked_bytes);
    }

    /// The questions for which the link has moved something since the last look. `waiting`: bytes
    /// that the other side's system has not acknowledged yet.
    pub fn moving(&mut self, waiting: usize, found: &mut Vec<Moving>) {
        let taken_bytes = self.asked_bytes.saturating_sub(waiting as u64);
        let before = std::mem::replace(&mut self.taken_bytes, taken_bytes);
        let has_received = std::mem::take(&mut self.has_received);
        let has_sent = taken_bytes > before;
        let moves = |end: u64| has_received || has_sent && end > before;
        let questions = self.outstanding.iter();
        let moving = questions.filter(|(_, end)| moves(**end));
        found.extend(moving.map(|(request, _)| Moving {
            request: *request,
            has_received,
        }));
    }

    /// Keeps the result of a lookup for the next attempt.
    pub fn keep_found(&mut self, now: Instant, addresses: Vec<SocketAddr>) {
        self.found = Some((now, addresses));
    }

    pub fn take_found(&mut self, now: Instant) -> Option<Vec<SocketAddr>> {
        let found = self.found.take();
        let recent = found.filter(|(at, _)| now < *at + FOUND);
        recent.map(|(_, addresses)| addresses)
    }

    /// Whether a failure of TLS is to be logged now.
    pub fn may_complain(&mut self, now: Instant) -> bool {
        let may = self.complained.is_none_or(|at| now >= at + COMPLAIN_AGAIN);
        if may {
            self.complained = Some(now);
        }
        may
    }

    /// An answer arrived: the peer works.
    pub fn answered(&mut self) {
        self.failures = 0;
    }

    /// The connection is gone, or could not be made. Returns the questions that get no answer.
    pub fn broke(&mut self, now: Instant, least: Duration, most: Duration) -> Vec<u64> {
        self.queue = Output::default();
        self.state = State::Idle;
        // The first attempt after a success is made at once.
        let wait = match self.failures {
            0 => Duration::ZERO,
            failures => spread((least * (1 << failures.min(16))).min(most)),
        };
        self.retry = now + wait;
        self.failures += 1;
        (self.asked_bytes, self.taken_bytes) = (0, 0);
        std::mem::take(&mut self.outstanding).into_keys().collect()
    }
}

/// A random time between half of `most` and `most`: so hubs that lost the same peer do not all
/// reconnect to it at once.
fn spread(most: Duration) -> Duration {
    let chance = RandomState::new().hash_one(0) >> 48; // 16 bits
    most / 2 + most * chance as u32 / 2 / (1 << 16)
}

/// All links of a hub.
#[derive(Debug, Default)]
pub(crate) struct Links {
    links: Vec<Option<Link>>,
    /// Addresses of the last valid hellos of dropped links, by name (L1).
    dropped: HashMap<String, SocketAddr>,
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
            addresses: Addresses {
                good: self.dropped.get(address).copied(),
                ..Addresses::default()
            },
            is_looking_up: false,
            found: None,
            lookup_until: now,
            queue: Output::default(),
            outstanding: BTreeMap::new(),
            asked_bytes: 0,
            taken_bytes: 0,
            has_received: false,
            failures: 0,
            retry: now,
            complained: None,
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
    /// If the link was dropped: only idle links are.
    pub fn get_mut(&mut self, link: usize) -> &mut Link {
        self.links[link].as_mut().expect("it is known")
    }

    /// `None`: the link was dropped meanwhile.
    pub fn try_get_mut(&mut self, link: usize) -> Option<&mut Link> {
        self.links.get_mut(link)?.as_mut()
    }

    pub fn to(&self, address: &str) -> Vec<usize> {
        let known = self.by_address.get(address).into_iter().flatten();
        known.map(|(_, link)| *link).collect()
    }

    /// All links with unanswered questions.
    pub fn asking(&mut self) -> impl Iterator<Item = &mut Link> {
        let links = self.links.iter_mut().flatten();
        links.filter(|link| !link.outstanding.is_empty())
    }

    /// Drops links that were idle for long.
    pub fn sweep(&mut self, now: Instant) {
        for (number, slot) in self.links.iter_mut().enumerate() {
            let is_old = |link: &Link| {
                link.state == State::Idle && !link.is_looking_up && now > link.used + IDLE
            };
            if let Some(link) = slot.take_if(|link| is_old(link))
                && let Some(of_address) = self.by_address.get_mut(&link.address)
            {
                if let Some(good) = link.addresses.good {
                    if self.dropped.len() >= DROPPED_MAX {
                        self.dropped.clear();
                    }
                    self.dropped.insert(link.address.clone(), good);
                }
                of_address.retain(|(_, known)| *known != number);
                if of_address.is_empty() {
                    self.by_address.remove(&link.address);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const FIRST: &str = "[::1]:7";
    const SECOND: &str = "127.0.0.1:7";

    /// The result of an attempt when the two addresses of a name fail like this; `good`: the
    /// address at which the peer was reached before.
    fn concluded(good: Option<&str>, reasons: [Reason; 2]) -> Reason {
        let both: Vec<SocketAddr> = [FIRST, SECOND].map(|at| at.parse().expect("one")).into();
        let mut addresses = Addresses::default();
        if let Some(good) = good {
            addresses.begin(vec![good.parse().expect("one")]);
            addresses.next();
            addresses.succeeded();
        }
        addresses.begin(both.clone());
        let mut tried = 0;
        while let Some((address, has_more)) = addresses.next() {
            tried += 1;
            assert_eq!(has_more, tried < 2);
            let number = usize::from(address == both[1]);
            addresses.failed(reasons[number].clone());
        }
        assert_eq!(tried, 2, "every address is tried");
        addresses.conclude()
    }

    /// A name has an address on which the peer never listens: that address refuses, while the other
    /// one cannot be reached from here.
    #[test]
    fn nobody_listens_if_every_address_says_so_or_the_one_that_was_good() {
        let refused = || Reason::NobodyListens;
        let no_route = || Reason::Unreachable("no route".to_owned());
        assert_eq!(concluded(None, [refused(), refused()]), refused());
        assert_eq!(concluded(None, [refused(), no_route()]), no_route());
        assert_eq!(concluded(None, [no_route(), refused()]), no_route());
        assert_eq!(concluded(Some(SECOND), [no_route(), refused()]), refused());
        assert_eq!(concluded(Some(FIRST), [no_route(), refused()]), no_route());
        assert_eq!(
            concluded(None, [Reason::NoHello, refused()]),
            Reason::NoHello
        );
        let mut none = Addresses::default();
        none.begin(Vec::new());
        assert!(matches!(none.conclude(), Reason::Unreachable(_)));
    }

    /// The peer has moved to another address, which cannot be reached from here: the refusal at the
    /// old one was its end.
    #[test]
    fn a_refusal_at_an_address_that_the_name_does_not_have_any_more_is_no_end() {
        let [old, new]: [SocketAddr; 2] = [FIRST, SECOND].map(|at| at.parse().expect("one"));
        let concluded = |found: SocketAddr| {
            let mut addresses = Addresses::default();
            addresses.begin(vec![old]);
            addresses.next();
            addresses.succeeded();
            assert!(addresses.begin_unknown("slow"));
            assert_eq!(addresses.next(), Some((old, false)));
            assert!(addresses.learn(&[found]));
            addresses.failed(Reason::NobodyListens);
            if addresses.next().is_some() {
                addresses.failed(Reason::NoHello);
            }
            addresses.conclude()
        };
        assert_eq!(concluded(new), Reason::NoHello, "L1");
        assert_eq!(concluded(old), Reason::NobodyListens);
    }

    #[test]
    fn retries_are_spread_and_bounded() {
        let most = Duration::from_millis(256);
        let waits: BTreeSet<Duration> = (0..64).map(|_| spread(most)).collect();
        assert!(waits.len() > 8, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait >= most / 2 && *wait <= most));
    }
}
