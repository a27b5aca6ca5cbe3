//! The coordinator's process: sockets, store and clock around the state machine of
//! `cluster::coordinator`.
//!
//! [`start`] gives a [`Running`] coordinator. It leads, or it waits until the one that leads is
//! gone and sends those who ask to it.
//!
//! **Invariants**
//! - D1: what the state machine wants stored is given to the store in its order, and it hears
//!   `Persisted` only after the store's `commit` has returned. A commit of an earlier leadership is
//!   dropped.
//! - D2: when leadership is lost, or the lease has run out without a renewal, the state machine of
//!   that leadership ends before anything else is looked at. What it had under way is answered with
//!   a refusal.
//! - D3: time is one monotonic clock for all leaderships of the process.
//! - D4: whoever asks gets an answer: nothing that arrives makes the process end or wait.
//!
//! **Concurrency** two threads: the *driver* owns the sockets and the state machine, the *keeper*
//! owns the store and may block in it. They talk through a channel and the hub's handle. The
//! *admin* thread asks the driver.

// What the standard library prints with ends the process where nothing can be printed.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod admin;
mod driver;
mod keeper;
mod settings;
mod store;

pub use settings::{SettingsError, check as check_settings, defaults};
pub use store::{StoreError, StoreSpec};

use duramen_cluster::coordinator::OpenError;
use duramen_cluster::coordinator::store::MetaStore;
use duramen_net::Handle;
use duramen_wire::native::message::{ClusterSettings, Overview};
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// What a coordinator is.
#[derive(Clone)]
pub struct Options {
    pub cluster: String,
    /// Where it listens; port 0: any free one.
    pub listen: SocketAddr,
    /// `host:port` under which others reach it, if that is not where it listens.
    pub announce: Option<String>,
    pub store: StoreSpec,
    /// What servers, clients and tools must show, and are shown; empty: nothing.
    pub token: Vec<u8>,
    /// Of a cluster that does not exist yet; an existing one keeps its own.
    pub settings: ClusterSettings,
    /// Where admin HTTP listens; `None`: nowhere.
    pub admin: Option<SocketAddr>,
    /// How admin HTTP shows the cluster: JSON, in one line.
    pub show: fn(&Overview) -> String,
}

/// Why a coordinator did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Name another address, or end what listens there.
    #[error("cannot listen at {address}: {reason}; {}", listen_advice(*address, reason))]
    Listen {
        address: SocketAddr,
        reason: std::io::Error,
    },
    /// Say `announce`.
    #[error(
        "listening at {0}, others need to be told by which address they reach it: say --announce HOST:PORT"
    )]
    Announce(SocketAddr),
    /// Name another store, or the cluster's right name.
    #[error("the store {store} cannot be used: {reason}")]
    Open { store: String, reason: OpenError },
    /// End the other one, or use etcd.
    #[error(
        "the store {store} is in use by a coordinator{}; others can wait for its end only with etcd",
        leader.as_ref().map_or(String::new(), |leader| format!(" at {leader}"))
    )]
    InUse {
        store: String,
        leader: Option<String>,
    },
    /// Look at the store: its disk, its permissions, or restore it from a copy.
    #[error("the store {store} cannot be used: {reason}")]
    Store { store: String, reason: String },
    #[error("cannot {doing}: {reason}")]
    System {
        doing: &'static str,
        reason: std::io::Error,
    },
}

/// Whether it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    Leader,
    /// Somebody else leads, at this address if it is known.
    Standby(Option<String>),
}

/// A coordinator that runs. Dropped without [`Running::wait`], it runs until the process ends.
pub struct Running {
    address: SocketAddr,
    admin: Option<SocketAddr>,
    name: String,
    handle: Handle<driver::News>,
    roles: mpsc::Receiver<Role>,
    driver: JoinHandle<Result<(), Error>>,
}

/// Begins to be a coordinator.
///
/// # Errors
/// It can't listen, or the system gives no sockets or threads. What is wrong with the store comes
/// out of [`Running::wait`].
pub fn start(options: Options) -> Result<Running, Error> {
    let store = options.store.clone();
    start_with(options, move |name, cluster| store.open(name, cluster))
}

/// As [`start`], with a store that the caller makes, given the coordinator's name and the
/// cluster's.
///
/// # Errors
/// As there.
pub fn start_with(
    options: Options,
    make: impl FnOnce(&str, &str) -> Result<Box<dyn MetaStore>, StoreError>,
) -> Result<Running, Error> {
    driver::Driver::launch(options, make)
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its admin HTTP listens.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// `host:port`, as others know it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for news about who leads; `None`: it has ended, [`Running::wait`] says why.
    pub fn next_role(&self) -> Option<Role> {
        self.roles.recv().ok()
    }

    /// The next news about who leads, if there are any already.
    pub fn try_next_role(&self) -> Option<Role> {
        self.roles.try_recv().ok()
    }

    /// Tells it to end: what is being stored is stored and answered, then others may lead.
    pub fn stopper(&self) -> Stopper {
        Stopper {
            handle: self.handle.clone(),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Why it ended by itself.
    pub fn wait(self) -> Result<(), Error> {
        let lost = || {
            Err(Error::System {
                doing: "go on",
                reason: std::io::Error::other("a thread panicked"),
            })
        };
        self.driver.join().unwrap_or_else(|_| lost())
    }
}

/// Ends a coordinator, from any thread.
#[derive(Clone)]
pub struct Stopper {
    handle: Handle<driver::News>,
}

impl Stopper {
    pub fn stop(&self) {
        self.handle.tell(driver::News::Stop);
    }
}

fn listen_advice(address: SocketAddr, reason: &std::io::Error) -> &'static str {
    match reason.kind() {
        std::io::ErrorKind::PermissionDenied if address.port() < 1024 => {
            "ports below 1024 are for privileged users: choose another by --listen or --admin"
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address: choose one that it has by --listen or --admin"
        }
        _ => {
            "is another coordinator running there? End it, or choose another by --listen or --admin"
        }
    }
}
