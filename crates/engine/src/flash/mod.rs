//! The flash tier: segments whose bytes are on a flash device while their memory serves other data.
//!
//! A segment goes to flash as a whole, and its *locations stay the same*. The region has windows
//! for all segments in memory and on flash together. The bytes of a **cold** window are on the
//! device instead of in memory. So a demotion does not touch index slots, counts of live bytes,
//! segment ids, tombstones, positions or the log's rules. Only a thread that reads an entry's bytes
//! has to find out first where they are ([`Guard::memory_of`](crate::Guard), `fetch`).
//!
//! **Invariants**
//! - F1: a window turns cold only after all its bytes were written to a slot of the device that no
//!   other window has, and only if its memory is not needed otherwise: it is closed; with a log,
//!   durably closed and written. Meanwhile no thread but its claimer cleans it. A window held by a
//!   side log stays held (swap::D8).
//! - F2: a window's memory is freed when every session has left that may not have seen the window
//!   turn cold. The turn is stored before the stamp for this is taken; a session that was pinned
//!   before still has the memory, unless the window is gone. "Gone" is stored before the last scan
//!   for such sessions. A session may have taken its stamp long before it shows it (a pin is two
//!   steps): either it shows the stamp before that scan, and the memory stays, or it finds the
//!   window gone (`warmth`).
//! - F3: the slot of a cold window is given to another window only when the window is reaped
//!   (engine::space::S3): no reader finds its entries any more. Bytes that were read from the
//!   device are valid only if the window is the same incarnation and still has the slot *after* the
//!   read, and if the entry's own checksum is right under the mask of that one write (mask::F7,
//!   `mask`). So a device that returns earlier data, or data of another place, is detected.
//! - F4: entries never change, so a copy of one (held by a session, or promoted) is as good as the
//!   entry for as long as the index points to its location in the same incarnation of the window.
//!   Copies are never part of the log.
//! - F5: a device that fails a write is not written to any more; its segments are read for as long
//!   as possible. A segment that cannot be read is not cleaned, and is tried again later: after
//!   1 s, then after twice as long each time, up to 16 s. Keys that cannot be read return
//!   [`Error::FlashFailed`](crate::Error::FlashFailed).
//! - F6: memory of the tier (its tables, promoted entries, one window per cleaner that reads a cold
//!   victim back, the buffers of a refill) is part of the budget.
//!
//! **Concurrency**: a demotion claims the window as a cleaner claims a victim (engine::space::S2)
//! and holds it until its memory is freed. Only cleaner threads and loading threads wait for the
//! device; sessions that park their requests do not.
//!
//! Paper: [Badam11 §3] for the unit of demotion (whole, log-structured, sequential writes);
//! differs: one log over memory and flash, and no object tables, as the index slots that exist
//! anyway are the owners.

mod background_reads;
mod bulk;
mod demote;
mod fetch;
mod heat;
mod mask;
mod promoted;
mod warmth;

pub use crate::device::{
    Cold, Device, Fetched, FlashOptions, FlashStats, SECTOR_BYTES, first_within,
};
pub(crate) use bulk::{Gather, Image};
pub(crate) use fetch::{Holding, InMemory, locate_now};
pub use heat::{Heat, HotKey, Refill, Refilled};
#[cfg(any(loom, shuttle))]
pub use warmth::Warmth;
#[cfg(not(any(loom, shuttle)))]
use warmth::Warmth;

use crate::epoch::Epochs;
use crate::space::Space;
use background_reads::BackgroundReads;
pub(crate) use background_reads::Expiries;
use duramen_disk::ManyReads;
use mask::{Mask, Masks};
use promoted::Promoted;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Slots that only survivors of cold segments get, so that cleaning can always go on.
const SLOTS_RESERVED: u32 = 2;
/// If fewer slots are free than all slots divided by this, cold segments are cleaned.
const FREE_SLOTS_PART: u32 = 16;
/// Time in ms for which copies take no memory after another user lacked some.
const OTHERS_FIRST_MS: u64 = 200;
/// Bytes of a segment that are written at once.
const WRITE_BYTES: usize = 256 << 10;
/// Shortest and longest time for which a segment that could not be read is left alone.
const BAD_MS_MIN: u64 = 1_000;
const BAD_MS_MAX: u64 = 16_000;
/// Failures in succession after which no wait for the segment is worth it: about four minutes.
const LOST_AFTER: u32 = 18;
/// Maximum part of live entries on the device: cleaning needs some dead data to find.
const LIVE_PART_MAX: f64 = 0.90;

