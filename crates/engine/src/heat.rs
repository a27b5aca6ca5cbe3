//! The hashes of keys that are read often, so that a restart can fill memory with their entries
//! again.
//!
//! A hash stays valid when a location does not: the key may have been written again, its segment
//! compacted or cleaned. [`Heat`] lists the keys of promoted copies, by how often each was read
//! lately, and the segments that are in memory. After a restart, [`Refill`] gets such keys, and
//! copies those whose entries are on flash.
//!
//! **Invariants**
//! - W1: hot keys are advice. A key is copied only if the index points to an entry on flash for its
//!   hash now; and only the entry that was read and verified there (core::flash::F3, mask::F7),
//!   and that has this table and this hash. So a wrong or old hint costs reads of the device, and
//!   nothing else.
//! - W2: a refill evicts nothing: it takes room that copies may have (promoted::P4) and do not use,
//!   and stops when there is none.
//! - W3: a thread that waits for the device or for room, or that calls the caller's closure, is not
//!   pinned.
//! - W4: while others read from the device, a refill pauses for as long as it has used the device
//!   itself.
//!
//! **Concurrency**: each of both is used by one thread, beside any number of others. No thread that
//! serves requests uses them. A refill waits for the device, and sleeps while cleaner threads make
//! room.
//!
//! Paper: none; hashes instead of a list of places (segment and offset), which compaction in memory
//! makes wrong without any cleaning (docs/traps.md, trap 37).

use crate::core::Core;
use crate::core::flash::tier::promoted::{HEAT_MAX, Put};
use crate::core::flash::tier::{Tier, refill_bytes};
use crate::core::flash::{Read, bytes_of};
use crate::device::Cold;
use crate::session::Session;
use crate::{Error, KeyHash, Store, TableId};
use duramen_base::ids::SegmentId;
use duramen_disk::Aligned;
use duramen_format::entry::{self, Kind};
use duramen_format::hash::HASH_BITS;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum gap between two entries that is read with them, in bytes: as fast as another read.
const GAP_BYTES: u64 = 8 << 10;
/// First guess of an entry's length, in bytes.
const GUESS_BYTES: u32 = 1024;
const GUESS_BYTES_MIN: u32 = 256;
/// Maximum guess of an entry's length: the memory for reads divided by this.
const GUESS_PART: u32 = 8;
/// Longest pause of a refill in favour of other readers.
const YIELD_MAX: Duration = Duration::from_millis(50);
/// Sets of the table that are read under one pin.
const SETS_PER_PIN: usize = 128;
/// Longest wait of a refill for room: while cleaner threads are to find some, and while copies may
/// have no more memory.
const LATER_PATIENCE: Duration = Duration::from_secs(20);
const FULL_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Longest time between two looks that counts: if the machine stood still, other threads had no
/// chance to make room.
const LOOK_COUNTS_MAX: Duration = Duration::from_millis(5);

/// A key that is, or was, read often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HotKey {
    pub table: TableId,
    pub hash: u64,
}

/// Lists the keys that are read often.
pub struct Heat {
    session: Session,
}

/// The flash tier of a store that has one; from [`Store::flash`].
#[derive(Clone, Copy)]
pub struct Flash<'s> {
    store: &'s Arc<Store>,
    tier: &'s Tier,
}

impl Store {
    /// The store's flash tier; `None`: no segment goes to flash.
    pub fn flash(self: &Arc<Self>) -> Option<Flash<'_>> {
        let tier = self.core().tier()?;
        Some(Flash { store: self, tier })
    }
}

impl Flash<'_> {
    /// A view of the keys that are read often.
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    pub fn heat(self) -> Result<Heat, Error> {
        let session = self.store.session()?;
        Ok(Heat { session })
    }

    /// Begins to fill memory with hot entries.
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    pub fn refill(self) -> Result<Refill, Error> {
        let half = refill_bytes(self.store.core().space.budget.start()) as usize / 2;
        Ok(Refill {
            keys_max: half / (size_of::<ToCopy>() + size_of::<HotKey>()),
            memory: Aligned::zeroed(half),
            memory_bytes: half,
            asked: self.tier.figures.asked.load(Ordering::Relaxed),
            guess: GUESS_BYTES,
            session: self.store.session()?,
        })
    }

    /// Sets the number of keys that a running or future refill will still try.
    pub fn set_refill_left(self, keys: u64) {
        let left = &self.tier.figures.refill_left;
        left.store(keys, Ordering::Relaxed);
    }

    /// Notes that the refill has ended: segments go to flash in the order of their age again.
    pub fn end_refill(self) {
        self.set_refill_left(0);
        for window in &self.tier.windows {
            window.kept.store(false, Ordering::Relaxed);
        }
    }

    /// Demotes a segment as a cleaner thread does it, as if memory were short. For a caller without
    /// such threads (a simulator). Returns false if no segment may go to flash.
    pub fn demote_step(self) -> bool {
        let core = self.store.core();
        let context = core.cleaners.lock(0);
        let demotion = core.demotion();
        let demoted = demotion.is_some_and(|it| it.demote_one(context.seat.node()));
        core.windows().reap(context.seat.node());
        demoted
    }
}

