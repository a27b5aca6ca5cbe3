//! One life of a member: from the request to the coordinator for the cluster's settings, to its
//! end.
//!
//! **Invariants**
//! - A1: the member listens before it enlists, because pings come at once.
//! - A2: resources of one life (ports except the RESP port, directory, threads) are closed before
//!   the next life begins.
//!
//! **Concurrency**: the threads of a life are the node's (all connections but those for replicas),
//! the keeper's (connections for replicas), workers, and the disk's chores. The threads of the
//! store and of the reactors access the node only through
//! [`Membership`](duramen_redis::membership::Membership).

use super::foreign::{SAY_AGAIN, advised, is_foreign, not_yet};
use super::home::{self, Home, Size};
use super::keeper::Keeper;
use super::local_clients::LocalClients;
use super::mail::Mail;
use super::node_thread::{NodeThread, Parts};
use super::silence::Silence;
use super::workers::{Chores, Workers, prefer, spawn};
use crate::doors::Doors;
use duramen_backup::Backup;
use duramen_base::ids::{Level, ServerId};
use duramen_base::units::MIB;
use duramen_config::{ServerConfig, ServerError};
use duramen_net::{Event, Handle, Hub, Message, Options, Payload};
use duramen_node::{Candidate, Node, NodeOptions};
use duramen_redis::durability::{warn_if_not_mounted, warn_if_open_to_others};
use duramen_redis::flash::Tier;
use duramen_redis::membership::{Clock, MemberStatus};
use duramen_redis::state::Shared;
use duramen_redis::threads::Stop;
use duramen_redis::{access, script};
use duramen_wire::native::codec::{Envelope, Reply, Role, decode_reply, encode_to_coordinator};
use duramen_wire::native::message::{
    Addresses, Admin, AdminAnswer, ClusterFunctions, ClusterSettings, ClusterUsers,
    CoordinatorAnswer, Enlist, Refusal, Roles, ToCoordinator,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the free room is reported to the coordinator.
const ROOM_EVERY: Duration = Duration::from_secs(2);
/// Number of threads for jobs.
const WORKERS: usize = 2;
/// A coordinator that does not answer is asked again after this time, counted from the last
/// movement of its connection (member::N11).
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// A coordinator that has not answered after this time is given up although its connection moves:
/// another one may be faster.
const PATIENCE_MAX: Duration = Duration::from_secs(30);
/// Bytes of replicas that are kept in memory, sorted, while logs are recovered: a 32nd of the
/// budget, within these bounds, in addition to the budget.
const AHEAD_BYTES_MIN: u64 = 8 * MIB;
const AHEAD_BYTES_MAX: u64 = 256 * MIB;

/// Longest wait until the previous life has closed its resources.
const LET_GO: Duration = Duration::from_secs(5);

/// The server's handle of a life's thread. Dropping it ends the life.
pub(crate) struct Lifeline {
    handle: Handle<Mail>,
    thread: Option<JoinHandle<()>>,
}

/// Receives the moment when clients are served, or the reason why they cannot be.
pub(crate) type Opens = Receiver<Result<(), ServerError>>;

/// The ports of this member, for the coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    /// The RESP port: the one with TLS, if there is such a port.
    pub resp: u16,
    /// The RESP port without TLS, if there is also one with TLS.
    pub plain: Option<u16>,
    pub admin: Option<u16>,
}

