//! Tests in Rust: the crates of the store, their documentation, the workspaces of the heap and of
//! the figures, and the interleavings.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use super::candidates::{self, Crate};
use super::executables::{self, Executable};
use super::pool::{Job, Reader};
use super::tier::Tier;
use super::{DOC_LIMIT, Run, changed};
use crate::{process, tools};

/// Longest time of one test. A test of the quick tier takes seconds on a quiet machine.
const QUICK_LIMIT: Duration = Duration::from_secs(300);
const FULL_LIMIT: Duration = Duration::from_secs(1500);

/// The workspaces beside the store, whose tests the quick tier runs only after a change.
const BESIDE: [(&str, &str); 2] = [("heap", process::HEAP), ("figures", process::FIGURES)];

/// Model checkers of the engine's synchronisation: each is a `--cfg`, and a module of that name in
/// the tests of `CHECKED`.
const CHECKERS: [(&str, &[&str]); 2] = [
    ("loom", &["base", "engine", "shm"]),
    ("shuttle", &["engine"]),
];

/// Builds everything that `run` wants, and adds its jobs.
pub(super) fn prepare(run: &mut Run) {
    let request = run.request.clone();
    if request.has("rust") {
        run.phase("build of the tests", |run| {
            let mut command = process::cargo(&["test", "--workspace"]);
            add(run, "rust", executables::build(&mut command)?)
        });
    } else if !request.names.is_empty() {
        run.phase("build of the tests", |run| {
            let crates = candidates::of_names(&request.names)?;
            if crates.is_empty() {
                Ok(())
            } else {
                add(run, "rust", executables::build(&mut some(&crates))?)
            }
        });
    }
    if (request.has("rust") || request.names_part("doc")) && !request.list {
        match doc() {
            Ok(job) => run.jobs.push(job),
            Err(sentence) => run.tally.broken("documentation tests", &sentence),
        }
    }
    for (part, manifest) in BESIDE {
        let wanted = if request.has(part) {
            is_changed_or_wanted(run, part, manifest)
        } else {
            has_names(part, &request.names)
        };
        match wanted {
            Ok(false) if request.has(part) => println!(
                "\n{part}: unchanged since all its tests passed; `./scripts/test {part}` runs them"
            ),
            Ok(false) => {}
            wanted => run.phase(phase_of(part), |run| {
                wanted?;
                let mut command = process::cargo_of(manifest, &["test", "--workspace"]);
                add(run, part, executables::build(&mut command)?)?;
                // The figures have no documentation tests.
                if part == "heap" && request.has(part) && !request.list {
                    run.jobs.push(doc_job(part, manifest, &["--workspace"]));
                }
                Ok(())
            }),
        }
    }
    let wants_interleavings = if request.has("interleavings") {
        Ok(true)
    } else {
        names_interleavings(&request.names)
    };
    if !matches!(wants_interleavings, Ok(false)) {
        for (checker, crates) in CHECKERS {
            run.phase("build of the interleavings", |run| {
                wants_interleavings.clone()?;
                add(run, "interleavings", build_under(checker, crates)?)
            });
        }
    }
}

fn phase_of(part: &str) -> &'static str {
    match part {
        "heap" => "build of the heap's tests",
        _ => "build of the figures' tests",
    }
}

