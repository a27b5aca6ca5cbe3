//! Caches under writes alone: objects per megabyte, writes per second, and processor time of the
//! server, beside memcached and Redis over loopback. Rumble14 §8.6, Tables 3 and 4.

use super::peers::Peer;
use crate::figure::Figure;
use crate::harness::{
    Bound, Doing, Options, Random, Report, Result, Row, Zipf, machine, median, progress,
};
use crate::servers::client::info_number;
use crate::servers::{find_duramen, find_program};
use duramen_base::random::mix;
use duramen_base::units::MIB;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Instant;

/// YCSB's exponent, also that of the sizes.
const ZIPF: f64 = 0.99;
const FIXED_BYTES: usize = 25;
const SIZES: u64 = 8192;
/// Writes that are on their way together.
const BATCH: usize = 256;
/// Bytes of keys' values that there are for each byte of the cache.
const DATA_PER_BYTE: u64 = 4;
/// Bytes of memory for an object beside its value, to reckon the number of keys.
const BESIDE_BYTES: u64 = 60;
const WRITES_PER_KEY: usize = 2;

/// Caches under writes alone: objects per megabyte, speed, processor time
#[derive(Clone, Debug, clap::Args)]
pub(in crate::figures) struct CacheWritesFigure {
    /// The program `duramen`; by default the one beside this program, then the one on PATH
    #[arg(long, value_name = "FILE")]
    pub duramen: Option<PathBuf>,
    /// The program `redis-server`; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub redis: Option<PathBuf>,
    /// The program `memcached`; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub memcached: Option<PathBuf>,
    /// Megabytes of each cache [default: 256; 96 with --quick]
    #[arg(long, value_name = "MB")]
    pub memory: Option<u64>,
    /// Number of keys [default: four times as many as fit]
    #[arg(long, value_name = "N")]
    pub keys: Option<u64>,
    /// Writes per key
    #[arg(long, value_name = "N", default_value_t = WRITES_PER_KEY)]
    pub writes_per_key: usize,
}

impl Figure for CacheWritesFigure {
    const NAME: &'static str = "cache-writes";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

/// The sizes of values.
#[derive(Clone, Copy)]
enum Sizes {
    Fixed,
    /// The size of a key is the same each time.
    Zipfian(Zipf),
}

impl Sizes {
    fn name(self) -> &'static str {
        match self {
            Sizes::Fixed => "25 B",
            Sizes::Zipfian(_) => "Zipfian, 0 to 8 KB",
        }
    }

    fn of(self, key: u32) -> usize {
        match self {
            Sizes::Fixed => FIXED_BYTES,
            Sizes::Zipfian(zipf) => zipf.rank(&mut Random::new(mix(u64::from(key)))) as usize,
        }
    }

    fn mean_bytes(self) -> u64 {
        const SAMPLES: u32 = 10_000;
        let sum: usize = (0..SAMPLES).map(|key| self.of(key)).sum();
        sum as u64 / u64::from(SAMPLES)
    }
}

/// The result of one run against one server.
struct Written {
    per_second: f64,
    cpu_us: f64,
    /// Time by the clock that Duramen's cleaner worked, over its processor time; NaN for others.
    cleaning: f64,
    objects: u64,
    rss_bytes: u64,
}

fn report(args: &CacheWritesFigure, options: &Options) -> Result<Report> {
    let about = "One client writes over one connection, 256 SETs on their way together, keys of 16 B by Zipf 0.99, of which there are about four times as many as fit. The servers \
        are caches with the same limit (Redis: all of its memory; memcached: without its hash table; Duramen: all of its memory), and have one thread for requests each. \
        `CPU`: user and system time of the server per write. `cleaning`: time by the clock that Duramen's cleaner worked, over the processor time of the server: on a quiet machine its part of it.";
    let mut report = Report::new("cache-writes", "Caches under writes alone", about, options);
    let memory_bytes = args.memory.unwrap_or(options.size(256, 96)) * MIB;
    let mut peers = vec![Peer::Duramen(find_duramen(args.duramen.as_deref())?)];
    match args.memcached.clone().or_else(|| find_program("memcached")) {
        Some(program) => peers.push(Peer::Memcached(program)),
        None => report.note("memcached: SKIPPED, it is not installed."),
    }
    match args.redis.clone().or_else(|| find_program("redis-server")) {
        Some(program) => peers.push(Peer::Redis(program, "allkeys-lru")),
        None => report.note("redis-server: SKIPPED, it is not installed."),
    }
    let mut rows = Vec::new();
    for sizes in [Sizes::Fixed, Sizes::Zipfian(Zipf::new(SIZES, ZIPF))] {
        let object_bytes = sizes.mean_bytes() + BESIDE_BYTES;
        let more_than_fit = DATA_PER_BYTE * memory_bytes / object_bytes;
        let keys = args.keys.unwrap_or(more_than_fit);
        let writes = keys as usize * args.writes_per_key;
        let mut runs: Vec<Vec<Written>> = peers.iter().map(|_| Vec::new()).collect();
        for _ in 0..options.rounds() {
            for (peer, runs) in peers.iter().zip(&mut runs) {
                runs.push(write(peer, memory_bytes, keys, writes, sizes)?);
            }
        }
        for (peer, runs) in peers.iter().zip(&runs) {
            let rate = middle(runs, |run| run.per_second);
            progress!("{}, {}: {rate:.0} writes/s", sizes.name(), peer.name());
            rows.push(row(sizes, peer, runs, memory_bytes));
        }
        let is_memcached = |peer: &Peer| matches!(peer, Peer::Memcached(_));
        if let Some(at) = peers.iter().position(is_memcached) {
            add_targets(&mut report, sizes, &runs[0], &runs[at]);
        }
    }
    report.table("Writes alone (Tables 3 and 4)", rows);
    let megabytes = memory_bytes / MIB;
    report.note(format!(
        "Caches of {megabytes} MiB; {} writes per key.",
        args.writes_per_key
    ));
    Ok(report)
}

