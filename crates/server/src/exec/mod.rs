//! Commands: runs the requests of all connections that became ready in one round as engine batches.

use crate::error::ServerError;
use crate::shared::{ClientRecord, Shared};
use duramen_wire::resp::Requests;
use std::sync::Arc;

/// What the reactor does with a connection after its requests ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Open,
    /// Write out the replies, then close (`QUIT`, `CLIENT KILL` of itself).
    CloseAfterReply,
    /// Close without another byte.
    CloseNow,
    /// Requests from `Turn::executed` on were not run and must be shown again, not before `until_ms` (milliseconds since
    /// the Unix epoch) or the next `Message::Wake` (`CLIENT PAUSE`).
    Paused {
        until_ms: u64,
    },
}

/// What the commands remember about one connection. Embedded in the reactor's connection.
pub struct Client {
    record: Arc<ClientRecord>,
    verdict: Verdict,
}

impl Client {
    /// `record` is the connection's entry in the client registry; `CLIENT SETNAME` etc. write there.
    pub fn new(record: Arc<ClientRecord>) -> Client {
        Client {
            record,
            verdict: Verdict::Open,
        }
    }
    pub fn record(&self) -> &Arc<ClientRecord> {
        &self.record
    }
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }
    /// Until then the reactor parses with the tighter limits for strangers.
    pub fn is_authenticated(&self) -> bool {
        true
    }
}

/// The requests of one connection in one round.
pub struct Turn<'a> {
    pub client: &'a mut Client,
    pub requests: &'a Requests,
    pub input: &'a [u8],
    /// Replies are appended here.
    pub out: &'a mut Vec<u8>,
    /// Set by [`Executor::run`]: how many of `requests` have run. Fewer than all means: flush `out`, then show the rest
    /// again (`out` grew beyond [`OUT_BYTES_PER_TURN`], or the verdict is [`Verdict::Paused`]).
    pub executed: usize,
}

/// The executor stops a turn after the request that takes `Turn::out` beyond this many bytes, so that a pipeline of
/// large reads cannot pile up replies that the client is not taking.
pub const OUT_BYTES_PER_TURN: usize = 1 << 20;

/// Runs commands for one reactor thread.
pub struct Executor {
    shared: Arc<Shared>,
    thread: usize,
}

impl Executor {
    pub fn new(shared: Arc<Shared>, thread: usize) -> Result<Executor, ServerError> {
        Ok(Executor { shared, thread })
    }

    /// Runs the requests of all turns and appends the replies.
    pub fn run(&mut self, turns: &mut [Turn<'_>]) {
        for turn in turns {
            for n in 0..turn.requests.len() {
                let args = turn.requests.args(n, turn.input);
                let name = args.get(0).unwrap_or_default();
                if name.eq_ignore_ascii_case(b"PING") {
                    turn.out.extend_from_slice(b"+PONG\r\n");
                } else if name.eq_ignore_ascii_case(b"ECHO") {
                    duramen_wire::resp::Encoder::new(turn.out, duramen_wire::resp::Protocol::Resp2)
                        .bulk(args.get(1).unwrap_or_default());
                } else {
                    turn.out.extend_from_slice(b"-ERR unknown command\r\n");
                }
            }
            turn.executed = turn.requests.len();
            self.shared.threads[self.thread]
                .counters
                .commands
                .add(turn.requests.len() as u64);
        }
    }
}
