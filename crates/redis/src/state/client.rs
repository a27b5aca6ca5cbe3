//! State of the commands for one connection.

use super::db::{DROPPED, Db};
use super::parking::Parking;
use crate::blocking::key_wait::KeyWait;
use crate::reply::effects::Effects;
use crate::reply::wait::Wait;
use crate::state::Shared;
use crate::state::pubsub::subscribers::Subscriptions;
use crate::state::tracking::client::ClientTracking;
use crate::state::transaction::queue::Transaction;
use crate::state::transaction::watches::Watches;
use crate::threads::clients::{ClientRecord, key_wait_state};
use crate::threads::publication::Kind;
use duramen_acl::User;
use duramen_base::ids::Level;
use duramen_config::clock;
use duramen_engine::{Guard, KeyHash, Position, TableId};
use duramen_node::View;
use duramen_wire::resp::Protocol;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bits of [`Client::gate`]: any value but 0 sends a request through all checks.
pub(crate) mod gate {
    /// The client has no user yet.
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

/// Bits of `ClientRecord::flags`, for `CLIENT LIST`.
pub mod shown {
    pub(crate) const MULTI: u32 = 1;
    pub(crate) const MONITOR: u32 = 1 << 1;
    pub(crate) const NO_EVICT: u32 = 1 << 2;
    pub(crate) const NO_TOUCH: u32 = 1 << 3;
    pub(crate) const PUBSUB: u32 = 1 << 4;
    pub(crate) const TRACKS: u32 = 1 << 5;
    pub(crate) const BROADCASTS: u32 = 1 << 6;
    pub const BROKEN_REDIRECT: u32 = 1 << 7;
}

/// The parts of a client's state that decide the effect or the form of its next requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    db: Db,
    protocol: Protocol,
    is_silent: bool,
    monitors: bool,
    /// The number of changes of its subscriptions: after two of them it may have as many as before,
    /// and not those that it believes.
    subscription_changes: u64,
    is_stranger: bool,
    /// Id of its user.
    user: Option<u64>,
    /// The number of its `DISCARD`s: after one that it takes for failed it would go on queuing.
    discards: u64,
    /// The number of the transaction in which it is; 0: it is in none.
    transaction: u64,
}

impl Mode {
    /// Whether a client that was told of errors since `before` is mistaken about its state. It
    /// knows that an `EXEC` that failed has ended its transaction.
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

/// Keys of writes in flight that wait for reservations; those of more lose their right.
const KEYS_PUT_OFF_MAX: usize = 64;

/// State of the commands for one connection. Embedded in the reactor's connection.
pub struct Client {
    record: Arc<ClientRecord>,
    /// None: it has not logged in.
    user: Option<Arc<User>>,
    /// The generation of its user (users::V1).
    acl_generation: u64,
    /// Its connection has TLS.
    has_tls: bool,
    /// Bytes that its requests of this round have appended to the log.
    pub(crate) appended_bytes: u64,
    /// Patterns with which the effects of this turn will be matched, when they are released.
    pub(crate) matches: usize,
    pub(crate) gate: u32,
    /// Since when it must give a password, in milliseconds of the server's clock: since it
    /// connected, or since a `RESET` after it gave one.
    pub stranger_since_ms: u64,
    pub(crate) protocol: Protocol,
    pub(crate) db: Db,
    /// Number of the last command that ran.
    pub(crate) last_command: u16,
    pub(crate) transaction: Option<Box<Transaction>>,
    /// Number of transactions so far.
    pub(crate) transactions: u64,
    pub(crate) discards: u64,
    pub(crate) watched: Watches,
    /// The conditions for sending the replies of this turn.
    pub wait: Wait,
    /// The effects of this turn on other clients.
    pub(crate) effects: Effects,
    /// `None`: it has none.
    pub(crate) subscriptions: Option<Box<Subscriptions>>,
    /// `None`: it does not track keys.
    pub tracking: Option<Box<ClientTracking>>,
    /// Number of changes of its subscriptions by its own requests.
    pub(crate) subscription_changes: u64,
    /// The strictest level that a command of the running transaction requested.
    pub(crate) asked_level: Option<Level>,
    /// End of its patience with keys that no server of the cluster serves now, in milliseconds of
    /// the server's clock; 0: its next request waits for no server.
    pub(crate) unserved_until_ms: u64,
    /// The number of the reservation for which its write waits (reserved::V3), or 0.
    pub(crate) put_off: u64,
    /// The same, of each key to which requests of a native client in flight would write.
    keys_put_off: Vec<(KeyHash, u64)>,
    /// The progress of its FLUSHALL.
    pub(crate) flushing: Option<Flushing>,
    /// State of requests that wait for flash or run in parts; `None`: there are none.
    pub(crate) parking: Option<Box<Parking>>,
    /// The wait of its first request for elements; `None`: it does not wait.
    pub(crate) key_wait: Option<Box<KeyWait>>,
}

impl Client {
    /// `record` is the connection's entry in the client registry; `CLIENT SETNAME` etc. write to
    /// it.
    pub fn new(record: Arc<ClientRecord>) -> Client {
        Client {
            record,
            user: None,
            acl_generation: 0,
            has_tls: false,
            appended_bytes: 0,
            matches: 0,
            gate: gate::STRANGER,
            stranger_since_ms: clock::coarse_ms(),
            protocol: Protocol::Resp2,
            db: Db::Number(0),
            last_command: u16::MAX,
            transaction: None,
            transactions: 0,
            discards: 0,
            watched: Watches::default(),
            wait: Wait::default(),
            effects: Effects::default(),
            subscriptions: None,
            tracking: None,
            subscription_changes: 0,
            asked_level: None,
            unserved_until_ms: 0,
            put_off: 0,
            keys_put_off: Vec::new(),
            flushing: None,
            parking: None,
            key_wait: None,
        }
    }

