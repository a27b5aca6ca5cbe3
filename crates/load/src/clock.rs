//! A clock cheap enough to read around every single operation: the TSC where there is one, else
//! `Instant`.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A moment in ticks; differences are turned into time by [`to_ns`].
#[inline]
pub fn now() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the TSC exists on every x86-64 processor, and reading it has no effect on memory.
        #[allow(unused_unsafe)]
        unsafe {
            core::arch::x86_64::_rdtsc()
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Nanoseconds in `ticks`.
#[inline]
pub fn to_ns(ticks: u64) -> u64 {
    (ticks as f64 * ns_per_tick()) as u64
}

/// Measured once, over 20 ms.
pub fn ns_per_tick() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (start, first) = together();
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let (end, last) = together();
        end.duration_since(start).as_nanos() as f64 / (last - first).max(1) as f64
    })
}

/// Both clocks at one moment: of some readings the one during which the fewest ticks passed, for a
/// thread may be interrupted between two clocks.
fn together() -> (Instant, u64) {
    let read = || {
        let before = now();
        let at = Instant::now();
        (now() - before, (at, before))
    };
    let readings = (0..10).map(|_| read());
    readings
        .min_by_key(|(ticks, _)| *ticks)
        .expect("ten readings")
        .1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_follow_the_clock() {
        ns_per_tick();
        let (start, first) = together();
        while start.elapsed() < Duration::from_millis(30) {
            std::hint::spin_loop();
        }
        let (end, last) = together();
        let wall = end.duration_since(start).as_nanos() as f64;
        let ticks = to_ns(last - first) as f64;
        assert!(
            (ticks / wall - 1.0).abs() < 0.1,
            "{ticks} ns by ticks, {wall} by the clock"
        );
    }
}
