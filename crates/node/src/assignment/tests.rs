//! Lists of tablets, one after the other.

use super::*;
use crate::view::Route;
use duramen_base::ids::{RouteHash, SegmentId};
use duramen_base::planted::{Bug, with_bug};

const ME: ServerId = ServerId::new(0, 1);
const OTHER: ServerId = ServerId::new(1, 1);
const TABLE: TableId = TableId(1);
const NORMAL: TabletState = TabletState::Normal {
    creation: SegmentId::NONE,
};

fn incoming(migration: u64) -> TabletState {
    TabletState::Incoming {
        migration: MigrationId(migration),
        from: OTHER,
    }
}

fn outgoing(migration: u64) -> TabletState {
    TabletState::Outgoing {
        creation: SegmentId::NONE,
        migration: MigrationId(migration),
        to: OTHER,
    }
}

fn range(first: u64, last: u64) -> KeyRange {
    KeyRange::new(RouteHash(first), RouteHash(last))
}

fn list(version: u64, tablets: &[(u64, u64, TabletState)]) -> Tablets {
    let entry = |(first, last, state): &(u64, u64, TabletState)| TabletEntry {
        table: TABLE,
        range: range(*first, *last),
        state: *state,
    };
    Tablets {
        version: TabletsVersion(version),
        tables: Vec::new(),
        tablets: tablets.iter().map(entry).collect(),
    }
}

fn tell(
    assignment: &mut Assignment,
    version: u64,
    tablets: &[(u64, u64, TabletState)],
) -> Reconciliation {
    assignment.tell(list(version, tablets)).unwrap();
    assignment.next_order().expect("nothing else is under way")
}

fn make(assignment: &mut Assignment, version: u64, tablets: &[(u64, u64, TabletState)]) {
    let order = tell(assignment, version, tablets);
    assert!(assignment.obeyed(order.version));
}

/// The next purge, of these ranges, is due and done.
fn purged(assignment: &mut Assignment, ranges: &[(u64, u64)]) {
    let purge = assignment.next_purge().expect("something is doomed");
    let expected: Vec<KeyRange> = ranges.iter().map(|(a, b)| range(*a, *b)).collect();
    assert_eq!((purge.table, purge.ranges), (TABLE, expected));
    assert_eq!(assignment.next_purge(), None, "one at a time");
    assignment.purged();
}

/// Reads a list whose order must wait for a purge.
fn tell_waiting(assignment: &mut Assignment, version: u64, tablets: &[(u64, u64, TabletState)]) {
    assignment.tell(list(version, tablets)).unwrap();
    assert_eq!(assignment.next_order(), None, "N9: it waits for a purge");
}

fn serves(assignment: &Assignment, hash: u64) -> bool {
    let view = assignment.view(ME, Arc::default());
    view.route(TABLE, RouteHash(hash)) == Route::Serve
}

fn emptying() {
    let mut assignment = Assignment::default();
    make(&mut assignment, 1, &[(0, 9, NORMAL)]);
    // It left in version 2, which was lost, and comes back.
    tell_waiting(&mut assignment, 3, &[(0, 9, incoming(7))]);
    purged(&mut assignment, &[(0, 9)]);
    let order = assignment.next_order().expect("nothing is doomed any more");
    assert!(assignment.obeyed(order.version) && !serves(&assignment, 5));
    // The same migration continues, and ends here: its objects stay.
    tell_waiting(
        &mut assignment,
        4,
        &[(0, 4, incoming(7)), (5, 9, incoming(8))],
    );
    purged(&mut assignment, &[(5, 9)]); // another one begins anew
    let order = assignment.next_order().expect("nothing is doomed any more");
    assert!(assignment.obeyed(order.version));
    let order = tell(&mut assignment, 5, &[(0, 4, NORMAL)]);
    assert!(assignment.obeyed(order.version) && serves(&assignment, 4));
    purged(&mut assignment, &[(5, 9)]);
}

/// A range leaves and comes back: its new objects are not served before the purge of the old ones
/// is over. Unrelated orders and ranges do not wait.
fn coming_back() {
    let mut assignment = Assignment::default();
    make(&mut assignment, 1, &[(0, 9, NORMAL), (20, 29, NORMAL)]);
    make(&mut assignment, 2, &[(20, 29, NORMAL)]);
    let purge = assignment.next_purge().expect("the first range is doomed");
    assert_eq!(purge.ranges, [range(0, 9)]);
    let elsewhere = Ranges::new([(TABLE, range(30, 39))]).unwrap();
    assert!(
        !assignment.takes_away(&elsewhere),
        "a recovery may begin there"
    );
    make(&mut assignment, 3, &[(20, 29, NORMAL), (30, 39, NORMAL)]);
    assert!(serves(&assignment, 35), "beside the purge");
    assignment.tell(list(4, &[(0, 9, NORMAL)])).unwrap();
    if let Some(order) = assignment.next_order() {
        assignment.obeyed(order.version);
    }
    assert!(!serves(&assignment, 5), "N9: it is being purged");
    assignment.purged();
    let order = assignment.next_order().expect("nothing of it is doomed");
    assert!(assignment.obeyed(order.version) && serves(&assignment, 5));
    purged(&mut assignment, &[(20, 29), (30, 39)]);
    assert!(serves(&assignment, 5));
}

