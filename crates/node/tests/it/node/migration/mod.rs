//! Tablets move between whole nodes while clients read, write and remove, over a network that
//! loses, repeats and reorders, and any participant may crash at any moment: no acknowledged write
//! is lost, and no client is shown a stale value.

mod crashes;
mod large;
mod planted;
mod scenarios;
mod world;
