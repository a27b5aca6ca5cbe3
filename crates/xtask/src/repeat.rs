//! Repetition of failed tests: separates failures by chance on a busy machine from real ones.
//!
//! Invariants:
//! - I1: nothing is hidden. A failure is printed as it happened, and the list at the end names each
//!   test that passed only when repeated.
//! - I2: a test that may have seen a lost or wrong value is never repeated: such a failure counts,
//!   however rare. `MAY_REPEAT` names the tests that judge no data. Of all others a failure is
//!   repeated only if a deadline passed (`LATE`), or if all values were right (`RATE`: a minimum
//!   rate of a device, errors that a client's library saw).
//! - I3: a repeated test counts as passed if it passes each of `REPEATS` times.
//! - I4: a test is repeated in only one run ever: `LEDGER` names the repeated ones, and a failure
//!   of one of them counts.
//! - I5: a run in which more than `FAILURES_MAX` tests failed is broken, and none of them is
//!   repeated.

use std::collections::BTreeMap;

use crate::tally::{Failure, Tally};

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

/// Tests that judge no acknowledged data, by a part of their command: `-p PACKAGE`, or a Python
/// file.
const MAY_REPEAT: [&str; 7] = [
    "-p duramen-bench ",
    "-p duramen-cli --test client",
    "-p duramen-cli --test documents",
    "-p xtask ",
    "test_admin.py",
    "test_configuration.py",
    "test_redis_cli.py",
];

/// Tests that once passed only when repeated: a date and a title in each line. A fixed test stays
/// in the list: it is not repeated again.
const LEDGER: &str = include_str!("../repeated.txt");

/// Name of a binary that ended without a result, among its tests.
const BROKE_OFF: &str = "(broke off)";

impl Failure {
    pub(crate) fn broke_off(&self) -> bool {
        self.name == BROKE_OFF
    }

    pub(crate) fn may_be_repeated(&self) -> bool {
        if self.broke_off() {
            return false;
        }
        let is_harmless = MAY_REPEAT.iter().any(|part| self.place.contains(part));
        is_harmless || [LATE, RATE].iter().any(|mark| self.output.contains(mark))
    }
}

/// Repeats the failures of `tally` that may be repeated; `again` runs one test and returns whether
/// it passed.
pub(crate) fn repeat(
    tally: &mut Tally,
    mut again: impl FnMut(&Failure) -> Result<bool, String>,
) -> Result<(), String> {
    let failures = std::mem::take(&mut tally.repeatable);
    if failures.len() > FAILURES_MAX {
        println!("{} tests failed: none is repeated", failures.len());
        return Ok(());
    }
    for failure in failures {
        let title = failure.title();
        if !failure.may_be_repeated() {
            println!("{title} judges data and is not repeated");
            continue;
        }
        if is_in(LEDGER, title) {
            println!("{title} was repeated before (crates/xtask/repeated.txt) and is not again");
            continue;
        }
        println!("\n--- {REPEATS} times more, alone: {title}");
        let mut passes = 0;
        while passes < REPEATS && again(&failure)? {
            passes += 1;
        }
        if passes == REPEATS {
            println!("{title}: mend it, and add it to crates/xtask/repeated.txt");
            tally.passed_when_repeated(title);
        }
    }
    Ok(())
}

fn is_in(ledger: &str, title: &str) -> bool {
    let mut entries = ledger.lines().filter_map(|line| line.split_once(' '));
    entries.any(|(_, known)| known == title)
}

/// Reads from cargo's output the data for a repetition: the running binary, its failed tests, and
/// their output.
#[derive(Debug, Default)]
pub(crate) struct CargoFailures {
    /// Tests of the running binary, by name, with their output.
    output: BTreeMap<String, String>,
    /// The test whose output is being printed.
    current: Option<String>,
    /// The binary has given its result; a failed one without a result was ended by a signal.
    ended: bool,
}

impl CargoFailures {
    /// Takes one line; returns the failures of a binary when cargo prints the arguments to run it
    /// again.
    pub(crate) fn line(&mut self, line: &str) -> Vec<Failure> {
        if let Some(test) = line.strip_prefix("test ")
            && let Some(name) = test.strip_suffix(" ... FAILED")
        {
            self.output.insert(name.to_owned(), String::new());
        } else if let Some(name) = heading(line) {
            self.current = Some(name.to_owned());
        } else if line.starts_with("running ") {
            self.ended = false;
        } else if line == "failures:" {
            self.current = None;
        } else if line.starts_with("test result: ") {
            self.current = None;
            self.ended = true;
        } else if let Some(place) = binary_of(line) {
            return std::mem::take(self).failures_of(place);
        } else if let Some(current) = &self.current
            && let Some(output) = self.output.get_mut(current)
        {
            output.push_str(line);
            output.push('\n');
        }
        Vec::new()
    }

