//! The client's decisions, without sockets: its errors for requests with unknown results, and the
//! ids that requests carry.

use duramen_base::ids::{ClientId, KeyRange, MapVersion, RpcId, ServerId, TableId};
use duramen_client::core::{Batch, Core, Next, Send, Settled, Work};
use duramen_client::{Error, Outcome};
use duramen_wire::native::codec::{
    PEER_FRAME_BYTES_MAX, Parsed, Question, Reply, Trouble, decode_question, parse_frame,
};
use duramen_wire::native::message::{
    self as wire, Addresses, Answer, Condition, CoordinatorAnswer, Expiry, Operation, Problem,
    Refusal, Request, Rpc, Single, TableEntry, TabletMap, TabletRoute, ToCoordinator,
};
use std::collections::BTreeSet;
use std::time::Duration;

const TABLE: TableId = TableId(3);
const DEADLINE: Duration = Duration::from_secs(10);
const END_US: u64 = 10_000_000;
const FIRST: ServerId = ServerId::new(1, 1);
const SECOND: ServerId = ServerId::new(2, 1);

fn map(version: u64, owner: ServerId) -> TabletMap {
    let addresses = |native: &str| Addresses {
        native: native.to_owned(),
        ..Addresses::default()
    };
    TabletMap {
        version: MapVersion(version),
        hash_seed: 1,
        tables: vec![TableEntry {
            table: TABLE,
            name: "t".to_owned(),
            level: None,
        }],
        tablets: vec![TabletRoute {
            table: TABLE,
            range: KeyRange::ALL,
            owner,
            served: true,
            moving_to: None,
        }],
        servers: vec![(FIRST, addresses("first")), (SECOND, addresses("second"))],
    }
}

/// A core with a map (the first server owns everything) and a lease of 1,000 seconds.
fn core() -> Core {
    let mut core = Core::new(vec!["a".to_owned(), "b".to_owned()], true, 1_000_000, 7);
    core.learn(map(1, FIRST));
    core
}

fn write(key: &[u8]) -> Work<'_> {
    work(
        key,
        Operation::Write {
            value: b"v",
            condition: Condition::Always,
            expiry: Expiry::Never,
        },
    )
}

fn work<'a>(key: &'a [u8], operation: Operation<'a>) -> Work<'a> {
    Work::Operation(Single {
        table: TABLE,
        key,
        operation,
        level: None,
        rpc: None,
    })
}

fn batch<'a>(now_us: u64, works: &[Work<'a>]) -> Batch<Work<'a>> {
    Batch::new(now_us, DEADLINE, works.iter().copied())
}

/// Continues until a request is to be sent, answering questions for a lease (client 9 first, then
/// 10 and so on) and for the map.
fn send(
    core: &mut Core,
    now_us: &mut u64,
    batch: &mut Batch<Work<'_>>,
    newest: &TabletMap,
) -> Send {
    for _ in 0..1_000 {
        match core.next(*now_us, batch) {
            Next::Send(mut sends) if sends.len() == 1 => return sends.remove(0),
            Next::Ask(ask) => {
                let answer = match &ask.question {
                    ToCoordinator::ClientLease { client } => CoordinatorAnswer::Lease {
                        client: client.unwrap_or(ClientId(9 + *now_us)),
                        ttl_ms: 1_000_000,
                    },
                    _ => CoordinatorAnswer::Map(newest.clone()),
                };
                core.coordinator_answered(*now_us, &ask, answer);
            }
            Next::Wait { until_us } => *now_us = until_us.max(*now_us + 1),
            other => panic!("{other:?}"),
        }
    }
    panic!("it never sends");
}

fn rpc(batch: &Batch<Work<'_>>, send: &Send) -> Rpc {
    let mut frame = Vec::new();
    batch.encode(send, 1, &mut frame);
    let Ok(Parsed::Frame { frame, .. }) = parse_frame(&frame, PEER_FRAME_BYTES_MAX) else {
        panic!("no frame");
    };
    assert_eq!(frame.header.envelope.target, send.server);
    match decode_question(&frame) {
        Ok(Question::Client(Request::Single(single))) => single.rpc.expect("it has a name"),
        other => panic!("{other:?}"),
    }
}

