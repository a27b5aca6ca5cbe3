//! Memory per live byte after changes of object size: `W1`-`W8` (Rumble14 Table 1, Figure 1) and
//! `P1`-`P6` (Merritt17 Figure 9b), beside four allocators, and the memory after a mass deletion.
//!
//! Every cell is a child process of this program (`duramen-bench memory-cell`), measured from
//! outside the workload; allocators are preloaded into it.

use super::memory_cell::{CellArgs, Measured, Workload};
use crate::figure::Figure;
use crate::harness::{
    Bound, Chart, Doing, Failure, Options, Report, Result, Row, machine, progress,
};
use duramen_base::units::MIB;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Resident memory per live byte: `W1`-`W8`, `P1`-`P6`, and after deleting 90 %, beside four
/// allocators
#[derive(Clone, Debug, clap::Args)]
pub(super) struct MemoryFigure {
    /// Live bytes of each workload, in MiB; by default 256 for objects up to 250 bytes, 1024 for
    /// larger ones, 64 with --quick
    #[arg(long, value_name = "MIB")]
    pub live: Option<u64>,
    /// Only these workloads
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub only: Vec<String>,
}

/// An allocator that may be installed, and the file to preload for it.
struct Allocator {
    name: &'static str,
    library: Option<&'static str>,
}

const ALLOCATORS: [Allocator; 4] = [
    Allocator {
        name: "glibc",
        library: None,
    },
    Allocator {
        name: "jemalloc",
        library: Some("libjemalloc.so.2"),
    },
    Allocator {
        name: "tcmalloc",
        library: Some("libtcmalloc_minimal.so.4"),
    },
    Allocator {
        name: "mimalloc",
        library: Some("libmimalloc.so.2"),
    },
];

/// Budgets tried for Duramen, as factors of the least memory for live entries and index, until one
/// completes.
const BUDGET_FACTORS: [f64; 10] = [1.02, 1.04, 1.06, 1.08, 1.10, 1.13, 1.17, 1.23, 1.35, 1.60];

impl Figure for MemoryFigure {
    const NAME: &'static str = "memory";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &MemoryFigure, options: &Options) -> Result<Report> {
    let about = "Resident memory over live bytes (keys and values), when object sizes change: W1-W8 of Rumble14 Table 1 and P1-P6 of \
        Merritt17 Figure 9b. Peak = most during the workload, final = a few seconds after it. Duramen holds 16-byte keys (which \
        count as live) and its index in the figure, and gets the tightest budget in which the workload completes; the allocators \
        hold bare objects, without keys or index.";
    let mut report = Report::new("memory", "Memory per live byte", about, options);
    report.note(
        "RSS is counted above that of the process before the workload; live data as in the table.",
    );
    report.note(
        "Redis 8 and Valkey 9 after the same size changes, measured earlier by this project at 256 MB live: 1.60 to 2.75 for W2-W8, \
         2.15 to 2.68 for P1, P4, P5.",
    );
    let cells = measure_all(args, options)?;
    add_targets(&mut report, &cells);
    add_tables(&mut report, &cells);
    if args.only.is_empty() {
        add_shrink(&mut report, args, options)?;
    }
    Ok(report)
}

