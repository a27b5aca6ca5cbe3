//! A loaded certificate with its key and trusted authorities, as configurations of rustls, which
//! can be replaced while connections go on.
//!
//! **Invariants**
//! - I1: what is served was loaded and checked as a whole: the key belongs to the certificate, and
//!   the certificate was valid when it was loaded. A load that fails changes nothing.
//! - I2: a session keeps the configuration that it began with; a later session has the newest one.
//! - I3: tickets of one load are worth nothing after the next: a client whose authority was taken
//!   away cannot continue an earlier session.
//!
//! **Concurrency.** Any thread may ask for a session; loads exclude each other.

use crate::certificate::{self, Description, show_time};
use crate::error::LoadError;
use crate::files;
use crate::session::Session;
use crate::settings::{ClientAuth, Settings};
use ring::digest::{Context, Digest, SHA256};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Sessions that a client remembers, to continue them: enough for each server of a cluster.
const REMEMBERED_SESSIONS: usize = 256;

/// The result of a reload that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// The files hold the same bytes as before.
    Same,
    New,
}

/// Files that were loaded and checked as a whole: see [`Identity::prepare`].
pub struct Prepared {
    settings: Settings,
    current: Current,
}

/// Certificate, key and authorities of this process for one purpose.
pub struct Identity {
    /// Held during a load.
    settings: Mutex<Settings>,
    current: RwLock<Arc<Current>>,
    /// Grows with every change of `current`. Release in `set`, after the change; Acquire in
    /// `generation`.
    generation: AtomicU64,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let current = self.current();
        f.debug_struct("Identity")
            .field("certificate", &current.own)
            .finish_non_exhaustive()
    }
}

struct Current {
    server: Option<Arc<ServerConfig>>,
    client: Option<Arc<ClientConfig>>,
    own: Option<Description>,
    digest: Digest,
    warnings: Vec<String>,
}

impl Identity {
    /// # Errors
    /// [`LoadError`] names the file and the reason.
    pub fn load(settings: Settings) -> Result<Identity, LoadError> {
        let current = Current::load(&settings)?;
        Ok(Identity {
            settings: Mutex::new(settings),
            current: RwLock::new(Arc::new(current)),
            generation: AtomicU64::new(0),
        })
    }

    /// Reads the files again; if they have changed, later sessions use the new ones.
    ///
    /// # Errors
    /// [`LoadError`]; then the last certificates stay in use (I1).
    pub fn reload(&self) -> Result<Reloaded, LoadError> {
        let settings = self.lock();
        self.load_again(&settings)
    }

    /// Loads other files or choices, to be [installed](Self::install) later, without reading a file
    /// then.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn prepare(settings: Settings) -> Result<Prepared, LoadError> {
        let current = Current::load(&settings)?;
        Ok(Prepared { settings, current })
    }

    /// From now on these are in use for later sessions.
    pub fn install(&self, prepared: Prepared) -> Reloaded {
        let Prepared { settings, current } = prepared;
        let mut last = self.lock();
        let is_same =
            *last == settings && current.digest.as_ref() == self.current().digest.as_ref();
        *last = settings;
        if is_same {
            Reloaded::Same
        } else {
            self.set(current);
            Reloaded::New
        }
    }

    fn load_again(&self, settings: &Settings) -> Result<Reloaded, LoadError> {
        let loaded = Current::load(settings)?;
        if loaded.digest.as_ref() == self.current().digest.as_ref() {
            return Ok(Reloaded::Same);
        }
        self.set(loaded);
        Ok(Reloaded::New)
    }

    fn lock(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, loaded: Current) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Differs from an earlier value if sessions have had other files since.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// A session for a connection that a client has opened.
    ///
    /// # Errors
    /// [`LoadError::NoIdentity`].
    pub fn server_session(&self) -> Result<Session, LoadError> {
        Session::server(self.server_config()?)
    }

    /// A session for a connection that this side has opened to `host`, a host name or an address.
    ///
    /// # Errors
    /// [`LoadError::NoTrust`], [`LoadError::BadName`].
    pub fn client_session(&self, host: &str) -> Result<Session, LoadError> {
        Session::client(self.client_config()?, server_name(host)?)
    }

    /// # Errors
    /// [`LoadError::NoIdentity`]: there is no certificate.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, LoadError> {
        self.current().server.clone().ok_or(LoadError::NoIdentity)
    }

    /// # Errors
    /// [`LoadError::NoTrust`]: there is no authority.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, LoadError> {
        self.current().client.clone().ok_or(LoadError::NoTrust)
    }

    /// The own certificate.
    pub fn certificate(&self) -> Option<Description> {
        self.current().own.clone()
    }

    /// Seconds until the own certificate expires; negative: it has expired. None: there is none.
    pub fn seconds_left(&self) -> Option<i64> {
        self.current().own.as_ref().map(Description::seconds_left)
    }

    /// Warnings about files that can be used, but should not stay as they are.
    pub fn warnings(&self) -> Vec<String> {
        self.current().warnings.clone()
    }
}

