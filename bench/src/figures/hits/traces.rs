//! Requests in the shapes of public traces of caches, from seeds.

use crate::harness::{Random, Zipf};
use duramen_base::random::mix;

/// Sizes of values, spread evenly over the logarithm: the mean is a quarter of the largest.
const VALUE_BYTES_MIN: f64 = 100.0;
const VALUE_BYTES_MAX: f64 = 4096.0;
pub(super) const KEY_BYTES: u64 = 16;
/// A scan in the middle of every so many requests, and its length: a quarter of the requests.
const SCAN_EVERY: usize = 400_000;
const SCAN_LENGTH: usize = 100_000;
/// The moving working set: its part of all keys, one over this. Each popular key stays popular
/// for as large a part of the trace.
const WINDOWS: u64 = 10;
/// Keys that follow each other in a scan are this far apart in popularity; prime.
const STRIDE: u64 = 2_147_483_647;
const SEED: u64 = 2014;

/// The exponent 1, where the generator's formula has a gap.
const ONE: f64 = 1.0001;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Zipf08,
    Zipf10,
    Scans,
    OneHitWonders,
    Moving,
}

impl Shape {
    pub(super) const ALL: [Shape; 5] = [
        Shape::Zipf08,
        Shape::Zipf10,
        Shape::Scans,
        Shape::OneHitWonders,
        Shape::Moving,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Shape::Zipf08 => "Zipf 0.8",
            Shape::Zipf10 => "Zipf 1.0",
            Shape::Scans => "Zipf 1.0, scans",
            Shape::OneHitWonders => "one-hit wonders",
            Shape::Moving => "moving set",
        }
    }

    /// `requests` for keys `0..keys`.
    pub(super) fn requests(self, keys: u32, requests: usize) -> Vec<u32> {
        let mut random = Random::new(mix(SEED));
        let all = u64::from(keys);
        match self {
            Shape::Zipf08 => zipf(all, 0.8, requests, &mut random),
            Shape::Zipf10 => zipf(all, ONE, requests, &mut random),
            Shape::Scans => scans(all, requests, &mut random),
            Shape::OneHitWonders => one_hit_wonders(all, requests, &mut random),
            Shape::Moving => moving(all, requests, &mut random),
        }
    }
}

/// Bytes of a key's value, always the same.
pub(super) fn value_bytes(key: u32) -> usize {
    let unit = Random::new(mix(SEED ^ u64::from(key) << 20)).unit();
    (VALUE_BYTES_MIN * (VALUE_BYTES_MAX / VALUE_BYTES_MIN).powf(unit)) as usize
}

/// Bytes of all keys and values.
pub(super) fn footprint_bytes(keys: u32) -> u64 {
    (0..keys)
        .map(|key| KEY_BYTES + value_bytes(key) as u64)
        .sum()
}

fn zipf(keys: u64, exponent: f64, requests: usize, random: &mut Random) -> Vec<u32> {
    let zipf = Zipf::new(keys, exponent);
    (0..requests).map(|_| zipf.rank(random) as u32).collect()
}

/// Long runs of keys that are otherwise hot and cold alike, through the requests of others.
fn scans(keys: u64, requests: usize, random: &mut Random) -> Vec<u32> {
    let zipf = Zipf::new(keys, ONE);
    let mut scanned = 0;
    let next = |request| {
        if request % SCAN_EVERY < SCAN_EVERY - SCAN_LENGTH {
            return zipf.rank(random) as u32;
        }
        scanned += 1;
        (scanned * STRIDE % keys) as u32
    };
    (0..requests).map(next).collect()
}

/// Half of the keys are requested once, at any time; the rest by their popularity.
fn one_hit_wonders(keys: u64, requests: usize, random: &mut Random) -> Vec<u32> {
    let popular = keys / 2;
    let zipf = Zipf::new(popular, ONE);
    let mut once = popular..keys;
    let next = |request| {
        let left = once.end - once.start;
        match random.below((requests - request) as u64) < left {
            true => once.next().expect("some are left") as u32,
            false => zipf.rank(random) as u32,
        }
    };
    (0..requests).map(next).collect()
}

/// A tenth of the keys is popular at a time; each is replaced by another at a time of its own.
fn moving(keys: u64, requests: usize, random: &mut Random) -> Vec<u32> {
    let window = keys / WINDOWS;
    let zipf = Zipf::new(window, ONE);
    let next = |request| {
        let rank = zipf.rank(random);
        let own_time = mix(rank) as f64 / 2f64.powi(64);
        let part = request as f64 / requests as f64;
        let generation = (part * (WINDOWS - 1) as f64 + own_time) as u64;
        (rank + window * generation.min(WINDOWS - 1)) as u32
    };
    (0..requests).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u32 = 20_000;
    const REQUESTS: usize = 40_000;

    fn counts(shape: Shape) -> Vec<u32> {
        let mut counts = vec![0; KEYS as usize];
        for key in shape.requests(KEYS, REQUESTS) {
            counts[key as usize] += 1;
        }
        counts
    }

    #[test]
    fn every_trace_is_the_same_every_time_and_within_its_keys() {
        for shape in Shape::ALL {
            let requests = shape.requests(KEYS, REQUESTS);
            assert_eq!(requests.len(), REQUESTS);
            assert!(requests.iter().all(|key| *key < KEYS), "{shape:?}");
            assert_eq!(requests, shape.requests(KEYS, REQUESTS), "{shape:?}");
        }
    }

    #[test]
    fn half_of_the_keys_come_once() {
        let counts = counts(Shape::OneHitWonders);
        assert!(counts[KEYS as usize / 2..].iter().all(|count| *count == 1));
    }

    #[test]
    fn a_scan_meets_each_key_once() {
        let requests = Shape::Scans.requests(1_000_000, SCAN_EVERY);
        let mut scan = requests[SCAN_EVERY - SCAN_LENGTH..].to_vec();
        scan.sort_unstable();
        scan.dedup();
        assert_eq!(scan.len(), SCAN_LENGTH);
    }

    #[test]
    fn the_working_set_moves() {
        let requests = Shape::Moving.requests(KEYS, REQUESTS);
        let window = KEYS / WINDOWS as u32;
        let (begin, end) = (&requests[..100], &requests[REQUESTS - 100..]);
        assert!(begin.iter().all(|key| *key < 2 * window));
        assert!(end.iter().all(|key| *key >= 8 * window));
    }

    #[test]
    fn sizes_are_between_100_bytes_and_4_kib() {
        let sizes: Vec<usize> = (0..KEYS).map(value_bytes).collect();
        assert!(sizes.iter().all(|bytes| (100..=4096).contains(bytes)));
        let mean = sizes.iter().sum::<usize>() as f64 / f64::from(KEYS);
        assert!((1000.0..1150.0).contains(&mean), "{mean}");
    }
}
