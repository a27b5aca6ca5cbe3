//! `cargo xtask test`: all tests, of Rust, Go and Python, in one pool, with one summary at the end.
//!
//! First all builds, one after the other; then the pool ([`pool`]); then the tests that need the
//! machine for themselves; then repetitions of failures by chance ([`repeat`]).

mod candidates;
mod changed;
mod child;
mod executables;
mod network;
mod page;
mod pool;
mod python;
mod repeat;
mod repository;
mod rust;
mod tally;
mod tier;

use std::process::Command;
use std::time::{Duration, Instant};

use self::pool::{Job, Reader};
use self::python::Python;
use self::tally::Tally;
use self::tier::{Request, Tier};
use crate::process::{self, section};
use crate::{tidy, tools};

/// Longest time of the documentation tests of all crates: they are compiled meanwhile.
const DOC_LIMIT: Duration = Duration::from_secs(1200);

/// Longest time of the checker's own tests.
const CHECKER_LIMIT: Duration = Duration::from_secs(300);

/// Runs the tests of a tier, or the chosen ones; the last printed line is `N passed, N failed`.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    if arguments
        .iter()
        .any(|word| word == "--help" || word == "-h")
    {
        print!("{}", tier::USAGE);
        return Ok(());
    }
    let request = Request::of(arguments)?;
    let begun = Instant::now();
    end_with_this_process()?;
    let folder = pool::folder();
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let _lock = lock(&folder)?;
    let mut run = Run {
        request,
        begin: repository::Begin::now(),
        tally: Tally::default(),
        jobs: Vec::new(),
        names: Vec::new(),
    };
    run.prepare();
    if run.request.list {
        return run.list();
    }
    run.check_names()?;
    run.test();
    run.finish(begun.elapsed())
}

/// An interrupted run ends the processes of its tests.
fn end_with_this_process() -> Result<(), String> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|error| format!("cannot watch for signals: {error}"))?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            child::end_all(128 + signal);
        }
    });
    Ok(())
}

/// True if a test in Python may have one of these names. A name that no file has may be one of a
/// parameter, which only pytest knows.
fn may_name_python(names: &[String]) -> Result<bool, String> {
    let is_nowhere = |names| Ok::<bool, String>(candidates::of_names(names)?.is_empty());
    Ok(!names.is_empty() && (python::may_have(names)? || is_nowhere(names)?))
}

/// Two runs at once would overwrite each other's files.
fn lock(folder: &std::path::Path) -> Result<std::fs::File, String> {
    use rustix::fs::{FlockOperation, flock};
    let path = folder.join("lock");
    let cannot = |error| format!("cannot lock {}: {error}", path.display());
    let file = std::fs::File::create(&path).map_err(cannot)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| "another run of the tests is under way in this target directory")?;
    Ok(file)
}

/// One run: its jobs, and its results so far.
struct Run {
    request: Request,
    /// The state of the repository before the first build.
    begin: repository::Begin,
    tally: Tally,
    jobs: Vec<Job>,
    /// With `--list`: names of tests.
    names: Vec<String>,
}

impl Run {
    /// Runs one phase; an error counts as one failure and does not stop the others.
    fn phase(&mut self, name: &'static str, work: impl FnOnce(&mut Run) -> Result<(), String>) {
        let begun = Instant::now();
        let result = section(name, || work(self));
        self.tally.phase(name, begun.elapsed());
        if let Err(sentence) = result {
            self.tally.broken(name, &sentence);
        }
    }

    /// Checks that need no process of their own, and all builds; fills the list of jobs.
    fn prepare(&mut self) {
        let request = self.request.clone();
        if request.has("tidy") && !request.list {
            self.phase("tidy", |run| {
                tidy::run()?;
                let check = process::root().join("scripts/commit-msg");
                process::run(Command::new(check).arg("--range"))?;
                run.tally.passed += 2;
                Ok(())
            });
        }
        if request.parts_besides(&["tidy", "fuzz"]) && !request.list {
            self.phase("tools", |_| tools::provide());
        }
        rust::prepare(self);
        if request.has("fuzz") && !request.list && self.is_full_or_names("fuzz") {
            self.phase("fuzz targets compile", |run| {
                let arguments = ["check", "--quiet", "--color", "never"];
                process::run(&mut process::cargo_of(process::FUZZ, &arguments))?;
                run.tally.passed += 1;
                Ok(())
            });
        }
        if request.has("checker") {
            self.phase("modules of the checker", Run::checker);
        }
        let wants_python = if request.has("python") {
            Ok(true)
        } else {
            may_name_python(&request.names)
        };
        if !matches!(wants_python, Ok(false)) {
            self.phase("build of the programs", |run| {
                wants_python?;
                run.python()
            });
        }
    }

