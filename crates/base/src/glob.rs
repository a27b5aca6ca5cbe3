//! Patterns of `KEYS`, `SCAN MATCH`, `CONFIG GET` and ACL rules: `*`, `?`, `[a-z]`, `[^a]`, `\x`,
//! over bytes.
//!
//! A pattern is an automaton with one state for each element that matches a byte; a `*` lets a
//! state persist. All states are the bits of a few words and process a byte at once: the time for a
//! text is its length times the words of the pattern, for every text and pattern. A prefix with a
//! `*` behind it, the usual rule, is compared as it is.

/// Maximum length of a pattern in bytes: a byte of a key takes at most 16 steps.
pub const PATTERN_BYTES_MAX: usize = 1024;
const WORD_BITS: usize = u64::BITS as usize;

/// A pattern that can be matched against many texts.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// Number of elements that match a byte each.
    elements: usize,
    /// Number of words in a set of states.
    words: usize,
    /// For each byte the set of elements that match it, one set after another.
    takes: Vec<u64>,
    /// States that a `*` lets persist. State `n`: the first `n` elements have matched.
    stays: Vec<u64>,
    /// The pattern is these bytes and one `*`.
    prefix: Option<Box<[u8]>>,
}

impl Pattern {
    /// A pattern of this text. `fold`: ASCII case is ignored. `None`: the pattern is longer than
    /// [`PATTERN_BYTES_MAX`].
    pub fn new(text: &[u8], fold: bool) -> Option<Pattern> {
        if text.len() > PATTERN_BYTES_MAX {
            return None;
        }
        let words = text.len() / WORD_BITS + 1; // there is one more state than elements
        let mut pattern = Pattern {
            elements: 0,
            words,
            takes: vec![0; (1 << u8::BITS) * words],
            stays: vec![0; words],
            prefix: prefix(text, fold),
        };
        let mut rest = text;
        while let Some((first, mut after)) = rest.split_first() {
            match first {
                b'*' => {
                    set(&mut pattern.stays, pattern.elements);
                    rest = after;
                    continue;
                }
                b'?' => pattern.element(|_| true),
                b'[' => {
                    let negated = after.first() == Some(&b'^');
                    let (items, behind) = class_items(after);
                    after = behind;
                    pattern.element(|byte| in_class(&items, byte, fold) != negated);
                }
                b'\\' if !after.is_empty() => {
                    let (escaped, behind) = (after[0], &after[1..]);
                    after = behind;
                    pattern.element(|byte| same(escaped, byte, fold));
                }
                literal => pattern.element(|byte| same(*literal, byte, fold)),
            }
            rest = after;
        }
        Some(pattern)
    }

    fn element(&mut self, matches: impl Fn(u8) -> bool) {
        for byte in 0..=u8::MAX {
            if matches(byte) {
                let at = usize::from(byte) * self.words;
                set(&mut self.takes[at..at + self.words], self.elements);
            }
        }
        self.elements += 1;
    }

    /// Whether the whole text matches.
    pub fn matches(&self, text: &[u8]) -> bool {
        if let Some(prefix) = &self.prefix {
            return text.starts_with(prefix);
        }
        if text.len() < self.elements {
            return false;
        }
        match self.words {
            1 => self.matches_in_one(text),
            _ => self.matches_in_many(text),
        }
    }

    fn matches_in_one(&self, text: &[u8]) -> bool {
        let stays = self.stays[0];
        let mut states = 1;
        for byte in text {
            states = (states & self.takes[usize::from(*byte)]) << 1 | states & stays;
            if states == 0 {
                return false;
            }
        }
        states >> self.elements & 1 == 1
    }

    fn matches_in_many(&self, text: &[u8]) -> bool {
        let mut states = vec![0; self.words];
        states[0] = 1;
        for byte in text {
            let at = usize::from(*byte) * self.words;
            let (mut carry, mut any) = (0, 0);
            for (word, (takes, stays)) in self.takes[at..at + self.words]
                .iter()
                .zip(&self.stays)
                .enumerate()
            {
                let taken = states[word] & takes;
                states[word] = taken << 1 | carry | states[word] & stays;
                carry = taken >> (WORD_BITS - 1);
                any |= states[word];
            }
            if any == 0 {
                return false;
            }
        }
        states[self.elements / WORD_BITS] >> (self.elements % WORD_BITS) & 1 == 1
    }

