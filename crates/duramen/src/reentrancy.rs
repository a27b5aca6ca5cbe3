//! Detects whether this thread is inside a caller's closure that runs under a guard or with keys
//! locked. An operation on the same store would then wait for its own thread, so it is refused.

use crate::Error;
use duramen_engine::Store;
use std::cell::RefCell;

thread_local! {
    /// Addresses of the stores whose closures this thread runs.
    static STORES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The thread is inside a closure until this is dropped.
pub(crate) struct ReentrancyGuard;

/// Enters a closure.
pub(crate) fn enter(store: &Store) -> ReentrancyGuard {
    STORES.with_borrow_mut(|stores| stores.push(address(store)));
    ReentrancyGuard
}

/// # Errors
/// [`Error::Nested`]: this thread is in a closure of this store.
pub(crate) fn check(store: &Store) -> Result<(), Error> {
    // An ending thread may have no such list any more: then it is in no closure.
    let is_inside = STORES.try_with(|stores| stores.borrow().contains(&address(store)));
    match is_inside {
        Ok(true) => Err(Error::Nested),
        _ => Ok(()),
    }
}

fn address(store: &Store) -> usize {
    std::ptr::from_ref(store).addr()
}

impl Drop for ReentrancyGuard {
    fn drop(&mut self) {
        STORES.with_borrow_mut(|stores| stores.pop());
    }
}
