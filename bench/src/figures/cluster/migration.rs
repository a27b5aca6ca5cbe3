//! The effect on clients of a tablet that moves between two living servers: half of a table goes to
//! another server while native clients read and write all of it.

use crate::harness::{Bound, Doing, Failure, Latencies, Options, Report, Result, Row, progress};
use crate::servers::{Cluster, Programs, Up};
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_base::random::Random;
use duramen_client::{Client, Options as ClientOptions, Table};
use duramen_load::{Command, Load};
use duramen_wire::native::message::{Admin, AdminAnswer, MigrationStatus, Status};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KEYS: u64 = 240_000;
const VALUE_BYTES: usize = 1000;
/// Clients; each sends a request, waits for the answer, and sends the next.
const CLIENTS: u64 = 12;
/// One in so many requests is a write.
const WRITES_OF: u64 = 4;
/// Length of the measurements before and after.
const BESIDE: Duration = Duration::from_secs(4);
/// Longest time of a migration.
const LIMIT: Duration = Duration::from_secs(90);

/// The phases of the measurement.
const PHASES: [&str; 3] = ["before", "during", "after"];

/// Runs the part.
pub(super) fn run(options: &Options, programs: &Programs, report: &mut Report) -> Result<()> {
    let mut ratios = Vec::new();
    let mut rows = Vec::new();
    for round in 0..options.size(3, 1) {
        let found = measure(programs)?;
        let p99 = |phase: usize| found.latencies[phase].at_us(0.99);
        ratios.push(p99(1) / p99(0));
        for (phase, latencies) in PHASES.iter().zip(&found.latencies) {
            let summary = latencies.summary();
            progress!(
                "{phase}: p99 {:.0} µs, longest {:.0} µs",
                summary.p99_us,
                summary.max_us
            );
            rows.push(
                Row::new()
                    .with("round", round + 1)
                    .with("phase", *phase)
                    .with("requests", summary.operations)
                    .number("p50 µs", summary.p50_us, 3)
                    .number("p99 µs", summary.p99_us, 3)
                    .number("longest µs", summary.max_us, 3)
                    .number("moved MB", found.moved.bytes as f64 / 1e6, 3)
                    .number("took s", found.moved.elapsed_ms as f64 / 1e3, 3),
            );
        }
    }
    report.table(
        "A tablet moves under 12 native clients, a quarter of their requests writes of 1 KB",
        rows,
    );
    report.target(
        "migration: p99 during / before ≤ 3",
        crate::harness::median(&ratios),
        Bound::AtMost(3.0),
    );
    Ok(())
}

struct Found {
    latencies: [Latencies; 3],
    moved: MigrationStatus,
}

fn measure(programs: &Programs) -> Result<Found> {
    let up = Up {
        program: programs.duramen.clone(),
        servers: 4,
        replicas: 2,
        spread: 1,
        memory: "768mb".to_owned(),
        threads: programs.threads,
        level: "buffered",
        more: Vec::new(),
    };
    let cluster = Cluster::start(&up, &programs.dir)?;
    let owner = cluster.owner("key:000000000000")?;
    let mut load = Load::usual(cluster.resp[owner], Command::Set, 64);
    (load.keys, load.value_bytes) = (KEYS, VALUE_BYTES);
    load.preload(0)?;
    let client = Client::connect(ClientOptions::new([cluster.coordinator.clone()]))
        .doing("connecting to the cluster")?;
    let table = client.table("db0").doing("looking for table db0")?;
    let phase = AtomicU32::new(0);
    let failures = Mutex::new(Vec::new());
    let all = Mutex::new(PHASES.map(|_| Latencies::default()));
    let moved = std::thread::scope(|scope| {
        for seed in 0..CLIENTS {
            let (table, phase, all, failures) = (&table, &phase, &all, &failures);
            scope.spawn(move || match work(table, phase, seed) {
                Ok(mine) => {
                    let mut all = all.lock().expect("nobody panics with it");
                    all.iter_mut()
                        .zip(&mine)
                        .for_each(|(all, mine)| all.add(mine));
                }
                Err(error) => failures.lock().expect("nobody panics with it").push(error),
            });
        }
        let moved = drive(&client, &table, &phase);
        phase.store(PHASES.len() as u32, Ordering::SeqCst);
        moved
    })?;
    if let Some(error) = failures.into_inner().expect("nobody panicked").pop() {
        return Err(Failure::new("asking while a tablet moves", error));
    }
    Ok(Found {
        latencies: all.into_inner().expect("nobody panicked"),
        moved,
    })
}

/// One client's requests until the end.
fn work(
    table: &Table,
    phase: &AtomicU32,
    seed: u64,
) -> std::result::Result<[Latencies; 3], duramen_client::Error> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let mut latencies = PHASES.map(|_| Latencies::default());
    let value = vec![b'm'; VALUE_BYTES];
    let mut random = Random::new(seed << 32 ^ COUNT.fetch_add(1, Ordering::Relaxed));
    loop {
        let key = format!("key:{:012}", random.below(KEYS));
        let begun = Instant::now();
        let now = phase.load(Ordering::SeqCst) as usize;
        if now >= PHASES.len() {
            return Ok(latencies);
        }
        if random.one_in(WRITES_OF) {
            table.set(key.as_bytes(), &value)?;
        } else {
            table.get(key.as_bytes())?;
        }
        latencies[now].record_ns(begun.elapsed().as_nanos() as u64);
    }
}

fn status(client: &Client) -> Result<Status> {
    match client
        .admin(Admin::Status)
        .doing("asking how the cluster is")?
    {
        AdminAnswer::Status(status) => Ok(*status),
        other => Err(Failure::new(
            "asking how the cluster is",
            format!("{other:?}"),
        )),
    }
}

/// Waits, moves the upper half of the table, and waits again.
fn drive(client: &Client, table: &Table, phase: &AtomicU32) -> Result<MigrationStatus> {
    let before = status(client)?;
    let mine = before
        .tablets
        .iter()
        .find(|tablet| tablet.table == table.id());
    let owner = mine
        .ok_or("it has no tablet")
        .doing("looking at the table")?
        .owner;
    let to = before.servers.iter().find(|entry| entry.server != owner);
    let to = to
        .ok_or("there is one server")
        .doing("looking for a target")?
        .server;
    std::thread::sleep(BESIDE);
    phase.store(1, Ordering::SeqCst);
    let order = Admin::Migrate {
        table: table.id(),
        range: KeyRange::new(RouteHash::first_of_slot(8192), RouteHash(u64::MAX)),
        to,
    };
    client.admin(order).doing("moving a tablet")?;
    let begun = Instant::now();
    let moved = loop {
        let now = status(client)?;
        if let Some(ended) = now.migrations_ended.last() {
            break ended.clone();
        }
        if begun.elapsed() > LIMIT {
            return Err(Failure::new("moving a tablet", "it takes too long"));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if let Some(reason) = &moved.reason {
        return Err(Failure::new("moving a tablet", reason));
    }
    phase.store(2, Ordering::SeqCst);
    std::thread::sleep(BESIDE);
    Ok(moved)
}
