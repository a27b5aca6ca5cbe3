//! Repetition of failed tests: separates failures by chance on a busy machine from real ones.
//!
//! Invariants:
//! - I1: nothing is hidden. A failure is printed as it happened, and the list at the end names each
//!   test that passed only when repeated.
//! - I2: a test that may have seen a lost or wrong value is never repeated: such a failure counts,
//!   however rare. `MAY_REPEAT` names the tests that judge no data. A failure of any other test is
//!   repeated only if a deadline passed (`LATE`), or if all values were right (`RATE`: a minimum
//!   rate of a device, errors that a client's library saw).
//! - I3: a repeated test counts as passed if it passes each of `REPEATS` times.
//! - I4: a test is repeated in only one run ever: `LEDGER` names the repeated ones, and a failure
//!   of one of them counts.
//! - I5: a run in which more than `FAILURES_MAX` tests failed is broken, and none of them is
//!   repeated.

use super::pool::Job;
use super::tally::{Failure, Tally};

/// Most failures by chance on a busy machine: runs whose failures were all by chance had three.
const FAILURES_MAX: usize = 4;

/// Number of times that a repeated test must pass. A test that fails half of the time passes five
/// times in a row once in 32 runs.
const REPEATS: u32 = 5;

/// Text of a failure by deadline: a state did not come in time (`wait_until` of tests/harness.py,
/// `wait_for` in Rust).
const LATE: &str = "passed and still not";

/// Text of a failure in which every value was right, but some other expectation of a quiet machine
/// did not hold.
const RATE: &str = "every value was right, but";

/// The beginning of a panic's text.
const PANIC: &str = "panicked at ";

/// A state that did not come in time, and says something about data: it may never come.
const DATA: &str = "still not: data: ";

/// Tests that judge no acknowledged data, by the beginning of their names.
const MAY_REPEAT: [&str; 7] = [
    "figures::",
    "cli::it::client::",
    "cli::it::documents::",
    "xtask::",
    "test_admin.py::",
    "test_configuration.py::",
    "test_redis_cli.py::",
];

/// Tests that once passed only when repeated: a date and a name in each line. A fixed test stays
/// in the list: it is not repeated again.
const LEDGER: &str = include_str!("repeated.txt");

impl Failure {
    fn may_be_repeated(&self) -> bool {
        let is_harmless = MAY_REPEAT.iter().any(|part| self.name.starts_with(part));
        let marks = [LATE, RATE]
            .iter()
            .map(|mark| self.output.matches(mark).count());
        let marks: usize = marks.sum();
        // Each panic must have one of the marks: one thread may be late, and another see a loss.
        let is_excused = marks > 0 && marks >= self.output.matches(PANIC).count();
        is_harmless || is_excused && !self.output.contains(DATA)
    }
}

/// Repeats the failures of `tally` that may be repeated; `again` runs one job and returns whether
/// it passed.
pub(super) fn repeat(tally: &mut Tally, mut again: impl FnMut(&Job) -> bool) {
    let failures = tally.failures.clone();
    if failures.len() > FAILURES_MAX {
        println!("{} tests failed: none is repeated", failures.len());
        return;
    }
    for failure in failures {
        let name = &failure.name;
        let Some(job) = failure.again.as_ref().filter(|_| failure.may_be_repeated()) else {
            println!("{name} judges data, or is no test, and is not repeated");
            continue;
        };
        if is_in(LEDGER, name) {
            println!("{name} was repeated before (repeated.txt of xtask) and is not again");
            continue;
        }
        println!("\n--- {REPEATS} times more, alone: {name}");
        if (0..REPEATS).all(|_| again(job)) {
            println!("{name}: mend it, and add it to repeated.txt of xtask");
            tally.passed_when_repeated(&failure);
        }
    }
}

fn is_in(ledger: &str, name: &str) -> bool {
    let mut entries = ledger.lines().filter_map(|line| line.split_once(' '));
    entries.any(|(_, known)| known == name)
}

#[cfg(test)]
mod tests {
    use super::super::pool::Reader;
    use super::super::tally::tests::job;
    use super::*;

    fn failure(name: &str, output: &str) -> Failure {
        Failure {
            name: name.to_owned(),
            output: output.to_owned(),
            again: Some(job(Reader::Status, name)),
        }
    }

    #[test]
    fn a_test_is_repeated_in_one_run_ever() {
        let ledger = "2026-11-20 scenarios::late\n2026-11-21 test_admin.py::test_page\n";
        assert!(is_in(ledger, "scenarios::late") && is_in(ledger, "test_admin.py::test_page"));
        assert!(!is_in(ledger, "late") && !is_in(ledger, "2026-11-20"));
        assert!(LEDGER.lines().all(|line| line.split_once(' ').is_some()));
    }

    #[test]
    fn what_judges_data_is_repeated_only_if_the_data_was_right() {
        assert!(failure("cli::it::client::get", "5 < 4").may_be_repeated());
        assert!(!failure("server::alone::idle::x", "5 < 4").may_be_repeated());
        assert!(!failure("engine::it::threads::x", "5 < 4").may_be_repeated());
        assert!(!failure("cluster/test_kills.py::test_a", "assert 1 == 0").may_be_repeated());
        let late = "AssertionError: 60 s passed and still not: its state";
        assert!(failure("cluster/test_kills.py::test_a", late).may_be_repeated());
        assert!(
            !failure(
                "engine::it::flash::x",
                "60 s passed and still not: data: all"
            )
            .may_be_repeated()
        );
        let two = "panicked at a:\n60 s passed and still not: its state\npanicked at b:\n1 != 2";
        assert!(!failure("engine::it::flash::x", two).may_be_repeated());
        let slow = "every value was right, but 200 reads of the device, 100 at most wanted";
        assert!(failure("engine::it::flash::x", slow).may_be_repeated());
    }

    #[test]
    fn a_repetition_that_passes_is_counted_and_named() {
        let mut tally = Tally::default();
        (tally.passed, tally.failed) = (5, 3);
        tally.failures = vec![
            failure("test_admin.py::x", ""),
            failure("test_b.py::y", "5 s passed and still not: z"),
            failure("test_c.py::z", "assert 1 == 0"),
        ];
        let mut repeated = 0;
        repeat(&mut tally, |job| {
            repeated += 1;
            job.name == "test_admin.py::x"
        });
        assert_eq!(repeated, REPEATS + 1);
        let left: Vec<_> = tally.failures.iter().map(|failure| &failure.name).collect();
        assert_eq!(left, ["test_b.py::y", "test_c.py::z"]);
        assert_eq!(tally.repeated, ["test_admin.py::x"]);
        assert_eq!((tally.passed, tally.failed), (6, 2));
    }

    #[test]
    fn a_run_that_is_broken_is_not_repeated() {
        let many = vec![failure("test_admin.py::x", ""); FAILURES_MAX + 1];
        let mut tally = Tally::default();
        tally.failed = many.len() as u64;
        tally.failures = many;
        repeat(&mut tally, |_| panic!("repeated"));
        assert_eq!(tally.failed, FAILURES_MAX as u64 + 1);
    }
}
