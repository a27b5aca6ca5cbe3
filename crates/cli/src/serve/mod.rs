//! `duramen serve`: settings, log, signals, one server, its progress while it loads, one line with
//! its addresses.

mod dir;
mod watcher;

use crate::cluster::join;
use crate::config::{self, Given, Loaded};
use crate::failure::{EXIT_FAILED, EXIT_STUCK};
use crate::login::LoginArgs;
use crate::{log, notify};
use clap::{Arg, ArgAction, ArgMatches, Command};
use duramen_config::{ConfigFile, Level, LogFormat, ServerConfig, ServerError};
use duramen_server::{Addresses, Server};
use duramen_tls::LoadError;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use watcher::{Sources, Watcher};

/// The coordinators refuse this server permanently.
const EXIT_REFUSED: u8 = 3;

const AFTER_HELP: &str = "\
Flags override DURAMEN_* variables, these override the configuration file, and that overrides the
defaults: `duramen config print --show-origin` shows the result. One line on standard output tells
that clients are served:

  ready resp=127.0.0.1:6379 native=- admin=127.0.0.1:8379

and behind that tls=127.0.0.1:6380 if there is a port with TLS.

EXAMPLES
  duramen serve --dir /var/lib/duramen --memory 4gb
  duramen restore duramen-data/snapshots/dump restored && duramen serve --dir restored
                                              serve a copy that BGSAVE made
  duramen serve --level memory                no files: nothing survives the process
  duramen serve --port 0 --admin=no           any free port, no HTTP
  duramen serve --mode cache --memory 512mb   evict instead of refusing writes
  duramen serve --tls-port 6380 --tls-cert-file server.crt --tls-key-file server.key \
                --tls-ca-cert-file ca.crt     TLS beside plain; see `duramen cert init`
  duramen serve --coordinator 10.0.0.1:7400 --cluster NAME --dir /var/lib/duramen
                                              a member of a cluster

SIGTERM or SIGINT stops the server after clients have received their replies; a second signal stops it
at once, and so does the first one while settings are read. If a thread does not end within 5 s after
--stop-timeout-ms, or 3 s after the second signal, the exit code is 6. SIGHUP opens --log-file again
and reads the configuration file and the TLS certificates again. The server continues when its terminal is closed.

While data is being loaded, requests get the error LOADING, and INFO and http://ADMIN/loading show the
progress.

With a certificate that has expired, or is not valid yet, the server waits for a usable one.

Exit codes: 0 stopped by a signal, 2 wrong settings, 3 the coordinator belongs to another cluster or
has another protocol version, 5 could not start, or failed while running, 6 a thread did not end in
time.";

/// Flags of `duramen serve`: one per setting, and the file.
pub(crate) struct ServeArgs {
    file: Option<PathBuf>,
    use_snapshot: bool,
    /// Whether the directory keeps the ports for the next start.
    keeps_ports: bool,
    given: Given,
}

impl clap::Args for ServeArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file [default duramen.toml if it exists; DURAMEN_CONFIG]");
        let use_snapshot = Arg::new("use-snapshot")
            .long("use-snapshot")
            .action(ArgAction::SetTrue)
            .help("Take a snapshot as the data directory: it is changed, and no backup any more. (Without: `duramen restore`.)");
        command
            .arg(file)
            .arg(use_snapshot)
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
            use_snapshot: matches.get_flag("use-snapshot"),
            keeps_ports: false,
            given: config::given(matches),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

// `duramen join`: a server, and the user who may ask the coordinator. No doc comment, because clap
// would take it for the description of the command.
#[derive(clap::Args)]
pub(crate) struct JoinArgs {
    #[command(flatten)]
    serve: ServeArgs,
    #[command(flatten)]
    login: LoginArgs,
}

impl JoinArgs {
    /// The server.
    pub(crate) fn serving(self) -> ServeArgs {
        self.serve.joining(&self.login)
    }
}

