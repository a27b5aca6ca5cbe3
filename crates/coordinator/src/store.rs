//! The setting that selects a store: `redb:DIR`, or `etcd:http://HOST:PORT,…`.

use duramen_cluster::coordinator::store::MetaStore;
use duramen_metastore::{Embedded, Etcd};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The file in an embedded store's directory.
const FILE: &str = "coordinator.redb";
/// etcd's default port.
const ETCD_PORT: u16 = 2379;

/// The persistent store of a coordinator's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreSpec {
    /// A file in this directory. One coordinator can use it.
    Redb(PathBuf),
    /// `host:port` of etcd's members. Any number of coordinators can use it; one of them leads.
    Etcd(Vec<String>),
}

/// The reason why the store cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error(
        "`{0}` is not a store: write redb:DIR, or etcd:http://HOST:PORT and more of them after commas"
    )]
    Unknown(String),
    #[error("`{0}` is not an address of etcd: write http://HOST:PORT")]
    Endpoint(String),
    #[error("TLS to etcd is not supported: use http, and a network of its own")]
    Tls,
    #[error("cannot make the directory {path}: {reason}")]
    Directory { path: PathBuf, reason: String },
}

impl StoreSpec {
    /// Whether several coordinators can use the store, of which one leads and the others stand by.
    pub(crate) fn has_standbys(&self) -> bool {
        matches!(self, StoreSpec::Etcd(_))
    }

    pub(crate) fn open(&self, name: &str, cluster: &str) -> Result<Box<dyn MetaStore>, StoreError> {
        match self {
            StoreSpec::Redb(path) => {
                make(path)?;
                Ok(Box::new(Embedded::new(&path.join(FILE), name)))
            }
            StoreSpec::Etcd(endpoints) => Ok(Box::new(Etcd::new(endpoints, cluster, name))),
        }
    }
}

fn make(path: &Path) -> Result<(), StoreError> {
    duramen_base::private::make_dir(path).map_err(|reason| StoreError::Directory {
        path: path.to_owned(),
        reason: reason.to_string(),
    })
}

impl fmt::Display for StoreSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreSpec::Redb(path) => write!(f, "redb:{}", path.display()),
            StoreSpec::Etcd(endpoints) => {
                f.write_str("etcd:")?;
                for (n, endpoint) in endpoints.iter().enumerate() {
                    let comma = if n > 0 { "," } else { "" };
                    write!(f, "{comma}http://{endpoint}")?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for StoreSpec {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<StoreSpec, StoreError> {
        let unknown = || StoreError::Unknown(text.to_owned());
        match text.split_once(':').ok_or_else(unknown)? {
            ("redb", path) if !path.is_empty() => Ok(StoreSpec::Redb(path.into())),
            ("etcd", list) => {
                let endpoints = list.split(',').map(endpoint);
                Ok(StoreSpec::Etcd(endpoints.collect::<Result<_, _>>()?))
            }
            _ => Err(unknown()),
        }
    }
}

fn endpoint(text: &str) -> Result<String, StoreError> {
    let wrong = || StoreError::Endpoint(text.to_owned());
    if text.starts_with("https://") {
        return Err(StoreError::Tls);
    }
    let rest = text.trim().strip_prefix("http://").unwrap_or(text.trim());
    let rest = rest.trim_end_matches('/');
    if rest.is_empty() || rest.contains(['/', '?', '#', '@', ' ']) {
        return Err(wrong());
    }
    match rest.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !port.ends_with(']') => {
            port.parse::<u16>().map_err(|_| wrong())?;
            Ok(rest.to_owned())
        }
        Some(("", _)) => Err(wrong()),
        _ => Ok(format!("{rest}:{ETCD_PORT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_understood_and_shown_the_same() {
        for text in [
            "redb:/var/lib/duramen",
            "etcd:http://127.0.0.1:2379",
            "etcd:http://a:1,http://[::1]:2",
        ] {
            let spec: StoreSpec = text.parse().expect(text);
            assert_eq!(spec.to_string(), text);
        }
        let short: StoreSpec = "etcd:a,b:7/".parse().expect("hosts alone");
        assert_eq!(short.to_string(), "etcd:http://a:2379,http://b:7");
        for wrong in [
            "",
            "redb",
            "redb:",
            "file:x",
            "etcd:",
            "etcd:http://",
            "etcd:a:b",
            "etcd::1",
            "etcd:https://a:1",
            "etcd:http://a:1/path",
            "etcd:a,",
        ] {
            assert!(wrong.parse::<StoreSpec>().is_err(), "{wrong}");
        }
    }
}
