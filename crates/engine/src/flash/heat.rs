//! What is read often, told by the hashes of its keys, so that memory can be filled with it again
//! after a restart.
//!
//! A hash outlives what places do not: the key may have been written again, its segment compacted
//! or cleaned. [`Heat`] tells the keys of promoted copies, by how often each was read lately, and
//! which segments are in memory. [`Refill`] is told such keys in a later life of the store, and
//! copies those whose entries lie on flash.
//!
//! **Invariants**
//! - W1: what is told is advice. A key is copied only if the index points to an entry on flash for
//!   its hash now, and only the entry that was read and verified there (F3, F7), which has that
//!   table and that hash. So a wrong or old hint costs reads of the device, and nothing else.
//! - W2: a refill pushes nothing out: it takes room that copies may have (P4) and do not, and stops
//!   when there is none.
//! - W3: nobody is pinned while it waits for the device, for room, or while the caller is shown
//!   anything.
//! - W4: while others read from the device, a refill leaves it to them for as long as it has used
//!   it itself.
//!
//! **Concurrency**: both are one thread's, beside any number of others; neither is called by
//! threads that serve. A refill waits for the device, and sleeps while cleaner threads make room.
//!
//! Paper: 40-flash.md "restart refills DRAM with the hottest data first"; differs from a list of
//! places (segment and offset), which compaction in memory makes wrong without any cleaning.

use super::fetch::{Read, bytes_of};
use super::promoted::{HEAT_MAX, Put};
use super::{Aligned, Cold, Tier};
use crate::core::Core;
use crate::session::Session;
use crate::space::segment::State;
use crate::{Error, KeyHash, Store, TableId};
use duramen_base::ids::SegmentId;
use duramen_format::entry::{self, Kind};
use duramen_format::hash::HASH_BITS;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Part of the memory budget that a refill works with: one of so many, within bounds in bytes (F6).
const REFILL_PART: u64 = 256;
const REFILL_BYTES_MIN: u64 = 32 << 10;
const REFILL_BYTES_MAX: u64 = 2 << 20;
/// What lies between two entries is read with them up to here, in bytes: as fast as another read.
const GAP_BYTES: u64 = 8 << 10;
/// The first guess of how long entries are, in bytes.
const GUESS_BYTES: u32 = 1024;
const GUESS_BYTES_MIN: u32 = 256;
/// Of the memory for reads, an entry is guessed to take one byte of so many at most.
const GUESS_PART: u32 = 8;
/// The longest time that a refill stands back for others at once.
const YIELD_MAX: Duration = Duration::from_millis(50);
/// Sets of the table that are looked at under one pin.
const SETS_PER_PIN: usize = 128;
/// How long a refill looks for room at most: while cleaner threads find some, and while copies may
/// have no more.
const LATER_PATIENCE: Duration = Duration::from_secs(20);
const FULL_PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// What counts at most as time between two looks: a machine that stood still says nothing about the
/// others.
const LOOK_COUNTS_MAX: Duration = Duration::from_millis(5);

/// Memory that a refill of a store with this budget works with, in bytes.
pub(super) fn refill_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / REFILL_PART).clamp(REFILL_BYTES_MIN, REFILL_BYTES_MAX)
}

/// A key that is, or was, read often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HotKey {
    pub table: TableId,
    pub hash: u64,
}

/// Tells what is read often.
pub struct Heat {
    session: Session,
}

impl Store {
    /// A look at what is read often; `None` without a flash tier.
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    pub fn heat(self: &Arc<Self>) -> Result<Option<Heat>, Error> {
        if !self.has_flash() {
            return Ok(None);
        }
        let session = self.session()?;
        Ok(Some(Heat { session }))
    }

    /// Begins to fill memory with what was hot; `None` without a flash tier.
    ///
    /// # Errors
    /// [`Error::TooManySessions`].
    pub fn refill(self: &Arc<Self>) -> Result<Option<Refill>, Error> {
        let Some(tier) = &self.core().space.tier else {
            return Ok(None);
        };
        let half = refill_bytes(self.core().space.budget.limit()) as usize / 2;
        let tier_figures = &tier.figures;
        Ok(Some(Refill {
            keys_max: half / (size_of::<Wanted>() + size_of::<HotKey>()),
            memory: Aligned::new(half),
            memory_bytes: half,
            asked: tier_figures.asked.load(Ordering::Relaxed),
            guess: GUESS_BYTES,
            session: self.session()?,
        }))
    }

