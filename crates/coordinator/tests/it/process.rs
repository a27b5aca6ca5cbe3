//! Tests of coordinators with real sockets, around stores that the tests control.

use duramen_acl::{Catalog, Command};
use duramen_base::ids::{RouteHash, ServerId, TableId};
use duramen_client::{
    Admin, AdminAnswer, Client, Error as ClientError, Login, Options as ClientOptions,
};
use duramen_cluster::coordinator::store::{
    Batch, Contents, Error, Memory, MetaStore, Renewal, Term,
};
use duramen_coordinator::{
    EtcdAccess, Options, Role, Running, StoreSpec, defaults, start, start_with,
};
use duramen_net::{Event, Hub, Payload};
use duramen_wire::native::codec::{
    Envelope, Question, Reply, Role as HelloRole, decode_question, decode_reply,
    encode_server_answer, encode_to_coordinator,
};
use duramen_wire::native::message::{
    ClusterSettings, ClusterUsers, CoordinatorAnswer, Enlist, FromCoordinator, ServerAnswer,
    ServerStatus, Status, ToCoordinator,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait; beyond it the test fails.
const DEADLINE: Duration = Duration::from_secs(60);

fn options(store: &str) -> Options {
    // On a busy machine, a server that does not run for a moment must not be called crashed. A
    // server that is gone refuses connections.
    let settings = ClusterSettings {
        verdict_timeout_ms: 3_000,
        ..defaults(7)
    };
    Options {
        cluster: "trial".to_owned(),
        listen: "127.0.0.1:0".parse().expect("an address"),
        announce: None,
        store: store.parse().expect("a store"),
        token: Vec::new(),
        identity: None,
        settings,
        chosen: Vec::new(),
        balances: false,
        admin: Some("127.0.0.1:0".parse().expect("an address")),
        admin_identity: None,
        etcd: EtcdAccess::default(),
        catalog,
        show: |overview, _, _| format!("{{\"cluster\":\"{}\"}}", overview.status.cluster),
    }
}

/// The commands that the rules of these tests name.
fn catalog() -> Catalog {
    let names = ["info", "duramen.table|create", "duramen.table|drop"];
    Catalog::new(names.map(|name| Command {
        name,
        categories: 0,
        is_free: false,
    }))
}

/// A store that several coordinators share, with a lease of `lease_ms` milliseconds. The test
/// decides whether it can be reached.
struct Leased {
    memory: Memory,
    lease_ms: u64,
    /// 0: it can be reached. [`SLOW_COMMITS`]: it can, and commits take long.
    away: Arc<AtomicU64>,
}

const SLOW_COMMITS: u64 = 2;
/// The next commit takes long, the others do not.
const SLOW_COMMIT: u64 = 3;

struct LeasedRenewal {
    memory: Memory,
    away: Arc<AtomicU64>,
}

impl Renewal for LeasedRenewal {
    fn renew(&mut self) -> Result<(), Error> {
        check(&self.away)?;
        self.memory.check()
    }
    fn tidy(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

fn check(away: &AtomicU64) -> Result<(), Error> {
    match away.load(Ordering::SeqCst) {
        0 | SLOW_COMMITS | SLOW_COMMIT => Ok(()),
        _ => Err(Error::Unavailable {
            reason: "taken away".to_owned(),
        }),
    }
}

impl Leased {
    fn check(&self) -> Result<(), Error> {
        check(&self.away)
    }
}

impl MetaStore for Leased {
    fn acquire(&mut self) -> Result<Option<Term>, Error> {
        self.check()?;
        self.memory.acquire()
    }
    fn renewal(&self) -> Option<Box<dyn Renewal>> {
        Some(Box::new(LeasedRenewal {
            memory: self.memory.clone(),
            away: Arc::clone(&self.away),
        }))
    }
    fn lease_ms(&self) -> u64 {
        self.lease_ms
    }
    fn load(&mut self) -> Result<Contents, Error> {
        self.check()?;
        self.memory.load()
    }
    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        self.check()?;
        let once = self
            .away
            .compare_exchange(SLOW_COMMIT, 0, Ordering::SeqCst, Ordering::SeqCst);
        if once.is_ok() || self.away.load(Ordering::SeqCst) == SLOW_COMMITS {
            std::thread::sleep(Duration::from_millis(1_500));
        }
        self.memory.commit(batch)
    }
    fn leader(&mut self) -> Result<Option<String>, Error> {
        self.check()?;
        self.memory.leader()
    }
    fn resign(&mut self) {
        self.memory.resign();
    }
}

/// A lease longer than any pause of the test's machine.
const LONG_MS: u64 = 60_000;

/// A coordinator on a leased store.
fn leased(memory: &Memory, away: &Arc<AtomicU64>, lease_ms: u64) -> Running {
    let (memory, away) = (memory.peer("x"), Arc::clone(away));
    start_with(options("etcd:nowhere"), move |name, _| {
        Ok(Box::new(Leased {
            memory: memory.peer(name),
            lease_ms,
            away,
        }))
    })
    .expect("it listens")
}

fn client_of(coordinators: &[&Running]) -> Client {
    let addresses = coordinators.iter().map(|running| running.name().to_owned());
    let mut options = ClientOptions::new(addresses.collect::<Vec<String>>());
    options.deadline = DEADLINE;
    Client::new(options).expect("right options")
}

fn status(client: &Client) -> Status {
    match client.admin(Admin::Status).expect("an answer") {
        AdminAnswer::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

fn is_role(running: &Running, wanted: impl Fn(&Role) -> bool) {
    loop {
        let role = running.next_role().expect("it runs");
        if wanted(&role) {
            return;
        }
    }
}

/// A fake server: sends and answers the messages of a member.
struct Server {
    hub: Hub<()>,
    coordinator: String,
    address: String,
    requests: u64,
    /// The questions that it got.
    heard: Vec<FromCoordinator>,
    id: ServerId,
}

impl Server {
    fn new(coordinator: &Running) -> Server {
        let options = duramen_net::Options::new(HelloRole::Server, "trial");
        Server::with(coordinator, options)
    }

    fn with(coordinator: &Running, options: duramen_net::Options) -> Server {
        let mut hub = Hub::new(options).expect("sockets");
        let listen = "127.0.0.1:0".parse().expect("an address");
        let address = hub.listen(listen).expect("a free port").to_string();
        Server {
            hub,
            coordinator: coordinator.name().to_owned(),
            address,
            requests: 0,
            heard: Vec::new(),
            id: ServerId::NONE,
        }
    }

    fn enlist(&mut self, nonce: u64) -> CoordinatorAnswer {
        self.ask(&ToCoordinator::Enlist(Enlist {
            cluster: "trial".to_owned(),
            segment_bytes: defaults(0).segment_bytes,
            ..duramen_harness::enlist(nonce, self.address.clone())
        }))
    }

    fn ask(&mut self, question: &ToCoordinator) -> CoordinatorAnswer {
        self.requests += 1;
        let envelope = Envelope {
            request: self.requests,
            target: ServerId::NONE,
            sender: self.id,
        };
        let to = self.coordinator.clone();
        self.hub.ask(
            &to,
            HelloRole::Server,
            self.requests,
            Payload::None,
            |out| {
                encode_to_coordinator(out, &envelope, question);
            },
        );
        let until = Instant::now() + DEADLINE;
        while Instant::now() < until {
            if let Some(answer) = self.round() {
                return answer;
            }
        }
        panic!("the coordinator does not answer");
    }

    /// Polls its sockets for 20 ms, and answers questions.
    fn round(&mut self) -> Option<CoordinatorAnswer> {
        let mut events = Vec::new();
        self.hub.poll(Some(Duration::from_millis(20)), &mut events);
        let mut answered = None;
        for event in events {
            match event {
                Event::Answer { message, .. } => match decode_reply(&message.frame()) {
                    Ok(Reply::Coordinator(answer)) => answered = Some(answer),
                    other => panic!("{other:?}"),
                },
                Event::Question {
                    connection,
                    message,
                    ..
                } => {
                    let frame = message.frame();
                    let Ok(Question::FromCoordinator(question)) = decode_question(&frame) else {
                        panic!("only the coordinator asks here");
                    };
                    let answer = match &question {
                        FromCoordinator::Ping { nonce } => Some(ServerAnswer::Pong {
                            nonce: *nonce,
                            list_version: Default::default(),
                        }),
                        FromCoordinator::Servers(update) => Some(ServerAnswer::Confirmed {
                            list_version: update.version(),
                            tablets_version: Default::default(),
                        }),
                        FromCoordinator::Tablets(tablets) => Some(ServerAnswer::Confirmed {
                            list_version: Default::default(),
                            tablets_version: tablets.version,
                        }),
                        _ => None,
                    };
                    let asked = frame.header.envelope;
                    let envelope = Envelope {
                        request: asked.request,
                        target: asked.sender,
                        sender: asked.target,
                    };
                    if let Some(answer) = answer {
                        self.hub.reply(connection, Payload::None, |out| {
                            encode_server_answer(out, &envelope, &answer, 0);
                        });
                    }
                    self.heard.push(question);
                }
                _ => {}
            }
        }
        answered
    }

    fn until(&mut self, what: &str, is_true: impl Fn(&Server) -> bool) {
        let until = Instant::now() + DEADLINE;
        while !is_true(self) {
            assert!(Instant::now() < until, "never: {what}");
            self.round();
        }
    }
}

#[test]
fn a_member_is_told_what_it_owns_and_its_end_is_noticed() {
    let folder = tempfile::tempdir().expect("a folder");
    let running = start(options(&format!("redb:{}", folder.path().display()))).expect("it starts");
    is_role(&running, |role| *role == Role::Leader);
    let client = client_of(&[&running]);
    let mut server = Server::new(&running);
    let CoordinatorAnswer::Enlisted(enlisted) = server.enlist(5) else {
        panic!("it may be a member");
    };
    server.id = enlisted.server;
    let create = Admin::CreateTable {
        name: "t".to_owned(),
        servers: 1,
        level: None,
    };
    let created = client.admin(create.clone()).expect("created");
    assert!(matches!(created, AdminAnswer::Table(_)), "{created:?}");
    let again = client.admin(create).expect_err("it exists");
    assert!(again.to_string().contains("table `t` exists"), "{again}");
    let (table, at) = (TableId(1), RouteHash::first_of_slot(99));
    let split = client.admin(Admin::Split { table, at });
    assert_eq!(split.expect("split"), AdminAnswer::Done);
    server.until("it is told two tablets", |server| {
        server.heard.iter().any(|question| {
            matches!(question, FromCoordinator::Tablets(told) if told.tablets.len() == 2)
        })
    });
    let asked = status(&client);
    assert_eq!(asked.servers[0].status, ServerStatus::Up);
    assert_eq!((asked.tablets.len(), asked.term), (2, 1));
    // No member suspects it: the coordinator itself notices that its port is closed, as the other
    // server still answers.
    let mut other = Server::new(&running);
    assert!(matches!(other.enlist(6), CoordinatorAnswer::Enlisted(_)));
    drop(server);
    let since = Instant::now();
    while status(&client).servers[0].status == ServerStatus::Up {
        assert!(since.elapsed() < DEADLINE, "its end was not noticed");
        other.round();
    }
    drop(other);
    running.stopper().stop();
    running.wait().expect("it ends as told");
    // A new coordinator finds the state in the store, if its cluster has the same name.
    let running = start(options(&format!("redb:{}", folder.path().display()))).expect("it starts");
    let asked = status(&client_of(&[&running]));
    assert_eq!((asked.tablets.len(), asked.term), (2, 2));
    let second = start(options(&format!("redb:{}", folder.path().display()))).expect("it listens");
    let why = second.wait().expect_err("the store is in use");
    let text = why.to_string();
    assert!(
        text.contains("in use") && text.contains(running.name()),
        "{text}"
    );
    running.stopper().stop();
    running.wait().expect("it ends as told");
    let mut foreign = options(&format!("redb:{}", folder.path().display()));
    foreign.cluster = "other".to_owned();
    let why = start(foreign)
        .expect("it listens")
        .wait()
        .expect_err("another cluster's store");
    assert!(why.to_string().contains("`trial`, not `other`"), "{why}");
}

/// A standby with a wrong token took over, was refused by every server, and called all of them
/// crashed within half a second.
#[test]
fn a_standby_with_a_wrong_token_leaves_the_leadership_and_calls_nobody_crashed() {
    let memory = Memory::new("nobody");
    let away = Arc::new(AtomicU64::new(0));
    let with = |token: &[u8]| {
        let mut options = options("etcd:nowhere");
        // With the patience of `options`: servers of this test are silent in turn.
        options.token = token.to_vec();
        let (memory, away) = (memory.clone(), Arc::clone(&away));
        start_with(options, move |name, _| {
            Ok(Box::new(Leased {
                memory: memory.peer(name),
                lease_ms: LONG_MS,
                away,
            }))
        })
        .expect("it listens")
    };
    let right = with(b"right");
    is_role(&right, |role| *role == Role::Leader);
    let mut servers = [1, 2].map(|nonce| {
        let mut options = duramen_net::Options::new(HelloRole::Server, "trial");
        options.token = b"right".to_vec();
        let mut server = Server::with(&right, options);
        assert!(matches!(
            server.enlist(nonce),
            CoordinatorAnswer::Enlisted(_)
        ));
        server
    });
    let wrong = with(b"wrong");
    right.stopper().stop();
    right.wait().expect("it ends as told");
    let mut next = |running: &Running, wanted: fn(&Role) -> bool| {
        let until = Instant::now() + DEADLINE;
        while running.try_next_role().is_none_or(|role| !wanted(&role)) {
            assert!(Instant::now() < until, "its role does not change");
            servers.iter_mut().for_each(|server| _ = server.round());
        }
    };
    next(&wrong, |role| *role == Role::Leader);
    next(&wrong, |role| *role != Role::Leader); // it is denied
    let right = with(b"right");
    next(&right, |role| *role == Role::Leader);
    let mut options = ClientOptions::new([right.name().to_owned()]);
    options.deadline = DEADLINE;
    options.token = b"right".to_vec();
    let client = Client::new(options).expect("right options");
    let up = status(&client).servers;
    assert!(
        up.len() == 2 && up.iter().all(|server| server.status == ServerStatus::Up),
        "{up:?}"
    );
    for running in [wrong, right] {
        running.stopper().stop();
        running.wait().expect("it ends as told");
    }
}

/// A store like etcd: a leader without a renewal for the length of a lease is deposed. Loading
/// takes longer than a lease.
struct Slow {
    memory: Memory,
    renewed: Arc<Mutex<Instant>>,
    loads: Arc<AtomicU64>,
}

const SLOW_LEASE: Duration = Duration::from_millis(1_000);

struct SlowRenewal(Memory, Arc<Mutex<Instant>>);

impl Renewal for SlowRenewal {
    fn renew(&mut self) -> Result<(), Error> {
        self.0.check()?;
        *self.1.lock().expect("nobody panicked") = Instant::now();
        Ok(())
    }
    fn tidy(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

impl MetaStore for Slow {
    fn acquire(&mut self) -> Result<Option<Term>, Error> {
        let mut renewed = self.renewed.lock().expect("nobody panicked");
        if renewed.elapsed() >= SLOW_LEASE {
            self.memory.expire();
        }
        let term = self.memory.acquire()?;
        if term.is_some() {
            *renewed = Instant::now();
        }
        Ok(term)
    }
    fn renewal(&self) -> Option<Box<dyn Renewal>> {
        let renewed = Arc::clone(&self.renewed);
        Some(Box::new(SlowRenewal(self.memory.clone(), renewed)))
    }
    fn lease_ms(&self) -> u64 {
        SLOW_LEASE.as_millis() as u64
    }
    fn load(&mut self) -> Result<Contents, Error> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(SLOW_LEASE * 5 / 2);
        self.memory.load()
    }
    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        self.memory.commit(batch)
    }
    fn leader(&mut self) -> Result<Option<String>, Error> {
        self.memory.leader()
    }
    fn resign(&mut self) {
        self.memory.resign();
    }
}

/// With 30,000 clients' leases in etcd, or 20 ms per request, loading took longer than the lease,
/// which was not renewed meanwhile: each coordinator was deposed while it loaded, and none ever
/// led.
#[test]
fn a_leader_keeps_its_lease_while_it_loads() {
    let memory = Memory::new("nobody");
    let renewed = Arc::new(Mutex::new(Instant::now()));
    let loads = Arc::new(AtomicU64::new(0));
    let started = [1, 2].map(|_| {
        let (memory, renewed, loads) = (memory.clone(), Arc::clone(&renewed), Arc::clone(&loads));
        let make = move |name: &str, _: &str| {
            let memory = memory.peer(name);
            let slow = Slow {
                memory,
                renewed,
                loads,
            };
            Ok(Box::new(slow) as Box<dyn MetaStore>)
        };
        start_with(options("etcd:nowhere"), make).expect("it listens")
    });
    let until = Instant::now() + DEADLINE;
    let leads = |running: &Running| running.try_next_role() == Some(Role::Leader);
    while !started.iter().any(leads) {
        let loads = loads.load(Ordering::SeqCst);
        assert!(Instant::now() < until, "nobody leads after {loads} loads");
        std::thread::sleep(Duration::from_millis(5));
    }
    for running in started {
        running.stopper().stop();
        running.wait().expect("it ends as told");
    }
}

#[test]
fn when_the_leader_goes_a_standby_leads_and_clients_follow() {
    let (memory, away) = (Memory::new("x"), Arc::new(AtomicU64::new(0)));
    let first = leased(&memory, &away, LONG_MS);
    is_role(&first, |role| *role == Role::Leader);
    let second = leased(&memory, &away, LONG_MS);
    is_role(&second, |role| {
        *role == Role::Standby(Some(first.name().to_owned()))
    });
    // A standby refers the client to the leader.
    let client = client_of(&[&second]);
    assert_eq!(status(&client).leader, first.name());
    first.stopper().stop();
    first.wait().expect("it ends as told");
    is_role(&second, |role| *role == Role::Leader);
    let after = status(&client);
    assert_eq!((after.leader.as_str(), after.term), (second.name(), 3));
    second.stopper().stop();
    second.wait().expect("it ends as told");
}

#[test]
fn a_leader_without_its_store_ends_its_leadership_and_says_why() {
    let (memory, away) = (Memory::new("x"), Arc::new(AtomicU64::new(0)));
    let running = leased(&memory, &away, 2_000);
    is_role(&running, |role| *role == Role::Leader);
    let client = client_of(&[&running]);
    // A pause of the machine may have cost it a leadership already.
    let term = status(&client).term;
    away.store(1, Ordering::SeqCst);
    // coordinator::D2: without a renewal it leads no longer than the lease.
    is_role(&running, |role| matches!(role, Role::Standby(_)));
    let mut options = ClientOptions::new([running.name().to_owned()]);
    options.deadline = Duration::from_secs(3);
    let impatient = Client::new(options).expect("right options");
    let until = Instant::now() + DEADLINE;
    loop {
        match impatient.admin(Admin::Status) {
            Err(error @ (ClientError::OutcomeUnknown { .. } | ClientError::Deadline { .. })) => {
                if error.to_string().contains("taken away") {
                    break;
                }
                // The machine paused meanwhile.
                assert!(Instant::now() < until, "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    let mut deposed = memory.peer("x");
    deposed.expire();
    away.store(0, Ordering::SeqCst);
    is_role(&running, |role| *role == Role::Leader);
    assert!(status(&client).term > term);
    running.stopper().stop();
    running.wait().expect("it ends as told");
}

#[test]
fn strange_questions_are_answered_and_hurt_nobody() {
    use std::io::{Read as _, Write as _};
    let folder = tempfile::tempdir().expect("a folder");
    let running = start(options(&format!("redb:{}", folder.path().display()))).expect("it starts");
    let ask = |bytes: &[u8]| {
        let mut stream = std::net::TcpStream::connect(running.address()).expect("it listens");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream.write_all(bytes).expect("it takes bytes");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"DURAMENN", &[0xff; 200]] {
        ask(bytes);
    }
    let mut options = ClientOptions::new([running.name().to_owned()]);
    options.cluster = "other".to_owned();
    options.deadline = DEADLINE;
    let stranger = Client::new(options).expect("right options");
    let why = stranger
        .admin(Admin::Status)
        .expect_err("another cluster")
        .to_string();
    assert!(why.contains("trial") && why.contains("other"), "{why}");
    let admin = |path: &str| {
        let mut stream =
            std::net::TcpStream::connect(running.admin().expect("admin HTTP")).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream
            .write_all(request.as_bytes())
            .expect("it takes bytes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    // Peers that send nothing keep nobody away.
    let idle = || std::net::TcpStream::connect(running.admin().expect("admin HTTP"));
    let idle: Vec<_> = (0..40).map(|_| idle().expect("it listens")).collect();
    assert!(admin("/livez").starts_with("HTTP/1.1 200"));
    drop(idle);
    assert!(admin("/status").ends_with("{\"cluster\":\"trial\"}\n"));
    assert!(admin("/metrics").contains("\nduramen_coordinator_leads 1\n"));
    assert!(admin("/readyz").starts_with("HTTP/1.1 200"));
    assert!(admin("/nothing").starts_with("HTTP/1.1 404"));
    assert_eq!(status(&client_of(&[&running])).cluster, "trial");
    // The store never assigned this id: the server is of another cluster, and this store is new.
    let mut server = Server::new(&running);
    server.id = ServerId::new(3, 3);
    let refused = server.ask(&ToCoordinator::Suspect {
        server: ServerId::new(0, 1),
        list_version: Default::default(),
    });
    assert!(
        matches!(
            refused,
            CoordinatorAnswer::Refused(duramen_wire::native::message::Refusal::NotReady { .. })
        ),
        "{refused:?}"
    );
    for path in ["/readyz", "/status"] {
        let page = admin(path);
        assert!(
            page.starts_with("HTTP/1.1 503") && page.contains("remove the directories"),
            "{page}"
        );
    }
    running.stopper().stop();
    running.wait().expect("it ends as told");
}

/// Clients, tools and admin HTTP obey the users that a member has set; members go on without.
#[test]
fn clients_have_to_log_in_once_the_cluster_has_users() {
    use std::io::{Read as _, Write as _};
    let folder = tempfile::tempdir().expect("a folder");
    let running = start(options(&format!("redb:{}", folder.path().display()))).expect("it starts");
    let client = |login: Option<(&str, &str)>| {
        let mut options = ClientOptions::new([running.name().to_owned()]);
        options.deadline = DEADLINE;
        options.login = login.map(|(user, password)| Login {
            user: user.to_owned(),
            password: password.to_owned(),
        });
        Client::new(options).expect("right options")
    };
    let admin = |login: &str| {
        let address = running.admin().expect("admin HTTP");
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        let request = format!("GET /metrics HTTP/1.1\r\n{login}\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.split(' ').nth(1).expect("a status").to_owned()
    };
    // Without users: a login changes nothing, as members may have users of their own.
    let early = client(Some(("ann", "secret")));
    assert_eq!(status(&early).cluster, "trial");
    assert_eq!(admin(""), "200");
    let rules = "user default off\nuser ann on >secret +info\nuser bob on >secret +@all";
    let mut server = Server::new(&running);
    assert!(matches!(server.enlist(5), CoordinatorAnswer::Enlisted(_)));
    let set = ToCoordinator::SetUsers(ClusterUsers {
        revision: 1,
        rules: rules.as_bytes().to_vec(),
    });
    assert!(matches!(server.ask(&set), CoordinatorAnswer::Users(_)));
    let stranger = client(None);
    let until = Instant::now() + DEADLINE;
    let why = loop {
        match stranger.admin(Admin::Status) {
            Err(error) => break error.to_string(),
            Ok(_) => assert!(Instant::now() < until, "the users are read soon"),
        }
    };
    assert!(why.contains("log in"), "{why}");
    // The connection from before logs in again.
    assert_eq!(status(&early).cluster, "trial");
    let create = Admin::CreateTable {
        name: "t".to_owned(),
        servers: 1,
        level: None,
    };
    let why = early.admin(create.clone()).expect_err("ann only sees");
    assert!(why.to_string().contains("duramen.table|create"), "{why}");
    let created = client(Some(("bob", "secret"))).admin(create);
    assert!(matches!(created, Ok(AdminAnswer::Table(_))), "{created:?}");
    let began = Instant::now();
    let why = client(Some(("bob", "guess"))).admin(Admin::Status);
    let why = why.expect_err("a wrong password").to_string();
    assert!(why.contains("invalid username-password pair"), "{why}");
    assert!(
        began.elapsed() < DEADLINE / 2,
        "it is not tried until the deadline"
    );
    // ann:secret, ann:guess.
    assert_eq!(admin(""), "401");
    assert_eq!(admin("Authorization: Basic YW5uOnNlY3JldA==\r\n"), "200");
    assert_eq!(admin("Authorization: Basic YW5uOmd1ZXNz\r\n"), "401");
    // Members have no user.
    assert!(matches!(
        server.ask(&ToCoordinator::Users),
        CoordinatorAnswer::Users(_)
    ));
    running.stopper().stop();
    running.wait().expect("it ends as told");
}

#[test]
fn what_is_wrong_with_a_store_is_said() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let spec = StoreSpec::Redb(file.path().join("below"));
    let why = start(options(&spec.to_string()))
        .err()
        .expect("no directory there");
    assert!(
        why.to_string().contains("cannot make the directory"),
        "{why}"
    );
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("coordinator.redb"), b"no store at all").expect("a file");
    let running = start(options(&format!("redb:{}", folder.path().display()))).expect("it listens");
    let why = running.wait().expect_err("the file is damaged");
    assert!(why.to_string().contains("coordinator.redb"), "{why}");
}

/// It was alive and ready, and acknowledged changes; its next start made an empty store, and the
/// cluster could not be restored.
#[test]
fn a_coordinator_whose_directory_is_deleted_ends_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    let running = start(options(&format!("redb:{}", path.display()))).expect("it listens");
    is_role(&running, |role| *role == Role::Leader);
    std::fs::remove_dir_all(&path).expect("removed");
    let why = running.wait().expect_err("it has no store");
    assert!(why.to_string().contains("was removed"), "{why}");
    assert!(!path.exists(), "no empty store takes its place");
}

/// A large table took longer than one attempt of the tool. The repeated request was refused, as the
/// table existed, and the tool reported that.
#[test]
fn a_repeated_creation_of_a_table_is_no_refusal() {
    let (memory, away) = (Memory::new("x"), Arc::new(AtomicU64::new(0)));
    let running = leased(&memory, &away, LONG_MS);
    is_role(&running, |role| *role == Role::Leader);
    let mut server = Server::new(&running);
    assert!(matches!(server.enlist(5), CoordinatorAnswer::Enlisted(_)));
    let mut options = ClientOptions::new([running.name().to_owned()]);
    (options.deadline, options.attempt) = (DEADLINE, Duration::from_millis(300));
    let client = Client::new(options).expect("right options");
    away.store(SLOW_COMMIT, Ordering::SeqCst);
    let create = |servers| Admin::CreateTable {
        name: "t".to_owned(),
        servers,
        level: None,
    };
    let created = client.admin(create(1));
    assert!(matches!(created, Ok(AdminAnswer::Table(_))), "{created:?}");
    let other = client.admin(create(2)).expect_err("it has another form");
    assert!(other.to_string().contains("exists"), "{other}");
    running.stopper().stop();
    running.wait().expect("it ends as told");
}
