//! Many runs: their seeds, threads and progress lines.

use super::coverage::Coverage;
use super::finish::{self, Outcome};
use super::plan::{Plan, Profile};
use duramen_base::test_tier;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Interval of progress lines.
const LINE: Duration = Duration::from_secs(5);

/// The results of many runs.
#[derive(Debug, Default)]
pub struct Summary {
    pub runs: u64,
    pub coverage: Coverage,
    pub operations: u64,
    /// Operations with unknown outcome.
    pub unknown: u64,
    pub slowest_healing_us: u64,
    /// The first runs that failed.
    pub failures: Vec<Outcome>,
}

/// Number of runs.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub runs: u64,
    pub threads: usize,
}

impl Budget {
    /// The number of runs of the tier, unless `DURAMEN_SIM_RUNS` overrides it.
    pub fn of_tier(quick: u64, full: u64) -> Budget {
        let asked = std::env::var("DURAMEN_SIM_RUNS").ok();
        let asked = asked.and_then(|text| text.parse().ok());
        Budget {
            runs: asked.unwrap_or_else(|| test_tier::runs(quick, full)),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

/// The command that repeats one run.
pub fn replay_line(seed: u64) -> String {
    format!(
        "DURAMEN_SIM_SEED={seed} cargo test -p duramen-sim --test it clusters::by_hand_replay -- --nocapture --ignored"
    )
}

/// Runs the plans of seeds from `first` on, each on one thread. Ends early after a few failures.
pub fn many(budget: Budget, first: u64, plan: impl Fn(u64) -> Plan + Sync) -> Summary {
    let seeds: Vec<u64> = (first..first + budget.runs).collect();
    these(&seeds, budget.threads, plan)
}

/// Runs the plans of these seeds, as [`many`].
pub fn these(seeds: &[u64], threads: usize, plan: impl Fn(u64) -> Plan + Sync) -> Summary {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let enough = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    let said = Mutex::new(Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(seed) = seeds.get(number).copied() else {
                        break;
                    };
                    if std::env::var_os("DURAMEN_SIM_NAMES").is_some() {
                        println!("begins {seed}");
                    }
                    let outcome = finish::run(plan(seed));
                    let mut all = summary.lock().expect("no thread panics with it");
                    all.add(outcome);
                    if all.failures.len() >= 3 {
                        enough.store(true, Ordering::Relaxed);
                    }
                    let mut said = said.lock().expect("no thread panics with it");
                    if said.elapsed() > LINE {
                        *said = Instant::now();
                        println!(
                            "{} runs, {} operations, {:.0} s, {} failures",
                            all.runs,
                            all.operations,
                            begun.elapsed().as_secs_f64(),
                            all.failures.len()
                        );
                    }
                }
            });
        }
    });
    summary.into_inner().expect("no thread panics with it")
}

/// Runs a profile's plans.
pub fn profile(budget: Budget, first: u64, profile: Profile) -> Summary {
    many(budget, first, |seed| Plan::of(profile, seed))
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.coverage.join(&outcome.coverage);
        self.operations += outcome.history.events.len() as u64;
        let events = outcome.history.events.iter();
        let unknown = events.filter(|event| event.to_us == super::history::UNKNOWN);
        self.unknown += unknown.count() as u64;
        self.slowest_healing_us = self.slowest_healing_us.max(outcome.healed_in_us);
        if !outcome.violations.is_empty() {
            println!("seed {}: {}", outcome.seed, outcome.violations.join("\n"));
            println!("replay: {}", replay_line(outcome.seed));
            self.failures.push(outcome);
        }
    }
}
