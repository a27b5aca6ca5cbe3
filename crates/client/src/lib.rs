//! Native client of a Duramen cluster.
//!
//! ```no_run
//! use duramen_client::{Client, Options};
//!
//! # fn main() -> Result<(), duramen_client::Error> {
//! let client = Client::connect(Options::new(["127.0.0.1:7400", "127.0.0.1:7401"]))?;
//! let table = client.table("db0")?; // what Redis clients see; `Client::create_table` makes others
//! let version = table.set(b"key", b"value")?;
//! assert_eq!(table.get(b"key")?.expect("just written").version, version);
//! # Ok(())
//! # }
//! ```
//!
//! A call returns when it is done, or when its deadline has passed; in between the client finds the
//! key's owner, waits for recoveries, follows tablets that move and coordinators that change. Every
//! write takes effect exactly once, also if its answer was lost (RIFL). A [`Client`] is shared by
//! as many threads as you like.
//!
//! [`core`] decides what is sent where and when, and does no I/O: the simulator drives the very
//! same code.

mod client;
pub mod core;
mod error;
mod net;
mod outcome;
mod scan;

pub use client::{Client, Options, Table, Write};
pub use duramen_base::ids::{Level, TableId};
pub use duramen_wire::native::message::{Admin, AdminAnswer, Amount, Condition, Expiry};
pub use error::Error;
pub use outcome::{Object, Outcome};
pub use scan::Scan;
