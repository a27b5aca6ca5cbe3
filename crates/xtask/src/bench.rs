//! `cargo xtask bench`: the benchmarks of `duramen bench`, from a release build.

use crate::process;

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let mut command = process::cargo(&[
        "run",
        "--release",
        "--package",
        "duramen-cli",
        "--bin",
        "duramen",
        "--",
        "bench",
    ]);
    process::run(command.args(arguments))
}
