//! Native clients on the servers' machine, through shared memory: real processes that are killed.

use crate::cluster::command::DURAMEN;
use crate::cluster::process::{DEADLINE, Process, signal, until};
use crate::cluster::redis::Redis;
use duramen_client::{Client, Options, Table};
use duramen_wire::resp::Reply;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn up(sockets: &Path, more: &[&str]) -> Process {
    let set = format!("native-socket-dir={}", sockets.display());
    let args = ["up", "--servers", "3", "--memory", "64mb", "--set", &set];
    Process::start(&[&args[..], &["--verdict-timeout", "3s"], more].concat())
}

/// `duramen bench local` as a client that has one request at a time for very long.
fn bench(up: &Process, sockets: &Path, value: &str) -> Child {
    Command::new(DURAMEN)
        .args(["bench", "local", "--seconds", "0.1", "--rounds", "100000"])
        .arg("--socket-dir")
        .arg(sockets)
        .args(["--coordinator", &up.said("coordinator"), "--keys", "10"])
        // Longer than a test stops it.
        .args(["--value", value, "--timeout", "60s"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary under test runs")
}

fn table(up: &Process, sockets: &Path) -> Table {
    let coordinators = up.said("coordinator");
    let mut options = Options::new(coordinators.split(','));
    options.socket_dir = Some(sockets.to_owned());
    options.deadline = DEADLINE;
    let client = Client::connect(options).expect("the cluster is up");
    client.table("db0").expect("RESP's first table")
}

/// The numbers of clients with shared memory, over all servers that answer.
fn local_clients(redis: &mut Redis, resp: &str) -> usize {
    let lists = resp.split(',').filter_map(|address| {
        let reply = redis.exchange(address, &["CLIENT", "LIST"])?;
        Some(String::from_utf8_lossy(reply.as_bytes()?).into_owned())
    });
    lists
        .map(|list| list.matches("lib-name=duramen-local").count())
        .sum()
}

#[test]
fn clients_and_servers_that_are_killed_harm_nothing() {
    let folder = tempfile::tempdir().expect("a directory");
    let sockets = folder.path();
    let up = up(sockets, &[]);
    let resp = up.said("resp");
    for native in up.said("native").split(',') {
        use std::os::unix::fs::PermissionsExt as _;
        let socket = std::fs::metadata(sockets.join(native)).expect("a socket of each server");
        assert_eq!(socket.permissions().mode() & 0o777, 0o600);
    }
    let mut redis = Redis::new(&resp.split(',').map(str::to_owned).collect::<Vec<_>>());
    let table = table(&up, sockets);
    for n in 0..200u32 {
        table
            .set(&n.to_le_bytes(), &n.to_le_bytes())
            .expect("written");
    }
    assert!(
        local_clients(&mut redis, &resp) > 0,
        "no shared memory was used"
    );
    let before = local_clients(&mut redis, &resp);

    // A directory without a socket is not measured as if it were one.
    let nowhere = Command::new(DURAMEN)
        .args(["bench", "local", "--seconds", "0.1", "--rounds", "1"])
        .args(["--coordinator", &up.said("coordinator"), "--keys", "10"])
        .args(["--socket-dir", "/nonexistent"])
        .output()
        .expect("the binary under test runs");
    let said = String::from_utf8_lossy(&nowhere.stderr);
    assert_eq!(nowhere.status.code(), Some(1), "{said}");
    assert!(said.contains("gave no shared memory"), "{said}");

    // A client is killed amid its requests.
    let mut bench = bench(&up, sockets, "100");
    until("its clients have shared memory", || {
        local_clients(&mut redis, &resp) > before
    });
    bench.kill().expect("it is ours");
    bench.wait().expect("it is ours");
    until("its memory is given back", || {
        local_clients(&mut redis, &resp) == before
    });

    // A server is killed: its data is recovered on the other one, and it comes back.
    let pid = up.said("pids").split(',').next().expect("a pid").to_owned();
    signal(pid.parse().expect("a pid"), "KILL");
    for n in 0..200u32 {
        let found = table.get(&n.to_le_bytes()).expect("read").expect("present");
        assert_eq!(found.value, n.to_le_bytes());
        table
            .set(&n.to_le_bytes(), &n.to_le_bytes())
            .expect("written");
    }
    assert!(local_clients(&mut redis, &resp) > 0);
    up.terminate();
    let mut up = up;
    assert!(up.wait().0.success());
    // The killed server may not have come back: then its socket waits for its next start.
    let left = std::fs::read_dir(sockets).expect("the directory").count();
    assert!(left <= 1, "{left} sockets stay behind");
}

/// A member that was taken for crashed ended for good: its sockets' directory was gone.
#[test]
fn a_member_without_its_socket_directory_comes_back() {
    let folder = tempfile::tempdir().expect("a directory");
    let sockets = folder.path().join("sockets");
    let up = up(&sockets, &[]);
    let resp = up.said("resp");
    let (address, _) = resp.split_once(',').expect("three members");
    let mut redis = Redis::new(&[address.to_owned()]);
    let mut life = || {
        let reply = redis.exchange(address, &["CLUSTER", "MYID"])?;
        Some(reply.as_bytes()?.to_vec())
    };
    let first = life().expect("it serves");
    let pid = up.said("pids").split(',').next().expect("a pid").to_owned();
    let pid = pid.parse().expect("a pid");
    signal(pid, "STOP");
    std::fs::remove_dir_all(&sockets).expect("ours");
    std::fs::write(&sockets, "in the way").expect("ours");
    until("it is called crashed", || {
        let answer = up.call(&["status", "--json"]).run();
        answer.code == Some(0) && {
            let json = answer.json();
            let servers = json["servers"].as_array().expect("members");
            let up = |server: &&serde_json::Value| server["state"] == "up";
            servers.iter().filter(up).count() < 3
        }
    });
    signal(pid, "CONT");
    until("it has another life", || {
        life().is_some_and(|id| id != first)
    });
    let pids = std::fs::read_dir("/proc").expect("processes");
    let name = pid.to_string();
    assert!(
        pids.flatten().any(|entry| entry.file_name() == *name),
        "it is another process"
    );
}

/// A client is stopped while the server has replies for it: it is closed, and nobody else waits. It
/// continues when it runs again.
#[test]
fn a_stopped_client_is_closed_and_continues_later() {
    let folder = tempfile::tempdir().expect("a directory");
    let sockets = folder.path();
    let limits = ["--set", "output-stall=1", "--set", "local-ring-size=4kb"];
    let up = up(sockets, &limits);
    let resp = up.said("resp");
    let mut redis = Redis::new(&resp.split(',').map(str::to_owned).collect::<Vec<_>>());
    let mut bench = bench(&up, sockets, "1000000");
    until("its clients have shared memory", || {
        local_clients(&mut redis, &resp) > 0
    });
    // A reply is longer than a ring, so the server has unsent bytes almost whenever it is stopped.
    let mut was_closed = false;
    for _ in 0..20 {
        let had = local_clients(&mut redis, &resp);
        signal(bench.id(), "STOP");
        let since = Instant::now();
        while !was_closed && since.elapsed() < Duration::from_secs(5) {
            assert_eq!(redis.ask(&["SET", "other", "goes on"]), "OK");
            was_closed = local_clients(&mut redis, &resp) < had;
        }
        signal(bench.id(), "CONT");
        if was_closed {
            break;
        }
        std::thread::sleep(Duration::from_millis(37));
    }
    assert!(was_closed, "a stopped client with unsent replies stays");
    until("it continues", || {
        let gone = bench.try_wait().expect("it is ours");
        assert_eq!(gone, None, "it ended instead of connecting again");
        local_clients(&mut redis, &resp) > 0
    });
    bench.kill().expect("it is ours");
    bench.wait().expect("it is ours");
}

/// A native client removed a stream: clients of RESP that waited for it heard of that when another
/// client of their thread sent a request.
#[test]
fn those_that_wait_hear_of_native_clients() {
    let folder = tempfile::tempdir().expect("a directory");
    let up = up(folder.path(), &[]);
    let addresses: Vec<String> = up.said("resp").split(',').map(str::to_owned).collect();
    let mut redis = Redis::new(&addresses);
    redis.ask(&["XGROUP", "CREATE", "stream", "group", "$", "MKSTREAM"]);
    let reads = [
        "XREADGROUP",
        "GROUP",
        "group",
        "one",
        "BLOCK",
        "0",
        "STREAMS",
        "stream",
        ">",
    ];
    let waiters: Vec<_> = addresses
        .iter()
        .map(|address| {
            let address = address.clone();
            std::thread::spawn(move || {
                Redis::new(std::slice::from_ref(&address)).exchange(&address, &reads)
            })
        })
        .collect();
    until("all but the owner of the key have answered", || {
        waiters.iter().filter(|waiter| waiter.is_finished()).count() == addresses.len() - 1
    });
    std::thread::sleep(Duration::from_millis(300));
    let table = table(&up, folder.path());
    table.remove(b"stream").expect("removed");
    let replies: Vec<_> = waiters
        .into_iter()
        .map(|it| it.join().expect("asks"))
        .collect();
    let told = |reply: &Option<Reply>| matches!(reply, Some(Reply::Error(text)) if text.starts_with("NOGROUP"));
    assert_eq!(
        replies.iter().filter(|reply| told(reply)).count(),
        1,
        "{replies:?}"
    );
}

/// Open descriptors of a process, and its resident bytes.
fn held(pid: &str) -> (usize, usize) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok());
    (descriptors.count(), kib.expect("a number") << 10)
}

