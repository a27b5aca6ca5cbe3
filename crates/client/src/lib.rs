//! Native client of a Duramen cluster.
//!
//! ```no_run
//! use duramen_client::{Client, Options};
//!
//! # fn main() -> Result<(), duramen_client::Error> {
//! let client = Client::connect(Options::new(["127.0.0.1:7400", "127.0.0.1:7401"]))?;
//! let table = client.table("db0")?; // the table of Redis clients; `create_table` makes others
//! let version = table.set(b"key", b"value")?;
//! assert_eq!(table.get(b"key")?.expect("just written").version, version);
//! # Ok(())
//! # }
//! ```
//!
//! A call returns when it is done, or when its deadline has passed. In between the client finds the
//! key's owner, waits for recoveries, and follows moving tablets and changing coordinators. Every
//! write takes effect exactly once, even if its answer was lost (RIFL). Any number of threads may
//! share a [`Client`]. For many operations in flight per thread, see [`asynchronous`].
//!
//! [`core`] decides which requests are sent, to which server and when. It does no I/O: the
//! simulator runs the same code.

pub mod asynchronous;
mod certificates;
mod client;
pub mod core;
mod error;
mod login;
mod net;
mod options;
mod outcome;
mod scan;

pub use client::{Client, Table, Write};
pub use duramen_base::ids::{Level, TableId};
pub use duramen_wire::native::message::{Admin, AdminAnswer, Amount, Condition, Expiry};
pub use error::Error;
pub use login::Login;
pub use options::{Options, TlsFiles};
pub use outcome::{Object, Outcome};
pub use scan::Scan;
