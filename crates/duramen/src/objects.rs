//! Values, versions and conditions in the interface of a session.

use duramen_engine::Object;
use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The version of an object: a number that only grows for a key, across removals too, so two states
/// of a key never have the same one. At least 1. Versions of different keys are unrelated
/// [Ousterhout15 §3].
///
/// ```
/// use duramen::{Condition, Options, Store, Table};
///
/// # let store = Store::open(Options::memory(64 << 20))?;
/// # let mut session = store.session()?;
/// let first = session.set(Table::DEFAULT, "stock", "10")?.after.expect("it is there");
/// let second = session.set(Table::DEFAULT, "stock", "9")?.after.expect("it is there");
/// assert!(second > first);
/// # Ok::<(), duramen::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A value that was read. Derefs to its bytes.
///
/// ```
/// use duramen::{Options, Store, Table};
///
/// # let store = Store::open(Options::memory(64 << 20))?;
/// # let mut session = store.session()?;
/// session.set(Table::DEFAULT, "greeting", "hello")?;
/// let value = session.get(Table::DEFAULT, "greeting")?.expect("it was set");
/// assert_eq!(value.len(), 5);
/// assert_eq!(value.bytes, b"hello");
/// assert_eq!(value.expires_at, None);
/// # Ok::<(), duramen::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Value {
    /// At most [`VALUE_BYTES_MAX`](crate::VALUE_BYTES_MAX) bytes.
    pub bytes: Vec<u8>,
    pub version: Version,
    /// `None` = never. In steps of a millisecond.
    pub expires_at: Option<SystemTime>,
}

impl Value {
    pub(crate) fn of(object: Object<'_>) -> Value {
        Value {
            bytes: object.value.to_vec(),
            version: Version(object.version),
            expires_at: object.expires_at_ms.and_then(time_of),
        }
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Vec<u8> {
        value.bytes
    }
}

/// The versions of a key before and after a write.
///
/// ```
/// use duramen::{Options, Store, Table};
///
/// # let store = Store::open(Options::memory(64 << 20))?;
/// # let mut session = store.session()?;
/// let outcome = session.set(Table::DEFAULT, "a", "1")?;
/// assert!(outcome.before.is_none() && outcome.after.is_some());
/// # Ok::<(), duramen::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// `None`: the key was absent, or had expired.
    pub before: Option<Version>,
    /// `None`: the key is absent now, also if its new time of expiry is in the past.
    pub after: Option<Version>,
}

impl From<duramen_engine::Outcome> for Outcome {
    fn from(outcome: duramen_engine::Outcome) -> Outcome {
        Outcome {
            before: outcome.before.map(Version),
            after: outcome.after.map(Version),
        }
    }
}

/// The condition of a write, one of RAMCloud's reject rules [Ousterhout15 §3]. It is checked in one
/// atomic step with the write. If it does not hold, the call returns
/// [`Error::ConditionFailed`](crate::Error::ConditionFailed), with the version that was found.
///
/// ```
/// use duramen::{Condition, Error, Options, Store, Table};
///
/// # let store = Store::open(Options::memory(64 << 20))?;
/// # let mut session = store.session()?;
/// let read = session.set(Table::DEFAULT, "stock", "10")?.after.expect("it is there");
/// session.set(Table::DEFAULT, "stock", "9")?; // somebody else
/// let refused = session.set_if(Table::DEFAULT, "stock", "11", Condition::Version(read));
/// assert!(matches!(refused, Err(Error::ConditionFailed { current: Some(_) })));
/// # Ok::<(), duramen::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    Always,
    Absent,
    Present,
    /// The object is there, with exactly this version.
    Version(Version),
    /// The object is absent, or its version is lower than this one.
    NewerThan(Version),
}

impl Condition {
    pub(crate) fn holds(self, current: Option<u64>) -> bool {
        match self {
            Condition::Always => true,
            Condition::Absent => current.is_none(),
            Condition::Present => current.is_some(),
            Condition::Version(Version(wanted)) => current == Some(wanted),
            Condition::NewerThan(Version(offered)) => {
                current.is_none_or(|current| current < offered)
            }
        }
    }
}

pub(crate) fn time_of(ms: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

/// A number after an addition.
///
/// ```
/// use duramen::{Options, Store, Table};
///
/// # let store = Store::open(Options::memory(64 << 20))?;
/// # let mut session = store.session()?;
/// let counter = session.increment(Table::DEFAULT, "visits", 5)?;
/// assert_eq!(counter.value, 5);
/// # Ok::<(), duramen::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Incremented<T> {
    pub value: T,
    pub version: Version,
}

impl<T> From<duramen_engine::Incremented<T>> for Incremented<T> {
    fn from(done: duramen_engine::Incremented<T>) -> Incremented<T> {
        Incremented {
            value: done.value,
            version: Version(done.version),
        }
    }
}
