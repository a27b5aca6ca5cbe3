//! TLS at the RESP port: what holds for plain connections holds for encrypted ones.

use crate::reactor::support::{DEADLINE, counter, request, start, wait_until};
use duramen_config::{ClientAuth, ServerConfig, Setting};
use duramen_redis::operation::configure;
use duramen_server::Server;
use duramen_tls::rustls::{ClientConnection, StreamOwned};
use duramen_tls::{Authority, Identity, Request, Settings, Stream};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server with a TLS port and a plain one, and the folder of its authority.
struct Encrypted {
    server: Server,
    dir: TempDir,
}

fn wanted(name: &str) -> Request {
    Request {
        name: name.to_owned(),
        sans: vec!["localhost".to_owned()],
        days: 10,
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

fn text(dir: &Path, file: &str) -> String {
    dir.join(file).display().to_string()
}

impl Encrypted {
    fn start(change: impl Fn(&mut ServerConfig)) -> Encrypted {
        let dir = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(dir.path(), "test", 30).expect("it is new");
        for name in ["server", "client"] {
            authority.issue(&wanted(name)).expect("it is new");
        }
        let server = start(|config| {
            config.tls_port = free_port();
            config.tls_cert_file = text(dir.path(), "server.crt");
            config.tls_key_file = text(dir.path(), "server.key");
            config.tls_ca_cert_file = text(dir.path(), "ca.crt");
            change(config);
        });
        Encrypted { server, dir }
    }

    fn address(&self) -> SocketAddr {
        self.server.addresses().tls[0]
    }

    fn identity(&self) -> Identity {
        Identity::load(Settings {
            certificate_file: self.dir.path().join("client.crt"),
            key_file: self.dir.path().join("client.key"),
            ca_file: self.dir.path().join("ca.crt"),
            ..Settings::default()
        })
        .expect("its files are right")
    }

    fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address()).expect("it listens");
        socket.set_nodelay(true).expect("a socket");
        socket.set_read_timeout(Some(DEADLINE)).expect("a socket");
        socket.set_write_timeout(Some(DEADLINE)).expect("a socket");
        socket
    }

    fn connect(&self) -> Stream {
        self.try_connect(&self.identity()).expect("it is admitted")
    }

    fn try_connect(&self, identity: &Identity) -> io::Result<Stream> {
        Stream::connect(identity, "localhost", self.socket())
    }

    /// A client of rustls alone, over a transport of its own.
    fn over<T: Read + Write>(&self, transport: T) -> StreamOwned<ClientConnection, T> {
        let config = self.identity().client_config().expect("it trusts");
        let name = "localhost".try_into().expect("a name");
        StreamOwned::new(
            ClientConnection::new(config, name).expect("it fits"),
            transport,
        )
    }
}

#[track_caller]
fn expect(stream: &mut impl Read, wanted: &[u8]) {
    let mut got = vec![0; wanted.len()];
    stream.read_exact(&mut got).expect("reads");
    assert_eq!(
        String::from_utf8_lossy(&got),
        String::from_utf8_lossy(wanted)
    );
}

#[track_caller]
fn ping(stream: &mut (impl Read + Write)) {
    stream.write_all(b"PING\r\n").expect("sends");
    expect(stream, b"+PONG\r\n");
}

