//! `duramen join`: settings of a new member that its cluster knows better than the defaults.

use super::tls::TlsArgs;
use super::{Cluster, ClusterArgs};
use crate::arguments::Duration;
use crate::failure::Failure;
use crate::login::LoginArgs;
use duramen_client::TlsFiles;
use duramen_server::ServerConfig;
use duramen_wire::native::message::{Addresses, Overview};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;

/// Longest wait for the coordinator: without it the member starts as `duramen serve` does, and
/// goes on asking.
const PATIENCE: Duration = Duration { ms: 5_000 };
/// Ports that are tried beside those of the other members.
const PORTS_TRIED: u16 = 64;

/// The cluster of these coordinators, with its name and its members.
pub(crate) fn look(config: &ServerConfig) -> Result<Overview, Failure> {
    let file = |text: &String| PathBuf::from(text);
    let has_token = !config.cluster_token_file.is_empty();
    let files = TlsFiles {
        certificate: file(&config.tls_cert_file),
        key: file(&config.tls_key_file),
        ca: file(&config.tls_ca_cert_file),
    };
    let cluster = Cluster::open(&ClusterArgs {
        coordinator: config.coordinator.split(',').map(str::to_owned).collect(),
        cluster: None,
        cluster_token_file: has_token.then(|| file(&config.cluster_token_file)),
        tls: match config.tls_cluster {
            true => TlsArgs::of(&files),
            false => TlsArgs::default(),
        },
        timeout: PATIENCE,
        json: false,
        login: LoginArgs::default(),
    })?;
    cluster.overview()
}

/// For each kind of port the next free one after those of the members at this address, if there
/// are some.
pub(crate) struct Ports {
    pub(crate) resp: Option<u16>,
    pub(crate) native: Option<u16>,
    pub(crate) admin: Option<u16>,
}

impl Ports {
    pub(crate) fn beside(overview: &Overview, ip: IpAddr) -> Ports {
        let next = |of: fn(&Addresses) -> Option<&str>| {
            let servers = overview.status.servers.iter();
            let addresses = servers.filter_map(|entry| of(&entry.addresses)?.parse().ok());
            let ports = addresses.filter(|at: &SocketAddr| at.ip() == ip);
            let last = ports.map(|at| at.port()).max()?;
            let mut next = (1..=PORTS_TRIED).filter_map(|more| last.checked_add(more));
            next.find(|port| TcpListener::bind((ip, *port)).is_ok())
        };
        Ports {
            resp: next(|at| at.resp.as_deref()),
            native: next(|at| Some(&at.native)),
            admin: next(|at| at.admin.as_deref()),
        }
    }
}
