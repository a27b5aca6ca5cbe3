//! The hub: all connections of one thread, and their events.

mod event;
mod options;
mod secure;
mod traffic;
mod wait;

pub use event::{Event, Incoming};
pub use options::{Limits, Options};

use crate::channel::Channel;
use crate::connection::{Connection, ConnectionId, Phase, Side, Table};
use crate::handle::Handle;
use crate::input::{Buffers, Input};
use crate::link::{Link, Links, Moving, State};
use crate::output::Payload;
use crate::quiet::Quiet;
use crate::resolve::Resolver;
use crate::{Reason, socket};
use duramen_base::ids::ClusterId;
use duramen_wire::native::codec::{Credentials, Handshake, Role, fresh_nonce};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wait::Waits;

const BELL: u64 = u64::MAX;
/// Numbers of listeners count down from here.
const LISTENER: u64 = u64::MAX - 1;
const LISTENERS_MAX: usize = 64;
const EVENTS_MAX: usize = 256;
/// Maximum connections accepted from a listener in one round.
const ACCEPTS_MAX: usize = 64;
const SWEEP: Duration = Duration::from_secs(1);
/// Time that a refused peer has to read the reason.
const GOODBYE: Duration = Duration::from_secs(1);
/// Time for one address of a name to connect, if there are others to try [RFC 8305 §5].
const ADDRESS_PATIENCE: Duration = Duration::from_millis(250);
/// Time for the lookup of a name, if there is the address of the last valid hello to use instead.
const LOOKUP_PATIENCE: Duration = Duration::from_millis(500);
/// Time for TLS handshakes in a round: a few of their steps, each of which takes up to 0.4 ms. So a
/// ping waits no longer than a round of the node may take.
const SHAKE_TIME: Duration = Duration::from_millis(1);
/// Pause of accepting when the system has no descriptors left.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The address of peers on Unix sockets, which have none.
const LOCAL_PEER: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Connection(u64),
    Link(usize),
    Lookup(usize),
    Accept,
    Sweep,
}

struct Listener {
    fd: OwnedFd,
    is_resting: bool,
    is_local: bool,
}

/// All connections of one thread: see the crate's documentation.
pub struct Hub<M> {
    options: Options,
    epoll: OwnedFd,
    handle: Handle<M>,
    /// Before `listeners`: a socket's file is removed while the ports are still taken, so that it
    /// is not the file of the next process on these ports.
    socket_files: Vec<SocketFile>,
    listeners: Vec<Listener>,
    table: Table,
    links: Links,
    buffers: Buffers,
    /// TLS records are received into this if a connection's own buffer has too little room.
    room: Vec<u8>,
    resolver: Resolver,
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
    dirty: Vec<ConnectionId>,
    /// Connections whose openers had not proved themselves, oldest first; some have proved
    /// themselves since, or are gone.
    strangers: VecDeque<ConnectionId>,
    /// Events that occurred outside of `poll`.
    pending: Vec<Event<M>>,
    quiet: Quiet,
    waits: Waits,
    now: Instant,
}

