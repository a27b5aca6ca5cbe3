//! `cargo xtask tidy`: the rules of the repository that a compiler does not check.
//!
//! Each rule takes the [`House`] and adds complaints; a complaint has the place, the fault and the
//! remedy. Exceptions are rows with a reason, in the table beside the rule or in ARCHITECTURE.md.
//! A warning is printed and does not fail.
//!
//! | module | subject |
//! |---|---|
//! | [`edges`], [`dependencies`], [`licence`] | crates: which one sees which, and external ones |
//! | [`circles`] | modules of a folder that import each other in a circle |
//! | [`types`] | types of the product with too many methods |
//! | [`rooms`] | modules of a crate's root: which one may import which |
//! | [`sources`], [`functions`] | files and functions: openings, lengths, placeholders, `unsafe` |
//! | [`names`] | decisions by names of commands |
//! | [`links`], [`labels`], [`headings`], [`traps`], [`proofs`] | citations, tests on pages |
//! | [`prose`] | words and lines of comments and pages |
//! | [`count`] | no rule: the numbers of `cargo xtask count` |
//! | [`test_runs`] | a warning: the last run of all tests is missing or old |

mod circles;
pub(crate) mod count;
mod dependencies;
mod edges;
mod functions;
mod headings;
mod imports;
mod labels;
mod licence;
mod links;
mod modules;
mod names;
mod product;
mod proofs;
mod prose;
mod rooms;
mod sources;
mod test_runs;
mod tests_blanked;
mod traps;
mod types;

use std::path::{Path, PathBuf};

use crate::process;

/// Input of the rules.
struct House {
    root: PathBuf,
    /// Paths below `root`, sorted; build output and downloads left out.
    files: Vec<PathBuf>,
    architecture: String,
    /// `cargo metadata` of each workspace.
    metadata: Vec<serde_json::Value>,
}

/// Folders that hold no source of ours.
const SKIPPED: [&str; 5] = ["target", ".git", "out", "node_modules", "__pycache__"];

pub(crate) fn run() -> Result<(), String> {
    let house = House::enter(process::root())?;
    let mut complaints = Vec::new();
    edges::check(&house, &mut complaints);
    dependencies::check(&house, &mut complaints);
    let crates = modules::of_crates(&house)?;
    circles::check(&house, &crates, &mut complaints)?;
    rooms::check(&crates, &mut complaints);
    types::check(&house, &mut complaints)?;
    sources::check(&house, &mut complaints)?;
    functions::check(&house, &mut complaints)?;
    names::check(&house, &mut complaints)?;
    links::check(&house, &mut complaints)?;
    proofs::check(&house, &mut complaints)?;
    prose::check(&house, &mut complaints)?;
    labels::check(&house, &mut complaints)?;
    headings::check(&house, &mut complaints)?;
    traps::check(&house, &mut complaints)?;
    for notice in test_runs::notices(&house) {
        println!("{notice}");
    }
    if complaints.is_empty() {
        println!("{} files are tidy", house.files.len());
        return Ok(());
    }
    for complaint in &complaints {
        println!("tidy: {complaint}");
    }
    Err(format!("{} complaints", complaints.len()))
}

/// `cargo xtask tidy --prose`.
pub(crate) fn list_prose() -> Result<(), String> {
    prose::list(&House::enter(process::root())?)
}

impl House {
    fn enter(root: PathBuf) -> Result<House, String> {
        let mut files = Vec::new();
        walk(&root, &root, &mut files)?;
        files.sort();
        let workspaces = process::WORKSPACES.into_iter().chain([process::FUZZ]);
        let metadata = workspaces.map(read_metadata).collect::<Result<_, _>>()?;
        let architecture = read(&root.join("ARCHITECTURE.md"))?;
        Ok(House {
            root,
            files,
            architecture,
            metadata,
        })
    }

    fn with_extension<'a>(&'a self, extension: &'a str) -> impl Iterator<Item = &'a Path> {
        self.files
            .iter()
            .map(PathBuf::as_path)
            .filter(move |path| path.extension().is_some_and(|found| found == extension))
    }

    /// The packages of this repository.
    fn packages(&self) -> impl Iterator<Item = &serde_json::Value> {
        self.metadata
            .iter()
            .flat_map(|metadata| metadata["packages"].as_array().into_iter().flatten())
            .filter(|package| package["source"].is_null())
    }

    /// Rows of the table below a heading of ARCHITECTURE.md whose first cell is `code`.
    fn architecture_rows(&self, heading: &str) -> Vec<Row> {
        rows_below(&self.architecture, heading)
    }
}

/// One row of a table whose first cell is `code`, and the text of its other cells.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: String,
    text: String,
}

fn rows_below(text: &str, heading: &str) -> Vec<Row> {
    text.lines()
        .skip_while(|line| line.trim_start_matches('#').trim() != heading || !line.starts_with('#'))
        .skip(1)
        .take_while(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (first, rest) = line.strip_prefix('|')?.split_once('|')?;
            let name = first.trim().strip_prefix('`')?.strip_suffix('`')?;
            Some(Row {
                name: name.to_owned(),
                text: rest.trim_matches(['|', ' ']).to_owned(),
            })
        })
        .collect()
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = std::fs::read_dir(folder)
        .map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    for entry in entries {
        let entry = entry.map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
        let kind = entry
            .file_type()
            .map_err(|error| format!("cannot look at {}: {error}", entry.path().display()))?;
        let skipped = SKIPPED.iter().any(|name| entry.file_name() == *name);
        if kind.is_dir() && !skipped {
            walk(root, &entry.path(), files)?;
        } else if kind.is_file()
            && let Ok(path) = entry.path().strip_prefix(root)
        {
            files.push(path.to_path_buf());
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn read_metadata(manifest: &str) -> Result<serde_json::Value, String> {
    let text = process::output(&mut process::cargo(&[
        "metadata",
        "--format-version=1",
        "--all-features",
        "--filter-platform=x86_64-unknown-linux-gnu",
        "--manifest-path",
        manifest,
    ]))?;
    serde_json::from_str(&text).map_err(|error| format!("cargo metadata of {manifest}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_below_their_heading() {
        let text = "# A\n| `no` | x |\n## B\n\n| name | why |\n|---|---|\n| `yes` | because | so |\n## C\n| `no` | x |";
        let expected = Row {
            name: "yes".to_owned(),
            text: "because | so".to_owned(),
        };
        assert_eq!(rows_below(text, "B"), [expected]);
        assert_eq!(rows_below(text, "D"), []);
    }
}
