//! The API for programs: the client and its tables.

use crate::core::{Settled, Work};
use crate::error::Error;
use crate::net::Shared;
use crate::options::Options;
use crate::outcome::{Object, Outcome};
use crate::scan::Scan;
use duramen_base::ids::{Level, TableId};
use duramen_wire::native::message::{
    Admin, AdminAnswer, Amount, Condition, CoordinatorAnswer, Expiry, Operation, TableEntry,
    ToCoordinator,
};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;

/// A client of one cluster. Cheap to clone; clones share connections and lease. Any number of
/// threads may call it at once.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// Makes a client and gets the tablet map from the cluster.
    ///
    /// # Errors
    /// No coordinator sent the map within the options' deadline, or one refused.
    pub fn connect(options: Options) -> Result<Client, Error> {
        let client = Client::new(options)?;
        client.refresh()?;
        Ok(client)
    }

    /// Makes a client that connects to no server until it is used.
    ///
    /// # Errors
    /// [`Error::Options`]; also if the certificates cannot be used.
    pub fn new(options: Options) -> Result<Client, Error> {
        options.check()?;
        let seed = RandomState::new().hash_one(0);
        Ok(Client {
            shared: Arc::new(Shared::new(options, seed)?),
        })
    }

    /// The reason why the newest connection to a server uses TCP although there is an
    /// [`Options::socket_dir`]. `None` if it uses shared memory, or if there is no such directory.
    pub fn why_not_local(&self) -> Option<String> {
        self.shared.why_not_local()
    }

    /// The table with this name.
    ///
    /// # Errors
    /// There is no such table, or no coordinator answers.
    pub fn table(&self, name: &str) -> Result<Table, Error> {
        let known = self.shared.core().routes().table(name);
        let id = match known {
            Some(id) => Some(id),
            None => {
                self.refresh()?;
                self.shared.core().routes().table(name)
            }
        };
        let id = id.ok_or_else(|| Error::NoSuchTable(name.to_owned()))?;
        Ok(self.table_with_id(id))
    }

    /// The table with this id. If it does not exist, the first operation on it fails.
    pub fn table_with_id(&self, id: TableId) -> Table {
        Table {
            shared: self.shared.clone(),
            id,
        }
    }

    /// Gets the newest tablet map.
    fn refresh(&self) -> Result<(), Error> {
        let deadline = self.shared.options.deadline;
        let since = self.shared.core().routes().version();
        let question = ToCoordinator::Map { table: None, since };
        match self.shared.ask_leader(deadline, &question)? {
            CoordinatorAnswer::Map(map) => {
                self.shared.core().learn(map);
                Ok(())
            }
            CoordinatorAnswer::MapIsCurrent => Ok(()),
            other => Err(unfit(&other)),
        }
    }

    /// Creates a table over `servers` servers.
    ///
    /// # Errors
    /// A table of that name exists, or the coordinator refuses. But if an answer was lost and an
    /// equal table exists, the call succeeds, although another client may have made that table: do
    /// not use tables as locks.
    pub fn create_table(
        &self,
        name: &str,
        servers: u32,
        level: Option<Level>,
    ) -> Result<Table, Error> {
        let create = Admin::CreateTable {
            name: name.to_owned(),
            servers,
            level,
        };
        let AdminAnswer::Table(TableEntry { table, .. }) = self.admin(create)? else {
            return Err(Error::Refused("an answer that does not fit".to_owned()));
        };
        self.refresh()?;
        Ok(self.table_with_id(table))
    }

    /// Drops a table and everything in it.
    ///
    /// # Errors
    /// There is no table of that name, or the coordinator refuses.
    pub fn drop_table(&self, name: &str) -> Result<(), Error> {
        self.admin(Admin::DropTable {
            name: name.to_owned(),
        })?;
        self.refresh()
    }

    /// Sends any other administrative request to the coordinator. If a table was to be created or
    /// dropped, and the answer was lost, the repeated request is refused: if the table is as wished
    /// then, the call succeeds.
    ///
    /// # Errors
    /// The coordinator refuses. If it does not answer, the request may have been executed.
    pub fn admin(&self, admin: Admin) -> Result<AdminAnswer, Error> {
        let deadline = self.shared.options.deadline;
        let question = ToCoordinator::Admin(admin.clone());
        match self.shared.ask_leader(deadline, &question) {
            Ok(CoordinatorAnswer::Admin(answer)) => Ok(answer),
            Ok(other) => Err(unfit(&other)),
            Err(Error::RefusedAgain(why)) => {
                let done = self.lost_answer(&admin)?;
                done.ok_or(Error::RefusedAgain(why))
            }
            Err(error) => Err(error),
        }
    }

    /// The answer to a request that was carried out, if all is as it wished.
    fn lost_answer(&self, admin: &Admin) -> Result<Option<AdminAnswer>, Error> {
        let (Admin::CreateTable { name, .. } | Admin::DropTable { name }) = admin else {
            return Ok(None);
        };
        let AdminAnswer::Overview(overview) = self.admin(Admin::Overview)? else {
            return Ok(None);
        };
        let found = overview.status.tables.iter().find(|of| of.name == *name);
        Ok(match (admin, found) {
            (Admin::DropTable { .. }, None) => Some(AdminAnswer::Done),
            (Admin::CreateTable { servers, level, .. }, Some(entry)) => {
                let share = overview.tables.iter().find(|of| of.table == entry.table);
                let tablets = share.map_or(0, |share| share.tablets);
                let is_it = entry.level == *level && tablets == u64::from(*servers);
                is_it.then(|| AdminAnswer::Table(entry.clone()))
            }
            _ => None,
        })
    }
}

