//! `docs/test-runs.md`: the results of the last runs of the full tier, written by the runs.

use std::path::PathBuf;
use std::process::Command;

use super::repository::Begin;
use super::tally::Tally;
use crate::process;

/// Kept results.
const ROWS_MAX: usize = 10;

const HEAD: &str = "\
# Runs of the full tier

`./scripts/test --full` writes this page. The newest run is first.

| date | commit | passed | failed | skipped | minutes |
|---|---|---|---|---|---|
";

/// In the cell of the date: the tested tree was not that of the commit, or not all the time.
const CHANGED: &str = "with changes";

fn path() -> PathBuf {
    process::root().join("docs/test-runs.md")
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// The cells between the bars.
    cells: Vec<String>,
}

impl Row {
    /// The commit, without its backquotes.
    fn commit(&self) -> Option<&str> {
        self.cells.get(1)?.strip_prefix('`')?.strip_suffix('`')
    }

    fn has_passed(&self) -> bool {
        let is_whole = !self.cells.iter().any(|cell| cell.contains(CHANGED));
        is_whole && self.cells.get(3).is_some_and(|failed| failed == "0")
    }

    fn line(&self) -> String {
        format!("| {} |\n", self.cells.join(" | "))
    }
}

/// The rows of the page's first table.
fn rows(page: &str) -> Vec<Row> {
    page.lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .map_while(|line| {
            let inside = line.strip_prefix("| ")?.strip_suffix(" |")?;
            let cells = inside.split(" | ").map(|cell| cell.trim().to_owned());
            Some(Row {
                cells: cells.collect(),
            })
        })
        .collect()
}

/// The commit of the newest run in which no test failed.
pub(super) fn last_good_commit() -> Option<String> {
    let page = std::fs::read_to_string(path()).ok()?;
    let rows = rows(&page);
    let row = rows.iter().find(|row| row.has_passed())?;
    row.commit().map(str::to_owned)
}

/// The page with a new run; `parts` are the seconds of each part.
fn with(old: &str, row: Row, parts: &[(&str, f64)]) -> String {
    let mut page = HEAD.to_owned();
    page.push_str(&row.line());
    for older in rows(old).iter().take(ROWS_MAX - 1) {
        page.push_str(&older.line());
    }
    page.push_str(
        "\n## Parts of the newest run\n\nTests run side by side: the sum of their times is longer \
         than the run.\n\n| part | seconds |\n|---|---|\n",
    );
    for (part, seconds) in parts {
        page.push_str(&format!("| {part} | {seconds:.0} |\n"));
    }
    page
}

/// Writes the result of a run that took `seconds`.
///
/// # Errors
/// A sentence, if git does not name the commit, or the page cannot be written.
pub(super) fn write(
    tally: &Tally,
    begin: &Begin,
    seconds: f64,
    parts: &[(&str, f64)],
) -> Result<(), String> {
    let commit = begin.commit.as_deref();
    let commit = commit.ok_or("git does not name the commit, so this run is not recorded")?;
    let date = process::output(Command::new("date").args(["-u", "+%Y-%m-%d"]))?;
    let date = if begin.holds() {
        date.trim().to_owned()
    } else {
        format!("{}, {CHANGED}", date.trim())
    };
    let cells = [
        date,
        format!("`{}`", commit.get(..12).unwrap_or(commit)),
        tally.passed.to_string(),
        tally.failed.to_string(),
        tally.skipped.to_string(),
        format!("{:.0}", seconds / 60.0),
    ];
    let row = Row {
        cells: cells.to_vec(),
    };
    let old = std::fs::read_to_string(path()).unwrap_or_default();
    std::fs::write(path(), with(&old, row, parts))
        .map_err(|error| format!("cannot write {}: {error}", path().display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(commit: &str, failed: &str) -> Row {
        let cells = ["2026-11-29", commit, "7", failed, "1", "60"];
        Row {
            cells: cells.map(str::to_owned).to_vec(),
        }
    }

    #[test]
    fn the_newest_run_is_first_and_older_ones_stay() {
        let first = with("", row("`a`", "0"), &[("tidy", 1.4), ("rust", 2000.0)]);
        let second = with(&first, row("`b`", "2"), &[("tidy", 2.0)]);
        let found = rows(&second);
        assert_eq!(found, [row("`b`", "2"), row("`a`", "0")]);
        assert_eq!(found[0].commit(), Some("b"));
        assert!(!found[0].has_passed() && found[1].has_passed());
        assert!(second.contains("| tidy | 2 |") && !second.contains("rust"));
        let many = (0..20).fold(second, |page, _| with(&page, row("`c`", "0"), &[]));
        assert_eq!(rows(&many).len(), ROWS_MAX);
    }

    #[test]
    fn a_run_of_a_changed_tree_proves_nothing_of_its_commit() {
        let mut changed = row("`a`", "0");
        assert!(changed.has_passed());
        changed.cells[0] = format!("2026-11-29, {CHANGED}");
        assert!(!changed.has_passed());
    }

    #[test]
    fn a_page_without_runs_has_no_commit() {
        assert_eq!(rows(HEAD), []);
        assert_eq!(rows("| a | b |\n"), []);
    }
}
