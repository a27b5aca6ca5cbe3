//! Rule: the modules of a folder import each other in one direction only.
//!
//! An import is a `use`, or a path that begins with `crate` or `super`. An import of something
//! inside a module is an import of that module, and a name that the folder's own module
//! (`folder.rs` or `folder/mod.rs`) imports from one of its modules leads to that module. Tests may
//! import everything.
//!
//! The tree was written before this rule. `crates/xtask/src/tidy/circles_known.txt` has the circles
//! that are left, each with its members. A new or larger circle is a complaint, and so is a row
//! whose circle has become smaller or is gone.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Imports, Modules, Place};
use super::{House, read};

/// The circles that are left: rows of `folder: module module…`, sorted.
const KNOWN: &str = "crates/xtask/src/tidy/circles_known.txt";

/// `crates`: by the folders of their sources.
pub(super) fn check(
    house: &House,
    crates: &BTreeMap<String, Modules>,
    complaints: &mut Vec<String>,
) -> Result<(), String> {
    let known = parse(&read(&house.root.join(KNOWN))?)?;
    compare(&found(crates), &known, complaints);
    Ok(())
}

/// The circles of all crates.
pub(super) fn found(crates: &BTreeMap<String, Modules>) -> Vec<Circle> {
    crates
        .iter()
        .flat_map(|(sources, modules)| circles_of_crate(sources, modules))
        .collect()
}

/// Modules of one folder that reach each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Circle {
    folder: String,
    members: BTreeSet<String>,
    /// The imports that tie it: the module that imports, the one that is imported, and the path.
    ties: Vec<(String, String, String)>,
}

/// A row of the list of circles that are left.
#[derive(Debug, PartialEq, Eq)]
struct Known {
    folder: String,
    members: BTreeSet<String>,
}

/// The rows `folder: module module…`; a line that begins with `#` is a remark.
fn parse(text: &str) -> Result<Vec<Known>, String> {
    let rows = text.lines().filter(|row| !row.starts_with('#'));
    let known = rows.map(|row| {
        let (folder, members) = row.split_once(": ")?;
        Some(Known {
            folder: folder.to_owned(),
            members: members.split(' ').map(str::to_owned).collect(),
        })
    });
    known
        .collect::<Option<_>>()
        .ok_or_else(|| format!("{KNOWN}: a row is not `folder: module module…`"))
}

/// Complaints about circles that are new or larger, and about rows that are no longer right.
fn compare(found: &[Circle], known: &[Known], complaints: &mut Vec<String>) {
    let meets = |circle: &Circle, row: &Known| {
        circle.folder == row.folder && !circle.members.is_disjoint(&row.members)
    };
    for circle in found {
        let rows: Vec<&Known> = known.iter().filter(|row| meets(circle, row)).collect();
        let before: BTreeSet<&String> = rows.iter().flat_map(|row| &row.members).collect();
        let joined: Vec<&String> = circle
            .members
            .iter()
            .filter(|member| !before.contains(member))
            .collect();
        let folder = &circle.folder;
        if joined.is_empty() && rows.len() == 1 {
            if circle.members.len() < before.len() {
                complaints.push(format!(
                    "{KNOWN}: a circle in {folder} is smaller, write: `{circle}`"
                ));
            }
            continue;
        }
        let fault = if rows.is_empty() {
            "modules that import each other in a circle"
        } else {
            "a circle of modules has grown"
        };
        let of_new = circle.ties.iter().filter(|(from, to, _)| {
            rows.len() > 1 || joined.contains(&from) || joined.contains(&to)
        });
        let ties: Vec<String> = of_new
            .map(|(from, _, path)| format!("{from} has `{path}`"))
            .collect();
        complaints.push(format!(
            "{folder}: {fault}; move a type to where it belongs: {}",
            ties.join(", ")
        ));
    }
    for row in known {
        if !found.iter().any(|circle| meets(circle, row)) {
            complaints.push(format!(
                "{KNOWN}: a circle in {} is gone, remove its row",
                row.folder
            ));
        }
    }
}

impl std::fmt::Display for Circle {
    /// As a row of the list.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.folder)?;
        self.members
            .iter()
            .try_for_each(|member| write!(f, " {member}"))
    }
}

