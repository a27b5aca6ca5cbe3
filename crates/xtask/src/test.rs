//! `cargo xtask test`: cargo's tests, then real clients against a real server, one summary at the
//! end.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, go, once, section};
use crate::repeat::{self, CargoFailures};
use crate::tally::Tally;
use crate::{linters, redis_suite, scrapers, tidy, tools};

/// Runs everything, or the tests that `filters` name; the last printed line is
/// `N passed, N failed`.
pub(crate) fn run(filters: &[String]) -> Result<(), String> {
    let named = |name: &str| filters.iter().any(|filter| filter == name);
    let client_filters: Vec<&str> = filters
        .iter()
        .map(String::as_str)
        .filter(|filter| {
            !matches!(
                *filter,
                "tidy" | "cargo" | "heap" | "interleavings" | "clients" | "checker"
            )
        })
        .collect();
    let everything = filters.is_empty();
    let with_clients = everything || named("clients") || !client_filters.is_empty();
    let mut tally = Tally::default();
    let with_checker = everything || named("checker");
    if with_clients || with_checker || named("cargo") {
        part(&mut tally, "tools", |_| tools::provide());
    }
    if everything || named("tidy") {
        part(&mut tally, "tidy", |tally| {
            tidy::run()?;
            tally.passed += 1;
            Ok(())
        });
    }
    if everything || named("cargo") {
        for manifest in [process::STORE, process::FIGURES] {
            let title = format!("cargo tests of {manifest}");
            part(&mut tally, &title, |tally| cargo_tests(tally, manifest));
        }
        part(&mut tally, "fuzz targets", |tally| {
            let arguments = ["check", "--quiet", "--color", "never"];
            process::run(&mut process::cargo_of(process::FUZZ, &arguments))?;
            tally.passed += 1;
            Ok(())
        });
    }
    if everything || named("heap") {
        part(&mut tally, "heap tests", |tally| {
            cargo_tests(tally, process::HEAP)
        });
    }
    if everything || named("interleavings") {
        part(&mut tally, "interleavings", interleavings);
    }
    if with_checker {
        part(&mut tally, "checker", checker_tests);
    }
    if with_clients {
        part(&mut tally, "client tests", |tally| {
            client_tests(&client_filters, tally)
        });
    }
    println!(
        "\nthe slowest:\n{}",
        std::mem::take(&mut tally.slowest).table()
    );
    for failure in &tally.failures {
        println!("failed: {failure}");
    }
    for test in &tally.repeated {
        println!("passed only when repeated: {test}");
    }
    println!("{}", tally.summary());
    if tally.failed > 0 || tally.passed == 0 {
        // The summary is the last line and includes the failure.
        return Err(String::new());
    }
    Ok(())
}

/// Runs one part; an error outside of any test counts as one failure and does not stop the other
/// parts.
fn part(tally: &mut Tally, title: &str, work: impl FnOnce(&mut Tally) -> Result<(), String>) {
    let mut own = Tally::default();
    let result = section(title, || {
        work(&mut own)?;
        if own.failed > 0 {
            return Err(format!("{} failed", own.failed));
        }
        Ok(())
    });
    if let Err(sentence) = result
        && own.failed == 0
    {
        println!("{sentence}");
        own.broken(&format!("{title}: {sentence}"));
    }
    tally.add(own);
}

/// Unit, property, model and documentation tests of every crate of a workspace.
fn cargo_tests(tally: &mut Tally, workspace: &str) -> Result<(), String> {
    let test = || {
        let arguments = ["test", "--workspace", "--color", "never"];
        process::cargo_of(workspace, &arguments)
    };
    let mut failures = CargoFailures::default();
    let ok = process::follow(test().arg("--no-fail-fast"), |line| {
        tally.cargo_line(line);
        for failure in failures.line(line) {
            if failure.broke_off() {
                tally.broken(&failure.place);
            }
            tally.repeatable.push(failure);
        }
    })?;
    if !ok && tally.failed == 0 {
        return Err("cargo test failed before or outside of a test".to_owned());
    }
    repeat::repeat(tally, |failure| {
        let mut once = Tally::default();
        // With the package alone (`-p NAME`, the first two words) cargo would build its
        // dependencies again, with other features.
        let mut command = test();
        command
            .args(failure.place.split(' ').skip(2))
            .args(["--", "--exact", &failure.name]);
        let ok = process::follow(&mut command, |line| once.cargo_line(line))?;
        Ok(ok && once.passed > 0)
    })
}

/// Model checkers for the engine's synchronisation; each is a `--cfg` and a test file of that name.
const CHECKERS: [&str; 2] = ["loom", "shuttle"];

/// Interleavings: every test file `loom.rs` and `shuttle.rs`, each kind in a separate build.
fn interleavings(tally: &mut Tally) -> Result<(), String> {
    for checker in CHECKERS {
        for name in ["base", "engine", "shm"] {
            let file = format!("crates/{name}/tests/{checker}.rs");
            if !process::root().join(&file).exists() {
                continue;
            }
            let package = format!("duramen-{name}");
            let mut command = process::cargo(&["test", "--color", "never", "--package", &package]);
            command
                .args(["--test", checker, "--target-dir"])
                .arg(process::target().join(checker))
                .env("RUSTFLAGS", format!("--cfg {checker}"));
            let ok = process::follow(&mut command, |line| tally.cargo_line(line))?;
            if !ok && tally.failed == 0 {
                return Err(format!("{file} does not build or broke off"));
            }
        }
    }
    Ok(())
}

