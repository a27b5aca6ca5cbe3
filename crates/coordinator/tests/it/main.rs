//! Tests of the coordinator's stores, and of the coordinator with real sockets.

mod conformance;
mod process;
