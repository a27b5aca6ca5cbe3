//! Restart: adopts segments as they are, and builds the index from them, on all cores at once.
//!
//! **Invariants**
//! - R1: exactly the listed segments are loaded, each once; `finish` refuses if one is missing
//!   (docs/traps.md, trap 1).
//! - R2: every entry of a segment is verified before the first one of it is shown to the index: a
//!   segment is adopted wholly or not at all (trap 8). One flipped bit of an entry, or of the
//!   segment's header, is put back first, and reported (format::mend): it flipped before the
//!   segment was certified, so all replicas of it have the same bit.
//! - R3: per key the highest version wins, whatever the order of segments; between equal versions,
//!   a tombstone. A tombstone takes a slot of the index while segments are loaded, and is taken out
//!   at the end, or before (R9). A tombstone that is not needed (swap::D1, swap::D4), or that
//!   names its own segment, supersedes only entries before it in that segment, and the entry that
//!   it finds in the index. If it finds none there, it takes no slot, and compaction drops it.
//! - R7: an object that has expired, by the clock or before the restart, is shortened to a
//!   tombstone of its version before it is shown to the index: it keeps older versions away as in
//!   R3, and its value takes no memory. On disk it stays as it is, so a crash amid the load changes
//!   nothing. If the clock was set back, and the object would live by the present clock, it keeps
//!   its kind and its time: it has to be removed for good (`revived`).
//! - R8: a cache that has as many live bytes as it keeps evicts the objects of each segment that
//!   comes after that. The segments come the newest first, so the oldest objects go. They are
//!   shortened as in R7, so no older version of them appears. An object without a victim leaves
//!   nothing: its older versions are in the same segment, or have tombstones of their own. On disk
//!   the objects stay until a pass removes the segment. Until then an evicted object that nothing
//!   newer replaced may come back at a restart. One that was replaced or deleted does not, because
//!   the creation and the removal of an absent key name these segments (swap::D11).
//! - R4: counters are exact at any time: the entry that loses is counted as dead in the window to
//!   which the index pointed, under a pin.
//! - R5: while segments are loaded nothing expires, and only compaction cleans: a key that left the
//!   index otherwise than by R9 would let an older version in.
//! - R6: the index reaches its final size in few steps, estimated from the segments so far. Surplus
//!   memory goes back at the end, or as soon as memory is short.
//! - R9: a tombstone leaves the index when it meets its victim, whichever of the two comes first:
//!   the entry of the same version, in the segment that it names. The running store has no slot for
//!   either of them, so a log of keys that came and went loads in the memory that it was written
//!   in. It is safe because each dead entry of a listed segment has a killer of its own: a later
//!   entry that names that segment, or follows in it. Only a killer that lost to an entry of this
//!   slot, and whose victim may be in a segment to come, rests on the slot: then the slot is
//!   marked, and stays to the end. The slot also stays if the victim is itself such a killer, or if
//!   the name stands for several segments (swap::D4, swap::D11).
//! - R10: while segments are loaded, a slot in which a bit has flipped (bucket::B7) is not put
//!   back, because its access count is a mark, and not passed over either: the load fails. The next
//!   load builds the index anew.
//! - R11: a write after a load gets a version above all that the load has met, also if it
//!   replaces an object. If the operator has accepted the loss of a killer, the index may have an
//!   older version of a key of which newer ones left by R9; a later start meets those again.
//!
//! **Concurrency**: several threads may call `adopt`; each entry is settled under its bucket's
//! lock. For each group of entries, first their buckets are prefetched, then the entries found
//! there.
//!
//! Paper: [Ousterhout15 §4.4-4.5] replays into a new log; differs: a restart in place keeps the
//! segments and their ids, so nothing is written.

mod revived;
mod settle;

pub use revived::Revived;
pub(crate) use settle::key_is;

