//! Errors about keys. Their texts name the file or the command, and never a key.

use std::io;
use std::time::Duration;

/// The reason why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read the encryption key in `{path}`: {source}")]
    File { path: String, source: io::Error },
    #[error(
        "other users can read the encryption key in `{path}` (mode {mode:03o}). Forbid it: `chmod 600 {path}`"
    )]
    Open { path: String, mode: u32 },
    #[error(
        "{place} is not an encryption key: it must be one line of 64 hexadecimal digits, as `duramen key init` makes it"
    )]
    Form { place: String },
    #[error("cannot run encryption-key-command: {source}")]
    Start { source: io::Error },
    #[error("encryption-key-command failed: {status}. Run it by hand to see why")]
    Status { status: String },
    #[error("encryption-key-command gave no key within {} s", .within.as_secs())]
    Slow { within: Duration },
    #[error("the system has no memory or no random bytes for an encryption key: {source}")]
    System { source: io::Error },
}

impl Error {
    pub(crate) fn random(_: ring::error::Unspecified) -> Error {
        Error::System {
            source: io::Error::other("no random bytes"),
        }
    }
}