    /// Its connection has TLS.
    pub fn note_tls(&mut self) {
        self.has_tls = true;
    }

    /// Whether its connection has TLS.
    #[inline]
    pub(crate) fn has_tls(&self) -> bool {
        self.has_tls
    }

    /// Takes the wait of the last turn's replies; the next turn starts without one.
    #[inline]
    pub fn take_wait(&mut self) -> Wait {
        std::mem::take(&mut self.wait)
    }

    /// The last turn has no replies: those of the next turn wait for its data too.
    #[inline]
    pub fn keep_wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    /// Adds everything that was written and seen under `guard` since the last call to the client's
    /// wait.
    #[inline]
    pub(crate) fn settle(&mut self, guard: &mut Guard<'_>, level: Level) {
        if guard.order().has_position() {
            self.settle_position(&guard.order().take_position(), level);
        }
    }

    /// As `settle`, for a position with its own level.
    #[inline]
    pub fn settle_native(&mut self, position: &Position, tells_of_data: bool) {
        self.wait.lease(tells_of_data);
        if !position.is_none() {
            self.settle_position(position, position.level());
        }
    }

    #[cold]
    pub(crate) fn settle_position(&mut self, position: &Position, level: Level) {
        self.wait.join(position, level);
    }

    /// Takes the effects of the last turn, whose replies begin at `from` in the output.
    #[inline]
    pub fn take_effects(&mut self, from: usize) -> Effects {
        let mut effects = std::mem::take(&mut self.effects);
        effects.count_from(from);
        effects
    }

    pub fn record(&self) -> &Arc<ClientRecord> {
        &self.record
    }

    /// Until this is true, the reactor parses with the stricter limits for unauthenticated clients.
    pub fn is_authenticated(&self) -> bool {
        self.gate & gate::STRANGER == 0
    }

    /// Gives up the place of its wait in the queues, if it waits. `passes_on`: as for
    /// `Waiters::leave`.
    pub(crate) fn leave_queues(&mut self, shared: &Shared, passes_on: bool) {
        if let Some(wait) = &mut self.key_wait {
            let wake = |ticket| shared.show_again(ticket);
            wait.leave(&shared.waiters, passes_on, wake);
        }
    }

    /// Ends its wait, if it waits. `passes_on`: as for `Waiters::leave`.
    #[inline]
    pub fn end_key_wait(&mut self, shared: &Shared, passes_on: bool) {
        if self.key_wait.is_some() {
            self.leave_queues(shared, passes_on);
            self.key_wait = None;
            let state = &self.record.key_wait;
            state.store(key_wait_state::NONE, Ordering::Relaxed);
        }
    }

    /// Whether its first request was shown before, and waits for elements.
    #[inline]
    pub fn waits_for_key(&self) -> bool {
        self.key_wait.is_some()
    }

    /// Whether its wait is over: its request is answered without a look at its keys.
    pub(crate) fn has_waited(&self) -> bool {
        let state = || self.record.key_wait.load(Ordering::Relaxed);
        let wait = self.key_wait.as_ref();
        wait.is_some_and(|wait| wait.is_over(state()))
    }

    /// The end of its wait, in milliseconds of the server's clock; 0: there is none.
    pub fn key_wait_deadline_ms(&self) -> u64 {
        self.key_wait.as_ref().map_or(0, |wait| wait.deadline_ms)
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

    pub(crate) fn id(&self) -> u64 {
        self.record.id
    }

    /// Whether it has a user that may do everything.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.gate & (gate::STRANGER | gate::RESTRICTED) == 0
    }