use crate::cleaner::context::{Caller, Step};
use crate::core::cleaning::need::CACHE_LIVE_PART;
use crate::core::flash::tier::Tier;
use crate::core::{Core, Visitor};
use crate::log::{Log, Pass};
use crate::space::segment::State;
use crate::space::{SEGMENT_HEADER_BYTES, Space};
use crate::{Error, Store};
use duramen_base::expiry::is_expired;
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::{self, Damage, Entry, Kind, NewObject, NewTombstone};
use duramen_format::mend::{self, Mended};
use duramen_format::segment::{self, Header};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A load gives up when it has no memory and nothing has moved for this time.
const NOTHING_MOVES_FOR: Duration = Duration::from_millis(500);
/// A load gives up when a segment that is being written to flash has made no progress for this
/// time: a device may stall for seconds.
const FLASH_STUCK_AFTER: Duration = Duration::from_secs(10);
/// Longest time between two looks that counts: if the machine stood still, other threads had no
/// chance to make progress.
const LOOK_COUNTS_MAX: Duration = Duration::from_millis(5);
/// A load gives up when its memory was compacted this often without another segment being adopted.
const SCANS_IN_VAIN_MAX: u64 = 4;
/// Victim bytes that one attempt compacts.
const COMPACT_STEP_BYTES: u64 = 8 << 20;

/// The reason why a segment could not be adopted. `E`: the reason why its bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError<E> {
    /// The bytes could not be read; the segment can be adopted from another replica.
    #[error("segment {segment}: {reason}")]
    Read { segment: SegmentId, reason: E },
    /// The bytes are not those that were written; the segment can be adopted from another replica.
    #[error("segment {segment} is damaged at byte {offset}: {damage}")]
    Damaged {
        segment: SegmentId,
        offset: u32,
        damage: Damage,
    },
    #[error("segment {segment} has a bad header: {damage}")]
    Header {
        segment: SegmentId,
        damage: segment::Damage,
    },
    #[error("segment {segment} says that it is segment {found} of log {log}")]
    Foreign {
        segment: SegmentId,
        found: SegmentId,
        log: u64,
    },
    /// The segment is longer than the store's segments: open the store with the size that the log
    /// was written with.
    #[error("segment {segment} has {length} bytes, where {capacity} are the most")]
    Length {
        segment: SegmentId,
        length: u32,
        capacity: usize,
    },
    #[error("segment {segment} is not part of the log, or was adopted already")]
    NotListed { segment: SegmentId },
    /// Raise the memory budget.
    #[error("segment {segment} does not fit into memory: {reason}")]
    Memory { segment: SegmentId, reason: Error },
}

/// Segments that are part of the log and were not adopted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} segments of the log are missing, the first is {}", .0.len(), .0[0])]
pub struct MissingSegments(pub Vec<SegmentId>);

/// Why a load cannot end. The store must not be used then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    #[error(transparent)]
    Missing(MissingSegments),
    /// The segments can be loaded again (R10).
    #[error("memory has changed a bit of the index meanwhile")]
    Flipped,
}

/// Report of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    pub segments: u64,
    /// Bytes of segments, headers included.
    pub bytes: u64,
    pub entries: u64,
    /// Objects that are alive.
    pub objects: u64,
    /// Tombstones, including those that were made of expired objects.
    pub tombstones: u64,
    /// The largest version of any entry.
    pub version_max: u64,
    /// Whether the clock was set back, so that keys may come back: see [`Store::revived`].
    pub has_revived: bool,
    /// Flipped bits that were put back in memory (R2). The segments on disk still have them.
    pub mended: Vec<(SegmentId, Mended)>,
}

/// A segment whose entries were verified.
#[derive(Default)]
struct Verified {
    entries: u64,
    /// The end of the entries.
    length: u32,
    has_expired: bool,
    /// Latest expiry of an entry; 0 = none expires.
    last_expiry_ms: u64,
    mended: Vec<Mended>,
}

#[derive(Default)]
struct Totals {
    segments: AtomicU64,
    bytes: AtomicU64,
    entries: AtomicU64,
    tombstones: AtomicU64,
    version_max: AtomicU64,
    /// Objects that would live by the present clock, and had expired before.
    revived: AtomicU64,
    /// A slot of an object was marked because other entries rest on it (R9).
    has_bearing: AtomicBool,
}

