//! Results of operations, owned by the caller.

use crate::core::Settled;
use crate::error::Error;
use duramen_base::ids::TableId;
use duramen_wire::native::message::{self as wire, Amount};

/// An object as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub value: Vec<u8>,
    /// Grows with each write of the key, across removals too.
    pub version: u64,
    /// Milliseconds since the Unix epoch; `None` = never.
    pub expires_at_ms: Option<u64>,
}

/// Result of one operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Result of a read.
    Value(Object),
    /// Result of a read or removal: there is no such object.
    Absent,
    /// Result of a write.
    Written { version: u64 },
    /// Result of a removal: this version was removed.
    Removed { version: u64 },
    /// Result of an increment.
    Number { value: Amount, version: u64 },
    /// The existing version; `None`: absent.
    ConditionFailed { current: Option<u64> },
}

impl Outcome {
    /// `Err`: the outcome is a problem.
    pub(crate) fn of(outcome: wire::Outcome<'_>) -> Result<Outcome, wire::Problem<'_>> {
        Ok(match outcome {
            wire::Outcome::Value {
                version,
                expires_at_ms,
                value,
            } => Outcome::Value(Object {
                value: value.to_vec(),
                version,
                expires_at_ms,
            }),
            wire::Outcome::Absent => Outcome::Absent,
            wire::Outcome::Written { version } => Outcome::Written { version },
            wire::Outcome::Removed { version } => Outcome::Removed { version },
            wire::Outcome::Number { value, version } => Outcome::Number { value, version },
            wire::Outcome::ConditionFailed { current } => Outcome::ConditionFailed { current },
            wire::Outcome::Problem(problem) => return Err(problem),
        })
    }
}

/// Results of operations, in the form that their caller expects.
impl Settled {
    pub(crate) fn into_outcome(self) -> Result<Outcome, Error> {
        match self {
            Settled::Outcome(outcome) => Ok(outcome),
            _ => Err(misfit()),
        }
    }

    /// Of a read.
    pub(crate) fn into_object(self) -> Result<Option<Object>, Error> {
        match self.into_outcome()? {
            Outcome::Value(object) => Ok(Some(object)),
            Outcome::Absent => Ok(None),
            _ => Err(misfit()),
        }
    }

    /// Of an unconditional write: the new version.
    pub(crate) fn into_version(self) -> Result<u64, Error> {
        match self.into_outcome()? {
            Outcome::Written { version } => Ok(version),
            _ => Err(misfit()),
        }
    }

    /// Of an unconditional removal: the removed version.
    pub(crate) fn into_removed(self) -> Result<Option<u64>, Error> {
        match self.into_outcome()? {
            Outcome::Removed { version } => Ok(Some(version)),
            Outcome::Absent => Ok(None),
            _ => Err(misfit()),
        }
    }

    /// Of an increment by a whole number: the sum.
    pub(crate) fn into_integer(self) -> Result<i64, Error> {
        match self.into_outcome()? {
            Outcome::Number {
                value: Amount::Integer(sum),
                ..
            } => Ok(sum),
            _ => Err(misfit()),
        }
    }

    /// Of an increment by a floating point number: the sum.
    pub(crate) fn into_float(self) -> Result<f64, Error> {
        match self.into_outcome()? {
            Outcome::Number {
                value: Amount::Float(sum),
                ..
            } => Ok(sum),
            _ => Err(misfit()),
        }
    }

    pub(crate) fn into_table(self) -> Result<TableId, Error> {
        match self {
            Settled::Table(table) => Ok(table),
            _ => Err(misfit()),
        }
    }
}

fn misfit() -> Error {
    Error::Refused("the server's answer does not fit the request".to_owned())
}
