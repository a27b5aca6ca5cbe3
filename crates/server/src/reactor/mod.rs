//! The reactor: one thread, its listeners, its connections, its epoll instance, its engine session.
//!
//! A round: take the events of epoll; receive from each ready connection, in turn, into one buffer
//! of the thread; parse; pass the requests of a group of connections to the executor as one batch;
//! send each connection's replies with one system call. Groups are small ([`GROUP_REQUESTS`]), so
//! that input, output and prefetched entries stay in the cache.
//!
//! **Invariants**
//! - I1: a connection is in its slot or in the group (`Groups`, `native::Round`), never in both.
//!   Messages may come for it in either place (effects::D5).
//! - I2: a connection without a partial request and without unsent replies owns no buffer.
//! - I3: the memory of a connection is bounded: input by the request limit and `pipeline-memory`,
//!   output by `output-limit`; both by `preauth-limit` before the password. Memory of buffers that
//!   is freed is reported to the heap (`BufferPool::note_memory`).
//! - I4: level-triggered: a connection is registered for reading unless it is paused, held, closing
//!   or behind with its replies (input::R1), and for writing only while it has replies that may be
//!   sent. A socket that was not drained is reported again, after all others.
//!
//! **Parts.** Each part owns its fields and lies in a file of its own. It borrows the rest for a
//! call: `Here`, a connection that is out of its slot, other parts. It returns the connection's
//! next step, which `Traffic` takes. `Reactor` runs the rounds.
//!
//! **Concurrency.** Everything here belongs to one thread at a time (standby::Y1); other threads
//! reach it through its mailbox.

mod accept;
mod backlog;
mod behind;
mod commit;
mod connection;
mod connections;
mod effects;
mod flash;
mod held;
mod here;
mod hold;
mod input;
mod key_waits;
mod listener;
mod local;
mod messages;
mod native;
mod next;
mod output;
mod parked;
mod receive;
mod release;
mod rest;
mod ring;
mod round;
mod standby;
mod stop;
mod sweeps;
mod timers;
mod tls;
mod tracking;
mod traffic;
mod unix;
mod watch;

use crate::doors::Doors;
use accept::{Acceptor, Places, own};
use behind::Behind;
use connection::Connection;
use connections::{Connections, Token};
use duramen_config::ServerError;
use duramen_redis::executor::Executor;
use duramen_redis::threads::{Running, Stop};
use effects::Deliveries;
use flash::FlashReads;
use here::Thread;
use hold::Holds;
use key_waits::Waits;
pub(crate) use listener::{Listeners, bind};
use local::Rings;
use output::BufferPool;
use receive::Receive;
use release::Releases;
use rest::Rest;
use round::Groups;
use rustix::event::epoll;
use rustix::time::Timespec;
pub(crate) use standby::Standby;
use std::sync::Arc;
use sweeps::Sweeps;
use timers::{begin_timed_round, end_timed_round};
use tracking::Invalidations;
pub(crate) use unix::{SocketFile, listen_at};
use watch::Watch;

/// Maximum events taken from epoll at once.
const EVENTS_MAX: usize = 256;
/// Number of requests after which a group runs: enough to hide the memory latency of a batch, few
/// enough for the first-level cache.
const GROUP_REQUESTS: usize = 64;
/// Bytes of input after which a group runs.
const GROUP_INPUT_BYTES: usize = 64 << 10;

/// A thread of the server, with the loop that it runs.
pub(crate) struct Reactor {
    traffic: Traffic,
    acceptor: Acceptor,
    /// Connections with shared memory.
    rings: Rings,
    deliveries: Deliveries,
    invalidations: Invalidations,
    rest: Rest,
    standby: Arc<Standby<Box<Reactor>>>,
    /// The last field: everything else is dropped before the server counts the reactor as ended.
    _running: Running,
}

/// The connections of a thread, and the owners of all that they pass through: they are received
/// from, their requests run, their replies wait and are sent. It leads each connection from one
/// owner to the next.
struct Traffic {
    thread: Thread,
    executor: Executor,
    connections: Connections,
    watch: Watch,
    /// Bytes received in this group.
    input: Receive,
    /// Connections of this group, and those of native clients.
    groups: Groups,
    native: native::Round,
    buffers: BufferPool,
    sweeps: Sweeps,
    /// Connections whose replies wait for the log.
    holds: Holds,
    releases: Releases,
    /// Connections whose requests wait for flash.
    flash: FlashReads,
    /// Connections whose requests wait for elements, or for the end of a pause.
    waits: Waits,
    /// Connections that wait for their clients to take replies.
    behind: Behind,
}

impl Reactor {
    /// Makes a reactor. To be called on the reactor's own thread.
    ///
    /// # Errors
    /// [`ServerError`] if the engine or the kernel has no room for another thread.
    pub(crate) fn new(
        doors: Arc<Doors>,
        number: usize,
        listeners: Listeners,
        standby: Arc<Standby<Box<Reactor>>>,
        running: Running,
    ) -> Result<Box<Reactor>, ServerError> {
        let watch = Watch::new(doors.door(number), &listeners)?;
        Ok(Box::new(Reactor {
            traffic: Traffic::new(doors, number, watch)?,
            acceptor: Acceptor::new(listeners),
            rings: Rings::default(),
            deliveries: Deliveries::default(),
            invalidations: Invalidations::default(),
            rest: Rest::default(),
            standby,
            _running: running,
        }))
    }

