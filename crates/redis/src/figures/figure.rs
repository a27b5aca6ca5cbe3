//! A number that a server reports: its names, its meaning, and how it is read.

use Value::{Count, Flag, Ratio, Time};
use std::time::Duration;

/// A number as it is read from `S`.
pub struct Figure<S> {
    /// Its name on the metrics page, after `duramen_`; empty if the page does not show it.
    pub metric: &'static str,
    /// Its field in `INFO`; empty if `INFO` does not show it. A time's field ends with its unit.
    pub info: &'static str,
    pub help: &'static str,
    /// Whether the number only grows.
    pub is_counter: bool,
    pub read: fn(&S) -> Value,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Count(u64),
    Ratio(f64),
    Flag(bool),
    Time(Duration),
}

impl Value {
    /// The number on the metrics page: times in seconds, flags as 0 or 1.
    pub fn as_metric(self) -> f64 {
        match self {
            Count(count) => count as f64,
            Ratio(ratio) => ratio,
            Flag(flag) => f64::from(u8::from(flag)),
            Time(time) => time.as_secs_f64(),
        }
    }

    /// A count, or a time in nanoseconds: numbers that can be added up.
    pub(crate) fn as_count(self) -> u64 {
        match self {
            Count(count) => count,
            Time(time) => time.as_nanos() as u64,
            Flag(flag) => flag.into(),
            Ratio(_) => 0,
        }
    }

    /// The number in JSON, under the name of its field in `INFO`.
    pub fn as_json(self, info: &str) -> serde_json::Value {
        match self {
            Count(count) => count.into(),
            Ratio(ratio) => ratio.into(),
            Flag(flag) => flag.into(),
            Time(time) => in_unit(time, info).into(),
        }
    }
}

/// A time in the unit with which the name of its field ends.
fn in_unit(time: Duration, info: &str) -> u64 {
    let units = match info {
        name if name.ends_with("_us") => time.as_micros(),
        name if name.ends_with("_ms") => time.as_millis(),
        _ => time.as_secs().into(),
    };
    units as u64
}

impl<S> Figure<S> {
    /// The value as `INFO` writes it.
    pub(crate) fn in_info(&self, source: &S) -> String {
        match (self.read)(source) {
            Count(count) => count.to_string(),
            Ratio(ratio) => format!("{ratio:.4}"),
            Flag(flag) => u8::from(flag).to_string(),
            Time(time) => in_unit(time, self.info).to_string(),
        }
    }
}

pub(crate) type Read<S> = fn(&S) -> Value;

pub(crate) const fn counter<S>(
    metric: &'static str,
    info: &'static str,
    help: &'static str,
    read: Read<S>,
) -> Figure<S> {
    Figure {
        is_counter: true,
        ..gauge(metric, info, help, read)
    }
}

pub(crate) const fn gauge<S>(
    metric: &'static str,
    info: &'static str,
    help: &'static str,
    read: Read<S>,
) -> Figure<S> {
    let is_counter = false;
    Figure {
        metric,
        info,
        help,
        is_counter,
        read,
    }
}

/// A figure that only `INFO` shows.
pub(crate) const fn field<S>(info: &'static str, read: Read<S>) -> Figure<S> {
    gauge("", info, "", read)
}
