//! The pacer: decides when to clean, and how much of it writers do themselves.
//!
//! Cleaning early is never cheaper than cleaning late [Rumble14 §5.2], so no cleaning begins until
//! free memory falls to the threshold. Below half of it, writers pay a tax: for each byte appended
//! they scan a few bytes of a victim, and the more the less memory is free. So throughput falls
//! gradually, and no writer ever meets an empty pool and a cold cleaner: a step of the tax is
//! bounded, and its cost is spread over all batches.

use super::balance::Load;
use crate::Error;
use crate::cleaner::context::{Caller, Step};
use crate::core::Core;
use crate::epoch::SlotId;
use crate::head::Head;
use crate::space::Purpose;
use duramen_base::waits::{LongWait, NOTHING, Resource};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes that a writer appends between two checks of the memory pressure: about 30 small objects.
pub const LOOK_EVERY_BYTES: u64 = 4 << 10;
/// Maximum victim bytes scanned in one step of tax: less than 0.1 ms, as the writer's next requests
/// wait for it.
const TAX_STEP_BYTES: u64 = 64 << 10;
/// Maximum victim bytes scanned in one step of a writer that has to wait for memory anyway.
const WAITING_STEP_BYTES: u64 = 256 << 10;
/// Maximum victim bytes scanned per byte appended: one and a half times the rate that a victim
/// needs of which 95 % are live.
const TAX_RATE_MAX: f64 = 30.0;
/// Number of victims that must be retired before a lack of gain counts.
const GAIN_JUDGED_AFTER: u64 = 64;

/// Longest wait of a transaction for memory while the oldest pin does not move: its holder is then
/// most likely waiting for the transaction.
const STARVED_AFTER: Duration = Duration::from_millis(100);
/// After this time, a waiting guard that can unlock its keys does so and waits outside: threads
/// that want the keys are pinned, and memory that was retired is not free while they are.
const BRIEFLY: Duration = Duration::from_millis(5);
/// Longest pause between two looks of a waiter that counts as waiting: in a longer pause, other
/// threads may not have run either.
const PAUSE_COUNTED: Duration = Duration::from_millis(5);

/// Longest wait of a writer for victims on which no cleaner makes progress, for example for want of
/// room in a survivor.
const STUCK_AFTER: Duration = Duration::from_secs(2);

/// Longest wait of a writer while the log's writer, which cleaning waits for, makes no progress.
const DISK_STUCK_AFTER: Duration = Duration::from_secs(10);
/// Longest wait of a writer for memory, whatever others gain meanwhile. Its thread serves no other
/// request, and others may take the gained memory again. Recoveries that fail for want of room do
/// so.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);
/// Longest wait of a writer for a segment, if the disk has none for its purpose.
const FULL_DISK_AFTER: Duration = Duration::from_secs(2);
/// Longest wait for such a segment if a writer was refused already and no head has got a segment
/// since.
const FULL_DISK_AGAIN: Duration = Duration::from_millis(50);
/// Longest wait of a writer for memory if another one waited in vain for a device, which has done
/// nothing since: the writers of a thread wait one after the other, and all its clients with them.
pub(super) const STUCK_DEVICE_AGAIN: Duration = Duration::from_millis(50);
#[cfg(not(any(loom, shuttle)))]
const DISK_LOOK_AGAIN: Duration = Duration::from_micros(50);

/// The time for which a thread has waited in vain, measured by looks at the clock. If the thread or
/// the machine stands still for longer than the whole patience, no other thread had a chance to
/// run: that counts as one look, and is no reason to give up.
pub(super) struct Waited {
    time: Duration,
    looked: Instant,
}

impl Waited {
    pub(super) fn since(now: Instant) -> Waited {
        Waited {
            time: Duration::ZERO,
            looked: now,
        }
    }

    pub(super) fn look(&mut self, now: Instant) -> Duration {
        self.time += now.duration_since(self.looked).min(PAUSE_COUNTED);
        self.looked = now;
        self.time
    }
}

