//! Native clients of one server: the real client against the reactors, and frames made by the test.

mod cluster;
mod frames;
mod local;
mod users;

use cluster::{Cluster, wait_until};
use duramen_base::ids::Level;
use duramen_client::{Error, Outcome, Write};
use duramen_wire::native::message::{Condition, Expiry};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_client_reads_and_writes() {
    let cluster = Cluster::start(None);
    let table = cluster.table();
    assert_eq!(table.get(b"k").expect("read"), None);
    let first = table.set(b"k", b"v").expect("written");
    let read = table.get(b"k").expect("read").expect("present");
    assert_eq!(
        (read.value.as_slice(), read.version),
        (b"v".as_slice(), first)
    );
    let absent = Write {
        condition: Condition::Absent,
        ..Write::default()
    };
    assert_eq!(
        table.write(b"k", b"w", absent),
        Ok(Outcome::ConditionFailed {
            current: Some(first)
        })
    );
    let later = Write {
        condition: Condition::Version(first),
        expiry: Expiry::At(u64::MAX / 2),
        level: Some(Level::Memory),
    };
    assert!(matches!(
        table.write(b"k", b"w", later),
        Ok(Outcome::Written { version }) if version > first
    ));
    let read = table.get(b"k").expect("read").expect("present");
    assert_eq!(read.expires_at_ms, Some(u64::MAX / 2));
    assert_eq!(table.remove(b"k"), Ok(Some(read.version)));
    assert_eq!(table.remove(b"k"), Ok(None));
    assert_eq!(table.increment(b"n", 5), Ok(5));
    assert_eq!(table.increment(b"n", -7), Ok(-2));
    assert_eq!(table.increment_float(b"f", 0.5), Ok(0.5));
    table.set(b"s", b"no number").expect("written");
    assert_eq!(table.increment(b"s", 1), Err(Error::NotANumber));
    table
        .set(b"m", i64::MAX.to_string().as_bytes())
        .expect("written");
    assert_eq!(table.increment(b"m", 1), Err(Error::Overflow));
    let large = vec![7; 1 << 20];
    table
        .set(b"large", &large)
        .expect("a value of the largest size");
    let read = table.get(b"large").expect("read").expect("present");
    assert_eq!(read.value, large);
}

#[test]
fn many_operations_and_enumerations_are_complete() {
    let cluster = Cluster::start(None);
    let table = cluster.table();
    let objects: Vec<(String, String)> = (0..20_000)
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
        assert_eq!(
            result.expect("read").expect("present").value,
            value.as_bytes()
        );
    }
    let found: Vec<Vec<u8>> = table
        .scan()
        .map(|object| object.expect("scanned").0)
        .collect();
    let each: BTreeSet<&Vec<u8>> = found.iter().collect();
    assert_eq!((found.len(), each.len()), (objects.len(), objects.len()));
    let gone = table.remove_many(&keys);
    assert!(
        gone.iter()
            .all(|result| matches!(result, Ok(Outcome::Removed { .. })))
    );
    assert_eq!(table.scan().count(), 0);
}

/// Collections, which RESP clients make, are refused; they are replaced and removed as others are.
#[test]
fn collections_are_not_read() {
    let cluster = Cluster::start(None);
    let table = cluster.table();
    table.set(b"string", b"value").expect("written");
    for key in ["one", "two", "three"] {
        assert_eq!(cluster.resp(&format!("HSET {key} field value")), ":1\r\n");
    }
    assert_eq!(table.get(b"one"), Err(Error::WrongType));
    assert_eq!(table.increment(b"one", 1), Err(Error::WrongType));
    assert_eq!(table.increment_float(b"one", 1.0), Err(Error::WrongType));
    let many = table.get_many(&["one", "string"]);
    assert_eq!(many[0], Err(Error::WrongType));
    assert!(many[1].as_ref().is_ok_and(Option::is_some));
    let scanned: Vec<Vec<u8>> = table
        .scan()
        .map(|object| object.expect("scanned").0)
        .collect();
    assert_eq!(scanned, [b"string".to_vec()]);
    assert!(matches!(table.remove(b"one"), Ok(Some(_))));
    table.set(b"two", b"now a string").expect("written");
    let read = table.get(b"two").expect("read").expect("present");
    assert_eq!(read.value, b"now a string");
    assert_eq!(cluster.resp("TYPE two"), "+string\r\n");
    assert_eq!(cluster.resp("HGET three field"), "$5\r\nvalue\r\n");
}

