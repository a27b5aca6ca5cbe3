//! The settings of a running server: reads and changes.
//!
//! **Invariant**
//! - J1: a change of several settings is made completely or not at all. The changed
//!   settings are checked together, so [`ServerConfig::check`] allows every state that is ever
//!   visible.

use super::Shared;
use crate::threads::mailbox::Message;
use duramen_base::ids::Level;
use duramen_config::certificates::NewCertificates;
use duramen_config::process::raise_file_limit;
use duramen_config::{EventClasses, SETTINGS, ServerConfig, ServerError, Setting, format_size};
use duramen_engine::Departure;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Called with the settings after each change.
pub(super) type OnChange = Box<dyn Fn(&ServerConfig) + Send + Sync>;

/// The changes that a reload of the configuration file made.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Names of settings that have a new value now.
    pub made: Vec<&'static str>,
    /// Names of settings that changed in the file but take effect only at the next start.
    pub later: Vec<&'static str>,
}

impl Shared {
    /// The current settings. A hot path should keep a [`ConfigCache`].
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// From now on `told` is called with the settings after each change. To be called once.
    pub fn when_changed(&self, told: impl Fn(&ServerConfig) + Send + Sync + 'static) {
        self.on_change.get_or_init(|| Box::new(told));
    }

    /// `CONFIG SET`: changes one setting of the running server.
    ///
    /// # Errors
    /// As [`set_configs`](Self::set_configs).
    pub fn set_config(&self, setting: &'static Setting, text: &str) -> Result<(), ServerError> {
        self.set_configs(&[(setting, text)])
    }

