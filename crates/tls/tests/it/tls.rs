//! Sessions over real sockets, identities that reload, authorities in real directories.

use duramen_tls::{
    Authority, ClientAuth, Descriptions, HANDSHAKE_BYTES_MAX, Identity, LoadError, MakeError,
    Plain, Protocols, RECORDS_BYTES_MAX, ROOM_BYTES_MIN, Received, Reloaded, Request, Session,
    Settings, Stream, TlsError,
};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// An authority with a server's certificate `server` and a client's, `alice`.
fn authority() -> (TempDir, Authority) {
    let dir = tempfile::tempdir().expect("a folder");
    let authority = Authority::create(dir.path(), "test authority", 30).expect("it is new");
    issue(&authority, "server", &["localhost", "127.0.0.1"]);
    issue(&authority, "alice", &[]);
    (dir, authority)
}

fn issue(authority: &Authority, name: &str, sans: &[&str]) {
    authority.issue(&request(name, sans)).expect("it is new");
}

fn request(name: &str, sans: &[&str]) -> Request {
    Request {
        name: name.to_owned(),
        sans: sans.iter().map(|san| (*san).to_owned()).collect(),
        days: 10,
    }
}

fn settings(dir: &Path, name: &str) -> Settings {
    Settings {
        certificate_file: dir.join(format!("{name}.crt")),
        key_file: dir.join(format!("{name}.key")),
        ca_file: dir.join("ca.crt"),
        ..Settings::default()
    }
}

fn identity(dir: &Path, name: &str) -> Identity {
    Identity::load(settings(dir, name)).expect("its files are right")
}

/// Two connected, nonblocking sockets.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let ours = TcpStream::connect(address).expect("it listens");
    let (theirs, _) = listener.accept().expect("one comes");
    for socket in [&ours, &theirs] {
        socket.set_nonblocking(true).expect("a socket");
        socket.set_nodelay(true).expect("a socket");
    }
    (ours, theirs)
}

/// One end of a connection.
struct End {
    session: Session,
    socket: TcpStream,
    room: Vec<u8>,
    received: Vec<u8>,
    has_ended: bool,
}

impl End {
    fn new(session: Session, socket: TcpStream) -> End {
        End {
            session,
            socket,
            room: vec![0; ROOM_BYTES_MIN],
            received: Vec::new(),
            has_ended: false,
        }
    }

    /// Receives and sends what is possible now; true: something moved.
    fn turn(&mut self) -> Result<bool, TlsError> {
        let mut moved = false;
        loop {
            match self.session.receive(&self.socket, &mut self.room)? {
                Received::Plain(bytes) => self.received.extend_from_slice(&self.room[..bytes]),
                Received::Progress => {}
                Received::Nothing => break,
                Received::End => {
                    self.has_ended = true;
                    break;
                }
            }
            moved = true;
        }
        moved |= self.session.send(&self.socket, &[])?.wire > 0;
        Ok(moved)
    }
}

/// Both ends take turns until the handshake is over or one of them fails; returns their results.
fn shake(ours: &mut End, theirs: &mut End) -> (Result<(), TlsError>, Result<(), TlsError>) {
    let (mut first, mut second) = (Ok(()), Ok(()));
    for _ in 0..20_000 {
        let mut moved = false;
        for (end, result) in [(&mut *ours, &mut first), (&mut *theirs, &mut second)] {
            if result.is_ok() {
                match end.turn() {
                    Ok(has_moved) => moved |= has_moved,
                    Err(error) => {
                        *result = Err(error);
                        let _ = end.session.send(&end.socket, &[]); // the alert
                    }
                }
            }
        }
        if !moved {
            std::thread::sleep(Duration::from_micros(50));
        }
        let is_over = !ours.session.is_handshaking() && !theirs.session.is_handshaking();
        if first.is_err() || second.is_err() || is_over {
            // The rest of the last flight, or the alert.
            std::thread::sleep(Duration::from_millis(5));
            for (end, result) in [(&mut *ours, &mut first), (&mut *theirs, &mut second)] {
                if result.is_ok() {
                    *result = end.turn().map(|_| ());
                }
            }
            return (first, second);
        }
    }
    panic!("the handshake does not end");
}

