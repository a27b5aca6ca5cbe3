//! The log as its writer uses it: the appends of all heads, in order, and how far each is durable.
//!
//! **Invariants**
//! - L1: the bytes of a segment are the bytes of its window, offset for offset. They stay in place
//!   until the segment is durably closed: only then may a cleaner take the window.
//! - L2: `shippable` of a stream is never inside a group (a transaction): entries of one group
//!   are collected together. All of a group is in one segment, except for a group that has set
//!   aside more (`room`).
//! - L3: a stream's positions only grow, and are multiples of 8. A segment takes its length and 8
//!   more, which stand for its closing. So "durable up to" covers data and closings alike.
//! - L4: `appended` of a stream is stored before the index points to the entry. So a thread that
//!   sees a version dead also sees a position that covers its killer (docs/traps.md, trap 3).
//! - L5: an entry is appended over its predecessor, or a key created again after its removal, only
//!   if that predecessor is durable or is before it in the same stream (docs/traps.md, trap 5). So
//!   a prefix of a key's versions survives, and each version's killer names the segment of the
//!   version just below it.
//! - L6: a change of a table is collected no later than any entry that was written after it.
//!
//! **Concurrency**: the holder of the head's lock stores `appended` and `shippable`. `collect`
//! takes no head's lock; a roll holds the stream's queue for an instant. One consumer calls
//! `collect` and `complete`.
//!
//! Papers: [Rumble14 §4], [Ousterhout15 §4.2]; differs: many heads, hence positions that are
//! vectors.

mod group;
#[cfg(any(loom, shuttle))]
pub mod modelled;
mod origin;
mod position;
mod relocate;
mod removals;
mod stream;
mod swap;

pub(crate) use origin::{Origin, Trace};
pub use position::Position;
pub(crate) use position::{HEADS_MAX, pack_place};
pub use relocate::Relocation;
pub use stream::{Collected, Piece};
pub(crate) use swap::Required;
pub(crate) use swap::Swaps;
pub use swap::{Pass, SurvivorReady, Swap};

use crate::space::Space;
use crate::{Error, LogOptions, TableChange};
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, coarse,
};
use duramen_base::waits::{LongWait, Resource};
use duramen_format::segment::{Header, Kind};
use removals::Removals;
use std::sync::{Arc, Condvar, OnceLock};
use std::time::Duration;
use stream::Stream;

/// Longest time after which a waiter looks again.
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
    /// Number of durable bytes of each window; `Space` reads it.
    durable: Arc<[AtomicU32]>,
    memory: Memory,
    /// One per head. Positions of table changes have the stream number behind these.
    pub(crate) streams: Box<[Stream]>,
    pub(crate) removals: Removals,
    changes: Mutex<Changes>,
    /// Numbers up to which changes have reached the level.
    changes_buffered: AtomicU64,
    changes_synced: AtomicU64,
    next_segment: AtomicU64,
    /// Why writes are refused: bits of `FULL`, `FAILED` and `CLOSED`. 0 = they are not.
    refuses: AtomicU8,
    /// Survivors could not be written for want of disk space.
    cannot_clean: AtomicBool,
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

/// The log's data about a window.
#[derive(Default)]
struct Window {
    segment: AtomicU64,
    /// Start of the segment in its head's stream; unused for survivors.
    base: AtomicU64,
    stream: AtomicUsize,
    origin: coarse::Mutex<Origin>,
}

/// The memory of all windows.
struct Memory {
    start: *const u8,
    segment_bytes: usize,
}

// SAFETY: it only computes addresses; the bytes that `slice` reads do not change, as is shown
// there.
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
        // `Collected` that this call is for.
        unsafe { std::slice::from_raw_parts(self.start.wrapping_add(at), bytes as usize) }
    }
}

/// Table changes that are not collected yet.
#[derive(Default)]
struct Changes {
    /// The last sequence number given.
    last: u64,
    /// First number that an exclusive guard has reserved and not published yet.
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

    /// The stream number of table changes.
    pub(crate) fn changes_stream(&self) -> u16 {
        self.streams.len() as u16
    }

    /// All versions that were given before this store was made are below this.
    pub(crate) fn version_floor(&self) -> u64 {
        self.version_floor.load(Ordering::Relaxed)
    }

    /// A restart found this floor: new versions are not below it.
    pub(crate) fn raise_version_floor(&self, floor: u64) {
        self.version_floor.fetch_max(floor, Ordering::Relaxed);
    }

