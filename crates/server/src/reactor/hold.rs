//! Replies that wait until the data they depend on is durable.
//!
//! Requests run at once; the data that they wrote or saw becomes durable later. Until then the
//! connection's replies stay in its output buffer and it is not read from; other connections
//! continue. After each round the thread requests a commit from the log writer. It commits by
//! itself if all its clients write: two threads need not be woken then, and nobody else waits for
//! the disk. If the disk hangs, another thread takes over (`standby`). A reply of `CLIENT KILL`
//! waits in the same way, until the killed clients are gone; their threads announce that like a
//! commit.
//!
//! **Invariants**
//! - I1: no byte at or after [`HeldReplies::from`] is sent before its wait is over: see
//!   `Connection::sendable_bytes`.
//! - I2: a held connection is not received from; it holds at most one turn. Epoll continues to
//!   watch it for input until some arrives: most clients send nothing before they have their reply,
//!   and that saves two system calls.
//! - I3: every held connection is in [`HeldConnections::tokens`] and is checked after every commit;
//!   none is forgotten while the thread sleeps (`threads::commits`).
//! - I4: if the log fails, held replies become errors, because their content may not be true. But
//!   the log of a cluster's member fails only when its life is over: then the connection is closed,
//!   and the client asks other members. A connection is also closed after these errors if a request
//!   of the turn changed its state (`SELECT`, `MULTI`, `HELLO`, `CLIENT REPLY OFF`): its client
//!   would write into another database, or take `+QUEUED` for a reply.
//! - I5: in a cluster no reply that depends on data is sent unless this member was allowed to
//!   answer at some moment after the request ran (membership::M2). The right is checked
//!   once per group, after it ran, and then at each check of the held replies. The node's thread
//!   wakes this thread like a commit does when the right comes back; this thread also checks by
//!   itself.
//! - I6: in a cluster a RESP client waits for `reply-timeout` at most. Then its replies become
//!   errors, which say that the outcome is not known. The wait of a command itself (WAIT, SAVE) has
//!   its own end; native clients have their own deadline.
//! - I7: the effects of a turn on other clients are released when its wait is over, and dropped
//!   when its replies become errors. If the connection is gone, they wait as orphans, at most
//!   [`ORPHAN_BYTES_MAX`] of them for each thread: more are dropped.
//! - I8: a turn without replies and effects (`CLIENT REPLY OFF`, a slice of a long script) is not
//!   held, unless a command in it has its own wait (WAITAOF, SAVE). The first turn behind it that
//!   has some waits for its data too.
//! - I9: `held_since_ms` tells since when this thread has acknowledged less than it should. A reply
//!   that was given up counts until its wait is over: clients that give up soon do not end the
//!   outage. A command's own wait (WAIT, SAVE) does not count: its client chose it.

use super::connection::{Connection, WaitsFor};
use super::connections::Token;
use super::{Reactor, Timespec, ZERO};
use duramen_base::ids::Level;
use duramen_config::{clock, seldom};
use duramen_redis::figures::Event;
use duramen_redis::reply::{Effects, State as WaitState, Wait};
use duramen_wire::resp::{Encoder, Protocol, ReplySkipper};
use std::sync::Arc;
use std::time::Duration;

/// Held replies of one turn.
pub(super) struct HeldReplies {
    /// The start of the replies in the connection's output, and their length. Bytes after them were
    /// pushed later.
    pub(super) from: usize,
    bytes: usize,
    wait: Wait,
    effects: Effects,
    since_ms: u64,
    /// The time at which they become errors (I6), in milliseconds of the server's clock; 0 = never.
    deadline_ms: u64,
}

impl HeldReplies {
    fn is_late(&self, now_ms: u64) -> bool {
        self.deadline_ms > 0 && now_ms >= self.deadline_ms
    }
}

/// Maximum wait of a connection's replies after others of its replies were given up, until some are
/// acknowledged again.
const AFTER_MS: u64 = 1_000;
/// Replies that wait for this member's right to answer are checked again after this time, in
/// milliseconds.
const LEASE_LOOK_MS: u64 = 2;

