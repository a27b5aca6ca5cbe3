//! The server: thread-per-core reactor, native clients, members of a cluster, admin HTTP.
//!
//! One thread per core owns its listener, its epoll instance, its connections and its engine
//! session; a request never leaves the thread that read it. Threads send each other messages
//! through mailboxes ([`duramen_redis::threads`]).

// The print macros of the standard library panic where they cannot print.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod admin;
mod closing;
mod doors;
pub mod member;
mod native;
mod reactor;
mod server;

pub use doors::Doors;
pub use server::{Addresses, Server};
