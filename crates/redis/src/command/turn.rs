//! The state of a turn that its requests decide.

/// The reactor's next action for a connection after its requests ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    #[default]
    Open,
    /// Send the replies, then close (`QUIT`, `CLIENT KILL` of itself).
    CloseAfterReply,
    /// Close without sending another byte.
    CloseNow,
    /// Requests from `Turn::executed` on did not run. They must be presented again, not before
    /// `until_ms` (milliseconds of the server's clock) or the next `Message::Wake` (`CLIENT PAUSE`,
    /// or keys that no server serves at the moment).
    Paused { until_ms: u64 },
    /// Requests from `Turn::executed` on did not run. They must be presented again when the wanted
    /// entries on flash are fetched (`Parked::take_wanted`).
    Cold,
    /// Requests from `Turn::executed` on did not run: the first waits for elements. They must be
    /// presented again when there are some, when the client is unblocked, and when its wait ends
    /// (`Blocked::deadline_ms`).
    Blocked,
    /// As open, but requests from `Turn::executed` on are presented again when the wait is over
    /// (`WAITAOF`, `SAVE`, `CLIENT KILL`).
    Held,
}

/// The part of a turn's state that its requests decide.
#[derive(Debug, Default)]
pub(crate) struct TurnState {
    pub(crate) ending: Ending,
    /// Whether no more of its requests run in this round.
    pub(crate) halted: bool,
    /// Bytes that its requests have appended to the log.
    pub(crate) appended_bytes: u64,
    /// Patterns with which its effects will be matched, when they are released.
    pub(crate) matches: usize,
}
