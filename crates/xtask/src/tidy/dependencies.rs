//! Rule: every external crate has its reason in ARCHITECTURE.md and, with all its dependencies, a
//! permissive licence.

use std::collections::BTreeSet;

use super::{House, licence};

/// The heading of ARCHITECTURE.md whose table has each external crate with its reason.
const HEADING: &str = "External crates";

pub(super) fn check(house: &House, complaints: &mut Vec<String>) {
    let mut used = BTreeSet::new();
    for package in house.packages() {
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            if !dependency["path"].is_string()
                && let Some(name) = dependency["name"].as_str()
            {
                used.insert(name);
            }
        }
    }
    let rows = house.architecture_rows(HEADING);
    for name in &used {
        match rows.iter().find(|row| row.name == *name) {
            None => complaints.push(format!(
                "external crate `{name}` has no row in ARCHITECTURE.md, {HEADING}: say why it is worth having"
            )),
            Some(row) if row.text.split('|').all(|cell| cell.trim().len() < 10) => {
                complaints.push(format!(
                    "ARCHITECTURE.md, {HEADING}: the row of `{name}` gives no reason"
                ));
            }
            Some(_) => {}
        }
    }
    for row in &rows {
        if !used.contains(row.name.as_str()) {
            complaints.push(format!(
                "ARCHITECTURE.md, {HEADING}: no crate uses `{}` any more, remove its row",
                row.name
            ));
        }
    }
    licences(house, complaints);
}

fn licences(house: &House, complaints: &mut Vec<String>) {
    let packages = house
        .metadata
        .iter()
        .flat_map(|metadata| metadata["packages"].as_array().into_iter().flatten());
    let mut seen = BTreeSet::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let terms = package["license"].as_str().unwrap_or_default();
        if seen.insert((name, terms)) && !licence::is_permissive(terms) {
            complaints.push(format!(
                "crate `{name}` is under `{terms}`, which is not among the permissive licences we accept"
            ));
        }
    }
}