/// The circles of all folders of a crate whose root is in the folder `sources`.
fn circles_of_crate(sources: &str, modules: &Modules) -> Vec<Circle> {
    let folders = modules.imports().into_iter();
    let circles = folders.flat_map(|(place, imports)| {
        let folder = shown(sources, &place);
        circles(&folder, &imports)
    });
    circles.collect()
}

fn shown(sources: &str, place: &Place) -> String {
    let parts = std::iter::once(sources).chain(place.iter().map(String::as_str));
    parts.collect::<Vec<_>>().join("/")
}

/// Every group of modules of a folder that reach each other.
fn circles(folder: &str, imports: &Imports) -> Vec<Circle> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = imports
        .keys()
        .map(|from| (from.as_str(), reachable(imports, from)))
        .collect();
    let meets = |a: &str, b: &str| reach.get(a).is_some_and(|all| all.contains(b));
    let mut circles: Vec<Circle> = Vec::new();
    for from in imports.keys().filter(|from| meets(from, from)) {
        if circles.iter().any(|circle| circle.members.contains(from)) {
            continue;
        }
        let members: BTreeSet<String> = imports
            .keys()
            .filter(|other| meets(from, other) && meets(other, from))
            .cloned()
            .collect();
        let ties = members.iter().flat_map(|from| {
            let inside = imports[from].iter().filter(|(to, _)| members.contains(*to));
            inside.map(move |(to, path)| (from.clone(), to.clone(), path.clone()))
        });
        circles.push(Circle {
            folder: folder.to_owned(),
            ties: ties.collect(),
            members,
        });
    }
    circles
}