/// The tier's data about a window.
#[derive(Default)]
struct Window {
    warmth: Warmth,
    /// Slot of the device; of a cold window only.
    slot: AtomicU32,
    /// Mask of its bytes on the device (mask::F7).
    mask: AtomicU64,
    /// It could not be read back, and it is not yet time to try again (F5).
    bad: AtomicBool,
    /// The time to try again, in ms since the tier was opened, and the number of failures in
    /// succession.
    bad_until_ms: AtomicU64,
    failures: AtomicU32,
    /// Advice: it was in memory before a restart, so it goes to the device after those that were
    /// not.
    kept: AtomicBool,
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
    device: Arc<dyn Device>,
    /// Reads of the device, many at once.
    reads: ManyReads,
    windows: Box<[Window]>,
    segment_bytes: usize,
    slots: u32,
    free: Mutex<Vec<u32>>,
    free_count: AtomicU32,
    /// Windows whose memory waits for readers that may still use it (F2): stamp and window, oldest
    /// first.
    leaving: Mutex<VecDeque<(u64, u32)>>,
    leaving_count: AtomicU64,
    /// A segment has to be demoted although segments have enough memory, because the index, a
    /// writer or promoted copies lack some.
    pressed: AtomicBool,
    pressed_for_copies: AtomicBool,
    /// Time at which the index or a writer last lacked memory, in ms.
    pressed_ms: AtomicU64,
    /// A writer of a cache found no memory for the index: the entries of one victim have to be
    /// evicted.
    index_wants: AtomicBool,
    /// Number of segments that are being written.
    writing: AtomicU64,
    /// Live bytes in cold windows, as last summed.
    live: AtomicU64,
    /// Segments that cleaning had freed, and used for it, at the last demotion.
    gain: (AtomicU64, AtomicU64),
    /// The device failed to write (F5).
    failed: AtomicBool,
    /// Bytes of the windows into which cleaners read cold victims, and of the buffers for writing
    /// segments.
    warm_bytes: u64,
    /// Bytes that a refill works with, if the store has a log.
    refill_bytes: u64,
    /// Windows that were found last as fit for demotion, or for cleaning with a gain.
    may_leave: AtomicUsize,
    may_gain: AtomicUsize,
    masks: Masks,
    background_reads: BackgroundReads,
    pub(crate) promoted: Promoted,
    pub(crate) figures: Figures,
}

impl Tier {
    /// `warm`: number of cold victims that may be read back at once. `refills`: the store outlives
    /// its process.
    pub(crate) fn new(
        options: &FlashOptions,
        slots: u32,
        windows: usize,
        segment_bytes: usize,
        memory_bytes: u64,
        warm: usize,
        refills: bool,
    ) -> Tier {
        Tier {
            device: options.device.clone(),
            reads: ManyReads::new(options.device.clone()),
            windows: (0..windows).map(|_| Window::default()).collect(),
            segment_bytes,
            slots,
            // Lowest last: so a device with few segments is written at its start.
            free: Mutex::new((0..slots).rev().collect()),
            free_count: AtomicU32::new(slots),
            leaving: Mutex::default(),
            leaving_count: AtomicU64::new(0),
            pressed: AtomicBool::new(false),
            pressed_for_copies: AtomicBool::new(false),
            pressed_ms: AtomicU64::new(0),
            index_wants: AtomicBool::new(false),
            writing: AtomicU64::new(0),
            live: AtomicU64::new(0),
            gain: Default::default(),
            failed: AtomicBool::new(false),
            warm_bytes: (warm * (segment_bytes + WRITE_BYTES.min(segment_bytes))) as u64,
            refill_bytes: if refills {
                heat::refill_bytes(memory_bytes)
            } else {
                0
            },
            may_leave: AtomicUsize::new(0),
            may_gain: AtomicUsize::new(0),
            masks: Masks::new(),
            background_reads: BackgroundReads::default(),
            promoted: Promoted::new(memory_bytes, segment_bytes),
            figures: Figures::default(),
        }
    }

