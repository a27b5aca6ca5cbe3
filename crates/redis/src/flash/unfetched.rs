//! Entries on flash that a request needs, and those that it cannot get.

use duramen_engine::flash::Cold;

/// Reason why an entry was not fetched.
#[derive(Clone, Debug)]
pub enum Unfetched {
    Unreadable(Box<str>),
    /// The entries are too large to be fetched at once (cold::C3).
    TooMuch(Box<str>),
}

pub fn bytes_of(wanted: &[Cold]) -> usize {
    wanted.iter().map(|cold| cold.span().1).sum()
}
