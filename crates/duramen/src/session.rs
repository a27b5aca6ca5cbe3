//! The embedded API: blocking calls that return when their effect is as durable as their table asks for.

use crate::{Error, Store};
use duramen_engine::TableId;
use std::sync::Arc;

/// One thread's way into the store.
pub struct Session {
    store: Arc<Store>,
    engine: duramen_engine::Session,
}

impl Session {
    pub(crate) fn new(store: Arc<Store>) -> Result<Session, Error> {
        let engine = store.engine().session()?;
        Ok(Session { store, engine })
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The value of a key, `None` if absent. Never shows what could still vanish.
    ///
    /// # Errors
    /// [`Error::Engine`]; as [`LogWriter::wait`](crate::LogWriter::wait).
    pub fn get(&mut self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let guard = self.engine.pin();
        let hash = guard.hash(key);
        let object = guard.read(table, hash, key)?;
        Ok(object.map(|object| object.value.to_vec()))
    }
}
