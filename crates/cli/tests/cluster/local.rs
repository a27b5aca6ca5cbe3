//! Native clients on the servers' machine, through shared memory: real processes that are killed.

use crate::command::DURAMEN;
use crate::process::{DEADLINE, Process, signal};
use crate::redis::Redis;
use duramen_client::{Client, Options, Table};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

fn up(sockets: &Path) -> Process {
    let set = format!("native-socket-dir={}", sockets.display());
    let args = ["up", "--servers", "3", "--memory", "64mb", "--set", &set];
    Process::start(&[&args[..], &["--verdict-timeout", "3s"]].concat())
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

fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_true() {
        assert!(since.elapsed() < DEADLINE, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn clients_and_servers_that_are_killed_harm_nothing() {
    let folder = tempfile::tempdir().expect("a directory");
    let sockets = folder.path();
    let up = up(sockets);
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

    // A client is killed amid its requests.
    let mut bench = Command::new(DURAMEN)
        .args(["bench", "local", "--seconds", "0.1", "--rounds", "100000"])
        .arg("--socket-dir")
        .arg(sockets)
        .args(["--coordinator", &up.said("coordinator"), "--keys", "100"])
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary under test runs");
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
