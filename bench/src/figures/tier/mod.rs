//! Data ten times as large as memory: the store's flash tier beside memcached's extstore, with
//! equal memory.
//!
//! Each server is a process of its own in a memory cgroup of the same limit, so that its part of
//! the page cache counts as its memory. The same generator fills both with the same keys, then
//! reads: all keys alike, and 90 % of reads to 5 % of the keys, which are scattered among all
//! others. A read counts only if the value was found and is the key's.

mod reads;
mod rivals;

pub use self::reads::Choice;
use self::reads::{Outcome, Reads};
use self::rivals::Rival;
use crate::figure::Figure;
use crate::harness::{Bound, Doing, Group, Options, Report, Result, Row, median, progress};
use crate::servers::{Scratch, find_duramen, find_program};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const VALUE_BYTES: usize = 1000;
/// Data over memory.
const TIMES: u64 = 10;
/// Factor of the memory of a second memcached, which has room for its RAM part of every item.
const MORE: u64 = 3;
/// Factor of the connections in a second measurement of a hot set: enough that some always have
/// work while others wait.
const MANY: usize = 4;

/// Data ten times as large as memory: the flash tier beside memcached's extstore
#[derive(Clone, Debug, clap::Args)]
pub(super) struct TierFigure {
    /// The program `duramen`; by default the one beside this program, then the one on PATH
    #[arg(long, value_name = "FILE")]
    pub duramen: Option<PathBuf>,
    /// The program `memcached`, with extstore; by default the one on PATH
    #[arg(long, value_name = "FILE")]
    pub memcached: Option<PathBuf>,
    /// Directory of the flash files: on the SSD that is measured
    #[arg(long, value_name = "DIR")]
    pub flash: Option<PathBuf>,
    /// Memory of each server, its page cache included; data is ten times as much
    #[arg(long, value_name = "MB")]
    pub memory_mb: Option<u64>,
    /// Connections
    #[arg(long, default_value_t = 16)]
    pub connections: usize,
    /// Requests that a connection has in flight at once
    #[arg(long, default_value_t = 4)]
    pub pipeline: usize,
    /// Seconds of each measurement
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Keys per second at which the stores are filled: faster, extstore evicts items before it
    /// writes them
    #[arg(long, default_value_t = 50_000.0)]
    pub fill_rate: f64,
    /// Only these reads, and of Duramen alone
    #[arg(long, value_name = "READS")]
    pub only: Option<Choice>,
}

/// Sizes of a run.
struct Sizes {
    memory_bytes: u64,
    keys: u64,
    threads: usize,
}

impl Figure for TierFigure {
    const NAME: &'static str = "tier";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &TierFigure, options: &Options) -> Result<Report> {
    let about = "1 KB values, ten times as much as memory, on one SSD: Duramen's flash tier beside memcached's extstore (Debian's package), each \
        in a memory cgroup of the same limit that counts its page cache too. Reads per second are of values that were found.";
    let mut report = Report::new("tier", "Flash tier against extstore", about, options);
    let memory_bytes = args.memory_mb.unwrap_or(options.size(256, 160)).max(128) * MIB;
    let sizes = Sizes {
        memory_bytes,
        keys: TIMES * memory_bytes / (VALUE_BYTES as u64 + 16),
        threads: 2,
    };
    let parent = args.flash.clone().unwrap_or_else(std::env::temp_dir);
    let duramen = find_duramen(args.duramen.as_deref())?;
    let mut rivals = vec![Rival::duramen(&duramen, &sizes, &parent)?];
    match args.memcached.clone().or_else(|| find_program("memcached")) {
        _ if args.only.is_some() => {}
        Some(program) => {
            rivals.push(Rival::memcached(&program, &sizes, 1, &parent)?);
            rivals.push(Rival::memcached(&program, &sizes, MORE, &parent)?);
        }
        None => report.note("memcached: SKIPPED, it is not installed."),
    }
    for rival in &rivals {
        let stored = reads::fill(rival, sizes.keys, Some(args.fill_rate))?;
        progress!("{}: {stored} of {} keys stored", rival.name(), sizes.keys);
    }
    let mut rows = Vec::new();
    for choice in [Choice::Uniform, Choice::Hot] {
        if args.only.is_some_and(|only| only != choice) {
            continue;
        }
        rows.extend(side_by_side(
            args,
            options,
            choice,
            &sizes,
            &rivals,
            &mut report,
        )?);
    }
    report.table("Reads of data ten times as large as memory", rows);
    if args.only.is_none() {
        lost(&sizes, &rivals, &mut report)?;
        drop(rivals);
        restart(&duramen, &sizes, &parent, &mut report)?;
    }
    tell_how(args, &sizes, &mut report);
    Ok(report)
}

