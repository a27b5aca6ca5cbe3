//! The two text formats of metrics, the choice between them for a scraper, and the encoders of
//! single values.
//!
//! Metrics are encoded as OpenMetrics. The older format of Prometheus is derived from that, line by
//! line: it has no end mark and no units, and a counter's description uses the name of its samples.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt::{self, Write as _};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `text/plain; version=0.0.4`, which every scraper and linter reads.
    Prometheus,
    OpenMetrics,
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

impl Format {
    /// The format for a request with this `Accept` header: OpenMetrics if the header names it with
    /// at least the quality of plain text.
    pub(super) fn wanted(accept: &str) -> Format {
        let (mut open, mut plain) = (0.0, 0.0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut version) = (1.0, None);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                match name.trim().to_ascii_lowercase().as_str() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => version = Some(value.trim().trim_matches('"')),
                    _ => {}
                }
            }
            let known = version.is_none_or(|version| version == "1.0.0" || version == "0.0.1");
            match kind.as_str() {
                "application/openmetrics-text" if known => open = f64::max(open, quality),
                "text/plain" => plain = f64::max(plain, quality),
                _ => {}
            }
        }
        match open > 0.0 && open >= plain {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Converts OpenMetrics text to the older format.
pub(super) fn as_prometheus(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut help = "";
    // Writing to a String cannot fail.
    for line in open.lines() {
        if let Some(described) = line.strip_prefix("# HELP ") {
            // The name in the older format depends on the type, which comes next.
            help = described.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').unwrap_or((described, "unknown"));
            let (ending, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            let _ = writeln!(text, "# HELP {name}{ending} {help}");
            let _ = writeln!(text, "# TYPE {name}{ending} {kind}");
        } else if !line.starts_with('#') {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every scraper once got OpenMetrics, independent of its request: agents that read the older
    /// format found counters without help texts.
    #[test]
    fn a_scraper_gets_what_it_asks_for() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for accept in [
            prometheus,
            "application/openmetrics-text",
            "application/openmetrics-text; version=\"1.0.0\"; charset=utf-8",
            "Application/OpenMetrics-Text; Q=0.5, text/plain; q=0.5",
        ] {
            assert_eq!(Format::wanted(accept), Format::OpenMetrics, "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/plain; version=0.0.4",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;version=9.0.0,*/*",
            "application/openmetrics-text;q=0.4,text/plain;q=0.5",
            "application/openmetrics-text;q=x",
            ";;,=,;q=",
        ] {
            assert_eq!(Format::wanted(accept), Format::Prometheus, "{accept}");
        }
    }

    #[test]
    fn the_older_format_names_counters_by_their_samples() {
        let open = "# HELP a_bytes Bytes.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{x=\"1\"} 2\n\
                    # HELP b What it is.\n# TYPE b gauge\nb 1.5\n# HELP c C.\n# TYPE c info\nc_info{v=\"1\"} 1\n# EOF\n";
        assert_eq!(
            as_prometheus(open),
            "# HELP a_bytes_total Bytes.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"1\"} 2\n\
             # HELP b What it is.\n# TYPE b gauge\nb 1.5\n# HELP c_info C.\n# TYPE c_info gauge\nc_info{v=\"1\"} 1\n"
        );
    }
}
