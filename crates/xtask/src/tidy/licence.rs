//! Reads SPDX licence expressions: `(MIT OR Apache-2.0) AND Unicode-3.0`, and the old form
//! `MIT/Apache-2.0`.

/// Licences that require no more than a notice.
const PERMISSIVE: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "NCSA",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether the expression can be met with permissive licences alone. An empty or malformed one
/// can't.
pub(super) fn is_permissive(expression: &str) -> bool {
    let spaced = expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut position = 0;
    let verdict = either(&words, &mut position);
    position == words.len() && verdict == Some(true)
}

/// `both (OR both)*`. `None` means malformed.
fn either(words: &[&str], position: &mut usize) -> Option<bool> {
    let mut verdict = both(words, position)?;
    while words.get(*position) == Some(&"OR") {
        *position += 1;
        verdict |= both(words, position)?;
    }
    Some(verdict)
}

/// `term (AND term)*`.
fn both(words: &[&str], position: &mut usize) -> Option<bool> {
    let mut verdict = term(words, position)?;
    while words.get(*position) == Some(&"AND") {
        *position += 1;
        verdict &= term(words, position)?;
    }
    Some(verdict)
}

/// `( either )` or a licence with an optional exception.
fn term(words: &[&str], position: &mut usize) -> Option<bool> {
    let word = *words.get(*position)?;
    *position += 1;
    if word == "(" {
        let verdict = either(words, position)?;
        let closed = words.get(*position) == Some(&")");
        *position += 1;
        return closed.then_some(verdict);
    }
    if matches!(word, ")" | "OR" | "AND" | "WITH") {
        return None;
    }
    if words.get(*position) != Some(&"WITH") {
        return Some(PERMISSIVE.contains(&word));
    }
    let exception = *words.get(*position + 1)?;
    *position += 2;
    Some(PERMISSIVE.contains(&format!("{word} WITH {exception}").as_str()))
}

#[cfg(test)]
mod tests {
    use super::is_permissive;

    #[test]
    fn one_permissive_choice_is_enough() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        ] {
            assert!(is_permissive(good), "{good}");
        }
    }

    #[test]
    fn the_rest_is_refused() {
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR GPL-3.0) AND LGPL-2.1",
            "GPL-2.0 WITH Classpath-exception-2.0",
            "(MIT",
            "MIT OR",
            "MIT)",
        ] {
            assert!(!is_permissive(bad), "{bad}");
        }
    }
}
