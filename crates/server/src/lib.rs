//! The server: thread-per-core reactor, Redis commands over the engine, admin HTTP.
//!
//! One thread per core owns its listener, its epoll instance, its connections and its engine
//! session; a request never leaves the thread that read it. Threads send each other messages
//! through mailboxes ([`shared`]).

// The print macros of the standard library panic where they cannot print.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod admin;
mod audit;
mod closing;
pub mod cluster;
pub mod durability;
pub mod exec;
mod footprint;
mod native;
mod pace;
mod reactor;
mod server;
pub mod shared;
mod tier;

pub use server::{Addresses, Server};
pub use tier::Tier;
