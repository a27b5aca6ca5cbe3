//! Tests in Python: real clients and real servers. Each file is a job; what a test needs of
//! clients and tools, its fixtures bring.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::pool::{Job, Reader};
use super::tier::{Request, Tier};
use crate::process::{self, once};
use crate::tools;

/// Longest time of a file; each of its tests has a limit of its own (tests/pytest.ini).
const LIMIT: Duration = Duration::from_secs(3600);

/// The mark of a test that needs the machine for itself.
const ALONE: &str = "mark.alone";

/// Python and its environment.
pub(super) struct Python {
    program: PathBuf,
    variables: Vec<(&'static str, OsString)>,
    is_quick: bool,
}

/// One file and the chosen tests of it; all of them if none is named.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct File {
    name: String,
    tests: Vec<String>,
}

fn folder() -> PathBuf {
    process::root().join("tests")
}

/// The folder of client programs and downloads: outside of the source tree.
fn built() -> PathBuf {
    process::target().join("clients")
}

impl Python {
    /// A Python with the packages of `tests/requirements.txt`, in an environment of its own.
    ///
    /// # Errors
    /// A sentence, if Python or a package cannot be had.
    pub(super) fn provide(tier: Tier) -> Result<Python, String> {
        let home = built().join("python");
        let program = home.join("bin/python");
        let requirements = folder().join("requirements.txt");
        once(&home, std::slice::from_ref(&requirements), || {
            let venv = ["-m", "venv", "--clear"];
            process::run(Command::new("python3").args(venv).arg(&home))?;
            let mut install = Command::new(&program);
            install.args(["-m", "pip", "install", "--quiet"]);
            install.arg("--disable-pip-version-check");
            process::run(install.arg("--requirement").arg(&requirements))
        })?;
        let debug = process::target().join("debug");
        let binary = std::env::var_os("DURAMEN_TEST_BINARY");
        let variables = vec![
            ("DURAMEN_TEST_TIER", tier.name().into()),
            ("DURAMEN_TEST_BUILT", built().into()),
            (
                "DURAMEN_TEST_WORKLOAD",
                debug.join("duramen-workload").into(),
            ),
            ("DURAMEN_TEST_BENCH", debug.join("duramen-bench").into()),
            // Not the program that runs here: building all programs may have replaced its file.
            ("DURAMEN_TEST_XTASK", debug.join("xtask").into()),
            (
                "DURAMEN_TEST_BINARY",
                binary.unwrap_or_else(|| debug.join("duramen").into()),
            ),
            ("PATH", tools::path()),
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
            ("PYTHONUNBUFFERED", "1".into()),
            // The list of failures at the end has their full messages.
            ("CI", "true".into()),
        ];
        Ok(Python {
            program,
            variables,
            is_quick: tier == Tier::Quick,
        })
    }

    /// All files, or those with a test that `request` names.
    ///
    /// # Errors
    /// A sentence, if the tests cannot be read.
    pub(super) fn files(&self, request: &Request) -> Result<Vec<File>, String> {
        if request.has("python") {
            let mut files = Vec::new();
            find(&folder(), &mut files)?;
            files.sort();
            let file = |name| File {
                name,
                tests: Vec::new(),
            };
            return Ok(files.into_iter().map(file).collect());
        }
        let mut chosen: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for id in self.ids()? {
            let file = id.split("::").next().unwrap_or(&id).to_owned();
            if request.wants("python", &id) {
                chosen.entry(file).or_default().push(id);
            }
        }
        let file = |(name, tests)| File { name, tests };
        Ok(chosen.into_iter().map(file).collect())
    }

