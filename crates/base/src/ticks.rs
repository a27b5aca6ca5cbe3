//! Time stamps that order events across cores without a shared cache line.
//!
//! **Invariant**
//! - T1: if `now` returned `a` on one core before a fence that another core's
//!   `now_after` observed, then the latter returns at least `a`. On x86-64 with an invariant TSC
//!   this is the time stamp counter, which the kernel keeps synchronised over cores; elsewhere, and
//!   under a model checker, it is one shared counter that `now_after` advances.
//!
//! Paper: [Merritt17 §3.3] epochs from the TSC; differs: the fallback for machines whose TSC stops
//! or drifts.

use crate::sync::{AtomicU64, Ordering};

/// A source of stamps; see T1.
pub struct Ticks {
    /// `None` = the TSC.
    counter: Option<AtomicU64>,
}

impl Ticks {
    /// The TSC if it is invariant, otherwise a counter.
    pub fn detect() -> Ticks {
        if tsc_is_invariant() {
            Ticks { counter: None }
        } else {
            Ticks::counting()
        }
    }

    /// The fallback for machines without an invariant TSC: a shared counter.
    pub fn counting() -> Ticks {
        Ticks {
            counter: Some(AtomicU64::new(1)),
        }
    }

    pub fn is_tsc(&self) -> bool {
        self.counter.is_none()
    }

    /// A stamp for the start of an operation. The caller orders it before the operation (by a
    /// fence).
    #[inline(always)]
    pub fn now(&self) -> u64 {
        match &self.counter {
            None => tsc(),
            Some(counter) => counter.load(Ordering::SeqCst),
        }
    }

    /// A stamp for the start of an operation: nothing that follows it in program order has happened
    /// yet. So an event that is seen to happen later on another core gets at least as high a stamp
    /// from `now_after`.
    pub fn now_before(&self) -> u64 {
        match &self.counter {
            None => tsc_before(),
            Some(counter) => counter.load(Ordering::SeqCst),
        }
    }

    /// A stamp for the end of an operation: everything before it in program order has happened, and
    /// later `now`s on other cores that follow it return more.
    pub fn now_after(&self) -> u64 {
        match &self.counter {
            None => tsc_fenced(),
            Some(counter) => counter.fetch_add(1, Ordering::SeqCst),
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
fn tsc_is_invariant() -> bool {
    use std::arch::x86_64::__cpuid;
    // CPUID 8000_0007h, EDX bit 8: the TSC runs at a constant rate in all power states.
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
#[inline(always)]
fn tsc() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 processor.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
fn tsc_fenced() -> u64 {
    crate::sync::fence(Ordering::SeqCst);
    // SAFETY: LFENCE and RDTSC exist on every x86-64 processor; the fence keeps the read from
    // running ahead.
    unsafe {
        std::arch::x86_64::_mm_lfence();
        std::arch::x86_64::_rdtsc()
    }
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
fn tsc_before() -> u64 {
    // SAFETY: RDTSC and LFENCE exist on every x86-64 processor; the fence keeps later instructions
    // from running ahead of the read.
    let now = unsafe {
        let now = std::arch::x86_64::_rdtsc();
        std::arch::x86_64::_mm_lfence();
        now
    };
    crate::sync::fence(Ordering::SeqCst);
    now
}

#[cfg(any(not(target_arch = "x86_64"), loom, shuttle))]
fn tsc_is_invariant() -> bool {
    false
}
#[cfg(any(not(target_arch = "x86_64"), loom, shuttle))]
fn tsc() -> u64 {
    unreachable!("only the counter is used here")
}
#[cfg(any(not(target_arch = "x86_64"), loom, shuttle))]
fn tsc_fenced() -> u64 {
    unreachable!("only the counter is used here")
}
#[cfg(any(not(target_arch = "x86_64"), loom, shuttle))]
fn tsc_before() -> u64 {
    unreachable!("only the counter is used here")
}
