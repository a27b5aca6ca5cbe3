//! The wait of a client for elements under keys: from the first look of its command to the reply.

use crate::shared::Shared;
use crate::state::client::Client;
use crate::threads::clients::key_wait_state as state;
use crate::threads::mailbox::Message;
use duramen_base::ids::{RouteHash, TabletsVersion};
use duramen_base::waiters::{Ticket, WaitKey};
use duramen_config::{clock, heap};
use duramen_engine::TableId;
use duramen_types::stream::Id;
use std::sync::atomic::Ordering;

/// Memory of a key that a client waits for: entries in a queue, in the table of queues, and here.
const KEY_BYTES: usize = 190;

/// The wait of one request.
pub(crate) struct KeyWait {
    /// In milliseconds of the server's clock; 0: it has no end.
    pub(crate) deadline_ms: u64,
    pub(crate) table: TableId,
    /// Its place in the queues of `keys`; `None`: it has none at the moment.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) keys: Vec<WaitKey>,
    /// In a cluster: the places of its keys, and since when this member serves them. A slot may be
    /// divided, so not all keys leave together.
    pub(crate) places: Vec<(RouteHash, Option<TabletsVersion>)>,
    /// Of XREAD: the ids behind which it reads, as they were at its first look.
    pub(crate) last_ids: Vec<Id>,
}

impl KeyWait {
    /// Whether its time is over.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline_ms > 0 && clock::now_ms() >= self.deadline_ms
    }

    /// Gives up its place in the queues. `passes_on`: as for `Waiters::leave`.
    pub(crate) fn leave(&mut self, shared: &Shared, passes_on: bool) {
        if let Some(ticket) = self.ticket.take() {
            let wake = |ticket| shared.show_again(ticket);
            shared.waiters.leave(ticket, &self.keys, passes_on, wake);
            heap::freed(self.keys.len() * KEY_BYTES);
        }
    }
}

impl Client {
    /// Ends its wait, if it waits. `passes_on`: as for `Waiters::leave`.
    #[inline]
    pub fn end_key_wait(&mut self, shared: &Shared, passes_on: bool) {
        if let Some(mut wait) = self.key_wait.take() {
            wait.leave(shared, passes_on);
            let state = &self.record().key_wait;
            state.store(state::NONE, Ordering::Relaxed);
        }
    }

    /// Whether its first request was shown before, and waits for elements.
    #[inline]
    pub fn waits_for_key(&self) -> bool {
        self.key_wait.is_some()
    }

    /// Whether its wait is over: its request is answered without a look at its keys.
    pub(crate) fn has_waited(&self) -> bool {
        self.key_wait.as_ref().is_some_and(|wait| {
            let state = self.record().key_wait.load(Ordering::Relaxed);
            wait.is_late()
                || matches!(
                    state,
                    state::UNBLOCKED_IN_TIME | state::UNBLOCKED_WITH_ERROR
                )
        })
    }

    /// The end of its wait, in milliseconds of the server's clock; 0: there is none.
    pub fn key_wait_deadline_ms(&self) -> u64 {
        self.key_wait.as_ref().map_or(0, |wait| wait.deadline_ms)
    }
}

impl Shared {
    /// Tells the thread of a waiter that it must look again.
    pub(crate) fn show_again(&self, ticket: Ticket) {
        if let Some(thread) = self.threads.get(ticket.thread as usize) {
            let client = ticket.client;
            thread.mailbox.post(Message::ShowAgain { client });
        }
    }
}
