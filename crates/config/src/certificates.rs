//! The certificates of a running server: for new sessions, reloaded when their files change.
//!
//! **Concurrency.** Any thread may ask for a session. Files are read by the thread that starts the
//! server, by the thread that executes an operator's order, and by a thread for this alone
//! ([`Certificates::watch`]).

use crate::ServerConfig;
use crate::error::ServerError;
use duramen_tls::{
    Description, Identity, LoadError, Prepared, Reloaded, Session, Settings, rustls,
};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Interval at which the files are read again: short enough for a certificate that was renewed days
/// before its end, and long enough to cost only a few reads of small files.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// A certificate causes a warning once a day during this many days before its end.
const WARN_DAYS: i64 = 30;

/// The certificates of one server; without TLS there are none.
#[derive(Default)]
pub struct Certificates {
    /// The identity for RESP.
    clients: OnceLock<Loaded>,
    /// The identity for admin HTTP: the same files, but a peer need not show a certificate, because
    /// probes have none.
    admin: OnceLock<Loaded>,
    /// The identity for the native protocol: the same files, and each peer must show a certificate.
    cluster: OnceLock<Loaded>,
    /// The days that were left when the last warning was written.
    warned_at: AtomicI64,
}

/// The loaded files of changed settings.
pub struct NewCertificates {
    settings: Settings,
    clients: Option<Prepared>,
    admin: Option<Prepared>,
    cluster: Option<Prepared>,
}

impl NewCertificates {
    /// Whether the loaded files are those of these settings.
    pub fn are_of(&self, settings: &Settings) -> bool {
        self.settings == *settings
    }
}

/// An identity, and the error of its last reload, so that the error is logged once. An empty error
/// means that the reload succeeded.
struct Loaded {
    identity: Arc<Identity>,
    last_error: Mutex<String>,
}

fn refused(error: LoadError) -> ServerError {
    ServerError::Config(format!("TLS: {error}"))
}

impl Loaded {
    fn new(settings: Settings) -> Result<Loaded, ServerError> {
        let identity = Identity::load(settings).map_err(refused)?;
        for warning in identity.warnings() {
            tracing::warn!("TLS: {warning}");
        }
        Ok(Loaded {
            identity: Arc::new(identity),
            last_error: Mutex::default(),
        })
    }

    fn reload(&self) {
        match self.identity.reload() {
            Ok(reloaded) => self.note(reloaded),
            Err(error) => {
                let text = error.to_string();
                if self.set_error(text.clone()) != text {
                    tracing::error!("the TLS certificates in use stay as they are: {text}");
                }
            }
        }
    }

    fn set_error(&self, text: String) -> String {
        let mut last = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut last, text)
    }

    fn note(&self, reloaded: Reloaded) {
        let had_error = !self.set_error(String::new()).is_empty();
        if reloaded == Reloaded::Same && !had_error {
            return;
        }
        for warning in self.identity.warnings() {
            tracing::warn!("TLS: {warning}");
        }
        if let Some(certificate) = self.identity.certificate() {
            tracing::info!(
                subject = certificate.subject,
                days_left = certificate.days_left(),
                "TLS certificates were read: new connections use them"
            );
        }
    }
}

impl Certificates {
    /// Loads the files that `config` names, if any port speaks TLS. To be called once.
    ///
    /// # Errors
    /// [`ServerError::Config`] names the file and the fault.
    pub fn load(&self, config: &ServerConfig) -> Result<(), ServerError> {
        if config.wants_tls() {
            let loaded = Loaded::new(config.tls_settings()?)?;
            self.clients.get_or_init(|| loaded);
        }
        if config.admin_wants_tls() {
            let loaded = Loaded::new(config.admin_tls_settings()?)?;
            self.admin.get_or_init(|| loaded);
        }
        if let Some(settings) = config.cluster_tls_settings() {
            let loaded = Loaded::new(settings)?;
            self.cluster.get_or_init(|| loaded);
        }
        self.warn_of_end();
        Ok(())
    }

    /// Reads the files of changed settings.
    ///
    /// # Errors
    /// [`ServerError::Config`]: they cannot be used.
    pub fn prepare(&self, config: &ServerConfig) -> Result<NewCertificates, ServerError> {
        let settings = config.tls_settings()?;
        let clients = self.clients.get().map(|_| settings.clone());
        let admin = self.admin.get().map(|_| config.admin_tls_settings());
        let admin = admin.transpose()?;
        let cluster = self.cluster.get().and(config.cluster_tls_settings());
        let prepare = |settings| Identity::prepare(settings).map_err(refused);
        Ok(NewCertificates {
            settings,
            clients: clients.map(prepare).transpose()?,
            admin: admin.map(prepare).transpose()?,
            cluster: cluster.map(prepare).transpose()?,
        })
    }

    /// Takes over the files and choices of changed settings. Reads no file.
    pub fn install(&self, new: NewCertificates) {
        let all = [
            self.clients.get().zip(new.clients),
            self.admin.get().zip(new.admin),
            self.cluster.get().zip(new.cluster),
        ];
        for (loaded, prepared) in all.into_iter().flatten() {
            loaded.note(loaded.identity.install(prepared));
        }
    }

    /// Reads the files again. An error is logged once, and the last certificates stay in use.
    pub fn reload(&self) {
        let all = [&self.clients, &self.admin, &self.cluster];
        all.into_iter()
            .filter_map(OnceLock::get)
            .for_each(Loaded::reload);
        self.warn_of_end();
    }

    fn warn_of_end(&self) {
        let Some(certificate) = self.certificate() else {
            return;
        };
        let days = certificate.days_left();
        // The initial value is more than any certificate's days, so the first look warns.
        let last = self.warned_at.swap(days, Ordering::Relaxed);
        if days < WARN_DAYS && last != days {
            let subject = certificate.subject;
            match days {
                0.. => tracing::warn!(
                    subject,
                    days_left = days,
                    "the TLS certificate expires soon: renew it, for example by `duramen cert rotate`"
                ),
                _ => tracing::error!(
                    subject,
                    "the TLS certificate has expired: clients refuse it; renew it, for example by `duramen cert rotate`"
                ),
            }
        }
    }

    /// Reloads the files periodically until the sender of `ended` is dropped.
    pub fn watch(&self, ended: &Receiver<()>) {
        while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            self.reload();
        }
    }

    /// Whether any port speaks TLS.
    pub fn are_used(&self) -> bool {
        self.certificate().is_some()
    }

    /// The identity of the native ports and links; `None` if they are not encrypted.
    pub fn cluster(&self) -> Option<Arc<Identity>> {
        let loaded = self.cluster.get()?;
        Some(Arc::clone(&loaded.identity))
    }

    /// A session for a client.
    ///
    /// # Errors
    /// [`LoadError::NoIdentity`]: no port speaks TLS.
    pub fn session(&self) -> Result<Session, LoadError> {
        let loaded = self.clients.get().ok_or(LoadError::NoIdentity)?;
        loaded.identity.server_session()
    }

    /// The configuration of rustls for the next connection of admin HTTP.
    ///
    /// # Errors
    /// [`LoadError::NoIdentity`]: admin HTTP speaks no TLS.
    pub fn config(&self) -> Result<Arc<rustls::ServerConfig>, LoadError> {
        let loaded = self.admin.get().ok_or(LoadError::NoIdentity)?;
        loaded.identity.server_config()
    }

    /// The certificate in use; `None` if no port speaks TLS.
    pub fn certificate(&self) -> Option<Description> {
        let loaded = self.clients.get().or(self.cluster.get())?;
        loaded.identity.certificate()
    }
}
