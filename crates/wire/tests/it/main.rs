//! Tests of the wire protocols.

mod native;
mod replies;
mod requests;
