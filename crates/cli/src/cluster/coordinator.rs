//! `duramen coordinator`: the process that holds the members and the owners of tablets.

use super::tls::TlsArgs;
use super::{COORDINATOR_DEFAULT, size, status};
use crate::arguments::Duration;
use crate::failure::{EXIT_FAILED, EXIT_STUCK};
use crate::login::first_line;
use crate::notify;
use crate::signals::{self, Order};
use clap::Args;
use duramen_config::ServerError;
use duramen_coordinator::{
    ChosenSetting, Error, EtcdAccess, Options, Role, Running, Stopper, StoreSpec,
};
use duramen_format::superblock::CLUSTER_BYTES_MAX;
use duramen_tls::{Identity, LoadError, Settings};
use duramen_wire::native::message::{ClusterSettings, ReplicaLayout};
use signal_hook::iterator::Signals;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

/// Reads one of the settings.
type ReadSetting = fn(&ClusterSettings) -> u64;

/// Default name of the cluster.
pub(crate) const CLUSTER_DEFAULT: &str = "duramen";

#[derive(Args)]
pub(crate) struct CoordinatorArgs {
    /// Address for servers, clients and tools; port 0 takes any free one.
    #[arg(long, value_name = "HOST:PORT", default_value = COORDINATOR_DEFAULT)]
    listen: String,
    /// Address that others use, if it differs from the listening address.
    #[arg(long, value_name = "HOST:PORT")]
    announce: Option<String>,
    /// Name of the cluster: servers and stores of another one are refused.
    #[arg(long, env = "DURAMEN_CLUSTER", value_name = "NAME", default_value = CLUSTER_DEFAULT, value_parser = cluster_name)]
    cluster: String,
    /// Store of the coordinator's state: redb:DIR (one coordinator), or etcd:http://HOST:PORT,…
    /// or etcd:https://HOST:PORT,… (any number, one of which leads).
    #[arg(long, value_name = "STORE", default_value = "redb:duramen-coordinator")]
    store: StoreSpec,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// A file with the cluster's token, which servers, clients and tools must have as well.
    #[arg(long, env = "DURAMEN_CLUSTER_TOKEN_FILE", value_name = "FILE")]
    cluster_token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Address of admin HTTP: /status /metrics /livez /readyz; `no`: none.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8400")]
    admin: String,
    /// Whether admin HTTP speaks TLS, with the certificates above; `auto`: if other machines can
    /// reach it and there are certificates. Its clients need none of their own if they log in.
    #[arg(long, default_value = "auto", value_parser = ["auto", "yes", "no"])]
    admin_tls: String,
    /// Allow addresses other than loopback although connections there are not encrypted.
    #[arg(long)]
    insecure_bind: bool,
    #[command(flatten)]
    balance: BalanceArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    log: LogArgs,
}

/// TLS and login to etcd.
#[derive(Args)]
struct EtcdArgs {
    /// The authorities of etcd's certificates, as PEM, for a store at https.
    #[arg(long, value_name = "FILE")]
    etcd_ca_file: Option<PathBuf>,
    /// A certificate for etcd, if it asks its clients for one, and the certificate's key.
    #[arg(long, value_name = "FILE", requires = "etcd_key_file")]
    etcd_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", requires = "etcd_cert_file")]
    etcd_key_file: Option<PathBuf>,
    /// A user of etcd, with the right to read and write the keys under /duramen/NAME/.
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,
    /// A file whose first line is this user's password.
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,
}

impl EtcdArgs {
    /// The files of TLS; `None` if the connection to etcd has no TLS.
    fn files(&self) -> Option<Settings> {
        let path = |file: &Option<PathBuf>| file.clone().unwrap_or_default();
        Some(Settings {
            certificate_file: path(&self.etcd_cert_file),
            key_file: path(&self.etcd_key_file),
            ca_file: self.etcd_ca_file.clone()?,
            ..Settings::default()
        })
    }

    fn access(&self) -> Result<EtcdAccess, Unusable> {
        let identity = match self.files() {
            None if self.etcd_cert_file.is_some() => {
                return Err("--etcd-cert-file needs --etcd-ca-file".to_owned().into());
            }
            None => None,
            Some(settings) => {
                let identity = Identity::load(settings);
                Some(Arc::new(identity.map_err(|error| error.to_string())?))
            }
        };
        let login = match (&self.etcd_user, &self.etcd_password_file) {
            (Some(user), Some(file)) => {
                let password = first_line(file).map_err(|error| {
                    Unusable::Absent(format!("cannot read {}: {error}", file.display()))
                })?;
                Some((user.clone(), password))
            }
            _ => None,
        };
        Ok(EtcdAccess { identity, login })
    }
}

