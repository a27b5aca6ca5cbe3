//! The reactor against real sockets on loopback: cut pipelines, hostile clients, limits, stops,
//! commands.

mod commands;
mod hostile;
mod limits;
mod pipelines;
mod pubsub;
mod stop;
mod support;
mod tls;
mod users;
