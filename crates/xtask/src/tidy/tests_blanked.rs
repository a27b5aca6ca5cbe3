//! The code of a file without the items that only tests have.

use super::sources::words;

/// Words that begin an item; of other things, such as a field, a comma is the end.
const ITEMS: [&str; 8] = [
    "enum", "fn", "impl", "mod", "struct", "trait", "type", "use",
];

/// The code with all items blanked that only tests have; lines stay. `code` has neither comments
/// nor texts.
pub(super) fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(") {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let attribute = rest.find(']').map_or(rest.len(), |end| end + 1);
        let is_test = is_for_tests(&rest[..attribute]);
        let (item, behind) = if is_test {
            rest.split_at(attribute + item(&rest[attribute..]))
        } else {
            rest.split_at(attribute)
        };
        if is_test {
            kept.extend(item.chars().filter(|c| *c == '\n'));
        } else {
            kept.push_str(item);
        }
        rest = behind;
    }
    kept + rest
}

fn is_for_tests(attribute: &str) -> bool {
    words(attribute).any(|word| word == "test")
        && !attribute.contains("not(test)")
        && !attribute.starts_with("#[cfg(any(")
}

/// The bytes up to the end of an item or of a field.
fn item(code: &str) -> usize {
    let is_item = |before: &str| words(before).any(|word| ITEMS.contains(&word));
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return at,
            ')' | ']' => depth -= 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    let has_end = code[at + 1..].starts_with(';');
                    return at + 1 + usize::from(has_end);
                }
            }
            ';' if depth == 0 => return at + 1,
            ',' if depth == 0 && !is_item(&code[..at]) => return at + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_tests_are_blanked() {
        for item in [
            "mod tests {\n    fn f() { {} }\n}",
            "use a::{b, c};",
            "#[test]\nfn f<A, B>(a: [A; 2]) -> B {\n}",
            "mod tests;",
            "pub(crate) field: u8,",
            "const X: u8 = 1;",
            "impl<A, B> C<A, B> {\n}",
        ] {
            for attribute in ["#[cfg(test)]", "#[cfg(all(test, not(any(loom, shuttle))))]"] {
                let code = format!("a {attribute}\n{item} b");
                let kept = without_tests(&code);
                let words: Vec<&str> = kept.split_whitespace().collect();
                assert_eq!(words, ["a", "b"], "{code}");
                assert_eq!(kept.lines().count(), code.lines().count(), "{code}");
            }
        }
        assert_eq!(without_tests("S { #[cfg(test)] a: 1 } b"), "S { } b");
    }

    #[test]
    fn other_attributes_stay() {
        for code in [
            "#[cfg(not(test))]\nfn f() {}",
            "#[cfg(any(test, loom))]\nuse a;",
            "#[cfg(unix)] a",
            "#[test]\nfn f() {}",
        ] {
            assert_eq!(without_tests(code), code);
        }
    }
}
