//! `duramen join`: settings of a new member that its cluster knows better than the defaults.

use super::tls::TlsArgs;
use super::{Cluster, ClusterArgs};
use crate::arguments::Duration;
use crate::failure::Failure;
use crate::login::LoginArgs;
use duramen_client::TlsFiles;
use duramen_config::{ServerConfig, file};
use duramen_wire::native::message::{Addresses, Overview};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// Longest wait for the coordinator's answer. Without one the member starts as `duramen serve`
/// does, and continues to ask.
const PATIENCE: Duration = Duration { ms: 5_000 };
/// Ports that are tried beside those of the other members.
const PORTS_TRIED: u16 = 64;

/// The settings of ports that are learned.
pub(crate) const PORTS: [&str; 3] = ["port", "native-port", "admin-port"];
/// The file in the directory of a member that `duramen join` started, with its ports: a line for
/// each, `port 6379`. Clients, rules of a firewall and `duramen serve` find them again.
const FILE: &str = "ports";

/// The ports of the directory's last start.
pub(crate) fn kept_ports(dir: &Path) -> Vec<(&'static str, u16)> {
    // The file is not necessary: without it the ports are learned.
    let text = file::load(&dir.join(FILE)).unwrap_or_default();
    let port = |line: &str| {
        let (name, port) = line.split_once(' ')?;
        let name = PORTS.into_iter().find(|known| *known == name)?;
        Some((name, port.parse().ok().filter(|port| *port > 0)?))
    };
    text.lines().filter_map(port).collect()
}

/// Keeps the ports for the next start.
pub(crate) fn keep_ports(dir: &Path, addresses: &duramen_server::Addresses) {
    let resp = addresses.resp.first().copied();
    let all = [resp, addresses.native, addresses.admin];
    let lines = PORTS.into_iter().zip(all);
    let lines = lines.filter_map(|(name, at)| Some(format!("{name} {}\n", at?.port())));
    let file = dir.join(FILE);
    if let Err(error) = std::fs::write(&file, lines.collect::<String>()) {
        let path = file.display();
        tracing::warn!(%path, "the next start may have other ports, as these cannot be kept: {error}");
    }
}

/// Whether a server with these settings could listen there.
pub(crate) fn is_free(config: &ServerConfig, port: u16) -> bool {
    let first = config.bind.first();
    first.is_some_and(|ip| TcpListener::bind((*ip, port)).is_ok())
}

/// The cluster of these coordinators, with its name and its members. A cluster with users answers
/// only a user who has logged in.
pub(crate) fn look(config: &ServerConfig, login: &LoginArgs) -> Result<Overview, Failure> {
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
        tls: if config.tls_cluster {
            TlsArgs::of(&files)
        } else {
            TlsArgs::default()
        },
        timeout: PATIENCE,
        json: false,
        login: login.clone(),
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
            resp: next(|at| at.plain.as_deref().or(at.resp.as_deref())),
            native: next(|at| Some(&at.native)),
            admin: next(|at| at.admin.as_deref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_kept_and_a_damaged_file_is_as_none() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(kept_ports(folder.path()), []);
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let addresses = duramen_server::Addresses {
            resp: vec![at(7004)],
            native: Some(at(7104)),
            admin: None,
            tls: Vec::new(),
        };
        keep_ports(folder.path(), &addresses);
        let kept = [("port", 7004), ("native-port", 7104)];
        assert_eq!(kept_ports(folder.path()), kept);
        let damaged = "port 70040\nadmin-port\nlevel 3\nnative-port 0\n\0\n";
        std::fs::write(folder.path().join(FILE), damaged).expect("written");
        assert_eq!(kept_ports(folder.path()), []);
    }
}
