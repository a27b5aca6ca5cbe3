//! The coordinator: membership, ownership of tablets, recoveries. A state machine without I/O.
//!
//! Its input is messages, completed commits and the time ([`Coordinator::handle`]); its output is
//! messages to send and batches to store. It is on no read or write path. Several may run: one
//! leads, the others wait ([`store`]). A new leader has the stored state and nothing else; it
//! restarts recoveries and sends everything to all servers again.
//!
//! **Invariants**
//! - K1: no output depends on a change that is not stored (`pipeline`). So the stored state that a
//!   new leader reads contains everything that anybody was ever told.
//! - K2: a crashed server stays crashed. A server that replaces it is another one, and is added
//!   after the old one is crashed, in the same step or a later one.
//! - K3: a message counts only if its sender is UP in the same step in which its effect is stored
//!   (docs/traps.md, traps 6 and 7).
//! - K4: a tablet has one owner. It changes by a recovery when the owner is crashed, by a migration
//!   when it is UP, and the new owner is UP in that step.
//! - K5: a server is always told all of its tablets, with a version that grows. Lost, repeated and
//!   late messages change nothing.
//! - K6: a crashed server leaves the list when no tablet waits for its log any more, and not
//!   before.
//! - K7: a tablet that was recovered is served by its new owner only after the read lease of the
//!   old one has run out, also if the leader changes meanwhile.
//! - K8: a denial waits for the store's confirmation that this coordinator leads: a leader that
//!   slept has missed later changes, and a server that is told that something is over drops it, or
//!   ends.
//! - K9: loads, rooms and speeds are advice: they change what is efficient, never what is right. So
//!   loads are stored coarsely and late ([`loads`]), and a store without them, or with old ones, is
//!   whole.
//!
//! **Parts.** Each part owns its fields, and is lent the time, the records, the servers and the
//! tables for a call (`State`). A part calls no part above it. The coordinator passes inputs on,
//! and joins the steps that concern several parts: a server that enlists, a crash, the end of a
//! move.
//!
//! **Concurrency** one thread calls it. After a failure of the store, it refuses everything: make a
//! new one from the stored state.
//!
//! Paper: [Ousterhout15 §3, §7]; differs: tablets are told declaratively, recoveries are not
//! stored, read leases (docs/traps.md, "Cluster membership").

mod admin;
mod balance;
mod callers;
mod calls;
mod clients;
mod enlist;
mod even;
mod foreign;
mod frames;
mod functions;
mod loads;
mod losses;
mod map;
mod migrations;
mod older;
mod open;
mod patience;
mod pipeline;
mod push;
mod records;
mod recoveries;
mod revised;
mod rooms;
mod servers;
mod shares;
mod state;
pub mod store;
mod suspects;
mod tables;
mod unheard;
mod users;
mod verdict;
mod waits;