/// The median over the rounds.
fn middle(runs: &[Written], of: fn(&Written) -> f64) -> f64 {
    median(&runs.iter().map(of).collect::<Vec<_>>())
}

fn row(sizes: Sizes, peer: &Peer, runs: &[Written], memory_bytes: u64) -> Row {
    let objects = middle(runs, |run| run.objects as f64);
    Row::new()
        .with("values", sizes.name())
        .with("cache", peer.name())
        .number("objects per MB", objects / (memory_bytes as f64 / 1e6), 4)
        .number("k writes/s", middle(runs, |run| run.per_second / 1e3), 3)
        .number("CPU µs", middle(runs, |run| run.cpu_us), 3)
        .number("cleaning", middle(runs, |run| run.cleaning), 2)
        .number("RSS MB", middle(runs, |run| run.rss_bytes as f64 / 1e6), 3)
}

fn add_targets(report: &mut Report, sizes: Sizes, ours: &[Written], theirs: &[Written]) {
    let name = sizes.name();
    let ratio = |of: fn(&Written) -> f64| middle(ours, of) / middle(theirs, of);
    report.target(
        format!("{name}: objects per MB / memcached's (paper: 1.31 and 1.15) ≥ 1"),
        ratio(|run| run.objects as f64),
        Bound::AtLeast(1.0),
    );
    report.target(
        format!("{name}: writes/s / memcached's (paper: 1.03) ≥ 1"),
        ratio(|run| run.per_second),
        Bound::AtLeast(1.0),
    );
}

/// Starts a cache, and writes to it.
fn write(
    peer: &Peer,
    memory_bytes: u64,
    keys: u64,
    writes: usize,
    sizes: Sizes,
) -> Result<Written> {
    let running = peer.start(memory_bytes)?;
    let doing = || format!("writing to {}", peer.name());
    let stream = TcpStream::connect(running.address()).doing(doing())?;
    stream.set_nodelay(true).doing(doing())?;
    let mut replies = BufReader::with_capacity(64 << 10, stream);
    let value = vec![b'v'; SIZES as usize];
    let (zipf, mut random) = (Zipf::new(keys, ZIPF), Random::new(3));
    let mut out: Vec<u8> = Vec::new();
    let before_ns = machine::cpu_ns(running.process_id())?;
    let begun = Instant::now();
    let mut left = writes;
    while left > 0 {
        let batch = left.min(BATCH);
        out.clear();
        for _ in 0..batch {
            // Neighbours in popularity are not neighbours among the keys.
            let key = mix(zipf.rank(&mut random)) as u32;
            peer.encode_set(key, &value[..sizes.of(key)], &mut out);
        }
        replies.get_mut().write_all(&out).doing(doing())?;
        for _ in 0..batch {
            peer.stored(&mut replies).doing(doing())?;
        }
        left -= batch;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let cpu_ns = machine::cpu_ns(running.process_id())?.saturating_sub(before_ns);
    let cleaning = match peer {
        Peer::Duramen(_) => {
            let busy_ms = info_number(running.address(), "duramen_cleaner_busy_ms")?;
            busy_ms.unwrap_or(f64::NAN) * 1e6 / cpu_ns as f64
        }
        _ => f64::NAN,
    };
    Ok(Written {
        per_second: writes as f64 / seconds,
        cpu_us: cpu_ns as f64 / 1e3 / writes as f64,
        cleaning,
        objects: running.objects()?,
        rss_bytes: machine::rss_bytes(Some(running.process_id()))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_paper() {
        assert_eq!(Sizes::Fixed.mean_bytes(), 25);
        let zipfian = Sizes::Zipfian(Zipf::new(SIZES, ZIPF));
        assert!((700..1000).contains(&zipfian.mean_bytes()));
        assert!((0..1000).all(|key| zipfian.of(key) < SIZES as usize));
        assert_eq!(zipfian.of(7), zipfian.of(7));
    }
}
