//! Choice of the key for each operation: uniform or Zipfian, from a small fast generator of random
//! numbers.
//!
//! The Zipfian generator is Gray's (SIGMOD'94 §3.2), as in YCSB; its formula also holds for
//! exponents above 1. Ranks are scattered over the key space, so that hot keys are not neighbours
//! in the log.

use duramen_base::random::{Random, mix};
use std::sync::atomic::{AtomicU64, Ordering};

/// A seed that this process has not used before: the first call returns 1, the next 2, …
/// Consecutive runs on one store must not draw the same keys again: rewriting the same few keys is
/// not a uniform load, and is easy for a cleaner.
pub fn fresh_seed() -> u64 {
    static USED: AtomicU64 = AtomicU64::new(1);
    // Only uniqueness matters.
    USED.fetch_add(1, Ordering::Relaxed)
}

/// The distribution of accesses over the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    Uniform,
    /// Exponent between 0 and 2, but not 1; YCSB's default is 0.99.
    Zipfian(f64),
}

impl Distribution {
    pub fn name(&self) -> &'static str {
        match self {
            Distribution::Uniform => "uniform",
            Distribution::Zipfian(_) => "zipfian",
        }
    }

    /// The Zipfian distribution over `keys` keys that sends a `share` of accesses to the hottest
    /// `part` of the keys. Rumble14 §8.1 uses 90 % to 15 %.
    pub fn zipfian_with_share(keys: u64, share: f64, part: f64) -> Distribution {
        let hot = ((keys as f64 * part) as u64).max(1);
        // Bounds with halvings that never meet 1, where the formula has a gap.
        let (mut low, mut high) = (0.013, 1.99);
        for _ in 0..50 {
            let theta = (low + high) / 2.0;
            if zeta(hot, theta) / zeta(keys, theta) < share {
                low = theta;
            } else {
                high = theta;
            }
        }
        Distribution::Zipfian((low + high) / 2.0)
    }
}

/// Draws keys in `0..keys`.
#[derive(Clone, Debug)]
pub struct Chooser {
    rng: Random,
    keys: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    /// Drawn ahead, because the formula costs more than the measured operation.
    Drawn {
        ids: std::sync::Arc<Vec<u32>>,
        next: usize,
    },
}

/// Length of the sequence of Zipfian draws that is made ahead and then repeated.
const DRAWN: usize = 16 << 20;

impl Chooser {
    /// A chooser over keys `0..keys` (at most 2^32).
    pub fn new(distribution: Distribution, keys: u64, seed: u64) -> Chooser {
        let mut rng = Random::new(mix(seed));
        let kind = match distribution {
            Distribution::Uniform => Kind::Uniform,
            Distribution::Zipfian(theta) => {
                let zipf = Zipf::new(keys, theta);
                let draws = DRAWN.min(64 * keys as usize);
                let ids = (0..draws).map(|_| scatter(zipf.rank(&mut rng), keys) as u32);
                Kind::Drawn {
                    ids: std::sync::Arc::new(ids.collect()),
                    next: 0,
                }
            }
        };
        Chooser { rng, keys, kind }
    }

    /// The same distribution from another place in its sequence, with the same draws.
    pub fn fork(&self, seed: u64) -> Chooser {
        let mut rng = Random::new(mix(seed));
        let kind = match &self.kind {
            Kind::Uniform => Kind::Uniform,
            Kind::Drawn { ids, .. } => Kind::Drawn {
                next: rng.below(ids.len() as u64) as usize,
                ids: ids.clone(),
            },
        };
        let keys = self.keys;
        Chooser { rng, keys, kind }
    }

    /// The next key.
    #[inline]
    pub fn next_key(&mut self) -> u64 {
        match &mut self.kind {
            Kind::Uniform => self.rng.below(self.keys),
            Kind::Drawn { ids, next } => {
                let id = ids[*next];
                *next += 1;
                if *next == ids.len() {
                    *next = 0;
                }
                u64::from(id)
            }
        }
    }
}

/// Ranks `0..n` with probability proportional to 1/(rank+1)^theta.
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    n: u64,
    alpha: f64,
    zeta_n: f64,
    eta: f64,
    second: f64,
}

impl Zipf {
    pub fn new(n: u64, theta: f64) -> Zipf {
        assert!(n > 0 && theta > 0.0 && theta < 2.0 && theta != 1.0);
        let zeta_n = zeta(n, theta);
        let second = 1.0 + 0.5f64.powf(theta);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - second / zeta_n);
        Zipf {
            n,
            alpha: 1.0 / (1.0 - theta),
            zeta_n,
            eta,
            second,
        }
    }

    pub fn rank(&self, rng: &mut Random) -> u64 {
        let unit = rng.unit();
        let scaled = unit * self.zeta_n;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.second {
            return 1.min(self.n - 1);
        }
        let rank = self.n as f64 * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.n - 1)
    }
}