use calls::{Asks, Call, CallKind};
use duramen_base::ids::{ClusterId, RouteHash, ServerId, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::random::Random;
use duramen_wire::native::message::{
    ClusterSettings, CoordinatorAnswer, FromCoordinator, Means, MigrationProgress,
    PartitionProgress, Refusal, ServerAnswer, ServerStatus, ToCoordinator,
};
use migrations::Migrations;
use older::Lives;
pub use open::OpenError;
use pipeline::{Records, Sealed};
use push::{Push, Pushes};
use records::{Meta, ServerRecord};
use recoveries::Recoveries;
use servers::Servers;
use std::collections::BTreeMap;
use store::Batch;
use tables::Tables;
pub use verdict::Sign;

/// Partitions that a master recovers at once. More than one only if no master is left without: each
/// round reads the whole log once more, so one round should do as much as possible.
const AT_ONCE: u32 = 4;

/// Names a request to the coordinator until it is answered. Given by its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyId(pub u64);

/// Names a request of the coordinator until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Names a batch until it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// An input of the coordinator.
#[derive(Clone, Debug)]
pub enum Input {
    /// A request arrived. `sender`: of the frame; `NONE` for clients and tools.
    Request {
        reply: ReplyId,
        sender: ServerId,
        question: ToCoordinator,
    },
    /// A server answered.
    Answered {
        call: CallId,
        answer: ServerAnswer,
        payload: Vec<u8>,
    },
    /// There will be no answer. (Silence needs no input.)
    Unanswered { call: CallId, sign: Sign },
    /// A server of a cluster with this id connected, and was refused.
    Foreign { cluster_id: ClusterId },
    /// The batch is stored: [`store::MetaStore::commit`] returned `Ok`.
    Persisted { token: Token },
    /// The commit returned an error, or the leader's lease could not be renewed in time.
    StoreFailed { reason: String },
    /// The time of [`Output::WakeAt`] has come, and everything that had arrived by then was passed
    /// in: no server is judged while its answer waits in a queue of ours. May come at any time.
    Tick,
}

/// An output of the coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Answer {
        reply: ReplyId,
        answer: CoordinatorAnswer,
    },
    /// The frame's target is `to`, its sender `ServerId::coordinator(term)`.
    Ask {
        call: CallId,
        to: ServerId,
        /// `host:port`
        address: String,
        question: FromCoordinator,
    },
    /// Commit it, then pass in [`Input::Persisted`]. The next one comes only after that.
    Persist { token: Token, batch: Batch },
    /// Pass in [`Input::Tick`] at this time, in microseconds. Replaces earlier ones.
    WakeAt { at_us: u64 },
    /// Close the connections to this address; the next request opens a new one. Requests without an
    /// answer end with [`Input::Unanswered`].
    Reopen { address: String },
    /// This leader gives no verdicts. Of `asked` servers only `answered` answer it: fewer than
    /// half, or, if `is_denied`, none, and some server denies it. `resigns`: another coordinator
    /// should lead, if there is one.
    Unfit {
        asked: usize,
        answered: usize,
        is_denied: bool,
        resigns: bool,
    },
}

/// The configuration of a coordinator.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the cluster; a store of another one is refused.
    pub cluster: String,
    /// The cluster's id if the store has none yet: random, never used before.
    pub new_id: ClusterId,
    /// `host:port` of this coordinator, for people and for clients of other coordinators.
    pub name: String,
    /// The term of its leadership.
    pub term: u32,
    /// Seed of random choices. Must differ from leader to leader: ids of recoveries are drawn from
    /// it.
    pub seed: u64,
    /// Settings for a new cluster. An existing one keeps its own.
    pub settings: ClusterSettings,
    /// Tablets move by themselves when shares have been uneven for this long in a quiet cluster;
    /// none: only when somebody asks.
    pub balance_after_us: Option<u64>,
}

/// A member, with its state that is not stored.
struct Server {
    record: ServerRecord,
    push: Push,
    check: Option<suspects::Check>,
    heard: unheard::Heard,
    /// The claims that this life is over.
    doubts: Vec<enlist::Doubt>,
    /// Its key in the set of masters; none if it is not in it.
    rank: Option<usize>,
    /// Its report about its tablets.
    loads: loads::Loads,
    room: rooms::Room,
    /// Its last report of what it was given, and what its log lacks.
    means: Option<Means>,
    /// Partitions that it recovers now.
    recovering: u32,
    /// The server gets no partition before this time: it answered that it is busy.
    busy_until_us: u64,
    /// The server is sent no tablets before this time (K7).
    quiet_until_us: u64,
    /// The server gets no tablet of a drained one before this time: it has failed to take one.
    declined_until_us: u64,
    /// The tablets of a drained server that failed to move: how often, and the time before which
    /// they are not tried again.
    held_back: BTreeMap<(TableId, RouteHash), (u32, u64)>,
}

