//! Runs other programs, with headings and times.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The root of the repository: the folder of the workspace's `Cargo.toml`.
pub(crate) fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own).to_path_buf()
}

/// Cargo's build directory, which also holds all downloads of the client tests.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(chosen) => root().join(chosen),
        None => root().join("target"),
    }
}

/// A cargo command in the root of the repository.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    forget_cargo_run(&mut command);
    // A configuration of the user's could name another one.
    command.env("CARGO_TARGET_DIR", target());
    command
}

/// Takes the variables away by which `cargo run` describes this program. The build script of `ring`
/// watches them: with them cargo would build it, and all crates that use it, anew after each cargo
/// command by hand.
pub(crate) fn forget_cargo_run(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"]
            .iter()
            .any(|begin| shown.starts_with(begin))
        {
            command.env_remove(&name);
        }
    }
}

/// The workspaces whose crates are formatted, linted, documented and tested.
pub(crate) const WORKSPACES: [&str; 3] = [STORE, HEAP, FIGURES];
pub(crate) const STORE: &str = "Cargo.toml";
pub(crate) const HEAP: &str = "heap/Cargo.toml";
pub(crate) const FIGURES: &str = "bench/Cargo.toml";
pub(crate) const FUZZ: &str = "fuzz/Cargo.toml";

/// A cargo command for the workspace of `manifest`; all of them build into the same directory.
pub(crate) fn cargo_of(manifest: &str, arguments: &[&str]) -> Command {
    let (command, rest) = arguments.split_at(1);
    let mut command = cargo(command);
    command
        .args(["--manifest-path", manifest, "--target-dir"])
        .arg(target())
        .args(rest);
    command
}

/// Runs `work` under a heading and prints its time.
pub(crate) fn section<T>(
    title: &str,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    eprintln!("\n=== {title}");
    let start = Instant::now();
    let result = work();
    let verdict = if result.is_ok() { "done" } else { "FAILED" };
    eprintln!(
        "=== {title}: {verdict} in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    result
}

/// Runs a command that must succeed; its output goes to ours.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("cannot start `{shown}`: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{shown}` failed ({status})"))
    }
}

/// The standard output of a command; its error output goes to ours.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot start `{shown}`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{shown}` failed ({})", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{shown}` printed something not UTF-8"))
}

/// The command as a shell would take it, its program without a path.
pub(crate) fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    if let Some(program) = words.first_mut()
        && let Some(name) = Path::new(program.as_str()).file_name()
    {
        *program = name.to_string_lossy().into_owned();
    }
    words.join(" ")
}

/// Does `work` in `folder`, unless it was done there before for the same `sources`.
pub(crate) fn once(
    folder: &Path,
    sources: &[PathBuf],
    work: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let mut wanted = Vec::new();
    for source in sources {
        let text = std::fs::read(source)
            .map_err(|error| format!("cannot read {}: {error}", source.display()))?;
        wanted.extend(text);
    }
    let stamp = folder.join("built-from");
    if std::fs::read(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    std::fs::create_dir_all(folder)
        .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    work()?;
    std::fs::write(&stamp, wanted)
        .map_err(|error| format!("cannot write {}: {error}", stamp.display()))
}
