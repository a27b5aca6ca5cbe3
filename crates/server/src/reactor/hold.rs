//! Replies that wait until the log has what they tell of.
//!
//! Requests run at once; what they wrote or saw becomes durable later. Until then the connection's replies stay in its
//! output buffer and it is not read from, while everybody else goes on. After each round the thread asks the log writer
//! for a commit, or, if its one client is all there is to do, commits by itself: then nobody has to be woken.
//!
//! **Invariants**
//! 1. No byte at or after [`Held::from`] is sent before its wait is over: see `Connection::sendable_bytes`.
//! 2. A held connection is registered for nothing but the replies before the held ones; it holds at most one turn.
//! 3. Whoever is held is in [`Holds::tokens`] and is looked at after every commit; none is forgotten while the thread
//!    sleeps (`shared::Commits`).
//! 4. If the log fails, held replies become errors: what they told may not be true.

use super::connection::{Connection, WaitsFor};
use super::slots::Token;
use super::{Reactor, Timespec, ZERO};
use crate::exec::{Wait, WaitState};
use duramen_base::ids::Level;
use duramen_wire::resp::{Encoder, Protocol};

/// Replies of one turn that wait.
pub(super) struct Held {
    /// Where they begin in the connection's output, and how many bytes they are. Bytes after them were pushed later.
    pub(super) from: usize,
    bytes: usize,
    /// How many requests they answer.
    replies: usize,
    wait: Wait,
}

/// Rounds in a row with the same single connection, after which this thread commits for it: nobody else is kept waiting
/// by a commit that takes as long as the disk.
const LONE_ROUNDS: u32 = 8;

/// The held connections of a thread.
#[derive(Default)]
pub(super) struct Holds {
    tokens: Vec<Token>,
    /// Nobody has asked for the commit that the newest of them need; at this level.
    demand: Option<Level>,
    /// Commits when the held ones were last looked at.
    seen: u64,
    /// When the next of them must be looked at, in milliseconds since the Unix epoch; 0 = after a commit.
    deadline_ms: u64,
    /// The connection of the last rounds, and how many in a row were its own.
    lone: Option<Token>,
    lone_rounds: u32,
}

impl Holds {
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        (self.deadline_ms > 0 && !self.tokens.is_empty()).then_some(self.deadline_ms)
    }

    /// The last round served `connections`, of which `one` is one.
    pub(super) fn round_had(&mut self, connections: usize, one: Option<Token>) {
        if connections == 1 && one == self.lone {
            self.lone_rounds = self.lone_rounds.saturating_add(1);
        } else if connections > 0 {
            self.lone = one.filter(|_| connections == 1);
            self.lone_rounds = 0;
        }
    }
}

impl Reactor {
    /// Holds back the replies that the last turn appended from `from` on, if they must wait. To be called when the
    /// connection is out of its slot, before anything is sent.
    pub(super) fn hold(
        &mut self,
        token: Token,
        connection: &mut Connection,
        from: usize,
        replies: usize,
    ) {
        let wait = connection.client.take_wait();
        let bytes = connection.output.len() - from;
        if bytes == 0 || wait.is_none() {
            return;
        }
        let level = wait.level();
        if self.state_of(&wait) == WaitState::Over {
            return;
        }
        debug_assert!(connection.held.is_none(), "a held connection runs nothing");
        connection.held = Some(Held {
            from,
            bytes,
            replies,
            wait,
        });
        self.holds.tokens.push(token);
        self.holds.demand = self.holds.demand.max(Some(level));
    }

    fn state_of(&self, wait: &Wait) -> WaitState {
        match self.shared.durability() {
            Some(durability) => wait.state(
                |position| durability.reached(position),
                || durability.failure(),
                self.now_ms,
            ),
            None => WaitState::Over,
        }
    }

    /// After each round: gets a commit on its way for what is held, and lets go of what is durable by now.
    pub(super) fn tend_held(&mut self) {
        if self.holds.is_empty() {
            return;
        }
        if let Some(level) = self.holds.demand.take()
            && let Some(durability) = self.shared.durability()
        {
            let alone = self.holds.tokens.len() == 1
                && (self.slots.len() == 1 || self.holds.lone_rounds >= LONE_ROUNDS);
            if alone && durability.commit_here(level) {
                return self.release_held();
            }
            durability.demand(level);
        }
        let late = self.holds.deadline_ms > 0 && self.now_ms >= self.holds.deadline_ms;
        if late || self.me().commits.count() != self.holds.seen {
            self.release_held();
        }
    }

    /// Before the thread sleeps: whether it may (I3). Otherwise there are replies to be released now.
    pub(super) fn may_sleep(&self) -> bool {
        self.holds.is_empty() || self.me().commits.may_sleep(self.holds.seen)
    }

    /// Whether a commit has come since the held connections were looked at.
    #[inline]
    pub(super) fn may_release(&self) -> bool {
        !self.holds.is_empty() && self.me().commits.count() != self.holds.seen
    }

    /// As [`sleep_limit`](Self::sleep_limit), if replies may be released by now: not at all.
    pub(super) fn patience(&mut self) -> Option<Timespec> {
        if self.may_sleep() {
            self.sleep_limit()
        } else {
            Some(ZERO)
        }
    }

    /// Looks at every held connection.
    fn release_held(&mut self) {
        // Before the look: a commit during it makes for another one.
        self.holds.seen = self.me().commits.count();
        self.holds.deadline_ms = 0;
        let mut tokens = std::mem::take(&mut self.holds.tokens);
        tokens.retain(|token| self.still_held(*token));
        // Releasing runs no request, so none was added meanwhile.
        assert!(self.holds.tokens.is_empty());
        self.holds.tokens = tokens;
    }

    fn still_held(&mut self, token: Token) -> bool {
        let Some(mut connection) = self.slots.take(token) else {
            return false; // It was closed meanwhile.
        };
        let Some(held) = &connection.held else {
            self.slots.put(token, connection);
            return false;
        };
        let state = self.state_of(&held.wait);
        if let WaitState::Waiting { deadline_ms } = state {
            if deadline_ms > 0 {
                let next = self.holds.deadline_ms;
                self.holds.deadline_ms = if next == 0 {
                    deadline_ms
                } else {
                    next.min(deadline_ms)
                };
            }
            self.slots.put(token, connection);
            return true;
        }
        connection.finish_hold(state);
        connection.taken_at_ms = self.now_ms;
        if !self.send(&mut connection) {
            self.close_taken(token, connection);
            return false;
        }
        if connection.waits_for == WaitsFor::Turn {
            self.again.push(token);
        }
        self.settle(token, connection);
        false
    }
}

impl Connection {
    /// The wait is over: the replies may go out, such as they are now.
    fn finish_hold(&mut self, state: WaitState) {
        let Some(held) = self.held.take() else {
            return;
        };
        let end = held.from + held.bytes;
        match state {
            WaitState::Waiting { .. } | WaitState::Over => {}
            WaitState::Instead { hoped, reply } => {
                let start = end - hoped.len().min(held.bytes);
                // Without replies (CLIENT REPLY OFF) there is nothing to correct.
                if self.output.get(start..end) == Some(hoped) {
                    self.output.splice(start..end, reply);
                }
            }
            WaitState::Failed(text) => {
                let mut errors = Vec::new();
                for _ in 0..held.replies {
                    Encoder::new(&mut errors, Protocol::Resp2).error(&text);
                }
                self.output.splice(held.from..end, errors);
            }
        }
    }
}