/// Values that are too many for one answer arrive nevertheless, in further answers.
#[test]
fn answers_that_would_be_too_long_are_cut() {
    let cluster = Cluster::with(None, |config| config.memory_bytes = 256 << 20);
    let table = cluster.table();
    let value = vec![1; 1 << 20];
    let keys: Vec<String> = (0..40).map(|n| format!("key {n}")).collect();
    for key in &keys {
        table.set(key.as_bytes(), &value).expect("written");
    }
    for read in table.get_many(&keys) {
        assert_eq!(
            read.expect("read").expect("present").value.len(),
            value.len()
        );
    }
    assert_eq!(
        table.scan().filter(|object| object.is_ok()).count(),
        keys.len()
    );
}

/// Threads of several clients add to the same numbers while connections are killed: each addition
/// counts once.
#[test]
fn what_is_sent_again_counts_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = Arc::new(Cluster::start(Some(dir.path())));
    const THREADS: usize = 4;
    const EACH: i64 = 150;
    let done = Arc::new(AtomicUsize::new(0));
    let killed = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let (table, done, killed) = (cluster.table(), done.clone(), killed.clone());
            std::thread::spawn(move || {
                let mut added = 0;
                // Until a connection was killed: the killing thread may start late.
                while added < EACH || killed.load(Ordering::SeqCst) == 0 {
                    table.increment(b"shared", 1).expect("masked");
                    table
                        .increment(format!("own {n}").as_bytes(), 1)
                        .expect("masked");
                    added += 1;
                }
                done.fetch_add(1, Ordering::SeqCst);
                added
            })
        })
        .collect();
    wait_until("all have added", || {
        let shared = cluster.server.shared();
        for record in shared.threads.clients() {
            // Kills some connections, but none that has only just connected.
            if record.id % 2 == 0 && record.received_bytes.load(Ordering::Relaxed) > 3_000 {
                let client = record.id;
                shared
                    .threads
                    .post(&record, duramen_redis::threads::Message::Close { client });
                killed.fetch_add(1, Ordering::SeqCst);
            }
        }
        std::thread::yield_now();
        done.load(Ordering::SeqCst) == THREADS
    });
    let added: Vec<i64> = threads
        .into_iter()
        .map(|thread| thread.join().expect("no call failed"))
        .collect();
    let table = cluster.table();
    assert_eq!(table.increment(b"shared", 0), Ok(added.iter().sum()));
    for (n, added) in added.iter().enumerate() {
        let own = table
            .get(format!("own {n}").as_bytes())
            .expect("read")
            .expect("there");
        assert_eq!(own.value, added.to_string().into_bytes());
    }
}

#[test]
fn what_is_not_owned_is_not_served() {
    use duramen_base::ids::{KeyRange, RouteHash};
    let cluster = Cluster::start(None);
    let table = cluster.table();
    table.set(b"k", b"v").expect("written");
    cluster.serve(KeyRange::new(RouteHash::MAX, RouteHash::MAX));
    let mut options = cluster.options();
    options.deadline = std::time::Duration::from_secs(5);
    // A machine that stands still may take longer than that sometimes, but not each time.
    let connect = || {
        let client = duramen_client::Client::connect(options.clone()).ok()?;
        client.table("t").ok()
    };
    let found = (0..10).find_map(|_| connect()).expect("it has table t");
    let found = found.get(b"k");
    assert!(matches!(found, Err(Error::Deadline { .. })), "{found:?}");
    cluster.serve(KeyRange::ALL);
    assert!(table.get(b"k").expect("read").is_some());
}

#[test]
fn native_clients_are_listed_and_counted() {
    let cluster = Cluster::start(None);
    let table = cluster.table();
    table.set(b"k", b"v").expect("written");
    let shared = cluster.server.shared();
    let clients = shared.threads.clients();
    assert_eq!(clients.len(), 1);
    assert_eq!(clients[0].text().lib_name, "duramen");
    assert_eq!(shared.threads.connected_clients(), 1);
    drop(table);
    wait_until("its connection is gone", || {
        shared.threads.connected_clients() == 0
    });
}
