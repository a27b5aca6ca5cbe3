//! The users of a running server, and the log of denied requests.
//!
//! **Invariants**
//! - V1: a change makes another set of users and then another generation. A connection compares
//!   the generation before each of its turns, so it has the new rights from its next turn on.
//! - V2: a change is made completely or not at all (users::A1).
//! - V3: once the coordinator of a cluster has users, a member has those users alone. Their
//!   revision never becomes lower, and the member has them before it serves a client.
//! - V4: until a member has heard from its coordinator, its own configuration decides, as far as it
//!   asks for a password. A user without a password may run no command but those by which it logs
//!   in or leaves, and sees no guarded page of admin HTTP. Users cannot be changed. A connection of
//!   that time may do nothing more once the cluster's users are here: its next turn closes it.
//!
//! **Concurrency.** Requests read [`AclState::generation`] and [`AclState::is_open`], whose cache
//! line only changes of users write. The locks guard cold paths.

use duramen_acl::{Catalog, User, Users};
use duramen_base::open::open_to_read;
use duramen_config::file::{USERS_BYTES_MAX, bytes_of};
use duramen_config::{ClientAuth, ServerConfig, ServerError};
use duramen_wire::native::message::ClusterUsers;
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Bits of the mode of a file of users by which others can read its hashes, or add users of their
/// own.
const OTHERS: u32 = 0o026;

/// Kinds of denials, for the counters of `INFO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Auth,
    Command,
    Key,
    Channel,
    Table,
}

impl Reason {
    /// Its name in `ACL LOG`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::Auth => "auth",
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Channel => "channel",
            Reason::Table => "table",
        }
    }
}

/// An entry of `ACL LOG`: equal denials of a minute count as one.
#[derive(Clone, Debug)]
pub struct Denial {
    pub(crate) id: u64,
    pub(crate) count: u64,
    pub(crate) reason: Reason,
    /// `toplevel` or `multi`.
    pub(crate) context: &'static str,
    pub(crate) object: Vec<u8>,
    pub(crate) user: String,
    pub(crate) client: String,
    pub(crate) created_ms: u64,
    pub(crate) updated_ms: u64,
}

/// Equal denials within this time, in milliseconds, are one entry; as in Redis.
const GROUPED_MS: u64 = 60_000;
/// Maximum bytes of an object in the log.
const OBJECT_BYTES_MAX: usize = 1024;

/// Users, and what was denied to them.
pub struct AclState {
    catalog: Catalog,
    users: RwLock<Arc<Users>>,
    /// Held during a change of the users.
    changes: Mutex<()>,
    /// Held during a change of the cluster's users by this server, also while the change waits for
    /// the coordinator. The threads that hold it do nothing else.
    cluster_changes: Mutex<()>,
    /// Release in `change`, after the users are replaced; Acquire in `generation`.
    generation: AtomicU64,
    /// Whether the default user needs no password. Relaxed: a connection that reads an old value
    /// counts as one that came before the change.
    is_open: AtomicBool,
    /// The revision of the cluster's users that are here (V3); 0: these are this server's own.
    /// Changes under `changes`. Relaxed: for people, and under the lock.
    revision: AtomicU64,
    /// The lowest generation that is valid: connections that have last seen an earlier one are
    /// closed (V4). Changes under `changes`. Relaxed: the generation is published after it.
    valid_from: AtomicU64,
    /// Whether the coordinator of the cluster has told its users, or that it has none. Release
    /// after `valid_from`; Acquire where commands are let through.
    has_heard: AtomicBool,
    /// The file of users; `None`: there is none.
    file: Option<PathBuf>,
    denials: Mutex<VecDeque<Denial>>,
    next_denial: AtomicU64,
    /// Denials by [`Reason`].
    counts: [AtomicU64; 5],
}

