//! The client against a cluster that loses answers, moves tablets, and partly fails: no call fails,
//! and each write takes effect once.

mod asynchronous;
mod mock;

use duramen_base::ids::ServerId;
use duramen_client::{Client, Condition, Error, Expiry, Options, Outcome, Table, Write};
use mock::{Cluster, Faults};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn options(cluster: &Cluster) -> Options {
    let mut options = Options::new(cluster.coordinators());
    options.cluster = "mock".to_owned();
    options.attempt = Duration::from_millis(300);
    options
}

fn connect(cluster: &Cluster) -> (Client, Table) {
    let client = Client::connect(options(cluster)).expect("the cluster is there");
    let table = client.table("t").expect("it has table t");
    (client, table)
}

#[test]
fn operations_do_what_they_say() {
    let cluster = Cluster::start(3);
    let (client, table) = connect(&cluster);
    assert_eq!(table.get(b"a"), Ok(None));
    let first = table.set(b"a", b"one").expect("written");
    let object = table.get(b"a").expect("read").expect("present");
    assert_eq!(
        (object.value.as_slice(), object.version),
        (&b"one"[..], first)
    );
    let write = |condition| Write {
        condition,
        expiry: Expiry::Never,
        level: None,
    };
    let refused = table.write(b"a", b"two", write(Condition::Absent));
    let current = Some(first);
    assert_eq!(refused, Ok(Outcome::ConditionFailed { current }));
    let written = table.write(b"a", b"two", write(Condition::Version(first)));
    assert!(matches!(written, Ok(Outcome::Written { version }) if version > first));
    assert_eq!(table.increment(b"n", 5), Ok(5));
    assert_eq!(table.increment(b"n", -7), Ok(-2));
    assert_eq!(table.increment(b"a", 1), Err(Error::NotANumber));
    assert!(matches!(table.remove(b"a"), Ok(Some(_))));
    assert_eq!(table.remove(b"a"), Ok(None));
    let made = client.create_table("u", 2, None).expect("created");
    assert_eq!(made.get(b"n"), Ok(None));
    assert!(matches!(
        client.create_table("u", 2, None),
        Err(Error::Refused(_))
    ));
    assert!(matches!(client.table("v"), Err(Error::NoSuchTable(_))));
    assert!(matches!(
        table.set(b"k", &vec![0; 2 << 20]),
        Err(Error::TooLarge { .. })
    ));
}

#[test]
fn several_operations_go_to_all_servers() {
    let cluster = Cluster::start(3);
    let (_, table) = connect(&cluster);
    let objects: Vec<(String, String)> = (0..5_000)
        .map(|n| (format!("key {n}"), format!("value {n}")))
        .collect();
    let written = table.set_many(&objects, Write::default());
    assert!(
        written
            .iter()
            .all(|result| matches!(result, Ok(Outcome::Written { .. })))
    );
    let keys: Vec<&String> = objects.iter().map(|(key, _)| key).collect();
    for (result, (_, value)) in table.get_many(&keys).into_iter().zip(&objects) {
        let object = result.expect("read").expect("present");
        assert_eq!(object.value, value.as_bytes());
    }
    let found: BTreeSet<Vec<u8>> = table
        .scan()
        .map(|object| object.expect("scanned").0)
        .collect();
    assert_eq!(found.len(), objects.len());
    assert_eq!(table.scan().count(), objects.len(), "each once");
    let gone = table.remove_many(&keys[..10]);
    assert!(
        gone.iter()
            .all(|result| matches!(result, Ok(Outcome::Removed { .. })))
    );
    assert_eq!(table.scan().count(), objects.len() - 10);
}

