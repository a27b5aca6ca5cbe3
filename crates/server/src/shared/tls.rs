//! The certificates of a running server: for new sessions, reloaded when their files change.
//!
//! **Concurrency.** Any thread may ask for a session. Files are read by the thread that starts the
//! server, by the one that a person's order runs on, and by a thread of their own
//! ([`Certificates::watch`]).

use crate::config::ServerConfig;
use crate::error::ServerError;
use duramen_tls::{Description, Identity, LoadError, Reloaded, Session, rustls};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How often the files are read again: soon enough for a certificate that was renewed days before
/// its end, and a few reads of small files.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// From so many days before its end on, a certificate is warned of, once a day.
const WARN_DAYS: i64 = 30;

/// The certificates of one server; without TLS there are none.
#[derive(Default)]
pub struct Certificates {
    identity: OnceLock<Identity>,
    /// The days left when a warning was written.
    warned_at: AtomicI64,
    /// The error of the last reload, so that it is logged once. Empty: it succeeded.
    last_error: Mutex<String>,
}

fn refused(error: LoadError) -> ServerError {
    ServerError::Config(format!("TLS: {error}"))
}

impl Certificates {
    /// Loads the files that `config` names, if any port speaks TLS. To be called once.
    ///
    /// # Errors
    /// [`ServerError::Config`] names the file and the fault.
    pub(crate) fn load(&self, config: &ServerConfig) -> Result<(), ServerError> {
        if !config.wants_tls() {
            return Ok(());
        }
        let identity = Identity::load(config.tls_settings()?).map_err(refused)?;
        for warning in identity.warnings() {
            tracing::warn!("TLS: {warning}");
        }
        self.identity.get_or_init(|| identity);
        self.warn_of_end();
        Ok(())
    }

    /// Takes the files and choices of changed settings.
    ///
    /// # Errors
    /// [`ServerError::Config`]; then the last certificates stay in use.
    pub(crate) fn replace(&self, config: &ServerConfig) -> Result<(), ServerError> {
        let Some(identity) = self.identity.get() else {
            return Ok(());
        };
        let reloaded = identity.replace(config.tls_settings()?).map_err(refused)?;
        self.note(reloaded, identity);
        Ok(())
    }

    /// Reads the files again. An error is logged once, and the last certificates stay in use.
    pub fn reload(&self) {
        let Some(identity) = self.identity.get() else {
            return;
        };
        match identity.reload() {
            Ok(reloaded) => self.note(reloaded, identity),
            Err(error) => {
                let text = error.to_string();
                if self.set_error(text.clone()) != text {
                    tracing::error!("the TLS certificates in use stay as they are: {text}");
                }
            }
        }
        self.warn_of_end();
    }

    fn set_error(&self, text: String) -> String {
        let mut last = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut last, text)
    }

    fn note(&self, reloaded: Reloaded, identity: &Identity) {
        let had_error = !self.set_error(String::new()).is_empty();
        if reloaded == Reloaded::Same && !had_error {
            return;
        }
        for warning in identity.warnings() {
            tracing::warn!("TLS: {warning}");
        }
        if let Some(certificate) = identity.certificate() {
            tracing::info!(
                subject = certificate.subject,
                days_left = certificate.days_left(),
                "TLS certificates were read: new connections use them"
            );
        }
    }

    fn warn_of_end(&self) {
        let Some(certificate) = self.certificate() else {
            return;
        };
        let days = certificate.days_left();
        // No certificate is valid for so long: the first look warns.
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

    /// Reloads until `ended` is dropped.
    pub(crate) fn watch(&self, ended: &Receiver<()>) {
        while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            self.reload();
        }
    }

    /// Whether any port speaks TLS.
    pub fn are_used(&self) -> bool {
        self.identity.get().is_some()
    }

    /// A session for a client.
    ///
    /// # Errors
    /// [`LoadError::NoIdentity`]: no port speaks TLS.
    pub(crate) fn session(&self) -> Result<Session, LoadError> {
        self.identity()?.server_session()
    }

    /// The configuration of rustls for the next connection of admin HTTP.
    ///
    /// # Errors
    /// [`LoadError::NoIdentity`]: no port speaks TLS.
    pub(crate) fn config(&self) -> Result<Arc<rustls::ServerConfig>, LoadError> {
        self.identity()?.server_config()
    }

    fn identity(&self) -> Result<&Identity, LoadError> {
        self.identity.get().ok_or(LoadError::NoIdentity)
    }

    /// The certificate in use; None: no port speaks TLS.
    pub fn certificate(&self) -> Option<Description> {
        self.identity.get()?.certificate()
    }
}