impl AclState {
    /// The users of the configuration: of `aclfile` or `users`, and the default user.
    ///
    /// # Errors
    /// [`ServerError::Config`] or [`ServerError::File`]: a user is wrong, or the file cannot be
    /// read.
    pub(crate) fn new(config: &ServerConfig, catalog: Catalog) -> Result<AclState, ServerError> {
        let file = Some(&config.access.aclfile).filter(|name| !name.is_empty());
        let state = AclState {
            users: RwLock::new(Arc::new(Users::new(&catalog))),
            catalog,
            changes: Mutex::default(),
            cluster_changes: Mutex::default(),
            generation: AtomicU64::new(1),
            is_open: AtomicBool::new(true),
            revision: AtomicU64::new(0),
            valid_from: AtomicU64::new(0),
            has_heard: AtomicBool::new(false),
            file: file.map(PathBuf::from),
            denials: Mutex::default(),
            next_denial: AtomicU64::new(0),
            counts: Default::default(),
        };
        let (text, place) = match &state.file {
            Some(file) => (read(file)?, config.access.aclfile.as_str()),
            None => (config.access.users.clone().into_bytes(), "users"),
        };
        let requirepass = &config.requirepass;
        let configured = state.change(|users| {
            let found = Users::configured(&text, place, &state.catalog);
            *users = found.map_err(|fault| fault.to_string())?;
            require_unless_given(users, requirepass, &state.catalog);
            Ok(())
        });
        configured.map_err(ServerError::Config)?;
        match is_remote(config) && state.is_open() {
            true => Err(ServerError::Config(TOO_OPEN.to_owned())),
            false => Ok(state),
        }
    }

    /// Refuses a change of settings that would open the server in a way that no start allows. A
    /// server that is open already, by `ACL SETUSER`, may change its settings.
    pub(crate) fn check_change(
        &self,
        before: &ServerConfig,
        after: &ServerConfig,
    ) -> Result<(), ServerError> {
        let is_open = self.is_open();
        let will_be_open = match before.requirepass == after.requirepass {
            true => is_open,
            false => {
                let mut users = Users::clone(&self.users());
                require(&mut users, &after.requirepass, &self.catalog);
                users.default_user().is_open()
            }
        };
        let was_exposed = is_remote(before) && is_open;
        match is_remote(after) && will_be_open && !was_exposed {
            true => Err(ServerError::Config(TOO_OPEN.to_owned())),
            false => Ok(()),
        }
    }

    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// A number that differs from an earlier one if users have changed since.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether connections need no password: the default user has none and is on.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    pub fn users(&self) -> Arc<Users> {
        let users = self.users.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&users)
    }

    /// Changes the users (V1, V2).
    pub(crate) fn change<T, E>(
        &self,
        make: impl FnOnce(&mut Users) -> Result<T, E>,
    ) -> Result<T, E> {
        let _one = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut users = Users::clone(&self.users());
        let made = make(&mut users)?;
        let is_open = users.default_user().is_open();
        *self.users.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(users);
        self.is_open.store(is_open, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(made)
    }

    /// Replaces all users by those of a file, as [`loaded`] makes them.
    pub(crate) fn load(
        &self,
        text: &[u8],
        place: &str,
        config: &ServerConfig,
    ) -> Result<(), String> {
        self.change(|users| {
            *users = loaded(users, (text, place), config, &self.catalog)?;
            Ok(())
        })
    }

    /// The revision of the cluster's users; 0: this server has its own.
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// The users, and their revision.
    pub(crate) fn snapshot(&self) -> (u64, Arc<Users>) {
        let _one = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        (self.revision(), self.users())
    }

    /// Whether connections that have last seen this generation came before the users of the cluster
    /// were here (V4).
    pub(crate) fn has_ended(&self, generation: u64) -> bool {
        generation < self.valid_from.load(Ordering::Relaxed)
    }

    /// Takes over the users of the cluster; returns false if this server has these users, or newer
    /// ones (V3). With `is_first`, no client that came before is one of these users (V4).
    pub(crate) fn adopt(&self, newest: &ClusterUsers, is_first: bool) -> Result<bool, String> {
        let adopted = self.change(|users| {
            if newest.revision <= self.revision() {
                return Err(None);
            }
            let place = format!("users of the cluster, revision {}", newest.revision);
            *users = users
                .load(&newest.rules, &place, &self.catalog)
                .map_err(|fault| Some(fault.to_string()))?;
            self.revision.store(newest.revision, Ordering::Relaxed);
            if is_first {
                let next = self.generation.load(Ordering::Relaxed) + 1;
                self.valid_from.store(next, Ordering::Relaxed);
            }
            Ok(())
        });
        match adopted {
            Ok(()) => Ok(true),
            Err(None) => Ok(false),
            Err(Some(fault)) => Err(fault),
        }
    }

    /// `CONFIG SET requirepass`: makes this the default user's only password; an empty one: the
    /// user needs none.
    pub fn require_password(&self, password: &str) {
        let done: Result<(), ()> = self.change(|users| {
            require(users, password, &self.catalog);
            Ok(())
        });
        debug_assert!(done.is_ok());
    }

    pub fn count(&self, reason: Reason) -> u64 {
        self.counts[reason as usize].load(Ordering::Relaxed)
    }

    /// `CONFIG RESETSTAT`.
    pub(crate) fn reset_counts(&self) {
        self.counts
            .iter()
            .for_each(|count| count.store(0, Ordering::Relaxed));
    }

    pub fn denials(&self) -> MutexGuard<'_, VecDeque<Denial>> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a denial to the counters and to the log, which keeps `len_max` entries.
    pub(crate) fn note_denial(&self, mut denial: Denial, len_max: usize) {
        self.counts[denial.reason as usize].fetch_add(1, Ordering::Relaxed);
        denial.object.truncate(OBJECT_BYTES_MAX);
        let mut denials = self.denials();
        let is_same = |known: &Denial| {
            known.reason == denial.reason
                && known.context == denial.context
                && known.user == denial.user
                && known.object == denial.object
                && denial.created_ms.saturating_sub(known.updated_ms) < GROUPED_MS
        };
        match denials.iter().position(is_same) {
            Some(at) => {
                if let Some(mut known) = denials.remove(at) {
                    known.count += 1;
                    known.updated_ms = denial.created_ms;
                    known.client = denial.client;
                    denials.push_front(known);
                }
            }
            None => {
                denial.id = self.next_denial.fetch_add(1, Ordering::Relaxed);
                denials.push_front(denial);
            }
        }
        denials.truncate(len_max);
    }

    /// The file of users, if there is one.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Locks the cluster's users: no other thread of this server changes them while the lock is
    /// held.
    pub(crate) fn lock_cluster_changes(&self) -> MutexGuard<'_, ()> {
        let changes = self.cluster_changes.lock();
        changes.unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the coordinator has told its users, or that it has none (V4).
    pub(crate) fn note_heard(&self) {
        self.has_heard.store(true, Ordering::Release);
    }

    /// Whether the commands of a client of a member must wait until the coordinator has told the
    /// users, or are refused for ever (V4). `seen`: the generation of the client's user.
    pub(crate) fn must_wait(&self, user: Option<&User>, seen: u64) -> bool {
        let needs_no_password = match user {
            Some(user) => user.needs_no_password(),
            None => self.is_open(),
        };
        let has_heard = self.has_heard.load(Ordering::Acquire);
        needs_no_password && (!has_heard || user.is_some() && self.has_ended(seen))
    }
}

