//! One member of a cluster, without sockets, threads or a clock.
//!
//! [`View`] is the routing of keys, [`BackupService`] keeps other masters' replicas, [`Member`]
//! joins a cluster and applies its coordinator's lists, and [`Node`] joins these with a store whose
//! log is on other members. The driver of a node (the server's threads, or a simulator) passes in
//! the inputs and carries out the outputs. [`Servant`] executes the requests of native clients.
//!
//! Paper: [Ousterhout15 §3, §7]; differs: the tablets of a server are told to it declaratively
//! (docs/protocols.md).

mod assignment;
mod backup_service;
mod builds;
mod effects;
mod hint_exchange;
mod interface;
mod job;
mod keeper;
mod lease;
mod life;
mod life_end;
mod loads;
mod member;
mod migration;
mod node;
mod occupancy;
mod ranges;
mod reconciliation;
mod recovery;
mod remote;
mod replica_gc;
mod replica_reads;
mod requests;
pub mod serve;
#[cfg(test)]
mod servers;
mod view;

pub use backup_service::{Asked, BackupConfig, BackupService, Reply, Task};
pub use hint_exchange::HeldHint;
pub use interface::{NodeInput, NodeOptions, NodeOutput};
pub use job::{Job, JobDone};
pub use lease::ReadUntil;
pub use member::{Candidate, Input, Member, Output};
pub use node::Node;
pub use ranges::{NotATable, Ranges, Tenures};
pub use reconciliation::{Purge, Purging, Reconciliation};
pub use recovery::PartitionProgress;
pub use replica_reads::{ReplicaRead, ReplicaWasRead};
pub use requests::{PeerCall, PeerRequest, ReceivedRequest, RequestId, Token};
pub use serve::{ClientRequest, Clients, Hint, Servant, Views, WhenCold};
pub use view::{Map, Owner, Route, View};
