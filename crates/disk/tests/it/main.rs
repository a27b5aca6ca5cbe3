//! Tests of devices on real files.

mod many;
mod spans;
