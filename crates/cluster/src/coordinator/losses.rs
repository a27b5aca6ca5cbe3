//! Data that recoveries wait for because no replica has it, until an operator accepts the loss.
//!
//! **Rules** (docs/protocols.md, "Accepting a loss")
//! - O1: no recovery decides by itself to leave anything out. The tokens of what an operator has
//!   accepted are stored, so that they outlive this leader, and go with each order until the server
//!   is removed.
//! - O2: an acceptance names all that is lost, by its token. It is refused if something else is
//!   lost by now.
//! - O3: while something is lost and not accepted, an attempt comes only now and then, and at once
//!   when a backup comes that may have it.

use super::records::{self, Key};
use super::{State, invalid};
use crate::recovery::{Losses, Recovery};
use duramen_base::ids::ServerId;
use duramen_wire::native::message::{AdminAnswer, CoordinatorAnswer};
use std::collections::BTreeMap;

/// The rest between two attempts of a recovery that waits for an operator (O3).
const REST_US: u64 = 60_000_000;

/// The tokens of accepted losses of crashed servers (O1).
#[derive(Default)]
pub(super) struct Accepted(BTreeMap<ServerId, Vec<u32>>);

impl Accepted {
    pub(super) fn adopt(&mut self, server: ServerId, value: &[u8]) {
        if let Some(tokens) = records::decode(value) {
            self.0.insert(server, tokens);
        }
    }

    pub(super) fn of(&self, server: ServerId) -> Vec<u32> {
        self.0.get(&server).cloned().unwrap_or_default()
    }

    /// Accepts a loss (O1, O2). The error is for people.
    pub(super) fn accept(
        &mut self,
        state: &mut State,
        server: ServerId,
        recovery: Option<&mut Recovery>,
        token: u32,
    ) -> Result<(), String> {
        let Some(recovery) = recovery else {
            return Err(not_recovered(server));
        };
        if recovery.looks_again() {
            return Err(looked_for(server));
        }
        let Some(losses) = recovery.lost() else {
            return Err(format!("nothing of server {server} is known to be lost"));
        };
        if losses.token() != token {
            return Err("this token is not of what is lost: look again".to_owned());
        }
        let losses = std::mem::take(&mut recovery.losses);
        recovery.rest_until_us = recovery.rest_until_us.min(state.now_us);
        let accepted = self.0.entry(server).or_default();
        accepted.extend(losses.iter().map(|loss| loss.token));
        accepted.sort_unstable();
        accepted.dedup();
        state.records.put(Key::Accepted(server), &*accepted);
        Ok(())
    }

    /// The server is removed.
    pub(super) fn forget(&mut self, state: &mut State, server: ServerId) {
        if self.0.remove(&server).is_some() {
            state.records.delete(Key::Accepted(server));
        }
    }
}

/// O3: an attempt has ended.
pub(super) fn rest(recovery: &mut Recovery, now_us: u64) {
    if !recovery.losses.is_empty() {
        recovery.rest_until_us = now_us + REST_US;
    }
}

/// O3: a backup may have what is lost.
pub(super) fn look_again(recovery: &mut Recovery, now_us: u64) {
    if !recovery.losses.is_empty() {
        recovery.rest_until_us = recovery.rest_until_us.min(now_us);
    }
}

/// The losses that an operator would have to accept.
pub(super) fn shown(server: ServerId, recovery: Option<&Recovery>) -> CoordinatorAnswer {
    match recovery {
        None => invalid(not_recovered(server)),
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

fn not_recovered(server: ServerId) -> String {
    format!("server {server} is not being recovered")
}

/// The text for people while an attempt has not ended.
fn looked_for(server: ServerId) -> String {
    format!("the data of server {server} that no replica had is being looked for again: ask later")
}
