//! The metrics page, made from the counters at each scrape: nothing is stored for it.

use super::exposition::{Format, as_prometheus};
use super::process_metrics;
use crate::exec::commands_since_start;
use crate::shared::{Family, Histogram, Membership, Shared, ThreadCounters};
use crate::tier::FIGURES;
use duramen::{DiskState, DurabilityStats};
use duramen_engine::Stats;
use duramen_engine::flash::FlashStats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

/// The page.
pub(super) fn text(shared: &Arc<Shared>, format: Format) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry
        .sub_registry_with_prefix("duramen")
        .register_collector(Box::new(Page(Arc::clone(shared))));
    registry.register_collector(Box::new(process_metrics::Figures));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    match format {
        Format::OpenMetrics => Ok(text),
        Format::Prometheus => Ok(as_prometheus(&text)),
    }
}

struct Page(Arc<Shared>);

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

type PerThread = (&'static str, &'static str, fn(&ThreadCounters) -> u64);
type PerStore<N> = (&'static str, &'static str, fn(&Stats) -> N);

/// Counters of reactor threads, one series per thread.
const THREAD_COUNTERS: &[PerThread] = &[
    ("commands", "Requests that ran, errors included.", |c| {
        c.commands.get()
    }),
    ("batches", "Batches that the requests ran in.", |c| {
        c.batches.get()
    }),
    ("command_errors", "Requests answered with an error.", |c| {
        c.errors.get()
    }),
    ("keyspace_hits", "Reads that found their key.", |c| {
        c.keyspace_hits.get()
    }),
    (
        "keyspace_misses",
        "Reads that did not find their key.",
        |c| c.keyspace_misses.get(),
    ),
    (
        "network_received_bytes",
        "Bytes received from clients.",
        |c| c.net_input_bytes.get(),
    ),
    ("network_sent_bytes", "Bytes sent to clients.", |c| {
        c.net_output_bytes.get()
    }),
    ("connections_accepted", "Connections accepted.", |c| {
        c.connections_accepted.get()
    }),
    (
        "connections_rejected",
        "Connections turned away: maxclients, or no file descriptors.",
        |c| c.connections_rejected.get(),
    ),
    (
        "protocol_errors",
        "Connections closed because what they sent is not RESP.",
        |c| c.protocol_errors.get(),
    ),
    (
        "connections_idle_closed",
        "Connections closed by `timeout`.",
        |c| c.idle_closed.get(),
    ),
    (
        "connections_output_closed",
        "Connections closed by `output-limit` or `output-stall`.",
        |c| c.output_closed.get(),
    ),
    (
        "replies_given_up",
        "Replies that became errors because backups did not acknowledge for `reply-timeout`.",
        |c| c.replies_given_up.get(),
    ),
    (
        "reactor_rounds",
        "Rounds of the event loop that found work.",
        |c| c.rounds.get(),
    ),
    (
        "reactor_sleeps",
        "Times a reactor thread slept in the kernel.",
        |c| c.sleeps.get(),
    ),
];

const STORE_COUNTERS: &[PerStore<u64>] = &[
    (
        "appended_bytes",
        "Key and value bytes appended by writers.",
        |s| s.appended_bytes,
    ),
    (
        "entries_expired",
        "Objects removed because their time was over.",
        |s| s.entries_expired,
    ),
    ("entries_evicted", "Objects evicted in cache mode.", |s| {
        s.entries_evicted
    }),
    (
        "writer_stalls",
        "Times a writer had to clean or to wait for memory.",
        |s| s.writer_stalls,
    ),
    ("cleaner_passes", "Passes of the cleaner.", |s| {
        s.cleaner.passes
    }),
    ("cleaner_compactions", "Segments compacted.", |s| {
        s.cleaner.compactions
    }),
    ("cleaner_segments_cleaned", "Segments cleaned.", |s| {
        s.cleaner.segments_cleaned
    }),
    (
        "cleaner_scanned_bytes",
        "Bytes the cleaner looked at.",
        |s| s.cleaner.bytes_scanned,
    ),
    (
        "cleaner_relocated_bytes",
        "Live bytes the cleaner moved.",
        |s| s.cleaner.bytes_relocated,
    ),
    ("cleaner_freed_bytes", "Bytes the cleaner gave back.", |s| {
        s.cleaner.bytes_freed
    }),
];

