//! Rule: a function keeps within its length, tests included.
//!
//! The length of a function is the number of lines with code from `fn` to its closing brace: a
//! comment, a blank line and the inner lines of a text do not count, as for Clippy's
//! `too_many_lines`. A function inside another one counts for both.

use std::collections::BTreeSet;

use super::sources::code_only;
use super::{House, read};

/// Most lines of a function; a longer one has more than one purpose, or a row in `LONG` with the
/// reason.
const LINES_MAX: usize = 70;
/// File, function and reason.
const LONG: &[(&str, &str, &str)] = &[
    (
        "crates/duramen/tests/it/closing.rs",
        "every_operation_of_a_closed_store_says_so",
        "one flat list: a row for each method of a store and a session",
    ),
    (
        "crates/server/tests/it/differential/scripts.rs",
        "function_requests",
        "one flat list of requests",
    ),
    (
        "crates/sim/src/cluster/plan.rs",
        "draw",
        "one flat table: a row for each kind of fault",
    ),
    (
        "crates/wire/tests/it/native/samples.rs",
        "peer",
        "one flat list: a sample of each message",
    ),
    (
        "crates/wire/tests/it/native/samples.rs",
        "to_coordinator",
        "one flat list: a sample of each message",
    ),
    (
        "crates/wire/tests/it/requests.rs",
        "errors_in_redis_words",
        "one flat list of inputs and errors",
    ),
];

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    let mut too_long = Vec::new();
    for file in house.with_extension("rs") {
        let text = read(&house.root.join(file))?;
        let found = functions(&text).into_iter();
        too_long.extend(
            found
                .filter(|function| function.lines > LINES_MAX)
                .map(|function| (file.display().to_string(), function)),
        );
    }
    compare(&too_long, LONG, complaints);
    Ok(())
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
struct Function {
    name: String,
    /// The line of `fn`, from 1.
    at: usize,
    lines: usize,
}

/// Complaints about functions that are too long, and about rows that excuse none.
fn compare(
    too_long: &[(String, Function)],
    excused: &[(&str, &str, &str)],
    complaints: &mut Vec<String>,
) {
    let mut used = BTreeSet::new();
    for (file, function) in too_long {
        let Function { name, at, lines } = function;
        if excused.iter().any(|row| row.0 == file && row.1 == name) {
            used.insert((file.as_str(), name.as_str()));
            continue;
        }
        complaints.push(format!(
            "{file}:{at}: `{name}` has {lines} lines of code, more than {LINES_MAX}: split it by \
             purpose, or add a reason to LONG (crates/xtask/src/tidy/functions.rs)"
        ));
    }
    for (file, name, _) in excused {
        if !used.contains(&(*file, *name)) {
            complaints.push(format!(
                "{file}: `{name}` needs no row in LONG (crates/xtask/src/tidy/functions.rs), remove it"
            ));
        }
    }
}

/// All functions of a source that have a body.
fn functions(text: &str) -> Vec<Function> {
    let code = code_only(text);
    let mut found = Vec::new();
    for (start, name) in names(&code) {
        let Some(length) = length(&code[start..]) else {
            continue;
        };
        let function = &code[start..start + length];
        found.push(Function {
            name: name.to_owned(),
            at: 1 + code[..start].matches('\n').count(),
            lines: function.lines().filter(|line| has_code(line)).count(),
        });
    }
    found
}

fn has_code(line: &str) -> bool {
    !line.trim().is_empty()
}

/// Each `fn` that a name follows, with its position; the type `fn(u8)` has none.
fn names(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices("fn").filter_map(move |(at, word)| {
        let rest = &code[at + word.len()..];
        let is_word = !code[..at].ends_with(is_part) && rest.starts_with(char::is_whitespace);
        let rest = rest.trim_start();
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        (is_word && end > 0).then(|| (at, &rest[..end]))
    })
}

/// The bytes from `fn` to the closing brace; `None`: a declaration without a body.
fn length(code: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' => depth -= 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, usize, usize)> {
        let functions = functions(text).into_iter();
        functions
            .map(|Function { name, at, lines }| (name, at, lines))
            .collect()
    }

    fn complaints(too_long: &str, excused: &[(&str, &str, &str)]) -> Vec<String> {
        let function = Function {
            name: too_long.to_owned(),
            at: 3,
            lines: 90,
        };
        let mut complaints = Vec::new();
        compare(&[("a.rs".to_owned(), function)], excused, &mut complaints);
        complaints
    }

    #[test]
    fn lines_of_code_count_from_fn_to_the_closing_brace() {
        for (body, lines) in [
            ("fn f() {}", 1),
            ("fn f() {\n    a();\n}", 3),
            ("fn f(\n    a: u8,\n) -> [u8; 3]\nwhere\n    A: B,\n{\n}", 7),
            ("fn f() {\n\n    // a\n    /* b\n    c */\n    d();\n}", 3),
            ("fn f() {\n    let a = \"b\n    } c\n    d\";\n}", 4),
            ("fn f() {\n    let a = '}';\n    let b = '{';\n}", 4),
            (
                "fn f() {\n    if a { b() } else { [c; 2] }\n}\n\nconst X: u8 = 1;",
                3,
            ),
        ] {
            assert_eq!(found(body), [("f".to_owned(), 1, lines)], "{body}");
        }
    }

    #[test]
    fn every_function_with_a_body_is_found() {
        let text = "type A = fn(u8);\ntrait B {\n    fn a(&self, b: [u8; 2]);\n    fn c() {\n    }\n}\n\
                    #[cfg(test)]\nmod tests {\n    #[test]\n    pub async fn d() {\n        fn e() {}\n    }\n}\n\
                    // fn g() {}\nlet often = \"fn h() {}\";\n";
        let expected = [("c", 4, 2), ("d", 10, 3), ("e", 11, 1)];
        assert_eq!(
            found(text),
            expected.map(|(name, at, lines)| (name.to_owned(), at, lines))
        );
    }

    #[test]
    fn a_long_function_needs_a_row_and_a_row_needs_a_long_function() {
        assert!(complaints("f", &[])[0].starts_with("a.rs:3: `f` has 90 lines"));
        assert_eq!(complaints("f", &[("a.rs", "f", "flat")]), [""; 0]);
        assert_eq!(complaints("f", &[("a.rs", "g", "flat")]).len(), 2);
        assert_eq!(complaints("f", &[("b.rs", "f", "flat")]).len(), 2);
    }
}