/// The time for which a writer has seen no memory become free.
struct InVain {
    alone: bool,
    waited: Waited,
}

impl InVain {
    fn begin(alone: bool) -> InVain {
        InVain {
            alone,
            waited: Waited::since(Instant::now()),
        }
    }

    /// The time until now. Call it at every look.
    fn time(&mut self) -> Duration {
        self.waited.look(Instant::now())
    }

    /// Longest wait for the disk. A guard that is inside may be waiting for the group that is open
    /// inside, which is never durable before its end.
    fn patience(&self) -> Duration {
        if self.alone {
            STARVED_AFTER
        } else {
            DISK_STUCK_AFTER
        }
    }
}

/// State in which a writer waits for memory.
#[derive(Clone, Copy)]
pub enum Waiting {
    /// Not pinned.
    Outside,
    /// Pinned by this slot, whose stamp is renewed now and then: the state of a transaction.
    Inside(SlotId),
    /// As `Inside`, for a guard that is alone in the store: it may wait for a flash device.
    Alone(SlotId),
    /// As `Inside`, for a guard that unlocks its keys if there is no memory at once, and then waits
    /// outside (transaction::T5).
    Briefly(SlotId),
}

impl Waiting {
    /// Longest wait. A side log is filled by a thread that serves no other request.
    fn most(self, purpose: Purpose) -> Duration {
        match self {
            Waiting::Briefly(_) => BRIEFLY,
            _ if purpose.is_for_head() => WAIT_MAX,
            _ => Duration::MAX,
        }
    }

    /// True if the writer is inside the store.
    fn is_inside(self) -> bool {
        !matches!(self, Waiting::Outside)
    }
}

/// With a log only cleaner threads begin passes (the helpers of writers do not). A writer that
/// finds nothing to clean therefore lets each of them look before it gives up.
struct CleanersTurn {
    looks: u64,
    waited: Waited,
}

impl CleanersTurn {
    fn new(core: &Core) -> CleanersTurn {
        CleanersTurn {
            looks: core.cleaners.idle_looks(),
            waited: Waited::since(Instant::now()),
        }
    }

    fn is_over(&mut self, core: &Core) -> bool {
        let waited = self.waited.look(Instant::now());
        let looks = core.cleaners.idle_looks() - self.looks;
        // The first look of a thread may have begun before there was work to find.
        core.log.is_none()
            || core.cleaners.threads() == 0
            || looks > 2 * core.cleaners.threads() as u64
            || waited > STUCK_AFTER
    }
}

/// A writer's search for memory.
struct Search<'c> {
    core: &'c Core,
    /// The node of the writer's head.
    node: usize,
    /// The writer's lock owner number.
    me: u16,
    waiting: Waiting,
    purpose: Purpose,
    /// The writer is inside the store.
    alone: bool,
    /// The time since its beginning.
    whole: Waited,
    /// Gain of cleaning when it was last judged.
    gain: (u64, u64),
    /// Progress of others at the last look, and the time without any.
    freed: u64,
    in_vain: InVain,
    /// Number of looks that found no other thread at work.
    fruitless: u32,
    turn: CleanersTurn,
    /// The oldest pin, and the time for which it has not moved.
    oldest: (u64, Waited),
}

/// True if this cleaner thread should work. With a log, threads beyond the first of each node join
/// later.
pub fn wants_cleaning(core: &Core, node: usize, thread: usize) -> bool {
    let need = core.need();
    let Some(log) = &core.log else {
        return need.is_low(node) || need.flash_wants_cleaning();
    };
    let load = Load::of(core, log);
    let joins = thread < core.space.nodes()
        || load.memory_is_low(thread / core.space.nodes())
        || core.space.free_windows(node) == 0;
    let relocates = log.swaps().relocations.is_asking();
    need.is_low(node) && joins
        || need.flash_wants_cleaning()
        || (load.disk_is_low() || relocates) && !core.is_loading()
}

