//! `duramen bench`: load on any server that speaks RESP, with latencies; the ways of a native
//! client to a server on its machine; its threads beside operations in flight.

mod local;
mod outstanding;
mod turns;

use crate::client::tls::RespTlsArgs;
use crate::failure::Failure;
use crate::login::LoginArgs;
use clap::ArgMatches;
use clap::builder::RangedU64ValueParser;
use duramen_base::limits::VALUE_BYTES_MAX;
use duramen_load::{Access, Command, Distribution, Limit, Load, Login, Outcome, Tls};
use serde_json::{Map, Value};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

#[derive(clap::Subcommand)]
pub(crate) enum BenchCommand {
    /// Load any server that speaks RESP, and print its throughput and latencies
    Load(LoadArgs),
    /// Compare TCP with shared memory for a native client on the server's machine
    Local(local::LocalArgs),
    /// Compare a native client's threads with as many operations in flight on one thread
    Outstanding(outstanding::OutstandingArgs),
}

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct LoadArgs {
    /// The server [default: DURAMEN_HOST and DURAMEN_PORT, else 127.0.0.1:6379]
    #[arg(long, value_name = "HOST:PORT")]
    server: Option<String>,
    /// get, set, mget, mset or mixed
    #[arg(long, value_enum, default_value_t = CommandName::Get)]
    command: CommandName,
    /// Keys of one MGET or MSET
    #[arg(long, default_value_t = 70, value_parser = count(1_000_000))]
    multi: usize,
    /// Percent of GET in `mixed`
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(0..=100))]
    reads: u64,
    #[arg(long, default_value_t = 50, value_parser = count(100_000))]
    connections: usize,
    /// Requests that a connection sends before it waits for their replies
    #[arg(long, default_value_t = 16, value_parser = count(1_000_000))]
    pipeline: usize,
    /// Number of different keys
    #[arg(long, default_value_t = 1_000_000,
        value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    keys: u64,
    /// Value size in bytes
    #[arg(long, default_value_t = 100, value_parser = bytes_of_value())]
    value: usize,
    /// Draw keys by YCSB's Zipfian distribution with this exponent instead of uniformly
    #[arg(long, value_name = "EXPONENT", value_parser = exponent)]
    zipfian: Option<f64>,
    /// Seconds to run
    #[arg(long, default_value_t = 10.0, value_parser = amount)]
    seconds: f64,
    /// Requests per second to offer (open loop); without it, as many as the server answers
    #[arg(long, value_parser = amount)]
    rate: Option<f64>,
    /// Threads of the generator
    #[arg(long, default_value_t = 1, value_parser = count(4096))]
    threads: usize,
    /// End each pipeline with a WAIT for so many replicas
    #[arg(long, value_name = "REPLICAS", default_value_t = 0)]
    wait_replicas: u32,
    /// Spin for replies instead of sleeping: shows the server's latency without the generator's
    /// wake-up
    #[arg(long)]
    spin: bool,
    /// Write every key once before measuring
    #[arg(long)]
    preload: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    login: LoginArgs,
    #[command(flatten)]
    tls: RespTlsArgs,
}

const HELP: &str = "\
Latency is the time from the sending of a pipeline to its last reply. With --rate it begins at the
moment at which the request was due.

Exit codes: 0 measured, 1 could not measure, 2 wrong usage.";

#[derive(Clone, Copy, clap::ValueEnum)]
enum CommandName {
    Get,
    Set,
    Mget,
    Mset,
    Mixed,
}

/// Most bytes of requests that are on the way at once: all connections send a pipeline, and each
/// keeps it in memory until the socket has taken it.
const IN_FLIGHT_BYTES_MAX: usize = 1 << 30;
/// Upper bound of a request's bytes without its values and further keys: verb, key, lengths.
const REQUEST_BYTES: usize = 64;
/// Upper bound of the bytes of each further key.
const KEY_BYTES: usize = 32;

/// A number from 1 to `most`.
fn count(most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=most)
}

/// A number of bytes of a value: at most the longest value of a server.
fn bytes_of_value() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(0..=VALUE_BYTES_MAX as u64)
}

/// Refuses a load that this machine's memory would have to hold while it is sent.
fn check_in_flight(args: &LoadArgs) -> Result<(), Failure> {
    let value = args.value + KEY_BYTES;
    let further = match args.command {
        CommandName::Get => 0,
        CommandName::Set | CommandName::Mixed => value,
        CommandName::Mget => args.multi * KEY_BYTES,
        CommandName::Mset => args.multi.saturating_mul(value),
    };
    let pipelines = args.connections.saturating_mul(args.pipeline);
    let bytes = pipelines.saturating_mul(REQUEST_BYTES.saturating_add(further));
    if bytes <= IN_FLIGHT_BYTES_MAX {
        Ok(())
    } else {
        Err(Failure::Usage(format!(
            "{} connections with {} requests each have {} MB of requests on the way at once, and \
             {} MB is the most: lower --connections, --pipeline, --multi or --value",
            args.connections,
            args.pipeline,
            bytes >> 20,
            IN_FLIGHT_BYTES_MAX >> 20
        )))
    }
}

/// A time or a rate.
fn amount(text: &str) -> Result<f64, String> {
    let amount: Option<f64> = text.parse().ok();
    let fits = |amount: &f64| (0.001..=1e9).contains(amount);
    amount
        .filter(fits)
        .ok_or_else(|| "a number from 0.001 to 1,000,000,000".to_owned())
}

