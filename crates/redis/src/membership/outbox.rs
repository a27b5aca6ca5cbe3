//! Messages of PUBLISH that wait for the node's thread, which sends them to the other members.

use duramen_wire::native::codec::{PUBLICATION_HEADER_BYTES, append_publication};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes of messages that are sent together, unless one message is longer.
pub const BATCH_BYTES: usize = 256 << 10;
/// Bytes that may wait for the node's thread; later messages are dropped.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// Longest channel and message together that PUBLISH accepts in a cluster, in bytes: it must fit
/// into a frame between members, and a ping waits behind it.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Batches of messages, the last of which may grow.
#[derive(Debug, Default)]
pub struct Outbox {
    batches: Mutex<Vec<Vec<u8>>>,
    /// Bytes of all batches. They change under the lock of the batches.
    bytes: AtomicUsize,
}

impl Outbox {
    /// Adds a message. Returns true if the outbox was empty, so that its reader must be woken.
    pub(crate) fn add(&self, channel: &[u8], message: &[u8]) -> bool {
        let added = PUBLICATION_HEADER_BYTES + channel.len() + message.len();
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.bytes.load(Ordering::Relaxed) + added;
        if bytes > WAITING_BYTES_MAX {
            return false; // the reader was woken before, and has not run since
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        let is_first = batches.is_empty();
        match batches.last_mut() {
            Some(last) if last.len() + added <= BATCH_BYTES => {
                append_publication(last, channel, message);
            }
            _ => {
                let mut batch = Vec::new();
                append_publication(&mut batch, channel, message);
                batches.push(batch);
            }
        }
        is_first
    }

    pub fn take(&self) -> Vec<Vec<u8>> {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        self.bytes.store(0, Ordering::Relaxed);
        std::mem::take(&mut *batches)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_put_into_batches_up_to_a_bound() {
        let outbox = Outbox::default();
        let message = vec![1; 100 << 10];
        let woken = [0; 5].map(|_| outbox.add(b"a", &message));
        assert_eq!(woken, [true, false, false, false, false]);
        let batches: Vec<usize> = outbox.take().iter().map(Vec::len).collect();
        let one = PUBLICATION_HEADER_BYTES + 1 + message.len();
        assert_eq!(batches, [2 * one, 2 * one, one]);
        let long = vec![1; MESSAGE_BYTES_MAX];
        while outbox.bytes() + long.len() < WAITING_BYTES_MAX {
            outbox.add(b"a", &long);
        }
        let before = outbox.bytes();
        assert!(!outbox.add(b"a", &long));
        assert_eq!(outbox.bytes(), before);
    }
}