/// Fills a fresh store from the segments of its log. No session may be used before
/// [`finish`](Loader::finish).
pub struct Loader {
    store: Arc<Store>,
    /// Segments listed and not yet adopted; the value is the segment's rank by age.
    expected: Mutex<HashMap<u64, u64>>,
    /// Number of listed segments.
    listed: u64,
    /// Ids of survivors of the passes that did not end (R9).
    survivors: Vec<Range<u64>>,
    /// Memory was short: from then on the index grows in small steps (R6).
    dense: AtomicBool,
    /// Advice: these segments, and those from an id on, go to flash last.
    kept: HashSet<u64>,
    kept_from: u64,
    /// The clock when the load began: objects that expire by then have expired (R7).
    now_ms: u64,
    /// Objects that expire by this time had expired before, in milliseconds since the Unix epoch.
    expired_until_ms: u64,
    /// Live part of the limit at which a cache evicts (R8).
    kept_part: f64,
    /// Segments whose objects were evicted (R8).
    evicted: Mutex<Vec<SegmentId>>,
    /// See [`LoadReport::mended`].
    mended: Mutex<Vec<(SegmentId, Mended)>>,
    next_helper: AtomicUsize,
    totals: Totals,
}

impl Store {
    /// Begins to load the log that consists of exactly `listed`. `passes`: the cleaning passes that
    /// the last run of the log announced and did not end. Tables must have been restored.
    ///
    /// # Panics
    /// If the store has no log.
    pub fn loader(self: &Arc<Self>, listed: &[SegmentId], passes: &[Pass]) -> Loader {
        let log = self.core().log.as_deref().expect("a store with a log");
        log.arrivals().set_loading(true);
        self.core().space.reserves.begin_loading();
        log.swaps().list().restore(passes);
        let mut ranked = listed.to_vec();
        ranked.sort_unstable();
        ranked.dedup();
        for segment in &ranked {
            log.swaps().opened(*segment);
            log.numbers().raise_next_segment(SegmentId(segment.0 + 1));
        }
        for pass in passes {
            log.numbers()
                .raise_next_segment(SegmentId(pass.first.0 + u64::from(pass.count)));
        }
        log.swaps().disk().all_found();
        let expected = (0..).zip(&ranked).map(|(rank, segment)| (segment.0, rank));
        let survivors = passes
            .iter()
            .map(|pass| pass.first.0..pass.first.0 + u64::from(pass.count));
        Loader {
            store: self.clone(),
            expected: Mutex::new(expected.collect()),
            listed: ranked.len() as u64,
            survivors: survivors.collect(),
            dense: AtomicBool::new(false),
            kept: HashSet::new(),
            kept_from: u64::MAX,
            now_ms: self.core().clock().now_ms(),
            expired_until_ms: log.options().expired_until_ms,
            kept_part: CACHE_LIVE_PART,
            evicted: Mutex::default(),
            mended: Mutex::default(),
            next_helper: AtomicUsize::new(0),
            totals: Totals::default(),
        }
    }
}

/// The time limit of a search for memory. The search goes on while there is progress, and for a
/// while after that, because other threads may be about to free memory: by the adoption of another
/// segment, by a compaction, or by a reader that leaves. But compaction can move live data for
/// ever: the search also ends when compaction has gone over the memory several times and not one
/// segment was adopted.
pub(super) struct Patience {
    seen: Movement,
    looked: Instant,
    still: Duration,
    /// Time for which nothing has gone to or come from flash, although a segment was on its way.
    flash_still: Duration,
    /// Bytes that cleaners had scanned when a segment was adopted last.
    scanned_before: u64,
    /// Windows that the load leaves (space::S5).
    spare: usize,
}

/// Numbers that change while some thread loads segments or makes room for them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Movement {
    segments: u64,
    scanned_bytes: u64,
    free_bytes: u64,
    flash: u64,
}

