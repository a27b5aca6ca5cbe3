//! The tier's data about windows on flash: their places on the device, and the copies in memory of
//! entries that are there. The rules are in `flash`.

pub mod background_reads;
pub mod mask;
mod pressure;
pub mod promoted;
pub mod warmth;

use crate::Options;
use crate::device::{Device, FlashStats};
use crate::epoch::Epochs;
use crate::space::{Space, flash_slots};
use background_reads::{BackgroundReads, Expiries};
use duramen_disk::ManyReads;
use mask::{Mask, Masks};
use pressure::Pressure;
use promoted::Promoted;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use warmth::Warmth;

/// Slots that only survivors of cold segments get, so that cleaning can always go on.
const SLOTS_RESERVED: u32 = 2;
/// If fewer slots are free than all slots divided by this, cold segments are cleaned.
const FREE_SLOTS_PART: u32 = 16;
/// Bytes of a segment that are written at once.
pub(crate) const WRITE_BYTES: usize = 256 << 10;
/// Shortest and longest time for which a segment that could not be read is not read again.
const BAD_MS_MIN: u64 = 1_000;
const BAD_MS_MAX: u64 = 16_000;
/// Failures in succession after which no wait for the segment is worth it: about four minutes.
const LOST_AFTER: u32 = 18;
/// Part of the memory budget that a refill works with: the budget divided by this, within bounds in
/// bytes (core::flash::F6).
const REFILL_PART: u64 = 256;
const REFILL_BYTES_MIN: u64 = 32 << 10;
const REFILL_BYTES_MAX: u64 = 2 << 20;
/// Maximum part of live entries on the device: cleaning needs some dead data to find.
const LIVE_PART_MAX: f64 = 0.90;

/// The tier's data about a window.
#[derive(Default)]
pub(crate) struct Window {
    pub(crate) warmth: Warmth,
    /// Slot of the device; only a cold window has one.
    pub(crate) slot: AtomicU32,
    /// Mask of its bytes on the device (mask::F7).
    mask: AtomicU64,
    /// It could not be read back, and it is not yet time to try again (core::flash::F5).
    bad: AtomicBool,
    /// The time to try again, in ms since the tier was opened, and the number of failures in
    /// succession.
    bad_until_ms: AtomicU64,
    failures: AtomicU32,
    /// Advice: the segment was in memory before a restart, so it goes to the device after segments
    /// that were not.
    pub(crate) kept: AtomicBool,
    /// Time when the expiry pass has to read it.
    due_ms: AtomicU64,
}

/// Counts since the start.
#[derive(Default)]
pub(crate) struct Figures {
    pub demoted: AtomicU64,
    pub cleaned: AtomicU64,
    pub fetched: AtomicU64,
    pub fetched_bytes: AtomicU64,
    pub held_hits: AtomicU64,
    pub promotions: AtomicU64,
    /// Entries read from the device, except by a refill.
    pub asked: AtomicU64,
    pub refilled: AtomicU64,
    pub refill_left: AtomicU64,
    pub read_errors: AtomicU64,
    pub write_errors: AtomicU64,
}

pub(crate) struct Tier {
    pub(crate) device: Arc<dyn Device>,
    /// Reads of the device, many at once.
    pub(crate) reads: ManyReads,
    pub(crate) windows: Box<[Window]>,
    pub(crate) segment_bytes: usize,
    slots: u32,
    free: Mutex<Vec<u32>>,
    free_count: AtomicU32,
    /// Windows whose memory waits for readers that may still use it (core::flash::F2): stamp and
    /// window, oldest first.
    leaving: Mutex<VecDeque<(u64, u32)>>,
    leaving_count: AtomicU64,
    pub(crate) pressure: Pressure,
    /// Number of segments that are being written.
    pub(crate) writing: AtomicU64,
    /// Live bytes in cold windows, as last summed.
    live: AtomicU64,
    /// The device failed to write (core::flash::F5).
    pub(crate) failed: AtomicBool,
    /// Bytes of the windows into which cleaners read cold victims, and of the buffers for writing
    /// segments.
    warm_bytes: u64,
    /// Bytes that a refill works with, if the store has a log.
    refill_bytes: u64,
    /// Windows that were found last as fit for demotion, or for cleaning with a gain.
    pub(crate) may_leave: AtomicUsize,
    pub(crate) may_gain: AtomicUsize,
    pub(crate) masks: Masks,
    pub(crate) background_reads: BackgroundReads,
    pub(crate) promoted: Promoted,
    pub(crate) figures: Figures,
}

/// Memory that a refill works with in a store with this budget, in bytes.
pub(crate) fn refill_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / REFILL_PART).clamp(REFILL_BYTES_MIN, REFILL_BYTES_MAX)
}

