//! Hit ratios of Duramen's cache mode beside other caches, on the shapes of public traces: the
//! same requests in the same bytes of memory, and each miss writes the object. Rumble14 §8.6.

mod peers;
mod policies;
mod traces;
mod written;

pub(super) use written::CacheWritesFigure;

use crate::figure::Figure;
use crate::harness::store::{TABLE, key};
use crate::harness::{Bound, Chart, Doing, Failure, Options, Report, Result, Row, progress};
use crate::servers::find_program;
use duramen_base::limits::STORE_BYTES_MIN;
use duramen_base::units::MIB;
use duramen_engine as engine;
use peers::Peer;
use policies::{Lfu, Lru, Policy, S3Fifo};
use std::path::PathBuf;
use traces::{KEY_BYTES, Shape, footprint_bytes, value_bytes};

/// Objects that simulated LFU compares, in place of Redis's five and its pool of 16.
const SAMPLES: usize = 16;

/// Hit ratios of cache mode beside LRU, S3-FIFO, LFU, redis-server and memcached
#[derive(Clone, Debug, clap::Args)]
pub(super) struct HitsFigure {
    /// Only these sizes of the cache, in percent of all keys and values
    #[arg(long, value_delimiter = ',', default_value = "1,10")]
    pub percent: Vec<u64>,
    /// Number of keys; with --quick an eighth of them
    #[arg(long, default_value_t = 4_800_000)]
    pub keys: u32,
    /// Requests of each trace, of which the second half counts; with --quick a quarter
    #[arg(long, default_value_t = 4_000_000)]
    pub requests: usize,
    /// The program `redis-server`; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub redis: Option<PathBuf>,
    /// The program `memcached`; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub memcached: Option<PathBuf>,
    /// Leaves out the real servers, which take most of the time
    #[arg(long)]
    pub no_servers: bool,
}

/// Hits of the second half of a trace.
struct Count {
    seen: usize,
    from: usize,
    hits: u64,
}

impl Count {
    fn of(requests: usize) -> Count {
        Count {
            seen: 0,
            from: requests / 2,
            hits: 0,
        }
    }

    fn note(&mut self, hit: bool) {
        self.hits += u64::from(hit && self.seen >= self.from);
        self.seen += 1;
    }

    fn outcome(&self, name: &str, objects: u64) -> Outcome {
        Outcome {
            name: name.to_owned(),
            hit_ratio: self.hits as f64 / (self.seen - self.from) as f64,
            objects,
        }
    }
}

/// The result of one cache on one trace.
struct Outcome {
    name: String,
    hit_ratio: f64,
    /// Objects in it at the end.
    objects: u64,
}

/// All caches of one size on one trace.
struct Cell {
    shape: Shape,
    percent: u64,
    memory_bytes: u64,
    outcomes: Vec<Outcome>,
    /// Duramen's counts at the end.
    stats: engine::Stats,
}

const DURAMEN: &str = "duramen";
const LRU: &str = "LRU";
const LRU_AS_MANY: &str = "LRU, as many objects as duramen";
const S3_FIFO: &str = "S3-FIFO";
const LFU: &str = "LFU of 16";

impl Cell {
    fn ratio(&self, name: &str) -> f64 {
        let outcome = self.outcomes.iter().find(|outcome| outcome.name == name);
        outcome.map_or(f64::NAN, |outcome| outcome.hit_ratio)
    }
}

impl Figure for HitsFigure {
    const NAME: &'static str = "hits";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &HitsFigure, options: &Options) -> Result<Report> {
    let about = "One thread asks each cache for the same keys, with a value of 100 B to 4 KiB each (evenly over the logarithm) and keys of 16 B; \
        a miss writes the object. All caches have the same bytes of memory, a part of all keys and values. `duramen` is the engine in process in \
        mode `cache`, with its least memory at 1 %: its index, segments and reserves are in it. LRU, S3-FIFO and LFU (16 samples, Redis's counters, which lose one per million \
        requests) are simulated, and charged 48, 40 and 32 bytes per object beside key and value, and S3-FIFO 8 per key that it remembers. redis-server \
        is held to `maxmemory`, memcached to `-m`, which leaves out its hash table. The hits of the second half of each trace count.";
    let title = "Hit ratios of cache mode";
    let mut report = Report::new("hits", title, about, options);
    let peers = peers(args, &mut report);
    let keys = options.size(args.keys, args.keys / 8);
    let requests = options.size(args.requests, args.requests / 4);
    let footprint = footprint_bytes(keys);
    let mut cells = Vec::new();
    for &percent in &args.percent {
        let memory_bytes = footprint * percent / 100;
        if memory_bytes < STORE_BYTES_MIN {
            let (has, least) = (memory_bytes / MIB, STORE_BYTES_MIN / MIB);
            report.note(format!(
                "{percent} % of the data: SKIPPED, {has} MiB are less than the engine's least memory of {least} MiB."
            ));
            continue;
        }
        for shape in Shape::ALL {
            let requests = shape.requests(keys, requests);
            let cell = cell(shape, percent, memory_bytes, keys, &requests, &peers)?;
            for outcome in &cell.outcomes {
                let hits = outcome.hit_ratio * 100.0;
                progress!(
                    "{}, {percent} %: {} {hits:.2} %",
                    shape.name(),
                    outcome.name
                );
            }
            cells.push(cell);
        }
    }
    present(&mut report, &cells);
    report.note(format!(
        "{keys} keys, {:.2} GB of keys and values; {requests} requests per trace. Scans: every 300,000 requests, 100,000 keys in turn. One-hit \
         wonders: half of the keys come once, the rest by Zipf 1.0. Moving set: a tenth of the keys at a time, by Zipf 1.0, each for a ninth of the trace.",
        footprint as f64 / 1e9
    ));
    report.note(
        "`LRU, as many objects as duramen` may hold as many objects as Duramen held at the end: it shows the policy without the overhead. \
         Redis counts in minutes of the clock, so that its LFU hardly forgets in a run.",
    );
    Ok(report)
}

