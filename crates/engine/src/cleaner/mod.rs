//! The cleaner: frees the memory of dead entries while other threads work on.
//!
//! `select` chooses victims, `context` empties them step by step, `pacer` decides when and how
//! fast; this file has the background threads. Papers: [Rumble14 §3-7], [Merritt17 §3.2].

mod balance;
pub(crate) mod candidate;
pub mod context;
pub mod cpu_affinity;
mod expire;
pub(crate) mod index_search;
mod levels;
pub mod pacer;
mod rescan;
mod select;

use crate::Departure;
use crate::core::Core;
use crate::core::flash::cleared;
use crate::space::Purpose;
use context::{Caller, Step};
use cpu_affinity::CpuAffinity;
use duramen_base::planted::carry;
use expire::{expire, expire_cold};
use pacer::wants_cleaning;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A background step: so short that shutdown and exclusive sessions do not wait noticeably.
const STEP_BYTES: u64 = 512 << 10;
/// Sleep of a cleaner that has nothing to do; writers wake it when memory gets short.
const NAP: Duration = Duration::from_millis(20);
/// The same while no session writes: an idle store takes almost no processor time.
const IDLE_NAP: Duration = Duration::from_millis(250);
/// Time between checks for deleted data, for expiry, and for free memory to give back.
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(100);
/// Time between rounds that examine every segment in which an entry may have expired, while writers
/// are refused.
const THOROUGH_EVERY: Duration = Duration::from_secs(5);
/// Free windows kept backed ahead of the heads, so that no writer waits for the first touch of
/// memory.
const PREPARED_WINDOWS: usize = 2;
/// Bytes of index views moved per housekeeping when the index is fragmented: some 5 ms of work; a
/// multiple of it, the more fragmented the index is.
const DEFRAGMENT_BYTES: usize = 8 << 20;
/// Maximum multiple: it takes half of the thread's time.
const DEFRAGMENT_HASTE_MAX: u64 = 8;
/// Free windows kept when memory is given back after deletions.
const KEPT_WINDOWS: usize = 2;
/// Maximum windows whose memory is given back in a step: some milliseconds.
const TRIMMED_AT_ONCE: usize = 16;

/// Starts the background threads of a store.
pub fn start(core: &Arc<Core>) -> std::io::Result<Vec<JoinHandle<()>>> {
    (0..core.cleaners.threads())
        .map(|number| {
            let core = core.clone();
            std::thread::Builder::new()
                .name(format!("cleaner-{number}"))
                .spawn(carry(move || {
                    let topology = core.actors.topology();
                    topology.stay_on(number % topology.nodes());
                    Cleaner {
                        number,
                        housekept: Instant::now(),
                        cursor: 0,
                        thorough: Thorough::default(),
                        waits_to_expire: false,
                        log_time: 0,
                        cpu_affinity: CpuAffinity::new(core.actors.heads().len()),
                    }
                    .run(&core)
                }))
        })
        .collect()
}

struct Cleaner {
    number: usize,
    housekept: Instant,
    /// Window at which the expiry pass continues.
    cursor: usize,
    thorough: Thorough,
    /// Segments on flash have expired, and wait until the device may be read for them again.
    waits_to_expire: bool,
    /// Log time before the last nap.
    log_time: u64,
    cpu_affinity: CpuAffinity,
}

/// A round of the expiry pass that trusts no estimate. It spans several calls of the pass.
#[derive(Default)]
struct Thorough {
    began: Option<Instant>,
    /// Windows that it has yet to look at.
    left: usize,
}

impl Thorough {
    /// Begins a round if writers are refused and the last round is long ago.
    fn tend(&mut self, refuses: bool, total: usize, now: Instant) {
        let rested = self.began.is_none_or(|began| now - began >= THOROUGH_EVERY);
        if !refuses {
            self.left = 0;
        } else if self.left == 0 && rested {
            (self.began, self.left) = (Some(now), total);
        }
    }

    /// Counts the next window. Returns true if it belongs to a round.
    fn next(&mut self) -> bool {
        let goes_on = self.left > 0;
        self.left = self.left.saturating_sub(1);
        goes_on
    }
}

impl Cleaner {
    fn run(mut self, core: &Core) {
        while !core.cleaners.are_ending() {
            self.cpu_affinity.keep(core);
            let busy = self.clean(core) | self.count_cleared(core);
            if self.number < core.space.nodes() {
                self.prepare(core);
            }
            if self.number == 0 && self.housekept.elapsed() >= HOUSEKEEPING_EVERY {
                self.housekept = Instant::now();
                self.keep_house(core);
            }
            if !busy {
                core.cleaners.note_idle_look();
                let now = core.actors.log_time();
                let idle = std::mem::replace(&mut self.log_time, now) == now;
                let long = idle && !self.waits_to_expire && !core.cleared().is_pending();
                core.cleaners.nap(if long { IDLE_NAP } else { NAP });
            }
        }
    }

