//! `duramen up`: a whole cluster on this machine, for trying and for tests.
//!
//! **Invariants**
//! - U1: no child outlives this process: it is stopped together with this one, and by the kernel if
//!   this one is killed.
//! - U2: a directory that was created here is removed at the end; a named one stays.
//! - U3: server N of a new cluster is the member that `duramen status` calls N.1: they join one
//!   after the other.

mod certificates;
mod child;
mod ready;

use super::coordinator::{BalanceArgs, LogArgs, SettingsArgs};
use super::tls::{self, TlsArgs};
use super::{Cluster, ClusterArgs, size, tablet::RESP_TABLE};
use crate::arguments::Duration;
use crate::failure::{EXIT_FAILED, EXIT_STUCK};
use crate::login::LoginArgs;
use crate::signals::Order;
use certificates::{CLIENT, Certificates};
use child::{Child, Ended, Patience};
use clap::Args;
use duramen_client::{Admin, AdminAnswer};
use duramen_wire::native::message::ServerStatus;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Instant;

pub(crate) use child::tie_to_parent;

/// Most servers on one machine.
const SERVERS_MAX: u16 = 64;
/// Longest start: everything is up within this time, or the start fails.
const START: std::time::Duration = std::time::Duration::from_secs(60);
/// Time for children to end after a stop.
const STOP: std::time::Duration = std::time::Duration::from_secs(15);
/// Names that are tried for a temporary directory.
const NAMES_MAX: usize = 1000;
/// A child that has ended is started again after this time: others recover its data meanwhile.
const AGAIN: std::time::Duration = std::time::Duration::from_secs(5);
/// Interval of checks of the children.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

#[derive(Args)]
pub(crate) struct UpArgs {
    /// Number of servers.
    #[arg(long, short = 'n', default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=i64::from(SERVERS_MAX)))]
    servers: u16,
    /// Number of servers over which database 0 is spread [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    spread: Option<u16>,
    /// Keep everything in this directory, and continue with its content. Without, a temporary one
    /// that is removed at the end.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// First RESP port; native ports are 100 higher, admin ports 200, the coordinator's port 300
    /// and its admin port 301 higher. Without: free ports.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..=65_000))]
    port: Option<u16>,
    /// Memory of each server.
    #[arg(long, value_name = "SIZE", default_value = "256mb", value_parser = size)]
    memory: u64,
    /// Level at which writes are acknowledged: synced (the default), when all replicas have them on
    /// stable storage; buffered, when their operating systems have them; memory, when the owner of
    /// the key has them in memory: they reach the replicas about a tenth of a second later, and are
    /// lost if the owner is killed before.
    #[arg(long, value_name = "LEVEL", value_parser = ["memory", "buffered", "synced"])]
    level: Option<String>,
    /// Reactor threads of each server.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u16,
    /// Disk mode of each server: buffered or direct.
    #[arg(long, value_name = "MODE", value_parser = ["buffered", "direct"])]
    disk_mode: Option<String>,
    /// More settings of all servers, as flags of `duramen serve`: --set scrub-interval=0.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,
    /// Name of the cluster.
    #[arg(long, value_name = "NAME", default_value = "local")]
    cluster: String,
    /// Encrypt all native connections, with certificates that are made in the directory.
    #[arg(long)]
    tls: bool,
    /// Leave processes that end as they are, instead of starting them again.
    #[arg(long)]
    no_restart: bool,
    #[command(flatten)]
    balance: BalanceArgs,
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) const HELP: &str = "\
EXAMPLES
  duramen up                              three servers on free ports; Ctrl-C ends them
  duramen up --servers 5 --port 7001
  redis-cli -c -p 7001 set greeting hello
  kill -9 PID; redis-cli -c -p 7002 get greeting
  duramen up --dir trial                  the data is still there after a restart
  duramen up --dir trial --tls            native connections are encrypted; clients and tools need
                                          trial/tls/client.crt, client.key and ca.crt

