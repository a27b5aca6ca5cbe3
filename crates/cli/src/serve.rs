//! `duramen serve`: settings, log, signals, one server, one line that says where it listens.

use crate::config::{self, Given, Loaded};
use clap::{Arg, ArgMatches, Command};
use duramen_server::config::{ConfigFile, LogFormat};
use duramen_server::shared::Stop;
use duramen_server::{Addresses, Server, ServerConfig, ServerError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// The server could not start, or broke.
const EXIT_FAILED: u8 = 5;

const AFTER_HELP: &str = "\
Settings come from flags, then DURAMEN_* variables, then the configuration file, then defaults; `duramen config print
--show-origin` shows the result. When clients are served, one line goes to standard output:

  ready resp=127.0.0.1:6379 native=- admin=127.0.0.1:8379

EXAMPLES
  duramen serve --memory 4gb
  duramen serve --port 0 --admin=no           any free port, no HTTP
  duramen serve --mode cache --memory 512mb   evict instead of refusing writes

SIGTERM or SIGINT stops after clients have got their replies; a second one stops at once.
This version keeps data in memory only: nothing survives the end of the process.

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
    tracing::warn!(
        "every write is acknowledged at level `memory`: it is in memory and nowhere else, and nothing survives the end of this process"
    );
    if !config.dir.is_empty() {
        tracing::warn!(
            dir = config.dir,
            "this version writes no file: `dir` is not used yet"
        );
    }
    let memory = duramen_server::config::format_size(config.memory_bytes);
    let server = Server::start_from(config, file)?;
    let signals_handle = signals.handle();
    let watcher = watch(signals, &server);
    let page_bytes = match server.shared().store.stats().page_bytes {
        0 => "not known yet".to_owned(),
        bytes => duramen_server::config::format_size(bytes),
    };
    tracing::info!(
        memory,
        page_bytes,
        threads = server.shared().threads.len(),
        start_ms = started.elapsed().as_millis() as u64,
        "serving"
    );
    // Last: whoever waits for this line finds the log complete.
    announce(server.addresses());
    server.wait();
    signals_handle.close();
    // It has nothing left to do but to end.
    let _ = watcher.join();
    tracing::info!("stopped");
    Ok(())
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
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false);
    let started = match config.log_format {
        LogFormat::Text => log
            .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
            .try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    if let Err(error) = started {
        eprintln!("duramen: no log: {error}");
    }
}
