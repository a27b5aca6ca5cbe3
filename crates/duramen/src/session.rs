//! The embedded API: blocking calls that return when their effect has reached its level.
//!
//! **Invariants**
//! - S1: what a session wrote or read, and is not known to be synced, is behind: neither a level
//!   below nor an error makes [`Session::wait_durable`] forget it.

use crate::{
    Condition, Error, Expiry, Incremented, Outcome, Store, Table, Value, Version, reentrancy,
};
use duramen_base::ids::Level;
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_engine::{Decision, Guard, Part, Position};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The access of one thread to a [`Store`]: create one per thread with [`Store::session`], and keep
/// it. It may move to another thread, but only one thread uses it at a time; 1,024 may exist at
/// once.
///
/// Each call is one atomic step, and returns when its effect has reached the level of its table (or
/// of [`set_level`](Session::set_level)): at [`Level::Synced`], when it survives a power cut. Calls
/// of several threads share syncs, so many writers are much faster than one. A value that a read
/// returns has reached that level, too: it is never taken back.
///
/// Keys are bytes, at most [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX); values are bytes, at most
/// [`VALUE_BYTES_MAX`].
///
/// ```
/// use duramen::{Options, Store, Table};
///
/// # let dir = tempfile::tempdir()?;
/// let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
/// std::thread::scope(|scope| {
///     for n in 0..4 {
///         let store = &store;
///         scope.spawn(move || -> Result<(), duramen::Error> {
///             let mut session = store.session()?;
///             session.set(Table::DEFAULT, format!("thread {n}"), "was here")?;
///             Ok(())
///         });
///     }
/// });
/// assert_eq!(store.count(Table::DEFAULT), 4);
/// store.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    pub(crate) store: Arc<Store>,
    pub(crate) engine: duramen_engine::Session,
    level: Option<Level>,
    /// Position of its writes and reads that were not synced when their call returned (S1).
    behind: Position,
}

impl Store {
    /// A session for one thread. Cheap, but not for each call: keep it.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "key", "value")?;
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TooManySessions`], [`Error::Closed`], [`Error::Nested`].
    pub fn session(self: &Arc<Self>) -> Result<Session, Error> {
        self.gate.check(&self.engine)?;
        Session::new(self.clone())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut session = f.debug_struct("Session");
        session
            .field("store", &self.store)
            .field("level", &self.level);
        session.finish_non_exhaustive()
    }
}

/// S1: what a closure has written before a panic is waited for later.
struct Pinned<'a, 'g> {
    guard: Guard<'g>,
    behind: &'a mut Position,
}

impl Drop for Pinned<'_, '_> {
    fn drop(&mut self) {
        if self.guard.order().has_position() {
            self.behind.join(&self.guard.order().take_position());
        }
    }
}

impl Session {
    pub(crate) fn new(store: Arc<Store>) -> Result<Session, Error> {
        let engine = store.engine().session()?;
        Ok(Session {
            store,
            engine,
            level: None,
            behind: Position::default(),
        })
    }

    /// The store of this session.
    ///
    /// ```
    /// # use duramen::{Options, Store};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// let session = store.session()?;
    /// let another = session.store().session()?;
    /// # drop(another);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Makes all later calls return at this level, regardless of the tables' levels; `None`: at the
    /// tables' levels.
    ///
    /// ```
    /// use duramen::{Level, Options, Store, Table};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// # let store = Store::open(Options::new(dir.path().join("store"), 64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set_level(Some(Level::Memory))?; // a bulk load: nobody waits for the disk
    /// for n in 0..1000u32 {
    ///     session.set(Table::DEFAULT, n.to_le_bytes(), "x")?;
    /// }
    /// session.wait_durable(Level::Synced)?; // all of it is on disk now
    /// session.set_level(None)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDirectory`]: there is no level above `memory`.
    pub fn set_level(&mut self, level: Option<Level>) -> Result<(), Error> {
        self.store.check_level(level)?;
        self.level = level;
        Ok(())
    }

