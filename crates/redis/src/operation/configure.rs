//! Changes of the settings of a running server: by `CONFIG SET`, and by a configuration file that
//! is read again. A change takes effect at once in the parts of the server that have copies of the
//! settings (settings::J1).

use crate::command::events::set_events;
use crate::state::Shared;
use crate::threads::mailbox::Message;
use duramen_base::ids::Level;
use duramen_base::units::MIB;
use duramen_config::certificates::NewCertificates;
use duramen_config::process::raise_file_limit;
use duramen_config::{MemoryLimit, SETTINGS, ServerConfig, ServerError, Setting, format_size};
use duramen_engine::Error;
use std::time::Duration;

/// The changes that a reload of the configuration file made.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Names of settings that have a new value now.
    pub made: Vec<&'static str>,
    /// Names of settings that changed in the file but take effect only at the next start.
    pub later: Vec<&'static str>,
}

/// `CONFIG SET`: changes settings of the running server, all of them or none (settings::J1). A
/// change of TLS reads files, so it must not run on a thread that serves clients.
///
/// # Errors
/// [`ServerError::Config`]: a value is wrong, or a setting cannot change while the server runs.
pub fn set(shared: &Shared, changes: &[(&'static Setting, &str)]) -> Result<(), ServerError> {
    for (setting, _) in changes {
        if !setting.runtime {
            return Err(ServerError::Config(format!(
                "{} cannot be changed while the server runs",
                setting.name
            )));
        }
    }
    change(shared, |config| {
        let mut changes = changes.iter();
        changes.try_for_each(|(setting, text)| setting.apply(config, text))
    })?;
    let is_among = |names: &[&str]| changes.iter().any(|(s, _)| names.contains(&s.name));
    if let Some(file) = shared.settings.file() {
        changes.iter().for_each(|(setting, _)| file.note(setting));
        // At the next start neither the level nor the mode must decide whether there is a data
        // directory. The file may also have the mode under each of the names of that setting.
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
/// settings of the previous read and of this one. A setting that `CONFIG SET` has changed stays as
/// it is if the file has not changed it (settings::J1).
///
/// # Errors
/// [`ServerError::Config`]: the settings do not fit together, or do not fit the way the server
/// was started; nothing is changed.
pub fn reload(
    shared: &Shared,
    last: &ServerConfig,
    now: &ServerConfig,
) -> Result<Changes, ServerError> {
    let has_changed = |setting: &&Setting| (setting.get)(last) != (setting.get)(now);
    let (live, later): (Vec<_>, Vec<_>) = SETTINGS
        .iter()
        .filter(has_changed)
        .partition(|setting| setting.runtime);
    let (mut made, mut is_capped) = (Vec::new(), false);
    change(shared, |config| {
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
    let running = shared.config();
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

/// Changes the settings by `make`, which may be called twice.
fn change(
    shared: &Shared,
    mut make: impl FnMut(&mut ServerConfig) -> Result<(), ServerError>,
) -> Result<(), ServerError> {
    let certificates = prepare_certificates(shared, &mut make)?;
    shared.settings.change(|old, new| {
        make(new)?;
        check(shared, old, new)?;
        let settings = new.tls_settings()?;
        let mut certificates = certificates;
        if settings == old.tls_settings()? {
            certificates = None;
        } else if !certificates.as_ref().is_some_and(|it| it.are_of(&settings)) {
            let why = "the settings of TLS were changed at the same time: try again";
            return Err(ServerError::Config(why.to_owned()));
        }
        set_memory(shared, old, new)?; // the last step that can fail (settings::J1)
        if let Some(certificates) = certificates {
            shared.settings.certificates().install(certificates);
        }
        use_settings(shared, old, new);
        Ok(())
    })?;
    shared.threads.post_all(&Message::Wake);
    Ok(())
}

/// Refuses settings that do not fit together, or that a running server cannot change to.
fn check(shared: &Shared, old: &ServerConfig, new: &mut ServerConfig) -> Result<(), ServerError> {
    check_mode(shared, old, new)?;
    new.check()?;
    shared.acl().check_change(old, new)?;
    check_level(shared, old, new)?;
    if new.maxclients > old.maxclients
        && let Some(fit) = raise_file_limit(new.maxclients, new.threads)
    {
        return Err(ServerError::Config(format!(
            "maxclients: the system allows this process open files for {fit} clients only (raise `ulimit -n`)"
        )));
    }
    if new.requirepass != old.requirepass && shared.acl().revision() > 0 {
        return Err(ServerError::Config(
            "requirepass: the coordinator keeps the users of this cluster, so set the password \
             by ACL SETUSER default resetpass >…"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Hands the new settings to the parts of the server that have copies of them.
fn use_settings(shared: &Shared, old: &ServerConfig, new: &ServerConfig) {
    if let Some(log) = shared.data().and_then(|store| store.log()) {
        shared.commands.levels.note(new.write_level());
        log.set_default_level(new.write_level());
    }
    let durability = shared.durability();
    if let Some(directory) = durability.and_then(|it| it.store().directory()) {
        let interval = Duration::from_millis(new.scrub_interval_ms);
        directory.set_scrub_interval(interval);
    }
    if let Some(store) = shared.data() {
        store.set_mode(new.mode);
        store.set_verify_reads(new.verify_reads);
        if old.slow.event_ms == 0 {
            store.take_longest_stall(); // a stall before the change is no event
        }
    }
    shared.settings.tell(new);
    if new.requirepass != old.requirepass {
        shared.acl().require_password(&new.requirepass);
    }
    shared.audit().configure(new);
    set_events(shared, new.events);
}

/// Reads the files of changed settings of TLS, before the settings are locked: a slow disk must
/// delay no thread that reads a setting. `None`: these settings do not change.
fn prepare_certificates(
    shared: &Shared,
    make: impl FnOnce(&mut ServerConfig) -> Result<(), ServerError>,
) -> Result<Option<NewCertificates>, ServerError> {
    let before = shared.config();
    let mut config = ServerConfig::clone(&before);
    make(&mut config)?;
    match config.tls_settings()? != before.tls_settings()? {
        true => {
            config.check()?;
            shared.settings.certificates().prepare(&config).map(Some)
        }
        false => Ok(None),
    }
}

/// Refuses a change of the mode that a running server cannot make. Otherwise keeps the level, which
/// must not follow from the new mode.
fn check_mode(
    shared: &Shared,
    old: &ServerConfig,
    new: &mut ServerConfig,
) -> Result<(), ServerError> {
    if new.mode == old.mode {
        return Ok(());
    }
    let refuse = |why: &str| Err(ServerError::Config(format!("the mode cannot change {why}")));
    if shared.data().is_none() {
        return refuse("while the data is being loaded: try again later");
    }
    if shared.tier().is_some() {
        return refuse("while a flash-file is in use: start the server with the other --mode");
    }
    if new.level.is_none() && new.write_level() != old.write_level() {
        new.level = Some(old.write_level());
    }
    Ok(())
}

/// Refuses a level above `memory` for a server without a data directory.
fn check_level(shared: &Shared, old: &ServerConfig, new: &ServerConfig) -> Result<(), ServerError> {
    let in_memory = match shared.data() {
        Some(_) => shared.durability().is_none(),
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

/// Gives the store the engine's part of a new `memory`. Does not wait: more can be used at
/// once, and less is reached in the background.
///
/// # Errors
/// [`ServerError::Config`]: the machine has no room for it, or it has none for the data.
/// Nothing is changed.
fn set_memory(shared: &Shared, old: &ServerConfig, new: &ServerConfig) -> Result<(), ServerError> {
    let refuse = |why: String| Err(ServerError::Config(why));
    if new.memory_bytes == old.memory_bytes {
        return Ok(());
    }
    let Some(store) = shared.data() else {
        return refuse(
            "memory cannot be changed while the data is loaded: try again when it is there"
                .to_owned(),
        );
    };
    if new.memory_bytes > old.memory_bytes
        && let Some(limit) = MemoryLimit::now()
    {
        match limit.judge(new.memory_bytes) {
            Ok(None) => {}
            Ok(Some(warning)) => tracing::warn!("{warning}"),
            Err(why) => return refuse(why),
        }
    }
    let fetch_bytes = shared.tier().map_or(0, |tier| tier.fetch_bytes());
    let engine_bytes = new.engine_bytes_of(
        new.memory_bytes,
        shared.settings.memory_at_start(),
        fetch_bytes,
    );
    let beside = new.memory_bytes.saturating_sub(engine_bytes);
    let memory = format_size(new.memory_bytes);
    let least = |minimum: u64| format_size((minimum + beside).next_multiple_of(MIB));
    match store.set_memory(engine_bytes) {
        Ok(()) => {
            let before = format_size(old.memory_bytes);
            tracing::info!("memory is {memory} from now on, after {before}");
            Ok(())
        }
        Err(Error::BudgetTooSmall { minimum, .. }) => refuse(format!(
            "memory: {memory} is too little for the index, buffers, threads and cleaners \
             of this server: {} is the least now",
            least(minimum)
        )),
        Err(Error::BudgetBelowData {
            live_bytes,
            minimum,
            ..
        }) => refuse(format!(
            "memory: {memory} does not hold the {live_bytes} bytes of live data and their \
             index: delete some, or choose at least {}",
            least(minimum)
        )),
        Err(Error::BudgetBusy) => refuse(
            "memory cannot be lowered while data is recovered or moved here, or while the data \
             of a flushed database is counted: try again later"
                .to_owned(),
        ),
        Err(error) => refuse(format!("memory: {error}")),
    }
}
