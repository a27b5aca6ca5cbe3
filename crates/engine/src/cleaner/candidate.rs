//! An entry that a cleaner examines: finds out whether it is alive, and locks its key's bucket
//! while it is moved or dropped.

use crate::KeyHash;
use crate::core::Core;
use crate::core::slots::InHand;
use crate::counters::Counters;
use crate::index::bucket::{Locking, Slot, View};
use crate::index::change::{Change, Dropped};
use crate::index::{Index, Partition};
use duramen_base::sync::AtomicU64;
use duramen_format::entry::{Entry, Kind};

/// Entries looked up together: their bucket lines are fetched in parallel.
pub const GROUP: usize = 32;

/// The slot that points to a candidate.
pub type Found<'a> = (View<'a>, &'a AtomicU64, Slot);

/// An entry of the group that is being examined.
pub struct Candidate<'a> {
    pub location: u64,
    pub entry: Entry<'a>,
    /// The entry's bytes: those of its segment, or a verified copy (sound::V1).
    pub source: *const u8,
    partition: &'a Partition,
    tag: u64,
}

/// Whether a damaged slot may be that of an entry to which no slot points (bucket::B7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    None,
    /// The slot was put back: the caller looks again.
    PutBack,
    /// The slot stays damaged.
    Stays,
}

/// Why an entry could not be locked.
pub enum NotLocked {
    /// The index points elsewhere by now.
    Dead,
    /// A transaction holds the bucket.
    Busy,
}

impl<'a> Candidate<'a> {
    /// `is_dead`: the entry is known to be dead, so its bucket will not be read.
    pub fn new(
        core: &'a Core,
        index: &'a Index,
        location: u64,
        entry: Entry<'a>,
        is_dead: bool,
    ) -> Candidate<'a> {
        let hash = if is_dead {
            KeyHash(0)
        } else {
            core.tables.hash(entry.key)
        };
        let partition = index.partition(hash);
        let tag = index.tag(hash);
        let view = partition.view();
        if view.len() != 0 && !is_dead {
            crate::index::prefetch::prefetch_pair(view.line(view.home(tag)));
        }
        Candidate {
            location,
            entry,
            source: core.space.at(location),
            partition,
            tag,
        }
    }

    /// The same candidate, with its bytes at `source`.
    pub fn with_source(mut self, source: *const u8) -> Candidate<'a> {
        self.source = source;
        self
    }

    /// The slot that points to this entry, if it is alive. No lock is needed to find it dead: an
    /// entry of a closed segment that the index does not point to now never will be pointed to
    /// (head::H1).
    pub fn find(&self) -> Option<Found<'a>> {
        let view = self.partition.view();
        if view.len() == 0 {
            return None;
        }
        view.find_location(self.tag, self.location)
            .map(|(place, slot)| (view, place, slot))
    }

    /// Finds out whether a damaged slot may be that of this entry, to which no slot pointed. The
    /// caller has claimed the entry's segment. A damaged slot is put back if that is possible, also
    /// if its entry is this one, read back from flash. Without a log no restart would find the
    /// entry, so it is not kept for a slot that stays damaged.
    pub fn doubt(&self, core: &Core) -> Doubt {
        let own = InHand {
            location: self.location,
            entry: &self.entry,
        };
        self.doubt_with(core, Some(own))
    }

    fn doubt_with(&self, core: &Core, in_hand: Option<InHand<'_>>) -> Doubt {
        let view = self.partition.view();
        if self.entry.kind != Kind::Object || view.len() == 0 {
            return Doubt::None;
        }
        let home = view.home(self.tag);
        if !view.has_damage(home) {
            // Another thread may have put the entry's slot back after `find` had found none.
            return match self.find() {
                Some(_) => Doubt::PutBack,
                None => Doubt::None,
            };
        }
        if core.slots().mend_with(view, home, in_hand) {
            return Doubt::PutBack;
        }
        let mut may_be_its_own = false;
        view.each_damaged(home, |_, slot| {
            may_be_its_own |= slot.may_have_been(self.tag, self.location);
        });
        // The entry's own slot may have been put back, while another one of its home stays damaged.
        // This search comes after the look at the damaged slots: a slot that was put back before is
        // found.
        if self.find().is_some() {
            return Doubt::PutBack;
        }
        match may_be_its_own && core.log.is_some() {
            true => Doubt::Stays,
            false => Doubt::None,
        }
    }

    /// True if this entry may be alive, although no slot pointed to it.
    pub fn is_in_doubt(&self, core: &Core) -> bool {
        self.doubt_with(core, None) != Doubt::None
    }

    /// Locks the entry's bucket and checks that `place`, or its successor in a newer view, still
    /// points to it.
    pub fn lock(
        &self,
        mut view: View<'a>,
        mut place: &'a AtomicU64,
        me: u16,
    ) -> Result<(View<'a>, usize, &'a AtomicU64, Locking), NotLocked> {
        loop {
            let home = view.home(self.tag);
            match view.try_lock(home, me) {
                Locking::Busy => return Err(NotLocked::Busy),
                Locking::Moved => {
                    self.partition.wait_for_move(view);
                    (view, place, _) = self.find().ok_or(NotLocked::Dead)?;
                }
                locking => {
                    let slot = Slot(place.load(duramen_base::sync::Ordering::Relaxed));
                    if slot.location() == self.location && slot.tag() == self.tag {
                        return Ok((view, home, place, locking));
                    }
                    if locking == Locking::Taken {
                        view.unlock(home);
                    }
                    return Err(NotLocked::Dead);
                }
            }
        }
    }

    /// Removes the entry's key from its table. `Some(true)`: the key was removed; `None`: the entry
    /// was dead already; `Some(false)`: a transaction holds the bucket.
    pub fn drop_from_index(&self, core: &Core, counters: &Counters, me: u16) -> Option<bool> {
        let (view, place, _) = self.find()?;
        match self.lock(view, place, me) {
            Ok((view, home, place, locking)) => {
                let change = Change {
                    partition: self.partition,
                    view,
                    space: &core.space,
                    counters,
                };
                let slot = Slot::new(self.tag, self.location);
                change.remove(self.tag, Dropped::new(place, slot, &self.entry));
                if locking == Locking::Taken {
                    view.unlock(home);
                    if self.partition.wants_shrinking(view.len()) {
                        let _ = self.partition.resize(0, me, core.resources());
                    }
                }
                Some(true)
            }
            Err(NotLocked::Dead) => None,
            Err(NotLocked::Busy) => Some(false),
        }
    }
}

