//! The result of work that runs on a thread of its own, for those who wait for it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The end of work on a thread of its own: a stop that waits until all data is on disk, a rewrite
/// of the configuration file.
#[derive(Debug, Default)]
pub struct Finish {
    /// The result; `None` while the work is being done.
    result: Mutex<Option<Result<(), String>>>,
}

impl Finish {
    /// None while the work is being done; an error gives the reason why it failed.
    pub fn result(&self) -> Option<Result<(), String>> {
        self.lock().clone()
    }

    pub fn end(&self, result: Result<(), String>) {
        *self.lock() = Some(result);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<(), String>>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
