//! Interleavings of the parts that all crates share.

#[cfg(loom)]
mod loom;
