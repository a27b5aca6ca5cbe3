//! The requests of the load, as bytes.

use super::native::Native;
use crate::{Chooser, Distribution, Random, Zipf, fresh_seed};
use duramen_wire::resp::RequestEncoder;

/// The command of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Get,
    Set,
    Mget(usize),
    Mset(usize),
    /// GET with this probability, else SET.
    Mixed {
        reads_percent: u64,
    },
    /// Any command with one reply: its words, in which `{key}` stands for a key and `{value}` for
    /// the value.
    Words(&'static [&'static str]),
}

/// The order of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    Random(Distribution),
    /// `from`, `from + 1`, …: each key once, divided among the threads.
    Sequential {
        from: u64,
    },
    /// Each write adds the next key after the first `keys`; reads prefer the newest ones, by Zipf
    /// with this exponent. The newest `unread` keys are not read, because their writes may still be
    /// in flight. For `Mixed`, GET and SET.
    Latest {
        theta: f64,
        unread: u64,
    },
}

/// Encodes request after request.
pub(super) struct Source {
    command: Command,
    keys: Keys,
    rng: Random,
    value: Vec<u8>,
    /// A word of a command, filled.
    word: Vec<u8>,
    native: Option<Native>,
    /// Writes encoded so far.
    pub(super) writes: u64,
}

enum Keys {
    Random(Box<Chooser>),
    Sequential {
        next: u64,
        step: u64,
        end: u64,
    },
    Latest {
        ages: Zipf,
        rng: Random,
        next: u64,
        step: u64,
        unread: u64,
    },
}

impl Source {
    /// The requests of thread `thread` of `threads`.
    pub(super) fn new(
        command: Command,
        access: Access,
        keys: u64,
        value_bytes: usize,
        thread: u64,
        threads: u64,
    ) -> Source {
        let chosen = match access {
            Access::Random(distribution) => {
                Keys::Random(Box::new(Chooser::new(distribution, keys, fresh_seed())))
            }
            Access::Sequential { from } => Keys::Sequential {
                next: from + thread,
                step: threads,
                end: keys,
            },
            Access::Latest { theta, unread } => Keys::Latest {
                ages: Zipf::new(keys, theta),
                rng: Random::new(fresh_seed()),
                next: keys + thread,
                step: threads,
                unread,
            },
        };
        Source {
            command,
            keys: chosen,
            rng: Random::new(fresh_seed()),
            value: value(value_bytes),
            word: Vec::new(),
            native: None,
            writes: 0,
        }
    }

    /// The same in the native protocol.
    pub(super) fn speaking(self, native: Option<Native>) -> Source {
        Source { native, ..self }
    }

    /// Appends one request; false if a sequential source has ended.
    pub(super) fn encode(&mut self, out: &mut Vec<u8>) -> bool {
        let read = match self.command {
            Command::Mixed { reads_percent } => self.rng.below(100) < reads_percent,
            command => matches!(command, Command::Get | Command::Mget(_)),
        };
        let Some(first) = self.keys.next(read) else {
            return false;
        };
        self.writes += u64::from(!read);
        if let Some(native) = &self.native {
            let value = (!read).then_some(self.value.as_slice());
            native.encode(&text(first), value, out);
            return true;
        }
        let mut encoder = RequestEncoder::new(out);
        match self.command {
            Command::Mget(keys) => {
                encoder.begin(1 + keys.max(1));
                encoder.arg(b"MGET");
                encoder.arg(&text(first));
                for _ in 1..keys {
                    encoder.arg(&text(self.keys.next(true).unwrap_or(first)));
                }
            }
            Command::Mset(keys) => {
                encoder.begin(1 + 2 * keys.max(1));
                encoder.arg(b"MSET");
                encoder.arg(&text(first));
                encoder.arg(&self.value);
                for _ in 1..keys {
                    encoder.arg(&text(self.keys.next(false).unwrap_or(first)));
                    encoder.arg(&self.value);
                }
            }
            Command::Words(words) => {
                encoder.begin(words.len());
                for word in words {
                    self.word.clear();
                    fill(&mut self.word, word, &text(first), &self.value);
                    encoder.arg(&self.word);
                }
            }
            _ if read => {
                encoder.begin(2);
                encoder.arg(b"GET");
                encoder.arg(&text(first));
            }
            _ => {
                encoder.begin(3);
                encoder.arg(b"SET");
                encoder.arg(&text(first));
                encoder.arg(&self.value);
            }
        }
        true
    }
}

