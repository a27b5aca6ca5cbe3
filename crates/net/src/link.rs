//! Links to peers: one per address and role, opened when there is a question to send, and reopened
//! after a break.
//!
//! **Invariants**
//! - L1: a peer that was reached once stays reachable while its name cannot be looked up: the link
//!   uses the address of its last valid hello. A refusal there never counts as the peer's end: the
//!   name may have another address by now. A lookup that ends late counts for the attempt that is
//!   under way, or for the next one: each attempt may give up before its own lookup ends.

use crate::Reason;
use crate::connection::{ConnectionId, Side, Table};
use crate::input::Message;
use crate::output::Output;
use crate::socket::{self, not_connected};
use duramen_wire::native::codec::{Reply, Role, Trouble, decode_reply};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// An unused link is dropped after this time.
const IDLE: Duration = Duration::from_secs(60);
/// The result of a lookup that no attempt waited for is used within this time.
const FOUND: Duration = Duration::from_secs(10);
/// Time for the lookup of a name, if there is the address of the last valid hello to use instead.
const LOOKUP_PATIENCE: Duration = Duration::from_millis(500);
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
enum State {
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

/// The next step for a link, which the hub takes.
#[derive(Debug)]
#[must_use]
pub(crate) enum Next {
    Nothing,
    /// Output was queued on its connection.
    Send(ConnectionId),
    Close(ConnectionId, Reason),
    /// It is opened again at this time ([`Links::open_again`]).
    OpenAt(Instant),
    /// The attempt waits until this time for the lookup of its name ([`Links::lookup_is_late`]).
    /// The lookup is to be begun for this address, if there is one.
    LookUp {
        until: Instant,
        address: Option<String>,
    },
    /// A connection to one of its addresses was begun ([`Links::opening`]). `has_more` is true if
    /// other addresses are left to try.
    Connecting {
        fd: OwnedFd,
        has_more: bool,
    },
    Broken(Broken),
}

/// A link that broke or could not be opened.
#[derive(Debug)]
pub(crate) struct Broken {
    pub address: String,
    pub role: Role,
    /// The questions that get no answer.
    pub requests: Vec<u64>,
    pub reason: Reason,
}

/// The addresses of a link's name, which are tried one after another.
#[derive(Debug, Default)]
struct Addresses {
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
    fn begin(&mut self, mut addresses: Vec<SocketAddr>) {
        addresses.sort_by_key(|address| Some(*address) != self.good);
        self.left = addresses.into();
        self.trying = None;
        self.failed.clear();
        self.unknown = None;
    }

    /// As [`begin`](Self::begin), at the address of the last valid hello alone, because the name
    /// cannot be looked up. Returns false if there is no such address.
    fn begin_unknown(&mut self, reason: &str) -> bool {
        self.begin(Vec::from_iter(self.good));
        self.unknown = Some(reason.to_owned());
        self.good.is_some()
    }

