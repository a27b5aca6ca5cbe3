//! State of the commands for one connection.

use super::db::{DROPPED, Db};
use super::parking::Parked;
use super::patience::Patience;
use crate::blocking::key_wait::Blocked;
use crate::reply::effects::Effects;
use crate::reply::wait::Wait;
use crate::state::Shared;
use crate::state::access::login::{Gone, Login};
use crate::state::pubsub::client::ClientSubscriptions;
use crate::state::tracking::client::{ClientTracking, Scope};
use crate::state::transaction::client::ClientTransaction;
use crate::state::transaction::queue::Transaction;
use crate::state::transaction::watches::Watches;
use crate::threads::clients::{ClientRecord, shown};
use duramen_acl::User;
use duramen_engine::TableId;
use duramen_node::View;
use duramen_wire::resp::Protocol;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bits of [`Client::gate`]: any value but 0 sends a request through all checks.
pub(crate) mod gate {
    /// The client has not logged in.
    pub(crate) const STRANGER: u32 = 1;
    /// Between MULTI and EXEC.
    pub(crate) const MULTI: u32 = 1 << 1;
    /// `CLIENT REPLY OFF`.
    pub(crate) const REPLY_OFF: u32 = 1 << 2;
    /// `CLIENT REPLY SKIP`: this request's reply is dropped.
    pub(crate) const REPLY_SKIP: u32 = 1 << 3;
    /// Set by `CLIENT REPLY SKIP` itself, for the request after it.
    pub(crate) const REPLY_SKIP_NEXT: u32 = 1 << 4;
    /// Its user may not do everything.
    pub(crate) const RESTRICTED: u32 = 1 << 5;
    /// It has subscriptions, and speaks RESP2: few commands are allowed.
    pub(crate) const SUBSCRIBED: u32 = 1 << 6;
    /// It tracks the keys that it reads.
    pub(crate) const TRACKS: u32 = 1 << 7;
    /// `CLIENT NO-TOUCH on`: its reads do not count for eviction.
    pub(crate) const NO_TOUCH: u32 = 1 << 8;
}

/// The parts of a client's state that decide the effect or the form of its next requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    db: Db,
    protocol: Protocol,
    is_silent: bool,
    monitors: bool,
    /// The number of changes of its subscriptions. The number of subscriptions would not do: after
    /// two changes it may be the same, while the client believes in other subscriptions.
    subscription_changes: u64,
    is_stranger: bool,
    /// Id of its user.
    user: Option<u64>,
    /// The number of its `DISCARD`s. A client that takes one of them for failed would go on
    /// queuing.
    discards: u64,
    /// The number of the transaction that is open; 0 if none is.
    transaction: u64,
}

impl Mode {
    /// Whether a client that got errors since `before` is mistaken about its state. It knows that a
    /// failed `EXEC` has ended its transaction.
    pub fn misleads(self, before: Mode) -> bool {
        let transaction = before.transaction.min(self.transaction);
        self != Mode {
            transaction,
            ..before
        }
    }
}

/// Progress of a flush that continues in the next round.
#[derive(Clone, Debug)]
pub(crate) struct Flushing {
    pub(crate) table: TableId,
    pub(crate) cursor: u64,
    /// The member's view when it began.
    pub(crate) start: Arc<View>,
}

/// State of the commands for one connection. Embedded in the reactor's connection.
pub struct Client {
    record: Arc<ClientRecord>,
    login: Login,
    /// Whether its connection has TLS.
    has_tls: bool,
    gate: u32,
    protocol: Protocol,
    db: Db,
    /// Number of the last command that ran.
    last_command: u16,
    pub(crate) transaction: ClientTransaction,
    /// The conditions for sending the replies of this turn.
    pub wait: Wait,
    /// The effects of this turn on other clients.
    pub effects: Effects,
    subscriptions: ClientSubscriptions,
    /// The options of its tracking; `None` if it tracks no keys.
    tracking: Option<Box<ClientTracking>>,
    pub patience: Patience,
    /// The progress of its FLUSHALL.
    flushing: Option<Flushing>,
    /// State of requests that wait for flash or run in parts.
    pub parking: Parked,
    pub key_wait: Blocked,
}

impl Client {
    /// `record` is the connection's entry in the client registry; `CLIENT SETNAME` etc. write to
    /// it.
    pub fn new(record: Arc<ClientRecord>) -> Client {
        Client {
            record,
            login: Login::new(),
            has_tls: false,
            gate: gate::STRANGER,
            protocol: Protocol::Resp2,
            db: Db::Number(0),
            last_command: u16::MAX,
            transaction: ClientTransaction::default(),
            wait: Wait::default(),
            effects: Effects::default(),
            subscriptions: ClientSubscriptions::default(),
            tracking: None,
            patience: Patience::default(),
            flushing: None,
            parking: Parked::default(),
            key_wait: Blocked::default(),
        }
    }

