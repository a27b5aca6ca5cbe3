//! False alarms: whether a living server is ever declared crashed while a whole cluster is under
//! full load.
//!
//! More clients than the machine has processors write and read without a pause, so that every
//! server waits for a processor again and again: failure detection must not take a server that is
//! silent for lack of time for a dead one.

use crate::harness::{Bound, Doing, Failure, Options, Report, Result, Row, progress};
use crate::servers::{Cluster, Programs, Up};
use duramen_base::ids::ServerId;
use duramen_base::random::Random;
use duramen_client::{Client, Options as ClientOptions, Table};
use duramen_wire::native::message::{Admin, AdminAnswer, ServerStatus};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SERVERS: usize = 5;
const CLIENTS: u64 = 24;
const KEYS: u64 = 200_000;
const VALUE_BYTES: usize = 1000;
/// One in so many requests is a write.
const WRITES_OF: u64 = 2;
/// Default length of a run, in minutes.
const MINUTES: f64 = 10.0;
const MINUTES_QUICK: f64 = 0.25;
/// Interval at which the coordinator is asked for the living servers.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Interval of progress lines.
const SHOW_EVERY: Duration = Duration::from_secs(30);

/// The observations of a run.
#[derive(Default)]
struct Watched {
    /// Servers that were up and are not any more.
    alarms: BTreeSet<ServerId>,
    looks: u64,
    elapsed: Duration,
}

/// Runs the part.
pub(super) fn run(
    options: &Options,
    minutes: Option<f64>,
    programs: &Programs,
    report: &mut Report,
) -> Result<()> {
    let usual = if options.quick {
        MINUTES_QUICK
    } else {
        MINUTES
    };
    let time = Duration::from_secs_f64(minutes.unwrap_or(usual) * 60.0);
    let up = Up {
        program: programs.duramen.clone(),
        servers: SERVERS,
        replicas: 3,
        spread: SERVERS,
        memory: "512mb".to_owned(),
        threads: programs.threads,
        level: "buffered",
        more: Vec::new(),
    };
    let cluster = Cluster::start(&up, &programs.dir)?;
    let client = Client::connect(ClientOptions::new([cluster.coordinator.clone()]))
        .doing("connecting to the cluster")?;
    let table = client.table("db0").doing("looking for table db0")?;
    let (over, requests, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let watched = std::thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let (table, over, requests, failed) = (&table, &over, &requests, &failed);
            scope.spawn(move || work(table, seed, over, requests, failed));
        }
        let watched = watch(&client, time, &requests);
        over.store(true, Ordering::SeqCst);
        watched
    })?;
    let (requests, failed) = (requests.into_inner(), failed.into_inner());
    report.table(
        "False alarms under full load, five servers",
        vec![
            Row::new()
                .number("minutes", watched.elapsed.as_secs_f64() / 60.0, 3)
                .with("requests", requests)
                .with("requests that failed", failed)
                .with("times looked", watched.looks)
                .with("servers called crashed", watched.alarms.len()),
        ],
    );
    report.target(
        "false alarms under full load = 0",
        watched.alarms.len() as f64,
        Bound::AtMost(0.0),
    );
    Ok(())
}

/// One client's requests until the end.
fn work(table: &Table, seed: u64, over: &AtomicBool, requests: &AtomicU64, failed: &AtomicU64) {
    let value = vec![b'a'; VALUE_BYTES];
    let mut random = Random::new(seed);
    while !over.load(Ordering::Relaxed) {
        let key = format!("key:{:012}", random.below(KEYS));
        let done = if random.one_in(WRITES_OF) {
            table.set(key.as_bytes(), &value).is_ok()
        } else {
            table.get(key.as_bytes()).is_ok()
        };
        let count = if done { requests } else { failed };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The servers that are up according to the coordinator.
fn living(client: &Client) -> Result<BTreeSet<ServerId>> {
    let doing = "asking how the cluster is";
    match client.admin(Admin::Status).doing(doing)? {
        AdminAnswer::Status(status) => {
            let servers = status.servers.iter();
            let up = servers.filter(|entry| entry.status == ServerStatus::Up);
            Ok(up.map(|entry| entry.server).collect())
        }
        other => Err(Failure::new(doing, format!("{other:?}"))),
    }
}

/// Checks again and again. A server that was declared crashed returns under another id, so no check
/// misses it.
fn watch(client: &Client, time: Duration, requests: &AtomicU64) -> Result<Watched> {
    let begun = Instant::now();
    let mut shown = begun;
    let before = living(client)?;
    if before.len() != SERVERS {
        let why = format!("{} of {SERVERS} servers are up", before.len());
        return Err(Failure::new("watching a cluster", why));
    }
    let mut watched = Watched::default();
    while begun.elapsed() < time {
        std::thread::sleep(LOOK_EVERY.min(time)); // the interval of checks
        watched.alarms.extend(before.difference(&living(client)?));
        watched.looks += 1;
        if shown.elapsed() >= SHOW_EVERY {
            shown = Instant::now();
            progress!(
                "{:.1} minutes, {} requests: {} false alarms",
                begun.elapsed().as_secs_f64() / 60.0,
                requests.load(Ordering::Relaxed),
                watched.alarms.len()
            );
        }
    }
    watched.elapsed = begun.elapsed();
    Ok(watched)
}
