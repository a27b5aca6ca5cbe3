//! Rule: an invariant has one name, and each citation of it resolves.
//!
//! A label is a capital letter and one or two digits. The item `- L1: …` of a list in a comment
//! defines it for its file. In comments and on pages, `D9` cites the label of the same file and
//! `swap::D9` that of another one; parents of the module are added until one definition is left.
//! In parentheses behind the path of a source file in backquotes, a bare label is that file's.
//! Pages define none. A bare label in backquotes is code, and `S3-FIFO` is a name: both cite
//! nothing.

use std::collections::BTreeMap;
use std::path::Path;

use super::prose::is_generated;
use super::sources::comments_only;
use super::{House, read};

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    check_texts(&texts(house)?, complaints);
    Ok(())
}

/// All comments and pages that may cite.
pub(super) fn texts(house: &House) -> Result<Vec<Text>, String> {
    let mut texts = Vec::new();
    for file in house.with_extension("rs") {
        texts.push(Text::of_source(file, &read(&house.root.join(file))?));
    }
    for file in house.with_extension("md") {
        if !is_generated(file) {
            texts.push(Text::of_page(file, &read(&house.root.join(file))?));
        }
    }
    Ok(texts)
}

/// The comments of a source file, or a page.
pub(super) struct Text {
    pub(super) file: String,
    /// Empty: a page.
    module: Vec<String>,
    /// Lines outside of code blocks, with their numbers; an empty one ends a paragraph.
    pub(super) lines: Vec<(usize, String)>,
}

impl Text {
    pub(super) fn of_source(file: &Path, source: &str) -> Text {
        let comments = comments_only(source);
        let lines = comments.lines().map(|line| {
            let line = line.trim_start_matches(['/', '!', '*']);
            line.trim_end_matches("*/").trim()
        });
        Text {
            file: file.display().to_string(),
            module: module(file),
            lines: without_code(lines),
        }
    }

    pub(super) fn of_page(file: &Path, page: &str) -> Text {
        Text {
            file: file.display().to_string(),
            module: Vec::new(),
            lines: without_code(page.lines().map(str::trim)),
        }
    }

    /// The labels that the file defines, with their lines.
    fn definitions(&self) -> impl Iterator<Item = (&str, usize)> {
        let is_source = !self.module.is_empty();
        let lines = self.lines.iter().filter(move |_| is_source);
        lines.filter_map(|(number, line)| Some((definition(line)?, *number)))
    }

    fn citations(&self) -> Vec<(usize, Citation<'_>)> {
        let mut found = Vec::new();
        let mut in_code = false;
        // The file whose path the text before named, and whether its parentheses are open.
        let mut named: Option<&str> = None;
        let mut is_open = false;
        for (number, line) in &self.lines {
            if line.is_empty() {
                (in_code, named, is_open) = (false, None, false);
            }
            let defined = definition(line).filter(|_| !self.module.is_empty());
            let rest = defined.map_or(line.as_str(), |label| &line["- ".len() + label.len()..]);
            for piece in rest.split_inclusive('`') {
                let text = piece.trim_end_matches('`');
                if in_code {
                    named = text.ends_with(".rs").then_some(text);
                    let paths = citations(text).filter(|cited| !cited.path.is_empty());
                    found.extend(paths.map(|cited| (*number, cited)));
                } else {
                    is_open |= named.is_some() && text.trim_start().starts_with('(');
                    let end = text.find(')').unwrap_or(text.len());
                    let (inside, outside) = text.split_at(if is_open { end } else { 0 });
                    let path = named
                        .map(|file| module(Path::new(file)))
                        .unwrap_or_default();
                    found.extend(citations(inside).map(|cited| (*number, cited.or_of(&path))));
                    found.extend(citations(outside).map(|cited| (*number, cited)));
                    is_open &= outside.is_empty();
                    named = named.filter(|_| is_open || text.trim().is_empty());
                }
                in_code ^= piece.ends_with('`');
            }
        }
        found
    }
}

fn without_code<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<(usize, String)> {
    let mut is_code = false;
    let kept = lines.enumerate().map(|(index, line)| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        let line = if is_code || is_fence { "" } else { line };
        (index + 1, line.to_owned())
    });
    kept.collect()
}