/// A client and a server of these identities, before their handshake.
fn pair(client: &Identity, server: &Identity, host: &str) -> (End, End) {
    let (ours, theirs) = sockets();
    let client = client.client_session(host).expect("it trusts someone");
    let server = server.server_session().expect("it has a certificate");
    (End::new(client, ours), End::new(server, theirs))
}

/// Moves `plain` from one end to the other.
fn carry(from: &mut End, to: &mut End, plain: &[u8]) {
    to.received.clear();
    let mut sent = 0;
    while to.received.len() < plain.len() {
        let rest = &plain[sent..];
        sent += from
            .session
            .send(&from.socket, rest)
            .expect("it is open")
            .plain;
        to.turn().expect("it is open");
        assert!(from.session.unsent() < 2 * RECORDS_BYTES_MAX, "session::E2");
    }
    assert!(to.received == plain, "other bytes arrived");
}

#[test]
fn data_of_every_length_passes_in_both_versions() {
    let (dir, _authority) = authority();
    for protocols in ["TLSv1.2", "TLSv1.3"] {
        let mut chosen = settings(dir.path(), "alice");
        chosen.protocols = protocols.parse().expect("a version");
        let client = Identity::load(chosen).expect("its files are right");
        let server = identity(dir.path(), "server");
        let (mut ours, mut theirs) = pair(&client, &server, "localhost");
        let (first, second) = shake(&mut ours, &mut theirs);
        first.expect("the client is content");
        second.expect("the server is content");
        assert_eq!(theirs.session.version(), protocols);
        let alice = theirs.session.peer().expect("it shows a certificate");
        assert_eq!(alice.common_name, "alice");
        assert_eq!(
            ours.session.peer().expect("a server").names,
            ["localhost", "127.0.0.1"]
        );
        for length in [1, 2, 100, 16_383, 16_384, 16_385, 70_000, 3_000_000] {
            let plain: Vec<u8> = (0..length)
                .map(|n: usize| (n * 7 + n / 255) as u8)
                .collect();
            carry(&mut ours, &mut theirs, &plain);
            carry(&mut theirs, &mut ours, &plain);
        }
        ours.session.say_goodbye(&ours.socket);
        while !theirs.has_ended {
            theirs.turn().expect("it was ended in order");
        }
        // The other direction is still open.
        carry(&mut theirs, &mut ours, b"last words");
    }
}

/// Bytes of a client that arrive one by one, and the bytes of its data with them.
#[test]
fn records_that_come_in_pieces_are_joined() {
    let (dir, _authority) = authority();
    let client = identity(dir.path(), "alice");
    let server = identity(dir.path(), "server");
    let (ours, near) = sockets();
    let (far, theirs) = sockets();
    let mut ours = End::new(client.client_session("127.0.0.1").expect("it trusts"), ours);
    let mut theirs = End::new(server.server_session().expect("it has one"), theirs);
    let plain: Vec<u8> = (0..20_000).map(|n: u32| n as u8).collect();
    let mut sent = 0;
    let mut buffer = [0u8; 4096];
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while theirs.received.len() < plain.len() {
        assert!(std::time::Instant::now() < deadline, "it takes too long");
        ours.turn().expect("it is open");
        let rest = &plain[sent..plain.len().min(sent + 5_000)];
        sent += ours
            .session
            .send(&ours.socket, rest)
            .expect("it is open")
            .plain;
        if let Ok(bytes) = (&near).read(&mut buffer) {
            for byte in &buffer[..bytes] {
                while (&far).write(&[*byte]).is_err() {
                    theirs.turn().expect("it is open");
                }
                theirs.turn().expect("it is open");
            }
        }
        theirs.turn().expect("it is open");
        if let Ok(bytes) = (&far).read(&mut buffer) {
            (&near).write_all(&buffer[..bytes]).expect("few bytes");
        }
    }
    assert!(theirs.received == plain);
}

