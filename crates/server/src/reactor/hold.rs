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
//! - I3: every held connection is in [`Holds::tokens`] and is checked after every commit;
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
//! - I9: `held_since_ms` is the time since which this thread has acknowledged less than it should.
//!   A reply that was given up counts until its wait is over: clients that give up soon do not end
//!   the outage. A command's own wait (WAIT, SAVE) does not count: its client chose it.

use super::connection::{Connection, WaitsFor};
use super::connections::Token;
use super::held::HeldReplies;
use super::here::Here;
use super::release::Releases;
use duramen_base::ids::Level;
use duramen_config::seldom;
use duramen_redis::figures::Event;
use duramen_redis::reply::{Effects, State as WaitState, Wait};
use duramen_wire::resp::{Encoder, Protocol, ReplySkipper};
use std::time::Duration;

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

/// The state of a connection whose held replies were checked.
pub(super) enum Checked {
    /// The connection holds no replies.
    Free,
    /// Its replies still wait.
    Held,
    /// Its replies may be sent, perhaps replaced by errors.
    Released,
}

/// The held connections of a thread.
#[derive(Default)]
pub(super) struct Holds {
    tokens: Vec<Token>,
    /// Number of connections whose last turn waited for the disk.
    writers: usize,
    /// Whether requests of native clients wait for the log, and must be finished even if their
    /// connections are gone.
    unfinished: bool,
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
    /// Whether this member was allowed to answer at the last check; `None` if that was not checked
    /// since the last group ran.
    may_reply: Option<bool>,
}

/// The earlier of two times; 0 = none.
fn earlier(a_ms: u64, b_ms: u64) -> u64 {
    match (a_ms, b_ms) {
        (0, other) | (other, 0) => other,
        (a_ms, b_ms) => a_ms.min(b_ms),
    }
}

impl Holds {
    /// A group has run: the result of the last check of the right to answer is too old now.
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

    /// Notes whether requests of native clients wait for the log, and must be finished even if
    /// their connections are gone.
    pub(super) fn note_unfinished(&mut self, unfinished: bool) {
        self.unfinished = unfinished;
    }

    /// A connection is being closed.
    pub(super) fn ends(&mut self, connection: &Connection) {
        self.writers -= usize::from(connection.writes);
    }

    /// Holds the replies that the last turn appended from `from` on, if they must wait. To be
    /// called when the connection is out of its slot, before anything is sent.
    pub(super) fn hold(
        &mut self,
        here: Here<'_>,
        token: Token,
        connection: &mut Connection,
        from: usize,
        releases: &mut Releases,
    ) {
        let writes = self.hold_turn(here, token, connection, from, releases) > Level::Memory;
        self.writers -= usize::from(connection.writes);
        self.writers += usize::from(writes);
        connection.writes = writes;
    }

    /// The level that the turn waits for.
    fn hold_turn(
        &mut self,
        here: Here<'_>,
        token: Token,
        connection: &mut Connection,
        from: usize,
        releases: &mut Releases,
    ) -> Level {
        let wait = connection.client.wait.take();
        let effects = connection.client.effects.take(from);
        let bytes = connection.output.len() - from;
        let is_quiet = bytes == 0 && effects.is_empty() && !wait.has_own_end();
        if is_quiet || wait.is_none() || wait.is_durable() && self.may_reply(here) {
            connection.mode = connection.client.mode();
            releases.release(here, connection, effects, from);
            if is_quiet {
                connection.client.wait = wait; // I8
            }
            return Level::Memory;
        }
        // A failed disk is noticed at the next check.
        let state = self.state_of(here, &wait, None);
        let level = wait.level();
        let deadline_ms = reply_deadline_ms(here, connection, &wait);
        let has_own_end = wait.has_own_end();
        debug_assert!(connection.held.is_none(), "a held connection runs nothing");
        connection.held = Some(HeldReplies {
            from,
            bytes,
            wait,
            effects,
            since_ms: here.now_ms,
            deadline_ms,
        });
        let WaitState::Waiting {
            deadline_ms: ends_ms,
        } = state
        else {
            finish(here, connection, state, releases);
            return Level::Memory;
        };
        self.look_until(ends_ms);
        self.look_until(deadline_ms);
        connection.client.record().note_blocked(has_own_end);
        let since_ms = &here.thread.counters.held_since_ms;
        if since_ms.get() == 0 && !has_own_end {
            since_ms.set(here.now_ms);
        }
        self.tokens.push(token);
        if level > Level::Memory {
            self.demand = self.demand.max(Some(level));
        }
        level
    }