#[test]
fn long_pipelines_and_large_values_pass_in_order() {
    const READS: usize = 60;
    let encrypted = Encrypted::start(|config| {
        config.threads = 1;
        config.output_pause_bytes = 256 << 10;
    });
    let mut client = encrypted.connect();
    let values: Vec<Vec<u8>> = (0..3u8).map(|n| vec![b'a' + n; 1_000_000]).collect();
    for (n, value) in values.iter().enumerate() {
        let set = request(&[b"SET", format!("key{n}").as_bytes(), value]);
        client.write_all(&set).expect("sends");
        expect(&mut client, b"+OK\r\n");
    }
    let mut pipeline = Vec::new();
    for n in 0..READS {
        pipeline.extend(request(&[b"GET", format!("key{}", n % 3).as_bytes()]));
        for small in 0..100 {
            pipeline.extend(request(&[
                b"ECHO",
                (n * 100 + small).to_string().as_bytes(),
            ]));
        }
    }
    let last = request(&[b"ECHO", b"the end"]);
    pipeline.extend(&last[..10]);
    client.write_all(&pipeline).expect("sends");
    for n in 0..READS {
        let mut wanted = b"$1000000\r\n".to_vec();
        wanted.extend(&values[n % 3]);
        wanted.extend(b"\r\n");
        for small in 0..100 {
            let text = (n * 100 + small).to_string();
            wanted.extend(format!("${}\r\n{text}\r\n", text.len()).into_bytes());
        }
        expect(&mut client, &wanted);
    }
    client.write_all(&last[10..]).expect("sends");
    expect(&mut client, b"$7\r\nthe end\r\n");
    assert_eq!(counter(&encrypted.server, |c| c.output_closed.get()), 0);
    assert_eq!(counter(&encrypted.server, |c| c.tls_handshakes.get()), 1);
    let clients = encrypted.server.shared().threads.clients();
    let shown = clients[0].certificate().expect("it showed one");
    assert_eq!(shown.common_name, "client");
}

/// A socket that sends single bytes.
struct Trickle(TcpStream);

impl Read for Trickle {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let room = bytes.len().min(3);
        self.0.read(&mut bytes[..room])
    }
}

impl Write for Trickle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn records_may_come_byte_by_byte() {
    let encrypted = Encrypted::start(|_| {});
    let mut client = encrypted.over(Trickle(encrypted.socket()));
    ping(&mut client);
    let value = vec![b'v'; 3_000];
    client
        .write_all(&request(&[b"SET", b"k", &value]))
        .expect("sends");
    expect(&mut client, b"+OK\r\n");
    client
        .write_all(&request(&[b"STRLEN", b"k"]))
        .expect("sends");
    expect(&mut client, b":3000\r\n");
}

/// tls::H2: a part of a record is part of the query buffer.
#[test]
fn a_record_in_part_counts_as_received() {
    let encrypted = Encrypted::start(|_| {});
    let mut client = encrypted.over(encrypted.socket());
    ping(&mut client);
    let value = vec![b'v'; 10_000];
    let set = request(&[b"SET", b"k", &value]);
    client.conn.writer().write_all(&set).expect("it is open");
    let mut record = Vec::new();
    while client.conn.wants_write() {
        client.conn.write_tls(&mut record).expect("to memory");
    }
    let (first, rest) = record.split_at(7_000);
    client.sock.write_all(first).expect("sends");
    let buffered = || counter(&encrypted.server, |c| c.query_buffer_bytes.get());
    wait_until("it is counted", || buffered() == 7_000);
    client.sock.write_all(rest).expect("sends");
    expect(&mut client, b"+OK\r\n");
    wait_until("nothing waits", || buffered() == 0);
}

/// tls::H3: handshakes that come all at once are done a few per round, between other work.
#[test]
fn a_round_does_few_handshakes() {
    const CLIENTS: usize = 64;
    let encrypted = Encrypted::start(|config| config.threads = 1);
    let shared = encrypted.server.shared();
    shared.watch.set_stuck_after_ms(100);
    let mut first = encrypted.connect();
    ping(&mut first);
    let mut session = shared.store().session().expect("a session");
    // The thread waits until this session has left the store.
    let alone = session.pin_exclusive();
    first.write_all(&request(&[b"GET", b"k"])).expect("sends");
    wait_until("the thread waits", || shared.is_stuck());
    let mut others = Vec::new();
    for _ in 0..CLIENTS {
        let mut other = encrypted.over(encrypted.socket());
        other.conn.write_tls(&mut other.sock).expect("its hello");
        others.push(other);
    }
    let rounds = || counter(&encrypted.server, |c| c.rounds.get());
    let before = rounds();
    drop(alone);
    for other in &others {
        let mut byte = [0];
        assert_eq!(other.sock.peek(&mut byte).expect("it is answered"), 1);
    }
    let took = rounds() - before;
    assert!(took >= CLIENTS as u64 / 8, "{CLIENTS} in {took} rounds");
    for mut other in others {
        ping(&mut other);
    }
    expect(&mut first, b"$-1\r\n");
}

