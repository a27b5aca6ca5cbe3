//! Demotion: chooses the segments that go to flash and the time, and reads cold segments back to be
//! cleaned.

use super::mended::{mend_image, sound_segment};
use super::tier::background_reads::{Expiries, HOLLOW_PART};
use super::tier::mask::Mask;
use super::tier::{Tier, WRITE_BYTES};
use crate::core::Core;
use crate::device::BLOCK_BYTES;
use crate::space::segment::Segment;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use duramen_disk::Aligned;
use duramen_format::entry::{self, Entry};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A segment with a larger live part frees too little to be worth reading and writing it.
pub const FLASH_LIVE_PART_MAX: f64 = 0.95;
/// Dead part of a segment on flash that makes a pass worthwhile, whatever other passes gain: after
/// the pass that part is gone.
pub const FLASH_DEAD_PART: f64 = 1.0 - FLASH_LIVE_PART_MAX;
/// Live part of the memory for entries above which segments are demoted; below it memory is
/// cleaned.
const LIVE_PART: f64 = 0.70;
/// Above this part of memory in use, cleaning is judged by its gain, once it has freed
/// `JUDGED_SEGMENTS` segments: it is in vain if less than a tenth of them was gained. Values of
/// half a segment, for example, can be moved about for ever.
const USED_PART: f64 = 0.80;
const JUDGED_SEGMENTS: u64 = 8;
/// Free windows that promoted copies leave, besides the open ones.
const SPARE_WINDOWS: usize = 2;
const VAIN_PART: f64 = 0.90;
/// Number of classes of a segment's unused part. In a load, segments of one class rank alike.
const UNUSED_STEPS: usize = 16;
/// Time between two looks of a thread that lacks memory for the index.
#[cfg(not(any(loom, shuttle)))]
const INDEX_PAUSE: std::time::Duration = std::time::Duration::from_micros(200);

/// The tier of a store, with the rest of the store: together they decide which segments go to flash
/// and come back.
#[derive(Clone, Copy)]
pub struct Demotion<'c> {
    core: &'c Core,
    tier: &'c Tier,
}

impl Core {
    /// Moves segments between memory and flash. `None`: the store has no flash tier.
    pub fn demotion(&self) -> Option<Demotion<'_>> {
        let tier = self.tier()?;
        Some(Demotion { core: self, tier })
    }

    /// Approximate live bytes of entries whose segments are in memory.
    pub fn live_in_memory(&self) -> u64 {
        let cold = self.tier().map_or(0, |tier| tier.live_bytes());
        self.actors.live_bytes().saturating_sub(cold)
    }

    /// Memory of promoted copies, in bytes.
    pub fn promoted_bytes(&self) -> u64 {
        let tier = self.tier();
        tier.map_or(0, |tier| tier.promoted.bytes())
    }

    /// Live bytes that the flash tier may hold.
    pub fn flash_capacity(&self) -> u64 {
        let tier = self.tier();
        tier.map_or(0, |tier| tier.capacity_bytes())
    }

    /// Looks at the segments on flash again; see [`Demotion::watch`].
    pub fn watch_flash(&self) {
        if let Some(demotion) = self.demotion() {
            demotion.watch();
        }
    }

    /// True if a session that is pinned from now on may not find the window's bytes in memory.
    #[inline(always)]
    pub fn is_cold(&self, window: u32) -> bool {
        let tier = self.tier();
        tier.is_some_and(|tier| tier.is_cold(window as usize))
    }
}

