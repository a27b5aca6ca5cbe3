//! Members and coordinators whose certificates are replaced, expire, or are not valid yet; and
//! clients of members that have a port with TLS and one without.

use crate::cluster::command::{Answer, duramen};
use crate::cluster::process::{Process, signal, until};
use duramen_tls::{Authority, Request};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use time::OffsetDateTime;

const DAY_S: i64 = 86_400;

/// An authority in a folder, with certificates for this machine.
struct Certificates {
    folder: TempDir,
    authority: Authority,
}

impl Certificates {
    fn new(names: &[&str]) -> Certificates {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::create(folder.path(), "a test", 30).expect("made");
        for name in names {
            authority.issue(&request(name, 3)).expect("issued");
        }
        Certificates { folder, authority }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces a certificate by one that is valid between these moments, in seconds from now.
    fn put(&self, name: &str, from_s: i64, to_s: i64) {
        let read = |name: &str| std::fs::read_to_string(self.path(name)).expect("a file");
        let key = rcgen::KeyPair::from_pem(&read("ca.key")).expect("a key");
        let issuer = rcgen::Issuer::from_ca_cert_pem(&read("ca.crt"), key).expect("an authority");
        let mut params =
            rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        let now = OffsetDateTime::now_utc();
        params.not_before = now + time::Duration::seconds(from_s);
        params.not_after = now + time::Duration::seconds(to_s);
        let key = rcgen::KeyPair::generate().expect("a key");
        let made = params.signed_by(&key, &issuer).expect("signed");
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).expect("written");
        std::fs::write(self.path(&format!("{name}.crt")), made.pem()).expect("written");
    }

    /// The flags that name the files of this certificate.
    fn flags(&self, name: &str) -> Vec<String> {
        let file = |name: &str| self.path(name).display().to_string();
        vec![
            "--tls-cert-file".to_owned(),
            file(&format!("{name}.crt")),
            "--tls-key-file".to_owned(),
            file(&format!("{name}.key")),
            "--tls-ca-cert-file".to_owned(),
            file("ca.crt"),
        ]
    }
}

fn request(name: &str, days: u32) -> Request {
    Request {
        name: name.to_owned(),
        sans: vec!["127.0.0.1".to_owned()],
        days,
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it has an address").port()
}

fn words<'a>(words: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    let more = more.iter().map(String::as_str);
    words.iter().copied().chain(more).collect()
}

/// Waits until a log contains the text. The process runs all the time.
fn says(process: &mut Process, log: &Path, text: &str) {
    until(&format!("it says `{text}`"), || {
        assert!(process.is_running(), "it has ended");
        let said = std::fs::read_to_string(log).unwrap_or_default();
        said.contains(text)
    });
}

/// A member with both kinds of RESP ports.
struct Member {
    process: Process,
    log: PathBuf,
    plain: String,
    tls: String,
}

struct Cluster {
    certificates: Certificates,
    coordinator: Process,
    members: Vec<Member>,
    _folder: TempDir,
}

impl Cluster {
    fn start() -> Cluster {
        let certificates = Certificates::new(&["coordinator", "member-0", "member-1", "client"]);
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        let store = format!("redb:{}", at("store"));
        let own = certificates.flags("coordinator");
        let listen = ["coordinator", "--listen", "127.0.0.1:0", "--admin", "no"];
        let more = ["--store", &store, "--replicas", "1"];
        let coordinator = Process::start(&words(&[&listen[..], &more].concat(), &own));
        let address = coordinator.said("coordinator");
        let member = |n: usize| {
            let [plain, tls] = [free_port(), free_port()].map(|port| port.to_string());
            let (dir, log) = (at(&format!("dir-{n}")), at(&format!("log-{n}")));
            let own = certificates.flags(&format!("member-{n}"));
            let ports = ["--port", &plain, "--tls-port", &tls, "--native-port", "0"];
            let files = ["--dir", &dir, "--log-file", &log, "--memory", "64mb"];
            let rest = [
                "--tls-cluster=yes",
                "--tls-auth-clients",
                "no",
                "--admin=no",
            ];
            let args = ["serve", "--coordinator", &address, "--threads", "1"];
            let args = [&args[..], &ports, &files, &rest].concat();
            Member {
                process: Process::start(&words(&args, &own)),
                log: log.into(),
                plain,
                tls,
            }
        };
        let members = vec![member(0), member(1)];
        let cluster = Cluster {
            members,
            certificates,
            coordinator,
            _folder: folder,
        };
        let table = ["table", "create", "db0", "--servers", "2"];
        until("both members can own tablets", || {
            cluster.call(&table).code == Some(0)
        });
        cluster
    }

