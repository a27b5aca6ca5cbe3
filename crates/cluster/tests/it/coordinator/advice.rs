//! The members' reports: loads of their ranges, which are stored, and speeds of their disks.

use crate::coordinator::rig::{Rig, Shelf, add_open, closed, enlist};
use duramen_base::ids::{KeyRange, RouteHash, ServerId, TableId};
use duramen_base::planted::{Bug, with_bug};
use duramen_cluster::coordinator::store::{Batch, MetaStore, is_advice};
use duramen_format::control::Record;
use duramen_wire::native::message::{
    CoordinatorAnswer, FromCoordinator, RangeLoad, RecoverTablet, Refusal, ServerChange,
    ServerListUpdate, ToCoordinator,
};
use std::collections::{BTreeMap, BTreeSet};

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000;

fn load(table: TableId, range: KeyRange, bytes: u64) -> RangeLoad {
    let records = bytes / 1_000;
    RangeLoad {
        table,
        range,
        bytes,
        records,
    }
}

/// Loads of a server's tablets, of which the first has nearly all bytes.
fn crowded(rig: &Rig, server: ServerId) -> Vec<RangeLoad> {
    let tablets = rig.status().tablets.into_iter();
    let own = tablets.filter(|tablet| tablet.owner == server);
    let bytes = |n| if n == 0 { 8 * MIB } else { MIB / 16 };
    own.enumerate()
        .map(|(n, tablet)| load(tablet.table, tablet.range, bytes(n)))
        .collect()
}

fn report(rig: &mut Rig, server: ServerId, loads: Vec<RangeLoad>) {
    let answer = rig.ask(server, ToCoordinator::Loads { server, loads });
    assert_eq!(answer, Some(CoordinatorAnswer::Noted));
}

/// The stored records of loads.
fn stored(rig: &mut Rig) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let all = rig.leader.store.load().expect("it leads");
    all.into_iter().filter(|(key, _)| is_advice(key)).collect()
}

fn bytes_in(loads: &[RangeLoad], tablets: &[RecoverTablet]) -> u64 {
    let width = |range: KeyRange| u128::from(range.last.0 - range.first.0) + 1;
    let part = |load: &RangeLoad, tablet: &RecoverTablet| {
        let common = load.range.intersection(&tablet.range)?;
        Some((u128::from(load.bytes) * width(common) / width(load.range)) as u64)
    };
    let parts = tablets
        .iter()
        .flat_map(|tablet| loads.iter().filter_map(move |load| part(load, tablet)));
    parts.sum()
}

/// The bytes of the longest partition of a recovery after these changes of the leader.
fn longest_partition(failovers: usize) -> u64 {
    let mut rig = Rig::new();
    let all = rig.enlist_some(6);
    rig.create_table("a", 48);
    rig.be_good();
    let dead = rig.status().tablets[0].owner;
    let loads = crowded(&rig, dead);
    assert_eq!(loads.len(), 8);
    report(&mut rig, dead, loads.clone());
    rig.live(11 * SECOND);
    for _ in 0..failovers {
        rig.fail_over();
        rig.be_good();
    }
    rig.crash(dead);
    let bytes = MIB as u32;
    let records: Vec<Record> = (1..=9)
        .flat_map(|n| [add_open(n, 0), closed(n, bytes)])
        .collect();
    let shelf = Shelf::default().with_control(dead, 10, &records, false);
    let shelf = (1..=9).fold(shelf, |shelf, n| shelf.with(n, 0, bytes, true));
    let left = all.iter().filter(|id| **id != dead);
    rig.show(dead, &left.map(|id| (*id, shelf.clone())).collect());
    let orders = rig.orders();
    let sizes = orders.iter().map(|asked| match &asked.question {
        FromCoordinator::Recover(order) => bytes_in(&loads, &order.tablets),
        other => panic!("{other:?}"),
    });
    sizes.max().expect("an order")
}

/// The loads were in the leader's memory alone: a new leader took all tablets of one width for
/// equal, and cut the one with nearly all data as coarsely as the others.
#[test]
fn a_new_leader_cuts_by_the_loads_that_the_old_one_heard() {
    let even = longest_partition(0);
    assert!(even <= MIB * 5 / 4, "{even}");
    assert_eq!(longest_partition(1), even);
    assert_eq!(longest_partition(3), even);
    let forgotten = with_bug(Bug::LoadsNotStored, || longest_partition(1));
    assert!(forgotten >= 3 * MIB, "{forgotten}");
}

