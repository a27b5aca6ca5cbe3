//! Throttle: writes to a disk without delaying other threads' commits on the same device: in small,
//! synced steps, at a rate that follows the latency of those commits.
//!
//! **Invariants**
//! - T1: while other threads commit, at most one step is in flight to or from the device, so no
//!   backlog delays a commit: neither in the device's queue nor as dirty pages in memory.
//! - T2: the rate falls while commits take longer than before, but never below [`RATE_MIN`]: the
//!   copy always ends.
//! - T3: while no thread commits, there is no throttling.
//!
//! The rate follows the rule of congestion control: it grows a little as long as no commit suffers,
//! and is halved when one does.

use crate::meter::Meter;
use duramen_backup::disk::{Disk, File, Front, Fronted};
use duramen_base::units::{KIB, MIB};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One step: it takes the device about as long as a commit.
const STEP_BYTES: usize = (128 * KIB) as usize;
/// One step of reading, which is cheaper: large enough to bypass the page cache, if the data is not
/// cached.
pub(crate) const READ_STEP_BYTES: usize = MIB as usize;
/// Slowest rate, in bytes per second, read and written.
const RATE_MIN: f64 = (32 * MIB) as f64;
const RATE_FIRST: f64 = (64 * MIB) as f64;
const RATE_MAX: f64 = (256 * MIB) as f64;
/// Added to the rate after each period in which commits were as fast as before.
const RATE_STEP: f64 = (8 * MIB) as f64;
/// Largest duration of commits, as a multiple of the undisturbed one.
const SLOWER_MAX: f64 = 1.2;
/// Interval between two checks of the commits: some commits must fall into it.
const PERIOD: Duration = Duration::from_millis(25);
/// Time of observation of the commits before the first step, which gives their undisturbed
/// duration.
const WATCH: Duration = Duration::from_millis(100);

/// The rate of writing. Pure arithmetic over the observed commits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rate {
    /// Bytes per second.
    now: f64,
    /// Undisturbed duration of a commit, in microseconds; `None`: unknown, no thread has committed
    /// yet.
    undisturbed_us: Option<f64>,
    /// No thread committed in the last period.
    alone: bool,
}

impl Rate {
    /// `us`: mean duration of the commits of the period that has ended; `None`: there were none.
    fn look(&mut self, us: Option<f64>) {
        self.alone = us.is_none();
        let Some(us) = us else {
            return;
        };
        // The first observed commits are the only reference.
        let undisturbed = *self.undisturbed_us.get_or_insert(us);
        if us > SLOWER_MAX * undisturbed {
            self.now = (self.now / 2.0).max(RATE_MIN); // T2
        } else {
            self.now = (self.now + RATE_STEP).min(RATE_MAX);
        }
    }
}

/// State that all files of a disk share.
pub(crate) struct Pace {
    meter: Arc<Meter>,
    state: Mutex<State>,
}

struct State {
    rate: Rate,
    /// When the next step may begin.
    due: Instant,
    looked: Instant,
    /// Number of commits and their total microseconds at that time.
    seen: (u64, u64),
}

impl Pace {
    /// Observes the commits for a moment.
    fn new(meter: Arc<Meter>) -> Pace {
        let before = meter.totals();
        std::thread::sleep(WATCH);
        let seen = meter.totals();
        let undisturbed_us = mean(before, seen);
        let now = Instant::now();
        Pace {
            meter,
            state: Mutex::new(State {
                rate: Rate {
                    now: RATE_FIRST,
                    undisturbed_us,
                    alone: undisturbed_us.is_none(),
                },
                due: now,
                looked: now,
                seen,
            }),
        }
    }

    /// Called before a step of `bytes` bytes: waits for its time. Returns whether other threads
    /// commit.
    pub fn wait(&self, bytes: usize) -> bool {
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *guard;
        let now = Instant::now();
        if now >= state.looked + PERIOD {
            let seen = self.meter.totals();
            state.rate.look(mean(state.seen, seen));
            (state.seen, state.looked) = (seen, now);
        }
        if state.rate.alone {
            state.due = now;
            return false; // T3
        }
        let wait = state.due.saturating_duration_since(now);
        // A late step is not made up for: that would be a burst.
        state.due = state.due.max(now) + Duration::from_secs_f64(bytes as f64 / state.rate.now);
        drop(guard);
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        true
    }
}

/// Mean microseconds of the commits between two totals.
fn mean(before: (u64, u64), after: (u64, u64)) -> Option<f64> {
    let count = after.0 - before.0;
    (count > 0).then(|| (after.1.saturating_sub(before.1)) as f64 / count as f64)
}

