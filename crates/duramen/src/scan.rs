//! A walk over a table.

use crate::{Error, Session, Table, Value};

/// Objects of the first step, and of the largest.
const OBJECTS_FIRST: usize = 64;
const OBJECTS_MAX: usize = 1024;
/// Target size of a step, in bytes.
const STEP_BYTES: usize = 1 << 20;

/// A walk over all objects of a table: keys and values, in no order of keys. Made by
/// [`Session::scan`].
///
/// An object that exists from the beginning of the walk to its end is shown, whatever is written
/// meanwhile; an object that is written or removed meanwhile may be shown or not. A shown value was
/// the object's value at some moment during the walk, and has reached the level of its table. The
/// walk as a whole does not show one moment; for that take a [`snapshot`](crate::Store::snapshot),
/// or name the keys in a [`transaction`](Session::transaction).
///
/// It copies some objects at a time, about 1 MiB, and holds nothing in the store between two steps,
/// so it may take any time, and other sessions of the same thread may be used.
///
/// ```
/// use duramen::{Options, Store, Table};
///
/// # let store = Store::open(Options::memory(64 << 20))?;
/// # let (mut session, mut other) = (store.session()?, store.session()?);
/// # session.set_many(Table::DEFAULT, &[("user:1", "a"), ("user:2", "b"), ("job:1", "c")])?;
/// // Removes all jobs: one session walks, the other removes.
/// for object in session.scan(Table::DEFAULT) {
///     let (key, _value) = object?;
///     if key.starts_with(b"job:") {
///         other.remove(Table::DEFAULT, key)?;
///     }
/// }
/// assert_eq!(store.count(Table::DEFAULT), 2);
/// # Ok::<(), duramen::Error>(())
/// ```
pub struct Scan<'s> {
    session: &'s mut Session,
    table: Table,
    /// The beginning of the next step; `None`: there is none.
    next: Option<u64>,
    shown: std::vec::IntoIter<(Vec<u8>, Value)>,
    /// Objects of the next step.
    objects: usize,
}

impl Session {
    /// Walks over a table, in no order of keys: [`Scan`] describes the guarantees. Hashes, lists,
    /// sets and sorted sets are left out: [`get`](Session::get) cannot read them either.
    ///
    /// ```
    /// # use duramen::{Options, Store, Table};
    /// # let store = Store::open(Options::memory(64 << 20))?;
    /// # let mut session = store.session()?;
    /// session.set_many(Table::DEFAULT, &[("a", "1"), ("b", "22")])?;
    /// let mut bytes = 0;
    /// for object in session.scan(Table::DEFAULT) {
    ///     let (_key, value) = object?;
    ///     bytes += value.len();
    /// }
    /// assert_eq!(bytes, 3);
    /// # Ok::<(), duramen::Error>(())
    /// ```
    pub fn scan(&mut self, table: Table) -> Scan<'_> {
        Scan::new(self, table)
    }
}

impl<'s> Scan<'s> {
    pub(crate) fn new(session: &'s mut Session, table: Table) -> Scan<'s> {
        Scan {
            session,
            table,
            next: Some(0),
            shown: Vec::new().into_iter(),
            objects: OBJECTS_FIRST,
        }
    }

    fn step(&mut self, cursor: u64) -> Result<(), Error> {
        let (table, most) = (self.table, self.objects);
        let mut bytes = 0;
        let mut found = Vec::new();
        let next = self.session.run(|guard| {
            guard.walk().scan(table, cursor, most, |object| {
                if let Ok(value) = Value::of(object) {
                    bytes += object.key.len() + value.len();
                    found.push((object.key.to_vec(), value));
                }
            })
        })?;
        self.next = (next != 0).then_some(next);
        if bytes > 0 {
            let average = bytes.div_ceil(found.len());
            self.objects = (STEP_BYTES / average).clamp(1, OBJECTS_MAX);
        }
        self.shown = found.into_iter();
        Ok(())
    }
}

impl Iterator for Scan<'_> {
    /// Key and value. After an error the walk ends.
    type Item = Result<(Vec<u8>, Value), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(object) = self.shown.next() {
                return Some(Ok(object));
            }
            let cursor = self.next.take()?;
            if let Err(error) = self.step(cursor) {
                return Some(Err(error));
            }
        }
    }
}
