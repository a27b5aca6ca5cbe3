//! One cell of the memory figure: a workload against one store, in a process of its own, which
//! prints its measurements.

use crate::figure::Figure;
use crate::harness::store::{TABLE, key, open, value};
use crate::harness::{Doing, Failure, Options, Random, Report, Result, machine};
use duramen_engine::{Session, Store};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Range of object sizes, in bytes, both ends included.
pub type Sizes = std::ops::RangeInclusive<u64>;

/// Three phases: allocate, delete at random, allocate other sizes. Rumble14 Table 1; Merritt17
/// Figure 9b.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub name: &'static str,
    pub before: Sizes,
    pub delete_percent: u64,
    pub after: Option<Sizes>,
    /// Bytes allocated per phase, as a multiple of the live bytes; objects are deleted at random to
    /// stay within those.
    pub churn: u64,
}

/// Key bytes of an object of Duramen; they count as live.
const KEY_BYTES: usize = 16;

impl Workload {
    /// `W1`-`W8` and `P1`-`P6`.
    pub fn all() -> Vec<Workload> {
        let w = |name, before, delete_percent, after| Workload {
            name,
            before,
            delete_percent,
            after,
            churn: 5,
        };
        let p = |name, before: u64, after: u64| Workload {
            name,
            before: before..=before,
            delete_percent: 90,
            after: Some(after..=after),
            churn: 1,
        };
        const KIB: u64 = 1024;
        vec![
            w("W1", 100..=100, 0, None),
            w("W2", 100..=100, 0, Some(130..=130)),
            w("W3", 100..=100, 90, Some(130..=130)),
            w("W4", 100..=150, 0, Some(200..=250)),
            w("W5", 100..=150, 90, Some(200..=250)),
            w("W6", 100..=200, 50, Some(1000..=2000)),
            w("W7", 1000..=2000, 90, Some(1500..=2500)),
            w("W8", 50..=150, 90, Some(5000..=15_000)),
            p("P1", 60, 70),
            p("P2", 1000, 1024),
            p("P3", 1000, 1030),
            p("P4", KIB, 10 * KIB),
            p("P5", 10 * KIB, 100 * KIB),
            p("P6", 500 * KIB, 600 * KIB),
        ]
    }

    /// Fill, then delete 90 %, then nothing more.
    pub fn shrinking() -> Vec<Workload> {
        let d = |name, size: u64| Workload {
            name,
            before: size..=size,
            delete_percent: 90,
            after: None,
            churn: 1,
        };
        vec![d("D100", 100), d("D1000", 1000)]
    }

    fn named(name: &str) -> Option<Workload> {
        Workload::all()
            .into_iter()
            .chain(Workload::shrinking())
            .find(|workload| workload.name == name)
    }

    pub fn describe(&self) -> String {
        let sizes = |sizes: &Sizes| match (sizes.start(), sizes.end()) {
            (low, high) if low == high => format!("{low}"),
            (low, high) => format!("{low}-{high}"),
        };
        let after = self
            .after
            .as_ref()
            .map_or(String::new(), |after| format!(", then {}", sizes(after)));
        format!(
            "{} B, {} % deleted{after}",
            sizes(&self.before),
            self.delete_percent
        )
    }

    /// Whether nothing is written after the deletions.
    pub fn only_deletes(&self) -> bool {
        self.after.is_none()
    }

    /// The largest value.
    pub fn largest_bytes(&self) -> u64 {
        let after = self.after.as_ref().map_or(0, |after| *after.end());
        after.max(*self.before.end())
    }

    /// Least bytes of entries and index per byte of live data, in the phase with the higher ratio.
    pub fn least_bytes_per_live_byte(&self) -> f64 {
        let least = |sizes: &Sizes| {
            let object = (sizes.start() + sizes.end()) as f64 / 2.0 + KEY_BYTES as f64;
            // A header of 16 bytes, the mean loss by 8-byte alignment, 12 bytes of index.
            (object + 16.0 + 4.0 + 12.0) / object
        };
        let before = least(&self.before);
        self.after
            .as_ref()
            .map_or(before, |after| before.max(least(after)))
    }
}