#[test]
fn both_ends_have_the_same_binding_and_each_session_its_own() {
    let (dir, _authority) = authority();
    let client = identity(dir.path(), "alice");
    let server = identity(dir.path(), "server");
    let mut bindings = Vec::new();
    for n in 0..2 {
        let (mut ours, mut theirs) = pair(&client, &server, "localhost");
        assert_eq!(ours.session.channel_binding(), None);
        let (first, second) = shake(&mut ours, &mut theirs);
        first.and(second).expect("both are content");
        assert_eq!(
            theirs.session.is_resumed(),
            n > 0,
            "by the ticket of the first"
        );
        let binding = ours
            .session
            .channel_binding()
            .expect("the handshake is over");
        assert_eq!(theirs.session.channel_binding(), Some(binding));
        bindings.push(binding);
    }
    assert_ne!(bindings[0], bindings[1]);
}

#[test]
fn certificates_are_required_as_chosen() {
    let (dir, _authority) = authority();
    let anonymous = Identity::load(Settings {
        ca_file: dir.path().join("ca.crt"),
        ..Settings::default()
    })
    .expect("it needs no certificate");
    let other = tempfile::tempdir().expect("a folder");
    let foreign = Authority::create(other.path(), "another authority", 30).expect("it is new");
    issue(&foreign, "mallory", &[]);
    let mut mallory = settings(other.path(), "mallory");
    mallory.ca_file = dir.path().join("ca.crt");
    let mallory = Identity::load(mallory).expect("its files are right");
    let alice = identity(dir.path(), "alice");
    for auth in [ClientAuth::Yes, ClientAuth::Optional, ClientAuth::No] {
        let mut chosen = settings(dir.path(), "server");
        chosen.client_auth = auth;
        let server = Identity::load(chosen).expect("its files are right");
        let admitted = |client: &Identity| {
            let (mut ours, mut theirs) = pair(client, &server, "localhost");
            let (first, second) = shake(&mut ours, &mut theirs);
            (first, second, theirs.session.peer())
        };
        let (_, second, peer) = admitted(&alice);
        second.expect("alice is admitted");
        assert_eq!(peer.is_some(), auth != ClientAuth::No);
        let (first, second, _) = admitted(&anonymous);
        match auth {
            ClientAuth::Yes => {
                let refused = second.expect_err("it must show one");
                assert!(matches!(refused, TlsError::NoCertificate), "{refused}");
                let told = first.expect_err("it was told").to_string();
                assert!(told.contains("requires a certificate"), "{told}");
            }
            _ => second.expect("none is needed"),
        }
        let (first, second, _) = admitted(&mallory);
        match auth {
            ClientAuth::No => second.expect("it is not asked"),
            _ => {
                let refused = second.expect_err("its authority is not known");
                assert!(refused.is_certificate());
                let text = refused.to_string();
                assert!(
                    text.contains("signed by no authority in tls-ca-cert-file"),
                    "{text}"
                );
                assert!(first.is_err(), "the client is told");
            }
        }
    }
}

#[test]
fn a_client_refuses_a_server_of_another_name_or_authority() {
    let (dir, _authority) = authority();
    let alice = identity(dir.path(), "alice");
    let server = identity(dir.path(), "server");
    let (mut ours, mut theirs) = pair(&alice, &server, "elsewhere.example");
    let (first, _) = shake(&mut ours, &mut theirs);
    let text = first.expect_err("the name is another").to_string();
    assert!(text.contains("not for elsewhere.example"), "{text}");
    let other = tempfile::tempdir().expect("a folder");
    let foreign = Authority::create(other.path(), "another authority", 30).expect("it is new");
    issue(&foreign, "server", &["localhost"]);
    let impostor = identity(other.path(), "server");
    let (mut ours, mut theirs) = pair(&alice, &impostor, "localhost");
    let (first, second) = shake(&mut ours, &mut theirs);
    assert!(
        first
            .expect_err("its authority is not known")
            .is_certificate()
    );
    assert!(second.is_err(), "the server is told");
    let name = alice.client_session("no host").expect_err("it is no name");
    assert!(matches!(name, LoadError::BadName { .. }), "{name}");
}