/// The name by which a server's certificate is checked: a host name or an address.
///
/// # Errors
/// [`LoadError::BadName`].
pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, LoadError> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(bare.to_owned()).map_err(|_| LoadError::BadName {
        name: host.to_owned(),
    })
}

/// The content of all files, before it is checked.
struct Content {
    digest: Context,
    warnings: Vec<String>,
}

impl Content {
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, LoadError> {
        let bytes = files::read(path)?;
        self.digest.update(&(bytes.len() as u64).to_le_bytes());
        self.digest.update(&bytes);
        Ok(bytes)
    }
}

/// Certificate chain and key.
type Own = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Current {
    fn load(settings: &Settings) -> Result<Current, LoadError> {
        let mut content = Content {
            digest: Context::new(&SHA256),
            warnings: Vec::new(),
        };
        let own = if settings.has_certificate() {
            Some(read_own(settings, &mut content)?)
        } else {
            None
        };
        let roots = if settings.has_authority() {
            Some(Arc::new(read_roots(settings, &mut content)?))
        } else {
            None
        };
        let described = own
            .as_ref()
            .map(|(chain, _)| check_validity(&settings.certificate_file, chain))
            .transpose()?;
        let server = own
            .as_ref()
            .map(|own| server_config(settings, own, roots.as_ref()))
            .transpose()?;
        let client = roots
            .map(|roots| client_config(settings, own.as_ref(), roots))
            .transpose()?;
        Ok(Current {
            server: server.map(Arc::new),
            client: client.map(Arc::new),
            own: described,
            digest: content.digest.finish(),
            warnings: content.warnings,
        })
    }
}

fn read_own(settings: &Settings, content: &mut Content) -> Result<Own, LoadError> {
    let (certificate, key) = (&settings.certificate_file, &settings.key_file);
    for (path, missing) in [(certificate, "tls-cert-file"), (key, "tls-key-file")] {
        if path.as_os_str().is_empty() {
            return Err(LoadError::Half { missing });
        }
    }
    let chain = files::certificates(certificate, &content.read(certificate)?)?;
    let parsed = files::key(key, &content.read(key)?)?;
    if files::is_open_to_others(key) {
        content.warnings.push(format!(
            "other users of this machine may read the key in {}: `chmod 600` it",
            key.display()
        ));
    }
    Ok((chain, parsed))
}

fn read_roots(settings: &Settings, content: &mut Content) -> Result<RootCertStore, LoadError> {
    let mut roots = RootCertStore::empty();
    if !settings.ca_file.as_os_str().is_empty() {
        let bytes = content.read(&settings.ca_file)?;
        add_roots(&mut roots, &settings.ca_file, &bytes)?;
    }
    if !settings.ca_dir.as_os_str().is_empty() {
        for path in files_of(&settings.ca_dir)? {
            let bytes = content.read(&path)?;
            match add_roots(&mut roots, &path, &bytes) {
                // A directory of authorities may have other files too.
                Err(LoadError::NoCertificate { .. }) => {}
                added => added?,
            }
        }
    }
    if roots.is_empty() {
        Err(LoadError::NoCertificate {
            path: settings.ca_dir.clone(),
        })
    } else {
        Ok(roots)
    }
}

