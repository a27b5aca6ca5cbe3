//! Transactions of the embedded API: several keys in one atomic, durable step.
//!
//! **Invariants**
//! - X1: the closure reads under the locks of all its keys and writes nothing: its changes are
//!   buffered here, and applied on top of its reads.
//! - X2: before the first write, every entry that a write reads is in memory, and room for all
//!   writes is reserved. So the writes cannot fail, and a step is done as a whole or not at all.
//! - X3: the caller's closure never unwinds past a lock: a panic is caught, the keys are unlocked,
//!   and then the panic continues.
//! - X4: all transactions lock keys in one order (engine::transaction::T1), and a
//!   thread inside a closure does not lock others (`reentrancy`): no two transactions wait for each
//!   other.

use crate::{Error, Expiry, Session, Table, Version, reentrancy};
use duramen_base::expiry::is_expired;
use duramen_base::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use duramen_engine::{Guard, KeyHash, Object, Position, ROOM_ATTEMPTS_MAX, Room};
use std::panic::{self, AssertUnwindSafe};

/// The store inside the closure of a [`Session::transaction`].
///
/// Reads return the stored data with the transaction's own changes on top. Nothing is written
/// before the closure has returned `Ok`.
pub struct Transaction<'t> {
    store: &'t dyn Look,
    keys: &'t [Key],
    /// One entry per key; `None`: unchanged.
    changes: Vec<Option<Change>>,
    is_aborted: bool,
}

/// The operations of a guard that a transaction uses.
trait Look {
    fn read(&self, key: &Key) -> Result<Option<Object<'_>>, Error>;
    fn now_ms(&self) -> u64;
}

impl Look for Guard<'_> {
    fn read(&self, key: &Key) -> Result<Option<Object<'_>>, Error> {
        Ok(self.read(key.table, key.hash, &key.key)?)
    }

    fn now_ms(&self) -> u64 {
        self.now_ms()
    }
}

/// A key of the transaction; keys are sorted by table and key.
struct Key {
    table: Table,
    key: Vec<u8>,
    hash: KeyHash,
}

enum Change {
    Put {
        value: Vec<u8>,
        expires_at_ms: Option<u64>,
    },
    Remove,
}

/// A value, and its time of expiry, in milliseconds since the Unix epoch.
/// `Err`: the value is no plain string.
type ValueWithExpiry<'a> = (Result<&'a [u8], duramen_engine::Error>, Option<u64>);

/// Result of an attempt.
enum Attempt<T> {
    Done(Result<T, Error>),
    /// There is not enough memory yet: unlock the keys, find memory, and run the closure again.
    Again(Room),
    Panicked(Box<dyn std::any::Any + Send>),
}

impl Session {
    /// Reads and changes several keys in one step: other sessions see all of it or nothing, and so
    /// does the next start after a crash. The keys are locked while `body` runs, so no other
    /// session changes them; transactions over the same keys take turns, in any order of keys, and
    /// never wait for each other in a ring. If `body` returns `Ok`, its changes are made, all or
    /// none, and the call returns when they have reached the highest level among its tables. If
    /// `body` returns an error (its own is [`Error::Aborted`]), calls
    /// [`abort`](Transaction::abort), or panics, nothing is changed.
    ///
    /// `body` must be short, and must not wait for other threads that use the store: they may be
    /// waiting for these keys. It runs again, from the start, if memory has to be found first.
    /// Calls of the store inside of it are refused ([`Error::Nested`]).
    ///
    /// ```
    /// use duramen::{Error, Options, Store, Table};
    ///
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// let t = Table::DEFAULT;
    /// session.set(t, "alice", "100")?;
    /// let moved = session.transaction(&[(t, "alice"), (t, "bob")], |tx| {
    ///     if tx.increment(t, "alice", -30)? < 0 {
    ///         return Err(Error::Aborted); // not enough: nothing happens
    ///     }
    ///     tx.increment(t, "bob", 30)
    /// });
    /// assert_eq!(moved?, 30);
    /// let alice = session.get(t, "alice")?.expect("she has an account");
    /// assert_eq!(alice.bytes, b"70");
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// A read of several keys at one moment:
    ///
    /// ```
    /// # use duramen::{Error, Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// # let t = Table::DEFAULT;
    /// let both = session.transaction(&[(t, "a"), (t, "b")], |tx| {
    ///     Ok((tx.get(t, "a")?, tx.get(t, "b")?))
    /// })?;
    /// assert_eq!(both, (None, None));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of `body`; [`Error::TransactionTooLarge`], [`Error::OutOfMemory`],
    /// [`Error::NoSuchTable`], [`Error::KeyTooLarge`], [`Error::Closed`], [`Error::Nested`]:
    /// nothing was changed. [`Error::DiskFull`],
    /// [`Error::DiskFailed`]: all of it survives or nothing, and it is not known which.
    ///
    /// # Panics
    /// With the panic of `body`.
    pub fn transaction<T>(
        &mut self,
        keys: &[(Table, impl AsRef<[u8]>)],
        mut body: impl FnMut(&mut Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        reentrancy::check(&self.store.engine)?;
        let store = self.store.clone();
        // Before the guard: it calls the caller's code, which may call the store.
        let keys = sorted(keys)?;
        let mut guard = self.engine.pin();
        if store.gate.is_shut() {
            return Err(Error::Closed);
        }
        let keys = hashed(&guard, keys);
        let mut body = |tx: &mut Transaction<'_>| {
            let _inside = reentrancy::enter(&store.engine);
            let result = body(tx);
            if store.engine.is_inherited() {
                return Err(Error::Closed); // closing::E6
            }
            result
        };
        let attempt = run(&mut guard, &keys, &mut body);
        guard.unlock_keys();
        let position: Position = guard.order().take_position();
        drop(guard);
        let result = match attempt {
            Attempt::Done(result) => result,
            Attempt::Again(_) => unreachable!("the last attempt is done"),
            Attempt::Panicked(panic) => panic::resume_unwind(panic), // X3
        };
        self.settle(&position)?;
        result
    }
}

