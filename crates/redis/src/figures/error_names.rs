//! Error replies by their first word, for `INFO errorstats`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first words of this server's error replies. The first entry stands for all others.
pub(crate) const NAMES: [&str; 21] = [
    "ERR",
    "OOM",
    "MISCONF",
    "NOAUTH",
    "WRONGPASS",
    "NOPROTO",
    "EXECABORT",
    "LOADING",
    "MOVED",
    "CROSSSLOT",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "NOREPLICAS",
    "NOPERM",
    "BUSYKEY",
    "WRONGTYPE",
    "INVALIDOBJ",
    "NOSCRIPT",
    "NOTBUSY",
    "NOGROUP",
    "UNBLOCKED",
];

/// Maximum number of codes that scripts make, and bytes of one.
const CODES_MAX: usize = 128;
const CODE_BYTES_MAX: usize = 64;

/// The first word of an error.
pub(crate) fn code(text: &str) -> &str {
    text.split(' ').next().unwrap_or_default()
}

/// The position of an error's first word in [`NAMES`].
pub(crate) fn position(code: &str) -> Option<usize> {
    NAMES.iter().position(|name| *name == code)
}

/// First words, not in [`NAMES`], of errors that scripts make, each with its number.
#[derive(Debug, Default)]
pub(crate) struct Codes(Mutex<BTreeMap<String, u64>>);

impl Codes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an error. Returns false if its first word is no code, or if there are too many codes.
    pub(crate) fn count(&self, code: &str) -> bool {
        let is_code = |byte: u8| byte.is_ascii_graphic() && byte != b':';
        if code.is_empty() || code.len() > CODE_BYTES_MAX || !code.bytes().all(is_code) {
            return false;
        }
        let mut codes = self.lock();
        if codes.len() >= CODES_MAX && !codes.contains_key(code) {
            return false;
        }
        *codes.entry(code.to_owned()).or_default() += 1;
        true
    }

    pub(crate) fn all(&self) -> Vec<(String, u64)> {
        let codes = self.lock();
        codes.iter().map(|(code, n)| (code.clone(), *n)).collect()
    }

    pub(crate) fn reset(&self) {
        self.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_bounded() {
        let codes = Codes::default();
        for n in 0..1000 {
            assert_eq!(codes.count(&format!("CODE{n}")), n < CODES_MAX);
        }
        assert!(codes.count("CODE7"));
        for wrong in ["", "a:b", "\r\n", &"x".repeat(CODE_BYTES_MAX + 1)] {
            assert!(!codes.count(wrong));
        }
        assert!(codes.all().contains(&("CODE7".to_owned(), 2)));
        codes.reset();
        assert!(codes.all().is_empty());
    }
}
