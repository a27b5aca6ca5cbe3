//! Calls that show and change the time at which an object expires.

use crate::{Error, Expiry, Session, Table, Ttl};
use duramen_engine::Decision;
use std::time::{Duration, SystemTime};

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

    /// Makes a key expire at a time, or removes it if that has come; returns whether it exists.
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
                let expires_at_ms = expiry.at_ms(now_ms, object.expires_at_ms);
                if expiry.removes(expires_at_ms, now_ms) {
                    return Decision::Remove;
                }
                scratch.extend_from_slice(object.value);
                object.put_scratch(expires_at_ms)
            })?;
            Ok(changes)
        })
    }
}
