//! Limits up to which Redis keeps a collection as one block of bytes. Here a collection has only
//! one form: the limits decide the reply of `OBJECT ENCODING`, and the number of entries that
//! trimming by `~` removes together. Changed limits last until the server stops.
//! **Concurrency**: independent numbers; a command may see some of the changes of a `CONFIG SET`.

use duramen_types::stream::NODE_ENTRIES;
use std::sync::atomic::{AtomicI64, Ordering};

/// A limit by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    HashEntries,
    HashValue,
    /// A number of elements, or -1 to -5, which stand for a size in bytes.
    ListSize,
    /// A setting without effect.
    ListCompressDepth,
    SetIntsetEntries,
    SetEntries,
    SetValue,
    ZsetEntries,
    ZsetValue,
    /// Entries in a node of a stream; 0: all entries are in one node.
    StreamNodeEntries,
}

/// A limit, its name, an older name, and the default of Redis.
type Row = (Limit, &'static str, Option<&'static str>, i64);

/// All limits, in the order of [`Limit`].
#[rustfmt::skip]
const LIMITS: [Row; 10] = [
    (Limit::HashEntries, "hash-max-listpack-entries", Some("hash-max-ziplist-entries"), 512),
    (Limit::HashValue, "hash-max-listpack-value", Some("hash-max-ziplist-value"), 64),
    (Limit::ListSize, "list-max-listpack-size", Some("list-max-ziplist-size"), -2),
    (Limit::ListCompressDepth, "list-compress-depth", None, 0),
    (Limit::SetIntsetEntries, "set-max-intset-entries", None, 512),
    (Limit::SetEntries, "set-max-listpack-entries", None, 128),
    (Limit::SetValue, "set-max-listpack-value", None, 64),
    (Limit::ZsetEntries, "zset-max-listpack-entries", Some("zset-max-ziplist-entries"), 128),
    (Limit::ZsetValue, "zset-max-listpack-value", Some("zset-max-ziplist-value"), 64),
    (Limit::StreamNodeEntries, "stream-node-max-entries", None, NODE_ENTRIES as i64),
];

/// Sizes of a list's block, in bytes, for the values -1 to -5 of [`Limit::ListSize`].
const LIST_BYTES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];

/// The limits of a server.
#[derive(Debug)]
pub(crate) struct Encodings([AtomicI64; LIMITS.len()]);

impl Default for Encodings {
    fn default() -> Encodings {
        Encodings(LIMITS.map(|(_, _, _, default)| AtomicI64::new(default)))
    }
}

impl Encodings {
    /// Names and values of all limits, under older names too.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'static str, i64)> + '_ {
        LIMITS.iter().flat_map(|&(limit, name, older, _)| {
            let value = self.get(limit);
            std::iter::once(name)
                .chain(older)
                .map(move |name| (name, value))
        })
    }

    /// The limit called `name`, in any case, with `text` as its value. `None`: there is no such
    /// limit.
    ///
    /// # Errors
    /// A sentence: the value is not a number in range.
    pub(crate) fn parse(name: &str, text: &str) -> Option<Result<(Limit, i64), String>> {
        let is_name = |known: &str| known.eq_ignore_ascii_case(name);
        let (limit, ..) = LIMITS
            .iter()
            .find(|row| is_name(row.1) || row.2.is_some_and(is_name))?;
        let least = match limit {
            Limit::ListSize => i64::from(i32::MIN),
            _ => 0,
        };
        Some(match text.trim().parse::<i64>() {
            Ok(value) if value >= least => Ok((*limit, value)),
            Ok(_) => Err(format!("argument must be {least} or more")),
            Err(_) => Err("argument couldn't be parsed into an integer".to_owned()),
        })
    }

    pub(crate) fn set(&self, values: &[(Limit, i64)]) {
        for (limit, value) in values {
            // Relaxed: nothing else is published with it.
            self.0[*limit as usize].store(*value, Ordering::Relaxed);
        }
    }

    fn get(&self, limit: Limit) -> i64 {
        // Relaxed: pairs with `set`.
        self.0[limit as usize].load(Ordering::Relaxed)
    }

    /// Whether a number of elements or bytes is within a limit.
    pub(crate) fn allow(&self, limit: Limit, number: usize) -> bool {
        i64::try_from(number).is_ok_and(|number| number <= self.get(limit))
    }

    /// Entries in a node of a stream.
    pub(crate) fn stream_node_entries(&self) -> usize {
        match usize::try_from(self.get(Limit::StreamNodeEntries)) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(entries) => entries,
        }
    }

    /// Whether a list of so many elements and bytes is one block.
    pub(crate) fn allow_list(&self, elements: usize, bytes: usize) -> bool {
        let size = self.get(Limit::ListSize);
        match usize::try_from(size) {
            // Redis bounds the bytes of such a block too.
            Ok(most) => elements <= most && bytes <= LIST_BYTES[1],
            Err(_) => {
                let number = usize::try_from(-size - 1).unwrap_or(usize::MAX);
                bytes <= LIST_BYTES[number.min(LIST_BYTES.len() - 1)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_two_names_and_stand_in_order() {
        let limits = Encodings::default();
        for (n, (limit, name, older, default)) in LIMITS.into_iter().enumerate() {
            assert_eq!(limit as usize, n);
            for name in std::iter::once(name).chain(older) {
                assert_eq!(Encodings::parse(name, "7"), Some(Ok((limit, 7))));
                assert!(limits.each().any(|row| row == (name, default)));
            }
        }
        assert_eq!(Encodings::parse("save", "7"), None);
        assert!(Encodings::parse("set-max-listpack-value", "-1").is_some_and(|r| r.is_err()));
        assert!(Encodings::parse("set-max-listpack-value", "x").is_some_and(|r| r.is_err()));
    }

    #[test]
    fn sizes_of_lists_are_elements_or_bytes() {
        let limits = Encodings::default();
        assert!(limits.allow_list(5000, 8 << 10) && !limits.allow_list(1, (8 << 10) + 1));
        limits.set(&[(Limit::ListSize, -1)]);
        assert!(!limits.allow_list(1, 5000));
        limits.set(&[(Limit::ListSize, i64::from(i32::MIN))]);
        assert!(limits.allow_list(1, 64 << 10));
        limits.set(&[(Limit::ListSize, 4)]);
        assert!(limits.allow_list(4, 100) && !limits.allow_list(5, 100));
    }
}
