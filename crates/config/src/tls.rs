//! Settings of TLS, and the rule about ports that other machines can reach.
//!
//! **Invariant**
//! - A1: a port that other machines can reach ([`check_exposed`]) is encrypted, or the operator has
//!   set `insecure-bind`; in both cases a client there must prove itself. Otherwise the process
//!   does not start.

use super::ServerConfig;
use crate::error::ServerError;
use duramen_tls::{ClientAuth, Identity, LoadError, Protocols, Settings};
use std::net::IpAddr;
use std::path::PathBuf;

/// Whether admin HTTP speaks TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdminTls {
    /// It does if other machines can reach it and there is a certificate. On loopback, health
    /// checks and scrapers need no certificates.
    #[default]
    Auto,
    Yes,
    No,
}

/// A port and those who may reach it.
#[derive(Clone, Copy, Debug)]
pub struct Exposed<'a> {
    /// The service at the port, such as `RESP`.
    pub purpose: &'a str,
    pub addresses: &'a [IpAddr],
    pub is_encrypted: bool,
    /// Whether a client must prove itself by a password, a token or a certificate, or cannot do
    /// harm.
    pub has_credentials: bool,
    /// The way to encrypt it, for the error's text.
    pub encrypt: &'a str,
    /// The way to demand a proof, for the error's text.
    pub protect: &'a str,
}

/// The rule of addresses (A1), for every port of a server, a coordinator or a tool. `insecure` is
/// the option `insecure-bind`.
///
/// # Errors
/// The fault and the ways out, as a text.
pub fn check_exposed(port: &Exposed<'_>, insecure: bool) -> Result<(), String> {
    let open: Vec<String> = port
        .addresses
        .iter()
        .filter(|address| !address.is_loopback())
        .map(IpAddr::to_string)
        .collect();
    let open = open.join(", ");
    let Exposed {
        purpose,
        encrypt,
        protect,
        ..
    } = port;
    if open.is_empty() {
        return Ok(());
    }
    if !port.is_encrypted && !insecure {
        let protect = if port.has_credentials {
            String::new()
        } else {
            format!(" and {protect}")
        };
        return Err(format!(
            "refusing to serve {purpose} on {open}: connections are not encrypted, so anyone on the \
             way reads passwords and data; {encrypt}, use 127.0.0.1, or accept the risk with \
             `--insecure-bind`{protect}"
        ));
    }
    if !port.has_credentials {
        return Err(format!(
            "refusing to serve {purpose} on {open} without a password: every client that reaches \
             the port has full access; {protect}"
        ));
    }
    Ok(())
}

/// The advice of RESP and admin HTTP.
const ENCRYPT_RESP: &str = "serve TLS alone (`--tls-port 6379 --port 0`, with certificates by \
                            `duramen cert init`)";
const ENCRYPT_ADMIN: &str = "give it certificates (`--tls-cert-file`, see `duramen cert init`)";
const PROTECT_RESP: &str = "set `--requirepass`";

impl ServerConfig {
    /// Whether there is a RESP port without TLS: `port 0` turns it off if there is one with TLS.
    pub fn serves_plain(&self) -> bool {
        self.port != 0 || self.tls_port == 0
    }

    /// Whether any port of RESP or admin HTTP speaks TLS.
    pub fn wants_tls(&self) -> bool {
        self.tls_port != 0 || self.admin_wants_tls()
    }

    pub fn admin_wants_tls(&self) -> bool {
        match self.admin_tls {
            _ if !self.admin => false,
            AdminTls::Yes => true,
            AdminTls::No => false,
            AdminTls::Auto => {
                !self.admin_address().ip().is_loopback() && !self.tls_cert_file.is_empty()
            }
        }
    }

    /// The files and choices of TLS.
    ///
    /// # Errors
    /// [`ServerError::Config`]: `tls-protocols` names an unknown version.
    pub fn tls_settings(&self) -> Result<Settings, ServerError> {
        let protocols: Protocols = self
            .tls_protocols
            .parse()
            .map_err(|why| ServerError::Config(format!("tls-protocols: {why}")))?;
        Ok(Settings {
            certificate_file: PathBuf::from(&self.tls_cert_file),
            key_file: PathBuf::from(&self.tls_key_file),
            ca_file: PathBuf::from(&self.tls_ca_cert_file),
            ca_dir: PathBuf::from(&self.tls_ca_cert_dir),
            client_auth: self.tls_auth_clients,
            protocols,
            no_resumption: !self.tls_session_caching,
        })
    }

    /// As [`tls_settings`](Self::tls_settings), for admin HTTP: the pages, not the handshake, ask
    /// for a certificate that clients must show, because probes have none.
    ///
    /// # Errors
    /// As [`tls_settings`](Self::tls_settings).
    pub fn admin_tls_settings(&self) -> Result<Settings, ServerError> {
        let settings = self.tls_settings()?;
        Ok(Settings {
            client_auth: match settings.client_auth {
                ClientAuth::Yes => ClientAuth::Optional,
                other => other,
            },
            ..settings
        })
    }

