//! The log as its writer sees it: what the heads appended, in order, and how much of it is durable.
//!
//! **Invariants**
//! - L1: the bytes of a segment are the bytes of its window, offset for offset. They stay in place
//!   until the segment is durably closed: only then may a cleaner take the window.
//! - L2: `shippable` of a stream never lies inside a group (a transaction): entries of one group
//!   are collected together. All of a group lies in one segment, but for one that has set aside
//!   more (`room`).
//! - L3: a stream's positions only grow, and are multiples of 8. A segment takes its length and 8
//!   more, which stand for its closing; so "durable up to" says of data and of closings alike what
//!   is durable.
//! - L4: `appended` of a stream is stored before the index points to the entry: who sees a version
//!   dead sees a position that covers what killed it (90-traps.md §0.3).
//! - L5: an entry is appended over its predecessor, or a key created again after its removal, only
//!   if that predecessor is durable or lies before it in the same stream (90-traps.md §B). So of a
//!   key's versions a prefix survives, and each version's killer names the segment of the version
//!   just below it.
//! - L6: a change of a table is collected no later than any entry that was written after it.
//!
//! **Concurrency**: `appended` and `shippable` are stored by who holds the head's lock. `collect`
//! takes no head's lock: a roll holds the stream's queue for an instant. One consumer calls
//! `collect` and `complete`.
//!
//! Papers: [Rumble14 §4], [Ousterhout15 §4.2]; differs: many heads, hence positions that are
//! vectors.

mod group;
#[cfg(any(loom, shuttle))]
pub mod modelled;
mod order;
mod planted;
mod position;
mod relocate;
mod removals;
mod stream;
mod swap;

pub(crate) use group::roll;
pub(crate) use order::{Buried, HEADS_MAX};
#[cfg_attr(
    not(any(feature = "planted", shuttle)),
    allow(unreachable_pub, unused_imports)
)]
pub use planted::Bug;
pub use position::Position;
pub use relocate::Relocation;
pub use stream::{Collected, Piece};
pub(crate) use swap::Needs;
pub(crate) use swap::Swaps;
pub use swap::{Pass, SurvivorReady, Swap};

use crate::space::Space;
use crate::{Error, LogOptions, TableChange};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::sync::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering,
};
use duramen_base::waits::{LongWait, Resource};
use duramen_format::segment::{Header, Kind};
use removals::Removals;
use std::sync::{Arc, Condvar, OnceLock};
use std::time::Duration;
use stream::Stream;

/// A waiter looks again at least this often.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The disk has no space.
const FULL: u8 = 1;
/// The disk failed.
const FAILED: u8 = 2;
/// The log has ended.
const CLOSED: u8 = 4;

/// Positions are multiples of 8 (L3), those of changes too.
const CHANGE_STEP: u64 = 8;

/// The durable side of a store. One consumer (the log writer) collects and completes.
pub struct Log {
    options: LogOptions,
    windows: Box<[Window]>,
    /// How many bytes of each window are durable; `Space` reads it.
    durable: Arc<[AtomicU32]>,
    memory: Memory,
    /// One per head; positions of table changes have a stream number of their own, after these.
    pub(crate) streams: Box<[Stream]>,
    removals: Removals,
    changes: Mutex<Changes>,
    /// Changes that reached the level, by sequence number.
    changes_buffered: AtomicU64,
    changes_synced: AtomicU64,
    next_segment: AtomicU64,
    /// Why nothing is written: bits of `FULL`, `FAILED` and `CLOSED`. 0 = all is well.
    refuses: AtomicU8,
    /// What the cleaner made could not be written for want of space.
    cannot_clean: AtomicBool,
    planted: planted::Planted,
    version_floor: AtomicU64,
    /// Segments are being loaded.
    loading: AtomicBool,
    /// Side logs that are being filled.
    sides: AtomicUsize,
    swaps: Swaps,
    default_level: AtomicU8,
    demand: OnceLock<Box<dyn Fn() + Send + Sync>>,
    waiters: AtomicUsize,
    waiting: std::sync::Mutex<()>,
    progress: Condvar,
}

/// What the log knows of a window.
#[derive(Default)]
struct Window {
    segment: AtomicU64,
    /// Where in its head's stream it starts; unused for survivors.
    base: AtomicU64,
    stream: AtomicUsize,
}

