//! The keys that clients begin to read, and their order among the writes of a guard or a draft: a
//! change is no news for a client that has begun to read the key after it ([`Written::readers`]).

use crate::core::writes::Written;
use std::collections::HashMap;

/// Keys that clients began to read under a guard, after writes of the guard.
#[derive(Default)]
pub(crate) struct Reads(HashMap<Box<[u8]>, Vec<Read>>);

struct Read {
    client: u64,
    /// Number of writes of the guard before this read.
    writes: usize,
}

impl Reads {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, client: u64, key: &[u8], writes: usize) {
        let read = Read { client, writes };
        let Some(reads) = self.0.get_mut(key) else {
            self.0.insert(key.into(), vec![read]);
            return;
        };
        match reads.iter_mut().find(|read| read.client == client) {
            Some(earlier) => *earlier = read,
            None => reads.push(read),
        }
    }

    /// Adds the clients to the writes before their reads. `written`: all writes of the guard.
    pub(crate) fn add_to(&self, written: &mut [Written]) {
        for (n, write) in written.iter_mut().enumerate() {
            let reads = self.0.get(&write.key).into_iter().flatten();
            let later = reads.filter(|read| read.writes > n);
            write.readers.extend(later.map(|read| read.client));
        }
    }
}

/// Keys that the client of a draft began to read.
#[derive(Default)]
pub(crate) struct DraftReads {
    client: u64,
    keys: HashMap<Box<[u8]>, DraftRead>,
}

struct DraftRead {
    /// The number of the draft's last change before this read; 0 = none.
    change: u64,
    is_new: bool,
}

impl DraftReads {
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key)
    }

    /// `change`: the number of the draft's last change.
    pub(crate) fn add(&mut self, client: u64, key: &[u8], change: u64, is_new: bool) {
        self.client = client;
        let read = DraftRead { change, is_new };
        self.keys.insert(key.into(), read);
    }

    /// The client, if change number `change` of this key is no news for the client.
    pub(crate) fn reader_after(&self, key: &[u8], change: u64) -> Option<u64> {
        let read = self.keys.get(key)?;
        (read.is_new && change <= read.change).then_some(self.client)
    }

    pub(crate) fn remember_again(&mut self, remember: &mut dyn FnMut(&[u8]) -> bool) {
        for (key, read) in &mut self.keys {
            read.is_new |= remember(key);
        }
    }
}
