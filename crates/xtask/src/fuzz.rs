//! `cargo xtask fuzz`: libFuzzer targets on the stable toolchain, without cargo-fuzz.
//!
//! The targets live in `fuzz/`, a separate workspace, because every crate under test has to be
//! compiled with coverage counters. `fuzz/seeds` has the initial inputs; interesting inputs of the
//! runs are added to `target/fuzz/corpus`.

use std::path::PathBuf;

use crate::process;

/// Flags that give libFuzzer its coverage; all are stable code generation options.
const COVERAGE: &str = "-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks --cfg fuzzing";

/// The whole command: `[TARGET] [--seconds N]`.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let mut seconds = 60;
    let mut chosen = None;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if word == "--seconds" {
            let value = words.next().ok_or("--seconds needs a number")?;
            seconds = value
                .parse()
                .map_err(|_| format!("--seconds needs a whole number, not `{value}`"))?;
        } else {
            chosen = Some(word.clone());
        }
    }
    match chosen {
        None => all(seconds),
        Some(name) => {
            let targets = targets()?;
            if !targets.contains(&name) {
                return Err(format!(
                    "no fuzz target `{name}`; there are: {}",
                    targets.join(", ")
                ));
            }
            build()?;
            fuzz(&name, seconds)
        }
    }
}

/// Runs every target, `seconds` in total.
pub(crate) fn all(seconds: u64) -> Result<(), String> {
    let targets = targets()?;
    build()?;
    let share = (seconds / targets.len().max(1) as u64).max(1);
    for name in &targets {
        fuzz(name, share)?;
    }
    Ok(())
}

fn directory() -> PathBuf {
    process::target().join("fuzz")
}

/// The names of the targets: the binaries of `fuzz/`.
fn targets() -> Result<Vec<String>, String> {
    let text = process::output(&mut process::cargo(&[
        "metadata",
        "--format-version=1",
        "--no-deps",
        "--manifest-path",
        process::FUZZ,
    ]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("cargo metadata: {error}"))?;
    let mut names: Vec<String> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|package| package["targets"].as_array().into_iter().flatten())
        .filter(|target| target["kind"][0] == "bin")
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    if names.is_empty() {
        return Err(format!("{} has no targets", process::FUZZ));
    }
    Ok(names)
}

fn build() -> Result<(), String> {
    process::run(
        process::cargo(&[
            "build",
            "--release",
            "--quiet",
            "--manifest-path",
            process::FUZZ,
            "--target-dir",
        ])
        .arg(directory())
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .env("RUSTFLAGS", COVERAGE),
    )
}

fn fuzz(name: &str, seconds: u64) -> Result<(), String> {
    println!("--- {name}, {seconds} s");
    let corpus = directory().join("corpus").join(name);
    let found = directory().join("artifacts").join(name);
    for folder in [&corpus, &found] {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    }
    let program = directory()
        .join("x86_64-unknown-linux-gnu/release")
        .join(name);
    let mut command = std::process::Command::new(&program);
    command
        .current_dir(process::root())
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", found.display()))
        .args([
            "-rss_limit_mb=4096",
            "-timeout=20",
            "-verbosity=0",
            "-print_final_stats=1",
        ])
        .arg(&corpus);
    let seeds = process::root().join("fuzz/seeds").join(name);
    if seeds.is_dir() {
        command.arg(seeds);
    }
    process::run(&mut command).map_err(|error| {
        format!(
            "{error}\nreplay what was found with: {} {}/<the newest file>",
            program.display(),
            found.display()
        )
    })
}