/// All cells of the wanted workloads. Workloads run side by side, one per core: memory does not
/// depend on speed.
fn measure_all(args: &MemoryFigure, options: &Options) -> Result<Vec<Cell>> {
    let mut wanted = Workload::all();
    wanted.retain(|w| args.only.is_empty() || args.only.iter().any(|name| name == w.name));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..machine::cores() {
            scope.spawn(|| {
                while let Some((n, workload)) = take(&wanted, &next) {
                    let cell = measure(args, options, workload);
                    done.lock().expect("no worker panics").push((n, cell));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no worker panics");
    done.sort_by_key(|(n, _)| *n);
    done.into_iter().map(|(_, cell)| cell).collect()
}

fn take<'a>(wanted: &'a [Workload], next: &AtomicUsize) -> Option<(usize, &'a Workload)> {
    let n = next.fetch_add(1, Ordering::Relaxed);
    wanted.get(n).map(|workload| (n, workload))
}

fn measure(args: &MemoryFigure, options: &Options, workload: &Workload) -> Result<Cell> {
    let live_bytes = live_bytes(args, options, workload);
    let duramen = tightest(workload, live_bytes)?;
    let peer = |allocator| with_allocator(allocator, workload, live_bytes);
    let peers = ALLOCATORS.iter().map(peer).collect::<Result<Vec<_>>>()?;
    Ok(Cell {
        workload: workload.clone(),
        live_bytes,
        duramen,
        peers,
    })
}

/// All stores under one workload.
struct Cell {
    workload: Workload,
    live_bytes: u64,
    duramen: Tight,
    peers: Vec<Option<Measured>>,
}

/// Writing many small objects takes long; a fair figure needs many segments with large objects, and
/// after the deletion of nine tenths.
fn live_bytes(args: &MemoryFigure, options: &Options, workload: &Workload) -> u64 {
    let large = workload.largest_bytes() > 250 || workload.only_deletes();
    args.live
        .unwrap_or(options.size(if large { 1024 } else { 256 }, 64))
        * MIB
}

/// The tightest budget with a completed run.
struct Tight {
    measured: Option<Measured>,
    budget_over_live: f64,
    attempts: usize,
}

fn tightest(workload: &Workload, live_bytes: u64) -> Result<Tight> {
    let least = workload.least_bytes_per_live_byte() * live_bytes as f64;
    for (n, factor) in BUDGET_FACTORS.iter().enumerate() {
        // Heads, survivors and the reserve are a fixed number of segments.
        let budget_bytes = (least * factor) as u64;
        let cell = CellArgs::duramen(workload, live_bytes, budget_bytes);
        let measured = child(&cell, None)?;
        progress!(
            "{} duramen, budget {:.2} x live: {measured:?}",
            workload.name,
            budget_bytes as f64 / live_bytes as f64
        );
        if measured.completed {
            return Ok(Tight {
                measured: Some(measured),
                budget_over_live: budget_bytes as f64 / live_bytes as f64,
                attempts: n + 1,
            });
        }
    }
    Ok(Tight {
        measured: None,
        budget_over_live: f64::NAN,
        attempts: BUDGET_FACTORS.len(),
    })
}

fn with_allocator(
    allocator: &Allocator,
    workload: &Workload,
    live_bytes: u64,
) -> Result<Option<Measured>> {
    let Some(library) = find(allocator) else {
        progress!(
            "{} {}: SKIPPED, its library is not installed",
            workload.name,
            allocator.name
        );
        return Ok(None);
    };
    let measured = child(&CellArgs::malloc(workload, live_bytes), library.as_ref())?;
    progress!("{} {}: {measured:?}", workload.name, allocator.name);
    Ok(Some(measured))
}

/// `Some(None)` = nothing to preload; `None` = not installed.
fn find(allocator: &Allocator) -> Option<Option<PathBuf>> {
    let Some(library) = allocator.library else {
        return Some(None);
    };
    let architecture = std::env::consts::ARCH;
    let places = [
        format!("/usr/lib/{architecture}-linux-gnu"),
        "/usr/lib64".into(),
        "/usr/lib".into(),
    ];
    let found = places
        .iter()
        .map(|place| PathBuf::from(place).join(library))
        .find(|path| path.exists());
    found.map(Some)
}

/// Runs one cell in a process of its own.
fn child(cell: &CellArgs, preload: Option<&PathBuf>) -> Result<Measured> {
    let program = std::env::current_exe().doing("finding this program")?;
    let mut command = Command::new(program);
    // `duramen bench memory` and `duramen-bench memory` both find their hidden subcommand.
    if std::env::args().nth(1).as_deref() == Some("bench") {
        command.arg("bench");
    }
    command.arg("memory-cell").args(cell.to_args());
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let output = command.output().doing("starting a memory cell")?;
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.trim()).map_err(|error| {
        let errors = String::from_utf8_lossy(&output.stderr);
        Failure::new(
            format!("memory cell {}", cell.to_args().join(" ")),
            format!("{error}; {}{errors}", output.status),
        )
    })
}

fn add_targets(report: &mut Report, cells: &[Cell]) {
    let worst = |names: &[&str]| {
        let of = |cell: &&Cell| names.contains(&cell.workload.name);
        let peaks = cells.iter().filter(of).map(|cell| {
            cell.duramen
                .measured
                .as_ref()
                .map_or(f64::INFINITY, |m| m.peak)
        });
        peaks.fold(f64::NAN, f64::max)
    };
    report.target(
        "W1-W5, 100-250 B: peak RSS / live ≤ 1.40 (the worst)",
        worst(&["W1", "W2", "W3", "W4", "W5"]),
        Bound::AtMost(1.40),
    );
    report.target(
        "W7, 1,000 B and up: peak RSS / live ≤ 1.15",
        worst(&["W7"]),
        Bound::AtMost(1.15),
    );
    let grown = |name: &str| {
        let cell = cells.iter().find(|cell| cell.workload.name == name);
        cell.and_then(|cell| Some(cell.duramen.measured.as_ref()?.end))
            .unwrap_or(f64::NAN)
    };
    report.target(
        "W6, at the end (1,000-2,000 B): RSS / live ≤ 1.15",
        grown("W6"),
        Bound::AtMost(1.15),
    );
    report.target(
        "W8, at the end (5,000-15,000 B): RSS / live ≤ 1.15",
        grown("W8"),
        Bound::AtMost(1.15),
    );
    report.target(
        "P2-P6: peak RSS / live ≤ 1.12 (the worst)",
        worst(&["P2", "P3", "P4", "P5", "P6"]),
        Bound::AtMost(1.12),
    );
    let index = cells
        .iter()
        .filter(|cell| cell.workload.name == "W1")
        .filter_map(|cell| cell.duramen.measured.as_ref());
    let index = index
        .map(|m| m.index_bytes_per_object)
        .fold(f64::NAN, f64::max);
    report.target(
        "W1: index bytes per object ≤ 12",
        index,
        Bound::AtMost(12.0),
    );
}

fn add_tables(report: &mut Report, cells: &[Cell]) {
    let mut rows = Vec::new();
    for Cell {
        workload,
        live_bytes,
        duramen: tight,
        peers,
    } in cells
    {
        let mut row = Row::new()
            .with("workload", workload.name)
            .with("sizes", workload.describe())
            .with("live MiB", live_bytes / MIB)
            .with_ratio("duramen peak", tight.measured.as_ref().map(|m| m.peak))
            .with_ratio("duramen final", tight.measured.as_ref().map(|m| m.end))
            .number("budget / live", tight.budget_over_live, 3)
            .with("budgets tried", tight.attempts);
        for (allocator, measured) in ALLOCATORS.iter().zip(peers) {
            row = row.with_ratio(
                &format!("{} peak", allocator.name),
                measured.as_ref().map(|m| m.peak),
            );
        }
        for (allocator, measured) in ALLOCATORS.iter().zip(peers) {
            row = row.with_ratio(
                &format!("{} final", allocator.name),
                measured.as_ref().map(|m| m.end),
            );
        }
        rows.push(row);
    }
    report.table("Resident memory over live bytes", rows);
    let groups = cells
        .iter()
        .map(|cell| cell.workload.name.to_owned())
        .collect();
    let mut bars = vec![("duramen".to_owned(), Vec::new())];
    bars.extend(
        ALLOCATORS
            .iter()
            .map(|allocator| (allocator.name.to_owned(), Vec::new())),
    );
    for Cell {
        duramen: tight,
        peers,
        ..
    } in cells
    {
        let peak = |measured: Option<&Measured>| measured.map_or(f64::NAN, |m| m.peak);
        bars[0].1.push(peak(tight.measured.as_ref()));
        for (bar, measured) in bars[1..].iter_mut().zip(peers) {
            bar.1.push(peak(measured.as_ref()));
        }
    }
    report.plot(
        "",
        &Chart::bars(
            "Peak memory per live byte (1 is ideal)",
            "peak RSS / live bytes",
            groups,
            bars,
        ),
    );
}

/// "After deleting 90 %, RSS ≤ 1.3x live within 10 s."
fn add_shrink(report: &mut Report, args: &MemoryFigure, options: &Options) -> Result<()> {
    let mut rows = Vec::new();
    for workload in Workload::shrinking() {
        let live_bytes = live_bytes(args, options, &workload);
        let budget_bytes = (workload.least_bytes_per_live_byte() * 1.15 * live_bytes as f64) as u64;
        let ours = child(
            &CellArgs::duramen(&workload, live_bytes, budget_bytes),
            None,
        )?;
        progress!("{} duramen: {ours:?}", workload.name);
        let target = format!(
            "{}: after deleting 90 %, RSS / live within 10 s ≤ 1.3",
            workload.name
        );
        let reached = if ours.completed {
            ours.end
        } else {
            f64::INFINITY
        };
        report.target(target, reached, Bound::AtMost(1.3));
        let mut row = Row::new()
            .with("workload", workload.name)
            .with("sizes", workload.describe())
            .number("duramen", reached, 3)
            .number("seconds until 1.3", ours.settled_seconds, 2)
            .number(
                "index bytes per object then",
                ours.index_bytes_per_object,
                3,
            );
        for allocator in &ALLOCATORS {
            let measured = with_allocator(allocator, &workload, live_bytes)?;
            row = row.with_ratio(allocator.name, measured.map(|m| m.end));
        }
        rows.push(row);
    }
    report.table(
        "RSS over live bytes within 10 s after deleting 90 % at random",
        rows,
    );
    Ok(())
}

impl Row {
    /// A ratio, or SKIPPED without a measurement.
    fn with_ratio(self, column: &str, ratio: Option<f64>) -> Row {
        match ratio {
            Some(ratio) => self.number(column, ratio, 3),
            None => self.with(column, "SKIPPED"),
        }
    }
}
