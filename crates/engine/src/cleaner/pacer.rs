//! The pacer: decides when to clean, and how much of it writers do themselves.
//!
//! Cleaning early is never cheaper than cleaning late [Rumble14 §5.2], so no cleaning begins until
//! free memory falls to the threshold. Below half of it, writers pay a tax: for each byte appended
//! they scan a few bytes of a victim, and the more the less memory is free. So throughput falls
//! gradually, and no writer ever meets an empty pool and a cold cleaner: a step of the tax is
//! bounded, and its cost is spread over all batches.

use crate::Error;
use crate::cleaner::context::Step;
use crate::core::Core;
use crate::core::cleaning::shrink::Look;
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
/// The same for a writer that has to wait for memory anyway.
const WAITING_STEP_BYTES: u64 = 256 << 10;
/// Maximum victim bytes scanned per byte appended: the rate that a victim needs which is 95 % live,
/// and half as much again.
const TAX_RATE_MAX: f64 = 30.0;
/// A cache evicts when this part of the segments' budget is live: cleaning stays cheap.
pub const CACHE_LIVE_PART: f64 = 0.92;

/// Maximum memory of the log, in multiples of its live bytes, while there is something to clean.
/// With half of it live, cleaning costs about one relocation in three writes. That is less than the
/// first touch of as much fresh memory, and memory stays in proportion to the data whatever the
/// budget.
const FOOTPRINT: f64 = 2.0;
/// The same with a log, in multiples of live bytes and tombstones. Cleaning is dearer there: every
/// dead entry must be examined, and an entry that dies young leaves a tombstone which only the
/// disk's cleaning can end. And waiting makes more of it unnecessary.
const FOOTPRINT_WITH_LOG: f64 = 3.0;
/// Number of victims retired before a lack of gain is accepted as one.
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
/// request. And others may take the gained memory again, as recoveries do that fail for want of
/// room.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(5);
/// The same for a segment, if the disk has none for this purpose.
const FULL_DISK_AFTER: Duration = Duration::from_secs(2);
/// The same if a writer was refused already and no head has got a segment since.
const FULL_DISK_AGAIN: Duration = Duration::from_millis(50);
/// Longest wait of a writer for memory if another one waited in vain for a device, which has done
/// nothing since: the writers of a thread wait one after the other, and all its clients with them.
pub(super) const STUCK_DEVICE_AGAIN: Duration = Duration::from_millis(50);
#[cfg(not(any(loom, shuttle)))]
const DISK_LOOK_AGAIN: Duration = Duration::from_micros(50);

