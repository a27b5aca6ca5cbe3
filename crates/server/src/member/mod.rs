//! A server as a member of a cluster: the state that its threads share.
//!
//! A server outside of a cluster has none of this state; it costs one load per batch.

mod broadcast;
mod foreign;
mod home;
mod identity;
mod keeper;
mod life;
mod local_clients;
mod mail;
mod node_thread;
mod silence;
mod workers;

pub(crate) use home::is_home;
pub use home::{FOLDER as BACKUP_FOLDER, cluster_of};
pub(crate) use life::{Lifeline, Ports};
