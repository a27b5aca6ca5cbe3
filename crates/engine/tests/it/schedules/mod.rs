//! Scenarios of a few threads over the engine's real parts, for loom and shuttle to interleave.
//! Beside each scenario is the same one with one rule broken, which must fail. This proves that the
//! checker sees the purpose of the rule.

mod alone;
mod collect;
mod demotion;
#[cfg(shuttle)]
#[path = "../durable/disk.rs"]
#[allow(dead_code)]
mod disk;
mod growth;
mod log;
#[cfg(shuttle)]
mod logged;
mod marks;
#[cfg(shuttle)]
mod migration;
mod relocation;
#[cfg(loom)]
mod roles;
mod transaction;
#[cfg(shuttle)]
mod waits;
#[cfg(shuttle)]
mod whole;

#[cfg(shuttle)]
use duramen_base::sync::{AtomicU64, Ordering};
use duramen_base::ticks::Ticks;
use duramen_engine::parts::bucket::{Bucket, Locking, View};
use duramen_engine::parts::{Epochs, SlotId};

#[cfg(loom)]
pub use loom::{sync::Arc, thread};
#[cfg(shuttle)]
pub use shuttle::{sync::Arc, thread};

/// Explores the schedules of a scenario. In the quick tier some thousands with few preemptions,
/// where almost every known bug of this kind shows; in the full tier all of these, then any for a
/// few seconds.
#[cfg(loom)]
pub fn check(scenario: impl Fn() + Send + Sync + 'static) {
    /// A number and no time, so that a busy machine explores as many.
    const QUICK_SCHEDULES: usize = 5_000;
    let scenario = std::sync::Arc::new(scenario);
    let explore = |preemptions: Option<usize>, bound: fn(&mut loom::model::Builder)| {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        builder.max_branches = 20_000;
        bound(&mut builder);
        let scenario = scenario.clone();
        builder.check(move || scenario());
    };
    if !duramen_base::test_tier::is_full() {
        explore(Some(3), |builder| {
            builder.max_permutations = Some(QUICK_SCHEDULES)
        });
        return;
    }
    explore(Some(3), |builder| {
        builder.max_duration = Some(std::time::Duration::from_secs(10));
    });
    explore(None, |builder| {
        builder.max_duration = Some(std::time::Duration::from_secs(2));
    });
}

/// Explores schedules of a scenario: at random, then with few preemptions at random places. The
/// seed is fixed, so that a broken rule is found in each run or in none. The full tier explores as
/// many with fresh seeds.
#[cfg(shuttle)]
pub fn check(scenario: impl Fn() + Send + Sync + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    const SCHEDULES: usize = 1500;
    const PREEMPTIONS: usize = 3;
    /// The first one by which every broken scenario is found.
    const SEED: u64 = 1;
    let scenario = std::sync::Arc::new(scenario);
    let explored = || {
        let scenario = scenario.clone();
        move || scenario()
    };
    let random = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    shuttle::Runner::new(random, shuttle::Config::new()).run(explored());
    let pct = PctScheduler::new_from_seed(SEED, PREEMPTIONS, SCHEDULES);
    shuttle::Runner::new(pct, shuttle::Config::new()).run(explored());
    if duramen_base::test_tier::is_full() {
        shuttle::check_random(explored(), SCHEDULES);
        shuttle::check_pct(explored(), SCHEDULES, PREEMPTIONS);
    }
}

/// Explores all schedules of a scenario with few preemptions; returns their number.
#[cfg(loom)]
pub fn exhaust(scenario: impl Fn() + Send + Sync + 'static) -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    /// A hundred times the usual time; a search that is cut short proves nothing.
    const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);
    let schedules = std::sync::Arc::new(AtomicU64::new(0));
    let counted = schedules.clone();
    let began = std::time::Instant::now();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 20_000;
    builder.max_duration = Some(LIMIT);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    assert!(began.elapsed() < LIMIT, "the search was not exhausted");
    schedules.load(Ordering::Relaxed)
}

/// Content of an entry in the modelled log: a read while another thread writes is detected.
pub struct Content(
    #[cfg(loom)] loom::cell::UnsafeCell<u64>,
    #[cfg(shuttle)] AtomicU64,
);

// SAFETY: sharing it is the subject of the check: loom fails on any access that is not ordered with
// a write.
#[cfg(loom)]
unsafe impl Sync for Content {}

#[cfg(loom)]
impl Content {
    pub fn new(value: u64) -> Content {
        Content(loom::cell::UnsafeCell::new(value))
    }

    pub fn read(&self) -> u64 {
        // SAFETY: loom checks that no write runs at the same time.
        self.0.with(|at| unsafe { *at })
    }

    pub fn write(&self, value: u64) {
        // SAFETY: loom checks that no other access runs at the same time.
        self.0.with_mut(|at| unsafe { *at = value });
    }
}

#[cfg(shuttle)]
impl Content {
    pub fn new(value: u64) -> Content {
        Content(AtomicU64::new(value))
    }

    pub fn read(&self) -> u64 {
        let (first, second) = (self.0.load(Ordering::SeqCst), self.0.load(Ordering::SeqCst));
        assert_eq!(first, second, "torn: an entry changed while it was read");
        first
    }

    pub fn write(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }
}

/// Epochs with a slot for each of `N` threads.
pub fn epochs<const N: usize>() -> (Epochs, [SlotId; N]) {
    let epochs = Epochs::new(N, Ticks::counting());
    let slots = std::array::from_fn(|_| epochs.register().expect("a slot for each"));
    (epochs, slots)
}

pub fn buckets(count: usize) -> Vec<Bucket> {
    (0..count).map(|_| Bucket::empty()).collect()
}

/// Runs `work` with a bucket locked by `me`.
pub fn locked<T>(view: View<'_>, bucket: usize, me: u16, work: impl FnOnce() -> T) -> T {
    assert_eq!(view.lock(bucket, me), Locking::Taken);
    let result = work();
    view.unlock(bucket);
    result
}