impl Demotion<'_> {
    /// Gives room to copies of cold entries that are read often, if some wait for it, or takes some
    /// back.
    pub fn tend_promoted(self, node: usize) {
        let Demotion { core, tier } = self;
        let (promoted, now_ms) = (&tier.promoted, core.clock().now_ms());
        let starving = tier.pressure.is_by_others() && !self.can_demote(node);
        if starving || promoted.has_too_much() {
            promoted.give_up(&core.space, core.door.epochs());
            if starving {
                tier.pressure.end();
            }
        } else if !tier.pressure.others_come_first(now_ms) {
            core.windows().free_retired(node);
            promoted.tend(&core.space, node, core.door.epochs(), now_ms);
            if promoted.lacks_window() && tier.leaving() == 0 && self.can_demote(node) {
                tier.pressure.press_for_copies();
            }
        }
    }

    /// True while a segment is being written to flash.
    pub fn is_writing(self) -> bool {
        self.tier.writing.load(Ordering::Relaxed) > 0
    }

    fn can_demote(self, node: usize) -> bool {
        let mut windows = self.core.space.windows_of_node(node);
        self.tier.has_room(false) && windows.any(|window| self.may_turn_cold(window))
    }

    /// Maximum windows of copies: the budget less the index, the open segments, their reserve and a
    /// few new segments. Half of the budget, if new segments cannot be demoted.
    fn room_for_promoted(self) -> u64 {
        let Demotion { core, tier } = self;
        let all = core.segment_budget() / core.space.segment_bytes() as u64;
        let open = core.actors.heads().len() + 2 * core.cleaners.contexts() + SPARE_WINDOWS;
        let room = all.saturating_sub(open as u64 + all / 32);
        if tier.has_room(false) {
            room
        } else {
            room.min(tier.promoted.modest())
        }
    }

    /// Sums the live bytes of cold windows, and allows another try of those that could not be read.
    pub fn watch(self) {
        let Demotion { core, tier } = self;
        tier.try_bad_again();
        let windows = 0..core.space.segments.len() as u32;
        let cold = windows.filter(|window| tier.is_cold(*window as usize));
        let live = cold.map(|window| (window, core.live_in(window)));
        let (mut sum, mut hollow) = (0, false);
        for (window, live) in live {
            sum += live;
            hollow |= live <= self.hollow_bytes() && self.is_hollow(window);
        }
        tier.set_live_bytes(sum);
        let wants = hollow && !tier.has_failed(); // without one, nothing needs a slot
        tier.background_reads.note_hollow(wants);
        tier.promoted
            .weigh(self.room_for_promoted(), core.actors.log_time());
    }

    /// True if live entries fill memory, not dead ones: then cleaning does not help. `survivors`:
    /// room is wanted for survivors of cold victims, which may take the last slots.
    pub fn is_wanted(self, node: usize, survivors: bool) -> bool {
        let Demotion { core, tier } = self;
        if !tier.has_room(survivors) {
            return false;
        }
        if tier.pressure.is_on() {
            return true;
        }
        if !core.need().is_low(node) {
            return false;
        }
        let hard = core.segment_budget().saturating_sub(tier.promoted.bytes());
        let leaving = (tier.leaving() * core.space.segment_bytes()) as u64;
        let live = core.live_in_memory();
        // A segment that is being demoted already frees memory soon.
        live as f64 > LIVE_PART * hard as f64
            || (leaving == 0 && core.space.free_windows(node) == 0)
            || self.cleans_in_vain(hard)
    }

    /// True if cleaning since the last demotion has gained hardly any memory, and nearly all memory
    /// is in use.
    fn cleans_in_vain(self, hard: u64) -> bool {
        let Demotion { core, tier } = self;
        let (freed, used) = core.cleaners.gain();
        let (freed_before, used_before) = tier.pressure.gain();
        let freed = freed.saturating_sub(freed_before);
        let used = used.saturating_sub(used_before);
        let committed = core.segment_bytes_committed();
        let committed = committed.saturating_sub(tier.promoted.bytes());
        freed >= JUDGED_SEGMENTS
            && used as f64 >= VAIN_PART * freed as f64
            && committed as f64 >= USED_PART * hard as f64
    }

    /// Notes that the index lacks memory for a new key: a cache then evicts the entries of a
    /// victim.
    pub fn evict_for_index(self) {
        if self.core.need().evicts_from_flash() {
            self.tier.pressure.set_by_index(true);
        }
    }

    /// Notes that entries are being evicted: a writer that still lacks index memory afterwards
    /// reports that again.
    pub fn note_eviction(self) {
        self.tier.pressure.set_by_index(false);
    }

    /// True if a writer without memory should wait for a cleaner thread: the device can take a
    /// segment, or has to be cleaned before it can, or copies have to give memory back.
    pub fn is_worth_a_wait(self) -> bool {
        let Demotion { core, tier } = self;
        let windows = core.space.segments.len();
        // The window found last time usually still qualifies: all windows are checked only if it
        // does not.
        let any = |hint: &AtomicUsize, is: &dyn Fn(u32) -> bool| {
            let from = hint.load(Ordering::Relaxed);
            let found = (from..windows).chain(0..from).find(|n| is(*n as u32));
            hint.store(found.unwrap_or(0), Ordering::Relaxed);
            found.is_some()
        };
        tier.leaving() > 0
            || core.cleared().is_pending()
            || core.need().flash_wants_eviction()
            || tier.promoted.bytes() > 0
            || tier.has_room(false) && any(&tier.may_leave, &|window| self.may_turn_cold(window))
            || tier.is_short()
                && !(core.cleaners.pacer.passes_are_in_vain() && core.log.is_some())
                && any(&tier.may_gain, &|window| self.gains_if_cleaned(window))
    }

    /// Requests help for a writer that waits for a cleaner thread
    /// ([`is_worth_a_wait`](Self::is_worth_a_wait)).
    pub fn ask(self) {
        if self.tier.leaving() == 0 {
            self.press();
        }
        self.core.cleaners.wake();
    }

    /// Requests the demotion of a segment.
    pub fn press(self) {
        self.tier.pressure.press(self.core.clock().now_ms());
    }

    /// The index lacks memory for a side log, whose thread may wait: requests the demotion of a
    /// segment, and yields the core to the thread that does it. Returns true if the thread should
    /// try again.
    pub fn press_and_wait(self, node: usize) -> bool {
        let core = self.core;
        self.press();
        core.cleaners.wake();
        if core.cleaners.threads() == 0 {
            self.demote_one(node);
        }
        core.windows().reap(node);
        #[cfg(not(any(loom, shuttle)))]
        std::thread::sleep(INDEX_PAUSE);
        core.need().waits_for_flash()
    }

    /// True if a cold segment is not known to be unreadable, and enough of it is dead.
    fn gains_if_cleaned(self, window: u32) -> bool {
        let Demotion { core, tier } = self;
        let most = (core.space.segment_bytes() as f64 * FLASH_LIVE_PART_MAX) as u64;
        tier.is_cold(window as usize)
            && !tier.is_bad(window as usize)
            && !core.is_held(window)
            && core.live_in(window) <= most
            && (!core.cleaners.pacer.passes_are_in_vain() || self.has_dead(window))
    }

    /// True if this segment on flash has enough dead entries for a pass, whatever other passes
    /// gain.
    fn has_dead(self, window: u32) -> bool {
        let core = self.core;
        let least = core.space.segment_bytes() as f64 * FLASH_DEAD_PART;
        let segment = &core.space.segments[window as usize];
        segment.dead_beside(core.live_in(window)) as f64 >= least
    }

    fn may_turn_cold(self, window: u32) -> bool {
        let core = self.core;
        let log = core.log.as_ref();
        core.space.segments[window as usize].is_closed()
            && !self.tier.is_cold(window as usize)
            && log.is_none_or(|log| log.may_leave_memory(window)) // core::flash::F1, swap::D8
    }

    /// Writes to the device the oldest segment of a node that may go there; segments to be kept
    /// come last. While a log is loaded, the longest segment goes first. Returns false if there is
    /// no such segment, or no room for it, or if the device fails.
    pub fn demote_one(self, node: usize) -> bool {
        let Demotion { core, tier } = self;
        if !tier.has_room(true) {
            return false;
        }
        let segments = &core.space.segments;
        let segment_bytes = core.space.segment_bytes();
        let is_loading = core.is_loading();
        let rank = |window: u32| {
            let segment = &segments[window as usize];
            // A slot is as long as the longest segment, however short the segment in it is. A log
            // that is loaded has to fit into memory and flash together, and it does if the longest
            // segments go to flash.
            let unused = segment_bytes - segment.appended_bytes() as usize;
            let unused = is_loading.then_some(unused * UNUSED_STEPS / segment_bytes);
            (tier.is_kept(window), unused, segment.opened_tick(), window)
        };
        let mut candidates: Vec<(bool, Option<usize>, u64, u32)> = core
            .space
            .windows_of_node(node)
            .filter(|window| self.may_turn_cold(*window))
            .map(rank)
            .collect();
        candidates.sort_unstable();
        for (.., window) in candidates {
            let segment = &segments[window as usize];
            if !segment.claim() {
                continue;
            }
            // The window is checked again once it is claimed: in between, it may have turned cold,
            // or have been cleaned and filled again.
            let log = core.log.as_deref();
            if tier.is_cold(window as usize) || log.is_some_and(|log| !log.may_leave_memory(window))
            {
                core.space.segments[window as usize].unclaim();
                continue;
            }
            let length = (segment.appended_bytes() as usize).next_multiple_of(BLOCK_BYTES);
            let Some(bytes) = sound_segment(core, window, length) else {
                if core.is_held(window) {
                    core.space.segments[window as usize].unclaim(); // no pass takes it, and a side log may end
                }
                continue; // else it stays claimed (mended::M1)
            };
            tier.writing.fetch_add(1, Ordering::Relaxed);
            let done = self.write_segment(window, &bytes);
            tier.writing.fetch_sub(1, Ordering::Relaxed);
            drop(bytes);
            if !done {
                core.space.segments[window as usize].unclaim();
            }
            return done;
        }
        false
    }

    /// Writes a claimed segment with these bytes to a slot, and turns its window cold.
    fn write_segment(self, window: u32, bytes: &[u8]) -> bool {
        let Demotion { core, tier } = self;
        let Some(slot) = tier.take_slot() else {
            return false;
        };
        let segment = &core.space.segments[window as usize];
        let mask = tier.masks.next();
        if let Err(_error) = tier.write_masked(slot, mask, bytes) {
            tier.figures.write_errors.fetch_add(1, Ordering::Relaxed);
            tier.failed.store(true, Ordering::Relaxed); // core::flash::F5: no more writes
            tier.give_slot(slot);
            return false;
        }
        tier.set_due(
            window,
            &self.expiries_of(segment, &bytes[..segment.appended_bytes() as usize]),
        );
        tier.turn_cold(window, slot, mask, core.door.epochs());
        tier.figures.demoted.fetch_add(1, Ordering::Relaxed);
        tier.pressure.end();
        tier.pressure.set_gain(core.cleaners.gain());
        tier.set_live_bytes(tier.live_bytes() + core.live_in(window));
        true
    }

    /// Expiry times of the entries of a closed segment, dead ones included.
    fn expiries_of(self, segment: &Segment, bytes: &[u8]) -> Expiries {
        let mut expiries = Expiries::new(self.core.clock().now_ms());
        let mut at = if segment.expiring_bytes() == 0 {
            bytes.len()
        } else {
            SEGMENT_HEADER_BYTES
        };
        while at < bytes.len() {
            // SAFETY: a closed segment holds whole entries from its header to its end.
            let entry = unsafe { entry::parse_trusted(bytes[at..].as_ptr()) };
            expiries.note(entry.expires_at_ms, entry.padded_bytes);
            at += entry.padded_bytes;
        }
        expiries
    }

    /// Reads a cold victim back into its window, for the cleaner that has claimed it, and verifies
    /// every entry of it. Returns false if the victim cannot be read (core::flash::F5). The caller
    /// has set its memory aside (core::flash::F6); no other thread reads that memory, because all
    /// see the window cold.
    pub fn warm(self, window: u32) -> bool {
        let Demotion { core, tier } = self;
        let segment = &core.space.segments[window as usize];
        let end = segment.appended_bytes() as usize;
        let length = end.next_multiple_of(BLOCK_BYTES);
        let (place, mask) = tier.place_of(window);
        // core::flash::F2: its memory is free
        assert!(segment.committed_bytes() == 0 && tier.is_cold(window as usize));
        // SAFETY: the window is claimed by the caller and cold, and every session that could use
        // its memory has left (asserted): this is the only reference until `cool`.
        let bytes = unsafe { core.space.memory.bytes_mut(window, length) };
        let started = Instant::now();
        let read = tier.device.read_any(place, bytes).is_ok();
        tier.background_reads.was_read(length, started);
        if read {
            mask.remove(place, bytes);
        }
        let is_readable = read && mend_image(core, window, &mut bytes[..end]);
        tier.was_readable(window, is_readable);
        if !is_readable {
            core.space.memory.decommit(window);
        }
        is_readable
    }

    /// Shows every entry of a cold segment with its location, read into memory of its own. If the
    /// segment cannot be read, shows none.
    pub fn each_entry(self, window: u32, mut show: impl FnMut(u64, &Entry<'_>)) {
        let Demotion { core, tier } = self;
        let segment = &core.space.segments[window as usize];
        let end = segment.appended_bytes() as usize;
        let length = end.next_multiple_of(BLOCK_BYTES);
        let (place, mask) = tier.place_of(window);
        let mut memory = Aligned::zeroed(length);
        let bytes = memory.bytes_mut();
        if tier.device.read_any(place, bytes).is_err() {
            tier.figures.read_errors.fetch_add(1, Ordering::Relaxed);
            return;
        }
        mask.remove(place, bytes);
        mend_image(core, window, &mut bytes[..end]);
        let start = core.space.offset_of(window);
        let mut at = SEGMENT_HEADER_BYTES;
        while at < end
            && let Ok(entry) = entry::parse(&bytes[at..end])
        {
            show(Space::location(start + at), &entry);
            at += entry.padded_bytes;
        }
    }

    /// Frees the memory of a warmed victim that has been emptied.
    pub fn cool(self, window: u32) {
        self.core.space.memory.decommit(window);
        self.tier.figures.cleaned.fetch_add(1, Ordering::Relaxed);
    }

    /// True if a segment on flash can be read and has almost no live data.
    pub fn is_hollow(self, window: u32) -> bool {
        let Demotion { core, tier } = self;
        tier.is_cold(window as usize)
            && !tier.is_bad(window as usize)
            && core.space.segments[window as usize].is_closed()
            && core.live_in(window) <= self.hollow_bytes()
    }

    /// True if enough of a segment on flash has expired to make it worth a read.
    pub fn is_worth_expiring(self, window: u32, now_ms: u64) -> bool {
        let tier = self.tier;
        self.core.space.segments[window as usize].is_closed()
            && tier.due_ms(window) <= now_ms
            && !tier.is_bad(window as usize)
    }

    /// Maximum live bytes of a hollow segment.
    fn hollow_bytes(self) -> u64 {
        self.core.space.segment_bytes() as u64 / HOLLOW_PART
    }
}

impl Tier {
    /// Writes a segment's bytes to a slot, under a mask of their own (mask::F7).
    fn write_masked(&self, slot: u32, mask: Mask, bytes: &[u8]) -> std::io::Result<()> {
        let mut memory = Aligned::zeroed(bytes.len().min(WRITE_BYTES));
        let mut at = self.slot_at(slot);
        for some in bytes.chunks(WRITE_BYTES) {
            let masked = &mut memory.bytes_mut()[..some.len()];
            mask.copy(at, some, masked);
            self.device.write_at(at, masked)?;
            at += some.len() as u64;
        }
        Ok(())
    }
}