    /// Whether a member of a cluster may answer the requests that have run so far (I5). Reads the
    /// clock once per group.
    fn may_reply(&mut self, here: Here<'_>) -> bool {
        if let Some(known) = self.may_reply {
            return known;
        }
        let member = here.shared.membership();
        let may = member.is_none_or(|member| member.may_reply());
        self.may_reply = Some(may);
        may
    }

    fn state_of(&mut self, here: Here<'_>, wait: &Wait, failure: Option<&str>) -> WaitState {
        if wait.is_leased() && !self.may_reply(here) {
            return WaitState::Waiting {
                deadline_ms: here.now_ms + LEASE_LOOK_MS,
            };
        }
        match here.shared.durability() {
            Some(durability) => wait.state(
                |position| durability.log().reached(position),
                failure,
                here.now_ms,
            ),
            // Memory only: there is no log to wait for.
            None if wait.has_own_end() => wait.state(|_| Level::Synced, failure, here.now_ms),
            None => WaitState::Over,
        }
    }

    /// After each round: whether the held replies are to be checked.
    pub(super) fn is_due(&self, here: Here<'_>) -> bool {
        let late = self.deadline_ms > 0 && here.now_ms >= self.deadline_ms;
        late || here.thread.commits.count() != self.seen
    }

    /// Whether all of so many connections wait for the disk.
    pub(super) fn all_write(&self, connections: usize) -> bool {
        connections == self.writers
    }

    /// Starts the commit that held replies wait for: returns its level if this thread is to make it
    /// (`may_commit`).
    pub(super) fn next_commit(&mut self, here: Here<'_>, may_commit: bool) -> Option<Level> {
        if !may_commit {
            self.demand_commit(here);
        }
        self.demand
    }

    /// Requests the commit that held replies wait for from the log writer's thread.
    pub(super) fn demand_commit(&mut self, here: Here<'_>) {
        if let Some(level) = self.demand.take()
            && let Some(durability) = here.shared.durability()
        {
            durability.log().demand(level);
        }
    }

    /// This thread has made the commit.
    pub(super) fn has_committed(&mut self) {
        self.demand = None;
    }

    /// Before the thread sleeps: whether it may (I3). If not, there are replies to be released now.
    pub(super) fn may_sleep(&self, here: Here<'_>) -> bool {
        self.is_empty() || here.thread.commits.may_sleep(self.seen)
    }

    /// Whether there was a commit since the held connections were checked.
    #[inline]
    pub(super) fn may_release(&self, here: Here<'_>) -> bool {
        !self.is_empty() && here.thread.commits.count() != self.seen
    }

    /// Begins a check of all held replies; returns their connections, and the reason if the log
    /// fails.
    pub(super) fn begin_check(&mut self, here: Here<'_>) -> (Vec<Token>, Option<String>) {
        // Read before the check: a commit during the check causes another one.
        self.seen = here.thread.commits.count();
        self.deadline_ms = 0;
        self.oldest_ms = 0;
        self.may_reply = None;
        let alone = here.shared.membership().is_none();
        let durability = here.shared.durability().filter(|_| alone);
        let failure = durability.and_then(|durability| durability.failure());
        here.shared.commands.note_failed_log(failure.is_some());
        (std::mem::take(&mut self.tokens), failure)
    }