/// The servers that are installed; the others are noted.
fn peers(args: &HitsFigure, report: &mut Report) -> Vec<Peer> {
    let mut peers = Vec::new();
    if args.no_servers {
        report.note("redis-server, memcached: SKIPPED, they were left out.");
        return peers;
    }
    match args.redis.clone().or_else(|| find_program("redis-server")) {
        Some(program) => {
            for policy in ["allkeys-lru", "allkeys-lfu"] {
                peers.push(Peer::Redis(program.clone(), policy));
            }
        }
        None => report.note("redis-server: SKIPPED, it is not installed."),
    }
    match args.memcached.clone().or_else(|| find_program("memcached")) {
        Some(program) => peers.push(Peer::Memcached(program)),
        None => report.note("memcached: SKIPPED, it is not installed."),
    }
    peers
}

fn cell(
    shape: Shape,
    percent: u64,
    memory_bytes: u64,
    keys: u32,
    requests: &[u32],
    peers: &[Peer],
) -> Result<Cell> {
    let in_process = || -> Result<(engine::Stats, Vec<Outcome>)> {
        let (own, stats) = duramen(requests, memory_bytes)?;
        let as_many = own.objects;
        let outcomes = vec![
            own,
            simulated(LRU, requests, Lru::new(keys, memory_bytes, bytes)),
            simulated(LRU_AS_MANY, requests, Lru::of_objects(keys, as_many, bytes)),
            simulated(S3_FIFO, requests, S3Fifo::new(keys, memory_bytes, bytes)),
            simulated(LFU, requests, Lfu::new(keys, memory_bytes, bytes, SAMPLES)),
        ];
        Ok((stats, outcomes))
    };
    let servers = || -> Result<Vec<Outcome>> {
        let peers = peers.iter();
        peers.map(|peer| peer.run(requests, memory_bytes)).collect()
    };
    // Nothing here depends on speed.
    let (own, servers) = std::thread::scope(|scope| {
        let servers = scope.spawn(servers);
        (in_process(), servers.join())
    });
    let (stats, mut outcomes) = own?;
    outcomes.extend(servers.map_err(|_| Failure::new("asking the servers", "a panic"))??);
    Ok(Cell {
        shape,
        percent,
        memory_bytes,
        outcomes,
        stats,
    })
}

/// Bytes of key and value.
fn bytes(key: u32) -> u64 {
    KEY_BYTES + value_bytes(key) as u64
}

fn simulated(name: &str, requests: &[u32], mut policy: impl Policy) -> Outcome {
    let mut count = Count::of(requests.len());
    for &key in requests {
        count.note(policy.request(key, bytes(key)));
    }
    count.outcome(name, policy.objects())
}

fn duramen(requests: &[u32], memory_bytes: u64) -> Result<(Outcome, engine::Stats)> {
    let mut options = engine::Options::new(memory_bytes);
    options.mode = engine::Mode::Cache;
    options.hash_seed = Some(1);
    let store = engine::Store::new(options).doing("opening a cache")?;
    let mut session = store.session().doing("opening a session")?;
    let mut count = Count::of(requests.len());
    let mut value = vec![b'v'; 4096];
    for &id in requests {
        let key = key::<{ KEY_BYTES as usize }>(u64::from(id));
        let mut guard = session.pin();
        let hash = guard.hash(&key);
        let found = guard.read(TABLE, hash, &key).doing("reading")?;
        let hit = found
            .map(|object| object.value.len() == value_bytes(id) && object.value[..8] == key[..8]);
        if hit == Some(false) {
            return Err(Failure::new(
                "reading",
                format!("key {id} has another value"),
            ));
        }
        if hit.is_none() {
            value[..8].copy_from_slice(&key[..8]);
            guard
                .write(TABLE, hash, &key, &value[..value_bytes(id)], None)
                .doing("writing")?;
        }
        drop(guard);
        count.note(hit.is_some());
    }
    let stats = store.stats();
    Ok((count.outcome(DURAMEN, stats.objects), stats))
}

