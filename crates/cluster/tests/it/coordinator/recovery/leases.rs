//! New owners wait for the end of read leases (coordinator::K7).

use super::*;

/// The time when the new owner is told, in microseconds since the tablet was recovered.
fn told_after(fails_over: bool) -> u64 {
    let mut case = crashed(3);
    let mut shelves = whole(&case);
    for shelf in shelves.values_mut() {
        shelf.lease_left_ms = 400;
    }
    case.show(&shelves);
    let asked = case.start_one();
    case.report(&asked, REPLAYED);
    if fails_over {
        case.rig.fail_over();
    }
    let from_us = case.rig.now_us;
    until_told(&mut case, asked.to) - from_us
}

/// The time when a new owner is told.
fn until_told(case: &mut Case, owner: ServerId) -> u64 {
    for _ in 0..200 {
        let told = case.rig.be_good();
        if told
            .iter()
            .any(|(to, tablets)| *to == owner && !tablets.tablets.is_empty())
        {
            return case.rig.now_us;
        }
        case.rig.pass(10_000);
    }
    panic!("never told");
}

/// The new owner dies while it waits for the end of the first owner's lease. The next one waits for
/// the rest of it, although the second owner had no lease.
#[test]
fn the_lease_of_an_owner_before_the_dead_one_runs_out_first() {
    let check = || {
        let mut case = crashed(4);
        let mut shelves = whole(&case);
        for shelf in shelves.values_mut() {
            shelf.lease_left_ms = 400;
        }
        case.show(&shelves);
        let second = case.start_one();
        case.report(&second, REPLAYED);
        let from_us = case.rig.now_us;
        case.rig.crash(second.to);
        case.dead = second.to;
        case.left.retain(|server| *server != second.to);
        let shelves = whole(&case);
        case.show(&shelves);
        let third = case.start_one();
        case.report(&third, REPLAYED);
        until_told(&mut case, third.to) - from_us
    };
    assert!((440_000..600_000).contains(&check()));
    let forgotten = with_bug(Bug::LeaseForgotten, check);
    assert!(forgotten < 440_000, "not found: {forgotten}");
}

#[test]
fn the_dead_servers_read_lease_runs_out_first() {
    assert!((440_000..500_000).contains(&told_after(false)));
    // A new leader does not know the rest of the lease: it waits for a whole one.
    assert!((550_000..600_000).contains(&told_after(true)));
    assert!(
        with_bug(Bug::LeaseIgnored, || told_after(false)) < 440_000,
        "not found"
    );
    assert!(
        with_bug(Bug::LeaseForgotten, || told_after(true)) < 440_000,
        "not found"
    );
}
