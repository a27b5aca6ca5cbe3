//! State that the threads of one server share: the store, the settings, counters, the client
//! registry, mailboxes.
//!
//! **Invariants**
//! - I1: a request writes nothing here but the counters of its own thread, which have cache lines
//!   of their own.
//!
//! **Concurrency.** Each counter has one writer, its thread; any thread may read it. Locks here
//! guard cold paths only (connect, disconnect, `CLIENT …`, `CONFIG SET`). They are held briefly,
//! and a thread holds one at a time. Exceptions: `CONFIG REWRITE` holds the lock of the
//! configuration file while it writes to disk, and takes the lock of the settings within it; a
//! change of `requirepass` takes the locks of the users within that of the settings.

pub mod commands;
pub(crate) mod encodings;
mod figures;
mod full;
pub mod levels;
mod reserved;
mod settings;
mod storage;
pub(crate) mod totals;

use crate::durability::Durability;
use crate::flash::tier::Tier;
use crate::membership::Membership;
use crate::state::access::audit::Audit;
use crate::state::access::users::AclState;
use crate::state::pubsub::registry::PubSub;
use crate::state::script::cache::Scripts;
use crate::state::tracking::table::Tracking;
use crate::threads::all::Threads;
use crate::threads::bell::Bell;
use crate::threads::mailbox::Message;
use crate::threads::start::Starter;
use crate::threads::watch::{Stop, Watch};
use crate::threads::works::Works;
pub use commands::CommandState;
use duramen_acl::{Catalog, Logins, User};
use duramen_base::waiters::Waiters;
use duramen_base::waits;
use duramen_config::{ConfigFile, ServerConfig, ServerError};
use duramen_engine::Store;
pub use figures::Figures;
pub use settings::{ConfigCache, Settings};
use std::sync::{Arc, OnceLock, Weak};
pub use storage::{Storage, flash_stats};

pub struct Shared {
    this: Weak<Shared>,
    pub storage: Storage,
    /// Empty if this server is no member of a cluster, or not yet. Filled once, before
    /// [`Shared::serve`].
    membership: OnceLock<Arc<Membership>>,
    /// Whether the member may start another life, and why this one ended.
    life_over: OnceLock<(bool, String)>,
    pub threads: Threads,
    /// Whether the threads come back to their loops, and whether they are to end.
    pub watch: Watch,
    acl: AclState,
    logins: Logins,
    audit: Audit,
    works: Works,
    pubsub: PubSub,
    tracking: Tracking,
    waiters: Waiters,
    scripts: Scripts,
    pub figures: Figures,
    /// State that the commands share beyond the store.
    pub commands: CommandState,
    pub settings: Settings,
}

/// A member is not ready if a reply has waited for its backups for this long, in milliseconds.
const NOT_READY_AFTER_MS: u64 = 3_000;

impl Shared {
    /// Makes the state without data; [`serve`](Self::serve) adds the data. `commands`: the rows of
    /// the command table. `bells`: one for each reactor thread.
    ///
    /// # Errors
    /// [`ServerError::Config`] or [`ServerError::File`]: the users are wrong, or the audit log
    /// cannot be opened. [`ServerError::System`]: there is no thread for the audit log.
    pub fn new(
        config: ServerConfig,
        config_file: Option<ConfigFile>,
        commands: Catalog,
        bells: Vec<Arc<dyn Bell>>,
        starter: Starter,
    ) -> Result<Arc<Shared>, ServerError> {
        let threads = Threads::new(bells);
        let rows = commands.count();
        let audit = Audit::start(&config, starter)?;
        let acl = AclState::new(&config, commands)?;
        let state = CommandState::new(threads.len(), rows);
        state.set_events(config.events);
        Ok(Arc::new_cyclic(|this| Shared {
            this: this.clone(),
            acl,
            logins: Logins::default(),
            audit,
            works: Works::new(starter),
            pubsub: PubSub::default(),
            tracking: Tracking::new(starter),
            figures: Figures::new(starter),
            waiters: Waiters::default(),
            scripts: Scripts::new(starter),
            commands: state,
            storage: Storage::default(),
            membership: OnceLock::new(),
            life_over: OnceLock::new(),
            threads,
            watch: Watch::default(),
            settings: Settings::new(config, config_file),
        }))
    }

    /// A new reference to this state; `None` while it is being made or dropped.
    pub(crate) fn this(&self) -> Option<Arc<Shared>> {
        self.this.upgrade()
    }

    /// As [`this`](Self::this), for holders that must not keep the state from being dropped.
    pub(crate) fn weak(&self) -> Weak<Shared> {
        self.this.clone()
    }