/// One cell of `memory`, in a process of its own
#[derive(Clone, Debug, clap::Args)]
#[command(hide = true)]
pub struct CellArgs {
    #[arg(long)]
    workload: String,
    #[arg(long)]
    live_bytes: u64,
    /// Budget of a Duramen store; 0 = use malloc instead.
    #[arg(long)]
    budget_bytes: u64,
}

impl CellArgs {
    pub fn duramen(workload: &Workload, live_bytes: u64, budget_bytes: u64) -> CellArgs {
        CellArgs {
            workload: workload.name.to_owned(),
            live_bytes,
            budget_bytes,
        }
    }

    pub fn malloc(workload: &Workload, live_bytes: u64) -> CellArgs {
        CellArgs::duramen(workload, live_bytes, 0)
    }

    pub fn to_args(&self) -> Vec<String> {
        let pairs = [
            ("--workload", self.workload.clone()),
            ("--live-bytes", self.live_bytes.to_string()),
            ("--budget-bytes", self.budget_bytes.to_string()),
        ];
        pairs
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value])
            .collect()
    }

    /// Runs the workload in a heap; the bookkeeping is not counted.
    fn measure<H: Heap>(
        &self,
        workload: &Workload,
        key_bytes: u64,
        heap: impl FnOnce() -> Result<H>,
    ) -> Result<Measured> {
        let after = workload.after.as_ref().map_or(&u64::MAX, |a| a.start());
        let object_bytes_min = workload.before.start().min(after);
        let bookkeeping = Bookkeeping::new(self.live_bytes / (object_bytes_min + key_bytes));
        let baseline = machine::rss_bytes(None)?;
        Cell {
            heap: heap()?,
            bookkeeping,
            baseline,
        }
        .measure(workload, self.live_bytes)
    }
}

/// Runs the workload and prints the result as one line of JSON.
impl Figure for CellArgs {
    const NAME: &'static str = "memory-cell";

    fn run(&self, _: &Options) -> Result<Vec<Report>> {
        let workload = Workload::named(&self.workload);
        let workload = workload
            .ok_or("no such workload")
            .doing(format!("finding {}", self.workload))?;
        let measured = if self.budget_bytes > 0 {
            self.measure(&workload, KEY_BYTES as u64, || Log::new(self.budget_bytes))?
        } else {
            self.measure(&workload, 0, || Ok(Malloc))?
        };
        println!(
            "{}",
            serde_json::to_string(&measured).doing("encoding the result")?
        );
        Ok(Vec::new())
    }
}

/// The measurements of a cell. Memory is resident bytes over live bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// False: the store refused a write within its budget.
    pub completed: bool,
    pub peak: f64,
    /// After waiting for memory to be given back.
    pub end: f64,
    /// Time until it fell to 1.3 (at most 10 s).
    pub settled_seconds: f64,
    pub seconds: f64,
    pub index_bytes_per_object: f64,
    pub utilization: f64,
}

/// The store of the objects.
pub(super) trait Heap {
    /// Bytes of an object that count as live besides its value.
    const KEY_BYTES: u64;
    /// Stores a value of `bytes`; `None` = refused. The handle identifies it.
    fn put(&mut self, bytes: u64) -> Option<u64>;
    fn free(&mut self, handle: u64);
    fn index_bytes_per_object(&self) -> f64;
    fn utilization(&self) -> f64;
}

/// The preloaded allocator.
struct Malloc;

impl Heap for Malloc {
    const KEY_BYTES: u64 = 0;

    fn put(&mut self, bytes: u64) -> Option<u64> {
        // SAFETY: plain C allocation; every byte of the new block is written, so that it is
        // resident.
        unsafe {
            let block = libc::malloc(bytes as usize);
            if block.is_null() {
                return None;
            }
            libc::memset(block, 0x5a, bytes as usize);
            Some(block as u64)
        }
    }

    fn free(&mut self, handle: u64) {
        // SAFETY: the handle is a block that `put` allocated, and bookkeeping drops it here.
        unsafe { libc::free(handle as *mut libc::c_void) }
    }

    fn index_bytes_per_object(&self) -> f64 {
        0.0
    }

    fn utilization(&self) -> f64 {
        0.0
    }
}

