//! TLS for every port of Duramen, independent of the protocols inside: identities that are reloaded
//! while connections go on, sessions for event loops, a blocking stream for tools, and the making
//! of certificates.
//!
//! rustls does the protocol, with the cryptography of `ring`. This crate decides nothing about who
//! may connect, except by certificates; it knows no command and no message.
//!
//! - [`Settings`] and [`Identity`]: files of a certificate, its key and trusted authorities, loaded
//!   with errors that name the file; reloaded at run time.
//! - [`Session`]: one connection over a nonblocking socket, for reactors.
//! - [`Stream`]: one connection over a blocking socket, for tools and clients.
//! - [`Description`]: subject, names and expiry of a certificate.
//! - [`Authority`]: an own certificate authority in a directory.
//!
//! **Invariants**
//! - T1: a failed reload changes nothing (identity).
//! - T2: no bytes of a peer cause a panic, and a peer that has not finished its handshake makes the
//!   session keep at most [`HANDSHAKE_BYTES_MAX`] bytes and one record (session).
//! - T3: a private key is never in a file that others may read, not even for a moment (authority).

mod authority;
mod certificate;
mod error;
mod files;
mod identity;
mod session;
mod settings;
mod stream;

pub use authority::{Authority, Issued, MakeError, Request};
pub use certificate::{Description, Descriptions, days_until, seconds_until};
pub use error::{LoadError, Plain, TlsError};
pub use identity::{Identity, Prepared, Reloaded};
pub use session::{
    HANDSHAKE_BYTES_MAX, RECORDS_BYTES_MAX, ROOM_BYTES_MIN, Received, Sent, Session,
};
pub use settings::{ClientAuth, Protocols, Settings};
pub use stream::Stream;

/// The configurations of rustls, for libraries that drive connections by themselves.
pub use rustls;
