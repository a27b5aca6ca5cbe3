//! One life of a member: from asking the coordinator who leads, to the end that somebody says or
//! wants.
//!
//! **Invariants**
//! - A1: it listens before it enlists: pings come at once.
//! - A2: what one life has open (ports but that of RESP, directory, threads) is closed before the
//!   next one begins.
//!
//! **Concurrency** threads: the node's (all connections but those for replicas), the keeper's
//! (those), workers, the disk's chores; and those of the store and of the reactors, which know the
//! node only by [`Membership`](super::Membership).

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

/// How often the coordinator is told how much room there is.
const ROOM_EVERY: Duration = Duration::from_secs(2);
/// Threads for jobs.
const WORKERS: usize = 2;
/// Who did not answer is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// As long as nothing changes, what it waits for is said again after this time.
pub(super) const SAY_AGAIN: Duration = Duration::from_secs(30);
/// Of threads whose delay others notice; has an effect only with the right to it.
const NICE: i32 = -10;
/// Bytes of replicas that are kept in memory, sorted, while logs are recovered: a 32nd of the
/// budget, beside which they are, within these bounds.
const AHEAD_BYTES_MIN: u64 = 8 * MIB;
const AHEAD_BYTES_MAX: u64 = 256 * MIB;

/// What the node's thread is told by others of this server.
pub(crate) enum Mail {
    JobDone(JobDone),
    /// The id is stored, or why not.
    Stored(ServerId, std::io::Result<()>),
    /// So is the cluster's, heard while it was a member.
    Adopted(ClusterId, std::io::Result<()>),
    /// Something for the outside that the keeper was asked for by way of the node.
    Said(NodeOutput),
    /// The backup's disk has no room for what other members write, or has some again.
    BackupFull(bool),
    /// The disk failed for good.
    Failed(String),
    /// The server ends.
    Stop,
}

/// What the life before has open is waited for so long.
const LET_GO: Duration = Duration::from_secs(5);

/// Asks the system to let this thread run before others.
pub(super) fn prefer() {
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// The thread of a life, as the server holds it. Dropping it ends the life.
pub(crate) struct Lifeline {
    handle: Handle<Mail>,
    thread: Option<JoinHandle<()>>,
}

/// Says when clients are served, or why they can't be.
pub(crate) type Opens = Receiver<Result<(), ServerError>>;

/// Where this member is found: for the coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Ports {
    pub resp: u16,
    pub admin: Option<u16>,
}

impl Lifeline {
    /// Listens on the native port (A1) and begins; the result comes when clients are served, or
    /// can't be.
    ///
    /// # Errors
    /// [`ServerError::Listen`], [`ServerError::System`]; the token can't be read.
    pub fn begin(
        shared: &Arc<Shared>,
        ports: Ports,
    ) -> Result<(Lifeline, SocketAddr, Opens), ServerError> {
        let config = shared.config();
        let token = config.cluster_token()?;
        let is_open = config.bind.iter().any(|ip| !ip.is_loopback());
        if is_open && token.is_empty() {
            tracing::warn!(
                "whoever reaches the native port reads and writes everything: keep it behind a firewall, or give the cluster a token (cluster-token-file)"
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
            // A panic has been reported by the thread itself.
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
    // Who waits for it may be gone already.
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

/// Finds a coordinator that leads. `None`: told to stop meanwhile.
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
        // No patience makes another cluster of one; but somebody else in the list may know this
        // one.
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

/// Whether whoever answers there belongs to another cluster, or speaks another version.
fn is_foreign(reason: &Reason) -> bool {
    matches!(
        reason,
        Reason::Hello(HelloError::WrongCluster { .. } | HelloError::NoCommonVersion { .. })
    )
}

/// The same with what to do about it. The name is right, so the mistake is rather the
/// coordinator's: the member waits (docs/protocols.md, The coordinator, 13).
pub(super) fn advised(reason: &Reason) -> String {
    match reason {
        Reason::Hello(HelloError::OtherCluster { ours, theirs }) => format!(
            "it belongs to the cluster with id {theirs}, this member to the cluster with id {ours}: start the coordinator with the store of this member's cluster, or, to join the other one, start this member with an empty directory"
        ),
        reason => reason.to_string(),
    }
}

/// Who leads, if it was told.
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

/// Opens the second tier, if there is one. The life before may be about to let go of it.
fn open_tier(config: &ServerConfig) -> Result<Option<Tier>, ServerError> {
    let since = Instant::now();
    loop {
        match Tier::open(config) {
            Err(ServerError::Flash {
                source: duramen_flash::Error::InUse { .. },
                ..
            }) if since.elapsed() < LET_GO => std::thread::sleep(LET_GO / 100),
            opened => return opened,
        }
    }
}

/// The engine's part of the settings, as for a server on its own.
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

/// Room for replicas: each member keeps as much for others as they keep for it.
fn disk_bytes(config: &ServerConfig, settings: &ClusterSettings) -> u64 {
    let own = match config.disk_bytes {
        0 => (config.memory_bytes + config.flash_bytes) / 100 * config.disk_expansion_percent,
        bytes => bytes,
    };
    own * u64::from(settings.replicas.max(1))
}
