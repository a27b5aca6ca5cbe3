//! Commands: runs the requests of all connections that became ready in one round as engine batches.
//!
//! **Mechanism.** Requests are taken in groups of up to `GROUP_KEYS` keys, over all connections.
//! For a group every key is hashed and its bucket hinted, then every entry is hinted, then the
//! requests run in order under one guard. So the cache misses of one request overlap with those of
//! the others. A command that locks several keys gets its own guard; one that changes tables runs
//! between guards.
//!
//! `batch` runs the groups. The commands stand in the folders of their features; `command` has the
//! parts that they share.
//!
//! **Invariants**
//! - I1: requests of one connection run in the order in which they were sent, and their replies are
//!   appended in that order.
//! - I2: a request produces exactly one reply (none after `CLIENT REPLY`): if a command fails
//!   half-way, its partial reply is removed.
//! - I3: a `GET` or `SET` allocates nothing, takes no lock, and writes to no shared cache line but
//!   those of the index and the log.

mod batch;
mod pace;

#[cfg(test)]
pub(crate) mod tests;

use crate::command::routing::has_left;
use crate::command::turn::Ending;
use crate::pubsub::commands as pubsub;
use crate::state::Shared;
use crate::state::client::Client;
use crate::state::db::DROPPED;
use crate::state::pubsub::subscribers::Subscribers;
use crate::state::thread::Thread;
use crate::threads::publication::Kind;
use crate::tracking::commands as tracking;
use batch::{Group, Position};
pub use batch::{OUT_BYTES_PER_TURN, Turn};
use duramen_config::ServerError;
use duramen_engine::{Session, Store, TableId};
use duramen_node::Route;
pub use pace::{Pace, System, TURN_TIME};
use std::sync::Arc;
use std::time::Duration;

/// A reactor thread's session of the store: the session itself never waits for flash.
fn session(shared: &Shared, store: &Arc<Store>) -> Result<Session, duramen_engine::Error> {
    let mut session = store.session()?;
    session.set_parks(shared.tier().is_some());
    session.notes().note_typed_writes();
    Ok(session)
}