impl Heat {
    /// The greatest heat.
    pub const MAX: u8 = HEAT_MAX;

    fn tier(core: &Core) -> &Tier {
        core.tier().expect("it was there")
    }

    /// A number that changes whenever there may be more to list than before.
    pub fn news(&self) -> u64 {
        let stats = Self::tier(self.session.store().core()).statistics();
        stats.promoted_hits + stats.promotions + stats.refilled
    }

    /// Approximate number of keys of each heat.
    pub fn counts(&mut self) -> [u64; HEAT_MAX as usize + 1] {
        let mut counts = [0; HEAT_MAX as usize + 1];
        for sets in self.pins() {
            let guard = self.session.pin();
            let core = guard.pin().core();
            let promoted = &Self::tier(core).promoted;
            for set in sets {
                promoted.each_in(&core.space, set, |heat, _| {
                    counts[usize::from(heat)] += 1;
                });
            }
        }
        counts
    }

    /// Shows the keys of one heat, some at a time, until `show` returns false. Shows none twice,
    /// except for keys that change meanwhile.
    pub fn each(&mut self, heat: u8, mut show: impl FnMut(&[HotKey]) -> bool) {
        let mut some = Vec::new();
        for sets in self.pins() {
            let guard = self.session.pin();
            let core = guard.pin().core();
            for set in sets {
                let promoted = &Self::tier(core).promoted;
                promoted.each_in(&core.space, set, |found, at| {
                    if found == heat {
                        // SAFETY: a copy of a whole entry, which stays until the pin ends
                        // (promoted::P1).
                        let entry = unsafe { entry::parse_trusted(at) };
                        some.push(HotKey {
                            table: TableId(entry.table),
                            hash: core.tables.hash(entry.key).0,
                        });
                    }
                });
            }
            drop(guard); // W3: unpinned while the caller's closure runs
            if !some.is_empty() && !show(&some) {
                return;
            }
            some.clear();
        }
    }

    /// The sets of the table, in groups that are read under one pin.
    fn pins(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let sets = Self::tier(self.session.store().core()).promoted.sets();
        (0..sets)
            .step_by(SETS_PER_PIN)
            .map(move |first| first..(first + SETS_PER_PIN).min(sets))
    }

    /// Segments that are in memory; those that go to flash next come last. None without a log.
    pub fn segments_in_memory(&self) -> Vec<SegmentId> {
        let core = self.session.store().core();
        let Some(log) = &core.log else {
            return Vec::new();
        };
        let tier = Self::tier(core);
        let segments = core.space.segments.iter().enumerate();
        let mut found: Vec<(bool, u64, SegmentId)> = segments
            .filter(|(window, segment)| segment.is_in_log() && !tier.is_cold(*window))
            .map(|(window, segment)| {
                let kept = tier.is_kept(window as u32);
                (kept, segment.opened_tick(), log.segment_of(window))
            })
            .collect();
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.into_iter().map(|(_, _, segment)| segment).collect()
    }
}

/// Fills memory with entries that were hot before a restart.
pub struct Refill {
    session: Session,
    keys_max: usize,
    memory: Aligned,
    memory_bytes: usize,
    /// Number of entries that others had read from the device at the last look.
    asked: u64,
    /// Assumed length of entries, in bytes.
    guess: u32,
}

/// The result of a refill for some keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refilled {
    /// Entries that were copied.
    pub copied: u64,
    /// Bytes read from the device.
    pub bytes: u64,
    /// There is no more room, or the device cannot be read: more keys would be in vain.
    pub is_over: bool,
}

