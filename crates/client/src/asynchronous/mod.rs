//! A client with any number of operations in flight per thread.
//!
//! ```no_run
//! use duramen_client::asynchronous::{AsyncClient, wait};
//! use duramen_client::{Error, Options};
//!
//! # fn main() -> Result<(), Error> {
//! let client = AsyncClient::new(Options::new(["127.0.0.1:7400", "127.0.0.1:7401"]))?;
//! wait(async {
//!     let table = client.table("db0").await?;
//!     // All of them are in flight at once.
//!     let visits: Vec<_> = (0..1_000)
//!         .map(|page| table.increment(format!("visits:{page}").as_bytes(), 1))
//!         .collect();
//!     for visit in visits {
//!         assert!(visit.await? > 0);
//!     }
//!     Ok(())
//! })
//! # }
//! ```
//!
//! Each operation begins when it is called, and returns a future, which belongs to no runtime: a
//! waker is all it needs. [`wait`] is for programs without a runtime.
//!
//! **Order.** Operations that are in flight at the same time are executed in any order, those of
//! one key too. Wait for one before the next is called if their order matters.
//!
//! **Dropped futures.** An operation goes on when its future is dropped: a write takes effect once,
//! or fails, and the program does not learn which. It keeps its id and its lease until it is
//! answered, so it is never executed twice (RIFL). Only an operation that still waits for room is
//! not sent any more.
//!
//! **Limits.** [`Options::in_flight_max`](crate::Options::in_flight_max) and
//! [`Options::in_flight_bytes_max`](crate::Options::in_flight_bytes_max). Beyond them an operation
//! waits, in the order of the calls, until others have ended; its deadline runs meanwhile. Its
//! bytes belong to its future: a program that awaits its futures before it makes more of them holds
//! no more than that.
//!
//! **One server.** A server that does not answer, or a tablet in recovery, delays its own
//! operations alone, until those fill the limits. Reads do not wait for writes. Writes of one
//! server that wait for different levels wait for each other.
//!
//! **Threads.** A client has one thread, named `duramen-client`, for all sockets; it ends with the
//! last handle ([`AsyncClient`] or [`AsyncTable`]). Operations in flight then end with
//! [`Error::Closed`], or with [`Error::OutcomeUnknown`] if they may have taken effect. The same
//! happens if the thread panics, and in a forked process, which must make a client of its own. A
//! host name is looked up on a thread of its own, which ends with the lookup.
//!
//! **Transports.** TCP, with or without TLS. Shared memory
//! ([`Options::socket_dir`](crate::Options::socket_dir)) is for the blocking client, whose thread
//! spins for the one answer that it needs. Here the operations pass through another thread, which
//! costs more than TCP does, and with many operations in flight one system call carries many.
//!
//! Paper: the client library of [Ousterhout15 §2], which has such operations; RIFL [Lee15 §4].

mod driver;
mod inbox;
mod lanes;
mod link;
mod pending;
mod scan;
mod work;

pub use pending::{Pending, PendingMany};
pub use scan::AsyncScan;

use crate::certificates::Certificates;
use crate::client::Write;
use crate::core::{Settled, Work};
use crate::error::Error;
use crate::options::Options;
use crate::outcome::{Object, Outcome};
use driver::Driver;
use duramen_base::ids::TableId;
use duramen_wire::native::message::{Amount, Condition, Operation};
use inbox::Inbox;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use work::OwnedWork;

/// Ends the client when its last handle is dropped.
#[derive(Debug)]
struct Handle {
    inbox: Arc<Inbox>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.close("its last handle was dropped");
    }
}

impl Handle {
    fn call<T>(&self, work: Work<'_>, finish: fn(Settled) -> Result<T, Error>) -> Pending<T> {
        let taken = self.inbox.call_one(OwnedWork::of(work));
        Pending::new(self.inbox.clone(), taken, work.mutates(), finish)
    }

    fn call_many<'a, T>(
        &self,
        works: impl Iterator<Item = Work<'a>>,
        finish: fn(Settled) -> Result<T, Error>,
    ) -> PendingMany<T> {
        let mut mutate = false;
        let works = works.map(|work| {
            mutate |= work.mutates();
            OwnedWork::of(work)
        });
        let taken = self.inbox.call(works).into_iter();
        let pending = taken.map(|taken| Pending::new(self.inbox.clone(), taken, mutate, finish));
        PendingMany::new(pending)
    }
}

/// An asynchronous client of one cluster. Cheap to clone; clones share a thread, connections and
/// leases.
#[derive(Clone, Debug)]
pub struct AsyncClient {
    handle: Arc<Handle>,
}