fn read_all(mut socket: TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    let _ = socket.read_to_end(&mut got); // a reset is an end too
    got
}

#[test]
fn peers_that_speak_no_tls_are_told_and_closed() {
    let encrypted = Encrypted::start(|_| {});
    let mut beside = encrypted.connect();
    for bytes in [&b"*1\r\n$4\r\nPING\r\n"[..], b"PING\r\n"] {
        let mut socket = encrypted.socket();
        socket.write_all(bytes).expect("sends");
        let told = String::from_utf8(read_all(socket)).expect("text");
        assert!(told.starts_with("-ERR this port speaks TLS"), "{told}");
    }
    let mut random = 1u64;
    let mut next = move || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as u8
    };
    for round in 0..150 {
        let mut socket = encrypted.socket();
        let mut bytes: Vec<u8> = (0..usize::from(next()) * 8 + 6).map(|_| next()).collect();
        if round % 2 == 0 {
            bytes[..3].copy_from_slice(&[22, 3, 1]);
        }
        let _ = socket.write_all(&bytes);
        let _ = socket.shutdown(Shutdown::Write);
        let got = read_all(socket);
        assert!(got.len() < 200, "{} bytes", got.len());
    }
    ping(&mut beside);
    wait_until("the others are gone", || {
        encrypted.server.shared().threads.connected_clients() == 1
    });
    assert!(counter(&encrypted.server, |c| c.tls_failed.get()) >= 100);
    assert_eq!(counter(&encrypted.server, |c| c.commands.get()), 1);
}

/// tls::H4.
#[test]
fn stalled_handshakes_count_as_clients_and_end() {
    let encrypted = Encrypted::start(|config| config.maxclients = 3);
    let begun = Instant::now();
    let silent = encrypted.socket();
    let mut partial = encrypted.socket();
    partial.write_all(&[22, 3, 1, 2, 0, 1]).expect("sends");
    let mut served = encrypted.connect();
    wait_until("all are counted", || {
        encrypted.server.shared().threads.connected_clients() == 3
    });
    assert!(
        encrypted.try_connect(&encrypted.identity()).is_err(),
        "there are too many"
    );
    for socket in [silent, partial] {
        let alert = read_all(socket);
        assert!(alert.len() < 20, "it was served");
    }
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_secs(9) && waited < DEADLINE,
        "{waited:?}"
    );
    ping(&mut served);
    encrypted.connect();
}

#[test]
fn a_client_that_has_said_all_gets_all_replies() {
    let encrypted = Encrypted::start(|_| {});
    for closes_socket in [true, false] {
        let mut client = encrypted.over(encrypted.socket());
        let mut wanted = Vec::new();
        for n in 0..2_000 {
            let text = format!("{n:0>100}");
            client
                .write_all(&request(&[b"ECHO", text.as_bytes()]))
                .expect("sends");
            wanted.extend(format!("$100\r\n{text}\r\n").into_bytes());
        }
        client.conn.send_close_notify();
        while client.conn.wants_write() {
            client.conn.write_tls(&mut client.sock).expect("sends");
        }
        if closes_socket {
            client.sock.shutdown(Shutdown::Write).expect("it is open");
        }
        let mut got = Vec::new();
        client.read_to_end(&mut got).expect("it is ended in order");
        assert!(got == wanted, "{} of {} bytes", got.len(), wanted.len());
    }
    wait_until("they are gone", || {
        encrypted.server.shared().threads.connected_clients() == 0
    });
}

/// tls::H2: encrypted bytes that a client does not take are limited as plain ones are.
#[test]
fn a_client_that_takes_nothing_is_closed() {
    let encrypted = Encrypted::start(|config| {
        config.threads = 1;
        config.output_stall_s = 1;
    });
    let mut client = encrypted.connect();
    let set = request(&[b"SET", b"k", &vec![b'v'; 1_000_000]]);
    client.write_all(&set).expect("sends");
    expect(&mut client, b"+OK\r\n");
    for _ in 0..10 {
        client.write_all(&request(&[b"GET", b"k"])).expect("sends");
    }
    wait_until("it is closed", || {
        counter(&encrypted.server, |c| c.output_closed.get()) == 1
    });
    wait_until("it is gone", || {
        encrypted.server.shared().threads.connected_clients() == 0
    });
    let held = counter(&encrypted.server, |c| c.output_buffer_bytes.get());
    assert_eq!(held, 0);
}

