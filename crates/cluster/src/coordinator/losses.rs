//! Data that recoveries wait for because no replica has it, until an operator accepts the loss.
//!
//! **Rules** (docs/protocols.md, "Accepting a loss")
//! - O1: a recovery leaves out nothing of itself. The tokens of what an operator has accepted are
//!   stored, so that they outlive this leader, and go with each order until the server is removed.
//! - O2: an acceptance names all that is lost by its token. If it is something else by now, it is
//!   refused.
//! - O3: while something is lost and not accepted, an attempt comes only now and then, and at once
//!   when a backup comes that may have it.

use super::records::{self, Key};
use super::{Coordinator, invalid};
use crate::recovery::Losses;
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{AdminAnswer, CoordinatorAnswer, SegmentLoss};

/// The rest between two attempts of a recovery that waits for an operator (O3).
const REST_US: u64 = 60_000_000;

impl Coordinator {
    /// A recovery master has told what no replica has.
    pub(super) fn note_losses(&mut self, dead: ServerId, losses: Vec<SegmentLoss>) {
        let Some(recovery) = self.recoveries.get_mut(&dead) else {
            return;
        };
        recovery.losses.note(recovery.id, losses);
    }

    /// O3: the attempt has ended.
    pub(super) fn rest_with_losses(&mut self, dead: ServerId) {
        let now_us = self.state.now_us;
        if let Some(recovery) = self.recoveries.get_mut(&dead)
            && !recovery.losses.is_empty()
        {
            recovery.rest_until_us = now_us + REST_US;
        }
    }

    /// O3: a backup may have what is lost.
    pub(super) fn look_for_losses(&mut self) {
        let now_us = self.state.now_us;
        let waiting = self
            .recoveries
            .values_mut()
            .filter(|of| !of.losses.is_empty());
        waiting.for_each(|of| of.rest_until_us = of.rest_until_us.min(now_us));
    }

    pub(super) fn losses(&self, server: ServerId) -> CoordinatorAnswer {
        match self.recoveries.get(&server) {
            None => invalid(format!("server {server} is not being recovered")),
            Some(recovery) if recovery.looks_again() => invalid(looked_for(server)),
            Some(recovery) => {
                let nothing = Losses::default();
                let losses = recovery.lost().unwrap_or(&nothing);
                CoordinatorAnswer::Admin(AdminAnswer::Losses {
                    losses: losses.iter().cloned().collect(),
                    token: losses.token(),
                })
            }
        }
    }

    /// O1 and O2.
    pub(super) fn accept_loss(&mut self, server: ServerId, token: u32) -> CoordinatorAnswer {
        let now_us = self.state.now_us;
        let Some(recovery) = self.recoveries.get_mut(&server) else {
            return invalid(format!("server {server} is not being recovered"));
        };
        if recovery.looks_again() {
            return invalid(looked_for(server));
        }
        let Some(losses) = recovery.lost() else {
            return invalid(format!("nothing of server {server} is known to be lost"));
        };
        if losses.token() != token {
            return invalid("this token is not of what is lost: look again".to_owned());
        }
        let losses = std::mem::take(&mut recovery.losses);
        recovery.rest_until_us = recovery.rest_until_us.min(now_us);
        let accepted = self.accepted.entry(server).or_default();
        accepted.extend(losses.iter().map(|loss| loss.token));
        accepted.sort_unstable();
        accepted.dedup();
        let record = accepted.clone();
        self.state.records.put(Key::Accepted(server), &record);
        self.arm_recovery(server, 0);
        CoordinatorAnswer::Admin(AdminAnswer::Done)
    }

    pub(super) fn adopt_accepted(&mut self, server: ServerId, value: &[u8]) {
        if let Some(tokens) = records::decode(value) {
            self.accepted.insert(server, tokens);
        }
    }

    /// The server is removed.
    pub(super) fn forget_accepted(&mut self, server: ServerId) {
        if self.accepted.remove(&server).is_some() {
            self.state.records.delete(Key::Accepted(server));
        }
    }
}

/// For people, while an attempt has not ended.
fn looked_for(server: ServerId) -> String {
    format!("the data of server {server} that no replica had is being looked for again: ask later")
}
