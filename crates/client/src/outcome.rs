//! What becomes of operations, owned by the caller.

use duramen_wire::native::message::{self as wire, Amount};

/// An object, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub value: Vec<u8>,
    /// Grows with each write of the key, across removals too.
    pub version: u64,
    /// Milliseconds since the Unix epoch; `None` = never.
    pub expires_at_ms: Option<u64>,
}

/// What became of one operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Of a read.
    Value(Object),
    /// Of a read or removal: there is no such object.
    Absent,
    /// Of a write.
    Written { version: u64 },
    /// Of a removal: this version is gone.
    Removed { version: u64 },
    /// Of an increment.
    Number { value: Amount, version: u64 },
    /// The version that is there; `None`: absent.
    ConditionFailed { current: Option<u64> },
}

impl Outcome {
    /// `Err`: it is a problem.
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
