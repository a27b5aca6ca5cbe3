//! `cargo xtask count`: numbers that show how well the product is divided. It judges nothing.

use std::collections::BTreeMap;

use super::House;
use super::imports::tokens;
use super::product::{Source, sources};
use super::types::{fields, types};
use super::{circles, modules, names};
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

pub(crate) fn run() -> Result<(), String> {
    let house = House::enter(process::root())?;
    let sources = sources(&house)?;
    print_crates(&sources);
    print_fields(&sources);
    let (names, literals) = names::count(&house)?;
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