/// The wait of a reply that was given up is looked at this often.
const GIVEN_UP_LOOK_MS: u64 = 1_000;

/// Maximum bytes of effects of closed connections that wait: clients come and go while a disk
/// hangs.
const ORPHAN_BYTES_MAX: usize = 64 << 20;

/// The held connections of a thread.
#[derive(Default)]
pub(super) struct HeldConnections {
    tokens: Vec<Token>,
    /// Number of connections whose last turn waited for the disk.
    pub(super) writers: usize,
    /// Requests of native clients wait for the log, and must be finished even if their connections
    /// are gone.
    pub(super) unfinished: bool,
    /// Replies of closed connections whose effects wait (I7).
    orphans: Vec<HeldReplies>,
    /// The first reply that was given up, and since when it had waited: until that wait is over, no
    /// later one is acknowledged sooner (I9).
    given_up: Option<(u64, Wait)>,
    /// The level of the commit that the newest held replies need and that was not requested yet.
    demand: Option<Level>,
    /// Number of commits when the held replies were last checked.
    seen: u64,
    /// Time of the next check, in milliseconds of the server's clock; 0 = after the next commit.
    deadline_ms: u64,
    /// The time since which the oldest held reply has waited, as of the last check; 0 = none.
    oldest_ms: u64,
    /// Whether this member was allowed to answer at the last check; None: not checked since the
    /// group ran.
    may_reply: Option<bool>,
}

/// The earlier of two times; 0 = none.
fn earlier(a_ms: u64, b_ms: u64) -> u64 {
    match (a_ms, b_ms) {
        (0, other) | (other, 0) => other,
        (a_ms, b_ms) => a_ms.min(b_ms),
    }
}

impl HeldConnections {
    /// A group has run: the result of the last check of the right to answer is from before.
    pub(super) fn group_ran(&mut self) {
        self.may_reply = None;
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_settled = self.given_up.is_none() && !self.unfinished;
        self.tokens.is_empty() && self.orphans.is_empty() && is_settled
    }

    /// A check is due at this time, in milliseconds of the server's clock; 0 = never.
    fn look_until(&mut self, deadline_ms: u64) {
        self.deadline_ms = earlier(self.deadline_ms, deadline_ms);
    }

    /// Another thread commits now, and this thread will try again when that commit wakes it.
    pub(super) fn tries_again(&self) -> bool {
        self.demand.is_some()
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        let waits = !self.tokens.is_empty() || !self.orphans.is_empty() || self.given_up.is_some();
        (self.deadline_ms > 0 && waits).then_some(self.deadline_ms)
    }
}

impl Reactor {
    /// Holds the replies that the last turn appended from `from` on, if they must wait. To be
    /// called when the connection is out of its slot, before anything is sent.
    pub(super) fn hold(&mut self, token: Token, connection: &mut Connection, from: usize) {
        let writes = self.hold_turn(token, connection, from) > Level::Memory;
        self.holds.writers -= usize::from(connection.writes);
        self.holds.writers += usize::from(writes);
        connection.writes = writes;
    }

    /// The level that the turn waits for.
    fn hold_turn(&mut self, token: Token, connection: &mut Connection, from: usize) -> Level {
        let wait = connection.client.take_wait();
        let effects = connection.client.take_effects(from);
        let bytes = connection.output.len() - from;
        let is_quiet = bytes == 0 && effects.is_empty() && !wait.has_own_end();
        if is_quiet || wait.is_none() || wait.is_durable() && self.may_reply() {
            connection.mode = connection.client.mode();
            self.release(connection, effects, from);
            if is_quiet {
                connection.client.keep_wait(wait); // I8
            }
            return Level::Memory;
        }
        // A failed disk is noticed at the next check.
        let state = self.state_of(&wait, None);
        let level = wait.level();
        let deadline_ms = self.reply_deadline_ms(connection, &wait);
        let has_own_end = wait.has_own_end();
        debug_assert!(connection.held.is_none(), "a held connection runs nothing");
        connection.held = Some(HeldReplies {
            from,
            bytes,
            wait,
            effects,
            since_ms: self.thread.now_ms(),
            deadline_ms,
        });
        let WaitState::Waiting {
            deadline_ms: ends_ms,
        } = state
        else {
            self.finish_hold(connection, state);
            return Level::Memory;
        };
        self.holds.look_until(ends_ms);
        self.holds.look_until(deadline_ms);
        connection.client.note_blocked(has_own_end);
        let since_ms = &self.me().counters.held_since_ms;
        if since_ms.get() == 0 && !has_own_end {
            since_ms.set(self.thread.now_ms());
        }
        self.holds.tokens.push(token);
        if level > Level::Memory {
            self.holds.demand = self.holds.demand.max(Some(level));
        }
        level
    }

