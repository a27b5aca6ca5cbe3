//! Rules for each Rust file: it opens with its purpose, keeps within its length, holds no
//! placeholder, lies in the folder of its modules, and uses `unsafe` only if docs/unsafe.md lists
//! it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{House, read, rows_below};

/// Most lines of a file; a longer one has more than one purpose, or a row in `LONG` with the
/// reason.
const LINES_MAX: usize = 800;
const LONG: [(&str, &str); 0] = [];

/// Left over from unfinished work.
const PLACEHOLDERS: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

/// Its table names each module with `unsafe`.
const PAGE: &str = "docs/unsafe.md";

pub(super) fn check(house: &House, complaints: &mut Vec<String>) -> Result<(), String> {
    beside(&house.files, complaints);
    let mut with_unsafe = BTreeSet::new();
    for file in house.with_extension("rs") {
        let text = read(&house.root.join(file))?;
        let shown = file.display();
        if !text.starts_with("//!") {
            complaints.push(format!(
                "{shown}:1: open the file with `//!` and its purpose"
            ));
        }
        length(file, text.lines().count(), complaints);
        let code = code_only(&text);
        for (index, line) in code.lines().enumerate() {
            for placeholder in PLACEHOLDERS {
                if words(line).any(|word| word == placeholder.trim_end_matches('!'))
                    && line.contains(placeholder)
                {
                    complaints.push(format!(
                        "{shown}:{}: `{placeholder}` is unfinished work",
                        index + 1
                    ));
                }
            }
        }
        if words(&code).any(|word| word == "unsafe") {
            with_unsafe.insert(shown.to_string());
        }
    }
    let listed: BTreeSet<String> =
        rows_below(&read(&house.root.join(PAGE))?, "Modules with unsafe")
            .into_iter()
            .map(|row| row.name)
            .collect();
    for file in with_unsafe.difference(&listed) {
        complaints.push(format!("{file}: uses `unsafe` but has no row in {PAGE}"));
    }
    for file in listed.difference(&with_unsafe) {
        complaints.push(format!(
            "{PAGE}: `{file}` uses no `unsafe` (any more), remove its row"
        ));
    }
    Ok(())
}

/// The module of a folder is its `mod.rs`: one style in all crates.
fn beside(files: &[PathBuf], complaints: &mut Vec<String>) {
    let folders: BTreeSet<&Path> = files
        .iter()
        .flat_map(|file| file.ancestors().skip(1))
        .collect();
    for file in files {
        let module = file.with_extension("");
        let is_source = file.extension().is_some_and(|found| found == "rs");
        if is_source && folders.contains(module.as_path()) {
            complaints.push(format!(
                "{}: the module of a folder is its `mod.rs`: move it there",
                file.display()
            ));
        }
    }
}

fn length(file: &Path, lines: usize, complaints: &mut Vec<String>) {
    let excused = LONG.iter().any(|(path, _)| Path::new(path) == file);
    let shown = file.display();
    if lines > LINES_MAX && !excused {
        complaints.push(format!(
            "{shown}: {lines} lines, more than {LINES_MAX}: split it by purpose, or add a reason to LONG \
             (crates/xtask/src/tidy/sources.rs)"
        ));
    }
    if lines <= LINES_MAX && excused {
        complaints.push(format!(
            "{shown}: {lines} lines need no row in LONG, remove it"
        ));
    }
}

pub(super) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The text with comments, strings and characters blanked, line breaks kept.
pub(super) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let length = token(&bytes[at..], at > 0 && is_word(bytes[at - 1]));
        match length {
            Token::Code(length) => {
                code.extend(bytes[at..at + length].iter().map(|byte| char::from(*byte)));
                at += length;
            }
            Token::Blank(length) => {
                let end = (at + length).min(bytes.len());
                let breaks = bytes[at..end].iter().filter(|byte| **byte == b'\n').count();
                code.extend(std::iter::repeat_n('\n', breaks));
                code.push(' ');
                at = end;
            }
        }
    }
    code
}

/// The text's comments, each in its line; all else is left out.
pub(super) fn comments_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut comments = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let (Token::Code(length) | Token::Blank(length)) =
            token(&bytes[at..], at > 0 && is_word(bytes[at - 1]));
        let end = (at + length).min(bytes.len());
        if bytes[at..].starts_with(b"//") || bytes[at..].starts_with(b"/*") {
            comments.push_str(&text[at..end]);
        } else {
            let breaks = bytes[at..end].iter().filter(|byte| **byte == b'\n').count();
            comments.extend(std::iter::repeat_n('\n', breaks));
        }
        at = end;
    }
    comments
}

