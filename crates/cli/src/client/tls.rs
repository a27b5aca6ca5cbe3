//! TLS of the commands that speak RESP: the same options for all of them.

use super::stream::{Stream, in_time};
use crate::cluster::tls::{TlsArgs, is_environment_of_resp};
use crate::config::is_service_link;
use crate::failure::Failure;
use clap::builder::BoolishValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use duramen_tls::{Identity, LoadError, TlsError};
use std::ffi::OsString;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};

/// The variable with the port of `--tls`. It is a server's setting, so it may be in the environment
/// of a container.
const PORT_ENV: &str = "DURAMEN_TLS_PORT";

/// Options that ask for TLS if they are given as flags. The same names in the environment may be
/// a server's settings.
const NAMING_FLAGS: [&str; 4] = [
    "tls_server_name",
    "tls_cert_file",
    "tls_key_file",
    "tls_ca_cert_file",
];

// The same for each command: no doc comment, because clap would take it for a description.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "TLS")]
pub(crate) struct RespTlsArgs {
    /// Connect with TLS. Each of the options below does the same, if it is given as a flag. The
    /// port is then DURAMEN_TLS_PORT, if that is set and there is no --port.
    #[arg(long, global = true, env = "DURAMEN_TLS", value_parser = BoolishValueParser::new())]
    tls: bool,
    /// Name or address that the servers' certificates must have, if it is not the host that is
    /// connected to.
    #[arg(
        long,
        global = true,
        env = "DURAMEN_TLS_SERVER_NAME",
        value_name = "NAME"
    )]
    tls_server_name: Option<String>,
    #[command(flatten)]
    files: TlsArgs,
    /// Whether an option above is given as a flag.
    #[arg(skip)]
    is_named: bool,
    /// Whether `--tls` is given as a flag.
    #[arg(skip)]
    is_asked: bool,
    /// The loaded files, which all connections of the command use.
    #[arg(skip)]
    identity: OnceLock<Arc<Identity>>,
}

impl RespTlsArgs {
    /// Notes which options are flags. `given` are all arguments of the command.
    pub(crate) fn note_flags(&mut self, given: &ArgMatches) {
        self.is_named = NAMING_FLAGS.iter().any(|name| is_flag(given, name));
        self.is_asked = is_flag(given, "tls");
    }

    /// The port of the environment; `None` if it is the same as without TLS.
    ///
    /// # Errors
    /// The variable is no port.
    pub(crate) fn port(&self) -> Result<Option<u16>, Failure> {
        if !self.is_wanted() {
            return Ok(None);
        }
        let is_set = |text: &OsString| !text.is_empty() && !is_service_link(PORT_ENV, text);
        let Some(text) = std::env::var_os(PORT_ENV).filter(is_set) else {
            return Ok(None);
        };
        match text.to_str().and_then(|text| text.parse().ok()) {
            Some(0) => Ok(None), // 0 is a server's setting for "no port"
            Some(port) => Ok(Some(port)),
            None => Err(Failure::Usage(format!(
                "{PORT_ENV} is not a port: {}",
                text.display()
            ))),
        }
    }

    /// The certificates for a cluster's coordinators.
    ///
    /// # Errors
    /// TLS is asked for without any certificate.
    pub(super) fn of_cluster(&self) -> Result<TlsArgs, Failure> {
        if !self.is_named && !self.is_asked && is_environment_of_resp() {
            return Ok(TlsArgs::default());
        }
        let files = self.files.files().map_err(Failure::Usage)?;
        match (self.tls, files) {
            (true, None) => Err(Failure::Usage(
                "TLS to a cluster needs a certificate, its key and the authority: add \
                 --tls-cert-file, --tls-key-file and --tls-ca-cert-file"
                    .to_owned(),
            )),
            _ => Ok(self.files.clone()),
        }
    }

    fn is_wanted(&self) -> bool {
        self.tls || self.is_named
    }