    /// Waits until all earlier writes and reads of this session have reached a level, those whose
    /// calls failed for the disk included. For writes of other sessions: [`Store::flush`]. In a
    /// store without a directory it returns at once. For an example see
    /// [`set_level`](Session::set_level).
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`]: the level was not reached; [`Error::Closed`],
    /// [`Error::Nested`].
    pub fn wait_durable(&mut self, level: Level) -> Result<(), Error> {
        self.store.gate.check(&self.store.engine)?;
        self.store.settle(&self.behind, level)?;
        if level == Level::Synced {
            self.behind = Position::default();
        }
        Ok(())
    }

    /// The value of a key, copied; `None` if it is absent or has expired.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// assert_eq!(session.get(Table::DEFAULT, "absent")?, None);
    /// session.set(Table::DEFAULT, "key", "value")?;
    /// let value = session.get(Table::DEFAULT, "key")?.expect("it was set");
    /// assert_eq!(value.bytes, b"value");
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongType`], [`Error::NoSuchTable`], [`Error::Closed`], [`Error::Nested`];
    /// [`Error::DiskFull`], [`Error::DiskFailed`]: the result is not durable.
    pub fn get(&mut self, table: Table, key: impl AsRef<[u8]>) -> Result<Option<Value>, Error> {
        let key = key.as_ref();
        self.run(|guard| {
            let object = guard.read(table, guard.hash(key), key)?;
            object.map(Value::of).transpose()
        })
    }

    /// Passes the value of a key to a closure, without a copy; `None` if it is absent. The closure
    /// must not call the store, and must be short: while it runs no memory is reused, so writes of
    /// other threads may wait for it.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "page", "<html>...</html>")?;
    /// let length = session.get_with(Table::DEFAULT, "page", |value| value.len())?;
    /// assert_eq!(length, Some(16));
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Session::get): the closure may have run nevertheless.
    pub fn get_with<T>(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        show: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, Error> {
        let key = key.as_ref();
        self.batch(|guard| {
            let object = guard.read(table, guard.hash(key), key)?;
            let value = object.map(|object| object.string()).transpose()?;
            Ok(value.map(show))
        })
    }

    /// The values of many keys, in their order: much faster than one after the other, because the
    /// waits for memory overlap [Ousterhout15 §3]. Each is read by itself; for a read of all at one
    /// moment see [`transaction`](Session::transaction).
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "a", "1")?;
    /// let values = session.get_many(Table::DEFAULT, &["a", "b"])?;
    /// assert!(values[0].is_some() && values[1].is_none());
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Session::get).
    pub fn get_many(
        &mut self,
        table: Table,
        keys: &[impl AsRef<[u8]>],
    ) -> Result<Vec<Option<Value>>, Error> {
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        self.run(|guard| {
            let mut values = Vec::with_capacity(keys.len());
            guard.many(table).read(&keys, |_, found| {
                values.push(found.map(Value::of).transpose());
            })?;
            values.into_iter().collect()
        })
    }

    /// Whether the key exists.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// assert!(!session.exists(Table::DEFAULT, "key")?);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Session::get).
    pub fn exists(&mut self, table: Table, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        Ok(self.version(table, key)?.is_some())
    }

    /// The version of the object, for a later [`Condition::Version`]; `None` if the key is absent.
    ///
    /// ```
    /// use duramen::Condition;
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "draft", "1")?;
    /// let version = session.version(Table::DEFAULT, "draft")?.expect("it was set");
    /// session.remove_if(Table::DEFAULT, "draft", Condition::Version(version))?;
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Session::get).
    pub fn version(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Version>, Error> {
        let key = key.as_ref();
        self.run(|guard| {
            let object = guard.read(table, guard.hash(key), key)?;
            Ok(object.map(|object| Version(object.version)))
        })
    }

    /// Stores a value without an expiry; a former expiry of the key is removed.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "key", "value")?;
    /// session.set(Table::DEFAULT, 7u64.to_be_bytes(), vec![0; 1000])?;
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::KeyTooLarge`], [`Error::ValueTooLarge`], [`Error::NoSuchTable`],
    /// [`Error::OutOfMemory`], [`Error::Closed`], [`Error::Nested`]: nothing was changed.
    /// [`Error::DiskFull`], [`Error::DiskFailed`]: it is not known whether the write survives.
    pub fn set(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<Outcome, Error> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.run(|guard| {
            let hash = guard.hash(key);
            Ok(guard.write(table, hash, key, value, None)?.into())
        })
    }

    /// Stores a value for some time.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # use std::time::Duration;
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set_for(Table::DEFAULT, "session:42", "alice", Duration::from_secs(1800))?;
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`set`](Session::set).
    pub fn set_for(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        time: Duration,
    ) -> Result<Outcome, Error> {
        self.set_with(table, key, value, time, Condition::Always)
    }

    /// Stores a value until the end of a time's millisecond; a time that has come removes the key.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # use std::time::{Duration, SystemTime};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
    /// session.set_until(Table::DEFAULT, "offer", "3 for 2", tomorrow)?;
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`set`](Session::set).
    pub fn set_until(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        time: SystemTime,
    ) -> Result<Outcome, Error> {
        self.set_with(table, key, value, time, Condition::Always)
    }

    /// Stores a value without an expiry, if the condition holds.
    ///
    /// ```
    /// use duramen::{Condition, Error};
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set_if(Table::DEFAULT, "leader", "a", Condition::Absent)?;
    /// let second = session.set_if(Table::DEFAULT, "leader", "b", Condition::Absent);
    /// assert!(matches!(second, Err(Error::ConditionFailed { .. })));
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ConditionFailed`]; as [`set`](Session::set).
    pub fn set_if(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        condition: Condition,
    ) -> Result<Outcome, Error> {
        self.set_with(table, key, value, Expiry::Never, condition)
    }

    /// Stores a value that expires, if the condition holds: [`set`](Session::set) with all options.
    /// `expiry` is a `Duration` from now, a `SystemTime`, or an [`Expiry`].
    ///
    /// ```
    /// use duramen::{Condition, Expiry};
    /// # use duramen::{Options, Store, Table};
    /// # use std::time::Duration;
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// // A lock that its owner loses after ten seconds.
    /// session.set_with(Table::DEFAULT, "lock", "me", Duration::from_secs(10), Condition::Absent)?;
    /// // Another value, the same time.
    /// session.set_with(Table::DEFAULT, "lock", "still me", Expiry::Keep, Condition::Present)?;
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ConditionFailed`]; as [`set`](Session::set).
    pub fn set_with(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: impl Into<Expiry>,
        condition: Condition,
    ) -> Result<Outcome, Error> {
        let (key, value, expiry) = (key.as_ref(), value.as_ref(), expiry.into());
        self.change_if(table, key, condition, |now_ms, found| {
            let expires_at_ms = expiry.at_ms(now_ms, found);
            if expiry.removes(expires_at_ms, now_ms) {
                Decision::Remove
            } else {
                Decision::Put {
                    value,
                    expires_at_ms,
                }
            }
        })
    }

    /// Stores many values without an expiry, with one wait for the disk. Each is an operation of
    /// its own, in this order: the first refused one ends the call, and those before it stay. For
    /// all or none see [`transaction`](Session::transaction).
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set_many(Table::DEFAULT, &[("a", "1"), ("b", "2")])?;
    /// assert_eq!(store.count(Table::DEFAULT), 2);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`set`](Session::set), of the first refused one.
    pub fn set_many(
        &mut self,
        table: Table,
        objects: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)],
    ) -> Result<(), Error> {
        let parts: Vec<Part<'_>> = objects
            .iter()
            .map(|(key, value)| Part::new(key.as_ref(), value.as_ref()))
            .collect();
        self.run(|guard| {
            let mut result = Ok(());
            let keys = parts.iter().map(|part| part.key);
            guard.many(table).each(keys, |guard, n, hash, key| {
                if result.is_ok() {
                    let written = guard.write(table, hash, key, parts[n].value, None);
                    result = written.map(drop);
                }
            })?;
            result
        })
    }

    /// Removes a key; returns whether it existed. Never fails for lack of memory.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "key", "value")?;
    /// assert!(session.remove(Table::DEFAULT, "key")?);
    /// assert!(!session.remove(Table::DEFAULT, "key")?);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchTable`], [`Error::Closed`], [`Error::Nested`], [`Error::DiskFull`],
    /// [`Error::DiskFailed`].
    pub fn remove(&mut self, table: Table, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let key = key.as_ref();
        let outcome = self.run(|guard| {
            let hash = guard.hash(key);
            guard.remove(table, hash, key)
        })?;
        Ok(outcome.before.is_some())
    }

    /// Removes a key if the condition holds.
    ///
    /// ```
    /// use duramen::{Condition, Error, Version};
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "key", "value")?;
    /// let stale = Condition::Version(Version(999));
    /// let refused = session.remove_if(Table::DEFAULT, "key", stale);
    /// assert!(matches!(refused, Err(Error::ConditionFailed { current: Some(_) })));
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ConditionFailed`]; as [`remove`](Session::remove).
    pub fn remove_if(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        condition: Condition,
    ) -> Result<Outcome, Error> {
        self.change_if(table, key.as_ref(), condition, |_, _| Decision::Remove)
    }

    /// Removes a key and returns its value: of several sessions that take the same key, one gets
    /// it.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set(Table::DEFAULT, "job", "build")?;
    /// let job = session.take(Table::DEFAULT, "job")?.expect("nobody else took it");
    /// assert_eq!(job.bytes, b"build");
    /// assert_eq!(session.take(Table::DEFAULT, "job")?, None);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`remove`](Session::remove).
    pub fn take(&mut self, table: Table, key: impl AsRef<[u8]>) -> Result<Option<Value>, Error> {
        let key = key.as_ref();
        self.run(|guard| {
            let hash = guard.hash(key);
            let mut taken = Ok(None);
            guard.update(table, hash, key, |found, _| {
                taken = found.map(Value::of).transpose();
                match taken {
                    Ok(_) => Decision::Remove,
                    Err(_) => Decision::Keep,
                }
            })?;
            taken
        })
    }

    /// Adds to a decimal integer; an absent key counts as 0. Its expiry stays.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// assert_eq!(session.increment(Table::DEFAULT, "visits", 1)?.value, 1);
    /// assert_eq!(session.increment(Table::DEFAULT, "visits", -3)?.value, -2);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotAnInteger`], [`Error::Overflow`]; as [`set`](Session::set).
    pub fn increment(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        by: i64,
    ) -> Result<Incremented<i64>, Error> {
        let key = key.as_ref();
        self.run(|guard| {
            let hash = guard.hash(key);
            Ok(guard.increment(table, hash, key, by)?.into())
        })
    }

    /// Adds to a decimal floating-point number; an absent key counts as 0. The stored value is the
    /// shortest text that reads back as the same number. Its expiry stays.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// assert_eq!(session.increment_float(Table::DEFAULT, "load", 0.5)?.value, 0.5);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotAFloat`], [`Error::NotFinite`]; as [`set`](Session::set).
    pub fn increment_float(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        by: f64,
    ) -> Result<Incremented<f64>, Error> {
        let key = key.as_ref();
        self.run(|guard| {
            let hash = guard.hash(key);
            Ok(guard.increment_float(table, hash, key, by)?.into())
        })
    }

    /// Adds bytes at the end of a value; an absent key counts as empty. Returns the new length. Its
    /// expiry stays. The whole value is written again.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.append(Table::DEFAULT, "log", "one,")?;
    /// assert_eq!(session.append(Table::DEFAULT, "log", "two,")?, 8);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`set`](Session::set).
    pub fn append(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        bytes: impl AsRef<[u8]>,
    ) -> Result<usize, Error> {
        let (key, more) = (key.as_ref(), bytes.as_ref());
        self.run(|guard| {
            let hash = guard.hash(key);
            let mut length = Ok(0);
            guard.update(table, hash, key, |found, scratch| {
                let old = found.map(|object| object.string()).transpose();
                length = old.and_then(|old| appended(old.unwrap_or_default(), more, scratch));
                match length {
                    Ok(_) => Decision::PutScratch {
                        expires_at_ms: found.and_then(|object| object.expires_at_ms),
                    },
                    Err(_) => Decision::Keep,
                }
            })?;
            length
        })
    }

    /// Runs operations of the engine as one batch, and returns when all its writes and reads are
    /// durable. Not a transaction: other sessions see the batch half done, unless it locks its keys
    /// ([`Guard::lock_keys`]).
    ///
    /// # Errors
    /// Those of `run`; [`Error::DiskFull`], [`Error::DiskFailed`]: it is then unknown whether the
    /// writes survive.
    #[doc(hidden)]
    pub fn batch<T>(
        &mut self,
        run: impl FnOnce(&mut Guard<'_>) -> Result<T, duramen_engine::Error>,
    ) -> Result<T, Error> {
        let store = self.store.clone();
        self.run(|guard| {
            let _inside = reentrancy::enter(&store.engine);
            run(guard)
        })
    }

    /// As [`batch`](Self::batch), for closures of this crate.
    pub(crate) fn run<T>(
        &mut self,
        run: impl FnOnce(&mut Guard<'_>) -> Result<T, duramen_engine::Error>,
    ) -> Result<T, Error> {
        reentrancy::check(&self.store.engine)?;
        let mut pinned = Pinned {
            guard: self.engine.pin(),
            behind: &mut self.behind,
        };
        if self.store.gate.is_shut() {
            return Err(Error::Closed);
        }
        let result = run(&mut pinned.guard);
        pinned.guard.unlock_keys();
        let position = pinned.guard.order().take_position();
        drop(pinned);
        // A refusal, too, may depend on data that a crash could lose.
        self.settle(&position)?;
        Ok(result?)
    }

    /// Makes the writes durable, or waits until the data that was read is durable.
    pub(crate) fn settle(&mut self, position: &Position) -> Result<(), Error> {
        let level = self.level.unwrap_or(position.level());
        let settled = self.store.settle(position, level);
        if (level < Level::Synced || settled.is_err()) && !position.is_none() {
            self.behind.join(position);
        }
        settled
    }

    /// A read-modify-write under a condition. `decide` gets the time, and the expiry of the
    /// existing object.
    fn change_if<'v>(
        &mut self,
        table: Table,
        key: &[u8],
        condition: Condition,
        decide: impl Fn(u64, Option<u64>) -> Decision<'v>,
    ) -> Result<Outcome, Error> {
        self.run(|guard| {
            let (hash, now_ms) = (guard.hash(key), guard.now_ms());
            let mut refused = None;
            let outcome = guard.update(table, hash, key, |found, _| {
                let current = found.map(|object| object.version);
                refused = (!condition.holds(current)).then_some(current);
                match refused {
                    Some(_) => Decision::Keep,
                    None => decide(now_ms, found.and_then(|object| object.expires_at_ms)),
                }
            })?;
            match refused {
                Some(current) => Err(duramen_engine::Error::ConditionFailed { current }),
                None => Ok(outcome.into()),
            }
        })
    }
}

/// Writes a value and the bytes that are appended to it; returns their number.
fn appended(old: &[u8], more: &[u8], out: &mut Vec<u8>) -> Result<usize, duramen_engine::Error> {
    let bytes = old.len() + more.len();
    if bytes > VALUE_BYTES_MAX {
        let limit = VALUE_BYTES_MAX;
        return Err(duramen_engine::Error::ValueTooLarge { bytes, limit });
    }
    out.extend_from_slice(old);
    out.extend_from_slice(more);
    Ok(bytes)
}