    /// Says how many keys a refill that goes on, or is to begin, will still look at.
    pub fn set_refill_left(&self, keys: u64) {
        if let Some(tier) = &self.core().space.tier {
            tier.figures.refill_left.store(keys, Ordering::Relaxed);
        }
    }

    /// The refill has ended: nothing goes to flash later than its age says any more.
    pub fn end_refill(&self) {
        self.set_refill_left(0);
        if let Some(tier) = &self.core().space.tier {
            for window in &tier.windows {
                window.kept.store(false, Ordering::Relaxed);
            }
        }
    }
}

impl Heat {
    /// The greatest heat.
    pub const MAX: u8 = HEAT_MAX;

    fn tier(core: &Core) -> &Tier {
        core.space.tier.as_deref().expect("it was there")
    }

    /// Something that changes whenever there may be more to tell than before.
    pub fn news(&self) -> u64 {
        let stats = Self::tier(self.session.store().core()).statistics();
        stats.promoted_hits + stats.promotions + stats.refilled
    }

    /// How many keys there are of each heat, about.
    pub fn counts(&mut self) -> [u64; HEAT_MAX as usize + 1] {
        let mut counts = [0; HEAT_MAX as usize + 1];
        for sets in self.pins() {
            let guard = self.session.pin();
            let promoted = &Self::tier(guard.core).promoted;
            for set in sets {
                promoted.each_in(&guard.core.space, set, |heat, _| {
                    counts[usize::from(heat)] += 1;
                });
            }
        }
        counts
    }

    /// Shows the keys of one heat, some at a time, until `show` says false. None twice, but for
    /// what changes meanwhile.
    pub fn each(&mut self, heat: u8, mut show: impl FnMut(&[HotKey]) -> bool) {
        let mut some = Vec::new();
        for sets in self.pins() {
            let guard = self.session.pin();
            let core = guard.core;
            for set in sets {
                let promoted = &Self::tier(core).promoted;
                promoted.each_in(&core.space, set, |found, at| {
                    if found == heat {
                        // SAFETY: a copy of a whole entry, which stays until the pin ends (P1).
                        let entry = unsafe { entry::parse_trusted(at) };
                        some.push(HotKey {
                            table: TableId(entry.table),
                            hash: core.hasher.hash(entry.key),
                        });
                    }
                });
            }
            drop(guard); // W3
            if !some.is_empty() && !show(&some) {
                return;
            }
            some.clear();
        }
    }

    /// The sets of the table, as they are looked at.
    fn pins(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let sets = Self::tier(self.session.store().core()).promoted.sets();
        (0..sets)
            .step_by(SETS_PER_PIN)
            .map(move |first| first..(first + SETS_PER_PIN).min(sets))
    }

    /// Segments that are in memory, those last that would go to flash next; none without a log.
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

/// Fills memory with what was hot.
pub struct Refill {
    session: Session,
    keys_max: usize,
    memory: Aligned,
    memory_bytes: usize,
    /// What others had read from the device at the last look.
    asked: u64,
    /// How long entries are taken to be, in bytes.
    guess: u32,
}

/// What some keys came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refilled {
    /// Entries that were copied.
    pub copied: u64,
    /// Read from the device.
    pub bytes: u64,
    /// There is no more room, or the device cannot be read: the rest is in vain.
    pub is_over: bool,
}

/// An entry that is to be copied.
struct Wanted {
    cold: Cold,
    key: HotKey,
}

/// A piece of the device that is read at once, and where it lies in memory.
struct Span {
    offset: u64,
    at: usize,
    bytes: usize,
    wanted: Range<usize>,
}

impl Refill {
    /// So many keys are best given at once.
    pub fn keys_max(&self) -> usize {
        self.keys_max.max(1)
    }

    /// Copies the entries of these keys that lie on flash alone, as such that were read so often;
    /// what cannot be copied is not. `stop` ends it early.
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