    /// New segment ids are not below this.
    pub(crate) fn raise_next_segment(&self, next: SegmentId) {
        self.next_segment.fetch_max(next.0, Ordering::Relaxed);
    }

    /// The level of tables that have none of their own.
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

    /// A new segment id, never used before.
    pub fn new_segment_id(&self) -> SegmentId {
        SegmentId(self.next_segment.fetch_add(1, Ordering::Relaxed))
    }

    /// As [`new_segment_id`](Self::new_segment_id), `count` ids in a row; returns the first.
    pub(crate) fn new_segment_ids(&self, count: u64) -> SegmentId {
        SegmentId(self.next_segment.fetch_add(count, Ordering::Relaxed))
    }

    /// The list of segments, and the cleaning passes that change it.
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

    /// Called once for each side log that began.
    pub(crate) fn side_ended(&self) {
        self.sides.fetch_sub(1, Ordering::Relaxed);
    }

    /// Grows with every step that the log's writer completes.
    pub(crate) fn progress(&self) -> u64 {
        let streams = self.streams.iter();
        let synced = streams.map(|stream| stream.done.synced.load(Ordering::Relaxed));
        synced.fold(self.swaps.progress(), u64::wrapping_add)
    }

    /// The id of the next segment.
    pub fn next_segment_id(&self) -> SegmentId {
        SegmentId(self.next_segment.load(Ordering::Relaxed))
    }

    /// The segment that a window holds.
    pub(crate) fn segment_of(&self, window: usize) -> SegmentId {
        SegmentId(self.windows[window].segment.load(Ordering::Relaxed))
    }

    /// Sets the segment that a window is going to hold.
    pub(crate) fn set_segment(&self, window: usize, segment: SegmentId) {
        self.windows[window]
            .segment
            .store(segment.0, Ordering::Relaxed);
    }

    /// Gives a head's fresh window a new id, and writes the segment's header into it. No other
    /// thread uses the window.
    pub(crate) fn open_window(&self, space: &Space, window: u32, head: usize) {
        let segment = self.new_segment_id();
        self.swaps.opened(segment);
        self.give_window(space, window, segment, Kind::Head, head);
        self.durable[window as usize].store(0, Ordering::Relaxed);
    }

    /// Gives a window the id `segment`, and writes its header. No other thread uses the window. A
    /// cleaner fills it with copies of durable entries, so all of it counts as durable from the
    /// start.
    pub(crate) fn give_window(
        &self,
        space: &Space,
        window: u32,
        segment: SegmentId,
        kind: Kind,
        head: usize,
    ) {
        drop(self.take_origin(space, window)); // nothing is copied into it yet (OR1)
        self.name_window(window, segment);
        let header = Header {
            kind,
            segment,
            log: self.options.server,
            head: head as u32,
            capacity: space.segment_bytes() as u32,
        };
        space.memory.write_header(window, &header.encode());
    }

    /// The window holds this segment, which is durable; a load may have changed its entries (OR1).
    pub(crate) fn adopt_window(&self, window: u32, segment: SegmentId) {
        self.name_window(window, segment);
        self.forget_origin(window);
    }

    fn name_window(&self, window: u32, segment: SegmentId) {
        self.set_segment(window as usize, segment);
        self.durable[window as usize].store(u32::MAX, Ordering::Relaxed);
    }

    /// True if a closed window may be a victim: the disk has all of its data.
    pub(crate) fn is_victim_to_be(&self, window: u32) -> bool {
        self.may_leave_memory(window) && !self.swaps.is_held(window)
    }

    /// True if the memory of a closed window may be freed, as its bytes are durable. This includes
    /// windows of side logs (swap::D8).
    pub(crate) fn may_leave_memory(&self, window: u32) -> bool {
        self.is_durably_closed(window as usize)
            && (self.swaps.is_written(window) || has_bug(Bug::UnwrittenLeavesMemory))
    }

    /// Copies bytes of a closed segment that the caller's pin keeps in memory.
    pub(crate) fn copy_of(&self, window: u32, from: u32, to: u32) -> Vec<u8> {
        self.memory.slice(window, from, to - from).to_vec()
    }

    /// True if a closed segment's window may be cleaned (L1).
    pub(crate) fn is_durably_closed(&self, window: usize) -> bool {
        self.durable[window].load(Ordering::Acquire) == u32::MAX
    }

