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
//! store and of the reactors access the node only through [`Membership`](super::Membership).

use super::clock::Clock;
use super::home::{self, Home, Size};
use super::keeper::Keeper;
use super::node_thread::{NodeThread, Parts};
use super::status::MemberStatus;
use super::workers::{Chores, Workers, spawn};
use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::shared::{Shared, Stop};
use crate::tier::Tier;
use duramen_base::ids::{ClusterId, Level, ServerId};
use duramen_base::units::MIB;
use duramen_net::{Event, Handle, Hub, Options, Payload, Reason};
use duramen_node::{Candidate, JobDone, Node, NodeOptions, NodeOutput};
use duramen_wire::native::codec::{
    Envelope, HelloError, Reply, Role, decode_reply, encode_to_coordinator,
};
use duramen_wire::native::message::{
    Addresses, Admin, AdminAnswer, ClusterSettings, CoordinatorAnswer, Enlist, Refusal, Roles,
    ToCoordinator,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the free room is reported to the coordinator.
const ROOM_EVERY: Duration = Duration::from_secs(2);
/// Number of threads for jobs.
const WORKERS: usize = 2;
/// A coordinator that does not answer is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// An unchanged reason for waiting is logged again after this time.
pub(super) const SAY_AGAIN: Duration = Duration::from_secs(30);
/// Priority of threads whose delay other servers notice; effective only with the right to set it.
const NICE: i32 = -10;
/// Bytes of replicas that are kept in memory, sorted, while logs are recovered: a 32nd of the
/// budget, within these bounds, in addition to the budget.
const AHEAD_BYTES_MIN: u64 = 8 * MIB;
const AHEAD_BYTES_MAX: u64 = 256 * MIB;

/// A message of this server's other threads to the node's thread.
pub(crate) enum Mail {
    JobDone(JobDone),
    /// The id is stored, or the reason why it is not.
    Stored(ServerId, std::io::Result<()>),
    /// The cluster's id, received while this server was a member, is stored, or the reason why it
    /// is not.
    Adopted(ClusterId, std::io::Result<()>),
    /// Output of the keeper, to be sent by the node.
    Said(NodeOutput),
    /// Whether the backup's disk has no room for other members' writes (`true`), or has room again.
    BackupFull(bool),
    /// The disk failed for good.
    Failed(String),
    /// The server ends.
    Stop,
}

/// Longest wait until the previous life has closed its resources.
const LET_GO: Duration = Duration::from_secs(5);

/// Raises the priority of this thread.
pub(super) fn prefer() {
    let _ = rustix::process::setpriority_process(None, NICE);
}

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
    pub resp: u16,
    pub admin: Option<u16>,
}

