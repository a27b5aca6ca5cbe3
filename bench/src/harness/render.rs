//! Reports as text: for the terminal, and as sections of `docs/benchmarks.md`.

use super::report::{Report, Table};
use super::{Doing, Failure, Result};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// Builds of earlier days had other formats, locks or paths of a request.
const LIKE_TODAY_SINCE: &str = "2026-11-23";

/// The text that a finished figure prints.
pub fn report_text(report: &Report) -> String {
    let mut text = format!("\n{}\n", report.title);
    for table in &report.tables {
        let _ = write!(text, "\n{}\n{}", table.title, table_markdown(table));
    }
    text.push_str(&targets_markdown(report));
    for note in &report.notes {
        let _ = writeln!(text, "- {note}");
    }
    text
}

/// A report as the body of its section in `docs/benchmarks.md`; `plots` is the path of its
/// pictures, relative to that file.
pub fn report_markdown(report: &Report, plots: &str) -> String {
    let size = if report.quick {
        "quick size: for a look, not for quoting"
    } else {
        "full size"
    };
    let fact = |name: &str| match report.machine.get(name) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => "unknown".to_owned(),
    };
    let memory_bytes = report.machine.get("memory_bytes").and_then(Value::as_u64);
    let mut text = format!(
        "{}\n\n`{}` · {} · {size}{} · writes at level `{}`  \n{} x {}, {} GiB, Linux {}, transparent huge pages: {}\n\n",
        report.about,
        shown(&report.command),
        report.date,
        earlier(&report.date),
        report.level,
        fact("cores"),
        fact("cpu"),
        memory_bytes.unwrap_or(0) >> 30,
        fact("kernel"),
        fact("transparent_huge_pages"),
    );
    text.push_str(&targets_markdown(report));
    for plot in &report.plots {
        let _ = writeln!(text, "\n![{}]({plots}/{plot})", report.title);
    }
    for table in &report.tables {
        let _ = write!(text, "\n**{}**\n\n{}", table.title, table_markdown(table));
    }
    if !report.notes.is_empty() {
        text.push('\n');
    }
    for note in &report.notes {
        let _ = writeln!(text, "- {note}");
    }
    text
}

/// The command as a reader types it.
fn shown(command: &str) -> String {
    match command.strip_prefix("duramen-bench ") {
        Some(figure) => format!("cargo xtask bench {figure}"),
        None => command.to_owned(),
    }
}

/// Marks a figure of a build that is too different from the present one.
fn earlier(date: &str) -> &'static str {
    if date < LIKE_TODAY_SINCE {
        " · **of an earlier build**"
    } else {
        ""
    }
}

fn targets_markdown(report: &Report) -> String {
    if report.targets.is_empty() {
        return String::new();
    }
    let mut text = "| target | measured | |\n|---|---|---|\n".to_owned();
    for target in &report.targets {
        let verdict = match target.reached {
            Some(true) => "reached",
            Some(false) => "**not reached**",
            None => "not measured",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {verdict} |",
            target.target, target.measured
        );
    }
    text
}

/// A Markdown table with the columns of all rows, in the order of their first appearance.
fn table_markdown(table: &Table) -> String {
    let mut columns: Vec<&str> = Vec::new();
    for (name, _) in table.rows.iter().flat_map(|row| row.cells()) {
        if !columns.contains(&name.as_str()) {
            columns.push(name);
        }
    }
    let mut text = format!(
        "| {} |\n|{}\n",
        columns.join(" | "),
        "---|".repeat(columns.len())
    );
    for row in &table.rows {
        let cells: Vec<String> = columns.iter().map(|column| cell(row.get(column))).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.replace('|', "\\|"),
        Some(Value::Number(number)) => grouped(&number.to_string()),
        Some(other) => other.to_string(),
    }
}

