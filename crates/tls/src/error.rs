//! Errors: of files, and of sessions. Their texts name the fault, its place and the remedy.

use rustix::io::Errno;
use rustls::{AlertDescription, CertificateError, PeerIncompatible};
use std::io;
use std::path::PathBuf;

/// A certificate, a key or an authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{} holds no certificate in PEM form (`-----BEGIN CERTIFICATE-----`)",
        path.display()
    )]
    NoCertificate { path: PathBuf },
    #[error("{} holds no private key in PEM form (`-----BEGIN PRIVATE KEY-----`)", path.display())]
    NoKey { path: PathBuf },
    #[error(
        "the key in {0} has a password, which is not supported: write a key without one by \
         `openssl pkey -in {0} -out NEW.key`, readable by the server alone",
        path.display()
    )]
    EncryptedKey { path: PathBuf },
    #[error("{} is not valid PEM: {reason}", path.display())]
    Malformed { path: PathBuf, reason: String },
    #[error("the certificate in {} cannot be used: {reason}", path.display())]
    BadCertificate { path: PathBuf, reason: String },
    #[error("the key in {} cannot be used: {reason}", path.display())]
    BadKey { path: PathBuf, reason: String },
    #[error(
        "the key in {} does not belong to the certificate in {}",
        key.display(), certificate.display()
    )]
    KeyMismatch { certificate: PathBuf, key: PathBuf },
    #[error(
        "the certificate in {} has expired on {since}: renew it, for example by `duramen cert \
         rotate`",
        path.display()
    )]
    Expired { path: PathBuf, since: String },
    #[error(
        "the certificate in {} is valid only from {from}: is the clock of this machine right?",
        path.display()
    )]
    NotYetValid { path: PathBuf, from: String },
    #[error("a certificate needs its key, and a key its certificate: {missing} is not set")]
    Half { missing: &'static str },
    #[error(
        "clients must show a certificate, and there is no authority to check it against: set \
         tls-ca-cert-file, or `tls-auth-clients no`"
    )]
    NoAuthority,
    #[error("there is no certificate: set tls-cert-file and tls-key-file")]
    NoIdentity,
    #[error(
        "there is no authority to check the server against: set tls-ca-cert-file to the \
         certificate of the authority that signed the server's"
    )]
    NoTrust,
    #[error("`{name}` is neither a host name nor an address")]
    BadName { name: String },
    /// rustls refuses the combination.
    #[error("cannot set up TLS: {0}")]
    Refused(String),
}

impl LoadError {
    /// Whether the same files may be right at another time, or are renewed as a rule: the
    /// certificate has expired, or is not valid yet.
    pub fn is_of_time(&self) -> bool {
        matches!(
            self,
            LoadError::Expired { .. } | LoadError::NotYetValid { .. }
        )
    }
}

/// The bytes with which a peer began that does not speak TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// Commands of Redis.
    Redis,
    Http,
    /// Frames of Duramen's native protocol.
    Native,
    Unknown,
}

impl Plain {
    /// Guesses the protocol by its first bytes.
    pub(crate) fn guess(first: &[u8]) -> Plain {
        const METHODS: [&[u8]; 5] = [b"GET /", b"POST ", b"HEAD ", b"PUT /", b"OPTIO"];
        // The name of the native protocol's hello, as the crate `wire` sends it.
        if first.starts_with(b"DURAMEN") {
            Plain::Native
        } else if METHODS.iter().any(|method| first.starts_with(method)) {
            Plain::Http
        } else if first
            .first()
            .is_some_and(|byte| b"*+-:$".contains(byte) || byte.is_ascii_alphabetic())
        {
            Plain::Redis
        } else {
            Plain::Unknown
        }
    }
}