    /// Notes that its connection has TLS.
    pub fn note_tls(&mut self) {
        self.has_tls = true;
    }

    /// Whether its connection has TLS.
    #[inline]
    pub(crate) fn has_tls(&self) -> bool {
        self.has_tls
    }

    pub fn record(&self) -> &Arc<ClientRecord> {
        &self.record
    }

    /// Until this is true, the reactor parses with the stricter limits for unauthenticated clients.
    pub fn is_authenticated(&self) -> bool {
        self.gate & gate::STRANGER == 0
    }

    /// Ends the client's wait for elements, if it waits. `passes_on`: as for `Waiters::leave`.
    #[inline]
    pub fn end_key_wait(&mut self, shared: &Shared, passes_on: bool) {
        if self.key_wait.waits() {
            let (waiters, threads) = (shared.waiters(), &shared.threads);
            self.key_wait.end(&self.record, waiters, threads, passes_on);
        }
    }

    /// The table that the client's selection stands for.
    #[inline]
    pub(crate) fn table(&self, shared: &Shared) -> TableId {
        match self.db {
            // `SELECT` created a table; if it was dropped since, every use gets an error.
            Db::Number(db) => shared.commands.table(db).unwrap_or(DROPPED),
            Db::Table(table) => table,
        }
    }

    pub fn id(&self) -> u64 {
        self.record.id
    }