/// The switch of the balance.
#[derive(Args)]
pub(crate) struct BalanceArgs {
    /// Move tablets without a request until all servers have their shares of the data: yes or no.
    /// `duramen rebalance` does it once. Give all coordinators the same.
    #[arg(long, value_name = "YES", default_value = "yes", value_parser = ["yes", "no"])]
    pub(crate) balance: String,
}

/// Options of the log.
#[derive(Args)]
pub(crate) struct LogArgs {
    /// Lowest level that is logged.
    #[arg(long, default_value = "info", value_parser = ["error", "warn", "info", "debug", "trace"])]
    log_level: String,
    /// Format of the log.
    #[arg(long, default_value = "text", value_parser = ["text", "json"])]
    log_format: String,
    /// A file to which the log is appended, instead of standard error; SIGHUP opens it again.
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
}

impl LogArgs {
    pub(crate) fn start(&self) -> Result<(), String> {
        crate::log::start(&crate::log::Settings {
            // Only names that parse are allowed.
            level: self.log_level.parse().unwrap_or(tracing::Level::INFO),
            json: self.log_format == "json",
            file: self.log_file.clone(),
        })
    }
}

/// The verdict timeout of `up`: its members share their processors with each other and with all
/// other programs of the machine. A killed member is noticed at once nevertheless, because its
/// connections are refused.
const ON_ONE_MACHINE: Duration = Duration { ms: 2_000 };

/// Settings of all members of a new cluster. An existing cluster keeps the settings with which it
/// was created.
#[derive(Args)]
#[command(next_help_heading = "Settings of a new cluster")]
pub(crate) struct SettingsArgs {
    /// Replicas of each segment of the log, each on another server. So many servers and one more
    /// must be up, or requests wait [default 2; `up`: half of its servers, at most 3].
    #[arg(long, value_name = "N")]
    pub(crate) replicas: Option<u32>,
    /// Bytes of a segment: 2mb, 4mb or 8mb [default 2mb].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    segment_size: Option<u64>,
    /// Interval at which each server pings another one [default 100ms].
    #[arg(long, value_name = "TIME")]
    ping_interval: Option<Duration>,
    /// Longest answer time of a ping before the server is suspected [default 50ms].
    #[arg(long, value_name = "TIME")]
    ping_timeout: Option<Duration>,
    /// Time that the coordinator waits for a suspect before it calls it crashed; up to ten times as
    /// long while all answer slowly [default 250ms; `up`: 2s, as all share one machine].
    #[arg(long, value_name = "TIME")]
    verdict_timeout: Option<Duration>,
    /// Time that a server may serve reads without an answer of its backups [default 1s].
    #[arg(long, value_name = "TIME")]
    read_lease: Option<Duration>,
    /// Time that clients with exactly-once writes may be silent [default 5m].
    #[arg(long, value_name = "TIME")]
    client_lease: Option<Duration>,
    /// Most bytes of a crashed server that one server recovers at a time [default 128mb].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    partition_size: Option<u64>,
    /// Most entries of the same, 1000 to 1099511627776 [default 1048576].
    #[arg(long, value_name = "N")]
    partition_records: Option<u64>,
    /// Put replicas on fixed groups of servers, so that this many others share a server's: losses
    /// are rarer, and larger. Without, replicas go anywhere.
    #[arg(long, value_name = "N")]
    copyset_scatter: Option<u32>,
    /// Keep each part of about this size of a server's log on the same servers, which then clean it
    /// on their own: much less network traffic for cleaning. Without, replicas go anywhere.
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "copyset_scatter")]
    zone_size: Option<u64>,
}

impl SettingsArgs {
    /// The flags for a coordinator that `up` starts, except replicas. `memory` is that of a server,
    /// and determines the best segment size.
    pub(crate) fn words(&self, memory: u64) -> Vec<String> {
        let segment = self.segment_size;
        let segment = segment.unwrap_or_else(|| duramen_engine::segment_bytes(memory));
        let ms = |of: Option<Duration>| of.map(|of| format!("{}ms", of.ms));
        let flags = [
            ("--segment-size", Some(segment.to_string())),
            ("--ping-interval", ms(self.ping_interval)),
            ("--ping-timeout", ms(self.ping_timeout)),
            (
                "--verdict-timeout",
                ms(self.verdict_timeout.or(Some(ON_ONE_MACHINE))),
            ),
            ("--read-lease", ms(self.read_lease)),
            ("--client-lease", ms(self.client_lease)),
            (
                "--partition-size",
                self.partition_size.map(|n| n.to_string()),
            ),
            (
                "--partition-records",
                self.partition_records.map(|n| n.to_string()),
            ),
            (
                "--copyset-scatter",
                self.copyset_scatter.map(|n| n.to_string()),
            ),
            ("--zone-size", self.zone_size.map(|n| n.to_string())),
        ];
        let given = flags
            .into_iter()
            .filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        given.flatten().collect()
    }

