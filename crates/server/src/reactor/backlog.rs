//! Input of one connection that has not run: a partial request, or whole requests that must wait.

/// A buffer with this little memory keeps it.
const SLACK_BYTES: usize = 4 << 10;

/// Whether a buffer is mostly empty.
pub(super) fn has_slack(capacity: usize, used: usize) -> bool {
    capacity > SLACK_BYTES.max(2 * used)
}

/// Bytes in the order of their arrival. An empty backlog owns no memory.
#[derive(Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
    /// The number of bytes at the front whose requests have run.
    run: usize,
}

impl Backlog {
    pub(super) fn get(&self) -> &[u8] {
        self.bytes.get(self.run..).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.run
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// The vector to append to, with memory for `bytes` more bytes.
    pub(super) fn with_room(&mut self, bytes: usize) -> &mut Vec<u8> {
        self.bytes.reserve(bytes);
        &mut self.bytes
    }

    /// As [`with_room`](Self::with_room), with no more memory than that.
    pub(super) fn with_exact_room(&mut self, bytes: usize) -> &mut Vec<u8> {
        self.bytes.reserve_exact(bytes);
        &mut self.bytes
    }

    /// Moves the bytes into a vector with more room; returns the vector that had them until now.
    pub(super) fn move_to(&mut self, mut roomy: Vec<u8>) -> Vec<u8> {
        roomy.extend_from_slice(self.get());
        self.run = 0;
        std::mem::replace(&mut self.bytes, roomy)
    }

    pub(super) fn into_memory(self) -> Vec<u8> {
        self.bytes
    }

    /// The first `bytes` have run. Moves the others to the front only when they are the smaller
    /// part, so that a long backlog costs the same per byte as a short one. Gives back memory that
    /// is not needed: a few bytes must not keep the memory of a long request.
    pub(super) fn consume(&mut self, bytes: usize) {
        self.run += bytes;
        if self.is_empty() {
            *self = Backlog::default();
        } else if self.run >= self.len() {
            self.bytes.drain(..self.run);
            self.run = 0;
            if has_slack(self.capacity(), self.len()) {
                self.bytes.shrink_to_fit();
            }
        }
    }
}

impl From<Vec<u8>> for Backlog {
    fn from(bytes: Vec<u8>) -> Backlog {
        Backlog { bytes, run: 0 }
    }
}

impl From<&[u8]> for Backlog {
    fn from(bytes: &[u8]) -> Backlog {
        Backlog::from(bytes.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_in_which_they_came_and_their_memory_with_them() {
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        let mut backlog = Backlog::default();
        let mut left = Vec::new();
        for chunk in sent.chunks(10_000) {
            backlog.with_room(chunk.len()).extend_from_slice(chunk);
            let run = backlog.len() / 3;
            left.extend_from_slice(&backlog.get()[..run]);
            backlog.consume(run);
        }
        while !backlog.is_empty() {
            let run = backlog.len().min(7_001);
            left.extend_from_slice(&backlog.get()[..run]);
            backlog.consume(run);
            assert!(backlog.capacity() <= 4 * backlog.len() + 10_000 || backlog.run > 0);
            if !backlog.is_empty() && backlog.len() % 3 == 0 {
                backlog.move_to(Vec::with_capacity(backlog.len() + 1));
            }
        }
        assert_eq!(left, sent);
        assert_eq!(backlog.capacity(), 0);
    }
}
