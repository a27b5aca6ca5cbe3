//! Regions: the existing pages of the page table, one for each 2 MiB of addresses with a shown
//! page. With an object of 128 bytes on each page they would be a sixteenth of the data; so those
//! without pages are returned to the kernel.
//!
//! **Invariants**
//! - G1: a returned table has no page under it, and no page comes meanwhile.
//! - G2: at most `tables_max` tables exist, if all tables for the heap's addresses are more than
//!   [`BESIDE`]; else they all stay. They also stay if the kernel takes none back; then the heap
//!   takes RAM for them when it hands out addresses (heap::A2).
//! - G3: tables that exist, or were returned and may not be free yet, are at most
//!   `tables_max` and [`BESIDE`] together, and the tables that each thread returns at once. The
//!   kernel frees them late (after a grace period of RCU, 10 to 30 ms), and a memory cgroup counts
//!   them until then: a thread that would return more waits.
//!
//! **Concurrency** counts are atomic; the list and the limbo have a lock each, held for moments.
//! Threads wait for grace periods.
//!
//! Paper: none: Badam11 does not count page tables.

use crate::chunk::GRANULE_PAGES;
use crate::mapping::Counters;
use crate::pager::REGION_PAGES;
use duramen_disk::quietly;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Tables beside the budget (G3): 8 MiB. 70,000 misses per second, each in a region without a
/// table, leave as many in limbo.
pub(crate) const BESIDE: u64 = 2048;
/// Tables that one system call returns.
pub(crate) const AT_ONCE: usize = 64;
/// Returned tables for which one grace period is waited.
const TABLES_PER_GRACE: u64 = BESIDE / 4;
/// Threads that wait for grace periods, which overlap.
const WAITERS: usize = 3;
/// Assumed length of a grace period, if the kernel does not report its end.
const GRACE: Duration = Duration::from_millis(50);

/// Counts of pages and tables by region; see the file's head.
pub(crate) struct Regions {
    /// For each region, the number of shown pages, or [`LEAVING`].
    counts: Counters<AtomicU16>,
    /// Regions with a table, the oldest first.
    order: Mutex<VecDeque<u32>>,
    tables: AtomicU64,
    tables_max: u64,
    /// Regions with addresses of the heap.
    used: AtomicU64,
    /// Whether the kernel takes tables back. If not, all tables stay, and count.
    frees: bool,
    limbo: Arc<Limbo>,
    waiters: Vec<JoinHandle<()>>,
}

const PRESENT: u16 = 1 << 15;
const LEAVING: u16 = u16::MAX;

impl Regions {
    pub fn new(arena_pages: u64, tables_max: u64, frees: bool) -> io::Result<Regions> {
        let regions = (arena_pages / REGION_PAGES) as usize + 1;
        let limbo = Arc::new(Limbo::default());
        let mut made = Regions {
            counts: Counters::new(regions)?,
            order: Mutex::new(VecDeque::with_capacity(tables_max as usize + 256)),
            tables: AtomicU64::new(0),
            tables_max,
            used: AtomicU64::new(0),
            frees,
            limbo,
            waiters: Vec::with_capacity(WAITERS),
        };
        for _ in 0..WAITERS {
            let limbo = Arc::clone(&made.limbo);
            let waiter = std::thread::Builder::new().name("tables".to_owned());
            let waiter = quietly(|| waiter.spawn(move || limbo.wait_until_stopped()))?;
            made.waiters.push(waiter);
        }
        Ok(made)
    }

    /// Records that addresses up to this page are used.
    pub fn use_up_to(&self, page: u64) {
        let regions = page.div_ceil(REGION_PAGES);
        self.used.fetch_max(regions, Ordering::Relaxed);
    }

    /// Tables that may exist (G2).
    fn allowed(&self) -> u64 {
        if !self.frees {
            return u64::MAX; // tables are then counted when addresses are handed out
        }
        let used = self.used.load(Ordering::Relaxed);
        self.tables_max + if used <= BESIDE { BESIDE } else { 0 }
    }