impl Patience {
    pub(super) fn new(loader: &Loader) -> Patience {
        let seen = loader.movement();
        Patience {
            seen,
            looked: Instant::now(),
            still: Duration::ZERO,
            flash_still: Duration::ZERO,
            scanned_before: seen.scanned_bytes,
            spare: loader.core().space.reserves.spare_of_loading(),
        }
    }

    fn lasts(&mut self, loader: &Loader) -> bool {
        let (now, moved) = (Instant::now(), loader.movement());
        let passed = (now - self.looked).min(LOOK_COUNTS_MAX);
        self.looked = now;
        let demotion = loader.core().demotion();
        let waits_for_flash = demotion.is_some_and(|it| it.is_writing());
        if moved.segments != self.seen.segments || waits_for_flash {
            self.scanned_before = moved.scanned_bytes;
        }
        if moved.flash != self.seen.flash || !waits_for_flash {
            self.flash_still = Duration::ZERO;
        }
        if moved != self.seen {
            (self.seen, self.still) = (moved, Duration::ZERO);
        }
        if waits_for_flash {
            self.flash_still += passed;
        } else {
            self.still += passed;
        }
        let scanned = moved.scanned_bytes - self.scanned_before;
        self.still < NOTHING_MOVES_FOR
            && self.flash_still < FLASH_STUCK_AFTER
            && scanned < SCANS_IN_VAIN_MAX * loader.core().space.budget.limit()
    }
}

impl Loader {
    fn movement(&self) -> Movement {
        let core = self.core();
        Movement {
            segments: self.totals.segments.load(Ordering::Relaxed),
            scanned_bytes: core.cleaners.sum(|tally| &tally.bytes_scanned),
            free_bytes: core.space.budget.free(),
            flash: core.tier().map_or(0, |tier| tier.progress()),
        }
    }

    fn core(&self) -> &Core {
        self.store.core()
    }

    fn log(&self) -> &Log {
        self.core().log.as_deref().expect("a store with a log")
    }

    /// Advice, until `Flash::end_refill`: if memory has no room for all segments, these should be
    /// in it, and those that are newer than all of them. Ignored if all segments only just fit:
    /// then there is no choice.
    pub fn keep(&mut self, segments: &[SegmentId]) {
        let core = self.core();
        let room = core.flash_capacity() + core.segment_budget() / 2;
        if self.listed * core.space.segment_bytes() as u64 > room {
            return;
        }
        self.kept = segments.iter().map(|segment| segment.0).collect();
        let newest = self.kept.iter().max();
        self.kept_from = newest.map_or(u64::MAX, |newest| newest.saturating_add(1));
    }

    /// A cache keeps this part of its limit of live bytes, and evicts the rest (R8). Without this
    /// call, it is the part at which a running cache evicts. Less leaves more room for tombstones.
    pub fn keep_part(&mut self, part: f64) {
        self.kept_part = part;
    }

    /// True if the next segment's objects are evicted (R8).
    fn evicts(&self) -> bool {
        let core = self.core();
        core.is_cache()
            && core.actors.live_bytes() as f64 >= self.kept_part * core.live_limit() as f64
    }