    /// A command for the coordinator.
    fn call(&self, args: &[&str]) -> Answer {
        let own = self.certificates.flags("client");
        let call = duramen(&words(args, &own));
        call.coordinators(&self.coordinator.said("coordinator"))
            .run()
    }

    /// The members that are up: id, and seconds until the certificate expires.
    fn up(&self) -> Vec<(String, i64)> {
        let status = self.call(&["status", "--json"]).json();
        let servers = status["servers"].as_array().expect("servers").clone();
        let up = servers.into_iter().filter(|server| server["state"] == "up");
        let now_s = OffsetDateTime::now_utc().unix_timestamp();
        up.map(|server| {
            let id = server["server"].as_str().expect("an id").to_owned();
            let end_s = server["certificate_expires_unix_s"]
                .as_i64()
                .unwrap_or(now_s);
            (id, end_s - now_s)
        })
        .collect()
    }

    /// A command for a member's server, at one of its ports.
    fn ask(&self, port: &str, has_tls: bool, args: &[&str]) -> Answer {
        let ca = self.certificates.path("ca.crt").display().to_string();
        let tls = ["--tls-ca-cert-file".to_owned(), ca];
        let args = [args, &["--port", port, "--timeout", "60s"]].concat();
        let tls = if has_tls { &tls[..] } else { &[] };
        duramen(&words(&args, tls)).run()
    }
}

#[test]
fn both_kinds_of_clients_reach_all_keys_and_a_certificate_may_come_late() {
    let mut cluster = Cluster::start();
    clients_are_redirected_within_their_kind(&cluster);
    every_command_of_a_coordinator_speaks_tls(&cluster);
    a_renewed_certificate_is_shown(&cluster);
    an_expired_one_keeps_a_member_waiting(&mut cluster);
}

/// A plain client was redirected to the TLS port of the other member.
fn clients_are_redirected_within_their_kind(cluster: &Cluster) {
    for (n, member) in cluster.members.iter().enumerate() {
        for (port, has_tls) in [(&member.plain, false), (&member.tls, true)] {
            for key in 0..8 {
                let key = format!("{n} {has_tls} {key}");
                cluster.ask(port, has_tls, &["set", &key, "v"]).expect(0);
                cluster.ask(port, has_tls, &["get", &key]).expect(0);
            }
        }
    }
    for (port, has_tls) in [
        (&cluster.members[0].plain, false),
        (&cluster.members[1].tls, true),
    ] {
        let all = cluster.ask(port, has_tls, &["dbsize"]);
        assert_eq!((all.code, &*all.out), (Some(0), "32\n"), "{all:?}");
    }
}

/// Nothing changes: the coordinator's list of members decides that there is no such server.
fn every_command_of_a_coordinator_speaks_tls(cluster: &Cluster) {
    cluster.call(&["table", "list"]).expect(0);
    cluster.call(&["tablet", "list", "db0"]).expect(0);
    let dry = cluster.call(&["rebalance", "--dry-run"]);
    assert!(matches!(dry.code, Some(0 | 3)), "it is answered: {dry:?}");
    for args in [
        &["drain", "77"][..],
        &["undrain", "77"],
        &["crash", "77"],
        &["accept-loss", "--server", "77"],
        &["tablet", "migrate", "db0", "--all", "--to", "77"],
    ] {
        let refused = cluster.call(args);
        refused.expect_error(3, "no server `77` is a member");
    }
}

