//! A packet cache by direct calls of the flash layer, by objects, by pages and by swap [Badam11
//! §5.3, Figure 5(a)]: the cost of pages and faults.

use super::tool::{Bench, Run, arguments, data_bytes};
use super::{FlashArgs, RAM_PERCENT};
use crate::harness::{Bound, Failure, Report, Result, Row, progress};
use duramen_base::units::MIB;

const THREADS: u64 = 8;
/// Least RAM of the library.
const RAM_BYTES_MIN: u64 = 6 * MIB;
/// RAM of the cache's index for each packet, which is in malloc's memory for each way.
const INDEX_BYTES: u64 = 112;
/// Lengths of packets, from and to: fixed ones, and the paper's mix.
const LENGTHS: [(u64, u64); 5] = [
    (100, 100),
    (500, 500),
    (1000, 1000),
    (1500, 1500),
    (100, 1500),
];
/// Program, memory, name.
const WAYS: [(&str, &str, &str); 4] = [
    ("packets-direct", "direct", "direct calls"),
    ("packets", "opp", "OPP"),
    ("packets", "mp", "MP"),
    ("packets", "malloc", "swap"),
];
/// The paper's longest overhead of a response, in µs, and the most processor time.
const PAPER_OVERHEAD_US: f64 = 20.0;
const PAPER_CPU: f64 = 1.065;

const ABOUT: &str = "A cache of packets by their SHA-1, eight threads, half of the operations inserts; RAM 8 % of the data, and the index beside \
    it. Direct calls: get and put of whole objects, with the library's flash layer and its cache in RAM, but without pages, faults and \
    allocator; all RAM that these do not take is its cache's. Runs of all ways in turn; the one with the median response time is shown. `beyond \
    direct`: mean response time beyond that of direct calls.";

/// Runs the part.
///
/// # Errors
/// Of the programs.
pub fn run(args: &FlashArgs, bench: &Bench) -> Result<Report> {
    let title = "Flash as memory: a packet cache, and direct calls";
    let mut report = Report::new("flash-packets", title, ABOUT, &args.options);
    let mut rows = Vec::new();
    for (least, most) in LENGTHS {
        let is_mix = least != most;
        let ways = match (is_mix, bench.can_swap()) {
            (true, true) => &WAYS[..],
            (true, false) => &WAYS[..3],
            (false, _) => &WAYS[..2],
        };
        let runs = in_turn(args, bench, ways, (least, most))?;
        let length = match is_mix {
            true => format!("{least} to {most}"),
            false => most.to_string(),
        };
        let [Some(direct), Some(objects), ..] = &runs[..] else {
            return Err(Failure::new(
                "packets",
                "direct calls and OPP were not measured",
            ));
        };
        for ((_, memory, shown), run) in ways.iter().zip(&runs) {
            let row = Row::new()
                .with("packet bytes", length.clone())
                .with("way", *shown);
            rows.push(match run {
                Some(run) => figures(row, memory, run, direct),
                None => row.with("k/s", "ended by the limit"),
            });
        }
        targets(&mut report, &length, (direct, objects));
        for ((_, _, shown), run) in ways.iter().zip(&runs).skip(2) {
            let least = if *shown == "MP" { 1.3 } else { 4.8 };
            let rate = run
                .as_ref()
                .map_or(f64::NAN, |run| run.number("per_second"));
            report.target(
                format!("{length} B: OPP / {shown} ≥ {least} (paper)"),
                objects.number("per_second") / rate,
                Bound::AtLeast(least),
            );
        }
    }
    report.table("Packet cache (Figure 5a)", rows);
    Ok(report)
}

/// The runtime against direct calls.
fn targets(report: &mut Report, length: &str, (direct, objects): (&Run, &Run)) {
    report.target(
        format!("{length} B: a response by objects beyond one by direct calls ≤ 20 µs (paper)"),
        objects.number("mean_us") - direct.number("mean_us"),
        Bound::AtMost(PAPER_OVERHEAD_US),
    );
    if length == "100" {
        report.target(
            "100 B: processor time by objects / by direct calls ≤ 1.065 (paper)",
            objects.each("cpu_seconds") / direct.each("cpu_seconds"),
            Bound::AtMost(PAPER_CPU),
        );
    }
}

/// The runs with the median response time, one of each way; `None`: Linux ended all of them by the
/// limit of memory, although swap had room.
fn in_turn(
    args: &FlashArgs,
    bench: &Bench,
    ways: &[(&str, &str, &str)],
    (least, most): (u64, u64),
) -> Result<Vec<Option<Run>>> {
    let data = data_bytes(args) / 2;
    let packets = data / least.midpoint(most);
    let ram = (data * RAM_PERCENT / 100)
        .next_multiple_of(MIB)
        .max(RAM_BYTES_MIN);
    let mut runs = vec![Vec::new(); ways.len()];
    for _ in 0..args.options.rounds() {
        for ((program, memory, _), runs) in ways.iter().zip(&mut runs) {
            let slower = if *memory == "malloc" { 8 } else { 1 };
            let operations = args.options.size(120_000, 30_000) / slower;
            let given = arguments(&[
                ("packets", packets),
                ("least", least),
                ("most", most),
                ("threads", THREADS),
                ("operations", operations),
                ("warm-up", operations / 3),
            ]);
            bench.clear();
            let beside = packets * INDEX_BYTES;
            match bench.run_beside(program, memory, (ram, beside), &given) {
                Err(failure) if *memory == "malloc" => progress!("{failure}"),
                run => runs.extend(run?),
            }
        }
    }
    let median = |mut runs: Vec<Run>| {
        runs.sort_by(|a, b| a.number("mean_us").total_cmp(&b.number("mean_us")));
        let middle = runs.len() / 2;
        runs.into_iter().nth(middle)
    };
    Ok(runs.into_iter().map(median).collect())
}

fn figures(row: Row, memory: &str, run: &Run, direct: &Run) -> Row {
    let written = match memory {
        "malloc" => "device_written_bytes",
        _ => "flash_written_bytes",
    };
    run.times(row)
        .number(
            "beyond direct, µs",
            run.number("mean_us") - direct.number("mean_us"),
            3,
        )
        .number(
            "CPU / direct",
            run.each("cpu_seconds") / direct.each("cpu_seconds"),
            3,
        )
        .number("from flash each", run.each("from_flash"), 3)
        .number("written bytes per write", run.per_write(written), 3)
}