impl ServeArgs {
    /// Makes this a member of a cluster, regardless of other settings. If none is named, its
    /// coordinator is the one at the default address. A cluster name and ports that are not given
    /// are those of its last start, or else those that the cluster suggests: ports beside those of
    /// members at the same address.
    fn joining(mut self, login: &LoginArgs) -> ServeArgs {
        self.keeps_ports = true;
        let load = |given: &Given| {
            // Mistakes are reported when the settings are loaded again.
            Loaded::new(self.file.as_deref(), std::env::vars_os(), given).ok()
        };
        let Some(mut loaded) = load(&self.given) else {
            return self;
        };
        if loaded.config.coordinator.is_empty() {
            let coordinator = crate::cluster::COORDINATOR_DEFAULT.to_owned();
            self.given.insert("coordinator", coordinator);
            match load(&self.given) {
                Some(again) => loaded = again,
                None => return self,
            }
        }
        let all = join::PORTS.iter().chain(&["cluster"]);
        let mut open: Vec<&str> = all.copied().filter(|name| !loaded.is_given(name)).collect();
        let dir = loaded.config.data_dir();
        // It is a member of this cluster, whether or not a coordinator can be asked.
        let own = dir.as_deref().and_then(duramen_server::member::cluster_of);
        if let (true, Some(name)) = (open.contains(&"cluster"), own) {
            self.given.insert("cluster", name);
            open.retain(|other| *other != "cluster");
        }
        let kept = dir.map(|dir| join::kept_ports(&dir));
        for (name, port) in kept.unwrap_or_default() {
            if open.contains(&name) && join::is_free(&loaded.config, port) {
                self.given.insert(name, port.to_string());
                open.retain(|other| *other != name);
            }
        }
        if open.is_empty() {
            return self;
        }
        let overview = match join::look(&loaded.config, login) {
            Ok(overview) => overview,
            Err(why) => {
                let open = open.join(", ");
                eprintln!("duramen: these settings are not known from the cluster: {open}: {why}");
                return self;
            }
        };
        let mut learned = vec![("cluster", Some(overview.status.cluster.clone()))];
        if let Some(ip) = loaded.config.bind.first() {
            let free = join::Ports::beside(&overview, *ip);
            let free = [free.resp, free.native, free.admin];
            let texts = free.map(|port| port.map(|port| port.to_string()));
            learned.extend(join::PORTS.into_iter().zip(texts));
        }
        for (name, text) in learned {
            if let (true, Some(text)) = (open.contains(&name), text) {
                self.given.insert(name, text);
            }
        }
        self
    }
}

pub(crate) fn run(args: ServeArgs) -> ExitCode {
    let started = Instant::now();
    // Before any file is opened: a file may keep the start waiting for ever.
    let watcher = Watcher::start().map_err(|source| ServerError::System {
        doing: "watch for signals",
        source,
    });
    let loaded = match Loaded::new(args.file.as_deref(), std::env::vars_os(), &args.given) {
        Ok(loaded) => loaded,
        Err(problems) => return config::refuse(&problems),
    };
    if let Err(why) = log::start(&log_settings(&loaded.config)) {
        eprintln!("duramen: {why}");
        return ExitCode::from(EXIT_FAILED);
    }
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let checked = dir::check(&loaded.config, args.use_snapshot).map_err(ServerError::Config);
    let file = loaded.file;
    let sources = Sources::new(file.clone(), args.given, loaded.config.clone());
    let keeps_ports = args.keeps_ports;
    match checked.and(watcher).and_then(|watcher| {
        watcher.begin(sources);
        watcher.keep_ports(keeps_ports);
        serve(loaded.config, file.as_deref(), started, watcher)
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::say::last_words(&format!("duramen: {error}\n"));
            match error {
                ServerError::Config(_) => ExitCode::from(2),
                ServerError::Foreign { .. } => ExitCode::from(EXIT_REFUSED),
                ServerError::Stuck { .. } => ExitCode::from(EXIT_STUCK),
                _ => ExitCode::from(EXIT_FAILED),
            }
        }
    }
}

fn log_settings(config: &ServerConfig) -> log::Settings {
    log::Settings {
        level: log_level(config),
        json: config.log_format == LogFormat::Json,
        file: (!config.log_file.is_empty()).then(|| PathBuf::from(&config.log_file)),
    }
}

fn log_level(config: &ServerConfig) -> tracing::Level {
    // The setting allows only names that parse.
    config.log_level.parse().unwrap_or(tracing::Level::INFO)
}

fn serve(
    mut config: ServerConfig,
    file: Option<&Path>,
    started: Instant,
    watcher: Watcher,
) -> Result<(), ServerError> {
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
    if has_open_natives(&config) {
        tracing::warn!(
            "passwords protect the ports of Redis clients and of HTTP alone: every process that reaches a native port of this cluster can act as a member, which reads all data and changes all users. Set cluster-token-file"
        );
    }
    let mut has_lived = false;
    let result = loop {
        let born = Instant::now();
        match live(&mut config, file, started, &watcher) {
            Err(ServerError::LifeOver { again: true, .. }) => {}
            Err(ServerError::Config(_)) if certificate_may_come(&config, has_lived).is_some() => {
                await_certificate(&mut config, has_lived, &watcher);
                if watcher.is_stopping() {
                    break Ok(());
                } else {
                    continue;
                }
            }
            // The member served until now: it goes on without clients in shared memory.
            Err(error @ ServerError::LocalSocket { .. }) if has_lived => {
                tracing::warn!("clients on this machine connect over TCP from now on: {error}");
                config.native_socket_dir.clear();
            }
            lived => break lived,
        }
        if watcher.is_stopping() {
            break Ok(());
        }
        has_lived = true;
        tracing::info!("this member enlists again");
        std::thread::sleep(LIFE_PAUSE.saturating_sub(born.elapsed()));
    };
    watcher.end();
    result?;
    tracing::info!("stopped");
    Ok(())
}

/// Whether this is a member with users, in a cluster whose native ports require no credentials.
fn has_open_natives(config: &ServerConfig) -> bool {
    let access = &config.access;
    let texts = [&config.requirepass, &access.aclfile, &access.users];
    let is_open = config.cluster_token_file.is_empty() && !config.tls_cluster;
    config.is_member() && is_open && texts.iter().any(|text| !text.is_empty())
}