/// Where windows lie.
struct Memory {
    start: *const u8,
    segment_bytes: usize,
}

// SAFETY: it only computes addresses; `slice` says why what it reads does not change.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Bytes of a head's segment that were collected and are not yet completed.
    fn slice(&self, window: u32, offset: u32, bytes: u32) -> &[u8] {
        let at = window as usize * self.segment_bytes + offset as usize;
        assert!(offset as usize + bytes as usize <= self.segment_bytes);
        // SAFETY: inside the region, which lives as long as the log. Entries were whole up to
        // `shippable` (Acquire in `collect`), a head never changes what it appended, and the window
        // is not cleaned before it is durably closed (L1), hence not before `complete` took the
        // `Collected` that this was asked with.
        unsafe { std::slice::from_raw_parts(self.start.wrapping_add(at), bytes as usize) }
    }
}

/// Changes of tables that wait to be collected.
#[derive(Default)]
struct Changes {
    /// The last sequence number given.
    last: u64,
    /// The first number that an exclusive guard has been given and not yet published.
    reserved: Option<u64>,
    queue: Vec<(u64, TableChange)>,
}

impl Log {
    pub(crate) fn new(options: &LogOptions, space: &Space, heads: usize) -> Log {
        Log {
            options: options.clone(),
            windows: space.segments.iter().map(|_| Window::default()).collect(),
            durable: space.durable.clone(),
            memory: Memory {
                start: space.at(0),
                segment_bytes: space.segment_bytes(),
            },
            streams: (0..heads).map(|_| Stream::default()).collect(),
            removals: Removals::new(space.budget.limit(), heads),
            changes: Mutex::default(),
            changes_buffered: AtomicU64::new(0),
            changes_synced: AtomicU64::new(0),
            next_segment: AtomicU64::new(options.first_segment.max(1)),
            refuses: AtomicU8::new(0),
            cannot_clean: AtomicBool::new(false),
            planted: planted::Planted::default(),
            version_floor: AtomicU64::new(options.version_floor),
            loading: AtomicBool::new(false),
            sides: AtomicUsize::new(0),
            swaps: Swaps::new(
                options.disk_segments_max,
                options.disk_segments_room,
                options.pending_passes_max,
                space.segments.len(),
                heads,
            ),
            default_level: AtomicU8::new(options.level as u8),
            demand: OnceLock::new(),
            waiters: AtomicUsize::new(0),
            waiting: std::sync::Mutex::new(()),
            progress: Condvar::new(),
        }
    }

    pub fn options(&self) -> &LogOptions {
        &self.options
    }

    /// Heads of the store.
    pub fn heads(&self) -> usize {
        self.streams.len()
    }

    /// The number of the stream of table changes.
    fn changes_stream(&self) -> u16 {
        self.streams.len() as u16
    }

    /// Every version that was ever given before the store was made is below this.
    pub(crate) fn version_floor(&self) -> u64 {
        self.version_floor.load(Ordering::Relaxed)
    }

    /// What a restart found: versions go on from here at least.
    pub(crate) fn raise_version_floor(&self, floor: u64) {
        self.version_floor.fetch_max(floor, Ordering::Relaxed);
    }

    /// Ids go on from here at least.
    pub(crate) fn raise_next_segment(&self, next: SegmentId) {
        self.next_segment.fetch_max(next.0, Ordering::Relaxed);
    }

    /// The level of tables without one of their own.
    pub fn default_level(&self) -> Level {
        Level::from_number(self.default_level.load(Ordering::Relaxed)).unwrap_or_default()
    }

    pub fn set_default_level(&self, level: Level) {
        self.default_level.store(level as u8, Ordering::Relaxed);
    }

    pub(crate) fn overhead_bytes(&self) -> u64 {
        let tables = size_of_val(&*self.windows) + size_of_val(&*self.streams);
        tables as u64 + self.removals.bytes() + self.swaps.bytes()
    }

    /// An id that no segment had before.
    pub fn new_segment_id(&self) -> SegmentId {
        SegmentId(self.next_segment.fetch_add(1, Ordering::Relaxed))
    }

