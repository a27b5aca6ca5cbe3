//! Commands about a whole cluster: requests to its coordinator, over the native protocol.

mod accept;
mod balance;
pub(crate) mod coordinator;
pub(crate) mod join;
mod names;
mod place;
mod servers;
mod shown;
mod status;
mod summary;
mod table;
mod tablet;
pub(crate) mod tls;
pub(crate) mod up;
mod waits;

use crate::arguments::Duration;
use crate::failure::Failure;
use crate::login::LoginArgs;
use clap::{Args, Subcommand};
use duramen_client::{Admin, AdminAnswer, Client, Error, Options};
use duramen_config::ServerError;
use duramen_wire::native::message::{
    BalanceStatus, MembersHealth, Overview, PAGE_TABLETS_MAX, Status, Wait,
};
use serde_json::Value;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) use accept::run as accept_loss;
pub(crate) use table::{ClusterTable, TableCommand, run as run_table};

/// Attempts to fetch all tablets, if they change meanwhile.
const WHOLE_ATTEMPTS: u32 = 5;
/// Default address of a coordinator.
pub(crate) const COORDINATOR_DEFAULT: &str = "127.0.0.1:7400";

// The cluster and its coordinators. The same for every command of a coordinator: no doc comment,
// because clap would take it for the description of each of them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct ClusterArgs {
    /// Coordinators as host:port, separated by commas; one that answers is enough.
    #[arg(
        long,
        global = true,
        env = "DURAMEN_COORDINATOR",
        default_value = COORDINATOR_DEFAULT,
        value_delimiter = ',',
        value_name = "ADDR"
    )]
    pub(crate) coordinator: Vec<String>,
    /// The cluster's name; without, any cluster is accepted.
    #[arg(long, global = true, env = "DURAMEN_CLUSTER", value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// A file with the cluster's token, if it requires one.
    #[arg(
        long,
        global = true,
        env = "DURAMEN_CLUSTER_TOKEN_FILE",
        value_name = "FILE"
    )]
    pub(crate) cluster_token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tls: tls::TlsArgs,
    /// Longest wait for the coordinator, a failover included.
    #[arg(long, global = true, default_value = "5s", value_name = "TIME")]
    pub(crate) timeout: Duration,
    /// Print JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) login: LoginArgs,
}

/// Reads the token in a file, as servers do; empty if there is no file.
fn token(file: Option<&Path>) -> Result<Vec<u8>, ServerError> {
    file.map_or_else(|| Ok(Vec::new()), duramen_config::read_token)
}

/// Parses `64mb`, `1gb` or plain bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let bytes = duramen_config::parse_size(text);
    bytes
        .ok_or_else(|| format!("`{text}` is not a size: write bytes, or a number and kb, mb or gb"))
}

/// Requests to a coordinator. (`table` is among the commands of a server, too: see `ClusterTable`.)
#[derive(Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show a cluster: members, tables, tablets, recoveries, migrations.
    #[command(after_help = status::HELP)]
    Status(status::StatusArgs),
    /// List, split and move tablets, the parts of tables.
    #[command(subcommand)]
    Tablet(tablet::TabletCommand),
    /// Move everything off a server, so that it can be stopped.
    #[command(after_help = servers::DRAIN_HELP)]
    Drain(servers::DrainArgs),
    /// Allow a drained server to have tablets and replicas again.
    #[command(after_help = servers::UNDRAIN_HELP)]
    Undrain(servers::ServerArg),
    /// Move tablets until all servers have their shares of the data.
    #[command(after_help = balance::HELP)]
    Rebalance(balance::RebalanceArgs),
    /// Declare a server dead: it is fenced, and its data is recovered on others.
    #[command(after_help = servers::CRASH_HELP)]
    Crash(servers::CrashArgs),
}