    /// The flags that are given.
    fn chosen(&self) -> Vec<ChosenSetting> {
        fn of(is_given: bool, option: &'static str, read: ReadSetting) -> Option<ChosenSetting> {
            is_given.then_some(ChosenSetting { option, read })
        }
        let layout = self.copyset_scatter.is_some() || self.zone_size.is_some();
        let [ping_interval, ping_timeout] = [self.ping_interval, self.ping_timeout];
        let all = [
            of(self.replicas.is_some(), "--replicas", |it| {
                it.replicas.into()
            }),
            of(self.segment_size.is_some(), "--segment-size", |it| {
                it.segment_bytes.into()
            }),
            of(ping_interval.is_some(), "--ping-interval", |it| {
                it.ping_interval_ms.into()
            }),
            of(ping_timeout.is_some(), "--ping-timeout", |it| {
                it.ping_timeout_ms.into()
            }),
            of(self.verdict_timeout.is_some(), "--verdict-timeout", |it| {
                it.verdict_timeout_ms.into()
            }),
            of(self.read_lease.is_some(), "--read-lease", |it| {
                it.read_lease_ms.into()
            }),
            of(self.client_lease.is_some(), "--client-lease", |it| {
                it.client_lease_ms.into()
            }),
            of(self.partition_size.is_some(), "--partition-size", |it| {
                it.partition_bytes
            }),
            of(
                self.partition_records.is_some(),
                "--partition-records",
                |it| it.partition_records,
            ),
            of(layout, "--copyset-scatter or --zone-size", |it| {
                Option::<u32>::from(it.layout).map_or(0, u64::from)
            }),
        ];
        all.into_iter().flatten().collect()
    }

    /// The settings, after checks.
    pub(crate) fn settings(&self) -> Result<ClusterSettings, String> {
        let mut settings = duramen_coordinator::defaults(RandomState::new().hash_one(0));
        let narrow = |of: u64| u32::try_from(of).unwrap_or(u32::MAX);
        let ms = |of: &Option<Duration>, or: u32| of.map_or(or, |of| narrow(of.ms));
        if let Some(replicas) = self.replicas {
            settings.replicas = replicas;
        }
        if let Some(bytes) = self.segment_size {
            settings.segment_bytes = narrow(bytes);
        }
        settings.ping_interval_ms = ms(&self.ping_interval, settings.ping_interval_ms);
        settings.ping_timeout_ms = ms(&self.ping_timeout, settings.ping_timeout_ms);
        settings.verdict_timeout_ms = ms(&self.verdict_timeout, settings.verdict_timeout_ms);
        settings.read_lease_ms = ms(&self.read_lease, settings.read_lease_ms);
        settings.client_lease_ms = ms(&self.client_lease, settings.client_lease_ms);
        if let Some(bytes) = self.partition_size {
            settings.partition_bytes = bytes;
        }
        if let Some(records) = self.partition_records {
            settings.partition_records = records;
        }
        settings.layout = match (self.copyset_scatter, self.zone_size) {
            (Some(scatter), _) => ReplicaLayout::Copysets { scatter },
            (None, Some(bytes)) => ReplicaLayout::Zones {
                mib: narrow(bytes.div_ceil(1 << 20)),
            },
            (None, None) => ReplicaLayout::Scatter,
        };
        duramen_coordinator::check_settings(&settings).map_err(|error| error.to_string())?;
        Ok(settings)
    }
}

pub(crate) const HELP: &str = "\
One line on standard output tells that it is the leader, or that it has found the leader:

  ready coordinator=127.0.0.1:7400 admin=127.0.0.1:8400 role=leader

EXAMPLES
  duramen coordinator --store redb:/var/lib/duramen-coordinator
  duramen coordinator --replicas 2 --read-lease 500ms     settings of a new cluster
  duramen coordinator --listen 10.0.0.1:7400 --insecure-bind \\
                      --store etcd:http://10.0.0.1:2379,http://10.0.0.2:2379
  duramen serve --coordinator 127.0.0.1:7400              start a server of the cluster
  duramen status                                          show the cluster

