//! The embedded API: blocking calls that return when their effect is as durable as their table asks for.

use crate::{Error, Store};
use duramen_base::ids::Level;
use duramen_engine::{Condition, Guard, Incremented, Outcome, TableId};
use std::sync::Arc;

/// A value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub bytes: Vec<u8>,
    /// Object version: only grows for a key.
    pub version: u64,
    /// Milliseconds since the Unix epoch; `None` = never.
    pub expires_at_ms: Option<u64>,
}

/// One thread's way into the store. Each call is one batch of one; [`batch`](Self::batch) makes one of many.
pub struct Session {
    store: Arc<Store>,
    engine: duramen_engine::Session,
    level: Option<Level>,
}

impl Session {
    pub(crate) fn new(store: Arc<Store>) -> Result<Session, Error> {
        let engine = store.engine().session()?;
        Ok(Session {
            store,
            engine,
            level: None,
        })
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Asks for this level in all calls from now on, whatever the tables say; `None`: as the tables say.
    pub fn set_level(&mut self, level: Option<Level>) {
        self.level = level;
    }

    /// Runs operations as one batch, and returns when all they did and saw is durable. Not a transaction: others see the
    /// batch half done, unless it locks its keys ([`Guard::lock_keys`]).
    ///
    /// # Errors
    /// What `run` returns; [`Error::DiskFull`], [`Error::DiskFailed`]: whether the writes survive is then unknown.
    pub fn batch<T>(
        &mut self,
        run: impl FnOnce(&mut Guard<'_>) -> Result<T, duramen_engine::Error>,
    ) -> Result<T, Error> {
        let mut guard = self.engine.pin();
        let result = run(&mut guard);
        guard.unlock_keys();
        let position = guard.take_position();
        drop(guard);
        // What failed may have failed because of something that can still vanish.
        let level = self.level.unwrap_or(position.level());
        self.store.settle(&position, level)?;
        Ok(result?)
    }

    /// The value of a key, `None` if absent. Never shows what could still vanish.
    ///
    /// # Errors
    /// [`Error::Engine`]; as [`batch`](Self::batch).
    pub fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Value>, Error> {
        self.batch(|guard| {
            let hash = guard.hash(key);
            let object = guard.read(table, hash, key)?;
            Ok(object.map(|object| Value {
                bytes: object.value.to_vec(),
                version: object.version,
                expires_at_ms: object.expires_at_ms,
            }))
        })
    }

    /// Stores a value, for good.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn set(&mut self, table: TableId, key: &[u8], value: &[u8]) -> Result<Outcome, Error> {
        self.set_until(table, key, value, None)
    }

    /// Stores a value until `expires_at_ms`, in milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn set_until(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        expires_at_ms: Option<u64>,
    ) -> Result<Outcome, Error> {
        self.batch(|guard| {
            let hash = guard.hash(key);
            guard.write(table, hash, key, value, expires_at_ms)
        })
    }

    /// Stores a value if the condition holds.
    ///
    /// # Errors
    /// [`Error::Engine`], `ConditionFailed` among them; as [`batch`](Self::batch).
    pub fn set_if(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        condition: Condition,
    ) -> Result<Outcome, Error> {
        self.batch(|guard| {
            let hash = guard.hash(key);
            guard.conditional_write(table, hash, key, value, None, condition)
        })
    }

    /// Removes a key; whether it was there.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn remove(&mut self, table: TableId, key: &[u8]) -> Result<bool, Error> {
        let outcome = self.batch(|guard| {
            let hash = guard.hash(key);
            guard.remove(table, hash, key)
        })?;
        Ok(outcome.before.is_some())
    }

    /// Adds to a number; an absent key counts as 0.
    ///
    /// # Errors
    /// [`Error::Engine`]: not a number, overflow; as [`batch`](Self::batch).
    pub fn increment(
        &mut self,
        table: TableId,
        key: &[u8],
        by: i64,
    ) -> Result<Incremented<i64>, Error> {
        self.batch(|guard| {
            let hash = guard.hash(key);
            guard.increment(table, hash, key, by)
        })
    }
}
