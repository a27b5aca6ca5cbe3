//! The ways into the reactor threads: connections that other threads have accepted, and the turn
//! of the long pipelines.
//!
//! **Concurrency.** Any thread hands a connection over; the thread that owns it takes it. A lock is
//! held only while the list behind it is read or changed.

mod bell;
mod pipeline_turn;
mod rings;

use bell::EventBell;
use duramen_config::{ConfigFile, ServerConfig, ServerError};
use duramen_redis::state::Shared;
use duramen_redis::table::catalog;
use duramen_redis::threads::{Bell, Message, Starter, Work};
use duramen_tls::Session;
pub(crate) use pipeline_turn::PipelineTurn;
pub(crate) use rings::LocalRings;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An accepted socket, to be handed to the thread that will own it.
pub(crate) struct Incoming {
    pub(crate) fd: OwnedFd,
    pub(crate) peer: SocketAddr,
    /// The TLS session; `None` if the connection is not encrypted.
    pub(crate) tls: Option<Box<Session>>,
    /// The state of a native client's connection; `None` for a RESP client.
    pub(crate) native: Option<NativeStart>,
}

/// The state of a native client's connection after both hellos.
pub(crate) struct NativeStart {
    /// Bytes received after the client's hello.
    pub(crate) received: Vec<u8>,
    /// The memory for the frames of a client on this machine.
    pub(crate) rings: Option<LocalRings>,
}

/// The way to one reactor thread.
pub(crate) struct Door {
    /// Wakes the thread for its messages.
    pub(crate) bell: Arc<EventBell>,
    /// Number of the connections that the thread owns, and of those handed over but not yet taken.
    connections: AtomicUsize,
    /// Sockets that other threads accepted for this thread; `None` once this thread has ended.
    incoming: Mutex<Option<Vec<Incoming>>>,
}

impl Door {
    fn new(bell: Arc<EventBell>) -> Door {
        Door {
            bell,
            connections: AtomicUsize::new(0),
            incoming: Mutex::new(Some(Vec::new())),
        }
    }

    pub(crate) fn connections_changed(&self, by: isize) {
        self.connections.fetch_add(by as usize, Ordering::Relaxed);
    }

    /// Called by any thread, which posts [`Message::Wake`] afterwards. Closes the socket if the
    /// owning thread has ended.
    pub(crate) fn hand_over(&self, incoming: Incoming) {
        if let Some(sockets) = &mut *self.lock_incoming() {
            sockets.push(incoming);
        }
    }

    /// Called by the owning thread: takes the sockets that were handed over.
    pub(crate) fn incoming(&self) -> Vec<Incoming> {
        let mut incoming = self.lock_incoming();
        incoming.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Called by the owning thread when it ends.
    pub(crate) fn end_incoming(&self) {
        *self.lock_incoming() = None;
    }

    fn lock_incoming(&self) -> MutexGuard<'_, Option<Vec<Incoming>>> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts threads for work that the crate `redis` gives them.
pub(crate) const STARTER: Starter = Starter(start_thread);

fn start_thread(name: &'static str, work: Work) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(work).map(drop)
}

/// The ways to all reactor threads.
pub struct Doors {
    shared: Arc<Shared>,
    /// One per reactor thread, by number.
    threads: Box<[Door]>,
    pub(crate) pipeline_turn: PipelineTurn,
}

impl Doors {
    /// Makes the state that the threads share, and the ways into them.
    ///
    /// # Errors
    /// [`ServerError::System`] when the process is out of file descriptors; as [`Shared::new`].
    pub(crate) fn open(
        config: ServerConfig,
        file: Option<ConfigFile>,
    ) -> Result<Arc<Doors>, ServerError> {
        let bells = (0..config.reactor_threads()).map(|_| EventBell::new().map(Arc::new));
        let bells = bells.collect::<Result<Vec<_>, ServerError>>()?;
        let to_be_rung = bells.iter().map(|bell| Arc::clone(bell) as Arc<dyn Bell>);
        Ok(Arc::new(Doors {
            shared: Shared::new(config, file, catalog(), to_be_rung.collect(), STARTER)?,
            threads: bells.into_iter().map(Door::new).collect(),
            pipeline_turn: PipelineTurn::default(),
        }))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Takes over a native client's connection after both hellos. `tls`: its session, if the
    /// connection is encrypted. `received`: the bytes received after the client's hello, decrypted.
    /// If there are too many clients, the connection is closed.
    pub fn hand_over_native(
        &self,
        fd: OwnedFd,
        peer: SocketAddr,
        tls: Option<Box<Session>>,
        received: Vec<u8>,
    ) {
        if !self.shared.threads.enter(self.shared.config().maxclients) {
            return;
        }
        self.give(Incoming {
            fd,
            peer,
            tls,
            native: Some(NativeStart {
                received,
                rings: None,
            }),
        });
    }

    pub(crate) fn door(&self, number: usize) -> &Door {
        &self.threads[number]
    }

    /// The thread that owns the fewest connections. If several own equally few, and `preferred` is
    /// one of them, it is returned.
    pub(crate) fn least_connections(&self, preferred: usize) -> usize {
        let connections =
            |thread: &usize| self.threads[*thread].connections.load(Ordering::Relaxed);
        (0..self.threads.len())
            .min_by_key(|thread| (connections(thread), *thread != preferred))
            .unwrap_or(preferred)
    }

    /// Hands a counted connection to the thread that owns the fewest.
    fn give(&self, incoming: Incoming) {
        let number = self.least_connections(0);
        let owner = &self.threads[number];
        owner.connections_changed(1);
        owner.hand_over(incoming);
        self.shared.threads[number].mailbox.post(Message::Wake);
    }
}