const STORE_GAUGES: &[PerStore<f64>] = &[
    ("objects", "Objects in all tables.", |s| s.objects as f64),
    (
        "live_bytes",
        "Bytes of live entries, headers and alignment included.",
        |s| s.live_bytes as f64,
    ),
    (
        "segment_budget_bytes",
        "Bytes of segments that may hold data.",
        |s| s.segment_budget_bytes as f64,
    ),
    (
        "utilization_ratio",
        "Live bytes of the segment budget, 0 to 1.",
        |s| s.utilization,
    ),
    (
        "committed_bytes",
        "Bytes of the budget that are backed by memory.",
        |s| s.committed_bytes as f64,
    ),
    ("index_bytes", "Bytes of the index.", |s| {
        s.index_bytes as f64
    }),
    ("segments_open", "Segments that are written to.", |s| {
        s.segments_open as f64
    }),
    ("segments_closed", "Segments that are full.", |s| {
        s.segments_closed as f64
    }),
    ("segments_free", "Segments ready for use.", |s| {
        s.segments_free as f64
    }),
    (
        "page_bytes",
        "Size of the pages that the kernel gave.",
        |s| s.page_bytes as f64,
    ),
];

type OfDurability<N> = (&'static str, &'static str, fn(&DurabilityStats) -> N);

const DURABILITY_COUNTERS: &[OfDurability<u64>] = &[
    ("commits", "Groups of writes given to the disk.", |s| {
        s.commits
    }),
    (
        "syncs",
        "Times the disk was asked to make writes stable.",
        |s| s.syncs,
    ),
    (
        "wal_written_bytes",
        "Bytes written to the write-ahead log.",
        |s| s.wal_written_bytes,
    ),
    ("frame_written_bytes", "Bytes written to frames.", |s| {
        s.frame_written_bytes
    }),
    (
        "log_appended_bytes",
        "Bytes appended to the durable log.",
        |s| s.appended_bytes,
    ),
    (
        "scrubbed_frames",
        "Frames that were read and verified.",
        |s| s.scrubbed_frames,
    ),
    ("bad_frames", "Frames found damaged.", |s| s.bad_frames),
    (
        "scrub_repaired",
        "Damaged frames of which the data lies elsewhere by now.",
        |s| s.scrub_repaired,
    ),
];

const DURABILITY_GAUGES: &[OfDurability<f64>] = &[
    (
        "disk_ok",
        "1 while the disk takes writes, 0 if it is full or has failed.",
        |s| f64::from(u8::from(s.disk == DiskState::Ok)),
    ),
    (
        "undurable_bytes",
        "Appended, and not on stable storage yet.",
        |s| s.undurable_bytes as f64,
    ),
    ("wal_bytes", "Size of the write-ahead log.", |s| {
        s.wal_bytes as f64
    }),
    ("wal_used_bytes", "Bytes of it that are in use.", |s| {
        s.wal_used_bytes as f64
    }),
    ("frames", "Places for segments on disk.", |s| {
        s.frames as f64
    }),
    ("frames_used", "Places that hold a segment.", |s| {
        s.frames_used as f64
    }),
    (
        "scrub_pending",
        "Damaged frames that are not repaired yet: a restart would refuse the data.",
        |s| s.scrub_pending as f64,
    ),
    (
        "scrub_lost",
        "Those of them that cannot be repaired.",
        |s| s.scrub_lost as f64,
    ),
    (
        "quarantined_frames",
        "Frames that are not used any more in this run.",
        |s| s.quarantined_frames as f64,
    ),
    (
        "sync_p50_seconds",
        "Time a sync takes: median of the last ones.",
        |s| s.sync.p50.as_secs_f64(),
    ),
    (
        "sync_p99_seconds",
        "Time a sync takes: 99 of 100 of the last ones took less.",
        |s| s.sync.p99.as_secs_f64(),
    ),
    (
        "load_seconds",
        "Time the last loading of the data took.",
        |s| s.load_duration.as_secs_f64(),
    ),
];