/// The first connection stays, and so its certificate was shown for ever: a false alert.
fn a_renewed_certificate_is_shown(cluster: &Cluster) {
    let is_new = |cluster: &Cluster| {
        let up = cluster.up().into_iter();
        up.filter(|(_, left_s)| *left_s > 10 * DAY_S).count()
    };
    assert_eq!(is_new(cluster), 0);
    let renewed = request("member-0", 20);
    let authority = &cluster.certificates.authority;
    authority.renew(&renewed).expect("renewed");
    signal(cluster.members[0].process.pid(), "HUP");
    until("the new certificate is shown", || is_new(cluster) == 1);
}

/// It ended with code 2 when it enlisted again, after which no supervisor starts it.
fn an_expired_one_keeps_a_member_waiting(cluster: &mut Cluster) {
    let of_member_1 = |cluster: &Cluster| {
        let up = cluster.up().into_iter();
        up.filter(|(_, left_s)| *left_s < 10 * DAY_S)
            .map(|(id, _)| id)
            .next()
    };
    let id = of_member_1(cluster).expect("the one without a new certificate");
    let log = cluster.members[1].log.clone();
    // As for a member that was suspended, or whose certificate nobody has renewed.
    cluster.certificates.put("member-1", -2 * DAY_S, -DAY_S);
    cluster.call(&["crash", &id]).expect(0);
    says(&mut cluster.members[1].process, &log, "has expired on");
    let waits = "This server waits until that has changed";
    says(&mut cluster.members[1].process, &log, waits);
    // A certificate and a key of different age: no end either.
    cluster.certificates.put("other", -60, DAY_S);
    let other = std::fs::read(cluster.certificates.path("other.crt")).expect("a certificate");
    std::fs::write(cluster.certificates.path("member-1.crt"), other).expect("written");
    let text = "does not belong to the certificate";
    says(&mut cluster.members[1].process, &log, text);
    cluster.certificates.put("member-1", -60, 3 * DAY_S);
    until("it is a member again", || {
        assert!(cluster.members[1].process.is_running(), "it has ended");
        of_member_1(cluster).is_some_and(|now| now != id)
    });
}

/// The clock of a machine may be wrong when it boots.
#[test]
fn a_server_and_a_coordinator_wait_for_a_certificate_that_is_valid() {
    let certificates = Certificates::new(&[]);
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    // A busy machine starts the process within 12 s; it is ready when they have passed.
    certificates.put("server", 12, DAY_S);
    certificates.put("coordinator", -DAY_S, -60);
    let (own, port) = (certificates.flags("server"), free_port().to_string());
    let files = log.display().to_string();
    let args = [
        "serve",
        "--level",
        "memory",
        "--memory",
        "64mb",
        "--admin=no",
    ];
    let more = ["--port", "0", "--tls-port", &port, "--log-file", &files];
    let mut server = Process::launch(&words(&[&args[..], &more].concat(), &own));
    let own = certificates.flags("coordinator");
    let args = ["coordinator", "--listen", "127.0.0.1:0", "--admin", "no"];
    let store = format!("redb:{}", folder.path().join("store").display());
    let args = [&args[..], &["--store", &store]].concat();
    let mut coordinator = Process::launch(&words(&args, &own));
    says(&mut server, &log, "is valid only from");
    server.await_ready();
    std::thread::sleep(Duration::from_millis(10));
    assert!(coordinator.is_running(), "it waits");
    certificates.put("coordinator", -60, DAY_S);
    coordinator.await_ready();

    // A file that is no certificate is still an error at once.
    drop(server);
    std::fs::write(certificates.path("server.crt"), "none").expect("written");
    let own = certificates.flags("server");
    let args = ["serve", "--port", "0", "--tls-port", &port, "--admin=no"];
    let wrong = duramen(&words(&args, &own)).run();
    wrong.expect_error(2, "no certificate in PEM form");
}
