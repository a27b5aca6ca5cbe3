//! Tests of rings in shared memory.

#[cfg(loom)]
mod loom;
#[cfg(not(any(loom, shuttle)))]
mod rings;
