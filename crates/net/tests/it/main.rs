//! Tests of hubs with real sockets.

mod hub;
