//! The cost of rules for users, of the audit log and of encryption at rest: the same server with
//! and without them, in turn.

use crate::figure::Figure;
use crate::harness::{
    Bound, Contender, Doing, Failure, Options, Report, Result, Row, alternate, progress,
};
use crate::servers::client::ask;
use crate::servers::{Costs, Duramen, ProgramArgs, Programs, Scratch, Server};
use duramen_load::{Command, Limit, Load};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The default user has narrow rights: the load generator does not log in.
const USERS: &str = "user default on nopass resetchannels ~key:* -@all +get +set +ping +shutdown";

/// The cost of rules for users, of the audit log and of encryption at rest
#[derive(Clone, Debug, clap::Args)]
pub(super) struct GuardsFigure {
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// Milliseconds of a measurement [default: 2000; 600 with --quick]
    #[arg(long, value_name = "MS")]
    pub window_ms: Option<u64>,
}

impl Figure for GuardsFigure {
    const NAME: &'static str = "guards";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

/// Numbers of a run.
struct Sizes {
    keys: u64,
    window: Duration,
    rounds: usize,
}

fn report(args: &GuardsFigure, options: &Options) -> Result<Report> {
    let about = "The same server with and without a guard, in turn: 50 connections over loopback, 100-byte values. Rules: the user may use GET and SET on keys of one prefix. \
        Audit: a line for each write, with the key's digest. Encryption: all files of the data directory.";
    let mut report = Report::new("guards", "Guards", about, options);
    let programs = args.programs.find(&mut report)?;
    let window_ms = args.window_ms.unwrap_or(options.size(2000, 600));
    let sizes = Sizes {
        keys: options.size(1_000_000, 100_000),
        window: Duration::from_millis(window_ms),
        rounds: options.rounds().max(5),
    };
    let scratch = Scratch::new(&programs.dir).doing("making a directory")?;
    rules(&programs, &sizes, scratch.path(), &mut report)?;
    encryption(&programs, &sizes, scratch.path(), &mut report)?;
    Ok(report)
}

fn start(
    name: &str,
    programs: &Programs,
    (level, dir): (&'static str, Option<PathBuf>),
    more: &[&str],
) -> Result<Server> {
    let how = Duramen {
        program: programs.duramen.clone(),
        memory: "1gb".to_owned(),
        threads: programs.threads,
        poll: "off",
        dir,
        level,
        more: more.iter().map(|&word| word.to_owned()).collect(),
    };
    Server::duramen(name, &how)
}

fn loaded(server: Server, sizes: &Sizes) -> Result<Server> {
    let mut load = Load::usual(server.address, Command::Set, 64);
    load.keys = sizes.keys;
    load.preload(0)?;
    Ok(server)
}

/// Rates and processor times of the servers.
fn measure(servers: &[Server], case: (Command, usize), sizes: &Sizes) -> Result<Costs> {
    Costs::in_turns(servers, sizes.rounds, |server| {
        let (command, pipeline) = case;
        let mut load = Load::usual(server.address, command, pipeline);
        (load.keys, load.limit) = (sizes.keys, Limit::Time(sizes.window));
        let (outcome, cpu_us) = server.cost_of(&load)?;
        Ok((outcome.requests_per_second(), cpu_us))
    })
}

fn rows(name: &str, servers: &[Server], rates: &[f64], cpu_us: &[f64]) -> Vec<Row> {
    let all = servers.iter().enumerate();
    all.map(|(n, server)| {
        Row::new()
            .with("requests", name)
            .with("server", server.name.as_str())
            .number("requests/s", rates[n], 3)
            .number("of the first", rates[n] / rates[0], 3)
            .number("CPU, µs", cpu_us[n], 3)
            .number("CPU / first's", cpu_us[n] / cpu_us[0], 3)
    })
    .collect()
}

/// Rules and the audit log, in memory: there the requests cost least, and the guards most.
fn rules(programs: &Programs, sizes: &Sizes, dir: &Path, report: &mut Report) -> Result<()> {
    let log = dir.join("audit.log").display().to_string();
    let rules = ["--users", USERS];
    let audit = ["--audit-log", &log, "--audit-log-classes", "write"];
    let memory = || ("memory", None);
    let servers = [
        start("no rules", programs, memory(), &[])?,
        start("rules", programs, memory(), &rules)?,
        start("audit of writes", programs, memory(), &audit)?,
    ];
    let servers = servers.into_iter().map(|server| loaded(server, sizes));
    let servers = servers.collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for (name, command, pipeline) in [
        ("GET P=1", Command::Get, 1),
        ("GET P=16", Command::Get, 16),
        ("SET P=1", Command::Set, 1),
        ("SET P=16", Command::Set, 16),
    ] {
        let Costs { rates, cpu_us } = measure(&servers, (command, pipeline), sizes)?;
        progress!("{name}: CPU {cpu_us:.3?} us");
        all.extend(rows(name, &servers, &rates, &cpu_us));
        let text = format!("{name}: CPU with rules / without ≤ 1.02");
        report.target(text, cpu_us[1] / cpu_us[0], Bound::AtMost(1.02));
        if command == Command::Set {
            let text = format!("{name}: requests/s with audit / without ≥ 0.9");
            report.target(text, rates[2] / rates[0], Bound::AtLeast(0.9));
        }
        // A file of gigabytes would be written.
        std::fs::File::create(&log).doing("emptying the audit log")?;
    }
    report.table("Rules for users and the audit log, in memory", all);
    Ok(())
}

/// A synced server with and without encryption of its files: throughput, then a restart.
fn encryption(programs: &Programs, sizes: &Sizes, dir: &Path, report: &mut Report) -> Result<()> {
    let key = make_key(programs, dir)?;
    let begin = |which: &str| {
        let path = dir.join(which.replace(' ', "-"));
        let more: &[&str] = match which {
            "plain" => &[],
            _ => &["--encryption-key-file", &key],
        };
        start(which, programs, ("synced", Some(path)), more)
    };
    let names = ["plain", "encrypted"];
    let servers = names.map(begin).into_iter();
    let servers = servers.map(|server| loaded(server?, sizes));
    let servers = servers.collect::<Result<Vec<_>>>()?;
    let mut all = Vec::new();
    for (name, pipeline) in [("synced SET P=1", 1), ("synced SET P=16", 16)] {
        let Costs { rates, cpu_us } = measure(&servers, (Command::Set, pipeline), sizes)?;
        progress!("{name}: {rates:.0?} requests/s");
        all.extend(rows(name, &servers, &rates, &cpu_us));
        let text = format!("{name}: requests/s encrypted / plain ≥ 0.9");
        report.target(text, rates[1] / rates[0], Bound::AtLeast(0.9));
    }
    report.table("Encryption at rest", all);
    drop(servers);
    let mut contenders: Vec<_> = names
        .iter()
        .map(|&which| Contender::new(which, move || restart(begin(which)?)))
        .collect();
    let seconds = alternate(sizes.rounds, &mut contenders)?;
    let rows = names.iter().zip(&seconds).map(|(name, seconds)| {
        Row::new()
            .with("server", *name)
            .number("restart, s", *seconds, 3)
    });
    let title = format!(
        "Restart of {} keys after kill -9, files in the page cache",
        sizes.keys
    );
    report.table(&title, rows.collect());
    let text = "restart encrypted / plain ≤ 1.1";
    report.target(text, seconds[1] / seconds[0], Bound::AtMost(1.1));
    Ok(())
}

/// The time that it took to start; ends it.
fn restart(server: Server) -> Result<f64> {
    let keys = ask(server.address, &["DBSIZE"])?;
    let doing = || format!("restarting {}", server.name);
    match keys {
        duramen_wire::resp::Reply::Integer(1..) => Ok(server.start_time.as_secs_f64()),
        other => Err(Failure::new(doing(), format!("it has {other:?} keys"))),
    }
}

fn make_key(programs: &Programs, dir: &Path) -> Result<String> {
    let key = dir.join("encryption.key").display().to_string();
    let doing = || format!("making a key: {key}");
    let output = std::process::Command::new(&programs.duramen)
        .args(["key", "init", &key])
        .output()
        .doing(doing())?;
    match output.status.success() {
        true => Ok(key),
        false => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(Failure::new(doing(), text))
        }
    }
}
