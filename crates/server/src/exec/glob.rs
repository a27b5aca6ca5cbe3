//! Patterns of `KEYS`, `SCAN MATCH` and `CONFIG GET`: `*`, `?`, `[a-z]`, `[^a]`, `\x`, over bytes.
//!
//! Linear in pattern × text: only the last `*` is ever returned to, so that no pattern is exponential.

/// Whether `text` matches `pattern`; `fold` ignores ASCII case.
pub(crate) fn matches(pattern: &[u8], text: &[u8], fold: bool) -> bool {
    let (mut p, mut t) = (pattern, text);
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = p {
            if rest.is_empty() {
                return true;
            }
            retry = Some((rest, t));
            p = rest;
            continue;
        }
        if let [first, t_rest @ ..] = t {
            if let Some(p_rest) = step(p, *first, fold) {
                (p, t) = (p_rest, t_rest);
                continue;
            }
        } else if p.is_empty() {
            return true;
        }
        // A mismatch: let the last `*` take one byte more.
        match retry {
            Some((after_star, [_, rest @ ..])) => {
                retry = Some((after_star, rest));
                (p, t) = (after_star, rest);
            }
            _ => return false,
        }
    }
}

/// The pattern after its first element, if that element matches `byte`.
fn step(pattern: &[u8], byte: u8, fold: bool) -> Option<&[u8]> {
    let same = |a: u8| a == byte || fold && a.eq_ignore_ascii_case(&byte);
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', class @ ..] => {
            let (hit, rest) = class_matches(class, byte, fold);
            hit.then_some(rest)
        }
        [b'\\', escaped, rest @ ..] => same(*escaped).then_some(rest),
        [literal, rest @ ..] => same(*literal).then_some(rest),
    }
}

/// Whether `byte` is in the class that starts after `[`, and the pattern after its `]` (an unclosed class ends with the
/// pattern, as in Redis).
fn class_matches(class: &[u8], byte: u8, fold: bool) -> (bool, &[u8]) {
    let lower = |b: u8| if fold { b.to_ascii_lowercase() } else { b };
    let byte = lower(byte);
    let (negated, mut class) = match class {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, class),
    };
    let mut hit = false;
    loop {
        class = match class {
            [] => return (hit != negated, class),
            [b']', rest @ ..] => return (hit != negated, rest),
            [b'\\', escaped, rest @ ..] => {
                hit |= *escaped == byte;
                rest
            }
            [from, b'-', to, rest @ ..] => {
                let (from, to) = (lower(*from), lower(*to));
                hit |= (from.min(to)..=from.max(to)).contains(&byte);
                rest
            }
            [one, rest @ ..] => {
                hit |= lower(*one) == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a", "", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h*llo", "hllo", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("*a*b*c*", "xxaxxbxxcxx", true),
            ("*a*b*c", "xxaxxbxxcx", false),
            ("[a", "a", true),
            ("[\\]]", "]", true),
            ("user:*:name", "user:7:name", true),
            ("**", "anything", true),
            ("a*", "b", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes(), false),
                expected,
                "{pattern} against {text}"
            );
        }
        assert!(matches(b"MAX[M]*", b"maxmemory", true));
        assert!(!matches(b"MAX*", b"maxmemory", false));
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(60) + "b";
        assert!(!matches(
            pattern.as_bytes(),
            "a".repeat(20_000).as_bytes(),
            false
        ));
    }
}
