//! The head that a guard may append to.
//!
//! **Order** (log::L5): an entry may follow a predecessor that can still be lost only in the same
//! head. A guard that finds such a predecessor in another head goes to that head for its next
//! appends. In the middle of a group it cannot, so it waits for a commit. The predecessor of a
//! created key is the key's last removal: `removals` records, for the class of its hash, the
//! positions where it may be.
//!
//! **Waits**
//! - N1: a guard that goes to another head, or waits for a commit, holds nothing: no
//!   bucket, no head, no pin. A transaction that finds such predecessors when its keys are locked
//!   unlocks the keys and starts again. If it still finds some, which happens a few times in a
//!   million, it waits with its keys locked: for a commit of entries that are collectable, and a
//!   commit waits for nothing in the store (`on_demand`). No guard can wait for the end of a group,
//!   because the group's positions are not shown before (removals::M1).

use super::Locked;
use super::append::Appender;
use super::observed::{Observed, undurable_removals};
use super::pin::Pin;
use super::roll::roll;
use crate::core::Core;
use crate::index::Partition;
use crate::log::{Log, pack_place};
use crate::space::{Purpose, Space};
use crate::{Error, KeyHash, TableId};
use duramen_base::ids::SegmentId;
use duramen_base::planted::{Bug, has_bug};
use duramen_base::waits::NOTHING;
use duramen_base::waits::Resource::{Door, Head, Key, Pin as Pinned};
use duramen_format::entry::NewTombstone;

/// Outcome of a removal.
pub(crate) enum Buried {
    Done,
    /// No window is free: the caller frees memory and starts again.
    NoSpace,
    /// The head has a new segment: the caller looks the key up again.
    LookAgain,
}

impl<'s> Appender<'s> {
    /// Makes sure that the guard may append over the entry that it found (log::L5). Returns false
    /// if the bucket was unlocked for this: the caller looks the key up again.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`]; the bucket is unlocked then.
    #[inline]
    pub(crate) fn may_append(
        &mut self,
        pin: &mut Pin<'s>,
        seen: &Observed,
        log: &Log,
        hash: KeyHash,
        locked: &Locked<'s>,
    ) -> Result<bool, Error> {
        // A group that has room is done as a whole, even if the disk fills meanwhile (room::R1).
        if !self.is_granted()
            && let Err(error) = log.refusals().check()
        {
            locked.unlock();
            return Err(error);
        }
        let space = &pin.core().space;
        let is_elsewhere = match locked.found {
            Some((_, slot, _)) if space.is_undurable(slot.location()) => {
                log.windows().place_of(space, slot.location()).0 != self.stream()
            }
            Some(_) => false,
            None => locked.partition.last_removed() != 0,
        };
        if !is_elsewhere || has_bug(Bug::AnyHead) {
            return Ok(true);
        }
        self.settle(pin, seen, log, hash, locked)
    }

    /// Goes to the head where the predecessors are, or waits for them.
    #[cold]
    fn settle(
        &mut self,
        pin: &mut Pin<'s>,
        seen: &Observed,
        log: &Log,
        hash: KeyHash,
        locked: &Locked<'s>,
    ) -> Result<bool, Error> {
        // room::R1: the guard waited for all possible predecessors before room was granted, and the
        // key is locked since. A removal that is found by hash now is of another key, and waiting
        // for it could fail in the middle of the step.
        if self.is_granted() && (locked.in_transaction || pin.is_alone()) {
            return Ok(true);
        }
        let places: Vec<(u16, u64)> = match locked.found {
            Some((_, slot, _)) => log
                .windows()
                .undurable_place(&pin.core().space, slot.location())
                .into_iter()
                .collect(),
            // Changes of tables are not among the predecessors: they are collected before anything
            // that is appended now (log::L6).
            None => undurable_removals(log, hash).collect(),
        };
        let own = self.stream();
        let elsewhere = |(stream, _): &&(u16, u64)| *stream != own;
        if !places.iter().any(|place| elsewhere(&place)) {
            return Ok(true);
        }
        // transaction::T4: a transaction keeps its head, whatever it has written so far.
        if pin.is_in_step() {
            // The bucket stays locked meanwhile, so no other predecessor can come.
            for (stream, end) in places.iter().filter(elsewhere) {
                if let Err(error) = log.wait_synced(*stream, *end, &[Key, Head]) {
                    locked.unlock();
                    return Err(error);
                }
            }
            return Ok(true);
        }
        locked.unlock();
        self.follow(pin, seen, log, &places).map(|()| false)
    }

    /// Goes to the head of one of these places, and waits for the others. The guard keeps its own
    /// head if that is among them, or if the guard is alone, because its group is there. No bucket
    /// is locked, and values that were read may not be used again.
    fn follow(
        &mut self,
        pin: &mut Pin<'s>,
        seen: &Observed,
        log: &Log,
        places: &[(u16, u64)],
    ) -> Result<(), Error> {
        let own = self.stream();
        let keeps = pin.is_alone() || places.iter().any(|(stream, _)| *stream == own);
        let chosen = match places.first() {
            Some((stream, _)) if !keeps => *stream,
            _ => own,
        };
        for (stream, end) in places.iter().filter(|(stream, _)| *stream != chosen) {
            self.wait_synced(pin, seen, log, (*stream, *end))?;
        }
        if chosen != own {
            seen.keep_own();
            self.go_to(&pin.core().actors.heads()[usize::from(chosen)]);
        }
        Ok(())
    }

