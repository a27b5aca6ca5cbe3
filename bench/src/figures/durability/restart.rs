//! Time from the start of the process until it serves all its data again, with an empty page cache.

use super::disk::{forget_pages, read_rate};
use super::{Level, Programs};
use crate::harness::machine::touch_free_memory;
use crate::harness::{Bound, Options, Report, Result, Row, median, progress};
use crate::servers::client::{ask, info_number};
use crate::servers::{Redis, Scratch, Server};
use duramen_base::units::MIB;
use duramen_load::{Command, Load};
use std::time::{Duration, Instant};

/// One store that is loaded, ended and started again.
struct Case {
    name: &'static str,
    start: fn(&Programs, u64, &Scratch) -> Result<Option<Server>>,
    /// The request before its end.
    before: &'static [&'static str],
}

const CASES: [Case; 4] = [
    Case {
        name: "duramen, killed",
        start: duramen,
        before: &[],
    },
    Case {
        name: "duramen, shut down",
        start: duramen,
        before: &["SHUTDOWN"],
    },
    Case {
        name: "redis, append-only file",
        start: |programs, _, data| programs.redis(Redis::EverySecond, data.path()),
        before: &["SHUTDOWN"],
    },
    Case {
        name: "redis, RDB",
        start: |programs, _, data| programs.redis(Redis::No, data.path()),
        before: &["SHUTDOWN", "SAVE"],
    },
];

fn duramen(programs: &Programs, bytes: u64, data: &Scratch) -> Result<Option<Server>> {
    let memory = (bytes as f64 * 1.6) as u64 + 64 * MIB;
    programs
        .duramen(Level::Synced, memory, data.path())
        .map(Some)
}

/// Runs the part.
pub(super) fn run(
    options: &Options,
    programs: &Programs,
    sizes: &[usize],
    report: &mut Report,
) -> Result<()> {
    for &value_bytes in sizes {
        let bytes = options.size(1024, 64) * MIB;
        let keys = bytes / (value_bytes as u64 + 16);
        let raw_dir = programs.scratch()?;
        let disk = read_rate(raw_dir.path(), options.size(1024, 128) * MIB)?;
        let mut rows = Vec::new();
        let mut seconds = Vec::new();
        for case in &CASES {
            let Some((took, disk_bytes)) = measure(options, programs, case, keys, value_bytes)?
            else {
                continue;
            };
            progress!("restart, {value_bytes} B: {}: {took:.2} s", case.name);
            rows.push(
                Row::new()
                    .with("value bytes", value_bytes)
                    .with("store", case.name)
                    .with("keys", keys)
                    .number("seconds until it serves", took, 3)
                    .number("M keys/s", keys as f64 / took / 1e6, 3)
                    .number("MB of files", disk_bytes as f64 / 1e6, 3)
                    .number(
                        "of the disk's read rate",
                        disk_bytes as f64 / took / disk,
                        3,
                    ),
            );
            seconds.push((case.name, took, disk_bytes));
        }
        let of = |name: &str| {
            let found = seconds.iter().find(|(other, _, _)| *other == name);
            found.map_or((f64::NAN, 0), |(_, took, bytes)| (*took, *bytes))
        };
        let (took, disk_bytes) = of("duramen, killed");
        let by_disk = disk_bytes as f64 / took / disk / 0.7;
        let by_entries = keys as f64 / took / 1e6;
        report.target(
            format!("restart, {value_bytes} B: of 70 % of the disk's rate or of 1 M entries/s, the better ≥ 1"),
            by_disk.max(by_entries),
            Bound::AtLeast(1.0),
        );
        for (name, least) in [("redis, append-only file", 3.0), ("redis, RDB", 1.5)] {
            report.target(
                format!("restart, {value_bytes} B: time of {name} / duramen's ≥ {least}"),
                of(name).0 / took,
                Bound::AtLeast(least),
            );
        }
        report.table(
            &format!(
                "Restart with {} MiB of data, values of {value_bytes} B",
                bytes / MIB
            ),
            rows,
        );
        report.note(format!(
            "Values of {value_bytes} B: the disk reads {:.0} MB/s in sequence in this run, which bounds what `MB of files` takes; before \
             each start, of either server, the system's page cache was dropped, and free memory touched (a hypervisor that takes it back \
             would be measured otherwise).",
            disk / 1e6
        ));
    }
    Ok(())
}

/// Median seconds until the data are served again, and the bytes of the files.
fn measure(
    options: &Options,
    programs: &Programs,
    case: &Case,
    keys: u64,
    value_bytes: usize,
) -> Result<Option<(f64, u64)>> {
    let data = programs.scratch()?;
    let bytes = keys * (value_bytes as u64 + 16);
    let Some(mut server) = (case.start)(programs, bytes, &data)? else {
        return Ok(None);
    };
    let mut load = Load::usual(server.address, Command::Set, 64);
    (load.keys, load.value_bytes) = (keys, value_bytes);
    load.preload(0)?;
    let mut times = Vec::new();
    for _ in 0..options.rounds().min(3) {
        match case.before {
            [] => server.kill(),
            request => {
                // The answer to SHUTDOWN is the end of the connection.
                let _ = ask(server.address, request);
                server.wait_for_end(Duration::from_secs(60))?;
            }
        }
        forget_pages()?;
        touch_free_memory(2 * bytes);
        let begun = Instant::now();
        let Some(again) = (case.start)(programs, bytes, &data)? else {
            return Ok(None);
        };
        server = again;
        while info_number(server.address, "loading")? != Some(0.0) {
            std::thread::sleep(Duration::from_millis(2));
        }
        times.push(begun.elapsed().as_secs_f64());
        let found = ask(server.address, &["DBSIZE"])?.as_integer();
        assert_eq!(found, Some(keys as i64), "{} lost keys", case.name);
    }
    let disk_bytes = data.bytes();
    Ok(Some((median(&times), disk_bytes)))
}
