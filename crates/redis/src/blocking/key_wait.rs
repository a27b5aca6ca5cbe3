//! The wait of a client for elements under keys: from the first look of its command to the reply.

use crate::threads::all::Threads;
use crate::threads::clients::{ClientRecord, key_wait_state as state};
use duramen_base::ids::{RouteHash, TabletsVersion};
use duramen_base::waiters::{Ticket, WaitKey, Waiters};
use duramen_config::{clock, heap};
use duramen_engine::TableId;
use duramen_types::stream::Id;
use std::sync::atomic::Ordering;

/// Memory of a key that a client waits for: entries in a queue, in the table of queues, and here.
const KEY_BYTES: usize = 190;

/// The wait of one request.
pub(crate) struct KeyWait {
    /// The end of the wait in milliseconds of the server's clock; 0: the wait has no end.
    pub(crate) deadline_ms: u64,
    pub(crate) table: TableId,
    /// Its place in the queues of `keys`; `None`: it has none at the moment.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) keys: Vec<WaitKey>,
    /// In a cluster: the places of its keys, and the version of the tablet list since which this
    /// member serves each. A slot may be divided, so not all keys leave together.
    pub(crate) places: Vec<(RouteHash, Option<TabletsVersion>)>,
    /// The ids behind which XREAD reads, as they were at its first look.
    pub(crate) last_ids: Vec<Id>,
}

impl KeyWait {
    /// Whether its time is over.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline_ms > 0 && clock::now_ms() >= self.deadline_ms
    }

    /// Whether the wait is over: its request is then answered without a look at its keys. `state`
    /// is the state of the client's record.
    pub(crate) fn is_over(&self, state: u8) -> bool {
        self.is_late()
            || matches!(
                state,
                state::UNBLOCKED_IN_TIME | state::UNBLOCKED_WITH_ERROR
            )
    }

    /// Gives up its place in the queues. `passes_on`, `wake`: as for `Waiters::leave`.
    pub(crate) fn leave(&mut self, waiters: &Waiters, passes_on: bool, wake: impl FnMut(Ticket)) {
        if let Some(ticket) = self.ticket.take() {
            waiters.leave(ticket, &self.keys, passes_on, wake);
            heap::freed(self.keys.len() * KEY_BYTES);
        }
    }
}

/// The wait of a client's first request for elements, if it waits.
#[derive(Default)]
pub struct Blocked(Option<Box<KeyWait>>);

impl Blocked {
    /// Whether the first request was shown before, and waits for elements.
    #[inline]
    pub fn waits(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn get(&self) -> Option<&KeyWait> {
        self.0.as_deref()
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut KeyWait> {
        self.0.as_deref_mut()
    }

    pub(crate) fn begin(&mut self, wait: KeyWait) {
        self.0 = Some(Box::new(wait));
    }

    /// Whether its wait is over: its request is answered without a look at its keys.
    pub(crate) fn is_over(&self, record: &ClientRecord) -> bool {
        let state = || record.key_wait.load(Ordering::Relaxed);
        self.0.as_ref().is_some_and(|wait| wait.is_over(state()))
    }

    /// The end of its wait, in milliseconds of the server's clock; 0: there is none.
    pub fn deadline_ms(&self) -> u64 {
        self.0.as_ref().map_or(0, |wait| wait.deadline_ms)
    }

    /// Gives up the place of its wait in the queues, if it waits. `passes_on`: as for
    /// `Waiters::leave`.
    pub(crate) fn leave_queues(&mut self, waiters: &Waiters, threads: &Threads, passes_on: bool) {
        if let Some(wait) = &mut self.0 {
            wait.leave(waiters, passes_on, |ticket| threads.show_again(ticket));
        }
    }

    /// Ends its wait. `passes_on`: as for `Waiters::leave`.
    pub(crate) fn end(
        &mut self,
        record: &ClientRecord,
        waiters: &Waiters,
        threads: &Threads,
        passes_on: bool,
    ) {
        self.leave_queues(waiters, threads, passes_on);
        self.0 = None;
        record.key_wait.store(state::NONE, Ordering::Relaxed);
    }
}
