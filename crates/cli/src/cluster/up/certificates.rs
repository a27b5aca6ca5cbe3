//! The certificates of `duramen up --tls`: an authority of its own in the directory, and one
//! certificate for each process, for clients too.

use duramen_client::TlsFiles;
use duramen_tls::{Authority, MakeError, Request};
use std::path::{Path, PathBuf};

/// The certificate of this process, and of clients of the cluster.
pub(super) const CLIENT: &str = "client";
/// Validity in days: made anew at each start.
const DAYS: u32 = 365;
const AUTHORITY_DAYS: u32 = 3650;

pub(super) struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    /// Makes what is missing, and renews what an earlier run made.
    pub(super) fn make(dir: &Path, servers: u16) -> Result<Certificates, String> {
        let dir = dir.join("tls");
        let fresh = Certificates { dir };
        fresh.make_all(servers).map_err(|error| error.to_string())?;
        Ok(fresh)
    }

    fn make_all(&self, servers: u16) -> Result<(), MakeError> {
        let authority = match Authority::create(&self.dir, "duramen up", AUTHORITY_DAYS) {
            Err(MakeError::Exists { .. }) => Authority::open(&self.dir)?,
            made => made?,
        };
        let servers = (0..servers).map(server);
        let names = servers.chain(["coordinator".to_owned(), CLIENT.to_owned()]);
        for name in names {
            let request = Request {
                name,
                sans: vec!["127.0.0.1".to_owned(), "localhost".to_owned()],
                days: DAYS,
            };
            match authority.issue(&request) {
                Err(MakeError::Exists { .. }) => authority.renew(&request)?,
                issued => issued?,
            };
        }
        Ok(())
    }

    /// The files of one process.
    pub(super) fn of(&self, name: &str) -> TlsFiles {
        TlsFiles {
            certificate: self.dir.join(format!("{name}.crt")),
            key: self.dir.join(format!("{name}.key")),
            ca: self.dir.join("ca.crt"),
        }
    }
}

/// The name of a server's certificate.
pub(super) fn server(n: u16) -> String {
    format!("server-{n}")
}
