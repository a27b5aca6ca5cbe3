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
//! **Lock order**, with the registry of tables, which takes part in it: a head, or a side log; the
//! registry; the changes of tables; the queue of a stream; the queues of passes; the list of
//! segments. A thread that makes a table publishes the change with the registry locked, `collect`
//! takes queues with the changes locked, and passes change the list with their queues locked. So a
//! thread that has the list locked makes no index, and looks up a table only by its id, which takes
//! no lock. Nobody waits for the right to be alone, or for a pin to end, with the registry locked
//! or one of those behind it.
//!
//! Papers: [Rumble14 §4], [Ousterhout15 §4.2]; differs: many heads, hence positions that are
//! vectors.

mod arrivals;
mod changes;
#[cfg(any(loom, shuttle))]
pub mod modelled;
mod numbers;
mod origin;
mod position;
mod refusals;
mod relocate;
mod removals;
mod stream;
mod streams;
mod swap;
mod waiters;
mod windows;

pub use numbers::Numbers;
pub(crate) use origin::Trace;
pub use position::Position;
pub(crate) use position::{HEADS_MAX, pack_place};
pub use refusals::Refusals;
pub use relocate::Relocation;
pub use stream::{Collected, Piece};
pub(crate) use streams::begin_group;
pub(crate) use swap::Required;
pub use swap::{DiskRoom, Pass, SurvivorReady, Swap, Swaps};

use crate::space::Space;
use crate::{Error, LogOptions};
use arrivals::Arrivals;
use changes::Changes;
use duramen_base::ids::{Level, SegmentId};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::{AtomicU8, Ordering};
use duramen_base::waits::Resource;
use duramen_format::segment::Kind;
use refusals::Refusal;
use removals::Removals;
use streams::Streams;
use waiters::Waiters;
use windows::Windows;

/// The durable side of a store. One consumer (the log writer) collects and completes.
pub struct Log {
    options: LogOptions,
    windows: Windows,
    streams: Streams,
    removals: Removals,
    changes: Changes,
    numbers: Numbers,
    refusals: Refusals,
    arrivals: Arrivals,
    swaps: Swaps,
    default_level: AtomicU8,
    waiters: Waiters,
}

impl Log {
    pub(crate) fn new(options: &LogOptions, space: &Space, heads: usize) -> Log {
        Log {
            options: options.clone(),
            windows: Windows::new(options, space),
            streams: Streams::new(heads),
            removals: Removals::new(space.budget.limit(), heads),
            changes: Changes::default(),
            numbers: Numbers::new(options),
            refusals: Refusals::default(),
            arrivals: Arrivals::default(),
            swaps: Swaps::new(options, space.segments.len(), heads),
            default_level: AtomicU8::new(options.level as u8),
            waiters: Waiters::default(),
        }
    }

    pub fn options(&self) -> &LogOptions {
        &self.options
    }

    /// The log's data about the windows of memory.
    #[inline]
    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    /// The streams of the heads.
    #[inline]
    pub(crate) fn streams(&self) -> &Streams {
        &self.streams
    }

    /// The positions of the last removals.
    #[inline]
    pub(crate) fn removals(&self) -> &Removals {
        &self.removals
    }

    /// Changes of tables.
    pub(crate) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Ids of segments, and the floor of versions.
    #[inline]
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Reasons why writes are refused.
    #[inline]
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Loads and side logs.
    #[inline]
    pub(crate) fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// The list of segments, and the cleaning passes that change it.
    #[inline]
    pub fn swaps(&self) -> &Swaps {
        &self.swaps
    }

    /// The level of tables that have none of their own.
    pub fn default_level(&self) -> Level {
        Level::from_number(self.default_level.load(Ordering::Relaxed)).unwrap_or_default()
    }

    pub fn set_default_level(&self, level: Level) {
        self.default_level.store(level as u8, Ordering::Relaxed);
    }

    pub(crate) fn overhead_bytes(&self) -> u64 {
        let tables = self.windows.bytes() + self.streams.bytes();
        tables + self.removals.bytes() + self.swaps.bytes()
    }

