//! TLS under the native protocol: members with certificates of one authority, and peers that lack
//! something.

use super::*;
use duramen_tls::rustls::{ServerConnection, StreamOwned};
use duramen_tls::{Authority, Identity, Request, Settings, Stream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

/// A token that an attacker has stolen in some of these tests.
const TOKEN: &[u8] = b"the token of this cluster";

/// An authority with its certificates, in a directory of its own.
struct Ca {
    dir: tempfile::TempDir,
    authority: Authority,
}

impl Ca {
    fn new() -> Ca {
        Ca::named("test")
    }

    fn named(name: &str) -> Ca {
        let dir = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(dir.path(), name, 10).expect("an authority");
        Ca { dir, authority }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The identity in the files of this name.
    fn load(&self, name: &str) -> Arc<Identity> {
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        let settings = Settings::mutual(
            &self.path(&certificate),
            &self.path(&key),
            &self.path("ca.crt"),
        );
        Arc::new(Identity::load(settings).expect("good files"))
    }

    /// A new certificate for this host, or for the names.
    fn issue(&self, name: &str, sans: &[&str]) -> Arc<Identity> {
        self.authority.issue(&request(name, sans)).expect("issued");
        self.load(name)
    }

    fn member(&self, name: &str) -> Arc<Identity> {
        self.issue(name, &["127.0.0.1"])
    }
}

fn request(name: &str, sans: &[&str]) -> Request {
    Request {
        name: name.to_owned(),
        sans: sans.iter().map(|san| (*san).to_owned()).collect(),
        days: 5,
    }
}

fn secure(role: Role, identity: Option<&Arc<Identity>>, token: &[u8]) -> TestHub {
    within(limits(), role, identity, token)
}

fn within(limits: Limits, role: Role, identity: Option<&Arc<Identity>>, token: &[u8]) -> TestHub {
    let options = Options {
        limits,
        identity: identity.cloned(),
        token: token.to_vec(),
        ..Options::new(role, "here")
    };
    Hub::new(options).expect("a hub")
}

fn listening(identity: Option<&Arc<Identity>>, token: &[u8]) -> (TestHub, String) {
    let mut hub = secure(Role::Server, identity, token);
    let address = hub.listen("127.0.0.1:0".parse().unwrap()).expect("listens");
    (hub, address.to_string())
}

/// An exchange between both, which must succeed.
fn talk(server: &mut TestHub, client: &mut TestHub, to: &str, request: u64) {
    ask(client, to, request, Payload::None);
    until(&mut [server, client], |n, hub, event| {
        answer(hub, &event);
        assert!(!matches!(event, Event::Unanswered { .. }), "{event:?}");
        n == 1 && matches!(event, Event::Answer { request: of, .. } if of == request)
    });
}

/// The reason why the client gets no answer. The server must not have admitted it.
fn refusal(server: &mut TestHub, client: &mut TestHub, to: &str) -> Reason {
    ask(client, to, 1, Payload::None);
    let mut found = None;
    until(&mut [server, client], |n, _, event| match event {
        Event::Unanswered { reason, .. } if n == 1 => {
            found = Some(reason);
            true
        }
        Event::Closed { .. } => false, // an earlier link
        other => panic!("{other:?}"),
    });
    let reason = found.expect("a reason");
    assert!(
        reason.is_denial() && !reason.is_sign_of_death(),
        "{reason:?} is no sign of a dead peer"
    );
    reason
}

/// Waits until TLS has ended so many connections.
fn counts(hub: &mut TestHub, failures: u64) {
    let deadline = Instant::now() + PATIENCE;
    while hub.tls_failures() < failures {
        assert!(Instant::now() < deadline, "each is counted");
        hub.poll(STEP, &mut Vec::new());
    }
    assert_eq!(hub.tls_failures(), failures);
}

/// Passes bytes between two connections, and keeps them.
fn relay(to: String) -> (String, std::sync::mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (one, _) = listener.accept().unwrap();
        let two = TcpStream::connect(to).unwrap();
        for (mut from, mut to) in [
            (one.try_clone().unwrap(), two.try_clone().unwrap()),
            (two, one),
        ] {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut chunk = vec![0; 64 << 10];
                while let Ok(bytes @ 1..) = from.read(&mut chunk) {
                    let _ = tell.send(chunk[..bytes].to_vec());
                    if to.write_all(&chunk[..bytes]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    (address, told)
}

/// net::W6.
#[test]
fn frames_of_any_size_pass_and_none_of_them_is_readable_on_the_way() {
    let ca = Ca::new();
    let hub = |name| {
        let limits = Limits::default();
        within(limits, Role::Server, Some(&ca.member(name)), TOKEN)
    };
    let (mut server, mut client) = (hub("one"), hub("two"));
    let address = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (to, heard) = relay(address.to_string());
    let sizes = [
        0,
        1,
        4096,
        4097,
        16_384,
        70_000,
        300_000,
        3 << 20,
        0,
        900_000,
        5,
    ];
    let text = b"nobody else reads this. ";
    let payload = |n: usize| -> Vec<u8> {
        let bytes = text.iter().cycle().skip(n);
        bytes.take(sizes[n]).copied().collect()
    };
    for n in 0..sizes.len() {
        let bytes = match n % 2 {
            0 => Payload::Owned(payload(n)),
            _ => Payload::Shared(payload(n).into()),
        };
        ask(&mut client, &to, n as u64 + 1, bytes);
    }
    let mut next = 0;
    until(&mut [&mut server, &mut client], |_, hub, event| {
        answer(hub, &event);
        assert!(!matches!(event, Event::Unanswered { .. }), "{event:?}");
        if let Event::Answer {
            request, message, ..
        } = event
        {
            assert_eq!(request, next as u64 + 1);
            assert!(message.payload() == payload(next), "payload {next}");
            next += 1;
        }
        next == sizes.len()
    });
    drop((server, client));
    let all: Vec<u8> = heard.iter().flatten().collect();
    let tells = |what: &[u8]| all.windows(what.len()).any(|window| window == what);
    assert!(all.len() > 2 * sizes.iter().sum::<usize>(), "it heard all");
    assert!(!tells(b"DURAMENN") && !tells(&text[..12]) && !tells(b"here"));
}

#[test]
fn a_side_that_lacks_a_certificate_of_the_authority_gets_nothing_even_with_the_token() {
    let (ca, other) = (Ca::new(), Ca::named("other"));
    let (mut server, to) = listening(Some(&ca.member("server")), TOKEN);
    // Of another authority.
    let mut stranger = secure(Role::Server, Some(&other.member("stranger")), TOKEN);
    let reason = refusal(&mut server, &mut stranger, &to);
    assert!(reason.to_string().contains("authority"), "{reason}");
    // It trusts the cluster's authority, and has a certificate of another one.
    other
        .authority
        .issue(&request("thief", &["127.0.0.1"]))
        .expect("issued");
    let mut settings = Settings::mutual(
        &other.path("thief.crt"),
        &other.path("thief.key"),
        &ca.path("ca.crt"),
    );
    let thief = Arc::new(Identity::load(settings.clone()).expect("good files"));
    let mut thief = secure(Role::Server, Some(&thief), TOKEN);
    let reason = refusal(&mut server, &mut thief, &to);
    assert!(reason.to_string().contains("refuses"), "{reason}");
    // It has none.
    settings.certificate_file = PathBuf::new();
    settings.key_file = PathBuf::new();
    let bare = Arc::new(Identity::load(settings).expect("good files"));
    for role in [Role::Server, Role::Client] {
        let mut bare = secure(role, Some(&bare), TOKEN);
        let reason = refusal(&mut server, &mut bare, &to);
        let text = reason.to_string();
        assert!(text.contains("requires a certificate"), "{text}");
    }
    counts(&mut server, 4);
    // A certificate alone does not do either.
    let friend = ca.member("friend");
    let mut guess = secure(Role::Server, Some(&friend), b"a guess");
    assert_eq!(refusal(&mut server, &mut guess, &to), Reason::Token);
    let mut friend = secure(Role::Server, Some(&friend), TOKEN);
    talk(&mut server, &mut friend, &to, 2);
}

/// A member's certificate is stolen, and used on another host.
#[test]
fn a_certificate_for_another_host_is_not_accepted() {
    let ca = Ca::new();
    let (mut server, to) = listening(Some(&ca.issue("server", &["127.0.0.2", "there"])), TOKEN);
    let mut client = secure(Role::Server, Some(&ca.member("client")), TOKEN);
    let reason = refusal(&mut server, &mut client, &to);
    assert!(reason.to_string().contains("127.0.0.1"), "{reason}");
    assert_eq!(client.tls_failures(), 1);
    counts(&mut server, 1);
}

/// net::W6.
#[test]
fn a_side_without_tls_is_told_so_and_none_goes_on_without() {
    let ca = Ca::new();
    let identity = ca.member("one");
    let (mut server, to) = listening(Some(&identity), TOKEN);
    let mut plain = secure(Role::Server, None, TOKEN);
    let reason = refusal(&mut server, &mut plain, &to);
    assert!(
        matches!(&reason, Reason::Refused(why) if why.contains("requires TLS")),
        "{reason:?}"
    );
    let (mut plain, to) = listening(None, TOKEN);
    let mut client = secure(Role::Server, Some(&identity), TOKEN);
    let reason = refusal(&mut plain, &mut client, &to);
    assert!(
        matches!(&reason, Reason::Tls(why) if why.contains("does not speak TLS")),
        "{reason:?}"
    );
    assert!(plain.offences() > 0);
}

/// An attacker between both sides has a member's certificate and key, but not the token. It ends
/// the TLS connection of each side and forwards what they say.
#[test]
fn a_handshake_that_is_forwarded_between_two_channels_proves_nothing() {
    let ca = Ca::new();
    let (mut server, address) = listening(Some(&ca.member("server")), TOKEN);
    let mut client = secure(Role::Server, Some(&ca.member("client")), TOKEN);
    let stolen = ca.member("stolen");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let attacker = std::thread::spawn(move || {
        let (one, _) = listener.accept().unwrap();
        let config = stolen.server_config().expect("it has a certificate");
        let mut one = StreamOwned::new(ServerConnection::new(config).unwrap(), one);
        let two = TcpStream::connect(address).unwrap();
        let mut two = Stream::connect(&stolen, "127.0.0.1", two).expect("it is admitted");
        let mut forwarded = [0; 2];
        let mut chunk = [0; 4096];
        // Opening, opening, proof: the next is the reason why the server refuses.
        for turn in 0..3 {
            let from: &mut dyn Read = if turn % 2 == 0 { &mut one } else { &mut two };
            let bytes = from.read(&mut chunk).expect("the next part");
            let to: &mut dyn Write = if turn % 2 == 0 { &mut two } else { &mut one };
            to.write_all(&chunk[..bytes]).expect("it is forwarded");
            to.flush().expect("it is forwarded");
            forwarded[turn % 2] += bytes;
        }
        let bytes = two.read(&mut chunk).expect("the reason");
        let _ = one.write_all(&chunk[..bytes]);
        let _ = one.flush();
        forwarded
    });
    let reason = refusal(&mut server, &mut client, &to);
    assert_eq!(reason, Reason::Token, "handshake::S5");
    let forwarded = attacker.join().expect("no panic");
    assert_eq!(forwarded[1], OPENING_BYTES, "it got no proof of the server");
}

/// A certificate that is valid for so many seconds.
fn short(ca: &Ca, name: &str, seconds: i64) -> Arc<Identity> {
    let read = |name: &str| std::fs::read_to_string(ca.path(name)).expect("a file");
    let key = rcgen::KeyPair::from_pem(&read("ca.key")).expect("a key");
    let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca.crt"), key).expect("an authority");
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let now = time::OffsetDateTime::now_utc();
    params.not_before = now - time::Duration::minutes(1);
    params.not_after = now + time::Duration::seconds(seconds);
    let key = rcgen::KeyPair::generate().unwrap();
    let made = params.signed_by(&key, &issuer).expect("signed");
    std::fs::write(ca.path(&format!("{name}.crt")), made.pem()).unwrap();
    std::fs::write(ca.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    ca.load(name)
}

#[test]
fn an_expired_certificate_ends_no_link_but_makes_none() {
    let ca = Ca::new();
    let mut client = secure(Role::Server, Some(&ca.member("client")), TOKEN);
    // It needs the clock, because a certificate is to expire. A busy machine connects in 5 s.
    let identity = short(&ca, "short", 5);
    let begun = SystemTime::now();
    let (mut server, to) = listening(Some(&identity), TOKEN);
    talk(&mut server, &mut client, &to, 1);
    while begun.elapsed().expect("the clock goes on") < Duration::from_secs(7) {
        std::thread::sleep(Duration::from_millis(100));
    }
    talk(&mut server, &mut client, &to, 2);
    client.close_links(&to);
    client.poll(STEP, &mut Vec::new());
    let reason = refusal(&mut server, &mut client, &to);
    assert!(
        reason.to_string().contains("it has expired"),
        "the reason is clear: {reason}"
    );
    assert!(identity.reload().is_err(), "the file is as before");
    // A new certificate, while the process runs.
    short(&ca, "short", 1000);
    identity.reload().expect("good files");
    talk(&mut server, &mut client, &to, 3);
}

/// The authority is replaced, with an overlap; then the old one is taken away.
#[test]
fn new_certificates_are_for_new_connections_and_end_none() {
    let mut ca = Ca::new();
    let (one, two) = (ca.member("one"), ca.member("two"));
    let (mut server, to) = listening(Some(&one), TOKEN);
    let mut client = secure(Role::Server, Some(&two), TOKEN);
    talk(&mut server, &mut client, &to, 1);
    ca.authority = ca.authority.rotate("test", 10).expect("rotated");
    let before = one.certificate().expect("it has one");
    for (n, step) in (2..).zip(["trust", "renew one", "renew two", "forget"]) {
        match step {
            "trust" => {}
            "renew one" => drop(ca.authority.renew(&request("one", &[])).expect("renewed")),
            "renew two" => drop(ca.authority.renew(&request("two", &[])).expect("renewed")),
            _ => ca.authority.forget_last().expect("there was one"),
        }
        one.reload().expect("good files");
        two.reload().expect("good files");
        // On the established link, and on a new one.
        talk(&mut server, &mut client, &to, 10 * n);
        client.close_links(&to);
        client.poll(STEP, &mut Vec::new());
        talk(&mut server, &mut client, &to, 10 * n + 1);
    }
    assert_ne!(
        one.certificate().expect("it has one").not_after,
        before.not_before
    );
    assert_eq!((server.tls_failures(), client.tls_failures()), (0, 0));
}

/// A peer made by the test, with TLS: shakes hands with the hub, and then says this at once.
fn tells(identity: Arc<Identity>, to: String, role: Role, frames: Vec<u8>) -> Stream {
    let socket = TcpStream::connect(to).expect("connects");
    let mut stream = Stream::connect(&identity, "127.0.0.1", socket).expect("admitted");
    let mut out = Vec::new();
    let nonce = fresh_nonce().expect("random numbers");
    let mut handshake = Handshake::dial(role, nonce, &mut out);
    handshake.bind(&stream.channel_binding().expect("it is open"));
    let (mut input, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        stream.write_all(&out).expect("taken");
        stream.flush().expect("taken");
        out.clear();
        let bytes = stream.read(&mut chunk).expect("an answer");
        input.extend_from_slice(&chunk[..bytes]);
        match handshake.advance(here(TOKEN), &input, &mut out) {
            Ok(Progress::Waiting { used }) => drop(input.drain(..used)),
            Ok(Progress::Done { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    out.extend(frames);
    stream.write_all(&out).expect("taken");
    stream.flush().expect("taken");
    stream
}

/// Replicas and native clients are served by other threads.
#[test]
fn a_connection_moves_to_another_hub_with_its_channel_and_what_came_already() {
    let ca = Ca::new();
    let options = Options {
        identity: Some(ca.member("server")),
        token: TOKEN.to_vec(),
        limits: limits(),
        hands_over: |role| role == Role::Replica,
        ..Options::new(Role::Server, "here")
    };
    let mut listener: TestHub = Hub::new(options).unwrap();
    let to = listener.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut keeper = secure(Role::Server, None, b"");
    let identity = ca.member("peer");
    // More than a receive takes, in pieces that no frame ends with.
    let mut frames = Vec::new();
    for n in 1..=40 {
        frames.extend(ping(n, &vec![n as u8; 5_000]));
    }
    let peer = std::thread::spawn(move || {
        let mut stream = tells(identity, to.to_string(), Role::Replica, frames);
        let (mut heard, mut answers) = (Vec::new(), 0);
        let mut chunk = vec![0; 64 << 10];
        while answers < 40 {
            let bytes = stream.read(&mut chunk).expect("answers");
            assert!(bytes > 0, "it ended");
            heard.extend_from_slice(&chunk[..bytes]);
            while let Ok(Parsed::Frame { bytes, .. }) = parse_frame(&heard, 1 << 20) {
                heard.drain(..bytes);
                answers += 1;
            }
        }
    });
    let mut handed = None;
    until(&mut [&mut listener], |_, _, event| match event {
        Event::Handed(incoming) => {
            assert!(incoming.tls.is_some(), "its channel comes with it");
            handed = Some(incoming);
            true
        }
        other => panic!("{other:?}"),
    });
    keeper.adopt(handed.expect("it came"));
    let mut next = 1;
    until(&mut [&mut keeper, &mut listener], |n, hub, event| {
        assert_eq!(n, 0, "{event:?}");
        answer(hub, &event);
        if let Event::Question { message, .. } = event {
            assert_eq!(nonce_of(&message), next);
            assert_eq!(message.payload(), &vec![next as u8; 5_000]);
            next += 1;
        }
        next == 41
    });
    let deadline = Instant::now() + PATIENCE;
    while !peer.is_finished() && Instant::now() < deadline {
        keeper.poll(STEP, &mut Vec::new());
    }
    peer.join().expect("it got all answers");
}

/// net::W7: strangers that connect all at once do not delay a ping.
#[test]
fn a_storm_of_handshakes_takes_a_part_of_a_round() {
    let ca = Ca::new();
    let (mut server, to) = listening(Some(&ca.member("server")), TOKEN);
    let mut client = secure(Role::Server, Some(&ca.member("client")), TOKEN);
    talk(&mut server, &mut client, &to, 1);
    let mut hello = Vec::new();
    let config = ca.load("client").client_config().expect("it trusts");
    let name = "127.0.0.1".try_into().expect("a name");
    let mut made = duramen_tls::rustls::ClientConnection::new(config, name).expect("a client");
    made.write_tls(&mut hello).expect("a hello");
    let strangers: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut peer = TcpStream::connect(&to).expect("connects");
            peer.write_all(&hello).expect("taken");
            peer.set_nonblocking(true).unwrap();
            peer
        })
        .collect();
    // All are accepted, and none was answered.
    let mut events = Vec::new();
    let answered = || {
        let heard = |peer: &&TcpStream| peer.peek(&mut [0]).is_ok_and(|bytes| bytes > 0);
        strangers.iter().filter(heard).count()
    };
    let mut before = 0;
    let mut most = 0;
    for request in 2.. {
        ask(&mut client, &to, request, Payload::None);
        client.poll(Some(Duration::ZERO), &mut events);
        events.clear();
        // The question is in the server's socket: one round hears it, whatever else there is.
        std::thread::sleep(Duration::from_millis(1));
        let mut rounds = 0;
        let mut is_heard = false;
        while !is_heard {
            server.poll(Some(Duration::ZERO), &mut events);
            rounds += 1;
            for event in events.drain(..) {
                is_heard |= matches!(event, Event::Question { .. });
                answer(&mut server, &event);
            }
            assert!(rounds < 10, "it waits behind the strangers");
        }
        let now = answered();
        most = most.max((now - before) / rounds);
        before = now;
        if now == strangers.len() {
            assert!(request > 10, "all shook hands in {request} rounds");
            break;
        }
        assert!(request < 10_000, "the strangers are served as well");
    }
    assert!(most < 50, "{most} handshakes in a round");
}

#[test]
fn garbage_and_stalls_end_alone() {
    let ca = Ca::new();
    let options = Options {
        identity: Some(ca.member("server")),
        limits: impatient(),
        ..Options::new(Role::Server, "here")
    };
    let mut server: TestHub = Hub::new(options).unwrap();
    let to = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut hello = Vec::new();
    let config = ca.member("client").client_config().expect("it trusts");
    let name = "127.0.0.1".try_into().expect("a name");
    let mut made = duramen_tls::rustls::ClientConnection::new(config, name).expect("a client");
    made.write_tls(&mut hello).expect("a hello");
    let long = [&[22, 3, 1, 0x40, 0][..], &[1; 0x4000]].concat();
    let mut flipped = hello.clone();
    flipped[40] ^= 0xff;
    for bytes in [
        &b""[..],
        b"\x16",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0xff; 100],
        &hello[..hello.len() / 2],
        &hello,
        &flipped,
        &long,
    ] {
        let mut peer = TcpStream::connect(to).expect("connects");
        peer.write_all(bytes).expect("taken");
        let ended = std::thread::spawn(move || {
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            // An end, or a reset.
            let _ = peer.read_to_end(&mut Vec::new());
        });
        let (deadline, mut events) = (Instant::now() + PATIENCE, Vec::new());
        while !ended.is_finished() {
            server.poll(STEP, &mut events);
            assert!(Instant::now() < deadline, "it stays: {bytes:?}");
        }
        assert!(events.is_empty(), "{events:?}");
        ended.join().expect("no panic");
    }
    let mut friend = secure(Role::Server, Some(&ca.load("client")), b"");
    talk(&mut server, &mut friend, &to.to_string(), 1);
}
