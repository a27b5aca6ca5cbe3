//! Slots of the index in which memory has flipped a bit (bucket::B7).
//!
//! **Invariants**
//! - I1: a damaged slot is put back if exactly one key of its view has a sound object from which
//!   one flipped bit leads to the slot. Of several objects of this key the newest counts: the slot
//!   had pointed to it, as dead ones are older. So all places that the slot may have had are read;
//!   if one of them is on flash, the slot stays as it is.
//! - I2: while a damaged slot stays, no key that it may be is absent: reads and writes are errors,
//!   a cleaner of a store with a log leaves the entry that it may be, and a restart finds that in
//!   the log.
//!
//! **Concurrency**: any pinned thread puts a slot back, by compare-and-swap, without the lock of
//! its home (bucket::B1): a holder of the lock that found the slot whole may write it meanwhile,
//! and then the swap fails. Nobody else changes a damaged slot.

use super::Core;
use super::damage::EntryDamage;
use super::sound::bytes_of_guess;
use crate::index::Partition;
use crate::index::bucket::{Slot, View};
use crate::{Error, KeyHash, TableId};
use duramen_base::ids::SegmentId;
use duramen_base::sync::{AtomicU64, Ordering};
use duramen_format::entry::{self, Kind};

/// An object that a slot may have pointed to.
struct Guess {
    hash: KeyHash,
    tag: u64,
    version: u64,
}

impl Core {
    /// For those who must not pass over a key of this home: puts back what is damaged. Pinned.
    ///
    /// # Errors
    /// [`Error::Damaged`]: a slot stays damaged (I2).
    pub fn check_slots(&self, view: View<'_>, home: usize) -> Result<(), Error> {
        if view.has_damage(home) && !self.mends_slots(view, home) {
            return Err(Error::Damaged);
        }
        Ok(())
    }

    /// Puts back the damaged slots that a search from this home passes. False: one stays. Pinned.
    #[cold]
    pub fn mends_slots(&self, view: View<'_>, home: usize) -> bool {
        let mut are_whole = true;
        view.each_damaged(home, |place, slot| {
            are_whole &= self.mends_slot(view, place, slot);
        });
        are_whole
    }

    /// Puts back the damaged slots of a partition that did not grow because of them. False: one
    /// stays. Pinned.
    #[cold]
    pub fn mends_partition(&self, partition: &Partition) -> bool {
        let view = partition.view(); // in which another thread may have put them back by now
        for home in 0..view.len() {
            self.mends_slots(view, home);
        }
        view.is_whole()
    }

    /// I1. Each slot is told of once.
    fn mends_slot(&self, view: View<'_>, place: &AtomicU64, slot: Slot) -> bool {
        let told_as = (std::ptr::from_ref(place) as u64, slot.0);
        if self.damages.known(told_as) == Some(None) {
            return false; // it was searched before
        }
        let whole = self.before_flip(view, slot);
        let mut damage = EntryDamage {
            segment: SegmentId::NONE,
            is_mended: whole.is_some(),
            what: format!("its slot in the index, {:#018x}", slot.0),
        };
        let Some(whole) = whole else {
            damage.what += "; some keys cannot be read or written before a restart";
            self.damages.tell_once(told_as, None, damage);
            return false;
        };
        // Release pairs with Acquire in `View::find`, as in `View::insert`.
        let swapped = place.compare_exchange(slot.0, whole.0, Ordering::AcqRel, Ordering::Relaxed);
        if swapped.is_ok() {
            damage.what += &format!(", was {:#018x}", whole.0);
            self.damages.tell(damage);
        }
        true // or another thread has put it back
    }

    /// The slot as it was before one of its bits flipped; `None`: it is not known (I1).
    fn before_flip(&self, view: View<'_>, slot: Slot) -> Option<Slot> {
        let mut best: Option<(Slot, Guess)> = None;
        for location in slot.locations_before_flip() {
            let bytes = bytes_of_guess(self, location)?;
            let Some(guess) = self.guess(view, &bytes) else {
                continue;
            };
            let Some(whole) = slot.before_flip(guess.tag, location) else {
                continue;
            };
            match &best {
                Some((_, other)) if other.hash != guess.hash => return None,
                Some((_, other)) if other.version >= guess.version => {}
                _ => best = Some((whole, guess)),
            }
        }
        match best {
            Some((whole, _)) => Some(whole),
            // No entry explains it: an empty slot in which one bit is set now.
            None => (slot.0.count_ones() == 1).then_some(Slot::EMPTY),
        }
    }

    /// The object that these bytes are, if its key belongs to this view.
    fn guess(&self, view: View<'_>, bytes: &[u8]) -> Option<Guess> {
        let entry = entry::parse(bytes).ok()?;
        let index = self.tables.index(TableId(entry.table)).ok()?;
        let hash = KeyHash(self.hasher.hash(entry.key));
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
