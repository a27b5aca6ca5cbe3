//! State that the threads of one server share: the store, the settings, counters, the client
//! registry, mailboxes.
//!
//! **Invariants**
//! - I1: a request writes nothing here but the counters of its own thread, which have cache lines
//!   of their own.
//! - I2: a client id is never reused.
//!
//! **Concurrency.** Each [`Counter`] has one writer, its thread; any thread may read it. A client's
//! [`ClientRecord`] is written by the thread that owns the connection, and any thread may read it.
//! Locks here guard cold paths only (connect, disconnect, `CLIENT …`, `CONFIG SET`). They are held
//! briefly, and a thread holds one at a time. Exceptions: `CONFIG REWRITE` holds the lock of the
//! configuration file while it writes to disk, and takes the lock of the settings within it; a
//! change of `requirepass` takes the locks of the users within that of the settings.

pub mod commands;
pub(crate) mod encodings;
mod full;
pub mod levels;
mod memory;
mod reserved;
mod settings;
mod totals;

use crate::durability::{Durability, Progress};
use crate::figures::counters::{Counter, ThreadCounters};
use crate::figures::error_names::Codes;
use crate::figures::latency::LatencyEvents;
use crate::figures::local_use::LocalUse;
use crate::flash::tier::Tier;
use crate::membership::Membership;
use crate::state::access::audit::Audit;
use crate::state::access::users::AclState;
use crate::state::pubsub::registry::PubSub;
use crate::state::script::cache::Scripts;
use crate::state::tracking::table::Tracking;
use crate::threads::background::Background;
use crate::threads::bell::Bell;
use crate::threads::clients::ClientRecord;
use crate::threads::mailbox::Message;
use crate::threads::start::Starter;
use crate::threads::thread::ThreadShared;
use crate::threads::watch::{Beat, Ending, Stop};
pub use commands::CommandState;
use duramen_acl::{Catalog, Logins, User};
use duramen_backup::{Backup, Copies};
use duramen_base::ids::Level;
use duramen_base::waiters::{Ticket, Waiters};
use duramen_cipher::KeyId;
use duramen_config::certificates::Certificates;
use duramen_config::{ConfigFile, ServerConfig, ServerError};
use duramen_engine::flash::FlashStats;
use duramen_engine::{Store, TableId};
pub use settings::{Changes, ConfigCache};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The state that exists once the data is loaded.
struct Loaded {
    store: Arc<Store>,
    /// None: the data is in memory only.
    durability: Option<Arc<Durability>>,
    /// None: memory is the only tier.
    tier: Option<Arc<Tier>>,
}

pub struct Shared {
    this: Weak<Shared>,
    /// Empty while the server loads its data. Filled once.
    loaded: OnceLock<Loaded>,
    progress: Mutex<Progress>,
    /// Empty: no member of a cluster, or not known yet. Filled once, before [`Shared::serve`].
    membership: OnceLock<Arc<Membership>>,
    /// A member's backup, which stores replicas for other members. Filled once, before the member
    /// enlists. Weak: the lock of the directory is freed with the backup, and the next life of the
    /// member in this process needs that lock.
    kept: OnceLock<Weak<Backup>>,
    /// Whether the member may start another life, and why this one ended.
    life_over: OnceLock<(bool, String)>,
    /// One per reactor thread, by number.
    pub threads: Box<[ThreadShared]>,
    /// Of a member: the thread that stores replicas for others, and the thread that talks to the
    /// cluster.
    pub keeper: Beat,
    pub node: Beat,
    /// The users and their rights.
    pub acl: AclState,
    pub logins: Logins,
    pub audit: Audit,
    pub(crate) starter: Starter,
    /// The thread for commands whose work takes long.
    /// Work with files: a hung disk must not keep users from being removed.
    pub(crate) file_work: Background,
    /// Changes of a cluster's users, which wait for the coordinator.
    pub(crate) user_changes: Background,
    /// Waits of `CLIENT PAUSE` for the requests before it.
    pub(crate) pauses: Background,
    pub(crate) memory_refusals: full::Refusals,
    /// Waits for the end of these refusals.
    refusal_watch: Background,
    pub pubsub: PubSub,
    pub tracking: Tracking,
    pub latency: LatencyEvents,
    /// The clients that wait for elements, by key.
    pub(crate) waiters: Waiters,
    pub(crate) encodings: encodings::Encodings,
    pub(crate) error_codes: Codes,
    pub(crate) scripts: Scripts,
    /// State that the commands share beyond the store.
    pub commands: CommandState,
    pub started: Instant,
    pub started_unix_ms: u64,
    /// None: the server was started without a configuration file.
    pub config_file: Option<ConfigFile>,
    config: RwLock<Arc<ServerConfig>>,
    /// `memory` at the start.
    memory_at_start: u64,
    /// Grows with every change of `config`; Release there, Acquire in [`ConfigCache::get`].
    config_generation: AtomicU64,
    /// Called with the settings after each change.
    on_change: OnceLock<settings::OnChange>,
    next_client_id: AtomicU64,
    connected: AtomicUsize,
    /// Memory shared with clients on this machine.
    pub local: Arc<LocalUse>,
    pub tls: Arc<Certificates>,
    stop: AtomicU8,
    /// The reactor threads that run.
    pub ending: Arc<Ending>,
    /// See `STUCK_AFTER_MS`; tests set a shorter time.
    pub stuck_after_ms: AtomicU64,
}

