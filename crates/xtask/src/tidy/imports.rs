//! The imports of a source file: each `use`, and each path elsewhere that begins with `crate` or
//! `super`. Comments, texts and tests are left out.

use super::sources::code_only;
use super::tests_blanked::without_tests;

/// Words that an item's name follows.
const ITEMS: [&str; 9] = [
    "const", "enum", "fn", "mod", "static", "struct", "trait", "type", "union",
];

/// The facts about one file that decide its place among the modules of its crate.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// The modules that it declares and that have a file of their own.
    pub(super) modules: Vec<String>,
    /// The names of its items, also of those inside others.
    pub(super) items: Vec<String>,
    pub(super) imports: Vec<Import>,
}

/// A path as the file has it, relative to the file's module if it does not begin with `crate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    /// The name that a `use` gives to it here; `*`: every name behind the path.
    pub(super) name: Option<String>,
}

impl Source {
    pub(super) fn read(text: &str) -> Source {
        let tokens = tokens(&without_tests(&code_only(text)));
        let modules = tokens
            .windows(3)
            .filter(|three| three[0] == "mod" && three[2] == ";");
        let items = tokens
            .windows(2)
            .filter(|two| ITEMS.contains(&two[0].as_str()));
        Source {
            modules: modules.map(|three| three[1].clone()).collect(),
            items: items.map(|two| two[1].clone()).collect(),
            imports: imports(&tokens),
        }
    }
}

/// Names and punctuation of code that has neither comments nor texts; `::` is one token.
pub(super) fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
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
    tokens
}

/// The imports in their order. `super` that only leaves a module inside of the file is dropped, and
/// so are imports among such modules.
fn imports(tokens: &[String]) -> Vec<Import> {
    let mut found = Vec::new();
    // Depths of braces in which the modules inside of the file end.
    let mut inside: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut at = 0;
    while at < tokens.len() {
        let before = found.len();
        match tokens[at].as_str() {
            "{" => {
                if at >= 2 && tokens[at - 2] == "mod" {
                    inside.push(depth);
                }
                depth += 1;
            }
            "}" => {
                depth = depth.saturating_sub(1);
                inside.pop_if(|end| *end == depth);
            }
            "use" => at = tree(tokens, at + 1, &[], &mut found) - 1,
            "crate" | "super" => {
                let mut path = vec![tokens[at].clone()];
                while tokens.get(at + 1).is_some_and(|token| token == "::")
                    && let Some(name) = tokens.get(at + 2)
                {
                    path.push(name.clone());
                    at += 2;
                }
                found.push(Import { path, name: None });
            }
            _ => {}
        }
        at += 1;
        if !inside.is_empty() {
            let imports = found.split_off(before);
            found.extend(imports.into_iter().filter_map(|mut import| {
                import.path = seen_from_file(import.path, inside.len())?;
                import.name = None;
                Some(import)
            }));
        }
    }
    found
}

/// A path in a module that is `inside` modules deep in the file, as the file's own module sees it.
fn seen_from_file(path: Vec<String>, inside: usize) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    if path[0] == "crate" {
        return Some(path);
    }
    (supers >= inside).then(|| path[inside..].to_vec())
}

/// Reads one tree of a `use` from `at` on; returns the position of the token behind it.
fn tree(tokens: &[String], mut at: usize, before: &[String], found: &mut Vec<Import>) -> usize {
    let mut path = before.to_vec();
    let mut name = None;
    let mut is_whole = false;
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
            "as" => {
                name = tokens.get(at + 1).cloned();
                at += 1;
            }
            "self" if !path.is_empty() => is_whole = true,
            part => path.push(part.to_owned()),
        }
        at += 1;
    }
    if path.len() > before.len() || is_whole {
        let name = name.or_else(|| path.last().cloned());
        path.pop_if(|part| part == "*");
        found.push(Import { path, name });
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, Option<String>)> {
        let imports = Source::read(text).imports.into_iter();
        imports
            .map(|import| (import.path.join("::"), import.name))
            .collect()
    }

    #[test]
    fn a_use_is_read_with_its_names() {
        let text = "pub use super::a::{self, B as C, d::{E, f::*}};\nuse self::g as h;\n\
                    use crate::i::{j::{self as k}};\n";
        let expected = [
            ("super::a", "a"),
            ("super::a::B", "C"),
            ("super::a::d::E", "E"),
            ("super::a::d::f", "*"),
            ("self::g", "h"),
            ("crate::i::j", "k"),
        ];
        let expected = expected.map(|(path, name)| (path.to_owned(), Some(name.to_owned())));
        assert_eq!(found(text), expected);
    }

    #[test]
    fn other_paths_are_read_without_names() {
        let text = "fn f(a: crate::a::B) { super::super::c(); self::d(); e::f(); }";
        let expected = ["crate::a::B", "super::super::c"];
        assert_eq!(found(text), expected.map(|path| (path.to_owned(), None)));
    }

    #[test]
    fn paths_of_a_module_inside_the_file_are_those_of_the_file() {
        let text = "mod a {\n    use super::{B, super::c};\n    use d::E;\n    pub use crate::f;\n\
                    fn g() { super::h() }\n}\nuse super::i;\n";
        let paths = found(text).into_iter().map(|(path, _)| path);
        let expected = ["B", "super::c", "crate::f", "h", "super::i"];
        assert_eq!(paths.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn modules_of_tests_are_left_out() {
        let source = Source::read("mod a;\n#[cfg(test)]\nmod b;\npub mod c { struct D; }\n");
        assert_eq!(source.modules, ["a"]);
        assert_eq!(source.items, ["a", "c", "D"]);
    }
}