/// The engine; a handle is the number of the key.
pub(super) struct Log {
    store: Arc<Store>,
    session: Session,
    value: Vec<u8>,
    next_id: u64,
}

impl Log {
    fn new(budget_bytes: u64) -> Result<Log> {
        Log::of(open(budget_bytes, 1)?, 0)
    }

    /// Objects written so far.
    pub(super) fn written(&self, first_id: u64) -> u64 {
        self.next_id - first_id
    }

    /// A writer of `store`, whose keys have numbers from `first_id` on.
    pub(super) fn of(store: Arc<Store>, first_id: u64) -> Result<Log> {
        let session = store.session().doing("opening a session")?;
        Ok(Log {
            store,
            session,
            value: value(1 << 20),
            next_id: first_id,
        })
    }
}

impl Heap for Log {
    const KEY_BYTES: u64 = KEY_BYTES as u64;

    fn put(&mut self, bytes: u64) -> Option<u64> {
        let (id, mut guard) = (self.next_id, self.session.pin());
        let key = key::<KEY_BYTES>(id);
        let hash = guard.hash(&key);
        guard
            .write(TABLE, hash, &key, &self.value[..bytes as usize], None)
            .ok()?;
        self.next_id += 1;
        Some(id)
    }

    fn free(&mut self, handle: u64) {
        let (key, mut guard) = (key::<KEY_BYTES>(handle), self.session.pin());
        let hash = guard.hash(&key);
        let removed = guard.remove(TABLE, hash, &key);
        assert!(
            removed
                .expect("deletes succeed at any utilization")
                .before
                .is_some(),
            "an object was lost"
        );
    }

    fn index_bytes_per_object(&self) -> f64 {
        let stats = self.store.stats();
        stats.index_bytes as f64 / stats.objects.max(1) as f64
    }

    fn utilization(&self) -> f64 {
        self.store.stats().utilization
    }
}

/// The live objects. Its memory is touched before the baseline is taken, so that it does not count.
pub(super) struct Bookkeeping {
    objects: Vec<(u64, u32)>,
    live_bytes: u64,
}

impl Bookkeeping {
    pub(super) fn new(objects_max: u64) -> Bookkeeping {
        let mut objects = vec![(1, 1); objects_max as usize + 16];
        objects.clear();
        Bookkeeping {
            objects,
            live_bytes: 0,
        }
    }
}

pub(super) struct Cell<H: Heap> {
    pub heap: H,
    pub bookkeeping: Bookkeeping,
    pub baseline: u64,
}

impl<H: Heap> Cell<H> {
    fn measure(&mut self, workload: &Workload, live_limit: u64) -> Result<Measured> {
        let mut rng = Random::new(17);
        let begun = Instant::now();
        let completed = self.phases(workload, live_limit, &mut rng);
        let seconds = begun.elapsed().as_secs_f64();
        let live = self.bookkeeping.live_bytes.max(1) as f64;
        let limit = live_limit as f64;
        // Only a workload that ends with the deletion has a change to wait for.
        let shrinks = workload.after.is_none() && workload.delete_percent > 0;
        let settle_time = Duration::from_millis(if shrinks { 10_000 } else { 1_500 });
        let peak = (peak_rss_bytes()? - self.baseline) as f64 / limit;
        let (end, settled_seconds) = if completed {
            self.settle(live, settle_time)?
        } else {
            (f64::NAN, f64::NAN)
        };
        Ok(Measured {
            completed,
            peak,
            end: if end.is_finite() { end } else { 0.0 },
            settled_seconds: if settled_seconds.is_finite() {
                settled_seconds
            } else {
                0.0
            },
            seconds,
            index_bytes_per_object: self.heap.index_bytes_per_object(),
            utilization: self.heap.utilization(),
        })
    }

    pub(super) fn phases(
        &mut self,
        workload: &Workload,
        live_limit: u64,
        rng: &mut Random,
    ) -> bool {
        if !self.allocate(&workload.before, live_limit, workload.churn, rng) {
            return false;
        }
        let doomed = self.bookkeeping.objects.len() as u64 * workload.delete_percent / 100;
        (0..doomed).for_each(|_| self.delete_one(rng));
        workload
            .after
            .as_ref()
            .is_none_or(|after| self.allocate(after, live_limit, workload.churn, rng))
    }

