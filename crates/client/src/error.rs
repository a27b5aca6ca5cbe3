//! Why a call did not do what it was asked.

use std::time::Duration;

/// See each variant for what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The cluster could not do it in time. Nothing was changed. Try again later, or allow more
    /// time.
    #[error("not done within {deadline:?}: {last}")]
    Deadline { deadline: Duration, last: String },
    /// As [`Error::Deadline`], but the request was sent, and no answer came: it may have taken
    /// effect, or still take effect. Read the key before you write it again.
    #[error("no answer within {deadline:?}, it may have taken effect: {last}")]
    OutcomeUnknown { deadline: Duration, last: String },
    /// Create it, or look at its name.
    #[error("there is no table `{0}`")]
    NoSuchTable(String),
    /// Create it: over how many servers is for a person to say.
    #[error(
        "the table `{0}` has no tablets, so no server has its keys: create them with `duramen table create {0}` or `Client::create_table`. (Redis clients of a cluster use the table `db0`)"
    )]
    NoTablets(String),
    #[error("the value is not a number")]
    NotANumber,
    #[error("the result would be beyond the range of numbers")]
    Overflow,
    /// Split it.
    #[error("{what} of {bytes} bytes is longer than the limit of {limit}")]
    TooLarge {
        what: &'static str,
        bytes: usize,
        limit: usize,
    },
    /// Delete something, or add memory, disks or servers.
    #[error("full: {0}")]
    Full(String),
    /// A server or the coordinator says that it can't be done, and trying again does not help.
    #[error("refused: {0}")]
    Refused(String),
    /// The other side does not keep to the protocol: update the older of both programs, or look who
    /// listens there.
    #[error("{address}: {reason}")]
    Protocol { address: String, reason: String },
    /// Look at the options.
    #[error("options: {0}")]
    Options(String),
}
