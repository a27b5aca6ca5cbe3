//! Commands that send one request to a running server, over RESP.

mod ask;
mod connection;
mod print;
mod router;
mod snapshot;
mod stream;
pub(crate) mod tls;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Subcommand};

pub(crate) use connection::{ConnectArgs, Connection};
use router::Servers;

use crate::arguments::Duration;
use crate::cluster::{self, Cluster, ClusterArgs, ClusterTable, TableCommand};
use crate::failure::{EXIT_CODES, Failure};

/// Keys and values are bytes: arguments of the shell arrive unchanged.
#[derive(Subcommand)]
pub(crate) enum ClientCommand {
    /// Print the value of a key.
    #[command(after_help = GET_HELP)]
    Get {
        key: OsString,
        /// Print the value's bytes and nothing after them.
        #[arg(long, short = 'n')]
        no_newline: bool,
    },
    /// Store a value.
    #[command(after_help = SET_HELP)]
    Set(SetArgs),
    /// Delete keys; prints how many existed.
    #[command(visible_alias = "rm", after_help = EXIT_CODES)]
    Del {
        #[arg(required = true)]
        keys: Vec<OsString>,
    },
    /// Print how many of these keys exist.
    #[command(after_help = EXIT_CODES)]
    Exists {
        #[arg(required = true)]
        keys: Vec<OsString>,
    },
    /// Add an integer to a number; an absent key counts as 0.
    #[command(after_help = INCR_HELP)]
    Incr {
        key: OsString,
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
    },
    /// Subtract an integer from a number; an absent key counts as 0.
    #[command(after_help = EXIT_CODES)]
    Decr {
        key: OsString,
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
    },
    /// Add a decimal fraction to a number; an absent key counts as 0.
    #[command(after_help = EXIT_CODES)]
    Incrbyfloat {
        key: OsString,
        #[arg(allow_negative_numbers = true)]
        by: f64,
    },
    /// Append to a value; prints its new length in bytes.
    #[command(after_help = EXIT_CODES)]
    Append {
        key: OsString,
        /// The text to append; `-` reads standard input.
        value: OsString,
    },
    /// Print the length of a value in bytes.
    #[command(after_help = EXIT_CODES)]
    Strlen { key: OsString },
    /// Print the values of several keys, one per line; an empty line and exit code 1 for absent
    /// ones.
    #[command(after_help = "With --json: an array with null for absent keys.")]
    Mget {
        #[arg(required = true)]
        keys: Vec<OsString>,
    },
    /// Store several values at once, all or none; in a cluster their keys have one slot.
    #[command(after_help = "EXAMPLE\n  duramen mset user:1 ada user:2 grace")]
    Mset {
        /// Keys and values in turn.
        #[arg(required = true, num_args = 2.., value_names = ["KEY", "VALUE"])]
        pairs: Vec<OsString>,
    },
    /// Let a key expire after a time.
    #[command(after_help = EXPIRE_HELP)]
    Expire {
        key: OsString,
        /// From now: seconds, or with a unit (500ms, 30s, 15m, 12h, 7d).
        after: Duration,
        /// Only if the key has no expiry.
        #[arg(long, conflicts_with = "xx")]
        nx: bool,
        /// Only if the key has an expiry.
        #[arg(long)]
        xx: bool,
    },
    /// Print the seconds until a key expires; -1 if never.
    #[command(after_help = EXIT_CODES)]
    Ttl {
        key: OsString,
        /// In milliseconds.
        #[arg(long)]
        ms: bool,
    },
    /// Let a key never expire.
    #[command(after_help = EXIT_CODES)]
    Persist { key: OsString },
    /// Print the type of a key's value.
    #[command(after_help = EXIT_CODES)]
    Type { key: OsString },
    /// Give a key another name; a key that had that name is replaced.
    #[command(after_help = EXIT_CODES)]
    Rename { key: OsString, new_key: OsString },
    /// Print all keys, of all members in a cluster, in no order, while the server continues to
    /// serve.
    #[command(after_help = SCAN_HELP)]
    Scan(ScanArgs),
    /// Print all keys that match a pattern, in one request: it stops other clients meanwhile, see
    /// `scan`.
    #[command(after_help = EXIT_CODES)]
    Keys {
        #[arg(default_value = "*")]
        pattern: OsString,
    },
    /// Print the number of keys, in all of a cluster.
    #[command(after_help = EXIT_CODES)]
    Dbsize,
    /// Check whether the server answers, and how fast.
    #[command(after_help = EXIT_CODES)]
    Ping {
        /// Number of pings.
        #[arg(long, short = 'c', default_value_t = 1)]
        count: u32,
    },
    /// Print the server's information.
    #[command(
        after_help = "EXAMPLES\n  duramen info\n  duramen info memory stats\n  duramen info --json | jq .memory"
    )]
    Info {
        /// Only these sections (server, clients, memory, stats, …).
        sections: Vec<OsString>,
    },
    /// Copy all data, as it is at one moment, into a new directory on the server's machine, while
    /// clients are served.
    #[command(after_help = SNAPSHOT_HELP)]
    Snapshot(SnapshotArgs),
    /// List, create, find or drop tables, of a server or (with --coordinator) of a cluster.
    #[command(after_help = TABLE_HELP)]
    Table(TableArgs),
    /// Send any command unchanged, and print the reply.
    #[command(
        after_help = "EXAMPLES\n  duramen call OBJECT ENCODING key\n  duramen call SET key value EX 60 NX"
    )]
    Call {
        #[arg(
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "WORD"
        )]
        words: Vec<OsString>,
    },
}

