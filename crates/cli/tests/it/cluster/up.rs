//! `duramen up`: a cluster of real processes, its end and its restart.

use crate::cluster::command::duramen;
use crate::cluster::process::{Process, signal, until};
use crate::cluster::redis::Redis;
use std::path::Path;

const KEYS: usize = 400;

fn up(more: &[&str]) -> Process {
    let mut args = vec!["up", "--servers", "3", "--memory", "64mb"];
    // On a busy machine a slow process must not count as dead.
    args.extend(["--verdict-timeout", "3s"]);
    args.extend(more);
    Process::start(&args)
}

fn pids(up: &Process) -> Vec<u32> {
    let all = up.said("pids");
    all.split(',')
        .map(|pid| pid.parse().expect("a pid"))
        .collect()
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn fill(redis: &mut Redis) {
    for n in 0..KEYS {
        let said = redis.ask(&["SET", &format!("key{n}"), &format!("value{n}")]);
        assert_eq!(said, "OK", "key{n}");
    }
}

fn check(redis: &mut Redis) {
    for n in 0..KEYS {
        assert_eq!(
            redis.ask(&["GET", &format!("key{n}")]),
            format!("value{n}"),
            "key{n}"
        );
    }
}

#[test]
fn a_cluster_outlives_a_server_and_ends_without_a_trace() {
    let mut up = up(&[]);
    let pids = pids(&up);
    let addresses: Vec<String> = up.said("resp").split(',').map(str::to_owned).collect();
    assert_eq!((pids.len(), addresses.len()), (3, 3));
    let mut redis = Redis::new(&addresses);
    fill(&mut redis);
    tables_and_tablets(&up);
    signal(pids[1], "KILL");
    check(&mut redis);
    until("the recovery is shown as done", || {
        let answer = up.call(&["status"]).run();
        answer.expect(0);
        answer.out.contains("done")
    });
    // Declared dead, but alive: its data comes back elsewhere, and it comes back without data.
    let alive = up.call(&["status", "--json"]).run().json();
    let member = alive["servers"]
        .as_array()
        .expect("members")
        .iter()
        .find(|s| s["state"] == "up");
    let member = member.expect("one is up")["server"]
        .as_str()
        .expect("a name")
        .to_owned();
    up.call(&["crash", &member]).run().expect(0);
    check(&mut redis);
    let dir = std::env::temp_dir().join(format!("duramen-up-{}", up.pid()));
    assert!(dir.exists());
    up.terminate();
    let (status, said) = up.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(
        said.contains(&format!("server 1 (pid {}) was ended by signal 9", pids[1])),
        "{said}"
    );
    assert!(!dir.exists(), "the temporary directory stays");
    until("all servers end", || !pids.iter().any(|pid| is_alive(*pid)));
}

/// The commands on a running cluster.
fn tables_and_tablets(up: &Process) {
    let create = [
        "table",
        "create",
        "orders",
        "--servers",
        "2",
        "--level",
        "buffered",
    ];
    let answer = up.call(&create).run();
    answer.expect(0);
    assert!(
        answer.out.contains("2 tablets on 2 servers"),
        "{}",
        answer.out
    );
    up.call(&create)
        .run()
        .expect_error(3, "table `orders` exists");
    let list = up.call(&["table", "list", "--json"]).run().json();
    let named = |name: &str| {
        let tables = list.as_array().expect("tables").iter();
        tables.filter(|table| table["name"] == name).count()
    };
    assert_eq!((named("orders"), named("db0")), (1, 1));
    up.call(&["tablet", "split", "orders", "--slot", "100"])
        .run()
        .expect(0);
    let answer = up.call(&["tablet", "list", "orders"]).run();
    assert!(
        answer.out.contains("slots 0-99") && answer.out.contains("slots 100-8191"),
        "{}",
        answer.out
    );
    up.call(&["tablet", "split", "db0", "--hash", "123"])
        .run()
        .expect_error(2, "lies within slot 0");
    let tablets = up
        .call(&["tablet", "list", "orders", "--json"])
        .run()
        .json();
    let (first, last) = (&tablets[0]["owner"], &tablets[2]["owner"]);
    assert_ne!(first, last, "{tablets}");
    let foreign = last.as_str().expect("a server");
    let answer = up
        .call(&["tablet", "split", "orders", "--slot", "50", "--of", foreign])
        .run();
    answer.expect_error(
        3,
        &format!(
            "is server {}'s, not {foreign}'s",
            first.as_str().expect("a server")
        ),
    );
    up.call(&["tablet", "migrate", "orders", "--all", "--to", "77"])
        .run()
        .expect_error(3, "no server `77`");
    up.call(&["table", "drop", "orders"]).run().expect(0);
    up.call(&["table", "id", "orders"])
        .run()
        .expect_error(3, "there is no table `orders`; there are: default, db0");
}

#[test]
fn a_directory_is_gone_on_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("trial").display().to_string();
    for round in 0..2 {
        let mut up = up(&["--dir", &dir]);
        let addresses: Vec<String> = up.said("resp").split(',').map(str::to_owned).collect();
        let mut redis = Redis::new(&addresses);
        if round == 0 {
            fill(&mut redis);
        }
        check(&mut redis);
        up.terminate();
        let (status, said) = up.wait();
        assert_eq!(status.code(), Some(0), "{said}");
    }
    assert!(Path::new(&dir).join("server-0.log").exists());
    // `fsck` took the replicas of several logs for one, and called healthy members damaged.
    for n in 0..3 {
        let backup = Path::new(&dir).join(format!("server-{n}/backup"));
        let backup = backup.display().to_string();
        let fsck = duramen(&["fsck", &backup]).run();
        assert!(fsck.out.ends_with("sound\n"), "{}", fsck.out);
        assert!(fsck.out.contains("logs of other servers"));
        let out = folder.path().join(format!("repaired-{n}"));
        let out = out.display().to_string();
        duramen(&["fsck", "--repair", &backup, "--out", &out])
            .run()
            .expect_error(5, "replicas of other servers' data");
    }
}