/// Runs commands for one reactor thread.
pub struct Executor {
    /// None until the data is loaded.
    session: Option<Session>,
    shared: Arc<Shared>,
    thread: Thread,
    group: Group,
    /// The generation of the member's view, and the table of database 0, for which the shard
    /// channels were last checked.
    channels_seen: (u64, TableId),
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
            thread: Thread::new(&shared, thread),
            group: Group::new(TURN_TIME),
            channels_seen: (0, DROPPED),
            shared,
        })
    }

    /// A round of the thread begins, with about so many turns, which share its time.
    pub fn begin_round(&mut self, turns: usize) {
        self.group.begin_round(turns);
        self.thread.scripts.begin_round();
    }

    /// The clients of this thread that have subscriptions.
    #[inline]
    pub fn subscribers(&self) -> &Subscribers {
        &self.thread.subscribers
    }

    /// Wakes the clients that wait for values which native clients have written or removed.
    pub fn wake_waiters(&mut self) {
        if let Some(session) = &mut self.session {
            self.thread
                .wake_waiters(&self.shared, session.notes().typed_writes());
        }
    }

    /// Returns `None` unless a request of this client is suspended (a script, an EXEC in slices, a
    /// combination of values, a load of libraries), or its script waits, or its script or EXEC
    /// stands in line for keys. Returns true if that has lasted long: `busy-reply-threshold`, 5 s
    /// if that is 0, or a second while scripts wait for a place.
    pub fn script_of(&mut self, client: &Client) -> Option<bool> {
        let age = self.thread.scripts.age(client.id())?;
        let limit = match self.thread.scripts.are_awaited() {
            true => Duration::from_secs(1),
            false => self.thread.config(&self.shared).scripts.patience(),
        };
        Some(age > limit)
    }

    /// Ends all subscriptions of a client of this thread, which is being closed, and drops its
    /// suspended scripts.
    pub fn end_subscriptions(&mut self, client: &mut Client) {
        self.thread.scripts.drop_of(&self.shared, client.id());
        if let Some(subscriptions) = client.subscriptions_mut().take() {
            let (registry, slot) = (self.shared.pubsub(), client.record().slot);
            self.thread
                .subscribers
                .remove_all(registry, slot, subscriptions);
            client.note_subscriptions();
        }
    }

    /// Ends the tracking of a client of this thread, which is being closed.
    pub fn end_tracking(&self, client: &mut Client) {
        tracking::end(&self.shared, client);
    }

    /// The shard channels with subscribers of this thread that are not served here any more. Looks
    /// only after a change of the member's view.
    pub fn left_channels(&mut self) -> Vec<Arc<[u8]>> {
        let shared = Arc::clone(&self.shared);
        let Some(member) = shared.membership() else {
            return Vec::new();
        };
        let table = shared.commands.table(0).unwrap_or(DROPPED);
        let now = (member.generation(), table);
        if now == self.channels_seen || self.session().is_none() {
            return Vec::new();
        }
        self.channels_seen = now;
        let mut channels = self.thread.subscribers.names(Kind::Shard);
        let view = Arc::clone(self.thread.view_to_tell(member));
        let Some(session) = self.session() else {
            return Vec::new();
        };
        let guard = session.pin();
        channels.retain(|channel| has_left(&view, table, channel, guard.hash(channel)));
        channels
    }

    /// Ends the subscription of a client to a shard channel that has left; returns the message for
    /// the client.
    pub fn end_left(&mut self, client: &mut Client, channel: &[u8]) -> Vec<u8> {
        pubsub::end_left(&self.shared, &mut self.thread, client, channel)
    }

    /// The clients of this thread that wait for elements and must look again, in the order in which
    /// they were woken.
    #[inline]
    pub fn take_woken(&mut self) -> Vec<u64> {
        self.thread.take_woken()
    }

    /// Gives up a waiting client's place in the queues of its keys, because it does not look now;
    /// when it looks later, it gets places behind the others.
    pub fn give_up_place(&self, client: &mut Client) {
        client
            .key_wait
            .leave_queues(self.shared.waiters(), &self.shared.threads, true);
    }

    /// Whether a waiting client must get the error that other members serve its keys now. Keys that
    /// have left and come back may have elements that were written elsewhere.
    pub fn has_lost_keys(&mut self, client: &Client) -> bool {
        let Some(member) = self.shared.membership() else {
            return false;
        };
        let Some(wait) = client.key_wait.get() else {
            return false;
        };
        let view = self.thread.view_to_tell(member);
        let mut places = wait.places.iter();
        places.any(|(place, since)| match view.route(wait.table, *place) {
            Route::Moved(_) | Route::NoTable => true,
            Route::Serve => view.serves_since(wait.table, *place) != *since,
            Route::TryAgain | Route::ClusterDown => false,
        })
    }

    /// This thread's session; None while the data is loaded.
    ///
    /// # Panics
    /// As [`run`](Self::run).
    #[inline]
    pub fn session(&mut self) -> Option<&mut Session> {
        if self.session.is_none() {
            let store = self.shared.data()?;
            self.session = Some(session(&self.shared, store).expect("a session per thread"));
        }
        self.session.as_mut()
    }

    /// Runs the requests of all turns and appends the replies. The conditions for sending them are
    /// in each client's `wait`.
    ///
    /// # Panics
    /// If the engine has no room for a session of this thread: it has one for each of the server's
    /// threads.
    pub fn run(&mut self, turns: &mut [Turn<'_>]) {
        for turn in &mut *turns {
            turn.state.appended_bytes = 0;
            turn.state.matches = 0;
            if !turn.client.renew(&self.shared) {
                turn.state.ending = Ending::CloseNow;
                turn.state.halted = true;
            }
        }
        let session = match &mut self.session {
            Some(session) => session,
            none => match self.shared.data() {
                Some(store) => {
                    none.insert(session(&self.shared, store).expect("a session per thread"))
                }
                None => return batch::run_while_loading(&self.shared, &mut self.thread, turns),
            },
        };
        let mut position = Position::default();
        self.group.begin_part(turns.len());
        loop {
            position = self
                .group
                .run(session, &self.shared, &mut self.thread, turns, position);
            let Some(turn) = turns.get_mut(position.turn) else {
                break;
            };
            if position.is_within_turn() && self.group.is_turn_over(session, &self.thread) {
                turn.state.halted = true;
            }
        }
        for turn in turns {
            let table = turn.client.table(&self.shared);
            if !turn.keeps_parking() {
                turn.client.parking.end();
            }
            turn.client.publish(table);
        }
    }
}
