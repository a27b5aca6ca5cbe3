//! How a command ends ([`Done`]), and how the request that runs it ends ([`Outcome`]).

use crate::state::db::DROPPED;
use duramen_engine::Error;
use duramen_engine::flash::Cold;

/// How a request ended.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The reply is in the output.
    Replied,
    /// The reply is an error, or there is no reply and the client's connection is closed.
    Failed,
    /// Nothing was done: the request waits for elements. Its places are in the client's `KeyWait`.
    Blocked,
    /// Nothing was done: entries on flash must be fetched first. They are in the client's
    /// `Parking`.
    Cold,
    /// Nothing was done. With `alone` the request runs again at once, exclusive in the store; else
    /// it is shown again at the time in the turn's `Ending`.
    Retry { alone: bool },
    /// One part is done: others run before the next.
    Yield,
}

impl Outcome {
    /// Whether the request has run, and is not presented again.
    #[inline]
    pub(crate) fn has_ended(self) -> bool {
        matches!(self, Outcome::Replied | Outcome::Failed)
    }

    /// Whether the request is presented again, with the requests behind it, in a later round.
    #[inline]
    pub(crate) fn is_shown_again(self) -> bool {
        !self.has_ended() && self != Outcome::Retry { alone: true }
    }
}

/// Result of a command: its reply is in `out`, or the failure becomes the reply.
pub(crate) type Done = Result<(), Failure>;

/// Reason why a command was not executed; the text after `-` of its reply.
#[derive(Debug)]
pub(crate) enum Failure {
    Text(&'static str),
    Owned(Box<str>),
    Engine(Box<Error>),
    /// A string would be longer than the limit.
    TooLong,
    /// A collection would be longer than the limit, or have more elements.
    Full,
    /// The command has not ended: present the request again.
    Unfinished(Unfinished),
}

/// Why a command has not ended.
#[derive(Debug)]
pub(crate) enum Unfinished {
    /// The command had no effect, but may succeed soon: present the request again, or fail with
    /// this text.
    Moving(&'static str),
    /// The command waits for elements of keys that its client's state names: present the request
    /// again when there are some.
    Waits,
    /// The command had no effect, because there was no memory to lock its keys. If it runs
    /// exclusive in the store, it needs no locks.
    NeedsAlone,
    /// The command has done one part, and noted its progress: present the request again after the
    /// turns of the other connections.
    Yields,
    /// A script of an EXEC has failed so that nothing of the EXEC is done.
    Abandons(Box<Abandoned>),
}

pub(crate) const YIELDS: Failure = Failure::Unfinished(Unfinished::Yields);
pub(crate) const SYNTAX: Failure = Failure::Text("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: Failure =
    Failure::Text("ERR value is not an integer or out of range");
pub(crate) const NOT_A_FLOAT: Failure = Failure::Text("ERR value is not a valid float");
pub(crate) const NO_SUCH_KEY: Failure = Failure::Text("ERR no such key");

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Failure {
        Failure::Engine(Box::new(error))
    }
}

impl From<duramen::Error> for Failure {
    #[cold]
    fn from(error: duramen::Error) -> Failure {
        match error {
            duramen::Error::Engine(error) => error.into(),
            duramen::Error::NoSuchTable(table) => Error::NoSuchTable(table).into(),
            duramen::Error::OutOfMemory {
                live_bytes,
                limit_bytes,
            } => {
                let error = Error::OutOfMemory {
                    live_bytes,
                    limit_bytes,
                };
                error.into()
            }
            error @ (duramen::Error::DiskFull(_) | duramen::Error::DiskFailed(_)) => {
                format!("MISCONF {error}").into()
            }
            error => format!("ERR {error}").into(),
        }
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Failure {
        Failure::Owned(text.into_boxed_str())
    }
}

impl From<Abandoned> for Failure {
    fn from(abandoned: Abandoned) -> Failure {
        Failure::Unfinished(Unfinished::Abandons(Box::new(abandoned)))
    }
}

impl Failure {
    /// The command had no effect, because its keys are moving from one server to another.
    pub(crate) fn is_moving(&self) -> bool {
        match self {
            Failure::Unfinished(Unfinished::Moving(_)) => true,
            Failure::Engine(error) => matches!(**error, Error::TryAgain),
            _ => false,
        }
    }

    /// The command has done one part: others run first.
    pub(crate) fn yields(&self) -> bool {
        matches!(self, Failure::Unfinished(Unfinished::Yields))
    }

    /// The entry of a key is damaged.
    pub(crate) fn is_damaged(&self) -> bool {
        matches!(self, Failure::Engine(error) if matches!(**error, Error::Damaged))
    }

    /// The log has failed. In a cluster this means that this server was declared crashed, and that
    /// its life ends.
    pub(crate) fn is_disk_failed(&self) -> bool {
        matches!(self, Failure::Engine(error) if matches!(**error, Error::DiskFailed))
    }

