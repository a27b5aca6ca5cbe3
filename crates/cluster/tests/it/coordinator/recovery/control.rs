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

/// The replicas of two restarted backups; `stale` is an older copy: it lacks the end of the open
/// segment, or of the control segment too.
fn inherited(case: &Case, stale: ServerId, lacks_control: bool) -> Shelves {
    let records = [add_open(1, 0), closed(1, 900), add_open(2, 0)];
    let of = |backup: ServerId| {
        let is_stale = backup == stale;
        let listed = if is_stale && lacks_control { 1 } else { 3 };
        let shelf = Shelf::default().with_control(case.dead, 10, &records[..listed], false);
        let shelf = match (is_stale, lacks_control) {
            (true, true) => shelf.with(1, 0, 500, false),
            (true, false) => shelf.with(1, 0, 900, true).with(2, 0, 100, false),
            (false, _) => shelf.with(1, 0, 900, true).with(2, 0, 300, false),
        };
        shelf.inherited()
    };
    case.left.iter().map(|s| (*s, of(*s))).collect()
}

/// All servers were killed, and the first one to return has an older copy of its directory.
#[test]
fn an_older_copy_that_returns_first_is_not_the_log() {
    for lacks_control in [false, true] {
        let check = || {
            let mut case = crashed(2);
            let stale = case.left[0];
            let shelves = inherited(&case, stale, lacks_control);
            if let Some(orders) = case.recovers(&shelves) {
                return Err(orders[0].segments[0].certificate.length);
            }
            let waits_for = case.waits_for().expect("it says for what");
            assert!(waits_for.contains("restarted"), "{waits_for}");
            let back = case.rig.enlist(9, None);
            case.left.push(back);
            let shelves = inherited(&case, stale, lacks_control);
            if lacks_control {
                // There will never be a second copy of segment 2.
                assert_eq!(case.recovers(&shelves), None);
                case.rig.live(5_000_000);
            }
            Ok(case.recovers(&shelves).expect("all copies are there"))
        };
        let orders = check().expect("it waits");
        let open = orders[0].segments.last().expect("it has two");
        assert_eq!((open.segment, open.certificate.length), (SegmentId(2), 300));
        assert!(with_bug(Bug::FirstCopyCounts, check).is_err(), "not found");
    }
}

#[test]
fn copies_that_never_return_delay_a_recovery_for_a_limited_time() {
    let mut case = crashed(2);
    let shelves = inherited(&case, ServerId::NONE, false);
    assert_eq!(case.recovers(&shelves), None);
    case.rig.live(4_000_000);
    assert_eq!(case.recovers(&shelves), None, "it still waits");
    case.rig.live(1_000_000);
    assert!(case.recovers(&shelves).is_some(), "it waits no longer");
}

#[test]
fn a_replica_that_its_backup_wrote_itself_is_waited_for_by_nothing() {
    let mut case = crashed(3);
    let mut shelves = inherited(&case, case.left[0], false);
    shelves.remove(&case.left[0]);
    let written = shelves.get_mut(&case.left[1]).expect("it is there");
    written.inherited.clear();
    let orders = case.recovers(&shelves).expect("at once");
    assert_eq!(orders[0].segments[1].certificate.length, 300);
}
