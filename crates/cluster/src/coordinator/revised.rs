//! A record of the cluster that is changed by revisions: stored, changed one after the other, told
//! to all servers (users::E1, users::E2).

use super::records::Key;
use super::{CallKind, Server, State, Timer, invalid};
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{
    CoordinatorAnswer, FromCoordinator, Refusal, ServerAnswer, Shared,
};
use serde::Serialize;

/// A record that a server has not answered is sent again after this time.
pub(super) const PATIENCE_US: u64 = 1_000_000;

/// A kind of record that is changed by revisions.
pub(super) trait Revision: Serialize + Sized {
    const KEY: Key;
    /// The oldest layout of a store that has such a record.
    const FORMAT: u32;

    fn revision(&self) -> u64;

    /// The reason, for people, why it cannot be stored.
    fn refusal(&self) -> Option<String>;

    /// Whether the next revision is stored. One that changes nothing need not be.
    fn changes(&self, newest: &Self) -> bool;

    /// The revisions that a server was sent.
    fn sent(server: &mut Server) -> &mut Revisions;

    /// Notes why a server does not understand the record; `None`: it understands it. Returns the
    /// time after which the record is sent again.
    fn note_fault(server: &mut Server, fault: Option<String>) -> u64;

    fn kind(revision: u64) -> CallKind;
    fn question(record: Shared<Self>) -> FromCoordinator;
    fn answer(record: Shared<Self>) -> CoordinatorAnswer;
}

/// The newest record, and the one that is stored.
#[derive(Default)]
pub(super) struct Revised<T> {
    newest: Shared<T>,
    published: Shared<T>,
}

impl<T: Revision> Revised<T> {
    /// Takes over the stored record.
    pub(super) fn adopt(&mut self, record: T) {
        self.newest = Shared::from(record);
        self.published = self.newest.clone();
    }

    pub(super) fn published(&self) -> &Shared<T> {
        &self.published
    }

    /// The newest record, if it is not published.
    pub(super) fn changed(&self) -> Option<Shared<T>> {
        let is_new = self.newest.revision() > self.published.revision();
        is_new.then(|| self.newest.clone())
    }

    /// This record is stored.
    pub(super) fn publish(&mut self, record: Shared<T>) {
        self.published = record;
    }

    /// Changes the record, unless there is a newer revision (users::E1).
    pub(super) fn set(&mut self, state: &mut State, record: T) -> CoordinatorAnswer {
        if let Some(why) = record.refusal() {
            return invalid(why);
        }
        let is_next = record.revision() == self.newest.revision() + 1;
        if is_next && record.changes(&self.newest) {
            state.records.put(T::KEY, &record);
            state.meta.format = state.meta.format.max(T::FORMAT);
            state.put_meta();
            self.newest = Shared::from(record);
        }
        self.answer(state)
    }

    /// An answer with the newest record, which leaves when that record is stored. The answer may
    /// deny a change, and a new member serves by it: so the store is asked (coordinator::K8).
    pub(super) fn answer(&self, state: &mut State) -> CoordinatorAnswer {
        state.ask_store();
        T::answer(self.newest.clone())
    }

    /// Sends a server the stored record, unless the server has confirmed it or it is in flight.
    pub(super) fn kick(&self, state: &mut State, id: ServerId) {
        let revision = self.published.revision();
        let server = state.servers.get_mut(&id);
        if server.is_some_and(|server| T::sent(server).begin(revision)) {
            let question = T::question(self.published.clone());
            state.ask(id, question, T::kind(revision), PATIENCE_US);
        }
    }
}

/// Handles the end of a request that sent this revision. Returns whether the server has confirmed
/// it; if not, it is sent again later.
pub(super) fn told<T: Revision>(
    state: &mut State,
    id: ServerId,
    revision: u64,
    answer: Option<(ServerAnswer, Vec<u8>)>,
) -> bool {
    let Some(server) = state.servers.get_mut(&id) else {
        return false;
    };
    let is_confirmed = matches!(answer, Some((ServerAnswer::Confirmed { .. }, _)));
    T::sent(server).end(is_confirmed.then_some(revision));
    let rest_us = match answer {
        Some((ServerAnswer::Confirmed { .. }, _)) => T::note_fault(server, None),
        Some((ServerAnswer::Refused(Refusal::Invalid(fault)), _)) => {
            T::note_fault(server, Some(fault))
        }
        // An older member never confirms it.
        _ => PATIENCE_US,
    };
    if !is_confirmed {
        state.asks.arm(state.now_us + rest_us, Timer::Push(id));
    }
    is_confirmed
}

/// The revisions of a record that a server was sent.
#[derive(Default)]
pub(super) struct Revisions {
    /// The confirmed revision; 0 if it is unknown, or the server has its own record.
    confirmed: u64,
    is_told: bool,
}

impl Revisions {
    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed
    }

    /// Whether this revision is to be sent now; then it is in flight.
    fn begin(&mut self, revision: u64) -> bool {
        let begins = !self.is_told && self.confirmed < revision;
        self.is_told |= begins;
        begins
    }

    /// The revision in flight was answered, or no answer came. `confirmed`: the revision that the
    /// server has.
    fn end(&mut self, confirmed: Option<u64>) {
        self.is_told = false;
        self.confirmed = self.confirmed.max(confirmed.unwrap_or_default());
    }
}
