//! Tests of the program `duramen` as a process.

mod client;
mod cluster;
mod documents;
mod kill;
mod server;