fn present(report: &mut Report, cells: &[Cell]) {
    let mut sizes: Vec<u64> = cells.iter().map(|cell| cell.percent).collect();
    sizes.dedup();
    for percent in sizes {
        let own: Vec<&Cell> = cells.iter().filter(|c| c.percent == percent).collect();
        let names: Vec<&str> = own[0].outcomes.iter().map(|o| &*o.name).collect();
        let groups = own.iter().map(|cell| cell.shape.name().to_owned());
        let series = names.iter().filter(|name| **name != LRU).map(|name| {
            let values = own.iter().map(|cell| cell.ratio(name) / cell.ratio(LRU));
            ((*name).to_owned(), values.collect())
        });
        let chart = Chart::bars(
            &format!("Hit ratio of LRU's, cache of {percent} %"),
            "hit ratio / LRU's",
            groups.collect(),
            series.collect(),
        );
        report.plot(&percent.to_string(), &chart);
        let mib = own[0].memory_bytes / MIB;
        let title = format!("Hit ratio / LRU's, cache of {percent} % ({mib} MiB)");
        report.table(&title, own.iter().map(|cell| ratio_row(cell)).collect());
        let rows = own.iter().flat_map(|cell| rows(cell));
        report.table(
            &format!("Hits, cache of {percent} % ({mib} MiB)"),
            rows.collect(),
        );
        let rows = own.iter().map(|cell| memory_row(cell));
        report.table(
            &format!("Duramen's memory at the end, parts of {mib} MiB"),
            rows.collect(),
        );
    }
    for cell in cells {
        let (shape, percent) = (cell.shape.name(), cell.percent);
        let target = format!("{shape}, {percent} %: duramen's hit ratio / LRU's ≥ 1");
        let ratio = cell.ratio(DURAMEN) / cell.ratio(LRU);
        report.target(target, ratio, Bound::AtLeast(1.0));
    }
}

fn ratio_row(cell: &Cell) -> Row {
    let start = Row::new().with("trace", cell.shape.name());
    let others = cell.outcomes.iter().filter(|outcome| outcome.name != LRU);
    others.fold(start, |row, outcome| {
        row.number(&outcome.name, outcome.hit_ratio / cell.ratio(LRU), 3)
    })
}

/// The use of the budget: what is not live, index or tables is free or dead.
fn memory_row(cell: &Cell) -> Row {
    let (stats, all) = (&cell.stats, cell.memory_bytes as f64);
    Row::new()
        .with("trace", cell.shape.name())
        .number("live entries", stats.live_bytes as f64 / all, 3)
        .number("index", stats.index_bytes as f64 / all, 3)
        .number(
            "budget of segments",
            stats.segment_budget_bytes as f64 / all,
            3,
        )
        .number("live part of segments", stats.utilization, 3)
        .with("relocated, MB", stats.cleaner.bytes_relocated / 1_000_000)
        .with("evicted", stats.entries_evicted)
}

fn rows(cell: &Cell) -> Vec<Row> {
    let row = |outcome: &Outcome| {
        let per_mb = outcome.objects as f64 / (cell.memory_bytes as f64 / 1e6);
        Row::new()
            .with("trace", cell.shape.name())
            .with("cache", &*outcome.name)
            .number("hits, %", outcome.hit_ratio * 100.0, 4)
            .with("objects", outcome.objects)
            .number("objects per MB", per_mb, 3)
    };
    cell.outcomes.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_counts() {
        let mut count = Count::of(4);
        for hit in [true, true, true, false] {
            count.note(hit);
        }
        assert_eq!(count.outcome("", 0).hit_ratio, 0.5);
    }

    /// All objects fit: each key misses once, in a simulation and in the engine.
    #[test]
    fn a_cache_with_room_for_all_misses_each_key_once() {
        let requests: Vec<u32> = (0..500).chain(0..500).collect();
        let (own, _) = duramen(&requests, STORE_BYTES_MIN).unwrap();
        assert_eq!((own.hit_ratio, own.objects), (1.0, 500));
        let lru = simulated("", &requests, Lru::new(500, STORE_BYTES_MIN, bytes));
        assert_eq!((lru.hit_ratio, lru.objects), (1.0, 500));
    }
}
