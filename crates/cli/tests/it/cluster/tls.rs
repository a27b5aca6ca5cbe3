//! Clusters of real processes with TLS on all native ports: members are killed and certificates are
//! replaced under load, and strangers are refused.

use crate::cluster::command::{Call, duramen};
use crate::cluster::process::{DEADLINE, Process, signal, until};
use duramen_client::asynchronous::{AsyncClient, wait};
use duramen_client::{Client, Error, Options, TlsFiles};
use duramen_tls::{Authority, Request};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Names of the certificates of `duramen up`.
const SERVERS: usize = 4;

fn up(dir: &Path) -> Process {
    let dir = dir.display().to_string();
    let servers = SERVERS.to_string();
    let args = ["up", "--tls", "--dir", &dir, "--memory", "64mb"];
    Process::start(
        &[
            &args[..],
            &["--servers", &servers, "--verdict-timeout", "3s"],
        ]
        .concat(),
    )
}

fn files(dir: &Path, name: &str) -> TlsFiles {
    TlsFiles {
        certificate: dir.join(format!("{name}.crt")),
        key: dir.join(format!("{name}.key")),
        ca: dir.join("ca.crt"),
    }
}

fn options(up: &Process, files: TlsFiles) -> Options {
    let coordinators = up.said("coordinator");
    let mut options = Options::new(coordinators.split(','));
    options.deadline = DEADLINE;
    options.tls = Some(files);
    options
}

/// A command with these certificates.
fn call(up: &Process, args: &[&str], files: &TlsFiles) -> Call {
    let [certificate, key, ca] = [&files.certificate, &files.key, &files.ca].map(|file| {
        let file = file.to_str();
        file.expect("a path of a test")
    });
    let tls = ["--tls-cert-file", certificate, "--tls-key-file", key];
    let args = [args, &tls[..], &["--tls-ca-cert-file", ca]].concat();
    duramen(&args).coordinators(&up.said("coordinator"))
}

fn request(name: &str) -> Request {
    Request {
        name: name.to_owned(),
        sans: vec!["127.0.0.1".to_owned(), "localhost".to_owned()],
        days: 3,
    }
}

/// Increments of one key after the other, until it is told to stop; the number of those that
/// succeeded, and every one must.
struct Load {
    stops: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<u64>>,
}

/// Keys of all servers.
const KEYS: u64 = 64;

fn key(n: u64) -> String {
    format!("sum {}", n % KEYS)
}

impl Load {
    fn start(options: &Options) -> Load {
        let (stops, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let spawn = |work: Box<dyn Fn(u64) + Send>| {
            let (stops, done) = (stops.clone(), done.clone());
            std::thread::spawn(move || {
                let mut count = 0;
                while !stops.load(Ordering::Relaxed) {
                    work(count);
                    count += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                count
            })
        };
        let mut threads = Vec::new();
        for _ in 0..2 {
            let client = Client::connect(options.clone()).expect("the cluster is up");
            let table = client.table("db0").expect("RESP's first table");
            threads.push(spawn(Box::new(move |n| {
                table.increment(key(n).as_bytes(), 1).expect("masked");
            })));
        }
        let client = AsyncClient::new(options.clone()).expect("a thread");
        let table = wait(client.table("db0")).expect("RESP's first table");
        threads.push(spawn(Box::new(move |n| {
            wait(table.increment(key(n).as_bytes(), 1)).expect("masked");
        })));
        Load {
            stops,
            done,
            threads,
        }
    }

    /// Waits until so many more have succeeded.
    fn goes_on(&self, what: &str) {
        let aim = self.done.load(Ordering::Relaxed) + 200;
        until(&format!("the load goes on after {what}"), || {
            self.done.load(Ordering::Relaxed) >= aim
        });
    }

    fn stop(self) -> u64 {
        self.stops.store(true, Ordering::Relaxed);
        let threads = self.threads.into_iter();
        threads
            .map(|thread| thread.join().expect("none failed"))
            .sum()
    }
}

/// How often the process with this log has taken new certificates.
fn reloads(dir: &Path, log: &str) -> usize {
    let text = std::fs::read_to_string(dir.join(log)).unwrap_or_default();
    text.lines()
        .filter(|line| line.contains("new connections"))
        .count()
}

/// The client's first certificate.
fn copied(tls: &Path) -> tempfile::TempDir {
    let old = tempfile::tempdir().expect("a folder");
    for file in ["client.crt", "client.key", "ca.crt"] {
        std::fs::copy(tls.join(file), old.path().join(file)).expect("copied");
    }
    old
}

/// Certificates and even the authority are replaced while members are killed.
#[test]
#[ignore = "full tier"]
fn new_certificates_under_load_and_killed_members_fail_no_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    let tls = dir.join("tls");
    let up = up(dir);
    let client = files(&tls, "client");
    let load = Load::start(&options(&up, client.clone()));
    load.goes_on("its start");
    let old = copied(&tls);
    let pids = up.said("pids");
    let pids: Vec<u32> = pids
        .split(',')
        .map(|pid| pid.parse().expect("a pid"))
        .collect();
    let mut logs: Vec<String> = (0..SERVERS).map(|n| format!("server-{n}.log")).collect();
    logs.push("coordinator.log".to_owned());
    // All processes have taken the new files so often.
    let taken = |times: usize, logs: &[String]| {
        signal(up.pid(), "HUP");
        until("all have the new certificates", || {
            logs.iter().all(|log| reloads(dir, log) >= times)
        });
        // Clients look at their files once a second.
        std::thread::sleep(Duration::from_millis(1200));
    };

    let authority = Authority::open(&tls).expect("made by `up`");
    let mut authority = authority.rotate("second", 30).expect("rotated");
    taken(1, &logs);
    load.goes_on("a second authority is trusted");
    let servers = (0..SERVERS).map(|n| format!("server-{n}"));
    for name in servers.chain(["coordinator".to_owned(), "client".to_owned()]) {
        authority.renew(&request(&name)).expect("renewed");
    }
    taken(2, &logs);
    signal(pids[1], "KILL");
    logs.remove(1);
    load.goes_on("a member was killed");
    authority.forget_last().expect("there was one");
    taken(3, &logs);
    load.goes_on("the first authority is gone");
    until("the recovery is shown as done", || {
        let answer = call(&up, &["status"], &client).run();
        answer.expect(0);
        answer.out.contains("done")
    });
    // All connections are made anew: a server is declared dead.
    let status = call(&up, &["status", "--json"], &client).run().json();
    let mut members = status["servers"].as_array().expect("members").iter();
    let member = members.find(|member| member["state"] == "up");
    let member = member.expect("one is up")["server"]
        .as_str()
        .expect("a name");
    call(&up, &["crash", member], &client).run().expect(0);
    load.goes_on("another was declared dead");

    let count = load.stop();
    let table = Client::connect(options(&up, client)).expect("the cluster is up");
    let table = table.table("db0").expect("RESP's first table");
    let sums = (0..KEYS).map(|n| table.increment(key(n).as_bytes(), 0).expect("read") as u64);
    assert_eq!(sums.sum::<u64>(), count, "each counts once");
    // The client's first certificate is worth nothing now, nor does it trust the second authority.
    let mut late = files(old.path(), "client");
    let refused = call(&up, &["status", "--timeout", "3s"], &late).run();
    refused.expect_error(4, "signed by no authority");
    late.ca = tls.join("ca.crt");
    let refused = call(&up, &["status", "--timeout", "3s"], &late).run();
    refused.expect_error(4, "the other side refuses");
}

#[test]
#[ignore = "full tier"]
fn strangers_are_refused_and_told_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path();
    let up = up(dir);
    let client = files(&dir.join("tls"), "client");
    call(&up, &["status"], &client).run().expect(0);
    let bench = ["bench", "outstanding", "--seconds", "0.1", "--rounds", "1"];
    let bench = [&bench[..], &["--keys", "10", "--outstanding", "4"]].concat();
    call(&up, &bench, &client).run().expect(0);

