//! Tests of the server that run one after another: they set limits of the whole process, measure
//! its memory, or fork it.

#[allow(dead_code)] // the other helpers are for the tests of native clients
#[path = "../it/native/cluster.rs"]
mod cluster;
mod descriptors;
mod forks;
mod idle;
mod pubsub;
#[allow(dead_code)] // the other helpers are for the reactor's tests
#[path = "../it/reactor/support.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Each test holds it to its end.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