/// loads::W2
#[test]
fn loads_are_written_seldom_and_only_after_a_change() {
    let mut rig = Rig::new();
    let [one, two] = rig.enlist_some(2)[..] else {
        panic!("two servers");
    };
    let table = rig.create_table("a", 2);
    rig.be_good();
    let whole = |bytes| vec![load(table, KeyRange::ALL, bytes)];
    report(&mut rig, one, whole(1_000)); // less than a segment
    rig.live(30 * SECOND);
    assert!(stored(&mut rig).is_empty());
    // A table that is being filled, with a report every second: one write in ten seconds.
    let (mut writes, mut before) = (0, stored(&mut rig));
    for n in 1..=40 {
        report(&mut rig, one, whole(n * n * MIB));
        rig.live(SECOND);
        let now = stored(&mut rig);
        writes += u32::from(now != before);
        before = now;
    }
    assert!((3..=4).contains(&writes), "{writes}");
    rig.live(11 * SECOND);
    let before = stored(&mut rig);
    assert_eq!(before.len(), 1);
    // A fifth more, and back: nothing is written, and an idle coordinator has no timer for it.
    report(&mut rig, one, whole(1_920 * MIB));
    report(&mut rig, one, whole(1_600 * MIB));
    rig.live(30 * SECOND);
    assert_eq!(stored(&mut rig), before);
    // One record for each server, which leaves with it.
    report(&mut rig, two, whole(9 * MIB));
    rig.live(11 * SECOND);
    assert_eq!(stored(&mut rig).len(), 2);
    report(&mut rig, two, Vec::new());
    rig.live(11 * SECOND);
    assert_eq!(stored(&mut rig), before);
    let three = rig.enlist(3, None);
    report(&mut rig, three, whole(9 * MIB));
    rig.live(11 * SECOND);
    assert_eq!(stored(&mut rig).len(), 2);
    rig.crash(three); // it owns nothing, so it leaves the list
    rig.live(SECOND);
    assert_eq!(stored(&mut rig), before);
}

/// Many servers that report at once do not make one long batch.
#[test]
fn loads_of_many_servers_are_stored_some_at_a_time() {
    let mut rig = Rig::new();
    let all = rig.enlist_some(80);
    rig.be_good();
    for server in &all {
        report(
            &mut rig,
            *server,
            vec![load(TableId(0), KeyRange::ALL, 9 * MIB)],
        );
    }
    let (mut before, mut most) = (0, 0);
    for _ in 0..160 {
        rig.live(100_000);
        let now = stored(&mut rig).len();
        most = most.max(now - before);
        before = now;
    }
    assert_eq!((before, most), (80, 32));
}

/// loads::W2: long records are fewer in a batch, and those that have waited longest come first:
/// servers that report changes all the time do not keep the others out.
#[test]
fn long_loads_are_stored_few_at_a_time_and_none_waits_for_ever() {
    const SERVERS: usize = 60;
    let mut rig = Rig::new();
    let all = rig.enlist_some(SERVERS as u64);
    rig.be_good();
    let long = |bytes: u64| -> Vec<RangeLoad> {
        let part = |n: u64| KeyRange::new(RouteHash(n << 40), RouteHash((n << 40) + 9));
        let ranges = (0..512).map(|n| load(TableId(0), part(n), bytes));
        ranges.collect()
    };
    let (mut known, mut seen) = (stored(&mut rig), BTreeSet::new());
    for second in 0..24 {
        for server in &all {
            report(&mut rig, *server, long(MIB << second));
        }
        rig.live(SECOND);
        let now = stored(&mut rig);
        let written: Vec<&Vec<u8>> = now
            .iter()
            .filter(|(key, value)| known.get(*key) != Some(*value))
            .map(|(key, _)| key)
            .collect();
        assert!(written.len() <= 2 * 8, "{} in a second", written.len());
        seen.extend(written.into_iter().cloned());
        known = now;
    }
    assert_eq!(seen.len(), SERVERS);
}

/// Advice of a newer program, of servers that an older program has removed meanwhile, or with other
/// bytes does not stop a leader.
#[test]
fn advice_that_makes_no_sense_is_left_out() {
    let mut rig = Rig::new();
    let one = rig.enlist(1, None);
    report(
        &mut rig,
        one,
        vec![load(TableId(0), KeyRange::ALL, 9 * MIB)],
    );
    rig.live(11 * SECOND);
    let [(key, value)] = &Vec::from_iter(stored(&mut rig))[..] else {
        panic!("one record");
    };
    let key_of = |server: ServerId| [&b"~l"[..], &server.number().to_be_bytes()].concat();
    assert_eq!(*key, key_of(one));
    let mut batch = Batch::default();
    batch.put(b"~later".to_vec(), b"of another program".to_vec());
    batch.put(key_of(ServerId::new(7, 1)), value.clone());
    rig.leader.store.commit(&batch).expect("it leads");
    rig.fail_over();
    let kept: Vec<Vec<u8>> = stored(&mut rig).into_keys().collect();
    assert_eq!(kept, [key.clone(), b"~later".to_vec()]);
    assert_eq!(rig.status().loads[0].bytes, 9 * MIB);
    let mut batch = Batch::default();
    batch.put(key.clone(), b"\xff".to_vec());
    rig.leader.store.commit(&batch).expect("it leads");
    rig.fail_over();
    assert_eq!(rig.status().loads[0].bytes, 0);
}