fn unfit(answer: &CoordinatorAnswer) -> Error {
    Error::Refused(format!("the coordinator's answer does not fit: {answer:?}"))
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Write {
    pub condition: Condition,
    pub expiry: Expiry,
    /// The durability of the write when the call returns; `None` for the table's level.
    pub level: Option<Level>,
}

impl Write {
    pub(crate) fn operation(self, value: &[u8]) -> Operation<'_> {
        Operation::Write {
            value,
            condition: self.condition,
            expiry: self.expiry,
        }
    }
}

/// A table. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Table {
    pub(crate) shared: Arc<Shared>,
    id: TableId,
}

impl Table {
    pub fn id(&self) -> TableId {
        self.id
    }

    fn single<'a>(&self, key: &'a [u8], operation: Operation<'a>) -> Work<'a> {
        Work::on(self.id, key, operation, None)
    }

    fn many<'a, T>(
        &self,
        work: impl IntoIterator<Item = Work<'a>>,
        result: fn(Settled) -> Result<T, Error>,
    ) -> Vec<Result<T, Error>> {
        let results = self.shared.run(self.shared.batch(work));
        results.map(|settled| result(settled?)).collect()
    }

    fn one<T>(&self, work: Work<'_>, result: fn(Settled) -> Result<T, Error>) -> Result<T, Error> {
        let mut results = self.shared.run(self.shared.batch([work]));
        let settled = results.next().expect("a result of each operation");
        result(settled?)
    }

    /// The object with this key.
    ///
    /// # Errors
    /// See [`Error`]; the same for all methods below.
    pub fn get(&self, key: &[u8]) -> Result<Option<Object>, Error> {
        self.one(self.single(key, Operation::Read), Settled::into_object)
    }

    /// Writes an object; returns its version.
    ///
    /// # Errors
    /// As for [`Table::get`].
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<u64, Error> {
        let operation = Write::default().operation(value);
        self.one(self.single(key, operation), Settled::into_version)
    }

    /// Writes an object with options; returns [`Outcome::Written`] or [`Outcome::ConditionFailed`].
    ///
    /// # Errors
    /// As for [`Table::get`].
    pub fn write(&self, key: &[u8], value: &[u8], write: Write) -> Result<Outcome, Error> {
        let work = Work::on(self.id, key, write.operation(value), write.level);
        self.one(work, Settled::into_outcome)
    }

    /// Removes an object; returns the removed version, if there was one.
    ///
    /// # Errors
    /// As for [`Table::get`].
    pub fn remove(&self, key: &[u8]) -> Result<Option<u64>, Error> {
        let condition = Condition::Always;
        let work = self.single(key, Operation::Remove { condition });
        self.one(work, Settled::into_removed)
    }

    /// Removes an object if a condition holds; returns [`Outcome::Removed`], [`Outcome::Absent`] or
    /// [`Outcome::ConditionFailed`].
    ///
    /// # Errors
    /// As for [`Table::get`].
    pub fn remove_if(&self, key: &[u8], condition: Condition) -> Result<Outcome, Error> {
        let work = self.single(key, Operation::Remove { condition });
        self.one(work, Settled::into_outcome)
    }

    /// Adds to the whole number in the object's text (absent: 0); returns the sum.
    ///
    /// # Errors
    /// As for [`Table::get`]; or the value is not a whole number, or the sum is beyond the range of
    /// 64 bits.
    pub fn increment(&self, key: &[u8], by: i64) -> Result<i64, Error> {
        let by = Amount::Integer(by);
        let work = self.single(key, Operation::Increment { by });
        self.one(work, Settled::into_integer)
    }

    /// As [`Table::increment`], with floating point numbers.
    ///
    /// # Errors
    /// As for [`Table::get`]; or the value is not a number, or the sum is not finite.
    pub fn increment_float(&self, key: &[u8], by: f64) -> Result<f64, Error> {
        let by = Amount::Float(by);
        let work = self.single(key, Operation::Increment { by });
        self.one(work, Settled::into_float)
    }

    /// Several objects at once, read from all their servers in parallel. Each is read
    /// independently.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Option<Object>, Error>> {
        let reads = keys
            .iter()
            .map(|key| self.single(key.as_ref(), Operation::Read));
        self.many(reads, Settled::into_object)
    }

    /// Several writes at once, on all servers in parallel. Each takes effect independently, once,
    /// in any order.
    pub fn set_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        objects: &[(K, V)],
        write: Write,
    ) -> Vec<Result<Outcome, Error>> {
        let writes = objects.iter().map(|(key, value)| {
            let operation = write.operation(value.as_ref());
            Work::on(self.id, key.as_ref(), operation, write.level)
        });
        self.many(writes, Settled::into_outcome)
    }

    /// Several removals at once; as [`Table::set_many`].
    pub fn remove_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Outcome, Error>> {
        let condition = Condition::Always;
        let removals = keys
            .iter()
            .map(|key| self.single(key.as_ref(), Operation::Remove { condition }));
        self.many(removals, Settled::into_outcome)
    }

    /// All objects, in no particular order. An object that exists from beginning to end is returned
    /// once, even if tablets split or move and servers crash meanwhile; an object written or
    /// removed meanwhile may be returned or not.
    pub fn scan(&self) -> Scan<'_> {
        Scan::new(&self.shared, self.id)
    }
}
