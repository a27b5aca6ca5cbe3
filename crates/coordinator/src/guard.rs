//! The users of the cluster at its coordinator: logins and rights of clients, tools and people.
//!
//! As long as the cluster has no users, the token and the certificate decide alone. Members and
//! coordinators are never asked for a user.
//!
//! **Invariants**
//! - U1: once the leader's store has users, no client is served without one: neither before they
//!   are read, nor if none of them could ever be read here. A leader that has led before waits for
//!   the newest users: those that it knew may be gone.
//! - U2: users that cannot be read change nothing: the last ones that could be read stay in force.
//!
//! **Concurrency** any thread may ask. A thread of its own reads the users: 10,000 of them take a
//! second, and the driver must answer pings meanwhile.

use crate::news::News;
use crate::{Error, system};
use duramen_acl::{Catalog, LoginError, Logins, User, Users};
use duramen_net::Handle;
use duramen_wire::native::message::{Admin, ClusterUsers, Shared, ToCoordinator};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The right to see the cluster's status and metrics.
const SEES: &str = "info";

/// Reason why a client is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The users are being read: ask again in a moment.
    Reading,
    /// The client has to log in.
    LogIn,
    /// The user may not do this; the text is for people.
    Denied(String),
}

/// The users that are in force.
#[derive(Default)]
struct State {
    users: Option<Arc<Users>>,
    /// The newest revision that was read, understood or not.
    read: u64,
    /// Why newer ones cannot be read (U2).
    fault: Option<String>,
}

pub(crate) struct Guard {
    catalog: Catalog,
    logins: Logins,
    /// Origin of the logins' clock.
    origin: Instant,
    /// The newest revision that the store has; 0: there are no users. Relaxed: the driver writes
    /// it, and others may see it a moment later.
    revision: AtomicU64,
    /// The revision that the store had when the leadership began: clients wait until it is read.
    /// Relaxed, as `revision`.
    first: AtomicU64,
    state: Mutex<State>,
    reader: Mutex<Sender<Shared<ClusterUsers>>>,
    pub(crate) failed_logins: AtomicU64,
    pub(crate) denied: AtomicU64,
}

impl Guard {
    /// Starts its thread, which ends with it.
    pub(crate) fn start(catalog: Catalog, driver: Handle<News>) -> Result<Arc<Guard>, Error> {
        let (reader, wanted) = mpsc::channel();
        let guard = Arc::new(Guard {
            catalog,
            logins: Logins::default(),
            origin: Instant::now(),
            revision: AtomicU64::new(0),
            first: AtomicU64::new(0),
            state: Mutex::default(),
            reader: Mutex::new(reader),
            failed_logins: AtomicU64::new(0),
            denied: AtomicU64::new(0),
        });
        let read = Arc::downgrade(&guard);
        let thread = std::thread::Builder::new().name("users".to_owned());
        thread
            .spawn(move || {
                while let Some(users) = newest(&wanted) {
                    let Some(guard) = read.upgrade() else { return };
                    guard.read(&users);
                    driver.tell(News::Users);
                }
            })
            .map_err(system("start a thread"))?;
        Ok(guard)
    }

    /// This coordinator begins to lead; its store has these users (U1).
    pub(crate) fn lead(&self, users: &Shared<ClusterUsers>) {
        self.first.store(users.revision, Ordering::Relaxed);
        self.want(users);
    }

    /// The store has these users: they will be in force when they are read.
    pub(crate) fn want(&self, users: &Shared<ClusterUsers>) {
        if users.revision > self.revision.load(Ordering::Relaxed) {
            self.revision.store(users.revision, Ordering::Relaxed);
            let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            // The thread ends with this guard.
            let _ = reader.send(users.clone());
        }
    }

