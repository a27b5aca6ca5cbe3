//! `cargo xtask torture`: a real server of the present code under `duramen-workload torture`.

use crate::process;

/// Builds the server and the workload, and passes the arguments on. `--release` tests an optimised
/// build; without it debug assertions are on.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let release = arguments.iter().any(|argument| argument == "--release");
    let mut build = process::cargo(&["build", "--quiet", "--package", "duramen-cli"]);
    build.args(["--bin", "duramen", "--package", "duramen-workload"]);
    build.args(["--bin", "duramen-workload"]);
    if release {
        build.arg("--release");
    }
    process::run(&mut build)?;
    let folder = process::target().join(if release { "release" } else { "debug" });
    let mut torture = std::process::Command::new(folder.join("duramen-workload"));
    torture
        .arg("torture")
        .arg("--server")
        .arg(folder.join("duramen"));
    torture.args(arguments.iter().filter(|argument| *argument != "--release"));
    process::run(&mut torture)
}