    /// The client has the rights of this user from now on.
    pub fn log_in(&mut self, user: &Arc<User>) {
        self.record.change_text(|text| {
            text.user = user.name().to_owned();
            text.user_id = user.id();
        });
        self.set_user(user);
    }

    fn set_user(&mut self, user: &Arc<User>) {
        self.gate &= !(gate::STRANGER | gate::RESTRICTED);
        if !user.is_unrestricted() {
            self.gate |= gate::RESTRICTED;
        }
        self.user = Some(Arc::clone(user));
    }

    /// The client has the rights of the default user, if that needs no password.
    pub fn log_in_by_default(&mut self, shared: &Shared) {
        self.acl_generation = shared.acl.generation();
        let users = shared.acl.users();
        if users.default_user().is_open() {
            self.log_in(users.default_user());
        }
    }

    pub fn user(&self) -> Option<&Arc<User>> {
        self.user.as_ref()
    }

    /// The name of its user; Redis shows `default` for a client that has not logged in.
    pub fn user_name(&self) -> &str {
        let name = self.user.as_ref().map(|user| user.name());
        name.unwrap_or(duramen_acl::DEFAULT_USER)
    }

    /// Its user is gone: the steps of its EXEC that are left are refused.
    pub(crate) fn lose_user(&mut self) {
        self.gate |= gate::STRANGER;
        self.user = None;
    }

    /// users::V1: to be called before requests run. False: its user is gone, and it must be closed.
    #[inline]
    #[must_use]
    pub fn renew(&mut self, shared: &Shared) -> bool {
        let generation = shared.acl.generation();
        if generation == self.acl_generation {
            return true;
        }
        let before = std::mem::replace(&mut self.acl_generation, generation);
        self.renew_user(shared, before)
    }

    #[cold]
    fn renew_user(&mut self, shared: &Shared, before: u64) -> bool {
        let Some(user) = &self.user else {
            return true;
        };
        let users = shared.acl.users();
        let known = users.get(user.name()).filter(|now| now.id() == user.id());
        let Some(user) = known.filter(|_| !shared.acl.has_ended(before)) else {
            return false;
        };
        self.set_user(user);
        true
    }

    /// users::V4
    pub(crate) fn waits_for_users(&self, shared: &Shared) -> bool {
        shared.waits_for_users(self.user.as_deref(), self.acl_generation)
    }

    pub(crate) fn in_multi(&self) -> bool {
        self.gate & gate::MULTI != 0
    }

