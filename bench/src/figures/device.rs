//! Random reads of the device by the number of them at once: by io_uring and by a pool of threads,
//! as the flash tier and the SSD heap read it. Badam11 §4, Figure 2.

use crate::figure::Figure;
use crate::harness::{
    Bound, Chart, Contender, Doing, Failure, Options, Random, Report, Result, Row, Scale, Series,
    alternate, fresh_seed, progress,
};
use crate::servers::Scratch;
use duramen_base::units::MIB;
use duramen_disk::{Aligned, Device, FileDevice, SpanReader};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of a write that fills the file.
const FILL_BYTES: usize = MIB as usize;

/// Random reads of the device by the number of them at once
#[derive(Clone, Debug, clap::Args)]
pub(super) struct DeviceFigure {
    /// Parent of the file: on the device to be measured
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Megabytes of the file [default: 8192; 1024 with --quick]
    #[arg(long, value_name = "MB")]
    pub file: Option<u64>,
    /// Numbers of reads at once
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64")]
    pub at_once: Vec<u32>,
    /// Bytes of a read
    #[arg(long, value_delimiter = ',', default_value = "512,4096")]
    pub bytes: Vec<usize>,
}

impl Figure for DeviceFigure {
    const NAME: &'static str = "device";

    fn run(&self, options: &Options) -> Result<Vec<Report>> {
        Ok(vec![report(self, options)?])
    }
}

fn report(args: &DeviceFigure, options: &Options) -> Result<Report> {
    let about = "One thread reads at random from a file that was written whole, past the page cache; so many reads are in flight all the time. `io_uring`: the kernel's queue; \
        `threads`: a pool of threads, as where the kernel has no io_uring. Both are the readers of the flash tier.";
    let mut report = Report::new("device", "Reads at once", about, options);
    report.level = "none is measured".to_owned();
    let dir = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = Scratch::new(&dir).doing(format!("making a directory in {}", dir.display()))?;
    let file_bytes = args.file.unwrap_or(options.size(8192, 1024)) * MIB;
    let device = filled(&scratch, file_bytes)?;
    let shortest = args.bytes.iter().copied().min().unwrap_or(0);
    if shortest < device.alignment() {
        report.note(format!(
            "The device reads {} bytes at least: shorter reads are widened.",
            device.alignment()
        ));
    }
    let time = Duration::from_millis(options.size(2000, 300));
    let (mut rows, mut lines) = (Vec::new(), Vec::new());
    let mut gain = f64::NAN;
    for &bytes in &args.bytes {
        let mut points = (Vec::new(), Vec::new());
        for &at_once in &args.at_once {
            let case = |ring| Case {
                bytes,
                at_once,
                ring,
                time,
            };
            let medians = alternate(
                options.rounds(),
                &mut [
                    Contender::new("io_uring", || rate(&device, case(true))),
                    Contender::new("threads", || rate(&device, case(false))),
                ],
            )?;
            progress!("{bytes} B, {at_once} at once: {medians:?}");
            points.0.push((f64::from(at_once), medians[0]));
            points.1.push((f64::from(at_once), medians[1]));
            let alone = points.0[0].1;
            gain = medians[0] / alone;
            rows.push(
                Row::new()
                    .with("read bytes", bytes)
                    .with("at once", at_once)
                    .number("io_uring, reads/s", medians[0], 3)
                    .number("MB/s", medians[0] * bytes as f64 / 1e6, 3)
                    .number("times one", gain, 3)
                    .number("threads, reads/s", medians[1], 3)
                    .number("io_uring / threads", medians[0] / medians[1], 3),
            );
        }
        for (name, points) in [("io_uring", points.0), ("threads", points.1)] {
            lines.push(Series {
                name: format!("{name}, {bytes} B"),
                points,
            });
        }
    }
    report.target(
        "longest reads, most at once / one ≥ 4",
        gain,
        Bound::AtLeast(4.0),
    );
    let chart = Chart::lines("Random reads", "reads at once", "reads per second", lines);
    report.plot("", &chart.scales(Scale::Log, Scale::Linear));
    report.table("Random reads by number at once (Figure 2)", rows);
    report.note(format!("A file of {} MiB.", file_bytes / MIB));
    Ok(report)
}

fn failed(doing: &'static str) -> impl Fn(duramen_disk::Error) -> Failure {
    move |error| Failure::new(doing, error.to_string())
}

/// A file of the device, all of it written.
fn filled(scratch: &Scratch, bytes: u64) -> Result<Arc<dyn Device>> {
    let path = scratch.path().join("device");
    let device = FileDevice::open(&path, bytes).map_err(failed("making the file"))?;
    if !device.is_past_cache() {
        let why = "reads would come from the page cache; name another with --dir";
        return Err(Failure::new(format!("opening {}", path.display()), why));
    }
    // Not zeros: a device may keep those without storing them.
    let mut random = Random::new(2);
    let mut block = Aligned::zeroed(FILL_BYTES);
    let bytes_of_block = block.bytes_mut().iter_mut();
    bytes_of_block.for_each(|byte| *byte = random.below(256) as u8);
    let blocks = bytes / FILL_BYTES as u64;
    (0..blocks)
        .try_for_each(|n| device.write_at(n * FILL_BYTES as u64, block.bytes()))
        .and_then(|()| device.sync())
        .doing("filling the file")?;
    Ok(Arc::new(device))
}

#[derive(Clone, Copy)]
struct Case {
    bytes: usize,
    at_once: u32,
    ring: bool,
    time: Duration,
}

/// Reads per second.
fn rate(device: &Arc<dyn Device>, case: Case) -> Result<f64> {
    let reader = SpanReader::new(Arc::clone(device), case.at_once, case.ring);
    let mut reader = reader.map_err(failed("making a reader"))?;
    if case.ring != reader.is_ring() {
        return Ok(f64::NAN); // the kernel has no io_uring
    }
    let places = device.bytes() / case.bytes as u64;
    let mut random = Random::new(fresh_seed());
    let (mut done, mut fault) = (0u64, None);
    let begun = Instant::now();
    while begun.elapsed() < case.time || reader.under_way() > 0 {
        while begun.elapsed() < case.time
            && reader.submit(random.below(places) * case.bytes as u64, case.bytes, 0)
        {}
        reader.start().map_err(failed("starting reads"))?;
        reader.wait().map_err(failed("waiting for reads"))?;
        reader.poll(|span| match span.result {
            Ok(read) => {
                assert_eq!(read.len(), case.bytes);
                done += 1;
            }
            Err(error) => fault = Some(error),
        });
        if let Some(error) = fault.take() {
            return Err(Failure::new("reading", error));
        }
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_tiny_run_has_every_row() {
        let args = DeviceFigure {
            // The temporary directory may be in memory, where nothing is past the page cache.
            dir: Some(std::env::current_dir().unwrap().join("target")),
            file: Some(8),
            at_once: vec![1, 4],
            bytes: vec![4096],
        };
        std::fs::create_dir_all(args.dir.as_ref().unwrap()).unwrap();
        let mut options = Options::for_tests();
        options.rounds = Some(1);
        let report = report(&args, &options).unwrap();
        assert_eq!(report.tables[0].rows.len(), 2);
        for row in &report.tables[0].rows {
            let rate = row.get("threads, reads/s").and_then(Value::as_f64);
            assert!(rate.is_some_and(|rate| rate > 0.0), "{row:?}");
        }
    }
}
