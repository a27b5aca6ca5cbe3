//! The one binary, `duramen`.

fn main() {}
