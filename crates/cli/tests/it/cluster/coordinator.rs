//! The coordinator alone: its stored state, refused peers, its successors.

use crate::cluster::etcd::Etcd;
use crate::cluster::process::{DEADLINE, Process};
use std::time::Instant;

pub(crate) fn start(store: &str, more: &[&str]) -> Process {
    let mut args = vec![
        "coordinator",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--store",
        store,
    ];
    args.extend(more);
    Process::start(&args)
}

/// All five tablets went to the one server that was up, with exit code 0.
#[test]
fn a_table_over_more_servers_than_are_up_waits_for_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("redb:{}", folder.path().join("store").display());
    let coordinator = start(&store, &["--replicas", "1"]);
    let at = coordinator.said("coordinator");
    let member = |name: &str| {
        let dir = folder.path().join(name).display().to_string();
        let places = ["serve", "--coordinator", &at, "--dir", &dir, "--admin=no"];
        let size = ["--port=0", "--native-port=0", "--memory=64mb"];
        Process::start(&[&places[..], &size].concat())
    };
    let create = |seconds: &str| {
        let words = ["table", "create", "db0", "--servers", "2"];
        coordinator
            .call(&[&words[..], &["--timeout", seconds]].concat())
            .run()
    };
    let _one = member("one");
    let refused = create("3");
    refused.expect_error(3, "a table over 2 servers: 1 are up");
    assert!(refused.err.contains("not done within"), "{refused:?}");
    let tables = coordinator.call(&["table", "list"]).run();
    assert!(!tables.out.contains("db0"), "{tables:?}");
    let _two = member("two");
    let made = create("30");
    made.expect(0);
    assert!(made.out.contains("2 tablets on 2 servers"), "{made:?}");
}

#[test]
fn commands_to_a_coordinator_without_servers_say_why_they_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("redb:{}", folder.path().join("store").display());
    let first = start(&store, &["--replicas", "2"]);
    let answer = first
        .call(&[
            "table",
            "create",
            "orders",
            "--servers",
            "2",
            "--timeout",
            "3",
        ])
        .run();
    answer.expect_error(3, "a table over 2 servers: 0 are up that can own tablets");
    let answer = first.call(&["status", "--json"]).run();
    answer.expect(0);
    let status: serde_json::Value = serde_json::from_str(&answer.out).expect("JSON");
    assert_eq!(status["cluster"], "duramen");
    assert_eq!(status["settings"]["replicas"], 2);
    assert_eq!(status["tables"][0]["name"], "default");
    let answer = first.call(&["status"]).run();
    for word in ["cluster duramen", "2 replicas", "none yet", "default"] {
        assert!(
            answer.out.contains(word),
            "{word} is missing in {}",
            answer.out
        );
    }
    first
        .call(&["drain", "7"])
        .run()
        .expect_error(3, "no server `7` is a member; UP are: none");
    first
        .call(&["table", "drop", "orders"])
        .run()
        .expect_error(3, "there is no table `orders`");
    first
        .call(&["tablet", "split", "orders", "--slot", "1"])
        .run()
        .expect_error(3, "there is no table `orders`");
    first
        .call(&["tablet", "split", "default", "--slot", "1"])
        .run()
        .expect_error(3, "has no tablets yet");
}

/// Another `--replicas` was ignored without a word.
#[test]
fn settings_that_an_existing_cluster_does_not_take_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (store, log) = (format!("redb:{}", at("store")), at("log"));
    let first = [
        "--replicas",
        "2",
        "--client-lease",
        "60s",
        "--log-file",
        &log,
    ];
    let mut first = start(&store, &first);
    first.terminate();
    first.wait();
    let said = || std::fs::read_to_string(at("log")).expect("a log");
    assert!(!said().contains("for a new cluster"), "{}", said());
    let again = [
        "--replicas",
        "3",
        "--client-lease",
        "60s",
        "--log-file",
        &log,
    ];
    let second = start(&store, &again);
    let said = said();
    let named = said
        .lines()
        .filter(|line| line.contains("for a new cluster"));
    let named: Vec<&str> = named.collect();
    assert!(
        named.len() == 1 && named[0].contains("--replicas"),
        "{said}"
    );
    assert_eq!(
        second.call(&["status", "--json"]).run().json()["settings"]["replicas"],
        2
    );
}

#[test]
fn tables_are_kept_over_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("redb:{}", folder.path().join("made/for/it").display());
    let mut first = start(&store, &["--replicas", "2"]);
    assert_eq!(first.said("role"), "leader");
    // No other process may use the store.
    let mut second = Process::launch(&[
        "coordinator",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "no",
        "--store",
        &store,
    ]);
    let (status, said) = second.wait();
    assert_eq!(status.code(), Some(5), "{said}");
    assert!(said.contains("in use by a coordinator at"), "{said}");
    first.kill();
    // Its settings stay, whatever the flags; a store of another cluster is refused.
    let third = start(&store, &["--replicas", "5"]);
    let answer = third.call(&["status"]).run();
    assert!(
        answer.out.contains("(term 2)") && answer.out.contains("2 replicas"),
        "{}",
        answer.out
    );
    third.terminate();
    let mut third = third;
    assert_eq!(third.wait().0.code(), Some(0));
    let mut foreign = Process::launch(&[
        "coordinator",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "no",
        "--store",
        &store,
        "--cluster",
        "other",
    ]);
    let (status, said) = foreign.wait();
    assert_eq!(status.code(), Some(5), "{said}");
    assert!(
        said.contains("holds cluster `duramen`, not `other`"),
        "{said}"
    );
}

