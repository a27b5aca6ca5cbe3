//! Redis clients of a member of a cluster that the test simulates: when replies are sent, and which
//! requests wait.

use duramen_base::ids::{KeyRange, MapVersion, ServerId, TableId, TabletsVersion};
use duramen_config::{EventClasses, Level, ServerConfig};
use duramen_node::{Clients, Map, Ranges, ReadUntil, View};
use duramen_redis::membership::{Clock, MemberStatus, Membership};
use duramen_server::Server;
use duramen_wire::native::message::{Addresses, TableEntry, TabletMap, TabletRoute};
use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ME: ServerId = ServerId::new(1, 1);
const OTHER: ServerId = ServerId::new(2, 1);
/// Long enough for a loaded machine; a test that waits this long has failed.
const DEADLINE: Duration = Duration::from_secs(60);

struct Member {
    server: Server,
    membership: Arc<Membership>,
    read_until: Arc<ReadUntil>,
    table: TableId,
}

impl Member {
    /// `dir`: the directory of its data, synced; `None`: in memory. The member serves everything,
    /// and may not answer yet.
    fn start(dir: Option<&std::path::Path>) -> Member {
        Member::start_with(dir, |_| {})
    }

    fn start_with(dir: Option<&std::path::Path>, change: impl FnOnce(&mut ServerConfig)) -> Member {
        let mut config = ServerConfig {
            level: Some(Level::Memory),
            port: 0,
            admin: false,
            threads: 1,
            memory_bytes: 64 << 20,
            huge_pages: false,
            ..ServerConfig::default()
        };
        if let Some(dir) = dir {
            config.dir = dir.to_str().expect("a readable path").to_owned();
            config.level = Some(Level::Synced);
        }
        change(&mut config);
        let mut server = Server::start(config).expect("server starts");
        assert!(server.wait_loaded().expect("loads"));
        let shared = server.shared();
        let table = match shared.durability() {
            Some(durability) => durability
                .store()
                .create_table("db0", None)
                .expect("a table"),
            None => shared.store().tables().create("db0").expect("a table"),
        };
        let read_until = Arc::<ReadUntil>::default();
        let clients = Clients::new(Arc::new(|| {}));
        let membership = Membership::new(
            Clock::start(),
            read_until.clone(),
            clients,
            Box::new(|_| {}),
        );
        let membership = Arc::new(membership);
        shared.join(membership.clone());
        let entry = TableEntry {
            table,
            name: "db0".to_owned(),
            level: None,
        };
        shared.commands.adopt_tables(&[entry]);
        let member = Member {
            server,
            membership,
            read_until,
            table,
        };
        member.tell(1, ME, true);
        member
    }

    /// Everything belongs to `owner`; this member serves everything or nothing of it.
    fn tell(&self, version: u64, owner: ServerId, serves: bool) {
        let own = |is: bool| {
            let ranges = is.then_some((self.table, KeyRange::ALL));
            Ranges::new(ranges).expect("one range")
        };
        let map = TabletMap {
            version: MapVersion(version),
            tablets: vec![TabletRoute {
                table: self.table,
                range: KeyRange::ALL,
                owner,
                served: true,
                moving_to: None,
            }],
            servers: vec![(
                owner,
                Addresses {
                    resp: Some("10.0.0.9:6379".to_owned()),
                    ..Addresses::default()
                },
            )],
            ..TabletMap::default()
        };
        let mine = owner == ME;
        let view = View::new(
            ME,
            TabletsVersion(version),
            own(mine),
            own(mine && serves),
            Arc::new(Map::new(&map).expect("a map")),
        );
        self.membership.publish(Arc::new(view));
    }

    fn connect(&self) -> TcpStream {
        let address = self.server.addresses().resp[0];
        let stream = TcpStream::connect(address).expect("connects");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_nodelay(true).expect("nodelay");
        stream
    }

    fn value(&self, key: &[u8]) -> Option<Vec<u8>> {
        let mut session = self.server.shared().store().session().expect("a session");
        let guard = session.pin();
        let found = guard.read(self.table, guard.hash(key), key);
        found.expect("a table").map(|object| object.value.to_vec())
    }
}

fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).expect("sends");
}

#[track_caller]
fn expect(stream: &mut TcpStream, reply: &str) {
    let mut found = vec![0; reply.len()];
    stream.read_exact(&mut found).expect("a reply in time");
    assert_eq!(String::from_utf8_lossy(&found), reply);
}

#[track_caller]
fn expect_nothing(stream: &mut TcpStream) {
    stream.set_nonblocking(true).expect("non-blocking");
    let error = stream.read(&mut [0; 64]).expect_err("no reply");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    stream.set_nonblocking(false).expect("blocking");
}

