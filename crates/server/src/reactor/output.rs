//! Outgoing replies: buffers that are lent to connections for a round, back-pressure, pushes.

use super::Traffic;
use super::behind::settle_turn;
use super::connection::{Connection, KEPT_BYTES_MAX, Sent, WaitsFor};
use super::connections::Token;
use super::here::Here;
use duramen_config::heap::Freed;
use duramen_config::seldom;
use std::sync::atomic::Ordering;

/// Buffers up to this length are lent to any connection.
const SMALL_BYTES_MAX: usize = 256 << 10;
/// Maximum number of buffers in the pool that are not small.
const LARGE_MAX: usize = 2;
/// Maximum bytes in the pool.
const POOL_BYTES_MAX: usize = 4 << 20;

/// Empty buffers with memory, for replies and for long requests. Large ones are mapped alone: the
/// system would clear their pages again for each reply.
#[derive(Default)]
pub(super) struct BufferPool {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
    bytes: usize,
    /// A large buffer was taken or given back since the last sweep.
    uses_large: bool,
    /// Memory of buffers that were dropped: those of connections, and the pool's own.
    freed: Freed,
}

impl BufferPool {
    /// A buffer for replies, which grows as needed. `expected`: the bytes that its connection will
    /// probably have.
    pub(super) fn take(&mut self, expected: usize) -> Vec<u8> {
        let large = match expected > SMALL_BYTES_MAX {
            true => self.large.pop(),
            false => None,
        };
        self.uses_large |= large.is_some();
        let buffer = large.or_else(|| self.small.pop()).unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// A large buffer with room for so many bytes, if there is one.
    pub(super) fn take_large(&mut self, bytes: usize) -> Option<Vec<u8>> {
        if bytes <= SMALL_BYTES_MAX {
            return None;
        }
        let fits = |buffer: &Vec<u8>| buffer.capacity() >= bytes;
        let buffer = self.large.remove(self.large.iter().position(fits)?);
        self.uses_large = true;
        self.bytes -= buffer.capacity();
        Some(buffer)
    }

    pub(super) fn give_back(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        let capacity = buffer.capacity();
        if (SMALL_BYTES_MAX + 1..=KEPT_BYTES_MAX).contains(&capacity) {
            self.uses_large = true;
            self.make_room(capacity);
        }
        let is_kept = capacity <= KEPT_BYTES_MAX && self.bytes + capacity <= POOL_BYTES_MAX;
        if capacity == 0 || !is_kept {
            return self.freed.add(capacity);
        }
        match capacity > SMALL_BYTES_MAX {
            true if self.large.len() >= LARGE_MAX => return self.freed.add(capacity),
            true => self.large.push(buffer),
            false => self.small.push(buffer),
        }
        self.bytes += capacity;
    }

    /// Makes room for a large buffer: drops a shorter large buffer, or small ones that nobody has
    /// taken.
    fn make_room(&mut self, capacity: usize) {
        let shorter = |buffer: &Vec<u8>| buffer.capacity() < capacity;
        if self.large.len() >= LARGE_MAX
            && let Some(at) = self.large.iter().position(shorter)
        {
            let dropped = self.large.remove(at).capacity();
            self.bytes -= dropped;
            self.freed.add(dropped);
        }
        let has_place = self.large.len() < LARGE_MAX;
        while has_place && self.bytes + capacity > POOL_BYTES_MAX {
            let Some(small) = self.small.pop() else {
                return;
            };
            self.bytes -= small.capacity();
            self.freed.add(small.capacity());
        }
    }

    /// Reports the former memory of a connection's buffers to the heap as freed, whenever it has
    /// changed: a buffer that grows frees the memory that it had before. To be called before a
    /// connection is put back, and after it has received.
    pub(super) fn note_memory(&mut self, connection: &mut Connection) {
        let memory = connection.memory();
        if memory != connection.memory {
            self.freed.add(memory.max(connection.memory));
            connection.memory = memory;
        }
    }

    /// A connection is closed, with so many bytes of memory.
    pub(super) fn note_closed(&mut self, bytes: usize) {
        self.freed.add(bytes);
    }

    /// Whether there are buffers that [`sweep`](Self::sweep) may free.
    pub(super) fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    /// Frees the large buffers, if none was used since the last call.
    pub(super) fn sweep(&mut self) {
        if std::mem::take(&mut self.uses_large) {
            return;
        }
        for buffer in self.large.drain(..) {
            self.bytes -= buffer.capacity();
            self.freed.add(buffer.capacity());
        }
    }
}

impl Traffic {
    /// Sends replies. Returns false if the peer is gone, or its output exceeds `output-limit`, or
    /// `preauth-limit` before the password.
    pub(super) fn send(&mut self, connection: &mut Connection) -> bool {
        let (sent, bytes) = connection.send(self.thread.now_ms());
        if bytes > 0 {
            self.me().counters.net_output_bytes.add(bytes as u64);
            connection.note_sent(bytes, self.thread.now_ms());
        }
        match sent {
            Sent::All => {
                connection.sent = 0;
                self.buffers
                    .give_back(std::mem::take(&mut connection.output));
                true
            }
            Sent::Part => {
                let may_stay = is_within_limit(self.thread.here(), connection);
                if may_stay && connection.sendable_bytes() > 0 && connection.has_slack() {
                    let rest = connection.output.len() - connection.sent;
                    let roomy = self.buffers.take_large(rest);
                    let before = connection.fit_output(roomy);
                    self.buffers.give_back(before);
                }
                may_stay
            }
            Sent::Failed => false,
        }
    }

