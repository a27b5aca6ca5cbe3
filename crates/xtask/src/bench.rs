//! `cargo xtask bench`: the figures of `docs/benchmarks.md`, with peers linked in, from a release
//! build.

use crate::process;

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    // The figure `server` starts the binary beside the benchmark's own.
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
        let mut library = process::within(process::HEAP, "build");
        process::run(library.args(["--release", "--package", "duramen-alloc"]))?;
    }
    let mut command = process::cargo(&[
        "run",
        "--release",
        "--package",
        "duramen-bench",
        "--features",
        "peers",
        "--bin",
        "duramen-bench",
        "--",
    ]);
    process::run(command.args(arguments))
}
