//! Slots of the index in which memory has flipped a bit (bucket::B7).
//!
//! **Invariants**
//! - I1: a damaged slot is put back if exactly one key of its view has a sound object from which
//!   one flipped bit leads to the slot. Of several objects of this key the newest counts: the slot
//!   had pointed to it, as dead ones are older. So all places in memory that the slot may have had
//!   are read. Those on flash are not: if the object is there, the slot stays as it is, until a
//!   later search finds it in memory, or a cleaner has read its segment back and has the object
//!   *in hand*. An object in memory or in hand is believed all the same if its segment is one of
//!   the log. That is wrong only if an object on flash is as near to the slot: another key's (20
//!   places there and 22 bits of a tag: once in 200,000 flipped bits), or a newer one of the same
//!   key, at a place that differs in one bit.
//! - I2: while a damaged slot stays, no key that it may be is absent: reads and writes are errors,
//!   a cleaner of a store with a log leaves the entry that it may be, unless it evicts, and a
//!   restart finds that in the log.
//!
//! **Concurrency**: any pinned thread puts a slot back, by compare-and-swap, without the lock of
//! its home (bucket::B1): a holder of the lock that found the slot whole may write it meanwhile,
//! and then the swap fails. Nobody else changes a damaged slot.

use super::Core;
use super::damage::{EntryDamage, Finding};
use super::sound::bytes_of_guess;
use crate::index::Partition;
use crate::index::bucket::{Slot, View};
use crate::{Error, KeyHash, TableId};
use duramen_base::ids::SegmentId;
use duramen_base::sync::{AtomicU64, Ordering};
use duramen_format::entry::{self, Entry, Kind};

/// The slot that a damaged one was (I1).
enum Search {
    Found(Slot),
    /// It may point to flash.
    NotNow,
    Nothing,
}

/// A verified object of a segment that the searcher has claimed: so it is there, also if the
/// search reads no segment on flash (I1).
#[derive(Clone, Copy)]
pub struct InHand<'a> {
    pub location: u64,
    pub entry: &'a Entry<'a>,
}

/// An object that a slot may have pointed to.
struct Guess {
    hash: KeyHash,
    tag: u64,
    version: u64,
}

/// The slots of a store's indexes.
#[derive(Clone, Copy)]
pub struct Slots<'c> {
    core: &'c Core,
}

impl Core {
    pub fn slots(&self) -> Slots<'_> {
        Slots { core: self }
    }
}