/// If memory is short, cleans in proportion to the bytes that the caller appended. The caller is
/// outside (not pinned).
pub fn pay_tax(core: &Core, appended_bytes: u64, head: &Head, me: u16) {
    head.processor.note();
    let rate = tax_rate(core, head.node);
    if rate > 0.0 {
        let quota = (rate * appended_bytes as f64) as u64;
        // Does not wait for a context: if all helpers are at work, cleaning is in progress.
        help(core, head.node, quota.min(TAX_STEP_BYTES), me, None);
        if core.space.budget.is_above_limit() {
            core.windows().reap(head.node);
        }
    }
}

/// Victim bytes to scan per byte appended.
fn tax_rate(core: &Core, node: usize) -> f64 {
    let free = core.need().ease(node);
    if free >= 0.5 {
        return 0.0;
    }
    let needed = (1.5 / core.cleaners.pacer.victim_dead_part().max(0.01)).min(TAX_RATE_MAX);
    needed * (0.5 - free) / 0.5
}

/// One step in one of the helpers' contexts, for a writer that waits for memory, or pays a tax
/// (`None`). A writer that is inside the store takes those of cleaner threads too: it keeps these
/// threads from working, because it is alone or because another guard waits for it to leave.
/// `None`: contexts of this node are busy, and the others have nothing to do.
///
/// A writer that is outside waits for a context if all are busy. One that is inside does not: a
/// cleaner thread keeps its context while it waits for a flash device.
fn help(
    core: &Core,
    node: usize,
    quota_bytes: u64,
    me: u16,
    waiting: Option<Waiting>,
) -> Option<Step> {
    let inside = waiting.is_some_and(Waiting::is_inside);
    let caller = Caller {
        me,
        is_inside: inside,
        may_wait: matches!(waiting, Some(Waiting::Alone(_))),
    };
    let contexts = if inside {
        0..core.cleaners.contexts()
    } else {
        core.cleaners.helpers()
    };
    let mut helpers = contexts.filter(|n| n % core.space.nodes() == node);
    let (mut result, mut is_busy) = (None, false);
    // If one context has nothing to do, another may still have victims. If one gets no window,
    // another may have the last window, and no thread of its own (space::S5).
    for n in helpers.clone() {
        let Some(mut context) = core.cleaners.try_lock(n) else {
            is_busy = true;
            continue;
        };
        match context.step(core, quota_bytes, caller) {
            Step::Worked => return Some(Step::Worked),
            Step::Blocked => result = Some(Step::Blocked),
            Step::Idle => result = result.or(Some(Step::Idle)),
        }
    }
    if inside && is_busy {
        return None;
    }
    if result.is_none() && waiting.is_some() {
        let n = helpers.next()?;
        let mut context = core.cleaners.lock(n);
        result = Some(context.step(core, quota_bytes, caller));
    }
    result
}

/// Finds memory for one window of a head, cleaning until there is some.
///
/// # Errors
/// [`Error::OutOfMemory`] when cleaning frees no more.
pub fn find_memory(
    core: &Core,
    head: &Head,
    me: u16,
    waiting: Waiting,
    purpose: Purpose,
) -> Result<(), Error> {
    let started = Instant::now();
    core.cleaners.wake();
    let result = Search::begin(core, head.node, me, waiting, purpose).clean_until_free();
    // The head may be another session's by now, so these counters have more than one writer.
    let counters = &head.counters;
    counters.stalls.fetch_add(1, Ordering::Relaxed);
    let stalled_ns = started.elapsed().as_nanos() as u64;
    counters.stall_ns.fetch_add(stalled_ns, Ordering::Relaxed);
    core.cleaners.pacer.note_stall(stalled_ns);
    result
}