    /// Slots that a device of this length has for segments of this size.
    pub(crate) fn slots_of(options: &FlashOptions, segment_bytes: usize) -> u32 {
        (options.device.bytes() / segment_bytes as u64).min(u64::from(u32::MAX / 2)) as u32
    }

    /// Memory that the tier takes from the start, in bytes (F6).
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
        self.windows[window].warmth.is_in_memory(stamp) // F2
    }

    fn is_kept(&self, window: u32) -> bool {
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

    /// The result of reading a segment back (F5).
    fn was_readable(&self, window: u32, is_readable: bool) {
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
    fn try_bad_again(&self) {
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
    fn take_slot(&self) -> Option<u32> {
        let mut free = self.free.lock().expect("slots of the flash device");
        let slot = free.pop();
        self.free_count.store(free.len() as u32, Ordering::Relaxed);
        slot
    }

    fn give_slot(&self, slot: u32) {
        let mut free = self.free.lock().expect("slots of the flash device");
        free.push(slot);
        assert!(free.len() <= self.slots as usize, "a slot given back twice"); // F3
        self.free_count.store(free.len() as u32, Ordering::Relaxed);
    }

    /// Place and mask of a cold window's bytes on the device.
    fn place_of(&self, window: u32) -> (u64, Mask) {
        let known = &self.windows[window as usize];
        let slot = known.slot.load(Ordering::Relaxed);
        (self.slot_at(slot), Mask(known.mask.load(Ordering::Acquire)))
    }

    fn slot_at(&self, slot: u32) -> u64 {
        u64::from(slot) * self.segment_bytes as u64
    }

    /// The window's bytes are on the device: sessions that are pinned from now on see it cold (F2).
    fn turn_cold(&self, window: u32, slot: u32, mask: Mask, epochs: &Epochs) {
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

    /// No reader finds an entry of the window any more (engine::space::S3, F3): its slot is free.
    /// For windows of either kind.
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

    /// Frees the memory of windows that turned cold and that no reader uses any more (F2).
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

    /// Requests the demotion of one segment for the index or a writer, even if segments have enough
    /// memory.
    pub(crate) fn press(&self, now_ms: u64) {
        self.pressed_ms.store(now_ms, Ordering::Relaxed);
        self.pressed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::Relaxed) || self.pressed_for_copies.load(Ordering::Relaxed)
    }

    fn unpress(&self) {
        self.pressed.store(false, Ordering::Relaxed);
        self.pressed_for_copies.store(false, Ordering::Relaxed);
    }

    /// True if another user lacks memory, or has just got some and may need more: copies then take
    /// none.
    pub(crate) fn others_come_first(&self, now_ms: u64) -> bool {
        self.pressed.load(Ordering::Relaxed)
            || now_ms < self.pressed_ms.load(Ordering::Relaxed) + OTHERS_FIRST_MS
    }

    /// True if cold segments should be cleaned, so that others can be demoted.
    pub(crate) fn is_short(&self) -> bool {
        let few = (self.slots / FREE_SLOTS_PART).max(SLOTS_RESERVED + 2);
        !self.has_failed() && self.free_count.load(Ordering::Relaxed) < few
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Approximate live bytes in cold windows.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    pub(crate) fn set_live_bytes(&self, bytes: u64) {
        self.live.store(bytes, Ordering::Relaxed);
    }

    fn gain(&self) -> (u64, u64) {
        let (freed, used) = &self.gain;
        (freed.load(Ordering::Relaxed), used.load(Ordering::Relaxed))
    }

    fn set_gain(&self, (freed, used): (u64, u64)) {
        self.gain.0.store(freed, Ordering::Relaxed);
        self.gain.1.store(used, Ordering::Relaxed);
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