/// The speeds of the disks of all members that are up, in bytes per second.
fn speeds(up: &Process) -> Vec<u64> {
    let status = up.call(&["status", "--json"]).run().json();
    let servers = status["servers"].as_array().expect("members").iter();
    let up = servers.filter(|server| server["state"] == "up");
    up.map(|server| server["read_bytes_per_s"].as_u64().expect("a number"))
        .collect()
}

/// Every server joined with an unknown speed, whatever its disk. A new disk is measured by the
/// scrubber once it has data, and one with data at the start, also without a scrubber.
#[test]
fn disks_are_measured_and_everybody_knows_their_speeds() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("trial").display().to_string();
    let all_known = |up: &Process| {
        let speeds = speeds(up);
        speeds.len() == 3 && speeds.iter().all(|speed| *speed > 100_000)
    };
    for (round, scrub) in ["scrub-interval=20", "scrub-interval=0"].iter().enumerate() {
        let mut up = up(&["--dir", &dir, "--set", scrub]);
        if round == 0 {
            assert_eq!(speeds(&up), [0, 0, 0], "nothing is on the disks");
            let addresses: Vec<String> = up.said("resp").split(',').map(str::to_owned).collect();
            let mut redis = Redis::new(&addresses);
            let value = "v".repeat(60_000);
            for n in 0..KEYS {
                assert_eq!(redis.ask(&["SET", &format!("key{n}"), &value]), "OK");
            }
        }
        until("the speeds of all disks are known", || all_known(&up));
        up.terminate();
        let (status, said) = up.wait();
        assert_eq!(status.code(), Some(0), "{said}");
    }
}

#[test]
fn servers_go_with_it_however_it_goes() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut up = up(&["--dir", &folder.path().display().to_string()]);
    let pids = pids(&up);
    up.kill();
    until("all servers end", || !pids.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn what_cannot_be_is_said_before_anything_starts() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    for (args, named) in [
        (&["--servers", "1"][..], "2..=64"),
        (&["--servers", "3", "--replicas", "3"], "at least 4 servers"),
        (&["--servers", "2", "--spread", "3"], "over more"),
        (&["--port", &port], "can't be used"),
        (&["--set", "memori=1"], "did you mean `memory`"),
        (&["--memory", "much"], "not a size"),
    ] {
        duramen(&[&["up"], args].concat())
            .run()
            .expect_error(2, named);
    }
}
