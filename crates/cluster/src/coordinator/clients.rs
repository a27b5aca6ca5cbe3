//! Leases of clients: until their end, masters keep the completion records of a client.
//!
//! Only the ids are stored; a new leader takes every lease as just renewed, so none ends early. Nor
//! does one end because this process stood still: requests to renew leases waited meanwhile.
//!
//! Paper: RIFL; docs/traps.md, trap 30.

use super::records::Key;
use super::{State, Timer, refused};
use duramen_base::ids::ClientId;
use duramen_wire::native::message::{CoordinatorAnswer, Refusal};
use std::collections::{BTreeMap, BTreeSet};

/// Most leases at the same time: they bound the memory of a coordinator, some 200 bytes each.
const LEASES_MAX: usize = 100_000;
/// A client that gets none asks again after this time.
const FULL_AGAIN_MS: u32 = 1_000;
/// Interval of the search for leases that have ended.
const LOOK_US: u64 = 1_000_000;
/// A look that comes so much too late was held up: by a stopped process, or a busy machine.
const LATE_US: u64 = 100_000;
/// Most leases that are deleted in one step; the next step follows after a pause.
const ENDS_MAX: usize = 1024;
const PAUSE_US: u64 = 1_000;
/// A client may assume a lease that is longer by so much: clocks differ.
const GRACE_PERCENT: u64 = 10;

/// The leases of clients; see the module.
#[derive(Default)]
pub(super) struct Clients {
    /// The leases, each with its end.
    leases: BTreeMap<ClientId, u64>,
    /// The leases, by their ends.
    ends: BTreeSet<(u64, ClientId)>,
}

/// Arms the next look.
pub(super) fn arm(state: &mut State) {
    state.asks.arm(state.now_us + LOOK_US, Timer::Clients);
}

impl Clients {
    pub(super) fn lease(
        &mut self,
        state: &mut State,
        client: Option<ClientId>,
    ) -> CoordinatorAnswer {
        let client = match client {
            Some(known) if self.leases.contains_key(&known) => known,
            Some(_) => return refused(Refusal::Invalid("the client's lease has ended".to_owned())),
            None if self.leases.len() >= LEASES_MAX => {
                return refused(Refusal::NotReady {
                    after_ms: FULL_AGAIN_MS,
                    reason: format!("{LEASES_MAX} clients have leases"),
                });
            }
            None => {
                let new = state.meta.next_client;
                state.meta.next_client.0 += 1;
                state.put_meta();
                state.records.put(Key::Client(new), &());
                new
            }
        };
        self.renew(state, client);
        CoordinatorAnswer::Lease {
            client,
            ttl_ms: state.meta.settings.client_lease_ms,
        }
    }

    pub(super) fn renew(&mut self, state: &State, client: ClientId) {
        let lease_us = u64::from(state.meta.settings.client_lease_ms) * 1000;
        let until_us = state.now_us + lease_us + lease_us * GRACE_PERCENT / 100;
        if let Some(before_us) = self.leases.insert(client, until_us) {
            self.ends.remove(&(before_us, client));
        }
        self.ends.insert((until_us, client));
    }

    /// The clients whose records masters must keep, each with the least time that its lease still
    /// lasts: leases never become shorter. An unknown client counts as ended: its id would have
    /// been stored before the client got it.
    pub(super) fn alive(&self, state: &mut State, asked: Vec<ClientId>) -> CoordinatorAnswer {
        let count = asked.len();
        let alive = asked.into_iter().filter_map(|id| {
            let left_us = self.leases.get(&id)?.saturating_sub(state.now_us);
            Some((id, u32::try_from(left_us / 1000).unwrap_or(u32::MAX)))
        });
        let clients: Vec<_> = alive.collect();
        if clients.len() < count {
            state.ask_store(); // coordinator::K8: masters would drop the records of the others
        }
        CoordinatorAnswer::ClientsAlive { clients }
    }

    /// `due_us`: the time for which this look was asked.
    pub(super) fn expire(&mut self, state: &mut State, due_us: u64) {
        let late_us = state.now_us.saturating_sub(due_us);
        if late_us > LATE_US {
            self.lengthen(late_us);
        }
        for _ in 0..ENDS_MAX {
            let first = self.ends.first().copied();
            let Some((until_us, client)) = first.filter(|(until_us, _)| *until_us <= state.now_us)
            else {
                return arm(state);
            };
            self.ends.remove(&(until_us, client));
            self.leases.remove(&client);
            state.records.delete(Key::Client(client));
        }
        state.asks.arm(state.now_us + PAUSE_US, Timer::Clients);
    }

    /// No client could renew its lease for so long: all leases become longer by that.
    fn lengthen(&mut self, by_us: u64) {
        self.ends.clear();
        for (client, until_us) in &mut self.leases {
            *until_us += by_us;
            self.ends.insert((*until_us, *client));
        }
    }
}
