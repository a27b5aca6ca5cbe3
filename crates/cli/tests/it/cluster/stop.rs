//! The end of a member by a signal while its backups do not answer.

use crate::cluster::coordinator;
use crate::cluster::process::{DEADLINE, Process, signal};
use crate::cluster::redis::Redis;
use duramen_wire::resp::Reply;
use std::time::{Duration, Instant};

/// A member waited for its backups without end when it was told to stop.
#[test]
fn a_member_whose_backups_do_not_answer_ends_in_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("redb:{}", folder.path().join("store").display());
    // A member that is paused stays a member, and the other one serves its keys.
    let patience = ["--verdict-timeout=20s", "--read-lease=10s"];
    let settings = [&["--replicas", "2"][..], &patience].concat();
    let coordinator = coordinator::start(&store, &settings);
    let at = coordinator.said("coordinator");
    let start = |name: &str| {
        let dir = folder.path().join(name).display().to_string();
        let places = [
            "serve",
            "--cluster=duramen",
            "--coordinator",
            &at,
            "--dir",
            &dir,
        ];
        let ports = ["--port=0", "--native-port=0", "--admin=no"];
        let size = [
            "--memory=64mb",
            "--threads=1",
            "--level=memory",
            "--stop-timeout-ms=300",
        ];
        Process::start(&[&places[..], &ports, &size].concat())
    };
    let mut stopped = start("stopped");
    let paused = [start("one"), start("two")];
    let since = Instant::now();
    let create = ["table", "create", "db0", "--servers", "3"];
    while coordinator.call(&create).run().code != Some(0) {
        assert!(since.elapsed() < DEADLINE, "no table");
    }
    // A key that the member serves itself.
    let address = stopped.said("resp");
    let mut redis = Redis::new(std::slice::from_ref(&address));
    let mut is_set = |key: &str| {
        matches!(
            redis.exchange(&address, &["SET", key, "value"]),
            Some(Reply::Simple(_))
        )
    };
    let mut keys = (0..50).map(|n| format!("key{n}")).cycle();
    let key = loop {
        assert!(since.elapsed() < DEADLINE, "it serves no key");
        let key = keys.next().expect("without end");
        if is_set(&key) {
            break key;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    for backup in &paused {
        signal(backup.pid(), "STOP");
    }
    assert!(is_set(&key), "acknowledged at level `memory`");
    stopped.terminate();
    let (status, said) = stopped.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    let warning = said
        .lines()
        .find(|line| line.contains("the backups have not confirmed the end of the log"));
    let bytes = warning.and_then(|line| line.split_once("bytes="));
    let bytes = bytes.and_then(|(_, bytes)| bytes.trim().parse::<u64>().ok());
    assert!(bytes.is_some_and(|bytes| bytes > 0), "{said}");
}
