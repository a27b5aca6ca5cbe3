//! One member of a cluster, without sockets, threads or a clock.
//!
//! [`View`] says who serves a key, [`BackupService`] keeps what other masters write. Whoever drives a member (the server's threads, or a simulator) hands in what arrives and does
//! what comes out.
//!
//! Paper: [Ousterhout15 §3, §7]; differs: what a server owns is told to it declaratively (docs/protocols.md).

mod backup_service;
mod view;

pub use backup_service::{BackupConfig, BackupService, Reply};
pub use view::{Map, NotATable, Owner, Ranges, Route, View};
