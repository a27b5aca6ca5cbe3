//! The certificates of a command: the same options for coordinators and for all commands that ask
//! one, or a server. Their names are those of a server's settings.

use clap::{Args, Command};
use duramen_client::TlsFiles;
use duramen_tls::{ClientAuth, Identity, LoadError, Protocols, Settings};
use std::path::PathBuf;
use std::sync::Arc;

// The same for each command: no doc comment, because clap would take it for a description.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TlsArgs {
    /// This program's certificate, in PEM form, with its key below. A cluster with TLS requires
    /// it; a server does, unless its tls-auth-clients says otherwise.
    #[arg(
        long,
        global = true,
        env = "DURAMEN_TLS_CERT_FILE",
        value_name = "FILE"
    )]
    tls_cert_file: Option<PathBuf>,
    /// Its private key, in PEM form, readable by this user alone.
    #[arg(long, global = true, env = "DURAMEN_TLS_KEY_FILE", value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// Certificate of the cluster's own authority, or of the server's, in PEM form: the other side
    /// must have one of it.
    #[arg(
        long,
        global = true,
        env = "DURAMEN_TLS_CA_CERT_FILE",
        value_name = "FILE"
    )]
    tls_ca_cert_file: Option<PathBuf>,
}

impl TlsArgs {
    /// The files; `None` for connections without TLS.
    ///
    /// # Errors
    /// Some of the options are missing: a side that is set up for TLS never connects without it.
    pub(crate) fn files(&self) -> Result<Option<TlsFiles>, String> {
        let options = [
            ("--tls-cert-file", &self.tls_cert_file),
            ("--tls-key-file", &self.tls_key_file),
            ("--tls-ca-cert-file", &self.tls_ca_cert_file),
        ];
        let absent = |(_, file): &&(&str, &Option<PathBuf>)| file.is_none();
        match (
            &self.tls_cert_file,
            &self.tls_key_file,
            &self.tls_ca_cert_file,
        ) {
            (Some(certificate), Some(key), Some(ca)) => Ok(Some(TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                ca: ca.clone(),
            })),
            (None, None, None) => Ok(None),
            _ => {
                let missing = options.iter().filter(absent).map(|(name, _)| *name);
                let missing = missing.collect::<Vec<_>>().join(" and ");
                Err(format!(
                    "TLS to a cluster needs a certificate, its key and the authority: add {missing}"
                ))
            }
        }
    }

    /// The same files for a connection to a server, which may require the authority alone.
    pub(crate) fn settings(&self) -> Settings {
        let path = |file: &Option<PathBuf>| file.clone().unwrap_or_default();
        Settings {
            certificate_file: path(&self.tls_cert_file),
            key_file: path(&self.tls_key_file),
            ca_file: path(&self.tls_ca_cert_file),
            ..Settings::default()
        }
    }

    /// As [`files`](Self::files), loaded, for a process that listens.
    ///
    /// # Errors
    /// Those of [`files`](Self::files); a file cannot be used.
    pub(super) fn identity(&self) -> Result<Option<Arc<Identity>>, String> {
        let Some(files) = self.files()? else {
            return Ok(None);
        };
        let settings = Settings::mutual(&files.certificate, &files.key, &files.ca);
        let identity = Identity::load(settings).map_err(|error| error.to_string())?;
        Ok(Some(Arc::new(identity)))
    }

    /// As [`identity`](Self::identity), for HTTP: peers may show no certificate.
    ///
    /// # Errors
    /// Those of [`identity`](Self::identity); there are no files.
    pub(super) fn identity_for_browsers(&self) -> Result<Arc<Identity>, String> {
        let files = self.files()?;
        let files = files.ok_or("--admin-tls yes needs certificates: add --tls-cert-file")?;
        let settings = Settings {
            client_auth: ClientAuth::Optional,
            protocols: Protocols::default(),
            ..Settings::mutual(&files.certificate, &files.key, &files.ca)
        };
        let identity = Identity::load(settings).map_err(|error| error.to_string())?;
        Ok(Arc::new(identity))
    }

    /// The reason why the files cannot be used now, if that may end by itself: the certificate has
    /// expired, or is not valid yet.
    pub(super) fn untimely(&self) -> Option<LoadError> {
        let files = self.files().ok()??;
        untimely(Settings::mutual(&files.certificate, &files.key, &files.ca))
    }

    /// The options of these files.
    pub(crate) fn of(files: &TlsFiles) -> TlsArgs {
        TlsArgs {
            tls_cert_file: Some(files.certificate.clone()),
            tls_key_file: Some(files.key.clone()),
            tls_ca_cert_file: Some(files.ca.clone()),
        }
    }
}

/// The options of a command that asks a coordinator. The environment may be that of a server whose
/// Redis clients have TLS and whose cluster has none: its files are then not the cluster's.
pub(crate) fn without_those_of_resp(command: Command) -> Command {
    if !is_environment_of_resp() {
        return command;
    }
    command.mut_args(|arg| match arg.get_id().as_str() {
        "tls_cert_file" | "tls_key_file" | "tls_ca_cert_file" => arg.env(None::<&'static str>),
        _ => arg,
    })
}

/// Whether files of TLS that the environment names are for Redis's clients alone.
pub(crate) fn is_environment_of_resp() -> bool {
    let read = |name: &str| std::env::var(name).unwrap_or_default();
    are_of_resp(&read("DURAMEN_TLS_CLUSTER"), &read("DURAMEN_TLS_PORT"))
}

/// Whether the files are for Redis's clients alone, by these settings of a server: `tls-cluster`
/// denies that they are the cluster's, or it is not set and there is a port with TLS.
fn are_of_resp(cluster: &str, port: &str) -> bool {
    match cluster.to_ascii_lowercase().as_str() {
        "" => port.parse().is_ok_and(|port: u16| port > 0),
        "no" | "false" | "off" | "0" => true,
        _ => false,
    }
}

/// The reason why these files cannot be used now, if that may end by itself.
pub(super) fn untimely(settings: Settings) -> Option<LoadError> {
    let fault = Identity::prepare(settings).err();
    fault.filter(LoadError::is_of_time)
}

/// The flags that pass these files to another process of this program.
pub(super) fn words(files: &TlsFiles) -> impl Iterator<Item = String> {
    let words = [
        ("--tls-cert-file", &files.certificate),
        ("--tls-key-file", &files.key),
        ("--tls-ca-cert-file", &files.ca),
    ];
    let word = |(flag, file): (&str, &PathBuf)| [flag.to_owned(), file.display().to_string()];
    words.map(word).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_server_are_the_clusters_if_it_says_so() {
        for (cluster, port, are) in [
            ("", "", false),
            ("", "0", false),
            ("", "tcp://10.0.0.1:6380", false),
            ("", "6380", true),
            ("No", "", true),
            ("0", "6380", true),
            ("yes", "6380", false),
        ] {
            assert_eq!(are_of_resp(cluster, port), are, "{cluster} {port}");
        }
    }

    #[test]
    fn all_files_or_none() {
        let file = |name: &str| Some(PathBuf::from(name));
        assert_eq!(TlsArgs::default().files(), Ok(None));
        let mut args = TlsArgs {
            tls_cert_file: file("a"),
            ..TlsArgs::default()
        };
        let why = args.files().expect_err("two are missing");
        assert!(
            why.contains("--tls-key-file and --tls-ca-cert-file"),
            "{why}"
        );
        args.tls_key_file = file("b");
        args.tls_ca_cert_file = file("c");
        let files = args.files().expect("all are given").expect("TLS");
        assert_eq!(TlsArgs::of(&files).files(), Ok(Some(files)));
    }
}