    /// Checks a connection that is out of its slot.
    pub(super) fn check(
        &mut self,
        here: Here<'_>,
        connection: &mut Connection,
        failure: Option<&str>,
        releases: &mut Releases,
    ) -> Checked {
        let Some(held) = &connection.held else {
            return Checked::Free;
        };
        let mut state = self.state_of(here, &held.wait, failure);
        if let WaitState::Waiting { deadline_ms } = state {
            if !held.is_late(here.now_ms) {
                self.look_until(deadline_ms);
                self.look_until(held.deadline_ms);
                if !held.wait.has_own_end() {
                    self.oldest_ms = earlier(self.oldest_ms, held.since_ms);
                }
                return Checked::Held;
            }
            let first = (held.since_ms, held.wait.of_data());
            self.given_up.get_or_insert(first);
            state = self.give_up(here, held.since_ms);
            connection.gave_up = true;
        } else {
            connection.gave_up = false;
        }
        note_long_hold(here, connection);
        finish(here, connection, state, releases);
        connection.taken_at_ms = here.now_ms;
        Checked::Released
    }

    /// Ends the check: the replies of `tokens` still wait.
    pub(super) fn end_check(
        &mut self,
        here: Here<'_>,
        tokens: Vec<Token>,
        failure: Option<&str>,
        releases: &mut Releases,
    ) {
        self.release_orphans(here, failure, releases);
        self.look_at_given_up(here, failure);
        // Releasing runs no request, so no token was added meanwhile.
        assert!(self.tokens.is_empty());
        self.tokens = tokens;
        here.thread.counters.held_since_ms.set(self.oldest_ms);
    }

    /// Looks whether the first reply that was given up would be released now (I9).
    fn look_at_given_up(&mut self, here: Here<'_>, failure: Option<&str>) {
        let Some((since_ms, wait)) = self.given_up.take() else {
            return;
        };
        if matches!(
            self.state_of(here, &wait, failure),
            WaitState::Waiting { .. }
        ) {
            self.look_until(here.now_ms + GIVEN_UP_LOOK_MS);
            self.oldest_ms = earlier(self.oldest_ms, since_ms);
            self.given_up = Some((since_ms, wait));
        }
    }

    /// Gives up replies that have waited for `reply-timeout` (I6).
    fn give_up(&mut self, here: Here<'_>, since_ms: u64) -> WaitState {
        let waited_s = (here.now_ms - since_ms) / 1_000;
        here.thread.counters.replies_given_up.add(1);
        let cause = match self.may_reply(here) {
            true => "too few backups acknowledge",
            false => "the lease of a backup is not renewed",
        };
        seldom!(
            warn,
            waited_s,
            "requests are not acknowledged in time: {cause}"
        );
        let member = here.shared.membership();
        let remedy = member.and_then(|member| member.waits_for());
        let remedy = remedy.unwrap_or_else(|| "see `duramen status`".to_owned());
        WaitState::Failed(format!(
            "NOREPLICAS no acknowledgement of this member's backups for {waited_s} s: it is not known whether the effect of this request will last; {remedy}"
        ))
    }

    /// The connection is closed: keeps its effects until their wait is over.
    pub(super) fn orphan(
        &mut self,
        here: Here<'_>,
        connection: &mut Connection,
        releases: &mut Releases,
    ) {
        let held = connection.held.take().unwrap_or_else(|| HeldReplies {
            from: 0,
            bytes: 0,
            wait: connection.client.wait.take(),
            effects: connection.client.effects.take(0),
            since_ms: here.now_ms,
            deadline_ms: 0,
        });
        if held.effects.is_empty() {
            return;
        }
        let (level, bytes) = (held.wait.level(), held.effects.bytes());
        let Some(held) = self.still_orphan(here, held, None, releases) else {
            return;
        };
        let counters = &here.thread.counters;
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
        self.orphans.push(held);
        if level > Level::Memory {
            self.demand = self.demand.max(Some(level));
        }
    }

