//! Results of operations, owned by the caller.

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
    /// The condition did not hold: `current` is the existing version, or `None` if there is none.
    ConditionFailed { current: Option<u64> },
}

impl Outcome {
    /// Makes an outcome of the decoded one; `Err` if that is a problem.
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