    /// Adopts one segment of `length` bytes, which `fill` writes to the memory it is given. Best
    /// called for the newest segment first. Returns the number of its entries.
    ///
    /// # Errors
    /// [`LoadError`]. The segment was not adopted, and may be tried again. Exception: if memory was
    /// short, the load has failed.
    pub fn adopt<E>(
        &self,
        segment: SegmentId,
        length: u32,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<u64, LoadError<E>> {
        let rank = self.take(segment)?;
        let adopted = self.adopt_listed(segment, length, rank, fill);
        // A segment that ran out of memory half way cannot be taken back.
        if !matches!(adopted, Ok(_) | Err(LoadError::Memory { .. })) {
            let mut expected = self.expected.lock().expect("expected segments");
            expected.insert(segment.0, rank);
        }
        adopted
    }

    fn take<E>(&self, segment: SegmentId) -> Result<u64, LoadError<E>> {
        let mut expected = self.expected.lock().expect("expected segments");
        expected
            .remove(&segment.0)
            .ok_or(LoadError::NotListed { segment }) // R1: only listed segments
    }

    fn adopt_listed<E>(
        &self,
        segment: SegmentId,
        length: u32,
        rank: u64,
        fill: &mut dyn FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<u64, LoadError<E>> {
        let core = self.core();
        let capacity = core.space.segment_bytes();
        if !(SEGMENT_HEADER_BYTES..=capacity).contains(&(length as usize)) {
            return Err(LoadError::Length {
                segment,
                length,
                capacity,
            });
        }
        let memory = |reason| LoadError::Memory { segment, reason };
        let slot = core.door.epochs().register().map_err(memory)?;
        let visitor = Visitor { core, slot };
        let (node, window) = self.window_for(length).map_err(memory)?;
        // SAFETY: the window was just acquired with this many bytes backed; no other thread touches
        // it before it is closed.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                core.space.at(Space::location(core.space.offset_of(window))),
                length as usize,
            )
        };
        let verified = fill(bytes)
            .map_err(|reason| LoadError::Read { segment, reason })
            .and_then(|()| self.verify(segment, bytes));
        let Verified {
            entries,
            mut length,
            has_expired,
            last_expiry_ms,
            mended,
        } = match verified {
            Ok(verified) => verified,
            Err(error) => {
                core.space.abandon(node, window);
                return Err(error);
            }
        };
        let mended = mended.into_iter().map(|mended| (segment, mended));
        self.mended.lock().expect("mended segments").extend(mended);
        let bytes_loaded = u64::from(length);
        let info = &core.space.segments[window as usize];
        let evicts = self.evicts();
        if evicts {
            self.evicted.lock().expect("evicted").push(segment);
        }
        if evicts || has_expired {
            length = self.shorten(bytes, length, evicts);
        }
        info.set_appended(length);
        info.note_gone_expiry(last_expiry_ms);
        core.space.cut_tail(window);
        info.set_dead_base(core.actors.dead_in(window));
        info.set_opened(core.clock().now_ms(), rank * capacity as u64);
        self.log().windows().adopt(window, segment);
        self.keep_in_memory(segment, window);
        self.settle_all(&visitor, window, length).map_err(memory)?;
        info.close();
        let totals = &self.totals;
        totals.segments.fetch_add(1, Ordering::Relaxed);
        totals.bytes.fetch_add(bytes_loaded, Ordering::Relaxed);
        totals.entries.fetch_add(entries, Ordering::Relaxed);
        Ok(entries)
    }

    /// Verifies a segment and all its entries (R2).
    fn verify<E>(&self, segment: SegmentId, bytes: &mut [u8]) -> Result<Verified, LoadError<E>> {
        let mut verified = Verified::default();
        let may_mend = !has_bug(Bug::OneBitStopsLoad);
        let header = match may_mend {
            true => mend::header(bytes, &mut verified.mended),
            false => Header::decode(bytes),
        };
        let header = header.map_err(|damage| LoadError::Header { segment, damage })?;
        if header.segment != segment || header.log != self.log().options().server {
            return Err(LoadError::Foreign {
                segment,
                found: header.segment,
                log: header.log,
            });
        }
        let mut at = SEGMENT_HEADER_BYTES;
        while at < bytes.len() {
            match entry::parse(&bytes[at..]) {
                Ok(entry) => {
                    verified.has_expired |= self.has_expired(&entry);
                    let last_ms = &mut verified.last_expiry_ms;
                    *last_ms = (*last_ms).max(entry.expires_at_ms);
                    verified.entries += 1;
                    at += entry.padded_bytes;
                }
                Err(_) if has_bug(Bug::DamageIsSkipped) => break,
                Err(damage) => {
                    // An entry that was mended is parsed again.
                    let mended = may_mend.then(|| mend::entry_at(bytes, at, usize::MAX));
                    let offset = at as u32;
                    let damaged = LoadError::Damaged {
                        segment,
                        offset,
                        damage,
                    };
                    verified.mended.push(mended.flatten().ok_or(damaged)?);
                }
            }
        }
        verified.length = at as u32;
        Ok(verified)
    }

