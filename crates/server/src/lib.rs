//! Reactor and commands.