fn speed(rig: &Rig, server: ServerId) -> u64 {
    let servers = rig.status().servers;
    let of = servers.iter().find(|entry| entry.server == server);
    of.expect("a member").read_bytes_per_s
}

/// speed::B1
#[test]
fn a_speed_that_is_news_is_stored_and_told_to_all() {
    let mut rig = Rig::new();
    let ToCoordinator::Enlist(mut request) = enlist(1, 1, None) else {
        panic!("a request to enlist");
    };
    request.read_bytes_per_s = 100;
    rig.ask(ServerId::NONE, ToCoordinator::Enlist(request));
    let two = rig.enlist(2, None);
    let one = rig.status().servers[0].server;
    rig.live(SECOND);
    assert_eq!((speed(&rig, one), speed(&rig, two)), (100, 0));
    let tell = |rig: &mut Rig, sender, server, bytes_per_s| {
        let question = ToCoordinator::ReadSpeed {
            server,
            bytes_per_s,
        };
        rig.ask(sender, question)
    };
    let before = rig.status().list_version;
    for no_news in [0, 100, 80, 125] {
        let answer = tell(&mut rig, one, one, no_news);
        assert_eq!(answer, Some(CoordinatorAnswer::Noted));
    }
    // coordinator::K3: each for itself.
    let answer = tell(&mut rig, two, one, 900);
    assert_eq!(
        answer,
        Some(CoordinatorAnswer::Refused(Refusal::NotUp(two)))
    );
    assert_eq!(rig.status().list_version, before);
    assert!(rig.asked.is_empty(), "{:?}", rig.asked);
    tell(&mut rig, one, one, 126);
    let told = rig.asked_where(|asked| {
        matches!(&asked.question, FromCoordinator::Servers(ServerListUpdate::Step { changes, .. })
            if matches!(&changes[..], [ServerChange::Changed(entry)]
                if entry.server == one && entry.read_bytes_per_s == 126))
    });
    assert_eq!(told.len(), 2, "both members");
    rig.fail_over();
    assert_eq!((speed(&rig, one), speed(&rig, two)), (126, 0));
}

/// Segments without a primary were read from any of their backups in turn, so a recovery lasted as
/// long as its slowest disk needed for an even share.
#[test]
fn segments_without_a_primary_are_read_where_that_ends_soonest() {
    let mut rig = Rig::new();
    let all = rig.enlist_some(4);
    rig.create_table("a", 1);
    rig.be_good();
    let dead = rig.status().tablets[0].owner;
    let left: Vec<ServerId> = all.into_iter().filter(|id| *id != dead).collect();
    // One slow disk, one fast one, and an unknown one, which counts as the slower of two.
    for (server, bytes_per_s) in [(left[0], 10 * MIB), (left[1], 40 * MIB)] {
        let question = ToCoordinator::ReadSpeed {
            server,
            bytes_per_s,
        };
        rig.ask(server, question);
    }
    rig.be_good();
    rig.crash(dead);
    let bytes = MIB as u32;
    let count = 18;
    let records: Vec<Record> = (1..=count)
        .flat_map(|n| [add_open(n, 0), closed(n, bytes)])
        .collect();
    let shelf = Shelf::default().with_control(dead, 30, &records, false);
    let shelf = (1..=count).fold(shelf, |shelf, n| shelf.with(n, 0, bytes, true));
    let mut shelves: BTreeMap<ServerId, Shelf> =
        left.iter().map(|id| (*id, shelf.clone())).collect();
    // The slow disk has two primaries, and reads them ahead.
    let slow = shelves.get_mut(&left[0]).expect("it is there");
    let mine = slow.segments.iter_mut().filter(|of| of.segment.0 <= 2);
    mine.for_each(|of| of.primary = true);
    rig.show(dead, &shelves);
    let orders = rig.orders();
    let FromCoordinator::Recover(order) = &orders[0].question else {
        panic!("{orders:?}");
    };
    let first = |server: ServerId| {
        let segments = order.segments.iter();
        segments.filter(|of| of.sources[0] == server).count()
    };
    assert_eq!(order.segments[0].sources[0], left[0]);
    assert_eq!(order.segments[1].sources[0], left[0]);
    assert_eq!(
        left.iter().map(|id| first(*id)).collect::<Vec<_>>(),
        [3, 12, 3]
    );
    assert!(order.segments.iter().all(|of| of.sources.len() == 3));
}