    plain_clients_are_told_so(&up, dir, &client);
    let other = tempfile::tempdir().expect("a folder");
    let stranger = of_another_authority(&up, other.path(), &client);
    let member = member_of_another_authority(&up, other.path(), &stranger);
    let status = call(&up, &["status", "--json"], &client).run().json();
    let members = status["servers"].as_array().expect("members").len();
    assert_eq!(members, SERVERS, "it did not join");
    drop(member);
    let said = std::fs::read_to_string(dir.join("coordinator.log")).expect("a log");
    assert!(said.contains("a connection is refused: TLS:"), "{said}");
    assert!(said.contains("it began without TLS"), "{said}");
}

fn plain_clients_are_told_so(up: &Process, dir: &Path, client: &TlsFiles) {
    // Without TLS, with a token or without.
    let token = dir.join("token");
    std::fs::write(&token, "a token that was stolen, of 40 bytes ...\n").expect("written");
    let token = token.to_str().expect("a path of a test");
    for more in [&[][..], &["--cluster-token-file", token]] {
        let args = [&["status", "--timeout", "3s"][..], more].concat();
        up.call(&args)
            .run()
            .expect_error(4, "this port requires TLS");
    }
    let mut plain = options(up, client.clone());
    plain.tls = None;
    plain.deadline = Duration::from_secs(5);
    match Client::connect(plain) {
        Err(Error::Deadline { last, .. }) => assert!(last.contains("requires TLS"), "{last}"),
        other => panic!("{other:?}"),
    }
    let half = ["status", "--tls-cert-file", "/nowhere"];
    up.call(&half)
        .run()
        .expect_error(2, "--tls-key-file and --tls-ca-cert-file");
    let absent = files(dir, "absent");
    call(up, &["status"], &absent)
        .run()
        .expect_error(2, "absent.crt");
}

/// The certificate of a stranger, who made the authority, and trusts the cluster's.
fn of_another_authority(up: &Process, dir: &Path, client: &TlsFiles) -> TlsFiles {
    let authority = Authority::create(dir, "other", 3).expect("made");
    authority.issue(&request("stranger")).expect("issued");
    let mut stranger = files(dir, "stranger");
    let refused = call(up, &["status", "--timeout", "3s"], &stranger).run();
    refused.expect_error(4, "signed by no authority");
    stranger.ca = client.ca.clone();
    let refused = call(up, &["status", "--timeout", "3s"], &stranger).run();
    refused.expect_error(4, "the other side refuses");
    stranger
}

/// A member that cannot join, and says why.
fn member_of_another_authority(up: &Process, dir: &Path, stranger: &TlsFiles) -> Process {
    let home = dir.join("home").display().to_string();
    let log = dir.join("log");
    let [certificate, key, ca] =
        [&stranger.certificate, &stranger.key, &stranger.ca].map(|file| file.display().to_string());
    let coordinator = up.said("coordinator");
    let member = Process::launch(&[
        "serve",
        "--coordinator",
        &coordinator,
        "--cluster",
        "local",
        "--dir",
        &home,
        "--port",
        "0",
        "--native-port",
        "0",
        "--admin=no",
        "--memory",
        "64mb",
        "--tls-cluster=yes",
        "--tls-cert-file",
        &certificate,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--log-file",
        &log.display().to_string(),
    ]);
    until("the member says why it is not let in", || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        said.contains("TLS: the other side refuses")
    });
    member
}