    /// Called when the kernel has room for more of a connection's replies.
    pub(super) fn writable(&mut self, token: Token) {
        let Some(mut connection) = self.connections.take(token) else {
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
        if connection.closing && connection.unsent_bytes() == 0 {
            return self.close_taken(token, connection);
        }
        if self.thread.stop_deadline().is_some()
            && connection.unsent_bytes() == 0
            && matches!(connection.waits_for, WaitsFor::Input | WaitsFor::Key)
        {
            return self.close_taken(token, connection);
        }
        if connection.closing && connection.client.key_wait.waits() {
            self.waits.end(self.thread.here(), token, &mut connection); // key_waits::K2
        }
        // The client may have sent `RESET`, which logs it out.
        let is_stranger = !connection.client.is_authenticated();
        self.sweeps.note_stranger(is_stranger);
        settle_turn(self.thread.here(), &mut connection);
        self.update_interest(token, &mut connection);
        self.buffers.note_memory(&mut connection);
        let (query, output) = (connection.query_bytes(), connection.unsent_bytes());
        account(self.thread.here(), &connection, query as u64, output as u64);
        self.connections.put(token, connection);
    }
}

/// Whether a connection's output is within `output-limit`, and before the password within
/// `preauth-limit`. If it is not, the connection is to be closed, which this call counts.
pub(super) fn is_within_limit(here: Here<'_>, connection: &Connection) -> bool {
    // A client that has removed its own user is closing.
    let is_known =
        connection.client.is_authenticated() || here.shared.acl().is_open() || connection.closing;
    let config = here.config;
    let limit = match is_known {
        true => config.output_limit_bytes,
        false => config.output_limit_bytes.min(config.preauth_limit_bytes),
    };
    let unsent_bytes = connection.unsent_bytes();
    if unsent_bytes <= limit {
        return true;
    }
    here.thread.counters.output_closed.add(1);
    seldom!(
        warn,
        client = connection.record.id,
        peer = %connection.record.peer,
        unsent_bytes,
        "closing a client that does not take its replies (output-limit, preauth-limit)"
    );
    false
}

/// Records the lengths of the connection's buffers, in its record and in the thread's gauges.
#[inline]
pub(super) fn account(here: Here<'_>, connection: &Connection, query: u64, output: u64) {
    let counters = &here.thread.counters;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_and_hands_out_empty_buffers() {
        let mut pool = BufferPool::default();
        pool.give_back(vec![1; KEPT_BYTES_MAX + 1]);
        assert_eq!(pool.take(usize::MAX).capacity(), 0);
        for _ in 0..100 {
            pool.give_back(vec![1; SMALL_BYTES_MAX]);
        }
        assert!(pool.bytes <= POOL_BYTES_MAX);
        assert_eq!(pool.small.len(), POOL_BYTES_MAX / SMALL_BYTES_MAX);
        for bytes in [1 << 20, KEPT_BYTES_MAX / 2, 1 << 19, 1 << 20] {
            pool.give_back(vec![1; bytes]);
            assert!(pool.bytes <= POOL_BYTES_MAX && pool.large.len() <= LARGE_MAX);
        }
        let buffer = pool.take(1);
        assert!(buffer.is_empty() && buffer.capacity() == SMALL_BYTES_MAX);
        while pool.take(usize::MAX).capacity() > 0 {}
        assert_eq!(pool.bytes, 0);
    }

    /// Each reply of 1 MB was in memory that the system had just cleared.
    #[test]
    fn a_large_buffer_is_lent_again_to_those_who_need_one() {
        let mut pool = BufferPool::default();
        let buffer = Vec::with_capacity(1 << 20);
        let place = buffer.as_ptr();
        pool.give_back(buffer);
        assert_eq!(pool.take(SMALL_BYTES_MAX).capacity(), 0);
        assert!(pool.take_large((1 << 20) + 1).is_none());
        for _ in 0..3 {
            let buffer = pool.take(1 << 20);
            assert_eq!(buffer.as_ptr(), place);
            pool.give_back(buffer);
            let buffer = pool.take_large(1 << 20).expect("a large buffer");
            assert_eq!(buffer.as_ptr(), place);
            pool.give_back(buffer);
        }
        pool.sweep();
        assert!(pool.has_large(), "it was in use");
        pool.sweep();
        assert!(!pool.has_large() && pool.bytes == 0);
    }
}
