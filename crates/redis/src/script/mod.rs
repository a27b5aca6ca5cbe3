//! Scripts and functions: their runs and commands. What is known of them is in `state::script`, and
//! those that run in `state::interpreters`.

pub(crate) mod calls;
mod cluster;
pub(crate) mod commands;
mod flags;
pub(crate) mod function;
pub(crate) mod outside;
pub(crate) mod place;
pub(crate) mod run;

pub use function::restore_all;
