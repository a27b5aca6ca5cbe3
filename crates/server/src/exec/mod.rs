//! Commands: runs the requests of all connections that became ready in one round as engine batches.
//!
//! **Mechanism.** Requests are taken in groups of up to `GROUP_KEYS` keys, over all connections.
//! For a group every key is hashed and its bucket hinted, then every entry is hinted, then the
//! requests run in order under one guard. So the cache misses of one request overlap with those of
//! the others. A command that locks several keys gets its own guard; one that changes tables runs
//! between guards.
//!
//! **Invariants**
//! - I1: requests of one connection run in the order in which they were sent, and their replies are
//!   appended in that order.
//! - I2: a request produces exactly one reply (none after `CLIENT REPLY`): if a command fails
//!   half-way, its partial reply is removed.
//! - I3: a `GET` or `SET` allocates nothing, takes no lock, and writes to no shared cache line but
//!   those of the index and the log.

mod admit;
mod client;
mod client_command;
mod client_list;
mod cluster;
pub(crate) mod cold;
mod commands;
mod config;
mod connection;
mod context;
pub(crate) mod databases;
mod docs;
mod durability;
mod duramen;
pub(crate) mod errors;
mod expire;
mod float;
mod glob;
mod group;
mod info;
mod info_memory;
mod info_persistence;
mod keys;
mod latency;
mod loading;
mod local;
mod memory;
mod meter;
mod monitor;
mod multi_key;
mod ops;
mod own_part;
mod process;
mod room;
mod routing;
mod scan;
mod set_options;
mod slots;
mod slowlog;
mod state;
mod string;
mod table;
mod totals;
mod transaction;
mod ttl;
mod wait;
mod watches;

#[cfg(test)]
mod tests;

pub use client::{Client, Verdict};
pub use databases::adopt;
pub use state::State;
pub(crate) use totals::Totals;
pub use wait::{State as WaitState, Wait};

use crate::error::ServerError;
use crate::shared::Shared;
use duramen_engine::{Session, Store};
use duramen_wire::resp::Requests;
use group::{Group, Position};
use local::Local;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Keys that one group hints before it runs: enough to overlap many misses, few enough to stay in
/// the first-level cache (64 keys × two lines).
const GROUP_KEYS: usize = 64;
/// Keys whose entries are hinted ahead of the running request: about as many lines as a core can
/// have in flight, so that memory works while requests run instead of before.
const ENTRIES_AHEAD: usize = 16;
/// Maximum requests in one group, for requests without keys.
const GROUP_REQUESTS: usize = 256;

/// The executor stops a turn after the request that makes `Turn::out` longer than this many bytes.
/// So a pipeline of large reads cannot pile up replies that the client does not take.
pub const OUT_BYTES_PER_TURN: usize = 1 << 20;

/// After this time a turn that has had a group ends with that group, and its other requests are
/// presented again in the next round. Given the limits of a group, one client does not keep its
/// thread from the others for 10 ms.
pub(crate) const TURN_TIME: Duration = Duration::from_millis(4);

/// The requests of one connection in one round.
pub struct Turn<'a> {
    pub client: &'a mut Client,
    pub requests: &'a Requests,
    pub input: &'a [u8],
    /// Replies are appended here.
    pub out: &'a mut Vec<u8>,
    /// Number of `requests` that have run, in this round and earlier ones; [`Executor::run`]
    /// continues from here. If some are left afterwards: flush `out`, then present the rest again
    /// (`out` grew beyond [`OUT_BYTES_PER_TURN`], the turn took longer than `TURN_TIME`, a
    /// request does one part in each round, or the verdict is [`Verdict::Paused`] or
    /// [`Verdict::Cold`]).
    pub executed: usize,
}

impl Turn<'_> {
    /// Takes back the reply of a silent request, which begins at `start`.
    fn silence(&mut self, start: usize) {
        self.out.truncate(start);
        self.client.wait.make_silent();
    }
}

/// A reactor thread's session of the store: the session itself never waits for flash.
fn session(shared: &Shared, store: &Arc<Store>) -> Result<Session, duramen_engine::Error> {
    let mut session = store.session()?;
    session.set_parks(shared.tier().is_some());
    Ok(session)
}

/// Runs commands for one reactor thread.
pub struct Executor {
    /// None until the data is loaded.
    session: Option<Session>,
    shared: Arc<Shared>,
    local: Local,
    group: Group,
    /// [`TURN_TIME`], except in tests that expect a whole turn to run.
    turn_time: Duration,
}

impl Executor {
    /// # Errors
    /// [`ServerError::Engine`] if the engine has no room for another session.
    pub fn new(shared: Arc<Shared>, thread: usize) -> Result<Executor, ServerError> {
        Ok(Executor {
            session: match shared.data() {
                Some(store) => Some(session(&shared, store)?),
                None => None,
            },
            local: Local::new(&shared, thread),
            group: Group::default(),
            turn_time: TURN_TIME,
            shared,
        })
    }

    /// This thread's session; None while the data is loaded.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub(crate) fn session(&mut self) -> Option<&mut Session> {
        if self.session.is_none() {
            let store = self.shared.data()?;
            self.session = Some(session(&self.shared, store).expect("a session per thread"));
        }
        self.session.as_mut()
    }

    /// Runs the requests of all turns and appends the replies. The conditions for sending them are
    /// in each client's [`take_wait`](Client::take_wait).
    ///
    /// # Panics
    /// If the engine has no room for a session of this thread: it has one for each of the server's
    /// threads.
    pub fn run(&mut self, turns: &mut [Turn<'_>]) {
        for turn in &mut *turns {
            turn.client.halted = false;
            turn.client.goes_on = false;
            if matches!(
                turn.client.verdict,
                Verdict::Paused { .. } | Verdict::Held | Verdict::Cold
            ) {
                turn.client.verdict = Verdict::Open;
            }
        }
        let session = match &mut self.session {
            Some(session) => session,
            none => match self.shared.data() {
                Some(store) => {
                    none.insert(session(&self.shared, store).expect("a session per thread"))
                }
                None => return loading::run(&self.shared, &mut self.local, turns),
            },
        };
        let mut position = Position::default();
        let started = Instant::now();
        loop {
            position = self
                .group
                .run(session, &self.shared, &mut self.local, turns, position);
            let Some(turn) = turns.get_mut(position.turn) else {
                break;
            };
            if position.is_within_turn() && started.elapsed() >= self.turn_time {
                turn.client.halted = true;
            }
        }
        for turn in turns {
            let table = admit::table_of(turn.client, &self.shared);
            turn.client.end_parking();
            turn.client.publish(table);
        }
    }
}
