//! From two readings of a server to the activity between them.
//!
//! Field names are Redis's if Redis has the figure; `duramen_…` ones are Duramen's own and missing
//! on other servers: a missing figure is left out, never shown as 0.

use std::collections::HashMap;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};

use super::latency::{self, Histogram, Latency};
use crate::client::Connection;
use crate::failure::Failure;

/// Figures of a server at one moment.
pub(super) struct Sample {
    at: Instant,
    fields: HashMap<String, String>,
    histograms: HashMap<String, Histogram>,
    /// Round trip of one PING, measured by this client.
    round_trip_us: Option<f64>,
}

/// Sections that Redis returns only on request.
const REQUEST: [&str; 2] = ["INFO", "everything"];

impl Sample {
    /// Requests the figures from the server.
    pub(super) fn take(server: &mut Connection) -> Result<Sample, Failure> {
        let began = Instant::now();
        server.ask(&["PING"])?;
        let round_trip_us = began.elapsed().as_nanos() as f64 / 1000.0;
        let reply = server.ask(&REQUEST)?;
        let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default());
        let histograms = match server.ask(&["LATENCY", "HISTOGRAM"]) {
            Ok(reply) => latency::histograms(&reply),
            // A server before Redis 7, or one on which this user may not run the command.
            Err(Failure::Server(_)) => HashMap::new(),
            Err(failure) => return Err(failure),
        };
        Ok(Sample {
            histograms,
            round_trip_us: Some(round_trip_us),
            ..Sample::parse(&text)
        })
    }

    fn parse(text: &str) -> Sample {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Sample {
            at: Instant::now(),
            fields: fields
                .map(|(name, value)| (name.to_owned(), value.trim_end().to_owned()))
                .collect(),
            histograms: HashMap::new(),
            round_trip_us: None,
        }
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.fields.get(name)?.parse().ok()
    }
}

/// The activity between two samples, and the state at the second one. The names are those of
/// `--json`.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Reading {
    pub(super) server: String,
    pub(super) uptime_seconds: Option<f64>,
    pub(super) ops_per_second: Option<f64>,
    pub(super) hit_ratio: Option<f64>,
    pub(super) input_bytes_per_second: Option<f64>,
    pub(super) output_bytes_per_second: Option<f64>,
    pub(super) cpu_cores: Option<f64>,
    pub(super) clients: Option<f64>,
    pub(super) keys: Option<f64>,
    /// Memory in use, out of the limit.
    pub(super) memory_bytes: Option<f64>,
    pub(super) rss_bytes: Option<f64>,
    pub(super) memory_limit_bytes: Option<f64>,
    pub(super) live_bytes: Option<f64>,
    pub(super) live_limit_bytes: Option<f64>,
    pub(super) index_bytes: Option<f64>,
    pub(super) utilization: Option<f64>,
    /// Bytes of the second tier; `None` without one.
    pub(super) flash_bytes: Option<f64>,
    pub(super) flash_live_bytes: Option<f64>,
    pub(super) flash_promoted_bytes: Option<f64>,
    pub(super) flash_fetches_per_second: Option<f64>,
    pub(super) flash_promoted_hits_per_second: Option<f64>,
    pub(super) flash_demoted_per_second: Option<f64>,
    pub(super) expired_per_second: Option<f64>,
    pub(super) evicted_per_second: Option<f64>,
    pub(super) cleaner_passes_per_second: Option<f64>,
    pub(super) cleaner_freed_bytes_per_second: Option<f64>,
    pub(super) cleaner_relocated_bytes_per_second: Option<f64>,
    pub(super) cleaner_busy: Option<f64>,
    pub(super) stall_ms_per_second: Option<f64>,
    /// Level at which a write is acknowledged.
    pub(super) level: Option<String>,
    /// `ok`, or the fault.
    pub(super) disk: Option<String>,
    pub(super) commits_per_second: Option<f64>,
    pub(super) disk_bytes_per_second: Option<f64>,
    /// Bytes that are appended to the log, but not on stable storage yet.
    pub(super) undurable_bytes: Option<f64>,
    pub(super) sync_p50_us: Option<f64>,
    pub(super) sync_p99_us: Option<f64>,
    pub(super) segments_open: Option<f64>,
    pub(super) segments_closed: Option<f64>,
    pub(super) segments_free: Option<f64>,
    pub(super) round_trip_us: Option<f64>,
    /// Since the server's start.
    pub(super) latency_since_start: Vec<Latency>,
    /// Within the interval.
    pub(super) latency: Vec<Latency>,
}

impl Reading {
    /// Heading above the lines of [`line`](Self::line).
    pub(super) const HEADER: &'static str = "       ops/s     hit   clients        keys   memory    limit  utilized  cleaner    freed/s  evicted/s     level  commits/s  undurable";

