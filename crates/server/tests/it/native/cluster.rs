//! One server as a member of a cluster that the test simulates: its map, its coordinator, and the
//! handshakes with native clients.

use duramen_base::ids::{
    ClientId, ClusterId, KeyRange, MapVersion, RouteHash, ServerId, TableId, TabletsVersion,
};
use duramen_client::{Client, Options, Table};
use duramen_config::{Level, ServerConfig};
use duramen_node::{Clients, Map, Ranges, ReadUntil, View};
use duramen_redis::membership::{Clock, Membership};
use duramen_redis::threads::ClientRecord;
use duramen_server::Server;
use duramen_shm::{Rings, receive_with_fd};
use duramen_wire::native::codec::{
    Credentials, Handshake, PEER_FRAME_BYTES_MAX, Parsed, Question, Role, decode_question,
    decode_rings, encode_coordinator_answer, encode_logged_in, fresh_nonce, parse_frame,
};
use duramen_wire::native::message::{
    Addresses, CoordinatorAnswer, TableEntry, TabletMap, TabletRoute, ToCoordinator,
};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

pub(crate) const ME: ServerId = ServerId::new(1, 1);
const VERSION: u64 = 7;
/// Long enough for a loaded machine; a test that waits this long has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
const LEASE_MS: u32 = 600_000;
const US: Credentials<'_> = Credentials {
    cluster: "test",
    token: b"",
    id: ClusterId::NONE,
};

/// Waits until `holds`.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) membership: Arc<Membership>,
    pub(crate) read_until: Arc<ReadUntil>,
    pub(crate) table: TableId,
    native: SocketAddr,
    coordinator: SocketAddr,
    /// The directory of its Unix socket.
    sockets: tempfile::TempDir,
    stop: Arc<AtomicBool>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for listener in [self.native, self.coordinator] {
            let _ = TcpStream::connect(listener);
        }
        let _ = UnixStream::connect(self.socket_path());
    }
}

/// Answers every question about clients at once: all have leases.
fn clients() -> Arc<Clients> {
    let this: Arc<OnceLock<Weak<Clients>>> = Arc::default();
    let seen = this.clone();
    let clients = Clients::new(Arc::new(move || {
        if let Some(clients) = seen.get().and_then(Weak::upgrade) {
            let asked = clients.ask(0);
            let alive: Vec<(ClientId, u32)> = asked.iter().map(|id| (*id, LEASE_MS)).collect();
            clients.answered(0, &asked, &alive);
        }
    }));
    let _ = this.set(Arc::downgrade(&clients));
    clients
}

impl Cluster {
    /// `dir`: the directory of its data, synced; `None`: in memory.
    pub(crate) fn start(dir: Option<&std::path::Path>) -> Cluster {
        Cluster::with(dir, |_| {})
    }

