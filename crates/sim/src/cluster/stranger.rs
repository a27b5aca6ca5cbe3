//! An operator's mistake: while a coordinator is down, another one runs in its place with an empty
//! store.
//!
//! **Invariants**
//! - G1: it lets nobody in, tells no member of the cluster that it is none, and asks nobody.

use super::chair::{Chair, brief};
use super::world::{Asker, World};
use duramen_base::ids::ClusterId;
use duramen_cluster::coordinator::{Config, Coordinator, Input, Output, ReplyId};
use duramen_cluster::planted::Planted;
use duramen_wire::native::message::{CoordinatorAnswer, Refusal, ToCoordinator};
use std::collections::BTreeMap;

/// It lies beside what coordinators of this cluster draw from their seed.
const STRANGE: ClusterId = ClusterId(u128::MAX);

impl World {
    /// The coordinator in this place is down.
    pub(super) fn stranger_comes(&mut self, n: usize) {
        if !self.plan.empty_store || self.is_healed {
            return;
        }
        let config = Config {
            cluster: "simulated".to_owned(),
            new_id: STRANGE,
            name: super::chair::address(n),
            term: 1,
            seed: self.plan.seed,
            settings: self.settings(),
            planted: Planted::default(),
        };
        let now_us = self.chairs[n].clock(self.now_us);
        let (stranger, outputs) =
            Coordinator::open(now_us, &BTreeMap::new(), config).expect("a new store is whole");
        self.say(|| format!("coordinator {n} has an empty store"));
        self.chairs[n].stranger = Some(Box::new(stranger));
        self.stranger_does(n, outputs);
    }

    /// A handshake does this for processes: a member that knows its cluster's id is not talked to.
    /// Every other life knows none, as if it were of an older version.
    pub(super) fn stranger_hears(&mut self, n: usize, reply: ReplyId, input: Input) {
        let Some(&Asker::Member(server, ..)) = self.askers.get(&reply.0) else {
            return self.nobody_answers(reply.0);
        };
        let cluster_id = self.machines[server].cluster_id;
        // With an empty directory it may join any cluster: that would be another mistake.
        let is_new = match &input {
            Input::Asked {
                question: ToCoordinator::Enlist(enlist),
                ..
            } => enlist.replaces.is_none(),
            _ => cluster_id == ClusterId::NONE,
        };
        let knows = self.machines[server].generation.is_multiple_of(2);
        let input = match is_new || knows {
            true => {
                self.nobody_answers(reply.0);
                Input::Foreign { cluster_id }
            }
            false => input,
        };
        let now_us = self.chairs[n].clock(self.now_us);
        if let Some(stranger) = self.chairs[n].stranger.as_mut().filter(|_| !is_new) {
            let outputs = stranger.handle(now_us, input);
            self.stranger_does(n, outputs);
        }
    }

    fn stranger_does(&mut self, n: usize, outputs: Vec<Output>) {
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
                    let now_us = self.chairs[n].clock(self.now_us);
                    let stranger = self.chairs[n].stranger.as_mut();
                    let stored = Input::Persisted { token };
                    let more = stranger.map(|stranger| stranger.handle(now_us, stored));
                    self.stranger_does(n, more.unwrap_or_default());
                }
                Output::WakeAt { .. } | Output::Unfit { .. } => {}
            }
        }
    }

    /// All leaders of a cluster say the same id. `n`: leads, and lets a server in.
    pub(super) fn hears_cluster_id(&mut self, n: usize, server: usize) {
        let Some((_, leader)) = &self.chairs[n].leads else {
            return;
        };
        let (before, id) = (self.machines[server].cluster_id, leader.cluster_id());
        if before.contradicts(id) || id == ClusterId::NONE {
            self.violated(format!("the cluster's id was {before} and is {id}"));
        }
        self.machines[server].cluster_id = id;
    }
}

impl Chair {
    /// Whether another one is in its place.
    pub(super) fn has_stranger(&self) -> bool {
        !self.is_on && self.stranger.is_some()
    }
}
