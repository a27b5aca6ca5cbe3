//! Settings of TLS: files and choices, not checked yet.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Whether a client must show a certificate that a trusted authority has signed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// A client must show one; as in Redis, this is the default.
    #[default]
    Yes,
    /// A client is not asked for one.
    No,
    /// A client may show none; one that it shows must be valid.
    Optional,
}

impl ClientAuth {
    /// The names of the choices, in the order of the variants.
    pub const NAMES: &'static [&'static str] = &["yes", "no", "optional"];

    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            ClientAuth::Yes => "yes",
            ClientAuth::No => "no",
            ClientAuth::Optional => "optional",
        }
    }
}

/// Versions of TLS that are offered and accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocols {
    pub tls12: bool,
    pub tls13: bool,
}

impl Default for Protocols {
    fn default() -> Protocols {
        Protocols {
            tls12: true,
            tls13: true,
        }
    }
}

impl Protocols {
    /// TLS 1.3 alone.
    pub const TLS13: Protocols = Protocols {
        tls12: false,
        tls13: true,
    };

    /// The versions as rustls names them.
    pub(crate) fn versions(self) -> Vec<&'static rustls::SupportedProtocolVersion> {
        let mut versions = Vec::new();
        if self.tls13 {
            versions.push(&rustls::version::TLS13);
        }
        if self.tls12 {
            versions.push(&rustls::version::TLS12);
        }
        versions
    }
}

impl std::fmt::Display for Protocols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match (self.tls12, self.tls13) {
            (true, true) => "TLSv1.2 TLSv1.3",
            (true, false) => "TLSv1.2",
            (false, true) => "TLSv1.3",
            (false, false) => "",
        })
    }
}

impl FromStr for Protocols {
    type Err = String;

    /// Names as Redis has them, separated by spaces: `TLSv1.2 TLSv1.3`; or by commas, as of a list
    /// in a file of settings. Empty: both.
    fn from_str(text: &str) -> Result<Protocols, String> {
        let mut chosen = Protocols {
            tls12: false,
            tls13: false,
        };
        let is_between = |c: char| c.is_whitespace() || c == ',';
        for word in text.split(is_between).filter(|word| !word.is_empty()) {
            match word.to_ascii_lowercase().as_str() {
                "tlsv1.2" => chosen.tls12 = true,
                "tlsv1.3" => chosen.tls13 = true,
                "tlsv1" | "tlsv1.0" | "tlsv1.1" | "sslv3" => {
                    return Err(format!(
                        "{word} is not safe and not offered: choose TLSv1.2, TLSv1.3 or both"
                    ));
                }
                _ => {
                    return Err(format!(
                        "`{word}` is no version of TLS: choose TLSv1.2, TLSv1.3 or both"
                    ));
                }
            }
        }
        if chosen.tls12 || chosen.tls13 {
            Ok(chosen)
        } else {
            Ok(Protocols::default())
        }
    }
}

/// The files and choices of one [`Identity`](crate::Identity). An empty path: none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The certificate and those between it and the authority, in PEM form. A server must have one.
    pub certificate_file: PathBuf,
    /// Its private key, in PEM form, without a password.
    pub key_file: PathBuf,
    /// Certificates of the authorities that peers are checked against, in PEM form. Several may be
    /// in it, so that an authority can be replaced with an overlap.
    pub ca_file: PathBuf,
    /// A directory of such files.
    pub ca_dir: PathBuf,
    /// For servers: what clients must show.
    pub client_auth: ClientAuth,
    pub protocols: Protocols,
    /// Whether a server gives out no tickets by which a client continues an earlier session.
    pub no_resumption: bool,
}

impl Settings {
    /// Both sides must show a certificate of the same authority, by TLS 1.3, at each connection
    /// anew: for ports of which only members of one cluster, its clients and its tools know.
    pub fn mutual(certificate: &Path, key: &Path, ca: &Path) -> Settings {
        Settings {
            certificate_file: certificate.to_owned(),
            key_file: key.to_owned(),
            ca_file: ca.to_owned(),
            ca_dir: PathBuf::new(),
            client_auth: ClientAuth::Yes,
            protocols: Protocols::TLS13,
            no_resumption: true,
        }
    }

    /// Whether a certificate of this side is set.
    pub fn has_certificate(&self) -> bool {
        !self.certificate_file.as_os_str().is_empty() || !self.key_file.as_os_str().is_empty()
    }

    /// Whether an authority is set against which peers are checked.
    pub fn has_authority(&self) -> bool {
        !self.ca_file.as_os_str().is_empty() || !self.ca_dir.as_os_str().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_in_redis() {
        assert_eq!("".parse(), Ok(Protocols::default()));
        assert_eq!("TLSv1.3".parse(), Ok(Protocols::TLS13));
        assert_eq!("tlsv1.2 TLSv1.3".parse(), Ok(Protocols::default()));
        assert_eq!("TLSv1.2,TLSv1.3".parse(), Ok(Protocols::default()));
        assert_eq!("TLSv1.3,".parse(), Ok(Protocols::TLS13));
        for text in ["TLSv1.1", "TLSv1.2 x", "TLSv1.2,x"] {
            let refused = text.parse::<Protocols>().expect_err(text);
            assert!(refused.contains("choose TLSv1.2"), "{refused}");
        }
        for text in ["TLSv1.2", "TLSv1.3", "TLSv1.2 TLSv1.3"] {
            let parsed: Protocols = text.parse().expect(text);
            assert_eq!(parsed.to_string(), text);
        }
    }
}
