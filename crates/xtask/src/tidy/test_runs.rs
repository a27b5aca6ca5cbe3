//! Warning: the newest recorded run of the whole test suite is missing, or of an old commit.
//!
//! docs/test-runs.md has a table of the runs, the newest one first. A run takes longer than a
//! change does, so that this is no complaint: the change would have to wait for the run.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{House, read};

const PAGE: &str = "docs/test-runs.md";
const HEADER: [&str; 6] = ["date", "commit", "passed", "failed", "skipped", "minutes"];
/// Most commits since the newest run: about a week of work.
const COMMITS_MAX: u64 = 150;

/// Lines to print: warnings, and a note if the age of the run is unknown.
pub(super) fn notices(house: &House) -> Vec<String> {
    let notice = if house.root.join(PAGE).exists() {
        match read(&house.root.join(PAGE)) {
            Ok(page) => notice(&page, |commit| commits_since(&house.root, commit)),
            Err(error) => Some(format!("warning: {error}")),
        }
    } else {
        Some(format!(
            "warning: {PAGE} is missing: no run of the whole test suite is recorded"
        ))
    };
    notice.into_iter().collect()
}

/// A notice about the newest run of the page, given the number of commits since a commit; `Err`:
/// the reason why that number is unknown.
fn notice(page: &str, since: impl Fn(&str) -> Result<u64, String>) -> Option<String> {
    let Some(commit) = newest(page) else {
        return Some(format!(
            "warning: {PAGE} has no run: its first table needs the columns {}, and a commit as \
             `1234abcd`",
            HEADER.join(", ")
        ));
    };
    match since(commit) {
        Ok(commits) if commits > COMMITS_MAX => Some(format!(
            "warning: {PAGE}: the newest run is of {commit}, {commits} commits ago: run all tests, \
             and add a row"
        )),
        Ok(_) => None,
        Err(reason) => Some(format!(
            "note: the age of the newest run in {PAGE} is unknown: {reason}"
        )),
    }
}

/// The commit of the table's first row.
fn newest(page: &str) -> Option<&str> {
    let mut rows = page
        .lines()
        .map(cells)
        .skip_while(|cells| cells[..] != HEADER);
    let row = rows.nth(2)?;
    let commit = row.get(1)?.strip_prefix('`')?.strip_suffix('`')?;
    let is_hash = commit.len() >= 7 && commit.chars().all(|c| c.is_ascii_hexdigit());
    (is_hash && row.len() == HEADER.len()).then_some(commit)
}

/// The cells of a row; none: the line is no row.
fn cells(line: &str) -> Vec<&str> {
    let row = line
        .trim()
        .strip_prefix('|')
        .and_then(|row| row.strip_suffix('|'));
    row.map_or(Vec::new(), |row| row.split('|').map(str::trim).collect())
}

/// The number of commits after one, or a sentence why it is unknown.
fn commits_since(root: &Path, commit: &str) -> Result<u64, String> {
    let output = Command::new("git")
        .args(["rev-list", "--count", &format!("{commit}..HEAD"), "--"])
        .current_dir(root)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("git cannot be started: {error}"))?;
    let count = String::from_utf8_lossy(&output.stdout).trim().parse();
    match (output.status.success(), count) {
        (true, Ok(count)) => Ok(count),
        _ => Err(format!("git does not know the commit {commit} here")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Runs\n\nWhy.\n\n\
         | date | commit | passed | failed | skipped | minutes |\n|---|---|--:|--:|--:|--:|\n\
         | 2026-11-29 | `1234abcd` | 4000 | 0 | 3 | 61 |\n\
         | 2026-11-20 | `feedbee1` | 3900 | 1 | 3 | 60 |\n";

    #[test]
    fn the_newest_run_is_in_the_first_row() {
        assert_eq!(newest(TABLE), Some("1234abcd"));
    }

    #[test]
    fn a_page_without_a_run_has_no_newest_run() {
        let header: String = TABLE
            .lines()
            .take(6)
            .map(|line| format!("{line}\n"))
            .collect();
        for page in [
            "",
            "# Runs\n",
            &header,
            &TABLE.replace("`1234abcd`", "1234abcd"),
            &TABLE.replace("1234abcd", "main"),
            &TABLE.replace("| commit |", "| hash |"),
            &TABLE.replace(" | 61 |", " |"),
        ] {
            assert_eq!(newest(page), None, "{page}");
            assert!(notice(page, |_| Ok(0)).is_some_and(|line| line.starts_with("warning: ")));
        }
    }

    #[test]
    fn an_old_run_is_a_warning_and_an_unknown_age_a_note() {
        let notice = |since: Result<u64, &str>| notice(TABLE, |_| since.map_err(str::to_owned));
        assert_eq!(notice(Ok(0)), None);
        assert_eq!(notice(Ok(COMMITS_MAX)), None);
        let old = notice(Ok(COMMITS_MAX + 1)).expect("a warning");
        assert!(old.starts_with("warning: ") && old.contains("1234abcd, 151 commits ago"));
        let unknown = notice(Err("no git")).expect("a note");
        assert!(unknown.starts_with("note: ") && unknown.ends_with("no git"));
    }

    #[test]
    fn a_folder_without_the_commit_gives_a_reason() {
        let reason = commits_since(Path::new("/"), "1234abcd").expect_err("no commit");
        assert!(reason.contains("git"), "{reason}");
    }
}