fn tell_how(args: &TierFigure, sizes: &Sizes, report: &mut Report) {
    report.note(format!(
        "{} MiB of memory each, of which 24 MiB (memcached: 48) are left to the program itself (`--memory`, `-m`: the rest); {} keys; {} connections with \
         {} requests on their way each; 2 threads each; the generator runs on the same machine.",
        sizes.memory_bytes / MIB,
        sizes.keys,
        args.connections,
        args.pipeline,
    ));
    if let Some(why) = Group::missing() {
        report.note(format!(
            "Without a memory cgroup ({why}): the page cache of memcached's file is not counted."
        ));
    }
    report.note(
        "memcached keeps a header of every item in memory, about a tenth of these, and moves pages of memory from one size to another while \
         it is filled: with the same memory, and filled at this pace, it evicts most of the keys, and what it answers quickly is that they \
         are not there. With three times the memory it is a second contender.",
    );
    report.note(
        "All in memory is Duramen with memory for everything and no cgroup. A hot set is given time to be promoted: its reads run for a while \
         before they are measured. A connection reads the next keys when it has all of the last: with few connections a processor has nothing \
         to do while they wait for the SSD; with four times as many it has, and what is compared is the work.",
    );
}

/// Reads of one kind, all stores in turn; for a hot set also from a store that has all data in
/// memory.
fn side_by_side(
    args: &TierFigure,
    options: &Options,
    choice: Choice,
    sizes: &Sizes,
    rivals: &[Rival],
    report: &mut Report,
) -> Result<Vec<Row>> {
    let seconds = args.seconds.unwrap_or(options.size(5.0, 2.0));
    let few = Reads {
        choice,
        keys: sizes.keys,
        connections: args.connections.max(1),
        pipeline: args.pipeline.max(1),
        time: Duration::from_secs_f64(seconds),
    };
    let many = Reads {
        connections: MANY * few.connections,
        ..few
    };
    let loads = match choice {
        Choice::Uniform => vec![few],
        Choice::Hot => vec![few, many],
    };
    let in_memory = match choice {
        Choice::Uniform => None,
        Choice::Hot => {
            let all = Rival::in_memory(&find_duramen(args.duramen.as_deref())?, sizes)?;
            reads::fill(&all, sizes.keys, None)?;
            Some(all)
        }
    };
    let all: Vec<&Rival> = rivals.iter().chain(&in_memory).collect();
    for rival in &all {
        let warm = Reads {
            time: few.time.mul_f64(4.0),
            ..few
        };
        warm.run(rival)?;
    }
    let mut rows = Vec::new();
    for reads in loads {
        rows.extend(at_a_load(options, &reads, &all, report)?);
    }
    Ok(rows)
}

