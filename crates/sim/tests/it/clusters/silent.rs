//! Backups that run, but store nothing for a master, or do so slowly.
//!
//! A disk hung, or one link between two members was cut. The member answered the pings of all other
//! servers, so it was not declared crashed, and its masters waited for it for ever. The disk of one
//! member of six was slow: all writes were 45 times slower for as long as it was.

use duramen_base::planted::Bug;
use duramen_base::test_tier;
use duramen_sim::cluster::{Fault, Plan, run};
use std::collections::BTreeMap;

const SECOND: u64 = 1_000_000;
/// A backup is silent after 4 s of unanswered requests; the rest is for the new replicas and the
/// client's next try.
const LONGEST_US: u64 = 7 * SECOND;
const CUT_US: u64 = 20 * SECOND;

/// The longest time without a finished operation on a key, over all keys, and the number of
/// finished operations, while `fault` lasted.
fn longest(seed: u64, fault: Fault, bug: Option<Bug>) -> (u64, usize) {
    let mut plan = Plan::calm(seed, 5, 2);
    plan.load_us = CUT_US + 5 * SECOND;
    plan.think_us = 50_000;
    plan.tablets = 5;
    plan.faults = vec![(2 * SECOND, fault)];
    plan.bug = bug;
    let outcome = run(plan);
    let found = outcome.violations;
    assert!(found.is_empty(), "seed {seed}: {found:?}");
    let mut done: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for event in &outcome.history.events {
        let times = done.entry(event.key).or_insert_with(|| vec![2 * SECOND]);
        if event.to_us < 2 * SECOND + CUT_US {
            times.push(event.to_us);
        }
    }
    let operations = done.values().map(Vec::len).sum();
    let gaps = done.values_mut().map(|times| {
        times.push(2 * SECOND + CUT_US);
        times.sort_unstable();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or(0)
    });
    (gaps.max().unwrap_or(0), operations)
}

fn cut_link() -> Fault {
    Fault::Flapping {
        a: 0,
        b: Some(1),
        period_us: 2 * CUT_US,
        for_us: CUT_US,
    }
}

fn hung_disk() -> Fault {
    Fault::SlowDisk {
        server: 0,
        extra_us: CUT_US,
        for_us: CUT_US,
    }
}

#[test]
fn a_member_that_two_cannot_agree_on_holds_up_nobody() {
    for seed in 1..=test_tier::runs(3, 10) {
        let (longest_us, operations) = longest(seed, cut_link(), None);
        assert!(longest_us <= LONGEST_US, "seed {seed}: {longest_us} us");
        assert!(operations > 1_000, "seed {seed}: {operations} operations");
    }
}

#[test]
fn a_disk_that_hangs_holds_up_nobody() {
    for seed in 1..=test_tier::runs(3, 10) {
        let (longest_us, operations) = longest(seed, hung_disk(), None);
        assert!(longest_us <= LONGEST_US, "seed {seed}: {longest_us} us");
        assert!(operations > 1_000, "seed {seed}: {operations} operations");
    }
}

#[test]
fn silent_backups_that_are_waited_for_are_found() {
    let bug = Some(Bug::SilentWaited);
    for fault in [cut_link(), hung_disk()] {
        assert!((1..=5).any(|seed| longest(seed, fault.clone(), bug).0 > LONGEST_US));
    }
}

/// The number of operations finished in the last half of the time in which one disk is slow.
fn operations_beside_a_slow_disk(seed: u64, bug: Option<Bug>) -> usize {
    let mut plan = Plan::calm(seed, 5, 2);
    plan.load_us = CUT_US + 5 * SECOND;
    plan.think_us = 50_000;
    plan.tablets = 5;
    let slow = Fault::SlowDisk {
        server: 0,
        extra_us: 700_000,
        for_us: CUT_US,
    };
    plan.faults = vec![(2 * SECOND, slow)];
    plan.bug = bug;
    let outcome = run(plan);
    let found = outcome.violations;
    assert!(found.is_empty(), "seed {seed}: {found:?}");
    let late = 2 * SECOND + CUT_US / 2..2 * SECOND + CUT_US;
    let events = outcome.history.events.iter();
    events.filter(|event| late.contains(&event.to_us)).count()
}

#[test]
fn a_slow_disk_does_not_set_the_pace() {
    for seed in 1..=test_tier::runs(3, 10) {
        let done = operations_beside_a_slow_disk(seed, None);
        assert!(done > 300, "seed {seed}: {done} operations");
    }
}

#[test]
fn a_slow_disk_that_sets_the_pace_is_found() {
    let waited = |seed| operations_beside_a_slow_disk(seed, Some(Bug::SlowWaited));
    assert!((1..=5).any(|seed| waited(seed) < 100));
}

/// The slow backup did not count as another one, so the hung one was waited for.
#[test]
fn a_disk_that_hangs_beside_a_slow_one_holds_up_nobody() {
    for seed in 1..=test_tier::runs(2, 5) {
        let mut plan = Plan::calm(seed, 4, 2);
        plan.load_us = 12 * SECOND + CUT_US;
        plan.think_us = 50_000;
        plan.tablets = 4;
        let slow = Fault::SlowDisk {
            server: 0,
            extra_us: 700_000,
            for_us: 15 * SECOND + CUT_US,
        };
        let hung = Fault::SlowDisk {
            server: 1,
            extra_us: CUT_US,
            for_us: CUT_US,
        };
        plan.faults = vec![(2 * SECOND, slow), (12 * SECOND, hung)];
        let outcome = run(plan);
        let found = outcome.violations;
        assert!(found.is_empty(), "seed {seed}: {found:?}");
        // The last 10 s in which the disk hangs.
        let late = 2 * SECOND + CUT_US..12 * SECOND + CUT_US;
        let events = outcome.history.events.iter();
        let done = events.filter(|event| late.contains(&event.to_us)).count();
        println!("seed {seed}: {done} operations");
        assert!(done > 30, "seed {seed}: {done} operations");
    }
}