/// The time for which a thread has waited in vain, measured by looks at the clock. If a thread, or
/// a machine, stands still for longer than the whole patience, no other thread had a chance to run:
/// that is one look, and no reason to give up.
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
    /// Pinned by this slot, with a fresh stamp now and then: a transaction.
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
struct Search {
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

impl Search {
    fn begin(core: &Core, waiting: Waiting, purpose: Purpose) -> Search {
        let alone = waiting.is_inside();
        Search {
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
}

impl Core {
    /// Windows of a node that the store should need for its present live data: the smaller of the
    /// node's share of the budget and `FOOTPRINT` times the live bytes. Beyond it, cleaning is
    /// cheaper than touching fresh memory.
    fn footprint_windows(&self, node_share: f64) -> f64 {
        let window = self.space.segment_bytes() as f64;
        let hard = self.segment_budget().saturating_sub(self.promoted_bytes()) as f64 / window;
        let slack = (2 * (self.actors.heads().len() + self.cleaners.contexts()) + 4) as f64;
        let wanted = if self.log.is_some() {
            FOOTPRINT_WITH_LOG * (self.live_in_memory() + self.actors.tombstone_bytes()) as f64
        } else {
            FOOTPRINT * self.live_in_memory() as f64
        };
        (wanted / window + slack).min(hard) * node_share
    }

    /// Free windows of a node over the number at which cleaning starts, F <= min(0.1, (1 - L) / 2)
    /// of the memory [Rumble14 §5.2]. 1 or less: clean; 0: the next head has to wait.
    fn ease(&self, node: usize) -> f64 {
        let share = 1.0 / self.space.nodes() as f64;
        let footprint = self.footprint_windows(share);
        let live = self.live_in_memory() as f64 / self.space.segment_bytes() as f64 * share;
        let low = ((1.0 - live / footprint.max(1.0)).max(0.0) / 2.0).min(0.1) * footprint;
        let free =
            (self.space.free_windows(node) as f64).min(footprint - self.windows_in_use(node));
        free.max(0.0) / low.max(1.0)
    }

    /// Windows of a node with entries in them. If several nodes share the budget: the node's share
    /// of all.
    fn windows_in_use(&self, node: usize) -> f64 {
        let committed = self
            .segment_bytes_committed()
            .saturating_sub(self.promoted_bytes());
        let committed = committed as f64 / self.space.segment_bytes() as f64;
        committed / self.space.nodes() as f64 - self.space.waiting(node).1 as f64
    }

    pub fn is_low(&self, node: usize) -> bool {
        self.ease(node) <= 1.0
    }

    /// True if this cleaner thread should work. With a log, threads beyond the first of each node
    /// join later.
    pub fn wants_cleaning(&self, node: usize, thread: usize) -> bool {
        let Some(log) = &self.log else {
            return self.is_low(node) || self.flash_wants_cleaning();
        };
        let load = self.load(log);
        let joins = thread < self.space.nodes()
            || load.memory_is_low(thread / self.space.nodes())
            || self.space.free_windows(node) == 0;
        let relocates = log.swaps().relocations.is_asking();
        self.is_low(node) && joins
            || self.flash_wants_cleaning()
            || (load.disk_is_low() || relocates) && !self.is_loading()
    }

    /// True if memory or disk is short, so that cleaning is more than relocation.
    pub fn is_short(&self, node: usize) -> bool {
        let disk = self.log.as_ref().map(|log| self.load(log).disk_is_low());
        self.is_low(node) || disk == Some(true) || self.is_giving_back()
    }

    /// True while memory is to be given back to the system.
    pub fn is_giving_back(&self) -> bool {
        self.pacer.is_shrinking() || self.is_lowering()
    }

    /// True while the store grows: then windows are backed ahead of the heads, which would have to
    /// touch them anyway.
    pub fn is_filling(&self, node: usize) -> bool {
        self.ease(node) > 1.0
    }

    /// True if a cache is so full that cleaning must evict.
    pub fn must_evict(&self) -> bool {
        self.is_cache()
            && (self.is_evicting_by_force()
                || self.evicts_from_flash() && self.index_is_large()
                || self.actors.live_bytes() as f64 > CACHE_LIVE_PART * self.live_limit() as f64
                    && !self.cleared.is_pending())
    }

    /// True if a cache must evict although little is live.
    pub fn is_evicting_by_force(&self) -> bool {
        self.pacer.forced_eviction.load(Ordering::Relaxed) != 0
    }

    /// Victim bytes to scan per byte appended.
    fn tax_rate(&self, node: usize) -> f64 {
        let free = self.ease(node);
        if free >= 0.5 {
            return 0.0;
        }
        let dead_part = 1.0 - self.pacer.victim_live.load(Ordering::Relaxed) as f64 / 1000.0;
        let needed = (1.5 / dead_part.max(0.01)).min(TAX_RATE_MAX);
        needed * (0.5 - free) / 0.5
    }

    /// If memory is short, cleans in proportion to the bytes that the caller appended. The caller
    /// is outside (not pinned).
    pub fn pay_tax(&self, appended_bytes: u64, head: &Head, me: u16) {
        head.processor.note();
        let rate = self.tax_rate(head.node);
        if rate > 0.0 {
            let quota = (rate * appended_bytes as f64) as u64;
            // Does not wait for a context: if all helpers are at work, cleaning is in progress.
            self.help(head.node, quota.min(TAX_STEP_BYTES), me, None);
            if self.space.budget.is_above_limit() {
                self.windows().reap(head.node);
            }
        }
    }

    /// One step in one of the helpers' contexts, for a writer that waits for memory, or pays a tax
    /// (`None`). A writer that is inside the store takes those of cleaner threads too: it keeps
    /// these threads from working, because it is alone or because another guard waits for it to
    /// leave. `None`: contexts of this node are busy, and the others have nothing to do.
    ///
    /// A writer that is outside waits for a context if all are busy. One that is inside does not: a
    /// cleaner thread keeps its context while it waits for a flash device.
    fn help(
        &self,
        node: usize,
        quota_bytes: u64,
        me: u16,
        waiting: Option<Waiting>,
    ) -> Option<Step> {
        let inside = waiting.is_some_and(Waiting::is_inside);
        let may_wait = matches!(waiting, Some(Waiting::Alone(_)));
        let contexts = if inside {
            0..self.cleaners.contexts()
        } else {
            self.cleaners.helpers()
        };
        let mut helpers = contexts.filter(|n| n % self.space.nodes() == node);
        let (mut result, mut is_busy) = (None, false);
        // If one context has nothing to do, another may still have victims. And if one gets no
        // window, another may have the last one, and no thread of its own (space::S5).
        for n in helpers.clone() {
            let Some(mut context) = self.cleaners.try_lock(n) else {
                is_busy = true;
                continue;
            };
            match context.step(self, quota_bytes, me, inside, may_wait) {
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
            let mut context = self.cleaners.lock(n);
            result = Some(context.step(self, quota_bytes, me, inside, may_wait));
        }
        result
    }

    /// Finds memory for one window of a head, cleaning until there is some.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when cleaning frees no more.
    pub fn find_memory(
        &self,
        head: &Head,
        me: u16,
        waiting: Waiting,
        purpose: Purpose,
    ) -> Result<(), Error> {
        let started = Instant::now();
        self.cleaners.wake();
        let result = self.clean_until_free(head.node, me, waiting, purpose);
        // The head may be another session's by now, so these counters have more than one writer.
        let counters = &head.counters;
        counters.stalls.fetch_add(1, Ordering::Relaxed);
        let stalled_ns = started.elapsed().as_nanos() as u64;
        counters.stall_ns.fetch_add(stalled_ns, Ordering::Relaxed);
        let longest_ns = &self.pacer.longest_stall_ns;
        longest_ns.fetch_max(stalled_ns, Ordering::Relaxed);
        result
    }

    fn clean_until_free(
        &self,
        node: usize,
        me: u16,
        waiting: Waiting,
        purpose: Purpose,
    ) -> Result<(), Error> {
        let mut search = Search::begin(self, waiting, purpose);
        let holding = if search.alone {
            &[Resource::Key, Resource::Head, Resource::Pin]
        } else {
            NOTHING
        };
        let mut long = LongWait::new(Resource::Memory, holding);
        loop {
            long.look();
            let waited = search.whole.look(Instant::now());
            self.has_patience(&mut search, waited)?;
            self.freshen_pin(&mut search)?;
            self.windows().take_back_released();
            self.windows().reap(node);
            let disk_has_room = self.disk_has_room(purpose);
            if self.space.free_windows_for(node, purpose) > 0 && disk_has_room {
                self.pacer.forced_eviction.store(0, Ordering::Relaxed);
                return Ok(());
            }
            if purpose != Purpose::Promoted && self.refuses(purpose) {
                return Err(self.out_of_memory());
            }
            if self.is_cache() && !disk_has_room {
                // Cleaning alone may free no segment, and no client of a cache deletes.
                self.pacer.forced_eviction.store(1, Ordering::Relaxed);
            }
            if !disk_has_room && waited > self.disk_patience(purpose) {
                return Err(self.disk_full());
            }
            let step = self.help(node, WAITING_STEP_BYTES, me, Some(waiting));
            if step != Some(Step::Worked) {
                let is_busy = step.is_none();
                self.wait_for_others(&mut search, node, disk_has_room, is_busy)?;
                duramen_base::sync::yield_now();
            }
            self.judge_gain(&mut search, disk_has_room)?;
        }
    }

    /// # Errors
    /// If the search has taken too long.
    fn has_patience(&self, search: &mut Search, waited: Duration) -> Result<(), Error> {
        let (waiting, purpose) = (search.waiting, search.purpose);
        if waited <= waiting.most(purpose).min(self.device_patience(purpose)) {
            return Ok(());
        }
        // A guard that waits briefly waits again outside if it gets this error.
        let is_brief = matches!(waiting, Waiting::Briefly(_));
        self.note_stuck_device(search.in_vain.time(), purpose);
        Err(self.no_room(self.disk_has_room(purpose) || is_brief))
    }

    /// Gives a guard that is inside a fresh stamp.
    ///
    /// # Errors
    /// If the oldest pin has not moved for long: its holder is most likely waiting for this guard.
    fn freshen_pin(&self, search: &mut Search) -> Result<(), Error> {
        let (Waiting::Inside(slot) | Waiting::Alone(slot) | Waiting::Briefly(slot)) =
            search.waiting
        else {
            return Ok(());
        };
        self.epochs.pin(slot);
        let quiet = self.epochs.quiet_before();
        if quiet != search.oldest.0 {
            search.oldest = (quiet, Waited::since(Instant::now()));
            return Ok(());
        }
        let waited = search.oldest.1.look(Instant::now());
        // It cannot demote as it can clean: with a tier it depends on a cleaner thread and the
        // device. Also with a full disk this error: it makes the caller unlock its keys, and try
        // again.
        if waited > STARVED_AFTER && (!self.waits_for_flash() || waited > STUCK_AFTER) {
            self.note_stuck_device(waited, search.purpose);
            return Err(self.out_of_memory());
        }
        Ok(())
    }

    /// There is nothing to clean now. Cleaners may be finishing victims, readers may be leaving
    /// retired windows, and other writers may be taking the freed ones first: that is progress too.
    /// `is_busy`: other threads are at work in contexts that the writer could use.
    ///
    /// # Errors
    /// If there is none.
    fn wait_for_others(
        &self,
        search: &mut Search,
        node: usize,
        disk_has_room: bool,
        is_busy: bool,
    ) -> Result<(), Error> {
        // Loaded in the order in which a victim passes through these states.
        let victims = self.cleaners.victims(node);
        let (retired, _) = self.space.waiting(node);
        let flash = self.tier.as_ref().map_or(0, |tier| tier.progress());
        let log = self.log.as_ref().map_or(0, |log| log.progress());
        let freed = self.cleaners.gain().0 + log + flash + self.cleared.progress();
        let waited = search.in_vain.time();
        let alone = search.alone;
        if freed != search.freed || (!alone && self.exclusive.is_wanted()) {
            (search.freed, search.in_vain, search.fruitless) = (freed, InVain::begin(alone), 0);
            search.turn = CleanersTurn::new(self);
        } else if self.is_disk_full() && waited > STARVED_AFTER {
            return Err(self.disk_full());
        } else if self.waits_for_disk(search.purpose) && waited < search.in_vain.patience() {
            self.ask_disk()?;
            search.turn = CleanersTurn::new(self);
        } else if self.waits_for_flash() && waited < DISK_STUCK_AFTER {
            if let Some(demotion) = self.demotion() {
                demotion.ask();
            }
            #[cfg(not(any(loom, shuttle)))]
            std::thread::sleep(DISK_LOOK_AGAIN);
            search.turn = CleanersTurn::new(self);
        } else if !alone && !search.turn.is_over(self) {
            self.cleaners.wake();
        } else if retired == 0 && (victims == 0 && !is_busy || waited > STUCK_AFTER) {
            search.fruitless += 1;
            if search.fruitless > 3 && !disk_has_room {
                return Err(self.disk_full());
            }
            if search.fruitless > 3 {
                self.give_up_cleaning(disk_has_room)?;
            }
        }
        Ok(())
    }

    /// Fragments of large objects can make every victim as long as its survivor: then cleaning does
    /// not help.
    fn judge_gain(&self, search: &mut Search, disk_has_room: bool) -> Result<(), Error> {
        let (freed, used) = self.cleaners.gain();
        let (freed, used) = (freed - search.gain.0, used - search.gain.1);
        if freed >= GAIN_JUDGED_AFTER {
            if used >= freed && !self.waits_for_flash() {
                self.give_up_cleaning(disk_has_room)?;
            }
            search.gain = self.cleaners.gain();
        }
        Ok(())
    }

    /// Longest wait of a writer while a device completes nothing, if another writer waited in vain.
    fn device_patience(&self, purpose: Purpose) -> Duration {
        let flash = self.tier.as_ref().map(|tier| tier.progress());
        let disk = self.log.as_ref().map(|log| log.progress());
        let pacer = &self.pacer;
        // Cleaning may find room for a removal without flash, but not without the disk.
        let is_stuck = pacer.flash_stuck.stands(flash) && purpose != Purpose::Tombstones
            || pacer.disk_stuck.stands(disk);
        if is_stuck && purpose.is_for_head() {
            STUCK_DEVICE_AGAIN
        } else {
            Duration::MAX
        }
    }

    /// A writer waited in vain: if it was for a device, the next ones do not wait as long.
    fn note_stuck_device(&self, waited: Duration, purpose: Purpose) {
        if waited <= STUCK_AFTER {
            return; // the device may only be slow
        }
        if let Some(tier) = &self.tier
            && self.waits_for_flash()
        {
            self.pacer.flash_stuck.note(tier.progress());
        }
        if let Some(log) = &self.log
            && self.waits_for_disk(purpose)
        {
            self.pacer.disk_stuck.note(log.progress());
        }
    }

    /// True if survivors cannot be written for want of space.
    fn is_disk_full(&self) -> bool {
        let mut log = self.log.iter();
        log.any(|log| log.is_disk_full_for_cleaners())
    }

    /// Longest wait of a writer for a segment of a disk that has none, whatever others gain
    /// meanwhile.
    fn disk_patience(&self, purpose: Purpose) -> Duration {
        // A removal does not go by what other writers were refused: several passes may be needed
        // to free a segment for its tombstone.
        if purpose == Purpose::Tombstones {
            return WAIT_MAX;
        }
        let mut log = self.log.iter();
        match log.any(|log| log.swaps().is_short_of_disk()) {
            true => FULL_DISK_AGAIN,
            false => FULL_DISK_AFTER,
        }
    }

    /// The error for a writer that gets no segment for want of disk.
    fn disk_full(&self) -> Error {
        if let Some(log) = &self.log {
            log.swaps().refused();
        }
        Error::DiskFull
    }

    /// False: the disk holds as many segments as heads may open.
    pub fn disk_has_room(&self, purpose: Purpose) -> bool {
        self.log
            .as_ref()
            .is_none_or(|log| log.swaps().has_room(purpose))
    }

    /// True if the log's writer has work to do after which cleaning may continue, or memory or disk
    /// may be free.
    fn waits_for_disk(&self, purpose: Purpose) -> bool {
        let Some(log) = &self.log else {
            return false;
        };
        let segments = (0..).zip(&self.space.segments);
        log.swaps().is_waiting()
            || log.swaps().is_at_work() && !self.disk_has_room(purpose)
            || segments
                .filter(|(_, segment)| segment.is_closed())
                .any(|(window, _)| match &self.tier {
                    None => !log.is_victim_to_be(window),
                    // A window that is held and written waits for flash, not for the disk.
                    Some(_) => !log.may_leave_memory(window),
                })
    }

    /// Requests a commit, and yields the core to the thread that makes it.
    fn ask_disk(&self) -> Result<(), Error> {
        if let Some(log) = &self.log {
            log.check_writable()?;
            log.demand();
        }
        #[cfg(not(any(loom, shuttle)))]
        std::thread::sleep(DISK_LOOK_AGAIN);
        Ok(())
    }

    /// Cleaning alone frees nothing: a store is full, a cache must evict.
    fn give_up_cleaning(&self, disk_has_room: bool) -> Result<(), Error> {
        if !self.is_cache() {
            return Err(self.no_room(disk_has_room));
        }
        self.pacer.forced_eviction.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// The error of a writer that gets no window.
    fn no_room(&self, disk_has_room: bool) -> Error {
        match disk_has_room {
            true => self.out_of_memory(),
            false => self.disk_full(),
        }
    }

    /// Decides whether to give memory back. Called by the first cleaner thread now and then.
    pub fn watch_live_size(&self) {
        let live = self.live_in_memory();
        let slack = (4 + self.actors.heads().len() + 2 * self.cleaners.contexts())
            * self.space.segment_bytes();
        let goal = live + live / 8 + slack as u64;
        // An effort that was begun is finished: its end does not depend on how much a step frees.
        let floor =
            live + live / 16 + (self.cleaners.contexts() * self.space.segment_bytes()) as u64;
        let calm = (live + live / 2).max(goal + goal / 16);
        let committed = self
            .segment_bytes_committed()
            .saturating_sub(self.promoted_bytes());
        self.pacer.watch_lowering(
            self.space.budget.is_above_limit(),
            self.space.budget.used(),
            self.actors.log_time(),
        );
        let shrinking = self.pacer.shrinker.lock().expect("shrinker").look(Look {
            live,
            committed,
            goal,
            floor,
            calm,
            log_time: self.actors.log_time(),
        });
        self.pacer
            .shrinking
            .store(u64::from(shrinking), Ordering::Relaxed);
    }
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
            let step = core.help(0, 1000, visitor.me(), Some(waiting(visitor.slot)));
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
