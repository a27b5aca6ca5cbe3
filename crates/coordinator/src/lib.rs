//! The coordinator's process: sockets, store and clock around the state machine of
//! `cluster::coordinator`.
//!
//! [`start`] gives a [`Running`] coordinator. It leads, or it stands by until the leader is gone
//! and refers callers to the leader.
//!
//! **Invariants**
//! - D1: batches of the state machine reach the store in their order. The state machine gets
//!   `Persisted` only after the store's `commit` has returned. A commit of an earlier leadership is
//!   dropped.
//! - D2: when leadership is lost, or the lease has expired without a renewal, the state machine of
//!   that leadership ends before any other event is handled. Its pending requests are refused.
//! - D3: time is one monotonic clock for all leaderships of the process.
//! - D4: every request gets an answer: no incoming frame makes the process end or wait.
//!
//! **Concurrency** two threads: the *driver* owns the sockets and the state machine, the *keeper*
//! owns the store and may block in it. They communicate through a channel and the hub's handle. The
//! *admin* thread gets reports from the driver. The *users* thread reads the rules of users.

// The print macros of the standard library panic if the output cannot be written.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod admin;
mod certificates;
mod driver;
mod guard;
mod keeper;
mod news;
mod settings;
mod store;

pub use certificates::reload as reload_certificates;
pub use settings::{SettingsError, check as check_settings, defaults};
pub use store::{Embedded, Etcd, EtcdAccess, StoreError, StoreSpec};

use news::News;

use duramen_acl::Catalog;
use duramen_cluster::coordinator::OpenError;
use duramen_cluster::coordinator::store::MetaStore;
use duramen_net::Handle;
use duramen_tls::Identity;
use duramen_wire::native::message::{ClusterSettings, MembersHealth, Overview, Wait};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// Parameters of a coordinator.
#[derive(Clone)]
pub struct Options {
    pub cluster: String,
    /// Listening address; port 0: any free port.
    pub listen: SocketAddr,
    /// `host:port` under which others reach it, if it differs from `listen`.
    pub announce: Option<String>,
    pub store: StoreSpec,
    /// TLS and the login for a store in etcd.
    pub etcd: EtcdAccess,
    /// Token that this coordinator and its servers, clients and tools prove to each other; empty:
    /// none.
    pub token: Vec<u8>,
    /// Certificates for TLS: with them, servers, clients and tools must have one of the same
    /// authority. The files are read again while it runs. `None`: TCP without TLS.
    pub identity: Option<Arc<Identity>>,
    /// Settings of a new cluster; an existing cluster keeps its own.
    pub settings: ClusterSettings,
    /// The settings that the operator has chosen: the log names each that an existing cluster has
    /// otherwise.
    pub chosen: Vec<ChosenSetting>,
    /// Tablets move by themselves until all servers have their shares of the data.
    pub balances: bool,
    /// Listening address of admin HTTP; `None`: no admin HTTP.
    pub admin: Option<SocketAddr>,
    /// Certificates for admin HTTP; `None`: HTTP without TLS.
    pub admin_identity: Option<Arc<Identity>>,
    /// The commands that rules of users may name.
    pub catalog: fn() -> Catalog,
    /// Renders the cluster for admin HTTP: JSON, in one line.
    pub show: fn(&Overview, &MembersHealth, &[Wait]) -> String,
}

/// A setting of a new cluster, by its option.
#[derive(Clone, Copy, Debug)]
pub struct ChosenSetting {
    pub option: &'static str,
    pub read: fn(&ClusterSettings) -> u64,
}

/// Why a coordinator did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Choose another address, or end the process that listens there.
    #[error("cannot listen at {address}: {reason}; {}", listen_advice(*address, reason))]
    Listen {
        address: SocketAddr,
        reason: std::io::Error,
    },
    /// Set `announce`.
    #[error("it listens at {0}, so others need to know its address: use --announce HOST:PORT")]
    Announce(SocketAddr),
    /// Choose another store, or correct the cluster's name.
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
    /// Check the store's disk and its permissions, or restore the store from a copy.
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
    /// Another coordinator leads, at this address if it is known.
    Standby(Option<String>),
}

/// A running coordinator. Dropped without [`Running::wait`], it runs until the process ends.
pub struct Running {
    address: SocketAddr,
    admin: Option<SocketAddr>,
    name: String,
    handle: Handle<News>,
    roles: mpsc::Receiver<Role>,
    driver: JoinHandle<Result<(), Error>>,
}

/// Starts a coordinator.
///
/// # Errors
/// It can't listen, or the system gives no sockets or threads. [`Running::wait`] returns the errors
/// of the store.
pub fn start(options: Options) -> Result<Running, Error> {
    let (store, access) = (options.store.clone(), options.etcd.clone());
    start_with(options, move |name, cluster| {
        store.open(name, cluster, access)
    })
}

/// As [`start`], with a store from `make`, whose arguments are the names of the coordinator and of
/// the cluster.
///
/// # Errors
/// As [`start`].
pub fn start_with(
    options: Options,
    make: impl FnOnce(&str, &str) -> Result<Box<dyn MetaStore>, StoreError>,
) -> Result<Running, Error> {
    driver::Driver::launch(options, make)
}

impl Running {
    /// Its listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listening address of its admin HTTP.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// `host:port` under which others reach it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for a change of its role; `None`: it has ended, [`Running::wait`] returns the reason.
    pub fn next_role(&self) -> Option<Role> {
        self.roles.recv().ok()
    }

    /// The next change of its role, if there is one already.
    pub fn try_next_role(&self) -> Option<Role> {
        self.roles.try_recv().ok()
    }

    /// A handle that ends it: the commit in progress is finished and answered, then other
    /// coordinators may lead.
    pub fn stopper(&self) -> Stopper {
        Stopper {
            handle: self.handle.clone(),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// The reason, if it ended by itself.
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
    handle: Handle<News>,
}

impl Stopper {
    pub fn stop(&self) {
        self.handle.tell(News::Stop);
    }
}

fn system(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |reason| Error::System { doing, reason }
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