    pub(crate) fn with(
        dir: Option<&std::path::Path>,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Cluster {
        let mut config = ServerConfig {
            level: Some(if dir.is_some() {
                Level::Synced
            } else {
                Level::Memory
            }),
            port: 0,
            admin: false,
            threads: 2,
            memory_bytes: 64 << 20,
            huge_pages: false,
            ..ServerConfig::default()
        };
        if let Some(dir) = dir {
            config.dir = dir.to_str().expect("a readable path").to_owned();
        }
        change(&mut config);
        let mut server = Server::start(config).expect("server starts");
        assert!(server.wait_loaded().expect("loads"));
        let shared = server.shared();
        let table = match shared.durability() {
            Some(durability) => durability
                .store()
                .create_table("t", None)
                .expect("a new table"),
            None => shared.store().tables().create("t").expect("a new table"),
        };
        let read_until = Arc::<ReadUntil>::default();
        read_until.set(u64::MAX);
        let membership = Membership::new(
            Clock::start(),
            read_until.clone(),
            clients(),
            Box::new(|_| {}),
        );
        let membership = Arc::new(membership);
        shared.join(membership.clone());
        let listener = || TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (native, coordinator) = (listener(), listener());
        let cluster = Cluster {
            native: native.local_addr().expect("bound"),
            coordinator: coordinator.local_addr().expect("bound"),
            sockets: tempfile::tempdir().expect("a directory"),
            stop: Arc::default(),
            server,
            membership,
            read_until,
            table,
        };
        cluster.serve(KeyRange::ALL);
        cluster.listen(native, coordinator);
        cluster
    }

    /// From now on the server owns this part of the table.
    pub(crate) fn serve(&self, range: KeyRange) {
        let served = Ranges::new([(self.table, range)]).expect("one range");
        let map = Arc::new(Map::new(&self.map()).expect("a map"));
        let view = View::new(ME, TabletsVersion(VERSION), served.clone(), served, map);
        self.membership.publish(Arc::new(view));
    }

    fn map(&self) -> TabletMap {
        TabletMap {
            version: MapVersion(VERSION),
            hash_seed: 1,
            tables: vec![TableEntry {
                table: self.table,
                name: "t".to_owned(),
                level: None,
            }],
            tablets: vec![TabletRoute {
                table: self.table,
                range: KeyRange::new(RouteHash::MIN, RouteHash::MAX),
                owner: ME,
                served: true,
                moving_to: None,
            }],
            servers: vec![(
                ME,
                Addresses {
                    native: self.native.to_string(),
                    ..Addresses::default()
                },
            )],
        }
    }

    fn listen(&self, native: TcpListener, coordinator: TcpListener) {
        let (doors, stop) = (self.server.doors().clone(), self.stop.clone());
        std::thread::spawn(move || {
            while let Ok((mut stream, peer)) = native.accept() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                if let Some(received) = greet(&mut stream, Role::Server) {
                    stream.set_nonblocking(true).expect("non-blocking");
                    stream.set_nodelay(true).expect("nodelay");
                    doors.hand_over_native(stream.into(), peer, None, received);
                }
            }
        });
        let local = UnixListener::bind(self.socket_path()).expect("a short path");
        let (doors, stop) = (self.server.doors().clone(), self.stop.clone());
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = local.accept() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let doors = doors.clone();
                std::thread::spawn(move || {
                    if greet(&mut stream, Role::Server).is_some() {
                        stream.set_nonblocking(true).expect("non-blocking");
                        doors.hand_over_local(stream.into(), ([127, 0, 0, 1], 0).into());
                    }
                });
            }
        });
        let (map, stop) = (self.map(), self.stop.clone());
        let next_client = Arc::new(AtomicU64::new(1));
        std::thread::spawn(move || {
            while let Ok((stream, _)) = coordinator.accept() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (map, next_client) = (map.clone(), next_client.clone());
                std::thread::spawn(move || coordinate(stream, &map, &next_client));
            }
        });
    }

    pub(crate) fn options(&self) -> Options {
        Options::new([self.coordinator.to_string()])
    }

    /// Options of a client that uses shared memory.
    pub(crate) fn local_options(&self) -> Options {
        Options {
            socket_dir: Some(self.sockets.path().to_owned()),
            // A slow machine must not make it use TCP.
            attempt: DEADLINE,
            ..self.options()
        }
    }

    pub(crate) fn socket_path(&self) -> std::path::PathBuf {
        self.sockets.path().join(self.native.to_string())
    }

    /// A connection with shared memory after the handshake, for bytes made by the test; and the
    /// memory's descriptor.
    pub(crate) fn raw_local(&self) -> (UnixStream, Rings, OwnedFd) {
        let mut socket = UnixStream::connect(self.socket_path()).expect("connects");
        socket.set_read_timeout(Some(DEADLINE)).expect("timeout");
        let nonce = fresh_nonce().expect("random numbers");
        let mut opening = Vec::new();
        let handshake = Handshake::dial(Role::Client, nonce, &mut opening);
        handshake
            .run(US, opening, &mut socket)
            .expect("a handshake");
        let mut frame = [0; 256];
        let (bytes, fd) = receive_with_fd(&socket, &mut frame).expect("a frame");
        let ring_bytes = decode_rings(&frame[..bytes]).expect("the frame of the rings");
        let fd = fd.expect("memory");
        let rings = Rings::adopt(&fd, ring_bytes as usize).expect("the same memory");
        (socket, rings, fd)
    }

    /// The number of clients with shared memory.
    pub(crate) fn local_clients(&self) -> usize {
        let clients = self.server.shared().threads.clients();
        let is_local = |client: &&Arc<ClientRecord>| client.text().lib_name == "duramen-local";
        clients.iter().filter(is_local).count()
    }

    pub(crate) fn table(&self) -> Table {
        let client = Client::connect(self.options()).expect("the cluster is there");
        client.table("t").expect("it has table t")
    }

    /// The reply to an inline request of RESP on the table.
    pub(crate) fn resp(&self, request: &str) -> String {
        let address = self.server.addresses().resp[0];
        let mut stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
        let requests = format!("DURAMEN.USE t\r\n{request}\r\nQUIT\r\n");
        stream.write_all(requests.as_bytes()).expect("sent");
        let mut replies = String::new();
        stream.read_to_string(&mut replies).expect("replies");
        let reply = replies.strip_prefix("+OK\r\n");
        let reply = reply.and_then(|reply| reply.strip_suffix("+OK\r\n"));
        reply
            .unwrap_or_else(|| panic!("{request}: {replies}"))
            .to_owned()
    }

    /// A connection after the handshake, for frames made by the test.
    pub(crate) fn raw(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.native).expect("connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
        let nonce = fresh_nonce().expect("random numbers");
        let mut opening = Vec::new();
        let handshake = Handshake::dial(Role::Client, nonce, &mut opening);
        handshake
            .run(US, opening, &mut stream)
            .expect("a handshake");
        stream
    }
}