    /// Allocates `churn` times the limit, with deletions at random to stay within it; with a churn
    /// of 1, until the limit is met.
    fn allocate(&mut self, sizes: &Sizes, live_limit: u64, churn: u64, rng: &mut Random) -> bool {
        let mut allocated = 0;
        let missing = if churn == 1 {
            live_limit - self.bookkeeping.live_bytes.min(live_limit)
        } else {
            churn * live_limit
        };
        loop {
            let bytes = sizes.start() + rng.below(sizes.end() - sizes.start() + 1);
            let object = bytes + H::KEY_BYTES;
            if allocated + object > missing {
                return true;
            }
            while self.bookkeeping.live_bytes + object > live_limit {
                self.delete_one(rng);
            }
            let Some(handle) = self.heap.put(bytes) else {
                return false;
            };
            self.bookkeeping.objects.push((handle, object as u32));
            self.bookkeeping.live_bytes += object;
            allocated += object;
        }
    }

    fn delete_one(&mut self, rng: &mut Random) {
        let n = rng.below(self.bookkeeping.objects.len() as u64) as usize;
        let (handle, object) = self.bookkeeping.objects.swap_remove(n);
        self.heap.free(handle);
        self.bookkeeping.live_bytes -= u64::from(object);
    }

    /// Watches memory for `limit`; returns the lowest ratio, and when it fell to 1.3.
    fn settle(&self, live: f64, limit: Duration) -> Result<(f64, f64)> {
        let begun = Instant::now();
        let mut least = f64::INFINITY;
        loop {
            let ratio = machine::rss_bytes(None)?.saturating_sub(self.baseline) as f64 / live;
            least = least.min(ratio);
            let elapsed = begun.elapsed();
            if ratio <= 1.3 && elapsed > Duration::from_secs(1) || elapsed > limit {
                return Ok((least, elapsed.as_secs_f64()));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The highest resident memory of this process (`VmHWM`), in bytes.
fn peak_rss_bytes() -> Result<u64> {
    let path = "/proc/self/status";
    let text = std::fs::read_to_string(path).doing(format!("reading {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kib.ok_or_else(|| Failure::new(format!("reading {path}"), "no VmHWM"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_found_by_its_name() {
        for workload in Workload::all().into_iter().chain(Workload::shrinking()) {
            assert_eq!(Workload::named(workload.name), Some(workload));
        }
        assert_eq!(Workload::named("W9"), None);
    }

    /// Counts instead of allocating.
    #[derive(Default)]
    struct Counter {
        put: u64,
        freed: u64,
    }

    impl Heap for Counter {
        const KEY_BYTES: u64 = 0;
        fn put(&mut self, bytes: u64) -> Option<u64> {
            self.put += bytes;
            Some(bytes)
        }
        fn free(&mut self, handle: u64) {
            self.freed += handle;
        }
        fn index_bytes_per_object(&self) -> f64 {
            0.0
        }
        fn utilization(&self) -> f64 {
            0.0
        }
    }

    #[test]
    fn phases_allocate_and_delete_what_the_tables_say() {
        let limit = 100_000;
        let run = |name| {
            let workload = Workload::named(name).unwrap();
            let mut cell = Cell {
                heap: Counter::default(),
                bookkeeping: Bookkeeping::new(2000),
                baseline: 0,
            };
            assert!(cell.phases(&workload, limit, &mut Random::new(1)));
            assert_eq!(cell.heap.put - cell.heap.freed, cell.bookkeeping.live_bytes);
            (cell.heap.put, cell.bookkeeping.live_bytes)
        };
        let near = |found: u64, want: u64| found.abs_diff(want) < want / 50;
        let (put, live) = run("W2");
        assert!(
            near(put, 10 * limit) && near(live, limit),
            "W2: {put} put, {live} live"
        );
        let (put, live) = run("P2");
        assert!(
            near(put, limit + limit * 9 / 10) && near(live, limit),
            "P2: {put} put, {live} live"
        );
        let (put, live) = run("D1000");
        assert!(
            near(put, limit) && near(live, limit / 10),
            "D1000: {put} put, {live} live"
        );
    }
}
