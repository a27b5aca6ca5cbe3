//! `duramen serve`: settings, log, signals, one server, its progress while it loads, one line that says where it listens.

use crate::config::{self, Given, Loaded};
use clap::{Arg, ArgMatches, Command};
use duramen_server::config::{ConfigFile, Level, LogFormat};
use duramen_server::durability::Stopping;
use duramen_server::shared::{Shared, Stop};
use duramen_server::{Addresses, Server, ServerConfig, ServerError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The coordinators will never let it in.
const EXIT_REFUSED: u8 = 3;
/// A thread did not end when the server was told to stop.
const EXIT_STUCK: u8 = 6;
/// The server could not start, or broke.
pub(crate) const EXIT_FAILED: u8 = 5;

const AFTER_HELP: &str = "\
Settings come from flags, then DURAMEN_* variables, then the configuration file, then defaults; `duramen config print
--show-origin` shows the result. When clients are served, one line goes to standard output:

  ready resp=127.0.0.1:6379 native=- admin=127.0.0.1:8379

EXAMPLES
  duramen serve --dir /var/lib/duramen --memory 4gb
  duramen serve --dir snapshots/dump          serve a copy that BGSAVE made
  duramen serve --level memory                no files: nothing survives the process
  duramen serve --port 0 --admin=no           any free port, no HTTP
  duramen serve --mode cache --memory 512mb   evict instead of refusing writes
  duramen serve --coordinator 10.0.0.1:7400 --cluster NAME --dir /var/lib/duramen
                                              a member of a cluster

SIGTERM or SIGINT stops after clients have got their replies; a second one stops at once. A thread that does not come back
is given up 5 s after --stop-timeout-ms, or 3 s after the second signal, and the exit code is 6.
While the data is being loaded, clients are told so, and INFO and http://ADMIN/loading say how far it is.

Exit codes: 0 stopped as asked, 2 wrong settings, 3 the coordinator belongs to another cluster or speaks another version,
5 could not start, or failed while running, 6 a thread did not end in time.";

/// Flags of `duramen serve`: one per setting, and the file.
pub(crate) struct ServeArgs {
    file: Option<PathBuf>,
    given: Given,
}

impl clap::Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file [default duramen.toml if it exists; DURAMEN_CONFIG]");
        command
            .arg(file)
            .args(config::setting_args())
            .after_help(AFTER_HELP)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for ServeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ServeArgs, clap::Error> {
        Ok(ServeArgs {
            file: matches.get_one::<PathBuf>("config").cloned(),
            given: config::given(matches),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ServeArgs {
    /// As a member of a cluster, whatever else is said: by the coordinator where one usually is, if none is named.
    pub(crate) fn joining(mut self) -> ServeArgs {
        let loaded = Loaded::new(self.file.as_deref(), std::env::vars(), &self.given);
        // What is wrong is said when it is loaded again.
        if loaded.is_ok_and(|loaded| loaded.config.coordinator.is_empty()) {
            let coordinator = crate::cluster::COORDINATOR_DEFAULT.to_owned();
            self.given.insert("coordinator", coordinator);
        }
        self
    }
}

pub(crate) fn run(args: ServeArgs) -> ExitCode {
    let started = Instant::now();
    let loaded = match Loaded::new(args.file.as_deref(), std::env::vars(), &args.given) {
        Ok(loaded) => loaded,
        Err(problems) => return config::refuse(&problems),
    };
    start_log(&loaded.config);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    match serve(loaded.config, loaded.file.as_deref(), started) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("duramen: {error}");
            match error {
                ServerError::Config(_) => ExitCode::from(2),
                ServerError::Foreign { .. } => ExitCode::from(EXIT_REFUSED),
                ServerError::Stuck { .. } => ExitCode::from(EXIT_STUCK),
                _ => ExitCode::from(EXIT_FAILED),
            }
        }
    }
}

fn serve(
    mut config: ServerConfig,
    file: Option<&Path>,
    started: Instant,
) -> Result<(), ServerError> {
    // Before the threads: a signal that comes while they start must not be lost.
    let signals = Signals::new([SIGTERM, SIGINT]).map_err(|source| ServerError::System {
        doing: "watch for signals",
        source,
    })?;
    let dir = config.data_dir();
    let level = config.write_level();
    if let (Some(dir), Level::Memory) = (&dir, level) {
        tracing::warn!(
            dir = %dir.display(),
            "every write is acknowledged at level `memory`: the last ones before this process ends may be lost"
        );
    } else if dir.is_none() {
        tracing::warn!(
            "every write is acknowledged at level `memory`: it is in memory and nowhere else, and nothing survives the end of this process"
        );
    }
    let watcher = Watcher::start(signals);
    let result = loop {
        let born = Instant::now();
        let lived = live(&mut config, file, started, &watcher);
        let Err(ServerError::LifeOver { again: true, .. }) = lived else {
            break lived;
        };
        if watcher.is_stopping() {
            break Ok(());
        }
        tracing::info!("this member enlists anew");
        std::thread::sleep(LIFE_PAUSE.saturating_sub(born.elapsed()));
    };
    watcher.end();
    result?;
    tracing::info!("stopped");
    Ok(())
}

/// Lives that end at once are not begun more often than this.
const LIFE_PAUSE: Duration = Duration::from_secs(1);

/// One server, from its start to its end. A member of a cluster may need several: the next one is found where this one was, and
/// has its settings.
fn live(
    config: &mut ServerConfig,
    file: Option<&Path>,
    started: Instant,
    watcher: &Watcher,
) -> Result<(), ServerError> {
    let mut server = Server::launch(config.clone(), file.map(ConfigFile::new))?;
    watcher.watch(&server);
    let addresses = server.addresses();
    config.port = addresses.resp[0].port();
    config.native_port = addresses.native.map_or(0, |native| native.port());
    config.admin_port = addresses.admin.map_or(config.admin_port, |at| at.port());
    let dir = config.data_dir();
    if !load(&mut server, dir.as_deref().filter(|_| !config.is_member()))? {
        if server.shared().life_over().is_some() {
            // A member that is taken for crashed before it has begun to serve: the next life is due.
            return server.wait();
        }
        tracing::info!("stopped while the data was being loaded; nothing was changed");
        return Ok(());
    }
    let page_bytes = match server.shared().store().stats().page_bytes {
        0 => "not known yet".to_owned(),
        bytes => duramen_server::config::format_size(bytes),
    };
    let copies_max = server.shared().copies().bytes_max;
    tracing::info!(
        memory = duramen_server::config::format_size(config.memory_bytes),
        level = config.write_level().name(),
        dir = dir.map(|dir| dir.display().to_string()),
        page_bytes,
        log_buffers = (copies_max > 0).then(|| duramen_server::config::format_size(copies_max)),
        threads = server.shared().threads.len(),
        start_ms = started.elapsed().as_millis() as u64,
        "serving"
    );
    // Last: whoever waits for this line finds the log complete.
    if watcher.is_first() {
        announce(server.addresses());
    }
    let shared = Arc::clone(server.shared());
    let ended = server.wait();
    *config = ServerConfig {
        port: config.port,
        native_port: config.native_port,
        admin_port: config.admin_port,
        ..ServerConfig::clone(&shared.config())
    };
    ended
}

/// How often a line says how far loading is, where no terminal shows it live.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Loading that takes less is not worth a line.
const SAY_AFTER: Duration = Duration::from_millis(500);

/// Waits until the data is loaded, and says how far it is; `false` = told to stop meanwhile.
fn load(server: &mut Server, dir: Option<&Path>) -> Result<bool, ServerError> {
    let Some(dir) = dir else {
        return server.wait_loaded();
    };
    tracing::info!(dir = %dir.display(), "loading");
    let shared = Arc::clone(server.shared());
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let live = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let teller = std::thread::spawn(move || {
        let mut every = SAY_AFTER;
        while ended.recv_timeout(every) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let progress = shared.progress();
            if live {
                every = Duration::from_millis(100);
                eprint!("\r\x1b[2Kloading: {progress}");
            } else {
                every = SAY_EVERY;
                tracing::info!("loading: {progress}");
            }
        }
        if live {
            eprint!("\r\x1b[2K");
        }
    });
    let loaded = server.wait_loaded();
    drop(done);
    // It has nothing left to say.
    let _ = teller.join();
    if let (Ok(true), Some(durability)) = (&loaded, server.shared().durability()) {
        let stats = durability.stats();
        tracing::info!(
            entries = stats.loaded_entries,
            bytes = stats.loaded_bytes,
            ms = stats.load_duration.as_millis() as u64,
            clean = stats.clean_start,
            "loaded"
        );
    }
    loaded
}

/// Stops whatever server is there: the first signal gracefully, the second at once.
struct Watcher {
    seen: Arc<Seen>,
    handle: signal_hook::iterator::Handle,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    /// Signals so far.
    signals: AtomicUsize,
    /// Servers so far.
    servers: AtomicUsize,
    shared: Mutex<Option<Arc<Shared>>>,
    /// The stop that the first signal asked for, while something has to be written before.
    stopping: Mutex<Option<Arc<Stopping>>>,
    /// The last server has ended: the process ends by itself.
    ended: Mutex<bool>,
    has_ended: Condvar,
}

impl Seen {
    fn shared(&self) -> MutexGuard<'_, Option<Arc<Shared>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After a second signal: ends the process if it does not do so itself, whatever it waits for.
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

    fn stop(&self) {
        let signals = self.signals.load(Ordering::SeqCst);
        let shared = self.shared();
        match (signals, &*shared) {
            (0, _) | (_, None) => {}
            (1, Some(shared)) => {
                let stopping = shared.stop_written(Stop::Graceful, false);
                *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = stopping;
            }
            (_, Some(shared)) => shared.stop(Stop::AtOnce),
        }
    }

    /// One more signal; whether it is the first. After a stop that could not be, it is again.
    fn count(&self) -> bool {
        let mut stopping = self.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refused = |stopping: &Arc<Stopping>| matches!(stopping.result(), Some(Err(_)));
        if stopping.as_ref().is_some_and(is_refused) {
            *stopping = None;
            self.signals.store(0, Ordering::SeqCst);
        }
        self.signals.fetch_add(1, Ordering::SeqCst) == 0
    }
}

/// After a second signal the process has this long to end by itself.
const END_WITHIN: Duration = Duration::from_secs(3);

impl Watcher {
    fn start(mut signals: Signals) -> Watcher {
        let handle = signals.handle();
        let seen = Arc::new(Seen::default());
        let watched = Arc::clone(&seen);
        let thread = std::thread::spawn(move || {
            for signal in signals.forever() {
                let name = if signal == SIGTERM {
                    "SIGTERM"
                } else {
                    "SIGINT"
                };
                let is_first = watched.count();
                if is_first {
                    tracing::info!("{name}: stopping; once more stops at once");
                } else {
                    tracing::warn!("{name} again: stopping at once");
                }
                watched.stop();
                if !is_first {
                    watched.end_soon();
                }
            }
        });
        Watcher {
            seen,
            handle,
            thread,
        }
    }

    /// From now on this server is stopped; at once, if there was a signal already.
    fn watch(&self, server: &Server) {
        *self.seen.shared() = Some(Arc::clone(server.shared()));
        self.seen.servers.fetch_add(1, Ordering::SeqCst);
        self.seen.stop();
    }

    fn is_stopping(&self) -> bool {
        self.seen.signals.load(Ordering::SeqCst) > 0
    }

    fn is_first(&self) -> bool {
        self.seen.servers.load(Ordering::SeqCst) == 1
    }

    fn end(self) {
        self.handle.close();
        let seen = &self.seen;
        *seen.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        seen.has_ended.notify_all();
        // It has nothing left to do but to end.
        let _ = self.thread.join();
    }
}

/// The line that scripts wait for.
fn announce(addresses: &Addresses) {
    let resp: Vec<String> = addresses.resp.iter().map(ToString::to_string).collect();
    let admin = addresses
        .admin
        .map_or("-".to_owned(), |address| address.to_string());
    let native = addresses
        .native
        .map_or("-".to_owned(), |address| address.to_string());
    let mut stdout = std::io::stdout();
    // Nobody may be listening, and that is no reason not to serve.
    let _ = writeln!(
        stdout,
        "ready resp={} native={native} admin={admin}",
        resp.join(",")
    );
    let _ = stdout.flush();
}

fn start_log(config: &ServerConfig) {
    // The setting allows only names that parse.
    let level = config.log_level.parse().unwrap_or(tracing::Level::INFO);
    log_to_stderr(level, config.log_format == LogFormat::Json);
}

/// What happens is written to standard error from now on.
pub(crate) fn log_to_stderr(level: tracing::Level, json: bool) {
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false);
    let started = match json {
        false => log
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init(),
        true => log.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        eprintln!("duramen: no log: {error}");
    }
}
