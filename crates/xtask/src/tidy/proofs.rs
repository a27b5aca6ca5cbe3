//! Rule: docs/protocols.md names the test that finds each planted bug and those of each scenario,
//! and they exist.
//!
//! A bug is a variant of `enum Bug` in [`LIST`]: the source must use it, a test must plant it, and
//! a row of "Planted bugs" must name existing tests. "Scenarios" has a row for each number in
//! [`SCENARIOS`].

use std::collections::BTreeSet;
use std::path::Path;

use super::{House, read, rows_below};

const DOCUMENT: &str = "docs/protocols.md";
/// The list of all planted bugs.
const LIST: &str = "crates/base/src/planted.rs";
/// The simulator is for tests alone.
const SIMULATOR: &str = "crates/sim/";

/// Numbers in docs/traps.md, "Scenarios", that concern one server, and 12, which needs several
/// backups.
const SCENARIOS: [u32; 18] = [
    1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 39,
];

/// A source file, as the rule needs it.
struct Source {
    is_test: bool,
    is_list: bool,
    text: String,
}

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    let mut sources = Vec::new();
    for file in house.with_extension("rs") {
        sources.push(Source::new(file, read(&house.root.join(file))?));
    }
    let document = read(&house.root.join(DOCUMENT))?;
    check_sources(&sources, &document, complaints);
    Ok(())
}

impl Source {
    fn new(file: &Path, text: String) -> Source {
        let name = file.display().to_string();
        let is_test = name.contains("/tests/") || name.ends_with("/tests.rs");
        Source {
            is_test: is_test || name.starts_with(SIMULATOR),
            is_list: name == LIST,
            text,
        }
    }
}

fn check_sources(sources: &[Source], document: &str, complaints: &mut Vec<String>) {
    let tests: BTreeSet<&str> = sources
        .iter()
        .flat_map(|source| functions(&source.text))
        .collect();
    let bugs = rows_below(document, "Planted bugs");
    for list in sources.iter().filter(|source| source.is_list) {
        for bug in variants(&list.text) {
            let path = format!("Bug::{bug}");
            let used = |in_tests: bool| {
                let mut others = sources.iter().filter(|source| !source.is_list);
                others.any(|other| other.is_test == in_tests && mentions(&other.text, &path))
            };
            if !used(false) {
                complaints.push(format!("{LIST}: nothing does `{bug}`"));
            }
            if !used(true) {
                complaints.push(format!("{LIST}: no test plants `{bug}`"));
            }
            if !bugs.iter().any(|row| row.name == bug) {
                complaints.push(format!(
                    "{DOCUMENT}, Planted bugs: a row for `{bug}` is missing"
                ));
            }
        }
    }
    let scenarios = rows_below(document, "Scenarios");
    for number in SCENARIOS {
        if !scenarios.iter().any(|row| row.name == number.to_string()) {
            complaints.push(format!(
                "{DOCUMENT}, Scenarios: a row for `{number}` is missing"
            ));
        }
    }
    for row in bugs.iter().chain(&scenarios) {
        let named: Vec<&str> = row.text.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            complaints.push(format!("{DOCUMENT}, `{}`: name its tests", row.name));
        }
        for test in named {
            if !tests.contains(test) {
                complaints.push(format!(
                    "{DOCUMENT}, `{}`: there is no test `{test}`",
                    row.name
                ));
            }
        }
    }
}

/// The variants of `enum Bug`.
fn variants(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .skip_while(|line| !line.starts_with("pub enum Bug"))
        .skip(1)
        .take_while(|line| !line.starts_with('}'))
        .filter_map(|line| line.trim().strip_suffix(','))
        .filter(|word| {
            word.starts_with(|c: char| c.is_ascii_uppercase())
                && word.chars().all(char::is_alphanumeric)
        })
}

/// Whether a path ends in `path`; the same letters with more after them are another name.
fn mentions(text: &str, path: &str) -> bool {
    text.match_indices(path).any(|(at, _)| {
        let after = text[at + path.len()..].chars().next();
        after.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    })
}

fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("fn ").filter_map(|(at, _)| {
        let name = &text[at + 3..];
        name.split(|c: char| !c.is_alphanumeric() && c != '_')
            .next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(bug: &str, test: &str, rows: &str) -> Vec<String> {
        let list = format!("pub enum Bug {{\n    /// Why.\n    {bug},\n}}\n");
        let sources = [
            Source::new(Path::new(LIST), list),
            Source::new(
                Path::new("crates/x/src/rule.rs"),
                "if has_bug(Bug::Early) {}".to_owned(),
            ),
            Source::new(Path::new("crates/y/tests/t.rs"), test.to_owned()),
        ];
        let scenarios: String = SCENARIOS
            .iter()
            .map(|number| format!("| `{number}` | `it_is_found` |\n"))
            .collect();
        let document = format!("## Planted bugs\n{rows}\n## Scenarios\n{scenarios}");
        let mut complaints = Vec::new();
        check_sources(&sources, &document, &mut complaints);
        complaints
    }

    const TEST: &str = "fn it_is_found() { find(Bug::Early) }";
    const ROW: &str = "| `Early` | 2 | `it_is_found` |";

    #[test]
    fn a_bug_is_done_planted_and_listed() {
        assert_eq!(complaints("Early", TEST, ROW), [""; 0]);
        assert_eq!(complaints("Earlier", TEST, ROW).len(), 3);
        assert_eq!(complaints("Early", TEST, "").len(), 1);
        let never = complaints("Early", "fn it_is_found() { find(Bug::EarlyBird) }", ROW);
        assert_eq!(never.len(), 1, "{never:?}");
        assert!(never[0].contains("no test plants"));
    }

    #[test]
    fn tests_that_are_named_exist() {
        let row = "| `Early` | 2 | `it_is_found`, `gone` |";
        let gone = complaints("Early", TEST, row);
        assert!(gone.len() == 1 && gone[0].contains("`gone`"), "{gone:?}");
        assert_eq!(complaints("Early", TEST, "| `Early` | 2 | |").len(), 1);
    }
}
