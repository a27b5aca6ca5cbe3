//! Clients of real servers that record their requests and the answers: histories for tests/checker.
//!
//! The program keeps its clients, and reads one command per line from its standard input; it
//! answers each with one line of JSON:
//!
//! - `run NAME MILLISECONDS`: makes the history NAME, on keys of its own, in the folder `--out`.
//!   With `--groups` it has collections, scripts, transactions and waiting pops ([`group`]).
//! - `recheck`: reads every key of every history so far once more, and adds these reads to the
//!   histories: acknowledged data must be there.
//! - `fill COUNT BYTES`, `checkfill COUNT BYTES`: objects that are written once, by the native
//!   client.
//!
//! It ends with its standard input.
//!
//! `duramen-workload torture` is another program: see [`torture`].

mod ask;
mod fill;
mod group;
mod history;
mod resp;
mod run;
mod torture;

use clap::Parser;
use duramen_client::{Client, Login, Options, Table};
use history::{Clock, Record};
use run::{Plan, Summary, Worker};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::{self, BufRead as _, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of threads that fill.
const FILLERS: u64 = 4;
/// Number of native clients that share connections and a lease.
const NATIVE_SHARE: usize = 3;

#[derive(Debug, Parser)]
struct Arguments {
    /// RESP addresses of servers, host:port; the others are found by their redirections.
    #[arg(long, value_delimiter = ',')]
    resp: Vec<String>,
    /// Coordinators, host:port, for native clients.
    #[arg(long, value_delimiter = ',')]
    coordinator: Vec<String>,
    #[arg(long, default_value = "")]
    cluster: String,
    #[arg(long, default_value = "db0")]
    table: String,
    /// User of all clients, if they have a password.
    #[arg(long, default_value = "default")]
    user: String,
    /// Password with which clients log in; empty: none.
    #[arg(long, default_value = "")]
    password: String,
    #[arg(long, default_value_t = 8)]
    resp_clients: usize,
    #[arg(long, default_value_t = 0)]
    native_clients: usize,
    #[arg(long, default_value_t = 6)]
    registers: usize,
    #[arg(long, default_value_t = 3)]
    counters: usize,
    /// Groups of keys with collections, which RESP clients alone use.
    #[arg(long, default_value_t = 0)]
    groups: usize,
    /// The longest rest of a client between two operations, in microseconds.
    #[arg(long, default_value_t = 4_000)]
    rest_us: u64,
    /// Longest wait of a RESP client for an answer.
    #[arg(long, default_value_t = 2_000)]
    timeout_ms: u64,
    /// Longest time for which a client continues an operation after the end of a history, and a
    /// native client continues any operation.
    #[arg(long, default_value_t = 30_000)]
    patience_ms: u64,
    /// Folder for the histories.
    #[arg(long)]
    out: PathBuf,
}

struct Workload {
    arguments: Arguments,
    clock: Clock,
    workers: Vec<Worker>,
    table: Option<Table>,
    plans: Vec<Plan>,
}

fn main() {
    let mut words: Vec<_> = std::env::args_os().collect();
    let is_torture = words.get(1).is_some_and(|word| word == "torture");
    let result = if is_torture {
        words.remove(1);
        torture::run(&torture::Arguments::parse_from(words))
    } else {
        serve(Arguments::parse())
    };
    if let Err(sentence) = result {
        eprintln!("duramen-workload: {sentence}");
        std::process::exit(1);
    }
}

fn serve(arguments: Arguments) -> Result<(), String> {
    let mut workload = Workload::new(arguments)?;
    println!("{}", json!({"clients": workload.workers.len()}));
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        println!("{}", workload.obey(&line)?);
    }
    Ok(())
}

impl Workload {
    fn new(arguments: Arguments) -> Result<Workload, String> {
        let patience = Duration::from_millis(arguments.patience_ms);
        let mut workers = Vec::new();
        let mut table = None;
        for number in 0..arguments.native_clients {
            if number % NATIVE_SHARE == 0 {
                let login = Login {
                    user: arguments.user.clone(),
                    password: arguments.password.clone(),
                };
                let options = Options {
                    cluster: arguments.cluster.clone(),
                    login: Some(login).filter(|login| !login.password.is_empty()),
                    deadline: patience,
                    ..Options::new(arguments.coordinator.clone())
                };
                let client = Client::connect(options).map_err(|error| error.to_string())?;
                let found = client.table(&arguments.table);
                table = Some(found.map_err(|error| error.to_string())?);
            }
            let native = ask::Native(table.clone().expect("just made"));
            workers.push(Worker::new(number, Box::new(native)));
        }
        let guide = resp::Guide::new(
            arguments.resp.clone(),
            (arguments.user.clone(), arguments.password.clone()),
        );
        let timeout = Duration::from_millis(arguments.timeout_ms);
        if arguments.resp_clients > 0 && arguments.resp.is_empty() {
            return Err("RESP clients need --resp".to_owned());
        }
        for number in 0..arguments.resp_clients {
            let client = resp::Client::new(guide.clone(), number, timeout);
            workers.push(Worker::new(
                arguments.native_clients + number,
                Box::new(client),
            ));
        }
        Ok(Workload {
            arguments,
            clock: Clock::new(),
            workers,
            table,
            plans: Vec::new(),
        })
    }

    fn obey(&mut self, line: &str) -> Result<Value, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: &str| {
            word.parse::<u64>()
                .map_err(|_| format!("no number: {word}"))
        };
        match words.as_slice() {
            ["run", name, milliseconds] => {
                self.run(name, Duration::from_millis(number(milliseconds)?))
            }
            ["recheck"] => self.recheck(),
            ["fill", count, bytes] => self.fill(number(count)?, number(bytes)? as usize),
            ["checkfill", count, bytes] => self.check_fill(number(count)?, number(bytes)? as usize),
            _ => Err(format!("no such command: {line}")),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.arguments.out.join(format!("{name}.jsonl"))
    }