impl Server {
    fn new(now_us: u64, record: ServerRecord) -> Server {
        Server {
            record,
            push: Push::default(),
            check: None,
            heard: unheard::Heard::new(now_us),
            doubts: Vec::new(),
            rank: None,
            loads: loads::Loads::default(),
            room: rooms::Room::new(now_us),
            means: None,
            recovering: 0,
            busy_until_us: 0,
            quiet_until_us: 0,
            declined_until_us: 0,
            held_back: BTreeMap::new(),
        }
    }

    fn is_up(&self) -> bool {
        self.record.entry.status == ServerStatus::Up
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Call(CallId),
    Check(ServerId),
    Push(ServerId),
    Recovery(ServerId),
    Drain(ServerId),
    Probe,
    Roll,
    Clients,
    Loads,
    Balance,
}

/// The state that the parts of the coordinator share. Each call of a part is lent it.
struct State {
    config: Config,
    now_us: u64,
    random: Random,
    meta: Meta,
    asks: Asks,
    records: Records,
    lives: Lives,
    servers: Servers,
    /// When a member last asked for the map.
    map_asked_us: Option<u64>,
    tables: Tables,
    changes: map::Changes,
}

/// The coordinator; see the module.
pub struct Coordinator {
    state: State,
    foreign: foreign::Foreign,
    callers: callers::Callers,
    migrations: Migrations,
    clients: clients::Clients,
    recoveries: Recoveries,
    balance: balance::Balance,
    storing: loads::Storing,
    pushes: Pushes,
    suspects: suspects::Suspects,
}

impl Coordinator {
    /// Handles an input and returns the outputs, in order. `now_us`: a monotonic clock of any
    /// origin.
    pub fn handle(&mut self, now_us: u64, input: Input) -> Vec<Output> {
        self.state.now_us = self.state.now_us.max(now_us);
        if let Some(reason) = self.state.records.stopped() {
            if let Input::Request { reply, .. } = input {
                let answer = refused(Refusal::Store(reason.to_owned()));
                let output = Output::Answer { reply, answer };
                self.state.records.tell_at_once(output);
            }
            return self.state.records.take_outputs();
        }
        match input {
            Input::Request {
                reply,
                sender,
                question,
            } => self.on_request(reply, sender, question),
            Input::Answered {
                call,
                answer,
                payload,
            } => self.answered(call, Ok((answer, payload))),
            Input::Unanswered { call, sign } => self.answered(call, Err(sign)),
            Input::Foreign { cluster_id } => self.foreign.hear(self.state.now_us, cluster_id),
            Input::Persisted { token } => self.persisted(token),
            Input::StoreFailed { reason } => self.stop(&reason),
            Input::Tick => self.tick(),
        }
        self.finish()
    }

    /// Whether the store failed: drop it, and make a new one from the stored state.
    pub fn is_stopped(&self) -> bool {
        self.state.records.stopped().is_some()
    }

    fn on_request(&mut self, reply: ReplyId, sender: ServerId, question: ToCoordinator) {
        self.state.hear(sender, &question);
        if let Some(answer) = self.consider(reply, sender, question) {
            if denies(&answer) {
                self.state.ask_store();
            }
            self.state.records.tell(Output::Answer { reply, answer });
        }
    }