#[derive(Args)]
pub(crate) struct SetArgs {
    key: OsString,
    /// The value; `-` reads standard input up to its end, every byte of it.
    value: OsString,
    /// Expire after this time: seconds, or with a unit (500ms, 30s, 15m, 12h, 7d).
    #[arg(long, value_name = "TIME")]
    ttl: Option<Duration>,
    /// Keep the key's expiry.
    #[arg(long, conflicts_with = "ttl")]
    keep_ttl: bool,
    /// Only if the key is absent.
    #[arg(long, conflicts_with = "xx")]
    nx: bool,
    /// Only if the key exists.
    #[arg(long)]
    xx: bool,
    /// Print the old value.
    #[arg(long)]
    get: bool,
}

#[derive(Args)]
pub(crate) struct ScanArgs {
    /// Only keys that match this glob pattern (`*`, `?`, `[abc]`).
    #[arg(default_value = "*")]
    pattern: OsString,
    /// Print at most this many keys; 0 = all.
    #[arg(long, default_value_t = 0, value_name = "N")]
    limit: u64,
    /// Keys that the server examines per request.
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Print values too, after a tab.
    #[arg(long)]
    values: bool,
    /// End each key with a zero byte: a key may contain line ends. A key with a zero byte is not
    /// printed, but reported.
    #[arg(short = '0', long, conflicts_with = "values")]
    null: bool,
}

#[derive(Args)]
pub(crate) struct SnapshotArgs {
    /// A directory that does not exist yet, or an empty one, in the server's file system: that of
    /// its machine or container, not yours.
    dir: PathBuf,
    /// Replace the snapshot that is in the directory, when the new one is complete.
    #[arg(long)]
    replace: bool,
    /// Make the copy in a new directory within this one, named after the time (UTC), and
    /// remove older ones: this many stay.
    #[arg(long, value_name = "NUMBER", conflicts_with = "replace")]
    keep: Option<u32>,
    /// Return at once; `duramen info persistence` shows the progress.
    #[arg(long)]
    background: bool,
}

#[derive(Args)]
pub(crate) struct TableArgs {
    /// Coordinators of a cluster as host:port, separated by commas: the command is about the
    /// cluster's tables, not those of a server. The flags --host and --port override the variable.
    #[arg(
        long,
        global = true,
        env = "DURAMEN_COORDINATOR",
        value_delimiter = ',',
        value_name = "ADDR"
    )]
    coordinator: Vec<String>,
    /// With --coordinator: the cluster's name; without, any cluster is accepted.
    #[arg(long, global = true, env = "DURAMEN_CLUSTER", value_name = "NAME")]
    cluster: Option<String>,
    /// With --coordinator: a file with the cluster's token, if it requires one.
    #[arg(
        long,
        global = true,
        env = "DURAMEN_CLUSTER_TOKEN_FILE",
        value_name = "FILE"
    )]
    cluster_token_file: Option<PathBuf>,
    #[command(subcommand)]
    command: TableCommand,
}

