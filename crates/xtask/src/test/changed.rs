//! Whether a workspace, or a crate that it uses, has changed since all its tests passed: in the
//! last full run that docs/test-runs.md names, or in a later run on this machine.

use std::path::{Path, PathBuf};

use super::page;
use super::pool;
use super::repository::git;
use crate::process;

/// The state of a workspace's sources: the ids of its folders in git. Nothing if they have changes
/// that are not committed, or if git knows nothing of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State(Option<String>);

/// A package of this repository: its folder, and those of the packages that it uses by their path.
type Package = (PathBuf, Vec<PathBuf>);

/// The packages of a workspace. Cargo needs no network for them: it looks at no other package.
fn packages(manifest: &str) -> Result<Vec<Package>, String> {
    let arguments = [
        "--format-version=1",
        "--no-deps",
        "--manifest-path",
        manifest,
    ];
    let mut command = process::cargo(&["metadata"]);
    let text = process::output(command.args(arguments))?;
    let metadata: serde_json::Value = serde_json::from_str(&text)
        .map_err(|error| format!("cargo metadata of {manifest}: {error}"))?;
    let inside = |path: &Path| Some(path.strip_prefix(process::root()).ok()?.to_path_buf());
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let packages = packages.filter_map(|package| {
        let folder = inside(Path::new(package["manifest_path"].as_str()?).parent()?)?;
        let uses = package["dependencies"].as_array().into_iter().flatten();
        let uses = uses.filter_map(|one| inside(Path::new(one["path"].as_str()?)));
        Some((folder, uses.collect()))
    });
    Ok(packages.collect())
}

/// The folders of the packages that a workspace builds from this repository.
fn folders(manifest: &str) -> Result<Vec<PathBuf>, String> {
    let own = packages(manifest)?;
    let mut folders: Vec<PathBuf> = own.iter().map(|(folder, _)| folder.clone()).collect();
    let mut all = packages("Cargo.toml")?;
    all.extend(own);
    let mut at = 0;
    while let Some(folder) = folders.get(at).cloned() {
        let uses = all.iter().filter(|(of, _)| *of == folder);
        for used in uses.flat_map(|(_, uses)| uses) {
            if !folders.contains(used) {
                folders.push(used.clone());
            }
        }
        at += 1;
    }
    folders.sort();
    Ok(folders)
}

/// Files outside of the packages by which a build or a test differs too.
const MORE: [&str; 3] = ["Cargo.toml", "rust-toolchain.toml", "scripts/install-alloc"];

/// Paths of everything that the tests of a workspace depend on: its packages, and some files.
fn paths(manifest: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = folders(manifest)?;
    if paths.is_empty() {
        return Err(format!("cargo metadata of {manifest} names no package"));
    }
    paths.extend(MORE.map(PathBuf::from));
    paths.push(manifest.into());
    paths.push(Path::new(manifest).with_file_name("Cargo.lock"));
    Ok(paths)
}

impl State {
    fn at(commit: &str, folders: &[PathBuf]) -> State {
        let names: Vec<PathBuf> = folders
            .iter()
            .map(|folder| PathBuf::from(format!("{commit}:{}", folder.display())))
            .collect();
        State(git(&["rev-parse"], &names))
    }

    fn now(folders: &[PathBuf]) -> State {
        match git(
            &["status", "--porcelain", "--untracked-files=all", "--"],
            folders,
        ) {
            Some(changes) if changes.is_empty() => State::at("HEAD", folders),
            _ => State(None),
        }
    }

    /// True if tests that passed at `other` are known to pass here.
    fn is(&self, other: &State) -> bool {
        self.0.is_some() && self == other
    }
}

fn stamp(name: &str) -> PathBuf {
    pool::folder().join(format!("{name}.passed"))
}

/// True unless the workspace is known to have passed as it is.
///
/// # Errors
/// A sentence, if cargo cannot describe the workspace.
pub(super) fn has_changed(name: &str, manifest: &str) -> Result<bool, String> {
    let folders = paths(manifest)?;
    let now = State::now(&folders);
    let here = State(std::fs::read_to_string(stamp(name)).ok());
    let recorded = match page::last_good_commit() {
        Some(commit) => State::at(&commit, &folders),
        None => State(None),
    };
    Ok(!now.is(&here) && !now.is(&recorded))
}

/// Notes that all tests of the workspace have passed.
///
/// # Errors
/// A sentence, if the note cannot be written.
pub(super) fn has_passed(name: &str, manifest: &str) -> Result<(), String> {
    if let State(Some(now)) = State::now(&paths(manifest)?) {
        std::fs::write(stamp(name), now)
            .map_err(|error| format!("cannot write {}: {error}", stamp(name).display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_uses_crates_of_the_store() {
        let heap = folders(process::HEAP).unwrap();
        assert!(heap.contains(&PathBuf::from("crates/disk")), "{heap:?}");
        assert!(!heap.contains(&PathBuf::from("crates/server")), "{heap:?}");
        let paths = paths(process::HEAP).unwrap();
        assert!(paths.contains(&"heap/Cargo.lock".into()), "{paths:?}");
        let figures = folders(process::FIGURES).unwrap();
        assert!(
            figures.contains(&PathBuf::from("crates/engine")),
            "{figures:?}"
        );
    }

    #[test]
    fn an_unknown_state_is_a_change() {
        assert!(!State(None).is(&State(None)));
        assert!(!State::at("no-such-commit", &["crates".into()]).is(&State(Some(String::new()))));
        let known = State(Some("1234\n".to_owned()));
        assert!(known.is(&known.clone()));
    }
}