/// The accepting side of the handshake; returns the bytes received after it.
fn greet(stream: &mut (impl Read + Write), role: Role) -> Option<Vec<u8>> {
    let nonce = fresh_nonce().expect("random numbers");
    let handshake = Handshake::accept(role, nonce);
    let (_, rest) = handshake.run(US, Vec::new(), stream).ok()?;
    Some(rest)
}

fn coordinate(mut stream: TcpStream, map: &TabletMap, next_client: &AtomicU64) {
    let Some(mut input) = greet(&mut stream, Role::Coordinator) else {
        return;
    };
    loop {
        let mut output = Vec::new();
        while let Ok(Parsed::Frame { frame, bytes }) = parse_frame(&input, PEER_FRAME_BYTES_MAX) {
            let answer = match decode_question(&frame).expect("a question") {
                // As a coordinator without users.
                Question::Login(_) => {
                    encode_logged_in(&mut output, &frame.header.envelope);
                    input.drain(..bytes);
                    continue;
                }
                Question::ToCoordinator(ToCoordinator::Map { since, .. }) => {
                    if since == map.version {
                        CoordinatorAnswer::MapIsCurrent
                    } else {
                        CoordinatorAnswer::Map(map.clone())
                    }
                }
                Question::ToCoordinator(ToCoordinator::ClientLease { client }) => {
                    let next = || ClientId(next_client.fetch_add(1, Ordering::Relaxed));
                    CoordinatorAnswer::Lease {
                        client: client.unwrap_or_else(next),
                        ttl_ms: LEASE_MS,
                    }
                }
                other => panic!("not from a client: {other:?}"),
            };
            encode_coordinator_answer(&mut output, &frame.header.envelope, &answer);
            input.drain(..bytes);
        }
        let mut chunk = [0; 4096];
        if stream.write_all(&output).is_err() {
            return;
        }
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(read) => input.extend_from_slice(&chunk[..read]),
        }
    }
}