impl<'c> Search<'c> {
    fn begin(
        core: &'c Core,
        node: usize,
        me: u16,
        waiting: Waiting,
        purpose: Purpose,
    ) -> Search<'c> {
        let alone = waiting.is_inside();
        Search {
            core,
            node,
            me,
            waiting,
            purpose,
            alone,
            whole: Waited::since(Instant::now()),
            gain: core.cleaners.gain(),
            freed: 0,
            in_vain: InVain::begin(alone),
            fruitless: 0,
            turn: CleanersTurn::new(core),
            oldest: (0, Waited::since(Instant::now())),
        }
    }

    fn clean_until_free(mut self) -> Result<(), Error> {
        let (core, node, purpose) = (self.core, self.node, self.purpose);
        let holding = if self.alone {
            &[Resource::Key, Resource::Head, Resource::Pin]
        } else {
            NOTHING
        };
        let mut long = LongWait::new(Resource::Memory, holding);
        loop {
            long.look();
            let waited = self.whole.look(Instant::now());
            self.has_patience(waited)?;
            self.freshen_pin()?;
            core.windows().take_back_released();
            core.windows().reap(node);
            let disk_has_room = core.disk_has_room(purpose);
            if core.space.free_windows_for(node, purpose) > 0 && disk_has_room {
                core.cleaners.pacer.set_evicts_by_force(false);
                return Ok(());
            }
            if purpose != Purpose::Promoted && core.refuses(purpose) {
                return Err(core.out_of_memory());
            }
            if core.is_cache() && !disk_has_room {
                // Cleaning alone may free no segment, and no client of a cache deletes.
                core.cleaners.pacer.set_evicts_by_force(true);
            }
            if !disk_has_room && waited > self.disk_patience() {
                return Err(self.disk_full());
            }
            let step = help(core, node, WAITING_STEP_BYTES, self.me, Some(self.waiting));
            if step != Some(Step::Worked) {
                self.wait_for_others(disk_has_room, step.is_none())?;
                duramen_base::sync::yield_now();
            }
            self.judge_gain(disk_has_room)?;
        }
    }

    /// # Errors
    /// If the search has taken too long.
    fn has_patience(&mut self, waited: Duration) -> Result<(), Error> {
        let most = self.waiting.most(self.purpose);
        if waited <= most.min(self.device_patience()) {
            return Ok(());
        }
        // A guard that waits briefly waits again outside if it gets this error.
        let is_brief = matches!(self.waiting, Waiting::Briefly(_));
        let in_vain = self.in_vain.time();
        self.note_stuck_device(in_vain);
        Err(self.no_room(self.core.disk_has_room(self.purpose) || is_brief))
    }

    /// Gives a guard that is inside a fresh stamp.
    ///
    /// # Errors
    /// If the oldest pin has not moved for long: its holder is most likely waiting for this guard.
    fn freshen_pin(&mut self) -> Result<(), Error> {
        let (Waiting::Inside(slot) | Waiting::Alone(slot) | Waiting::Briefly(slot)) = self.waiting
        else {
            return Ok(());
        };
        let core = self.core;
        core.door.epochs().pin(slot);
        let quiet = core.door.epochs().quiet_before();
        if quiet != self.oldest.0 {
            self.oldest = (quiet, Waited::since(Instant::now()));
            return Ok(());
        }
        let waited = self.oldest.1.look(Instant::now());
        // The writer can clean, but not demote: with a tier it depends on a cleaner thread and the
        // device. A full disk gives this error too, which makes the caller unlock its keys and try
        // again.
        if waited > STARVED_AFTER && (!core.need().waits_for_flash() || waited > STUCK_AFTER) {
            self.note_stuck_device(waited);
            return Err(core.out_of_memory());
        }
        Ok(())
    }

    /// There is nothing to clean now. Cleaners may be finishing victims, readers may be leaving
    /// retired windows, and other writers may be taking the freed windows first: all of this is
    /// progress. `is_busy`: other threads are at work in contexts that the writer could use.
    ///
    /// # Errors
    /// There is no progress.
    fn wait_for_others(&mut self, disk_has_room: bool, is_busy: bool) -> Result<(), Error> {
        let core = self.core;
        // Loaded in the order in which a victim passes through these states.
        let victims = core.cleaners.victims(self.node);
        let (retired, _) = core.space.waiting(self.node);
        let flash = core.tier().map_or(0, |tier| tier.progress());
        let log = core.log.as_ref().map_or(0, |log| log.progress());
        let freed = core.cleaners.gain().0 + log + flash + core.cleared().progress();
        let waited = self.in_vain.time();
        let alone = self.alone;
        if freed != self.freed || (!alone && core.door.is_wanted()) {
            (self.freed, self.in_vain, self.fruitless) = (freed, InVain::begin(alone), 0);
            self.turn = CleanersTurn::new(core);
        } else if is_disk_full(core) && waited > STARVED_AFTER {
            return Err(self.disk_full());
        } else if self.waits_for_disk() && waited < self.in_vain.patience() {
            ask_disk(core)?;
            self.turn = CleanersTurn::new(core);
        } else if core.need().waits_for_flash() && waited < DISK_STUCK_AFTER {
            if let Some(demotion) = core.demotion() {
                demotion.ask();
            }
            #[cfg(not(any(loom, shuttle)))]
            std::thread::sleep(DISK_LOOK_AGAIN);
            self.turn = CleanersTurn::new(core);
        } else if !alone && !self.turn.is_over(core) {
            core.cleaners.wake();
        } else if retired == 0 && (victims == 0 && !is_busy || waited > STUCK_AFTER) {
            self.fruitless += 1;
            if self.fruitless > 3 && !disk_has_room {
                return Err(self.disk_full());
            }
            if self.fruitless > 3 {
                self.give_up_cleaning(disk_has_room)?;
            }
        }
        Ok(())
    }

    /// Fragments of large objects can make every victim as long as its survivor: then cleaning does
    /// not help.
    fn judge_gain(&mut self, disk_has_room: bool) -> Result<(), Error> {
        let (freed, used) = self.core.cleaners.gain();
        let (freed, used) = (freed - self.gain.0, used - self.gain.1);
        if freed >= GAIN_JUDGED_AFTER {
            if used >= freed && !self.core.need().waits_for_flash() {
                self.give_up_cleaning(disk_has_room)?;
            }
            self.gain = self.core.cleaners.gain();
        }
        Ok(())
    }

    /// Longest wait of a writer while a device completes nothing, if another writer waited in vain.
    fn device_patience(&self) -> Duration {
        let (core, purpose) = (self.core, self.purpose);
        let flash = core.tier().map(|tier| tier.progress());
        let disk = core.log.as_ref().map(|log| log.progress());
        // Cleaning may find room for a removal without flash, but not without the disk.
        let is_stuck = core.cleaners.pacer.flash_stuck.stands(flash)
            && purpose != Purpose::Tombstones
            || core.cleaners.pacer.disk_stuck.stands(disk);
        if is_stuck && purpose.is_for_head() {
            STUCK_DEVICE_AGAIN
        } else {
            Duration::MAX
        }
    }

    /// The writer waited in vain. If it waited for a device, the next writers do not wait as long.
    fn note_stuck_device(&self, waited: Duration) {
        let core = self.core;
        if waited <= STUCK_AFTER {
            return; // the device may only be slow
        }
        if let Some(tier) = core.tier()
            && core.need().waits_for_flash()
        {
            core.cleaners.pacer.flash_stuck.note(tier.progress());
        }
        if let Some(log) = &core.log
            && self.waits_for_disk()
        {
            core.cleaners.pacer.disk_stuck.note(log.progress());
        }
    }

    /// Longest wait of a writer for a segment of a disk that has none, whatever others gain
    /// meanwhile.
    fn disk_patience(&self) -> Duration {
        // A removal waits even if other writers were refused: several passes may be needed to free
        // a segment for its tombstone.
        if self.purpose == Purpose::Tombstones {
            return WAIT_MAX;
        }
        let mut log = self.core.log.iter();
        match log.any(|log| log.swaps().disk().is_short()) {
            true => FULL_DISK_AGAIN,
            false => FULL_DISK_AFTER,
        }
    }

    /// True if the log's writer has work to do after which cleaning may continue, or memory or disk
    /// may be free.
    fn waits_for_disk(&self) -> bool {
        let core = self.core;
        let Some(log) = &core.log else {
            return false;
        };
        let segments = (0..).zip(&core.space.segments);
        log.swaps().is_waiting()
            || log.swaps().turn().is_taken() && !core.disk_has_room(self.purpose)
            || segments
                .filter(|(_, segment)| segment.is_closed())
                .any(|(window, _)| match core.tier() {
                    None => !log.is_victim_to_be(window),
                    // A window that is held and written waits for flash, not for the disk.
                    Some(_) => !log.may_leave_memory(window),
                })
    }

    /// Cleaning alone frees nothing: a store is full, and a cache must evict.
    fn give_up_cleaning(&self, disk_has_room: bool) -> Result<(), Error> {
        if !self.core.is_cache() {
            return Err(self.no_room(disk_has_room));
        }
        self.core.cleaners.pacer.set_evicts_by_force(true);
        Ok(())
    }

    /// The error of a writer that gets no window.
    fn no_room(&self, disk_has_room: bool) -> Error {
        match disk_has_room {
            true => self.core.out_of_memory(),
            false => self.disk_full(),
        }
    }

    /// The error for a writer that gets no segment for want of disk.
    fn disk_full(&self) -> Error {
        if let Some(log) = &self.core.log {
            log.swaps().disk().set_refused(true);
        }
        Error::DiskFull
    }
}

