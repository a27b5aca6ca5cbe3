//! The settings of a running server.
//!
//! **Invariant**
//! - J1: a change of several settings is made completely or not at all. The changed
//!   settings are checked together, so [`ServerConfig::check`] allows every state that is ever
//!   visible.

use super::Shared;
use super::encodings::Encodings;
use duramen_config::certificates::Certificates;
use duramen_config::{ConfigFile, ServerConfig, ServerError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Called with the settings after each change.
type OnChange = Box<dyn Fn(&ServerConfig) + Send + Sync>;

/// See the head of this file.
pub struct Settings {
    current: RwLock<Arc<ServerConfig>>,
    /// `memory` at the start.
    memory_at_start: u64,
    /// Grows with every change; Release there, Acquire in [`ConfigCache::get`].
    generation: AtomicU64,
    on_change: OnceLock<OnChange>,
    /// The configuration file; `None`: the server was started without one.
    file: Option<ConfigFile>,
    certificates: Arc<Certificates>,
    encodings: Encodings,
}

impl Settings {
    pub(super) fn new(config: ServerConfig, file: Option<ConfigFile>) -> Settings {
        Settings {
            memory_at_start: config.memory_bytes,
            current: RwLock::new(Arc::new(config)),
            generation: AtomicU64::new(1),
            on_change: OnceLock::new(),
            file,
            certificates: Arc::default(),
            encodings: Encodings::default(),
        }
    }

    /// The settings now. A hot path should keep a [`ConfigCache`].
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Changes the settings: `make` gets the settings before the change, and a copy to change. If
    /// `make` fails, the settings stay (J1).
    pub(crate) fn change(
        &self,
        make: impl FnOnce(&ServerConfig, &mut ServerConfig) -> Result<(), ServerError>,
    ) -> Result<(), ServerError> {
        let mut guard = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let mut config = ServerConfig::clone(&guard);
        make(&guard, &mut config)?;
        *guard = Arc::new(config);
        drop(guard);
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// From now on `told` is called with the settings after each change. Must be called once.
    pub fn when_changed(&self, told: impl Fn(&ServerConfig) + Send + Sync + 'static) {
        self.on_change.get_or_init(|| Box::new(told));
    }

    /// Calls the listener with changed settings.
    pub(crate) fn tell(&self, config: &ServerConfig) {
        if let Some(told) = self.on_change.get() {
            told(config);
        }
    }

    /// `memory` at the start.
    pub(crate) fn memory_at_start(&self) -> u64 {
        self.memory_at_start
    }

    /// The configuration file; `None`: the server was started without one.
    pub fn file(&self) -> Option<&ConfigFile> {
        self.file.as_ref()
    }

    pub fn certificates(&self) -> &Arc<Certificates> {
        &self.certificates
    }

    /// The limits of collections that decide the reply of `OBJECT ENCODING`.
    pub(crate) fn encodings(&self) -> &Encodings {
        &self.encodings
    }

    #[inline]
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }
}

/// One thread's copy of the settings, refreshed after each change. Reading it costs one load of a
/// cache line that is rarely written.
pub struct ConfigCache {
    generation: u64,
    config: Arc<ServerConfig>,
}

impl ConfigCache {
    pub fn new(shared: &Shared) -> ConfigCache {
        ConfigCache {
            generation: shared.settings.generation(),
            config: shared.config(),
        }
    }

    pub fn get(&mut self, shared: &Shared) -> &Arc<ServerConfig> {
        let generation = shared.settings.generation();
        if generation != self.generation {
            self.generation = generation;
            self.config = shared.config();
        }
        &self.config
    }
}