/// Sum of 1/i^theta for i = 1..=n: the first terms are added, the rest follows from the
/// Euler-Maclaurin formula (error below 1e-9).
fn zeta(n: u64, theta: f64) -> f64 {
    const SUMMED: u64 = 1000;
    let term = |i: u64| (i as f64).powf(-theta);
    let head: f64 = (1..=n.min(SUMMED)).map(term).sum();
    if n <= SUMMED {
        return head;
    }
    let (a, b) = (SUMMED as f64, n as f64);
    let integral = (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta);
    let ends = (term(n) - term(SUMMED)) / 2.0;
    let slope = theta * (a.powf(-theta - 1.0) - b.powf(-theta - 1.0)) / 12.0;
    head + integral + ends + slope
}

/// A one-to-one map of `0..n` onto itself that sends neighbours far apart.
fn scatter(rank: u64, n: u64) -> u64 {
    // A prime larger than any key count in use is coprime to n, so that the multiplication
    // permutes.
    const PRIME: u128 = 11_400_714_819_323_198_549;
    ((u128::from(rank) * PRIME) % u128::from(n)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_agrees_with_the_plain_sum() {
        for theta in [0.3, 0.9, 0.99, 1.1] {
            let plain: f64 = (1..=200_000u64).map(|i| (i as f64).powf(-theta)).sum();
            assert!((zeta(200_000, theta) - plain).abs() < 1e-6, "theta {theta}");
        }
        assert_eq!(zeta(1, 0.5), 1.0);
    }

    #[test]
    fn ranks_have_zipfian_frequencies() {
        let (n, theta, draws) = (1000u64, 0.99, 400_000);
        let zipf = Zipf::new(n, theta);
        let mut rng = Random::new(7);
        let mut seen = vec![0u32; n as usize];
        for _ in 0..draws {
            seen[zipf.rank(&mut rng) as usize] += 1;
        }
        let expected =
            |rank: u64| ((rank + 1) as f64).powf(-theta) / zeta(n, theta) * f64::from(draws);
        // The first two ranks are exact in Gray's method, the rest an approximation: compare a
        // range of them.
        for rank in [0, 1] {
            let (found, want) = (f64::from(seen[rank as usize]), expected(rank));
            assert!(
                (found - want).abs() / want < 0.05,
                "rank {rank}: {found} for {want}"
            );
        }
        let found: u32 = seen[100..].iter().sum();
        let want: f64 = (100..n).map(expected).sum();
        assert!(
            (f64::from(found) - want).abs() / want < 0.05,
            "tail: {found} for {want}"
        );
    }

    #[test]
    fn ninety_percent_of_writes_go_to_fifteen_percent_of_the_objects() {
        let keys = 200_000u64;
        let mut chooser = Chooser::new(Distribution::zipfian_with_share(keys, 0.90, 0.15), keys, 1);
        let mut seen = vec![0u32; keys as usize];
        let draws = 1_000_000u32;
        for _ in 0..draws {
            seen[chooser.next_key() as usize] += 1;
        }
        seen.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u32 = seen[..(keys as usize * 15 / 100)].iter().sum();
        let share = f64::from(hot) / f64::from(draws);
        assert!((0.88..0.93).contains(&share), "{share}");
    }

    #[test]
    fn scattering_is_one_to_one() {
        for n in [1u64, 2, 1000, 4096, 65_537] {
            let mut hit = vec![false; n as usize];
            for rank in 0..n {
                let id = scatter(rank, n) as usize;
                assert!(
                    !std::mem::replace(&mut hit[id], true),
                    "{id} hit twice for n = {n}"
                );
            }
        }
    }

    #[test]
    fn uniform_covers_the_range_evenly() {
        let mut chooser = Chooser::new(Distribution::Uniform, 10, 3);
        let mut seen = [0u32; 10];
        for _ in 0..100_000 {
            seen[chooser.next_key() as usize] += 1;
        }
        assert!(seen.iter().all(|n| (9_000..11_000).contains(n)), "{seen:?}");
    }

    #[test]
    fn a_fork_keeps_the_distribution_and_moves_on() {
        let mut one = Chooser::new(Distribution::Zipfian(0.99), 1000, 1);
        let mut other = one.fork(2);
        let draw = |c: &mut Chooser| (0..50).map(|_| c.next_key()).collect::<Vec<_>>();
        assert_ne!(draw(&mut one), draw(&mut other));
        assert!(draw(&mut other).iter().all(|key| *key < 1000));
    }
}
