//! The turn of the long pipelines (input::R3).
//!
//! **Concurrency**: one lock, taken only for connections that need more than the room that all
//! connections share.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The holder of the turn and the queue behind it; clients are named by their ids.
#[derive(Default)]
pub(crate) struct PipelineTurn(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    holder: Option<u64>,
    waiting: VecDeque<u64>,
}

impl PipelineTurn {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the turn; returns whether the client has it now. Otherwise the client waits behind
    /// those that asked before. In both cases its connection calls [`leave`](Self::leave)
    /// afterwards.
    pub(crate) fn ask(&self, client: u64) -> bool {
        let mut queue = self.lock();
        if queue.holder.is_none() && queue.waiting.front().is_none_or(|first| *first == client) {
            queue.waiting.pop_front();
            queue.holder = Some(client);
        } else if queue.holder != Some(client) && !queue.waiting.contains(&client) {
            queue.waiting.push_back(client);
        }
        queue.holder == Some(client)
    }

    /// The client's turn is over, or it does not wait for it any more.
    pub(crate) fn leave(&self, client: u64) {
        let mut queue = self.lock();
        queue.holder.take_if(|holder| *holder == client);
        queue.waiting.retain(|waiting| *waiting != client);
    }

    /// Whether a client waits.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.lock().waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_have_the_turn_in_the_order_in_which_they_asked() {
        let turn = PipelineTurn::default();
        assert!(turn.ask(1) && turn.ask(1) && !turn.is_wanted());
        assert!(!turn.ask(2) && !turn.ask(3) && !turn.ask(4) && !turn.ask(2));
        assert!(turn.is_wanted());
        turn.leave(1);
        assert!(!turn.ask(3) && !turn.ask(1), "2 is the first");
        turn.leave(2);
        assert!(!turn.ask(4) && turn.ask(3));
        turn.leave(3);
        turn.leave(4);
        assert!(turn.ask(1) && !turn.is_wanted());
    }
}