    /// The answer; none if it comes later. One row for each question.
    fn consider(
        &mut self,
        reply: ReplyId,
        sender: ServerId,
        question: ToCoordinator,
    ) -> Option<CoordinatorAnswer> {
        if let Some(refusal) = self.turn_away(sender, &question) {
            return Some(refused(refusal));
        }
        let (state, pushes) = (&mut self.state, &mut self.pushes);
        Some(match question {
            ToCoordinator::Enlist(enlist) => return self.enlist(reply, sender, enlist),
            ToCoordinator::ClientLease { client } => self.clients.lease(state, client),
            ToCoordinator::AreAlive { clients } => self.clients.alive(state, clients),
            ToCoordinator::Map { table, since } => state.map(table, since),
            ToCoordinator::MapChanges { since } => state.map_changes(since),
            ToCoordinator::Servers => pushes.whole_list(state),
            ToCoordinator::AreGone { logs } => self.are_gone(sender, logs),
            ToCoordinator::Users => pushes.users.answer(state),
            ToCoordinator::SetUsers(users) => pushes.users.set(state, users),
            ToCoordinator::Functions => pushes.functions.answer(state),
            ToCoordinator::SetFunctions(functions) => pushes.functions.set(state, functions),
            ToCoordinator::Admin(admin) => self.administer(admin),
            ToCoordinator::ControlHead { server, min_open } => state.control_head(server, min_open),
            ToCoordinator::Suspect {
                server,
                list_version,
            } => self.suspected(sender, server, list_version),
            ToCoordinator::Confirm {
                server,
                list_version,
                tablets_version,
            } => pushes.confirmed(state, server, list_version, tablets_version),
            ToCoordinator::Loads { server, loads } => self.storing.report(state, server, loads),
            ToCoordinator::Room { server, room } => self.recoveries.room(state, server, room),
            ToCoordinator::ReadSpeed {
                server,
                bytes_per_s,
            } => state.read_speed(server, bytes_per_s),
            ToCoordinator::DiskRoom { server, free, .. } => {
                self.recoveries.disk_room(state, server, free)
            }
            ToCoordinator::Means(means) => state.means(means),
            ToCoordinator::Certificate { .. } => CoordinatorAnswer::Noted, // the driver notes it
            ToCoordinator::PartitionDone(done) => self.recoveries.done(state, sender, done),
            ToCoordinator::PartitionProgress(report) => self.recoveries.progress(report),
            ToCoordinator::MigrationDone(done) => self.migration_done(sender, done),
            ToCoordinator::MigrationProgress(report) => self.migrations.progress(state, report),
        })
    }

    /// The refusal of a question for which nothing is done; none: it is considered.
    fn turn_away(&mut self, sender: ServerId, question: &ToCoordinator) -> Option<Refusal> {
        let asker = match question {
            ToCoordinator::Enlist(enlist) if self.state.lives.is_new() => {
                enlist.replaces.unwrap_or(sender)
            }
            _ => sender,
        };
        let foreign = self.foreign.turn_away(&self.state, asker);
        foreign.or_else(|| {
            let member = member_of(sender, question)?;
            let counts = sender == member && self.state.servers.is_up(member); // K3
            (!counts).then_some(Refusal::NotUp(sender))
        })
    }

    fn persisted(&mut self, token: Token) {
        let Some(Sealed { held, follows, .. }) = self.state.records.stored(token) else {
            return;
        };
        if let Some((version, changes)) = follows.step {
            self.pushes.publish(&mut self.state, version, changes);
        }
        for (reply, server) in follows.enlisted {
            self.pushes.welcome(&mut self.state, reply, server);
        }
        self.state.records.release(held);
        for (server, tablets) in follows.tablets {
            self.pushes.set_tablets(&mut self.state, server, tablets);
        }
        if let Some(users) = follows.users {
            self.pushes.publish_users(&mut self.state, users);
        }
        if let Some(functions) = follows.functions {
            self.pushes.publish_functions(&mut self.state, functions);
        }
    }

    /// The store failed: waiting senders are told that the outcome is unknown.
    fn stop(&mut self, reason: &str) {
        let mut replies = self.state.records.stop(reason);
        replies.extend(self.callers.abandon());
        for reply in replies {
            let answer = refused(Refusal::Store(reason.to_owned()));
            let output = Output::Answer { reply, answer };
            self.state.records.tell_at_once(output);
        }
        self.state.asks.stop();
    }

