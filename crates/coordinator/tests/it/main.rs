//! Tests of the coordinator with real sockets.

mod process;