Reads and writes do not pass through the coordinator. Without it the cluster continues to serve,
but the data of a server that crashes is not recovered until a coordinator is back. With etcd, start
two or three coordinators on different machines: if the leader ends, another one leads within three
seconds.

SIGTERM or SIGINT ends it after it has stored the changes in progress; a second signal ends it at
once. SIGHUP opens --log-file and reads the certificates again. It continues when its terminal is
closed.

With a certificate that has expired, or is not valid yet, it waits for a usable one; so it does for
that of --etcd-cert-file.

Exit codes: 0 stopped by a signal, 2 wrong usage, 5 could not start: its store is in use, belongs to
another cluster, or was written by a newer version; a name of --listen or --admin has no address
now; or a file cannot be read; 6 stopped by a second signal.";

fn cluster_name(text: &str) -> Result<String, String> {
    let is_wrong = |c: char| c == '/' || c == '\0' || c.is_whitespace();
    match text.len() {
        1..=CLUSTER_BYTES_MAX if !text.contains(is_wrong) => Ok(text.to_owned()),
        _ => Err(format!(
            "a name has 1 to {CLUSTER_BYTES_MAX} bytes, none of them blank or `/`"
        )),
    }
}

/// Why a coordinator does not start.
#[derive(Debug, PartialEq)]
enum Unusable {
    /// The options are wrong, and another attempt does not help.
    Options(String),
    /// Something is missing that may come by itself, such as a name server. The exit code is then
    /// not 2, after which a supervisor does not start the process again.
    Absent(String),
}

impl From<String> for Unusable {
    fn from(why: String) -> Unusable {
        Unusable::Options(why)
    }
}

/// An address, which must be of loopback unless `may_be_open`; `option` is its name.
fn address(
    option: &str,
    text: &str,
    may_be_open: impl FnOnce(SocketAddr) -> bool,
) -> Result<SocketAddr, Unusable> {
    let found = text.to_socket_addrs().map_err(|error| {
        let why = format!("`{text}` is no HOST:PORT: {error}");
        match error.kind() {
            std::io::ErrorKind::InvalidInput => Unusable::Options(why),
            _ => Unusable::Absent(format!("{option} `{text}`: {error}")),
        }
    });
    let address = found?
        .next()
        .ok_or_else(|| Unusable::Absent(format!("{option} `{text}` has no address")))?;
    if !address.ip().is_loopback() && !may_be_open(address) {
        return Err(Unusable::Options(format!(
            "{option} {address} is not loopback, and connections there are not encrypted: give certificates (--tls-cert-file), or use --insecure-bind if the network is your own"
        )));
    }
    Ok(address)
}

impl CoordinatorArgs {
    fn options(&self) -> Result<Options, Unusable> {
        let identity = self.tls.identity()?;
        let etcd = self.etcd.access()?;
        self.store.check(&etcd).map_err(|error| error.to_string())?;
        let encrypts = |address: SocketAddr| match self.admin_tls.as_str() {
            "auto" => identity.is_some() && !address.ip().is_loopback(),
            choice => choice == "yes",
        };
        let admin = match self.admin.as_str() {
            "no" => None,
            text => Some(address("--admin", text, |address| {
                self.insecure_bind || encrypts(address)
            })?),
        };
        let admin_identity = if admin.is_some_and(encrypts) {
            Some(self.tls.identity_for_browsers()?)
        } else {
            None
        };
        let may_be_open = |_| self.insecure_bind || identity.is_some();
        Ok(Options {
            cluster: self.cluster.clone(),
            listen: address("--listen", &self.listen, may_be_open)?,
            announce: self.announce.clone(),
            store: self.store.clone(),
            etcd,
            token: self.token()?,
            identity,
            settings: self.settings.settings()?,
            chosen: self.settings.chosen(),
            balances: self.balance.balance == "yes",
            admin,
            admin_identity,
            catalog: duramen_redis::table::catalog,
            show: |status, health, waits| status::as_json(status, Some(health), waits).to_string(),
        })
    }
}

impl CoordinatorArgs {
    fn token(&self) -> Result<Vec<u8>, Unusable> {
        super::token(self.cluster_token_file.as_deref()).map_err(|error| match error {
            ServerError::File { .. } => Unusable::Absent(error.to_string()),
            _ => Unusable::Options(error.to_string()),
        })
    }

