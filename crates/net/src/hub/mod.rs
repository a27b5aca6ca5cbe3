//! The hub: all connections of one thread, and their events.
//!
//! The hub passes each event to the component that it concerns, and the component's answer to the
//! next one. [`Listeners`] has the listening sockets, [`Table`] the connections, [`Handshakes`]
//! what new ones have to prove, [`Traffic`] their bytes, [`Links`] what this side opens, [`Poller`]
//! what the system watches, [`Timers`] what is due, [`Complaints`] the faults of peers.

mod complaints;
mod event;
mod handshakes;
mod listeners;
mod options;
mod poller;
mod timers;
mod traffic;

pub use event::{Event, Incoming};
pub use options::{Limits, Options};

use crate::channel::Channel;
use crate::connection::{Connection, ConnectionId, Phase, Side, Table};
use crate::handle::Handle;
use crate::input::Input;
use crate::link::{Links, Moving, Next};
use crate::output::{Output, Payload};
use crate::resolve::Resolver;
use crate::{Reason, socket};
use complaints::Complaints;
use duramen_base::ids::ClusterId;
use duramen_tls::Description;
use duramen_wire::native::codec::Role;
use handshakes::{Goodbye, Greeting, Handshakes, Step};
use listeners::{Caller, Listeners};
use poller::{Poller, Source};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use timers::{Timer, Timers};
use traffic::{Records, Traffic};

/// Maximum connections accepted from a listener in one round.
const ACCEPTS_MAX: usize = 64;
const SWEEP: Duration = Duration::from_secs(1);
/// Time for one address of a name to connect, if there are others to try [RFC 8305 §5].
const ADDRESS_PATIENCE: Duration = Duration::from_millis(250);
/// Time for TLS handshakes in a round: a few of their steps, each of which takes up to 0.4 ms. So a
/// ping waits no longer than a round of the node may take.
const SHAKE_TIME: Duration = Duration::from_millis(1);
/// Pause of accepting when the system has no descriptors left.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// All connections of one thread: see the crate's documentation.
pub struct Hub<M> {
    limits: Limits,
    resolve: fn(&str) -> std::io::Result<Vec<SocketAddr>>,
    handle: Handle<M>,
    listeners: Listeners,
    table: Table,
    handshakes: Handshakes,
    traffic: Traffic,
    links: Links,
    resolver: Resolver,
    poller: Poller,
    timers: Timers,
    complaints: Complaints,
    /// Events that occurred outside of `poll`.
    pending: Vec<Event<M>>,
    now: Instant,
}

