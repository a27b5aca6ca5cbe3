//! Tests of the program `duramen` as a process.

mod client;
mod client_tls;
mod cluster;
mod documents;
mod kill;
mod mount;
mod server;
