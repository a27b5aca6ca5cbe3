//! All reactor threads of a server: messages to them, their connections, sums of their counters.
//!
//! **Invariant**
//! - I1: a client id is never reused.
//!
//! **Concurrency.** A client's [`ClientRecord`] is written by the thread that owns the connection,
//! and any thread may read it. The lists of connections are locked to connect, to disconnect and to
//! list.

use super::bell::Bell;
use super::clients::ClientRecord;
use super::mailbox::Message;
use super::thread::ThreadShared;
use super::watch::Beat;
use crate::figures::counters::{Counter, ThreadCounters};
use duramen_base::waiters::Ticket;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The threads by number, see the head of this file.
pub struct Threads {
    all: Box<[ThreadShared]>,
    next_client_id: AtomicU64,
    connected: AtomicUsize,
}

impl Deref for Threads {
    type Target = [ThreadShared];

    #[inline]
    fn deref(&self) -> &[ThreadShared] {
        &self.all
    }
}

impl Threads {
    /// Makes the state of the threads. `bells`: one for each thread.
    pub(crate) fn new(bells: Vec<Arc<dyn Bell>>) -> Threads {
        Threads {
            all: bells.into_iter().map(ThreadShared::new).collect(),
            next_client_id: AtomicU64::new(1),
            connected: AtomicUsize::new(0),
        }
    }

    /// A counter's sum over all threads.
    pub fn sum(&self, of: fn(&ThreadCounters) -> &Counter) -> u64 {
        self.iter().map(|thread| of(&thread.counters).get()).sum()
    }

    /// The loops of the threads, by number.
    pub(crate) fn beats(&self) -> impl Iterator<Item = &Beat> {
        self.iter().map(|thread| &thread.beat)
    }

    /// How long the oldest held reply of any thread has waited, in milliseconds; 0 = no reply is
    /// held. After replies were given up, it goes on until the same replies could be sent.
    pub fn replies_held_ms(&self) -> u64 {
        let now_ms = duramen_config::clock::now_ms();
        let held_ms = |thread: &ThreadShared| match thread.counters.held_since_ms.get() {
            0 => 0,
            since_ms => now_ms.saturating_sub(since_ms),
        };
        self.iter().map(held_ms).max().unwrap_or(0)
    }

    pub fn next_client_id(&self) -> u64 {
        self.next_client_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Number of clients connected now, on all threads.
    pub fn connected_clients(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }

    /// Takes one of the `maxclients` connections; returns false if all are taken.
    /// [`leave`](Self::leave) gives it back.
    pub fn enter(&self, maxclients: usize) -> bool {
        let before = self.connected.fetch_add(1, Ordering::Relaxed);
        if before >= maxclients {
            self.connected.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    pub fn leave(&self) {
        self.connected.fetch_sub(1, Ordering::Relaxed);
    }

    /// All connections, ordered by id.
    pub fn clients(&self) -> Vec<Arc<ClientRecord>> {
        let mut all: Vec<_> = self
            .iter()
            .flat_map(|thread| thread.clients.all())
            .collect();
        all.sort_unstable_by_key(|record| record.id);
        all
    }

    /// Number of clients with subscriptions.
    pub(crate) fn subscribed_clients(&self) -> usize {
        let clients = self.clients();
        clients
            .iter()
            .filter(|client| client.is_subscribed())
            .count()
    }

    pub fn client(&self, id: u64) -> Option<Arc<ClientRecord>> {
        self.iter().find_map(|thread| thread.clients.get(id))
    }

    /// Sends a message to the thread that owns `record`'s connection.
    pub fn post(&self, record: &ClientRecord, message: Message) {
        self[record.thread].mailbox.post(message);
    }

    /// Sends a message to every thread.
    pub fn post_all(&self, message: &Message) {
        for thread in self.iter() {
            thread.mailbox.post(message.clone());
        }
    }

    /// Tells the thread of a waiter that it must look again.
    pub(crate) fn show_again(&self, ticket: Ticket) {
        if let Some(thread) = self.get(ticket.thread as usize) {
            let client = ticket.client;
            thread.mailbox.post(Message::ShowAgain { client });
        }
    }

    /// Makes every thread that waits for the log, for a snapshot or for killed clients check again.
    pub fn wake_for_commit(&self) {
        for thread in self.iter() {
            if thread.commits.committed() {
                thread.mailbox.post(Message::Committed);
            }
        }
    }

    /// Whether so many messages wait for a thread that no more should come.
    pub fn has_crowded_mailbox(&self) -> bool {
        self.iter().any(|thread| thread.mailbox.is_crowded())
    }
}