#[test]
fn plain_bytes_are_told_by_what_they_are() {
    let (dir, _authority) = authority();
    let server = identity(dir.path(), "server");
    for (bytes, plain) in [
        (&b"*1\r\n$4\r\nPING\r\n"[..], Plain::Redis),
        (b"PING\r\n", Plain::Redis),
        (b"GET /metrics HTTP/1.1\r\n", Plain::Http),
        (b"DURAMENN\x01", Plain::Native),
        (b"\x80\x01\x02", Plain::Unknown),
    ] {
        let (ours, theirs) = sockets();
        let mut theirs = End::new(server.server_session().expect("it has one"), theirs);
        (&ours).write_all(bytes).expect("few bytes");
        std::thread::sleep(Duration::from_millis(2));
        match theirs.turn() {
            Err(TlsError::PlainClient(told)) => assert_eq!(told, plain),
            other => panic!("{other:?}"),
        }
    }
    let client = identity(dir.path(), "alice");
    let (ours, theirs) = sockets();
    let mut ours = End::new(client.client_session("localhost").expect("it trusts"), ours);
    ours.turn().expect("its hello");
    (&theirs)
        .write_all(b"-ERR unknown command\r\n")
        .expect("few bytes");
    std::thread::sleep(Duration::from_millis(2));
    let told = ours.turn().expect_err("that is no TLS");
    assert!(matches!(told, TlsError::PlainServer), "{told}");
}

