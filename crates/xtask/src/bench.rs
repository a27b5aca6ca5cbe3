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
    if arguments.iter().any(|word| word == "flash") {
        let mut library = process::within(process::HEAP, "build");
        process::run(library.args(["--release", "--package", "duramen-alloc"]))?;
    }
    let mut command = process::within(process::BENCH, "run");
    process::run(command.args(["--release", "--quiet", "--"]).args(arguments))
}
