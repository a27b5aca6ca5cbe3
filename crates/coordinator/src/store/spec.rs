//! The setting that selects a store: `redb:DIR`, or `etcd:http://HOST:PORT,…`; `https` works as
//! well.

use super::{Embedded, Etcd, EtcdAccess};
use duramen_cluster::coordinator::store::MetaStore;
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
    /// Any number of coordinators can use it; one of them leads.
    Etcd {
        /// `host:port` of etcd's members.
        endpoints: Vec<String>,
        tls: bool,
    },
}

/// The reason why the store cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error(
        "`{0}` is not a store: write redb:DIR, or etcd:http://HOST:PORT and more of them after commas"
    )]
    Unknown(String),
    #[error("`{0}` is not an address of etcd: write http://HOST:PORT or https://HOST:PORT")]
    Endpoint(String),
    #[error("all addresses of etcd must be http, or all https")]
    Mixed,
    #[error("the authority of etcd's certificates is missing: name it by --etcd-ca-file")]
    NoAuthority,
    #[error("cannot make the directory {path}: {reason}")]
    Directory { path: PathBuf, reason: String },
}

impl StoreSpec {
    /// Whether several coordinators can use the store, of which one leads and the others stand by.
    pub(crate) fn has_standbys(&self) -> bool {
        matches!(self, StoreSpec::Etcd { .. })
    }

    /// Checks that what it needs to reach etcd is given.
    ///
    /// # Errors
    /// [`StoreError::NoAuthority`].
    pub fn check(&self, access: &EtcdAccess) -> Result<(), StoreError> {
        match self {
            StoreSpec::Etcd { tls: true, .. } if access.identity.is_none() => {
                Err(StoreError::NoAuthority)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn open(
        &self,
        name: &str,
        cluster: &str,
        access: EtcdAccess,
    ) -> Result<Box<dyn MetaStore>, StoreError> {
        self.check(&access)?;
        match self {
            StoreSpec::Redb(path) => {
                make(path)?;
                Ok(Box::new(Embedded::new(&path.join(FILE), name)))
            }
            StoreSpec::Etcd { endpoints, tls } => {
                let identity = access.identity.filter(|_| *tls);
                let access = EtcdAccess { identity, ..access };
                let store = Etcd::new(endpoints, cluster, name).with_access(access);
                Ok(Box::new(store))
            }
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
            StoreSpec::Etcd { endpoints, tls } => {
                f.write_str("etcd:")?;
                let scheme = if *tls { "https" } else { "http" };
                for (n, endpoint) in endpoints.iter().enumerate() {
                    let comma = if n > 0 { "," } else { "" };
                    write!(f, "{comma}{scheme}://{endpoint}")?;
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
                let found = list.split(',').map(endpoint);
                let found: Vec<(String, bool)> = found.collect::<Result<_, _>>()?;
                let tls = found.iter().any(|(_, tls)| *tls);
                if found.iter().any(|(_, one)| *one != tls) {
                    return Err(StoreError::Mixed);
                }
                let endpoints = found.into_iter().map(|(endpoint, _)| endpoint).collect();
                Ok(StoreSpec::Etcd { endpoints, tls })
            }
            _ => Err(unknown()),
        }
    }
}

/// `host:port`, and whether it is `https`.
fn endpoint(text: &str) -> Result<(String, bool), StoreError> {
    let wrong = || StoreError::Endpoint(text.to_owned());
    let (tls, rest) = match text.trim().strip_prefix("https://") {
        Some(rest) => (true, rest),
        None => (false, text.trim().trim_start_matches("http://")),
    };
    let rest = rest.trim_end_matches('/');
    if rest.is_empty() || rest.contains(['/', '?', '#', '@', ' ']) {
        return Err(wrong());
    }
    match rest.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !port.ends_with(']') => {
            port.parse::<u16>().map_err(|_| wrong())?;
            Ok((rest.to_owned(), tls))
        }
        Some(("", _)) => Err(wrong()),
        _ => Ok((format!("{rest}:{ETCD_PORT}"), tls)),
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
            "etcd:https://a:1,https://[::1]:2",
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
            "etcd:https://",
            "etcd:https://a:1,http://b:1",
            "etcd:https://a:1,b:1",
            "etcd:http://a:1/path",
            "etcd:a,",
        ] {
            assert!(wrong.parse::<StoreSpec>().is_err(), "{wrong}");
        }
    }
}