impl Tier {
    /// The tier of a store with these options, if it has one.
    pub(crate) fn new(options: &Options, space: &Space) -> Option<Box<Tier>> {
        let flash = options.flash.as_ref()?;
        let (slots, segment_bytes) = (flash_slots(options), space.segment_bytes());
        let memory_bytes = options.memory_bytes;
        // Cold victims that may be read back at once.
        let warm = options.cleaners.max(1);
        let windows = space.segments.iter();
        Some(Box::new(Tier {
            device: flash.device.clone(),
            reads: ManyReads::new(flash.device.clone()),
            windows: windows.map(|_| Window::default()).collect(),
            segment_bytes,
            slots,
            // The lowest slot is last, and is taken first: so a device with few segments is written
            // at its start.
            free: Mutex::new((0..slots).rev().collect()),
            free_count: AtomicU32::new(slots),
            leaving: Mutex::default(),
            leaving_count: AtomicU64::new(0),
            pressure: Pressure::default(),
            writing: AtomicU64::new(0),
            live: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            warm_bytes: (warm * (segment_bytes + WRITE_BYTES.min(segment_bytes))) as u64,
            // Without a log nothing outlives the process, so there is no refill.
            refill_bytes: options
                .log
                .as_ref()
                .map_or(0, |_| refill_bytes(memory_bytes)),
            may_leave: AtomicUsize::new(0),
            may_gain: AtomicUsize::new(0),
            masks: Masks::new(),
            background_reads: BackgroundReads::default(),
            promoted: Promoted::new(memory_bytes, segment_bytes),
            figures: Figures::default(),
        }))
    }

    /// Memory that the tier takes from the start, in bytes (core::flash::F6).
    pub(crate) fn overhead_bytes(&self) -> u64 {
        size_of_val(&*self.windows) as u64
            + u64::from(self.slots) * 4
            + self.promoted.table_bytes()
            + self.warm_bytes
            + self.refill_bytes
    }

    /// True if a session that is pinned from now on may not find the window's bytes in memory.
    #[inline(always)]
    pub(crate) fn is_cold(&self, window: usize) -> bool {
        self.windows[window].warmth.is_cold()
    }

    /// True if a session that was pinned at `stamp` finds the window's bytes in memory.
    #[inline(always)]
    pub(crate) fn is_in_memory(&self, window: usize, stamp: u64) -> bool {
        self.windows[window].warmth.is_in_memory(stamp) // core::flash::F2
    }

    pub(crate) fn is_kept(&self, window: u32) -> bool {
        self.windows[window as usize].kept.load(Ordering::Relaxed)
    }

