//! The choice of the control segment that counts as a dead server's log (collect::G1, collect::G2,
//! collect::G5).

use super::*;
use duramen_base::planted::{Bug, with_bug};

#[test]
fn an_open_control_segment_below_the_recorded_one_is_not_the_log() {
    let check = || {
        let mut case = case(3);
        let head = ToCoordinator::ControlHead {
            server: case.dead,
            min_open: SegmentId(11),
        };
        assert_eq!(
            case.rig.ask(case.dead, head),
            Some(CoordinatorAnswer::Noted)
        );
        case.rig.crash(case.dead);
        let shelves = whole(&case); // control segment 10, of a backup that was lost and came back
        case.recovers(&shelves)
    };
    assert_eq!(check(), None);
    assert!(with_bug(Bug::OldControlHead, check).is_some(), "not found");
}

#[test]
fn the_newest_control_segment_counts_and_its_longest_replica() {
    let mut case = crashed(4);
    let old = Shelf::default()
        .with_control(case.dead, 10, &[add_open(1, 0), closed(1, 900)], false)
        .with(1, 0, 900, true);
    let newer = Shelf::default()
        .with_control(case.dead, 12, &[add_open(2, 0)], false)
        .with(2, 0, 300, false);
    let longer = Shelf::default()
        .with_control(case.dead, 12, &[add_open(2, 0), add_open(3, 0)], false)
        .with(3, 0, 100, false);
    let shelves = case
        .left
        .iter()
        .copied()
        .zip([old, longer, newer])
        .collect();
    let orders = case.recovers(&shelves).expect("whole");
    let ids: Vec<u64> = orders[0].segments.iter().map(|s| s.segment.0).collect();
    assert_eq!(ids, [2, 3]);
}

#[test]
fn a_closed_control_segment_has_a_successor() {
    let check = |last: &[Record]| {
        let mut case = crashed(3);
        let shelf = Shelf::default().with_control(case.dead, 10, last, true);
        let shelves = case.left.iter().map(|s| (*s, shelf.clone())).collect();
        let recovered = case.recovers(&shelves);
        (case, recovered.is_some())
    };
    let (case, recovered) = check(&[]);
    assert!(!recovered);
    assert!(case.waits_for().unwrap().contains("is closed"));
    assert!(
        with_bug(Bug::ClosedControlHead, || check(&[])).1,
        "not found"
    );
    let clean = [Record::CleanShutdown {
        next_segment: SegmentId(20),
        safe_version: 5,
    }];
    assert!(check(&clean).1);
}

/// A disk had silently lost its last writes, among them the record of the newest head segment. Its
/// backup came back first after a power cut of all servers, and the recovery took its replicas for
/// the whole log (seed 503920 of the simulated cluster).
#[test]
fn a_segment_with_data_that_nobody_lists_proves_a_longer_control_segment() {
    let check = || {
        let mut case = crashed(4);
        let stale = Shelf::default()
            .with_control(case.dead, 10, &[add_open(1, 0), closed(1, 900)], false)
            .with(1, 0, 900, true);
        let holder = Shelf::default().with(11, 0, 300, false);
        let shelves = case.left.iter().copied();
        let mut shelves: BTreeMap<_, _> = shelves.zip([stale, holder, Shelf::default()]).collect();
        if case.recovers(&shelves).is_some() {
            return Err("too early");
        }
        let longer = [add_open(1, 0), closed(1, 900), add_open(11, 0)];
        let good = Shelf::default().with_control(case.dead, 10, &longer, false);
        let waits_for = case.waits_for();
        let back = case.rig.enlist(9, None);
        case.left.push(back);
        shelves.insert(back, good);
        Ok((waits_for, case.recovers(&shelves)))
    };
    let (waits_for, orders) = check().expect("it waits");
    let waits_for = waits_for.expect("it says for what");
    assert!(
        waits_for.contains("segment 11, which has data"),
        "{waits_for}"
    );
    let orders = orders.expect("it is whole now");
    let ids: Vec<u64> = orders[0].segments.iter().map(|s| s.segment.0).collect();
    assert_eq!(ids, [1, 11]);
    assert!(with_bug(Bug::LaterIgnored, check).is_err(), "not found");
}

#[test]
fn a_damaged_or_foreign_control_segment_is_none() {
    let mut case = crashed(3);
    let good = whole(&case);
    let mut shelves = good.clone();
    let [one, two] = case.left[..] else {
        panic!();
    };
    let damaged = shelves.get_mut(&one).unwrap().control.as_mut().unwrap();
    damaged.1[70] ^= 1;
    let foreign = Shelf::default().with_control(ServerId::new(77, 1), 10, &[], false);
    shelves.insert(two, foreign);
    assert_eq!(case.recovers(&shelves), None);
    assert!(case.waits_for().unwrap().contains("damaged"));
    // One good replica is enough.
    let mut case = crashed(3);
    shelves.insert(two, good[&two].clone());
    assert!(case.recovers(&shelves).is_some());
}
