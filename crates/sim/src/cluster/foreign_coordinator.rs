//! A foreign coordinator: one with an empty store that runs in the place of one that is down, by a
//! mistake of the operator.
//!
//! **Invariants**
//! - G1: it enlists no server, denies no member of the cluster, and sends no question.

use super::sim_coordinator::{SimCoordinator, brief};
use super::world::{Asker, World};
use duramen_base::ids::ClusterId;
use duramen_cluster::coordinator::{Config, Coordinator, Input, Output, ReplyId};
use duramen_wire::native::message::{CoordinatorAnswer, Refusal, ToCoordinator};
use std::collections::BTreeMap;

/// Id of its cluster: the cluster's own coordinators never draw it.
const FOREIGN_ID: ClusterId = ClusterId(u128::MAX);

impl World {
    /// Starts a foreign coordinator in the place of coordinator `n`, which is down.
    pub(super) fn foreign_comes(&mut self, n: usize) {
        if !self.plan.empty_store || self.is_healed {
            return;
        }
        let config = Config {
            cluster: "simulated".to_owned(),
            new_id: FOREIGN_ID,
            name: super::sim_coordinator::address(n),
            term: 1,
            seed: self.plan.seed,
            settings: self.settings(),
            balance_after_us: self.plan.balance_after_us,
        };
        let now_us = self.coordinators[n].clock(self.now_us);
        let (foreign, outputs) =
            Coordinator::open(now_us, &BTreeMap::new(), config).expect("a new store is whole");
        self.say(|| format!("coordinator {n} has an empty store"));
        self.coordinators[n].foreign = Some(Box::new(foreign));
        self.foreign_does(n, outputs);
    }

    /// Gives a request to the foreign coordinator, or refuses it as the handshake of a process
    /// does: a member that has its cluster's id gets no answer. Every other life of a server sends
    /// no id, like a server of an older version.
    pub(super) fn foreign_hears(&mut self, n: usize, reply: ReplyId, input: Input) {
        let Some(&Asker::Member(server, ..)) = self.askers.get(&reply.0) else {
            return self.nobody_answers(reply.0);
        };
        let cluster_id = self.machines[server].cluster_id;
        // A server with an empty directory may join any cluster: another mistake, not simulated.
        let is_new = match &input {
            Input::Request {
                question: ToCoordinator::Enlist(enlist),
                ..
            } => enlist.replaces.is_none(),
            _ => cluster_id == ClusterId::NONE,
        };
        let knows = self.machines[server].generation.is_multiple_of(2);
        let input = if is_new || knows {
            self.nobody_answers(reply.0);
            Input::Foreign { cluster_id }
        } else {
            input
        };
        let now_us = self.coordinators[n].clock(self.now_us);
        if let Some(foreign) = self.coordinators[n].foreign.as_mut().filter(|_| !is_new) {
            let outputs = foreign.handle(now_us, input);
            self.foreign_does(n, outputs);
        }
    }

    fn foreign_does(&mut self, n: usize, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Answer { reply, answer } => {
                    let is_refused =
                        matches!(answer, CoordinatorAnswer::Refused(Refusal::NotReady { .. }));
                    if !is_refused {
                        let said = brief(&answer);
                        self.violated(format!("a coordinator with an empty store says {said}"));
                    }
                    self.coordinator_answers(n, reply, answer);
                }
                Output::Ask { to, question, .. } => {
                    let said = brief(&question);
                    self.violated(format!("one with an empty store asks {to} {said}"));
                }
                Output::Persist { token, .. } => {
                    let now_us = self.coordinators[n].clock(self.now_us);
                    let foreign = self.coordinators[n].foreign.as_mut();
                    let stored = Input::Persisted { token };
                    let more = foreign.map(|foreign| foreign.handle(now_us, stored));
                    self.foreign_does(n, more.unwrap_or_default());
                }
                Output::WakeAt { .. } | Output::Unfit { .. } | Output::Reopen { .. } => {}
            }
        }
    }

    /// Checks that all leaders of a cluster send the same id. `n`: the leader that enlists
    /// `server`.
    pub(super) fn hears_cluster_id(&mut self, n: usize, server: usize) {
        let Some((_, leader)) = &self.coordinators[n].leads else {
            return;
        };
        let (before, id) = (self.machines[server].cluster_id, leader.cluster_id());
        if before.contradicts(id) || id == ClusterId::NONE {
            self.violated(format!("the cluster's id was {before} and is {id}"));
        }
        self.machines[server].cluster_id = id;
    }
}

impl SimCoordinator {
    /// Whether a foreign coordinator runs in its place.
    pub(super) fn has_foreign(&self) -> bool {
        !self.is_on && self.foreign.is_some()
    }
}
