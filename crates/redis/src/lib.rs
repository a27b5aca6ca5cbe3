//! Redis's commands over the engine, and what the threads of a server share: store, users,
//! channels, scripts, counters.
//!
//! An [`executor::Executor`] runs the requests of one thread's connections; the thread itself, its
//! sockets and its epoll instance are in the crate above. Threads send each other messages through
//! mailboxes ([`threads`]).

// The print macros of the standard library panic where they cannot print.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod access;
pub mod blocking;
pub mod command;
pub mod connection;
pub mod durability;
pub mod executor;
pub mod figures;
pub mod flash;
pub mod keyspace;
pub mod membership;
pub mod monitor;
pub mod operation;
pub mod pubsub;
pub mod reply;
pub mod script;
mod start;
pub mod state;
pub mod table;
pub mod threads;
pub mod tracking;
pub mod transaction;
pub mod values;