/// tls::T2: whatever comes, an error or silence is the result, and nothing grows.
#[test]
fn garbage_ends_a_session_and_nothing_else() {
    let (dir, _authority) = authority();
    let server = identity(dir.path(), "server");
    let client = identity(dir.path(), "alice");
    let (hello, reader) = sockets();
    let mut ours = End::new(
        client.client_session("localhost").expect("it trusts"),
        hello,
    );
    ours.turn().expect("its hello");
    let mut template = vec![0u8; 4096];
    std::thread::sleep(Duration::from_millis(2));
    let length = (&reader).read(&mut template).expect("a hello");
    template.truncate(length);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut refused = 0;
    for round in 0..300 {
        let mut bytes = template.clone();
        for _ in 0..=next() % 8 {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        if round % 3 == 0 {
            bytes.truncate(next() as usize % bytes.len());
        }
        if round % 5 == 0 {
            bytes = (0..next() % 5_000).map(|_| next() as u8).collect();
            bytes.insert(0, 22);
        }
        let (ours, theirs) = sockets();
        let mut theirs = End::new(server.server_session().expect("it has one"), theirs);
        (&ours).write_all(&bytes).expect("few bytes");
        for _ in 0..3 {
            if theirs.turn().is_err() {
                refused += 1;
                let _ = theirs.session.send(&theirs.socket, &[]);
                break;
            }
        }
        assert!(theirs.received.is_empty());
    }
    assert!(refused > 100, "only {refused} were refused");
}

#[test]
fn an_endless_handshake_is_ended() {
    let (dir, _authority) = authority();
    let server = identity(dir.path(), "server");
    let (ours, theirs) = sockets();
    let mut theirs = End::new(server.server_session().expect("it has one"), theirs);
    // A hello that says it has 60,000 bytes, in records of 10,000.
    let mut body = vec![1, 0, 0xea, 0x60];
    body.resize(60_004, 0);
    let mut sent = 0;
    let ended = body.chunks(10_000).find_map(|chunk| {
        let length = (chunk.len() as u16).to_be_bytes();
        let record = [&[22, 3, 1, length[0], length[1]], chunk].concat();
        (&ours).write_all(&record).expect("it fits into the socket");
        sent += record.len();
        std::thread::sleep(Duration::from_millis(2));
        theirs.turn().err()
    });
    let ended = ended.expect("it is too long");
    assert!(matches!(ended, TlsError::LongHandshake), "{ended}");
    assert!(sent <= HANDSHAKE_BYTES_MAX + 10_005, "after {sent}");
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    let (dir, authority) = authority();
    let server = identity(dir.path(), "server");
    let client = identity(dir.path(), "alice");
    let serial = || server.certificate().expect("there is one").serial;
    let first = serial();
    assert_eq!(server.reload().expect("the same files"), Reloaded::Same);
    let (certificate, key) = (dir.path().join("server.crt"), dir.path().join("server.key"));
    let old = [fs::read(&certificate), fs::read(&key)].map(|file| file.expect("it is there"));
    let serves = || {
        let (mut ours, mut theirs) = pair(&client, &server, "localhost");
        let (first, second) = shake(&mut ours, &mut theirs);
        first.and(second).expect("it serves");
        ours.session.peer().expect("a server").serial
    };
    assert_eq!(serves(), first);
    // Another key, a cut file, none, and one without an end.
    fs::copy(dir.path().join("alice.key"), &key).expect("it is there");
    let error = server.reload().expect_err("the key is another's");
    assert!(matches!(error, LoadError::KeyMismatch { .. }), "{error}");
    fs::write(&key, &old[1]).expect("it is there");
    fs::write(&certificate, &old[0][..100]).expect("it is there");
    let error = server.reload().expect_err("it is cut");
    assert!(matches!(error, LoadError::Malformed { .. }), "{error}");
    fs::remove_file(&certificate).expect("it is there");
    let error = server.reload().expect_err("it is gone");
    assert!(error.to_string().contains("server.crt"), "{error}");
    assert_eq!(serves(), first, "T1");
    authority
        .renew(&request("server", &[]))
        .expect_err("its certificate is gone");
    fs::write(&certificate, &old[0]).expect("it is there");
    let renewed = authority
        .renew(&request("server", &[]))
        .expect("it is there");
    assert_eq!(renewed.description.names, ["localhost", "127.0.0.1"]);
    assert_eq!(server.reload().expect("it is right"), Reloaded::New);
    assert_ne!(serial(), first);
    assert_eq!(serves(), serial(), "new sessions use the new one");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let (dir, authority) = authority();
    let load = |settings: Settings| Identity::load(settings).expect_err("it must be refused");
    let mut half = settings(dir.path(), "server");
    half.key_file = "".into();
    assert!(matches!(
        load(half),
        LoadError::Half {
            missing: "tls-key-file"
        }
    ));
    let mut other = settings(dir.path(), "server");
    other.ca_file = dir.path().join("ca.key");
    let text = load(other).to_string();
    assert!(text.contains("ca.key holds no certificate"), "{text}");
    let mut alone = settings(dir.path(), "server");
    alone.ca_file = "".into();
    assert!(matches!(load(alone.clone()), LoadError::NoAuthority));
    alone.ca_dir = dir.path().to_owned();
    Identity::load(alone.clone()).expect("the folder has an authority");
    alone.ca_dir = "".into();
    alone.client_auth = ClientAuth::No;
    let identity = Identity::load(alone).expect("it needs no authority");
    let error = identity
        .client_session("localhost")
        .expect_err("it trusts nobody");
    assert!(matches!(error, LoadError::NoTrust), "{error}");
    let left = identity.seconds_left().expect("it has one");
    assert!((9 * 86_400..=10 * 86_400).contains(&left), "{left}");
    let key = dir.path().join("server.key");
    assert_eq!(identity.warnings(), [""; 0]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let open = Identity::load(settings(dir.path(), "server")).expect("that is a warning");
    let warnings = open.warnings().join("\n");
    assert!(
        warnings.contains("server.key") && warnings.contains("chmod 600"),
        "{warnings}"
    );
    let refused = authority
        .issue(&request("server", &[]))
        .expect_err("it is there");
    assert!(matches!(refused, MakeError::Exists { .. }), "{refused}");
}

#[test]
fn certificates_out_of_their_time_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let make = |name: &str, from: i32, to: i32| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let certificate = params.self_signed(&key).expect("it can be made");
        let path = |end: &str| dir.path().join(format!("{name}.{end}"));
        fs::write(path("crt"), certificate.pem()).expect("a folder");
        fs::write(path("key"), key.serialize_pem()).expect("a folder");
        Identity::load(Settings {
            client_auth: ClientAuth::No,
            ca_file: "".into(),
            ..settings(dir.path(), name)
        })
    };
    make("good", 2020, 2090).expect("it is valid");
    let error = make("old", 2019, 2020).expect_err("it has expired");
    assert!(matches!(error, LoadError::Expired { .. }), "{error}");
    assert!(error.to_string().contains("2020"), "{error}");
    let error = make("early", 2090, 2091).expect_err("it is not valid yet");
    assert!(matches!(error, LoadError::NotYetValid { .. }), "{error}");
}

