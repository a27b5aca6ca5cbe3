//! Rules for prose, in comments and on pages: plain openings, lines that fit, words of the field.
//!
//! The tree was written before these rules. `crates/xtask/prose.txt` has, for each file, the number
//! of violations that are left in it. A file may have no more than that, and its row goes when it
//! has none: `cargo xtask tidy --prose` lists them all and writes the file anew, with no number
//! raised.

use std::collections::BTreeMap;
use std::path::Path;

use super::{House, read};

/// The file of the numbers.
const LEFT: &str = "crates/xtask/prose.txt";
/// Longest line of prose, in columns.
const COLUMNS_MAX: usize = 100;
/// First words of an unclear sentence, unless it is a question.
const OPENINGS: [&str; 3] = ["What", "Who", "Whoever"];
/// Words that do not name a thing, each with a replacement.
const BANNED: [(&str, &str); 4] = [
    ("whoever", "the client, thread or server that"),
    ("leisure", "in the background"),
    ("somebody's", "the owner's"),
    ("nobody's", "none's"),
];

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    let left = parse(&read(&house.root.join(LEFT))?)?;
    for (file, violations) in violations(house)? {
        let allowed = left.get(&file).copied().unwrap_or(0);
        if violations.len() <= allowed {
            continue;
        }
        complaints.push(format!(
            "{file}: {} violations of the rules for prose, {allowed} may be left ({LEFT})",
            violations.len()
        ));
        complaints.extend(violations.iter().map(|found| format!("{file}:{found}")));
    }
    Ok(())
}

/// Lists all violations, and stores the number left: no number rises.
pub(super) fn list(house: &House) -> Result<(), String> {
    let path = house.root.join(LEFT);
    let left = parse(&read(&path)?)?;
    let mut text = String::new();
    for (file, violations) in violations(house)? {
        for found in &violations {
            println!("{file}:{found}");
        }
        let count = left
            .get(&file)
            .map_or(0, |left| violations.len().min(*left));
        if count > 0 {
            text += &format!("{count} {file}\n");
        }
    }
    std::fs::write(&path, text).map_err(|error| format!("cannot write {LEFT}: {error}"))
}

/// The rows `count path`.
fn parse(text: &str) -> Result<BTreeMap<String, usize>, String> {
    let rows = text.lines().map(|row| {
        let (count, file) = row.split_once(' ')?;
        Some((file.to_owned(), count.parse().ok()?))
    });
    rows.collect::<Option<_>>()
        .ok_or_else(|| format!("{LEFT}: a row is not `count path`"))
}

/// For each file, its violations as `line: reason`.
fn violations(house: &House) -> Result<BTreeMap<String, Vec<String>>, String> {
    let mut found = BTreeMap::new();
    for (extension, of) in [("rs", comments as fn(&str) -> Vec<Line<'_>>), ("md", page)] {
        for file in house.with_extension(extension) {
            if is_generated(file) {
                continue;
            }
            let text = read(&house.root.join(file))?;
            let problems = problems(&of(&text));
            if !problems.is_empty() {
                found.insert(file.display().to_string(), problems);
            }
        }
    }
    Ok(found)
}

/// Generated pages, and the list of changes.
pub(super) fn is_generated(file: &Path) -> bool {
    ["docs/benchmarks.md", "docs/commands.md", "CHANGELOG.md"]
        .iter()
        .any(|page| file == Path::new(page))
}

/// A line of prose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line<'a> {
    number: usize,
    /// The whole line, for the count of its columns.
    whole: &'a str,
    /// Its prose; empty: a paragraph ends here.
    text: &'a str,
}

/// Comments that fill a line.
fn comments(source: &str) -> Vec<Line<'_>> {
    let numbered = source.lines().enumerate();
    let lines = numbered.map(|(index, whole)| {
        let comment = whole.trim_start().strip_prefix("//");
        let text = comment.map_or("", |text| text.trim_start_matches(['/', '!']).trim());
        Line {
            number: index + 1,
            whole: if comment.is_some() { whole } else { "" },
            text,
        }
    });
    without_code(lines)
}

/// Paragraphs and lists of a page; no tables and no code.
fn page(text: &str) -> Vec<Line<'_>> {
    let numbered = text.lines().enumerate();
    let lines = numbered.map(|(index, whole)| {
        let is_prose = !whole.starts_with(['|', '<', '!']);
        Line {
            number: index + 1,
            whole: if is_prose { whole } else { "" },
            text: if is_prose {
                whole.trim_start_matches('#').trim()
            } else {
                ""
            },
        }
    });
    without_code(lines)
}

