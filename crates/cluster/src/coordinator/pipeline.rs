//! Persist before telling: each output waits until everything it may depend on is stored.
//!
//! **Invariants**
//! - P1: one batch is in flight at a time; later changes are in the next one. So batches are stored
//!   in the order of their changes, and a busy store gathers them.
//! - P2: an output leaves when every change that was made before it is stored: it depends on
//!   nothing younger.
//! - P3: outputs leave in the order in which they were made, except pings: those depend on nothing.

use super::records::{self, Key};
use super::{Output, ReplyId, Token};
use crate::coordinator::store::Batch;
use duramen_base::ids::{ListVersion, ServerId};
use duramen_base::planted::{Bug, has_bug};
use duramen_wire::native::message::{
    ClusterFunctions, ClusterUsers, ServerChange, Shared, Tablets,
};
use serde::Serialize;
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
    /// Further effects of the batch, once it is stored.
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

/// The changes that are not stored yet, and the outputs. Nothing leaves but through
/// [`tell`](Self::tell), or because it depends on no change (coordinator::K1).
pub(super) struct Records {
    pipeline: Pipeline<Follows>,
    /// Changes of the list in the open batch.
    step: Vec<ServerChange>,
    affected: BTreeSet<ServerId>,
    enlisted: Vec<(ReplyId, ServerId)>,
    out: Vec<Output>,
    /// The reason why nothing is stored any more.
    stopped: Option<String>,
}

impl Records {
    pub(super) fn new() -> Records {
        Records {
            pipeline: Pipeline::new(),
            step: Vec::new(),
            affected: BTreeSet::new(),
            enlisted: Vec::new(),
            out: Vec::new(),
            stopped: None,
        }
    }

    pub(super) fn put<T: Serialize>(&mut self, key: Key, record: &T) {
        self.pipeline.put(key.encode(), records::encode(record));
    }

    pub(super) fn delete(&mut self, key: Key) {
        self.pipeline.delete(key.encode());
    }

    /// Emits the output when all changes so far are stored (coordinator::K1).
    pub(super) fn tell(&mut self, output: Output) {
        self.out.extend(self.pipeline.tell(output));
    }

    /// Emits the output now: it depends on no change that is not stored.
    pub(super) fn tell_at_once(&mut self, output: Output) {
        self.out.push(output);
    }

    /// Emits the outputs that have waited for a batch, which is stored.
    pub(super) fn release(&mut self, held: Vec<Output>) {
        self.out.extend(held);
    }

    pub(super) fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.out)
    }

    /// The tablets of these servers change.
    pub(super) fn affect(&mut self, servers: impl IntoIterator<Item = ServerId>) {
        self.affected.extend(servers);
    }

    /// Whether this is the first change of the list in this batch.
    pub(super) fn change_list(&mut self, change: ServerChange) -> bool {
        self.step.push(change);
        self.step.len() == 1
    }

    /// Emits the server's welcome as a member when all changes so far are stored.
    pub(super) fn enlist(&mut self, reply: ReplyId, server: ServerId) {
        self.enlisted.push((reply, server));
    }

    /// Whether no change waits to be stored and no batch is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.pipeline.is_idle()
    }

    /// Whether [`seal`](Self::seal) may be called.
    pub(super) fn can_seal(&self) -> bool {
        self.pipeline.can_seal()
    }

    pub(super) fn take_enlisted(&mut self) -> Vec<(ReplyId, ServerId)> {
        std::mem::take(&mut self.enlisted)
    }

    pub(super) fn take_affected(&mut self) -> BTreeSet<ServerId> {
        std::mem::take(&mut self.affected)
    }

    /// Has the open batch stored. `tablets`: of the affected servers.
    ///
    /// # Panics
    /// If one is in flight (P1).
    pub(super) fn seal(
        &mut self,
        list_version: ListVersion,
        tablets: Vec<(ServerId, Tablets)>,
        users: Option<Shared<ClusterUsers>>,
        functions: Option<Shared<ClusterFunctions>>,
    ) {
        let step = std::mem::take(&mut self.step);
        let (token, batch) = self.pipeline.seal(Follows {
            step: (!step.is_empty()).then_some((list_version, step)),
            tablets,
            enlisted: std::mem::take(&mut self.enlisted),
            users,
            functions,
        });
        self.out.push(Output::Persist { token, batch });
    }

    /// The batch of this token is stored.
    pub(super) fn stored(&mut self, token: Token) -> Option<Sealed<Follows>> {
        self.pipeline.stored(token)
    }

    /// Stores nothing any more. Returns the requests whose outcome is unknown.
    pub(super) fn stop(&mut self, reason: &str) -> Vec<ReplyId> {
        self.stopped = Some(reason.to_owned());
        let (abandoned, follows) = self.pipeline.abandon();
        let waiting = abandoned.iter().filter_map(|output| match output {
            Output::Answer { reply, .. } => Some(*reply),
            _ => None,
        });
        let sealed = follows.into_iter().flat_map(|follows| follows.enlisted);
        let enlisting = std::mem::take(&mut self.enlisted).into_iter().chain(sealed);
        waiting.chain(enlisting.map(|(reply, _)| reply)).collect()
    }

    /// The reason why nothing is stored any more.
    pub(super) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }
}