impl<M: Send + 'static> Hub<M> {
    /// # Errors
    /// The process has no descriptors left.
    pub fn new(options: Options) -> std::io::Result<Hub<M>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let handle = Handle::new()?;
        epoll::add(
            &epoll,
            handle.bell(),
            EventData::new_u64(BELL),
            EventFlags::IN,
        )?;
        let now = Instant::now();
        Ok(Hub {
            options,
            epoll,
            handle,
            socket_files: Vec::new(),
            listeners: Vec::new(),
            table: Table::default(),
            links: Links::default(),
            buffers: Buffers::default(),
            room: Vec::new(),
            resolver: Resolver::default(),
            timers: BinaryHeap::from([Reverse((now + SWEEP, Timer::Sweep))]),
            dirty: Vec::new(),
            strangers: VecDeque::new(),
            pending: Vec::new(),
            quiet: Quiet::new(now),
            waits: Waits::default(),
            now,
        })
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle<M> {
        self.handle.clone()
    }

    /// Sets how long [`poll`](Self::poll) may spin before it sleeps, while that pays.
    pub fn set_longest_spin(&mut self, longest: Duration) {
        self.waits.longest_spin = longest;
    }

    /// Counts an invalid message of a peer ([`Options::offences`]). The hub itself counts hellos
    /// and frames, even those that it does not log.
    pub fn offended(&self) {
        self.options.offences.fetch_add(1, Ordering::Relaxed);
    }

    /// See [`Options::offences`].
    pub fn shared_offences(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.options.offences)
    }

    /// See [`Options::offences`].
    pub fn offences(&self) -> u64 {
        self.options.offences.load(Ordering::Relaxed)
    }

    /// See [`Options::tls_failures`].
    pub fn tls_failures(&self) -> u64 {
        self.options.tls_failures.load(Ordering::Relaxed)
    }

    /// See [`Options::cluster_id`].
    pub fn cluster_id(&self) -> ClusterId {
        self.options.cluster_id
    }

    /// Sets the id of this side's cluster. Closes connections whose other side has sent another id.
    pub fn set_cluster_id(&mut self, id: ClusterId) {
        self.options.cluster_id = id;
        self.close_all(|connection| id.contradicts(connection.cluster_id));
    }

    /// Closes the connections of servers that connected when this side had another id, or none:
    /// they connect again, and get the id.
    pub fn greet_again(&mut self) {
        let id = self.options.cluster_id;
        self.close_all(|connection| match connection.side {
            Side::Theirs { role, .. } => {
                connection.told_id != id && role.is_some_and(|role| role != Role::Client)
            }
            Side::Ours { .. } => false,
        });
    }

    fn close_all(&mut self, which: impl Fn(&Connection) -> bool) {
        let found = self.table.iter().filter(|connection| which(connection));
        for id in found.map(|connection| connection.id).collect::<Vec<_>>() {
            self.close_because(id, Reason::Here);
        }
    }

    /// Accepts connections at this address from now on; returns the actual address if its port was
    /// 0.
    ///
    /// # Errors
    /// The address is in use, or does not belong to this machine.
    pub fn listen(&mut self, address: SocketAddr) -> std::io::Result<SocketAddr> {
        let (fd, address) = socket::listen(address)?;
        self.add_listener(fd, false)?;
        Ok(address)
    }

    /// Accepts clients at this path, by a Unix socket that only this user may open. The file is
    /// removed with the hub. To be called after [`listen`](Self::listen).
    ///
    /// # Errors
    /// The path is too long, in use, or not in a directory that this process may write to.
    pub fn listen_locally(&mut self, path: &Path) -> std::io::Result<()> {
        let fd = socket::listen_locally(path)?;
        self.socket_files.push(SocketFile(path.to_owned()));
        self.add_listener(fd, true)
    }

    fn add_listener(&mut self, fd: OwnedFd, is_local: bool) -> std::io::Result<()> {
        assert!(self.listeners.len() < LISTENERS_MAX, "a few listeners");
        let data = EventData::new_u64(LISTENER - self.listeners.len() as u64);
        epoll::add(&self.epoll, &fd, data, EventFlags::IN)?;
        self.listeners.push(Listener {
            fd,
            is_resting: false,
            is_local,
        });
        Ok(())
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
        let number = self.links.find(address, role, self.now);
        let limit = self.options.limits.output_bytes;
        let link = self.links.get_mut(number);
        let output = match link.state {
            State::Open(id) => {
                let connection = self.table.get_mut(id).expect("an open link has one");
                &mut connection.output
            }
            _ => &mut link.queue,
        };
        let before = output.bytes();
        output.push(payload, encode);
        let bytes = output.bytes();
        link.asked(request, bytes - before);
        match link.state {
            State::Open(id) | State::Opening(id) if bytes > limit => {
                self.close_because(id, Reason::Slow);
            }
            State::Open(id) => self.soil(id),
            State::Resolving | State::Waiting if bytes > limit => {
                self.link_broke(number, Reason::Slow);
            }
            State::Opening(_) | State::Resolving | State::Waiting => {}
            State::Idle => {
                link.state = State::Waiting;
                let retry = link.retry;
                if retry <= self.now {
                    self.open_link(number);
                } else {
                    self.timers.push(Reverse((retry, Timer::Link(number))));
                }
            }
        }
    }

    /// The open questions for which their link has moved something since the last call: it has
    /// received bytes, or the other side's system has taken more of the bytes up to the question's
    /// end. Such a question is not lost; a repetition would only be one more behind it.
    pub fn moving(&mut self) -> Vec<Moving> {
        let mut found = Vec::new();
        for link in self.links.asking() {
            if let State::Open(id) = link.state {
                let connection = self.table.get_mut(id).expect("an open link has one");
                let unsent = connection.unsent_bytes();
                link.moving(unsent + socket::unacknowledged(&connection.fd), &mut found);
            }
        }
        found
    }

    /// Gives up a question: its answer is dropped if it arrives.
    pub fn forget(&mut self, address: &str, role: Role, request: u64) {
        let link = self.links.find(address, role, self.now);
        self.links.get_mut(link).outstanding.remove(&request);
    }

    /// Answers a question. Does nothing if the sender of the question is gone.
    pub fn reply(
        &mut self,
        connection: ConnectionId,
        payload: Payload,
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        let limit = self.options.limits.output_bytes;
        let Some(found) = self.table.get_mut(connection) else {
            return;
        };
        if found.phase != Phase::Open {
            return;
        }
        found.unanswered = found.unanswered.saturating_sub(1);
        found.output.push(payload, encode);
        if found.unsent_bytes() > limit {
            self.close_because(connection, Reason::Slow);
        } else {
            self.soil(connection);
        }
    }

    /// Ends an accepted connection at once.
    pub fn close(&mut self, connection: ConnectionId) {
        self.close_because(connection, Reason::Here);
    }

    /// Ends the links to this address, because its server is known to be gone.
    pub fn close_links(&mut self, address: &str) {
        for number in self.links.to(address) {
            match self.links.get_mut(number).state {
                State::Idle => {}
                State::Opening(id) | State::Open(id) => self.close_because(id, Reason::Here),
                State::Waiting | State::Resolving => self.link_broke(number, Reason::Here),
            }
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
        self.flush_dirty();
        let mut ready = Vec::with_capacity(EVENTS_MAX);
        let timeout = self.timeout(timeout);
        self.waits.wait(&self.epoll, &mut ready, timeout);
        self.now = Instant::now();
        let (mut is_told, mut shaking) = (false, Vec::new());
        for event in &ready {
            let (data, flags) = (event.data.u64(), event.flags);
            if data == BELL {
                is_told = true;
            } else if data > LISTENER - LISTENERS_MAX as u64 {
                self.accept((LISTENER - data) as usize);
            } else if self.shakes_hands(ConnectionId(data)) {
                shaking.push((ConnectionId(data), flags));
            } else {
                self.happened(ConnectionId(data), flags);
            }
        }
        self.shake_hands(&shaking);
        if is_told {
            let told = self.handle.take();
            self.pending.extend(told.into_iter().map(Event::Mail));
            for (link, address) in self.resolver.take() {
                self.resolved(link, address);
            }
        }
        self.fire_timers();
        events.append(&mut self.pending);
    }

    fn timeout(&mut self, wanted: Option<Duration>) -> Option<Timespec> {
        let timer = self.timers.peek().map(|Reverse((at, _))| {
            let left = at.saturating_duration_since(self.now);
            left + Duration::from_micros(50)
        });
        let least = if self.pending.is_empty() {
            wanted.into_iter().chain(timer).min()
        } else {
            Some(Duration::ZERO)
        };
        least.and_then(|least| Timespec::try_from(least).ok())
    }

    // --- accepting

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS_MAX {
            match socket::accept(&self.listeners[listener].fd) {
                Ok((fd, peer)) => {
                    let is_local = self.listeners[listener].is_local;
                    let peer = peer.or(is_local.then_some(LOCAL_PEER));
                    let Some(peer) = peer else { continue };
                    self.greet(fd, peer, is_local);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Err(errno) => {
                    // No descriptors or no memory: the connection stays in the system's queue until
                    // there are some.
                    if let Some(more) = self.quiet.says(self.now) {
                        tracing::warn!(more, "cannot accept a connection: {errno}");
                    }
                    self.rest(listener, true);
                    let at = self.now + ACCEPT_REST;
                    self.timers.push(Reverse((at, Timer::Accept)));
                    return;
                }
            }
        }
    }

    fn rest(&mut self, listener: usize, rests: bool) {
        let data = EventData::new_u64(LISTENER - listener as u64);
        let flags = if rests {
            EventFlags::empty()
        } else {
            EventFlags::IN
        };
        self.listeners[listener].is_resting = rests;
        // This fails only for lack of kernel memory; then the next timer tries it again.
        let _ = epoll::modify(&self.epoll, &self.listeners[listener].fd, data, flags);
    }

    /// Nothing is sent before the other side has sent something (handshake::S2).
    fn greet(&mut self, fd: OwnedFd, peer: SocketAddr, is_local: bool) {
        let nonce = match fresh_nonce() {
            Ok(nonce) => nonce,
            Err(error) => return self.warn(peer, &error.to_string()), // this closes it
        };
        let channel = match self.accept_tls(is_local) {
            Ok(channel) => channel,
            Err(why) => return self.warn(peer, &why), // this closes it
        };
        self.let_a_stranger_go();
        socket::tune(&fd, self.options.limits.patience);
        let until = self.now + self.options.limits.hello;
        let side = Side::Theirs { role: None, peer };
        let input = Input::default();
        let phase = Phase::Hello { until };
        let connection = self.table.add(fd, side, phase, input, self.now);
        let handshake = Handshake::accept(self.options.role, nonce);
        connection.handshake = Some(Box::new(handshake));
        connection.is_local = is_local;
        connection.channel = channel;
        let id = connection.id;
        if self.watch(id, EventFlags::IN) {
            self.strangers.push_back(id);
            self.timers.push(Reverse((until, Timer::Connection(id.0))));
        }
    }

    /// Closes the oldest unproved connection if their maximum is reached: so strangers displace
    /// only other strangers.
    fn let_a_stranger_go(&mut self) {
        let most = self.options.limits.strangers;
        if self.strangers.len() < most {
            return;
        }
        let table = &mut self.table;
        self.strangers.retain(|id| table.is_stranger(*id));
        if self.strangers.len() < most {
            return;
        }
        if let Some(oldest) = self.strangers.pop_front() {
            if let Some(Side::Theirs { peer, .. }) =
                self.table.get_mut(oldest).map(|found| &found.side)
            {
                let peer = *peer;
                self.warn(peer, "it did not prove itself, and many others wait");
            }
            self.close_because(oldest, Reason::Here);
        }
    }

    // --- links

    fn open_link(&mut self, number: usize) {
        let link = self.links.get_mut(number);
        let is_given = link.address.parse().ok().map(|address| vec![address]);
        match is_given.or_else(|| link.take_found(self.now)) {
            Some(addresses) => {
                link.addresses.begin(addresses);
                self.try_next(number);
            }
            None => {
                link.state = State::Resolving;
                let until = self.now + LOOKUP_PATIENCE;
                link.lookup_until = until;
                self.timers.push(Reverse((until, Timer::Lookup(number))));
                if std::mem::replace(&mut link.is_looking_up, true) {
                    return; // its answer is for this attempt too
                }
                let handle = self.handle.clone();
                let address = link.address.clone();
                let resolve = self.options.resolve;
                self.resolver
                    .look_up(number, address, resolve, move || handle.wake());
            }
        }
    }

    fn resolved(&mut self, number: usize, addresses: Result<Vec<SocketAddr>, String>) {
        let Some(link) = self.links.try_get_mut(number) else {
            return;
        };
        link.is_looking_up = false;
        if link.state != State::Resolving {
            if let Ok(addresses) = addresses // net::link::L1
                && !link.addresses.learn(&addresses)
            {
                link.keep_found(self.now, addresses);
            }
            return;
        }
        match addresses {
            Ok(addresses) => link.addresses.begin(addresses),
            Err(reason) => {
                if !link.addresses.begin_unknown(&reason) {
                    return self.link_broke(number, Reason::Unreachable(reason));
                }
            }
        }
        self.try_next(number);
    }

    /// A lookup takes long: uses the last good address, if there is one (net::link::L1).
    fn looks_up_long(&mut self, number: usize, at: Instant) {
        let link = self.links.try_get_mut(number);
        let is_late = |link: &&mut Link| link.state == State::Resolving && link.lookup_until <= at;
        let Some(link) = link.filter(is_late) else {
            return;
        };
        let reason = format!("`{}` could not be looked up in time", link.address);
        if link.addresses.begin_unknown(&reason) {
            self.try_next(number);
        }
    }

    /// Connects to the next address of the link's name; the link is broken when none is left.
    fn try_next(&mut self, number: usize) {
        loop {
            let link = self.links.get_mut(number);
            let Some((address, has_more)) = link.addresses.next() else {
                let reason = link.addresses.conclude();
                return self.link_broke(number, reason);
            };
            match socket::connect(address) {
                Ok(fd) => return self.connecting(number, fd, has_more),
                Err(errno) => link.addresses.failed(not_connected(errno)),
            }
        }
    }

    fn connecting(&mut self, number: usize, fd: OwnedFd, has_more: bool) {
        let Limits {
            hello, patience, ..
        } = self.options.limits;
        socket::tune(&fd, patience);
        let until = self.now
            + match has_more {
                true => hello.min(ADDRESS_PATIENCE),
                false => hello,
            };
        let side = Side::Ours { link: number };
        let phase = Phase::Connecting { until };
        let input = Input::default();
        let id = self.table.add(fd, side, phase, input, self.now).id;
        self.links.get_mut(number).state = State::Opening(id);
        if self.watch(id, EventFlags::OUT) {
            self.timers.push(Reverse((until, Timer::Connection(id.0))));
        }
    }

    /// An address did not lead to the peer: tries the next one.
    fn way_failed(&mut self, number: usize, reason: Reason) {
        self.links.get_mut(number).addresses.failed(reason);
        self.try_next(number);
    }

    fn link_broke(&mut self, number: usize, reason: Reason) {
        let Limits {
            retry_min,
            retry_max,
            ..
        } = self.options.limits;
        let link = self.links.get_mut(number);
        let requests = link.broke(self.now, retry_min, retry_max);
        self.pending.push(Event::Unanswered {
            address: link.address.clone(),
            role: link.role,
            requests,
            reason,
        });
    }
}

/// The file of a Unix socket; removed when dropped.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It fails only if a person has removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Reason why a socket could not be connected.
fn not_connected(errno: Errno) -> Reason {
    match errno {
        Errno::CONNREFUSED => Reason::NobodyListens,
        _ => Reason::Unreachable(errno.to_string()),
    }
}