    fn run(&mut self, name: &str, time: Duration) -> Result<Value, String> {
        let plan = Plan {
            name: name.to_owned(),
            registers: self.arguments.registers,
            counters: self.arguments.counters,
            groups: self.arguments.groups,
            rest: Duration::from_micros(self.arguments.rest_us),
            until: Instant::now() + time,
            grace: Duration::from_millis(self.arguments.patience_ms),
            clock: self.clock,
        };
        let began = self.clock.now();
        let results: Vec<(bool, Vec<Record>, Summary)> = std::thread::scope(|scope| {
            let runs = self.workers.iter_mut().map(|worker| {
                let plan = &plan;
                scope.spawn(move || {
                    let (records, summary) = worker.run(plan);
                    (worker.is_native(), records, summary)
                })
            });
            let runs: Vec<_> = runs.collect();
            let joined = runs.into_iter().map(|run| run.join());
            joined
                .map(|result| result.expect("a client panicked"))
                .collect()
        });
        let path = self.path(name);
        let records = results.iter().flat_map(|(_, records, _)| records);
        append(&path, records)?;
        let mut totals = [Summary::default(), Summary::default()];
        for (kind, total) in totals.iter_mut().enumerate() {
            let mut ends = vec![began];
            for (native, records, summary) in &results {
                if usize::from(*native) == kind {
                    total.add(summary.clone());
                    ends.extend(records.iter().filter_map(|record| record.end));
                }
            }
            ends.sort_unstable();
            let gaps = ends.windows(2).map(|pair| pair[1] - pair[0]);
            total.silence_ms = gaps.max().unwrap_or(0) / 1_000_000;
        }
        self.plans.push(plan);
        let [resp, native] = totals;
        Ok(json!({"ran": name, "file": path, "resp": resp, "native": native}))
    }

    fn recheck(&mut self) -> Result<Value, String> {
        let deadline = Instant::now() + Duration::from_millis(self.arguments.patience_ms);
        let all: Vec<(usize, bool, String)> = self
            .plans
            .iter()
            .enumerate()
            .flat_map(|(number, plan)| {
                let keys = plan.keys().into_iter().enumerate();
                keys.map(move |(which, key)| (number, plan.is_group(which), key))
            })
            .collect();
        let (clock, natives) = (self.clock, self.arguments.native_clients);
        let count = self.workers.len();
        // Native clients, which come first, read no groups.
        let reader = |which: usize, is_group: bool| {
            if is_group {
                natives + which % (count - natives)
            } else {
                which % count
            }
        };
        let results: Vec<(usize, Result<Record, String>)> = std::thread::scope(|scope| {
            let all = &all;
            let runs: Vec<_> = self
                .workers
                .iter_mut()
                .enumerate()
                .map(|(number, worker)| {
                    scope.spawn(move || {
                        let mine = all.iter().enumerate();
                        mine.filter(|(which, (_, group, _))| reader(*which, *group) == number)
                            .map(|(_, (plan, group, key))| {
                                (*plan, worker.read(key, *group, clock, deadline))
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            let joined = runs
                .into_iter()
                .flat_map(|run| run.join().expect("a client panicked"));
            joined.collect()
        });
        let mut failures: Vec<&String> = Vec::new();
        for (number, plan) in self.plans.iter().enumerate() {
            let own = results.iter().filter(|(plan, _)| *plan == number);
            append(
                &self.path(&plan.name),
                own.filter_map(|(_, result)| result.as_ref().ok()),
            )?;
        }
        failures.extend(
            results
                .iter()
                .filter_map(|(_, result)| result.as_ref().err()),
        );
        let failed = failures.len();
        failures.sort_by_key(|failure| failure.ends_with(run::NO_TIME));
        failures.truncate(5);
        Ok(json!({"rechecked": all.len() - failed, "failed": failed, "failures": failures}))
    }

    fn fill(&mut self, count: u64, bytes: usize) -> Result<Value, String> {
        let table = self.table.as_ref().ok_or("needs native clients")?;
        let results: Vec<Result<(), String>> =
            each_filler(count, |numbers| fill::write(table, numbers, bytes));
        let failures: Vec<String> = results.into_iter().filter_map(Result::err).collect();
        Ok(json!({"filled": count, "failures": failures}))
    }

    fn check_fill(&mut self, count: u64, bytes: usize) -> Result<Value, String> {
        let table = self.table.as_ref().ok_or("needs native clients")?;
        let results: Vec<(u64, Vec<String>)> =
            each_filler(count, |numbers| fill::check(table, numbers, bytes));
        let wrong: u64 = results.iter().map(|(wrong, _)| wrong).sum();
        let examples: Vec<&String> = results.iter().flat_map(|(_, some)| some).collect();
        Ok(json!({"checked": count, "wrong": wrong, "failures": examples}))
    }
}

fn each_filler<T: Send>(count: u64, work: impl Fn(std::ops::Range<u64>) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let parts = (0..FILLERS).map(|n| count * n / FILLERS..count * (n + 1) / FILLERS);
        let runs: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        let joined = runs.into_iter().map(|run| run.join());
        joined
            .map(|result| result.expect("a filler panicked"))
            .collect()
    })
}

fn append<'a>(path: &Path, records: impl Iterator<Item = &'a Record>) -> Result<(), String> {
    let write = || -> io::Result<()> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let mut file = BufWriter::new(file);
        for record in records {
            serde_json::to_writer(&mut file, record)?;
            file.write_all(b"\n")?;
        }
        file.flush()
    };
    write().map_err(|error| format!("cannot write {}: {error}", path.display()))
}
