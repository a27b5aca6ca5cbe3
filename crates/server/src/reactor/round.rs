//! A group: connections whose requests run as one batch of the executor.

use super::connection::{Connection, WaitsFor};
use super::connections::{Connections, Token};
use super::here::Here;
use super::next::Next;
use super::parked::FetchedEntry;
use super::receive::Source;
use super::{GROUP_REQUESTS, Traffic};
use duramen_config::seldom;
use duramen_redis::command::Ending;
use duramen_redis::executor::Turn;
use duramen_wire::resp::{
    Consumed, Encoder, Limits, ParseState, Protocol, ProtocolError, Requests, parse_requests,
};

/// A connection with requests to run.
pub(super) struct Ready {
    pub(super) token: Token,
    pub(super) connection: Box<Connection>,
    pub(super) requests: Requests,
    pub(super) source: Source,
    /// Start of its replies in the connection's output.
    pub(super) replies_from: usize,
    /// The limits used for parsing: its own requests may change the limits for the next bytes.
    pub(super) limits: Limits,
    /// Result of parsing; an error comes after the requests in `requests`.
    pub(super) parsed: Result<Consumed, ProtocolError>,
}

/// Maximum requests of one connection that run in one turn.
pub(super) const TURN_REQUESTS_MAX: usize = 1024;
/// Maximum request tables that are kept; a group rarely has more connections.
const TABLES_MAX: usize = 128;

/// Requests that are shown again within this time stay parsed, as they would otherwise be parsed
/// several times. Later ones do not, so that no table is kept for the length of a `CLIENT PAUSE`.
const SHOWN_SOON_MS: u64 = 100;

/// Memory of a group that the next one reuses.
#[derive(Default)]
struct Recycled {
    turns: Vec<Turn<'static>>,
    /// For each turn, the number of its requests that have run, and its ending.
    ended: Vec<(usize, Ending)>,
    tables: Vec<Requests>,
}

impl Recycled {
    fn requests(&mut self) -> Requests {
        self.tables.pop().unwrap_or_default()
    }

    /// Keeps a table without the memory of an unusually large request: the lowest tables of the
    /// stack may not be used again for long.
    fn give_back(&mut self, mut requests: Requests) {
        if self.tables.len() < TABLES_MAX {
            requests.clear();
            self.tables.push(requests);
        }
    }
}

/// The connections of a group that speak RESP: received and parsed, not run yet.
#[derive(Default)]
pub(super) struct Groups {
    ready: Vec<Ready>,
    /// Requests of this group, those of native clients included.
    requests: usize,
    /// Memory of the last group's turns and request tables, to be reused.
    recycled: Recycled,
}

impl Groups {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Number of connections.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Whether the group is to run now.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.requests >= GROUP_REQUESTS
    }

    /// The group gets requests of a native client.
    #[inline]
    pub(super) fn note_requests(&mut self, requests: usize) {
        self.requests += requests;
    }

    /// A table for requests.
    #[inline]
    pub(super) fn table(&mut self) -> Requests {
        self.recycled.requests()
    }

    #[inline]
    pub(super) fn give_back(&mut self, table: Requests) {
        self.recycled.give_back(table);
    }

    /// Adds a connection.
    #[inline]
    pub(super) fn add(&mut self, ready: Ready) {
        self.requests += ready.requests.len().max(1);
        self.ready.push(ready);
    }

    /// A connection whose requests are about to run.
    fn get(&self, token: Token) -> Option<&Connection> {
        let ready = self.ready.iter().find(|ready| ready.token == token);
        ready.map(|ready| &*ready.connection)
    }

    /// As [`get`](Self::get).
    fn get_mut(&mut self, token: Token) -> Option<&mut Connection> {
        let ready = self.ready.iter_mut().find(|ready| ready.token == token);
        ready.map(|ready| &mut *ready.connection)
    }

    /// Takes a connection whose requests are about to run out of the group.
    pub(super) fn take(&mut self, token: Token) -> Option<Box<Connection>> {
        let at = self.ready.iter().position(|ready| ready.token == token)?;
        let Ready {
            connection,
            requests,
            ..
        } = self.ready.remove(at);
        self.recycled.give_back(requests);
        Some(connection)
    }

    /// Appends bytes to the output of such a connection, before the replies to its requests.
    pub(super) fn append_before_replies(&mut self, token: Token, bytes: &[u8]) {
        if let Some(ready) = self.ready.iter_mut().find(|ready| ready.token == token)
            && !ready.connection.closing
        {
            ready.connection.output.extend_from_slice(bytes);
            ready.replies_from += bytes.len();
        }
    }
}

