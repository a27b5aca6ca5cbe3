//! A disk written to with regard to somebody else's commits on the same device: in small, synced
//! steps, at a rate that follows the latency of those commits.
//!
//! **Invariants**
//! - T1: while others commit, no more than a step is on its way to or from the device, so nothing
//!   piles up that a commit would have to wait for: neither in its queue nor as dirty pages in
//!   memory.
//! - T2: the rate falls while commits take longer than before, but never below [`RATE_MIN`]: it
//!   always ends.
//! - T3: while nobody commits, it is not held back.
//!
//! The rate goes as congestion control does: a little more as long as nobody suffers, half of it
//! when somebody does.

use crate::meter::Meter;
use duramen_backup::disk::{Disk, File, Front, Fronted};
use duramen_base::units::{KIB, MIB};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// One step: takes the device about as long as a commit.
const STEP_BYTES: usize = (128 * KIB) as usize;
/// One step of reading, which is cheaper: large enough to go past the page cache, if it does not
/// hold what is read.
pub(crate) const READ_STEP_BYTES: usize = MIB as usize;
/// Slowest rate, in bytes per second, read and written.
const RATE_MIN: f64 = (32 * MIB) as f64;
const RATE_FIRST: f64 = (64 * MIB) as f64;
const RATE_MAX: f64 = (256 * MIB) as f64;
/// Added to the rate after each period in which commits were as fast as before.
const RATE_STEP: f64 = (8 * MIB) as f64;
/// Commits may take so many times as long as before.
const SLOWER_MAX: f64 = 1.2;
/// Between two looks at the commits: some of them have to fall into it.
const PERIOD: Duration = Duration::from_millis(25);
/// How long commits are watched before the first step, to know what they take undisturbed.
const WATCH: Duration = Duration::from_millis(100);

/// How fast to write. Pure arithmetic over what is seen of the commits.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rate {
    /// Bytes per second.
    now: f64,
    /// Microseconds that a commit takes undisturbed; `None`: not known, as nobody has committed.
    undisturbed_us: Option<f64>,
    /// Nobody committed in the last period.
    alone: bool,
}

impl Rate {
    /// `us`: mean duration of the commits of the period that has ended; `None`: there were none.
    fn look(&mut self, us: Option<f64>) {
        self.alone = us.is_none();
        let Some(us) = us else {
            return;
        };
        // Who was alone until now has nothing to compare with but this.
        let undisturbed = *self.undisturbed_us.get_or_insert(us);
        if us > SLOWER_MAX * undisturbed {
            self.now = (self.now / 2.0).max(RATE_MIN); // T2
        } else {
            self.now = (self.now + RATE_STEP).min(RATE_MAX);
        }
    }
}

/// What all files of a disk share.
pub(crate) struct Pace {
    meter: Arc<Meter>,
    state: Mutex<State>,
}

struct State {
    rate: Rate,
    /// When the next step may begin.
    due: Instant,
    looked: Instant,
    /// Commits and their microseconds until then.
    seen: (u64, u64),
}

impl Pace {
    /// Watches the commits for a moment.
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

    /// Before a step of so many bytes: waits for its time. Returns whether anybody is to be
    /// considered.
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
        // What it is late is not made up for: that would be a burst.
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

/// `disk`, where commits, as `meter` sees them, go first; and its pace, for what else is to be done
/// at it.
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
        // Some of it was perhaps written through the page cache, and is written past it from now
        // on.
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

    /// Slow commits hold the steps back, and every byte arrives in its place.
    #[test]
    fn steps_are_paced_while_others_commit() {
        let folder = std::env::temp_dir().join(format!("duramen-throttle-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory");
        let meter = Arc::new(Meter::default());
        let disk = duramen_backup::os::OsDisk::new(&folder, crate::DiskMode::Buffered);
        let pace = Pace::new(meter.clone());
        assert!(!pace.wait(1), "nobody commits");
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
                // Looks at no commits any more: the rate stays.
                looked: Instant::now() + Duration::from_secs(3600),
                seen: (0, 0),
            }),
        };
        let throttled = paced(Arc::new(disk), Arc::new(pace));
        let file = throttled.open("frames", OpenHow::Create).expect("it opens");
        let bytes: Vec<u8> = (0..MIB as usize).map(|n| (n / 4096) as u8).collect();
        let begun = Instant::now();
        file.write_at(0, &bytes).expect("it writes");
        // All but the last step have to be waited for.
        let least = Duration::from_secs_f64((bytes.len() - STEP_BYTES) as f64 / RATE_MIN);
        assert!(begun.elapsed() >= least, "{:?}", begun.elapsed());
        let mut back = vec![0; bytes.len()];
        file.read_at(0, &mut back).expect("it reads");
        assert_eq!(back, bytes);
        std::fs::remove_dir_all(&folder).expect("it was there");
    }
}