    fn failures_of(mut self, place: &str) -> Vec<Failure> {
        if !self.ended || self.output.is_empty() {
            self.output.insert(BROKE_OFF.to_owned(), String::new());
        }
        let failures = self.output.into_iter().map(|(name, output)| Failure {
            place: place.to_owned(),
            name,
            output,
        });
        failures.collect()
    }
}

/// The test named by `---- NAME stdout ----`.
fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// The arguments in ``error: test failed, to rerun pass `ARGUMENTS` ``.
fn binary_of(line: &str) -> Option<&str> {
    line.strip_prefix("error: test failed, to rerun pass `")?
        .split('`')
        .next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(place: &str, output: &str) -> Failure {
        Failure {
            place: place.to_owned(),
            name: String::new(),
            output: output.to_owned(),
        }
    }

    #[test]
    fn failures_of_cargo_are_found_with_their_binary_and_words() {
        let mut reader = CargoFailures::default();
        let mut found = Vec::new();
        for line in [
            "running 2 tests",
            "test scenarios::late ... FAILED",
            "test scenarios::good ... ok",
            "failures:",
            "",
            "---- scenarios::late stdout ----",
            "thread 'scenarios::late' panicked at x.rs:1:",
            "all of them found room",
            "",
            "failures:",
            "    scenarios::late",
            "",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s",
            "",
            "error: test failed, to rerun pass `-p duramen-engine --test two_levels`",
            "test elsewhere ... FAILED",
        ] {
            found.extend(reader.line(line));
        }
        let [one] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(one.place, "-p duramen-engine --test two_levels");
        assert_eq!(one.name, "scenarios::late");
        assert!(one.output.contains("all of them found room"), "{one:?}");
        assert!(!one.output.contains("failures"), "{one:?}");
    }

    #[test]
    fn a_test_is_repeated_in_one_run_ever() {
        let ledger = "2026-11-20 scenarios::late\n2026-11-21 tests/test_admin.py::test_page\n";
        assert!(
            is_in(ledger, "scenarios::late") && is_in(ledger, "tests/test_admin.py::test_page")
        );
        assert!(!is_in(ledger, "late") && !is_in(ledger, "2026-11-20"));
        assert!(LEDGER.lines().all(|line| line.split_once(' ').is_some()));
    }

    #[test]
    fn a_binary_that_a_signal_ended_is_not_repeated() {
        let mut reader = CargoFailures::default();
        let place = "error: test failed, to rerun pass `-p duramen-server --test idle`";
        let found = reader.line(place);
        assert!(
            matches!(found.as_slice(), [one] if !one.may_be_repeated()),
            "{found:?}"
        );
        // Later lines belong to another binary.
        reader.line("running 1 test");
        reader.line("test other ... FAILED");
        reader.line("test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s");
        let found = reader.line(place);
        assert!(
            matches!(found.as_slice(), [one] if !one.broke_off()),
            "{found:?}"
        );
    }

    #[test]
    fn what_judges_data_is_repeated_only_if_the_data_was_right() {
        assert!(failure("-p duramen-cli --test client", "5 < 4").may_be_repeated());
        assert!(!failure("-p duramen-server --test idle", "5 < 4").may_be_repeated());
        assert!(!failure("-p duramen-engine --test threads", "5 < 4").may_be_repeated());
        assert!(!failure("cluster/test_kills.py::test_a", "assert 1 == 0").may_be_repeated());
        let late = "AssertionError: 60 s passed and still not: its state";
        assert!(failure("cluster/test_kills.py::test_a", late).may_be_repeated());
        let slow = "every value was right, but 200 reads of the device, 100 at most wanted";
        assert!(failure("-p duramen-engine --test flash", slow).may_be_repeated());
    }

    #[test]
    fn a_repetition_that_passes_is_counted_and_named() {
        let mut tally = Tally {
            passed: 5,
            failed: 2,
            failures: vec!["test_admin.py::x".to_owned(), "test_b.py::y".to_owned()],
            repeatable: vec![
                failure("test_admin.py::x", ""),
                failure("test_b.py::y", "5 s passed and still not: z"),
            ],
            ..Tally::default()
        };
        let mut repeated = 0;
        let mut again = |failure: &Failure| {
            repeated += 1;
            Ok(failure.place == "test_admin.py::x")
        };
        repeat(&mut tally, &mut again).unwrap();
        assert_eq!(repeated, REPEATS + 1);
        assert_eq!(tally.failures, ["test_b.py::y"]);
        assert_eq!(tally.repeated, ["test_admin.py::x"]);
        assert_eq!(
            tally.summary(),
            "6 passed, 1 failed, 1 passed only when repeated"
        );
    }

    #[test]
    fn a_run_that_is_broken_is_not_repeated() {
        let many = vec![failure("test_admin.py::x", ""); FAILURES_MAX + 1];
        let mut tally = Tally {
            failed: many.len() as u64,
            repeatable: many,
            ..Tally::default()
        };
        repeat(&mut tally, |_| panic!("repeated")).unwrap();
        assert_eq!(tally.failed, FAILURES_MAX as u64 + 1);
    }
}