/// One number of connections, all stores in turn.
fn at_a_load(
    options: &Options,
    reads: &Reads,
    all: &[&Rival],
    report: &mut Report,
) -> Result<Vec<Row>> {
    let choice = reads.choice;
    let mut outcomes: Vec<Vec<Outcome>> = all.iter().map(|_| Vec::new()).collect();
    for _ in 0..options.rounds().min(3) {
        for (rival, outcomes) in all.iter().zip(&mut outcomes) {
            outcomes.push(reads.run(rival)?);
        }
    }
    let rate = |outcomes: &Vec<Outcome>| {
        let rates: Vec<f64> = outcomes.iter().map(Outcome::found_per_second).collect();
        median(&rates)
    };
    let mut rows = Vec::new();
    for (rival, outcomes) in all.iter().zip(&outcomes) {
        rows.push(row(reads, rival, outcomes, rate(outcomes))?);
    }
    let of = |name: &str| {
        let found = all.iter().position(|rival| rival.name() == name);
        found.map_or(f64::NAN, |at| rate(&outcomes[at]))
    };
    match choice {
        Choice::Uniform => report.target(
            "reads of all keys alike, of memcached's extstore ≥ 1.5",
            of(rivals::TIERED) / of(rivals::EXTSTORE),
            Bound::AtLeast(1.5),
        ),
        Choice::Hot => report.target(
            format!(
                "90 % of reads to 5 % of keys, {} connections, of the same store all in memory ≥ 0.8",
                reads.connections
            ),
            of(rivals::TIERED) / of(rivals::IN_MEMORY),
            Bound::AtLeast(0.8),
        ),
    }
    Ok(rows)
}

fn row(reads: &Reads, rival: &Rival, outcomes: &[Outcome], rate: f64) -> Result<Row> {
    let mut all = Outcome::default();
    for outcome in outcomes {
        all.add(outcome);
    }
    assert_eq!(all.wrong, 0, "{} gave another key's value", rival.name());
    let summary = all.latencies.summary();
    Ok(Row::new()
        .with("reads", reads.choice.name())
        .with("connections", reads.connections as u64)
        .with("store", rival.name())
        .number("found/s", rate, 4)
        .number(
            "requests/s",
            rate * all.requests as f64 / all.found.max(1) as f64,
            4,
        )
        .number(
            "found, %",
            100.0 * all.found as f64 / all.requests as f64,
            4,
        )
        .number("fetches/request", all.fetched / all.requests as f64, 3)
        .number("p50 µs", summary.p50_us, 3)
        .number("p99 µs", summary.p99_us, 3)
        .number("resident MiB", rival.rss_bytes()? as f64 / MIB as f64, 4))
}

/// Counts the keys that are still there.
fn lost(sizes: &Sizes, rivals: &[Rival], report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    for rival in rivals {
        let outcome = reads::read_all(rival, sizes.keys)?;
        assert_eq!(
            outcome.wrong,
            0,
            "{} gave another key's value",
            rival.name()
        );
        let lost = sizes.keys - outcome.found;
        let rss = rival.rss_bytes()?;
        if rival.name() == rivals::TIERED {
            report.target(
                "keys that are not there any more",
                lost as f64,
                Bound::AtMost(0.0),
            );
            report.target(
                "resident memory / memory set",
                rss as f64 / sizes.memory_bytes as f64,
                Bound::AtMost(1.0),
            );
        }
        rows.push(
            Row::new()
                .with("store", rival.name())
                .with("keys", sizes.keys)
                .with("lost or evicted", lost)
                .number("resident MiB", rss as f64 / MIB as f64, 4),
        );
    }
    report.table("Every key read once", rows);
    Ok(())
}

/// After a crash, a store with a directory has all its data; memcached's extstore starts empty.
fn restart(program: &Path, sizes: &Sizes, parent: &Path, report: &mut Report) -> Result<()> {
    let data = Scratch::new(parent).doing("making a directory")?;
    let keys = sizes.keys / 2;
    let mut rival = Rival::durable(program, sizes, parent, data.path())?;
    reads::fill(&rival, keys, None)?;
    rival.kill();
    let begun = Instant::now();
    let rival = Rival::durable(program, sizes, parent, data.path())?;
    rival.wait_until_served()?;
    let seconds = begun.elapsed().as_secs_f64();
    let outcome = reads::read_all(&rival, keys)?;
    report.target(
        "keys that are not there after kill -9 and a restart (level buffered, half the data)",
        (keys - outcome.found) as f64,
        Bound::AtMost(0.0),
    );
    report.note(format!(
        "The restart took {seconds:.1} s for {:.2} GB, five times as much as memory; its files were in the page cache still.",
        keys as f64 * VALUE_BYTES as f64 / 1e9
    ));
    Ok(())
}