/// True if survivors cannot be written for want of space.
fn is_disk_full(core: &Core) -> bool {
    let mut log = core.log.iter();
    log.any(|log| log.refusals().cannot_clean())
}

/// Requests a commit, and yields the core to the thread that makes it.
fn ask_disk(core: &Core) -> Result<(), Error> {
    if let Some(log) = &core.log {
        log.refusals().check()?;
        log.demand();
    }
    #[cfg(not(any(loom, shuttle)))]
    std::thread::sleep(DISK_LOOK_AGAIN);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cleaner thread keeps its context while it waits for a flash device. A transaction waited
    /// for that context, with its keys locked, for as long as the device stood still.
    #[cfg(not(any(loom, shuttle)))]
    #[test]
    fn a_writer_that_is_inside_waits_for_no_context() {
        let store = crate::Store::new(crate::Options {
            cleaners: 1,
            ..crate::Options::new(64 << 20)
        });
        let store = store.unwrap();
        let core = store.core();
        let visitor = crate::core::Visitor::wait(core);
        let busy: Vec<_> = (0..core.cleaners.contexts())
            .map(|n| core.cleaners.lock(n))
            .collect();
        for waiting in [Waiting::Inside, Waiting::Briefly, Waiting::Alone] {
            let step = help(core, 0, 1000, visitor.me(), Some(waiting(visitor.slot)));
            assert_eq!(step, None);
        }
        drop(busy);
    }

    #[test]
    fn a_machine_that_stands_still_uses_nobody_s_patience_up() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut waited = Waited::since(start);
        assert!(waited.look(at(1_000)) < STARVED_AFTER);
        assert!(waited.look(at(5_000)) < STARVED_AFTER);
        // With frequent looks, the patience ends in its time.
        let mut waited = Waited::since(start);
        let last = (1..=200).find(|ms| waited.look(at(*ms)) > STARVED_AFTER);
        assert_eq!(last, Some(101));
    }
}