/// A recovery that was given up commits a last time behind the purge of its range, and then ends.
fn late_commit() {
    let mut assignment = Assignment::default();
    make(&mut assignment, 1, &[(0, 9, NORMAL)]);
    make(&mut assignment, 2, &[]);
    let purge = assignment.next_purge().expect("it is doomed");
    assert_eq!(purge.ranges, [range(0, 9)]);
    let left = Ranges::new([(TABLE, range(0, 9))]).unwrap();
    assignment.stain(&left);
    assignment.purged();
    assert!(
        assignment.is_doomed(&left),
        "N9: it committed behind the purge"
    );
    purged(&mut assignment, &[(0, 9)]);
    assert!(!assignment.is_doomed(&left));
}

fn locking() {
    let mut assignment = Assignment::default();
    make(&mut assignment, 1, &[(0, 9, NORMAL), (20, 29, NORMAL)]);
    make(&mut assignment, 2, &[(0, 9, outgoing(7)), (20, 29, NORMAL)]);
    let since = |assignment: &Assignment, hash| {
        let view = assignment.view(ME, Arc::default());
        view.serves_since(TABLE, RouteHash(hash))
            .map(|since| since.0)
    };
    assert_eq!(since(&assignment, 5), Some(1));
    assignment.lock(MigrationId(7), Ranges::new([(TABLE, range(0, 9))]).unwrap());
    assert!(!serves(&assignment, 5) && serves(&assignment, 25));
    make(&mut assignment, 3, &[(0, 9, outgoing(7)), (20, 25, NORMAL)]);
    assert!(!serves(&assignment, 5), "it says nothing new of it");
    make(&mut assignment, 4, &[(0, 9, NORMAL)]);
    assert_eq!(since(&assignment, 5), Some(1), "it never left");
}

#[test]
fn what_comes_anew_is_emptied_first_though_its_leaving_was_never_heard_of() {
    emptying();
}

#[test]
fn what_is_locked_is_not_served_until_a_list_says_what_became_of_it() {
    locking();
}

#[test]
fn what_comes_back_is_served_after_its_purge_and_nothing_else_waits() {
    coming_back();
}

#[test]
fn what_a_recovery_leaves_during_a_purge_is_purged_by_another() {
    late_commit();
}

#[test]
fn what_comes_back_before_its_purge_is_found() {
    is_found(Bug::PurgedComesBack, coming_back);
}

#[test]
fn one_purge_for_a_late_commit_is_found() {
    is_found(Bug::OnePurgeIsEnough, late_commit);
}

fn is_found(bug: Bug, scenario: fn()) {
    assert!(std::panic::catch_unwind(|| with_bug(bug, scenario)).is_err());
}

#[test]
fn what_moves_in_over_what_was_here_is_found() {
    is_found(Bug::NotEmptied, emptying);
}

#[test]
fn a_lock_that_any_list_lets_go_is_found() {
    is_found(Bug::LockLetGo, locking);
}

/// A table with a name that engines refused: its order failed, was tried again for ever, and no
/// newer list took its place, not even one without the table. No recovery began meanwhile.
#[test]
fn an_order_that_fails_gives_way_to_the_newest_list() {
    let mut assignment = Assignment::default();
    make(&mut assignment, 1, &[(0, 9, NORMAL), (10, 19, NORMAL)]);
    let failing = tell(&mut assignment, 2, &[(10, 19, NORMAL)]);
    let elsewhere = Ranges::new([(TABLE, range(30, 39))]).unwrap();
    let doomed = Ranges::new([(TABLE, range(5, 6))]).unwrap();
    assert!(assignment.takes_away(&elsewhere), "it may drop tables");
    assignment.failed(failing.version);
    assert!(!assignment.takes_away(&elsewhere) && assignment.takes_away(&doomed));
    tell_waiting(&mut assignment, 3, &[(0, 9, NORMAL), (10, 19, NORMAL)]);
    assert!(!serves(&assignment, 5));
    purged(&mut assignment, &[(0, 9)]);
    let next = assignment.next_order().expect("the newest list");
    assert_eq!(next.version, TabletsVersion(3));
    assert!(!assignment.obeyed(failing.version), "it is over");
    assert!(assignment.obeyed(next.version));
    assert!(serves(&assignment, 5) && serves(&assignment, 15));
}