    /// Marks the window to go to the device after unmarked ones, until all marks are removed or the
    /// window gets another segment.
    pub(crate) fn keep(&self, window: u32) {
        self.windows[window as usize]
            .kept
            .store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_bad(&self, window: usize) -> bool {
        self.windows[window].bad.load(Ordering::Relaxed)
    }

    /// True if a segment could not be read for minutes.
    pub(crate) fn is_lost(&self, window: usize) -> bool {
        self.windows[window].failures.load(Ordering::Relaxed) >= LOST_AFTER
    }

    /// Notes the result of reading a segment back (core::flash::F5).
    pub(crate) fn was_readable(&self, window: u32, is_readable: bool) {
        let known = &self.windows[window as usize];
        if is_readable {
            known.failures.store(0, Ordering::Relaxed);
            return;
        }
        self.figures.read_errors.fetch_add(1, Ordering::Relaxed);
        let failures = known.failures.fetch_add(1, Ordering::Relaxed);
        let rest_ms = (BAD_MS_MIN << failures.min(16)).min(BAD_MS_MAX);
        let until_ms = self.background_reads.elapsed_ms() + rest_ms;
        known.bad_until_ms.store(until_ms, Ordering::Relaxed);
        known.bad.store(true, Ordering::Relaxed);
    }

    /// Segments that could not be read may be tried again when it is time.
    pub(crate) fn try_bad_again(&self) {
        let now_ms = self.background_reads.elapsed_ms();
        for known in &self.windows {
            if known.bad.load(Ordering::Relaxed)
                && known.bad_until_ms.load(Ordering::Relaxed) <= now_ms
            {
                known.bad.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Takes a free slot of the device.
    pub(crate) fn take_slot(&self) -> Option<u32> {
        let mut free = self.free.lock().expect("slots of the flash device");
        let slot = free.pop();
        self.free_count.store(free.len() as u32, Ordering::Relaxed);
        slot
    }

    pub(crate) fn give_slot(&self, slot: u32) {
        let mut free = self.free.lock().expect("slots of the flash device");
        free.push(slot);
        assert!(free.len() <= self.slots as usize, "a slot given back twice"); // core::flash::F3
        self.free_count.store(free.len() as u32, Ordering::Relaxed);
    }

    /// Place and mask of a cold window's bytes on the device.
    pub(crate) fn place_of(&self, window: u32) -> (u64, Mask) {
        let known = &self.windows[window as usize];
        let slot = known.slot.load(Ordering::Relaxed);
        (self.slot_at(slot), Mask(known.mask.load(Ordering::Acquire)))
    }

    pub(crate) fn slot_at(&self, slot: u32) -> u64 {
        u64::from(slot) * self.segment_bytes as u64
    }

    /// The window's bytes are on the device: sessions that are pinned from now on see it cold
    /// (core::flash::F2).
    pub(crate) fn turn_cold(&self, window: u32, slot: u32, mask: Mask, epochs: &Epochs) {
        let known = &self.windows[window as usize];
        known.slot.store(slot, Ordering::Relaxed);
        // Release: a thread that sees the mask also sees the window's incarnation.
        known.mask.store(mask.0, Ordering::Release);
        let stamp = known.warmth.turn_cold(epochs);
        let mut leaving = self.leaving.lock().expect("windows that turn cold");
        leaving.push_back((stamp, window));
        self.leaving_count
            .store(leaving.len() as u64, Ordering::Relaxed);
    }

    /// Frees the slot of a window of which no reader finds an entry any more (engine::space::S3,
    /// core::flash::F3). Called for windows in memory too.
    pub(crate) fn forget(&self, window: u32) {
        let known = &self.windows[window as usize];
        known.kept.store(false, Ordering::Relaxed);
        if known.warmth.is_cold() {
            let slot = known.slot.load(Ordering::Relaxed);
            known.bad.store(false, Ordering::Relaxed);
            known.failures.store(0, Ordering::Relaxed);
            known.warmth.reset();
            self.give_slot(slot);
        }
    }

    /// Frees the memory of windows that turned cold and that no reader uses any more
    /// (core::flash::F2).
    pub(crate) fn release(&self, space: &Space, epochs: &Epochs) {
        if self.leaving_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        loop {
            let mut leaving = self.leaving.lock().expect("windows that turn cold");
            // Several threads push, so the stamps may be slightly out of order: that only delays
            // one window.
            let Some((stamp, window)) = leaving.front().copied() else {
                return;
            };
            if !self.windows[window as usize].warmth.leave(epochs, stamp) {
                return;
            }
            leaving.pop_front();
            self.leaving_count
                .store(leaving.len() as u64, Ordering::Relaxed);
            drop(leaving);
            space.forget_memory(window);
        }
    }

    /// Windows that are being written, or whose memory waits for readers.
    pub(crate) fn leaving(&self) -> usize {
        let counts = [&self.writing, &self.leaving_count];
        counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum::<u64>() as usize
    }

    /// True if segments can be demoted. The last slots are for survivors of cleaning on the device.
    pub(crate) fn has_room(&self, survivors: bool) -> bool {
        let spare = if survivors { 0 } else { SLOTS_RESERVED };
        !self.has_failed() && self.free_count.load(Ordering::Relaxed) > spare
    }

    /// True if cold segments should be cleaned, so that others can be demoted.
    pub(crate) fn is_short(&self) -> bool {
        let few = (self.slots / FREE_SLOTS_PART).max(SLOTS_RESERVED + 2);
        !self.has_failed() && self.free_count.load(Ordering::Relaxed) < few
    }

    /// Time when the expiry pass has to read a cold window.
    pub(crate) fn due_ms(&self, window: u32) -> u64 {
        self.windows[window as usize].due_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn set_due(&self, window: u32, expiries: &Expiries) {
        let due_ms = expiries.due_ms(self.segment_bytes);
        self.windows[window as usize]
            .due_ms
            .store(due_ms, Ordering::Relaxed);
    }

    /// True if hollow segments may be cleaned now.
    pub(crate) fn wants_hollow(&self) -> bool {
        self.background_reads.want_hollow() && !self.has_failed()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Approximate live bytes in cold windows.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    pub(crate) fn set_live_bytes(&self, bytes: u64) {
        self.live.store(bytes, Ordering::Relaxed);
    }

    /// Live bytes that the device may hold.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        if self.has_failed() {
            return self.live_bytes();
        }
        (self.slot_at(self.slots) as f64 * LIVE_PART_MAX) as u64
    }

    /// Grows with every segment that was demoted, and with every slot of the device that was freed.
    pub(crate) fn progress(&self) -> u64 {
        self.figures.demoted.load(Ordering::Relaxed) + self.figures.cleaned.load(Ordering::Relaxed)
    }

    pub(crate) fn statistics(&self) -> FlashStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let used = self.slots - self.free_count.load(Ordering::Relaxed);
        let figures = &self.figures;
        FlashStats {
            bytes: self.slot_at(self.slots),
            used_bytes: self.slot_at(used),
            live_bytes: self.live_bytes().min(self.slot_at(used)),
            segments: u64::from(used),
            promoted_bytes: self.promoted.bytes(),
            segments_demoted: load(&figures.demoted),
            segments_cleaned: load(&figures.cleaned),
            fetches: load(&figures.fetched),
            fetched_bytes: load(&figures.fetched_bytes),
            held_hits: load(&figures.held_hits),
            promoted_hits: self.promoted.hits(),
            promotions: load(&figures.promotions),
            refilled: load(&figures.refilled),
            refill_left: load(&figures.refill_left),
            read_errors: load(&figures.read_errors),
            write_errors: load(&figures.write_errors),
            is_off: self.has_failed(),
        }
    }
}