impl TableArgs {
    fn ask_cluster(&self, connect: &ConnectArgs) -> Result<(), Failure> {
        let args = ClusterArgs {
            coordinator: self.coordinator.clone(),
            cluster: self.cluster.clone(),
            cluster_token_file: self.cluster_token_file.clone(),
            tls: connect.tls.of_cluster()?,
            timeout: Duration {
                // Here 0 stands for ever: a day is long enough.
                ms: match connect.timeout.ms {
                    0 => 86_400_000,
                    ms => ms,
                },
            },
            json: connect.json,
            login: connect.login.clone(),
        };
        let asked = ClusterTable {
            command: &self.command,
            at: &self.coordinator.join(","),
            json: connect.json,
        };
        cluster::run_table(&asked, &Cluster::open(&args)?)
    }
}

const GET_HELP: &str = "\
EXAMPLES
  duramen get greeting
  duramen get --no-newline blob > file    the exact bytes
  duramen get --json greeting             \"hello\"; {\"base64\": …} if not UTF-8; null if absent

Exit codes: 0 found, 1 not found, 2 wrong usage, 3 error from the server, 4 no connection.";

const SET_HELP: &str = "\
EXAMPLES
  duramen set greeting hello
  duramen set session:7 active --ttl 30m
  duramen set lock mine --nx --ttl 10s || echo taken
  duramen set blob - < file               the value is standard input

Exit codes: 0 stored, 1 the condition did not hold, 2 wrong usage, 3 error from the server,
4 no connection.";

const INCR_HELP: &str = "\
EXAMPLES
  duramen incr visits
  duramen incr visits 10
  duramen incr visits -3

Exit codes: 0 done, 2 wrong usage, 3 error from the server (not a number?), 4 no connection.";

const EXPIRE_HELP: &str = "\
EXAMPLES
  duramen expire session:7 30m
  duramen expire session:7 1500ms --xx

Exit codes: 0 set, 1 no such key or the condition did not hold, 2 wrong usage, 3 error from the
server, 4 no connection.";

const SNAPSHOT_HELP: &str = "\
The server writes DIR: a relative path is taken from your working directory, but on the server's
machine, and in its container if it has one. `duramen restore` makes a data directory of the copy.

EXAMPLES
  duramen snapshot /backup/monday
  duramen restore /backup/monday /var/lib/duramen
  duramen snapshot /backup/now --background
  duramen snapshot /backup/latest --replace   the last one stays until this one is complete
  duramen snapshot /backup/daily --keep 7     in /backup/daily/20261129-201503, the 8th oldest goes

Exit codes: 0 done, 2 wrong usage, 3 error from the server, which is printed, 4 no connection.";

const TABLE_HELP: &str = "\
EXAMPLES
  duramen table list
  duramen table create sessions --level memory
  duramen table create orders --servers 5 --coordinator 127.0.0.1:7400
  DURAMEN_COORDINATOR=10.0.0.1:7400,10.0.0.2:7400 duramen table drop orders
  duramen table drop sessions --port 6380     of this server, also if DURAMEN_COORDINATOR is set

Exit codes: 0 done, 2 wrong usage, 3 refused, with the reason (the table exists, or does not),
4 no connection.";

const SCAN_HELP: &str = "\
A key that exists from beginning to end is printed at least once. It may be printed several times,
and beyond --limit, if keys move between the members of a cluster meanwhile.

EXAMPLES
  duramen scan
  duramen scan 'user:*' --limit 10
  duramen scan --values
  duramen scan -0 'old:*' | xargs -0 duramen del --
  duramen scan --json                     one JSON value per line";

/// Connects, sends the command, prints the reply. `given` are the command's arguments, with the
/// source of each.
pub(crate) fn run(
    command: &ClientCommand,
    connect: &ConnectArgs,
    given: &ArgMatches,
) -> Result<(), Failure> {
    if let ClientCommand::Table(table) = command {
        let is_flag = |name: &str| given.value_source(name) == Some(ValueSource::CommandLine);
        // A coordinator of the environment must not redirect a command that names its server.
        let names_server = is_flag("host") || is_flag("port");
        if names_server && is_flag("coordinator") {
            return Err(Failure::Usage(
                "--coordinator is about a cluster's tables, --host and --port about those of one server: give one of them".to_owned(),
            ));
        }
        if !names_server && !table.coordinator.is_empty() {
            return table.ask_cluster(connect);
        }
        if let TableCommand::Create {
            servers: Some(_), ..
        } = &table.command
        {
            return Err(Failure::Usage(
                "--servers is for a cluster: name it with --coordinator".to_owned(),
            ));
        }
    }
    ask::run(command, &mut Servers::open(connect)?, connect.json)
}