/// Memory of a client, by the default of `local-ring-size`.
const CLIENT_BYTES: usize = 512 << 10;

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let folder = tempfile::tempdir().expect("a directory");
    let sockets = folder.path();
    let up = up(sockets, &[]);
    let resp = up.said("resp");
    let mut redis = Redis::new(&resp.split(',').map(str::to_owned).collect::<Vec<_>>());
    let pids = up.said("pids");
    let sum = || {
        let all = pids.split(',').map(held);
        all.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1))
    };
    let use_once = || {
        let table = table(&up, sockets);
        table.set(b"k", b"v").expect("written");
        table
    };
    drop(use_once());
    until("none is left", || local_clients(&mut redis, &resp) == 0);
    let (descriptors, bytes) = sum();
    let open: Vec<Table> = (0..100).map(|_| use_once()).collect();
    assert_eq!(local_clients(&mut redis, &resp), 100);
    let (_, bytes_of_open) = sum();
    // The memory is resident from the beginning, as `/memory` says.
    assert!(bytes_of_open - bytes > 95 * CLIENT_BYTES);
    drop(open);
    for _ in 0..1_000 {
        drop(use_once());
    }
    until("none is left", || local_clients(&mut redis, &resp) == 0);
    // Each member opens up to three of its own meanwhile.
    until("all descriptors are closed", || sum().0 <= descriptors + 12);
    let (_, bytes_after) = sum();
    assert!(
        bytes_after < bytes + 16 * CLIENT_BYTES,
        "{bytes} bytes before, {bytes_after} after"
    );
}