#[test]
fn lost_answers_do_not_double_writes() {
    let cluster = Cluster::start(2);
    let (_, table) = connect(&cluster);
    cluster.set_faults(Faults {
        lose_answer: 3,
        lose_request: 5,
        retry: 7,
        busy: 11,
    });
    for n in 1..=200 {
        assert_eq!(table.increment(b"n", 1), Ok(n));
    }
    assert_eq!(cluster.executed(), 200);
    assert!(
        cluster.remembered() <= 1,
        "{}: nothing is acknowledged",
        cluster.remembered()
    );
}

#[test]
fn without_exactly_once_lost_answers_do_double_writes() {
    let cluster = Cluster::start(1);
    let mut options = options(&cluster);
    options.exactly_once = false;
    let client = Client::connect(options).expect("the cluster is there");
    let table = client.table("t").expect("it has table t");
    cluster.set_faults(Faults {
        lose_answer: 3,
        ..Faults::default()
    });
    for _ in 0..50 {
        table.increment(b"n", 1).expect("masked");
    }
    assert!(cluster.executed() > 50, "or the test above shows nothing");
    assert_eq!(cluster.leases(), 0);
}

#[test]
fn moved_and_split_tablets_are_followed() {
    let cluster = Cluster::start(3);
    let (_, table) = connect(&cluster);
    for round in 1..=6 {
        for n in 0..30 {
            assert_eq!(table.increment(format!("key {n}").as_bytes(), 1), Ok(round));
        }
        cluster.rotate();
        if round % 3 == 0 {
            cluster.split();
        }
    }
    let mut found = 0;
    for object in table.scan() {
        object.expect("scanned");
        found += 1;
        if found % 7 == 0 {
            cluster.rotate();
        }
        if found == 15 {
            cluster.split();
        }
    }
    assert_eq!(found, 30);
}

#[test]
fn a_dead_master_is_waited_for() {
    let mut cluster = Cluster::start(3);
    let (_, table) = connect(&cluster);
    let keys: Vec<String> = (0..30).map(|n| format!("key {n}")).collect();
    for key in &keys {
        table.set(key.as_bytes(), b"before").expect("written");
    }
    cluster.kill(1);
    std::thread::scope(|scope| {
        let calls = keys.iter().map(|key| {
            let table = &table;
            scope.spawn(move || table.set(key.as_bytes(), b"after"))
        });
        let calls: Vec<_> = calls.collect();
        // Most calls are in flight, some wait; all of them must succeed.
        cluster.recover();
        for call in calls {
            call.join().expect("no panic").expect("masked");
        }
    });
    for key in &keys {
        assert_eq!(
            table
                .get(key.as_bytes())
                .expect("read")
                .expect("there")
                .value,
            b"after"
        );
    }
    assert_eq!(cluster.executed(), 60);
}

#[test]
fn coordinators_change_without_an_error() {
    let cluster = Cluster::start(2);
    let (client, table) = connect(&cluster);
    table.set(b"a", b"1").expect("written");
    cluster.hand_over();
    cluster.rotate();
    table.set(b"a", b"2").expect("masked");
    cluster.hand_over();
    cluster.fail_over();
    cluster.rotate();
    table.set(b"a", b"3").expect("masked");
    client.create_table("u", 1, None).expect("masked");
}