    /// Grows with every step that the log's writer completes.
    pub(crate) fn progress(&self) -> u64 {
        self.streams.progress().wrapping_add(self.swaps.progress())
    }

    /// The segment that a window holds.
    #[inline]
    pub(crate) fn segment_of(&self, window: usize) -> SegmentId {
        self.windows.segment_of(window)
    }

    /// Gives a head's fresh window a new id, and writes the segment's header into it. No other
    /// thread uses the window.
    pub(crate) fn open_window(&self, space: &Space, window: u32, head: usize) {
        let segment = self.numbers.new_segment_id();
        self.swaps.opened(segment);
        self.windows.give(space, window, segment, Kind::Head, head);
        self.windows.open(window);
    }

    /// True if a closed window may be a victim: the disk has all of its data.
    pub(crate) fn is_victim_to_be(&self, window: u32) -> bool {
        self.may_leave_memory(window) && !self.swaps.marks().is_held(window)
    }

    /// True if the memory of a closed window may be freed, as its bytes are durable. This includes
    /// windows of side logs (swap::D8).
    pub(crate) fn may_leave_memory(&self, window: u32) -> bool {
        self.windows.is_durably_closed(window)
            && (self.swaps.marks().is_written(window) || has_bug(Bug::UnwrittenLeavesMemory))
    }

    /// The level that everything in a position has reached.
    pub fn reached(&self, position: &Position) -> Level {
        self.streams.reached(position)
    }

    /// Everything that was appended and changed so far, open groups included (L4).
    pub fn appended(&self) -> Position {
        let mut position = self.streams.appended();
        position.join(&self.changed());
        position
    }

    /// All changes of tables that were made so far.
    pub fn changed(&self) -> Position {
        self.streams.changed(self.changes.last())
    }

    /// Approximate number of bytes appended and not yet synced.
    pub fn undurable_bytes(&self) -> u64 {
        self.streams.undurable_bytes()
    }

    /// Sets the hook that is called when the engine needs a commit soon, and possibly waits for it
    /// with locks held. The hook must not enter the store, but it may collect and complete. Only
    /// the first hook counts.
    pub fn on_demand(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.waiters.on_demand(hook);
    }

    /// Requests a commit at level synced from the consumer.
    pub(crate) fn demand(&self) {
        self.waiters.demand();
    }

    /// Notes whether the disk has no space: writes are refused until it has some again.
    pub fn disk_full(&self, is_full: bool) {
        self.refuse(Refusal::Full, is_full);
    }

    /// Notes that the disk failed: writes are refused for good.
    pub fn disk_failed(&self) {
        self.refuse(Refusal::Failed, true);
    }

    /// Notes that the log has ended: writes are refused ([`Error::Closed`]) until this is taken
    /// back. Data that must not be lost are written before; inside
    /// [`Store::alone`](crate::Store::alone) no write is in progress.
    pub fn closed(&self, is_closed: bool) {
        self.refuse(Refusal::Closed, is_closed);
    }

    fn refuse(&self, reason: Refusal, refuses: bool) {
        self.refusals.set(reason, refuses);
        self.waiters.wake();
    }

    /// Waits until a stream is synced up to `end`. `holding`: resources of the caller that others
    /// may want meanwhile.
    ///
    /// # Errors
    /// As [`Refusals::check`], when waiting cannot help.
    pub(crate) fn wait_synced(
        &self,
        stream: u16,
        end: u64,
        holding: &'static [Resource],
    ) -> Result<(), Error> {
        let is_there = || self.streams.end_of(stream, Level::Synced) >= end;
        self.waiters
            .wait(holding, is_there, || self.refusals.check())
    }

    /// Adds to `out` everything new since the last call. Takes only locks that are held for an
    /// instant.
    pub fn collect(&self, out: &mut Collected) {
        self.collect_part(out, u64::MAX);
    }