    /// Takes the result of a lookup that this attempt did not wait for. Returns false if the
    /// attempt had waited.
    fn learn(&mut self, addresses: &[SocketAddr]) -> bool {
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
    fn next(&mut self) -> Option<(SocketAddr, bool)> {
        self.trying = self.left.pop_front();
        self.trying.map(|address| (address, !self.left.is_empty()))
    }

    fn failed(&mut self, reason: Reason) {
        self.failed
            .extend(self.trying.take().map(|address| (address, reason)));
    }

    fn succeeded(&mut self) {
        self.good = self.trying.take();
    }

    /// Reason why the attempt failed. It is `NobodyListens` if all addresses refused, or if the
    /// address refused at which the peer was last: the peer may never listen at the others.
    fn conclude(&mut self) -> Reason {
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
struct Link {
    address: String,
    role: Role,
    state: State,
    addresses: Addresses,
    /// Whether a lookup of its name has not ended.
    is_looking_up: bool,
    /// The result of a lookup that ended between two attempts.
    found: Option<(Instant, Vec<SocketAddr>)>,
    /// Until this time the attempt waits for the lookup, although it could use the last good
    /// address.
    lookup_until: Instant,
    /// Output that waits for the other side's hello.
    queue: Output,
    /// Questions that were sent and are not answered, each with the end of its bytes in the link's
    /// stream.
    outstanding: BTreeMap<u64, u64>,
    /// The bytes of all questions since the last break.
    asked_bytes: u64,
    /// The part of these bytes that the other side's system had acknowledged at the last look, and
    /// whether bytes have arrived since then ([`Hub::moving`](crate::Hub::moving)).
    taken_bytes: u64,
    has_received: bool,
    /// Consecutive attempts without any answer.
    failures: u32,
    retry: Instant,
    /// When TLS failed and that was logged.
    complained: Option<Instant>,
    used: Instant,
}

impl Link {
    /// Notes a queued question of `bytes` bytes.
    fn asked(&mut self, request: u64, bytes: usize) {
        if self.outstanding.is_empty() {
            self.has_received = false; // earlier bytes answered other questions
        }
        self.asked_bytes += bytes as u64;
        self.outstanding.insert(request, self.asked_bytes);
    }

    /// The questions for which the link has moved something since the last look. `waiting` is the
    /// number of bytes that the other side's system has not acknowledged yet.
    fn moving(&mut self, waiting: usize, found: &mut Vec<Moving>) {
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
    fn keep_found(&mut self, now: Instant, addresses: Vec<SocketAddr>) {
        self.found = Some((now, addresses));
    }

    fn take_found(&mut self, now: Instant) -> Option<Vec<SocketAddr>> {
        let found = self.found.take();
        let recent = found.filter(|(at, _)| now < *at + FOUND);
        recent.map(|(_, addresses)| addresses)
    }

    /// Handles that the connection is gone, or could not be made. Returns the questions that get no
    /// answer.
    fn broke(&mut self, now: Instant, least: Duration, most: Duration) -> Vec<u64> {
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

/// A random time between half of `most` and `most`, so that hubs that lost the same peer do not all
/// reconnect to it at once.
fn spread(most: Duration) -> Duration {
    let chance = RandomState::new().hash_one(0) >> 48; // 16 bits
    most / 2 + most * chance as u32 / 2 / (1 << 16)
}

/// All links of a hub.
#[derive(Debug)]
pub(crate) struct Links {
    links: Vec<Option<Link>>,
    /// Addresses of the last valid hellos of dropped links, by name (L1).
    dropped: HashMap<String, SocketAddr>,
    by_address: HashMap<String, Vec<(Role, usize)>>,
    /// Pause between two attempts to connect: it doubles from the minimum to the maximum.
    retry_min: Duration,
    retry_max: Duration,
}

impl Links {
    pub fn new(retry_min: Duration, retry_max: Duration) -> Links {
        Links {
            links: Vec::new(),
            dropped: HashMap::new(),
            by_address: HashMap::new(),
            retry_min,
            retry_max,
        }
    }

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
    fn get_mut(&mut self, link: usize) -> &mut Link {
        self.links[link].as_mut().expect("it is known")
    }

    /// The link with this number; `None` if it was dropped meanwhile.
    fn try_get_mut(&mut self, link: usize) -> Option<&mut Link> {
        self.links.get_mut(link)?.as_mut()
    }

    /// Numbers of the links to this address.
    pub fn to(&self, address: &str) -> Vec<usize> {
        let known = self.by_address.get(address).into_iter().flatten();
        known.map(|(_, link)| *link).collect()
    }

    /// The address of a link's peer, and the role in which this side asks it.
    pub fn peer(&mut self, link: usize) -> (&str, Role) {
        let link = self.get_mut(link);
        (&link.address, link.role)
    }

    // --- questions

    /// Queues a question: `push` appends it to the output of the link's connection or, without one,
    /// to the link's own queue. `limit` is the most bytes of that output.
    pub fn ask(
        &mut self,
        link: usize,
        request: u64,
        (limit, now): (usize, Instant),
        table: &mut Table,
        push: impl FnOnce(&mut Output),
    ) -> Next {
        let of_link = self.get_mut(link);
        let output = match of_link.state {
            State::Open(id) => &mut table.get_mut(id).expect("an open link has one").output,
            _ => &mut of_link.queue,
        };
        let before = output.bytes();
        push(output);
        let bytes = output.bytes();
        of_link.asked(request, bytes - before);
        match of_link.state {
            State::Open(id) | State::Opening(id) if bytes > limit => Next::Close(id, Reason::Slow),
            State::Open(id) => Next::Send(id),
            State::Resolving | State::Waiting if bytes > limit => {
                self.broke(link, Reason::Slow, now)
            }
            State::Opening(_) | State::Resolving | State::Waiting => Next::Nothing,
            State::Idle => {
                of_link.state = State::Waiting;
                match of_link.retry <= now {
                    true => self.open(link, now),
                    false => Next::OpenAt(of_link.retry),
                }
            }
        }
    }

    /// See [`Hub::moving`](crate::Hub::moving).
    pub fn moving(&mut self, table: &mut Table) -> Vec<Moving> {
        let mut found = Vec::new();
        let links = self.links.iter_mut().flatten();
        for link in links.filter(|link| !link.outstanding.is_empty()) {
            if let State::Open(id) = link.state {
                let connection = table.get_mut(id).expect("an open link has one");
                let unsent = connection.unsent_bytes();
                link.moving(unsent + socket::unacknowledged(&connection.fd), &mut found);
            }
        }
        found
    }

    /// Gives up a question.
    pub fn forget(&mut self, link: usize, request: u64) {
        self.get_mut(link).outstanding.remove(&request);
    }

    /// Bytes have arrived on a connection: if it is that of a link, the peer's process works.
    pub fn has_received(&mut self, side: &Side) {
        if let Side::Ours { link } = side {
            self.get_mut(*link).has_received = true;
        }
    }

    /// Handles a frame of the other side. Returns true if it answers a question of this link.
    ///
    /// # Errors
    /// The other side refuses this side.
    pub fn answered(&mut self, link: usize, message: &Message) -> Result<bool, Reason> {
        let header = message.header();
        let request = header.envelope.request;
        let link = self.get_mut(link);
        if link.outstanding.remove(&request).is_some() {
            link.failures = 0; // the peer works
            return Ok(true);
        }
        if header.error && request == 0 {
            // The answer to the hello.
            match decode_reply(&message.frame()) {
                Ok(Reply::Trouble(Trouble::Busy { .. })) => return Err(Reason::Full),
                Ok(Reply::Trouble(trouble)) => return Err(Reason::Refused(trouble.to_string())),
                _ => {}
            }
        }
        Ok(false)
    }

    // --- opening

    /// Opens the link again, if the pause after a break ended at `at`.
    pub fn open_again(&mut self, link: usize, at: Instant, now: Instant) -> Next {
        let known = self.try_get_mut(link);
        match known.is_some_and(|known| known.state == State::Waiting && known.retry <= at) {
            true => self.open(link, now),
            false => Next::Nothing,
        }
    }

    fn open(&mut self, number: usize, now: Instant) -> Next {
        let link = self.get_mut(number);
        let is_given = link.address.parse().ok().map(|address| vec![address]);
        if let Some(addresses) = is_given.or_else(|| link.take_found(now)) {
            link.addresses.begin(addresses);
            return self.try_next(number, now);
        }
        link.state = State::Resolving;
        let until = now + LOOKUP_PATIENCE;
        link.lookup_until = until;
        // The answer of a lookup that has not ended is for this attempt too.
        let is_under_way = std::mem::replace(&mut link.is_looking_up, true);
        let address = (!is_under_way).then(|| link.address.clone());
        Next::LookUp { until, address }
    }

    /// The lookup of the link's name has ended.
    pub fn resolved(
        &mut self,
        number: usize,
        addresses: Result<Vec<SocketAddr>, String>,
        now: Instant,
    ) -> Next {
        let Some(link) = self.try_get_mut(number) else {
            return Next::Nothing;
        };
        link.is_looking_up = false;
        if link.state != State::Resolving {
            if let Ok(addresses) = addresses // L1
                && !link.addresses.learn(&addresses)
            {
                link.keep_found(now, addresses);
            }
            return Next::Nothing;
        }
        match addresses {
            Ok(addresses) => link.addresses.begin(addresses),
            Err(reason) => {
                if !link.addresses.begin_unknown(&reason) {
                    return self.broke(number, Reason::Unreachable(reason), now);
                }
            }
        }
        self.try_next(number, now)
    }

    /// A lookup takes long: uses the last good address, if there is one (L1).
    pub fn lookup_is_late(&mut self, number: usize, at: Instant, now: Instant) -> Next {
        let link = self.try_get_mut(number);
        let is_late = |link: &&mut Link| link.state == State::Resolving && link.lookup_until <= at;
        let Some(link) = link.filter(is_late) else {
            return Next::Nothing;
        };
        let reason = format!("`{}` could not be looked up in time", link.address);
        match link.addresses.begin_unknown(&reason) {
            true => self.try_next(number, now),
            false => Next::Nothing,
        }
    }

    /// Connects to the next address of the link's name; the link is broken when none is left.
    fn try_next(&mut self, number: usize, now: Instant) -> Next {
        loop {
            let link = self.get_mut(number);
            let Some((address, has_more)) = link.addresses.next() else {
                let reason = link.addresses.conclude();
                return self.broke(number, reason, now);
            };
            match socket::connect(address) {
                Ok(fd) => return Next::Connecting { fd, has_more },
                Err(errno) => link.addresses.failed(not_connected(errno)),
            }
        }
    }

    /// This connection is being made.
    pub fn opening(&mut self, link: usize, id: ConnectionId) {
        self.get_mut(link).state = State::Opening(id);
    }

    /// The other side has proved itself on this connection. Returns the output that waited for it.
    pub fn opened(&mut self, link: usize, id: ConnectionId) -> Output {
        let link = self.get_mut(link);
        link.state = State::Open(id);
        link.addresses.succeeded();
        std::mem::take(&mut link.queue)
    }

    // --- ends

    /// Ends a link, because its server is known to be gone.
    pub fn end(&mut self, link: usize, now: Instant) -> Next {
        match self.get_mut(link).state {
            State::Idle => Next::Nothing,
            State::Opening(id) | State::Open(id) => Next::Close(id, Reason::Here),
            State::Waiting | State::Resolving => self.broke(link, Reason::Here, now),
        }
    }

    /// The link's connection is gone. A connection that was not open yet, unless it was given up,
    /// only shows that its address does not lead to the peer: the next address is tried.
    pub fn lost(&mut self, link: usize, was_open: bool, reason: Reason, now: Instant) -> Next {
        let is_given_up = matches!(reason, Reason::Here | Reason::Slow);
        if was_open || is_given_up {
            return self.broke(link, reason, now);
        }
        self.get_mut(link).addresses.failed(reason);
        self.try_next(link, now)
    }

    fn broke(&mut self, link: usize, reason: Reason, now: Instant) -> Next {
        let (retry_min, retry_max) = (self.retry_min, self.retry_max);
        let link = self.get_mut(link);
        let requests = link.broke(now, retry_min, retry_max);
        Next::Broken(Broken {
            address: link.address.clone(),
            role: link.role,
            requests,
            reason,
        })
    }

    /// Whether a failure of TLS is to be logged now.
    pub fn may_complain(&mut self, link: usize, now: Instant) -> bool {
        let link = self.get_mut(link);
        let may = link.complained.is_none_or(|at| now >= at + COMPLAIN_AGAIN);
        if may {
            link.complained = Some(now);
        }
        may
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