    /// The time at which replies held from now on become errors (I6); 0 = never.
    fn reply_deadline_ms(&mut self, connection: &Connection, wait: &Wait) -> u64 {
        let timeout_ms = self.thread.here().config.reply_timeout_s * 1_000;
        let is_member = self.thread.shared().membership().is_some();
        if !is_member || timeout_ms == 0 || connection.native.is_some() || wait.has_own_end() {
            return 0;
        }
        // Otherwise each later request of a pipeline would wait as long again.
        let patience_ms = if connection.gave_up {
            AFTER_MS
        } else {
            timeout_ms
        };
        self.thread.now_ms() + patience_ms.min(timeout_ms)
    }

    /// Whether a member of a cluster may answer the requests that have run so far (I5). Reads the
    /// clock once per group.
    fn may_reply(&mut self) -> bool {
        if let Some(known) = self.holds.may_reply {
            return known;
        }
        let member = self.thread.shared().membership();
        let may = member.is_none_or(|member| member.may_reply());
        self.holds.may_reply = Some(may);
        may
    }

    fn state_of(&mut self, wait: &Wait, failure: Option<&str>) -> WaitState {
        if wait.is_leased() && !self.may_reply() {
            return WaitState::Waiting {
                deadline_ms: self.thread.now_ms() + LEASE_LOOK_MS,
            };
        }
        match self.thread.shared().durability() {
            Some(durability) => wait.state(
                |position| durability.log().reached(position),
                failure,
                self.thread.now_ms(),
            ),
            // Memory only: there is no log to wait for.
            None if wait.has_own_end() => {
                wait.state(|_| Level::Synced, failure, self.thread.now_ms())
            }
            None => WaitState::Over,
        }
    }

    /// After each round: starts a commit for the held replies, and releases the replies that are
    /// durable now. Returns the level of a commit that this thread is to make.
    pub(super) fn tend_held(&mut self) -> Option<Level> {
        if self.holds.is_empty() {
            return None;
        }
        let late = self.holds.deadline_ms > 0 && self.thread.now_ms() >= self.holds.deadline_ms;
        if late || self.me().commits.count() != self.holds.seen {
            self.release_held();
        }
        let level = self.holds.demand?;
        let all_write = self.connections.len() == self.holds.writers && !self.flash.is_busy();
        if all_write && self.standby.may_commit(self.thread.now_ms()) {
            return Some(level);
        }
        self.demand_commit();
        None
    }

    /// Requests the commit that held replies wait for from the log writer's thread.
    pub(super) fn demand_commit(&mut self) {
        if let Some(level) = self.holds.demand.take()
            && let Some(durability) = self.thread.shared().durability()
        {
            durability.log().demand(level);
        }
    }

    /// Commits on this thread, and releases the replies that are durable then. None: the disk
    /// answered late, and another thread serves the clients.
    pub(super) fn commit_here(self: Box<Self>, level: Level) -> Option<Box<Self>> {
        let Some(durability) = self.thread.shared().durability().cloned() else {
            return Some(self);
        };
        let standby = Arc::clone(&self.standby);
        let ticket = match standby.put_aside(self) {
            Ok(ticket) => ticket,
            Err(mut reactor) => {
                reactor.demand_commit();
                return Some(reactor);
            }
        };
        let began_ms = clock::coarse_ms();
        let has_committed = durability.log().try_commit_here(level);
        let now_ms = clock::coarse_ms();
        standby.note_commit(now_ms, now_ms - began_ms);
        let mut reactor = standby.take_back(&ticket)?;
        // Otherwise another thread commits now, and wakes this thread to try again.
        if has_committed {
            reactor.holds.demand = None;
            reactor.release_held();
        }
        Some(reactor)
    }