#[test]
fn a_lease_that_ends_is_replaced_and_a_living_one_renewed() {
    let cluster = Cluster::start(1);
    let lease = Duration::from_millis(200);
    cluster.set_lease(lease);
    // No answer is lost here. A late answer of a machine that stands still must not be taken for a
    // lost one: with a lease that has ended meanwhile, its result would be unknown.
    let mut patient = options(&cluster);
    patient.attempt = Duration::from_secs(30);
    let client = Client::connect(patient).expect("the cluster is there");
    let table = client.table("t").expect("it has table t");
    let mut n = 0;
    let mut increment = || {
        n += 1;
        assert_eq!(table.increment(b"n", 1), Ok(n));
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    // A machine that stands still may lose a lease, which is then replaced; but not each time.
    let mut before = 0;
    loop {
        let until = Instant::now() + 2 * lease;
        while Instant::now() < until {
            increment();
            std::thread::sleep(Duration::from_millis(10)); // a lease must pass
        }
        if cluster.leases() == before {
            break; // the lease was renewed
        }
        before = cluster.leases();
        assert!(Instant::now() < deadline, "{before} leases, none renewed");
    }
    cluster.set_lease(Duration::ZERO); // the cluster forgets it unnoticed
    cluster.set_lease(Duration::from_secs(600));
    std::thread::sleep(lease);
    increment();
    assert!(cluster.leases() > before, "its lease was replaced");
}

#[test]
fn a_deadline_ends_a_call_and_says_why() {
    let mut cluster = Cluster::start(2);
    let mut options = options(&cluster);
    options.deadline = Duration::from_secs(2);
    let client = Client::connect(options).expect("the cluster is there");
    let table = client.table("t").expect("it has table t");
    // A machine that stands still may take longer than the deadline sometimes, but not each time.
    let soon = |value: &[u8]| {
        let until = Instant::now() + Duration::from_secs(60);
        while let Err(error) = table.set(b"a", value) {
            assert!(Instant::now() < until, "{error}");
        }
    };
    soon(b"1");
    cluster.set_faults(Faults {
        lose_answer: 1,
        ..Faults::default()
    });
    let error = table.set(b"a", b"2").expect_err("no answer ever comes");
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    let error = table.get(b"a").expect_err("no answer ever comes");
    assert!(
        matches!(error, Error::Deadline { .. }),
        "a read changes nothing: {error}"
    );
    cluster.set_faults(Faults::default());
    soon(b"3"); // an abandoned call delays no other call
    cluster.kill(0);
    cluster.kill(0);
    let error = table.set(b"a", b"4").expect_err("nobody is there");
    let text = error.to_string();
    assert!(text.contains("2s") && text.contains("recovered"), "{text}");
}

#[test]
fn nobody_there_is_said_in_time() {
    let cluster = Cluster::start(1);
    let mut options = options(&cluster);
    drop(cluster);
    options.deadline = Duration::from_secs(2);
    let error = Client::connect(options.clone())
        .expect_err("nobody is there")
        .to_string();
    assert!(
        error.contains(&options.coordinators[0]) || error.contains(&options.coordinators[1]),
        "{error}"
    );
    options.coordinators.clear();
    assert!(matches!(Client::connect(options), Err(Error::Options(_))));
}

/// Many threads on one client, while tablets move and servers fail: no error, and every increment
/// counts once.
#[test]
fn increments_of_many_threads_add_up_through_everything() {
    const THREADS: i64 = 6;
    const EACH: i64 = 150;
    let mut cluster = Cluster::start(3);
    let (_, table) = connect(&cluster);
    cluster.set_faults(Faults {
        lose_answer: 13,
        lose_request: 17,
        retry: 19,
        busy: 23,
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let table = table.clone();
                scope.spawn(move || {
                    for n in 0..EACH {
                        let key = format!("key {}", (thread + n) % 10);
                        table.increment(key.as_bytes(), 1).expect("masked");
                    }
                })
            })
            .collect();
        let stop = &stop;
        let chaos = scope.spawn(move || {
            let mut generation = 1;
            while !stop.load(Ordering::SeqCst) {
                cluster.rotate();
                cluster.kill(0);
                generation += 1;
                cluster.add_master(ServerId::new(0, generation));
                cluster.recover();
                std::thread::sleep(Duration::from_millis(20)); // interval between faults
            }
            cluster
        });
        for worker in workers {
            worker.join().expect("no error");
        }
        stop.store(true, Ordering::SeqCst);
        let cluster = chaos.join().expect("no panic");
        cluster.set_faults(Faults::default());
        let sum: i64 = (0..10)
            .map(|n| {
                table
                    .increment(format!("key {n}").as_bytes(), 0)
                    .expect("read")
            })
            .sum();
        assert_eq!(sum, THREADS * EACH);
    });
}
