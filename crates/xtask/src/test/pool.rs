//! The pool: tests side by side, each in a process of its own.
//!
//! Tests of two kinds share the pool. Some compute all the time, others wait for servers most of
//! the time. So half of the workers take computing jobs first, and half of them waiting jobs.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::child::{self, Ended};
use super::network::{self, Namespace};
use crate::process;

/// One process to run.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// The part of the run that it belongs to.
    pub(super) part: &'static str,
    /// Shown: the whole name of a Rust test, a file of Python tests, …
    pub(super) name: String,
    pub(super) reader: Reader,
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) folder: PathBuf,
    pub(super) variables: Vec<(&'static str, OsString)>,
    pub(super) limit: Duration,
    /// It waits most of the time.
    pub(super) waits: bool,
    /// No other test may run beside it.
    pub(super) alone: bool,
    /// All of its tests may be of the other tier, or of another job.
    pub(super) may_be_empty: bool,
}

/// How the output of a job tells its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// One test, which passed if the process succeeded.
    Status,
    /// Lines of `cargo test`.
    Cargo,
    /// Lines of `go test -v`.
    Go,
    /// Lines of `pytest --verbose`.
    Pytest,
}

impl Job {
    fn command(&self, network: &Namespace) -> Command {
        let mut command = network.command(&self.program);
        command.args(&self.arguments).current_dir(&self.folder);
        process::forget_cargo_run(&mut command);
        // Options of the user's own would leave tests out.
        command.env_remove("PYTEST_ADDOPTS");
        if network.is_own() {
            command.env("DURAMEN_TEST_OUTSIDE", network::outside());
        }
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        command
    }

    /// Runs it; a process that cannot be started ends without a status, and with the reason.
    pub(super) fn run(&self, network: &Namespace) -> Ended {
        let folder = folder();
        child::run(&mut self.command(network), &folder, self.limit).unwrap_or_else(|error| Ended {
            status: None,
            output: error,
            time: Duration::ZERO,
        })
    }
}

/// Files of the runner itself.
pub(super) fn folder() -> PathBuf {
    process::target().join("tests")
}

/// Runs all jobs; `done` takes each with its end, one at a time.
pub(super) fn run(jobs: Vec<Job>, workers: usize, done: impl FnMut(&Job, Ended) + Send) {
    let (alone, together): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.alone);
    let done = Mutex::new(done);
    let queues = Mutex::new(Queues::of(together));
    std::thread::scope(|scope| {
        for number in 0..workers {
            let (queues, done) = (&queues, &done);
            let waiting_first = number % 2 == 1;
            scope.spawn(move || {
                let network = Namespace::new();
                if number == 0 && !network.is_own() {
                    println!("no network namespaces here: tests side by side share their ports");
                }
                loop {
                    let next = lock(queues).take(waiting_first);
                    let Some(job) = next else { break };
                    let ended = job.run(&network);
                    lock(done)(&job, ended);
                }
            });
        }
    });
    let network = Namespace::new();
    for job in alone {
        let ended = job.run(&network);
        lock(&done)(&job, ended);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Queues {
    computing: VecDeque<Job>,
    waiting: VecDeque<Job>,
}

impl Queues {
    fn of(jobs: Vec<Job>) -> Queues {
        let (waiting, computing): (Vec<_>, Vec<_>) = jobs.into_iter().partition(|job| job.waits);
        Queues {
            computing: computing.into(),
            waiting: waiting.into(),
        }
    }

    fn take(&mut self, waiting_first: bool) -> Option<Job> {
        let (first, second) = if waiting_first {
            (&mut self.waiting, &mut self.computing)
        } else {
            (&mut self.computing, &mut self.waiting)
        };
        first.pop_front().or_else(|| second.pop_front())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, script: &str, waits: bool, alone: bool) -> Job {
        Job {
            part: "rust",
            name: name.to_owned(),
            reader: Reader::Status,
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            folder: std::env::temp_dir(),
            variables: vec![("WORD", "given".into())],
            limit: Duration::from_secs(60),
            waits,
            alone,
            may_be_empty: false,
        }
    }

    #[test]
    fn every_job_runs_once_and_those_alone_at_the_end() {
        std::fs::create_dir_all(folder()).unwrap();
        let mut jobs = vec![job("alone", "exit 1", false, true)];
        jobs.extend((0..20).map(|n| job(&n.to_string(), "echo $WORD", n % 2 == 0, false)));
        let mut ended = Vec::new();
        run(jobs, 3, |job, end| {
            assert_eq!(end.output, if job.alone { "" } else { "given\n" });
            let passed = end.status.is_some_and(|status| status.success());
            ended.push((job.name.clone(), passed));
        });
        assert_eq!(ended.len(), 21);
        assert_eq!(ended.last(), Some(&("alone".to_owned(), false)));
        ended.sort();
        ended.dedup();
        assert_eq!(ended.iter().filter(|(_, passed)| *passed).count(), 20);
    }

    #[test]
    fn a_worker_prefers_its_kind() {
        let jobs = vec![job("c", "", false, false), job("w", "", true, false)];
        let mut queues = Queues::of(jobs.clone());
        assert_eq!(queues.take(true).unwrap().name, "w");
        assert_eq!(queues.take(true).unwrap().name, "c");
        assert!(queues.take(true).is_none());
        assert_eq!(Queues::of(jobs).take(false).unwrap().name, "c");
    }
}