impl Slots<'_> {
    /// Puts back the damaged slots that a search from this home passes, for a caller that must not
    /// miss a key of this home. Pinned.
    ///
    /// # Errors
    /// [`Error::Damaged`]: a slot stays damaged (I2).
    pub fn check(self, view: View<'_>, home: usize) -> Result<(), Error> {
        if view.has_damage(home) && !self.mend(view, home) {
            return Err(Error::Damaged);
        }
        Ok(())
    }

    /// Puts back the damaged slots that a search from this home passes. Returns false if one stays.
    /// Pinned.
    pub fn mend(self, view: View<'_>, home: usize) -> bool {
        self.mend_with(view, home, None)
    }

    /// As [`mend`](Self::mend), for a caller that may have an object in hand (I1).
    #[cold]
    pub fn mend_with(self, view: View<'_>, home: usize, in_hand: Option<InHand<'_>>) -> bool {
        let mut are_whole = true;
        view.each_damaged(home, |place, slot| {
            are_whole &= self.mend_slot(view, place, slot, in_hand);
        });
        are_whole
    }

    /// Puts back the damaged slots of a partition that did not grow because of them. Returns false
    /// if one stays. Pinned.
    #[cold]
    pub fn mend_partition(self, partition: &Partition) -> bool {
        let view = partition.view(); // in which another thread may have put them back by now
        for home in 0..view.len() {
            self.mend(view, home);
        }
        view.is_whole()
    }

    /// I1: puts one slot back. Returns false if the slot stays damaged.
    fn mend_slot(
        self,
        view: View<'_>,
        place: &AtomicU64,
        slot: Slot,
        in_hand: Option<InHand<'_>>,
    ) -> bool {
        if self.core.is_loading() {
            return false; // load::R10: not while segments are loaded
        }
        let damages = &self.core.listeners.damages;
        let known_as = (std::ptr::from_ref(place) as u64, slot.0);
        if damages.known(known_as) == Some(Finding::Unexplained) {
            return false; // it was searched before
        }
        let whole = match self.before_flip(view, slot, in_hand) {
            Search::Found(whole) => whole,
            Search::NotNow => {
                self.tell_damaged(known_as, "while it may point to flash");
                return false;
            }
            Search::Nothing => {
                self.tell_damaged(known_as, "before a restart");
                damages.note(known_as, Finding::Unexplained);
                return false;
            }
        };
        // Release pairs with Acquire in `View::find`, as in `View::insert`.
        let swapped = place.compare_exchange(slot.0, whole.0, Ordering::AcqRel, Ordering::Relaxed);
        if swapped.is_ok() {
            damages.tell(EntryDamage {
                segment: SegmentId::NONE,
                is_mended: true,
                what: format!(
                    "its slot in the index, {:#018x}, was {:#018x}",
                    slot.0, whole.0
                ),
            });
        }
        true // or another thread has put it back
    }

    /// Reports a slot that stays damaged, once.
    fn tell_damaged(self, (place, slot): (u64, u64), until: &str) {
        // A place is a multiple of eight: the odd number behind it marks the place as reported.
        let told_as = (place + 1, slot);
        let closed = "some keys cannot be read or written";
        let damage = EntryDamage {
            segment: SegmentId::NONE,
            is_mended: false,
            what: format!("its slot in the index, {slot:#018x}; {closed} {until}"),
        };
        let damages = &self.core.listeners.damages;
        damages.tell_once(told_as, Finding::Unexplained, damage);
    }

    /// The slot as it was before one of its bits flipped (I1).
    fn before_flip(self, view: View<'_>, slot: Slot, in_hand: Option<InHand<'_>>) -> Search {
        let mut best: Option<(Slot, Guess)> = None;
        let mut is_on_flash = false;
        for location in slot.locations_before_flip() {
            let guess = match in_hand.filter(|own| own.location == location) {
                Some(own) => self.guess(view, own.entry),
                None => match bytes_of_guess(self.core, location) {
                    Some(bytes) => self.parsed_guess(view, &bytes),
                    None => {
                        is_on_flash = true;
                        continue;
                    }
                },
            };
            let Some(guess) = guess else {
                continue;
            };
            let Some(whole) = slot.before_flip(guess.tag, location) else {
                continue;
            };
            match &best {
                Some((_, other)) if other.hash != guess.hash => return Search::Nothing,
                Some((_, other)) if other.version >= guess.version => {}
                _ => best = Some((whole, guess)),
            }
        }
        match best {
            // A copy that was left in a free window may be older than one on flash.
            Some((whole, _)) if is_on_flash && !self.is_in_log(whole) => Search::NotNow,
            Some((whole, _)) => Search::Found(whole),
            // No entry explains it: an empty slot in which one bit is set now.
            None if slot.0.count_ones() == 1 => Search::Found(Slot::EMPTY),
            None if is_on_flash => Search::NotNow,
            None => Search::Nothing,
        }
    }

    fn is_in_log(self, slot: Slot) -> bool {
        let space = &self.core.space;
        space.segments[space.window_of(slot.location())].is_in_log()
    }

    /// As [`guess`](Self::guess), for bytes that may be anything.
    fn parsed_guess(self, view: View<'_>, bytes: &[u8]) -> Option<Guess> {
        self.guess(view, &entry::parse(bytes).ok()?)
    }

    /// This entry, if it is an object and its key belongs to this view.
    fn guess(self, view: View<'_>, entry: &Entry<'_>) -> Option<Guess> {
        let index = self.core.tables.index(TableId(entry.table)).ok()?;
        let hash = self.core.tables.hash(entry.key);
        let own = index.partition(hash).view();
        let is_here =
            entry.kind == Kind::Object && own.len() != 0 && std::ptr::eq(own.line(0), view.line(0));
        is_here.then(|| Guess {
            hash,
            tag: index.tag(hash),
            version: entry.version,
        })
    }
}