    /// Why a certificate cannot be used now, if that may end by itself.
    fn untimely(&self) -> Option<LoadError> {
        let of_etcd = || super::tls::untimely(self.etcd.files()?);
        self.tls.untimely().or_else(of_etcd)
    }
}

/// Waits until the certificates can be used, because a supervisor does not start a process again
/// that ends with code 2. SIGTERM ends the process.
fn await_certificate(args: &CoordinatorArgs) {
    let mut said = String::new();
    while let Some(fault) = args.untimely() {
        let fault = fault.to_string();
        if fault != said {
            tracing::error!("TLS: {fault}. This coordinator waits until that has changed");
            notify::waiting(format_args!("waiting for a certificate: {fault}"));
            said = fault;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Interval of looks at files that cannot be used.
const LOOK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

pub(crate) fn run(args: &CoordinatorArgs) -> ExitCode {
    // Signals are watched before there are threads and waits: a signal that comes meanwhile must
    // not be lost, or end the process.
    let signals = signals::watch().map_err(|reason| Error::System {
        doing: "watch for signals",
        reason,
    });
    if let Err(why) = args.log.start() {
        eprintln!("duramen: {why}");
        return ExitCode::from(EXIT_FAILED);
    }
    let heeded = Arc::new(Heeded::default());
    let ended = signals.map(|signals| heed(signals, &heeded)).map(|()| {
        await_certificate(args);
        args.options()
    });
    match ended {
        Ok(Err(Unusable::Options(why))) => {
            crate::say::last_words(&format!("duramen: {why}\n"));
            ExitCode::from(2)
        }
        Ok(Err(Unusable::Absent(why))) => {
            crate::say::last_words(&format!("duramen: {why}\n"));
            ExitCode::from(EXIT_FAILED)
        }
        Ok(Ok(options)) => match serve(options, &heeded) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error),
        },
        Err(error) => fail(&error),
    }
}

fn fail(error: &Error) -> ExitCode {
    crate::say::last_words(&format!("duramen: {error}\n"));
    ExitCode::from(EXIT_FAILED)
}

/// The parts of the process that signals act on, each set as soon as it exists.
#[derive(Default)]
struct Heeded {
    /// Set when there is something to be stopped: a certificate, or the store, may keep the start
    /// waiting for ever.
    stopper: OnceLock<Stopper>,
    identities: OnceLock<[Option<Arc<Identity>>; 2]>,
}

/// Starts the thread that acts on signals.
fn heed(mut signals: Signals, heeded: &Arc<Heeded>) {
    let [stopped, reloaded] = [Arc::clone(heeded), Arc::clone(heeded)];
    let reloads = signals::apart(move |name| {
        let _reported = notify::reloading();
        signals::reopen_log();
        let identities = reloaded.identities.get().into_iter().flatten().flatten();
        let mut identities = identities.peekable();
        if identities.peek().is_none() {
            tracing::info!("{name}: a coordinator has no settings to be read again");
        }
        for identity in identities {
            duramen_coordinator::reload_certificates(identity);
        }
    });
    std::thread::spawn(move || {
        let mut stops = 0;
        for signal in signals.forever() {
            match signals::meaning(signal) {
                (name, Order::Stop) if stops > 0 => {
                    tracing::warn!("{name} again: stopping at once");
                    std::process::exit(EXIT_STUCK.into());
                }
                (_, Order::Stop) => {
                    stops += 1;
                    notify::stopping();
                    match stopped.stopper.get() {
                        Some(stopper) => stopper.stop(),
                        None => std::process::exit(0),
                    }
                }
                (name, Order::Reload) => drop(reloads.try_send(name)),
                (name, Order::Report | Order::Ignore) => tracing::info!("{name} is ignored"),
            }
        }
    });
}

fn serve(options: Options, heeded: &Heeded) -> Result<(), Error> {
    let identities = [options.identity.clone(), options.admin_identity.clone()];
    // Nothing else sets these.
    let _ = heeded.identities.set(identities);
    let running = duramen_coordinator::start(options)?;
    let _ = heeded.stopper.set(running.stopper());
    if let Some(role) = running.next_role() {
        announce(&running, &role);
    }
    running.wait()
}

/// Prints the line for which scripts wait.
fn announce(running: &Running, role: &Role) {
    let admin = running.admin().map(|address| address.to_string());
    let role = match role {
        Role::Leader => "leader",
        Role::Standby(_) => "standby",
    };
    crate::say::ready(format!(
        "coordinator={} admin={} role={role}",
        running.name(),
        admin.as_deref().unwrap_or("-")
    ));
}