/// A thread that has not come back to its loop for this long, in milliseconds, is stuck. The
/// requests of one client take less than 10 ms, and no thread waits in its loop for a disk or the
/// cluster.
const STUCK_AFTER_MS: u64 = 5_000;
/// A member is not ready if a reply has waited for its backups for this long, in milliseconds.
const NOT_READY_AFTER_MS: u64 = 3_000;

impl Shared {
    /// Makes the state without data; [`serve`](Self::serve) adds the data. `commands`: the rows of
    /// the command table. `bells`: one for each reactor thread.
    ///
    /// # Errors
    /// [`ServerError::Config`] or [`ServerError::File`]: the users are wrong, or the audit log
    /// cannot be opened. [`ServerError::System`]: there is no thread for that.
    pub fn new(
        config: ServerConfig,
        config_file: Option<ConfigFile>,
        commands: Catalog,
        bells: Vec<Arc<dyn Bell>>,
        starter: Starter,
    ) -> Result<Arc<Shared>, ServerError> {
        let threads: Box<[_]> = bells.into_iter().map(ThreadShared::new).collect();
        let rows = commands.count();
        let audit = Audit::start(&config, starter)?;
        let acl = AclState::new(&config, commands)?;
        let state = CommandState::new(threads.len(), rows);
        state.set_events(config.events);
        Ok(Arc::new_cyclic(|this| Shared {
            this: this.clone(),
            acl,
            logins: Logins::default(),
            encodings: encodings::Encodings::default(),
            error_codes: Codes::default(),
            audit,
            starter,
            file_work: Background::new("file-work", starter),
            user_changes: Background::new("user-changes", starter),
            pauses: Background::new("pauses", starter),
            memory_refusals: full::Refusals::default(),
            refusal_watch: Background::new("refusals", starter),
            pubsub: PubSub::default(),
            tracking: Tracking::new(starter),
            latency: LatencyEvents::default(),
            waiters: Waiters::default(),
            scripts: Scripts::new(starter),
            commands: state,
            loaded: OnceLock::new(),
            progress: Mutex::default(),
            membership: OnceLock::new(),
            kept: OnceLock::new(),
            life_over: OnceLock::new(),
            threads,
            keeper: Beat::default(),
            node: Beat::default(),
            started: Instant::now(),
            started_unix_ms: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_millis() as u64),
            config_file,
            memory_at_start: config.memory_bytes,
            config: RwLock::new(Arc::new(config)),
            config_generation: AtomicU64::new(1),
            on_change: OnceLock::new(),
            next_client_id: AtomicU64::new(1),
            connected: AtomicUsize::new(0),
            local: Arc::default(),
            tls: Arc::default(),
            stop: AtomicU8::new(0),
            ending: Arc::default(),
            stuck_after_ms: AtomicU64::new(STUCK_AFTER_MS),
        }))
    }

    /// A new reference to this state; None: it is being made or dropped.
    pub(crate) fn this(&self) -> Option<Arc<Shared>> {
        self.this.upgrade()
    }

    /// As [`this`](Self::this), for those that must not keep it.
    pub(crate) fn weak(&self) -> Weak<Shared> {
        self.this.clone()
    }

    /// The data is there from now on. To be called once.
    pub(crate) fn put_data(
        &self,
        store: Arc<Store>,
        durability: Option<Arc<Durability>>,
        tier: Option<Arc<Tier>>,
    ) {
        self.loaded.get_or_init(|| Loaded {
            store,
            durability,
            tier,
        });
    }

    /// The second tier; None: there is none, or the data is not loaded yet.
    #[inline]
    pub fn tier(&self) -> Option<&Arc<Tier>> {
        self.loaded.get()?.tier.as_ref()
    }

    /// Figures of flash: the data there, and the reads by the engine and by the threads for their
    /// clients.
    pub fn flash_stats(&self, store: &Store) -> FlashStats {
        let mut stats = store.stats().flash;
        stats.fetches += self.sum(|counters| &counters.flash_fetches);
        stats.fetched_bytes += self.sum(|counters| &counters.flash_fetched_bytes);
        stats.read_errors += self.sum(|counters| &counters.flash_read_errors);
        stats
    }

    /// A counter's sum over all reactor threads.
    pub fn sum(&self, of: fn(&ThreadCounters) -> &Counter) -> u64 {
        let threads = self.threads.iter();
        threads.map(|thread| of(&thread.counters).get()).sum()
    }

    /// Names the backup that stores replicas for other members. To be called once.
    pub fn keep_for_others(&self, backup: &Arc<Backup>) {
        self.kept.get_or_init(|| Arc::downgrade(backup));
    }

    /// Memory of data not yet on disk: of this server's log, and of the replicas kept for others.
    pub fn copies(&self) -> Copies {
        let own = self
            .durability()
            .map(|durability| durability.store().copies());
        let kept = self.kept.get().and_then(Weak::upgrade);
        let kept = kept.map(|backup| backup.figures().copies());
        own.into_iter().chain(kept).sum()
    }

    /// The id of the key that opened this server's own store, or the replicas that it keeps for
    /// others; `None`: they are not encrypted.
    pub fn encryption_key(&self) -> Option<KeyId> {
        let own = || self.durability()?.stats().encryption_key;
        let kept = || self.kept.get()?.upgrade()?.encryption_key();
        own().or_else(kept)
    }

    /// Makes this server a member of a cluster. To be called once, before [`serve`](Self::serve).
    pub fn join(&self, membership: Arc<Membership>) {
        self.commands.adopt_tables(&[]);
        self.membership.get_or_init(|| membership);
    }

    /// None: no member of a cluster, or not a member yet.
    #[inline]
    pub fn membership(&self) -> Option<&Arc<Membership>> {
        self.membership.get()
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

    /// The data; None until it is loaded.
    pub fn data(&self) -> Option<&Arc<Store>> {
        self.loaded.get().map(|loaded| &loaded.store)
    }

    /// The data, for code that runs only after loading.
    ///
    /// # Panics
    /// Before the data is loaded.
    pub fn store(&self) -> &Arc<Store> {
        self.data()
            .expect("no command touches data before it is loaded")
    }

    pub fn progress(&self) -> Progress {
        self.progress
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn set_progress(&self, progress: Progress) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Creates a table, with its own level or the server's. Not to be called while a guard is held.
    /// It is durable when `Log::changed` is.
    ///
    /// # Errors
    /// As `Store::create_table` of the durable layer.
    pub(crate) fn create_table(
        &self,
        name: &str,
        level: Option<Level>,
    ) -> Result<TableId, duramen::Error> {
        // Set the level before the table can be found: its first write is answered at its level.
        let tell = |table| self.commands.levels.set(table, level);
        match self.durability() {
            Some(durability) => {
                durability.log().check_disk()?; // else its client would wait for space
                durability.store().begin_table(name, level, tell)
            }
            None => Ok(self.store().create_table_told(name, level, tell)?),
        }
    }

    /// The durable layer; None: the data is in memory only, or not loaded yet.
    pub fn durability(&self) -> Option<&Arc<Durability>> {
        self.loaded.get()?.durability.as_ref()
    }

    /// Opens the audit log again, after its file was renamed. Returns at once.
    pub fn reopen_audit_log(&self) {
        self.audit.reopen();
    }

    /// The name of a table; `None`: it does not exist, or the data is not loaded yet.
    pub fn table_names(&self) -> HashMap<TableId, String> {
        let tables = self.data().map(|data| data.tables()).unwrap_or_default();
        tables
            .into_iter()
            .map(|table| (table.id, table.name))
            .collect()
    }

    pub(crate) fn table_name(&self, table: TableId) -> Option<String> {
        let tables = self.data()?.tables();
        let found = tables.into_iter().find(|known| known.id == table);
        found.map(|table| table.name)
    }

    pub fn next_client_id(&self) -> u64 {
        self.next_client_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Number of clients connected now, on all threads.
    pub fn connected_clients(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// Takes one of the `maxclients` connections; `false` = all are taken. [`leave`](Self::leave)
    /// gives it back.
    pub fn enter(&self, maxclients: usize) -> bool {
        let before = self.connected.fetch_add(1, Ordering::Relaxed);
        if before >= maxclients {
            self.connected.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    pub fn leave(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    /// All connections, ordered by id.
    pub fn clients(&self) -> Vec<Arc<ClientRecord>> {
        let mut all: Vec<_> = self
            .threads
            .iter()
            .flat_map(|thread| thread.clients.all())
            .collect();
        all.sort_unstable_by_key(|record| record.id);
        all
    }

    /// Number of clients with subscriptions.
    pub(crate) fn subscribed_clients(&self) -> usize {
        let clients = self.clients();
        clients
            .iter()
            .filter(|client| client.is_subscribed())
            .count()
    }

    pub fn client(&self, id: u64) -> Option<Arc<ClientRecord>> {
        self.threads
            .iter()
            .find_map(|thread| thread.clients.get(id))
    }

    /// Sends a message to the thread that owns `record`'s connection.
    pub fn post(&self, record: &ClientRecord, message: Message) {
        self.threads[record.thread].mailbox.post(message);
    }

    /// Tells the thread of a waiter that it must look again.
    pub(crate) fn show_again(&self, ticket: Ticket) {
        if let Some(thread) = self.threads.get(ticket.thread as usize) {
            let client = ticket.client;
            thread.mailbox.post(Message::ShowAgain { client });
        }
    }

    /// Sends a message to every thread.
    pub fn post_all(&self, message: &Message) {
        for thread in &self.threads {
            thread.mailbox.post(message.clone());
        }
    }

    /// Makes every thread that waits for the log, a snapshot or killed clients check again.
    pub fn wake_for_commit(&self) {
        for thread in &self.threads {
            if thread.commits.committed() {
                thread.mailbox.post(Message::Committed);
            }
        }
    }

    /// Requests the server's stop. A later stop never becomes milder.
    pub fn stop(&self, how: Stop) {
        // Release: pairs with Acquire in `stopping`.
        self.stop.fetch_max(how as u8, Ordering::Release);
        self.ending.stop(how);
        self.post_all(&Message::Wake);
    }

    /// The state of each thread, as a table: for `DURAMEN.STUCK`, `/livez` and the log.
    pub fn table_of_waits(&self) -> String {
        let now_ms = duramen_config::clock::now_ms();
        let mut table = "thread        away_ms  state\n".to_owned();
        for (name, beat) in self.beats() {
            let (away_ms, state) = match beat.away_ms(now_ms) {
                None => (0, "waits for requests"),
                Some(away_ms) if away_ms < self.stuck_after_ms() => (away_ms, "runs"),
                Some(away_ms) => (away_ms, "has not come back to its loop"),
            };
            table.push_str(&format!("{name:<13} {away_ms:<8} {state}\n"));
        }
        for wait in self.data().map(|store| store.waits()).unwrap_or_default() {
            table.push_str(&format!("{wait}\n"));
        }
        table
    }

    /// Whether a thread is stuck. Clients and threads that need it then wait.
    pub fn is_stuck(&self) -> bool {
        let now_ms = duramen_config::clock::now_ms();
        let mut away_ms = self.beats().filter_map(|(_, beat)| beat.away_ms(now_ms));
        away_ms.any(|away_ms| away_ms >= self.stuck_after_ms())
    }

    /// The threads that others wait for, by name.
    fn beats(&self) -> impl Iterator<Item = (String, &Beat)> {
        let reactors = self.threads.iter().enumerate();
        let reactors = reactors.map(|(number, one)| (format!("reactor-{number}"), &one.beat));
        let of_member = [("keeper", &self.keeper), ("node", &self.node)];
        let of_member = of_member.map(|(name, beat)| (name.to_owned(), beat));
        let is_member = self.membership().is_some();
        reactors.chain(of_member.into_iter().filter(move |_| is_member))
    }

    /// How long the oldest held reply of any thread has waited, in milliseconds; 0 = no reply is
    /// held. After replies were given up, since when: until they would be acknowledged.
    pub fn replies_held_ms(&self) -> u64 {
        let now_ms = duramen_config::clock::now_ms();
        let held_ms = |thread: &ThreadShared| match thread.counters.held_since_ms.get() {
            0 => 0,
            since_ms => now_ms.saturating_sub(since_ms),
        };
        self.threads.iter().map(held_ms).max().unwrap_or(0)
    }

    /// Whether the users of these settings can be used.
    ///
    /// # Errors
    /// [`ServerError::Config`] or [`ServerError::File`].
    pub fn check_users(config: &ServerConfig, known: Catalog) -> Result<(), ServerError> {
        AclState::new(config, known).map(drop)
    }

    /// Whether the commands of a client must wait until the coordinator has told the users, or for
    /// ever (users::V4). `seen`: the generation of which its user is.
    pub fn waits_for_users(&self, user: Option<&User>, seen: u64) -> bool {
        self.acl.must_wait(user, seen) && self.config().is_member()
    }

    /// Why the server, although it runs, does not serve all its clients now.
    pub fn why_not_ready(&self) -> Option<String> {
        if self.is_stuck() {
            return Some("a thread is stuck: see /livez".to_owned());
        }
        let (member, held_ms) = (self.membership(), self.replies_held_ms());
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

    pub fn stuck_after_ms(&self) -> u64 {
        self.stuck_after_ms.load(Ordering::Relaxed)
    }

    pub fn stopping(&self) -> Stop {
        match self.stop.load(Ordering::Acquire) {
            0 => Stop::No,
            1 => Stop::Graceful,
            _ => Stop::AtOnce,
        }
    }
}
