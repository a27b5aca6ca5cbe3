//! The queue of MULTI, as the command table describes its requests.

use super::GROUP_KEYS;
use super::flag;
use super::spec::{Commands, Request};
use crate::state::transaction::queue::Transaction;
use duramen_engine::KeyHash;

impl Transaction {
    /// The requests with their commands, without the hashes of their keys.
    pub(crate) fn requests(&self, commands: &Commands) -> impl Iterator<Item = Request<'_>> {
        let numbers = self.commands.iter().enumerate();
        numbers.map(move |(n, number)| Request {
            spec: commands.row(*number),
            args: self.queue.args(n, &[]),
            hashes: &[],
        })
    }

    /// The number of keys that the queue uses; `None` if some of its commands may take long,
    /// whatever their keys are.
    pub(crate) fn keys(&self) -> Option<usize> {
        let is_bounded = self.without_keys == 0 && !self.has(flag::SCRIPTING | flag::WHOLE);
        self.hashes().filter(|_| is_bounded).map(<[KeyHash]>::len)
    }

    /// Whether EXEC may take longer than a group of requests, with this number of watched keys.
    pub(crate) fn is_long(&self, watched: usize) -> bool {
        let keys = self.keys();
        self.has(flag::TIMED) || keys.is_none_or(|keys| keys + watched > GROUP_KEYS)
    }
}
