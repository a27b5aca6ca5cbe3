//! The requests of the load, as bytes.

use super::native::Native;
use crate::{Chooser, Distribution, Random, fresh_seed};
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
}

/// The order of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    Random(Distribution),
    /// `from`, `from + 1`, …: each key once, divided among the threads.
    Sequential {
        from: u64,
    },
}

/// Encodes request after request.
pub(super) struct Source {
    command: Command,
    keys: Keys,
    rng: Random,
    value: Vec<u8>,
    native: Option<Native>,
}

enum Keys {
    Random(Box<Chooser>),
    Sequential { next: u64, step: u64, end: u64 },
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
        };
        Source {
            command,
            keys: chosen,
            rng: Random::new(fresh_seed()),
            value: value(value_bytes),
            native: None,
        }
    }

    /// The same in the native protocol.
    pub(super) fn speaking(self, native: Option<Native>) -> Source {
        Source { native, ..self }
    }

    /// Appends one request; false if a sequential source has ended.
    pub(super) fn encode(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(first) = self.next_key() else {
            return false;
        };
        let read = match self.command {
            Command::Mixed { reads_percent } => self.rng.below(100) < reads_percent,
            command => matches!(command, Command::Get),
        };
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
                    encoder.arg(&text(self.keys.next().unwrap_or(first)));
                }
            }
            Command::Mset(keys) => {
                encoder.begin(1 + 2 * keys.max(1));
                encoder.arg(b"MSET");
                encoder.arg(&text(first));
                encoder.arg(&self.value);
                for _ in 1..keys {
                    encoder.arg(&text(self.keys.next().unwrap_or(first)));
                    encoder.arg(&self.value);
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

    fn next_key(&mut self) -> Option<u64> {
        self.keys.next()
    }
}

impl Keys {
    fn next(&mut self) -> Option<u64> {
        match self {
            Keys::Random(chooser) => Some(chooser.next_key()),
            Keys::Sequential { next, step, end } => {
                let key = *next;
                *next += *step;
                (key < *end).then_some(key)
            }
        }
    }
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
