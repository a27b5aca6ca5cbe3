//! A B+tree and HashCache's index [Badam11 §5.4, §5.5] by objects, by pages and by swap.

use super::tool::{Bench, Run, arguments, data_bytes};
use super::{FlashArgs, RAM_PERCENT};
use crate::harness::{Report, Result, Row, progress};
use duramen_base::units::MIB;

const THREADS: u64 = 8;

fn ways(bench: &Bench) -> &'static [(&'static str, &'static str)] {
    const ALL: [(&str, &str); 3] = [("opp", "OPP"), ("mp", "MP"), ("malloc", "swap")];
    &ALL[..if bench.can_swap() { 3 } else { 2 }]
}

/// Runs the part.
pub fn run(args: &FlashArgs, bench: &Bench) -> Result<Report> {
    let about = "The programs of `heap/crates/alloc/examples`, eight threads, RAM 8 % of the data: a B+tree with nodes of 25 keys (lookups and replaced \
        values), HashCache's index of sets of 128 bytes \
        (lookups, which note what was used last, and inserts). Half of the operations write. `working set`: so many sets, at random places, can be \
        looked up with less than one miss in a hundred; one thread.";
    let title = "Flash as memory: B+tree, HashCache";
    let mut report = Report::new("flash-programs", title, about, &args.options);
    let data = data_bytes(args) / 2;
    let operations = args.options.size(120_000, 30_000);
    let ram = (data * RAM_PERCENT / 100)
        .next_multiple_of(MIB)
        .max(6 * MIB);
    let tree = |key_bytes: u64, node_bytes: u64| {
        // Ascending keys fill 24 of 25 places.
        let keys = data / node_bytes * 24;
        let sizes = [("keys", keys), ("key-bytes", key_bytes)];
        (format!("B+tree, {key_bytes} B keys"), "btree", sizes)
    };
    let loads = [
        tree(4, 328),
        tree(64, 1824),
        (
            "HashCache".to_owned(),
            "hashcache",
            [("sets", data / 128), ("fill", 2)],
        ),
    ];
    let mut rows = Vec::new();
    for (name, program, sizes) in loads {
        let mut by_objects = f64::NAN;
        for (way, shown) in ways(bench) {
            let operations = operations / if *way == "malloc" { 8 } else { 1 };
            let mut given = arguments(&sizes);
            given.extend(arguments(&[
                ("threads", THREADS),
                ("operations", operations),
                ("warm-up", operations / 3),
            ]));
            bench.clear();
            for run in &bench.run(program, way, ram, &given)? {
                let rate = run.number("per_second");
                if *way == "opp" {
                    by_objects = rate;
                }
                rows.push(row(&name, shown, run).number("OPP / this", by_objects / rate, 3));
            }
        }
    }
    report.table("Programs (Figure 5b, §5.5)", rows);
    let rows = working_sets(bench, data, ram)?;
    report.table("Working sets of HashCache (Figure 6)", rows);
    Ok(report)
}

fn working_sets(bench: &Bench, data: u64, ram: u64) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (way, shown) in ways(bench) {
        let given = arguments(&[
            ("sets", data / 128),
            ("fill", 2),
            ("find-working-sets", 1),
            ("threads", 1),
        ]);
        bench.clear();
        let runs = match bench.run("hashcache", way, ram, &given) {
            // Linux may find no memory although swap has room: that is its result then.
            Err(failure) if *way == "malloc" => {
                progress!("{failure}");
                rows.push(Row::new().with("memory", format!("{shown}: killed by the limit")));
                continue;
            }
            runs => runs?,
        };
        for run in &runs {
            let most = run.number("working_sets_most");
            rows.push(
                Row::new()
                    .with("memory", *shown)
                    .with("sets", (data / 128).to_string())
                    .number("RAM MB", ram as f64 / MIB as f64, 3)
                    .number("working set", most, 4)
                    .number("sets per MB of RAM", most / (ram as f64 / MIB as f64), 3),
            );
        }
    }
    Ok(rows)
}

fn row(name: &str, memory: &str, run: &Run) -> Row {
    let row = Row::new().with("program", name).with("memory", memory);
    let written = if memory == "swap" {
        "device_written_bytes"
    } else {
        "flash_written_bytes"
    };
    run.times(row)
        .number("written bytes per write", run.per_write(written), 3)
        .number("RSS MB", run.number("resident_mb"), 3)
}
