//! Tests of the server through real sockets.

mod admin;
mod differential;
mod member;
mod native;
mod reactor;