/// Metrics that only a member of a cluster has.
fn member_metrics(
    encoder: &mut DescriptorEncoder<'_>,
    shared: &Shared,
    member: &Membership,
) -> fmt::Result {
    let (status, view) = (member.status(), member.view());
    let replayed = status.recoveries.iter().map(|part| part.bytes);
    let flag = |is: bool| f64::from(u8::from(is));
    for (name, help, value) in [
        (
            "cluster_servers_up",
            "Servers of the cluster that are up, as this member knows it.",
            status.servers_up as f64,
        ),
        (
            "cluster_servers_crashed",
            "Servers that have crashed and are not recovered yet.",
            status.servers_crashed as f64,
        ),
        (
            "cluster_enough_backups",
            "1 while there are enough others for all replicas, else 0: then writes wait.",
            flag(status.enough_backups),
        ),
        (
            "cluster_segments_sharing_rack",
            "Segments of this member's log of which two copies lie in one rack: its loss may take them.",
            status.segments_sharing_rack as f64,
        ),
        (
            "cluster_backup_full",
            "1 while this member's disk has no room for what other members write, else 0: they wait.",
            flag(status.backup_full),
        ),
        (
            "cluster_replies_held_seconds",
            "How long the oldest reply has waited for the backups or the lease; 0: none waits.",
            shared.replies_held_ms() as f64 / 1000.0,
        ),
        (
            "cluster_may_reply",
            "1 while this member holds its leases, else 0.",
            flag(member.may_reply()),
        ),
        (
            "cluster_tablets_served",
            "Tablets that this member serves.",
            view.served().iter().len() as f64,
        ),
        (
            "cluster_list_version",
            "Version of the server list.",
            status.list_version.0 as f64,
        ),
        (
            "cluster_map_version",
            "Version of the tablet map.",
            view.map_version().0 as f64,
        ),
        (
            "cluster_recoveries",
            "Partitions of crashed servers that are replayed here.",
            status.recoveries.len() as f64,
        ),
        (
            "cluster_recovery_bytes",
            "Bytes that they have replayed so far.",
            replayed.sum::<u64>() as f64,
        ),
        (
            "cluster_offences",
            "Hellos and frames on the native port that were refused or made no sense.",
            status.offences as f64,
        ),
        (
            "cluster_slowest_round_seconds",
            "Longest round of the thread that answers pings.",
            status.slowest_round_us as f64 / 1e6,
        ),
    ] {
        gauge(encoder, name, help, value)?;
    }
    Ok(())
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shared = &*self.0;
        for (name, help, of) in THREAD_COUNTERS {
            per_thread(&mut encoder, name, help, shared, |c| of(c) as f64)?;
        }
        per_thread(
            &mut encoder,
            "reactor_spin_seconds",
            "Time spent looking for work before sleeping.",
            shared,
            |c| c.spin_ns.get() as f64 / 1e9,
        )?;
        gauge(
            &mut encoder,
            "loading",
            "1 while the data is being loaded, else 0.",
            f64::from(u8::from(shared.data().is_none())),
        )?;
        if let Some(store) = shared.data() {
            store_metrics(&mut encoder, &store.stats())?;
            if shared.tier().is_some() {
                flash_metrics(&mut encoder, &shared.flash_stats(store))?;
            }
        }
        if let Some(durability) = shared.durability() {
            durability_metrics(&mut encoder, &durability.stats())?;
        }
        if let Some(member) = shared.membership() {
            member_metrics(&mut encoder, shared, member)?;
        }
        let config = shared.config();
        for (name, help, value) in [
            (
                "connected_clients",
                "Clients connected.",
                shared.connected_clients() as f64,
            ),
            (
                "maxclients",
                "Clients that may be connected.",
                config.maxclients as f64,
            ),
            (
                "memory_budget_bytes",
                "The setting `memory`.",
                config.memory_bytes as f64,
            ),
            (
                "reactor_threads",
                "Reactor threads.",
                shared.threads.len() as f64,
            ),
            (
                "uptime_seconds",
                "Time since start.",
                shared.started.elapsed().as_secs_f64(),
            ),
        ] {
            gauge(&mut encoder, name, help, value)?;
        }
        build_info(&mut encoder)?;
        latency(&mut encoder, shared)
    }
}

fn store_metrics(encoder: &mut DescriptorEncoder<'_>, stats: &Stats) -> fmt::Result {
    for (name, help, of) in STORE_COUNTERS {
        counter(encoder, name, help, of(stats) as f64)?;
    }
    let seconds = |ns: u64| ns as f64 / 1e9;
    counter(
        encoder,
        "writer_stall_seconds",
        "Time writers spent cleaning or waiting for memory.",
        seconds(stats.writer_stall_ns),
    )?;
    counter(
        encoder,
        "cleaner_busy_seconds",
        "Time the cleaner worked, all its threads together.",
        seconds(stats.cleaner.busy_ns),
    )?;
    for (name, help, of) in STORE_GAUGES {
        gauge(encoder, name, help, of(stats))?;
    }
    Ok(())
}