/// Whether requests that did not run are shown again soon, perhaps again and again, as those are
/// that meet a reserved key.
fn is_shown_soon(ending: Ending, now_ms: u64) -> bool {
    match ending {
        Ending::Open | Ending::Cold => true,
        Ending::Paused { until_ms } => until_ms <= now_ms + SHOWN_SOON_MS,
        Ending::Held | Ending::Blocked | Ending::CloseAfterReply | Ending::CloseNow => false,
    }
}

/// An empty vector for another lifetime, in the memory of `turns`: collecting a vector's own
/// iterator reuses its memory.
fn for_another_lifetime<'to>(mut turns: Vec<Turn<'_>>) -> Vec<Turn<'to>> {
    turns.clear();
    turns
        .into_iter()
        .map(|_| unreachable!("it was emptied"))
        .collect()
}

/// A RESP connection, in its slot or with requests that are about to run.
pub(super) fn resp_connection<'c>(
    connections: &'c mut Connections,
    groups: &'c mut Groups,
    token: Token,
) -> Option<&'c mut Connection> {
    match connections.get(token) {
        Some(_) => connections.get_mut(token),
        None => groups.get_mut(token),
    }
}

impl Traffic {
    /// A connection in its slot, or one whose requests are about to run: messages may come for both
    /// (`Reactor::round`).
    pub(super) fn connection(&self, token: Token) -> Option<&Connection> {
        let in_slot = self.connections.get(token);
        in_slot
            .or_else(|| self.groups.get(token))
            .or_else(|| self.native.about_to_run(token))
    }

    /// Runs the requests of the group and sends the replies.
    pub(super) fn run_group(&mut self) {
        self.groups.requests = 0;
        self.run_resp();
        self.run_native();
        self.input.clear();
    }

    fn run_resp(&mut self) {
        if self.groups.is_empty() {
            return;
        }
        let mut ready = std::mem::take(&mut self.groups.ready);
        let has_parked = self.flash.has_parked();
        if has_parked {
            for ready in &mut ready {
                self.flash
                    .lend_fetched(&mut self.executor, &mut ready.connection);
            }
        }
        let mut turns = for_another_lifetime(std::mem::take(&mut self.groups.recycled.turns));
        for Ready {
            connection,
            requests,
            source,
            ..
        } in &mut ready
        {
            let Connection {
                client,
                input,
                output,
                ..
            } = &mut **connection;
            let input = match source {
                Source::Shared(range) => self.input.get(range),
                Source::Own => input.get(),
            };
            turns.push(Turn::new(client, requests, input, output));
        }
        self.executor.run(&mut turns);
        self.holds.group_ran();
        let mut ended = std::mem::take(&mut self.groups.recycled.ended);
        ended.clear();
        ended.extend(turns.iter().map(|turn| (turn.executed, turn.ending())));
        self.groups.recycled.turns = for_another_lifetime(turns);
        if has_parked {
            self.flash.forget_fetched(&mut self.executor);
        }
        for (ready, ended) in ready.drain(..).zip(&ended) {
            self.finish(ready, *ended);
        }
        self.show_woken();
        self.groups.recycled.ended = ended;
        self.groups.ready = ready;
    }

    /// After the requests of a connection ran: keeps the rest of its input, sends its replies.
    fn finish(&mut self, ready: Ready, (executed, ending): (usize, Ending)) {
        let Ready {
            token,
            mut connection,
            requests,
            source,
            replies_from,
            limits,
            parsed,
        } = ready;
        let was_corked = std::mem::take(&mut connection.corked_until_ms) > 0;
        match ending {
            Ending::CloseNow => {
                self.groups.give_back(requests);
                return self.cut_off(token, &mut connection);
            }
            Ending::CloseAfterReply => connection.closing = true,
            Ending::Open
            | Ending::Held
            | Ending::Paused { .. }
            | Ending::Cold
            | Ending::Blocked => {}
        }
        let here = self.thread.here();
        let kept = self
            .flash
            .take_back(here, &mut connection, executed, &mut self.executor);
        connection.note_replies(replies_from);
        self.hold(token, &mut connection, replies_from);
        let whole = executed >= requests.len();
        let requests = match &parsed {
            Ok(consumed)
                if executed == 0 && !whole && is_shown_soon(ending, self.thread.now_ms()) =>
            {
                connection.keep_parsed(requests, consumed.bytes, limits)
            }
            _ => Some(requests),
        };
        if let Some(requests) = requests {
            self.groups.give_back(requests);
        }
        let (consumed, more) = match parsed {
            Ok(consumed) if whole => (Some(consumed.bytes), consumed.more),
            Err(error) if whole => {
                if !connection.closing {
                    refuse(self.thread.here(), &mut connection, error);
                }
                (None, false)
            }
            _ => (
                self.executed_bytes(&mut connection, &source, &limits, executed),
                true,
            ),
        };
        self.input
            .keep_rest(&mut connection, &source, consumed, &mut self.buffers);
        connection.waits_for = match more && !connection.closing {
            true => self.next_wait(token, &mut connection, ending, (was_corked, kept)),
            false => WaitsFor::Input,
        };
        if connection.waits_for == WaitsFor::Input && !connection.closing {
            self.waits
                .pause_crowding(self.thread.here(), token, &mut connection);
        }
        self.go(token, connection, Next::Send);
    }

