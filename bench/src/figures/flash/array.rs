//! Random accesses to an array [Badam11 §5.1].

use super::tool::{Bench, Run, arguments, data_bytes};
use super::{FlashArgs, RAM_PERCENT};
use crate::harness::{Bound, Report, Result, Row};
use duramen_base::units::MIB;

/// Most bytes written to flash for each write of an object.
const WRITTEN_MOST: f64 = 160.0;
const SMALL_BYTES: u64 = 128;
const STEPS: [&str; 3] = ["0", "50", "100"];

/// Ways to have more data than RAM.
fn ways(bench: &Bench) -> Vec<&'static str> {
    let mut ways = vec!["opp", "mp", "mmap"];
    if bench.can_swap() {
        ways.push("malloc");
    }
    ways
}

fn shown(way: &str) -> &str {
    match way {
        "opp" => "OPP (ssd_oalloc)",
        "mp" => "MP (ssd_malloc)",
        "malloc" => "swap",
        "device" => "the device's own reads",
        other => other,
    }
}

fn ram_bytes(data: u64) -> u64 {
    (data * RAM_PERCENT / 100).next_multiple_of(MIB)
}

/// One way, with each share of writes in `steps`: the device's own rate is measured before and
/// after; the mean counts.
fn run(
    args: &FlashArgs,
    bench: &Bench,
    way: &str,
    size: u64,
    steps: &str,
) -> Result<(Vec<Run>, f64, f64)> {
    let data = data_bytes(args);
    // Swap and mapped files are so slow that fewer operations suffice.
    let operations = args.options.size(150_000, 60_000) / if way == "malloc" { 8 } else { 1 };
    let mut given = arguments(&[
        ("size", size),
        ("data-mb", data / MIB),
        ("threads", 8),
        ("operations", operations),
        ("warm-up", operations / 3),
    ]);
    let mut device = given.clone();
    device.extend(["--fill".to_owned(), "0".to_owned()]);
    given.extend(["--write-steps".to_owned(), steps.to_owned()]);
    bench.clear();
    let runs = bench.run("array", way, ram_bytes(data), &given)?;
    let (mut rates, mut p99) = (Vec::new(), Vec::new());
    if way != "malloc" {
        // Its file exists now, and has been written to.
        for _ in 0..2 {
            for run in bench.run("array", "device", ram_bytes(data), &device)? {
                rates.push(run.number("per_second"));
                p99.push(run.number("p99_us"));
            }
        }
    }
    let mean = |figures: &[f64]| figures.iter().sum::<f64>() / figures.len() as f64;
    Ok((runs, mean(&rates), mean(&p99)))
}

fn row(way: &str, size: u64, run: &Run) -> Row {
    let written = if matches!(way, "opp" | "mp") {
        "flash_written_bytes"
    } else {
        "device_written_bytes"
    };
    let row = Row::new()
        .with("memory", shown(way))
        .with("object bytes", size)
        .with("writes %", run.number("write_percent") as u64);
    run.times(row)
        .number("read bytes each", run.each("device_read_bytes"), 3)
        .number("written bytes per update", run.per_write(written), 3)
        .number("RSS MB", run.number("resident_mb"), 3)
}

const ABOUT: &str = "Eight threads read or write elements of a large array at random, each of them a moment's work; RAM is 8 % of the data, held \
    by a memory cgroup (beside it 12 MiB for the program itself and for page tables, 4 MiB without the library). OPP: `ssd_oalloc`; MP: \
    `ssd_malloc`, where a page is what is cached and written; mmap: a mapped file with MADV_RANDOM; swap: `malloc` and a swap file. The \
    device's own rate is that of 512-byte reads past the page cache, by eight threads, of the same file, before and after.";

/// Figure 3(a, c) and Table 5.
pub fn shares(args: &FlashArgs, bench: &Bench) -> Result<Report> {
    let title = "Flash as memory: random accesses to 128-byte objects";
    let mut report = Report::new("flash-array", title, ABOUT, &args.options);
    let (mut rows, mut rates) = (Vec::new(), Vec::new());
    for way in ways(bench) {
        let (runs, device, device_p99) = run(args, bench, way, SMALL_BYTES, &STEPS.join(","))?;
        for run in &runs {
            rows.push(row(way, SMALL_BYTES, run));
            let share = run.number("write_percent") as u64;
            rates.push((way, share, run.number("per_second")));
            if way == "opp" {
                let rate = run.number("per_second") / device;
                let target =
                    format!("OPP, {share} % writes: of the device's own 512 B reads ≥ 0.85");
                report.target(target, rate, Bound::AtLeast(0.85));
                let p99 = run.number("p99_us") / device_p99;
                report.target(
                    format!("its p99 ≤ 2x the device's, {share} % writes"),
                    p99,
                    Bound::AtMost(2.0),
                );
            }
            if way == "opp" && share == 100 {
                let target = "bytes written per updated object ≤ 160";
                let written = run.per_write("flash_written_bytes");
                report.target(target, written, Bound::AtMost(WRITTEN_MOST));
            }
        }
        if way == "opp" {
            rows.push(
                Row::new()
                    .with("memory", shown("device"))
                    .with("object bytes", 512)
                    .number("k/s", device / 1e3, 3)
                    .number("p99 µs", device_p99, 3),
            );
        }
    }
    let rate = |way: &str, share: u64| {
        let found = rates.iter().find(|(w, s, _)| *w == way && *s == share);
        found.map_or(f64::NAN, |(_, _, rate)| *rate)
    };
    for (way, share, least) in [
        ("mmap", 50, 1.6),
        ("mmap", 100, 1.9),
        ("malloc", 50, 5.0),
        ("mp", 50, 1.8),
    ] {
        let target = format!("OPP / {} at {share} % writes ≥ {least}", shown(way));
        let ratio = rate("opp", share) / rate(way, share);
        report.target(target, ratio, Bound::AtLeast(least));
    }
    report.table("Random accesses (Figure 3, Table 5)", rows);
    Ok(report)
}

/// Larger objects, half of the accesses writes.
pub fn sizes(args: &FlashArgs, bench: &Bench) -> Result<Report> {
    let title = "Flash as memory: random accesses by size of object";
    let mut report = Report::new("flash-sizes", title, ABOUT, &args.options);
    let mut rows = Vec::new();
    for size in [512, 1024, 2048] {
        let mut by_objects = f64::NAN;
        for way in ways(bench) {
            let (runs, _, _) = run(args, bench, way, size, "50")?;
            for run in &runs {
                let rate = run.number("per_second");
                if way == "opp" {
                    by_objects = rate;
                }
                rows.push(row(way, size, run).number("OPP / this", by_objects / rate, 3));
            }
        }
    }
    report.table("Random accesses, 50 % writes", rows);
    Ok(report)
}