impl Lifeline {
    /// Listens on the native port (A1) and starts the life. The result arrives when clients are
    /// served, or when they cannot be.
    ///
    /// # Errors
    /// [`ServerError::Listen`], [`ServerError::System`]; the token cannot be read.
    pub fn begin(
        doors: &Arc<Doors>,
        ports: Ports,
    ) -> Result<(Lifeline, SocketAddr, Opens), ServerError> {
        let shared = doors.shared();
        let config = shared.config();
        let token = config.cluster_token()?;
        let is_open = config.bind.iter().any(|ip| !ip.is_loopback());
        let identity = shared.settings.certificates().cluster();
        if is_open && token.is_empty() && identity.is_none() {
            tracing::warn!(
                "every process that reaches the native port can read and write everything: keep the port behind a firewall, or give the cluster certificates (tls-cluster) or a token (cluster-token-file)"
            );
        }
        let options = Options {
            token,
            identity,
            hands_over: |role| matches!(role, Role::Replica | Role::Client),
            ..Options::new(Role::Server, &config.cluster)
        };
        let mut hub = Hub::new(options).map_err(|source| ServerError::System {
            doing: "watch connections",
            source,
        })?;
        let mut native = None;
        for ip in &config.bind {
            let port = native.map_or(config.native_port, |address: SocketAddr| address.port());
            let address = SocketAddr::new(*ip, port);
            let bound = hub.listen(address).map_err(|source| ServerError::Listen {
                address,
                purpose: "native protocol",
                source,
            })?;
            native.get_or_insert(bound);
        }
        let native = native.expect("a server listens somewhere");
        listen_locally(&config, &mut hub, native.port())?;
        let (opened, opens) = mpsc::channel();
        let (handle, doors) = (hub.handle(), Arc::clone(doors));
        let thread = spawn("node", move || {
            prefer();
            live(&doors, hub, native, &ports, opened);
        })?;
        let lifeline = Lifeline {
            handle,
            thread: Some(thread),
        };
        Ok((lifeline, native, opens))
    }

    /// Ends the life and waits for its threads.
    pub fn end(&mut self) {
        self.handle.tell(Mail::Stop);
        if let Some(thread) = self.thread.take() {
            // The thread itself has reported a panic.
            let _ = thread.join();
        }
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        self.end();
    }
}

fn live(
    doors: &Arc<Doors>,
    mut hub: Hub<Mail>,
    native: SocketAddr,
    ports: &Ports,
    opened: Sender<Result<(), ServerError>>,
) {
    let shared = doors.shared();
    let config = shared.config();
    if let Some(dir) = config.data_dir() {
        hub.set_cluster_id(home::cluster_id(&dir));
    }
    // The receiver may be gone already.
    let settings = match Search::new(shared, &config, &mut hub).run() {
        Ok(Some((settings, users, functions))) => {
            // Before any client is served.
            if let Err(fault) = access::adopt_first_users(shared, &users) {
                return drop(opened.send(Err(ServerError::Config(fault))));
            }
            script::adopt_functions(shared, &functions);
            settings
        }
        Ok(None) => return,
        Err(error) => return drop(opened.send(Err(error))),
    };
    match prepare(
        doors,
        &config,
        &settings,
        hub,
        native,
        ports,
        opened.clone(),
    ) {
        Ok(thread) => thread.run(),
        Err(error) => drop(opened.send(Err(error))),
    }
}

/// The records of a cluster with which a member begins.
type Records = (ClusterSettings, ClusterUsers, ClusterFunctions);

/// The search for a coordinator that leads, which has these records.
struct Search<'a> {
    shared: &'a Shared,
    hub: &'a mut Hub<Mail>,
    coordinators: Vec<String>,
    /// Index of the coordinator that is asked.
    at: usize,
    request: u64,
    /// Coordinators of other clusters.
    foreign: BTreeSet<String>,
    silence: Silence,
    /// The last logged reason, and its time.
    said: Option<(String, Instant)>,
}