fn reachable<'i>(imports: &'i Imports, from: &str) -> BTreeSet<&'i str> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&str> = vec![from];
    while let Some(module) = left.pop() {
        let Some(targets) = imports.get(module) else {
            continue;
        };
        for target in targets.keys() {
            if reached.insert(target.as_str()) {
                left.push(target);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const ROOT: &str = "mod a;\npub mod b;\nmod c;\n#[cfg(test)]\nmod tests;\npub use b::Name;\n";

    fn circles_in(root: &str, files: &[(&str, &str)]) -> Vec<Circle> {
        let mut all = vec![(Path::new("lib.rs"), root.to_owned())];
        all.extend(
            files
                .iter()
                .map(|(path, text)| (Path::new(*path), (*text).to_owned())),
        );
        circles_of_crate("src", &Modules::new(&all))
    }

    fn ties(circles: &[Circle]) -> Vec<String> {
        let ties = circles.iter().flat_map(|circle| &circle.ties);
        ties.map(|(from, _, path)| format!("{from} has `{path}`"))
            .collect()
    }

    fn rows(circles: &[Circle]) -> Vec<String> {
        circles.iter().map(Circle::to_string).collect()
    }

    #[test]
    fn a_circle_is_found_in_every_form_of_an_import() {
        for import in [
            "use crate::b;",
            "use crate::{\n    c,\n    b::{self, X as Y},\n};",
            "pub(crate) use super::b::X;",
            "fn f() -> crate::b::X {}",
            "use crate::Name;",
            "#[cfg(not(debug_assertions))]\nuse crate::b;",
            "#[cfg(test)]\nmod tests { use x; }\nuse crate::b;",
            "mod x {\n    use super::super::b;\n}",
        ] {
            let found = circles_in(
                ROOT,
                &[("a.rs", import), ("b.rs", "use crate::a::Z;"), ("c.rs", "")],
            );
            assert_eq!(rows(&found), ["src: a b"], "{import}");
            assert_eq!(ties(&found)[1], "b has `crate::a::Z`", "{import}");
        }
        let files = [
            ("a/mod.rs", "mod x;"),
            ("a/x.rs", "use super::super::c;"),
            ("c.rs", "use crate::a;"),
        ];
        let expected = ["a has `super::super::c`", "c has `crate::a`"];
        assert_eq!(ties(&circles_in(ROOT, &files)), expected);
    }

    #[test]
    fn one_direction_and_tests_are_no_circle() {
        for import in [
            "",
            "// use crate::b;",
            "const X: &str = \"use crate::b;\";",
            "#[cfg(test)]\nuse crate::b;",
            "#[cfg(test)]\nmod tests {\n    use crate::b;\n    fn f() { {} }\n}",
            "use std::b;",
        ] {
            let files = [
                ("a.rs", import),
                ("b.rs", "use crate::a::Z;"),
                ("a/tests.rs", "use crate::b;"),
            ];
            assert_eq!(circles_in(ROOT, &files), [], "{import}");
        }
    }

    #[test]
    fn a_circle_of_three_is_one() {
        let files = [
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", "use crate::a;"),
        ];
        assert_eq!(rows(&circles_in(ROOT, &files)), ["src: a b c"]);
    }

    #[test]
    fn a_circle_is_found_in_every_folder() {
        let second = "use crate::a::b::first::F;";
        for (folder, first) in [
            ("pub mod first;\npub mod second;", "use super::second::S;"),
            (
                "pub mod first;\nmod second;",
                "use crate::a::b::second::inner::S;",
            ),
            // A name of the folder's own module leads to the module that it comes from.
            (
                "mod first;\nmod second;\npub use second::S;",
                "use super::S;",
            ),
            (
                "mod first;\nmod second;\npub use second::S as T;",
                "use crate::T;",
            ),
            (
                "mod first;\nmod second;\npub use second::*;",
                "use super::S;",
            ),
        ] {
            let files = [
                ("a.rs", "pub mod b;\n"),
                ("a/b/mod.rs", folder),
                ("a/b/first.rs", first),
                (
                    "a/b/second.rs",
                    &format!("{second}\nmod inner;\npub struct S;"),
                ),
                ("a/b/second/inner.rs", ""),
            ];
            let found = circles_in("mod a;\npub use a::b::T;", &files);
            assert_eq!(rows(&found), ["src/a/b: first second"], "{folder} {first}");
        }
    }

    #[test]
    fn the_module_of_a_folder_is_no_sibling_of_the_modules_in_it() {
        for first in [
            "use super::Own;",
            "use crate::a::Own;",
            "use crate::a::first::X;",
        ] {
            let files = [
                ("a.rs", "mod first;\nuse first::F;\nstruct Own;"),
                ("a/first.rs", first),
            ];
            assert_eq!(circles_in("mod a;", &files), [], "{first}");
        }
    }

    fn complaints(members: &str, known: &str) -> Vec<String> {
        let circle = |members: &str| Circle {
            folder: "src".to_owned(),
            members: members.split(' ').map(str::to_owned).collect(),
            ties: vec![("a".to_owned(), "b".to_owned(), "crate::b".to_owned())],
        };
        let circles: Vec<Circle> = members
            .split(", ")
            .filter(|one| !one.is_empty())
            .map(circle)
            .collect();
        let mut complaints = Vec::new();
        compare(&circles, &parse(known).expect("rows"), &mut complaints);
        complaints
    }

    #[test]
    fn a_known_circle_may_stay_as_it_is() {
        assert_eq!(complaints("a b", "# Why.\nsrc: a b\n"), [""; 0]);
        assert_eq!(complaints("a b, c d", "src: a b\nsrc: c d\n"), [""; 0]);
    }

    #[test]
    fn a_new_or_larger_circle_is_a_complaint() {
        for (found, known, complaint) in [
            ("a b", "", "src: modules that import each other in a circle"),
            ("a b", "other: a b\n", "src: modules that import"),
            ("a b c", "src: b c\n", "src: a circle of modules has grown"),
            (
                "a b c d",
                "src: a b\nsrc: c d\n",
                "src: a circle of modules has grown",
            ),
        ] {
            let complaints = complaints(found, known);
            assert!(complaints[0].starts_with(complaint), "{complaints:?}");
            assert!(complaints[0].contains("a has `crate::b`"), "{complaints:?}");
        }
    }

    #[test]
    fn a_row_is_a_complaint_when_its_circle_is_smaller_or_gone() {
        let smaller = complaints("a b", "src: a b c\n");
        assert_eq!(
            smaller,
            [format!(
                "{KNOWN}: a circle in src is smaller, write: `src: a b`"
            )]
        );
        let gone = complaints("", "src: a b\n");
        assert_eq!(
            gone,
            [format!("{KNOWN}: a circle in src is gone, remove its row")]
        );
        assert!(parse("src a b").is_err());
    }
}
