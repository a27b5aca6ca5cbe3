//! Rule: nothing is decided by the name of a command. A command that differs from others has a
//! column or a flag for that in its row, so no place forgets a new command.
//!
//! The names are those of the rows. A text of such a name is refused where it is compared: as the
//! pattern of a match, beside `==` or `!=`, or in a list of texts. Tests may name commands.
//!
//! Bytes are not refused. They are compared with arguments of a request whose row is known by then:
//! options of a command have names of other commands (`GET` of SORT, `TIME` of XCLAIM, `SET` of
//! BITFIELD).

use std::collections::BTreeSet;

use super::{House, read};

/// The folders with commands, and with those who run them.
const FOLDERS: [&str; 2] = ["crates/redis/src", "crates/server/src"];
/// The calls that make rows; each has the name first.
const ROWS: [&str; 3] = ["row(\"", "container(\"", "absent(\""];
/// File, text and reason.
const OTHERS: &[(&str, &str, &str)] = &[
    (
        "crates/redis/src/operation/config.rs",
        "memory",
        "the name of a setting",
    ),
    (
        "crates/server/src/admin/exposition.rs",
        "info",
        "a type of metrics",
    ),
];

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    let sources = sources(house)?;
    let names = names(&sources);
    if names.is_empty() {
        complaints.push("no row of a command was found: look at ROWS in tidy/names.rs".to_owned());
    }
    let (excused, refused): (Vec<_>, Vec<_>) =
        decisions(&sources, &names).partition(Decision::is_excused);
    complaints.extend(refused.iter().map(|Decision { file, line, name }| {
        format!(
            "{file}:{line}: `{name}` is the name of a command: decide by its row, or add a \
             reason to OTHERS (crates/xtask/src/tidy/names.rs)"
        )
    }));
    for (file, text, _) in OTHERS {
        let is_used = |at: &Decision<'_>| at.file == *file && at.name == *text;
        if !excused.iter().any(is_used) {
            complaints.push(format!(
                "{file}: `{text}` needs no row in OTHERS, remove it"
            ));
        }
    }
    Ok(())
}

/// The number of names of commands, and of the texts that decide by one against the rule.
pub(super) fn count(house: &House) -> Result<(usize, usize), String> {
    let sources = sources(house)?;
    let names = names(&sources);
    let refused = decisions(&sources, &names).filter(|at| !at.is_excused());
    Ok((names.len(), refused.count()))
}

/// A file of [`FOLDERS`].
struct Source {
    file: String,
    text: String,
}

/// The files of [`FOLDERS`] that are no tests.
fn sources(house: &House) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    for file in house.with_extension("rs") {
        let is_test = file
            .iter()
            .any(|part| part == "tests" || part == "tests.rs");
        if FOLDERS.iter().any(|folder| file.starts_with(folder)) && !is_test {
            let text = read(&house.root.join(file))?;
            let file = file.display().to_string();
            sources.push(Source { file, text });
        }
    }
    Ok(sources)
}

fn names(sources: &[Source]) -> BTreeSet<&str> {
    sources
        .iter()
        .flat_map(|source| rows(&source.text))
        .collect()
}

/// A text that is compared and is the name of a command.
struct Decision<'s> {
    file: &'s str,
    line: usize,
    name: &'s str,
}

impl Decision<'_> {
    /// Whether it means something else: it has a row in `OTHERS`.
    fn is_excused(&self) -> bool {
        let mut others = OTHERS.iter();
        others.any(|(file, text, _)| *file == self.file && *text == self.name)
    }
}

fn decisions<'s>(
    sources: &'s [Source],
    names: &BTreeSet<&str>,
) -> impl Iterator<Item = Decision<'s>> {
    sources.iter().flat_map(move |source| {
        let found = compared(&source.text, names).into_iter();
        found.map(|(line, name)| Decision {
            file: &source.file,
            line,
            name,
        })
    })
}

/// The names of the rows in a file.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    let calls = ROWS.iter().flat_map(move |call| text.split(call).skip(1));
    calls.filter_map(|rest| rest.split('"').next())
}

/// The texts that are compared and are names of commands, with their lines.
fn compared<'t>(text: &'t str, names: &BTreeSet<&str>) -> Vec<(usize, &'t str)> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text);
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        // Texts are the odd parts; a text with a quotation mark in it is no name.
        let parts: Vec<&str> = line.split('"').collect();
        for at in (1..parts.len()).step_by(2) {
            let (before, after) = (
                parts[at - 1],
                parts.get(at + 1).copied().unwrap_or_default(),
            );
            if names.contains(parts[at]) && is_compared(before.trim_end(), after.trim_start()) {
                found.push((n + 1, parts[at]));
            }
        }
    }
    found
}

/// Whether a text between these is compared and is no bytes.
fn is_compared(before: &str, after: &str) -> bool {
    let is_pattern = ["=>", "|", "if "]
        .iter()
        .any(|sign| after.starts_with(sign));
    let is_equal = |code: &str| code.ends_with("==") || code.ends_with("!=");
    let is_in_list = before.ends_with('[') && (after.starts_with(',') || after.starts_with(']'));
    let is_second = before == "," && (after.starts_with(',') || after.starts_with(']'));
    let is_behind = after.starts_with("==") || after.starts_with("!=");
    !before.ends_with('b') && (is_pattern || before.ends_with('|') || is_equal(before) || is_behind)
        || is_in_list
        || is_second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_where_it_is_compared() {
        let text = "row(\"get\", 2, FAST,\nrow(\"set\", -3,\ncontainer(\"acl\", doc(\n";
        let names: BTreeSet<&str> = rows(text).collect();
        assert_eq!(names, BTreeSet::from(["acl", "get", "set"]));
        assert!(compared(text, &names).is_empty());
        for code in [
            "\"get\" => 1,",
            "\"other\" | \"get\" => 1,",
            "spec.name == \"get\"",
            "\"get\" != name",
            "const FEW: [&str; 2] = [\"get\", \"set\"];",
            "    | \"set\"",
        ] {
            assert!(!compared(code, &names).is_empty(), "{code}");
        }
        for code in [
            "// \"get\" => 1,",
            "b\"get\" => 1,",
            "\"getting\" => 1,",
            "event(\"set\")",
            "(EventClasses::STRING, \"set\")",
        ] {
            assert!(compared(code, &names).is_empty(), "{code}");
        }
    }
}
