//! Tests of the store of one server that run one after another: they fork the process.

mod fork;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Each test holds it to its end: a fork inherits the locks that other threads hold.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