    /// The loaded files; `None` for connections without TLS.
    ///
    /// # Errors
    /// A file cannot be used, or the authority is missing.
    pub(crate) fn identity(&self) -> Result<Option<Arc<Identity>>, Failure> {
        if !self.is_wanted() {
            return Ok(None);
        }
        if let Some(loaded) = self.identity.get() {
            return Ok(Some(loaded.clone()));
        }
        let settings = self.files.settings();
        if !settings.has_authority() {
            return Err(Failure::Usage(
                "TLS needs the authority that signed the server's certificate: name its file by \
                 --tls-ca-cert-file (or DURAMEN_TLS_CA_CERT_FILE); for a public one, the file \
                 with all authorities of this system"
                    .to_owned(),
            ));
        }
        let loaded = Identity::load(settings);
        let loaded = Arc::new(loaded.map_err(|error| Failure::Usage(load_error(&error)))?);
        Ok(Some(self.identity.get_or_init(|| loaded).clone()))
    }

    /// The name that the certificate of a server at `host` must have.
    pub(crate) fn name_of<'a>(&'a self, host: &'a str) -> &'a str {
        self.tls_server_name.as_deref().unwrap_or(host)
    }

    /// Encrypts a connection to `host`, if that is asked for.
    ///
    /// # Errors
    /// Those of [`identity`](Self::identity); the handshake fails.
    pub(super) fn wrap(
        &self,
        host: &str,
        address: &str,
        socket: TcpStream,
    ) -> Result<Stream, Failure> {
        let Some(identity) = self.identity()? else {
            return Ok(Stream::Plain(socket));
        };
        let stream = duramen_tls::Stream::connect(&identity, self.name_of(host), socket);
        let stream = stream.map_err(|reason| failed(address, reason))?;
        Ok(Stream::Tls(Box::new(stream)))
    }
}

/// Whether the option is given as a flag, before or behind the names of subcommands.
fn is_flag(given: &ArgMatches, name: &str) -> bool {
    let here = given
        .try_contains_id(name)
        .is_ok_and(|known| known && given.value_source(name) == Some(ValueSource::CommandLine));
    here || given
        .subcommand()
        .is_some_and(|(_, deeper)| is_flag(deeper, name))
}

fn load_error(error: &LoadError) -> String {
    match error {
        LoadError::Half { missing } => {
            format!("a certificate needs its key, and a key its certificate: add --{missing}")
        }
        other => other.to_string(),
    }
}

/// The failure of a handshake, or of the first bytes after it, which may be the other side's
/// refusal.
pub(super) fn failed(address: &str, reason: io::Error) -> Failure {
    let advice = match reason
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<TlsError>())
    {
        Some(TlsError::PlainServer) => "Is the port right? See --port, or do without --tls.",
        Some(TlsError::BadCertificate(why)) if why.contains("authority") => {
            "Is it the right --tls-ca-cert-file, and the right server?"
        }
        Some(TlsError::BadCertificate(why)) if why.starts_with("it is for") => {
            "Name the server as its certificate does by --host, or only the certificate's name by \
             --tls-server-name."
        }
        Some(TlsError::BadCertificate(_)) => "`duramen cert show FILE` shows a certificate.",
        Some(TlsError::Refused(_) | TlsError::NoCertificate) => {
            "The server wants a certificate of its authority: see --tls-cert-file and \
             --tls-key-file."
        }
        _ if reason.kind() == io::ErrorKind::UnexpectedEof => {
            "The server ended the handshake: is this a port with TLS?"
        }
        _ => "",
    };
    Failure::Tls {
        address: address.to_owned(),
        reason: in_time(reason),
        advice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_replaces_the_host_and_no_option_means_no_tls() {
        let mut args = RespTlsArgs::default();
        assert!(args.identity().expect("nothing to load").is_none());
        assert_eq!(args.name_of("10.0.0.1"), "10.0.0.1");
        args.tls_server_name = Some("db.example.org".to_owned());
        assert_eq!(args.name_of("10.0.0.1"), "db.example.org");
        args.is_named = true;
        let error = args.identity().expect_err("there is no authority");
        assert!(error.to_string().contains("--tls-ca-cert-file"), "{error}");
    }
}
