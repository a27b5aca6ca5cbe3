//! Completion records leave in rounds (rifl::L6), and a client that has ended learns it.

use duramen_base::ids::{ClientId, KeyRange, RouteHash, RpcId, TableId};
use duramen_cluster::rifl::{Begin, Exported, Tracker};
use duramen_wire::native::message::Rpc;
use std::collections::BTreeMap;

const TABLE: TableId = TableId(1);
const WINDOW: u32 = 64;
const FIRST: (ClientId, RpcId) = (ClientId(0), RpcId(0));
const SECOND_US: u64 = 1_000_000;

fn rpc(client: u64, id: u64, acknowledged: u64) -> Rpc {
    Rpc {
        client: ClientId(client),
        id: RpcId(id),
        acknowledged: RpcId(acknowledged),
    }
}

/// A tracker of clients with leases.
fn tracker(clients: u64) -> Tracker {
    let mut tracker = Tracker::new(WINDOW);
    for client in 1..=clients {
        let begun = tracker.begin(0, TABLE, RouteHash(0), rpc(client, 1, 0));
        assert_eq!(begun, Begin::AskLease);
        tracker.answered(0, ClientId(client), Some(100_000));
    }
    tracker
}

fn begin(tracker: &mut Tracker, rpc: Rpc) {
    let begun = tracker.begin(1, TABLE, RouteHash(7), rpc);
    assert_eq!(begun, Begin::Execute);
}

fn execute(tracker: &mut Tracker, rpc: Rpc) {
    begin(tracker, rpc);
    tracker.finish(rpc, b"result");
}

/// A round in steps of so many bytes: how often each record came, and whether one is in progress.
fn round(tracker: &Tracker, since: u32, most: usize) -> (BTreeMap<(u64, u64), u32>, bool) {
    let (mut found, mut is_running, mut from) = (BTreeMap::new(), false, FIRST);
    loop {
        let some: Exported = tracker.export_some((TABLE, &KeyRange::ALL), since, from, most);
        let bytes: usize = some.records.iter().map(|record| record.result.len()).sum();
        assert!(bytes <= most + 1024, "a step of {bytes} bytes");
        for record in some.records {
            let name = (record.rpc.client.0, record.rpc.id.0);
            *found.entry(name).or_default() += 1;
        }
        is_running |= some.is_running;
        match some.next {
            Some(next) => from = next,
            None => return (found, is_running),
        }
    }
}

#[test]
fn a_round_exports_each_record_once_in_steps() {
    let mut tracker = tracker(50);
    for client in 1..=50 {
        for id in 1..=40 {
            execute(&mut tracker, rpc(client, id, 0));
        }
    }
    for most in [1, 500, 100_000, 1 << 30] {
        let (found, is_running) = round(&tracker, 0, most);
        assert_eq!(found.len(), 2000);
        assert!(found.values().all(|count| *count == 1) && !is_running);
    }
}

#[test]
fn a_later_round_brings_only_what_became_durable_since() {
    let mut tracker = tracker(3);
    execute(&mut tracker, rpc(1, 1, 0));
    begin(&mut tracker, rpc(2, 1, 0));
    let first = tracker.begin_round();
    let (found, is_running) = round(&tracker, 0, 1);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [(1, 1)]);
    assert!(is_running);
    // It was in progress when the round passed, and began before.
    tracker.finish(rpc(2, 1, 0), b"result");
    execute(&mut tracker, rpc(3, 1, 0));
    let second = tracker.begin_round();
    let (found, is_running) = round(&tracker, first, 1);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [(2, 1), (3, 1)]);
    assert!(!is_running);
    assert_eq!(round(&tracker, second, 1).0.len(), 0);
}

#[test]
fn what_was_acknowledged_meanwhile_does_not_go() {
    let mut tracker = tracker(1);
    execute(&mut tracker, rpc(1, 1, 0));
    execute(&mut tracker, rpc(1, 2, 1));
    let (found, _) = round(&tracker, 0, 1);
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [(1, 2)]);
}

/// The ended client was dropped at once, and its request was told for ever to ask again.
#[test]
fn a_request_of_an_ended_client_learns_it_and_the_client_is_dropped_later() {
    let mut tracker = Tracker::new(WINDOW);
    let request = rpc(9, 1, 0);
    let begun = tracker.begin(5, TABLE, RouteHash(0), request);
    assert_eq!(begun, Begin::AskLease);
    tracker.answered(6, ClientId(9), None);
    let again = tracker.begin(SECOND_US, TABLE, RouteHash(0), request);
    assert_eq!(again, Begin::LeaseExpired);
    let at_us = tracker.next_ask_us().expect("it is asked about once more");
    assert!((2 * SECOND_US..10 * SECOND_US).contains(&at_us), "{at_us}");
    assert_eq!(tracker.to_ask(at_us, 10), [ClientId(9)]);
    tracker.answered(at_us, ClientId(9), None);
    assert_eq!((tracker.size(), tracker.bytes()), ((0, 0), 0));
}

#[test]
fn an_ended_client_that_nobody_asks_for_is_dropped_at_once() {
    let mut tracker = tracker(1);
    execute(&mut tracker, rpc(1, 1, 0));
    tracker.answered(200 * SECOND_US, ClientId(1), None);
    assert_eq!((tracker.size(), tracker.bytes()), ((0, 0), 0));
}