    /// As [`new_segment_id`](Self::new_segment_id), so many in a row; the first of them.
    pub(crate) fn new_segment_ids(&self, count: u64) -> SegmentId {
        SegmentId(self.next_segment.fetch_add(count, Ordering::Relaxed))
    }

    /// What of the log cleaning replaces.
    pub(crate) fn swaps(&self) -> &Swaps {
        &self.swaps
    }

    /// True while segments are being loaded.
    pub(crate) fn is_loading(&self) -> bool {
        self.loading.load(Ordering::Acquire)
    }

    pub(crate) fn set_loading(&self, loading: bool) {
        self.loading.store(loading, Ordering::Release);
    }

    /// True while a side log is being filled.
    pub(crate) fn has_sides(&self) -> bool {
        self.sides.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn side_began(&self) {
        self.sides.fetch_add(1, Ordering::Relaxed);
    }

    /// Once for each that began.
    pub(crate) fn side_ended(&self) {
        self.sides.fetch_sub(1, Ordering::Relaxed);
    }

    /// Grows whenever the log's writer has got something done.
    pub(crate) fn progress(&self) -> u64 {
        let streams = self.streams.iter();
        let synced = streams.map(|stream| stream.done.synced.load(Ordering::Relaxed));
        synced.fold(self.swaps.progress(), u64::wrapping_add)
    }

    /// The id that the next segment will get.
    pub fn next_segment_id(&self) -> SegmentId {
        SegmentId(self.next_segment.load(Ordering::Relaxed))
    }

    /// The segment whose bytes a window holds.
    pub(crate) fn segment_of(&self, window: usize) -> SegmentId {
        SegmentId(self.windows[window].segment.load(Ordering::Relaxed))
    }

    /// Says which segment's bytes a window is going to hold.
    pub(crate) fn set_segment(&self, window: usize, segment: SegmentId) {
        self.windows[window]
            .segment
            .store(segment.0, Ordering::Relaxed);
    }

    /// Gives a head's fresh window a new id, and writes the segment's header into it. The caller
    /// alone has the window.
    pub(crate) fn open_window(&self, space: &Space, window: u32, head: usize) {
        let segment = self.new_segment_id();
        self.swaps.opened(segment);
        self.give_window(space, window, segment, Kind::Head, head);
        self.durable[window as usize].store(0, Ordering::Relaxed);
    }

    /// Makes a window that of `segment`, and writes its header. The caller alone has the window.
    /// Whatever a cleaner puts there are copies of durable entries, so all of it counts as durable
    /// from the start.
    pub(crate) fn give_window(
        &self,
        space: &Space,
        window: u32,
        segment: SegmentId,
        kind: Kind,
        head: usize,
    ) {
        self.adopt_window(window, segment);
        let header = Header {
            kind,
            segment,
            log: self.options.server,
            head: head as u32,
            capacity: space.segment_bytes() as u32,
        };
        space.write_header(window, &header.encode());
    }

    /// A window holds this segment, which is durable.
    pub(crate) fn adopt_window(&self, window: u32, segment: SegmentId) {
        self.set_segment(window as usize, segment);
        self.durable[window as usize].store(u32::MAX, Ordering::Relaxed);
    }

    /// True if a closed window may be a victim: it holds nothing that the disk lacks.
    pub(crate) fn is_victim_to_be(&self, window: u32) -> bool {
        self.may_leave_memory(window) && !self.swaps.is_held(window)
    }

    /// True if nobody needs the memory of a closed window for its bytes: they are durable. Of a
    /// side log's, too (D8).
    pub(crate) fn may_leave_memory(&self, window: u32) -> bool {
        self.is_durably_closed(window as usize)
            && (self.swaps.is_written(window) || self.has_bug(Bug::UnwrittenLeavesMemory))
    }

    /// Bytes of a segment that is closed, and that the caller's pin keeps in memory.
    pub(crate) fn copy_of(&self, window: u32, from: u32, to: u32) -> Vec<u8> {
        self.memory.slice(window, from, to - from).to_vec()
    }

    /// True if a closed segment's window may be cleaned (L1).
    pub(crate) fn is_durably_closed(&self, window: usize) -> bool {
        self.durable[window].load(Ordering::Acquire) == u32::MAX
    }

    /// Connects a fresh window of a head to its stream; returns where in it the window starts.
    pub(crate) fn enter_stream(&self, stream: usize, window: u32) -> u64 {
        let known = &self.windows[window as usize];
        let base = self.streams[stream].open(self.segment_of(window as usize), window);
        known.base.store(base, Ordering::Relaxed);
        known.stream.store(stream, Ordering::Relaxed);
        base
    }

    /// The segment in which an entry lies that is to be replaced or removed, unless it is in
    /// `window` itself.
    #[inline(always)]
    pub(crate) fn victim(&self, space: &Space, location: u64, window: Option<u32>) -> SegmentId {
        let found = space.window_of(location);
        if Some(found as u32) == window {
            SegmentId::NONE
        } else {
            self.segment_of(found)
        }
    }

    /// Stream and position that cover an entry of a head's segment.
    pub(crate) fn place_of(&self, space: &Space, location: u64) -> (u16, u64) {
        let window = &self.windows[space.window_of(location)];
        let base = window.base.load(Ordering::Relaxed);
        let stream = window.stream.load(Ordering::Relaxed);
        (
            stream as u16,
            base + u64::from(space.offset_in_window(location)) + 8,
        )
    }

    /// What a stream has reached at a level.
    pub(crate) fn end_of(&self, stream: u16, level: Level) -> u64 {
        let (buffered, synced) = match self.streams.get(usize::from(stream)) {
            Some(stream) => (&stream.done.buffered, &stream.done.synced),
            None => (&self.changes_buffered, &self.changes_synced),
        };
        match level {
            Level::Memory => u64::MAX,
            // Whatever is synced was buffered, whichever is stored first.
            Level::Buffered => buffered
                .load(Ordering::Acquire)
                .max(synced.load(Ordering::Acquire)),
            Level::Synced => synced.load(Ordering::Acquire),
        }
    }

    /// The level that everything in a position has reached.
    pub fn reached(&self, position: &Position) -> Level {
        let reaches = |level| {
            let mut ends = position.ends();
            ends.all(|(stream, end)| end <= self.end_of(stream, level))
        };
        if reaches(Level::Synced) {
            Level::Synced
        } else if reaches(Level::Buffered) {
            Level::Buffered
        } else {
            Level::Memory
        }
    }

    /// Everything that was appended and changed so far, groups that are still open included (L4).
    pub fn appended(&self) -> Position {
        let mut position = Position::default();
        for (number, stream) in self.streams.iter().enumerate() {
            let end = stream.written.appended.load(Ordering::Acquire);
            if end > stream.done.synced.load(Ordering::Acquire) {
                position.add(number as u16, end, Level::Synced);
            }
        }
        let last = self.changes.lock().expect("table changes").last;
        if last > self.changes_synced.load(Ordering::Acquire) {
            position.add(self.changes_stream(), last, Level::Synced);
        }
        position
    }

    /// Bytes appended and not yet synced, about.
    pub fn undurable_bytes(&self) -> u64 {
        let streams = self.streams.iter();
        streams
            .map(|stream| {
                let synced = stream.done.synced.load(Ordering::Relaxed);
                stream
                    .written
                    .appended
                    .load(Ordering::Relaxed)
                    .saturating_sub(synced)
            })
            .sum()
    }

    /// Called whenever the engine needs something durable soon, and possibly waits for it, with
    /// locks held: the hook must not enter the store, but it may collect and complete. Only the
    /// first hook counts.
    pub fn on_demand(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.demand.set(Box::new(hook));
    }

    /// Asks the consumer for a commit at level synced.
    pub(crate) fn demand(&self) {
        if let Some(hook) = self.demand.get() {
            hook();
        }
    }

    /// The disk has no space: writes are refused until it has some again.
    pub fn disk_full(&self, is_full: bool) {
        self.refuse(FULL, is_full);
    }

    /// The log has ended: writes are refused ([`Error::Closed`]) until this is taken back. What
    /// must not be lost is written before: [`Store::alone`](crate::Store::alone) says when no write
    /// is under way.
    pub fn closed(&self, is_closed: bool) {
        self.refuse(CLOSED, is_closed);
    }

    /// Release pairs with Acquire in `refusal`.
    fn refuse(&self, reason: u8, refuses: bool) {
        if refuses {
            self.refuses.fetch_or(reason, Ordering::Release);
        } else {
            self.refuses.fetch_and(!reason, Ordering::Release);
        }
        self.wake();
    }

    /// The disk has no space for survivors: who waits for memory that they would free waits in
    /// vain.
    pub fn cannot_clean(&self, is_full: bool) {
        self.cannot_clean.store(is_full, Ordering::Release);
    }

    /// Segments listed, those included that wait for their swap: each needs space on the disk.
    pub fn segments_listed(&self) -> u64 {
        self.swaps.room().0
    }

    /// The disk has space for so many segments, though there may be more: `u64::MAX` = for all. Of
    /// these some are kept for cleaning, and some for removals.
    pub fn set_disk_room(&self, segments: u64) {
        self.swaps.set_disk_room(segments);
    }

    /// True if writes are refused because live data fill the disk; removals are not.
    pub fn is_short_of_disk(&self) -> bool {
        self.swaps.is_short_of_disk()
    }

    pub(crate) fn is_disk_full_for_cleaners(&self) -> bool {
        self.cannot_clean.load(Ordering::Acquire)
    }

    /// The disk failed: writes are refused for good.
    pub fn disk_failed(&self) {
        self.refuse(FAILED, true);
    }

    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`], [`Error::Closed`] if nothing can be written now.
    #[inline(always)]
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.refuses.load(Ordering::Relaxed) != 0 {
            self.refusal()
        } else {
            Ok(())
        }
    }

    #[cold]
    fn refusal(&self) -> Result<(), Error> {
        match self.refuses.load(Ordering::Acquire) {
            0 => Ok(()),
            why if why & CLOSED != 0 => Err(Error::Closed),
            why if why & FAILED != 0 => Err(Error::DiskFailed),
            _ => Err(Error::DiskFull),
        }
    }

    /// Waits until a stream is synced up to `end`; `holding` says what others may want meanwhile.
    ///
    /// # Errors
    /// As [`check_writable`](Self::check_writable), when there is no hope.
    pub(crate) fn wait_synced(
        &self,
        stream: u16,
        end: u64,
        holding: &'static [Resource],
    ) -> Result<(), Error> {
        let mut waiting = LongWait::new(Resource::Commit, holding);
        let mut rounds = 0;
        while self.end_of(stream, Level::Synced) < end {
            self.check_writable()?;
            self.demand();
            rounds += 1;
            if rounds < 8 || cfg!(any(loom, shuttle)) {
                waiting.wait();
                continue;
            }
            self.waiters.fetch_add(1, Ordering::SeqCst);
            let guard = self.waiting.lock().expect("waiters for the log");
            if self.end_of(stream, Level::Synced) < end {
                drop(self.progress.wait_timeout(guard, LOOK_AGAIN));
            }
            self.waiters.fetch_sub(1, Ordering::SeqCst);
            waiting.look();
        }
        Ok(())
    }

    fn wake(&self) {
        if self.waiters.load(Ordering::SeqCst) != 0 {
            drop(self.waiting.lock().expect("waiters for the log"));
            self.progress.notify_all();
        }
    }

    /// Queues a change of a table, before anybody can write under it (L6).
    pub(crate) fn publish_change(&self, change: TableChange) {
        let mut changes = self.changes.lock().expect("table changes");
        changes.last += CHANGE_STEP;
        let number = changes.last;
        changes.queue.push((number, change));
    }

    /// A number for a change that an exclusive guard is going to publish when it ends; also its
    /// position.
    pub(crate) fn reserve_change(&self) -> (u16, u64) {
        let mut changes = self.changes.lock().expect("table changes");
        changes.last += CHANGE_STEP;
        let number = changes.last;
        changes.reserved.get_or_insert(number);
        (self.changes_stream(), number)
    }

    /// Publishes what an exclusive guard did to tables, together with its entries:
    /// `publish_entries` makes them shippable.
    pub(crate) fn publish_alone(
        &self,
        made: Vec<(u64, TableChange)>,
        publish_entries: impl FnOnce(),
    ) {
        let mut changes = self.changes.lock().expect("table changes");
        changes.queue.extend(made);
        changes.queue.sort_by_key(|(number, _)| *number);
        changes.reserved = None;
        publish_entries();
    }
}