impl<'a> Search<'a> {
    fn new(shared: &'a Shared, config: &ServerConfig, hub: &'a mut Hub<Mail>) -> Search<'a> {
        Search {
            shared,
            hub,
            coordinators: config.coordinators(),
            at: 0,
            request: 0,
            foreign: BTreeSet::new(),
            silence: Silence::default(),
            said: None,
        }
    }

    /// Searches until one answers; returns `None` if a stop was requested meanwhile.
    fn run(mut self) -> Result<Option<Records>, ServerError> {
        loop {
            let address = self.coordinators[self.at].clone();
            let why = match self.ask_all(&address) {
                Ok(records) => return Ok(records),
                Err(why) => why,
            };
            // A coordinator of another cluster never joins this one; but another coordinator in the
            // list may belong to it.
            let mut coordinators = self.coordinators.iter();
            if coordinators.all(|one| self.foreign.contains(one)) {
                let (coordinator, reason) = (address, why);
                return Err(ServerError::Foreign {
                    coordinator,
                    reason,
                });
            }
            if self.coordinators[self.at] == address {
                self.at = (self.at + 1) % self.coordinators.len();
            }
            self.say(&address, why);
        }
    }

    /// Asks one coordinator for the settings, the users and the functions. Returns `None` if a stop
    /// was requested meanwhile.
    ///
    /// # Errors
    /// The reason why it did not give them.
    fn ask_all(&mut self, address: &str) -> Result<Option<Records>, String> {
        let question = ToCoordinator::Admin(Admin::Settings);
        let settings = match self.ask(address, &question)? {
            Some(CoordinatorAnswer::Admin(AdminAnswer::Settings(settings))) => settings,
            Some(other) => return Err(format!("an answer that does not fit: {other:?}")),
            None => return Ok(None),
        };
        let users = match self.ask(address, &ToCoordinator::Users)? {
            Some(CoordinatorAnswer::Users(users)) => (*users).clone(),
            Some(other) => return Err(format!("an answer that does not fit: {other:?}")),
            None => return Ok(None),
        };
        match self.ask(address, &ToCoordinator::Functions)? {
            Some(CoordinatorAnswer::Functions(functions)) => {
                Ok(Some((settings, users, (*functions).clone())))
            }
            Some(other) => Err(format!("an answer that does not fit: {other:?}")),
            None => Ok(None),
        }
    }

    /// Asks one coordinator and waits until nothing has moved for [`ASK_AGAIN`], at most
    /// [`PATIENCE_MAX`]. Returns `None` if a stop was requested meanwhile.
    ///
    /// # Errors
    /// The reason why it did not answer.
    fn ask(
        &mut self,
        address: &str,
        question: &ToCoordinator,
    ) -> Result<Option<CoordinatorAnswer>, String> {
        if self.silence.asks(address) {
            self.hub.close_links(address);
        }
        self.request += 1;
        let request = self.request;
        let envelope = Envelope {
            request,
            ..Envelope::default()
        };
        self.hub
            .ask(address, Role::Server, request, Payload::None, |out| {
                encode_to_coordinator(out, &envelope, question);
            });
        let begun = Instant::now();
        let mut moved = begun;
        let mut why = None;
        let mut events = Vec::new();
        while moved.elapsed() < ASK_AGAIN && begun.elapsed() < PATIENCE_MAX {
            if self.shared.watch.stopping() != Stop::No {
                return Ok(None);
            }
            self.hub.poll(Some(ASK_AGAIN / 10), &mut events);
            let moving = self.hub.moving();
            if let Some(moving) = moving.iter().find(|moving| moving.request == request) {
                moved = Instant::now();
                if moving.has_received {
                    self.silence.heard(address);
                }
            }
            for event in events.drain(..) {
                match event {
                    Event::Mail(Mail::Stop) => return Ok(None),
                    Event::Answer {
                        request: of,
                        message,
                        ..
                    } if of == request => {
                        self.silence.heard(address);
                        match self.answer_in(&message) {
                            Ok(answer) => return Ok(Some(answer)),
                            Err(reason) => why = Some(reason),
                        }
                    }
                    Event::Unanswered {
                        address, reason, ..
                    } => {
                        self.silence.heard(&address);
                        why = Some(advised(&reason));
                        if is_foreign(&reason) {
                            self.foreign.insert(address);
                        }
                    }
                    Event::Question {
                        connection,
                        message,
                        ..
                    } => not_yet(self.hub, connection, &message),
                    _ => {}
                }
            }
        }
        Err(why.unwrap_or_else(|| "no answer".to_owned()))
    }

    /// The answer, or the reason why this message has none.
    fn answer_in(&mut self, message: &Message) -> Result<CoordinatorAnswer, String> {
        match decode_reply(&message.frame()) {
            Ok(Reply::Coordinator(CoordinatorAnswer::Refused(refusal))) => {
                self.follow(&refusal);
                Err(refusal.to_string())
            }
            Ok(Reply::Coordinator(answer)) => Ok(answer),
            Ok(other) => Err(format!("an answer that does not fit: {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Continues with the coordinator that leads, if the refusal names it.
    fn follow(&mut self, refusal: &Refusal) {
        if let Refusal::NotLeader {
            leader: Some(leader),
        } = refusal
        {
            let known = self.coordinators.iter().position(|name| name == leader);
            self.at = known.unwrap_or_else(|| {
                self.coordinators.push(leader.clone());
                self.coordinators.len() - 1
            });
        }
    }

    fn say(&mut self, coordinator: &str, why: String) {
        let said = self.said.as_ref();
        if said.is_none_or(|(last, when)| *last != why || when.elapsed() > SAY_AGAIN) {
            tracing::warn!(
                coordinator,
                "the coordinator does not let this member in yet, it goes on trying: {why}"
            );
            self.said = Some((why, Instant::now()));
        }
    }
}

fn prepare(
    doors: &Arc<Doors>,
    config: &ServerConfig,
    settings: &ClusterSettings,
    hub: Hub<Mail>,
    native: SocketAddr,
    ports: &Ports,
    opened: Sender<Result<(), ServerError>>,
) -> Result<NodeThread, ServerError> {
    let shared = doors.shared();
    let dir = config.data_dir().expect("a member has a directory");
    warn_if_not_mounted(&dir);
    let home = Home::open(&dir, &config.cluster)?;
    warn_if_open_to_others(&dir);
    let tier = open_tier(config)?;
    let store = store_options(config, tier.as_ref());
    let size = size(config, settings, store.wal_bytes);
    let key = || config.key_source();
    let backup = config
        .backup
        .then(|| home.open_backup(settings, size, key()));
    let backup = backup.transpose()?;
    let handle = hub.handle();
    let clock = Clock::start();
    let scrub_ms = Arc::new(AtomicU64::new(config.scrub_interval_ms));
    let keeping = backup
        .as_ref()
        .map(|backup| start_keeping(shared, &hub, backup, &scrub_ms, clock));
    let (keeper, chores) = keeping.transpose()?.unzip();
    let workers = Workers::start("worker", WORKERS, &handle)?;
    let has_socket = !config.native_socket_dir.is_empty();
    let local = has_socket.then(|| LocalClients::start(doors)).transpose()?;
    let speed = backup.as_ref().map_or(0, |backup| {
        backup.reader().measure();
        backup.reader().bytes_per_s()
    });
    let candidate = candidate(config, &home, settings, native, ports, speed);
    log_enlisting(config, &candidate.enlist, home.last);
    let status = MemberStatus {
        cluster: config.cluster.clone(),
        addresses: candidate.enlist.addresses.clone(),
        replicas: settings.replicas,
        ..MemberStatus::default()
    };
    let options = NodeOptions {
        room_us: ROOM_EVERY.as_micros() as u64,
        candidate,
        store,
        backup,
        ahead_bytes: (config.memory_bytes / 32).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX) as usize,
        threads: true,
        wake: Arc::new(move || handle.wake()),
    };
    Ok(NodeThread::new(Parts {
        shared: Arc::clone(shared),
        doors: Arc::clone(doors),
        hub,
        node: Node::new(0, options),
        clock,
        home,
        workers,
        local,
        keeper,
        _chores: chores,
        scrub_ms,
        opened,
        status,
        tier: tier.map(Arc::new),
    }))
}

/// Starts the threads that keep replicas for other members.
fn start_keeping(
    shared: &Arc<Shared>,
    hub: &Hub<Mail>,
    backup: &Arc<Backup>,
    scrub_ms: &Arc<AtomicU64>,
    clock: Clock,
) -> Result<(Keeper, Chores), ServerError> {
    shared.storage.keep_for_others(backup);
    let (offences, node) = (hub.shared_offences(), hub.handle());
    let keeper = Keeper::start(Arc::clone(shared), offences, clock, node.clone())?;
    let chores = Chores::start(Arc::clone(backup), Arc::clone(scrub_ms), node)?;
    Ok((keeper, chores))
}

fn log_enlisting(config: &ServerConfig, enlist: &Enlist, last: Option<ServerId>) {
    tracing::info!(
        cluster = config.cluster,
        coordinator = config.coordinator,
        native = enlist.addresses.native,
        last = last.map(|last| last.to_string()),
        read_bytes_per_s = enlist.read_bytes_per_s,
        "enlisting"
    );
}

/// The address of a port as others know it.
fn announced(config: &ServerConfig, port: u16) -> String {
    let host = config.announced_host();
    match host.parse() {
        Ok(std::net::IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

/// Makes the Unix socket for clients on this machine, if there is a directory for it. Its name is
/// the native address that clients get from the coordinator.
fn listen_locally(
    config: &ServerConfig,
    hub: &mut Hub<Mail>,
    native_port: u16,
) -> Result<(), ServerError> {
    if config.native_socket_dir.is_empty() {
        return Ok(());
    }
    let dir = Path::new(&config.native_socket_dir);
    let path = dir.join(announced(config, native_port));
    let made = std::fs::create_dir_all(dir).and_then(|()| hub.listen_locally(&path));
    made.map_err(|source| ServerError::LocalSocket { path, source })
}

fn candidate(
    config: &ServerConfig,
    home: &Home,
    settings: &ClusterSettings,
    native: SocketAddr,
    ports: &Ports,
    read_bytes_per_s: u64,
) -> Candidate {
    let at = |port: u16| announced(config, port);
    Candidate {
        enlist: Enlist {
            nonce: home::random(),
            cluster: config.cluster.clone(),
            addresses: Addresses {
                native: at(native.port()),
                resp: Some(at(ports.resp)),
                plain: ports.plain.map(at),
                admin: ports.admin.map(at),
            },
            rack: (!config.rack.is_empty()).then(|| config.rack.clone()),
            roles: Roles {
                master: config.master,
                backup: config.backup,
            },
            replaces: home.last,
            disk: home.disk,
            read_bytes_per_s,
            segment_bytes: settings.segment_bytes,
        },
        coordinators: config.coordinators(),
        seed: home::random(),
    }
}

/// Opens the second tier, if there is one. The previous life may still be closing it.
fn open_tier(config: &ServerConfig) -> Result<Option<Tier>, ServerError> {
    let since = Instant::now();
    loop {
        match Tier::open(config) {
            Err(ServerError::Flash {
                source: duramen_disk::Error::InUse { .. },
                ..
            }) if since.elapsed() < LET_GO => std::thread::sleep(LET_GO / 100),
            opened => return opened,
        }
    }
}

/// The engine's part of the settings, as for a single server.
fn store_options(config: &ServerConfig, tier: Option<&Tier>) -> duramen::Options {
    let defaults = duramen::Options::memory(config.memory_bytes);
    let fetch_bytes = tier.map_or(0, Tier::fetch_bytes);
    duramen::Options {
        engine: duramen_engine::Options {
            memory_bytes: config.engine_bytes(fetch_bytes),
            memory_bytes_max: config.engine_bytes_max(fetch_bytes),
            flash: tier.map(Tier::options),
            mode: config.mode,
            heads: config.threads,
            cleaners: config.cleaners,
            huge_pages: config.huge_pages,
            ..defaults.engine
        },
        level: config.level.unwrap_or(Level::Synced),
        wal_bytes: match config.wal_bytes {
            0 => defaults.wal_bytes,
            bytes => bytes,
        },
        disk_bytes: config.disk_bytes,
        disk_expansion: config.disk_expansion_percent as f64 / 100.0,
        cluster: config.cluster.clone(),
        encryption_key: config.key_source(),
        ..defaults
    }
}

/// Size of the disk for replicas: each member stores as much for others as others store for it.
fn size(config: &ServerConfig, settings: &ClusterSettings, wal_bytes: u64) -> Size {
    let own_bytes = match config.disk_bytes {
        0 => (config.memory_max() + config.flash_bytes) / 100 * config.disk_expansion_percent,
        bytes => bytes,
    };
    Size {
        mode: config.disk_mode,
        wal_bytes,
        disk_bytes: own_bytes * u64::from(settings.replicas.max(1)),
        copies_bytes: duramen_backup::Options::copies_of(config.memory_bytes),
    }
}
