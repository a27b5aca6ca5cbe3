//! Whether randomized placement keeps the slowest disk near the average one (Figure 17): 120 disks,
//! 12 GB, 120 recoveries each.
//!
//! The placement is the shipped code; a recovery takes as long as the slowest disk needs to read
//! its primaries.

use super::costs::SEGMENT_BYTES;
use super::machine::{SECOND, ns};
use crate::harness::{Bound, Options, Random, Report, Row};
use duramen_base::ids::SegmentId;
use duramen_cluster::placement::{Layout, Member, Placement};
use duramen_cluster::replication::BackupId;
use std::collections::BTreeSet;

const DISKS: usize = 120;
const DEAD_BYTES: u64 = 12_000_000_000;
/// The rate of all of the paper's disks together, so that the best time is a second.
const ALL_DISKS_PER_SECOND: f64 = 12e9;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The shipped one: of five candidates the one that would finish first.
    ReadTime,
    /// The same, with all disks counted as alike.
    Counts,
    Random,
}

const WAYS: [(Way, &str); 3] = [
    (Way::ReadTime, "by read time"),
    (Way::Counts, "by count"),
    (Way::Random, "random"),
];

/// Runs the part.
pub(super) fn run(options: &Options, report: &mut Report) {
    let trials = options.size(120, 30);
    let mut rows = Vec::new();
    for (disks, spread) in [("much alike", 1.2), ("half of them up to 4x slower", 4.0)] {
        let mut means = Vec::new();
        for (way, name) in WAYS {
            let mut seconds: Vec<f64> = (0..trials).map(|seed| trial(way, spread, seed)).collect();
            seconds.sort_by(f64::total_cmp);
            let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
            means.push(mean);
            let at = |part: f64| seconds[((seconds.len() - 1) as f64 * part) as usize];
            rows.push(
                Row::new()
                    .with("disks", disks)
                    .with("placement", name)
                    .number("mean / best possible", mean, 3)
                    .number("median", at(0.5), 3)
                    .number("p90", at(0.9), 3)
                    .number("worst", at(1.0), 3),
            );
        }
        if let [by_time, by_count, random] = means[..] {
            report.target(
                format!("disks {disks}: random / by read time ≥ 1.33"),
                random / by_time,
                Bound::AtLeast(1.33),
            );
            let least = if spread < 2.0 { 1.0 } else { 1.12 };
            report.target(
                format!("disks {disks}: by count / by read time ≥ {least}"),
                by_count / by_time,
                Bound::AtLeast(least),
            );
        }
    }
    report.table("Placement of replicas and recovery time (Figure 17)", rows);
}

/// Time of a recovery over the best possible one.
fn trial(way: Way, spread: f64, seed: u64) -> f64 {
    let mut rng = Random::new(seed + 1);
    let mut unit = || rng.below(1 << 20) as f64 / f64::from(1 << 20);
    // Relative to the fastest; half of them are slow where disks differ much.
    let slowness: Vec<f64> = (0..DISKS)
        .map(|disk| {
            let slow = spread < 2.0 || disk % 2 == 0;
            if slow {
                1.0 + unit() * (spread - 1.0)
            } else {
                1.0 + unit() * 0.1
            }
        })
        .collect();
    let speeds: f64 = slowness.iter().map(|slow| 1.0 / slow).sum();
    let fastest = ALL_DISKS_PER_SECOND / speeds;
    let read_s = |disk: usize| SEGMENT_BYTES as f64 * slowness[disk] / fastest;
    let mut placement = Placement::new(Layout::Scatter, 3, seed);
    for disk in 0..DISKS {
        placement.add(Member {
            read_us: match way {
                Way::ReadTime => (read_s(disk) * 1e6) as u32,
                _ => 1000,
            },
            ..Member::from(BackupId(1 << 32 | disk as u64))
        });
    }
    let mut segments = [0u64; DISKS];
    for _ in 0..DEAD_BYTES / SEGMENT_BYTES {
        let disk = match way {
            Way::Random => rng.below(DISKS as u64) as usize,
            _ => {
                let chosen = placement.choose(SegmentId::NONE, &[], &BTreeSet::new());
                chosen.map_or(0, |backup| backup.slot() as usize)
            }
        };
        segments[disk] += 1;
    }
    let times = segments.iter().enumerate();
    let slowest = times
        .map(|(disk, count)| *count as f64 * read_s(disk))
        .fold(0.0, f64::max);
    let best = ns(DEAD_BYTES, ALL_DISKS_PER_SECOND) as f64 / SECOND as f64;
    slowest / best
}
