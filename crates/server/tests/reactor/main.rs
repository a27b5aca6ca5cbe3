//! The reactor against real sockets on loopback: cut pipelines, hostile clients, limits, stops.

mod hostile;
mod limits;
mod pipelines;
mod stop;
mod support;