    /// True if a part that only the full tier has is wanted.
    fn is_full_or_names(&self, part: &str) -> bool {
        self.request.tier == Tier::Full || self.request.names_part(part)
    }

    /// The checker of histories has its own tests: wrong histories that it must reject.
    fn checker(&mut self) -> Result<(), String> {
        let folder = process::root().join("tests/checker");
        // The job has no network.
        let mut modules = Command::new("go");
        modules
            .args(["mod", "download"])
            .env("GOTOOLCHAIN", "local");
        process::run(modules.current_dir(&folder))?;
        let arguments = ["test", "-v", "-count=1", "-mod=readonly", "./..."];
        self.names.push("checker".to_owned());
        self.jobs.push(Job {
            part: "checker",
            name: "checker".to_owned(),
            reader: Reader::Go,
            program: "go".into(),
            arguments: arguments.map(Into::into).to_vec(),
            folder,
            variables: vec![("GOTOOLCHAIN", "local".into())],
            limit: CHECKER_LIMIT,
            waits: false,
            alone: false,
            may_be_empty: false,
        });
        Ok(())
    }

    fn python(&mut self) -> Result<(), String> {
        let python = Python::provide(self.request.tier)?;
        if self.request.list {
            let ids = python.ids()?.into_iter();
            let wanted = ids.filter(|id| self.request.wants("python", id));
            self.names.extend(wanted);
            return Ok(());
        }
        let files = python.files(&self.request)?;
        if files.is_empty() {
            return Ok(());
        }
        // The programs of all packages together: with fewer packages, cargo would build all
        // libraries again, with other features.
        let programs = ["build", "--workspace", "--bins", "--examples", "--quiet"];
        process::run(&mut process::cargo(&programs))?;
        // Tests of these are in the full tier.
        if self.request.tier == Tier::Full {
            // A figure that is interrupted.
            let figures = ["build", "--quiet"];
            process::run(&mut process::cargo_of(process::FIGURES, &figures))?;
            // The page about the allocator installs it and compiles programs with it.
            let library = ["build", "--package", "duramen-alloc", "--quiet"];
            process::run(&mut process::cargo_of(process::HEAP, &library))?;
        }
        self.jobs.extend(python.jobs(&files)?);
        Ok(())
    }

    fn list(mut self) -> Result<(), String> {
        self.names.sort();
        for name in &self.names {
            println!("{name}");
        }
        if self.tally.failures.is_empty() {
            Ok(())
        } else {
            Err("the list is not complete".to_owned())
        }
    }

    /// A name that selects nothing is a mistake. Beside whole parts the names of their tests are
    /// not known.
    fn check_names(&self) -> Result<(), String> {
        let is_known = |wanted: &&String| {
            let mut words = self.jobs.iter().flat_map(|job| &job.arguments);
            self.jobs
                .iter()
                .any(|job| job.name.contains(wanted.as_str()))
                || words.any(|word| {
                    let word = word.to_string_lossy();
                    word.contains(".py::") && word.contains(wanted.as_str())
                })
        };
        let unknown = self.request.names.iter().find(|name| !is_known(name));
        match unknown {
            Some(name) if self.tally.failures.is_empty() && !self.request.has_parts() => {
                Err(format!(
                    "no test and no part of the {} tier has `{name}` in its name; \
                     `--list` prints the names, `--help` the parts",
                    self.request.tier.name()
                ))
            }
            _ => Ok(()),
        }
    }

    fn test(&mut self) {
        let jobs = std::mem::take(&mut self.jobs);
        if jobs.is_empty() {
            return;
        }
        let workers = self.request.workers;
        println!("\n=== {} jobs, {workers} side by side", jobs.len());
        let begun = Instant::now();
        let tally = &mut self.tally;
        pool::run(jobs, workers, |job, ended| tally.job(job, ended));
        println!("=== jobs: done in {:.1} s", begun.elapsed().as_secs_f64());
        let network = network::Namespace::new();
        repeat::repeat(&mut self.tally, |job| {
            let mut once = Tally::default();
            once.job(job, job.run(&network));
            once.failed == 0 && once.passed > 0
        });
    }

    fn finish(mut self, time: Duration) -> Result<(), String> {
        rust::note_passed(&mut self);
        let durations = pool::folder().join("durations.txt");
        let _ = std::fs::write(&durations, self.tally.durations().join("\n") + "\n");
        if self.request.tier == Tier::Full && self.request.is_everything() {
            let parts = self.tally.parts();
            let seconds = time.as_secs_f64();
            if let Err(why) = page::write(&self.tally, &self.begin, seconds, &parts) {
                self.tally.broken("docs/test-runs.md", &why);
            }
        }
        println!("all durations: {}", durations.display());
        self.tally.print();
        if self.tally.failed > 0 || self.tally.passed == 0 {
            // The summary is the last line and includes the failure.
            return Err(String::new());
        }
        Ok(())
    }
}
