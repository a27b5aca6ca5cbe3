//! Scripts and functions: interpreters, caches, libraries, commands.

pub(crate) mod cache;
pub(crate) mod calls;
pub(crate) mod commands;
mod flags;
pub(crate) mod function;
pub(crate) mod interpreters;
pub(crate) mod libraries;
pub(crate) mod outside;
pub(crate) mod place;
pub(crate) mod run;

pub use function::restore_all;