    /// Connects a head's fresh window to its stream; returns the position where the window starts.
    pub(crate) fn enter_stream(&self, stream: usize, window: u32) -> u64 {
        let known = &self.windows[window as usize];
        let base = self.streams[stream].open(self.segment_of(window as usize), window);
        known.base.store(base, Ordering::Relaxed);
        known.stream.store(stream, Ordering::Relaxed);
        base
    }

    /// The segment of an entry that is to be replaced or removed; none if the entry is in `window`
    /// itself.
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

    /// The position that a stream has reached at a level.
    pub(crate) fn end_of(&self, stream: u16, level: Level) -> u64 {
        let (buffered, synced) = match self.streams.get(usize::from(stream)) {
            Some(stream) => (&stream.done.buffered, &stream.done.synced),
            None => (&self.changes_buffered, &self.changes_synced),
        };
        match level {
            Level::Memory => u64::MAX,
            // Everything that is synced was buffered, whichever is stored first.
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

    /// Everything that was appended and changed so far, open groups included (L4).
    pub fn appended(&self) -> Position {
        let mut position = Position::default();
        for (number, stream) in self.streams.iter().enumerate() {
            let end = stream.written.appended.load(Ordering::Acquire);
            if end > stream.done.synced.load(Ordering::Acquire) {
                position.add(number as u16, end, Level::Synced);
            }
        }
        position.join(&self.changed());
        position
    }

    /// All changes of tables that were made so far.
    pub fn changed(&self) -> Position {
        let mut position = Position::default();
        let last = self.changes.lock().expect("table changes").last;
        if last > self.changes_synced.load(Ordering::Acquire) {
            position.add(self.changes_stream(), last, Level::Synced);
        }
        position
    }

    /// Approximate number of bytes appended and not yet synced.
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

    /// Sets the hook that is called when the engine needs a commit soon, and possibly waits for it
    /// with locks held. The hook must not enter the store, but it may collect and complete. Only
    /// the first hook counts.
    pub fn on_demand(&self, hook: impl Fn() + Send + Sync + 'static) {
        let _ = self.demand.set(Box::new(hook));
    }

    /// Requests a commit at level synced from the consumer.
    pub(crate) fn demand(&self) {
        if let Some(hook) = self.demand.get() {
            hook();
        }
    }

    /// The disk has no space: writes are refused until it has some again.
    pub fn disk_full(&self, is_full: bool) {
        self.refuse(FULL, is_full);
    }

    /// The log has ended: writes are refused ([`Error::Closed`]) until this is taken back. Data
    /// that must not be lost are written before; inside [`Store::alone`](crate::Store::alone) no
    /// write is in progress.
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

    /// The disk has no space for survivors: a thread that waits for memory which they would free
    /// waits in vain.
    pub fn cannot_clean(&self, is_full: bool) {
        self.cannot_clean.store(is_full, Ordering::Release);
    }

    /// Segments listed, including those that wait for their Swap: each needs space on the disk.
    pub fn segments_listed(&self) -> u64 {
        self.swaps.room().0
    }

    /// The segments listed, and the number from which on writers get no further one.
    pub fn disk_room(&self) -> (u64, u64) {
        self.swaps.room()
    }

    /// Sets the number of segments that the disk has space for; `u64::MAX` = enough for all. Some
    /// of them are kept for cleaning, and some for removals.
    pub fn set_disk_room(&self, segments: u64) {
        self.swaps.set_disk_room(segments);
    }

    /// True if writes are refused because live data fill the disk. Removals are not refused.
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

    /// Waits until a stream is synced up to `end`. `holding`: resources of the caller that others
    /// may want meanwhile.
    ///
    /// # Errors
    /// As [`check_writable`](Self::check_writable), when waiting cannot help.
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

    /// Queues a change of a table, before any thread can write under it (L6).
    pub(crate) fn publish_change(&self, change: TableChange) {
        let mut changes = self.changes.lock().expect("table changes");
        changes.last += CHANGE_STEP;
        let number = changes.last;
        changes.queue.push((number, change));
    }

    /// Reserves the number of a change that an exclusive guard publishes when it ends. The number
    /// is also its position.
    pub(crate) fn reserve_change(&self) -> (u16, u64) {
        let mut changes = self.changes.lock().expect("table changes");
        changes.last += CHANGE_STEP;
        let number = changes.last;
        changes.reserved.get_or_insert(number);
        (self.changes_stream(), number)
    }

    /// Publishes an exclusive guard's changes of tables together with its entries:
    /// `publish_entries` makes the entries shippable.
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