/// Metrics that only a server with a second tier has.
fn flash_metrics(encoder: &mut DescriptorEncoder<'_>, stats: &FlashStats) -> fmt::Result {
    for (name, help, grows, of) in FIGURES {
        let (name, value) = (format!("flash_{name}"), of(stats) as f64);
        match grows {
            true => counter(encoder, &name, help, value)?,
            false => gauge(encoder, &name, help, value)?,
        }
    }
    Ok(())
}

fn durability_metrics(encoder: &mut DescriptorEncoder<'_>, stats: &DurabilityStats) -> fmt::Result {
    for (name, help, of) in DURABILITY_COUNTERS {
        counter(encoder, name, help, of(stats) as f64)?;
    }
    for (name, help, of) in DURABILITY_GAUGES {
        gauge(encoder, name, help, of(stats))?;
    }
    Ok(())
}

/// A gauge of value 1 whose labels identify this program.
fn build_info(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let help = "1; the labels say which program this is.";
    let mut family = encoder.encode_descriptor("build_info", help, None, MetricType::Gauge)?;
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("os", std::env::consts::OS),
        ("arch", std::env::consts::ARCH),
    ];
    ConstGauge::new(1.0).encode(family.encode_family(&labels)?)
}

pub(super) fn counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: f64,
) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(value).encode(metric)
}

pub(super) fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: f64,
) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    ConstGauge::new(value).encode(metric)
}

fn per_thread(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    shared: &Shared,
    of: impl Fn(&ThreadCounters) -> f64,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (number, thread) in shared.threads.iter().enumerate() {
        let labels = [("thread", number.to_string())];
        ConstCounter::new(of(&thread.counters)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Latency by family of commands, summed over threads and commands.
fn latency(encoder: &mut DescriptorEncoder<'_>, shared: &Shared) -> fmt::Result {
    let mut family = encoder.encode_descriptor(
        "command_duration_seconds",
        "Time that requests took, from parsed to answered, by family of commands.",
        None,
        MetricType::Histogram,
    )?;
    let called: Vec<_> = commands_since_start(shared).collect();
    for commands in Family::ALL {
        let (mut ns, mut counts) = (0, vec![0; Histogram::BUCKETS]);
        for (spec, totals) in &called {
            if spec.family == commands {
                ns += totals.ns;
                counts
                    .iter_mut()
                    .zip(&totals.times)
                    .for_each(|(sum, n)| *sum += n);
            }
        }
        let labels = [("family", commands.name())];
        family
            .encode_family(&labels)?
            .encode_histogram::<NoLabelSet>(
                ns as f64 / 1e9,
                counts.iter().sum(),
                &buckets(&counts),
                None,
            )?;
    }
    Ok(())
}

/// Shortest and longest bucket that the page shows, in nanoseconds. Shorter times count in the
/// first bucket, longer ones in infinity.
const SHOWN_NS: std::ops::RangeInclusive<u64> = 256..=1 << 33;

/// One bucket per power of two: a quarter of the resolution, and of the number of series.
fn buckets(counts: &[u64]) -> Vec<(f64, u64)> {
    let mut buckets = Vec::new();
    let mut sum = 0;
    for (bucket, count) in counts.iter().enumerate() {
        sum += count;
        let end_ns = Histogram::bucket_end_ns(bucket);
        if end_ns.is_power_of_two() && SHOWN_NS.contains(&end_ns) {
            buckets.push((end_ns as f64 / 1e9, std::mem::take(&mut sum)));
        }
    }
    // The encoder writes `+Inf` for this bound.
    buckets.push((f64::MAX, sum));
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_lose_no_count() {
        let histogram = Histogram::default();
        for ns in [0, 3, 100, 256, 257, 1_000_000, 1 << 39, u64::MAX] {
            histogram.record(ns, 2);
        }
        let buckets = buckets(&histogram.counts());
        assert_eq!(buckets.iter().map(|(_, count)| count).sum::<u64>(), 16);
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!(buckets[0], (256e-9, 6));
    }
}
