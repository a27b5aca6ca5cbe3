//! Time without data after a restart of a program [Badam11 §5.5]: a checkpoint's metadata are read,
//! the data are not.

use super::FlashArgs;
use super::tool::{Bench, arguments, data_bytes};
use crate::harness::{Bound, Doing, Failure, Report, Result, Row};
use duramen_base::units::MIB;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Runs the part.
pub fn run(args: &FlashArgs, bench: &Bench) -> Result<Report> {
    let about = "HashCache's index makes a checkpoint and ends; another process restores it, with nothing of the checkpoint in the page cache. The \
        device's own bandwidth is that of direct reads of the same file, 1 MiB at a time.";
    let title = "Flash as memory: restart from a checkpoint";
    let mut report = Report::new("flash-restart", title, about, &args.options);
    let data = data_bytes(args) * 2;
    let ram = (data / 8).max(8 * MIB);
    let checkpoint = bench.scratch.path().join("checkpoint");
    let path = checkpoint.display().to_string();
    let mut first = arguments(&[("sets", data / 128), ("fill", 1), ("operations", 1000)]);
    first.extend(["--checkpoint".to_owned(), path.clone()]);
    bench.clear();
    let written = bench.run("hashcache", "opp", ram, &first)?;
    let mut second = arguments(&[("operations", 1000), ("flash-mb", flash_mb(bench)?)]);
    second.extend(["--restore".to_owned(), path]);
    let (mut seconds, mut device) = (Vec::new(), Vec::new());
    let bytes = checkpoint.metadata().doing("the checkpoint")?.len();
    for _ in 0..args.options.rounds() {
        forget(&checkpoint)?;
        device.push(read_direct(&checkpoint)?);
        forget(&checkpoint)?;
        let runs = bench.run("hashcache", "opp", ram, &second)?;
        seconds.extend(runs.iter().map(|run| run.number("restore_seconds")));
    }
    let (seconds, device) = (
        crate::harness::median(&seconds),
        crate::harness::median(&device),
    );
    let rate = bytes as f64 / seconds;
    report.target(
        "restart: of the device's sequential read bandwidth over the checkpoint's bytes ≥ 0.7",
        rate * device / bytes as f64,
        Bound::AtLeast(0.7),
    );
    let checkpoint_seconds = written
        .first()
        .map_or(f64::NAN, |run| run.number("checkpoint_seconds"));
    report.table(
        "Restart",
        vec![
            Row::new()
                .with("data MB", data / MIB)
                .number("checkpoint MB", bytes as f64 / MIB as f64, 3)
                .number("made in ms", 1e3 * checkpoint_seconds, 3)
                .number("restored in ms", 1e3 * seconds, 3)
                .number("MB/s", rate / 1e6, 3)
                .number("direct reads in ms", 1e3 * device, 3),
        ],
    );
    Ok(report)
}

/// The length of the flash file, which a restore keeps.
fn flash_mb(bench: &Bench) -> Result<u64> {
    Ok(bench.flash().metadata().doing("the flash file")?.len() / MIB)
}

/// Drops a file from the page cache.
fn forget(file: &Path) -> Result<()> {
    let of = format!("of={}", file.display());
    dd(&[&of, "oflag=nocache", "conv=notrunc,fdatasync", "count=0"])
}

/// Seconds to read the file past the page cache.
fn read_direct(file: &Path) -> Result<f64> {
    let from = format!("if={}", file.display());
    let begun = Instant::now();
    dd(&[&from, "of=/dev/null", "iflag=direct", "bs=1M"])?;
    Ok(begun.elapsed().as_secs_f64())
}

fn dd(arguments: &[&str]) -> Result<()> {
    let output = Command::new("dd").args(arguments).output().doing("dd")?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new("dd", String::from_utf8_lossy(&output.stderr)))
}