    /// A held connection sent more: from now on epoll does not report it.
    pub(super) fn mute(&mut self, token: Token, mut connection: Box<Connection>) {
        self.watch_exactly(token, &mut connection);
        self.connections.put(token, connection);
    }

    /// Before the thread sleeps: whether it may (I3). If not, there are replies to be released now.
    pub(super) fn may_sleep(&self) -> bool {
        self.holds.is_empty() || self.me().commits.may_sleep(self.holds.seen)
    }

    /// Whether there was a commit since the held connections were checked.
    #[inline]
    pub(super) fn may_release(&self) -> bool {
        !self.holds.is_empty() && self.me().commits.count() != self.holds.seen
    }

    /// As [`sleep_limit`](Self::sleep_limit); zero, if replies may be released now.
    pub(super) fn patience(&mut self) -> Option<Timespec> {
        if self.may_sleep() {
            self.sleep_limit()
        } else {
            Some(ZERO)
        }
    }

    fn release_held(&mut self) {
        // Read before the check: a commit during the check causes another one.
        self.holds.seen = self.me().commits.count();
        self.holds.deadline_ms = 0;
        self.holds.oldest_ms = 0;
        self.holds.may_reply = None;
        let alone = self.thread.shared().membership().is_none();
        let durability = self.thread.shared().durability().filter(|_| alone);
        let failure = durability.and_then(|durability| durability.failure());
        self.thread
            .shared()
            .commands
            .note_failed_log(failure.is_some());
        let mut tokens = std::mem::take(&mut self.holds.tokens);
        tokens.retain(|token| self.still_held(*token, failure.as_deref()));
        self.release_orphans(failure.as_deref());
        self.look_at_given_up(failure.as_deref());
        // Releasing runs no request, so no token was added meanwhile.
        assert!(self.holds.tokens.is_empty());
        self.holds.tokens = tokens;
        self.me().counters.held_since_ms.set(self.holds.oldest_ms);
        self.settle_native();
    }

    fn still_held(&mut self, token: Token, failure: Option<&str>) -> bool {
        let Some(mut connection) = self.connections.take(token) else {
            return false; // It was closed meanwhile.
        };
        let Some(held) = &connection.held else {
            self.connections.put(token, connection);
            return false;
        };
        let mut state = self.state_of(&held.wait, failure);
        if let WaitState::Waiting { deadline_ms } = state {
            if !held.is_late(self.thread.now_ms()) {
                self.holds.look_until(deadline_ms);
                self.holds.look_until(held.deadline_ms);
                if !held.wait.has_own_end() {
                    self.holds.oldest_ms = earlier(self.holds.oldest_ms, held.since_ms);
                }
                self.connections.put(token, connection);
                return true;
            }
            let first = (held.since_ms, held.wait.of_data());
            self.holds.given_up.get_or_insert(first);
            state = self.give_up(held.since_ms);
            connection.gave_up = true;
        } else {
            connection.gave_up = false;
        }
        self.note_long_hold(&connection);
        self.finish_hold(&mut connection, state);
        connection.taken_at_ms = self.thread.now_ms();
        if !self.send(&mut connection) {
            self.close_taken(token, connection);
            return false;
        }
        if connection.waits_for == WaitsFor::Turn {
            self.connections.continue_soon(token);
        } else if connection.waits_for == WaitsFor::Input && !connection.closing {
            self.pause_crowding(token, &mut connection);
        }
        self.settle(token, connection);
        false
    }
}