/// True if a workspace beside the store may have a test with one of these names.
fn has_names(part: &str, names: &[String]) -> Result<bool, String> {
    let folders: &[(&str, &str)] = match part {
        "heap" => &[
            ("heap/crates/alloc", "heap::alloc"),
            ("heap/crates/direct", "heap::direct"),
            ("heap/crates/flash", "heap::flash"),
        ],
        _ => &[("bench", "figures")],
    };
    for (folder, prefix) in folders {
        if candidates::has_any(&process::root().join(folder), prefix, names)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// True if a workspace beside the store is to be tested as a whole.
fn is_changed_or_wanted(run: &Run, part: &str, manifest: &str) -> Result<bool, String> {
    if run.is_full_or_names(part) || run.request.list {
        return Ok(true);
    }
    changed::has_changed(part, manifest)
}

/// Notes which workspaces beside the store have passed.
pub(super) fn note_passed(run: &mut Run) {
    let is_complete = run.request.is_everything() && run.tally.failed == 0 && run.begin.holds();
    for (part, manifest) in BESIDE {
        if is_complete
            && run.tally.parts().iter().any(|(known, _)| *known == part)
            && let Err(sentence) = changed::has_passed(part, manifest)
        {
            println!("{sentence}");
        }
    }
}

/// Adds the tests of these executables that `run` wants.
fn add(run: &mut Run, part: &'static str, found: Vec<Executable>) -> Result<(), String> {
    for executable in found {
        for test in executable.tests()? {
            let whole = format!("{}::{}", executable.label, test.name);
            // Tests of other workspaces begin with the workspace's name.
            let whole = match part {
                "heap" => format!("heap::{whole}"),
                "figures" => whole.replacen("bench", "figures", 1),
                _ => whole,
            };
            let is_of_tier = run.request.tier == Tier::Full || !test.is_long();
            if test.is_by_hand() || !is_of_tier || !run.request.wants(part, &whole) {
                continue;
            }
            if run.request.list {
                run.names.push(whole);
            } else {
                let job = job(run, part, &executable, whole, &test.name);
                run.jobs.push(job);
            }
        }
    }
    Ok(())
}

fn job(run: &Run, part: &'static str, executable: &Executable, whole: String, name: &str) -> Job {
    let arguments = ["--exact", name, "--nocapture", "--include-ignored"];
    Job {
        part,
        alone: executable.label.ends_with("::alone"),
        may_be_empty: false,
        name: whole,
        reader: Reader::Status,
        program: executable.path.clone().into(),
        arguments: arguments.map(OsString::from).to_vec(),
        folder: executable.folder.clone(),
        variables: vec![
            ("DURAMEN_TEST_TIER", run.request.tier.name().into()),
            ("CARGO_MANIFEST_DIR", executable.folder.clone().into()),
            ("PATH", tools::path()),
        ],
        limit: match run.request.tier {
            Tier::Quick => QUICK_LIMIT,
            Tier::Full => FULL_LIMIT,
        },
        waits: false,
    }
}

/// The documentation tests of the store's crates.
fn doc() -> Result<Job, String> {
    // The job has no network.
    process::run(&mut process::cargo(&["fetch", "--quiet"]))?;
    let mut words = vec!["--package", "duramen-cli"];
    let packages: Vec<String> = candidates::with_documentation_tests()?
        .iter()
        .map(Crate::package)
        .collect();
    for package in &packages {
        words.extend(["--package", package]);
    }
    Ok(doc_job("doc", process::STORE, &words))
}

fn doc_job(part: &'static str, manifest: &str, words: &[&str]) -> Job {
    let mut arguments: Vec<OsString> = ["test", "--doc", "--color", "never"]
        .map(OsString::from)
        .to_vec();
    arguments.extend(["--manifest-path".into(), manifest.into()]);
    arguments.extend(["--target-dir".into(), process::target().into()]);
    arguments.extend(words.iter().map(OsString::from));
    Job {
        part,
        name: format!("documentation tests of {manifest}"),
        reader: Reader::Cargo,
        program: "cargo".into(),
        arguments,
        folder: process::root(),
        variables: Vec::new(),
        limit: DOC_LIMIT,
        waits: false,
        alone: false,
        may_be_empty: false,
    }
}

/// A build of the tests of these crates alone. The package of the program is in it, because cargo
/// gives external crates the features that the chosen packages need together: with it they are
/// those of the whole workspace, and nothing is built twice.
fn some(crates: &[Crate]) -> Command {
    let mut command = process::cargo(&["test", "--package", "duramen-cli"]);
    for one in crates {
        command.args(["--package", &one.package()]);
    }
    if crates.iter().all(Crate::has_library) {
        command.arg("--lib");
        if crates.iter().any(Crate::has_integration_tests) {
            command.args(["--test", "it"]);
        }
        if crates.iter().any(Crate::has_tests_alone) {
            command.args(["--test", "alone"]);
        }
    }
    command
}

/// True if a test under a model checker may have one of these names. Its modules are in
/// `tests/it/loom` and `tests/it/schedules`, for example.
///
/// # Errors
/// A sentence, if a source cannot be read.
fn names_interleavings(names: &[String]) -> Result<bool, String> {
    for (checker, crates) in CHECKERS {
        if names
            .iter()
            .any(|name| name.contains(&format!("{checker}::")))
        {
            return Ok(true);
        }
        for name in crates {
            let folder = process::root().join("crates").join(name);
            if candidates::has_any_under(&folder, name, checker, names)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// The test executables of these crates under a model checker, in a target directory of its own.
fn build_under(checker: &str, crates: &[&str]) -> Result<Vec<Executable>, String> {
    let mut command = process::cargo(&["test", "--test", "it"]);
    for name in crates {
        command.args(["--package", &format!("duramen-{name}")]);
    }
    command
        .arg("--target-dir")
        .arg(process::target().join(checker))
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", format!("--cfg {checker}"));
    executables::build(&mut command)
}