    /// Counts a page that is about to be shown.
    pub fn enter(&self, page: u64) {
        let region = page / REGION_PAGES;
        let count = &self.counts.all()[region as usize];
        loop {
            let before = count.load(Ordering::Acquire);
            if before == LEAVING {
                std::thread::yield_now();
                continue;
            }
            let after = (before | PRESENT) + 1;
            let done = count.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed);
            if done.is_ok() {
                if before & PRESENT == 0 {
                    self.tables.fetch_add(1, Ordering::Relaxed);
                    lock(&self.order).push_back(region as u32);
                }
                return;
            }
        }
    }

    /// Uncounts a page that is not shown any more.
    pub fn leave(&self, page: u64) {
        let count = &self.counts.all()[(page / REGION_PAGES) as usize];
        let before = count.fetch_sub(1, Ordering::AcqRel);
        assert!(before & !PRESENT > 0, "a page that left was shown (G1)");
    }

    /// Tables that should be returned together with pages: then they cost no system call of their
    /// own.
    pub fn spare(&self) -> usize {
        let spare = self
            .tables()
            .saturating_sub(self.allowed() - AT_ONCE as u64);
        (spare as usize).min(AT_ONCE)
    }

    /// Whether so many tables exist that some must be returned at once (G2).
    pub fn are_many(&self) -> bool {
        self.tables() > self.allowed()
    }

    pub fn tables(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }

    /// Chooses at most `count` regions without pages, the oldest first, which no page enters (G1)
    /// until they are [`gone`](Self::gone).
    pub fn empty(&self, count: usize, chosen: &mut Vec<u64>) {
        let mut order = lock(&self.order);
        for _ in 0..order.len().min(count.max(16) * 8) {
            if chosen.len() == count {
                break;
            }
            let Some(region) = order.pop_front() else {
                break;
            };
            let cell = &self.counts.all()[region as usize];
            let left = cell.compare_exchange(PRESENT, LEAVING, Ordering::AcqRel, Ordering::Relaxed);
            if left.is_ok() {
                chosen.push(u64::from(region));
            } else {
                order.push_back(region);
            }
        }
    }

    /// Notes that the tables of these regions were returned.
    pub fn gone(&self, regions: &[u64]) {
        for region in regions {
            self.counts.all()[*region as usize].store(0, Ordering::Release);
        }
        self.tables
            .fetch_sub(regions.len() as u64, Ordering::Relaxed);
        self.limbo.add(regions.len() as u64);
    }

    /// Notes that these regions keep their tables, because the kernel refused.
    pub fn kept(&self, regions: &[u64]) {
        let mut order = lock(&self.order);
        for region in regions {
            self.counts.all()[*region as usize].store(PRESENT, Ordering::Release);
            order.push_back(*region as u32);
        }
    }

    /// Waits until tables may be returned (G3).
    pub fn wait_for_room(&self) {
        let limit = self.tables_max + BESIDE;
        self.limbo
            .wait_while(|leaving| self.tables() + leaving > limit);
    }

    /// Tables that the kernel may not have freed yet.
    pub fn in_limbo(&self) -> u64 {
        self.limbo.count()
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.limbo.state().stop = true;
        self.limbo.work.notify_all();
        self.limbo.room.notify_all();
        for waiter in self.waiters.drain(..) {
            // The thread has reported its own panic.
            let _ = waiter.join();
        }
    }
}

/// Tables that were returned lately.
#[derive(Default)]
struct Limbo {
    state: Mutex<State>,
    /// Wakes the threads that wait for grace periods.
    work: Condvar,
    /// Wakes threads that want to return more tables.
    room: Condvar,
    /// Tables that were returned and may not be free yet.
    count: AtomicU64,
}

/// Counts of tables since the beginning.
#[derive(Default)]
struct State {
    given: u64,
    /// The returned tables for which a grace period was begun.
    asked: u64,
    freed: u64,
    wanted: u32,
    stop: bool,
}

impl State {
    /// Whether it is time for another grace period.
    fn has_work(&self) -> bool {
        let waiting = self.given - self.asked;
        waiting >= TABLES_PER_GRACE || waiting > 0 && self.wanted > 0
    }
}

impl Limbo {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn add(&self, tables: u64) {
        if tables == 0 {
            return;
        }
        let mut state = self.state();
        let had_work = state.has_work();
        state.given += tables;
        self.count
            .store(state.given - state.freed, Ordering::Relaxed);
        let wake = state.has_work() && !had_work;
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// Waits as long as there are `too_many`, if waiting helps.
    fn wait_while(&self, too_many: impl Fn(u64) -> bool) {
        if !too_many(self.count()) {
            return;
        }
        let mut state = self.state();
        while state.given > state.freed && too_many(state.given - state.freed) && !state.stop {
            state.wanted += 1;
            self.work.notify_one();
            let waited = self.room.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.wanted -= 1;
        }
    }

