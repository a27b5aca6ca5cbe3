//! `cargo xtask bench`: the figures of `docs/benchmarks.md`, of the program as it is shipped.

use crate::process;

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    // Figures start the server beside their own program.
    let server = [
        "build",
        "--profile",
        "ship",
        "--package",
        "duramen-cli",
        "--bin",
        "duramen",
    ];
    process::run(&mut process::cargo(&server))?;
    if arguments.first().is_some_and(|figure| figure == "flash") {
        let libraries = ["build", "--profile", "ship", "--workspace"];
        process::run(&mut process::cargo_of(process::HEAP, &libraries))?;
    }
    let figures = ["run", "--profile", "ship", "--quiet", "--"];
    let mut command = process::cargo_of(process::FIGURES, &figures);
    process::run(command.args(arguments))
}
