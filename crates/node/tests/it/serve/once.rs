//! Exactly once, rule by rule: leases, levels, several operations, and records beside their
//! effects.

use crate::serve::world::{Got, SINCE, TABLE, World, entries_of, rpc};
use duramen_base::ids::Level;
use duramen_engine::Collected;
use duramen_format::entry::{self, Kind};
use duramen_wire::native::message::{Amount, Condition, Expiry, Operation, Single};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn add(key: &[u8], client: u64, id: u64) -> Single<'_> {
    Single {
        table: TABLE,
        key,
        operation: Operation::Increment {
            by: Amount::Integer(1),
        },
        level: None,
        rpc: rpc(client, id, 0),
    }
}

fn number(got: &Got) -> i64 {
    match got {
        Got::Number(Amount::Integer(sum), _) => *sum,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_is_served_when_its_lease_is_known_and_not_after_it_ended() {
    let mut world = World::new();
    assert_eq!(
        world.do_now(&add(b"k", 1, 1)),
        Got::Retry,
        "nobody knows it"
    );
    assert_eq!(world.clients.ask(0), [duramen_base::ids::ClientId(1)]);
    assert!(world.clients.ask(1).is_empty(), "it was just asked about");
    let alive = [(duramen_base::ids::ClientId(1), 1_000)];
    world.clients.answered(0, &[alive[0].0], &alive);
    assert_eq!(number(&world.do_now(&add(b"k", 1, 1))), 1);
    // The coordinator reports that its lease has ended, while its request is in flight.
    world
        .clients
        .answered(2, &[duramen_base::ids::ClientId(1)], &[]);
    assert_eq!(world.do_now(&add(b"k", 1, 2)), Got::LeaseExpired);
    assert_eq!(world.do_now(&add(b"k", 1, 1)), Got::InProgress);
    world.commit();
    assert_eq!(
        number(&world.do_now(&add(b"k", 1, 1))),
        1,
        "it is finished all the same"
    );
}

/// serve::X9: a pause may begin when the request is admitted already, also between two of its
/// operations.
#[test]
fn writes_that_wait_leave_no_record() {
    let mut world = World::new();
    world.lease(&[1]);
    let read = Single {
        operation: Operation::Read,
        rpc: None,
        ..add(b"k", 1, 2)
    };
    for sum in 1..=2 {
        let add = add(b"k", 1, 1 + sum);
        world.is_paused = true;
        let before = world.do_now(&read);
        assert_eq!(world.do_now(&add), Got::Retry);
        assert_eq!(world.do_now(&read), before, "reads go on");
        world.is_paused = false;
        assert_eq!(number(&world.do_now(&add)), sum as i64);
    }
}

#[test]
fn a_weaker_level_waits_for_less() {
    let mut world = World::new();
    world.lease(&[1]);
    let weak = Single {
        level: Some(Level::Memory),
        ..add(b"k", 1, 1)
    };
    assert_eq!(number(&world.do_now(&weak)), 1);
    assert!(world.wait.is_none() && !world.servant.is_waiting());
    assert_eq!(
        number(&world.do_now(&weak)),
        1,
        "its answer is known at once"
    );
    let buffered = Single {
        level: Some(Level::Buffered),
        ..add(b"k", 1, 2)
    };
    assert_eq!(number(&world.do_now(&buffered)), 2);
    assert_eq!(world.wait.level(), Level::Buffered);
    assert_eq!(world.do_now(&buffered), Got::InProgress);
}

#[test]
fn what_had_no_effect_may_come_again() {
    let mut world = World::new();
    world.lease(&[1]);
    let large = vec![0; (1 << 20) + 1];
    let too_large = Single {
        operation: Operation::Write {
            value: &large,
            condition: Condition::Always,
            expiry: Expiry::Never,
        },
        ..add(b"k", 1, 1)
    };
    assert_eq!(world.do_now(&too_large), Got::Other("TooLarge".to_owned()));
    assert_eq!(number(&world.do_now(&add(b"k", 1, 1))), 1);
    let beyond = add(b"k", 1, 2_000);
    assert!(
        matches!(world.do_now(&beyond), Got::Other(_)),
        "beyond the window"
    );
    assert_eq!(world.ask(SINCE - 1, &add(b"k", 1, 2)), Got::UnknownTablet);
    assert_eq!(number(&world.do_now(&add(b"k", 1, 2))), 2);
}

#[test]
fn records_move_with_their_range_when_all_of_it_is_durable() {
    use duramen_base::ids::KeyRange;
    let mut world = World::new();
    world.lease(&[1]);
    assert_eq!(number(&world.do_now(&add(b"k", 1, 1))), 1);
    assert!(world.clients.export(TABLE, &KeyRange::ALL).is_none());
    world.commit();
    let records = world.clients.export(TABLE, &KeyRange::ALL).unwrap();
    let mut other = World::with(&records);
    other.lease(&[1]);
    assert_eq!(number(&other.do_now(&add(b"k", 1, 1))), 1, "the old answer");
    assert_eq!(
        number(&other.do_now(&add(b"k", 1, 2))),
        1,
        "the object did not come along"
    );
    world.clients.purge(TABLE, &KeyRange::ALL);
    assert_eq!(
        world.clients.export(TABLE, &KeyRange::ALL),
        Some(Vec::new())
    );
}

/// serve::X3: whatever a commit contains while requests run, it has effects together with their
/// records. `Err`: it had not.
pub(crate) fn groups_are_whole(requests: u64) -> Result<(), String> {
    let mut world = World::new();
    world.lease(&[1]);
    let (store, stop) = (world.store.clone(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let log = store.log().unwrap();
            let (mut effects, mut records) = (0u64, 0u64);
            loop {
                let is_last = stop.load(Ordering::Acquire);
                let mut collected = Collected::default();
                log.collect(&mut collected);
                let entries = entries_of(log, &collected);
                let mut at = 0;
                while at < entries.len() {
                    let entry = entry::parse(&entries[at..]).map_err(|e| e.to_string())?;
                    match entry.kind {
                        Kind::Completion => records += 1,
                        _ => effects += 1,
                    }
                    at += entry.padded_bytes;
                }
                if effects != records {
                    return Err(format!("{effects} effects, {records} records"));
                }
                log.complete(&mut collected, Level::Synced);
                if is_last {
                    return Ok(records);
                }
            }
        });
        let mut wrong = None;
        for id in 1..=requests {
            if consumer.is_finished() || wrong.is_some() {
                break;
            }
            let single = Single {
                rpc: rpc(1, id, id.saturating_sub(10)),
                ..add(b"k", 1, id)
            };
            // While a busy machine does not run the consumer, a request may have to come again.
            let until = Instant::now() + Duration::from_secs(60);
            let got = loop {
                let got = world.do_now(&single);
                let log = world.store.log().unwrap();
                world.servant.settle(|position| log.reached(position));
                let is_over = consumer.is_finished() || Instant::now() > until;
                if got != Got::Retry || is_over {
                    break got;
                }
                std::thread::yield_now();
            };
            wrong = Some(got).filter(|got| !matches!(got, Got::Number(..)));
        }
        stop.store(true, Ordering::Release);
        let records = consumer.join().expect("no panic")?;
        if let Some(wrong) = wrong {
            return Err(format!("{wrong:?}"));
        }
        if records == requests {
            return Ok(());
        }
        Err(format!("{records} records of {requests} requests"))
    })
}

#[test]
fn effects_and_records_are_committed_together() {
    groups_are_whole(20_000).unwrap();
}