impl Lifeline {
    /// Listens on the native port (A1) and starts the life. The result arrives when clients are
    /// served, or when they cannot be.
    ///
    /// # Errors
    /// [`ServerError::Listen`], [`ServerError::System`]; the token cannot be read.
    pub fn begin(
        shared: &Arc<Shared>,
        ports: Ports,
    ) -> Result<(Lifeline, SocketAddr, Opens), ServerError> {
        let config = shared.config();
        let token = config.cluster_token()?;
        let is_open = config.bind.iter().any(|ip| !ip.is_loopback());
        if is_open && token.is_empty() {
            tracing::warn!(
                "every process that reaches the native port can read and write everything: keep the port behind a firewall, or give the cluster a token (cluster-token-file)"
            );
        }
        let options = Options {
            token,
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
        let (opened, opens) = mpsc::channel();
        let (handle, shared) = (hub.handle(), Arc::clone(shared));
        let thread = spawn("node", move || {
            prefer();
            live(&shared, hub, native, &ports, opened);
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
    shared: &Arc<Shared>,
    mut hub: Hub<Mail>,
    native: SocketAddr,
    ports: &Ports,
    opened: Sender<Result<(), ServerError>>,
) {
    let config = shared.config();
    if let Some(dir) = config.data_dir() {
        hub.set_cluster_id(home::cluster_id(&dir));
    }
    let Some(settings) = ask_settings(shared, &config, &mut hub) else {
        return; // told to stop meanwhile
    };
    // The receiver may be gone already.
    let settings = match settings {
        Ok(settings) => settings,
        Err(error) => return drop(opened.send(Err(error))),
    };
    match prepare(
        shared,
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

/// Gets the cluster's settings from a coordinator that leads. `None`: a stop was requested
/// meanwhile.
fn ask_settings(
    shared: &Shared,
    config: &ServerConfig,
    hub: &mut Hub<Mail>,
) -> Option<Result<ClusterSettings, ServerError>> {
    let mut coordinators = config.coordinators();
    let (mut at, mut request) = (0, 0);
    let mut said: Option<(String, Instant)> = None;
    let mut foreign = BTreeSet::new();
    let mut events = Vec::new();
    loop {
        request += 1;
        let address = coordinators[at].clone();
        hub.ask(&address, Role::Server, request, Payload::None, |out| {
            let envelope = Envelope {
                request,
                ..Envelope::default()
            };
            encode_to_coordinator(out, &envelope, &ToCoordinator::Admin(Admin::Settings));
        });
        let asked = Instant::now();
        let mut why = None;
        while asked.elapsed() < ASK_AGAIN {
            if shared.stopping() != Stop::No {
                return None;
            }
            hub.poll(Some(ASK_AGAIN / 10), &mut events);
            for event in events.drain(..) {
                match event {
                    Event::Told(Mail::Stop) => return None,
                    Event::Answer {
                        request: of,
                        message,
                        ..
                    } if of == request => match decode_reply(&message.frame()) {
                        Ok(Reply::Coordinator(CoordinatorAnswer::Admin(
                            AdminAnswer::Settings(settings),
                        ))) => return Some(Ok(settings)),
                        Ok(Reply::Coordinator(CoordinatorAnswer::Refused(refusal))) => {
                            follow(&refusal, &mut coordinators, &mut at);
                            why = Some(refusal.to_string());
                        }
                        Ok(other) => why = Some(format!("an answer that does not fit: {other:?}")),
                        Err(error) => why = Some(error.to_string()),
                    },
                    Event::Unanswered {
                        address, reason, ..
                    } => {
                        why = Some(advised(&reason));
                        if is_foreign(&reason) {
                            foreign.insert(address);
                        }
                    }
                    Event::Question {
                        connection,
                        message,
                        ..
                    } => super::node_thread::not_yet(hub, connection, &message),
                    _ => {}
                }
            }
        }
        let why = why.unwrap_or_else(|| "no answer".to_owned());
        // A coordinator of another cluster never joins this one; but another coordinator in the
        // list may belong to it.
        if coordinators.iter().all(|one| foreign.contains(one)) {
            let (coordinator, reason) = (address, why);
            return Some(Err(ServerError::Foreign {
                coordinator,
                reason,
            }));
        }
        if coordinators[at] == address {
            at = (at + 1) % coordinators.len();
        }
        let is_news = said
            .as_ref()
            .is_none_or(|(last, when)| *last != why || when.elapsed() > SAY_AGAIN);
        if is_news {
            tracing::warn!(
                coordinator = address,
                "the coordinator does not let this member in yet, it goes on trying: {why}"
            );
            said = Some((why, Instant::now()));
        }
    }
}

/// Whether the server at that address belongs to another cluster, or has no protocol version in
/// common.
fn is_foreign(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Hello(HelloError::WrongCluster { .. } | HelloError::NoCommonVersion { .. })
    )
}

/// The text of a reason, with advice. The names of both clusters are the same, so probably the
/// coordinator has the wrong store: the member waits (docs/protocols.md, The coordinator, 13).
pub(super) fn advised(reason: &Reason) -> String {
    match reason {
        Reason::Hello(HelloError::OtherCluster { ours, theirs }) => format!(
            "it belongs to the cluster with id {theirs}, this member to the cluster with id {ours}: start the coordinator with the store of this member's cluster, or, to join the other one, start this member with an empty directory"
        ),
        reason => reason.to_string(),
    }
}

/// Continues with the coordinator that leads, if the refusal names it.
fn follow(refusal: &Refusal, coordinators: &mut Vec<String>, at: &mut usize) {
    if let Refusal::NotLeader {
        leader: Some(leader),
    } = refusal
    {
        let known = coordinators.iter().position(|name| name == leader);
        *at = known.unwrap_or_else(|| {
            coordinators.push(leader.clone());
            coordinators.len() - 1
        });
    }
}

fn prepare(
    shared: &Arc<Shared>,
    config: &ServerConfig,
    settings: &ClusterSettings,
    hub: Hub<Mail>,
    native: SocketAddr,
    ports: &Ports,
    opened: Sender<Result<(), ServerError>>,
) -> Result<NodeThread, ServerError> {
    let dir = config.data_dir().expect("a member has a directory");
    let home = Home::open(&dir, &config.cluster)?;
    let tier = open_tier(config)?;
    let store = store_options(config, tier.as_ref());
    let size = Size {
        mode: config.disk_mode,
        wal_bytes: store.wal_bytes,
        disk_bytes: disk_bytes(config, settings),
        copies_bytes: duramen_backup::Options::copies_of(config.memory_bytes),
    };
    let backup = if config.backup {
        Some(home.open_backup(settings, size)?)
    } else {
        None
    };
    if let Some(backup) = &backup {
        shared.keep_for_others(backup);
    }
    let handle = hub.handle();
    let clock = Clock::start();
    let scrub_ms = Arc::new(AtomicU64::new(config.scrub_interval_ms));
    let (keeper, chores) = match &backup {
        Some(backup) => {
            let offences = hub.shared_offences();
            let keeper = Keeper::start(
                &config.cluster,
                offences,
                clock,
                handle.clone(),
                Arc::clone(shared),
            )?;
            let chores = Chores::start(Arc::clone(backup), Arc::clone(&scrub_ms), handle.clone())?;
            (Some(keeper), Some(chores))
        }
        None => (None, None),
    };
    let workers = Workers::start(WORKERS, &handle)?;
    let candidate = candidate(config, &home, settings, native, ports);
    tracing::info!(
        cluster = config.cluster,
        coordinator = config.coordinator,
        native = candidate.enlist.addresses.native,
        last = home.last.map(|last| last.to_string()),
        "enlisting"
    );
    let status = MemberStatus {
        cluster: config.cluster.clone(),
        addresses: candidate.enlist.addresses.clone(),
        replicas: settings.replicas,
        ..MemberStatus::default()
    };
    let wake = handle.clone();
    let node = Node::new(
        0,
        NodeOptions {
            room_us: ROOM_EVERY.as_micros() as u64,
            candidate,
            store,
            backup,
            ahead_bytes: (config.memory_bytes / 32).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX)
                as usize,
            threads: true,
            wake: Arc::new(move || wake.wake()),
        },
    );
    Ok(NodeThread::new(Parts {
        shared: Arc::clone(shared),
        hub,
        node,
        clock,
        home,
        workers,
        keeper,
        _chores: chores,
        scrub_ms,
        opened,
        status,
        tier: tier.map(Arc::new),
    }))
}

fn candidate(
    config: &ServerConfig,
    home: &Home,
    settings: &ClusterSettings,
    native: SocketAddr,
    ports: &Ports,
) -> Candidate {
    let host = config.announced_host();
    let host = match host.parse() {
        Ok(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
        _ => host,
    };
    let at = |port: u16| format!("{host}:{port}");
    Candidate {
        enlist: Enlist {
            nonce: home::random(),
            cluster: config.cluster.clone(),
            addresses: Addresses {
                native: at(native.port()),
                resp: Some(at(ports.resp)),
                admin: ports.admin.map(at),
            },
            rack: (!config.rack.is_empty()).then(|| config.rack.clone()),
            roles: Roles {
                master: config.master,
                backup: config.backup,
            },
            replaces: home.last,
            disk: home.disk,
            read_bytes_per_s: 0,
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
    duramen::Options {
        engine: duramen_engine::Options {
            memory_bytes: config.engine_bytes(tier),
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
        ..defaults
    }
}

/// Disk space for replicas: each member stores as much for others as others store for it.
fn disk_bytes(config: &ServerConfig, settings: &ClusterSettings) -> u64 {
    let own = match config.disk_bytes {
        0 => (config.memory_bytes + config.flash_bytes) / 100 * config.disk_expansion_percent,
        bytes => bytes,
    };
    own * u64::from(settings.replicas.max(1))
}
