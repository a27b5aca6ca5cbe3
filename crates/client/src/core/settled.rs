//! Results of the parts of a call, and the forms that callers expect.

use crate::error::Error;
use crate::outcome::{Object, Outcome};
use duramen_base::ids::{KeyRange, TableId};
use duramen_wire::native::message::Amount;

/// A piece of an enumeration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objects {
    /// The rest of the range, with the cursors from which to continue; empty if the end was
    /// reached.
    pub rest: Vec<(KeyRange, u64)>,
    /// Keys and their objects.
    pub objects: Vec<(Vec<u8>, Object)>,
}

/// Result of a part.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    Outcome(Outcome),
    Objects(Objects),
    Table(TableId),
}

impl Settled {
    pub(crate) fn into_outcome(self) -> Result<Outcome, Error> {
        match self {
            Settled::Outcome(outcome) => Ok(outcome),
            _ => Err(misfit()),
        }
    }

    /// The result of a read.
    pub(crate) fn into_object(self) -> Result<Option<Object>, Error> {
        match self.into_outcome()? {
            Outcome::Value(object) => Ok(Some(object)),
            Outcome::Absent => Ok(None),
            _ => Err(misfit()),
        }
    }

    /// The new version, after an unconditional write.
    pub(crate) fn into_version(self) -> Result<u64, Error> {
        match self.into_outcome()? {
            Outcome::Written { version } => Ok(version),
            _ => Err(misfit()),
        }
    }

    /// The removed version, after an unconditional removal.
    pub(crate) fn into_removed(self) -> Result<Option<u64>, Error> {
        match self.into_outcome()? {
            Outcome::Removed { version } => Ok(Some(version)),
            Outcome::Absent => Ok(None),
            _ => Err(misfit()),
        }
    }

    /// The sum, after an increment by a whole number.
    pub(crate) fn into_integer(self) -> Result<i64, Error> {
        match self.into_outcome()? {
            Outcome::Number {
                value: Amount::Integer(sum),
                ..
            } => Ok(sum),
            _ => Err(misfit()),
        }
    }

    /// The sum, after an increment by a floating point number.
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
