//! Hit rate and cost of the allocator's RAM object cache: its own code (S3-FIFO) against an LRU
//! cache, on the same accesses with the same RAM.

use super::FlashArgs;
use super::lru::{Lru, OBJECT_BYTES};
use crate::harness::{Chooser, Distribution, Doing, Random, Report, Result, Row, Zipf, median};
use duramen_alloc::measured::Cache;
use duramen_base::units::MIB;
use std::convert::Infallible;
use std::hint::black_box;
use std::time::Instant;

/// The order of accesses.
#[derive(Clone, Copy)]
enum Trace {
    Uniform,
    Zipfian,
    /// Zipfian, and every fourth access continues a walk over all objects.
    Scanned,
    /// Zipfian by age: the newest objects are used most, and every fourth access makes a new one.
    Moving,
}

const TRACES: [(&str, Trace); 4] = [
    ("uniform", Trace::Uniform),
    ("zipfian 0.99", Trace::Zipfian),
    ("zipfian 0.99, 1/4 scan", Trace::Scanned),
    ("newest most, 1/4 new", Trace::Moving),
];
const THETA: f64 = 0.99;

impl Trace {
    fn keys(self, objects: u64, count: usize) -> Vec<u32> {
        let mut rng = Random::new(5);
        let hot = Distribution::Zipfian(THETA);
        let (mut walk, mut newest) = (0, 0);
        let number = |nth: usize| nth as u64;
        match self {
            Trace::Uniform => (0..count).map(|_| rng.below(objects) as u32).collect(),
            Trace::Zipfian => {
                let mut keys = Chooser::new(hot, objects, 5);
                (0..count).map(|_| keys.next_key() as u32).collect()
            }
            Trace::Scanned => {
                let mut keys = Chooser::new(hot, objects, 5);
                let mut next = |nth: usize| {
                    if number(nth) % 4 == 0 {
                        walk = (walk + 1) % objects;
                        return walk as u32;
                    }
                    keys.next_key() as u32
                };
                (0..count).map(&mut next).collect()
            }
            Trace::Moving => {
                let ages = Zipf::new(objects, THETA);
                let mut next = |nth: usize| {
                    if number(nth) % 4 == 0 {
                        newest = (newest + 1) % objects;
                        return newest as u32;
                    }
                    ((newest + objects - ages.rank(&mut rng)) % objects) as u32
                };
                (0..count).map(&mut next).collect()
            }
        }
    }
}

/// The operations of both caches.
trait Policy {
    fn get(&self, key: u64, into: &mut [u8; OBJECT_BYTES]) -> bool;
    fn put(&self, key: u64, bytes: &[u8; OBJECT_BYTES], dirty: bool);
    /// Number of dirty objects that left.
    fn written(&self) -> u64;
}

impl Policy for Cache {
    fn get(&self, key: u64, into: &mut [u8; OBJECT_BYTES]) -> bool {
        Cache::get(self, key, 0, into)
    }

    fn put(&self, key: u64, bytes: &[u8; OBJECT_BYTES], dirty: bool) {
        let spill = |key: u64, bytes: &[u8]| {
            black_box((key, bytes));
            Ok::<(), Infallible>(())
        };
        let Ok(()) = Cache::put(self, key, bytes, dirty, &spill);
    }

    fn written(&self) -> u64 {
        self.counts().spilled
    }
}

impl Policy for Lru {
    fn get(&self, key: u64, into: &mut [u8; OBJECT_BYTES]) -> bool {
        Lru::get(self, key, into)
    }

    fn put(&self, key: u64, bytes: &[u8; OBJECT_BYTES], dirty: bool) {
        let spill = |key: u64, bytes: &[u8]| {
            black_box((key, bytes));
        };
        Lru::put(self, key, bytes, dirty, &spill);
    }

    fn written(&self) -> u64 {
        Lru::written(self)
    }
}

/// The result of one run.
#[derive(Clone, Copy)]
struct Found {
    hits: f64,
    /// Per access.
    ns: f64,
    /// Per write.
    written: f64,
}

/// Only the second half of the accesses counts: the first one fills the cache.
fn measure(cache: &dyn Policy, keys: &[u32], write_percent: u64) -> Found {
    let mut bytes = [7; OBJECT_BYTES];
    let mut rng = Random::new(9);
    let mut touch = |key: u32| {
        let key = u64::from(key);
        let found = cache.get(key, &mut bytes);
        if !found {
            cache.put(key, &bytes, false);
        }
        let writes = rng.below(100) < write_percent;
        if writes {
            cache.put(key, &bytes, true);
        }
        (u64::from(found), u64::from(writes))
    };
    let (warm, counted) = keys.split_at(keys.len() / 2);
    for key in warm {
        touch(*key);
    }
    let before = cache.written();
    let (mut hits, mut writes) = (0, 0);
    let begun = Instant::now();
    for key in counted {
        let (hit, write) = touch(*key);
        hits += hit;
        writes += write;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let count = counted.len() as f64;
    Found {
        hits: hits as f64 / count,
        ns: 1e9 * seconds / count,
        written: (cache.written() - before) as f64 / writes as f64,
    }
}

/// Runs the part.
pub fn run(args: &FlashArgs) -> Result<Report> {
    let about = "Objects of 128 bytes; one thread. An access gets an object from the cache, and puts it there if it was not found; a write puts it \
        there dirty. Half of the accesses go ahead uncounted. RAM counts what the cache needs beside the objects. `written`: dirty objects that left \
        for flash, per write.";
    let title = "Flash as memory: S3-FIFO against least recently used";
    let mut report = Report::new("flash-cache", title, about, &args.options);
    let data = args.data_mb.unwrap_or(args.options.size(384, 96)) * MIB;
    let objects = data / OBJECT_BYTES as u64;
    let count = args.options.size(16_000_000, 4_000_000);
    let mut rows = Vec::new();
    for (name, trace) in TRACES {
        let keys = trace.keys(objects, count);
        for (ram_percent, write_percent) in [(8, 0), (8, 50), (30, 0)] {
            let ram = data * ram_percent / 100;
            let (mut fifo, mut lru) = (Vec::new(), Vec::new());
            for _ in 0..args.options.rounds() {
                let cache = Cache::new(ram).doing("memory for a cache")?;
                fifo.push(measure(&cache, &keys, write_percent));
                lru.push(measure(&Lru::new(ram), &keys, write_percent));
            }
            let row = Row::new()
                .with("accesses", name)
                .with("RAM %", ram_percent)
                .with("writes %", write_percent);
            rows.push(beside(row, &fifo, &lru));
        }
    }
    report.table("RAM object cache", rows);
    Ok(report)
}

/// A column: its name, and its value.
type Column = (&'static str, fn(&Found) -> f64);

/// Both, in one row.
fn beside(mut row: Row, fifo: &[Found], lru: &[Found]) -> Row {
    let of = |runs: &[Found], what: fn(&Found) -> f64| {
        median(&runs.iter().map(what).collect::<Vec<_>>())
    };
    let columns: [Column; 3] = [
        ("found", |found| found.hits),
        ("ns", |found| found.ns),
        ("written", |found| found.written),
    ];
    for (name, what) in columns {
        let (one, other) = (of(fifo, what), of(lru, what));
        row = row.number(&format!("{name}, S3-FIFO"), one, 3).number(
            &format!("{name}, LRU"),
            other,
            3,
        );
    }
    row
}