/// An entry to copy.
struct ToCopy {
    cold: Cold,
    key: HotKey,
}

/// A piece of the device that is read at once, and its place in memory.
struct Span {
    offset: u64,
    at: usize,
    bytes: usize,
    wanted: Range<usize>,
}

impl Refill {
    /// Best number of keys for one call of [`copy`](Self::copy).
    pub fn keys_max(&self) -> usize {
        self.keys_max.max(1)
    }

    /// Copies the entries of these keys that are on flash alone, with this heat. Skips entries that
    /// cannot be copied. `stop` ends it early.
    pub fn copy(&mut self, heat: u8, keys: &[HotKey], stop: &dyn Fn() -> bool) -> Refilled {
        let mut done = Refilled::default();
        for some in keys.chunks(self.keys_max()) {
            let wanted = self.find(some);
            self.copy_found(heat, &wanted, &mut done, stop);
            if done.is_over || stop() {
                break;
            }
        }
        done
    }

    /// The entries, in the order of the device (W1).
    fn find(&mut self, keys: &[HotKey]) -> Vec<ToCopy> {
        let guess = self.guess;
        let guard = self.session.pin();
        let core = guard.pin().core();
        let (space, tier) = (&core.space, Heat::tier(core));
        let stamp = guard.pin().entries().stamp();
        let mut wanted = Vec::with_capacity(keys.len());
        for key in keys.iter().filter(|key| key.hash >> HASH_BITS == 0) {
            let Ok(index) = core.tables.index(key.table) else {
                continue; // the table was dropped
            };
            let hash = KeyHash(key.hash);
            let view = index.partition(hash).view();
            if view.len() == 0 {
                continue;
            }
            let _ = view.find(index.tag(hash), guard.pin().me(), |slot| {
                let (location, window) = (slot.location(), space.window_of(slot.location()));
                let incarnation = space.segments[window].incarnation();
                if !tier.is_in_memory(window, stamp)
                    && !tier.promoted.has(space, location, incarnation)
                    && wanted.len() < keys.len()
                {
                    let cold = tier.cold(space, location, guess);
                    wanted.push(ToCopy { cold, key: *key });
                }
                false // another entry may have the same tag
            });
        }
        drop(guard);
        wanted.sort_unstable_by_key(|wanted| wanted.cold.offset);
        wanted
    }

    fn copy_found(
        &mut self,
        heat: u8,
        wanted: &[ToCopy],
        done: &mut Refilled,
        stop: &dyn Fn() -> bool,
    ) {
        let mut next = 0;
        while next < wanted.len() && !done.is_over && !stop() {
            let spans = self.plan(wanted, next);
            next = spans
                .last()
                .expect("memory for one, as long as any is guessed to be")
                .wanted
                .end;
            let began = Instant::now();
            if !self.read(&spans) {
                done.is_over = true;
                return;
            }
            let took = began.elapsed();
            if self.is_in_the_way() {
                std::thread::sleep(took.min(YIELD_MAX)); // W4: leaves the device to others
            }
            done.bytes += spans.iter().map(|span| span.bytes as u64).sum::<u64>();
            for span in &spans {
                for wanted in &wanted[span.wanted.clone()] {
                    self.take(heat, wanted, span, done, stop);
                    if done.is_over {
                        return;
                    }
                }
            }
        }
    }

    /// True if others have read from the device since the last call.
    fn is_in_the_way(&mut self) -> bool {
        let tier = Heat::tier(self.session.store().core());
        let asked = tier.figures.asked.load(Ordering::Relaxed);
        std::mem::replace(&mut self.asked, asked) != asked
    }