/// An exponent of the Zipfian distribution: not 1, for which its formula is undefined.
fn exponent(text: &str) -> Result<f64, String> {
    let wrong = || "a number between 0 and 2, but not 1".to_owned();
    let exponent: f64 = text.parse().map_err(|_| wrong())?;
    let fits = exponent > 0.0 && exponent < 2.0 && exponent != 1.0;
    fits.then_some(exponent).ok_or_else(wrong)
}

/// `given`: all arguments.
pub(crate) fn run(command: &BenchCommand, given: &ArgMatches) -> Result<(), Failure> {
    match command {
        BenchCommand::Load(args) => run_load(args, given),
        BenchCommand::Local(args) => local::run(args),
        BenchCommand::Outstanding(args) => outstanding::run(args),
    }
}

fn run_load(args: &LoadArgs, given: &ArgMatches) -> Result<(), Failure> {
    let unmeasured = |error: duramen_load::Failure| Failure::Unmeasured(error.to_string());
    let mut tls = args.tls.clone();
    tls.note_flags(given);
    check_in_flight(args)?;
    let load = load(args, &tls)?;
    if args.preload {
        load.preload(0).map_err(unmeasured)?;
    }
    let outcome = load.run().map_err(unmeasured)?;
    if args.json {
        let object: Map<String, Value> = figures(&outcome)
            .map(|(name, figure)| (name.replace(' ', "_"), figure))
            .into_iter()
            .collect();
        println!("{}", Value::Object(object));
    } else {
        for (name, figure) in figures(&outcome) {
            println!("{name:<20} {figure}");
        }
    }
    Ok(())
}

fn load(args: &LoadArgs, tls: &RespTlsArgs) -> Result<Load, Failure> {
    let server = match &args.server {
        Some(server) => server.clone(),
        None => usual(tls.port()?),
    };
    let host = server.rsplit_once(':').map_or(&*server, |(host, _)| host);
    let encrypted = |identity| Tls {
        identity,
        host: tls.name_of(host).to_owned(),
    };
    let password = args.login.secret()?;
    Ok(Load {
        tls: tls.identity()?.map(encrypted),
        login: password.map(|password| Login {
            user: args.login.user().map(str::to_owned),
            password,
        }),
        server: resolve(&server)?,
        command: match args.command {
            CommandName::Get => Command::Get,
            CommandName::Set => Command::Set,
            CommandName::Mget => Command::Mget(args.multi),
            CommandName::Mset => Command::Mset(args.multi),
            CommandName::Mixed => Command::Mixed {
                reads_percent: args.reads,
            },
        },
        access: Access::Random(
            args.zipfian
                .map_or(Distribution::Uniform, Distribution::Zipfian),
        ),
        keys: args.keys,
        value_bytes: args.value,
        connections: args.connections,
        pipeline: args.pipeline,
        threads: args.threads,
        spin: args.spin,
        wait_replicas: args.wait_replicas,
        limit: Limit::Time(Duration::from_secs_f64(args.seconds)),
        rate: args.rate,
        native: None,
    })
}

/// The server of a command whose flags name none. `tls_port` is the port of TLS, if there is one.
fn usual(tls_port: Option<u16>) -> String {
    let or = |name, default: &str| {
        let text = std::env::var(name).ok().filter(|text| !text.is_empty());
        text.unwrap_or_else(|| default.to_owned())
    };
    let host = or("DURAMEN_HOST", "127.0.0.1");
    let port = tls_port.map_or_else(|| or("DURAMEN_PORT", "6379"), |port| port.to_string());
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn resolve(server: &str) -> Result<SocketAddr, Failure> {
    let failed = |reason: String| {
        Failure::Unmeasured(format!("resolving `{server}` (give HOST:PORT): {reason}"))
    };
    let mut found = server
        .to_socket_addrs()
        .map_err(|error| failed(error.to_string()))?;
    found
        .next()
        .ok_or_else(|| failed("it has no address".to_owned()))
}

/// The result, by names with their units.
fn figures(outcome: &Outcome) -> [(&'static str, Value); 10] {
    let summary = outcome.latencies.summary();
    let tenths = |number: f64| Value::from((number * 10.0).round() / 10.0);
    [
        ("requests", outcome.requests.into()),
        ("errors", outcome.errors.into()),
        ("not found", outcome.nulls.into()),
        ("seconds", tenths(outcome.seconds)),
        ("requests per second", tenths(outcome.requests_per_second())),
        ("p50 us", tenths(summary.p50_us)),
        ("p99 us", tenths(summary.p99_us)),
        ("p99.9 us", tenths(summary.p99_9_us)),
        ("p99.99 us", tenths(summary.p99_99_us)),
        ("longest us", tenths(summary.max_us)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, Command, FromArgMatches as _};

    /// Such loads once aborted the program for lack of memory, or measured nothing for ten seconds.
    #[test]
    fn loads_that_no_generator_can_offer_are_refused() {
        let parse = |words: &str| {
            let command = LoadArgs::augment_args(Command::new("load").no_binary_name(true));
            let matches = command.try_get_matches_from(words.split_whitespace());
            LoadArgs::from_arg_matches(&matches.ok()?).ok()
        };
        for words in [
            "--connections 0",
            "--connections 1000000000000",
            "--pipeline 0",
            "--pipeline 100000000",
            "--multi 0",
            "--keys 0",
            "--threads 0",
            "--value 1000000000000",
        ] {
            assert!(parse(words).is_none(), "{words}");
        }
        let fits = |words: &str| {
            let args = parse(words).expect("each number is possible");
            check_in_flight(&args).is_ok()
        };
        assert!(fits("") && fits("--pipeline 10000"));
        assert!(!fits("--pipeline 1000000"));
        assert!(!fits("--command set --value 1048576 --pipeline 1000"));
        assert!(!fits("--command mset --multi 1000000 --value 1048576"));
    }
}
