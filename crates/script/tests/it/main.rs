//! Tests of the interpreter of scripts.

mod decoders;
mod machine;