    fn tick(&mut self) {
        if self.state.records.stopped().is_some() {
            return;
        }
        while let Some((at_us, timer)) = self.state.asks.due(self.state.now_us) {
            match timer {
                Timer::Call(id) => self.overdue(id),
                Timer::Check(server) => self.suspects.check_again(&mut self.state, server),
                Timer::Push(server) => self.pushes.kick(&mut self.state, server),
                Timer::Recovery(dead) => self.recoveries.due(&mut self.state, dead),
                Timer::Drain(server) => self.migrations.drain_further(&mut self.state, server),
                Timer::Probe => self.suspects.probe(&mut self.state),
                Timer::Roll => self.suspects.roll_due(&mut self.state),
                Timer::Clients => self.clients.expire(&mut self.state, at_us),
                Timer::Loads => self.storing.store(&mut self.state),
                Timer::Balance => {
                    let recovered = self.recoveries.first();
                    let migrations = &mut self.migrations;
                    self.balance.due(&mut self.state, migrations, recovered);
                }
            }
        }
    }

    /// Seals the changes, and returns the outputs.
    fn finish(&mut self) -> Vec<Output> {
        if self.state.records.stopped().is_none() {
            self.seal();
            if let Some(at_us) = self.state.asks.wakes_at() {
                self.state.records.tell_at_once(Output::WakeAt { at_us });
            }
        }
        self.state.records.take_outputs()
    }

    fn seal(&mut self) {
        if self.state.records.is_idle() {
            for (reply, server) in self.state.records.take_enlisted() {
                self.pushes.welcome(&mut self.state, reply, server);
            }
            return;
        }
        if !self.state.records.can_seal() {
            return;
        }
        let affected = self.state.records.take_affected().into_iter();
        let tablets = affected
            .filter(|id| self.state.servers.is_up(*id))
            .map(|id| (id, self.tablets_of(id)))
            .collect();
        let list_version = self.state.meta.list_version;
        let users = self.pushes.users.changed();
        let functions = self.pushes.functions.changed();
        let records = &mut self.state.records;
        records.seal(list_version, tablets, users, functions);
        self.state.changes.show();
    }
}

/// The member that alone may say this (K3). None: anybody may, or the part that handles it looks at
/// the sender.
fn member_of(sender: ServerId, question: &ToCoordinator) -> Option<ServerId> {
    match question {
        ToCoordinator::Suspect { .. } => Some(sender),
        ToCoordinator::ControlHead { .. } if has_bug(Bug::HeadOfTheDead) => None,
        ToCoordinator::ControlHead { server, .. }
        | ToCoordinator::Confirm { server, .. }
        | ToCoordinator::Loads { server, .. }
        | ToCoordinator::Room { server, .. }
        | ToCoordinator::ReadSpeed { server, .. }
        | ToCoordinator::DiskRoom { server, .. }
        | ToCoordinator::Means(Means { server, .. })
        | ToCoordinator::PartitionProgress(PartitionProgress { server, .. })
        | ToCoordinator::MigrationProgress(MigrationProgress { server, .. }) => Some(*server),
        // Their answer to a server that is not UP is `Stale`.
        ToCoordinator::PartitionDone(_) | ToCoordinator::MigrationDone(_) => None,
        ToCoordinator::Enlist(_)
        | ToCoordinator::ClientLease { .. }
        | ToCoordinator::AreAlive { .. }
        | ToCoordinator::Map { .. }
        | ToCoordinator::MapChanges { .. }
        | ToCoordinator::Servers
        | ToCoordinator::AreGone { .. }
        | ToCoordinator::Users
        | ToCoordinator::SetUsers(_)
        | ToCoordinator::Functions
        | ToCoordinator::SetFunctions(_)
        | ToCoordinator::Certificate { .. }
        | ToCoordinator::Admin(_) => None,
    }
}

/// Whether an answer denies the existence of something (K8).
fn denies(answer: &CoordinatorAnswer) -> bool {
    use CoordinatorAnswer::{Refused, Stale};
    matches!(
        answer,
        Stale | Refused(Refusal::NotUp(_) | Refusal::Invalid(_))
    )
}

fn refused(refusal: Refusal) -> CoordinatorAnswer {
    CoordinatorAnswer::Refused(refusal)
}

fn invalid(why: impl Into<String>) -> CoordinatorAnswer {
    refused(Refusal::Invalid(why.into()))
}