    /// R7 and R8, in a segment that was verified and that no other thread has seen: returns the new
    /// end of its entries.
    fn shorten(&self, bytes: &mut [u8], length: u32, evicts: bool) -> u32 {
        let (mut from, mut to) = (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES);
        let mut short = Vec::new();
        while from < length as usize {
            // SAFETY: the segment holds whole entries from its header to `length` (R2).
            let entry = unsafe { entry::parse_trusted(bytes[from..].as_ptr()) };
            let padded_bytes = entry.padded_bytes;
            if evicts && self.leaves_nothing(&entry) {
                let version_max = &self.totals.version_max;
                version_max.fetch_max(entry.version, Ordering::Relaxed);
                from += padded_bytes;
                continue;
            }
            if self.has_expired(&entry) || evicts && entry.kind == Kind::Object {
                if has_bug(Bug::ExpiredIsForgotten) {
                    from += padded_bytes;
                    continue;
                }
                self.shortened(&entry, &mut short);
                // The shortened form is never longer than the entry was, which has a victim or a
                // time of expiry.
                bytes[to..to + short.len()].copy_from_slice(&short);
                to += short.len();
            } else {
                if from != to {
                    bytes.copy_within(from..from + padded_bytes, to);
                }
                to += padded_bytes;
            }
            from += padded_bytes;
        }
        to as u32
    }

    /// True for an evicted object of which memory keeps nothing (R8).
    fn leaves_nothing(&self, entry: &Entry<'_>) -> bool {
        entry.kind == Kind::Object && entry.victim == SegmentId::NONE && !self.has_expired(entry)
    }

    /// The part of an expired or evicted object that is kept (R7, R8).
    fn shortened(&self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        if self.is_revived(entry) {
            let object = NewObject {
                table: entry.table,
                version: entry.version,
                expires_at_ms: Some(entry.expires_at_ms),
                key: entry.key,
                value: &[],
                victim: entry.victim,
                is_typed: false,
            };
            out.resize(object.padded_bytes(), 0);
            object.write_to(out);
        } else {
            let tombstone = NewTombstone {
                table: entry.table,
                version: entry.version,
                key: entry.key,
                victim: entry.victim,
            };
            out.resize(tombstone.padded_bytes(), 0);
            tombstone.write_to(out);
        }
    }

    /// True for an object that has expired, by the present clock or before the restart.
    fn has_expired(&self, entry: &Entry<'_>) -> bool {
        entry.kind == Kind::Object
            && entry.expires_at_ms != 0
            && is_expired(entry.expires_at_ms, self.now_ms.max(self.expired_until_ms))
    }

    /// True for an object that had expired before and has not expired by the present clock, which
    /// was set back.
    fn is_revived(&self, entry: &Entry<'_>) -> bool {
        entry.kind == Kind::Object
            && !is_expired(entry.expires_at_ms, self.now_ms)
            && is_expired(entry.expires_at_ms, self.expired_until_ms)
    }

    /// A window for a segment of this length. Compacts adopted segments if memory is short.
    fn window_for(&self, length: u32) -> Result<(usize, u32), Error> {
        let core = self.core();
        let nodes = core.space.nodes();
        let first = self.next_helper.fetch_add(1, Ordering::Relaxed);
        let mut patience = Patience::new(self);
        loop {
            for n in 0..nodes {
                let node = (first + n) % nodes;
                core.windows().free_retired(node);
                let now_ms = core.clock().now_ms();
                if let Some(window) = core
                    .space
                    .acquire_for_loading(node, length as usize, now_ms)
                {
                    return Ok((node, window));
                }
            }
            self.make_room(&mut patience)?;
        }
    }