/// The keys in order, each once.
fn sorted(keys: &[(Table, impl AsRef<[u8]>)]) -> Result<Vec<(Table, Vec<u8>)>, Error> {
    let mut sorted = Vec::with_capacity(keys.len());
    for (table, key) in keys {
        let key = key.as_ref();
        if key.len() > KEY_BYTES_MAX {
            return Err(Error::KeyTooLarge {
                bytes: key.len(),
                limit: KEY_BYTES_MAX,
            });
        }
        sorted.push((*table, key.to_vec()));
    }
    sorted.sort_unstable();
    sorted.dedup();
    Ok(sorted)
}

fn hashed(guard: &Guard<'_>, keys: Vec<(Table, Vec<u8>)>) -> Vec<Key> {
    let keys = keys.into_iter();
    keys.map(|(table, key)| {
        let hash = guard.hash(&key);
        Key { table, key, hash }
    })
    .collect()
}

/// Attempts until there is room for the closure's writes, or until it is certain that there is
/// none.
fn run<T>(
    guard: &mut Guard<'_>,
    keys: &[Key],
    body: &mut impl FnMut(&mut Transaction<'_>) -> Result<T, Error>,
) -> Attempt<T> {
    let hashes: Vec<_> = keys.iter().map(|key| (key.table, key.hash)).collect();
    let mut room = Room::default();
    for left in (0..ROOM_ATTEMPTS_MAX).rev() {
        let attempt = match guard.lock_keys_expecting(&hashes, room) {
            Ok(()) => attempt(guard, keys, body, left == 0),
            Err(error) => Attempt::Done(Err(error.into())),
        };
        guard.unlock_keys();
        match attempt {
            Attempt::Again(wanted) => room = wanted,
            ended => return ended,
        }
    }
    unreachable!("the last attempt is done")
}

/// Runs the closure with the keys locked, then writes its changes.
fn attempt<T>(
    guard: &mut Guard<'_>,
    keys: &[Key],
    body: &mut impl FnMut(&mut Transaction<'_>) -> Result<T, Error>,
    is_last: bool,
) -> Attempt<T> {
    let mut tx = Transaction {
        store: &*guard,
        keys,
        changes: keys.iter().map(|_| None).collect(),
        is_aborted: false,
    };
    let value = match panic::catch_unwind(AssertUnwindSafe(|| body(&mut tx))) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => return Attempt::Done(Err(error)),
        Err(panic) => return Attempt::Panicked(panic),
    };
    if tx.is_aborted {
        return Attempt::Done(Ok(value));
    }
    let changes = tx.changes;
    let room = room_for(keys, &changes);
    let ready = guard
        .set_aside(room)
        .and_then(|()| fetch(guard, keys, &changes));
    match ready {
        Ok(()) => {}
        Err(duramen_engine::Error::OutOfMemory { .. })
            if guard.pin().locks().was_starved() && !is_last =>
        {
            return Attempt::Again(room);
        }
        Err(error) => return Attempt::Done(Err(error.into())),
    }
    for (key, change) in keys.iter().zip(changes) {
        let (table, hash, name) = (key.table, key.hash, &key.key[..]);
        let done = match change {
            None => continue,
            Some(Change::Put {
                value,
                expires_at_ms,
            }) => guard.write(table, hash, name, &value, expires_at_ms),
            Some(Change::Remove) => guard.remove(table, hash, name),
        };
        if let Err(error) = done {
            panic!("a change of a transaction that had room for it was refused: {error}"); // X2
        }
    }
    Attempt::Done(Ok(value))
}

fn room_for(keys: &[Key], changes: &[Option<Change>]) -> Room {
    let mut room = Room::default();
    for (key, change) in keys.iter().zip(changes) {
        match change {
            None => {}
            Some(Change::Put { value, .. }) => room.put(&key.key, value.len()),
            Some(Change::Remove) => room.remove(&key.key),
        }
    }
    room
}

/// X2: reads the entries that the writes need. From here on the step does not wait for memory, so
/// the entries stay.
fn fetch(
    guard: &Guard<'_>,
    keys: &[Key],
    changes: &[Option<Change>],
) -> Result<(), duramen_engine::Error> {
    let changed = keys
        .iter()
        .zip(changes)
        .filter(|(_, change)| change.is_some());
    changed
        .map(|(key, _)| key)
        .try_for_each(|key| guard.read(key.table, key.hash, &key.key).map(drop))
}

impl Transaction<'_> {
    /// Index of a key.
    ///
    /// # Errors
    /// [`Error::NotInTransaction`].
    fn place(&self, table: Table, key: &[u8]) -> Result<usize, Error> {
        let wanted = (table, key);
        self.keys
            .binary_search_by(|known| (known.table, &known.key[..]).cmp(&wanted))
            .map_err(|_| Error::NotInTransaction)
    }

    /// The value with the changes on top, and its time of expiry.
    fn look(&self, place: usize) -> Result<Option<ValueWithExpiry<'_>>, Error> {
        match &self.changes[place] {
            Some(Change::Remove) => Ok(None),
            Some(Change::Put {
                value,
                expires_at_ms,
            }) => Ok(Some((Ok(value), *expires_at_ms))),
            None => {
                let key = &self.keys[place];
                let object = self.store.read(key)?;
                Ok(object.map(|object| (object.string(), object.expires_at_ms)))
            }
        }
    }

    /// The value of a key with this transaction's changes so far; `None` if it is absent.
    ///
    /// ```
    /// # use duramen::{Error, Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// # let t = Table::DEFAULT;
    /// session.transaction(&[(t, "key")], |tx| {
    ///     assert_eq!(tx.get(t, "key")?, None);
    ///     tx.set(t, "key", "value")?;
    ///     assert_eq!(tx.get(t, "key")?, Some(b"value".to_vec()));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotInTransaction`], [`Error::NoSuchTable`], [`Error::WrongType`].
    pub fn get(&self, table: Table, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>, Error> {
        let place = self.place(table, key.as_ref())?;
        let value = self.look(place)?.map(|(value, _)| value).transpose()?;
        Ok(value.map(<[u8]>::to_vec))
    }

    /// Whether the key exists, with this transaction's changes so far.
    ///
    /// ```
    /// # use duramen::{Error, Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// # let t = Table::DEFAULT;
    /// let made = session.transaction(&[(t, "user:7"), (t, "mail:a@b.c")], |tx| {
    ///     if tx.exists(t, "mail:a@b.c")? {
    ///         return Ok(false);
    ///     }
    ///     tx.set(t, "user:7", "a@b.c")?;
    ///     tx.set(t, "mail:a@b.c", "7")?;
    ///     Ok(true)
    /// })?;
    /// assert!(made);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Transaction::get).
    pub fn exists(&self, table: Table, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let place = self.place(table, key.as_ref())?;
        Ok(self.look(place)?.is_some())
    }

    /// The version that the object had when the transaction began; `None` if it was absent.
    ///
    /// ```
    /// # use duramen::{Error, Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// # let t = Table::DEFAULT;
    /// let read = session.set(t, "draft", "1")?.after;
    /// session.transaction(&[(t, "draft"), (t, "final")], |tx| {
    ///     if tx.version(t, "draft")? != read {
    ///         return Err(Error::Aborted); // somebody changed it meanwhile
    ///     }
    ///     tx.set(t, "final", "1")
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Transaction::get).
    pub fn version(&self, table: Table, key: impl AsRef<[u8]>) -> Result<Option<Version>, Error> {
        let key = &self.keys[self.place(table, key.as_ref())?];
        let object = self.store.read(key)?;
        Ok(object.map(|object| Version(object.version)))
    }

    /// Stores a value without an expiry.
    ///
    /// ```
    /// # use duramen::{Error, Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// # let t = Table::DEFAULT;
    /// session.transaction(&[(t, "a"), (t, "b")], |tx| {
    ///     tx.set(t, "a", "1")?;
    ///     tx.set(t, "b", "2")
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotInTransaction`], [`Error::ValueTooLarge`].
    pub fn set(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), Error> {
        self.set_with(table, key, value, Expiry::Never)
    }

    /// Stores a value that expires: a `Duration` from now, at a `SystemTime`, or by an [`Expiry`].
    ///
    /// ```
    /// # use duramen::{Error, Expiry, Options, Store, Table};
    /// # use std::time::Duration;
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// # let t = Table::DEFAULT;
    /// session.transaction(&[(t, "token"), (t, "user")], |tx| {
    ///     tx.set_with(t, "token", "x", Duration::from_secs(60))?;
    ///     tx.set_with(t, "user", "seen", Expiry::Keep)
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`set`](Transaction::set).
    pub fn set_with(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expiry: impl Into<Expiry>,
    ) -> Result<(), Error> {
        let place = self.place(table, key.as_ref())?;
        let value = value.as_ref();
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge {
                bytes: value.len(),
                limit: VALUE_BYTES_MAX,
            });
        }
        let (expiry, now_ms) = (expiry.into(), self.store.now_ms());
        let expires_at_ms = match expiry {
            Expiry::Keep => self.look(place)?.and_then(|(_, expires)| expires),
            expiry => expiry.at_ms(now_ms, None),
        };
        if expiry.removes(expires_at_ms, now_ms) {
            self.changes[place] = Some(Change::Remove);
        } else {
            self.put(place, value.to_vec(), expires_at_ms)
        }
        Ok(())
    }

    /// Changes a key to this value. A time of expiry in the past removes the key.
    fn put(&mut self, place: usize, value: Vec<u8>, expires_at_ms: Option<u64>) {
        let is_past = expires_at_ms.is_some_and(|at_ms| is_expired(at_ms, self.store.now_ms()));
        self.changes[place] = Some(if is_past {
            Change::Remove
        } else {
            Change::Put {
                value,
                expires_at_ms,
            }
        });
    }

    /// Removes a key; returns whether it existed.
    ///
    /// ```
    /// # use duramen::{Error, Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// # let t = Table::DEFAULT;
    /// session.set(t, "from", "value")?;
    /// session.transaction(&[(t, "from"), (t, "to")], |tx| {
    ///     let value = tx.get(t, "from")?.unwrap_or_default();
    ///     tx.remove(t, "from")?;
    ///     tx.set(t, "to", value)
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Transaction::get).
    pub fn remove(&mut self, table: Table, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let place = self.place(table, key.as_ref())?;
        let was_there = self.look(place)?.is_some();
        self.changes[place] = Some(Change::Remove);
        Ok(was_there)
    }

    /// Adds to a decimal integer; an absent key counts as 0. Returns the sum. Its expiry stays.
    ///
    /// ```
    /// # use duramen::{Error, Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// # let t = Table::DEFAULT;
    /// let sum = session.transaction(&[(t, "n")], |tx| {
    ///     tx.increment(t, "n", 2)?;
    ///     tx.increment(t, "n", 3)
    /// })?;
    /// assert_eq!(sum, 5);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotAnInteger`], [`Error::Overflow`]; as [`get`](Transaction::get).
    pub fn increment(
        &mut self,
        table: Table,
        key: impl AsRef<[u8]>,
        by: i64,
    ) -> Result<i64, Error> {
        let place = self.place(table, key.as_ref())?;
        let (old, expires_at_ms) = match self.look(place)? {
            None => (0, None),
            Some((value, expires_at_ms)) => {
                let old = duramen_base::number::parse_integer(value?).ok_or(Error::NotAnInteger)?;
                (old, expires_at_ms)
            }
        };
        let sum = old.checked_add(by).ok_or(Error::Overflow)?;
        self.put(place, sum.to_string().into_bytes(), expires_at_ms);
        Ok(sum)
    }

    /// Gives the transaction up, whatever its closure returns: nothing is changed, and the
    /// closure's value is still returned. To give up with an error, return [`Error::Aborted`].
    ///
    /// ```
    /// # use duramen::{Error, Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// # let t = Table::DEFAULT;
    /// let would_be = session.transaction(&[(t, "n")], |tx| {
    ///     let sum = tx.increment(t, "n", 2)?;
    ///     tx.abort();
    ///     Ok(sum)
    /// })?;
    /// assert_eq!(would_be, 2);
    /// assert!(!session.exists(t, "n")?);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn abort(&mut self) {
        self.is_aborted = true;
    }
}