#[test]
fn wrong_settings_and_addresses_are_said() {
    let long = "n".repeat(65); // the coordinator took it, and then no server
    for (args, named) in [
        (&["--store", "file:x"][..], "redb:DIR"),
        (&["--store", "etcd:https://a:1"], "--etcd-ca-file"),
        (&["--replicas", "0"], "replicas must be 1 to 16"),
        (&["--segment-size", "3mb"], "a power of two"),
        (&["--read-lease", "1ms"], "read lease"),
        (&["--listen", "8.8.8.8:1"], "--insecure-bind"),
        (&["--listen", "nowhere"], "no HOST:PORT"),
        (&["--cluster", "a b"], "none of them blank"),
        (&["--cluster", long.as_str()], "1 to 64 bytes"),
    ] {
        let call = [&["coordinator"], args].concat();
        crate::cluster::command::duramen(&call)
            .run()
            .expect_error(2, named);
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("redb:{}", folder.path().display());
    let call = [
        "coordinator",
        "--listen",
        &address,
        "--admin",
        "no",
        "--store",
        &store,
    ];
    crate::cluster::command::duramen(&call)
        .run()
        .expect_error(5, &format!("cannot listen at {address}"));
}

#[test]
fn a_standby_leads_soon() {
    let etcd = Etcd::start();
    let mut first = start(&etcd.store(), &[]);
    assert_eq!(first.said("role"), "leader");
    let mut second = start(&etcd.store(), &[]);
    // A standby redirects to the leader: mostly the first one, but on a stalled machine it may be
    // deposed.
    led_by(&second, &[&first, &second]);
    if led_by(&first, &[&first, &second]) == 1 {
        std::mem::swap(&mut first, &mut second);
    }
    first.kill();
    // Within three seconds, or longer on a busy machine: `docs/benchmarks.md` has the times.
    led_by(&second, &[&second]);
    // A leader that is stopped is replaced at once.
    let third = start(&etcd.store(), &[]);
    led_by(&third, &[&second, &third]);
    second.terminate();
    assert_eq!(second.wait().0.code(), Some(0));
    led_by(&third, &[&third]);
}

/// The leader among these, as one of them reports it; waits until there is one.
fn led_by(asked: &Process, processes: &[&Process]) -> usize {
    let since = Instant::now();
    loop {
        let answer = asked.call(&["status", "--timeout", "60s"]).run();
        let leads = |process: &&Process| {
            let leader = format!("led by {}", process.said("coordinator"));
            answer.out.contains(&leader)
        };
        if let Some(found) = processes.iter().position(leads) {
            return found;
        }
        assert!(since.elapsed() < DEADLINE, "{answer:?}");
    }
}

#[test]
fn who_does_not_have_the_token_is_turned_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let right = file("right", "hidden-0123456789\n");
    let wrong = file("wrong", "guessed-0123456789\n");
    // Only the first line counts, for every reader.
    let remarked = file("remarked", "hidden-0123456789 \nfrom the safe\n");
    let store = format!("redb:{}", folder.path().join("store").display());
    let coordinator = start(&store, &["--cluster-token-file", &remarked]);
    let ask = |timeout: &str, more: &[&str]| {
        coordinator
            .call(&[&["status", "--timeout", timeout], more].concat())
            .run()
    };
    for file in [&right, &remarked] {
        ask("60s", &["--cluster-token-file", file]).expect(0);
    }
    for more in [&[][..], &["--cluster-token-file", &wrong]] {
        let answer = ask("1s", more);
        assert!(
            !answer.err.is_empty() && answer.code != Some(0),
            "{answer:?}"
        );
        assert!(!answer.err.contains("hidden"), "{answer:?}");
    }
    let empty = file("empty", "\n");
    ask("1s", &["--cluster-token-file", &empty]).expect_error(2, "16 to 1024 bytes");
    ask("1s", &["--cluster-token-file", "/nowhere"]).expect_error(2, "the cluster's token in");
}

/// The error comes at once: a coordinator does not become another cluster.
#[test]
fn a_cluster_of_another_name_is_said_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("redb:{}", folder.path().join("store").display());
    let coordinator = start(&store, &["--cluster", "one"]);
    for call in [
        &["status", "--cluster", "two", "--timeout", "60s"][..],
        &["table", "list", "--cluster", "two", "--timeout", "60"],
        &["tablet", "list", "--cluster", "two", "--timeout", "60s"],
    ] {
        let answer = coordinator.call(call).run();
        answer.expect_error(
            3,
            "the other side belongs to cluster `one`, this one to `two`",
        );
    }
    // Without a name any cluster is accepted.
    coordinator.call(&["table", "list"]).run().expect(0);
    // A store of another cluster, after its own coordinator has ended.
    let mut coordinator = coordinator;
    coordinator.terminate();
    assert_eq!(coordinator.wait().0.code(), Some(0));
    let call = [
        "coordinator",
        "--cluster",
        "two",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "no",
        "--store",
        &store,
    ];
    crate::cluster::command::duramen(&call)
        .run()
        .expect_error(5, "the store holds cluster `one`, not `two`");
}
