//! Persist before telling: whatever is said waits until everything it may depend on is stored.
//!
//! **Invariants**
//! - P1: one batch is on its way at a time; what changes meanwhile is in the next one. So batches
//!   are stored in the order of their changes, and a busy store gathers them.
//! - P2: an output leaves when every change that was made before it is stored: it depends on
//!   nothing younger.
//! - P3: outputs leave in the order in which they were made, pings apart: those depend on nothing.

use super::{Output, Token};
use crate::coordinator::store::Batch;

/// Changes on their way to the store, and what waits for them. `T`: what else a stored batch sets
/// off.
pub(super) struct Pipeline<T> {
    open: Batch,
    /// Wait for the open batch.
    held: Vec<Output>,
    sealed: Option<Sealed<T>>,
    next: u64,
    /// Tells at once.
    is_rash: bool,
}

pub(super) struct Sealed<T> {
    pub token: Token,
    pub held: Vec<Output>,
    /// What else happens then.
    pub follows: T,
}

impl<T> Pipeline<T> {
    pub(super) fn new(is_rash: bool) -> Pipeline<T> {
        Pipeline {
            open: Batch::default(),
            held: Vec::new(),
            sealed: None,
            next: 0,
            is_rash,
        }
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.open.put(key, value);
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.open.delete(key);
    }

    /// Whether nothing waits to be stored and nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_empty() && self.sealed.is_none()
    }

    /// Whether [`seal`](Self::seal) may be called.
    pub(super) fn can_seal(&self) -> bool {
        self.sealed.is_none() && !self.open.is_empty()
    }

    /// Gives the output back if it may leave at once (P2); keeps it otherwise.
    pub(super) fn tell(&mut self, output: Output) -> Option<Output> {
        if self.is_rash {
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
    /// If one is on its way (P1).
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

    /// What will never leave, and what would have followed.
    pub(super) fn abandon(&mut self) -> (Vec<Output>, Option<T>) {
        let (mut outputs, follows) = match self.sealed.take() {
            Some(sealed) => (sealed.held, Some(sealed.follows)),
            None => (Vec::new(), None),
        };
        outputs.append(&mut self.held);
        (outputs, follows)
    }
}