/// The files of a directory, in the order of their names.
fn files_of(dir: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let failed = |source| LoadError::Read {
        path: dir.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn add_roots(roots: &mut RootCertStore, path: &Path, bytes: &[u8]) -> Result<(), LoadError> {
    for certificate in files::certificates(path, bytes)? {
        roots
            .add(certificate)
            .map_err(|error| LoadError::BadCertificate {
                path: path.to_owned(),
                reason: error.to_string(),
            })?;
    }
    Ok(())
}

fn check_validity(path: &Path, chain: &[CertificateDer<'_>]) -> Result<Description, LoadError> {
    let first = chain.first().ok_or_else(|| LoadError::NoCertificate {
        path: path.to_owned(),
    })?;
    let described = certificate::describe(path, first)?;
    if described.seconds_left() < 0 {
        return Err(LoadError::Expired {
            path: path.to_owned(),
            since: show_time(described.not_after),
        });
    }
    if described.not_before > certificate::unix_now() {
        return Err(LoadError::NotYetValid {
            path: path.to_owned(),
            from: show_time(described.not_before),
        });
    }
    Ok(described)
}

fn refused(settings: &Settings) -> impl Fn(rustls::Error) -> LoadError {
    let (certificate, key) = (settings.certificate_file.clone(), settings.key_file.clone());
    move |error| match error {
        rustls::Error::InconsistentKeys(_) => LoadError::KeyMismatch {
            certificate: certificate.clone(),
            key: key.clone(),
        },
        rustls::Error::General(reason) => LoadError::BadKey {
            path: key.clone(),
            reason,
        },
        rustls::Error::InvalidCertificate(error) => LoadError::BadCertificate {
            path: certificate.clone(),
            reason: error.to_string(),
        },
        error => LoadError::Refused(error.to_string()),
    }
}

fn server_config(
    settings: &Settings,
    (chain, key): &Own,
    roots: Option<&Arc<RootCertStore>>,
) -> Result<ServerConfig, LoadError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&settings.protocols.versions())
        .map_err(|error| LoadError::Refused(error.to_string()))?;
    let builder = if settings.client_auth == ClientAuth::No {
        builder.with_no_client_auth()
    } else {
        let roots = roots.ok_or(LoadError::NoAuthority)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider);
        let verifier = match settings.client_auth {
            ClientAuth::Optional => verifier.allow_unauthenticated(),
            _ => verifier,
        };
        let verifier = verifier
            .build()
            .map_err(|error| LoadError::Refused(error.to_string()))?;
        builder.with_client_cert_verifier(verifier)
    };
    let mut config = builder
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(refused(settings))?;
    // Sessions are resumed by tickets alone, so a server need not remember its clients.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    if settings.no_resumption {
        config.send_tls13_tickets = 0;
    } else {
        // I3: the keys of tickets are of this load. The ticketer replaces them by itself every six
        // hours.
        config.ticketer = rustls::crypto::ring::Ticketer::new()
            .map_err(|error| LoadError::Refused(error.to_string()))?;
    }
    Ok(config)
}

fn client_config(
    settings: &Settings,
    own: Option<&Own>,
    roots: Arc<RootCertStore>,
) -> Result<ClientConfig, LoadError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&settings.protocols.versions())
        .map_err(|error| LoadError::Refused(error.to_string()))?
        .with_root_certificates(roots);
    let mut config = match own {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(refused(settings))?,
        None => builder.with_no_client_auth(),
    };
    config.resumption = if settings.no_resumption {
        Resumption::disabled()
    } else {
        Resumption::in_memory_sessions(REMEMBERED_SESSIONS)
    };
    Ok(config)
}