    /// As [`collect`](Self::collect), up to about `bytes_max` bytes in `out`: no segment is begun
    /// once there are as many. Returns whether something was left for the next call. Each head's
    /// part is a prefix of its stream, cut between segments that share no group. So no group is cut
    /// (L2), and no version comes before the one below it (L5). If there are changes of tables,
    /// everything is taken: entries that were published together with them stay together.
    pub fn collect_part(&self, out: &mut Collected, bytes_max: u64) -> bool {
        let stream = self.streams.of_changes();
        // Kept until all is collected, so that the changes of a guard and its entries are collected
        // together, or neither is (L6).
        let _unchanging = self
            .changes
            .collect(|number, change| out.take_change(stream, number, change));
        let bytes_max = match out.changes().is_empty() {
            true => bytes_max,
            false => u64::MAX,
        };
        let is_cut = self.streams.collect(out, bytes_max);
        // Passes are taken last: a pass is announced before anything is written that names one of
        // its survivors.
        let mut queues = self.swaps.queues();
        queues.passes().take_announced(out.passes_mut());
        is_cut
    }

    /// The pieces in `collected`, which this log filled.
    pub fn pieces<'a>(&'a self, collected: &'a Collected) -> impl Iterator<Item = Piece<'a>> {
        collected.pieces(&self.windows)
    }

    /// Bytes `from..to` of a head's segment, whenever they were collected. `None`: the segment is
    /// durably closed, or these bytes are not collected yet. For the consumer alone: the bytes stay
    /// in place until it completes the segment's closing.
    pub fn unclosed_bytes(&self, segment: SegmentId, from: u32, to: u32) -> Option<&[u8]> {
        let window = self.streams.window_of(segment, to)?;
        Some(self.windows.slice(window, from, to - from))
    }

    /// The content of `collected`, and everything collected before it, has reached `level`:
    /// positions advance, and `collected` is emptied.
    pub fn complete(&self, collected: &mut Collected, level: Level) {
        self.streams.complete(collected, level, &self.windows);
        *collected = Collected::default();
        self.waiters.wake();
    }

    /// Everything that was completed at a lower level has reached `level`.
    pub fn complete_all(&self, level: Level) {
        self.streams.complete_all(level, &self.windows);
        self.waiters.wake();
    }

    /// The next Swap that may be recorded (swap::D2); the same until it is
    /// [swapped](Swaps::swapped).
    pub fn next_swap(&self) -> Option<Swap> {
        let mut queues = self.swaps.queues();
        let is_synced = |position: &Position| self.reached(position) >= Level::Synced;
        queues.passes().next(is_synced)
    }

    /// The position that the next Swap waits for, if it waits for nothing else: a sync is due.
    pub fn swap_waits_for(&self) -> Option<Position> {
        let position = self.swaps.queues().passes().next_position();
        position.filter(|position| self.reached(position) < Level::Synced)
    }

    /// The next closed survivor without a frame; the same one until
    /// [`survivor_durable`](Swaps::survivor_durable).
    pub fn next_survivor(&self) -> Option<SurvivorReady<'_>> {
        let mut queues = self.swaps.queues();
        let survivor = queues.survivors().next()?;
        Some(survivor.ready(self.swaps.marks(), &self.windows))
    }

    /// A closed survivor that was not handed out yet, for a consumer that writes several at once.
    /// Each is returned once; [`survivor_durable`](Swaps::survivor_durable) may be called in any
    /// order.
    pub fn another_survivor(&self) -> Option<SurvivorReady<'_>> {
        let mut queues = self.swaps.queues();
        let survivor = queues.survivors().another()?;
        Some(survivor.ready(self.swaps.marks(), &self.windows))
    }

    /// All bytes of a closed survivor that is not reported durable yet.
    pub fn unwritten_survivor(&self, segment: SegmentId) -> Option<&[u8]> {
        let mut queues = self.swaps.queues();
        let survivor = queues.survivors().unwritten(segment)?;
        Some(survivor.bytes(&self.windows))
    }
}