    /// The activity from `before` to `now`.
    pub(super) fn between(before: &Sample, now: &Sample) -> Reading {
        let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-9);
        // A counter that decreased: the server restarted or its statistics were reset.
        let delta = |name: &str| Some((now.number(name)? - before.number(name)?).max(0.0));
        let rate = |name: &str| Some(delta(name)? / seconds);
        let sum = |a: Option<f64>, b: Option<f64>| Some(a? + b?);
        let hits = delta("keyspace_hits");
        let lookups = sum(hits, delta("keyspace_misses"));
        Reading {
            server: server_name(now),
            uptime_seconds: now.number("uptime_in_seconds"),
            ops_per_second: rate("total_commands_processed"),
            hit_ratio: hits
                .zip(lookups)
                .filter(|(_, lookups)| *lookups > 0.0)
                .map(|(hits, all)| hits / all),
            input_bytes_per_second: rate("total_net_input_bytes"),
            output_bytes_per_second: rate("total_net_output_bytes"),
            cpu_cores: sum(rate("used_cpu_user"), rate("used_cpu_sys")),
            clients: now.number("connected_clients"),
            keys: Some(keys(now)),
            memory_bytes: now
                .number("duramen_committed_bytes")
                .or_else(|| now.number("used_memory")),
            rss_bytes: now.number("used_memory_rss"),
            memory_limit_bytes: now.number("maxmemory").filter(|limit| *limit > 0.0),
            live_bytes: now.number("duramen_live_bytes"),
            live_limit_bytes: now.number("duramen_live_limit_bytes"),
            index_bytes: now.number("duramen_index_bytes"),
            utilization: now.number("duramen_utilization"),
            flash_bytes: now.number("duramen_flash_bytes"),
            flash_live_bytes: now.number("duramen_flash_live_bytes"),
            flash_promoted_bytes: now.number("duramen_flash_promoted_bytes"),
            flash_fetches_per_second: rate("duramen_flash_fetches"),
            flash_promoted_hits_per_second: rate("duramen_flash_promoted_hits"),
            flash_demoted_per_second: rate("duramen_flash_segments_demoted"),
            expired_per_second: rate("expired_keys"),
            evicted_per_second: rate("evicted_keys"),
            cleaner_passes_per_second: rate("duramen_cleaner_passes"),
            cleaner_freed_bytes_per_second: rate("duramen_cleaner_bytes_freed"),
            cleaner_relocated_bytes_per_second: rate("duramen_cleaner_bytes_relocated"),
            cleaner_busy: rate("duramen_cleaner_busy_ms").map(|ms| ms / 1e3),
            stall_ms_per_second: rate("duramen_writer_stall_ms"),
            level: now.fields.get("duramen_level").cloned(),
            disk: now.fields.get("duramen_disk_state").cloned(),
            commits_per_second: rate("duramen_commits"),
            disk_bytes_per_second: sum(
                rate("duramen_wal_written_bytes"),
                rate("duramen_frame_written_bytes"),
            ),
            undurable_bytes: now.number("duramen_undurable_bytes"),
            sync_p50_us: now.number("duramen_sync_p50_us"),
            sync_p99_us: now.number("duramen_sync_p99_us"),
            segments_open: now.number("duramen_segments_open"),
            segments_closed: now.number("duramen_segments_closed"),
            segments_free: now.number("duramen_segments_free"),
            round_trip_us: now.round_trip_us,
            latency_since_start: since_start(now),
            latency: latency::between(&before.histograms, &now.histograms, seconds),
        }
    }

    /// One line under [`HEADER`](Self::HEADER).
    pub(super) fn line(&self) -> String {
        format!(
            "{:>12} {:>7} {:>9} {:>11} {:>8} {:>8} {:>9} {:>8} {:>10} {:>10} {:>9} {:>10} {:>10}",
            count(self.ops_per_second),
            ratio(self.hit_ratio),
            count(self.clients),
            count(self.keys),
            size(self.memory_bytes),
            size(self.memory_limit_bytes),
            ratio(self.utilization),
            ratio(self.cleaner_busy),
            size(self.cleaner_freed_bytes_per_second),
            count(self.evicted_per_second),
            self.level.as_deref().unwrap_or("-"),
            count(self.commits_per_second),
            size(self.undurable_bytes),
        )
    }

    /// All figures that the server reports.
    pub(super) fn json(&self) -> Value {
        let mut json = json!(self);
        if let Some(figures) = json.as_object_mut() {
            figures.retain(|_, figure| !figure.is_null());
        }
        json
    }
}