    /// A value would be longer than the limit, or a collection would have too many elements, or the
    /// values of one step together would be longer than their limit.
    pub(crate) fn is_too_long(&self) -> bool {
        match self {
            Failure::TooLong | Failure::Full => true,
            Failure::Engine(error) => matches!(
                **error,
                Error::ValueTooLarge { .. } | Error::GroupTooLarge { .. }
            ),
            _ => false,
        }
    }

    pub(crate) fn is_out_of_memory(&self) -> bool {
        match self {
            Failure::Engine(error) => matches!(**error, Error::OutOfMemory { .. }),
            _ => false,
        }
    }

    /// The entry on flash that was needed.
    pub(crate) fn cold(&self) -> Option<Cold> {
        match self {
            Failure::Engine(error) => match **error {
                Error::Cold(cold) => Some(cold),
                _ => None,
            },
            _ => None,
        }
    }

    /// The error line's text, without `-` and line end.
    pub(crate) fn text(&self) -> String {
        match self {
            Failure::Text(text) | Failure::Unfinished(Unfinished::Moving(text)) => {
                (*text).to_string()
            }
            Failure::Owned(text) => text.to_string(),
            Failure::TooLong => {
                "ERR string exceeds maximum allowed size (proto-max-bulk-len)".to_owned()
            }
            Failure::Full => format!("ERR {}", duramen_types::Error::Full),
            Failure::Unfinished(_) => "ERR not done yet: ask again".to_string(),
            Failure::Engine(error) => match &**error {
                Error::OutOfMemory {
                    live_bytes,
                    limit_bytes,
                } => {
                    let advice = match live_bytes / 4 > limit_bytes / 5 {
                        true => "delete some, raise the budget, or use cache mode",
                        false => {
                            "no more became free in time: large values fragment it, or the disk or flash, if there is one, is slow"
                        }
                    };
                    format!(
                        "OOM command not allowed when used memory > 'maxmemory'. \
                         ({live_bytes} of {limit_bytes} bytes are live data: {advice})"
                    )
                }
                Error::ValueTooLarge { bytes, limit } => format!(
                    "ERR string exceeds maximum allowed size: value of {bytes} bytes is longer than the limit of {limit}"
                ),
                Error::GroupTooLarge { bytes, limit } => format!(
                    "ERR a command or transaction that writes {bytes} bytes is longer than the limit of {limit}: split it. The limit is an eighth of `wal-size`, of a member of a cluster 2 to 8 MiB, and of a script `script-memory`"
                ),
                error @ (Error::DiskFull | Error::DiskFailed) => format!("MISCONF {error}"),
                Error::WrongType => {
                    "WRONGTYPE Operation against a key holding the wrong kind of value".to_owned()
                }
                Error::TryAgain => format!("TRYAGAIN {error}"),
                Error::Damaged => format!("DAMAGED {error}"),
                Error::Overflow => "ERR increment or decrement would overflow".to_string(),
                Error::NoSuchTable(DROPPED) => "ERR the table of this database does not exist any more: choose another with SELECT or DURAMEN.USE".to_owned(),
                Error::NoSuchTable(table) => format!(
                    "ERR table {table} does not exist any more: choose another with SELECT or DURAMEN.USE"
                ),
                error => format!("ERR {error}"),
            },
        }
    }
}

/// Reason why a run of an EXEC on a draft is in vain.
#[derive(Debug)]
pub(crate) enum Abandoned {
    Cold(Cold),
    Moving,
    /// A script uses this database, which has no table yet.
    NeedsTable(u8),
    /// The text of the error.
    Failed(Box<str>),
}

impl Abandoned {
    /// Returns the reason if, after this failure of a command, the whole step must run again: an
    /// entry is on flash, or the keys are moving.
    pub(crate) fn of(failure: &Failure) -> Option<Abandoned> {
        match failure.cold() {
            Some(cold) => Some(Abandoned::Cold(cold)),
            None => failure.is_moving().then_some(Abandoned::Moving),
        }
    }

    /// As [`of`](Self::of), for a command of an EXEC. A value that would be too long ends the whole
    /// EXEC, and so does a write to a damaged key: the other commands may have taken the only copy
    /// of the data from elsewhere.
    pub(crate) fn of_step(failure: &Failure, writes: bool) -> Option<Abandoned> {
        let is_lost = failure.is_damaged() && writes;
        match failure.is_too_long() || is_lost {
            true => Some(Abandoned::Failed(aborted(&failure.text()).into())),
            false => Abandoned::of(failure),
        }
    }
}

/// The error of an EXEC of which nothing was done.
pub(crate) fn aborted(why: &str) -> String {
    format!("EXECABORT Transaction discarded because of: {why}")
}