/// A client that reads late: its replies stop at what the socket takes, and none is lost.
#[test]
fn replies_wait_for_a_client_that_reads_late() {
    let encrypted = Encrypted::start(|config| config.threads = 1);
    let mut client = encrypted.connect();
    client
        .write_all(&request(&[b"SET", b"k", &vec![b'v'; 500_000]]))
        .expect("sends");
    expect(&mut client, b"+OK\r\n");
    for _ in 0..40 {
        client.write_all(&request(&[b"GET", b"k"])).expect("sends");
    }
    wait_until("replies wait", || {
        counter(&encrypted.server, |c| c.output_buffer_bytes.get()) > 100_000
    });
    let mut beside = encrypted.connect();
    ping(&mut beside);
    let mut wanted = b"$500000\r\n".to_vec();
    wanted.extend(vec![b'v'; 500_000]);
    wanted.extend(b"\r\n");
    for _ in 0..40 {
        expect(&mut client, &wanted);
    }
    wait_until("nothing waits", || {
        counter(&encrypted.server, |c| c.output_buffer_bytes.get()) == 0
    });
}

#[test]
fn clients_are_admitted_by_certificate_as_set() {
    let encrypted = Encrypted::start(|_| {});
    let dir = tempfile::tempdir().expect("a folder");
    let foreign = Authority::create(dir.path(), "foreign", 30).expect("it is new");
    foreign.issue(&wanted("mallory")).expect("it is new");
    let ca_file = encrypted.dir.path().join("ca.crt");
    let mallory = Identity::load(Settings {
        certificate_file: dir.path().join("mallory.crt"),
        key_file: dir.path().join("mallory.key"),
        ca_file: ca_file.clone(),
        ..Settings::default()
    })
    .expect("its files are right");
    let anonymous = Identity::load(Settings {
        ca_file,
        ..Settings::default()
    })
    .expect("it needs none");
    let admitted = |identity: &Identity| {
        let mut stream = encrypted.try_connect(identity)?;
        stream.write_all(b"PING\r\n")?;
        let mut pong = [0; 7];
        stream.read_exact(&mut pong)
    };
    let set = |value: &str| {
        let setting = Setting::find("tls-auth-clients").expect("a setting");
        let shared = encrypted.server.shared();
        configure::set(shared, &[(setting, value)]).expect("it can change");
    };
    let refused = admitted(&anonymous)
        .expect_err("it must show one")
        .to_string();
    assert!(refused.contains("requires a certificate"), "{refused}");
    assert!(admitted(&mallory).is_err());
    admitted(&encrypted.identity()).expect("its authority is known");
    set("optional");
    admitted(&anonymous).expect("it may show none");
    assert!(admitted(&mallory).is_err());
    set("no");
    admitted(&mallory).expect("it is not asked");
    let failed = counter(&encrypted.server, |c| c.tls_failed.get());
    assert_eq!(failed, 3);
}

