//! `cargo xtask bench`: the figures of `docs/benchmarks.md`, from a release build of `bench/`.

use crate::process;

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    // Figures start the server beside their own program.
    let server = [
        "build",
        "--release",
        "--package",
        "duramen-cli",
        "--bin",
        "duramen",
    ];
    process::run(&mut process::cargo(&server))?;
    if arguments.first().is_some_and(|figure| figure == "flash") {
        let libraries = ["build", "--release", "--workspace"];
        process::run(&mut process::cargo_of(process::HEAP, &libraries))?;
    }
    let mut command = process::cargo_of(process::FIGURES, &["run", "--release", "--quiet", "--"]);
    process::run(command.args(arguments))
}