/// `18300000` as `18,300,000`.
fn grouped(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    if digits.len() <= 4 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return number.to_owned();
    }
    let mut text = sign.to_owned();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// Puts each report found in `directory` between its markers `<!-- figure NAME -->` and `<!-- end
/// NAME -->` in `document`. Returns the names of these figures.
///
/// # Errors
/// A file cannot be read or written, or the document has no markers for a report.
pub fn render_into(document: &Path, directory: &Path) -> Result<Vec<String>> {
    let shown = document.display();
    let mut text = std::fs::read_to_string(document).doing(format!("reading {shown}"))?;
    let plots = directory
        .file_name()
        .map_or(".".into(), |name| name.to_string_lossy());
    let mut rendered = Vec::new();
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .doing(format!("reading {}", directory.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    files.sort();
    for path in files {
        let json = std::fs::read_to_string(&path).doing(format!("reading {}", path.display()))?;
        let report: Report =
            serde_json::from_str(&json).doing(format!("reading {}", path.display()))?;
        let name = report.figure.clone();
        text =
            replace_between(&text, &name, &report_markdown(&report, &plots)).ok_or_else(|| {
                let missing =
                    format!("no markers `<!-- figure {name} -->` and `<!-- end {name} -->`");
                Failure::new(format!("rendering {shown}"), missing)
            })?;
        rendered.push(name);
    }
    std::fs::write(document, text).doing(format!("writing {shown}"))?;
    Ok(rendered)
}

fn replace_between(text: &str, name: &str, body: &str) -> Option<String> {
    let (open, close) = (
        format!("<!-- figure {name} -->\n"),
        format!("<!-- end {name} -->"),
    );
    let (before, rest) = text.split_once(&open)?;
    let (_, after) = rest.split_once(&close)?;
    Some(format!("{before}{open}{body}{close}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Options, Row};

    #[test]
    fn rows_with_different_columns_share_a_table() {
        let rows = vec![
            Row::new().with("store", "a").with("ops", 18_300_000),
            Row::new().with("store", "b").with("p50_us", 1.5),
        ];
        let table = Table {
            title: "t".into(),
            rows,
        };
        let expected =
            "| store | ops | p50_us |\n|---|---|---|\n| a | 18,300,000 |  |\n| b |  | 1.5 |\n";
        assert_eq!(table_markdown(&table), expected);
    }

    #[test]
    fn sections_are_replaced_and_the_rest_is_kept() {
        let text = "# Head\n<!-- figure x -->\nold\n<!-- end x -->\ntail\n";
        let once = replace_between(text, "x", "new\n").unwrap();
        assert_eq!(
            once,
            "# Head\n<!-- figure x -->\nnew\n<!-- end x -->\ntail\n"
        );
        assert_eq!(
            replace_between(&once, "x", "new\n").unwrap(),
            once,
            "rendering twice changes nothing"
        );
        assert!(replace_between(text, "y", "").is_none());
    }

    /// Readers typed `bench-base memory`, which no build had any more, and quoted figures of a
    /// build that had little in common with theirs.
    #[test]
    fn commands_can_be_typed_and_old_figures_are_marked() {
        let mut report = Report::new("x", "X", "About.", &Options::for_tests());
        report.command = "duramen-bench lfs --quick".to_owned();
        for (date, marked) in [
            ("2026-11-22T23:59:59Z", true),
            ("2026-11-23T00:00:00Z", false),
        ] {
            report.date = date.to_owned();
            let text = report_markdown(&report, "p");
            assert!(text.contains("`cargo xtask bench lfs --quick`"), "{text}");
            assert_eq!(text.contains("of an earlier build"), marked, "{text}");
        }
    }

    #[test]
    fn a_missed_target_is_shown_as_missed() {
        let mut report = Report::new("x", "X", "About.", &Options::for_tests());
        report.target("ten", 3.0, crate::harness::Bound::AtLeast(10.0));
        assert!(report_markdown(&report, "p").contains("| ten | 3 | **not reached** |"));
    }
}
