//! The interface of the store in which a coordinator's state outlives it.
//!
//! **Invariants**
//! - M1: a batch is stored as a whole or not at all, and only if its committer leads at that
//!   moment: the store compares, not the caller. So a leader that was deposed while it slept can't
//!   write.
//! - M2: batches of one term are stored in the order in which they were committed.
//! - M3: a batch for which [`MetaStore::commit`] has returned `Ok` survives a power cut of the
//!   store.
//! - M4: keys that begin with [`ADVICE`] are part of batches and contents like all others, but are
//!   kept at a place of their own, where programs that do not know them do not look. So such a
//!   program can lead with this store, and the next one finds the advice as it was.
//!
//! **Concurrency** One thread calls one `MetaStore`; calls block. Several coordinators have one
//! each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Changes that belong together. A key is named once: later changes of it replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    changes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Batch {
    /// The key has this value from now on.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.insert(key, Some(value));
    }

    /// The key is gone from now on.
    pub fn delete(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
    }

    /// Keys and their new values; `None` deletes.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = (&[u8], Option<&[u8]>)> {
        self.changes
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// The first byte of keys of which older programs know nothing (M4): hints, without which the state
/// is whole. No other key begins with it.
pub const ADVICE: u8 = b'~';

/// Whether a key is of advice (M4).
pub fn is_advice(key: &[u8]) -> bool {
    key.first() == Some(&ADVICE)
}

/// The whole stored state, by key.
pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// Number of a leadership; each new one is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

/// The reason why a store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Drop the coordinator and campaign again: another one leads. Nothing was changed.
    #[error("another coordinator leads")]
    Deposed,
    /// Drop the coordinator; acquire and load again when the store is back. Whether the change is
    /// stored is unknown.
    #[error("the coordinator's store cannot be reached: {reason}")]
    Unavailable { reason: String },
    /// The store has other contents, or is damaged; the reason is for people.
    #[error("the coordinator's store cannot be used: {reason}")]
    Unusable { reason: String },
}

/// The store of a coordinator's state.
pub trait MetaStore: Send {
    /// Leads from now on, if no other coordinator does. `None`: another one does, ask again in a
    /// while (a tenth of a second, say).
    ///
    /// # Errors
    /// [`Error::Unavailable`]: ask again. [`Error::Unusable`].
    fn acquire(&mut self) -> Result<Option<Term>, Error>;

    /// Keeps the leadership that [`acquire`](Self::acquire) has begun, from another thread: no
    /// other call to the store delays it. `None`: leadership lasts as long as the process.
    fn renewal(&self) -> Option<Box<dyn Renewal>>;

    /// Silence after which others take over, in milliseconds; 0 if leadership lasts as long as the
    /// process.
    fn lease_ms(&self) -> u64;

    /// The whole stored state. Only the leader's own batches can come after it.
    ///
    /// # Errors
    /// Any [`Error`].
    fn load(&mut self) -> Result<Contents, Error>;

    /// Stores a batch (M1 to M3).
    ///
    /// # Errors
    /// Any [`Error`].
    fn commit(&mut self, batch: &Batch) -> Result<(), Error>;

    /// Whether the leader's store is still at its place. The leader calls this each second and
    /// before each commit.
    ///
    /// # Errors
    /// [`Error::Unusable`]: it was removed or replaced, and no later start would find a commit.
    fn check_place(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The name that the leader gave itself, if there is one: standbys redirect clients to it.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Unusable`].
    fn leader(&mut self) -> Result<Option<String>, Error>;

    /// Gives up the leadership: others need not wait for silence.
    fn resign(&mut self);
}

/// Keeps one leadership.
pub trait Renewal: Send {
    /// Renews the lease. To be called several times within [`MetaStore::lease_ms`], or others take
    /// over.
    ///
    /// # Errors
    /// Any [`Error`]; after [`Error::Unavailable`] it may be called again: that alone does not lose
    /// the leadership.
    fn renew(&mut self) -> Result<(), Error>;

    /// Frees unneeded data of the store, if it is time. To be called after each renewal.
    ///
    /// # Errors
    /// Any [`Error`]: nothing depends on it, and it is tried again at the next time.
    fn tidy(&mut self) -> Result<(), Error>;
}

#[derive(Default)]
struct Shared {
    contents: Contents,
    term: Term,
    leader: Option<String>,
}

/// A store in memory, shared by its clones: for tests and simulations, and as the model for the
/// others.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Mutex<Shared>>,
    name: String,
    term: Option<Term>,
}

impl Memory {
    /// An empty store, for a coordinator of that name.
    pub fn new(name: &str) -> Memory {
        Memory {
            shared: Arc::default(),
            name: name.to_owned(),
            term: None,
        }
    }

    /// The same store, for another coordinator.
    #[must_use]
    pub fn peer(&self, name: &str) -> Memory {
        Memory {
            shared: Arc::clone(&self.shared),
            name: name.to_owned(),
            term: None,
        }
    }

    /// The leader was silent for too long: the next coordinator that asks takes over.
    pub fn expire(&mut self) {
        self.with(|shared| shared.leader = None);
    }

    /// Whether this one leads.
    ///
    /// # Errors
    /// [`Error::Deposed`] if not.
    pub fn check(&mut self) -> Result<(), Error> {
        self.led(|_| ())
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Shared) -> T) -> T {
        act(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn led<T>(&mut self, act: impl FnOnce(&mut Shared) -> T) -> Result<T, Error> {
        let mine = self.term;
        self.with(|shared| (mine == Some(shared.term)).then(|| act(shared)))
            .ok_or(Error::Deposed) // M1
    }
}

impl MetaStore for Memory {
    fn acquire(&mut self) -> Result<Option<Term>, Error> {
        let name = self.name.clone();
        let term = self.with(|shared| {
            shared.leader.is_none().then(|| {
                shared.leader = Some(name);
                shared.term = Term(shared.term.0 + 1);
                shared.term
            })
        });
        if term.is_some() {
            self.term = term;
        }
        Ok(term)
    }

    fn renewal(&self) -> Option<Box<dyn Renewal>> {
        None
    }

    fn lease_ms(&self) -> u64 {
        0
    }

    fn load(&mut self) -> Result<Contents, Error> {
        self.led(|shared| shared.contents.clone())
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        self.led(|shared| {
            for (key, value) in batch.changes() {
                match value {
                    Some(value) => shared.contents.insert(key.to_vec(), value.to_vec()),
                    None => shared.contents.remove(key),
                };
            }
        })
    }

    fn leader(&mut self) -> Result<Option<String>, Error> {
        Ok(self.with(|shared| shared.leader.clone()))
    }

    fn resign(&mut self) {
        let mine = self.term.take();
        self.with(|shared| {
            if mine == Some(shared.term) {
                shared.leader = None;
                shared.term = Term(shared.term.0 + 1);
            }
        });
    }
}