    fn release_orphans(&mut self, here: Here<'_>, failure: Option<&str>, releases: &mut Releases) {
        for held in std::mem::take(&mut self.orphans) {
            let bytes = held.effects.bytes() as u64;
            match self.still_orphan(here, held, failure, releases) {
                Some(held) => self.orphans.push(held),
                None => here.thread.counters.orphan_bytes.add(bytes.wrapping_neg()),
            }
        }
    }

    /// Releases or drops the effects of a closed connection, unless they wait.
    fn still_orphan(
        &mut self,
        here: Here<'_>,
        held: HeldReplies,
        failure: Option<&str>,
        releases: &mut Releases,
    ) -> Option<HeldReplies> {
        match self.state_of(here, &held.wait, failure) {
            WaitState::Waiting { deadline_ms } if !held.is_late(here.now_ms) => {
                self.look_until(deadline_ms);
                self.look_until(held.deadline_ms);
                return Some(held);
            }
            WaitState::Waiting { .. } | WaitState::Failed(_) => {}
            WaitState::Over | WaitState::Instead { .. } => {
                releases.release_orphan(here, held.effects);
            }
        }
        None
    }
}

/// The time at which replies held from now on become errors (I6); 0 = never.
fn reply_deadline_ms(here: Here<'_>, connection: &Connection, wait: &Wait) -> u64 {
    let timeout_ms = here.config.reply_timeout_s * 1_000;
    let is_member = here.shared.membership().is_some();
    if !is_member || timeout_ms == 0 || connection.native.is_some() || wait.has_own_end() {
        return 0;
    }
    // Otherwise each later request of a pipeline would wait as long again.
    let patience_ms = if connection.gave_up {
        AFTER_MS
    } else {
        timeout_ms
    };
    here.now_ms + patience_ms.min(timeout_ms)
}

/// Records a wait for the log that has ended, if it was as long as `LATENCY` wants to know.
fn note_long_hold(here: Here<'_>, connection: &Connection) {
    let from_ms = here.config.slow.event_ms;
    let Some(held) = connection.held.as_ref().filter(|_| from_ms > 0) else {
        return;
    };
    let waited_ms = here.now_ms.saturating_sub(held.since_ms);
    if waited_ms < from_ms || held.wait.has_own_end() {
        return;
    }
    let event = match held.wait.level() {
        Level::Synced => Event::LogSync,
        Level::Buffered => Event::LogWrite,
        Level::Memory => return,
    };
    let waited = Duration::from_millis(waited_ms);
    here.shared.figures.latency().add(event, waited);
}

/// The wait is over: the replies, possibly replaced, may be sent, and their effects take place.
fn finish(here: Here<'_>, connection: &mut Connection, state: WaitState, releases: &mut Releases) {
    let Some(held) = connection.held.take() else {
        return;
    };
    let (from, is_failed) = (held.from, matches!(state, WaitState::Failed(_)));
    let effects = connection.finish_hold(held, state);
    if !is_failed {
        releases.release(here, connection, effects, from);
    }
}

/// Whether effects of `bytes` may wait beside others. If no others wait, they always may.
fn has_room_for_orphan(waiting_bytes: u64, bytes: usize) -> bool {
    waiting_bytes == 0 || waiting_bytes + bytes as u64 <= ORPHAN_BYTES_MAX as u64
}

impl Connection {
    /// The replies, possibly replaced, are held no more; returns their effects.
    fn finish_hold(&mut self, held: HeldReplies, state: WaitState) -> Effects {
        self.client.record().note_blocked(false);
        let end = held.from + held.bytes;
        let mode = self.client.mode();
        let is_failed = matches!(state, WaitState::Failed(_));
        if is_failed && mode.misleads(self.mode) {
            self.closing = true; // I4
            if !self.client.key_wait.waits() {
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