/// The checker of histories has its own tests: wrong histories that it must reject.
fn checker_tests(tally: &mut Tally) -> Result<(), String> {
    let mut command = go(&checker(), &["test", "-v", "-count=1", "-mod=readonly"]);
    command.arg("./...");
    let ok = process::follow(&mut command, |line| tally.go_line(line))?;
    if !ok && tally.failed == 0 {
        return Err("the checker does not build or broke off".to_owned());
    }
    Ok(())
}

fn checker() -> PathBuf {
    process::root().join("tests/checker")
}

/// Builds a Go program of ours.
fn build_go(folder: &Path, to: &Path) -> Result<(), String> {
    process::run(
        go(folder, &["build", "-mod=readonly", "-buildvcs=false", "-o"])
            .arg(to)
            .arg("."),
    )
}

/// Whole processes: `duramen serve` and real client libraries.
fn client_tests(filters: &[&str], tally: &mut Tally) -> Result<(), String> {
    let python = python()?;
    build_clients()?;
    scrapers::provide(&built());
    linters::provide(&built());
    redis_suite::provide(&built());
    // The programs of the tests of all packages together: with fewer packages, cargo would build
    // all libraries again, with other features.
    let programs = ["build", "--workspace", "--bins", "--examples", "--quiet"];
    process::run(&mut process::cargo(&programs))?;
    // A figure that is interrupted.
    let figures = ["build", "--quiet"];
    process::run(&mut process::cargo_of(process::FIGURES, &figures))?;
    // The page about the allocator installs it and compiles programs with it.
    let library = ["build", "--package", "duramen-alloc", "--quiet"];
    process::run(&mut process::cargo_of(process::HEAP, &library))?;
    let mut command = pytest(&python);
    if !filters.is_empty() {
        command.args(["-k", &filters.join(" or ")]);
    }
    let ok = process::follow(&mut command, |line| tally.pytest_line(line))?;
    if !ok && tally.failed == 0 {
        return Err("pytest failed before or outside of a test".to_owned());
    }
    repeat::repeat(tally, |failure| {
        let mut once = Tally::default();
        let mut command = pytest(&python);
        command.arg(&failure.place);
        let ok = process::follow(&mut command, |line| once.pytest_line(line))?;
        Ok(ok && once.passed == 1)
    })
}

/// pytest in `tests`, with the environment of its tests.
fn pytest(python: &Path) -> Command {
    let mut command = Command::new(python);
    command
        .current_dir(process::root().join("tests"))
        .env("DURAMEN_TEST_BUILT", built())
        .env(
            "DURAMEN_TEST_WORKLOAD",
            process::target().join("debug/duramen-workload"),
        )
        .env(
            "DURAMEN_TEST_BENCH",
            process::target().join("debug/duramen-bench"),
        )
        .env(
            // Not the program that runs here: building all programs may have replaced its file.
            "DURAMEN_TEST_XTASK",
            process::target().join("debug/xtask"),
        )
        .env("PATH", tools::path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONUNBUFFERED", "1")
        // The list of failures at the end has their full messages.
        .env("CI", "true");
    if std::env::var_os("DURAMEN_TEST_BINARY").is_none() {
        command.env(
            "DURAMEN_TEST_BINARY",
            process::target().join("debug/duramen"),
        );
    }
    command.args([
        "-m",
        "pytest",
        "--color=no",
        "--verbose",
        "-rfEs",
        "--tb=short",
    ]);
    command
}

/// The folder of built client programs: outside of the source tree.
fn built() -> PathBuf {
    process::target().join("clients")
}

/// A Python with the packages of `tests/requirements.txt`, in a separate environment.
fn python() -> Result<PathBuf, String> {
    let home = built().join("python");
    let python = home.join("bin/python");
    let requirements = process::root().join("tests/requirements.txt");
    once(&home, std::slice::from_ref(&requirements), || {
        process::run(
            Command::new("python3")
                .args(["-m", "venv", "--clear"])
                .arg(&home),
        )?;
        process::run(
            Command::new(&python)
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                ])
                .arg("--requirement")
                .arg(&requirements),
        )
    })?;
    Ok(python)
}

/// Builds the Go, Java and Node programs of `tests/clients`, and the checker of histories.
fn build_clients() -> Result<(), String> {
    let source = process::root().join("tests/clients");
    let built = built();
    let node = built.join("node");
    let files = ["package.json", "package-lock.json", "main.js"];
    let sources = files.map(|file| source.join("node").join(file));
    once(&node, &sources, || {
        for (file, from) in files.iter().zip(&sources) {
            std::fs::copy(from, node.join(file))
                .map_err(|error| format!("cannot copy {}: {error}", from.display()))?;
        }
        process::run(
            Command::new("npm")
                .args(["ci", "--silent", "--no-audit", "--no-fund"])
                .current_dir(&node),
        )
    })?;
    build_go(&source.join("go"), &built.join("go-client"))?;
    build_go(&checker(), &built.join("checker"))?;
    let java = built.join("java");
    let pom = source.join("java/pom.xml");
    let folder = source.join("java/src/main/java");
    let programs = ["Program", "Main", "Lettuce", "Cluster"];
    let mut sources = vec![pom.clone()];
    sources.extend(programs.map(|program| folder.join(program).with_extension("java")));
    once(&java, &sources, || {
        process::run(
            Command::new("mvn")
                .args(["--quiet", "--batch-mode", "compile"])
                .arg("dependency:copy-dependencies")
                .arg(format!("-Dbuilt={}", java.display()))
                .arg("--file")
                .arg(&pom),
        )
    })
}
