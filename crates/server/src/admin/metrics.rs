//! The metrics page, made from the counters at each scrape: nothing is stored for it.

use super::exposition::{Format, as_prometheus, counter, gauge};
use super::process_metrics;
use duramen_redis::figures::{Family, Figure, Histogram, THREADS, ThreadCounters};
use duramen_redis::operation::figures::{self, Member};
use duramen_redis::state::Shared;
use duramen_redis::state::flash_stats;
use duramen_redis::table::commands_since_start;
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

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let shared = &*self.0;
        for figure in &THREADS {
            per_thread(&mut encoder, figure, shared)?;
        }
        gauge(
            &mut encoder,
            "loading",
            "1 while the data is being loaded, else 0.",
            f64::from(u8::from(shared.data().is_none())),
        )?;
        if let Some(store) = shared.data() {
            encode_all(&mut encoder, &figures::STORE, &store.stats())?;
            if shared.tier().is_some() {
                encode_all(
                    &mut encoder,
                    &figures::FLASH,
                    &flash_stats(store, &shared.threads),
                )?;
            }
        }
        if let Some(durability) = shared.durability() {
            encode_all(&mut encoder, &figures::DURABILITY, &durability.stats())?;
            encryption(&mut encoder, shared)?;
        }
        if let Some(member) = Member::of(shared) {
            encode_all(&mut encoder, &figures::MEMBER, &member)?;
        }
        encode_all(&mut encoder, &figures::SERVER, shared)?;
        if let Some(certificate) = shared.settings.certificates().certificate() {
            gauge(
                &mut encoder,
                "tls_certificate_left_seconds",
                "Time until the TLS certificate expires; negative: it has expired.",
                certificate.seconds_left() as f64,
            )?;
        }
        build_info(&mut encoder)?;
        latency(&mut encoder, shared)
    }
}

/// The figures of a table that are on the page.
fn encode_all<S>(
    encoder: &mut DescriptorEncoder<'_>,
    table: &[Figure<S>],
    source: &S,
) -> fmt::Result {
    for figure in table.iter().filter(|figure| !figure.metric.is_empty()) {
        let value = (figure.read)(source).as_metric();
        match figure.is_counter {
            true => counter(encoder, figure.metric, figure.help, value)?,
            false => gauge(encoder, figure.metric, figure.help, value)?,
        }
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

/// Whether the disk is encrypted, and with which key.
fn encryption(encoder: &mut DescriptorEncoder<'_>, shared: &Shared) -> fmt::Result {
    let help = "1 if everything on disk is encrypted, else 0; the label is the id of the key.";
    let mut family = encoder.encode_descriptor("encryption", help, None, MetricType::Gauge)?;
    let key = shared.storage.encryption_key();
    let value = f64::from(u8::from(key.is_some()));
    let labels = [("key", key.map_or_else(String::new, |key| key.to_string()))];
    ConstGauge::new(value).encode(family.encode_family(&labels)?)
}

fn per_thread(
    encoder: &mut DescriptorEncoder<'_>,
    figure: &Figure<ThreadCounters>,
    shared: &Shared,
) -> fmt::Result {
    let (name, help) = (figure.metric, figure.help);
    let kind = match figure.is_counter {
        true => MetricType::Counter,
        false => MetricType::Gauge,
    };
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (number, thread) in shared.threads.iter().enumerate() {
        let labels = [("thread", number.to_string())];
        let value = (figure.read)(&thread.counters).as_metric();
        let series = family.encode_family(&labels)?;
        match figure.is_counter {
            true => ConstCounter::new(value).encode(series)?,
            false => ConstGauge::new(value).encode(series)?,
        }
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
