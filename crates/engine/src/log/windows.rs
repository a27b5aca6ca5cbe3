//! The log's data about each window of memory: the segment that it holds, the segment's place in
//! its stream, how much of it is durable, and the origin of its entries.

use super::origin::Origin;
use crate::LogOptions;
use crate::space::Space;
use duramen_base::ids::SegmentId;
use duramen_base::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, coarse};
use duramen_format::recipe::Fates;
use duramen_format::segment::{Header, Kind};
use std::sync::Arc;

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

// SAFETY: it only computes addresses; the bytes that `slice` reads do not change (see the comment
// there).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// All windows.
pub struct Windows {
    windows: Box<[Window]>,
    /// Number of durable bytes of each window; `Space` reads it.
    durable: Arc<[AtomicU32]>,
    memory: Memory,
    server: u64,
    has_origins: bool,
}

impl Windows {
    pub fn new(options: &LogOptions, space: &Space) -> Windows {
        Windows {
            windows: space.segments.iter().map(|_| Window::default()).collect(),
            durable: space.durable.clone(),
            memory: Memory {
                start: space.at(0),
                segment_bytes: space.segment_bytes(),
            },
            server: options.server,
            has_origins: options.zones > 0,
        }
    }

    pub fn bytes(&self) -> u64 {
        size_of_val(&*self.windows) as u64
    }

    /// The segment that a window holds.
    #[inline]
    pub fn segment_of(&self, window: usize) -> SegmentId {
        SegmentId(self.windows[window].segment.load(Ordering::Relaxed))
    }

    /// Gives a window the id `segment`, and writes its header. No other thread uses the window. All
    /// of a window that a cleaner fills counts as durable from the start, because it gets copies of
    /// durable entries.
    pub fn give(&self, space: &Space, window: u32, segment: SegmentId, kind: Kind, head: usize) {
        drop(self.take_origin(space, window)); // nothing is copied into it yet (origin::OR1)
        self.name(window, segment);
        let header = Header {
            kind,
            segment,
            log: self.server,
            head: head as u32,
            capacity: space.segment_bytes() as u32,
        };
        space.memory.write_header(window, &header.encode());
    }

    /// Notes that the window holds this segment, which is durable. A load may have changed its
    /// entries (origin::OR1).
    pub fn adopt(&self, window: u32, segment: SegmentId) {
        self.name(window, segment);
        if self.has_origins {
            *self.origin(window) = Origin::Unknown;
        }
    }

    fn name(&self, window: u32, segment: SegmentId) {
        let known = &self.windows[window as usize];
        known.segment.store(segment.0, Ordering::Relaxed);
        self.durable[window as usize].store(u32::MAX, Ordering::Relaxed);
    }

    /// Notes that a head is going to fill the window: nothing of it is durable.
    pub fn open(&self, window: u32) {
        self.durable[window as usize].store(0, Ordering::Relaxed);
    }

    /// Sets the number of durable bytes of a window; `u32::MAX`: its segment is durably closed.
    pub fn set_durable(&self, window: u32, bytes: u32) {
        self.durable[window as usize].store(bytes, Ordering::Release);
    }

    /// True if a closed segment's window may be cleaned (engine::log::L1).
    pub fn is_durably_closed(&self, window: u32) -> bool {
        self.durable[window as usize].load(Ordering::Acquire) == u32::MAX
    }

    /// Notes that the window starts at `base` in this stream.
    pub fn enter(&self, window: u32, stream: usize, base: u64) {
        let known = &self.windows[window as usize];
        known.base.store(base, Ordering::Relaxed);
        known.stream.store(stream, Ordering::Relaxed);
    }

    /// The segment of an entry that is to be replaced or removed; none if the entry is in `window`
    /// itself.
    #[inline(always)]
    pub fn victim(&self, space: &Space, location: u64, window: Option<u32>) -> SegmentId {
        let found = space.window_of(location);
        if Some(found as u32) == window {
            SegmentId::NONE
        } else {
            self.segment_of(found)
        }
    }

    /// Stream and position that cover an entry of a head's segment.
    pub fn place_of(&self, space: &Space, location: u64) -> (u16, u64) {
        let window = &self.windows[space.window_of(location)];
        let base = window.base.load(Ordering::Relaxed);
        let stream = window.stream.load(Ordering::Relaxed);
        (
            stream as u16,
            base + u64::from(space.offset_in_window(location)) + 8,
        )
    }

    /// The place of the entry at `location`, if it can still be lost.
    pub fn undurable_place(&self, space: &Space, location: u64) -> Option<(u16, u64)> {
        space
            .is_undurable(location)
            .then(|| self.place_of(space, location))
    }

    /// Bytes of a head's segment that were collected and are not yet completed.
    pub fn slice(&self, window: u32, offset: u32, bytes: u32) -> &[u8] {
        let Memory {
            start,
            segment_bytes,
        } = self.memory;
        let at = window as usize * segment_bytes + offset as usize;
        assert!(offset as usize + bytes as usize <= segment_bytes);
        // SAFETY: inside the region, which lives as long as the log. Entries were whole up to
        // `shippable` (Acquire in `collect`), a head never changes what it appended, and the window
        // is not cleaned before it is durably closed (engine::log::L1), hence not before `complete`
        // took the `Collected` that this call is for.
        unsafe { std::slice::from_raw_parts(start.wrapping_add(at), bytes as usize) }
    }

    /// Copies bytes of a closed segment that the caller's pin keeps in memory.
    pub fn copy_of(&self, window: u32, from: u32, to: u32) -> Vec<u8> {
        self.slice(window, from, to - from).to_vec()
    }

    /// True if the origins of entries are noted.
    pub fn has_origins(&self) -> bool {
        self.has_origins
    }

    fn origin(&self, window: u32) -> coarse::MutexGuard<'_, Origin> {
        self.windows[window as usize].origin.lock().expect("origin")
    }

    /// Takes the origin of a victim's entries.
    pub fn take_origin(&self, space: &Space, window: u32) -> Origin {
        let taken = std::mem::take(&mut *self.origin(window));
        if let Origin::Left(fates) = &taken {
            space.budget.release(fates.bytes());
        }
        taken
    }

    /// Sets the origin of a window that a compaction filled (origin::OR2).
    pub fn set_origin(&self, space: &Space, window: u32, mut origin: Option<Fates>) {
        origin.iter_mut().for_each(Fates::shrink);
        let kept = origin.filter(|fates| space.budget.charge(fates.bytes()));
        *self.origin(window) = kept.map_or(Origin::Unknown, Origin::Left);
    }
}