    /// Where the entries are, in the order of the device (W1).
    fn find(&mut self, keys: &[HotKey]) -> Vec<Wanted> {
        let guess = self.guess;
        let guard = self.session.pin();
        let core = guard.core;
        let (space, tier) = (&core.space, Heat::tier(core));
        let stamp = core.epochs.stamp_of(guard.slot);
        let mut wanted = Vec::with_capacity(keys.len());
        for key in keys.iter().filter(|key| key.hash >> HASH_BITS == 0) {
            let Ok(index) = core.tables.index(key.table) else {
                continue; // there is no such table any more
            };
            let hash = KeyHash(key.hash);
            let view = index.partition(hash).view();
            if view.len() == 0 {
                continue;
            }
            let _ = view.find(index.tag(hash), guard.me, |slot| {
                let (location, window) = (slot.location(), space.window_of(slot.location()));
                let incarnation = space.segments[window].incarnation();
                if !tier.is_in_memory(window, stamp)
                    && !tier.promoted.has(space, location, incarnation)
                    && wanted.len() < keys.len()
                {
                    let cold = tier.cold(space, location, guess);
                    wanted.push(Wanted { cold, key: *key });
                }
                false // another one may have the same tag
            });
        }
        drop(guard);
        wanted.sort_unstable_by_key(|wanted| wanted.cold.offset);
        wanted
    }

    fn copy_found(
        &mut self,
        heat: u8,
        wanted: &[Wanted],
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
                std::thread::sleep(took.min(YIELD_MAX)); // W4
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

    /// What to read at once, from `next` on.
    fn plan(&self, wanted: &[Wanted], next: usize) -> Vec<Span> {
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

    /// False: the device fails.
    fn read(&mut self, spans: &[Span]) -> bool {
        let tier = Heat::tier(self.session.store().core());
        let mut memory = self.memory.bytes_mut(self.memory_bytes);
        let mut reads = Vec::with_capacity(spans.len());
        for span in spans {
            let (into, rest) = memory.split_at_mut(span.bytes); // one after the other, as planned
            reads.push((span.offset, into));
            memory = rest;
        }
        let read = tier.device.read_many(&mut reads).is_ok();
        if !read {
            tier.figures.read_errors.fetch_add(1, Ordering::Relaxed);
        }
        read
    }

    /// Copies one entry of what was read.
    fn take(
        &mut self,
        heat: u8,
        wanted: &Wanted,
        span: &Span,
        done: &mut Refilled,
        stop: &dyn Fn() -> bool,
    ) {
        let store = self.session.store().clone();
        let (core, tier) = (store.core(), Heat::tier(store.core()));
        let (offset, bytes) = wanted.cold.span();
        let memory = self.memory.bytes_mut(self.memory_bytes);
        let at = span.at + (offset - span.offset) as usize;
        let read = tier.verify(&core.space, &wanted.cold, &memory[at..][..bytes]);
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
            && core.hasher.hash(entry.key) == wanted.key.hash;
        if !is_it {
            return; // W1: another key with the same tag
        }
        let length = u32::try_from(words.len() * size_of::<u64>()).unwrap_or(u32::MAX);
        // Longer than most: what is read in vain costs less than to read again. What is much longer
        // is read alone.
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

/// An entry that was longer than it was taken to be.
fn read_alone(core: &Core, tier: &Tier, mut cold: Cold, done: &mut Refilled) -> Option<Vec<u64>> {
    loop {
        let (offset, length) = cold.span();
        let mut memory = Aligned::new(length);
        let into = memory.bytes_mut(length);
        if tier.device.read_at(offset, into).is_err() {
            tier.figures.read_errors.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        done.bytes += length as u64;
        match tier.verify(&core.space, &cold, into) {
            Ok(Read::Entry(words)) => return Some(words),
            Ok(Read::Longer(longer)) => cold = longer,
            Ok(Read::Gone) | Err(_) => return None,
        }
    }
}

/// Copies a verified entry, once there is room (W2). Anything but [`Put::Done`]: there will be
/// none.
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
        core.wakeup.ring();
        std::thread::sleep(LOOK_AGAIN);
    }
}

impl Core {
    /// The segment of this window was in memory before a restart: advice for who demotes.
    pub(crate) fn keep_in_memory(&self, window: u32) {
        if let Some(tier) = &self.space.tier {
            debug_assert!(self.space.segments[window as usize].state() != State::Promoted);
            tier.keep(window);
        }
    }
}
