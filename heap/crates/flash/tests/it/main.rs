//! Tests of objects on flash, over a device in memory.

mod checkpoint;
mod common;
mod failing;
mod held;
mod store;
