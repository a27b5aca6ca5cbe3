//! Batches: the requests of one round are planned in groups, admitted, and executed.

mod admit;
mod group;
mod loading;
mod step;

use crate::command::outcome::Outcome;
use crate::command::reply::ReplyState;
use crate::command::turn::{Ending, TurnState};
use crate::state::client::Client;
use duramen_wire::resp::Requests;
pub(super) use group::{Group, Position};
pub(super) use loading::run as run_while_loading;

/// Maximum requests in one group, for requests without keys.
pub(super) const GROUP_REQUESTS: usize = 256;

/// The executor stops a turn after the request that makes `Turn::out` longer than this many bytes.
/// So a pipeline of large reads cannot pile up replies that the client does not take.
pub const OUT_BYTES_PER_TURN: usize = 1 << 20;

/// The executor stops a turn after the request with which its requests have appended more than this
/// many bytes to the log. A small request may rewrite a large value (`SETRANGE`, `EXPIRE`), and a
/// group has too many of them to wait for its end.
pub(super) const APPENDED_BYTES_PER_TURN: u64 = 1 << 20;

/// The requests of one connection in one round.
pub struct Turn<'a> {
    pub client: &'a mut Client,
    pub requests: &'a Requests,
    pub input: &'a [u8],
    /// Replies are appended here.
    pub out: &'a mut Vec<u8>,
    /// Length of `out` before this turn.
    out_from: usize,
    /// Number of `requests` that have run, in this round and earlier ones;
    /// [`Executor::run`](super::Executor::run) continues from here. If some are left afterwards:
    /// flush `out`, then present the rest again (`out` grew by more than [`OUT_BYTES_PER_TURN`],
    /// the turn appended more than `APPENDED_BYTES_PER_TURN` or took longer than its part of
    /// `pace::TURN_TIME`, a request does one part in each round, or the ending is `Paused` or
    /// `Cold`).
    pub executed: usize,
    pub(crate) state: TurnState,
    pub(crate) replies: ReplyState,
    /// The outcome of its last request, if that request is presented again.
    pub(super) unfinished: Option<Outcome>,
}

impl<'a> Turn<'a> {
    #[inline]
    pub fn new(
        client: &'a mut Client,
        requests: &'a Requests,
        input: &'a [u8],
        out: &'a mut Vec<u8>,
    ) -> Turn<'a> {
        Turn {
            client,
            requests,
            input,
            out_from: out.len(),
            out,
            executed: 0,
            state: TurnState::default(),
            replies: ReplyState::default(),
            unfinished: None,
        }
    }

    /// The reactor's next action for the connection.
    #[inline]
    pub fn ending(&self) -> Ending {
        self.state.ending
    }

    /// Whether its client keeps the state of a request that is presented again.
    pub(super) fn keeps_parking(&self) -> bool {
        matches!(self.unfinished, Some(Outcome::Cold | Outcome::Yield))
    }

    /// Notes that request number `at` has not run, or not to its end.
    fn show_again(&mut self, at: usize, outcome: Outcome) {
        self.executed = at;
        self.unfinished = Some(outcome);
        self.state.halted = true;
    }

    /// Notes that a request cannot run before this time, in milliseconds of the server's clock.
    fn wait_until(&mut self, until_ms: u64) -> Outcome {
        self.state.ending = Ending::Paused { until_ms };
        Outcome::Retry { alone: false }
    }

    /// Whether its replies so far are enough for one turn, or leave no room for more.
    fn has_enough_replies(&self) -> bool {
        let bytes = self.out.len();
        bytes - self.out_from > OUT_BYTES_PER_TURN || bytes > self.replies.bytes_max()
    }

    /// Takes back the reply of a silent request, which begins at `start`.
    fn silence(&mut self, start: usize) {
        if self.replies.confirms() {
            return;
        }
        self.out.truncate(start);
        self.client.effects.silence(start);
        self.client.wait.make_silent();
    }
}