/// Sends the request, prints the answer.
pub(crate) fn run(command: &ClusterCommand, args: &ClusterArgs) -> Result<(), Failure> {
    let cluster = Cluster::open(args)?;
    match command {
        ClusterCommand::Status(status) => status::run(status, &cluster, args.json),
        ClusterCommand::Tablet(tablet) => tablet::run(tablet, &cluster, args.json),
        ClusterCommand::Drain(drain) => servers::drain(drain, &cluster, args.json),
        ClusterCommand::Undrain(server) => servers::undrain(server, &cluster, args.json),
        ClusterCommand::Rebalance(rebalance) => balance::run(rebalance, &cluster, args.json),
        ClusterCommand::Crash(crash) => servers::crash(crash, &cluster, args.json),
    }
}

/// The options of a client of this cluster.
pub(crate) fn options(args: &ClusterArgs) -> Result<Options, Failure> {
    let mut options = Options::new(args.coordinator.iter().map(|address| address.trim()));
    options.cluster = args.cluster.clone().unwrap_or_default();
    options.token = token(args.cluster_token_file.as_deref())
        .map_err(|error| Failure::Usage(error.to_string()))?;
    options.tls = args.tls.files().map_err(Failure::Usage)?;
    options.login = args.login.login()?;
    options.deadline = std::time::Duration::from_millis(args.timeout.ms);
    Ok(options)
}

/// A cluster, as its coordinator reports it.
pub(crate) struct Cluster {
    client: Client,
}

impl Cluster {
    pub(crate) fn open(args: &ClusterArgs) -> Result<Cluster, Failure> {
        let client = Client::new(options(args)?).map_err(|error| failure(&error))?;
        Ok(Cluster { client })
    }

    /// Sends a request to the leading coordinator.
    pub(crate) fn ask(&self, admin: Admin) -> Result<AdminAnswer, Failure> {
        self.client.admin(admin).map_err(|error| failure(&error))
    }

    /// Everything except tablets, regardless of their number.
    pub(crate) fn overview(&self) -> Result<Overview, Failure> {
        match self.ask(Admin::Overview)? {
            AdminAnswer::Overview(overview) => Ok(*overview),
            other => Err(unfit(&other)),
        }
    }

    /// The state of the members; `None` if the coordinator is too old to report it.
    pub(crate) fn health(&self) -> Result<Option<MembersHealth>, Failure> {
        match self.client.admin(Admin::Members) {
            Ok(AdminAnswer::Members(health)) => Ok(Some(health)),
            Ok(other) => Err(unfit(&other)),
            Err(Error::Protocol { .. }) => Ok(None),
            Err(error) => Err(failure(&error)),
        }
    }

    /// Everything that waits, with the reasons; empty if the coordinator is too old to report it.
    pub(crate) fn waits(&self) -> Result<Vec<Wait>, Failure> {
        match self.client.admin(Admin::Waits) {
            Ok(AdminAnswer::Waits(waits)) => Ok(waits),
            Ok(other) => Err(unfit(&other)),
            Err(Error::Protocol { .. }) => Ok(Vec::new()),
            Err(error) => Err(failure(&error)),
        }
    }

    /// The balance between the servers; `None` if the coordinator is too old to report it.
    pub(crate) fn balance(&self) -> Result<Option<BalanceStatus>, Failure> {
        match self.client.admin(Admin::Balance) {
            Ok(AdminAnswer::Balance(balance)) => Ok(Some(*balance)),
            Ok(other) => Err(unfit(&other)),
            Err(Error::Protocol { .. }) => Ok(None),
            Err(error) => Err(failure(&error)),
        }
    }

