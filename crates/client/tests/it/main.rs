//! Tests of the client library: its decisions, and whole clients against a simulated cluster.

mod cluster;
mod core;
