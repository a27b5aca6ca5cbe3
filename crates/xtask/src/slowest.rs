//! The slowest tests: read from the runners' output, printed at the end of a run.
//!
//! Cargo reports the time of a whole binary, pytest none: a Python test's time is the time since
//! the previous line.

use std::time::{Duration, Instant};

/// Number of printed tests.
const PRINTED: usize = 10;

/// Times of test binaries and of Python tests.
#[derive(Debug, Default)]
pub(crate) struct Slowest {
    times: Vec<(Duration, String)>,
    /// The binary that cargo is running.
    binary: String,
    last: Option<Instant>,
}

impl Slowest {
    /// Takes one line of any runner.
    pub(crate) fn line(&mut self, line: &str) {
        let since = self.last.replace(Instant::now()).map(|last| last.elapsed());
        let trimmed = line.trim_start();
        if let Some(running) = trimmed.strip_prefix("Running ") {
            self.binary = running.to_owned();
        } else if let Some(tested) = trimmed.strip_prefix("Doc-tests ") {
            self.binary = format!("doc tests of {tested}");
        } else if let Some(seconds) = finished_in(line) {
            self.times.push((seconds, self.binary.clone()));
        } else if let Some((test, rest)) = line.split_once(' ')
            && test.contains(".py::")
            && rest.ends_with("%]")
        {
            self.times
                .push((since.unwrap_or_default(), test.to_owned()));
        }
    }

    pub(crate) fn add(&mut self, other: Slowest) {
        self.times.extend(other.times);
    }

    /// The slowest tests, one per line, the longest first.
    pub(crate) fn table(mut self) -> String {
        self.times.sort();
        let mut text = String::new();
        for (time, name) in self.times.iter().rev().take(PRINTED) {
            text.push_str(&format!("{:>7.1} s  {name}\n", time.as_secs_f64()));
        }
        text
    }
}

/// The time in cargo's `test result: …; finished in 1.23s`.
fn finished_in(line: &str) -> Option<Duration> {
    let (_, time) = line
        .strip_prefix("test result: ")?
        .split_once("finished in ")?;
    let seconds = time.trim_end().strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_and_python_tests_are_timed_and_sorted() {
        let mut slowest = Slowest::default();
        for line in [
            "     Running tests/model.rs (target/debug/deps/model-1)",
            "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s",
            "     Running tests/stress.rs (target/debug/deps/stress-1)",
            "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 90.00s",
            "test_a.py::test_x PASSED    [ 10%]",
        ] {
            slowest.line(line);
        }
        let table = slowest.table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3, "{table}");
        assert!(
            lines[0].contains("90.0 s") && lines[0].contains("stress"),
            "{table}"
        );
        assert!(lines[2].contains("test_a.py::test_x"), "{table}");
    }
}
