//! Outgoing replies: buffers that are lent to connections for a round, back-pressure, pushes.

use super::connection::{Connection, Sent, WaitsFor};
use super::slots::Token;
use super::{Reactor, Verdict};
use crate::heap::Freed;
use crate::seldom::seldom;
use std::sync::atomic::Ordering;

/// Larger buffers go back to the allocator, not to the pool.
const KEPT_BYTES_MAX: usize = 256 << 10;
/// Maximum bytes in the pool.
const POOL_BYTES_MAX: usize = 4 << 20;

/// Empty reply buffers with memory.
#[derive(Default)]
pub(super) struct BufferPool {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    /// Memory of buffers that were dropped: those of connections, and the pool's own.
    pub(super) freed: Freed,
}

impl BufferPool {
    pub(super) fn take(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    pub(super) fn give_back(&mut self, mut buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        if capacity > 0 && capacity <= KEPT_BYTES_MAX && self.bytes + capacity <= POOL_BYTES_MAX {
            buffer.clear();
            self.bytes += capacity;
            self.buffers.push(buffer);
        } else {
            self.freed.add(capacity);
        }
    }
}

impl Reactor {
    /// Sends replies; false: the peer is gone, or exceeds `output-limit`, or `preauth-limit` before
    /// the password.
    pub(super) fn send(&mut self, connection: &mut Connection) -> bool {
        let (sent, bytes) = connection.send(self.now_ms);
        if bytes > 0 {
            self.me().counters.net_output_bytes.add(bytes as u64);
            connection.note_sent(bytes, self.now_ms);
        }
        match sent {
            Sent::All => {
                connection.sent = 0;
                self.buffers
                    .give_back(std::mem::take(&mut connection.output));
                true
            }
            Sent::Part => {
                let may_stay = self.is_within_limit(connection);
                if may_stay && connection.sendable_bytes() > 0 {
                    connection.fit_output();
                }
                may_stay
            }
            Sent::Failed => false,
        }
    }

    /// Whether a connection's output is not longer than `output-limit`, and before the password not
    /// longer than `preauth-limit`; otherwise it is to be closed, which is counted here.
    pub(super) fn is_within_limit(&mut self, connection: &Connection) -> bool {
        // One that has removed its own user is closing.
        let is_known =
            connection.client.is_authenticated() || self.shared.acl.is_open() || connection.closing;
        let config = self.config.get(&self.shared);
        let limit = match is_known {
            true => config.output_limit_bytes,
            false => config.output_limit_bytes.min(config.preauth_limit_bytes),
        };
        let unsent_bytes = connection.unsent_bytes();
        if unsent_bytes <= limit {
            return true;
        }
        self.me().counters.output_closed.add(1);
        seldom!(
            warn,
            client = connection.record.id,
            peer = %connection.record.peer,
            unsent_bytes,
            "closing a client that does not take its replies (output-limit, preauth-limit)"
        );
        false
    }

    /// Called when the kernel has room for more of a connection's replies.
    pub(super) fn writable(&mut self, token: Token) {
        let Some(mut connection) = self.slots.take(token) else {
            return;
        };
        if !self.send(&mut connection) {
            return self.close_taken(token, connection);
        }
        self.resume_run(token, &mut connection);
        self.settle(token, connection);
    }

    /// Last step after any work on a connection: closes it if that is due, or puts it back into its
    /// slot.
    pub(super) fn settle(&mut self, token: Token, mut connection: Box<Connection>) {
        if connection.has_ended()
            && matches!(connection.waits_for, WaitsFor::Input | WaitsFor::Key)
            && connection.held.is_none()
        {
            connection.closing = true; // tls::H1
        }
        if connection.client.verdict() == Verdict::CloseNow
            || (connection.closing && connection.unsent_bytes() == 0)
        {
            return self.close_taken(token, connection);
        }
        if self.stop_deadline.is_some()
            && connection.unsent_bytes() == 0
            && matches!(connection.waits_for, WaitsFor::Input | WaitsFor::Key)
        {
            return self.close_taken(token, connection);
        }
        if connection.closing && connection.client.waits_for_key() {
            self.end_key_wait(token, &mut connection); // key_waits::K2
        }
        self.has_strangers |= !connection.client.is_authenticated(); // it may have sent `RESET`
        self.settle_turn(&mut connection);
        self.update_interest(token, &mut connection);
        self.note_memory(&mut connection);
        let (query, output) = (connection.query_bytes(), connection.unsent_bytes());
        self.account(&connection, query as u64, output as u64);
        self.slots.put(token, connection);
    }

    /// Reports the memory that a connection's buffers had, to the heap, whenever it has changed: a
    /// buffer that grows frees the memory that it had before. To be called before a connection is
    /// put back, and after it has received.
    pub(super) fn note_memory(&mut self, connection: &mut Connection) {
        let memory = connection.memory();
        if memory != connection.memory {
            self.buffers.freed.add(memory.max(connection.memory));
            connection.memory = memory;
        }
    }

    /// Records the lengths of the connection's buffers, in its record and in the thread's gauges.
    pub(super) fn account(&self, connection: &Connection, query: u64, output: u64) {
        let counters = &self.me().counters;
        let record = &connection.record;
        for (holds, recorded, gauge) in [
            (query, &record.query_bytes, &counters.query_buffer_bytes),
            (output, &record.output_bytes, &counters.output_buffer_bytes),
        ] {
            let before = recorded.load(Ordering::Relaxed);
            if holds != before {
                recorded.store(holds, Ordering::Relaxed);
                gauge.add(holds.wrapping_sub(before));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_and_hands_out_empty_buffers() {
        let mut pool = BufferPool::default();
        pool.give_back(vec![1; KEPT_BYTES_MAX + 1]);
        assert_eq!(pool.take().capacity(), 0);
        for _ in 0..100 {
            pool.give_back(vec![1; KEPT_BYTES_MAX]);
        }
        assert!(pool.bytes <= POOL_BYTES_MAX);
        assert_eq!(pool.buffers.len(), POOL_BYTES_MAX / KEPT_BYTES_MAX);
        let buffer = pool.take();
        assert!(buffer.is_empty() && buffer.capacity() >= KEPT_BYTES_MAX);
        while pool.take().capacity() > 0 {}
        assert_eq!(pool.bytes, 0);
    }
}
