//! Adds up the results of all jobs.

use std::time::Duration;

use super::child::Ended;
use super::pool::{Job, Reader};

/// One failed test.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) name: String,
    pub(super) output: String,
    /// The job that runs this test alone; nothing for a failure outside of any test.
    pub(super) again: Option<Job>,
}

/// Number of printed durations.
const SLOWEST: usize = 10;

/// Results so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    pub(super) failures: Vec<Failure>,
    /// Tests that failed and then passed when repeated.
    pub(super) repeated: Vec<String>,
    /// Part, test and time.
    durations: Vec<(&'static str, String, Duration)>,
    /// Times of parts that are no jobs: builds, for example.
    phases: Vec<(&'static str, Duration)>,
}

impl Tally {
    /// Counts a failure outside of any test, such as a failed build.
    pub(super) fn broken(&mut self, what: &str, output: &str) {
        println!("FAIL   {what}\n{output}");
        self.failed += 1;
        self.failures.push(Failure {
            name: what.to_owned(),
            output: output.to_owned(),
            again: None,
        });
    }

    /// Notes the time of a part that is no job.
    pub(super) fn phase(&mut self, name: &'static str, time: Duration) {
        self.phases.push((name, time));
    }

    /// Takes the end of a job and prints its results.
    pub(super) fn job(&mut self, job: &Job, ended: Ended) {
        let before = (self.passed, self.failed, self.skipped);
        match job.reader {
            Reader::Status => return self.test(job, ended),
            Reader::Cargo => ended.output.lines().for_each(|line| self.cargo_line(line)),
            Reader::Go => ended.output.lines().for_each(|line| self.go_line(line)),
            Reader::Pytest => {
                let lines = ended.output.lines();
                lines.for_each(|line| self.pytest_line(line, job));
            }
        }
        let seconds = ended.time.as_secs_f64();
        println!("--- {} in {seconds:.1} s", job.name);
        if job.reader != Reader::Pytest {
            self.durations
                .push((job.part, job.name.clone(), ended.time));
        }
        print!("{}", ended.output);
        let has_failed = self.failed > before.1;
        let has_results = before != (self.passed, self.failed, self.skipped);
        let reason = match ended.status {
            // pytest's code for a file without a chosen test.
            Some(status) if job.may_be_empty && status.code() == Some(5) => return,
            Some(status) if status.success() && has_results => return,
            Some(status) if status.success() => "it succeeded without a result".to_owned(),
            Some(_) if has_failed => return,
            Some(status) => format!("it ended with {status} outside of a test"),
            None => cut_short(job),
        };
        self.broken(&job.name, &reason);
    }

    /// One test in a process of its own.
    fn test(&mut self, job: &Job, ended: Ended) {
        let seconds = ended.time.as_secs_f64();
        let name = &job.name;
        self.durations.push((job.part, name.clone(), ended.time));
        let has_run = ended.output.contains(ONE_PASSED);
        let reason = match ended.status {
            Some(status) if status.success() && has_run => {
                match skips_itself(&ended.output) {
                    Some(why) => {
                        self.skipped += 1;
                        println!("SKIP {seconds:>8.3} s  {name}: {why}");
                    }
                    None => {
                        self.passed += 1;
                        println!("PASS {seconds:>8.3} s  {name}");
                    }
                }
                return;
            }
            Some(status) if status.success() => "no test ran to its end".to_owned(),
            Some(status) => status.to_string(),
            None => cut_short(job),
        };
        println!("FAIL {seconds:>8.3} s  {name}: {reason}\n{}", ended.output);
        self.failed += 1;
        self.failures.push(Failure {
            name: name.clone(),
            output: ended.output,
            again: Some(job.clone()),
        });
    }

    /// Moves one failure from the failed ones to the passed ones.
    pub(super) fn passed_when_repeated(&mut self, failure: &Failure) {
        self.failed -= 1;
        self.passed += 1;
        let at = self
            .failures
            .iter()
            .position(|other| other.name == failure.name);
        if let Some(at) = at {
            self.failures.remove(at);
        }
        self.repeated.push(failure.name.clone());
    }

    fn failed_in(&mut self, name: &str, output: &str, again: Option<Job>) {
        self.failures.push(Failure {
            name: name.to_owned(),
            output: output.to_owned(),
            again,
        });
    }

    /// Reads one line of `cargo test`.
    fn cargo_line(&mut self, line: &str) {
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
            self.failed_in(name, "", None);
        }
    }

    /// Reads one line of `go test -v`; a test's parts are not counted separately.
    fn go_line(&mut self, line: &str) {
        if line.starts_with("--- PASS: ") {
            self.passed += 1;
        } else if line.starts_with("--- SKIP: ") {
            self.skipped += 1;
        } else if let Some(test) = line.strip_prefix("--- FAIL: ") {
            self.failed += 1;
            self.failed_in(test, "", None);
        }
    }

    /// Reads one line of `pytest`, whose last line is like
    /// `1 failed, 20 passed, 3 skipped in 4.56s`.
    fn pytest_line(&mut self, line: &str, job: &Job) {
        if let Some((time, id)) = duration(line) {
            let mut known = self.durations.iter_mut().rev();
            match known.find(|(_, name, _)| name == id) {
                Some((_, _, sum)) => *sum += time,
                None => self.durations.push((job.part, id.to_owned(), time)),
            }
            return;
        }
        let line = line.trim_matches(['=', ' ']);
        if let Some(failure) = line
            .strip_prefix("FAILED ")
            .or_else(|| line.strip_prefix("ERROR "))
        {
            let (name, output) = failure.split_once(" - ").unwrap_or((failure, ""));
            let name = name.trim();
            if name.contains("::") || name.ends_with(".py") {
                let mut again = job.clone();
                again
                    .arguments
                    .retain(|word| !is_test(&word.to_string_lossy()));
                again.arguments.push(name.into());
                again.name = name.to_owned();
                self.failed_in(name, output, Some(again));
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

    /// Seconds of each part: phases as they passed, and the sum of the times of a part's tests.
    pub(super) fn parts(&self) -> Vec<(&'static str, f64)> {
        let mut parts: Vec<(&'static str, f64)> = Vec::new();
        let phases = self.phases.iter().copied();
        let tests = self.durations.iter().map(|(part, _, time)| (*part, *time));
        for (part, time) in phases.chain(tests) {
            let seconds = time.as_secs_f64();
            match parts.iter_mut().find(|(known, _)| *known == part) {
                Some((_, sum)) => *sum += seconds,
                None => parts.push((part, seconds)),
            }
        }
        parts
    }

    /// All durations, the longest first, as lines `SECONDS NAME`.
    pub(super) fn durations(&self) -> Vec<String> {
        let mut sorted: Vec<_> = self.durations.iter().collect();
        sorted.sort_by_key(|(_, _, time)| std::cmp::Reverse(*time));
        let line = |(_, name, time): &&(_, String, Duration)| {
            format!("{:>9.3} {name}", time.as_secs_f64())
        };
        sorted.iter().map(line).collect()
    }

    /// The end of a run: times, failures, and as the last line the counts.
    pub(super) fn print(&self) {
        println!("\nseconds of each part:");
        for (part, seconds) in self.parts() {
            println!("{seconds:>9.1}  {part}");
        }
        println!("\nthe slowest tests:");
        for line in self.durations().iter().take(SLOWEST) {
            println!("{line}");
        }
        println!();
        for failure in &self.failures {
            println!("failed: {}", failure.name);
        }
        for test in &self.repeated {
            println!("passed only when repeated: {test}");
        }
        println!("{}", self.summary());
    }

    /// The last line of a run: `N passed, N failed`, then `, N skipped` and
    /// `, N passed only when repeated` if there are any.
    fn summary(&self) -> String {
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

/// The result of a test's own process, in the words of Rust's test harness.
const ONE_PASSED: &str = "test result: ok. 1 passed;";

/// The reason of a test that has found out that it cannot run here.
fn skips_itself(output: &str) -> Option<&str> {
    let mut lines = output.lines().map(str::trim);
    lines.find_map(|line| {
        let line = line
            .strip_prefix("SKIPPED")
            .or_else(|| line.strip_prefix("skipped:"))?;
        Some(line.trim_start_matches([':', ' ']))
    })
}

/// The reason of a process without a status.
fn cut_short(job: &Job) -> String {
    let limit = job.limit.as_secs_f64();
    format!("it did not start, or did not end within {limit:.0} s")
}

/// True if an argument of pytest names a file or a test.
fn is_test(word: &str) -> bool {
    word.ends_with(".py") || word.contains(".py::")
}

/// Reads `1.23s call     test_x.py::test_y`, a line of pytest's durations.
fn duration(line: &str) -> Option<(Duration, &str)> {
    let (seconds, rest) = line.trim_start().split_once("s ")?;
    let (phase, id) = rest.split_once(' ')?;
    let seconds = seconds.parse().ok()?;
    let is_phase = ["call", "setup", "teardown"].contains(&phase);
    let time = Duration::try_from_secs_f64(seconds).ok()?;
    is_phase.then_some((time, id.trim()))
}

/// Splits `" 12 passed"` into `(12, "passed")`.
fn count_and_word(part: &str) -> Option<(u64, &str)> {
    let (count, word) = part.trim().split_once(' ')?;
    Some((count.parse().ok()?, word))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    pub(in super::super) fn job(reader: Reader, name: &str) -> Job {
        Job {
            part: "part",
            name: name.to_owned(),
            reader,
            program: "program".into(),
            arguments: vec!["--verbose".into(), "test_x.py".into()],
            folder: "/".into(),
            variables: Vec::new(),
            limit: Duration::from_secs(9),
            waits: false,
            alone: false,
            may_be_empty: false,
        }
    }

    fn tally(reader: Reader, code: Option<i32>, output: &str) -> Tally {
        let mut tally = Tally::default();
        let ended = Ended {
            status: code.map(|code| std::process::ExitStatus::from_raw(code << 8)),
            output: output.to_owned(),
            time: Duration::from_secs(2),
        };
        tally.job(&job(reader, "name"), ended);
        tally
    }

    fn failures(tally: &Tally) -> Vec<&str> {
        let failures = tally.failures.iter();
        failures.map(|failure| failure.name.as_str()).collect()
    }

    #[test]
    fn a_test_passes_by_its_status() {
        let passed = "test result: ok. 1 passed; 0 failed; 0 ignored";
        let of = |output: &str| tally(Reader::Status, Some(0), output).summary();
        assert_eq!(of(passed), "1 passed, 0 failed");
        assert_eq!(
            of("test result: ok. 0 passed; 0 failed"),
            "0 passed, 1 failed"
        );
        assert_eq!(of(""), "0 passed, 1 failed");
        let skipped = format!("SKIPPED: no device\n{passed}");
        assert_eq!(of(&skipped), "0 passed, 0 failed, 1 skipped");
        let failed = tally(Reader::Status, Some(101), "panicked");
        assert_eq!(failed.summary(), "0 passed, 1 failed");
        assert_eq!(failed.failures[0].output, "panicked");
        assert!(failed.failures[0].again.is_some());
        assert_eq!(
            tally(Reader::Status, None, "").summary(),
            "0 passed, 1 failed"
        );
    }

    #[test]
    fn cargo_results_add_up() {
        let output = "\
running 3 tests
test index::grows ... FAILED
test index::reads ... ok
test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.01s
test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let tally = tally(Reader::Cargo, Some(101), output);
        assert_eq!(tally.summary(), "8 passed, 1 failed, 1 skipped");
        assert_eq!(failures(&tally), ["index::grows"]);
    }

    #[test]
    fn go_results_add_up() {
        let output = "\
=== RUN   TestVerdicts
    --- FAIL: TestVerdicts/a_part (0.00s)
--- FAIL: TestVerdicts (0.00s)
--- PASS: TestProgram (0.00s)
--- SKIP: TestOther (0.00s)
ok  \tduramen/tests/checker\t0.655s
";
        let tally = tally(Reader::Go, Some(1), output);
        assert_eq!(tally.summary(), "1 passed, 1 failed, 1 skipped");
        assert_eq!(failures(&tally), ["TestVerdicts (0.00s)"]);
    }

    #[test]
    fn pytest_results_add_up() {
        let output = "\
test_memory.py::test_store PASSED  [ 10%]
============ slowest durations ============
4.50s call     test_memory.py::test_store
0.50s setup    test_memory.py::test_store
0.25s teardown test_memory.py::test_other[a b]
FAILED test_memory.py::test_cache[5] - AssertionError: took 5 passed in vain
ERROR test_x.py::test_y - OSError
waited in 3 places
======== 1 failed, 20 passed, 3 skipped, 1 error in 4.56s ========
";
        let tally = tally(Reader::Pytest, Some(1), output);
        assert_eq!(tally.summary(), "20 passed, 2 failed, 3 skipped");
        assert_eq!(
            failures(&tally),
            ["test_memory.py::test_cache[5]", "test_x.py::test_y"]
        );
        let again = tally.failures[0].again.as_ref().unwrap();
        assert_eq!(
            again.arguments,
            ["--verbose", "test_memory.py::test_cache[5]"]
        );
        assert_eq!(tally.parts(), [("part", 5.25)]);
        assert!(tally.durations()[0].contains("5.000 test_memory.py::test_store"));
    }

    #[test]
    fn an_end_outside_of_any_test_is_a_failure() {
        for (reader, code) in [
            (Reader::Cargo, Some(101)),
            (Reader::Go, None),
            (Reader::Pytest, Some(0)),
            (Reader::Pytest, Some(2)),
            (Reader::Pytest, Some(5)),
        ] {
            let tally = tally(reader, code, "");
            assert_eq!(tally.summary(), "0 passed, 1 failed", "{reader:?} {code:?}");
        }
        // A file whose tests are all for the other tier.
        let mut empty = job(Reader::Pytest, "name");
        empty.may_be_empty = true;
        let mut tally = Tally::default();
        let ended = Ended {
            status: Some(std::process::ExitStatus::from_raw(5 << 8)),
            output: String::new(),
            time: Duration::ZERO,
        };
        tally.job(&empty, ended);
        assert_eq!(tally.summary(), "0 passed, 0 failed");
    }

    #[test]
    fn phases_and_tests_are_added_by_part() {
        let mut tally = Tally::default();
        tally.phase("build", Duration::from_secs(3));
        assert_eq!(tally.parts(), [("build", 3.0)]);
    }
}