    /// As [`tls_settings`](Self::tls_settings), for the native protocol. `None` with `tls-cluster
    /// no`, or if this server is on its own.
    pub fn cluster_tls_settings(&self) -> Option<Settings> {
        if !self.tls_cluster || !self.is_member() {
            return None;
        }
        let path = |text: &String| PathBuf::from(text);
        let (certificate, key) = (path(&self.tls_cert_file), path(&self.tls_key_file));
        let mutual = Settings::mutual(&certificate, &key, &path(&self.tls_ca_cert_file));
        Some(Settings {
            ca_dir: path(&self.tls_ca_cert_dir),
            ..mutual
        })
    }

    /// Reads the files of TLS and checks them, if any port speaks TLS.
    ///
    /// # Errors
    /// [`ServerError::Config`] names the file and the fault.
    pub fn check_certificates(&self) -> Result<(), ServerError> {
        self.tls_settings()?;
        match self.certificate_fault() {
            Some(error) => Err(ServerError::Config(format!("TLS: {error}"))),
            None => Ok(()),
        }
    }

    /// Takes the names of the files of TLS from other settings.
    pub fn take_tls_files(&mut self, from: &ServerConfig) {
        self.tls_cert_file.clone_from(&from.tls_cert_file);
        self.tls_key_file.clone_from(&from.tls_key_file);
        self.tls_ca_cert_file.clone_from(&from.tls_ca_cert_file);
        self.tls_ca_cert_dir.clone_from(&from.tls_ca_cert_dir);
    }

    /// Whether the files of TLS have the same names.
    pub fn has_same_tls_files(&self, other: &ServerConfig) -> bool {
        self.tls_cert_file == other.tls_cert_file
            && self.tls_key_file == other.tls_key_file
            && self.tls_ca_cert_file == other.tls_ca_cert_file
            && self.tls_ca_cert_dir == other.tls_ca_cert_dir
    }

    /// The reason why the files of TLS cannot be used now; `None` if they can, if no port speaks
    /// TLS, or if a setting is wrong.
    pub fn certificate_fault(&self) -> Option<LoadError> {
        let clients = self.wants_tls().then(|| self.tls_settings().ok());
        let all = [clients.flatten(), self.cluster_tls_settings()];
        let mut all = all.into_iter().flatten();
        all.find_map(|settings| Identity::prepare(settings).err())
    }
}

pub(super) fn check(config: &ServerConfig) -> Result<(), ServerError> {
    let refuse = |text: &str| Err(ServerError::Config(text.to_owned()));
    let settings = config.tls_settings()?;
    if let Some(cluster) = config.cluster_tls_settings()
        && !(has_own_certificate(config) && cluster.has_authority())
    {
        return refuse(
            "tls-cluster needs a certificate of the cluster's authority: set tls-cert-file, tls-key-file and tls-ca-cert-file; `duramen cert` makes them",
        );
    }
    if !config.wants_tls() {
        return Ok(());
    }
    let option = match config.tls_port {
        0 => "admin-tls",
        _ => "tls-port",
    };
    if !has_own_certificate(config) {
        return Err(ServerError::Config(format!(
            "{option} needs a certificate: set tls-cert-file and tls-key-file; `duramen cert init` makes them"
        )));
    }
    if config.tls_port != 0 && config.tls_port == config.port {
        return refuse("tls-port and port are the same: one of them must be another");
    }
    if config.tls_auth_clients != ClientAuth::No && !settings.has_authority() {
        return refuse(
            "clients must show a certificate, and there is no authority to check it against: set tls-ca-cert-file, or `tls-auth-clients no`",
        );
    }
    Ok(())
}

fn has_own_certificate(config: &ServerConfig) -> bool {
    !config.tls_cert_file.is_empty() && !config.tls_key_file.is_empty()
}

/// The rule of addresses for all ports of this server.
pub(super) fn check_addresses(config: &ServerConfig) -> Result<(), ServerError> {
    let shows_certificate = config.tls_auth_clients == ClientAuth::Yes;
    // `access::users` checks the users.
    let has_password = !config.requirepass.is_empty() || config.has_users();
    let resp = Exposed {
        purpose: "RESP",
        addresses: &config.bind,
        is_encrypted: false,
        has_credentials: has_password,
        encrypt: ENCRYPT_RESP,
        protect: PROTECT_RESP,
    };
    let resp_tls = Exposed {
        purpose: "RESP over TLS",
        is_encrypted: true,
        has_credentials: has_password || shows_certificate,
        protect: "set `--requirepass` or `--tls-auth-clients yes`",
        ..resp
    };
    let native = Exposed {
        purpose: "the native protocol",
        is_encrypted: config.tls_cluster,
        has_credentials: true,
        encrypt: "give members, coordinators and clients certificates and set \
                  `--tls-cluster=yes`",
        ..resp
    };
    let admin = Exposed {
        purpose: "admin HTTP",
        addresses: &config.admin_bind,
        is_encrypted: config.admin_wants_tls(),
        has_credentials: true, // it only reads
        encrypt: ENCRYPT_ADMIN,
        protect: "",
    };
    let ports = [
        (config.serves_plain(), resp),
        (config.tls_port != 0, resp_tls),
        (config.is_member(), native),
        (config.admin, admin),
    ];
    for (_, port) in ports.iter().filter(|(is_served, _)| *is_served) {
        check_exposed(port, config.insecure_bind).map_err(ServerError::Config)?;
    }
    Ok(())
}