impl Reactor {
    /// Records a wait for the log that has ended, if it was as long as `LATENCY` wants to know.
    fn note_long_hold(&mut self, connection: &Connection) {
        let from_ms = self.thread.here().config.slow.event_ms;
        let Some(held) = connection.held.as_ref().filter(|_| from_ms > 0) else {
            return;
        };
        let waited_ms = self.thread.now_ms().saturating_sub(held.since_ms);
        if waited_ms < from_ms || held.wait.has_own_end() {
            return;
        }
        let event = match held.wait.level() {
            Level::Synced => Event::LogSync,
            Level::Buffered => Event::LogWrite,
            Level::Memory => return,
        };
        let waited = Duration::from_millis(waited_ms);
        self.thread.shared().latency.add(event, waited);
    }

    /// Looks whether the first reply that was given up would be released now (I9).
    fn look_at_given_up(&mut self, failure: Option<&str>) {
        let Some((since_ms, wait)) = self.holds.given_up.take() else {
            return;
        };
        if matches!(self.state_of(&wait, failure), WaitState::Waiting { .. }) {
            self.holds
                .look_until(self.thread.now_ms() + GIVEN_UP_LOOK_MS);
            self.holds.oldest_ms = earlier(self.holds.oldest_ms, since_ms);
            self.holds.given_up = Some((since_ms, wait));
        }
    }

    /// Gives up replies that have waited for `reply-timeout` (I6).
    fn give_up(&mut self, since_ms: u64) -> WaitState {
        let waited_s = (self.thread.now_ms() - since_ms) / 1_000;
        self.me().counters.replies_given_up.add(1);
        let cause = match self.may_reply() {
            true => "too few backups acknowledge",
            false => "the lease of a backup is not renewed",
        };
        seldom!(
            warn,
            waited_s,
            "requests are not acknowledged in time: {cause}"
        );
        let member = self.thread.shared().membership();
        let remedy = member.and_then(|member| member.waits_for());
        let remedy = remedy.unwrap_or_else(|| "see `duramen status`".to_owned());
        WaitState::Failed(format!(
            "NOREPLICAS no acknowledgement of this member's backups for {waited_s} s: it is not known whether the effect of this request will last; {remedy}"
        ))
    }
}

impl Reactor {
    /// The wait is over: the replies, possibly replaced, may be sent, and their effects take place.
    fn finish_hold(&mut self, connection: &mut Connection, state: WaitState) {
        let Some(held) = connection.held.take() else {
            return;
        };
        let (from, is_failed) = (held.from, matches!(state, WaitState::Failed(_)));
        let effects = connection.finish_hold(held, state);
        if !is_failed {
            self.release(connection, effects, from);
        }
    }

    /// The connection is closed: keeps its effects until their wait is over.
    pub(super) fn orphan(&mut self, connection: &mut Connection) {
        let held = connection.held.take().unwrap_or_else(|| HeldReplies {
            from: 0,
            bytes: 0,
            wait: connection.client.take_wait(),
            effects: connection.client.take_effects(0),
            since_ms: self.thread.now_ms(),
            deadline_ms: 0,
        });
        if held.effects.is_empty() {
            return;
        }
        let (level, bytes) = (held.wait.level(), held.effects.bytes());
        let Some(held) = self.still_orphan(held, None) else {
            return;
        };
        let counters = &self.me().counters;
        if !has_room_for_orphan(counters.orphan_bytes.get(), bytes) {
            counters.effects_dropped.add(held.effects.len() as u64);
            seldom!(
                warn,
                bytes,
                "messages and events of a client that is gone are dropped: too many wait for the disk"
            );
            return;
        }
        counters.orphan_bytes.add(bytes as u64);
        self.holds.orphans.push(held);
        if level > Level::Memory {
            self.holds.demand = self.holds.demand.max(Some(level));
        }
    }

    fn release_orphans(&mut self, failure: Option<&str>) {
        for held in std::mem::take(&mut self.holds.orphans) {
            let bytes = held.effects.bytes() as u64;
            match self.still_orphan(held, failure) {
                Some(held) => self.holds.orphans.push(held),
                None => self.me().counters.orphan_bytes.add(bytes.wrapping_neg()),
            }
        }
    }