    /// The names of all tests of the tier.
    ///
    /// # Errors
    /// A sentence, if a file cannot be read by pytest.
    pub(super) fn ids(&self) -> Result<Vec<String>, String> {
        let mut command = Command::new(&self.program);
        command.current_dir(folder());
        command.args(["-m", "pytest", "--collect-only", "--quiet", "--color=no"]);
        command.env_remove("PYTEST_ADDOPTS");
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        let output = command
            .output()
            .map_err(|error| format!("cannot start pytest: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("pytest cannot collect its tests:\n{text}{errors}"));
        }
        let ids = text.lines().filter(|line| line.contains(".py::"));
        Ok(ids.map(str::to_owned).collect())
    }

    /// The jobs of these files. Tests marked `alone` are in jobs of their own.
    ///
    /// # Errors
    /// A sentence, if a file cannot be read.
    pub(super) fn jobs(&self, files: &[File]) -> Result<Vec<Job>, String> {
        let mut jobs = Vec::new();
        for file in files {
            let path = folder().join(&file.name);
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            let has_alone = text.contains(ALONE);
            jobs.push(self.job(file, false, has_alone));
            if has_alone {
                jobs.push(self.job(file, true, true));
            }
        }
        Ok(jobs)
    }

    /// `has_alone`: some tests of the file are marked so, and have a job of their own.
    fn job(&self, file: &File, alone: bool, has_alone: bool) -> Job {
        let mut arguments: Vec<OsString> = [
            "-m",
            "pytest",
            "--color=no",
            "--verbose",
            "-rfEs",
            "--tb=short",
            "--durations=0",
            "--durations-min=0.05",
            "-m",
            if alone { "alone" } else { "not alone" },
        ]
        .map(OsString::from)
        .to_vec();
        if file.tests.is_empty() {
            arguments.push(file.name.clone().into())
        } else {
            arguments.extend(file.tests.iter().map(OsString::from))
        }
        Job {
            part: "python",
            name: file.name.clone(),
            reader: Reader::Pytest,
            program: self.program.clone().into(),
            arguments,
            folder: folder(),
            variables: self.variables.clone(),
            limit: LIMIT,
            waits: true,
            alone,
            may_be_empty: self.is_quick || has_alone,
        }
    }
}

/// True if a test may have one of these names: each part of the name is in a file, or in its path.
///
/// # Errors
/// A sentence, if the tests cannot be read.
pub(super) fn may_have(names: &[String]) -> Result<bool, String> {
    let mut files = Vec::new();
    find(&folder(), &mut files)?;
    for file in files {
        let path = folder().join(&file);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let has = |name: &String| {
            // Parameters, in brackets, need not be in the text.
            let test = name.split('[').next().unwrap_or(name);
            let mut parts = test.split("::");
            parts.all(|part| file.contains(part) || text.contains(part))
        };
        if names.iter().any(has) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Collects files named `test_*.py`, as paths below `tests`.
fn find(place: &Path, files: &mut Vec<String>) -> Result<(), String> {
    let entries = std::fs::read_dir(place)
        .map_err(|error| format!("cannot list {}: {error}", place.display()))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_default();
        if path.is_dir() && !name.starts_with(['.', '_']) {
            find(&path, files)?;
        } else if name.starts_with("test_")
            && name.ends_with(".py")
            && let Ok(below) = path.strip_prefix(folder())
        {
            files.push(below.display().to_string());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_tests_are_found_in_all_folders() {
        let mut files = Vec::new();
        find(&folder(), &mut files).unwrap();
        assert!(files.contains(&"test_admin.py".to_owned()), "{files:?}");
        assert!(files.contains(&"cluster/test_kills.py".to_owned()));
        assert!(!files.iter().any(|file| file.ends_with("harness.py")));
    }

    #[test]
    fn files_with_a_name_are_found_by_their_text() {
        let may = |name: &str| may_have(&[name.to_owned()]).unwrap();
        assert!(may("test_admin.py::") && may("cluster/test_kills"));
        assert!(may("test_client[redis-py-resp3-scan]"));
        assert!(!may("no_such_test_anywhere"));
    }

    #[test]
    fn a_job_runs_a_file_or_its_chosen_tests() {
        let python = Python {
            program: "python".into(),
            variables: Vec::new(),
            is_quick: false,
        };
        let file = |tests: &[&str]| File {
            name: "test_admin.py".to_owned(),
            tests: tests.iter().map(|test| (*test).to_owned()).collect(),
        };
        let whole = python.job(&file(&[]), false, false);
        assert_eq!(whole.arguments.last().unwrap(), "test_admin.py");
        let chosen = python.job(&file(&["test_admin.py::test_a"]), true, true);
        assert_eq!(chosen.arguments.last().unwrap(), "test_admin.py::test_a");
        assert!(chosen.alone && !whole.alone);
        assert!(chosen.may_be_empty && !whole.may_be_empty);
    }
}
