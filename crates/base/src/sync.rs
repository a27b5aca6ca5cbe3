//! The synchronisation seam: the standard library's primitives, or loom's or shuttle's under a
//! model checker.
//!
//! Code whose interleavings are model-checked takes its atomics, spins and fences from here only.

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(loom)]
pub use loom::sync::{Mutex, MutexGuard};
#[cfg(all(shuttle, not(loom)))]
pub use shuttle::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(all(shuttle, not(loom)))]
pub use shuttle::sync::{Mutex, MutexGuard};
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::{Mutex, MutexGuard};

/// Locks that are held over many steps of their holder, so that shuttle must control them; loom's
/// scenarios have one thread there.
pub mod coarse {
    #[cfg(all(shuttle, not(loom)))]
    pub use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    #[cfg(not(all(shuttle, not(loom))))]
    pub use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
}

/// Waiting for another thread's short critical section: spins, then yields the core.
///
/// The holder may have been descheduled (this machine may have fewer cores than busy threads), so a
/// waiter that only spins could waste a whole time slice.
#[derive(Default)]
pub struct Backoff {
    rounds: u32,
}

impl Backoff {
    /// Pauses of the spinning phase: about a microsecond, longer than any bucket lock is held.
    #[cfg(not(any(loom, shuttle)))]
    const SPINS: u32 = 64;

    pub fn new() -> Backoff {
        Backoff::default()
    }

    #[inline]
    pub fn wait(&mut self) {
        self.rounds += 1;
        #[cfg(any(loom, shuttle))]
        yield_now();
        #[cfg(not(any(loom, shuttle)))]
        if self.rounds < Self::SPINS {
            std::hint::spin_loop();
        } else {
            yield_now();
        }
    }
}

/// Yields the core.
#[cfg(loom)]
pub fn yield_now() {
    loom::thread::yield_now();
}
/// Yields the core.
#[cfg(all(shuttle, not(loom)))]
pub fn yield_now() {
    shuttle::thread::yield_now();
}
/// Yields the core.
#[cfg(not(any(loom, shuttle)))]
pub fn yield_now() {
    std::thread::yield_now();
}

/// A value alone on its cache lines (two of them: the adjacent-line prefetcher pairs lines).
#[derive(Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);