#[test]
fn an_authority_is_replaced_with_an_overlap() {
    let (dir, authority) = authority();
    let old_server = identity(dir.path(), "server");
    let mut authority = authority
        .rotate("second authority", 30)
        .expect("it is there");
    let path = authority.certificate_file();
    let both = Descriptions::read(&path).expect("it is there").0;
    assert_eq!(both.len(), 2);
    assert!(both.iter().all(|one| one.is_authority));
    assert_eq!(both[0].common_name, "second authority");
    // With both, a client of the old authority and a server of the new one trust each other.
    let alice = identity(dir.path(), "alice");
    issue(&authority, "second", &["localhost"]);
    let new_server = identity(dir.path(), "second");
    for server in [&old_server, &new_server] {
        let (mut ours, mut theirs) = pair(&alice, server, "localhost");
        let (first, second) = shake(&mut ours, &mut theirs);
        first.and(second).expect("both are trusted");
    }
    // A second rotation would drop the first authority, whose certificates are in use.
    let twice = Authority::open(dir.path()).expect("it is whole");
    let refused = twice
        .rotate("third authority", 30)
        .expect_err("two overlap");
    assert!(matches!(refused, MakeError::Overlaps { .. }), "{refused}");
    assert_eq!(Descriptions::read(&path).expect("it is there").0, both);
    // To end the overlap now would put certificates of the first authority out of use.
    let in_use = authority
        .check_last_unused()
        .expect_err("two are signed by it");
    let MakeError::InUse { files } = &in_use else {
        panic!("{in_use}");
    };
    let old = ["alice.crt", "server.crt"].map(|name| dir.path().join(name));
    assert_eq!(files[..], old);
    authority.forget_last().expect("there are two");
    authority
        .check_last_unused()
        .expect("none is left to be forgotten");
    assert!(matches!(
        authority.forget_last(),
        Err(MakeError::OnlyOne { .. })
    ));
    new_server.reload().expect("the files are right");
    let (mut ours, mut theirs) = pair(&alice, &new_server, "localhost");
    let (_, second) = shake(&mut ours, &mut theirs);
    assert!(
        second
            .expect_err("alice's authority is gone")
            .is_certificate()
    );
    let again = Authority::open(dir.path()).expect("it is whole");
    again.renew(&request("alice", &[])).expect("it is there");
    assert_eq!(Descriptions::read(&path).expect("it is there").0.len(), 1);
    // A rotation that was cut off between its two files.
    let key = fs::read(dir.path().join("ca.key")).expect("it is there");
    again.rotate("third authority", 30).expect("it is there");
    fs::write(dir.path().join("ca.key"), key).expect("it is there");
    let cut = Authority::open(dir.path()).expect("the old key is still of use");
    issue(&cut, "late", &["localhost"]);
    let third = cut.rotate("third authority", 30).expect("it goes on");
    assert_eq!(Descriptions::read(&path).expect("it is there").0.len(), 2);
    issue(&third, "later", &["localhost"]);
}