    /// Waits for a commit outside of the store, so it holds nothing back. Values that were read may
    /// not be used again.
    fn wait_synced(
        &mut self,
        pin: &mut Pin<'s>,
        seen: &Observed,
        log: &Log,
        (stream, end): (u16, u64),
    ) -> Result<(), Error> {
        if pin.is_alone() {
            return log.wait_synced(stream, end, &[Door, Pinned]);
        }
        assert!(!pin.locks().are_taken(), "N1: a transaction lets go first");
        seen.keep_own();
        self.let_head_go();
        pin.outside(|| log.wait_synced(stream, end, NOTHING))
    }

    /// Goes to the head where the predecessors of a transaction's keys are, and waits for those in
    /// others. Called before the keys are locked, or after they were unlocked again.
    pub(crate) fn settle_before(
        &mut self,
        pin: &mut Pin<'s>,
        seen: &Observed,
        keys: &[(TableId, KeyHash)],
    ) {
        let core = pin.core();
        if let Some(log) = core.log.as_deref() {
            let places = predecessors(core, log, keys);
            // An error is ignored: if nothing can be written now, a later write returns it, and
            // transactions that only read go on.
            let _ = self.follow(pin, seen, log, &places);
        }
    }

    /// Records the removals of a transaction whose group has ended, while its keys are still locked
    /// (removals::M1, removals::M2).
    pub(crate) fn note_removals(&mut self, log: &Log, removed: &[(&'s Partition, KeyHash)]) {
        let stream = self.stream();
        let Some(tail) = self.taken().filter(|_| !removed.is_empty()) else {
            return;
        };
        for (partition, hash) in removed {
            note_removal(log, *hash, partition, (stream, tail.position()));
        }
    }

    /// Appends the tombstone of an object that is about to leave the index, and records its
    /// position. The bucket is locked. An absent key needs a tombstone if it may have been evicted
    /// and can still come back from disk.
    ///
    /// # Errors
    /// [`Error::GroupTooLarge`].
    pub(crate) fn bury(
        &mut self,
        pin: &mut Pin<'s>,
        log: &Log,
        table: TableId,
        (hash, key): (KeyHash, &[u8]),
        locked: &Locked<'s>,
    ) -> Result<Buried, Error> {
        let (version, victim) = match locked.found {
            Some((_, slot, entry)) => {
                let window = pin.core().space.window_of(slot.location());
                (entry.version, log.segment_of(window))
            }
            // Every object that was evicted from this partition had a version below the floor
            // (index::X3).
            None => {
                let evicted = locked.partition.floor().saturating_sub(1);
                (evicted, log.swaps().eviction_victim())
            }
        };
        if version == 0 || victim == SegmentId::NONE {
            return Ok(Buried::Done);
        }
        let tombstone = NewTombstone {
            table: table.0,
            version,
            key,
            victim,
        };
        self.append_tombstone(pin, log, hash, locked, &tombstone)
    }

    /// Appends a tombstone of the key, and records its position. The bucket is locked.
    ///
    /// # Errors
    /// [`Error::GroupTooLarge`].
    pub(crate) fn append_tombstone(
        &mut self,
        pin: &mut Pin<'s>,
        log: &Log,
        hash: KeyHash,
        locked: &Locked<'s>,
        tombstone: &NewTombstone<'_>,
    ) -> Result<Buried, Error> {
        let (core, head) = (pin.core(), self.head());
        let bytes = tombstone.padded_bytes();
        let is_ahead = self.windows_ahead() > 0;
        let tail = self.tail();
        if !tail.fits(bytes) {
            if is_ahead {
                self.go_on(core);
                return Ok(Buried::LookAgain);
            }
            let rolled = roll(core, head, tail, bytes, Purpose::Tombstones);
            return rolled.map(|rolled| match rolled {
                // The entry that was found may have moved with its group.
                true => Buried::LookAgain,
                false => Buried::NoSpace,
            });
        }
        let offset = tail.take(bytes);
        // SAFETY: `take` gave this head `bytes` bytes of its own window (head::H2), which it alone
        // writes while its lock is held.
        tombstone.write_to(unsafe {
            std::slice::from_raw_parts_mut(core.space.at(Space::location(offset)), bytes)
        });
        tail.record(&core.space);
        let end = tail.position();
        log.streams().publish(head.number, tail);
        head.counters.note_tombstone(bytes);
        pin.work().note_appended(bytes);
        // A guard that is alone ends its group before any other guard enters.
        let is_shown = has_bug(Bug::RemovalsShownEarly)
            || !pin.locks_mut().note_removed(locked.partition, hash);
        if is_shown {
            note_removal(log, hash, locked.partition, (self.stream(), end));
        }
        Ok(Buried::Done)
    }
}

impl Pin<'_> {
    /// Waits for the remaining predecessors, with the keys locked and before their step writes
    /// anything (transaction::T7). A commit waits for nothing in the store, so this ends.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::DiskFailed`].
    pub(crate) fn settle_locked(&mut self) -> Result<(), Error> {
        let Some(log) = &self.core().log else {
            return Ok(());
        };
        for (stream, end) in self.locks_mut().take_unsettled() {
            log.wait_synced(stream, end, &[Key, Head])?;
        }
        Ok(())
    }
}

/// As [`Pin::settle_locked`], for a guard that is alone in the store and appends to the stream
/// `own`: waits for everything that others have appended.
pub(crate) fn settle_alone(core: &Core, own: u16) -> Result<(), Error> {
    let Some(log) = core.log.as_deref() else {
        return Ok(());
    };
    let (heads, appended) = (core.actors.heads().len(), log.appended());
    let others = appended
        .ends()
        .filter(|(stream, _)| *stream != own && usize::from(*stream) < heads);
    for (stream, end) in others {
        log.wait_synced(stream, end, &[Door, Pinned])?;
    }
    Ok(())
}

/// Predecessors of these keys that are in other streams than `own` and can still be lost. The keys'
/// buckets are locked.
pub(crate) fn unsettled(core: &Core, own: u16, keys: &[(TableId, KeyHash)]) -> Vec<(u16, u64)> {
    let Some(log) = core.log.as_deref().filter(|_| !has_bug(Bug::AnyHead)) else {
        return Vec::new();
    };
    let mut places = predecessors(core, log, keys);
    places.retain(|(stream, _)| *stream != own);
    places
}

/// Positions of the predecessors of writes to these keys, as far as they can still be lost. Found
/// by hashes alone: some may be those of other keys. An object with the key's tag may be another
/// key's, so it does not show that the key was not removed.
fn predecessors(core: &Core, log: &Log, keys: &[(TableId, KeyHash)]) -> Vec<(u16, u64)> {
    let mut places: Vec<(u16, u64)> = Vec::new();
    let mut note =
        |(stream, end): (u16, u64)| match places.iter_mut().find(|(known, _)| *known == stream) {
            Some((_, known)) => *known = (*known).max(end),
            None => places.push((stream, end)),
        };
    for (table, hash) in keys {
        let Ok(index) = core.tables.index(*table) else {
            continue;
        };
        let partition = index.partition(*hash);
        let view = partition.view();
        if view.len() != 0 {
            view.each_tagged(index.tag(*hash), |slot| {
                if let Some(place) = log.windows().undurable_place(&core.space, slot.location()) {
                    note(place);
                }
            });
        }
        if partition.last_removed() != 0 {
            undurable_removals(log, *hash).for_each(&mut note);
        }
    }
    places
}

/// Records a removal whose entry may be collected now, before any other thread can find the key
/// absent (removals::M1, removals::M2).
fn note_removal(log: &Log, hash: KeyHash, partition: &Partition, (stream, end): (u16, u64)) {
    log.removals().note(hash.0, usize::from(stream), end);
    partition.note_removal(pack_place(stream, end));
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use crate::{LogOptions, Options, Store, TableId};
    use std::collections::HashMap;

    /// log::L5: another key with the tag of a removed one is there. The removal was left out, and
    /// a transaction appended the key anew in another head: a crash could keep that alone.
    #[test]
    fn a_key_of_the_same_tag_hides_no_removal() {
        const T: TableId = TableId::DEFAULT;
        let store = Store::new(Options {
            huge_pages: false,
            heads: 2,
            cleaners: 0,
            log: Some(LogOptions::new(7)),
            ..Options::new(64 << 20)
        });
        let store = store.unwrap();
        let (core, log) = (store.core(), store.log().unwrap());
        let index = core.tables.index(T).unwrap();
        let hash_of = |n: u32| core.tables.hash(&n.to_le_bytes());
        let mut seen = HashMap::new();
        let (other, removed) = (0..)
            .find_map(|n: u32| {
                let partition = std::ptr::from_ref(index.partition(hash_of(n)));
                let place = (partition as usize, index.tag(hash_of(n)));
                seen.insert(place, n).map(|other| (other, n))
            })
            .unwrap();
        let (mut first, mut second) = (store.session().unwrap(), store.session().unwrap());
        let mut guard = first.pin();
        for n in [other, removed] {
            let key = n.to_le_bytes();
            guard.write(T, hash_of(n), &key, b"value", None).unwrap();
        }
        guard
            .remove(T, hash_of(removed), &removed.to_le_bytes())
            .unwrap();
        let head = guard.append.stream();
        drop(guard);
        let guard = second.pin();
        assert_ne!(guard.append.stream(), head);
        let removals: Vec<(u16, u64)> = super::undurable_removals(log, hash_of(removed)).collect();
        assert_eq!(removals.len(), 1);
        let places = super::predecessors(core, log, &[(T, hash_of(removed))]);
        assert_eq!(places, removals);
    }
}
