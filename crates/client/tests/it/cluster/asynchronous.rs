//! The asynchronous client against the same cluster: many operations in flight on one thread.

use crate::cluster::mock::{Cluster, Faults};
use crate::cluster::options;
use duramen_base::ids::ServerId;
use duramen_client::asynchronous::{AsyncClient, AsyncTable, Pending, wait};
use duramen_client::{Condition, Error, Expiry, Outcome, Write};
use std::collections::BTreeSet;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Longest wait; a longer one fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_true() {
        assert!(since.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn connect(cluster: &Cluster) -> (AsyncClient, AsyncTable) {
    let client = AsyncClient::new(options(cluster)).expect("a thread");
    let table = wait(client.table("t")).expect("it has table t");
    (client, table)
}

fn is_ready<T>(pending: &mut Pending<T>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    Pin::new(pending).poll(&mut context).is_ready()
}

#[test]
fn asynchronous_operations_do_what_they_say() {
    let cluster = Cluster::start(3);
    let (client, table) = connect(&cluster);
    wait(async {
        assert_eq!(table.get(b"a").await, Ok(None));
        let first = table.set(b"a", b"one").await.expect("written");
        let object = table.get(b"a").await.expect("read").expect("present");
        assert_eq!((&object.value[..], object.version), (&b"one"[..], first));
        let write = |condition| Write {
            condition,
            expiry: Expiry::Never,
            level: None,
        };
        let refused = table.write(b"a", b"two", write(Condition::Absent));
        let current = Some(first);
        assert_eq!(refused.await, Ok(Outcome::ConditionFailed { current }));
        let written = table.write(b"a", b"two", write(Condition::Version(first)));
        assert!(matches!(written.await, Ok(Outcome::Written { version }) if version > first));
        assert_eq!(table.increment(b"n", 5).await, Ok(5));
        assert_eq!(table.increment(b"n", -7).await, Ok(-2));
        assert_eq!(table.increment(b"a", 1).await, Err(Error::NotANumber));
        assert!(matches!(table.remove(b"a").await, Ok(Some(_))));
        assert_eq!(table.remove(b"a").await, Ok(None));
        let absent = table.remove_if(b"a", Condition::Present).await;
        assert_eq!(absent, Ok(Outcome::ConditionFailed { current: None }));
        assert!(matches!(
            client.table("v").await,
            Err(Error::NoSuchTable(name)) if name == "v"
        ));
        assert!(matches!(
            table.set(b"k", &vec![0; 2 << 20]).await,
            Err(Error::TooLarge { .. })
        ));
    });
}

#[test]
fn many_forms_and_scans_reach_all_servers() {
    let cluster = Cluster::start(3);
    let (_client, table) = connect(&cluster);
    let objects: Vec<(String, String)> = (0..3_000)
        .map(|n| (format!("key {n}"), format!("value {n}")))
        .collect();
    let keys: Vec<&String> = objects.iter().map(|(key, _)| key).collect();
    wait(async {
        let written = table.set_many(&objects, Write::default()).await;
        assert_eq!(written.len(), objects.len());
        let is_written = |result: &_| matches!(result, Ok(Outcome::Written { .. }));
        assert!(written.iter().all(is_written));
        for (result, (_, value)) in table.get_many(&keys).await.into_iter().zip(&objects) {
            let object = result.expect("read").expect("present");
            assert_eq!(object.value, value.as_bytes());
        }
        let mut scan = table.scan();
        let mut found = BTreeSet::new();
        while let Some(object) = scan.next().await {
            assert!(found.insert(object.expect("scanned").0), "twice");
        }
        assert_eq!(found.len(), objects.len());
        let gone = table.remove_many(&keys[..10]).await;
        let is_removed = |result: &_| matches!(result, Ok(Outcome::Removed { .. }));
        assert!(gone.iter().all(is_removed));
    });
}

/// One thread, far more operations than are in flight at once, and every fault: each increment
/// counts once.
#[test]
fn increments_in_flight_add_up_through_everything() {
    const ROUNDS: i64 = 10;
    const EACH: i64 = 200;
    let mut cluster = Cluster::start(3);
    let mut few = options(&cluster);
    few.in_flight_max = 150;
    let client = AsyncClient::new(few).expect("a thread");
    let table = wait(client.table("t")).expect("it has table t");
    cluster.set_faults(Faults {
        lose_answer: 13,
        lose_request: 17,
        retry: 19,
        busy: 23,
    });
    for round in 1..=ROUNDS {
        let calls: Vec<Pending<i64>> = (0..EACH)
            .map(|n| table.increment(format!("key {}", n % 10).as_bytes(), 1))
            .collect();
        cluster.rotate();
        cluster.kill(0);
        cluster.add_master(ServerId::new(0, round as u32 + 1));
        cluster.recover();
        for call in calls {
            wait(call).expect("masked");
        }
    }
    cluster.set_faults(Faults::default());
    let sums = (0..10).map(|n| table.increment(format!("key {n}").as_bytes(), 0));
    let sums: Vec<Pending<i64>> = sums.collect();
    let sum: i64 = sums.into_iter().map(|sum| wait(sum).expect("read")).sum();
    assert_eq!(sum, ROUNDS * EACH);
}

/// In one session, the ids of the writes that wait would hold up the writes to other servers after
/// 512 of them; in one connection, the reads.
#[test]
fn a_frozen_server_delays_its_own_operations_alone() {
    let cluster = Cluster::start(3);
    let mut patient = options(&cluster);
    patient.attempt = Duration::from_secs(30);
    patient.deadline = PATIENCE;
    let client = AsyncClient::new(patient).expect("a thread");
    let table = wait(client.table("t")).expect("it has table t");
    let keys: Vec<String> = (0..3_000).map(|n| format!("key {n}")).collect();
    let is_frozen = |key: &&String| cluster.owner(key.as_bytes()) == 0;
    let (frozen, free): (Vec<&String>, Vec<&String>) = keys.iter().partition(is_frozen);
    cluster.freeze(0, true);
    let mut waiting: Vec<Pending<i64>> = frozen
        .iter()
        .map(|key| table.increment(key.as_bytes(), 1))
        .collect();
    for key in &free {
        assert_eq!(wait(table.increment(key.as_bytes(), 1)), Ok(1));
    }
    let read = wait(table.get_many(&free));
    assert!(read.iter().all(|object| matches!(object, Ok(Some(_)))));
    assert!(!waiting.iter_mut().any(is_ready), "it answered");
    cluster.freeze(0, false);
    for call in waiting {
        assert_eq!(wait(call), Ok(1));
    }
    assert_eq!(cluster.executed(), keys.len() as u64);
}

#[test]
fn operations_go_on_without_their_futures_unless_they_wait_for_room() {
    let cluster = Cluster::start(1);
    let mut few = options(&cluster);
    (few.in_flight_max, few.attempt) = (100, Duration::from_secs(30));
    let client = AsyncClient::new(few).expect("a thread");
    let table = wait(client.table("t")).expect("it has table t");
    cluster.freeze(0, true);
    let calls: Vec<Pending<i64>> = (0..150).map(|_| table.increment(b"n", 1)).collect();
    let mut kept = Vec::new();
    for (n, call) in calls.into_iter().enumerate() {
        match n {
            // The first one that waits is kept; the others behind it leave. It is the 100th or the
            // 101st: the search for the table gives back its room a moment after its answer.
            99 | 100 => kept.push(call),
            _ => drop(call),
        }
    }
    assert_eq!(cluster.executed(), 0);
    cluster.freeze(0, false);
    for call in kept {
        wait(call).expect("executed");
    }
    until("those with room are executed", || cluster.executed() == 101);
    assert_eq!(wait(table.increment(b"n", 0)), Ok(101));
    until("all answers but the last are acknowledged", || {
        wait(table.increment(b"n", 0)).expect("executed");
        cluster.remembered() <= 1
    });
}

#[test]
fn a_deadline_ends_an_asynchronous_call_wherever_it_is() {
    let cluster = Cluster::start(1);
    let mut hasty = options(&cluster);
    (hasty.in_flight_max, hasty.deadline) = (2, Duration::from_secs(1));
    let client = AsyncClient::new(hasty).expect("a thread");
    // On a busy machine an answer may take longer than the deadline sometimes, but not each time.
    let found = (0..60).find_map(|_| wait(client.table("t")).ok());
    let table = found.expect("it has table t");
    until("the cluster is there", || wait(table.get(b"k")).is_ok());
    cluster.freeze(0, true);
    let (write, read) = (table.set(b"k", b"v"), table.get(b"k"));
    let waits = table.set(b"k", b"w");
    let write = wait(write).expect_err("no answer comes");
    assert!(matches!(write, Error::OutcomeUnknown { .. }), "{write}");
    let read = wait(read).expect_err("no answer comes");
    assert!(matches!(read, Error::Deadline { .. }), "{read}");
    let error = wait(waits).expect_err("no room, or no answer");
    let ended = matches!(error, Error::Deadline { .. } | Error::OutcomeUnknown { .. });
    assert!(ended, "{error}");
}

/// Threads of this process with the name of a client's.
fn drivers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
    let names = tasks.flatten().filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        name.starts_with("duramen-client").then_some(())
    });
    names.count()
}