fn server_name(sample: &Sample) -> String {
    let field = |name| sample.fields.get(name).map(String::as_str);
    match (field("duramen_version"), field("redis_version")) {
        (Some(version), _) => format!("Duramen {version}"),
        (_, Some(version)) => format!("Redis {version}"),
        _ => "unknown server".to_owned(),
    }
}

/// Keys of all databases and named tables: `db0:keys=1,expires=0,…`.
fn keys(sample: &Sample) -> f64 {
    let numbered = |name: &str| {
        let number = name.strip_prefix("db");
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let tables = sample
        .fields
        .iter()
        .filter(|(name, _)| numbered(name) || name.starts_with("duramen_table_"));
    tables.filter_map(|(_, value)| part(value, "keys")).sum()
}

/// The number called `name` in `name=1,other=2`.
fn part(list: &str, name: &str) -> Option<f64> {
    let mut parts = list.split(',').filter_map(|part| part.split_once('='));
    parts.find(|(found, _)| *found == name)?.1.parse().ok()
}

/// `latency_percentiles_usec_get:p50=1.003,p99=3.007,p99.9=9.023`, the most called commands first.
fn since_start(sample: &Sample) -> Vec<Latency> {
    let mut all: Vec<Latency> = sample
        .fields
        .iter()
        .filter_map(|(name, value)| {
            let command = name.strip_prefix("latency_percentiles_usec_")?;
            let calls = sample
                .fields
                .get(&format!("cmdstat_{command}"))
                .and_then(|stat| part(stat, "calls"));
            Some(Latency {
                command: command.to_owned(),
                calls,
                p50_us: part(value, "p50")?,
                p99_us: part(value, "p99")?,
                p999_us: part(value, "p99.9")?,
            })
        })
        .collect();
    latency::sort(&mut all);
    all
}

/// A ratio in percent, `-` if unknown.
pub(super) fn ratio(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{:.1} %", value * 100.0))
}

/// A count with thousands separated, `-` if unknown.
pub(super) fn count(value: Option<f64>) -> String {
    let Some(value) = value else {
        return "-".to_owned();
    };
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of bytes in the largest unit that leaves a whole number before the point, `-` if
/// unknown.
pub(super) fn size(value: Option<f64>) -> String {
    let Some(mut value) = value else {
        return "-".to_owned();
    };
    for unit in ["B", "K", "M", "G"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{value:.0}B")
            } else {
                format!("{value:.1}{unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1}T")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn sample(text: &str, at: Instant) -> Sample {
        Sample {
            at,
            ..Sample::parse(text)
        }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let began = Instant::now();
        let before = sample(
            "total_commands_processed:100\r\nkeyspace_hits:10\r\nkeyspace_misses:0\r\n",
            began,
        );
        let text = "# Stats\r\ntotal_commands_processed:300\r\nkeyspace_hits:40\r\nkeyspace_misses:10\r\n\
            duramen_utilization:0.5\r\ndb0:keys=7,expires=1\r\nduramen_table_users:keys=5\r\ncmdstat_get:calls=9,usec=1\r\n\
            latency_percentiles_usec_get:p50=1.5,p99=3,p99.9=9\r\nlatency_percentiles_usec_set:p50=1,p99=3,p99.9=9\r\n";
        let reading = Reading::between(&before, &sample(text, began + Duration::from_secs(2)));
        assert_eq!(reading.ops_per_second, Some(100.0));
        assert_eq!(reading.hit_ratio, Some(0.75));
        assert_eq!(reading.utilization, Some(0.5));
        assert_eq!(reading.keys, Some(12.0));
        assert_eq!(reading.clients, None);
        assert_eq!(
            reading
                .latency_since_start
                .iter()
                .map(|one| one.command.as_str())
                .collect::<Vec<_>>(),
            ["get", "set"]
        );
        let first = reading.latency_since_start.first();
        assert_eq!(first.map(|one| one.p50_us), Some(1.5));
        let json = reading.json();
        assert_eq!(json["ops_per_second"], 100.0);
        assert!(json.get("clients").is_none());
    }

    #[test]
    fn a_restart_is_no_negative_rate() {
        let began = Instant::now();
        let before = sample("total_commands_processed:100\r\n", began);
        let now = sample(
            "total_commands_processed:3\r\n",
            began + Duration::from_secs(1),
        );
        assert_eq!(Reading::between(&before, &now).ops_per_second, Some(0.0));
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(count(Some(1_234_567.0)), "1,234,567");
        assert_eq!(count(Some(12.0)), "12");
        assert_eq!(count(None), "-");
        assert_eq!(size(Some(1023.0)), "1023B");
        assert_eq!(size(Some(1536.0)), "1.5K");
        assert_eq!(size(Some(3.0 * 1024.0 * 1024.0 * 1024.0)), "3.0G");
    }
}