    /// Holds the replies that the last turn appended from `from` on, if they must wait.
    #[inline]
    pub(super) fn hold(&mut self, token: Token, connection: &mut Connection, from: usize) {
        let (here, releases) = (self.thread.here(), &mut self.releases);
        self.holds.hold(here, token, connection, from, releases);
    }

    /// After a group: clients of this thread that were woken by its requests look next.
    pub(super) fn show_woken(&mut self) {
        let (here, connections) = (self.thread.here(), &mut self.connections);
        self.waits.show_woken(here, connections, &mut self.executor);
    }

    /// The event that a connection waits for if some of its requests did not run. `kept` are
    /// entries that were read from flash for it, and not used.
    #[inline]
    fn next_wait(
        &mut self,
        token: Token,
        connection: &mut Connection,
        ending: Ending,
        (was_corked, kept): (bool, Option<Vec<FetchedEntry>>),
    ) -> WaitsFor {
        match ending {
            Ending::Cold => {
                self.park(token, connection, kept);
                if !was_corked {
                    self.flash.cork(self.thread.here(), token, connection);
                }
                connection.waits_for
            }
            Ending::Blocked => {
                self.waits.await_key(self.thread.here(), token, connection);
                WaitsFor::Key
            }
            Ending::Paused { until_ms } => {
                connection.client.record().note_blocked(true);
                self.waits.pause(token, connection, until_ms);
                connection.waits_for
            }
            _ => {
                if connection.held.is_none() {
                    self.connections.continue_soon(token);
                }
                WaitsFor::Turn
            }
        }
    }

    /// Parks a connection whose requests met entries on flash until these are fetched.
    pub(super) fn park(
        &mut self,
        token: Token,
        connection: &mut Connection,
        kept: Option<Vec<FetchedEntry>>,
    ) {
        let (here, connections) = (self.thread.here(), &mut self.connections);
        self.flash
            .park(here, token, connection, kept, connections, &self.watch);
    }

    /// The length of the requests that have run if the executor stopped early: the rest is parsed
    /// again from its beginning.
    fn executed_bytes(
        &mut self,
        connection: &mut Connection,
        source: &Source,
        limits: &Limits,
        executed: usize,
    ) -> Option<usize> {
        connection.parse = ParseState::new();
        let input = match source {
            Source::Shared(range) => self.input.get(range),
            Source::Own => connection.input.get(),
        };
        bytes_of(limits, input, executed, &mut self.groups)
    }
}

fn refuse(here: Here<'_>, connection: &mut Connection, error: ProtocolError) {
    here.thread.counters.protocol_errors.add(1);
    seldom!(
        info,
        client = connection.record.id,
        peer = %connection.record.peer,
        "{error}: closing the connection"
    );
    Encoder::new(&mut connection.output, Protocol::Resp2).error(format!("ERR {error}"));
    connection.closing = true;
}

/// Length of the first `executed` requests of `input`; `None` if these are all of it.
fn bytes_of(limits: &Limits, input: &[u8], executed: usize, groups: &mut Groups) -> Option<usize> {
    if executed == 0 {
        return Some(0);
    }
    let limits = Limits {
        requests_max: executed,
        ..*limits
    };
    let mut requests = groups.table();
    let parsed = parse_requests(input, &limits, &mut ParseState::new(), &mut requests);
    groups.give_back(requests);
    parsed.ok().map(|consumed| consumed.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_redis::command::AGAIN_MS;

    /// A request of 250,000 pairs that met a reserved key was parsed again every 2 ms.
    #[test]
    fn requests_that_are_shown_again_soon_stay_parsed() {
        let now_ms = 1_000_000;
        let paused = |ms: u64| Ending::Paused {
            until_ms: now_ms + ms,
        };
        for (ending, is_soon) in [
            (Ending::Open, true),
            (Ending::Cold, true),
            (paused(AGAIN_MS), true),
            (paused(60_000), false),
            (Ending::Held, false),
            (Ending::Blocked, false),
            (Ending::CloseAfterReply, false),
        ] {
            assert_eq!(is_shown_soon(ending, now_ms), is_soon, "{ending:?}");
        }
    }
}