/// Runs in a process of its own: other tests of this one have clients.
#[test]
fn the_last_handle_ends_the_thread_and_the_operations() {
    if std::env::var_os("ALONE").is_none() {
        let name = "cluster::asynchronous::the_last_handle_ends_the_thread_and_the_operations";
        let alone = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", name])
            .env("ALONE", "1")
            .status();
        assert!(alone.expect("it runs").success());
        return;
    }
    let cluster = Cluster::start(1);
    let mut few = options(&cluster);
    few.in_flight_max = 2;
    let client = AsyncClient::new(few).expect("a thread");
    let table = wait(client.table("t")).expect("it has table t");
    wait(table.set(b"k", b"v")).expect("written");
    assert_eq!(drivers(), 1);
    // No answer comes any more.
    cluster.set_faults(Faults {
        lose_answer: 1,
        ..Faults::default()
    });
    let (write, read) = (table.set(b"k", b"v"), table.get(b"k"));
    let waits = table.set(b"k", b"w");
    until("it is executed", || cluster.executed() == 2);
    drop(client);
    drop(table);
    let write = wait(write).expect_err("the client has ended");
    assert!(matches!(write, Error::OutcomeUnknown { .. }), "{write}");
    for error in [wait(read).err(), wait(waits).err()] {
        assert!(matches!(error, Some(Error::Closed(_))), "{error:?}");
    }
    until("the thread ends", || drivers() == 0);
}