    /// If this segment was in memory before the restart, advises demotion to keep it there.
    fn keep_in_memory(&self, segment: SegmentId, window: u32) {
        let core = self.core();
        let was_there = segment.0 >= self.kept_from || self.kept.contains(&segment.0);
        if let (true, Some(tier)) = (was_there, core.tier()) {
            debug_assert!(core.space.segments[window as usize].state() != State::Promoted);
            tier.keep(window);
        }
    }

    /// Compacts a step, or lets other threads finish theirs. The caller is outside.
    ///
    /// # Errors
    /// There was no progress for long: [`Error::FlashStuck`] if flash is the reason, else
    /// [`Error::OutOfMemory`].
    pub(super) fn make_room(&self, patience: &mut Patience) -> Result<(), Error> {
        let core = self.core();
        let total = core.cleaners.contexts();
        let first = self.next_helper.fetch_add(1, Ordering::Relaxed);
        for n in 0..total {
            if let Some(mut context) = core.cleaners.try_lock((first + n) % total) {
                let caller = Caller::outside(context.seat.me());
                if context.step(core, COMPACT_STEP_BYTES, caller) == Step::Worked {
                    break;
                }
            }
        }
        if !self.dense.swap(true, Ordering::Relaxed) {
            self.make_dense();
        }
        // Backed free windows are memory too, but not for windows of another length.
        for node in 0..core.space.nodes() {
            core.windows().reap(node);
            core.space.trim(node, 1, usize::MAX); // for segments of other lengths
        }
        duramen_base::sync::yield_now();
        if patience.lasts(self) {
            Ok(())
        } else if patience.spare > 1 {
            core.space.reserves.leave_less();
            *patience = Patience::new(self);
            Ok(())
        } else if core.demotion().is_some_and(|it| it.is_writing())
            || core.tier().is_some_and(Tier::has_failed)
        {
            Err(Error::FlashStuck)
        } else {
            Err(core.out_of_memory())
        }
    }

    /// Ends the load: tombstones leave the index, new versions are above all that were ever given,
    /// and cleaning begins.
    ///
    /// # Errors
    /// [`Unfinished::Missing`] if a listed segment was not adopted (R1); [`Unfinished::Flipped`].
    pub fn finish(self) -> Result<LoadReport, Unfinished> {
        let expected = self.expected.lock().expect("expected segments");
        if !expected.is_empty() {
            let mut missing: Vec<SegmentId> = expected.keys().map(|id| SegmentId(*id)).collect();
            missing.sort_unstable();
            return Err(Unfinished::Missing(MissingSegments(missing)));
        }
        drop(expected);
        let core = self.core();
        if !self.remove_the_dead() {
            return Err(Unfinished::Flipped);
        }
        self.make_dense();
        let version_max = self.totals.version_max.load(Ordering::Relaxed);
        let mut objects = 0;
        self.log().numbers().raise_version_floor(version_max + 1);
        let floor = core.version_max();
        core.tables.each_index(|id, index| {
            objects += if id.is_parts() {
                0
            } else {
                core.actors.objects(id)
            };
            let partitions = index.partitions().iter();
            partitions.for_each(|partition| partition.raise_floor(floor)); // index::X3
        });
        if !has_bug(Bug::LoadLeavesVersions) {
            core.set_load_floor(floor + 1); // R11: later versions are above all of these
        }
        let mut evicted = self.evicted.lock().expect("segments without objects");
        if !evicted.is_empty() {
            let log = self.log();
            let segments = std::mem::take(&mut *evicted);
            log.swaps().announce_evicted(segments, log.numbers());
        }
        drop(evicted);
        self.log().arrivals().set_loading(false);
        core.space.end_loading();
        core.cleaners.wake();
        let mended = self.mended.into_inner().expect("mended segments");
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(LoadReport {
            segments: load(&self.totals.segments),
            bytes: load(&self.totals.bytes),
            entries: load(&self.totals.entries),
            objects,
            tombstones: load(&self.totals.tombstones),
            version_max,
            has_revived: load(&self.totals.revived) > 0,
            mended,
        })
    }
}