    /// `CONFIG SET`: changes settings of the running server, all of them or none (J1). A change of
    /// TLS reads files: not on a thread that serves clients.
    ///
    /// # Errors
    /// [`ServerError::Config`]: a value is wrong, or a setting cannot change while the server runs.
    pub fn set_configs(&self, changes: &[(&'static Setting, &str)]) -> Result<(), ServerError> {
        for (setting, _) in changes {
            if !setting.runtime {
                return Err(ServerError::Config(format!(
                    "{} cannot be changed while the server runs",
                    setting.name
                )));
            }
        }
        self.change(|config| {
            let mut changes = changes.iter();
            changes.try_for_each(|(setting, text)| setting.apply(config, text))
        })?;
        let is_among = |names: &[&str]| changes.iter().any(|(s, _)| names.contains(&s.name));
        if let Some(file) = &self.config_file {
            changes.iter().for_each(|(setting, _)| file.note(setting));
            // At the next start neither the level nor the mode must decide whether there is a
            // directory; and the file may have the mode under each of its names.
            let also: &[&str] = if is_among(&["mode", "maxmemory-policy"]) {
                &["mode", "maxmemory-policy", "level", "dir"]
            } else if is_among(&["level"]) {
                &["dir"]
            } else {
                &[]
            };
            let also = also.iter().filter_map(|name| Setting::find(name));
            also.for_each(|setting| file.note(setting));
        }
        Ok(())
    }

    /// Applies the changes of a configuration file that was read again. `last` and `now` are the
    /// settings of the previous read and of this one. A setting that `CONFIG SET` has changed stays
    /// as it is if the file has not changed it (J1).
    ///
    /// # Errors
    /// [`ServerError::Config`]: the settings do not fit together, or do not fit the way the server
    /// was started; nothing is changed.
    pub fn reload(&self, last: &ServerConfig, now: &ServerConfig) -> Result<Changes, ServerError> {
        let has_changed = |setting: &&Setting| (setting.get)(last) != (setting.get)(now);
        let (live, later): (Vec<_>, Vec<_>) = SETTINGS
            .iter()
            .filter(has_changed)
            .partition(|setting| setting.runtime);
        let (mut made, mut is_capped) = (Vec::new(), false);
        self.change(|config| {
            made.clear();
            for setting in &live {
                let value = (setting.get)(now);
                if (setting.get)(config) != value {
                    (setting.set)(config, value);
                    made.push(setting.name);
                }
            }
            is_capped = config.cap_memory_share();
            Ok(())
        })?;
        let running = self.config();
        if is_capped {
            let memory_max = format_size(running.memory_bytes_max);
            tracing::warn!(
                memory_max,
                "the share of `memory` is above memory-max, which changes at the next start only: memory is memory-max until then"
            );
        }
        let later = later
            .iter()
            .filter(|setting| (setting.get)(&running) != (setting.get)(now))
            .map(|setting| setting.name)
            .collect();
        Ok(Changes { made, later })
    }

    /// `make` may be called twice.
    fn change(
        &self,
        mut make: impl FnMut(&mut ServerConfig) -> Result<(), ServerError>,
    ) -> Result<(), ServerError> {
        let certificates = self.prepare_certificates(&mut make)?;
        let mut guard = self.config.write().unwrap_or_else(PoisonError::into_inner);
        let mut config = ServerConfig::clone(&guard);
        make(&mut config)?;
        self.check_mode(&guard, &mut config)?;
        config.check()?;
        self.acl.check_change(&guard, &config)?;
        self.check_level(&guard, &config)?;
        if config.maxclients > guard.maxclients
            && let Some(fit) = raise_file_limit(config.maxclients, config.threads)
        {
            return Err(ServerError::Config(format!(
                "maxclients: the system allows this process open files for {fit} clients only (raise `ulimit -n`)"
            )));
        }
        if config.requirepass != guard.requirepass && self.acl.revision() > 0 {
            return Err(ServerError::Config(
                "requirepass: the coordinator keeps the users of this cluster, so set the password \
                 by ACL SETUSER default resetpass >…"
                    .to_owned(),
            ));
        }
        let settings = config.tls_settings()?;
        let mut certificates = certificates;
        if settings == guard.tls_settings()? {
            certificates = None;
        } else if !certificates.as_ref().is_some_and(|it| it.are_of(&settings)) {
            let why = "the settings of TLS were changed at the same time: try again";
            return Err(ServerError::Config(why.to_owned()));
        }
        self.set_memory(&guard, &config)?; // the last step that can fail (J1)
        if let Some(certificates) = certificates {
            self.tls.install(certificates);
        }
        if let Some(log) = self.data().and_then(|store| store.log()) {
            self.commands.levels.note(config.write_level());
            log.set_default_level(config.write_level());
        }
        if let Some(durability) = self.durability() {
            let interval = Duration::from_millis(config.scrub_interval_ms);
            durability.store().set_scrub_interval(interval);
        }
        if let Some(store) = self.data() {
            store.set_mode(config.mode);
            store.set_verify_reads(config.verify_reads);
            if guard.slow.event_ms == 0 {
                store.take_longest_stall(); // one of before is no event
            }
        }
        if let Some(told) = self.on_change.get() {
            told(&config);
        }
        if config.requirepass != guard.requirepass {
            self.acl.require_password(&config.requirepass);
        }
        self.audit.configure(&config);
        self.set_events(config.events);
        *guard = Arc::new(config);
        drop(guard);
        self.config_generation.fetch_add(1, Ordering::Release);
        self.post_all(&Message::Wake);
        Ok(())
    }

    /// Chooses the events that are published from now on.
    pub(crate) fn set_events(&self, classes: EventClasses) {
        self.commands.set_events(classes);
        if let Some(store) = self.data() {
            let classes = classes.in_use();
            for (departure, class) in [
                (Departure::Expired, EventClasses::EXPIRED),
                (Departure::Evicted, EventClasses::EVICTED),
            ] {
                store.want_departures(departure, classes.has(class));
            }
        }
    }

    /// Reads the files of changed settings of TLS, before the settings are locked: a slow disk must
    /// delay no thread that reads a setting. `None`: these settings do not change.
    fn prepare_certificates(
        &self,
        make: impl FnOnce(&mut ServerConfig) -> Result<(), ServerError>,
    ) -> Result<Option<NewCertificates>, ServerError> {
        let before = self.config();
        let mut config = ServerConfig::clone(&before);
        make(&mut config)?;
        match config.tls_settings()? != before.tls_settings()? {
            true => {
                config.check()?;
                self.tls.prepare(&config).map(Some)
            }
            false => Ok(None),
        }
    }

    /// Refuses a change of the mode that a running server cannot make. Otherwise keeps the level,
    /// which must not follow from the mode then.
    fn check_mode(&self, old: &ServerConfig, new: &mut ServerConfig) -> Result<(), ServerError> {
        if new.mode == old.mode {
            return Ok(());
        }
        let refuse = |why: &str| Err(ServerError::Config(format!("the mode cannot change {why}")));
        if self.data().is_none() {
            return refuse("while the data is being loaded: try again later");
        }
        if self.tier().is_some() {
            return refuse("while a flash-file is in use: start the server with the other --mode");
        }
        if new.level.is_none() && new.write_level() != old.write_level() {
            new.level = Some(old.write_level());
        }
        Ok(())
    }

    /// Refuses a level above `memory` for a server without a data directory.
    fn check_level(&self, old: &ServerConfig, new: &ServerConfig) -> Result<(), ServerError> {
        let in_memory = match self.data() {
            Some(_) => self.durability().is_none(),
            None => old.data_dir().is_none(), // the data is being loaded
        };
        match new.write_level() {
            level @ (Level::Buffered | Level::Synced) if in_memory => {
                Err(ServerError::Config(format!(
                    "no write can be {}: this server keeps its data in memory alone; start it with --dir",
                    level.name()
                )))
            }
            _ => Ok(()),
        }
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
            generation: shared.config_generation.load(Ordering::Acquire),
            config: shared.config(),
        }
    }

    pub fn get(&mut self, shared: &Shared) -> &Arc<ServerConfig> {
        let generation = shared.config_generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.config = shared.config();
        }
        &self.config
    }
}
