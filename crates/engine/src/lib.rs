//! Log-structured memory.

mod api;
mod stand_in;
mod stats;

pub use api::*;
pub use stand_in::{Guard, Session, Store};
pub use stats::*;
