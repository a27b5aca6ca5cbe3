//! The certificates of a client, read again while it runs.
//!
//! **Invariants**
//! - E1: a new connection uses the files as they were at most [`LOOK_AGAIN`] ago. Files that cannot
//!   be used change nothing: the last usable ones stay in use.

use crate::error::Error;
use crate::options::TlsFiles;
use duramen_tls::{Identity, Settings};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Reading the files costs a tenth of a handshake.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Certificates {
    identity: Identity,
    looked: Mutex<Instant>,
}

impl Certificates {
    /// Loads the certificates; returns `None` if the client has none, and connects without TLS.
    ///
    /// # Errors
    /// [`Error::Options`]: the files cannot be used.
    pub fn load(files: Option<&TlsFiles>) -> Result<Option<Certificates>, Error> {
        let Some(files) = files else {
            return Ok(None);
        };
        let identity = Identity::load(Settings::mutual(&files.certificate, &files.key, &files.ca));
        Ok(Some(Certificates {
            identity: identity.map_err(|error| Error::Options(error.to_string()))?,
            looked: Mutex::new(Instant::now()),
        }))
    }

    /// The certificates for a new connection (E1).
    pub fn newest(&self) -> &Identity {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if looked.elapsed() >= LOOK_AGAIN {
            *looked = Instant::now();
            // E1: a failure changes nothing. If the last certificates are no longer accepted, the
            // next handshake reports it.
            let _ = self.identity.reload();
        }
        &self.identity
    }
}

/// The host of `host:port`.
pub(crate) fn host(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}
