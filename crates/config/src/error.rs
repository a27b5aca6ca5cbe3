//! Errors of a server's start, and of refused settings.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Reason why a server did not start, or why a setting was refused. Every text gives the fault and
/// the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration is wrong: correct it and start again.
    #[error("{0}")]
    Config(String),
    /// The address is taken or not allowed: choose another, or stop the process that uses it.
    #[error("cannot listen on {address} ({purpose}): {source}; {}", listen_advice(*address, purpose, source))]
    Listen {
        address: SocketAddr,
        purpose: &'static str,
        source: std::io::Error,
    },
    /// The Unix socket for clients on this machine cannot be made: choose another directory.
    #[error("cannot listen on {} (native-socket-dir): {source}; name a directory with a short path to which this user may write", path.display())]
    LocalSocket {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The system refused a resource that the server needs before it can serve.
    #[error("cannot {doing}: {source}")]
    System {
        doing: &'static str,
        source: std::io::Error,
    },
    /// A configuration file cannot be read or written: remove the cause in `source` and try again.
    #[error("cannot {doing} {}: {source}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The data directory cannot be used: do what the text says. Nothing in it was changed.
    #[error(transparent)]
    Store(#[from] duramen::Error),
    /// The flash file cannot be used: do what the text says. Its former content may be lost, no
    /// other data.
    #[error("cannot use the flash file {}: {source}{advice}", path.display())]
    Flash {
        path: PathBuf,
        source: duramen_disk::Error,
        advice: &'static str,
    },
    /// The member's backup (its replicas for others) cannot be used: do what the text says. Nothing
    /// in it was changed.
    #[error(transparent)]
    Backup(#[from] duramen_backup::Error),
    /// There is no encryption key: do what the text says.
    #[error(transparent)]
    Key(#[from] duramen_cipher::Error),
    /// A member's life is over. With `again`, start it again, in this process or another one;
    /// otherwise a person must look at the reason.
    #[error("this member's life is over: {reason}")]
    LifeOver { again: bool, reason: String },
    /// A thread or the disk did not end the stop in time: the process should end without it. Writes
    /// acknowledged at a level above `memory` are on disk, as after any crash.
    #[error("the stop did not end within its time, and the process ends without it:\n{table}")]
    Stuck { table: String },
    /// No named coordinator belongs to this cluster, and none ever will: name other coordinators,
    /// or their cluster.
    #[error(
        "the coordinator at {coordinator} does not let this server in: {reason}\nName the cluster with --cluster, or another coordinator with --coordinator."
    )]
    Foreign { coordinator: String, reason: String },
    #[error("the store cannot be made: {0}")]
    Engine(#[from] duramen_engine::Error),
}

/// Ports below this one are reserved for privileged users.
const PORT_FOR_ALL: u16 = 1024;

fn listen_advice(address: SocketAddr, purpose: &str, source: &std::io::Error) -> String {
    let (port, bind) = match purpose {
        "admin HTTP" => ("admin-port", "admin-bind"),
        "native protocol" => ("native-port", "bind"),
        _ => ("port", "bind"),
    };
    match source.kind() {
        ErrorKind::PermissionDenied if address.port() < PORT_FOR_ALL => format!(
            "ports below {PORT_FOR_ALL} are for privileged users: choose another by `--{port}`, or allow the program to take them \
             (`setcap cap_net_bind_service=+ep PROGRAM`, or AmbientCapabilities=CAP_NET_BIND_SERVICE of systemd)"
        ),
        ErrorKind::AddrNotAvailable => {
            format!("this machine has no such address: choose one that it has by `--{bind}`")
        }
        ErrorKind::AddrInUse => {
            format!("is another server running there? End it, or choose another port by `--{port}`")
        }
        _ => format!("choose another address by `--{bind}`, or another port by `--{port}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user without root rights was once asked whether another server was running at port 80.
    #[test]
    fn a_port_that_cannot_be_taken_has_advice_that_fits() {
        let advice = |port, purpose, code| {
            let error = ServerError::Listen {
                address: SocketAddr::from(([127, 0, 0, 1], port)),
                purpose,
                source: std::io::Error::from_raw_os_error(code),
            };
            error.to_string()
        };
        let (denied, in_use, no_address) = (13, 98, 99);
        let said = advice(80, "RESP", denied);
        assert!(
            said.contains("privileged users") && said.contains("`--port`"),
            "{said}"
        );
        let said = advice(443, "admin HTTP", denied);
        assert!(said.contains("`--admin-port`"), "{said}");
        let said = advice(6379, "RESP", in_use);
        assert!(said.contains("is another server running there?"), "{said}");
        let said = advice(6379, "RESP", no_address);
        assert!(
            said.contains("no such address") && said.contains("`--bind`"),
            "{said}"
        );
    }
}
