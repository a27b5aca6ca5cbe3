//! Latency of commands in the server: since its start (`INFO latencystats`), and of one interval,
//! as the difference of two `LATENCY HISTOGRAM` replies.

use std::collections::{BTreeMap, HashMap};

use duramen_wire::resp::Reply;
use serde::Serialize;

/// Percentiles of one command or family of commands, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Latency {
    pub(super) command: String,
    /// Calls since the start, or per second of the interval; `None` if the server does not report
    /// them.
    pub(super) calls: Option<f64>,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

/// Sorts by calls, most called first.
pub(super) fn sort(all: &mut [Latency]) {
    let calls = |one: &Latency| one.calls.unwrap_or(0.0);
    all.sort_by(|a, b| {
        calls(b)
            .total_cmp(&calls(a))
            .then_with(|| a.command.cmp(&b.command))
    });
}

/// Calls of one command since the server's start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    calls: u64,
    /// For a time in microseconds, the number of calls that took no longer. A time without
    /// additional calls is left out.
    up_to: BTreeMap<u64, u64>,
}

/// Histograms by command, from the reply to `LATENCY HISTOGRAM`.
pub(super) fn histograms(reply: &Reply) -> HashMap<String, Histogram> {
    let mut all = HashMap::new();
    for (name, fields) in pairs(reply) {
        let mut histogram = Histogram::default();
        for (field, value) in pairs(fields) {
            match (field.as_bytes(), value) {
                (Some(b"calls"), value) => histogram.calls = integer(value),
                (Some(b"histogram_usec"), buckets) => {
                    histogram.up_to = pairs(buckets)
                        .map(|(us, calls)| (integer(us), integer(calls)))
                        .collect();
                }
                _ => {}
            }
        }
        if let Some(name) = name.as_bytes() {
            all.insert(String::from_utf8_lossy(name).into_owned(), histogram);
        }
    }
    all
}

/// Keys and values of a map, which in RESP2 is a flat array.
fn pairs(reply: &Reply) -> impl Iterator<Item = (&Reply, &Reply)> {
    let (flat, map): (&[Reply], &[(Reply, Reply)]) = match reply {
        Reply::Array(elements) => (elements, &[]),
        Reply::Map(pairs) => (&[], pairs),
        _ => (&[], &[]),
    };
    let flat = flat
        .as_chunks::<2>()
        .0
        .iter()
        .map(|[key, value]| (key, value));
    flat.chain(map.iter().map(|(key, value)| (key, value)))
}

fn integer(reply: &Reply) -> u64 {
    reply
        .as_integer()
        .and_then(|value| u64::try_from(value).ok())
        .unwrap_or(0)
}

/// Latencies of the calls between two readings, most called first. `calls` are per second.
pub(super) fn between(
    before: &HashMap<String, Histogram>,
    now: &HashMap<String, Histogram>,
    seconds: f64,
) -> Vec<Latency> {
    let none = Histogram::default();
    let one = |(command, now): (&String, &Histogram)| {
        let before = before.get(command).unwrap_or(&none);
        let calls = now.calls.saturating_sub(before.calls);
        let [p50_us, p99_us, p999_us] = percentiles(before, now)?;
        (calls > 0).then(|| Latency {
            command: command.clone(),
            calls: Some(calls as f64 / seconds),
            p50_us,
            p99_us,
            p999_us,
        })
    };
    let mut all: Vec<Latency> = now.iter().filter_map(one).collect();
    sort(&mut all);
    all
}

/// The upper bounds of 50 %, 99 % and 99.9 % of the calls between the two.
fn percentiles(before: &Histogram, now: &Histogram) -> Option<[f64; 3]> {
    // A bound that a histogram omits has the count of the next lower one.
    let up_to = |histogram: &Histogram, us: u64| {
        histogram
            .up_to
            .range(..=us)
            .next_back()
            .map_or(0, |(_, n)| *n)
    };
    let fresh = |us: u64| up_to(now, us).saturating_sub(up_to(before, us));
    let total = fresh(u64::MAX);
    if total == 0 {
        return None;
    }
    let bound = |share: f64| {
        let wanted = (total as f64 * share).ceil() as u64;
        let us = now.up_to.keys().find(|us| fresh(**us) >= wanted);
        us.map_or(0.0, |us| *us as f64)
    };
    Some([bound(0.5), bound(0.99), bound(0.999)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(calls: i64, buckets: &[(i64, i64)]) -> Reply {
        let buckets = buckets
            .iter()
            .flat_map(|(us, calls)| [Reply::Integer(*us), Reply::Integer(*calls)]);
        let text = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        let fields = vec![
            text("calls"),
            Reply::Integer(calls),
            text("histogram_usec"),
            Reply::Array(buckets.collect()),
        ];
        Reply::Array(vec![text("get"), Reply::Array(fields)])
    }

    #[test]
    fn an_interval_is_a_difference() {
        let before = histograms(&reply(100, &[(1, 90), (1024, 100)]));
        // 1000 more calls: 500 within 1 µs, 490 within 4, 9 within 16, one within 2048.
        let now = histograms(&reply(
            1100,
            &[(1, 590), (4, 1080), (16, 1089), (1024, 1099), (2048, 1100)],
        ));
        let latency = between(&before, &now, 2.0);
        let expected = Latency {
            command: "get".to_owned(),
            calls: Some(500.0),
            p50_us: 1.0,
            p99_us: 4.0,
            p999_us: 16.0,
        };
        assert_eq!(latency, [expected]);
        assert!(between(&now, &now, 1.0).is_empty());
        // Counts that fell show that the server restarted.
        assert!(between(&now, &before, 1.0).is_empty());
    }

    #[test]
    fn both_dialects_are_read() {
        let flat = reply(3, &[(8, 3)]);
        let as_map = |reply: &Reply| {
            Reply::Map(
                pairs(reply)
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect(),
            )
        };
        let map = Reply::Map(
            pairs(&flat)
                .map(|(key, value)| (key.clone(), as_map(value)))
                .collect(),
        );
        assert_eq!(histograms(&flat), histograms(&map));
        assert_eq!(histograms(&flat).len(), 1);
    }
}