impl<M: Send + 'static> Hub<M> {
    /// # Errors
    /// The process has no descriptors left.
    pub fn new(options: Options) -> std::io::Result<Hub<M>> {
        let handle = Handle::new()?;
        let now = Instant::now();
        let mut timers = Timers::default();
        timers.set(now + SWEEP, Timer::Sweep);
        Ok(Hub {
            limits: options.limits,
            resolve: options.resolve,
            listeners: Listeners::default(),
            table: Table::default(),
            handshakes: Handshakes::new(&options),
            traffic: Traffic::default(),
            links: Links::new(options.limits.retry_min, options.limits.retry_max),
            resolver: Resolver::default(),
            poller: Poller::new(handle.bell())?,
            timers,
            complaints: Complaints::new(now, options.offences, options.tls_failures),
            pending: Vec::new(),
            now,
            handle,
        })
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle<M> {
        self.handle.clone()
    }

    /// Sets how long [`poll`](Self::poll) may spin before it sleeps, while that pays.
    pub fn set_longest_spin(&mut self, longest: Duration) {
        self.poller.set_longest_spin(longest);
    }

    /// Counts an invalid message of a peer ([`Options::offences`]). The hub itself counts hellos
    /// and frames, even those that it does not log.
    pub fn offended(&self) {
        self.complaints.offended();
    }

    /// See [`Options::offences`].
    pub fn shared_offences(&self) -> Arc<AtomicU64> {
        Arc::clone(self.complaints.offences())
    }

    /// See [`Options::offences`].
    pub fn offences(&self) -> u64 {
        self.complaints.offences().load(Ordering::Relaxed)
    }

    /// See [`Options::tls_failures`].
    pub fn tls_failures(&self) -> u64 {
        self.complaints.tls_failures()
    }

    /// See [`Options::cluster_id`].
    pub fn cluster_id(&self) -> ClusterId {
        self.handshakes.cluster_id()
    }

    /// The certificate of the other side of a connection; `None` if the connection has no TLS, or
    /// is gone.
    pub fn peer_certificate(&mut self, connection: ConnectionId) -> Option<Description> {
        self.table.get_mut(connection)?.channel.as_ref()?.peer()
    }

    /// Sets the id of this side's cluster. Closes connections whose other side has sent another id.
    pub fn set_cluster_id(&mut self, id: ClusterId) {
        self.handshakes.set_cluster_id(id);
        for connection in self.table.find(|found| id.contradicts(found.cluster_id)) {
            self.close_because(connection, Reason::Here);
        }
    }

    /// Closes the connections of servers that connected when this side had another id, or none:
    /// they connect again, and get the id.
    pub fn greet_again(&mut self) {
        let id = self.handshakes.cluster_id();
        let is_older = |found: &Connection| match found.side {
            Side::Theirs { role, .. } => {
                found.told_id != id && role.is_some_and(|role| role != Role::Client)
            }
            Side::Ours { .. } => false,
        };
        for connection in self.table.find(is_older) {
            self.close_because(connection, Reason::Here);
        }
    }

    /// Accepts connections at this address from now on; returns the actual address if its port was
    /// 0.
    ///
    /// # Errors
    /// The address is in use, or does not belong to this machine.
    pub fn listen(&mut self, address: SocketAddr) -> std::io::Result<SocketAddr> {
        self.listeners.listen(&self.poller, address)
    }

    /// Accepts clients at this path, by a Unix socket that only this user may open. The file is
    /// removed with the hub. To be called after [`listen`](Self::listen).
    ///
    /// # Errors
    /// The path is too long, in use, or not in a directory that this process may write to.
    pub fn listen_locally(&mut self, path: &Path) -> std::io::Result<()> {
        self.listeners.listen_locally(&self.poller, path)
    }

    /// Sends a question to `address` (`host:port`), on a connection with the role `role`. `request`
    /// is the number in the envelope, unique among this hub's open questions. `encode` appends the
    /// question; `payload` follows it.
    pub fn ask(
        &mut self,
        address: &str,
        role: Role,
        request: u64,
        payload: Payload,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let link = self.links.find(address, role, self.now);
        let bounds = (self.limits.output_bytes, self.now);
        let push = |output: &mut Output| output.push(payload, encode);
        let next = self.links.ask(link, request, bounds, &mut self.table, push);
        self.follow(link, next);
    }

    /// The open questions for which their link has moved something since the last call: it has
    /// received bytes, or the other side's system has taken more of the bytes up to the question's
    /// end. Such a question is not lost; a repetition would only be one more behind it.
    pub fn moving(&mut self) -> Vec<Moving> {
        self.links.moving(&mut self.table)
    }

    /// Gives up a question: its answer is dropped if it arrives.
    pub fn forget(&mut self, address: &str, role: Role, request: u64) {
        let link = self.links.find(address, role, self.now);
        self.links.forget(link, request);
    }

    /// Answers a question. Does nothing if the sender of the question is gone.
    pub fn reply(
        &mut self,
        connection: ConnectionId,
        payload: Payload,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let found = self.table.get_mut(connection);
        let Some(found) = found.filter(|found| found.phase == Phase::Open) else {
            return;
        };
        found.unanswered = found.unanswered.saturating_sub(1);
        found.output.push(payload, encode);
        if found.unsent_bytes() > self.limits.output_bytes {
            self.close_because(connection, Reason::Slow);
        } else {
            self.traffic.soil(found, self.now);
        }
    }

    /// Ends an accepted connection at once.
    pub fn close(&mut self, connection: ConnectionId) {
        self.close_because(connection, Reason::Here);
    }

    /// Ends the links to this address, because its server is known to be gone.
    pub fn close_links(&mut self, address: &str) {
        for link in self.links.to(address) {
            let next = self.links.end(link, self.now);
            self.follow(link, next);
        }
    }

    /// Takes a connection that another hub handed over.
    pub fn adopt(&mut self, incoming: Incoming) {
        let Incoming {
            fd,
            role,
            peer,
            tls,
            received,
            ..
        } = incoming;
        let side = Side::Theirs {
            role: Some(role),
            peer,
        };
        let input = Input::with(received);
        let connection = self.table.add(fd, side, Phase::Open, input, self.now);
        connection.channel = tls.map(Channel::adopted);
        let id = connection.id;
        if self.watch(id, EventFlags::IN) {
            self.pending.push(Event::Accepted {
                connection: id,
                role,
                peer,
            });
            self.cut_frames(id);
        }
    }

    /// Sends queued bytes, waits for an event or until `timeout` has passed, and returns the
    /// events.
    pub fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event<M>>) {
        self.now = Instant::now();
        for id in self.traffic.take_dirty() {
            if let Some(connection) = self.table.get_mut(id) {
                connection.is_dirty = false;
                self.flush(id);
            }
        }
        let timeout = match self.pending.is_empty() {
            true => timeout,
            false => Some(Duration::ZERO),
        };
        let ready = self.poller.wait(self.timers.timeout(timeout, self.now));
        self.now = Instant::now();
        let (mut is_told, mut shaking) = (false, Vec::new());
        for event in &ready {
            match Source::of(event) {
                Source::Bell => is_told = true,
                Source::Listener(number) => self.accept(number),
                Source::Connection(id) => {
                    let connection = self.table.get_mut(id);
                    match connection.is_some_and(|it| self.handshakes.may_take_long(it)) {
                        true => shaking.push((id, event.flags)),
                        false => self.happened(id, event.flags),
                    }
                }
            }
        }
        self.shake_hands(&shaking);
        if is_told {
            let told = self.handle.take();
            self.pending.extend(told.into_iter().map(Event::Mail));
            for (link, addresses) in self.resolver.take() {
                let next = self.links.resolved(link, addresses, self.now);
                self.follow(link, next);
            }
        }
        while let Some((at, timer)) = self.timers.take_due(self.now) {
            self.is_due(at, timer);
        }
        events.append(&mut self.pending);
    }

    /// Handles these events for [`SHAKE_TIME`], and at least one of them (net::W7). The others are
    /// not lost: the system reports them again in the next round, behind those that it has not
    /// reported yet.
    fn shake_hands(&mut self, events: &[(ConnectionId, EventFlags)]) {
        let begun = Instant::now();
        for (id, flags) in events {
            self.happened(*id, *flags);
            if begun.elapsed() >= SHAKE_TIME {
                return;
            }
        }
    }

    fn is_due(&mut self, at: Instant, timer: Timer) {
        match timer {
            Timer::Connection(id) => {
                let late = self.table.get_mut(id);
                if let Some(reason) = late.and_then(|connection| connection.is_late(self.now)) {
                    self.close_because(id, reason);
                }
            }
            Timer::Link(link) => {
                let next = self.links.open_again(link, at, self.now);
                self.follow(link, next);
            }
            Timer::Lookup(link) => {
                let next = self.links.lookup_is_late(link, at, self.now);
                self.follow(link, next);
            }
            Timer::Accept => self.listeners.go_on(&self.poller),
            Timer::Sweep => {
                self.timers.set(self.now + SWEEP, Timer::Sweep);
                self.links.sweep(self.now);
                self.traffic.sweep();
                let (patience, now) = (self.limits.patience, self.now);
                for id in self
                    .table
                    .find(|connection| connection.is_stalled(patience, now))
                {
                    self.close_because(id, Reason::TimedOut("take what was sent"));
                }
            }
        }
    }

    // --- new connections

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS_MAX {
            match self.listeners.accept(listener) {
                Ok(caller) => {
                    if let Some(caller) = caller {
                        self.greet(caller);
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    // No descriptors or no memory: the connection stays in the system's queue until
                    // there are some.
                    self.complaints.cannot_accept(errno, self.now);
                    self.listeners.rest(&self.poller, listener);
                    self.timers.set(self.now + ACCEPT_REST, Timer::Accept);
                    return;
                }
            }
        }
    }

    fn greet(&mut self, caller: Caller) {
        let Caller { fd, peer, is_local } = caller;
        let Greeting { handshake, channel } = match self.handshakes.greet(is_local) {
            Ok(greeting) => greeting,
            Err(why) => return self.complaints.refused(peer, &why, self.now), // this closes it
        };
        let most = self.limits.strangers;
        if let Some((oldest, peer)) = self.handshakes.crowded_out(most, &mut self.table) {
            let why = "it did not prove itself, and many others wait";
            self.complaints.refused(peer, why, self.now);
            self.close_because(oldest, Reason::Here);
        }
        socket::tune(&fd, self.limits.patience);
        let until = self.now + self.limits.hello;
        let side = Side::Theirs { role: None, peer };
        let phase = Phase::Hello { until };
        let connection = self.table.add(fd, side, phase, Input::default(), self.now);
        connection.handshake = Some(handshake);
        connection.is_local = is_local;
        connection.channel = channel;
        let id = connection.id;
        if self.watch(id, EventFlags::IN) {
            self.handshakes.came(id);
            self.timers.set(until, Timer::Connection(id));
        }
    }

    /// Takes the next step for a link.
    fn follow(&mut self, link: usize, next: Next) {
        match next {
            Next::Nothing => {}
            Next::Send(id) => {
                if let Some(connection) = self.table.get_mut(id) {
                    self.traffic.soil(connection, self.now);
                }
            }
            Next::Close(id, reason) => self.close_because(id, reason),
            Next::OpenAt(at) => self.timers.set(at, Timer::Link(link)),
            Next::LookUp { until, address } => {
                self.timers.set(until, Timer::Lookup(link));
                if let Some(address) = address {
                    let handle = self.handle.clone();
                    self.resolver
                        .look_up(link, address, self.resolve, move || handle.wake());
                }
            }
            Next::Connecting { fd, has_more } => self.connecting(link, fd, has_more),
            Next::Broken(broken) => self.pending.push(broken.into()),
        }
    }

    fn connecting(&mut self, link: usize, fd: OwnedFd, has_more: bool) {
        let Limits {
            hello, patience, ..
        } = self.limits;
        socket::tune(&fd, patience);
        let until = self.now
            + match has_more {
                true => hello.min(ADDRESS_PATIENCE),
                false => hello,
            };
        let side = Side::Ours { link };
        let phase = Phase::Connecting { until };
        let input = Input::default();
        let id = self.table.add(fd, side, phase, input, self.now).id;
        self.links.opening(link, id);
        if self.watch(id, EventFlags::OUT) {
            self.timers.set(until, Timer::Connection(id));
        }
    }

    // --- events on connections

    fn happened(&mut self, id: ConnectionId, flags: EventFlags) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        if let Phase::Connecting { until } = connection.phase {
            if let Err(errno) = socket::connected(&connection.fd) {
                return self.close_because(id, socket::not_connected(errno));
            }
            if !flags.contains(EventFlags::OUT) {
                return;
            }
            // An address that accepted the connection gets the full time for its hello.
            let until = until.max(self.now + self.limits.hello);
            connection.phase = Phase::Hello { until };
            self.timers.set(until, Timer::Connection(id));
            if let Side::Ours { link } = connection.side {
                let peer = self.links.peer(link);
                let step = self.handshakes.begin(connection, peer, &self.complaints);
                self.take(id, step);
            }
            return;
        }
        if flags.contains(EventFlags::OUT) {
            self.flush(id);
        }
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            self.receive(id);
        }
    }

    fn receive(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        // Further bytes of a refused peer are not even decrypted.
        let is_closing = matches!(connection.phase, Phase::Closing { .. });
        if connection.channel.is_some() && !is_closing {
            return self.receive_records(id);
        }
        match self.traffic.receive(connection) {
            Ok(true) => {
                self.links.has_received(&connection.side);
                self.received(id);
            }
            Ok(false) => {}
            Err(reason) => self.close_because(id, reason),
        }
    }

    fn receive_records(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let is_open = connection.phase == Phase::Open;
        match self.traffic.receive_records(connection) {
            Records::Nothing => {}
            Records::End => self.close_because(id, Reason::Ended),
            Records::Failed(error) => {
                let step = self.handshakes.failed(connection, error, &self.complaints);
                self.take(id, step);
            }
            Records::InPlace => {
                self.links.has_received(&connection.side);
                self.received(id);
            }
            Records::Aside(bytes, room) => {
                self.links.has_received(&connection.side);
                self.feed(id, is_open, &room[..bytes]);
                self.traffic.give_back(room);
            }
        }
    }

    /// Puts decrypted bytes into the connection's input. The bytes of a stranger are put there all
    /// at once: behind its last proof there may be frames, which go with the connection to another
    /// thread.
    fn feed(&mut self, id: ConnectionId, is_open: bool, mut bytes: &[u8]) {
        if !is_open {
            if let Some(connection) = self.table.get_mut(id) {
                let role = |link| self.links.peer(link).1;
                let step = handshakes::note_opened(connection, role, &self.complaints);
                self.take(id, step);
            }
            if let Some(connection) = self.table.get_mut(id)
                && !bytes.is_empty()
            {
                connection.input.append(bytes);
                self.received(id);
            }
            return self.flush(id);
        }
        while let Some(connection) = self.table.get_mut(id)
            && !bytes.is_empty()
        {
            self.traffic.fill(connection, &mut bytes);
            self.received(id);
        }
    }

    /// Bytes of the other side are in the connection's input.
    fn received(&mut self, id: ConnectionId) {
        let is_full = self.table.proved() >= self.limits.connections;
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        match connection.phase {
            Phase::Closing { .. } => connection.input = Input::default(),
            Phase::Hello { .. } => {
                let step = self.handshakes.go_on(connection, is_full, &self.complaints);
                self.take(id, step);
            }
            Phase::Open => self.cut_frames(id),
            Phase::Connecting { .. } => {}
        }
    }

    /// Takes the next step for a connection that shakes hands.
    fn take(&mut self, id: ConnectionId, step: Step) {
        match step {
            Step::Nothing => {}
            Step::Send => self.flush(id),
            Step::Close(reason) => self.close_because(id, reason),
            Step::Accept { role, peer } => {
                self.table.prove(id, role);
                self.pending.push(Event::Accepted {
                    connection: id,
                    role,
                    peer,
                });
                self.cut_frames(id);
            }
            Step::HandOver { role, peer } => self.hand_over(id, role, peer),
            Step::Linked(link) => {
                let queued = self.links.opened(link, id);
                if let Some(connection) = self.table.get_mut(id) {
                    connection.output.append(queued);
                    self.traffic.soil(connection, self.now);
                }
                self.cut_frames(id);
            }
            Step::Goodbye(goodbye) => self.say_goodbye(id, goodbye),
        }
    }

    /// Sends the reason to a refused peer, and gives it some time to read it.
    fn say_goodbye(&mut self, id: ConnectionId, goodbye: Goodbye) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let Goodbye {
            peer,
            why,
            foreign,
            time,
        } = goodbye;
        let until = self.now + time;
        connection.phase = Phase::Closing { until };
        self.timers.set(until, Timer::Connection(id));
        self.flush(id);
        match foreign {
            Some((role, cluster_id)) => self.pending.push(Event::Foreign {
                peer,
                role,
                cluster_id,
            }),
            None => self.complaints.refused(peer, &why, self.now),
        }
    }

    fn hand_over(&mut self, id: ConnectionId, role: Role, peer: SocketAddr) {
        let Some(connection) = self.table.take(id) else {
            return;
        };
        // A connection dropped here leaves the epoll instance when its descriptor is closed.
        if connection.unsent_bytes() > 0 {
            let why = "it does not take its part of the handshake";
            return self.complaints.refused(peer, why, self.now);
        }
        if self.poller.unwatch(&connection.fd).is_ok() {
            let incoming = Incoming::of(*connection, role, peer);
            self.pending.push(Event::Handed(incoming));
        }
    }

    // --- frames

    fn cut_frames(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        let (messages, cut) = self.traffic.cut(connection, &self.limits);
        for message in messages {
            let is_answer = message.header().reply;
            let heard = match connection.side {
                Side::Ours { link } if is_answer => self.links.answered(link, &message),
                Side::Theirs { .. } if !is_answer => Ok(true),
                _ => Err(Reason::Direction),
            };
            match heard {
                Ok(true) => self.pending.push(Event::of(connection, message)),
                Ok(false) => {}
                Err(reason) => return self.close_because(id, reason),
            }
        }
        match cut {
            Ok(()) => self.poller.update(connection, &self.limits),
            Err(error) => self.close_because(id, error.into()),
        }
    }

    // --- sending, watching, ending

    fn flush(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else {
            return;
        };
        match traffic::flush(connection, self.now) {
            Ok(()) => self.poller.update(connection, &self.limits),
            Err(reason) => self.close_because(id, reason),
        }
    }

    /// Starts to watch a new connection. Returns false if it was closed for lack of kernel memory.
    fn watch(&mut self, id: ConnectionId, interest: EventFlags) -> bool {
        let Some(connection) = self.table.get_mut(id) else {
            return false;
        };
        let added = self.poller.watch(connection, interest);
        if let Err(errno) = added {
            self.close_because(id, Reason::Broken(errno.to_string()));
        }
        added.is_ok()
    }

    fn close_because(&mut self, id: ConnectionId, reason: Reason) {
        let Some(connection) = self.table.take(id) else {
            return;
        };
        match connection.side {
            Side::Ours { link } => {
                let was_open = connection.phase == Phase::Open;
                let reason = match reason {
                    Reason::Ended | Reason::Reset | Reason::Broken(_) if !was_open => {
                        Reason::NoHello
                    }
                    other => other,
                };
                let is_tls = matches!(reason, Reason::Tls(_));
                let is_urgent = is_tls && self.links.may_complain(link, self.now);
                let (address, _) = self.links.peer(link);
                self.complaints.lost(address, &reason, is_urgent, self.now);
                let next = self.links.lost(link, was_open, reason, self.now);
                self.follow(link, next);
            }
            Side::Theirs {
                role: Some(_),
                peer,
            } => {
                self.complaints.closed(peer, &reason, self.now);
                self.pending.push(Event::Closed {
                    connection: id,
                    reason,
                });
            }
            Side::Theirs { role: None, .. } => {}
        }
    }
}
