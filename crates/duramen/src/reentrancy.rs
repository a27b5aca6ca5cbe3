//! Detects whether this thread is inside a caller's closure that runs under a guard or with keys
//! locked. An operation on the same store would then wait for its own thread, so it is refused.
//! So is one in a forked process, where it would wait for threads that do not exist (closing::E6).

use crate::Error;
use duramen_engine::Store;
use std::cell::RefCell;

thread_local! {
    /// Addresses of the stores whose closures this thread runs.
    static STORES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The thread is inside a closure until this is dropped.
pub(crate) struct ReentrancyGuard;

/// Enters a closure. A destructor of another thread-local may do so when the list is gone already:
/// then nested calls are not detected.
pub(crate) fn enter(store: &Store) -> ReentrancyGuard {
    let _ = STORES.try_with(|stores| stores.borrow_mut().push(address(store)));
    ReentrancyGuard
}

/// # Errors
/// [`Error::Nested`]: this thread is in a closure of this store. [`Error::Closed`]: the process was
/// forked since.
pub(crate) fn check(store: &Store) -> Result<(), Error> {
    if store.is_inherited() {
        return Err(Error::Closed);
    }
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
        let _ = STORES.try_with(|stores| stores.borrow_mut().pop());
    }
}
