//! Adds up the results of several test runners.

use crate::slowest::Slowest;

/// One failed test: the arguments to run it again, and its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Cargo's arguments that name the test's binary (`-p engine --test model`), or the whole id of
    /// a Python test.
    pub(crate) place: String,
    /// The test's name within a binary; nothing for Python.
    pub(crate) name: String,
    pub(crate) output: String,
}

impl Failure {
    /// Its title in the list at the end.
    pub(crate) fn title(&self) -> &str {
        if self.name.is_empty() {
            &self.place
        } else {
            &self.name
        }
    }
}

/// Results so far. `failures` names the failures, for the list at the end.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) failures: Vec<String>,
    /// Failures with the arguments to run them again.
    pub(crate) repeatable: Vec<Failure>,
    /// Tests that failed and then passed when repeated.
    pub(crate) repeated: Vec<String>,
    pub(crate) slowest: Slowest,
}

impl Tally {
    /// Counts a failure outside of any test, such as a failed build.
    pub(crate) fn broken(&mut self, what: &str) {
        self.failed += 1;
        self.failures.push(what.to_owned());
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.repeatable.extend(other.repeatable);
        self.repeated.extend(other.repeated);
        self.slowest.add(other.slowest);
    }

    /// Moves one failure from the failed ones to the passed ones.
    pub(crate) fn passed_when_repeated(&mut self, title: &str) {
        self.failed -= 1;
        self.passed += 1;
        let at = self.failures.iter().position(|failure| failure == title);
        if let Some(at) = at {
            self.failures.remove(at);
        }
        self.repeated.push(title.to_owned());
    }

    /// Reads one line of `cargo test`.
    pub(crate) fn cargo_line(&mut self, line: &str) {
        self.slowest.line(line);
        if let Some(result) = line.strip_prefix("test result: ") {
            for part in result.split(['.', ';']) {
                match count_and_word(part) {
                    Some((count, "passed")) => self.passed += count,
                    Some((count, "failed")) => self.failed += count,
                    Some((count, "ignored")) => self.skipped += count,
                    _ => {}
                }
            }
        } else if let Some(test) = line.strip_prefix("test ")
            && let Some(name) = test.strip_suffix(" ... FAILED")
        {
            self.failures.push(name.to_owned());
        }
    }

    /// Reads one line of `go test -v`; a test's parts are not counted separately.
    pub(crate) fn go_line(&mut self, line: &str) {
        if line.starts_with("--- PASS: ") {
            self.passed += 1;
        } else if line.starts_with("--- SKIP: ") {
            self.skipped += 1;
        } else if let Some(test) = line.strip_prefix("--- FAIL: ") {
            self.failed += 1;
            self.failures.push(test.to_owned());
        }
    }

    /// Reads one line of `pytest`, whose last line is like
    /// `1 failed, 20 passed, 3 skipped in 4.56s`.
    pub(crate) fn pytest_line(&mut self, line: &str) {
        self.slowest.line(line);
        let line = line.trim_matches(['=', ' ']);
        if let Some(failure) = line
            .strip_prefix("FAILED ")
            .or_else(|| line.strip_prefix("ERROR "))
        {
            let (name, output) = failure.split_once(" - ").unwrap_or((failure, ""));
            let name = name.trim();
            if name.contains("::") || name.ends_with(".py") {
                self.failures.push(name.to_owned());
                self.repeatable.push(Failure {
                    place: name.to_owned(),
                    name: String::new(),
                    output: output.to_owned(),
                });
            }
            return;
        }
        let Some((counts, time)) = line.rsplit_once(" in ") else {
            return;
        };
        if !time.starts_with(|c: char| c.is_ascii_digit()) {
            return;
        }
        let parts: Option<Vec<_>> = counts.split(", ").map(count_and_word).collect();
        for (count, word) in parts.unwrap_or_default() {
            match word {
                "passed" | "xpassed" => self.passed += count,
                "failed" | "error" | "errors" => self.failed += count,
                "skipped" | "xfailed" => self.skipped += count,
                _ => {}
            }
        }
    }

    /// The last line of a run: `N passed, N failed`, then `, N skipped` and
    /// `, N passed only when repeated` if there are any.
    pub(crate) fn summary(&self) -> String {
        let mut line = format!("{} passed, {} failed", self.passed, self.failed);
        if self.skipped > 0 {
            line.push_str(&format!(", {} skipped", self.skipped));
        }
        if !self.repeated.is_empty() {
            let count = self.repeated.len();
            line.push_str(&format!(", {count} passed only when repeated"));
        }
        line
    }
}

/// Splits `" 12 passed"` into `(12, "passed")`.
fn count_and_word(part: &str) -> Option<(u64, &str)> {
    let (count, word) = part.trim().split_once(' ')?;
    Some((count.parse().ok()?, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_results_add_up() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test index::grows ... FAILED",
            "test index::reads ... ok",
            "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.01s",
            "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ] {
            tally.cargo_line(line);
        }
        assert_eq!(tally.summary(), "8 passed, 1 failed, 1 skipped");
        assert_eq!(tally.failures, ["index::grows"]);
    }

    #[test]
    fn go_results_add_up() {
        let mut tally = Tally::default();
        for line in [
            "=== RUN   TestVerdicts",
            "    --- FAIL: TestVerdicts/a_part (0.00s)",
            "--- FAIL: TestVerdicts (0.00s)",
            "--- PASS: TestProgram (0.00s)",
            "--- SKIP: TestOther (0.00s)",
            "ok  \tduramen/tests/checker\t0.655s",
        ] {
            tally.go_line(line);
        }
        assert_eq!(tally.summary(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(tally.failures, ["TestVerdicts (0.00s)"]);
    }

    #[test]
    fn pytest_results_add_up() {
        let mut tally = Tally::default();
        for line in [
            "tests/test_memory.py::test_store PASSED  [ 10%]",
            "FAILED tests/test_memory.py::test_cache[5] - AssertionError: took 5 passed in vain",
            "ERROR tests/test_x.py::test_y - OSError",
            "waited in 3 places",
            "======== 1 failed, 20 passed, 3 skipped, 1 error in 4.56s ========",
        ] {
            tally.pytest_line(line);
        }
        assert_eq!(tally.summary(), "20 passed, 2 failed, 3 skipped");
        assert_eq!(
            tally.failures,
            [
                "tests/test_memory.py::test_cache[5]",
                "tests/test_x.py::test_y"
            ]
        );
    }

    #[test]
    fn a_clean_run_names_no_skips() {
        let mut tally = Tally::default();
        tally.pytest_line("3 passed in 0.10s");
        assert_eq!(tally.summary(), "3 passed, 0 failed");
    }
}