/// Some rounds of the only reactor thread, for a minimum time too.
fn rounds(probe: &mut TcpStream) {
    let until = Instant::now() + Duration::from_millis(50);
    while Instant::now() < until {
        send(probe, "PING\r\n");
        expect(probe, "+PONG\r\n");
    }
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

fn without_a_lease_nothing_of_data_is_told(dir: Option<&std::path::Path>) {
    let member = Member::start(dir);
    let mut probe = member.connect();
    let (mut writer, mut reader) = (member.connect(), member.connect());
    send(&mut writer, "SET a 1\r\nPING\r\n");
    wait_until("the write is executed", || member.value(b"a").is_some());
    send(&mut reader, "GET a\r\nDBSIZE\r\n");
    rounds(&mut probe);
    expect_nothing(&mut writer);
    expect_nothing(&mut reader);
    // A waiting connection is not served further meanwhile.
    send(&mut writer, "SET a 2\r\n");
    rounds(&mut probe);
    assert_eq!(member.value(b"a"), Some(b"1".to_vec()));
    member.read_until.set(u64::MAX);
    expect(&mut writer, "+OK\r\n+PONG\r\n+OK\r\n");
    expect(&mut reader, "$1\r\n1\r\n:1\r\n");
    // The right can lapse again.
    member.read_until.set(0);
    send(&mut reader, "GET a\r\n");
    rounds(&mut probe);
    expect_nothing(&mut reader);
    member.read_until.set(u64::MAX);
    expect(&mut reader, "$1\r\n2\r\n");
}

#[test]
fn without_a_lease_nothing_of_data_in_memory_is_told() {
    without_a_lease_nothing_of_data_is_told(None);
}

#[test]
fn without_a_lease_nothing_of_synced_data_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    without_a_lease_nothing_of_data_is_told(Some(dir.path()));
}

/// A request for keys that no server serves is answered once one does, and delays no other client.
#[test]
fn what_nobody_serves_waits_on_its_own_connection() {
    let member = Member::start(None);
    member.read_until.set(u64::MAX);
    let (mut probe, mut client, mut other) = (member.connect(), member.connect(), member.connect());
    let version = Cell::new(1);
    let tell = |owner, served| {
        version.set(version.get() + 1);
        member.tell(version.get(), owner, served);
    };
    in_time(|began| {
        tell(ME, false);
        send(&mut client, "PING\r\nSET a 1\r\nPING\r\n");
        expect(&mut client, "+PONG\r\n");
        rounds(&mut probe);
        let is_in_time = began.elapsed() < IN_TIME;
        if is_in_time {
            expect_nothing(&mut client);
        }
        tell(ME, true);
        if is_in_time {
            expect(&mut client, "+OK\r\n+PONG\r\n");
        } else {
            skip_lines(&mut client, 2);
        }
        is_in_time
    });
    in_time(|began| {
        tell(ME, false);
        send(&mut client, "GET a\r\n");
        send(&mut other, "GET a\r\n");
        rounds(&mut probe);
        let is_in_time = began.elapsed() < IN_TIME;
        if is_in_time {
            expect_nothing(&mut client);
        }
        tell(OTHER, false);
        for stream in [&mut client, &mut other] {
            if is_in_time {
                expect(stream, "-MOVED 15495 10.0.0.9:6379\r\n");
            } else {
                skip_lines(stream, 1);
            }
        }
        is_in_time
    });
}

/// Well within the second after which a request for unserved keys is refused.
const IN_TIME: Duration = Duration::from_millis(600);

/// Repeats a part that must end before a client's patience does, in case the machine stood still.
fn in_time(mut part: impl FnMut(Instant) -> bool) {
    assert!(
        (0..60).any(|_| part(Instant::now())),
        "this machine stands still all the time"
    );
}

fn skip_lines(stream: &mut TcpStream, count: usize) {
    for _ in 0..count {
        let mut byte = [0];
        while byte != *b"\n" {
            stream.read_exact(&mut byte).expect("a reply in time");
        }
    }
}

#[test]
fn patience_with_what_nobody_serves_ends() {
    let member = Member::start(None);
    member.read_until.set(u64::MAX);
    member.tell(2, ME, false);
    let mut client = member.connect();
    let began = Instant::now();
    send(&mut client, "GET a\r\n");
    expect(&mut client, "-TRYAGAIN ");
    assert!(began.elapsed() > Duration::from_millis(900));
}