/// A root that openssl makes names its own key as its signer: the overlap never ended, because
/// `ca.crt` itself was taken for a certificate that needs the root.
#[test]
fn a_root_that_names_itself_as_its_signer_is_forgotten() {
    let dir = tempfile::tempdir().expect("a folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.use_authority_key_identifier_extension = true;
    let root = params.self_signed(&key).expect("it can be made");
    fs::write(dir.path().join("ca.crt"), root.pem()).expect("a folder");
    fs::write(dir.path().join("ca.key"), key.serialize_pem()).expect("a folder");
    let first = Authority::open(dir.path()).expect("it is whole");
    issue(&first, "server", &["localhost"]);
    let mut second = first.rotate("second authority", 30).expect("it is there");
    let in_use = second
        .check_last_unused()
        .expect_err("one is signed by the root");
    let MakeError::InUse { files } = &in_use else {
        panic!("{in_use}");
    };
    assert_eq!(files[..], [dir.path().join("server.crt")]);
    let renewed = second.renew(&request("server", &[]));
    renewed.expect("it is there");
    second
        .check_last_unused()
        .expect("the root has signed nothing else");
    second.forget_last().expect("there are two");
}

#[test]
fn names_and_times_that_are_not_possible_are_refused() {
    let (_dir, authority) = authority();
    for name in ["", "ca", "../x", ".x", "a b"] {
        let error = authority.issue(&request(name, &[])).expect_err(name);
        assert!(matches!(error, MakeError::BadName { .. }), "{error}");
    }
    let error = authority
        .issue(&request("x", &["a b"]))
        .expect_err("a bad name");
    assert!(matches!(error, MakeError::BadSan { .. }), "{error}");
    let mut long = request("x", &["*.example.org", "::1"]);
    long.days = 100_000;
    let error = authority.issue(&long).expect_err("too long");
    assert!(matches!(error, MakeError::BadDays { .. }), "{error}");
    long.days = 1;
    let issued = authority.issue(&long).expect("it is possible");
    assert_eq!(issued.description.names, ["*.example.org", "::1"]);
    assert!(issued.description.days_left() <= 1);
}

#[test]
fn a_flood_of_key_updates_ends_the_session() {
    let (dir, _authority) = authority();
    let mut chosen = settings(dir.path(), "alice");
    chosen.protocols = Protocols::TLS13;
    let client = Identity::load(chosen).expect("its files are right");
    let server = identity(dir.path(), "server");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let flooding = std::thread::spawn(move || {
        let socket = TcpStream::connect(address).expect("it listens");
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .expect("a socket");
        let config = client.client_config().expect("it trusts");
        let name = "localhost".try_into().expect("a name");
        let connection = duramen_tls::rustls::ClientConnection::new(config, name);
        let mut stream = duramen_tls::rustls::StreamOwned::new(connection.expect("it is"), socket);
        stream.write_all(b"x").expect("the handshake ends");
        for _ in 0..200 {
            let updated = stream.conn.refresh_traffic_keys();
            if updated.is_err() || stream.conn.write_tls(&mut stream.sock).is_err() {
                break;
            }
        }
        // To close with unread bytes would reset the connection before the flood is read.
        let _ = stream.sock.read_to_end(&mut Vec::new());
    });
    let (theirs, _) = listener.accept().expect("one comes");
    theirs.set_nonblocking(true).expect("a socket");
    let mut theirs = End::new(server.server_session().expect("it has one"), theirs);
    let error = loop {
        match theirs.turn() {
            Ok(_) => assert!(!theirs.has_ended, "session::E4"),
            Err(error) => break error,
        }
        std::thread::sleep(Duration::from_micros(100));
    };
    assert!(matches!(error, TlsError::Invalid(_)), "{error}");
    drop(theirs);
    flooding.join().expect("it ends");
}

#[test]
fn a_blocking_client_talks_to_a_session() {
    let (dir, _authority) = authority();
    let client = identity(dir.path(), "alice");
    let server = identity(dir.path(), "server");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let asking = std::thread::spawn(move || {
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut stream = Stream::connect(&client, "127.0.0.1", socket)?;
        stream.write_all(b"question")?;
        let mut answer = [0; 6];
        stream.read_exact(&mut answer)?;
        std::io::Result::Ok((answer, stream.channel_binding()))
    });
    let (theirs, _) = listener.accept().expect("one comes");
    theirs.set_nonblocking(true).expect("a socket");
    let mut theirs = End::new(server.server_session().expect("it has one"), theirs);
    while theirs.received != b"question" {
        theirs.turn().expect("it is open");
    }
    theirs
        .session
        .send(&theirs.socket, b"answer")
        .expect("it is open");
    let binding = theirs.session.channel_binding();
    while !theirs.has_ended {
        theirs.turn().expect("it is ended in order");
    }
    let (answer, theirs) = asking.join().expect("no panic").expect("no error");
    assert_eq!((&answer, theirs), (b"answer", binding));
}

#[test]
fn a_blocking_client_says_why_it_cannot_connect() {
    let (dir, _authority) = authority();
    let client = identity(dir.path(), "alice");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let plain = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept()?;
        socket.write_all(b"-ERR Protocol error\r\n")?;
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        std::io::Result::Ok(())
    });
    let socket = TcpStream::connect(address).expect("it listens");
    let error = Stream::connect(&client, "localhost", socket).expect_err("it is plain");
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
    plain.join().expect("no panic").expect("no error");
}
