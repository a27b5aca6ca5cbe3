//! `duramen bench local`: a native client on the server's machine, over TCP and through shared
//! memory in turn, so that drift of the machine affects both alike.

use super::turns::{TurnArgs, Turns, Work, number};
use crate::cluster;
use crate::failure::Failure;
use duramen_client::{Client, Error, Options, Table};
use std::path::PathBuf;
use std::time::Duration;

#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct LocalArgs {
    /// Directory of the server's Unix socket: its setting `native-socket-dir`
    #[arg(long, value_name = "DIR")]
    socket_dir: PathBuf,
    /// The table; its keys `local:N` are written
    #[arg(long, default_value = "db0")]
    table: String,
    /// Number of different keys
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    #[command(flatten)]
    turns: TurnArgs,
}

const HELP: &str = "\
One connection with one request at a time. `spins`: the client spins for an answer;
`sleeps`: it sleeps at once. The server spins by its own settings `poll` and `poll-spin-us`.

Exit codes: 0 measured, 1 could not measure, 2 wrong usage.";

/// The client's spin: longer than any answer takes, so the client never sleeps.
const SPIN: Duration = Duration::from_secs(1);

struct Way {
    name: &'static str,
    client: Client,
    table: Table,
    turns: Turns,
}

pub(super) fn run(args: &LocalArgs) -> Result<(), Failure> {
    let mut ways = ways(args)?;
    let work = Work::new(&args.turns, "local", args.keys);
    for name in &work.names {
        let written = ways[0].table.set(name.as_bytes(), &work.value);
        written.map_err(|error| unmeasured(&error))?;
    }
    for _ in 0..args.turns.rounds {
        for way in &mut ways {
            let turn = way.turns.with_threads(&way.table, &work, 1);
            turn.map_err(|error| unmeasured(&error))?;
            if let Some(why) = way.client.why_not_local() {
                let why = format!("the server gave no shared memory: {why}");
                return Err(Failure::Unmeasured(why));
            }
        }
    }
    let rate_of_tcp = ways[0].turns.rate();
    for way in &mut ways {
        let over = ("tcp", rate_of_tcp);
        let figures = way.turns.figures(way.name, "requests", over);
        if args.turns.cluster.json {
            println!("{figures}");
        } else {
            println!(
                "{:<22} {:>9.0} requests/s ({:.2} x TCP)  p50 {:>6.2} us  p99 {:>7.2} us",
                way.name,
                number(&figures, "requests_per_second"),
                number(&figures, "rate_over_tcp"),
                number(&figures, "p50_us"),
                number(&figures, "p99_us")
            );
        }
    }
    Ok(())
}

fn ways(args: &LocalArgs) -> Result<Vec<Way>, Failure> {
    let usual = cluster::options(&args.turns.cluster)?;
    let local = |spin| Options {
        socket_dir: Some(args.socket_dir.clone()),
        spin,
        ..usual.clone()
    };
    let all = [
        ("TCP", usual.clone()),
        ("shared memory, spins", local(SPIN)),
        ("shared memory, sleeps", local(Duration::ZERO)),
    ];
    all.into_iter()
        .map(|(name, options)| {
            let client = Client::connect(options).map_err(|error| unmeasured(&error))?;
            let table = client.table(&args.table);
            Ok(Way {
                name,
                table: table.map_err(|error| unmeasured(&error))?,
                client,
                turns: Turns::default(),
            })
        })
        .collect()
}

fn unmeasured(error: &Error) -> Failure {
    Failure::Unmeasured(error.to_string())
}
