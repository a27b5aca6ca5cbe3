//! Redis's commands over the engine, and what the threads of a server share: store, users,
//! channels, scripts, counters.
//!
//! An [`exec::Executor`] runs the requests of one thread's connections; the thread itself, its
//! sockets and its epoll instance are in the crate above. Threads send each other messages through
//! mailboxes ([`shared`]).

// The print macros of the standard library panic where they cannot print.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod audit;
pub mod durability;
pub mod exec;
pub mod footprint;
pub mod pace;
pub mod shared;
pub mod tier;
