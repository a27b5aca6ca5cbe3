//! Scripts and functions: their runs and commands. `state::script` has those that the server knows,
//! `state::interpreters` those that a thread has suspended.

pub(crate) mod calls;
pub(crate) mod cluster;
pub(crate) mod commands;
mod flags;
pub(crate) mod function;
pub(crate) mod outside;
pub(crate) mod place;
pub(crate) mod run;

pub use cluster::adopt_functions;
pub use function::restore_all;