fn problem(problem: Problem<'_>) -> Reply<'_> {
    Reply::Client(Answer::Single(wire::Outcome::Problem(problem)))
}

fn result(batch: Batch<Work<'_>>) -> Result<Settled, Error> {
    batch.into_results().next().expect("one result")
}

#[test]
fn a_repetition_keeps_its_name_and_goes_where_the_key_is() {
    let (mut core, mut now_us) = (core(), 0);
    let mut batch = batch(0, &[write(b"k")]);
    let first = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
    assert_eq!(&*first.address, "first");
    let name = rpc(&batch, &first);
    core.failed(now_us, &mut batch, &first, "closed");
    let second = send(&mut core, &mut now_us, &mut batch, &map(2, SECOND));
    assert_eq!(&*second.address, "second");
    assert_eq!(rpc(&batch, &second), name);
    let written = Reply::Client(Answer::Single(wire::Outcome::Written { version: 5 }));
    core.answered(now_us, &mut batch, &second, written);
    assert!(matches!(core.next(now_us, &mut batch), Next::Done));
    let version = 5;
    assert_eq!(
        result(batch),
        Ok(Settled::Outcome(Outcome::Written { version }))
    );
}

#[test]
fn what_ends_without_an_answer_is_unknown_and_what_was_refused_is_not_done() {
    for lost in [true, false] {
        let (mut core, mut now_us) = (core(), 0);
        let mut batch = batch(0, &[write(b"k")]);
        let sent = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
        if lost {
            core.failed(now_us, &mut batch, &sent, "closed");
        } else {
            core.answered(now_us, &mut batch, &sent, problem(Problem::UnknownTablet));
        }
        assert!(matches!(core.next(END_US, &mut batch), Next::Done));
        match result(batch) {
            Err(Error::OutcomeUnknown { last, .. }) if lost => assert!(last.contains("closed")),
            Err(Error::Deadline { last, .. }) if !lost => assert!(last.contains("own"), "{last}"),
            other => panic!("{other:?}"),
        }
    }
}

/// core::K2: with another lease, only requests that are known not to have been executed are sent
/// again.
#[test]
fn an_ended_lease_makes_only_the_unknown_unknown() {
    for lost in [true, false] {
        let (mut core, mut now_us) = (core(), 0);
        let mut batch = batch(0, &[write(b"k")]);
        let sent = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
        let name = rpc(&batch, &sent);
        let sent = if lost {
            core.failed(now_us, &mut batch, &sent, "closed");
            send(&mut core, &mut now_us, &mut batch, &map(1, FIRST))
        } else {
            sent
        };
        now_us += 1;
        core.answered(now_us, &mut batch, &sent, problem(Problem::LeaseExpired));
        if lost {
            assert!(matches!(core.next(now_us, &mut batch), Next::Done));
            assert!(matches!(result(batch), Err(Error::OutcomeUnknown { .. })));
            continue;
        }
        let again = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
        let new = rpc(&batch, &again);
        assert_ne!(new.client, name.client);
        assert_eq!(new.id, RpcId(1));
    }
}

/// The network repeats a frame: the answer to its copy comes first, and reports that the other copy
/// is being executed. If the lease ends then, a new id would execute the operation twice.
#[test]
fn in_progress_is_no_answer() {
    let (mut core, mut now_us) = (core(), 0);
    let mut batch = batch(0, &[write(b"k")]);
    let sent = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
    let name = rpc(&batch, &sent);
    let after_ms = 20;
    core.answered(
        now_us,
        &mut batch,
        &sent,
        problem(Problem::InProgress { after_ms }),
    );
    let asked_us = now_us;
    let again = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
    assert!(now_us >= asked_us + u64::from(after_ms) * 1000, "it waits");
    assert_eq!(rpc(&batch, &again), name, "the same again");
    core.answered(now_us, &mut batch, &again, problem(Problem::LeaseExpired));
    assert!(matches!(core.next(now_us, &mut batch), Next::Done));
    assert!(matches!(result(batch), Err(Error::OutcomeUnknown { .. })));
}

#[test]
fn answers_are_acknowledged_by_what_comes_next() {
    let (mut core, mut now_us) = (core(), 0);
    let newest = map(1, FIRST);
    for id in 1..=3 {
        let mut batch = batch(now_us, &[write(b"k")]);
        let sent = send(&mut core, &mut now_us, &mut batch, &newest);
        let name = rpc(&batch, &sent);
        assert_eq!((name.id, name.acknowledged), (RpcId(id), RpcId(id - 1)));
        let written = Reply::Client(Answer::Single(wire::Outcome::Written { version: id }));
        core.answered(now_us, &mut batch, &sent, written);
        assert!(matches!(core.next(now_us, &mut batch), Next::Done));
    }
}

#[test]
fn one_call_at_a_time_asks_the_coordinator() {
    let mut core = Core::new(vec!["a".to_owned(), "b".to_owned()], true, 1_000_000, 7);
    let read = [work(b"k", Operation::Read)];
    let (mut first, mut second) = (batch(0, &read), batch(0, &read));
    let Next::Ask(ask) = core.next(0, &mut first) else {
        panic!("nothing is known yet");
    };
    assert_eq!(&*ask.address, "a");
    assert!(matches!(
        core.next(1, &mut second),
        Next::Wait {
            until_us: 1_000_000
        }
    ));
    core.coordinator_failed(2, &ask, "refused");
    let Next::Wait { until_us } = core.next(3, &mut second) else {
        panic!("a pause after a failure");
    };
    assert!(until_us < 100_000);
    let Next::Ask(ask) = core.next(until_us, &mut second) else {
        panic!("the pause is over");
    };
    assert_eq!(&*ask.address, "b");
    let leader = Some("c".to_owned());
    let redirect = CoordinatorAnswer::Refused(Refusal::NotLeader { leader });
    core.coordinator_answered(until_us, &ask, redirect);
    let Next::Ask(ask) = core.next(until_us + 1_000, &mut first) else {
        panic!("the leader is to be asked");
    };
    assert_eq!(&*ask.address, "c");
}

#[test]
fn a_table_that_a_fresh_map_does_not_know_is_none() {
    let (mut core, mut now_us) = (core(), 5);
    let unknown = Work::Operation(Single {
        table: TableId(99),
        key: b"k",
        operation: Operation::Read,
        level: None,
        rpc: None,
    });
    let mut batch = batch(5, &[unknown]);
    for _ in 0..100 {
        match core.next(now_us, &mut batch) {
            Next::Ask(ask) => {
                core.coordinator_answered(now_us, &ask, CoordinatorAnswer::MapIsCurrent);
            }
            Next::Wait { until_us } => now_us = until_us,
            Next::Done => break,
            Next::Send(sends) => panic!("{sends:?}"),
        }
    }
    assert!(matches!(result(batch), Err(Error::NoSuchTable(_))));
    assert!(now_us < END_US, "long before the deadline");
}

/// The first example of the crate once used `default`, which has no tablets in a new cluster: calls
/// waited for 30 s, and the error named a recovery.
#[test]
fn a_table_without_tablets_is_told_at_once() {
    let mut core = Core::new(vec!["a".to_owned()], true, 1_000_000, 7);
    let mut empty = map(1, FIRST);
    empty.tablets.clear();
    core.learn(empty.clone());
    let mut now_us = 5;
    let mut batch = batch(now_us, &[work(b"k", Operation::Read)]);
    // The map may be older than the tablets: the client asks for it once.
    loop {
        match core.next(now_us, &mut batch) {
            Next::Ask(ask) => {
                core.coordinator_answered(now_us, &ask, CoordinatorAnswer::MapIsCurrent)
            }
            Next::Wait { until_us } => now_us = until_us,
            Next::Done => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(now_us < 1_000_000, "after {now_us} us");
    let error = result(batch).expect_err("no server has the key");
    assert_eq!(error, Error::NoTablets("t".to_owned()));
    assert!(
        error.to_string().contains("duramen table create t"),
        "{error}"
    );
    // If the tablets were created meanwhile, the call continues.
    let mut core = Core::new(vec!["a".to_owned()], true, 1_000_000, 7);
    core.learn(empty);
    let mut batch = Batch::new(now_us, DEADLINE, [work(b"k", Operation::Read)]);
    let sent = send(&mut core, &mut now_us, &mut batch, &map(2, FIRST));
    assert_eq!(sent.server, FIRST);
}

#[test]
fn what_no_try_changes_ends_at_once() {
    let (mut core, mut now_us) = (core(), 0);
    for (reply, is_right) in [
        (
            Reply::Trouble(Trouble::Malformed { reason: "no" }),
            (|error| matches!(error, Error::Protocol { .. })) as fn(&Error) -> bool,
        ),
        (problem(Problem::Overflow), |error| {
            *error == Error::Overflow
        }),
        (problem(Problem::Full { what: "memory" }), |error| {
            matches!(error, Error::Full(_))
        }),
        (problem(Problem::Stale), |error| {
            matches!(error, Error::OutcomeUnknown { .. })
        }),
        (Reply::Client(Answer::Pong), |error| {
            matches!(error, Error::Protocol { .. })
        }),
    ] {
        let mut batch = batch(now_us, &[write(b"k")]);
        let sent = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
        core.answered(now_us, &mut batch, &sent, reply);
        assert!(matches!(core.next(now_us, &mut batch), Next::Done));
        let error = result(batch).expect_err("it was refused");
        assert!(is_right(&error), "{error:?}");
    }
}

#[test]
fn an_answer_after_the_deadline_changes_nothing() {
    let (mut core, mut now_us) = (core(), 0);
    let mut batch = batch(now_us, &[write(b"k")]);
    let sent = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
    assert!(batch.is_awaited(&sent));
    assert!(matches!(core.next(END_US, &mut batch), Next::Done));
    assert!(!batch.is_awaited(&sent));
    let taken: Vec<_> = batch.take_results().map(|(_, result)| result).collect();
    assert!(
        matches!(&taken[..], [Err(Error::OutcomeUnknown { .. })]),
        "{taken:?}"
    );
    let written = Reply::Client(Answer::Single(wire::Outcome::Written { version: 1 }));
    core.answered(END_US, &mut batch, &sent, written);
    core.failed(END_US, &mut batch, &sent, "refused");
    assert_eq!(batch.take_results().count(), 0, "it has ended already");
    assert!(matches!(core.next(END_US, &mut batch), Next::Done));
}

#[test]
fn operations_of_one_batch_end_at_their_own_deadlines() {
    let mut core = core();
    let reads = [(0, work(b"k", Operation::Read)), (7, write(b"k"))];
    let mut batch = Batch::of_begun(7, DEADLINE, reads);
    assert_eq!(batch.deadline_us(), END_US);
    core.learn(map(2, ServerId::new(9, 9))); // a server without an address
    let mut ended = Vec::new();
    for now_us in [8, END_US, END_US + 7] {
        core.next(now_us, &mut batch);
        ended.push(batch.take_results().count());
    }
    assert_eq!(ended, [0, 1, 1]);
}

#[test]
fn with_a_session_per_server_each_has_its_own_window() {
    let mut newest = map(1, FIRST);
    let (low, high) = KeyRange::ALL
        .split(duramen_base::ids::RouteHash(u64::MAX / 2))
        .expect("wide enough");
    newest.tablets[0].range = low;
    newest.tablets.push(TabletRoute {
        range: high,
        owner: SECOND,
        ..newest.tablets[0]
    });
    let mut core = Core::new(vec!["a".to_owned()], true, 1_000_000, 7).with_session_per_server();
    core.learn(newest.clone());
    let mut now_us = 5;
    let mut names = BTreeSet::new();
    for n in 0..20u32 {
        let key = n.to_le_bytes();
        let mut batch = batch(now_us, &[write(&key)]);
        let sent = send(&mut core, &mut now_us, &mut batch, &newest);
        now_us += 1; // another lease has another client
        let name = rpc(&batch, &sent);
        assert_eq!(name.acknowledged, RpcId(0), "no answer has come");
        assert!(names.insert((name.client, name.id)), "an id is used twice");
        names.insert((name.client, RpcId(0)));
    }
    let clients = names.iter().filter(|(_, id)| *id == RpcId(0)).count();
    assert_eq!((clients, names.len()), (2, 22));
}

/// core::K6: one server that refused the login stopped the whole client for a second.
#[test]
fn an_address_that_refuses_the_login_stops_only_what_it_would_do() {
    let (mut core, mut now_us) = (core(), 1_000);
    let mut refused = batch(now_us, &[write(b"a")]);
    let first = send(&mut core, &mut now_us, &mut refused, &map(1, FIRST));
    core.denied(now_us, &mut refused, &first, "a wrong password");
    assert!(matches!(result(refused), Err(Error::Refused(_))));
    let mut again = batch(now_us, &[write(b"a")]);
    assert!(matches!(core.next(now_us, &mut again), Next::Done));
    assert!(matches!(result(again), Err(Error::Refused(_))));
    // Another server has the key now.
    core.learn(map(2, SECOND));
    let mut other = batch(now_us, &[write(b"a")]);
    let second = send(&mut core, &mut now_us, &mut other, &map(2, SECOND));
    assert_eq!(second.server, SECOND);
    // And a second later the first is asked again.
    core.learn(map(3, FIRST));
    now_us += 1_000_001;
    let mut later = batch(now_us, &[write(b"a")]);
    let third = send(&mut core, &mut now_us, &mut later, &map(3, FIRST));
    assert_eq!(third.server, FIRST);
}

/// core::K6: as long as there are a map and a lease, nobody needs the coordinator.
#[test]
fn a_coordinator_that_refuses_the_login_stops_nothing_that_does_not_need_it() {
    let (mut core, mut now_us) = (core(), 1_000);
    let mut first = batch(now_us, &[write(b"a")]);
    send(&mut core, &mut now_us, &mut first, &map(1, FIRST));
    core.deny(now_us, "a", Error::Refused("a wrong password".to_owned()));
    let mut second = batch(now_us, &[write(b"b")]);
    assert!(matches!(core.next(now_us, &mut second), Next::Send(_)));
    // A table that the map does not have.
    let mut table = batch(now_us, &[Work::Table("other")]);
    assert!(matches!(core.next(now_us, &mut table), Next::Done));
    assert!(matches!(result(table), Err(Error::Refused(_))));
}

/// core::K1: a write whose first copy got no answer was reported as refused, so as not done.
#[test]
fn a_refusal_after_a_copy_without_an_answer_does_not_say_that_nothing_was_done() {
    for by_trouble in [true, false] {
        let (mut core, mut now_us) = (core(), 1_000);
        let mut batch = batch(now_us, &[write(b"a")]);
        let first = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
        core.failed(now_us, &mut batch, &first, "no answer in time");
        let again = send(&mut core, &mut now_us, &mut batch, &map(1, FIRST));
        let reason = "no right to this key";
        let reply = if by_trouble {
            Reply::Trouble(Trouble::NotPermitted { reason })
        } else {
            problem(Problem::Failed { reason })
        };
        core.answered(now_us, &mut batch, &again, reply);
        assert!(matches!(result(batch), Err(Error::RefusedAgain(_))));
    }
}