fn without_code<'a>(lines: impl Iterator<Item = Line<'a>>) -> Vec<Line<'a>> {
    let mut is_code = false;
    let kept = lines.map(|line| {
        let is_fence = line.text.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence {
            Line {
                whole: "",
                text: "",
                ..line
            }
        } else {
            line
        }
    });
    kept.collect()
}

fn problems(lines: &[Line<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines {
        let columns = line.whole.chars().count();
        // A link or a path cannot be cut.
        if columns > COLUMNS_MAX && line.text.contains(' ') {
            found.push(format!(
                "{}: {columns} columns, more than {COLUMNS_MAX}",
                line.number
            ));
        }
        let lower = line.text.to_lowercase();
        for (word, plain) in BANNED {
            // A path names a module as it is.
            let mut words = lower.split(|c: char| !c.is_alphanumeric() && !"':".contains(c));
            if words.any(|found| found.trim_matches(':') == word) {
                found.push(format!("{}: `{word}`: say {plain}", line.number));
            }
        }
    }
    let paragraphs = lines.split(|line| line.text.is_empty());
    for paragraph in paragraphs.filter(|lines| !lines.is_empty()) {
        openings(paragraph, &mut found);
    }
    found
}

fn openings(paragraph: &[Line<'_>], found: &mut Vec<String>) {
    let mut is_start = true;
    for (at, line) in paragraph.iter().enumerate() {
        let mut rest = line.text;
        let item = rest.trim_start_matches(['-', '*', ' ']);
        if item.len() < rest.len() {
            (rest, is_start) = (item, true);
        }
        for sentence in rest.split_inclusive(['.', '!', '?', ':']) {
            let first = sentence.split_whitespace().next().unwrap_or_default();
            let opens = OPENINGS.contains(&first.trim_start_matches(['*', '(']));
            if is_start && opens && !is_question(sentence, &paragraph[at + 1..]) {
                found.push(format!("{}: a sentence opens with `{first}`", line.number));
            }
            let is_blank = sentence.trim().is_empty();
            is_start = is_start && is_blank || sentence.ends_with(['.', '!', '?', ':']);
        }
    }
}

/// Whether the sentence, which may continue in the next lines, ends with a question mark.
fn is_question(sentence: &str, next: &[Line<'_>]) -> bool {
    let rest = next.iter().map(|line| line.text);
    let whole: String = std::iter::once(sentence)
        .chain(rest)
        .collect::<Vec<_>>()
        .join(" ");
    whole.chars().find(|c| ".?!".contains(*c)) == Some('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_source(source: &str) -> Vec<String> {
        problems(&comments(source))
    }

    #[test]
    fn openings_are_found_where_a_sentence_begins() {
        let source =
            "/// Says it. What is on its way\n/// is lost.\nfn a() {}\n// - Who waits is told.\n";
        let wanted = [
            "1: a sentence opens with `What`",
            "4: a sentence opens with `Who`",
        ];
        assert_eq!(of_source(source), wanted);
        assert_eq!(
            of_source("//! It tells what is lost, and who. Whether it is\n"),
            [""; 0]
        );
        assert_eq!(of_source("/// Who waits\n/// for whom?\n"), [""; 0]);
    }

    #[test]
    fn lines_are_as_long_as_a_reader_likes() {
        let long = format!("/// {} end\n", "word ".repeat(20));
        assert_eq!(of_source(&long), ["1: 108 columns, more than 100"]);
        assert_eq!(
            of_source(&format!("let a = 1; {}\n", "+ 1 ".repeat(40))),
            [""; 0]
        );
        assert_eq!(of_source(&format!("/// {}\n", "x".repeat(120))), [""; 0]);
    }

    #[test]
    fn words_that_name_nothing_are_found() {
        let found = of_source("/// Whoever comes, at leisure.\n");
        assert!(found.contains(&"1: `leisure`: say in the background".to_owned()));
        assert_eq!(found.len(), 3); // the opening, and both words
        assert_eq!(of_source("/// As leisure::F8 says.\n"), [""; 0]);
        assert_eq!(of_source("/// At leisure: later.\n").len(), 1);
    }

    #[test]
    fn pages_are_prose_but_for_tables_and_code() {
        let text = "# What a write means\n\n| What | it |\n|---|---|\n\n```\nWhat x.\n```\n\nWhat it is.\n";
        let wanted = [
            "1: a sentence opens with `What`",
            "10: a sentence opens with `What`",
        ];
        assert_eq!(problems(&page(text)), wanted);
    }

    #[test]
    fn rows_are_numbers_and_paths() {
        let left = parse("3 a/b.rs\n10 c d.md\n").unwrap();
        assert_eq!(left.get("a/b.rs"), Some(&3));
        assert_eq!(left.get("c d.md"), Some(&10));
        assert!(parse("x y\n").is_err());
    }
}
