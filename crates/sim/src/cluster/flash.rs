//! A flash device in memory: the second tier of a simulated member. Its contents have no owner
//! after the process has ended.
//!
//! It may fail and it may be slow, but it always returns the bytes written last: a member reads
//! only data that it wrote in the same life. Devices that return wrong data are not modelled.

use super::coverage::Class;
use super::world::World;
use duramen_base::random::Random;
use duramen_engine::FlashOptions;
use duramen_engine::flash::Device;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

const BYTES: usize = 8 << 20;

/// The state of the flash devices of a machine: error rates and latency.
#[derive(Clone)]
pub(super) struct Mood(Arc<Mutex<State>>);

struct State {
    random: Random,
    /// One in so many reads fails; 0: none does.
    reads_fail: u64,
    writes_fail: u64,
    /// Longest time of an operation, in microseconds.
    slow_us: u64,
    /// Total time of the reads since the last query.
    took_us: u64,
    failures: u64,
}

impl Mood {
    pub fn new(seed: u64) -> Mood {
        Mood(Arc::new(Mutex::new(State {
            random: Random::new(seed),
            reads_fail: 0,
            writes_fail: 0,
            slow_us: 0,
            took_us: 0,
            failures: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on one in so many reads and writes fails; 0: none does.
    pub fn fail(&self, reads: u64, writes: u64) {
        let mut state = self.state();
        (state.reads_fail, state.writes_fail) = (reads, writes);
    }

    pub fn slow_down(&self, most_us: u64) {
        self.state().slow_us = most_us;
    }

    /// Total time of the reads since the last query.
    pub fn took_us(&self) -> u64 {
        std::mem::take(&mut self.state().took_us)
    }

    /// Number of failures since the last query.
    pub fn failures(&self) -> u64 {
        std::mem::take(&mut self.state().failures)
    }

    fn operation(&self, is_read: bool) -> io::Result<()> {
        let mut state = self.state();
        if is_read && state.slow_us > 0 {
            let slow_us = state.slow_us;
            state.took_us += state.random.below(slow_us);
        }
        let one_in = if is_read {
            state.reads_fail
        } else {
            state.writes_fail
        };
        if one_in > 0 && state.random.one_in(one_in) {
            state.failures += 1;
            return Err(io::Error::from_raw_os_error(5)); // EIO
        }
        Ok(())
    }
}

struct Flash(RwLock<Vec<u8>>, Mood);

/// Options with an empty device.
pub(super) fn options(mood: &Mood) -> FlashOptions {
    FlashOptions {
        device: Arc::new(Flash(RwLock::new(vec![0; BYTES]), mood.clone())),
    }
}

impl Device for Flash {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.1.operation(true)?;
        let bytes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.1.operation(false)?;
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        BYTES as u64
    }
}

impl World {
    /// Total time of a server's reads from flash since the last query.
    pub(super) fn flash_took_us(&mut self, n: usize) -> u64 {
        let flash = &self.machines[n].flash;
        if flash.failures() > 0 {
            self.coverage.fired(Class::FlashError);
        }
        let took_us = flash.took_us();
        if took_us > 0 {
            self.coverage.fired(Class::SlowFlash);
        }
        took_us
    }
}