    /// The second tier; None: there is none, or the data is not loaded yet.
    #[inline]
    pub fn tier(&self) -> Option<&Arc<Tier>> {
        self.storage.tier()
    }

    /// Makes this server a member of a cluster. Must be called once, before [`serve`](Self::serve).
    pub fn join(&self, membership: Arc<Membership>) {
        self.commands.adopt_tables(&[]);
        self.membership.get_or_init(|| membership);
    }

    /// The membership; `None`: this server is no member of a cluster, or not yet.
    #[inline]
    pub fn membership(&self) -> Option<&Arc<Membership>> {
        self.membership.get()
    }

    /// The users and their rights.
    #[inline]
    pub fn acl(&self) -> &AclState {
        &self.acl
    }

    pub fn logins(&self) -> &Logins {
        &self.logins
    }

    #[inline]
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    #[inline]
    pub fn pubsub(&self) -> &PubSub {
        &self.pubsub
    }

    #[inline]
    pub fn tracking(&self) -> &Tracking {
        &self.tracking
    }

    /// The clients that wait for elements, by key.
    #[inline]
    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    #[inline]
    pub(crate) fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    pub(crate) fn works(&self) -> &Works {
        &self.works
    }

    /// Ends this member's life; only the first call counts. The server stops for that reason.
    pub fn life_is_over(&self, again: bool, reason: String) {
        self.life_over.get_or_init(|| (again, reason));
    }

    /// Whether the member may start another life, and why this one ended; None: it has not ended.
    pub fn life_over(&self) -> Option<(bool, &str)> {
        let (again, reason) = self.life_over.get()?;
        Some((*again, reason))
    }

    /// The current settings. A hot path should keep a [`ConfigCache`].
    pub fn config(&self) -> Arc<ServerConfig> {
        self.settings.current()
    }

    /// The data; None until it is loaded.
    pub fn data(&self) -> Option<&Arc<Store>> {
        self.storage.store()
    }

    /// The data, for code that runs only after loading.
    ///
    /// # Panics
    /// Before the data is loaded.
    pub fn store(&self) -> &Arc<Store> {
        self.data()
            .expect("no command touches data before it is loaded")
    }

    /// The durable layer; None: the data is in memory only, or not loaded yet.
    #[inline]
    pub fn durability(&self) -> Option<&Arc<Durability>> {
        self.storage.durability()
    }

    /// Requests the server's stop. A later stop never becomes milder.
    pub fn stop(&self, how: Stop) {
        self.watch.stop(how);
        self.threads.post_all(&Message::Wake);
    }

    /// The state of each thread, as a table: for `DURAMEN.STUCK`, `/livez` and the log.
    pub fn table_of_waits(&self) -> String {
        let mut table = self
            .watch
            .table(self.threads.beats(), self.membership().is_some());
        if self.data().is_some() {
            for wait in waits::longer_than(waits::LONG) {
                table.push_str(&format!("{wait}\n"));
            }
        }
        table
    }

    /// Whether a thread is stuck. Clients and threads that need it then wait.
    pub fn is_stuck(&self) -> bool {
        let is_member = self.membership().is_some();
        self.watch.is_stuck(self.threads.beats(), is_member)
    }

    /// Whether the users of these settings can be used.
    ///
    /// # Errors
    /// [`ServerError::Config`] or [`ServerError::File`].
    pub fn check_users(config: &ServerConfig, known: Catalog) -> Result<(), ServerError> {
        AclState::new(config, known).map(drop)
    }

    /// Whether the commands of a client must wait until the coordinator has told the users, or are
    /// refused for ever (users::V4). `seen`: the generation of the client's user.
    pub fn waits_for_users(&self, user: Option<&User>, seen: u64) -> bool {
        self.acl.must_wait(user, seen) && self.config().is_member()
    }

    /// The reason for which the server, although it runs, does not serve all its clients now.
    pub fn why_not_ready(&self) -> Option<String> {
        if self.is_stuck() {
            return Some("a thread is stuck: see /livez".to_owned());
        }
        let (member, held_ms) = (self.membership(), self.threads.replies_held_ms());
        if held_ms >= NOT_READY_AFTER_MS {
            let cause = member.map_or("the disk", |_| "backups");
            return Some(format!(
                "replies wait for {cause} since {} s",
                held_ms / 1_000
            ));
        }
        let unleased_ms = member?.unleased_ms();
        (unleased_ms >= NOT_READY_AFTER_MS).then(|| {
            format!(
                "its tablets have waited for a lease of its backups for {} s",
                unleased_ms / 1_000
            )
        })
    }
}