const TOO_OPEN: &str = "refusing to listen beyond this machine while the default user needs no \
                        password: set `--requirepass`, or give it a password or `off` among the \
                        users";

/// Whether the configured users decide about clients from other machines that show no certificate.
/// If no users are configured, [`ServerConfig::check`] asks for a password.
fn is_remote(config: &ServerConfig) -> bool {
    config.has_users() && serves_strangers(config)
}

/// Whether clients beyond this machine are served that show no certificate.
fn serves_strangers(config: &ServerConfig) -> bool {
    let shows_certificate = config.tls_auth_clients == ClientAuth::Yes;
    (config.serves_plain() || !shows_certificate)
        && config.bind.iter().any(|address| !address.is_loopback())
}

/// The users of a file. `requirepass` is the default user's password unless the file gives it one.
/// A file that would open the server in a way that no start allows is refused. A server that is
/// open already, by `ACL SETUSER`, may stay open.
pub(crate) fn loaded(
    before: &Users,
    (text, place): (&[u8], &str),
    config: &ServerConfig,
    catalog: &Catalog,
) -> Result<Users, String> {
    let mut loaded = before
        .load(text, place, catalog)
        .map_err(|fault| fault.to_string())?;
    require_unless_given(&mut loaded, &config.requirepass, catalog);
    let opens = loaded.default_user().is_open() && !before.default_user().is_open();
    match opens && serves_strangers(config) {
        true => Err(format!("{place}: {TOO_OPEN}.")),
        false => Ok(loaded),
    }
}