When all servers are up and database 0 is served, one line goes to standard output:

  ready coordinator=127.0.0.1:7301 resp=127.0.0.1:7001,… native=… admin=… pids=…

Requests are answered while as many servers are up as there are replicas, and one more. Without
--replicas there are half as many replicas as servers, at most 3: of five servers two may be down,
of three one.

The lists of servers begin with server 0.1 of `duramen status`. SIGTERM or SIGINT (Ctrl-C) ends all
processes, a second one kills them. SIGHUP goes to all of them: they open their log files and read
their settings again. They continue when the terminal is closed.

All other messages go to standard error, and the log of server N to server-N.log in the directory.
A process that ends is started again 5 s later, at the same addresses; so `kill -9` shows a
recovery first. Another server joins by the `duramen join` line that is printed at the start. Use
it for trials only: all servers share one machine and its power supply.

Exit codes: 0 stopped by a signal, 2 wrong usage, 5 could not start, 6 stopped by a second signal.";

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let known = duramen_config::Setting::find(name);
    if known.is_none() {
        let hint = duramen_config::hint(name);
        return Err(format!("unknown setting `{name}`; {hint}"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) fn run(args: &UpArgs) -> ExitCode {
    let signals = signals();
    if let Err(why) = args.log.start() {
        eprintln!("duramen: {why}");
        return ExitCode::from(EXIT_FAILED);
    }
    let mut up = match args.plan(&signals) {
        Ok(up) => up,
        Err(why) => {
            eprintln!("duramen: {why}");
            return ExitCode::from(2);
        }
    };
    let started = up.start(args, &signals);
    let ended = match started {
        Ok(true) => {
            up.watch(args, &signals);
            Ok(())
        }
        Ok(false) => Ok(()),
        Err(why) => Err(why),
    };
    let is_hurried = up.stop(&signals);
    match ended {
        Ok(()) if is_hurried => ExitCode::from(EXIT_STUCK),
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("duramen: {why}");
            ExitCode::from(EXIT_FAILED)
        }
    }
}

/// Signals with a meaning for this command, as they come; others are ignored.
fn signals() -> Receiver<Order> {
    let (tell, told) = std::sync::mpsc::channel();
    match crate::signals::watch() {
        Ok(mut signals) => {
            std::thread::spawn(move || {
                for signal in signals.forever() {
                    let (_, order) = crate::signals::meaning(signal);
                    if matches!(order, Order::Stop | Order::Reload) {
                        let _ = tell.send(order);
                    }
                }
            });
        }
        Err(error) => eprintln!("duramen: signals are not watched: {error}"),
    }
    told
}

/// A cluster of child processes.
struct Up {
    dir: PathBuf,
    /// Whether the directory was created here, and is removed at the end (U2).
    is_temporary: bool,
    /// The certificates, with --tls.
    certificates: Option<Certificates>,
    coordinator: Option<Child>,
    servers: Vec<Child>,
}

impl UpArgs {
    /// Checks everything that can be checked before a process is started.
    fn plan(&self, signals: &Receiver<Order>) -> Result<Up, String> {
        let replicas = self.replicas();
        if replicas >= u32::from(self.servers) {
            return Err(format!(
                "{replicas} replicas on servers other than the owner need at least {} servers, not {}",
                replicas + 1,
                self.servers
            ));
        }
        if self.spread.is_some_and(|spread| spread > self.servers) {
            return Err(format!(
                "there are {} servers: database 0 can't be spread over more",
                self.servers
            ));
        }
        self.settings.settings()?;
        if let Some(port) = self.port {
            for port in self.ports(port) {
                TcpListener::bind(("127.0.0.1", port))
                    .map_err(|error| format!("port {port} can't be used: {error}"))?;
            }
        }
        let made = match &self.dir {
            Some(dir) => duramen_base::private::make_dir(dir)
                .and_then(|()| dir.canonicalize())
                .map_err(|error| format!("cannot make {}: {error}", dir.display())),
            None => new_directory(&std::env::temp_dir()),
        };
        let mut up = Up {
            dir: made?,
            is_temporary: self.dir.is_none(),
            certificates: None,
            coordinator: None,
            servers: Vec::new(),
        };
        if self.tls {
            match Certificates::make(&up.dir, self.servers) {
                Ok(made) => up.certificates = Some(made),
                Err(why) => {
                    up.stop(signals); // U2
                    return Err(why);
                }
            }
        }
        Ok(up)
    }

    fn ports(&self, from: u16) -> Vec<u16> {
        let servers = (0..3).flat_map(|kind| (0..self.servers).map(move |n| kind * 100 + n));
        servers.chain([300, 301]).map(|more| from + more).collect()
    }

    fn replicas(&self) -> u32 {
        // As many servers as there are replicas, and one more, must be up.
        let fit = (u32::from(self.servers) / 2).clamp(1, 3);
        self.settings.replicas.unwrap_or(fit)
    }

    fn port(&self, more: u16) -> String {
        self.port.map_or(0, |from| from + more).to_string()
    }

    fn coordinator(&self, dir: &Path, certificates: Option<&Certificates>) -> Vec<String> {
        let store = format!("redb:{}", dir.join("coordinator").display());
        let listen = format!("127.0.0.1:{}", self.port(300));
        let mut words = vec!["coordinator".to_owned()];
        let flags = [
            ("--cluster", self.cluster.clone()),
            ("--store", store),
            ("--listen", listen),
            ("--admin", format!("127.0.0.1:{}", self.port(301))),
            ("--replicas", self.replicas().to_string()),
            ("--balance", self.balance.balance.clone()),
        ];
        for (flag, value) in flags {
            words.extend([flag.to_owned(), value]);
        }
        words.extend(self.settings.words(self.memory));
        if let Some(certificates) = certificates {
            words.extend(tls::words(&certificates.of("coordinator")));
        }
        words
    }

    fn server(
        &self,
        n: u16,
        dir: &Path,
        coordinator: &str,
        certificates: Option<&Certificates>,
    ) -> Vec<String> {
        let dir = dir.join(format!("server-{n}"));
        let mut words = vec!["serve".to_owned()];
        let flags = [
            ("--coordinator", coordinator.to_owned()),
            ("--cluster", self.cluster.clone()),
            ("--dir", dir.display().to_string()),
            ("--port", self.port(n)),
            ("--native-port", self.port(100 + n)),
            ("--admin-port", self.port(200 + n)),
            ("--memory", self.memory.to_string()),
            ("--threads", self.threads.to_string()),
        ];
        for (flag, value) in flags {
            words.extend([flag.to_owned(), value]);
        }
        let optional = [("level", &self.level), ("disk-mode", &self.disk_mode)];
        for (name, value) in optional {
            if let Some(value) = value {
                words.extend([format!("--{name}"), value.clone()]);
            }
        }
        if let Some(certificates) = certificates {
            words.extend(tls::words(&certificates.of(&certificates::server(n))));
            words.push("--tls-cluster=yes".to_owned());
        }
        // A flag that takes yes or no needs its value after `=`.
        words.extend(
            self.set
                .iter()
                .map(|(name, value)| format!("--{name}={value}")),
        );
        words
    }
}

impl Up {
    /// Starts everything. Returns false if it was stopped meanwhile.
    fn start(&mut self, args: &UpArgs, signals: &Receiver<Order>) -> Result<bool, String> {
        let until = Instant::now() + START;
        eprintln!(
            "starting a coordinator and {} servers in {}",
            args.servers,
            self.dir.display()
        );
        let (replicas, needed) = (args.replicas(), args.replicas() + 1);
        let spare = u32::from(args.servers) - needed;
        eprintln!("{replicas} replicas: {needed} servers must be up, so {spare} may be down");
        let log = self.dir.join("coordinator.log");
        let words = args.coordinator(&self.dir, self.certificates.as_ref());
        self.coordinator = Some(Child::start("the coordinator", &words, &log)?);
        if !self.until_ready(until, signals)? {
            return Ok(false);
        }
        let coordinator = self.said("coordinator");
        let address = coordinator.first().cloned().unwrap_or_default();
        let cluster = Cluster::open(&ClusterArgs {
            coordinator: vec![address.clone()],
            cluster: Some(args.cluster.clone()),
            cluster_token_file: None,
            tls: self.client_args(),
            timeout: Duration { ms: 10_000 },
            json: false,
            login: LoginArgs::default(),
        })
        .map_err(|error| error.to_string())?;
        for n in 0..args.servers {
            if !self.start_server(n, args, &address, &cluster, until, signals)? {
                return Ok(false);
            }
        }
        if !self.until_ready(until, signals)? {
            return Ok(false);
        }
        let is_up = |up: &mut Up| up.are_up(&cluster);
        if !self.until("all servers are up", until, signals, is_up)? {
            return Ok(false);
        }
        create(&cluster, args.spread.unwrap_or(args.servers))?;
        let resp = self.said("resp");
        let is_served = |_: &mut Up| Ok(ready::is_served(&cluster));
        if !self.until("database 0 is served", until, signals, is_served)? {
            return Ok(false);
        }
        self.announce(&resp);
        Ok(true)
    }

    /// U3: waits until a new server is a member; returns false if it was stopped meanwhile.
    fn start_server(
        &mut self,
        n: u16,
        args: &UpArgs,
        coordinator: &str,
        cluster: &Cluster,
        until: Instant,
        signals: &Receiver<Order>,
    ) -> Result<bool, String> {
        let log = self.dir.join(format!("server-{n}.log"));
        let is_new = !self.dir.join(format!("server-{n}/member")).exists();
        let words = args.server(n, &self.dir, coordinator, self.certificates.as_ref());
        let child = Child::start(&format!("server {n}"), &words, &log)?;
        self.servers.push(child);
        let is_member = |_: &mut Up| {
            let overview = cluster.overview().map_err(|error| error.to_string())?;
            Ok(overview.status.servers.len() > usize::from(n))
        };
        let what = format!("server {n} is a member");
        Ok(!is_new || self.until(&what, until, signals, is_member)?)
    }

    /// The certificate of this process.
    fn client_args(&self) -> TlsArgs {
        let certificates = self.certificates.as_ref();
        certificates
            .map(|made| TlsArgs::of(&made.of(CLIENT)))
            .unwrap_or_default()
    }

    fn children(&mut self) -> impl Iterator<Item = &mut Child> {
        self.coordinator.iter_mut().chain(&mut self.servers)
    }

    /// Values of this field in the ready lines of all servers (or of the coordinator).
    fn said(&self, name: &str) -> Vec<String> {
        let all = self.coordinator.iter().chain(&self.servers);
        // The coordinator's admin address does not belong to a server.
        let all = all.filter(|child| (name == "coordinator") == child.is_coordinator());
        all.filter_map(|child| child.said(name)).collect()
    }

    /// Waits until all started processes are ready.
    fn until_ready(&mut self, until: Instant, signals: &Receiver<Order>) -> Result<bool, String> {
        let ready = |up: &mut Up| Ok(up.children().all(|child| child.is_ready()));
        self.until("all processes are ready", until, signals, ready)
    }

    /// Waits for a condition; returns false if it was stopped meanwhile.
    fn until(
        &mut self,
        what: &str,
        until: Instant,
        signals: &Receiver<Order>,
        mut is_true: impl FnMut(&mut Up) -> Result<bool, String>,
    ) -> Result<bool, String> {
        while !is_true(self)? {
            if let Some(ended) = self.children().find_map(Child::ended) {
                return Err(format!("{ended}; its last words:\n{}", ended.last_words()));
            }
            if Instant::now() >= until {
                return Err(format!(
                    "gave up after {} s: not yet {what}; see the logs in {}",
                    START.as_secs(),
                    self.dir.display()
                ));
            }
            match signals.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
                Ok(Order::Stop) => return Ok(false),
                Ok(_) => self.reload(),
            }
        }
        Ok(true)
    }

    /// Whether all are members; then each has the number that the coordinator assigned.
    fn are_up(&mut self, cluster: &Cluster) -> Result<bool, String> {
        let overview = cluster.overview().map_err(|error| error.to_string())?;
        let members = &overview.status.servers;
        for child in &mut self.servers {
            let native = child.said("native").unwrap_or_default();
            let mut up = members.iter().filter(|m| m.status == ServerStatus::Up);
            match up.find(|member| member.addresses.native == native) {
                Some(member) => child.is_member(member.server),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn announce(&self, resp: &[String]) {
        let first = resp.first().map_or("", String::as_str);
        let port = first.rsplit(':').next().unwrap_or_default();
        eprintln!("\nup: redis-cli -c -p {port} set greeting hello");
        let coordinator = self.said("coordinator").join(",");
        let tls = self.certificates.as_ref().map(|made| made.of(CLIENT));
        let tls: String = tls
            .iter()
            .flat_map(tls::words)
            .fold(String::new(), |all, word| all + " " + &word);
        eprintln!("    duramen status --coordinator {coordinator}{tls}");
        for child in &self.servers {
            let address = child.said("resp").unwrap_or_default();
            eprintln!(
                "    server {} at {address}, pid {}",
                child.member(),
                child.pid()
            );
        }
        let next = Path::new(&format!("server-{}", self.servers.len())).to_owned();
        let dir = if self.is_temporary {
            next
        } else {
            self.dir.join(next)
        }; // U2
        let encrypts = if tls.is_empty() {
            ""
        } else {
            " --tls-cluster=yes"
        };
        eprintln!(
            "    one more: duramen join --coordinator {coordinator} --dir {}{tls}{encrypts}",
            dir.display()
        );
        eprintln!("    Ctrl-C ends them\n");
        let pids: Vec<String> = self.servers.iter().map(|c| c.pid().to_string()).collect();
        crate::say::ready(format!(
            "coordinator={coordinator} resp={} native={} admin={} pids={}",
            resp.join(","),
            self.said("native").join(","),
            self.said("admin").join(","),
            pids.join(",")
        ));
    }

    /// Waits for a signal. A child that ends is reported, and started again, and the others
    /// continue.
    fn watch(&mut self, args: &UpArgs, signals: &Receiver<Order>) {
        loop {
            match signals.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) | Ok(Order::Stop) => break,
                Ok(_) => self.reload(),
            }
            for child in self.children() {
                if let Some(ended) = child.ended() {
                    let then = if args.no_restart {
                        "the others go on".to_owned()
                    } else {
                        format!("it is started again in {} s", AGAIN.as_secs())
                    };
                    eprintln!("{ended}; {then}");
                    child.due = (!args.no_restart).then(|| Instant::now() + AGAIN);
                }
                if child.due.is_some_and(|due| Instant::now() >= due) {
                    child.start_again(AGAIN);
                }
            }
        }
        eprintln!("stopping");
    }

    /// SIGHUP, of the user or of a closed terminal: passes it to all children.
    fn reload(&mut self) {
        crate::signals::reopen_log();
        for child in self.children() {
            // SIGHUP would end a child that does not handle it yet.
            if child.is_ready() {
                child.tell_to_reload();
            }
        }
    }

    /// Stops servers first, and all at once: otherwise the remaining ones would take each for
    /// crashed. U1, U2. A second signal kills them; returns whether one came.
    fn stop(&mut self, signals: &Receiver<Order>) -> bool {
        let mut patience = Patience {
            until: Instant::now() + STOP,
            signals,
            is_hurried: false,
        };
        stop_all(&mut self.servers, &mut patience);
        stop_all(self.coordinator.as_mut_slice(), &mut patience);
        if self.is_temporary
            && let Err(error) = std::fs::remove_dir_all(&self.dir)
        {
            eprintln!("duramen: cannot remove {}: {error}", self.dir.display());
        }
        patience.is_hurried
    }
}

fn stop_all(children: &mut [Child], patience: &mut Patience<'_>) {
    for child in children.iter_mut() {
        child.tell_to_stop();
    }
    for child in children {
        if let Some(ended) = child.wait(patience).filter(Ended::is_bad) {
            eprintln!("{ended}");
        }
    }
}

/// U2: makes a directory that did not exist. Another process may have this one's id, if they do not
/// see each other (two containers that share `/tmp`); then the name gets another number.
fn new_directory(place: &Path) -> Result<PathBuf, String> {
    let name = format!("duramen-up-{}", std::process::id());
    let more = (1..).map(|n| format!("{name}-{n}"));
    for name in std::iter::once(name.clone()).chain(more).take(NAMES_MAX) {
        let dir = place.join(name);
        match duramen_base::private::make_new_dir(&dir).and_then(|()| dir.canonicalize()) {
            Ok(dir) => return Ok(dir),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(format!("cannot make {}: {error}", dir.display())),
        }
    }
    let all = place.join(name);
    Err(format!("{} and {NAMES_MAX} others exist", all.display()))
}

/// Creates database 0, unless an earlier run did.
fn create(cluster: &Cluster, spread: u16) -> Result<(), String> {
    let status = cluster.status().map_err(|error| error.to_string())?;
    if status.tables.iter().any(|table| table.name == RESP_TABLE) {
        return Ok(());
    }
    let create = Admin::CreateTable {
        name: RESP_TABLE.to_owned(),
        servers: u32::from(spread),
        level: None,
    };
    match cluster.ask(create) {
        Ok(AdminAnswer::Table(_)) => Ok(()),
        Ok(other) => Err(format!("the coordinator's answer does not fit: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::{SettingsArgs, UpArgs, new_directory};
    use clap::Parser;
    use std::path::Path;

    #[derive(Parser)]
    struct Up {
        #[command(flatten)]
        args: UpArgs,
    }

    #[derive(Parser)]
    struct Coordinator {
        #[command(flatten)]
        settings: SettingsArgs,
    }

    /// The verdict timeout that a coordinator takes from these words.
    fn verdict_timeout_ms(words: &[&str]) -> u32 {
        let words = ["coordinator"].iter().chain(words);
        let read = Coordinator::try_parse_from(words).expect("words of a coordinator");
        let settings = read.settings.settings().expect("settings");
        settings.verdict_timeout_ms
    }

    /// On a busy machine all healthy servers were called dead after one was killed: `up` had the
    /// 250 ms of servers that share no machine.
    #[test]
    fn servers_on_one_machine_have_two_seconds_to_answer() {
        assert_eq!(verdict_timeout_ms(&[]), 250);
        let cases: [(&[&str], u32); 2] = [(&[], 2_000), (&["--verdict-timeout", "300ms"], 300)];
        for (words, expected_ms) in cases {
            let words = ["up"].iter().chain(words);
            let up = Up::try_parse_from(words).expect("words of `up`").args;
            let told = up.coordinator(Path::new("dir"), None);
            let at = told.iter().position(|word| word == "--verdict-timeout");
            let at = at.expect("it is told");
            let ms = verdict_timeout_ms(&[&told[at], &told[at + 1]]);
            assert_eq!(ms, expected_ms);
        }
    }

    /// The directory of another running cluster was taken, and removed at the end: its process had
    /// the same id in another container.
    #[test]
    fn a_directory_that_exists_belongs_to_somebody_else() {
        let place = tempfile::tempdir().unwrap();
        let first = new_directory(place.path()).unwrap();
        std::fs::write(first.join("log"), "of the first").unwrap();
        let second = new_directory(place.path()).unwrap();
        assert_ne!(first, second);
        assert_eq!(std::fs::read_dir(&second).unwrap().count(), 0);
        std::fs::remove_dir_all(&second).unwrap();
        assert_eq!(new_directory(place.path()).unwrap(), second);
        assert!(first.join("log").exists());
    }
}