    fn read(&self, wanted: &ClusterUsers) {
        let before = self.state().users.clone();
        let before = before.unwrap_or_else(|| Arc::new(Users::new(&self.catalog)));
        let place = format!("users of the cluster, revision {}", wanted.revision);
        let read = before.load(&wanted.rules, &place, &self.catalog);
        let mut state = self.state();
        state.read = wanted.revision;
        match read {
            Ok(users) => {
                state.users = Some(Arc::new(users));
                state.fault = None;
            }
            Err(fault) => {
                tracing::error!(
                    "the newest users of the cluster are not understood: those before them stay in \
                     force, and without any no client is served: {fault}"
                );
                state.fault = Some(fault.to_string());
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The users; `None`: the cluster has none (U1).
    pub(crate) fn users(&self) -> Result<Option<Arc<Users>>, Refused> {
        if self.revision.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let state = self.state();
        if state.read < self.first.load(Ordering::Relaxed) {
            return Err(Refused::Reading);
        }
        match (&state.users, &state.fault) {
            (Some(users), _) => Ok(Some(Arc::clone(users))),
            (None, None) => Err(Refused::Reading),
            (None, Some(fault)) => Err(Refused::Denied(format!(
                "this coordinator does not understand the users of the cluster, update it: {fault}"
            ))),
        }
    }

    /// The user of this name, if the password is right.
    pub(crate) fn log_in(
        &self,
        users: &Users,
        peer: SocketAddr,
        (name, password): (&[u8], &[u8]),
    ) -> Result<Arc<User>, Refused> {
        let now_ms = self.origin.elapsed().as_millis() as u64 + 1;
        let login = (name, password);
        let known = self.logins.log_in(users, peer.ip(), login, now_ms);
        known.map(Arc::clone).map_err(|error| {
            self.failed_logins.fetch_add(1, Ordering::Relaxed);
            // Beyond that, the guesses of an address are bounded.
            if error != LoginError::TooMany {
                let user = String::from_utf8_lossy(name);
                tracing::warn!(%peer, user = shortened(&user), "a login failed");
            }
            Refused::Denied(error.to_string())
        })
    }

    /// Whether a user may see status and metrics.
    pub(crate) fn may_see(&self, user: &User) -> Result<(), Refused> {
        self.may(user.has(SEES, &self.catalog), user, SEES)
    }

    /// Whether a user may ask this.
    pub(crate) fn may_ask(&self, user: &User, question: &ToCoordinator) -> Result<(), Refused> {
        let ToCoordinator::Admin(admin) = question else {
            return Ok(());
        };
        let (command, table) = command_of(admin);
        let is_allowed = match table {
            Some(table) => user.may_use_table(command, table, &self.catalog),
            None => user.has(command, &self.catalog),
        };
        self.may(is_allowed, user, command)
    }

    fn may(&self, is_allowed: bool, user: &User, command: &str) -> Result<(), Refused> {
        if is_allowed {
            return Ok(());
        }
        self.denied.fetch_add(1, Ordering::Relaxed);
        let user = user.name();
        Err(Refused::Denied(format!(
            "user {user} has no right to run '{command}' here"
        )))
    }
}

/// Waits for users to be read; of several, the newest. `None`: the guard is gone.
fn newest(wanted: &Receiver<Shared<ClusterUsers>>) -> Option<Shared<ClusterUsers>> {
    let first = wanted.recv().ok()?;
    Some(wanted.try_iter().last().unwrap_or(first))
}

/// The first characters of a name that a stranger gave.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(128)]
}

/// The command of RESP whose right an order of an administrator needs, and its table.
fn command_of(admin: &Admin) -> (&'static str, Option<&str>) {
    match admin {
        Admin::CreateTable { name, .. } => ("duramen.table|create", Some(name)),
        Admin::DropTable { name } => ("duramen.table|drop", Some(name)),
        Admin::Split { .. }
        | Admin::Migrate { .. }
        | Admin::AbortMigration { .. }
        | Admin::Rebalance { is_dry: false } => ("duramen.tablet", None),
        Admin::Drain { .. } | Admin::Undrain { .. } => ("duramen.drain", None),
        // Losses name keys.
        Admin::CrashServer { .. } | Admin::AcceptLoss { .. } | Admin::Losses { .. } => {
            ("duramen.crash", None)
        }
        Admin::Status
        | Admin::Recoveries
        | Admin::Overview
        | Admin::Tablets { .. }
        | Admin::Settings
        | Admin::Members
        | Admin::Waits
        | Admin::Balance
        | Admin::Rebalance { is_dry: true } => (SEES, None),
    }
}

/// Whether clients and tools may ask this at all: everything else is for members.
pub(crate) fn is_for_clients(question: &ToCoordinator) -> bool {
    matches!(
        question,
        ToCoordinator::ClientLease { .. }
            | ToCoordinator::Map { .. }
            | ToCoordinator::MapChanges { .. }
            | ToCoordinator::Servers
            | ToCoordinator::Admin(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_acl::Command;
    use duramen_base::ids::ServerId;
    use duramen_net::{Hub, Options};
    use duramen_wire::native::codec::Role;
    use std::time::Duration;

    fn guard() -> (Arc<Guard>, Hub<News>) {
        let names = [
            "info",
            "duramen.table|create",
            "duramen.drain",
            "duramen.crash",
        ];
        let catalog = Catalog::new(names.map(|name| Command {
            name,
            categories: 0,
            is_free: false,
        }));
        let hub = Hub::new(Options::new(Role::Coordinator, "here")).expect("sockets");
        (Guard::start(catalog, hub.handle()).expect("a thread"), hub)
    }

    /// Gives users to the guard and waits until they are read.
    fn read(guard: &Guard, hub: &mut Hub<News>, revision: u64, rules: &str) {
        let rules = rules.as_bytes().to_vec();
        guard.want(&Shared::from(ClusterUsers { revision, rules }));
        let mut events = Vec::new();
        while events.is_empty() {
            hub.poll(Some(Duration::from_secs(60)), &mut events);
        }
    }

    #[test]
    fn users_are_asked_for_once_there_are_some() {
        let (guard, mut hub) = guard();
        assert_eq!(guard.users().map(|users| users.is_none()), Ok(true));
        let rules = "user default off\nuser ann on >secret +info +duramen.table|create table:a*";
        read(&guard, &mut hub, 1, rules);
        let users = guard.users().expect("read").expect("some");
        let peer = "10.0.0.1:7".parse().expect("an address");
        let refused = guard.log_in(&users, peer, (b"ann", b"guess"));
        assert!(matches!(refused, Err(Refused::Denied(_))));
        let ann = guard.log_in(&users, peer, (b"ann", b"secret"));
        let ann = ann.expect("the right password");
        let may = |admin| guard.may_ask(&ann, &ToCoordinator::Admin(admin)).is_ok();
        let create = |name: &str| Admin::CreateTable {
            name: name.to_owned(),
            servers: 1,
            level: None,
        };
        assert!(may(Admin::Overview) && may(create("apples")));
        assert!(!may(create("pears")), "another table");
        let server = ServerId::NONE;
        assert!(!may(Admin::Drain { server }) && !may(Admin::CrashServer { server }));
        assert_eq!(guard.denied.load(Ordering::Relaxed), 3);
    }

    /// A user who may only see the state of the cluster was told the names of lost keys.
    #[test]
    fn lost_keys_are_named_to_those_who_may_accept_the_loss() {
        let (guard, mut hub) = guard();
        let rules = "user ann on >secret +info\nuser bob on >secret +info +duramen.crash";
        read(&guard, &mut hub, 1, rules);
        let users = guard.users().expect("read").expect("some");
        let peer = "10.0.0.1:7".parse().expect("an address");
        let may = |name: &[u8]| {
            let user = guard.log_in(&users, peer, (name, b"secret"));
            let user = user.expect("the right password");
            let server = ServerId::NONE;
            let question = ToCoordinator::Admin(Admin::Losses { server });
            guard.may_ask(&user, &question).is_ok()
        };
        assert!(may(b"bob") && !may(b"ann"));
    }

    /// A client that could set users would have the rights of all of them.
    #[test]
    fn clients_ask_nothing_that_is_for_members() {
        let users = ClusterUsers::default();
        assert!(!is_for_clients(&ToCoordinator::Users));
        assert!(!is_for_clients(&ToCoordinator::SetUsers(users)));
        assert!(is_for_clients(&ToCoordinator::Admin(Admin::Overview)));
        assert!(is_for_clients(&ToCoordinator::ClientLease { client: None }));
    }

    /// U1: a user that was removed under another leader came in until the newest were read.
    #[test]
    fn a_leader_that_led_before_waits_for_the_newest_users() {
        let (guard, mut hub) = guard();
        read(&guard, &mut hub, 1, "user ann on >secret +info");
        let newest = Shared::from(ClusterUsers {
            revision: 3,
            rules: b"user bob on >secret +info".to_vec(),
        });
        guard.first.store(newest.revision, Ordering::Relaxed);
        assert!(matches!(guard.users(), Err(Refused::Reading)));
        guard.lead(&newest);
        let mut events = Vec::new();
        while events.is_empty() {
            hub.poll(Some(Duration::from_secs(60)), &mut events);
        }
        let users = guard.users().expect("read").expect("some");
        assert!(users.get("ann").is_none() && users.get("bob").is_some());
    }

    /// U1, U2.
    #[test]
    fn users_that_cannot_be_read_open_nothing_and_change_nothing() {
        let (guard, mut hub) = guard();
        read(&guard, &mut hub, 1, "user ann on >secret +of-a-newer-build");
        let Err(Refused::Denied(why)) = guard.users() else {
            panic!("it has no users that it understands");
        };
        assert!(why.contains("Unknown command"), "{why}");
        read(&guard, &mut hub, 2, "user bob on >secret +info");
        let names = |guard: &Guard| {
            let users = guard.users().expect("read").expect("some");
            users
                .iter()
                .map(|user| user.name().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&guard), ["bob", "default"]);
        read(&guard, &mut hub, 3, "user eve on >secret +of-a-newer-build");
        assert_eq!(names(&guard), ["bob", "default"]);
    }
}