    /// Releases or drops the effects of a closed connection, unless they wait.
    fn still_orphan(&mut self, held: HeldReplies, failure: Option<&str>) -> Option<HeldReplies> {
        match self.state_of(&held.wait, failure) {
            WaitState::Waiting { deadline_ms } if !held.is_late(self.thread.now_ms()) => {
                self.holds.look_until(deadline_ms);
                self.holds.look_until(held.deadline_ms);
                return Some(held);
            }
            WaitState::Waiting { .. } | WaitState::Failed(_) => {}
            WaitState::Over | WaitState::Instead { .. } => self.release_orphan(held.effects),
        }
        None
    }
}

/// Whether effects of `bytes` may wait beside others: those of one connection always.
fn has_room_for_orphan(waiting_bytes: u64, bytes: usize) -> bool {
    waiting_bytes == 0 || waiting_bytes + bytes as u64 <= ORPHAN_BYTES_MAX as u64
}

impl Connection {
    /// The replies, possibly replaced, are held no more; returns their effects.
    fn finish_hold(&mut self, held: HeldReplies, state: WaitState) -> Effects {
        self.client.note_blocked(false);
        let end = held.from + held.bytes;
        let mode = self.client.mode();
        let is_failed = matches!(state, WaitState::Failed(_));
        if is_failed && mode.misleads(self.mode) {
            self.closing = true; // I4
            if !self.client.waits_for_key() {
                self.waits_for = WaitsFor::Input;
            }
        }
        self.mode = mode;
        match state {
            WaitState::Waiting { .. } | WaitState::Over => {}
            WaitState::Instead { hoped, reply } => {
                let start = end - hoped.len().min(held.bytes);
                // With `CLIENT REPLY OFF` there is no reply to correct.
                if self.output.get(start..end) == Some(hoped.as_slice()) {
                    self.output.splice(start..end, reply);
                }
            }
            WaitState::Failed(_) if self.native.is_some() => {
                // The client learns the outcome of its requests from another member.
                self.output.truncate(held.from);
                self.closing = true;
            }
            WaitState::Failed(text) => {
                let replies = self.output.get(held.from..end).unwrap_or_default();
                // There may be more requests than replies: after `CLIENT REPLY SKIP` one has no
                // reply.
                let skipped = ReplySkipper::new().advance(replies).unwrap_or_default();
                let mut errors = Vec::new();
                for _ in 0..skipped.replies {
                    Encoder::new(&mut errors, Protocol::Resp2).error(&text);
                }
                self.output.splice(held.from..end, errors);
            }
        }
        held.effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_redis::threads::ClientRecord;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// Effects of clients that had gone took memory without a limit while the disk hung.
    #[test]
    fn effects_of_closed_connections_are_bounded() {
        let limit = ORPHAN_BYTES_MAX;
        assert!(has_room_for_orphan(0, 2 * limit));
        assert!(has_room_for_orphan(1, limit - 1));
        assert!(!has_room_for_orphan(1, limit));
    }

    /// After a failure of the disk there was one error for each request that had run. After `CLIENT
    /// REPLY SKIP` that was one too many, and every later reply answered the wrong request.
    #[test]
    fn each_reply_that_waited_becomes_an_error() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair of sockets");
        let address = "127.0.0.1:1".parse().expect("an address");
        let record = Arc::new(ClientRecord::new(1, 0, 0, 3, address, address, 1));
        let mut connection = Connection::new(ours.into(), record, 1);
        // Three requests, of which one has no reply; then a line that was pushed.
        connection.output = b"+before\r\n+OK\r\n*2\r\n$1\r\na\r\n:1\r\n+pushed\r\n".to_vec();
        let held = HeldReplies {
            from: b"+before\r\n".len(),
            bytes: b"+OK\r\n*2\r\n$1\r\na\r\n:1\r\n".len(),
            wait: Wait::default(),
            effects: Effects::default(),
            since_ms: 0,
            deadline_ms: 0,
        };
        connection.finish_hold(held, WaitState::Failed("MISCONF failed".to_owned()));
        let told = String::from_utf8_lossy(&connection.output);
        assert_eq!(
            told,
            "+before\r\n-MISCONF failed\r\n-MISCONF failed\r\n+pushed\r\n"
        );
    }
}