/// Reason why a session ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TlsError {
    /// The client speaks no TLS.
    #[error("{}", plain_client(*.0))]
    PlainClient(Plain),
    /// The server speaks no TLS.
    #[error("the server does not speak TLS on this port: connect without TLS, or to its TLS port")]
    PlainServer,
    /// The handshake is longer than [`HANDSHAKE_BYTES_MAX`](crate::HANDSHAKE_BYTES_MAX).
    #[error("the handshake is too long")]
    LongHandshake,
    /// The peer must show a certificate, and showed none.
    #[error("the other side shows no certificate, and must have one of our authority")]
    NoCertificate,
    /// This side does not accept the peer's certificate.
    #[error("the certificate of the other side is refused: {0}")]
    BadCertificate(String),
    /// The peer does not accept this side, or the handshake.
    #[error("the other side refuses: {0}")]
    Refused(String),
    /// There is no version, suite or signature scheme that both sides have.
    #[error("the two sides have no common {0}")]
    Incompatible(String),
    /// The bytes are not those of TLS, or were changed on the way.
    #[error("the bytes of the other side are not valid TLS: {0}")]
    Invalid(String),
    /// The socket failed.
    #[error("the connection broke: {0}")]
    Socket(Errno),
    /// The connection ended before the handshake was over.
    #[error("the connection ended during the handshake")]
    Early,
}

fn plain_client(plain: Plain) -> &'static str {
    match plain {
        Plain::Redis => "the client spoke plain Redis to the TLS port",
        Plain::Http => "the client spoke plain HTTP to the TLS port",
        Plain::Native => "the client spoke the plain native protocol to the TLS port",
        Plain::Unknown => "the client spoke no TLS to the TLS port",
    }
}

impl TlsError {
    /// Whether the certificate of one side was refused by the other: a matter of the operator's
    /// files, not of a dead peer.
    pub fn is_certificate(&self) -> bool {
        matches!(
            self,
            TlsError::NoCertificate | TlsError::BadCertificate(_) | TlsError::Refused(_)
        )
    }
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> TlsError {
        match error {
            rustls::Error::NoCertificatesPresented => TlsError::NoCertificate,
            rustls::Error::InvalidCertificate(error) => {
                TlsError::BadCertificate(certificate_text(&error))
            }
            rustls::Error::AlertReceived(alert) => TlsError::Refused(alert_text(alert)),
            rustls::Error::PeerIncompatible(error) => TlsError::Incompatible(common(&error)),
            error => TlsError::Invalid(error.to_string()),
        }
    }
}

fn certificate_text(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired: renew it, and check the clocks of both machines".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet: check the clocks of both machines".to_owned()
        }
        CertificateError::UnknownIssuer => {
            "it is signed by no authority in tls-ca-cert-file".to_owned()
        }
        CertificateError::NotValidForName => {
            "it is not for the name or address that was connected to".to_owned()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => format!(
            "it is for {}, and not for {}",
            if presented.is_empty() {
                "no name".to_owned()
            } else {
                presented.join(", ")
            },
            expected.to_str()
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its extended key usage does not allow this use".to_owned()
        }
        error => error.to_string(),
    }
}

fn alert_text(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::UnknownCA => {
            "it does not know the authority of our certificate (unknown_ca)".to_owned()
        }
        AlertDescription::CertificateRequired => {
            "it requires a certificate of the client (certificate_required)".to_owned()
        }
        AlertDescription::CertificateExpired => {
            "our certificate has expired (certificate_expired)".to_owned()
        }
        AlertDescription::BadCertificate => {
            "it does not accept our certificate (bad_certificate)".to_owned()
        }
        AlertDescription::CertificateUnknown => {
            "it does not accept our certificate (certificate_unknown)".to_owned()
        }
        AlertDescription::ProtocolVersion => {
            "it has no version of TLS that we have (protocol_version)".to_owned()
        }
        AlertDescription::HandshakeFailure => {
            "no common suite or key, or no certificate of the client (handshake_failure)".to_owned()
        }
        alert => format!("{alert:?}"),
    }
}

fn common(error: &PeerIncompatible) -> String {
    match error {
        PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled
        | PeerIncompatible::Tls13RequiredForQuic
        | PeerIncompatible::ServerDoesNotSupportTls12Or13
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
        | PeerIncompatible::SupportedVersionsExtensionRequired => {
            "version of TLS: see tls-protocols".to_owned()
        }
        PeerIncompatible::NoCipherSuitesInCommon => "cipher suite".to_owned(),
        PeerIncompatible::NoKxGroupsInCommon => "group for the exchange of keys".to_owned(),
        error => format!("way ({error:?})"),
    }
}
