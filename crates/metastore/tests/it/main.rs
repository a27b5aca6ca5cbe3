//! Tests of the coordinator's stores.

mod conformance;