    /// The overview with all tablets, which are fetched a page at a time. After a change meanwhile
    /// it begins anew; if changes never stop, the pages are of different moments.
    pub(crate) fn whole(&self) -> Result<Overview, Failure> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let mut overview = self.overview()?;
            if self.add_tablets(&mut overview)? || attempts == WHOLE_ATTEMPTS {
                return Ok(overview);
            }
        }
    }

    /// Adds all tablets to an overview. Returns whether the whole overview is of one moment.
    fn add_tablets(&self, overview: &mut Overview) -> Result<bool, Failure> {
        let status = &mut overview.status;
        let (mut from, mut fits) = (None, true);
        loop {
            let ask = Admin::Tablets {
                table: None,
                from,
                most: PAGE_TABLETS_MAX as u32,
            };
            let page = match self.ask(ask)? {
                AdminAnswer::Tablets(page) => page,
                other => return Err(unfit(&other)),
            };
            fits &= page.map_version == status.map_version;
            status.tablets.extend(page.tablets);
            match page.next {
                Some(next) => from = Some(next),
                None => return Ok(fits),
            }
        }
    }

    /// As [`whole`](Self::whole), but returns only the status.
    pub(crate) fn status(&self) -> Result<Status, Failure> {
        Ok(self.whole()?.status)
    }
}

/// Pause before a coordinator that did not answer is asked again.
const ASK_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

/// Asks a coordinator about `what`, an operation that members continue while a coordinator restarts
/// or another one begins to lead. A coordinator that does not answer is asked again until then.
fn ask_patiently<T>(
    until: Instant,
    what: &str,
    ask: impl Fn() -> Result<T, Failure>,
) -> Result<T, Failure> {
    loop {
        match ask() {
            Err(failure @ (Failure::NoCoordinator { .. } | Failure::NotReady { .. }))
                if Instant::now() < until =>
            {
                eprintln!("{failure}\n{what} goes on; asking again");
                std::thread::sleep(ASK_AGAIN);
            }
            answer => return answer,
        }
    }
}

fn unfit(answer: &AdminAnswer) -> Failure {
    Failure::Coordinator(format!("its answer does not fit: {answer:?}"))
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Deadline { deadline, last } => Failure::NoCoordinator {
            within: *deadline,
            tried: last.clone(),
            advice: advice(last),
        },
        Error::OutcomeUnknown { deadline, last } => Failure::NoCoordinator {
            within: *deadline,
            tried: last.clone(),
            advice: "The request may have been carried out: see `duramen status`.",
        },
        Error::NotReady { deadline, reason } => Failure::NotReady {
            within: *deadline,
            reason: reason.clone(),
        },
        Error::Options(why) => Failure::Usage(why.clone()),
        Error::Refused(why) if why.contains("log in") => Failure::Coordinator(format!(
            "{why}\nName one by --user, with DURAMEN_PASSWORD or --password-file."
        )),
        Error::Refused(why) => Failure::Coordinator(why.clone()),
        other => Failure::Coordinator(other.to_string()),
    }
}

/// Advice about coordinators that did not answer, for this reason.
fn advice(last: &str) -> &'static str {
    if last.contains("TLS") || last.contains("certificate") {
        "Are the certificates of this cluster, and valid? See --tls-cert-file, and `duramen cert show`."
    } else {
        "Is one running there? Start one with `duramen coordinator`, or name others with --coordinator."
    }
}

/// Prints lines, or one line of JSON.
fn say(json: bool, text: &str, value: &Value) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let said = if json {
        writeln!(out, "{value}")
    } else {
        out.write_all(text.as_bytes())
    };
    said.and_then(|()| out.flush()).map_err(Failure::stdout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// `duramen rebalance --wait` ended when its coordinator was started again.
    #[test]
    fn a_coordinator_that_comes_back_in_time_is_asked_again() {
        let asked = Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            match asked.get() {
                1 => Err(Failure::NotReady {
                    within: std::time::Duration::ZERO,
                    reason: "it reads its store".to_owned(),
                }),
                2 => Ok(asked.get()),
                _ => Err(Failure::Coordinator("refused".to_owned())),
            }
        };
        let until = Instant::now() + std::time::Duration::from_secs(60);
        assert!(matches!(ask_patiently(until, "this", ask), Ok(2)));
        let refused = ask_patiently(until, "this", ask);
        assert!(matches!(refused, Err(Failure::Coordinator(_))));
        asked.set(0);
        let late = ask_patiently(Instant::now(), "this", ask);
        assert!(matches!(late, Err(Failure::NotReady { .. })));
    }
}