/// The slots of those candidates that are alive.
pub fn find_all<'a>(
    group: &[Option<Candidate<'a>>; GROUP],
    all_dead: bool,
) -> [Option<Found<'a>>; GROUP] {
    let mut found: [Option<Found<'_>>; GROUP] = [const { None }; GROUP];
    for (found, candidate) in found.iter_mut().zip(group) {
        *found = candidate
            .as_ref()
            .filter(|candidate| !all_dead && candidate.entry.kind != Kind::Completion)
            .and_then(Candidate::find);
    }
    found
}

#[cfg(all(test, debug_assertions, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::core::{Visitor, sound};
    use crate::{Options, Store, TableId};
    use std::collections::HashMap;

    const TABLE: TableId = TableId::DEFAULT;

    /// Its own slot was put back, and another one of its home stayed damaged: the entry counted as
    /// dead, although its slot pointed to it.
    #[test]
    fn an_entry_whose_slot_is_put_back_beside_a_damaged_one_is_alive() {
        let store = Store::new(Options {
            huge_pages: false,
            cleaners: 0,
            hash_seed: Some(7),
            ..Options::new(64 << 20)
        });
        let store = store.unwrap();
        let mut session = store.session().unwrap();
        let keys: Vec<[u8; 4]> = (0..2000u32).map(u32::to_le_bytes).collect();
        for key in &keys {
            let mut guard = session.pin();
            let hash = guard.hash(key);
            guard.write(TABLE, hash, key, b"value", None).unwrap();
        }
        let core = store.core();
        let visitor = Visitor::wait(core);
        core.door.enter(visitor.slot);
        let index = core.tables.index(TABLE).unwrap();
        let place = |key: &[u8]| {
            let hash = core.tables.hash(key);
            (index.partition(hash).view(), index.tag(hash))
        };
        let mut homes = HashMap::new();
        let pair = keys.iter().find_map(|key| {
            let (view, tag) = place(key);
            let other = homes.insert(view.line(view.home(tag)), key);
            other.map(|other| (other, key))
        });
        let (lost, own) = pair.expect("two keys of one home");
        let (view, tag) = place(own);
        let found = view.find(tag, visitor.me(), |slot| {
            let sound = sound::at(core, slot.location());
            sound.is_ok_and(|sound| sound.entry.key == own.as_slice())
        });
        let (_, slot) = found.expect("it was written");
        assert!(store.flips().slot(TABLE, lost, &[3, 50, 60]));
        let sound = sound::at(core, slot.location()).unwrap();
        let candidate = Candidate::new(core, index, slot.location(), sound.entry, false);
        // As after a look at it that came before another thread put its slot back.
        assert_eq!(candidate.doubt(core), Doubt::PutBack);
        core.door.leave(visitor.slot);
    }
}