impl AsyncClient {
    /// Makes a client that connects to no server until it is used.
    ///
    /// # Errors
    /// [`Error::Options`], also if the certificates cannot be used; [`Error::Closed`] if the system
    /// gives no thread or descriptor.
    pub fn new(options: Options) -> Result<AsyncClient, Error> {
        options.check()?;
        let seed = RandomState::new().hash_one(0);
        let lacks = |_| Error::Closed("the system gave no thread or descriptor");
        let inbox = Arc::new(Inbox::new(&options).map_err(lacks)?);
        let certificates = Certificates::load(options.tls.as_ref())?;
        let driver = Driver::new(options, certificates, inbox.clone(), seed).map_err(lacks)?;
        let handle = Arc::new(Handle {
            inbox: inbox.clone(),
        });
        let run = move || {
            // A panic ends the operations by dropping them (pending::P1).
            let ended = catch_unwind(AssertUnwindSafe(|| driver.run()));
            inbox.close(match ended {
                Ok(()) => "its thread has ended",
                Err(_) => "its thread has panicked",
            });
        };
        let thread = std::thread::Builder::new().name("duramen-client".to_owned());
        thread.spawn(run).map_err(lacks)?;
        Ok(AsyncClient { handle })
    }

    /// The id of the table with this name; see [`AsyncClient::table_with_id`].
    ///
    /// # Errors
    /// There is no such table, or no coordinator answers.
    pub async fn table(&self, name: &str) -> Result<AsyncTable, Error> {
        let id = self.handle.call(Work::Table(name), Settled::into_table);
        Ok(self.table_with_id(id.await?))
    }

    /// The table with this id. If it does not exist, the first operation on it fails. A
    /// [`Client`](crate::Client) makes and drops tables.
    pub fn table_with_id(&self, id: TableId) -> AsyncTable {
        AsyncTable {
            handle: self.handle.clone(),
            id,
        }
    }
}

/// A table. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AsyncTable {
    handle: Arc<Handle>,
    id: TableId,
}

/// The operations of [`Table`](crate::Table), with the same results and errors.
impl AsyncTable {
    pub fn id(&self) -> TableId {
        self.id
    }

    fn work<'a>(&self, key: &'a [u8], operation: Operation<'a>) -> Work<'a> {
        Work::on(self.id, key, operation, None)
    }

    /// The object with this key.
    pub fn get(&self, key: &[u8]) -> Pending<Option<Object>> {
        let work = self.work(key, Operation::Read);
        self.handle.call(work, Settled::into_object)
    }

    /// Writes an object; returns its version.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Pending<u64> {
        let work = self.work(key, Write::default().operation(value));
        self.handle.call(work, Settled::into_version)
    }

    /// Writes an object with options; returns [`Outcome::Written`] or [`Outcome::ConditionFailed`].
    pub fn write(&self, key: &[u8], value: &[u8], write: Write) -> Pending<Outcome> {
        let work = Work::on(self.id, key, write.operation(value), write.level);
        self.handle.call(work, Settled::into_outcome)
    }

    /// Removes an object; returns the removed version, if there was one.
    pub fn remove(&self, key: &[u8]) -> Pending<Option<u64>> {
        let condition = Condition::Always;
        let work = self.work(key, Operation::Remove { condition });
        self.handle.call(work, Settled::into_removed)
    }

    /// Removes an object if a condition holds; returns [`Outcome::Removed`], [`Outcome::Absent`] or
    /// [`Outcome::ConditionFailed`].
    pub fn remove_if(&self, key: &[u8], condition: Condition) -> Pending<Outcome> {
        let work = self.work(key, Operation::Remove { condition });
        self.handle.call(work, Settled::into_outcome)
    }

    /// Adds to the whole number in the object's text (absent: 0); returns the sum.
    pub fn increment(&self, key: &[u8], by: i64) -> Pending<i64> {
        let by = Amount::Integer(by);
        let work = self.work(key, Operation::Increment { by });
        self.handle.call(work, Settled::into_integer)
    }

    /// As [`AsyncTable::increment`], with floating point numbers.
    pub fn increment_float(&self, key: &[u8], by: f64) -> Pending<f64> {
        let by = Amount::Float(by);
        let work = self.work(key, Operation::Increment { by });
        self.handle.call(work, Settled::into_float)
    }

    /// Several objects at once. Each is read independently.
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> PendingMany<Option<Object>> {
        let works = keys
            .iter()
            .map(|key| self.work(key.as_ref(), Operation::Read));
        self.handle.call_many(works, Settled::into_object)
    }

    /// Several writes at once. Each takes effect independently, once, in any order.
    pub fn set_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        objects: &[(K, V)],
        write: Write,
    ) -> PendingMany<Outcome> {
        let works = objects.iter().map(|(key, value)| {
            let operation = write.operation(value.as_ref());
            Work::on(self.id, key.as_ref(), operation, write.level)
        });
        self.handle.call_many(works, Settled::into_outcome)
    }

    /// Several removals at once; as [`AsyncTable::set_many`].
    pub fn remove_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> PendingMany<Outcome> {
        let condition = Condition::Always;
        let works = keys
            .iter()
            .map(|key| self.work(key.as_ref(), Operation::Remove { condition }));
        self.handle.call_many(works, Settled::into_outcome)
    }

    /// All objects, as [`Table::scan`](crate::Table::scan) returns them.
    pub fn scan(&self) -> AsyncScan {
        AsyncScan::new(self.handle.clone(), self.id)
    }
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future in this thread: for programs that have no runtime.
pub fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