#[test]
fn certificates_are_replaced_under_load_without_a_failure() {
    let encrypted = Encrypted::start(|_| {});
    let (ends, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let shared = encrypted.server.shared();
    std::thread::scope(|scope| {
        for n in 0..3 {
            let (encrypted, ends, served) = (&encrypted, &ends, &served);
            scope.spawn(move || {
                let identity = encrypted.identity();
                let mut lasting = encrypted.try_connect(&identity).expect("it is admitted");
                while !ends.load(Ordering::Relaxed) {
                    let mut stream = encrypted.try_connect(&identity).expect("it is admitted");
                    ping(&mut stream);
                    ping(&mut lasting);
                    served.fetch_add(1, Ordering::Relaxed);
                }
                n
            });
        }
        let authority = Authority::open(encrypted.dir.path()).expect("it is there");
        let serial = || {
            shared
                .settings
                .certificates()
                .certificate()
                .expect("there is one")
                .serial
        };
        for _ in 0..20 {
            let (before, last) = (served.load(Ordering::Relaxed), serial());
            authority.renew(&wanted("server")).expect("it is there");
            shared.settings.certificates().reload();
            assert_ne!(serial(), last);
            // A file that is cut changes nothing.
            let file = encrypted.dir.path().join("server.crt");
            let whole = std::fs::read(&file).expect("it is there");
            std::fs::write(&file, &whole[..whole.len() / 2]).expect("it is there");
            let now = serial();
            shared.settings.certificates().reload();
            assert_eq!(serial(), now);
            std::fs::write(&file, whole).expect("it is there");
            wait_until("clients go on", || {
                served.load(Ordering::Relaxed) > before + 3
            });
        }
        ends.store(true, Ordering::Relaxed);
    });
    let mut stream = encrypted.connect();
    ping(&mut stream);
}

#[test]
fn a_setting_that_cannot_be_used_is_refused_and_changes_nothing() {
    let encrypted = Encrypted::start(|_| {});
    let shared = encrypted.server.shared();
    let find = |name| Setting::find(name).expect("a setting");
    let other = text(encrypted.dir.path(), "client.crt");
    let refused =
        configure::set(shared, &[(find("tls-cert-file"), &other)]).expect_err("another key");
    assert!(refused.to_string().contains("does not belong"), "{refused}");
    let refused =
        configure::set(shared, &[(find("tls-protocols"), "TLSv1.1")]).expect_err("not safe");
    assert!(refused.to_string().contains("TLSv1.2"), "{refused}");
    let key = text(encrypted.dir.path(), "client.key");
    configure::set(
        shared,
        &[
            (find("tls-cert-file"), &other),
            (find("tls-key-file"), &key),
        ],
    )
    .expect("both fit");
    assert_eq!(
        shared
            .settings
            .certificates()
            .certificate()
            .expect("there is one")
            .common_name,
        "client"
    );
    assert_eq!(shared.config().tls_cert_file, other);
}

#[test]
fn a_stop_lets_clients_take_their_replies() {
    let encrypted = Encrypted::start(|config| config.threads = 1);
    let mut client = encrypted.connect();
    let set = request(&[b"SET", b"k", &vec![b'v'; 900_000]]);
    client.write_all(&set).expect("sends");
    expect(&mut client, b"+OK\r\n");
    let stalled = encrypted.socket();
    wait_until("both are there", || {
        encrypted.server.shared().threads.connected_clients() == 2
    });
    for _ in 0..5 {
        client.write_all(&request(&[b"GET", b"k"])).expect("sends");
    }
    wait_until("they ran", || {
        counter(&encrypted.server, |c| c.commands.get()) == 6
    });
    encrypted.server.stop();
    let mut got = Vec::new();
    client.read_to_end(&mut got).expect("it is ended in order");
    assert_eq!(got.len(), 5 * (900_000 + 11));
    drop(stalled);
    encrypted.server.wait().expect("it ends");
}

#[test]
fn a_password_is_needed_as_without_tls() {
    let encrypted = Encrypted::start(|config| {
        config.requirepass = "secret".to_owned();
        config.tls_auth_clients = ClientAuth::No;
        config.preauth_limit_bytes = 4 << 10;
    });
    let mut client = encrypted.connect();
    client.write_all(b"GET k\r\n").expect("sends");
    expect(&mut client, b"-NOAUTH");
    let mut greedy = encrypted.connect();
    let _ = greedy.write_all(&request(&[b"SET", b"k", &vec![b'v'; 100_000]]));
    let mut got = Vec::new();
    let _ = greedy.read_to_end(&mut got);
    assert!(
        String::from_utf8_lossy(&got).contains("-ERR Protocol error"),
        "it is too long"
    );
    let mut client = encrypted.connect();
    client.write_all(b"AUTH secret\r\nPING\r\n").expect("sends");
    expect(&mut client, b"+OK\r\n+PONG\r\n");
}