/// The reason why the certificate cannot be used, if that may end by itself: it has expired, or it
/// is not valid yet, perhaps because the clock is wrong. In a later life the certificate was good
/// before, so its file may just be being replaced. The process must not end then: no supervisor
/// restarts it after code 2.
fn certificate_may_come(config: &ServerConfig, has_lived: bool) -> Option<LoadError> {
    let fault = config.certificate_fault();
    fault.filter(|fault| has_lived || fault.is_of_time())
}

/// Interval of looks at files that cannot be used.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Waits until the certificate can be used, the reason is another one, or a signal came. SIGHUP may
/// bring the names of other files.
fn await_certificate(config: &mut ServerConfig, has_lived: bool, watcher: &Watcher) {
    let (mut said, mut since) = (String::new(), Instant::now());
    watcher.without_server();
    while let Some(fault) = certificate_may_come(config, has_lived)
        && !watcher.is_stopping()
    {
        if let Some(read_again) = watcher.other_tls(config) {
            config.take_tls_files(&read_again);
            continue;
        }
        let fault = fault.to_string();
        if fault != said || since.elapsed() >= SAY_FAULT_AGAIN {
            tracing::error!("TLS: {fault}. This server waits until that has changed");
            notify::waiting(format_args!("waiting for a certificate: {fault}"));
            (said, since) = (fault, Instant::now());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// An unchanged reason for waiting is logged again after this time.
const SAY_FAULT_AGAIN: Duration = Duration::from_secs(600);

/// Shortest time between two lives, if each ends at once.
const LIFE_PAUSE: Duration = Duration::from_secs(1);

/// One server, from its start to its end. A member of a cluster may need several lives: the next
/// one has the same addresses and settings.
fn live(
    config: &mut ServerConfig,
    file: Option<&Path>,
    started: Instant,
    watcher: &Watcher,
) -> Result<(), ServerError> {
    let mut server = Server::launch(config.clone(), file.map(ConfigFile::new))?;
    server
        .shared()
        .settings
        .when_changed(|config| log::set_level(log_level(config)));
    watcher.watch(&server);
    let addresses = server.addresses();
    config.port = addresses.resp.first().map_or(0, |resp| resp.port());
    config.native_port = addresses.native.map_or(0, |native| native.port());
    config.admin_port = addresses.admin.map_or(config.admin_port, |at| at.port());
    let dir = config.data_dir();
    if !load(&mut server, dir.as_deref().filter(|_| !config.is_member()))? {
        if server.shared().life_over().is_some() {
            // The member was declared crashed before it began to serve: the next life is due.
            return server.wait();
        }
        tracing::info!("stopped while the data was being loaded; nothing was changed");
        return Ok(());
    }
    let page_bytes = match server.shared().store().stats().page_bytes {
        0 => "not known yet".to_owned(),
        bytes => duramen_config::format_size(bytes),
    };
    let copies_max = server.shared().storage.copies().bytes_max;
    tracing::info!(
        memory = duramen_config::format_size(config.memory_bytes),
        write_level = config.write_level().name(),
        dir = dir.map(|dir| dir.display().to_string()),
        page_bytes,
        log_buffers = (copies_max > 0).then(|| duramen_config::format_size(copies_max)),
        threads = server.shared().threads.len(),
        start_ms = started.elapsed().as_millis() as u64,
        "serving"
    );
    // Last: a reader that waits for this line finds the log complete.
    if watcher.is_to_announce() {
        if let Some(dir) = config.data_dir().filter(|_| watcher.keeps_ports()) {
            join::keep_ports(&dir, server.addresses());
        }
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

/// Interval of lines about the progress of loading, without a terminal that shows it live.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// Shortest loading that is worth a line.
const SAY_AFTER: Duration = Duration::from_millis(500);

/// Waits until the data is loaded, and shows the progress; returns false if it was stopped
/// meanwhile.
fn load(server: &mut Server, dir: Option<&Path>) -> Result<bool, ServerError> {
    let Some(dir) = dir else {
        if server.shared().config().is_member() {
            notify::waiting("waiting until a coordinator accepts this member");
        }
        return server.wait_loaded();
    };
    tracing::info!(dir = %dir.display(), "loading");
    let shared = Arc::clone(server.shared());
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let live = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let teller = std::thread::spawn(move || {
        let mut every = SAY_AFTER;
        while ended.recv_timeout(every) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let progress = shared.storage.progress();
            notify::loading(&progress);
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
    // The thread has nothing left to report.
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

/// Prints the line for which scripts wait.
fn announce(addresses: &Addresses) {
    let list = |addresses: &[SocketAddr]| {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        if texts.is_empty() {
            "-".to_owned()
        } else {
            texts.join(",")
        }
    };
    let tls = if addresses.tls.is_empty() {
        String::new()
    } else {
        format!(" tls={}", list(&addresses.tls))
    };
    let admin = addresses
        .admin
        .map_or("-".to_owned(), |address| address.to_string());
    let native = addresses
        .native
        .map_or("-".to_owned(), |address| address.to_string());
    crate::say::ready(format!(
        "resp={} native={native} admin={admin}{tls}",
        list(&addresses.resp)
    ));
}
