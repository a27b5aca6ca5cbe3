//! Tests of collections and streams.

mod properties;
mod streams;
