//! Persist before telling: each output waits until everything it may depend on is stored.
//!
//! **Invariants**
//! - P1: one batch is in flight at a time; later changes are in the next one. So batches are stored
//!   in the order of their changes, and a busy store gathers them.
//! - P2: an output leaves when every change that was made before it is stored: it depends on
//!   nothing younger.
//! - P3: outputs leave in the order in which they were made, except pings: those depend on nothing.

use super::{Output, ReplyId, Token};
use crate::coordinator::store::Batch;
use duramen_base::ids::{ListVersion, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    ClusterFunctions, ClusterUsers, ServerChange, Shared, Tablets,
};
use std::collections::BTreeSet;

/// Changes that are not stored yet, and the outputs that wait for them. `T`: further effects of a
/// stored batch.
pub(super) struct Pipeline<T> {
    open: Batch,
    /// Outputs that wait for the open batch.
    held: Vec<Output>,
    sealed: Option<Sealed<T>>,
    next: u64,
}

pub(super) struct Sealed<T> {
    pub token: Token,
    pub held: Vec<Output>,
    /// Further effects.
    pub follows: T,
}

impl<T> Pipeline<T> {
    pub(super) fn new() -> Pipeline<T> {
        Pipeline {
            open: Batch::default(),
            held: Vec::new(),
            sealed: None,
            next: 0,
        }
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.open.put(key, value);
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.open.delete(key);
    }

    /// Whether no change waits to be stored and no batch is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.sealed.is_none()
    }

    /// Whether [`seal`](Self::seal) may be called.
    pub(super) fn can_seal(&self) -> bool {
        self.sealed.is_none() && !self.open.is_empty()
    }

    /// Returns the output if it may leave at once (P2); keeps it otherwise.
    pub(super) fn tell(&mut self, output: Output) -> Option<Output> {
        if has_bug(Bug::TellsBeforePersisting) {
            return Some(output);
        }
        if !self.open.is_empty() {
            self.held.push(output);
            return None;
        }
        match &mut self.sealed {
            Some(sealed) => {
                sealed.held.push(output);
                None
            }
            None => Some(output),
        }
    }

    /// Closes the open batch and returns it, to be stored.
    ///
    /// # Panics
    /// If one is in flight (P1).
    pub(super) fn seal(&mut self, follows: T) -> (Token, Batch) {
        assert!(self.sealed.is_none(), "P1: one batch at a time");
        self.next += 1;
        let token = Token(self.next);
        self.sealed = Some(Sealed {
            token,
            held: std::mem::take(&mut self.held),
            follows,
        });
        (token, std::mem::take(&mut self.open))
    }

    /// The batch of this token is stored.
    pub(super) fn stored(&mut self, token: Token) -> Option<Sealed<T>> {
        self.sealed.take_if(|sealed| sealed.token == token)
    }

    /// The outputs that will never leave, and the effects that would have followed.
    pub(super) fn abandon(&mut self) -> (Vec<Output>, Option<T>) {
        let (mut outputs, follows) = match self.sealed.take() {
            Some(sealed) => (sealed.held, Some(sealed.follows)),
            None => (Vec::new(), None),
        };
        outputs.append(&mut self.held);
        (outputs, follows)
    }
}

/// The effects of a stored batch.
pub(super) struct Follows {
    pub step: Option<(ListVersion, Vec<ServerChange>)>,
    pub tablets: Vec<(ServerId, Tablets)>,
    pub enlisted: Vec<(ReplyId, ServerId)>,
    pub users: Option<Shared<ClusterUsers>>,
    pub functions: Option<Shared<ClusterFunctions>>,
}

/// The changes that are not stored yet, and the outputs.
pub(super) struct Records {
    pub pipeline: Pipeline<Follows>,
    /// Changes of the open batch.
    pub step: Vec<ServerChange>,
    pub affected: BTreeSet<ServerId>,
    pub enlisted: Vec<(ReplyId, ServerId)>,
    pub out: Vec<Output>,
    /// The reason why it does nothing any more.
    pub stopped: Option<String>,
}