/// `disk`, with priority for the commits that `meter` measures; and its pace, for other work on the
/// disk.
pub(crate) fn throttled(disk: Arc<dyn Disk>, meter: Arc<Meter>) -> (Arc<dyn Disk>, Arc<Pace>) {
    let pace = Arc::new(Pace::new(meter));
    (paced(disk, pace.clone()), pace)
}

fn paced(disk: Arc<dyn Disk>, pace: Arc<Pace>) -> Arc<dyn Disk> {
    Arc::new(Fronted::new(disk, move |inner| -> Arc<dyn File> {
        let pace = pace.clone();
        Arc::new(ThrottledFile { inner, pace })
    }))
}

struct ThrottledFile {
    inner: Arc<dyn File>,
    pace: Arc<Pace>,
}

impl Front for ThrottledFile {
    fn below(&self) -> &dyn File {
        &*self.inner
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        for (n, step) in bytes.chunks(STEP_BYTES).enumerate() {
            let at = at + (n * STEP_BYTES) as u64;
            if self.pace.wait(step.len()) {
                self.inner.write_durably(at, step)?; // T1
            } else {
                self.inner.write_at(at, step)?;
            }
        }
        Ok(())
    }

    fn write_durably(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_durably(at, bytes)
    }

    fn allocate(&self, at: u64, bytes: u64, zero: bool) -> io::Result<()> {
        self.inner.allocate(at, bytes, false)?;
        if !zero {
            return Ok(());
        }
        let zeros = vec![0; STEP_BYTES];
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(STEP_BYTES as u64);
            Front::write_at(self, at + done, &zeros[..part as usize])?;
            done += part;
        }
        // Some of it may have been written through the page cache; later writes bypass it.
        self.inner.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use duramen_backup::disk::OpenHow;

    #[test]
    fn the_rate_follows_the_commits_and_has_a_floor() {
        let mut rate = Rate {
            now: RATE_FIRST,
            undisturbed_us: Some(100.0),
            alone: false,
        };
        rate.look(Some(119.0));
        assert_eq!(rate.now, RATE_FIRST + RATE_STEP);
        rate.look(Some(121.0));
        assert_eq!(rate.now, (RATE_FIRST + RATE_STEP) / 2.0);
        for _ in 0..10 {
            rate.look(Some(1000.0));
        }
        assert_eq!(rate.now, RATE_MIN);
        for _ in 0..1000 {
            rate.look(Some(80.0));
        }
        assert_eq!(rate.now, RATE_MAX);
    }

    #[test]
    fn who_is_alone_is_not_held_back_until_somebody_commits() {
        let mut rate = Rate {
            now: RATE_FIRST,
            undisturbed_us: None,
            alone: true,
        };
        rate.look(None);
        assert!(rate.alone);
        rate.look(Some(500.0));
        assert_eq!((rate.alone, rate.undisturbed_us), (false, Some(500.0)));
        rate.look(Some(700.0));
        assert!(rate.now < RATE_FIRST);
        rate.look(None);
        assert!(rate.alone);
    }

    /// Slow commits delay the steps, and every byte arrives at its place.
    #[test]
    fn steps_are_paced_while_others_commit() {
        let folder = std::env::temp_dir().join(format!("duramen-throttle-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory");
        let meter = Arc::new(Meter::default());
        let disk = duramen_backup::os::OsDisk::new(&folder, crate::DiskMode::Buffered);
        let pace = Pace::new(meter.clone());
        assert!(!pace.wait(1), "no commit runs");
        meter.synced(Duration::from_micros(100));
        let pace = Pace {
            meter,
            state: Mutex::new(State {
                rate: Rate {
                    now: RATE_MIN,
                    undisturbed_us: Some(100.0),
                    alone: false,
                },
                due: Instant::now(),
                // No further checks of commits: the rate stays.
                looked: Instant::now() + Duration::from_secs(3600),
                seen: (0, 0),
            }),
        };
        let throttled = paced(Arc::new(disk), Arc::new(pace));
        let file = throttled.open("frames", OpenHow::Create).expect("it opens");
        let bytes: Vec<u8> = (0..MIB as usize).map(|n| (n / 4096) as u8).collect();
        let begun = Instant::now();
        file.write_at(0, &bytes).expect("it writes");
        // All but the last step have to wait.
        let least = Duration::from_secs_f64((bytes.len() - STEP_BYTES) as f64 / RATE_MIN);
        assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
        let mut back = vec![0; bytes.len()];
        file.read_at(0, &mut back).expect("it reads");
        assert_eq!(back, bytes);
        std::fs::remove_dir_all(&folder).expect("it was there");
    }
}