    /// Loop of a thread: tables returned before a grace period are free after it.
    fn wait_until_stopped(&self) {
        let mut state = self.state();
        loop {
            while !state.has_work() && !state.stop {
                let waited = self.work.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
            if state.stop {
                return;
            }
            let mine = state.given;
            state.asked = mine;
            drop(state);
            wait_for_grace();
            state = self.state();
            state.freed = state.freed.max(mine);
            self.count
                .store(state.given - state.freed, Ordering::Relaxed);
            self.room.notify_all();
        }
    }
}

/// Waits for a grace period of RCU, which the kernel offers under another name.
fn wait_for_grace() {
    const GLOBAL: libc::c_int = 1;
    // SAFETY: a plain system call; it waits, and changes nothing.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) };
    if done != 0 {
        std::thread::sleep(GRACE);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const _: () = assert!(REGION_PAGES.is_multiple_of(GRANULE_PAGES));

#[cfg(test)]
mod tests {
    use super::*;

    /// Regions of a heap whose tables would not all stay.
    fn regions() -> Regions {
        let regions = Regions::new(1 << 22, 100, true).unwrap();
        regions.use_up_to((BESIDE + 1) * REGION_PAGES);
        regions
    }

    #[test]
    fn tables_without_pages_go_and_others_stay() {
        let regions = regions();
        for region in 0..120 {
            regions.enter(region * REGION_PAGES + region);
            if region % 3 == 0 {
                regions.leave(region * REGION_PAGES + region);
            }
        }
        assert!(regions.are_many() && regions.tables() == 120);
        assert_eq!(regions.spare(), AT_ONCE);
        let mut chosen = Vec::new();
        regions.empty(10, &mut chosen);
        assert_eq!(chosen, (0..30).step_by(3).collect::<Vec<_>>());
        regions.kept(&chosen[5..]);
        regions.gone(&chosen[..5]);
        assert_eq!((regions.tables(), regions.in_limbo()), (115, 5));
        chosen.clear();
        regions.empty(AT_ONCE, &mut chosen);
        assert_eq!(chosen.len(), 35, "all that are empty, and none else");
        regions.gone(&chosen);
        assert!(regions.tables() == 80 && !regions.are_many());
        regions.enter(0);
        assert_eq!(regions.tables(), 81, "a region that left comes back");
    }

    #[test]
    fn tables_of_a_small_heap_stay() {
        let regions = Regions::new(1 << 22, 100, true).unwrap();
        regions.use_up_to(BESIDE * REGION_PAGES);
        for region in 0..BESIDE {
            regions.enter(region * REGION_PAGES);
            regions.leave(region * REGION_PAGES);
        }
        assert!(!regions.are_many() && regions.spare() == 0);
        regions.use_up_to(BESIDE * REGION_PAGES + 1);
        assert!(regions.are_many() && regions.spare() == AT_ONCE);
        let kept = Regions::new(1 << 22, 100, false).unwrap();
        kept.use_up_to(BESIDE * REGION_PAGES + 1);
        kept.enter(0);
        kept.leave(0);
        assert!(!kept.are_many() && kept.spare() == 0 && kept.tables() == 1);
    }

    /// Many more tables than may be in limbo are returned: the returning threads wait in between,
    /// and not for ever.
    #[test]
    fn who_gives_back_too_many_waits_for_the_kernel() {
        const THREADS: u64 = 4;
        let regions = regions();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let regions = &regions;
                scope.spawn(move || {
                    for round in 0..60u64 {
                        let first = (thread * 60 + round) * 30;
                        for region in first..first + 30 {
                            regions.enter(region * REGION_PAGES);
                            regions.leave(region * REGION_PAGES);
                        }
                        let mut chosen = Vec::new();
                        regions.wait_for_room();
                        regions.empty(AT_ONCE, &mut chosen);
                        regions.gone(&chosen);
                        let most = 100 + BESIDE + THREADS * AT_ONCE as u64;
                        assert!(regions.in_limbo() <= most, "G3");
                    }
                });
            }
        });
        assert_eq!(regions.tables(), 0);
    }
}