impl Keys {
    /// The key of a read or of a write.
    fn next(&mut self, read: bool) -> Option<u64> {
        match self {
            Keys::Random(chooser) => Some(chooser.next_key()),
            Keys::Sequential { next, step, end } => {
                let key = *next;
                *next += *step;
                (key < *end).then_some(key)
            }
            Keys::Latest {
                ages,
                rng,
                next,
                unread,
                ..
            } if read => Some(next.saturating_sub(1 + *unread + ages.rank(rng))),
            Keys::Latest { next, step, .. } => {
                let key = *next;
                *next += *step;
                Some(key)
            }
        }
    }
}

/// Appends a word with what stands for its `{key}` or `{value}`.
fn fill(out: &mut Vec<u8>, word: &str, key: &[u8], value: &[u8]) {
    for (name, filling) in [("{key}", key), ("{value}", value)] {
        if let Some((before, after)) = word.split_once(name) {
            out.extend(before.as_bytes());
            out.extend(filling);
            out.extend(after.as_bytes());
            return;
        }
    }
    out.extend(word.as_bytes());
}

/// The value that all keys get.
pub fn value(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| b'a' + (n % 26) as u8).collect()
}

/// The name of a key.
pub fn key(id: u64) -> String {
    String::from_utf8_lossy(&text(id)).into_owned()
}

/// A key of 16 bytes, as redis-benchmark's: `key:000000000042`.
fn text(mut id: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (id % 10) as u8;
        id /= 10;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(command: Command, access: Access) -> String {
        let mut source = Source::new(command, access, 3, 2, 0, 1);
        let mut out = Vec::new();
        while source.encode(&mut out) {}
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn sequential_sets_touch_each_key_once() {
        let bytes = encoded(Command::Set, Access::Sequential { from: 1 });
        let one = |id: u64| format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{id:012}\r\n$2\r\nab\r\n");
        assert_eq!(bytes, one(1) + &one(2));
    }

    #[test]
    fn threads_share_sequential_keys_without_overlap() {
        let mut all = Vec::new();
        for thread in 0..2 {
            let mut source = Source::new(
                Command::Get,
                Access::Sequential { from: 0 },
                3,
                2,
                thread,
                2,
            );
            while source.encode(&mut all) {}
        }
        let all = String::from_utf8(all).unwrap();
        for id in 0..3 {
            assert_eq!(all.matches(&format!("key:{id:012}")).count(), 1);
        }
    }

    #[test]
    fn the_latest_keys_are_added_in_order_and_read_after_that() {
        let (keys, unread) = (1000, 5);
        let access = Access::Latest {
            theta: 0.99,
            unread,
        };
        let command = Command::Mixed { reads_percent: 50 };
        let mut source = Source::new(command, access, keys, 2, 0, 1);
        let (mut next, mut newest_reads, mut reads) = (keys, 0, 0);
        for _ in 0..2000 {
            let (mut out, writes) = (Vec::new(), source.writes);
            assert!(source.encode(&mut out));
            let bytes = String::from_utf8(out).unwrap();
            let digits = bytes.split("key:").nth(1).unwrap();
            let key: u64 = digits[..12].parse().unwrap();
            if source.writes > writes {
                assert_eq!(key, next, "a new key");
                next += 1;
            } else {
                assert!(key < next - unread, "{key} may not be there yet");
                reads += 1;
                newest_reads += u32::from(key + unread + 10 >= next);
            }
        }
        assert!(newest_reads * 4 > reads, "{newest_reads} of {reads}");
    }

    #[test]
    fn words_are_filled() {
        let command = Command::Words(&["HSET", "h:{key}", "field", "{value}"]);
        let bytes = encoded(command, Access::Sequential { from: 2 });
        let expected =
            "*4\r\n$4\r\nHSET\r\n$18\r\nh:key:000000000002\r\n$5\r\nfield\r\n$2\r\nab\r\n";
        assert_eq!(bytes, expected);
    }

    #[test]
    fn multi_requests_have_all_their_arguments() {
        let access = Access::Random(Distribution::Uniform);
        let mut out = Vec::new();
        Source::new(Command::Mset(2), access, 3, 2, 0, 1).encode(&mut out);
        let bytes = String::from_utf8(out).unwrap();
        assert!(
            bytes.starts_with("*5\r\n$4\r\nMSET\r\n$16\r\nkey:"),
            "{bytes}"
        );
        assert_eq!(bytes.matches("$2\r\nab\r\n").count(), 2);
    }
}