    /// The spans to read at once, from `next` on.
    fn plan(&self, wanted: &[ToCopy], next: usize) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        let mut used = 0;
        for (n, wanted) in wanted.iter().enumerate().skip(next) {
            let (offset, bytes) = wanted.cold.span();
            let end = offset + bytes as u64;
            if let Some(last) = spans.last_mut()
                && offset <= last.offset + last.bytes as u64 + GAP_BYTES
            {
                let grown = end.saturating_sub(last.offset) as usize;
                let more = grown.saturating_sub(last.bytes);
                if used + more <= self.memory_bytes {
                    last.bytes += more;
                    used += more;
                    last.wanted.end = n + 1;
                    continue;
                }
            }
            if used + bytes > self.memory_bytes {
                break;
            }
            spans.push(Span {
                offset,
                at: used,
                bytes,
                wanted: n..n + 1,
            });
            used += bytes;
        }
        spans
    }

    /// Reads the spans. Returns false if the device fails.
    fn read(&mut self, spans: &[Span]) -> bool {
        let tier = Heat::tier(self.session.store().core());
        let mut memory = self.memory.bytes_mut();
        let mut reads = Vec::with_capacity(spans.len());
        for span in spans {
            let (into, rest) = memory.split_at_mut(span.bytes); // one after the other, as planned
            reads.push((span.offset, into));
            memory = rest;
        }
        let read = tier.reads.read(&mut reads).is_ok();
        if !read {
            tier.figures.read_errors.fetch_add(1, Ordering::Relaxed);
        }
        read
    }

    /// Copies one entry of a span that was read.
    fn take(
        &mut self,
        heat: u8,
        wanted: &ToCopy,
        span: &Span,
        done: &mut Refilled,
        stop: &dyn Fn() -> bool,
    ) {
        let store = self.session.store().clone();
        let (core, tier) = (store.core(), Heat::tier(store.core()));
        let (offset, bytes) = wanted.cold.span();
        let memory = self.memory.bytes_mut();
        let at = span.at + (offset - span.offset) as usize;
        let read = tier.verify(core, &wanted.cold, &memory[at..][..bytes]);
        let words = match read {
            Ok(Read::Entry(words)) => words,
            Ok(Read::Longer(longer)) => match read_alone(core, tier, longer, done) {
                Some(words) => words,
                None => return,
            },
            Ok(Read::Gone) | Err(_) => return,
        };
        // SAFETY: a whole, verified entry, in words of its own.
        let entry = unsafe { entry::parse_trusted(words.as_ptr().cast()) };
        let is_it = entry.kind == Kind::Object
            && entry.table == wanted.key.table.0
            && core.tables.hash(entry.key).0 == wanted.key.hash;
        if !is_it {
            return; // W1: another key with the same tag
        }
        let length = u32::try_from(words.len() * size_of::<u64>()).unwrap_or(u32::MAX);
        // The guess is longer than most entries: surplus bytes cost less than a second read. A much
        // longer entry is read alone.
        let most = self.memory_bytes as u32 / GUESS_PART;
        let guess = self.guess - self.guess / 8 + length / 7;
        self.guess = guess.clamp(GUESS_BYTES_MIN, most);
        match keep(core, tier, heat, &wanted.cold, bytes_of(&words), stop) {
            Put::Done => {
                done.copied += 1;
                tier.figures.refilled.fetch_add(1, Ordering::Relaxed);
            }
            Put::Later | Put::Full => done.is_over = true,
        }
    }
}

/// Reads an entry that was longer than assumed.
fn read_alone(core: &Core, tier: &Tier, mut cold: Cold, done: &mut Refilled) -> Option<Vec<u64>> {
    loop {
        let (offset, length) = cold.span();
        let mut memory = Aligned::zeroed(length);
        let into = memory.bytes_mut();
        if tier.device.read_any(offset, into).is_err() {
            tier.figures.read_errors.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        done.bytes += length as u64;
        match tier.verify(core, &cold, into) {
            Ok(Read::Entry(words)) => return Some(words),
            Ok(Read::Longer(longer)) => cold = longer,
            Ok(Read::Gone) | Err(_) => return None,
        }
    }
}

/// Copies a verified entry, once there is room (W2). Any result but [`Put::Done`] means that there
/// will be no room.
fn keep(
    core: &Core,
    tier: &Tier,
    heat: u8,
    cold: &Cold,
    entry: &[u8],
    stop: &dyn Fn() -> bool,
) -> Put {
    let (mut waited, mut looked) = (Duration::ZERO, Instant::now());
    loop {
        let (space, promoted) = (&core.space, &tier.promoted);
        let put = promoted.put_hot(space, cold.location, cold.incarnation, entry, heat);
        let patience = match put {
            Put::Done => return put,
            Put::Later => LATER_PATIENCE,
            Put::Full => FULL_PATIENCE,
        };
        let now = Instant::now();
        waited += (now - looked).min(LOOK_COUNTS_MAX);
        looked = now;
        if stop() || waited > patience {
            return put;
        }
        core.cleaners.wake();
        std::thread::sleep(LOOK_AGAIN);
    }
}
