//! Objects that expire.

use crate::{Error, Session, Table};
use duramen_engine::{Decision, Object};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    /// A time; if it is in the past, the object is removed.
    At(SystemTime),
}

impl Expiry {
    /// In milliseconds since the Unix epoch. `found`: the expiry of the existing object.
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

impl Session {
    /// Makes a key expire after some time; returns whether it exists.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # use std::time::Duration;
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "cart", "3 apples")?;
    /// assert!(session.expire(Table::DEFAULT, "cart", Duration::from_secs(3600))?);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`set`](Session::set). It also works in a full store.
    pub fn expire(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        time: Duration,
    ) -> Result<bool, Error> {
        self.set_expiry(table, key.as_ref(), time.into())
    }

    /// Makes a key expire at a time, or now if that is in the past; returns whether it exists.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # use std::time::SystemTime;
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "old", "value")?;
    /// session.expire_at(Table::DEFAULT, "old", SystemTime::UNIX_EPOCH)?;
    /// assert!(!session.exists(Table::DEFAULT, "old")?);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`expire`](Session::expire).
    pub fn expire_at(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        time: SystemTime,
    ) -> Result<bool, Error> {
        self.set_expiry(table, key.as_ref(), time.into())
    }

    /// Removes the expiry of a key; returns whether it had one.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table, Ttl};
    /// # use std::time::Duration;
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set_for(Table::DEFAULT, "key", "value", Duration::from_secs(60))?;
    /// assert!(session.persist(Table::DEFAULT, "key")?);
    /// assert_eq!(session.ttl(Table::DEFAULT, "key")?, Ttl::Never);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`expire`](Session::expire).
    pub fn persist(&mut self, table: Table, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.set_expiry(table, key.as_ref(), Expiry::Never)
    }

    /// The time that a key has left.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table, Ttl};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// assert_eq!(session.ttl(Table::DEFAULT, "absent")?, Ttl::Absent);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Session::get).
    pub fn ttl(&mut self, table: Table, key: impl AsRef<[u8]>) -> Result<Ttl, Error> {
        let key = key.as_ref();
        self.run(|guard| {
            let object = guard.read(table, guard.hash(key), key)?;
            Ok(Ttl::of(object, guard.now_ms()))
        })
    }

    /// Returns whether there was anything to change.
    fn set_expiry(&mut self, table: Table, key: &[u8], expiry: Expiry) -> Result<bool, Error> {
        self.run(|guard| {
            let (hash, now_ms) = (guard.hash(key), guard.now_ms());
            guard.rewrites(true);
            let mut changes = false;
            guard.update(table, hash, key, |found, scratch| {
                let persists = expiry == Expiry::Never;
                let object = found.filter(|object| !persists || object.expires_at_ms.is_some());
                changes = object.is_some();
                let Some(object) = object else {
                    return Decision::Keep;
                };
                scratch.extend_from_slice(object.value);
                Decision::PutScratch {
                    expires_at_ms: expiry.at_ms(now_ms, object.expires_at_ms),
                }
            })?;
            Ok(changes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::time_of;

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