/// The module of a source file, below its crate: `engine::log::swap`.
fn module(file: &Path) -> Vec<String> {
    let names = file.with_extension("");
    let names = names.iter().map(|name| name.to_string_lossy());
    let mut path: Vec<String> = names
        .filter(|name| name != "crates" && name != "src")
        .map(String::from)
        .collect();
    let last = path.last().map(String::as_str);
    if path.len() > 1 && matches!(last, Some("mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

/// The label that a line defines.
fn definition(line: &str) -> Option<&str> {
    let (label, _) = line.strip_prefix("- ")?.split_once(':')?;
    is_label(label).then_some(label)
}

fn is_label(word: &str) -> bool {
    let digits = word.strip_prefix(|first: char| first.is_ascii_uppercase());
    digits.is_some_and(|digits| {
        (1..=2).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit())
    })
}

/// The label of a module; of the same file, if it has no path.
#[derive(Debug, PartialEq, Eq)]
struct Citation<'a> {
    path: Vec<String>,
    label: &'a str,
}

impl Citation<'_> {
    /// The same label; if it is a bare one, that of this module.
    fn or_of(mut self, module: &[String]) -> Self {
        if self.path.is_empty() {
            self.path = module.to_vec();
        }
        self
    }
}

fn citations(text: &str) -> impl Iterator<Item = Citation<'_>> {
    let is_end = |c: char| !c.is_alphanumeric() && c != '_' && c != ':';
    text.split(is_end).filter_map(move |word| {
        let start = word.as_ptr().addr() - text.as_ptr().addr();
        if is_hyphenated(&text[start + word.len()..]) {
            return None;
        }
        let mut path: Vec<&str> = word.trim_matches(':').split("::").collect();
        let label = path.pop().filter(|label| is_label(label))?;
        let is_module = |name: &&str| name.starts_with(|c: char| c.is_ascii_lowercase());
        let path_is_one = path.iter().all(is_module);
        let path = path.into_iter().map(str::to_owned).collect();
        path_is_one.then_some(Citation { path, label })
    })
}

/// Whether the text behind a word makes it a part of a name: `S3-FIFO`, but not `W1-W8`.
fn is_hyphenated(rest: &str) -> bool {
    let mut next = rest.chars();
    next.next() == Some('-') && next.by_ref().take(2).filter(|c| c.is_alphabetic()).count() == 2
}

fn check_texts(texts: &[Text], complaints: &mut Vec<String>) {
    let mut modules = Vec::new();
    for text in texts {
        let mut labels = BTreeMap::new();
        for (label, number) in text.definitions() {
            if let Some(first) = labels.insert(label, number) {
                complaints.push(format!(
                    "{}:{number}: `{label}` is defined in line {first} as well: give one another name",
                    text.file
                ));
            }
        }
        if !text.module.is_empty() {
            modules.push((&text.module, labels));
        }
    }
    for text in texts {
        let own: Vec<&str> = text.definitions().map(|(label, _)| label).collect();
        for (number, Citation { path, label }) in text.citations() {
            let problem = match &path[..] {
                [] if own.contains(&label) => None,
                [] => Some(format!(
                    "`{label}` is not defined in this file: cite `module::{label}`, or set what is \
                     no label in backquotes"
                )),
                path => problem(&modules, path, label),
            };
            complaints.extend(problem.map(|problem| format!("{}:{number}: {problem}", text.file)));
        }
    }
}