    /// Whether it has a user that may do everything.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.gate & (gate::STRANGER | gate::RESTRICTED) == 0
    }

    /// Gives the client the rights of this user.
    pub fn log_in(&mut self, user: &Arc<User>) {
        self.record.change_text(|text| {
            text.user = user.name().to_owned();
            text.user_id = user.id();
        });
        self.use_user(user);
    }

    fn use_user(&mut self, user: &Arc<User>) {
        self.set_gate(gate::STRANGER, false);
        self.set_gate(gate::RESTRICTED, !user.is_unrestricted());
        self.login.set_user(user);
    }

    /// Gives the client the rights of the default user, if that user needs no password.
    pub fn log_in_by_default(&mut self, shared: &Shared) {
        self.login.set_generation(shared.acl().generation());
        let users = shared.acl().users();
        if users.default_user().is_open() {
            self.log_in(users.default_user());
        }
    }

    /// Notes that the user of the client is gone: the remaining steps of its EXEC are refused.
    pub(crate) fn lose_user(&mut self) {
        self.set_gate(gate::STRANGER, true);
        self.login.lose_user();
    }

    /// Takes over changes of the user (users::V1). Must be called before requests run. Returns
    /// false if the user is gone: the client must be closed.
    #[inline]
    #[must_use]
    pub fn renew(&mut self, shared: &Shared) -> bool {
        let generation = shared.acl().generation();
        let before = self.login.generation();
        if generation == before {
            return true;
        }
        self.login.set_generation(generation);
        match self.login.renewed(shared.acl(), before) {
            Ok(Some(user)) => self.use_user(&user),
            Ok(None) => {}
            Err(Gone) => return false,
        }
        true
    }

    /// As [`renew`](Self::renew), for native clients, whose requests run elsewhere.
    #[inline]
    #[must_use]
    pub fn begin_native(&mut self, shared: &Shared) -> bool {
        let is_known = self.renew(shared);
        if self.login.user().is_none() && shared.acl().is_open() {
            self.log_in_by_default(shared);
        }
        is_known
    }

    /// The user as whom it has logged in.
    #[inline]
    pub fn login(&self) -> &Login {
        &self.login
    }

    /// The bits that send its requests through all checks; 0 = none.
    #[inline]
    pub(crate) fn gate(&self) -> u32 {
        self.gate
    }

    #[inline]
    pub(crate) fn set_gate(&mut self, bits: u32, on: bool) {
        self.gate = if on {
            self.gate | bits
        } else {
            self.gate & !bits
        };
    }

    #[inline]
    pub(crate) fn db(&self) -> Db {
        self.db
    }

    /// Selects a database or a table; returns the one before.
    pub(crate) fn select(&mut self, db: Db) -> Db {
        std::mem::replace(&mut self.db, db)
    }

    /// Notes that a command runs.
    #[inline]
    pub(crate) fn note_command(&mut self, number: u16) {
        self.last_command = number;
    }

    pub(crate) fn in_multi(&self) -> bool {
        self.gate & gate::MULTI != 0
    }

    /// Takes the progress of its flush, if one goes on.
    pub(crate) fn take_flushing(&mut self) -> Option<Flushing> {
        self.flushing.take()
    }

    /// Keeps the progress of its flush; `None` if no flush goes on.
    #[inline]
    pub(crate) fn keep_flushing(&mut self, flushing: Option<Flushing>) {
        self.flushing = flushing;
    }

    /// Enters MULTI.
    pub(crate) fn begin_transaction(&mut self, transaction: Box<Transaction>) {
        self.set_gate(gate::MULTI, true);
        self.record.show(shown::MULTI, true);
        self.transaction.begin(transaction);
    }

    /// Leaves MULTI and drops the watched keys.
    pub(crate) fn end_transaction(&mut self) -> Option<Box<Transaction>> {
        self.set_gate(gate::MULTI, false);
        self.record.show(shown::MULTI, false);
        self.transaction.end()
    }

    /// Restores MULTI as it was before [`end_transaction`](Self::end_transaction).
    pub(crate) fn resume_transaction(&mut self, transaction: Box<Transaction>, watched: Watches) {
        self.set_gate(gate::MULTI, true);
        self.record.show(shown::MULTI, true);
        self.transaction.resume(transaction, watched);
    }

    /// Stores the changes of this round in the registry's record.
    pub(crate) fn publish(&self, table: TableId) {
        if self.last_command != u16::MAX {
            self.record
                .last_command
                .store(self.last_command.into(), Ordering::Relaxed);
        }
        self.record.table.store(table.0, Ordering::Relaxed);
        let queued = self.transaction.open().map_or(0, |open| open.queue.len());
        self.record.queued.store(queued as u32, Ordering::Relaxed);
        let watched = self.transaction.watched().len();
        self.record.watched.store(watched as u32, Ordering::Relaxed);
    }

    #[inline]
    pub fn mode(&self) -> Mode {
        Mode {
            db: self.db,
            protocol: self.protocol,
            is_silent: self.gate & gate::REPLY_OFF != 0,
            monitors: self.record.monitors(),
            subscription_changes: self.subscriptions.changes(),
            is_stranger: self.gate & gate::STRANGER != 0,
            user: self.login.user().map(|user| user.id()),
            discards: self.transaction.discards(),
            transaction: if self.in_multi() {
                self.transaction.number()
            } else {
                0
            },
        }
    }

    pub(crate) fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        let version = match protocol {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        };
        self.record.protocol.store(version, Ordering::Relaxed);
        self.note_subscriptions();
    }

    /// From now on the commands of its script are answered in this version of the protocol.
    pub(crate) fn reply_in(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    #[inline]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    pub fn subscriptions(&self) -> &ClientSubscriptions {
        &self.subscriptions
    }

    /// The subscriptions, to be changed: [`settle_subscriptions`](Self::settle_subscriptions) must
    /// be called after that.
    pub(crate) fn subscriptions_mut(&mut self) -> &mut ClientSubscriptions {
        &mut self.subscriptions
    }

    /// Must be called after the client's subscriptions changed.
    pub(crate) fn settle_subscriptions(&mut self) {
        self.subscriptions.settle();
        let has_some = !self.subscriptions.is_empty();
        self.record.show(shown::PUBSUB, has_some);
        self.note_subscriptions();
    }

    /// Must be called after the client's subscriptions, or its protocol, changed.
    pub(crate) fn note_subscriptions(&mut self) {
        let counts = self.subscriptions.counts();
        for (shown, count) in self.record.subscriptions.iter().zip(counts) {
            shown.store(count as u32, Ordering::Relaxed);
        }
        let is_limited = self.protocol == Protocol::Resp2 && !self.subscriptions.is_empty();
        self.set_gate(gate::SUBSCRIBED, is_limited);
    }

    /// Its options of tracking; `None` if it tracks no keys.
    #[inline]
    pub fn tracking(&self) -> Option<&ClientTracking> {
        self.tracking.as_deref()
    }

    pub fn tracking_mut(&mut self) -> Option<&mut ClientTracking> {
        self.tracking.as_deref_mut()
    }

    /// Sets its options with its gate and its flags; `tracking::commands` tells the registry.
    pub(crate) fn set_tracking(&mut self, tracking: Option<ClientTracking>) {
        let is = |scope| tracking.as_ref().is_some_and(|it| it.scope == scope);
        self.set_gate(gate::TRACKS, tracking.is_some());
        self.record.show(shown::TRACKS, tracking.is_some());
        self.record.show(shown::BROADCASTS, is(Scope::Broadcast));
        self.record.show(shown::BROKEN_REDIRECT, false);
        let redirect = tracking.as_ref().map_or(-1, ClientTracking::shown_redirect);
        self.record.show_redirect(redirect);
        self.tracking = tracking.map(Box::new);
    }

    /// Resets the state to that of a new connection; `RESET` does the rest, and has ended its
    /// subscriptions and its tracking.
    pub(crate) fn reset(&mut self) {
        if self.in_multi() {
            self.transaction.note_discard();
        }
        self.end_transaction();
        self.login.log_out();
        self.gate = gate::STRANGER;
        self.db = Db::Number(0);
        self.set_protocol(Protocol::Resp2);
        self.record
            .show(shown::MONITOR | shown::NO_EVICT | shown::NO_TOUCH, false);
        self.record.change_text(|text| {
            text.name.clear();
            text.user.clear();
        });
    }
}