/// The token at the start of a text, with its length in bytes.
enum Token {
    Code(usize),
    Blank(usize),
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn token(bytes: &[u8], in_word: bool) -> Token {
    match bytes {
        [b'/', b'/', ..] => Token::Blank(find(bytes, b"\n").unwrap_or(bytes.len())),
        [b'/', b'*', ..] => Token::Blank(block_comment(bytes)),
        [b'"', ..] => Token::Blank(quoted(bytes)),
        [b'r' | b'b' | b'c', ..] if !in_word => prefixed(bytes),
        [b'\'', b'\\', ..] => Token::Blank(3 + find(&bytes[3..], b"'").unwrap_or(0) + 1),
        [b'\'', character, ..] => {
            let width = 1
                + usize::from(*character >= 0xC0)
                + usize::from(*character >= 0xE0)
                + usize::from(*character >= 0xF0);
            match bytes.get(1 + width) {
                Some(b'\'') => Token::Blank(width + 2),
                _ => Token::Code(1),
            }
        }
        _ => Token::Code(1),
    }
}

/// A string or character with a prefix (`r#"`, `b"`, `b'`), or just a letter.
fn prefixed(bytes: &[u8]) -> Token {
    let letters = bytes
        .iter()
        .take(2)
        .take_while(|byte| b"rbc".contains(byte))
        .count();
    let rest = &bytes[letters..];
    let hashes = rest.iter().take_while(|byte| **byte == b'#').count();
    let raw = bytes[..letters].contains(&b'r');
    if raw && rest.get(hashes) == Some(&b'"') {
        let end = format!("\"{}", "#".repeat(hashes));
        let start = letters + hashes + 1;
        let length = find(&bytes[start..], end.as_bytes())
            .map_or(bytes.len(), |found| start + found + end.len());
        return Token::Blank(length);
    }
    match rest {
        [b'"', ..] => Token::Blank(letters + quoted(rest)),
        _ => Token::Code(letters),
    }
}

fn quoted(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn block_comment(bytes: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    bytes.len()
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(text: &str, word: &str) -> bool {
        words(&code_only(text)).any(|found| found == word)
    }

    #[test]
    fn a_folder_has_its_module_inside() {
        let complaints = |files: &[&str]| {
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            let mut complaints = Vec::new();
            beside(&files, &mut complaints);
            complaints
        };
        assert_eq!(
            complaints(&["src/a/mod.rs", "src/a/b.rs", "src/ab.rs"]),
            [""; 0]
        );
        // A folder counts if its sources are further down, and if it holds no source at all.
        for inside in ["src/a/b.rs", "src/a/mod.rs", "src/a/b/c.rs", "src/a/b.txt"] {
            assert_eq!(
                complaints(&["src/a.rs", inside]),
                ["src/a.rs: the module of a folder is its `mod.rs`: move it there"],
                "{inside}"
            );
        }
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        for text in [
            "// unsafe",
            "/* a /* unsafe */ unsafe */ b",
            "let a = \"unsafe \\\" unsafe\";",
            "let a = r#\"unsafe \" unsafe\"#; let b = br\"unsafe\";",
            "deny(unsafe_op_in_unsafe_fn)",
            "let quote = '\"'; // unsafe \" ",
            "let escape = '\\''; let s = \"unsafe\";",
        ] {
            assert!(!has(text, "unsafe"), "{text}");
        }
    }

    #[test]
    fn code_is_code() {
        for text in [
            "unsafe { x() }",
            "let quote = '\"'; unsafe { x() } // \"",
            "fn f<'a>(a: &'a str) { unsafe {} }",
            "let a = 'é'; unsafe {}",
            "let a = \"//\"; unsafe {}",
            "let r = br; unsafe {}",
        ] {
            assert!(has(text, "unsafe"), "{text}");
        }
        assert_eq!(code_only("a\n\"b\nc\"\nd").lines().count(), 4);
    }

    #[test]
    fn comments_stay_in_their_lines() {
        let text = "let a = \"// no\n\"; // é\nb(); /* c\nd */ e();\n/// f";
        assert_eq!(comments_only(text), "\n// é\n/* c\nd */\n/// f");
    }
}