/// The fault of a citation of another module's label.
fn problem(
    modules: &[(&Vec<String>, BTreeMap<&str, usize>)],
    path: &[String],
    label: &str,
) -> Option<String> {
    let shown = path.join("::");
    let named = modules.iter().filter(|(module, _)| {
        let parents = module.len().saturating_sub(path.len());
        module[parents..] == *path
    });
    let (mut count, mut found) = (0, Vec::new());
    for (module, labels) in named {
        count += 1;
        if labels.contains_key(label) {
            found.push(format!("`{}`", module.join("::")));
        }
    }
    match (count, found.len()) {
        (_, 1) => None,
        (0, _) => Some(format!("`{shown}::{label}`: there is no module `{shown}`")),
        (_, 0) => Some(format!(
            "`{shown}::{label}`: `{shown}` does not define it: correct or remove it"
        )),
        _ => Some(format!(
            "`{shown}::{label}` is defined in {}: add a parent",
            found.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let texts: Vec<Text> = files
            .iter()
            .map(|(file, text)| {
                if file.ends_with(".md") {
                    Text::of_page(Path::new(file), text)
                } else {
                    Text::of_source(Path::new(file), text)
                }
            })
            .collect();
        let mut complaints = Vec::new();
        check_texts(&texts, &mut complaints);
        complaints
    }

    /// Two modules `swap` with a label each that the other one has, and one that it has not.
    const SWAPS: [(&str, &str); 2] = [
        (
            "crates/e/src/log/swap.rs",
            "//! - D1: a\n//!   b.\n//! - D2: c (D1).\n",
        ),
        (
            "crates/n/src/swap/mod.rs",
            "/// - D1: a\n/// - D3: c\nfn a() {} // D3\n",
        ),
    ];

    fn citing(file: &str, text: &str) -> Vec<String> {
        complaints(&[SWAPS[0], SWAPS[1], (file, text)])
    }

    #[test]
    fn labels_are_defined_once_in_a_file() {
        assert_eq!(complaints(&SWAPS), [""; 0]);
        let twice = complaints(&[("a.rs", "//! - D1: a\n\n/// - D1: b\n")]);
        let wanted = "a.rs:3: `D1` is defined in line 1 as well: give one another name";
        assert_eq!(twice, [wanted]);
    }

    #[test]
    fn bare_citations_are_of_the_same_file() {
        let found = citing(
            "crates/e/src/log/mod.rs",
            "// as D1 says\nfn a() {} // (D2)\n/* D3 */",
        );
        assert_eq!(found.len(), 3);
        assert!(found[0].starts_with("crates/e/src/log/mod.rs:1: `D1` is not defined"));
        assert!(found[1].contains(":2: `D2`") && found[2].contains(":3: `D3`"));
        // A definition does not count as a citation, nor a page's item as a definition.
        assert_eq!(citing("docs/a.md", "- D1: a\n").len(), 1);
    }

    #[test]
    fn qualified_citations_name_one_definition() {
        for (cited, problem) in [
            ("swap::D2", ""),
            ("swap::D3", ""),
            ("log::swap::D1", ""),
            ("n::swap::D1:", ""),
            ("swap::D1", "`e::log::swap`, `n::swap`: add a parent"),
            ("`swap::D1`", "add a parent"),
            ("swap::D4", "`swap` does not define it"),
            ("log::swap::D3", "`log::swap` does not define it"),
            ("swop::D1", "no module `swop`"),
            ("wap::D2", "no module `wap`"),
        ] {
            for file in ["crates/e/src/lib.rs", "docs/a.md"] {
                let found = citing(file, &format!("// see {cited}, always\n"));
                let expected = if problem.is_empty() { 0 } else { 1 };
                assert_eq!(found.len(), expected, "{cited}: {found:?}");
                assert!(
                    found.iter().all(|found| found.contains(problem)),
                    "{found:?}"
                );
            }
        }
    }

    #[test]
    fn labels_behind_a_path_are_of_that_file() {
        let path = "`crates/e/src/log/swap.rs`";
        for (text, wrong) in [
            (format!("{path} (D1, D2), `a`"), 0),
            (format!("{path}\n(D1,\nD2), `a`"), 0),
            (format!("{path} (D1, D3)"), 1),
            (format!("{path} (D2) D1"), 1),
            (format!("{path} and (D1)"), 1),
            (format!("{path}\n\n(D1)"), 1),
            (format!("{path} (b), (D1)"), 1),
            ("`crates/e/src/log/no.rs` (D1)".to_owned(), 1),
        ] {
            let found = citing("docs/a.md", &text);
            assert_eq!(found.len(), wrong, "{text}: {found:?}");
        }
    }

    #[test]
    fn other_words_cite_nothing() {
        for text in [
            "// S3-FIFO, SHA1, E100, a2, Ab1, 1D1, _D1, N.1",
            "// `D1`, `a D1 b\n// D1`",
            "// Level::D1",
            "// ```\n// D1\n// ```",
            "let a = \"// D1\"; let D1 = 2;",
        ] {
            assert_eq!(citing("a.rs", text), [""; 0], "{text}");
        }
        for text in [
            "// W1-W8",
            "// `a` W1 W8",
            "// `a\n\n// W1 W8",
            "// W1, W8.",
        ] {
            assert_eq!(citing("a.rs", text).len(), 2, "{text}");
        }
    }

    #[test]
    fn modules_have_the_names_of_their_files() {
        for (file, name) in [
            ("crates/e/src/lib.rs", "e"),
            ("crates/e/src/log/mod.rs", "e::log"),
            ("crates/e/src/log.rs", "e::log"),
            ("crates/e/tests/it/main.rs", "e::tests::it"),
            ("crates/e/tests/it/log/mod.rs", "e::tests::it::log"),
            ("fuzz/targets/x.rs", "fuzz::targets::x"),
        ] {
            assert_eq!(module(Path::new(file)).join("::"), name);
        }
    }
}