/// Gives the default user this password, unless the file gave it one.
fn require_unless_given(users: &mut Users, requirepass: &str, catalog: &Catalog) {
    if users.default_user().is_open() && !requirepass.is_empty() {
        require(users, requirepass, catalog);
    }
}

fn require(users: &mut Users, password: &str, catalog: &Catalog) {
    let given = format!(">{password}");
    let rules: [&[u8]; 2] = match password.is_empty() {
        true => [b"resetpass", b"nopass"],
        false => [b"resetpass", given.as_bytes()],
    };
    let set = users.set(duramen_acl::DEFAULT_USER.as_bytes(), rules, catalog);
    debug_assert!(set.is_ok(), "these rules are right");
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ServerError> {
    let failed = |source| ServerError::File {
        doing: "read the users in",
        path: path.to_owned(),
        source,
    };
    let file = open_to_read(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.mode();
    if mode & OTHERS != 0 {
        tracing::warn!(
            "other users of this machine may read or change the users in {0}: `chmod g-w,o= {0}`",
            path.display()
        );
    }
    bytes_of(&file, USERS_BYTES_MAX).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CONFIG SET and a reload made settings with which a start is refused.
    #[test]
    fn no_change_of_settings_opens_a_server_as_no_start_does() {
        let start = |config: &ServerConfig| AclState::new(config, crate::table::catalog());
        let mut open = ServerConfig {
            bind: vec!["0.0.0.0".parse().expect("an address")],
            port: 0,
            tls_port: 6380,
            tls_auth_clients: ClientAuth::No,
            ..ServerConfig::default()
        };
        open.access.users = "user default on nopass ~* &* +@all\n".to_owned();
        assert!(start(&open).is_err());
        let mut certified = open.clone();
        certified.tls_auth_clients = ClientAuth::Yes;
        let mut secret = open.clone();
        secret.requirepass = "secret".to_owned();
        for closed in [certified, secret] {
            let users = start(&closed).expect("it is closed");
            assert!(users.check_change(&closed, &closed).is_ok());
            assert!(users.check_change(&closed, &open).is_err());
            let mut local = open.clone();
            local.bind = vec!["127.0.0.1".parse().expect("an address")];
            assert!(users.check_change(&closed, &local).is_ok());
        }
        let opened = start(&ServerConfig::default()).expect("it has no users");
        assert!(opened.check_change(&open, &open).is_ok(), "it was open");
    }

    /// A tool wrote the file of users without the line of the default user. ACL LOAD took it, so
    /// strangers had all rights, and the next start refused the same file.
    #[test]
    fn no_load_of_users_opens_a_server_as_no_start_does() {
        let start = |config: &ServerConfig| AclState::new(config, crate::table::catalog());
        let mut config = ServerConfig {
            bind: vec!["0.0.0.0".parse().expect("an address")],
            ..ServerConfig::default()
        };
        config.access.users = "user default off\nuser ann on >secret ~* +@all\n".to_owned();
        let without = b"user ann on >other ~* +@all\n";
        let users = start(&config).expect("it is closed");
        let generation = users.generation();
        let mut member = config.clone(); // which may have the users of its cluster alone
        member.access.users.clear();
        for config in [&config, &member] {
            let why = users.load(without, "users", config).expect_err("refused");
            assert!(why.contains(TOO_OPEN), "{why}");
            assert!(!users.is_open() && users.generation() == generation);
        }
        let named = b"user default off\nuser ann on >other ~* +@all\n";
        users.load(named, "users", &config).expect("closed as well");
        let mut secret = config.clone();
        secret.requirepass = "secret".to_owned();
        users.load(without, "users", &secret).expect("a password");
        assert!(!users.is_open());
        let mut local = config.clone();
        local.bind = vec!["127.0.0.1".parse().expect("an address")];
        users.load(without, "users", &local).expect("this machine");
        assert!(users.is_open());
        users.load(without, "users", &config).expect("it was open");
    }
}
