//! Values, versions, conditions and expiries in the interface of a session.

use duramen_base::expiry::removes_at_once;
use duramen_engine::{Error, Object};
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
    /// # Errors
    /// [`Error::WrongType`].
    pub(crate) fn of(object: Object<'_>) -> Result<Value, Error> {
        Ok(Value {
            bytes: object.string()?.to_vec(),
            version: Version(object.version),
            expires_at: object.expires_at_ms.and_then(time_of),
        })
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

/// The time at which an object expires. In steps of a millisecond, never earlier than requested.
///
/// ```
/// use duramen::Expiry;
/// use std::time::{Duration, SystemTime};
///
/// assert_eq!(Expiry::from(Duration::from_secs(60)), Expiry::After(Duration::from_secs(60)));
/// assert!(matches!(Expiry::from(SystemTime::now()), Expiry::At(_)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiry {
    Never,
    /// The expiry of the existing object; never, if there is none.
    Keep,
    /// A duration from now. Zero: the object is removed.
    After(Duration),
    /// A time, in whose millisecond the object still exists; if it has come, the object is removed.
    At(SystemTime),
}

impl Expiry {
    /// The time of expiry in milliseconds since the Unix epoch. `found`: the expiry of the existing
    /// object.
    pub(crate) fn at_ms(self, now_ms: u64, found: Option<u64>) -> Option<u64> {
        match self {
            Expiry::Never => None,
            Expiry::Keep => found,
            Expiry::After(time) => Some(now_ms.saturating_add(ceil_ms(time))),
            Expiry::At(time) => {
                let since = time.duration_since(UNIX_EPOCH);
                Some(since.map_or(0, ceil_ms))
            }
        }
    }

    /// Whether a write with this expiry, at `at_ms`, removes the object: the expiry is a new time,
    /// and has come.
    pub(crate) fn removes(self, at_ms: Option<u64>, now_ms: u64) -> bool {
        self != Expiry::Keep && at_ms.is_some_and(|at_ms| removes_at_once(at_ms, now_ms))
    }
}

impl From<Duration> for Expiry {
    fn from(after: Duration) -> Expiry {
        Expiry::After(after)
    }
}

impl From<SystemTime> for Expiry {
    fn from(at: SystemTime) -> Expiry {
        Expiry::At(at)
    }
}

fn ceil_ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The time that an object has left.
///
/// ```
/// use duramen::{Options, Store, Table, Ttl};
/// use std::time::Duration;
///
/// # let store = Store::open(Options::memory(64 << 20))?;
/// # let mut session = store.session()?;
/// session.set_for(Table::DEFAULT, "token", "x", Duration::from_secs(60))?;
/// match session.ttl(Table::DEFAULT, "token")? {
///     Ttl::Absent => unreachable!("it was just set"),
///     Ttl::Never => unreachable!("it was given a minute"),
///     Ttl::Left(time) => assert!(time <= Duration::from_secs(60)),
/// }
/// # Ok::<(), duramen::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// There is no such object.
    Absent,
    /// It does not expire.
    Never,
    Left(Duration),
}

impl Ttl {
    pub(crate) fn of(object: Option<Object<'_>>, now_ms: u64) -> Ttl {
        match object.map(|object| object.expires_at_ms) {
            None => Ttl::Absent,
            Some(None) => Ttl::Never,
            Some(Some(at_ms)) => Ttl::Left(Duration::from_millis(at_ms.saturating_sub(now_ms))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_expires_early() {
        let after = |time| Expiry::After(time).at_ms(1000, None);
        assert_eq!(after(Duration::ZERO), Some(1000));
        assert_eq!(after(Duration::from_nanos(1)), Some(1001));
        assert_eq!(after(Duration::from_millis(5)), Some(1005));
        assert_eq!(after(Duration::MAX), Some(u64::MAX));
        let at = |time| Expiry::At(time).at_ms(1000, Some(7));
        assert_eq!(at(UNIX_EPOCH + Duration::from_nanos(1_000_001)), Some(2));
        assert_eq!(at(UNIX_EPOCH - Duration::from_secs(1)), Some(0));
        assert_eq!(Expiry::Keep.at_ms(1000, Some(7)), Some(7));
        assert_eq!(Expiry::Never.at_ms(1000, Some(7)), None);
        assert!(time_of(u64::MAX).is_some());
    }
}