    /// Marks the transaction, if there is one, as refused.
    pub(crate) fn break_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.broken = true;
        }
    }

    /// Leaves MULTI and drops the watched keys.
    pub(crate) fn end_transaction(&mut self) -> Option<Box<Transaction>> {
        self.gate &= !gate::MULTI;
        self.show(shown::MULTI, false);
        self.watched = Watches::default();
        self.transaction.take()
    }

    /// Whether a write to these keys waits for another client's reservation.
    pub(crate) fn is_put_off(
        &mut self,
        shared: &Shared,
        keys: impl Iterator<Item = KeyHash>,
    ) -> bool {
        let number = shared.commands.reservation((self.id(), self.put_off), keys);
        self.put_off = number.unwrap_or(self.put_off);
        number.is_some()
    }

    /// As `is_put_off`, for one of several requests in flight.
    pub fn is_key_put_off(&mut self, shared: &Shared, key: KeyHash) -> bool {
        let known = self.keys_put_off.iter().find(|(known, _)| *known == key);
        let put_off = known.map_or(0, |(_, number)| *number);
        let keys = std::iter::once(key);
        let Some(number) = shared.commands.reservation((self.id(), put_off), keys) else {
            return false;
        };
        if put_off == 0 {
            if self.keys_put_off.len() >= KEYS_PUT_OFF_MAX {
                self.keys_put_off.remove(0);
            }
            self.keys_put_off.push((key, number));
        }
        true
    }

    /// A write to this key does not wait.
    pub fn end_put_off(&mut self, key: KeyHash) {
        self.keys_put_off.retain(|(known, _)| *known != key);
    }

    /// Restores MULTI as it was before [`end_transaction`](Self::end_transaction).
    pub(crate) fn resume_transaction(&mut self, transaction: Box<Transaction>, watched: Watches) {
        self.gate |= gate::MULTI;
        self.show(shown::MULTI, true);
        self.transaction = Some(transaction);
        self.watched = watched;
    }

    /// Stores the changes of this round in the registry's record.
    pub(crate) fn publish(&self, table: TableId) {
        if self.last_command != u16::MAX {
            self.record
                .last_command
                .store(self.last_command.into(), Ordering::Relaxed);
        }
        self.record.table.store(table.0, Ordering::Relaxed);
        let queued = self
            .transaction
            .as_ref()
            .map_or(0, |transaction| transaction.queue.len());
        self.record.queued.store(queued as u32, Ordering::Relaxed);
        self.record
            .watched
            .store(self.watched.len() as u32, Ordering::Relaxed);
    }

    /// Stores in the registry's record whether a command waits for its own event, or for the end of
    /// a pause.
    pub fn note_blocked(&self, is_blocked: bool) {
        self.record.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Sets a flag of the registry's record.
    pub fn show(&self, flag: u32, on: bool) {
        let flags = self.record.flags.load(Ordering::Relaxed);
        let flags = if on { flags | flag } else { flags & !flag };
        self.record.flags.store(flags, Ordering::Relaxed);
    }

    #[inline]
    pub fn monitors(&self) -> bool {
        self.shows(shown::MONITOR)
    }

    pub(crate) fn shows(&self, flag: u32) -> bool {
        self.record.flags.load(Ordering::Relaxed) & flag != 0
    }

    #[inline]
    pub fn mode(&self) -> Mode {
        Mode {
            db: self.db,
            protocol: self.protocol,
            is_silent: self.gate & gate::REPLY_OFF != 0,
            monitors: self.monitors(),
            subscription_changes: self.subscription_changes,
            is_stranger: self.gate & gate::STRANGER != 0,
            user: self.user.as_ref().map(|user| user.id()),
            discards: self.discards,
            transaction: if self.in_multi() {
                self.transactions
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

    #[inline]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Its user as it is now; `None`: it has none, or that was removed.
    pub fn present_user(&self, shared: &Shared) -> Option<Arc<User>> {
        let (user, users) = (self.user.as_ref()?, shared.acl.users());
        let known = users.get(user.name()).filter(|now| now.id() == user.id());
        known.cloned()
    }

    /// Whether its user, as it is now, still has the right to all its subscriptions.
    pub fn may_keep_subscriptions(&self, shared: &Shared) -> bool {
        let (Some(subscriptions), Some(_)) = (&self.subscriptions, &self.user) else {
            return true;
        };
        let Some(user) = self.present_user(shared) else {
            return false;
        };
        Kind::ALL.into_iter().all(|kind| {
            let mut names = subscriptions.names(kind);
            names.all(|name| user.has_channel(name, kind == Kind::Pattern))
        })
    }

    /// Whether it has subscriptions and speaks RESP2, where replies could be mistaken for messages.
    #[inline]
    pub(crate) fn is_limited_to_subscriptions(&self) -> bool {
        self.gate & gate::SUBSCRIBED != 0
    }

    pub fn subscription_count(&self) -> usize {
        let subscriptions = self.subscriptions.as_ref();
        subscriptions.map_or(0, |subscriptions| subscriptions.len())
    }

    /// To be called after its subscriptions changed.
    pub(crate) fn settle_subscriptions(&mut self) {
        if self.subscription_count() == 0 {
            self.subscriptions = None;
        }
        self.show(shown::PUBSUB, self.subscriptions.is_some());
        self.note_subscriptions();
    }

    /// To be called after its subscriptions, or its protocol, changed.
    pub(crate) fn note_subscriptions(&mut self) {
        let counts = match &self.subscriptions {
            Some(subscriptions) => subscriptions.counts(),
            None => [0; 3],
        };
        for (shown, count) in self.record.subscriptions.iter().zip(counts) {
            shown.store(count as u32, Ordering::Relaxed);
        }
        self.gate &= !gate::SUBSCRIBED;
        if self.protocol == Protocol::Resp2 && self.subscription_count() > 0 {
            self.gate |= gate::SUBSCRIBED;
        }
    }

    /// Resets the state to that of a new connection; `RESET` does the rest, and has ended its
    /// subscriptions and its tracking.
    pub(crate) fn reset(&mut self) {
        self.discards += u64::from(self.in_multi());
        self.end_transaction();
        if self.gate & gate::STRANGER == 0 {
            self.stranger_since_ms = clock::coarse_ms();
        }
        self.gate = gate::STRANGER;
        self.user = None;
        self.db = Db::Number(0);
        self.set_protocol(Protocol::Resp2);
        self.show(shown::MONITOR | shown::NO_EVICT | shown::NO_TOUCH, false);
        self.record.change_text(|text| {
            text.name.clear();
            text.user.clear();
        });
    }
}
