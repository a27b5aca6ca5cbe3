//! `duramen serve`: settings, log, signals, one server, its progress while it loads, one line that says where it listens.

use crate::config::{self, Given, Loaded};
use clap::{Arg, ArgMatches, Command};
use duramen_server::config::{ConfigFile, Level, LogFormat};
use duramen_server::shared::Stop;
use duramen_server::{Addresses, Server, ServerConfig, ServerError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

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

SIGTERM or SIGINT stops after clients have got their replies; a second one stops at once.
While the data is being loaded, clients are told so, and INFO and http://ADMIN/loading say how far it is.

Exit codes: 0 stopped as asked, 2 wrong settings, 5 could not start.";

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
    let file = loaded.file.as_deref().map(ConfigFile::new);
    match serve(loaded.config, file, started) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("duramen: {error}");
            match error {
                ServerError::Config(_) => ExitCode::from(2),
                _ => ExitCode::from(EXIT_FAILED),
            }
        }
    }
}

fn serve(
    config: ServerConfig,
    file: Option<ConfigFile>,
    started: Instant,
) -> Result<(), ServerError> {
    // Before the threads: a signal that comes while they start must not be lost.
    let signals = Signals::new([SIGTERM, SIGINT]).map_err(|source| ServerError::System {
        doing: "watch for signals",
        source,
    })?;
    let memory = duramen_server::config::format_size(config.memory_bytes);
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
    let mut server = Server::launch(config, file)?;
    let signals_handle = signals.handle();
    let watcher = watch(signals, &server);
    let loaded = load(&mut server, dir.as_deref());
    if !loaded.as_ref().is_ok_and(|served| *served) {
        signals_handle.close();
        if loaded.is_ok() {
            tracing::info!("stopped while the data was being loaded; nothing was changed");
        }
        return loaded.map(|_| ());
    }
    let page_bytes = match server.shared().store().stats().page_bytes {
        0 => "not known yet".to_owned(),
        bytes => duramen_server::config::format_size(bytes),
    };
    tracing::info!(
        memory,
        level = level.name(),
        dir = dir.map(|dir| dir.display().to_string()),
        page_bytes,
        threads = server.shared().threads.len(),
        start_ms = started.elapsed().as_millis() as u64,
        "serving"
    );
    // Last: whoever waits for this line finds the log complete.
    announce(server.addresses());
    let ended = server.wait();
    signals_handle.close();
    // It has nothing left to do but to end.
    let _ = watcher.join();
    ended?;
    tracing::info!("stopped");
    Ok(())
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
    let shared = std::sync::Arc::clone(server.shared());
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

/// The first signal stops gracefully, the second at once.
fn watch(mut signals: Signals, server: &Server) -> std::thread::JoinHandle<()> {
    let shared = std::sync::Arc::clone(server.shared());
    std::thread::spawn(move || {
        for (n, signal) in signals.forever().enumerate() {
            let name = if signal == SIGTERM {
                "SIGTERM"
            } else {
                "SIGINT"
            };
            if n == 0 {
                tracing::info!("{name}: stopping; once more stops at once");
                shared.stop(Stop::Graceful);
            } else {
                tracing::warn!("{name} again: stopping at once");
                shared.stop(Stop::AtOnce);
            }
        }
    })
}

/// The line that scripts wait for.
fn announce(addresses: &Addresses) {
    let resp: Vec<String> = addresses.resp.iter().map(ToString::to_string).collect();
    let admin = addresses
        .admin
        .map_or("-".to_owned(), |address| address.to_string());
    let mut stdout = std::io::stdout();
    // Nobody may be listening, and that is no reason not to serve.
    let _ = writeln!(
        stdout,
        "ready resp={} native=- admin={admin}",
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
