//! Why a server did not start, or a setting was refused.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a server did not start, or a setting was refused. Every text says what was wrong and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration is wrong: correct it and start again.
    #[error("{0}")]
    Config(String),
    /// The address is taken or not allowed: choose another, or stop whoever has it.
    #[error("cannot listen on {address} ({purpose}): {source}; is another server running there?")]
    Listen {
        address: SocketAddr,
        purpose: &'static str,
        source: std::io::Error,
    },
    /// The system refused something the server needs before it can serve.
    #[error("cannot {doing}: {source}")]
    System {
        doing: &'static str,
        source: std::io::Error,
    },
    /// A configuration file that cannot be read or written: see to what `source` says and try again.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The data directory cannot be used: do what the text says. Nothing in it was changed.
    #[error(transparent)]
    Store(#[from] duramen::Error),
    /// The flash file cannot be used: do what the text says. What it held before may be lost, and nothing else.
    #[error("cannot use the flash file {}: {source}{advice}", path.display())]
    Flash {
        path: PathBuf,
        source: duramen_flash::Error,
        advice: &'static str,
    },
    /// What a member keeps for others cannot be used: do what the text says. Nothing in it was changed.
    #[error(transparent)]
    Backup(#[from] duramen_backup::Error),
    /// A member's life is over. `again`: start it anew, in this process or another one; else a person must look at the reason.
    #[error("this member's life is over: {reason}")]
    LifeOver { again: bool, reason: String },
    /// A thread did not end when the server stopped: the process is to end without it. What was
    /// acknowledged at a level above `memory` is on disk, as after any crash.
    #[error(
        "a thread did not end within the time that a stop has, and the process ends without it:\n{table}"
    )]
    Stuck { table: String },
    /// No coordinator that was named is one of this cluster, and none will be: name others, or the cluster that they belong to.
    #[error(
        "the coordinator at {coordinator} does not let this server in: {reason}\nName the cluster with --cluster, or another coordinator with --coordinator."
    )]
    Foreign { coordinator: String, reason: String },
    #[error("the store cannot be made: {0}")]
    Engine(#[from] duramen_engine::Error),
}
