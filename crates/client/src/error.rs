//! Errors of calls.

use std::time::Duration;

/// Reason why a call failed. Each variant describes the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The cluster could not execute the call in time. Nothing was changed. Try again later, or
    /// allow more time.
    #[error("not done within {deadline:?}: {last}")]
    Deadline { deadline: Duration, last: String },
    /// The cluster has to wait for something before it can execute the call, and the call may not
    /// wait that long. Nothing was changed. Remove the reason, or try again later.
    #[error("not ready within {deadline:?}: {reason}")]
    NotReady { deadline: Duration, reason: String },
    /// As [`Error::Deadline`], but the request was sent and no answer arrived: it may have taken
    /// effect, or may still do so. Read the key before you write it again.
    #[error("no answer within {deadline:?}, it may have taken effect: {last}")]
    OutcomeUnknown { deadline: Duration, last: String },
    /// Create the table, or check its name.
    #[error("there is no table `{0}`")]
    NoSuchTable(String),
    /// Create the tablets: a person must choose the number of servers.
    #[error(
        "the table `{0}` has no tablets, so no server has its keys: create them with `duramen table create {0}` or `Client::create_table`. (Redis clients of a cluster use the table `db0`)"
    )]
    NoTablets(String),
    /// Use a Redis client for this key, or replace or remove it.
    #[error("the key holds a collection or a stream: only Redis's commands on it can read it")]
    WrongType,
    #[error("the value is not a number")]
    NotANumber,
    #[error("the result would be beyond the range of numbers")]
    Overflow,
    /// Split the key or value.
    #[error("{what} of {bytes} bytes is longer than the limit of {limit}")]
    TooLarge {
        what: &'static str,
        bytes: usize,
        limit: usize,
    },
    /// Delete objects, or add memory, disks or servers.
    #[error("full: {0}")]
    Full(String),
    /// A server or the coordinator refused the request, and repeating it does not help.
    #[error("refused: {0}")]
    Refused(String),
    /// As [`Error::Refused`], but an earlier request of this call got no answer. It may have been
    /// carried out, and be the reason for this refusal.
    #[error("refused, but an earlier request without an answer may have been carried out: {0}")]
    RefusedAgain(String),
    /// The other side does not follow the protocol: update the older of both programs, or check
    /// which program listens there.
    #[error("{address}: {reason}")]
    Protocol { address: String, reason: String },
    /// The asynchronous client has ended, and the operation was not sent. Make another client.
    #[error("the client has ended: {0}")]
    Closed(&'static str),
    /// Check the options.
    #[error("options: {0}")]
    Options(String),
}