    /// Maximum number of steps for a text of this many bytes.
    pub fn steps(&self, text_bytes: usize) -> usize {
        self.words * text_bytes
    }
}

/// The bytes before the `*` of a pattern that has no other special characters.
fn prefix(text: &[u8], fold: bool) -> Option<Box<[u8]>> {
    let (star, prefix) = text.split_last()?;
    let is_plain = !fold && !prefix.iter().any(|byte| b"*?[\\".contains(byte));
    (is_plain && *star == b'*').then(|| prefix.into())
}

fn set(bits: &mut [u64], bit: usize) {
    bits[bit / WORD_BITS] |= 1 << (bit % WORD_BITS);
}

fn same(a: u8, b: u8, fold: bool) -> bool {
    a == b || fold && a.eq_ignore_ascii_case(&b)
}

/// Whether `byte` is in one of these ranges.
fn in_class(items: &[(u8, u8)], byte: u8, fold: bool) -> bool {
    let lower = |b: u8| if fold { b.to_ascii_lowercase() } else { b };
    let byte = lower(byte);
    items.iter().any(|(from, to)| {
        let (from, to) = (lower(*from), lower(*to));
        (from.min(to)..=from.max(to)).contains(&byte)
    })
}

/// The ranges of the class that starts after `[`, and the pattern after its `]`. An unclosed class
/// ends with the pattern, as in Redis.
fn class_items(class: &[u8]) -> (Vec<(u8, u8)>, &[u8]) {
    let mut items = Vec::new();
    let mut rest = class.strip_prefix(b"^").unwrap_or(class);
    loop {
        rest = match rest {
            [] => return (items, rest),
            [b']', rest @ ..] => return (items, rest),
            [b'\\', escaped, rest @ ..] => {
                items.push((*escaped, *escaped));
                rest
            }
            [from, b'-', to, rest @ ..] => {
                items.push((*from, *to));
                rest
            }
            [one, rest @ ..] => {
                items.push((*one, *one));
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{PATTERN_BYTES_MAX, Pattern};

    fn matches(pattern: &[u8], text: &[u8], fold: bool) -> bool {
        let pattern = Pattern::new(pattern, fold).expect("a short pattern");
        pattern.matches(text)
    }

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
            ("a*", "a", true),
            ("ab*", "a", false),
            ("ab*", "abc", true),
            ("a\\*", "ab", false),
            ("a?*", "ab", true),
            ("a?*", "a", false),
            ("[a]b*", "abc", true),
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

    /// Patterns around the length of a word, checked against the simple rule.
    #[test]
    fn long_patterns_match_as_short_ones() {
        for length in [62, 63, 64, 65, 127, 128, 129, 300] {
            let text = "ab".repeat(length).into_bytes();
            for (pattern, expected) in [
                ("?".repeat(2 * length), true),
                ("?".repeat(2 * length - 1), false),
                (format!("{}*", "?".repeat(length)), true),
                (format!("*{}", "ab".repeat(length / 2)), true),
                (format!("*{}", "ba".repeat(length / 2)), false),
                ("[a-b]".repeat(40) + "*b", length >= 21),
                ("*b*a".repeat(30) + "*", length >= 31),
            ] {
                let found = matches(pattern.as_bytes(), &text, false);
                assert_eq!(found, expected, "{pattern} against {length} x ab");
            }
        }
    }

    /// A pattern of 32 KB once held a thread for minutes over keys of 64 KB: each `*` tried all
    /// positions of the text.
    #[test]
    fn no_pattern_takes_long() {
        let text = "a".repeat(65_000).into_bytes();
        let began = std::time::Instant::now();
        for pattern in [
            "a*".repeat(500) + "b",
            "*".to_owned() + &"a".repeat(1000) + "b",
        ] {
            assert!(!matches(pattern.as_bytes(), &text, false));
        }
        // Minutes, though the machine is busy.
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
        assert!(Pattern::new(&vec![b'a'; PATTERN_BYTES_MAX + 1], false).is_none());
    }
}
