//! Rule: the modules at the top of a crate import each other in one direction only.
//!
//! An import is a `use`, or a path that begins with `crate` or leads to the root of the crate by
//! `super`. Tests may import everything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::sources::code_only;
use super::{House, read};

/// Each module with the modules that it imports, and one path for each of these.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    let mut crates: BTreeMap<String, Vec<(&Path, String)>> = BTreeMap::new();
    for file in house.with_extension("rs") {
        let mut above = file.ancestors().skip(1);
        let Some(sources) = above.find(|folder| folder.ends_with("src")) else {
            continue;
        };
        let (Some(name), Ok(inside)) = (sources.parent(), file.strip_prefix(sources)) else {
            continue;
        };
        let text = read(&house.root.join(file))?;
        let files = crates.entry(name.display().to_string()).or_default();
        files.push((inside, text));
    }
    for (name, files) in &crates {
        let circles = circles(&imports(files));
        for circle in circles {
            complaints.push(format!(
                "{name}: modules that import each other in a circle; move a type to where it belongs: {circle}"
            ));
        }
    }
    Ok(())
}

/// The imports among the modules at the top of a crate, given its files with their paths in `src`.
fn imports(files: &[(&Path, String)]) -> Imports {
    let root = ["lib.rs", "main.rs"].into_iter().find_map(|root| {
        let file = files.iter().find(|(path, _)| *path == Path::new(root));
        file.map(|(_, text)| tokens(text))
    });
    let root = root.unwrap_or_default();
    let modules: BTreeSet<&str> = root
        .windows(3)
        .filter(|three| three[0] == "mod" && three[2] == ";")
        .map(|three| three[1].as_str())
        .collect();
    // Names that the root imports from a module lead to that module.
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    for path in paths(&root) {
        let path: Vec<_> = path
            .iter()
            .filter(|part| *part != "crate" && *part != "self")
            .collect();
        if let [first, .., last] = path[..]
            && modules.contains(first.as_str())
        {
            names.insert(last.clone(), first.clone());
        }
    }
    let mut imports = Imports::new();
    for (path, text) in files {
        let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
        let from = parts[0].trim_end_matches(".rs");
        let is_test = parts
            .iter()
            .any(|part| part.trim_end_matches(".rs") == "tests");
        if is_test || !modules.contains(from) {
            continue;
        }
        // Number of `super` that lead to the root.
        let depth = parts.len() - usize::from(parts.ends_with(&["mod.rs"]));
        for path in paths(&tokens(text)) {
            let supers = path.iter().take_while(|part| *part == "super").count();
            let target = match path[0].as_str() {
                "crate" => path.get(1),
                _ if supers == depth => path.get(supers),
                _ => None,
            };
            let Some(target) = target else { continue };
            let named = names.get(target).map_or(target, |module| module);
            if named != from && modules.contains(named.as_str()) {
                let targets = imports.entry(from.to_owned()).or_default();
                targets
                    .entry(named.clone())
                    .or_insert_with(|| path.join("::"));
            }
        }
    }
    imports
}

/// Names and punctuation of the code outside of comments, strings and tests; `::` is one token.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let code = code_only(text);
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = match first {
            _ if is_name(first) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        tokens.push(rest[..len].to_owned());
        rest = rest[len..].trim_start();
    }
    without_tests(&tokens)
}

