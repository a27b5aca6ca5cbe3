//! Effects of signals on a server: they stop it, make it read its settings again, or log its state.

use crate::config::{Given, Loaded};
use crate::failure::EXIT_STUCK;
use crate::notify;
use crate::signals::{self, Order};
use duramen_config::ServerConfig;
use duramen_config::finish::Finish;
use duramen_redis::operation::configure;
use duramen_redis::operation::written;
use duramen_redis::state::Shared;
use duramen_redis::threads::Stop;
use duramen_server::Server;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// The sources of the settings, and their values at the last reading.
pub(super) struct Sources {
    /// The configuration file; `None` if the server was started without one.
    file: Option<PathBuf>,
    given: Given,
    last: ServerConfig,
    /// Values that `CONFIG REWRITE` has put into the file since.
    rewritten: BTreeMap<&'static str, String>,
}

impl Sources {
    pub(super) fn new(file: Option<PathBuf>, given: Given, last: ServerConfig) -> Sources {
        Sources {
            file,
            given,
            last,
            rewritten: BTreeMap::new(),
        }
    }

    /// Reads the configuration file again. Settings that differ from the last reading, and may
    /// change while the server runs, are changed, all or none. A setting that is unchanged in the
    /// file keeps the value of `CONFIG SET`.
    fn reload(&mut self, shared: Option<&Shared>) {
        let Some(file) = &self.file else {
            return tracing::info!("there is no configuration file to be read again");
        };
        let path = file.display();
        if let Some(rewrites) = shared.and_then(|shared| shared.settings.file()) {
            self.rewritten.append(&mut rewrites.take_rewritten());
        }
        // A pipe was read at the start and has nothing more. An empty file is one that is being
        // written, or was cut by a full disk.
        let is_cut = match std::fs::metadata(file) {
            Ok(found) if !found.is_file() => {
                return tracing::warn!(%path, "it is not a regular file: the settings are not read again");
            }
            Ok(found) => found.len() == 0,
            Err(_) => false, // the next step reports it
        };
        if is_cut {
            return tracing::error!(%path, "the settings stay as they are: the file is empty");
        }
        let mut loaded = match Loaded::new(Some(file), std::env::vars_os(), &self.given) {
            Ok(loaded) => loaded,
            Err(problems) => {
                return tracing::error!(%path, "the settings stay as they are: {problems}");
            }
        };
        loaded.note_rewritten(std::mem::take(&mut self.rewritten), &mut self.last);
        for name in loaded.keep_secrets(&self.last) {
            tracing::warn!(%path, "`{name}` is no longer there and stays as it is; to remove it: {name} = \"\"");
        }
        let now = loaded.config;
        let Some(shared) = shared else {
            self.last.take_tls_files(&now);
            return tracing::info!(%path, "there is no server yet: files of TLS are those of the file again, other settings stay");
        };
        match configure::reload(shared, &self.last, &now) {
            Err(error) => tracing::error!(%path, "the settings stay as they are: {error}"),
            Ok(changes) => {
                tracing::info!(%path, changed = changes.made.join(" "), "settings read again");
                if !changes.later.is_empty() {
                    let later = changes.later.join(" ");
                    tracing::warn!(%path, later, "these settings change at the next start only");
                }
                self.last = now;
            }
        }
    }
}

/// Stops the present server: the first signal gracefully, the second at once.
pub(super) struct Watcher {
    seen: Arc<LastSeen>,
    handle: signal_hook::iterator::Handle,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct LastSeen {
    /// Absent while the settings are read and checked: until then there is nothing to be stopped.
    sources: OnceLock<Mutex<Sources>>,
    /// Number of signals so far.
    signals: AtomicUsize,
    /// Whether the line `ready` was printed. A later life of a member does not print it again.
    announced: AtomicBool,
    keeps_ports: AtomicBool,
    shared: Mutex<Option<Arc<Shared>>>,
    /// The stop of the first signal, while data has to be written before the end.
    stopping: Mutex<Option<Arc<Finish>>>,
    /// Whether the last server has ended, so that the process ends by itself.
    ended: Mutex<bool>,
    has_ended: Condvar,
}

impl LastSeen {
    fn shared(&self) -> MutexGuard<'_, Option<Arc<Shared>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a second signal: ends the process if it does not end itself in time.
    fn end_soon(&self) {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let has_ended = &self.has_ended;
        let waited = has_ended.wait_timeout_while(ended, END_WITHIN, |ended| !*ended);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
        let table = self.shared().as_ref().map(|shared| shared.table_of_waits());
        let table = table.unwrap_or_default();
        tracing::error!("the process does not end by itself: ending it\n{table}");
        std::process::exit(EXIT_STUCK.into());
    }

    fn reload(&self) {
        if let Some(sources) = self.sources.get() {
            let mut sources = sources.lock().unwrap_or_else(PoisonError::into_inner);
            let shared = self.current();
            sources.reload(shared.as_deref());
            if let Some(shared) = shared {
                shared.settings.certificates().reload();
            }
        }
    }