    /// Serves the clients. Returns true when the server stops, and false when another thread has
    /// taken over because a commit took long here.
    fn run(mut self: Box<Self>) -> bool {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            self.wait(&mut events);
            self.traffic.thread.look_at_clock();
            self.traffic
                .me()
                .beat
                .came_back(self.traffic.thread.now_ms());
            if !events.is_empty() || self.traffic.connections.soon() > 0 || self.traffic.has_ready()
            {
                self.traffic.me().counters.rounds.add(1);
            }
            let began = begin_timed_round(self.traffic.thread.here());
            self.round(&events);
            if let Some(level) = self.tend_held() {
                match self.commit_here(level) {
                    Some(reactor) => self = reactor,
                    None => return false,
                }
            }
            self.take_own_messages();
            while let Some(token) = self
                .traffic
                .flash
                .uncork_late(self.traffic.thread.here(), &mut self.traffic.connections)
            {
                self.traffic.writable(token);
            }
            events.clear();
            self.traffic.sweep();
            self.invalidations.tend(self.traffic.thread.here());
            end_timed_round(self.traffic.thread.here(), began);
            match self.traffic.thread.shared().watch.stopping() {
                Stop::No => {}
                Stop::Graceful => {
                    if self.drained() {
                        break;
                    }
                }
                Stop::AtOnce => break,
            }
        }
        self.close_all();
        self.traffic.thread.door().end_incoming();
        self.traffic.me().beat.sleeps(); // no thread is missed from now on
        true
    }

    /// Runs `first`, then each reactor whose own thread commits for long, until no reactor runs.
    pub(crate) fn work(standby: &Standby<Box<Reactor>>, first: Option<Box<Reactor>>) {
        let mut next = first;
        while let Some(reactor) = next.take().or_else(|| standby.stand_by()) {
            if reactor.run() {
                return standby.ended();
            }
        }
    }

    /// Runs one round over the events of epoll and the work left from the last round.
    fn round(&mut self, events: &[epoll::Event]) {
        // Messages come before requests: a client that sends a request after the reply of PUBLISH,
        // by whatever connection, gets the published message first.
        if self.traffic.me().mailbox.has_messages() {
            self.take_messages();
        }
        self.traffic.input.allow_handshakes();
        // Spinning may have received already.
        let mut connections = self.traffic.groups.len() + self.traffic.native.len();
        let turns = connections + events.len() + self.traffic.connections.soon();
        self.traffic.executor.begin_round(turns);
        self.traffic.native.begin_round(turns);
        if self.traffic.flash.is_busy() {
            let here = self.traffic.thread.here();
            self.traffic.flash.take_fetched(
                here,
                &mut self.traffic.connections,
                &mut self.traffic.executor,
            );
        }
        for event in events {
            let token = Token::from(event.data);
            if token == Token::MAILBOX {
                self.traffic.run_group();
                self.take_messages();
            } else if token == Token::FLASH {
                // The completed reads were taken before.
            } else if let Some(listener) = token.as_listener() {
                self.accept(listener);
            } else {
                connections += 1;
                self.rest.note_active(token);
                self.connection_event(token, event.flags);
            }
        }
        for token in self.traffic.connections.take_soon() {
            self.traffic.continue_connection(token);
        }
        self.traffic.run_group();
        self.rest.round_had(connections, |hot| {
            let connection = self.traffic.connections.get(hot);
            connection.is_some_and(Connection::waits_for_key)
        });
    }

    fn connection_event(&mut self, token: Token, flags: epoll::EventFlags) {
        if self
            .traffic
            .connections
            .get(token)
            .is_some_and(|it| it.local().is_some())
        {
            return self.local_event(token, flags);
        }
        if flags.contains(epoll::EventFlags::OUT) {
            self.traffic.writable(token);
        }
        if flags.contains(epoll::EventFlags::IN) {
            self.traffic.receive(token);
        } else if flags
            .intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR | epoll::EventFlags::RDHUP)
        {
            // The socket is not readable, and the connection is dead: its peer sends nothing more
            // and takes no replies. Or the connection waits for elements, or for the end of a
            // pause, and its stream has ended (key_waits::K3, key_waits::K5).
            self.traffic.close(token);
        }
    }

    fn accept(&mut self, listener: usize) {
        let mut places = Places {
            connections: &mut self.traffic.connections,
            watch: &self.traffic.watch,
            rings: &mut self.rings,
            sweeps: &mut self.traffic.sweeps,
        };
        self.acceptor
            .accept(self.traffic.thread.here(), listener, &mut places);
    }

    /// Takes over connections that other threads accepted for this one.
    fn adopt(&mut self) {
        for incoming in self.traffic.thread.door().incoming() {
            let here = self.traffic.thread.here();
            let mut places = Places {
                connections: &mut self.traffic.connections,
                watch: &self.traffic.watch,
                rings: &mut self.rings,
                sweeps: &mut self.traffic.sweeps,
            };
            let token = own(here, incoming, &mut places);
            // No thread that accepts hands a connection over after the listeners were closed.
            if let Some(token) = token.filter(|_| here.stops) {
                self.traffic.close(token);
            }
        }
    }

    fn close_all(&mut self) {
        for token in self.traffic.connections.tokens() {
            self.traffic.close(token);
        }
        self.traffic.thread.shared().threads.wake_for_commit(); // as after Message::Close
        for incoming in self.traffic.thread.door().incoming() {
            drop(incoming);
            self.traffic.thread.door().connections_changed(-1);
            self.traffic.thread.shared().threads.leave();
        }
    }
}

const ZERO: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