/// Leaves out modules and imports with an attribute `cfg` that names `test`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let end = if tokens[at] == "#" {
            closing(tokens, at + 1, "[", "]")
        } else {
            at
        };
        let attribute = &tokens[at..end];
        let has = |word: &str| attribute.iter().any(|token| token == word);
        let mut item = end;
        while item < tokens.len() && tokens[item] == "#" {
            item = closing(tokens, item + 1, "[", "]");
        }
        if tokens.get(item).is_some_and(|token| token == "pub") {
            item += 1;
            if tokens.get(item).is_some_and(|token| token == "(") {
                item = closing(tokens, item, "(", ")");
            }
        }
        let is_item = tokens
            .get(item)
            .is_some_and(|token| token == "mod" || token == "use");
        if has("cfg") && has("test") && is_item {
            let is_import = tokens[item] == "use";
            let body = (item..tokens.len())
                .find(|at| tokens[*at] == ";" || tokens[*at] == "{" && !is_import)
                .unwrap_or(tokens.len());
            at = match tokens.get(body).map(String::as_str) {
                Some("{") => closing(tokens, body, "{", "}"),
                _ => body + 1,
            };
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The position behind the token that closes the one at `at`; `at` itself if it opens nothing.
fn closing(tokens: &[String], at: usize, open: &str, close: &str) -> usize {
    let mut depth = 0;
    for (n, token) in tokens.iter().enumerate().skip(at) {
        depth += i32::from(token == open);
        depth -= i32::from(token == close);
        if depth == 0 {
            return n + usize::from(n > at);
        }
    }
    tokens.len()
}

/// The paths of all `use`, and those that begin with `crate` or `super` elsewhere.
fn paths(tokens: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at].as_str() {
            "use" => at = tree(tokens, at + 1, &[], &mut found),
            "crate" | "super" => {
                let mut path = vec![tokens[at].clone()];
                while tokens.get(at + 1).is_some_and(|token| token == "::")
                    && let Some(name) = tokens.get(at + 2)
                {
                    path.push(name.clone());
                    at += 2;
                }
                found.push(path);
                at += 1;
            }
            _ => at += 1,
        }
    }
    found
}

/// Reads one tree of a `use` from `at` on; returns the position of the token behind it.
fn tree(
    tokens: &[String],
    mut at: usize,
    before: &[String],
    found: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = before.to_vec();
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "::" => {}
            "{" => loop {
                at = tree(tokens, at + 1, &path, found);
                if tokens.get(at).is_none_or(|token| token != ",") {
                    return at + 1;
                }
            },
            "," | ";" | "}" => break,
            "as" => at += 1,
            name => path.push(name.to_owned()),
        }
        at += 1;
    }
    if path.len() > before.len() {
        found.push(path);
    }
    at
}

/// Every group of modules that reach each other, with the imports that tie it.
fn circles(imports: &Imports) -> Vec<String> {
    let reach: BTreeMap<&str, BTreeSet<&str>> = imports
        .keys()
        .map(|from| (from.as_str(), reachable(imports, from)))
        .collect();
    let meets = |a: &str, b: &str| reach.get(a).is_some_and(|all| all.contains(b));
    let mut shown = BTreeSet::new();
    let mut circles = Vec::new();
    for from in imports.keys().filter(|from| meets(from, from)) {
        let circle: Vec<&String> = imports
            .keys()
            .filter(|other| meets(from, other) && meets(other, from))
            .collect();
        if shown.insert(circle.clone()) {
            let edges = circle.iter().flat_map(|from| {
                let inside = imports[*from].iter().filter(|(to, _)| circle.contains(to));
                inside.map(move |(_, path)| format!("{from} has `{path}`"))
            });
            circles.push(edges.collect::<Vec<_>>().join(", "));
        }
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
    use super::*;

    const ROOT: &str = "mod a;\npub mod b;\nmod c;\n#[cfg(test)]\nmod tests;\npub use b::Name;\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![(Path::new("lib.rs"), ROOT.to_owned())];
        all.extend(
            files
                .iter()
                .map(|(path, text)| (Path::new(*path), (*text).to_owned())),
        );
        circles(&imports(&all))
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
        ] {
            let circle = found(&[("a.rs", import), ("b.rs", "use crate::a::Z;")]);
            assert_eq!(circle.len(), 1, "{import}");
            assert!(circle[0].contains("b has `crate::a::Z`"), "{circle:?}");
        }
        let deep = found(&[
            ("a/mod.rs", ""),
            ("a/x.rs", "use super::super::c;"),
            ("c.rs", "use crate::a;"),
        ]);
        assert_eq!(deep, ["a has `super::super::c`, c has `crate::a`"]);
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
            "use super::super::b;",
        ] {
            let files = [
                ("a.rs", import),
                ("b.rs", "use crate::a::Z;"),
                ("a/tests.rs", "use crate::b;"),
            ];
            assert_eq!(found(&files), [""; 0], "{import}");
        }
    }

    #[test]
    fn a_circle_of_three_is_one() {
        let files = [
            ("a.rs", "use crate::b;"),
            ("b.rs", "use crate::c;"),
            ("c.rs", "use crate::a;"),
        ];
        assert_eq!(found(&files).len(), 1);
    }
}
