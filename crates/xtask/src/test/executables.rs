//! Test executables of a workspace: their build, and the names of their tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::process;

/// One executable that holds tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Executable {
    /// `engine` for the unit tests of `duramen-engine`, `engine::it` for its integration tests.
    pub(super) label: String,
    pub(super) path: PathBuf,
    /// The folder of its package, where cargo runs it.
    pub(super) folder: PathBuf,
}

/// One test of an executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// As the executable names it.
    pub(super) name: String,
    /// It has the attribute `ignore`.
    is_ignored: bool,
}

/// A part of the names of tests that measure, or repeat one seed: they only run by hand.
const BY_HAND: &str = "by_hand";

impl Test {
    pub(super) fn is_by_hand(&self) -> bool {
        self.is_ignored && self.name.contains(BY_HAND)
    }

    /// True if the full tier alone runs it: `#[ignore = "full tier"]`.
    pub(super) fn is_long(&self) -> bool {
        self.is_ignored && !self.is_by_hand()
    }
}

/// Builds with `command`, a `cargo test` that compiles only, and returns what it built. Cargo's
/// progress goes to the error output of this process.
///
/// # Errors
/// A sentence, if the build fails.
pub(super) fn build(command: &mut Command) -> Result<Vec<Executable>, String> {
    command.args(["--no-run", "--message-format=json-render-diagnostics"]);
    eprintln!("$ {}", process::show(command));
    let output = process::output(command)?;
    let mut executables: Vec<Executable> = output.lines().filter_map(executable).collect();
    executables.sort_by(|a, b| a.label.cmp(&b.label));
    Ok(executables)
}

/// Reads one of cargo's messages.
fn executable(line: &str) -> Option<Executable> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_str()?;
    let target = &message["target"];
    let is_integration = target["kind"].as_array()?.iter().any(|kind| kind == "test");
    let label = if is_integration {
        format!("{package}::{}", target["name"].as_str()?)
    } else {
        package.to_owned()
    };
    Some(Executable {
        label,
        path,
        folder: folder.to_path_buf(),
    })
}

impl Executable {
    /// # Errors
    /// A sentence, if the executable does not list its tests.
    pub(super) fn tests(&self) -> Result<Vec<Test>, String> {
        let ignored = self.list(&["--ignored"])?;
        let tests = self.list(&[])?.into_iter().map(|name| Test {
            is_ignored: ignored.contains(&name),
            name,
        });
        Ok(tests.collect())
    }

    fn list(&self, arguments: &[&str]) -> Result<Vec<String>, String> {
        let mut command = Command::new(&self.path);
        command
            .args(["--list", "--format", "terse"])
            .args(arguments)
            .current_dir(&self.folder)
            .stderr(Stdio::null());
        let output = process::output(&mut command)?;
        Ok(names(&output).map(str::to_owned).collect())
    }
}

/// The names in the list of an executable.
fn names(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter_map(|line| line.strip_suffix(": test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_read_from_cargos_messages() {
        let of = |kind: &str, name: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/engine/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":"/t/{name}-1"}}"#
            )
        };
        let labels: Vec<String> = [
            of("lib", "duramen_engine", true),
            of("test", "it", true),
            of("bin", "duramen", false),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "not a message".to_owned(),
        ]
        .iter()
        .filter_map(|line| executable(line))
        .map(|found| found.label)
        .collect();
        assert_eq!(labels, ["engine", "engine::it"]);
    }

    #[test]
    fn ignored_tests_are_long_or_by_hand() {
        let test = |name: &str, is_ignored| Test {
            name: name.to_owned(),
            is_ignored,
        };
        assert!(test("clusters::by_hand_replay", true).is_by_hand());
        assert!(test("clusters::long", true).is_long());
        let ordinary = test("clusters::by_hand_is_no_way", false);
        assert!(!ordinary.is_by_hand() && !ordinary.is_long());
    }

    #[test]
    fn names_are_those_of_tests() {
        let list = "a::b: test\nc: benchmark\nd: test\n";
        assert_eq!(names(list).collect::<Vec<_>>(), ["a::b", "d"]);
    }
}
