//! The gate of a store: open until the store is closed.

use crate::{Error, reentrancy};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The gate of a store (closing::E1).
#[derive(Default)]
pub(crate) struct Gate {
    is_shut: AtomicBool,
    /// Held by the closing thread.
    closing: Mutex<()>,
}

impl Gate {
    /// Whether it is shut. The state does not change while the caller has a guard (closing::E1).
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::Acquire)
    }

    /// Checks the gate for an operation without a guard: on tables, or a snapshot. The commit of a
    /// call that comes too late refuses it.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Nested`].
    pub fn check(&self, engine: &duramen_engine::Store) -> Result<(), Error> {
        reentrancy::check(engine)?;
        if self.is_shut() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Keeps other threads from closing the store, as long as the caller has the result.
    pub fn begin(&self) -> MutexGuard<'_, ()> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shuts it, or opens it again (closing::E1).
    pub fn shut(&self, engine: &duramen_engine::Store, is_shut: bool) {
        engine.alone(|| {
            // Release pairs with Acquire in `is_shut`.
            self.is_shut.store(is_shut, Ordering::Release);
            if let Some(log) = engine.log() {
                log.closed(is_shut);
            }
        });
    }
}
