//! `cargo xtask count`: numbers that show how well the product is divided. It judges nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::House;
use super::imports::tokens;
use super::product::{Source, sources};
use super::types::{fields, types};
use super::{circles, modules};
use crate::process;

/// Large types whose fields should be private, each with its crate.
const OPEN: [(&str, &str); 6] = [
    ("crates/redis", "Local"),
    ("crates/redis", "Thread"),
    ("crates/redis", "Client"),
    ("crates/redis", "Shared"),
    ("crates/engine", "Guard"),
    ("crates/engine", "Core"),
];
/// The crate with the rows of the commands, and the crates that must not match on their names.
const COMMANDS: &str = "crates/redis";
const READERS: [&str; 2] = [COMMANDS, "crates/server"];

pub(crate) fn run() -> Result<(), String> {
    let house = House::enter(process::root())?;
    let sources = sources(&house)?;
    print_crates(&sources);
    print_fields(&sources);
    let (names, literals) = names(&sources);
    println!("\n{literals} texts outside of rows decide by one of {names} names of commands");
    let circles = circles::found(&modules::of_crates(&house)?);
    println!("\n{} circles of imports", circles.len());
    for circle in circles {
        println!("  {circle}");
    }
    Ok(())
}

fn print_crates(sources: &[Source]) {
    let mut lines: BTreeMap<&str, usize> = BTreeMap::new();
    for source in sources {
        let with_code = source.code.lines().filter(|line| !line.trim().is_empty());
        *lines.entry(&source.package).or_default() += with_code.count();
    }
    let types = types(sources);
    println!("crate                       lines  largest type: methods (files)");
    for (package, lines) in &lines {
        let largest = types.iter().find(|of| of.package == *package);
        let shown = largest.map_or(String::new(), |of| {
            format!("{}: {} ({})", of.name, of.methods, of.files)
        });
        println!("{package:24} {lines:>8}  {shown}");
    }
    println!("all crates {:>22}", lines.values().sum::<usize>());
}

fn print_fields(sources: &[Source]) {
    println!("\nfields that the whole crate may use");
    let (mut wide, mut all) = (0, 0);
    for (package, name) in OPEN {
        let of_crate = sources.iter().filter(|source| source.package == package);
        let found = of_crate.filter_map(|of| fields(&tokens(&of.code), name, &of.place));
        if let Some(found) = found.max_by_key(|(_, all)| *all) {
            println!("  {package} {name}: {} of {}", found.0, found.1);
            wide += found.0;
            all += found.1;
        }
    }
    println!("  all: {wide} of {all}");
}

/// The number of names of commands, and of texts outside of their rows that are such a name and
/// that a value is compared with.
fn names(sources: &[Source]) -> (usize, usize) {
    let readers = sources
        .iter()
        .filter(|source| READERS.contains(&source.package.as_str()));
    let quoted: Vec<(&str, Quoted<'_>)> = readers
        .flat_map(|source| quoted(&source.text).map(|text| (source.package.as_str(), text)))
        .collect();
    let names: BTreeSet<&str> = quoted
        .iter()
        .filter(|(package, text)| *package == COMMANDS && text.is_row())
        .map(|(_, text)| text.inside)
        .collect();
    let decide = |text: &Quoted<'_>| text.decides() && names.contains(text.inside);
    let literals = quoted.iter().filter(|(_, text)| decide(text)).count();
    (names.len(), literals)
}

/// A text in quotes, and the code around it.
struct Quoted<'t> {
    before: &'t str,
    inside: &'t str,
    behind: &'t str,
}

impl Quoted<'_> {
    /// Whether it names the command of a row.
    fn is_row(&self) -> bool {
        let before = self.before.trim_end();
        before.ends_with("row(") || before.ends_with("command(")
    }

    /// Whether it is a pattern, or compared by `==`.
    fn decides(&self) -> bool {
        let before = self.before.trim_end_matches('b').trim_end();
        let behind = self.behind.trim_start();
        ["|", "==", "!="].iter().any(|sign| before.ends_with(sign))
            || ["|", "=>", "=="]
                .iter()
                .any(|sign| behind.starts_with(sign))
    }
}

/// The short texts of a file, its tests left out.
fn quoted(text: &str) -> impl Iterator<Item = Quoted<'_>> {
    let tests = text.find("#[cfg(test)]\nmod tests {");
    let text = &text[..tests.unwrap_or(text.len())];
    let quotes: Vec<usize> = text.match_indices('"').map(|(at, _)| at).collect();
    let pairs: Vec<(usize, usize)> = quotes.windows(2).map(|two| (two[0], two[1])).collect();
    pairs.into_iter().map(move |(open, close)| Quoted {
        before: &text[..open],
        inside: &text[open + 1..close],
        behind: &text[close + 1..],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_decide_are_counted() {
        let source = |package: &str, text: &str| Source {
            package: package.to_owned(),
            place: Vec::new(),
            text: text.to_owned(),
            code: String::new(),
        };
        let sources = [
            source(COMMANDS, "row(\"get\", 2), row(\"set\", 3), f(\"set\")"),
            source(
                "crates/server",
                "match a { \"get\" | \"set\" => 1, b\"set\" => 2 } if a == \"get\" { \"other\" => b }\n\
                 #[cfg(test)]\nmod tests { a == \"get\" }",
            ),
            source("crates/cli", "a == \"get\""),
        ];
        assert_eq!(names(&sources), (2, 4));
    }
}
