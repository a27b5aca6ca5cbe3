//! The replies of one turn that wait for the log.

use duramen_redis::reply::{Effects, Wait};

/// Held replies of one turn.
pub(super) struct HeldReplies {
    /// The start of the replies in the connection's output, and their length. Bytes after them were
    /// pushed later.
    pub(super) from: usize,
    pub(super) bytes: usize,
    pub(super) wait: Wait,
    pub(super) effects: Effects,
    pub(super) since_ms: u64,
    /// The time at which they become errors (hold::I6), in milliseconds of the server's clock; 0 =
    /// never.
    pub(super) deadline_ms: u64,
}

impl HeldReplies {
    pub(super) fn is_late(&self, now_ms: u64) -> bool {
        self.deadline_ms > 0 && now_ms >= self.deadline_ms
    }
}