    /// The present server.
    fn current(&self) -> Option<Arc<Shared>> {
        self.shared().clone()
    }

    fn stop_by(&self, name: &str) {
        if self.sources.get().is_none() {
            std::process::exit(0);
        }
        let is_first = self.count();
        if is_first {
            tracing::info!("{name}: stopping; a second signal stops at once");
        } else {
            tracing::warn!("{name} again: stopping at once");
        }
        self.stop();
        if !is_first {
            self.end_soon();
        }
    }

    fn stop(&self) {
        let signals = self.signals.load(Ordering::SeqCst);
        let shared = self.shared();
        match (signals, &*shared) {
            (0, _) | (_, None) => {}
            (1, Some(shared)) => {
                let stopping = written::stop(shared, Stop::Graceful, false);
                if stopping.is_none() {
                    notify::stopping();
                }
                *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = stopping;
            }
            (_, Some(shared)) => {
                notify::stopping();
                shared.stop(Stop::AtOnce);
            }
        }
    }

    /// Counts a signal; returns whether it is the first. After a failed stop the next one counts as
    /// the first again.
    fn count(&self) -> bool {
        let mut stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refused = |stopping: &Arc<Finish>| matches!(stopping.result(), Some(Err(_)));
        if stopping.as_ref().is_some_and(is_refused) {
            *stopping = None;
            self.signals.store(0, Ordering::SeqCst);
        }
        self.signals.fetch_add(1, Ordering::SeqCst) == 0
    }
}

/// Time for the process to end by itself after a second signal.
const END_WITHIN: Duration = Duration::from_secs(3);

impl Watcher {
    /// Until [`begin`](Self::begin) the first signal ends the process.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub(super) fn start() -> io::Result<Watcher> {
        let mut signals = signals::watch()?;
        let handle = signals.handle();
        let seen = Arc::new(LastSeen::default());
        let watched = Arc::clone(&seen);
        let reloaded = Arc::clone(&seen);
        let reloads = signals::apart(move |name| {
            let _reported = notify::reloading();
            signals::reopen_log();
            if let Some(shared) = reloaded.current() {
                shared.audit().reopen();
            }
            tracing::info!(
                "{name}: opening the log file and reading settings and certificates again"
            );
            reloaded.reload();
        });
        let thread = std::thread::spawn(move || {
            for signal in signals.forever() {
                match signals::meaning(signal) {
                    (name, Order::Stop) => watched.stop_by(name),
                    (name, Order::Reload) => drop(reloads.try_send(name)),
                    (name, Order::Report) => {
                        let table = watched.current().map(|shared| shared.table_of_waits());
                        let table = table.unwrap_or_default();
                        tracing::info!("{name}: waiting threads and their times\n{table}");
                    }
                    (name, Order::Ignore) => tracing::info!("{name} is ignored"),
                }
            }
        });
        Ok(Watcher {
            seen,
            handle,
            thread,
        })
    }

    /// From now on there is something to be stopped: a signal lets the server end.
    pub(super) fn begin(&self, sources: Sources) {
        let seen = Arc::clone(&self.seen);
        notify::watch_over(move || seen.current().is_some_and(|shared| shared.is_stuck()));
        let first = self.seen.sources.set(Mutex::new(sources));
        assert!(first.is_ok(), "a process begins once");
    }

    /// From now on signals stop this server; at once, if there was a signal already.
    pub(super) fn watch(&self, server: &Server) {
        *self.seen.shared() = Some(Arc::clone(server.shared()));
        self.seen.stop();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.seen.signals.load(Ordering::SeqCst) > 0
    }

    /// Whether no life has said `ready` so far; the caller is to say it now. The first life of a
    /// member may have ended before it served.
    pub(super) fn is_to_announce(&self) -> bool {
        !self.seen.announced.swap(true, Ordering::SeqCst)
    }

    pub(super) fn keep_ports(&self, keeps: bool) {
        self.seen.keeps_ports.store(keeps, Ordering::SeqCst);
    }

    pub(super) fn keeps_ports(&self) -> bool {
        self.seen.keeps_ports.load(Ordering::SeqCst)
    }

    /// Without a server, until the next one: SIGHUP reads the files of TLS alone.
    pub(super) fn without_server(&self) {
        *self.seen.shared() = None;
    }

    /// The settings of the last reading, if their files of TLS differ from those of `from`.
    pub(super) fn other_tls(&self, from: &ServerConfig) -> Option<ServerConfig> {
        let sources = self.seen.sources.get()?;
        let sources = sources.lock().unwrap_or_else(PoisonError::into_inner);
        (!from.has_same_tls_files(&sources.last)).then(|| sources.last.clone())
    }

    pub(super) fn end(self) {
        self.handle.close();
        let seen = &self.seen;
        *seen.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        seen.has_ended.notify_all();
        // The thread's only remaining step is to end.
        let _ = self.thread.join();
    }
}