    /// Does one step if memory is short or has to be given back. Returns false if there is nothing
    /// to do now.
    fn clean(&self, core: &Core) -> bool {
        let mut context = core.cleaners.lock(self.number);
        let node = context.seat.node();
        core.windows().take_back_released();
        core.windows().reap(node);
        if let Some(demotion) = core.demotion() {
            demotion.tend_promoted(node);
        }
        // Memory that is free already is given back first.
        core.space.follow_limit(node, TRIMMED_AT_ONCE);
        let shrinking = core.need().is_giving_back();
        if !wants_cleaning(core, node, self.number) && !shrinking {
            return false;
        }
        let caller = Caller::outside(context.seat.me());
        let step = context.step(core, STEP_BYTES, caller);
        drop(context);
        if shrinking {
            // Windows are reaped even if no victim is left: their last readers may have left only
            // now.
            core.windows().reap(node);
            core.space.trim(node, KEPT_WINDOWS, TRIMMED_AT_ONCE);
        }
        step == Step::Worked
    }

    /// Does a step of counting the entries that clears left (`cleared`). Returns false if there is
    /// nothing to do now.
    fn count_cleared(&self, core: &Core) -> bool {
        self.number == 0 && core.cleared().has_any() && cleared::count(core, &core.cleaners.lock(0))
    }

    /// Backs a free window before a head needs it, unless a cleaner could free such memory instead.
    fn prepare(&self, core: &Core) {
        let node = self.number % core.space.nodes();
        let need = core.need();
        while !need.is_giving_back()
            && need.is_filling(node)
            && core.space.prepare_one(node, PREPARED_WINDOWS)
        {}
    }

    fn keep_house(&mut self, core: &Core) {
        core.clock().watch(core.log.as_deref(), &core.space);
        core.watch_flash();
        core.need().watch_live_size();
        core.space.tend_scarcity();
        core.resources().reap();
        self.defragment_index(core);
        core.resources().trim();
        self.expire(core);
    }

    /// Moves a few views of fragmented indexes.
    fn defragment_index(&self, core: &Core) {
        let resources = core.resources();
        // No view of a growing index stays in its place for long, and moves would delay the writers
        // that make it grow.
        let grows = index_grows(core) && !core.need().is_near_limit();
        if grows || !resources.is_fragmented() {
            return;
        }
        let haste = resources.fragmentation().clamp(1, DEFRAGMENT_HASTE_MAX) as usize;
        let mut left = haste * DEFRAGMENT_BYTES;
        let context = core.cleaners.lock(self.number);
        // Enter first, then take the registry's lock: a guard that drops a table waits for this
        // context to leave before it takes that lock.
        while left > 0 && context.seat.enter(core) {
            let mut moved = 0;
            core.tables.each_index(|_, index| {
                moved += resources.defragment(index, context.seat.me());
            });
            context.seat.leave(core);
            // The hole that a view left is free for the next one as soon as no reader uses the
            // view.
            resources.reap();
            if moved == 0 {
                return;
            }
            left = left.saturating_sub(moved);
        }
    }

    /// Finds segments of which a good part has expired, and drops the expired entries. Takes at
    /// most a tenth of the time. Segments on flash have to be read for this, in a burst now and
    /// then (background_reads::F8).
    fn expire(&mut self, core: &Core) {
        if core.is_loading() {
            return;
        }
        let now_ms = core.clock().now_ms();
        let started = Instant::now();
        let total = core.space.segments.len();
        let tier = core.tier();
        let mut may_read = tier.is_some_and(|tier| tier.background_reads.are_rested());
        self.waits_to_expire = false;
        self.thorough.tend(refuses_heads(core), total, started);
        for _ in 0..total {
            let window = self.cursor % total;
            self.cursor = window + 1;
            let thorough = self.thorough.next();
            let segment = &core.space.segments[window];
            if !segment.is_in_log() || core.is_held(window as u32) {
                continue;
            }
            let is_cold = core.is_cold(window as u32);
            let is_due = if is_cold {
                let demotion = core.demotion();
                demotion.is_some_and(|it| it.is_worth_expiring(window as u32, now_ms))
            } else {
                let expired = segment.expired_estimate(now_ms);
                (thorough || core.listeners.departures.wants(Departure::Expired))
                    && segment.may_have_expired(now_ms)
                    || expired > 0 && expired >= segment.expiring_bytes() / 8
            };
            if !is_due || (is_cold && !may_read) {
                self.waits_to_expire |= is_due;
                continue;
            }
            let context = core.cleaners.lock(self.number);
            if is_cold {
                expire_cold(core, window as u32, &context);
                may_read = tier.is_some_and(|tier| tier.background_reads.are_in_burst());
            } else {
                expire(core, window as u32, context.seat);
                if started.elapsed() > HOUSEKEEPING_EVERY / 10 {
                    return;
                }
            }
        }
    }
}

/// True while many entries come at once: segments are being loaded, or a side log is being filled.
fn index_grows(core: &Core) -> bool {
    let log = core.log.as_ref();
    log.is_some_and(|log| log.arrivals().are_there())
}

/// True if writers are refused: memory or the disk is full.
fn refuses_heads(core: &Core) -> bool {
    core.refuses(Purpose::Head) || !core.disk_has_room(Purpose::Head)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thorough_round_looks_at_each_window_once_in_a_while() {
        let began = Instant::now();
        let mut thorough = Thorough::default();
        thorough.tend(false, 3, began);
        assert!(!thorough.next());
        for round in 0..3 {
            let start = began + round * THOROUGH_EVERY;
            // A call of the pass may end early; the next one goes on.
            thorough.tend(true, 3, start);
            assert!(thorough.next());
            let later = start + THOROUGH_EVERY / 2;
            thorough.tend(true, 3, later);
            assert!(thorough.next() && thorough.next() && !thorough.next());
            thorough.tend(true, 3, later);
            assert!(!thorough.next());
        }
    }
}
