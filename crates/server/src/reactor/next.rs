//! The next step of a connection that was taken out of its slot.

use super::receive::Source;

pub(super) enum Next {
    /// It goes back into its slot: nothing about it has changed.
    Rest,
    /// As `Rest`, but nothing more is received from it now, and epoll does not report it.
    Mute,
    /// Its requests are parsed.
    Parse(Source),
    /// Its replies are sent.
    Send,
    /// It goes back into its slot, unless it has ended.
    Settle,
    /// It is closed.
    Close,
}