/// While a member's backups did not answer, or its lease was not renewed, its clients once got no
/// reply at all, and the member reported that it was ready. The error names what is to be done.
#[test]
fn replies_that_wait_for_backups_become_errors() {
    let member = Member::start_with(None, |config| config.reply_timeout_s = 1);
    let (mut writer, mut reader) = (member.connect(), member.connect());
    let shared = member.server.shared();
    assert_eq!(shared.threads.replies_held_ms(), 0);
    let status = |enough_backups| MemberStatus {
        replicas: 2,
        servers_up: 2,
        enough_backups,
        ..MemberStatus::default()
    };
    member.membership.set_status(status(false));
    let remedy = "; 2 of the 3 servers needed are up: start another one";
    let began = Instant::now();
    send(&mut writer, "SET a 1\r\nPING\r\n");
    wait_until("it waits", || shared.threads.replies_held_ms() > 0);
    let error = "-NOREPLICAS no acknowledgement of this member's backups for ";
    expect(&mut writer, error);
    // The clock of a round may be some milliseconds behind.
    assert!(began.elapsed() >= Duration::from_millis(900));
    let told = line(&mut writer);
    assert!(told.ends_with(remedy), "{told}");
    expect(&mut writer, error); // they wait together
    assert_eq!(line(&mut writer), told);
    member.membership.set_status(status(true));
    send(&mut reader, "GET a\r\n");
    expect(&mut reader, error);
    let told = line(&mut reader);
    let remedy = "; servers that keep its newest replicas do not answer";
    assert!(told.ends_with(remedy), "{told}");
    // No client waits any more, and nothing is acknowledged: `/readyz` said that all is well.
    let held_ms = shared.threads.replies_held_ms();
    assert!(held_ms >= 900, "{held_ms}");
    wait_until("the time goes on", || {
        shared.threads.replies_held_ms() > held_ms + 500
    });
    // Both connections continue.
    member.read_until.set(u64::MAX);
    send(&mut writer, "GET a\r\n");
    expect(&mut writer, "$1\r\n1\r\n");
    send(&mut reader, "PING\r\n");
    expect(&mut reader, "+PONG\r\n");
    wait_until("all is well", || shared.threads.replies_held_ms() == 0);
}

/// A listener to `x` and to events of strings.
fn listener(member: &Member) -> TcpStream {
    let mut listener = member.connect();
    send(&mut listener, "SUBSCRIBE x __keyevent@0__:set\r\n");
    expect(&mut listener, &subscribed("x", 1));
    expect(&mut listener, &subscribed("__keyevent@0__:set", 2));
    listener
}

fn subscribed(channel: &str, count: u64) -> String {
    let bytes = channel.len();
    format!("*3\r\n$9\r\nsubscribe\r\n${bytes}\r\n{channel}\r\n:{count}\r\n")
}

fn message(channel: &str, text: &str) -> String {
    let (bytes, text_bytes) = (channel.len(), text.len());
    format!("*3\r\n$7\r\nmessage\r\n${bytes}\r\n{channel}\r\n${text_bytes}\r\n{text}\r\n")
}

fn effects_leave_with_the_replies(dir: Option<&std::path::Path>) {
    let member = Member::start_with(dir, |config| {
        config.events = EventClasses::parse("E$").expect("letters");
    });
    let mut listener = listener(&member);
    let (mut probe, mut writer, mut killed) =
        (member.connect(), member.connect(), member.connect());
    send(&mut writer, "SET a 1\r\nPUBLISH x told\r\n");
    wait_until("it is executed", || member.value(b"a").is_some());
    send(&mut killed, "CLIENT ID\r\n");
    let id = line(&mut killed);
    send(&mut killed, "SET b 2\r\nPUBLISH x killed\r\n");
    wait_until("it is executed", || member.value(b"b").is_some());
    send(&mut probe, &format!("CLIENT KILL ID {}\r\n", &id[1..]));
    expect(&mut probe, ":1\r\n");
    rounds(&mut probe);
    expect_nothing(&mut listener);
    // A message that depends on no data does not wait.
    send(&mut probe, "PUBLISH x at-once\r\n");
    expect(&mut probe, ":1\r\n");
    expect(&mut listener, &message("x", "at-once"));
    member.read_until.set(u64::MAX);
    expect(&mut writer, "+OK\r\n:1\r\n");
    let event = |key| message("__keyevent@0__:set", key);
    let effects = [
        event("a") + &message("x", "told"),
        event("b") + &message("x", "killed"),
    ];
    let mut got = vec![0; effects.concat().len()];
    listener.read_exact(&mut got).expect("messages in time");
    let got = String::from_utf8(got).expect("text");
    assert!(effects.iter().all(|effect| got.contains(effect)), "{got}");
}

/// The next line, without its end.
fn line(stream: &mut TcpStream) -> String {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a reply in time");
        line.extend(byte);
    }
    line.truncate(line.len() - 2);
    String::from_utf8(line).expect("text")
}

#[test]
fn nobody_hears_of_a_write_whose_reply_waits() {
    effects_leave_with_the_replies(None);
}

#[test]
fn nobody_hears_of_a_synced_write_whose_reply_waits() {
    let dir = tempfile::tempdir().expect("a directory");
    effects_leave_with_the_replies(Some(dir.path()));
}

#[test]
fn a_request_that_is_given_up_has_told_nothing() {
    let member = Member::start_with(None, |config| {
        config.reply_timeout_s = 1;
        config.events = EventClasses::parse("E$").expect("letters");
    });
    let mut listener = listener(&member);
    let (mut probe, mut writer) = (member.connect(), member.connect());
    send(&mut writer, "SET a 1\r\nPUBLISH x m\r\n");
    expect(&mut writer, "-NOREPLICAS ");
    member.read_until.set(u64::MAX);
    rounds(&mut probe);
    expect_nothing(&mut listener);
}
