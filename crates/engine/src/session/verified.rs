//! Entries as a guard meets them: verified by their own checksums (sound::V1).
//!
//! **Invariants**
//! - V3: a key is absent only if each entry with its tag was verified, and has another key.
//!   Otherwise a bit that flips in a key, or in its length, would make the object invisible, and
//!   the next write would begin its versions anew, maybe below those on disk.
//! - V4: a write takes the version that it continues from a verified entry alone.
//! - V5: one flipped bit is put back in a copy, which the session holds as it holds entries of
//!   flash. With more damage the operation is an error, and changes nothing: the entry may be the
//!   key's.
//! - V6: with `verify_reads` off, a read uses an entry that has its key without its sum. Its length
//!   is compared with the end of its segment, so no byte of another segment is shown. A read that
//!   may decide a write is verified all the same: one of a draft, one under locks, one of a command
//!   that writes. Otherwise the write would give a bad byte a good sum (trap 39), or meet the
//!   damage when it can no longer fail (draft::P3).
//! - V7: a key is absent only if no slot that its search passes is damaged (bucket::B7), and no
//!   damaged slot is followed: it may lead to an older version of the key. One flipped bit is put
//!   back in the index (core::slots::I1). If that is not possible, the operation is an error as in
//!   V5.
//! - V8: a guard takes the sum of a long entry once, for as long as it is pinned: the entry stays
//!   where it is (epoch::E2), and a request may name it any number of times. The next pin takes the
//!   sum again.

use super::entries::Entries;
use super::pin::Pin;
use super::summed::LONG_BYTES;
use crate::core::sound::InMemory;
use crate::index::bucket::{Slot, View};
use crate::{Error, KeyHash, Store, TableId};
use duramen_base::planted::{Bug, has_bug};
use duramen_base::sync::AtomicU64;
use duramen_format::entry::{self, Entry};

/// An entry with the tag of a key.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// The key's entry.
    Key(InMemory),
    /// The entry has another key.
    Other,
    /// The entry is not in memory, and may be the key's.
    Cold,
    /// More than one bit of the entry has changed (V5), or its slot is damaged (V7), and it may be
    /// the key's.
    Damaged,
}

impl Store {
    /// Sets whether each read verifies the entry of its key, from now on. Everything else is always
    /// verified (V3, V4).
    pub fn set_verify_reads(&self, on: bool) {
        self.core().listeners.damages.set_trusts_reads(!on);
    }
}

impl<'s> Entries<'s> {
    /// The key's slot, and its entry. An entry that is not in memory, or has damage, may be the
    /// key's. `trusts`: an entry with the key is not verified (V6).
    #[inline(always)]
    pub(crate) fn find_in<'i>(
        &self,
        view: View<'i>,
        tag: u64,
        key: &[u8],
        trusts: bool,
    ) -> Option<(&'i AtomicU64, Slot, Found)> {
        loop {
            let mut found = Found::Other;
            let (place, slot) = view.find_or_damaged(tag, self.me(), |slot| {
                found = self.meet(slot, key, trusts);
                !matches!(found, Found::Other)
            })?;
            let is_slot_damaged = matches!(found, Found::Damaged) && !slot.is_whole();
            if !is_slot_damaged || !self.core().slots().mend(view, view.home(tag)) {
                return Some((place, slot, found)); // V7: also a slot that stays damaged
            }
        }
    }

    /// As [`find_in`](Self::find_in), with a verified entry (V3, V4).
    #[inline(always)]
    pub(crate) fn find_verified<'i>(
        &self,
        view: View<'i>,
        tag: u64,
        key: &[u8],
    ) -> Option<(&'i AtomicU64, Slot, Found)> {
        self.find_in(view, tag, key, has_bug(Bug::VersionsUnverified))
    }

    #[inline(always)]
    fn meet(&self, slot: Slot, key: &[u8], trusts: bool) -> Found {
        if !slot.is_whole() {
            return Found::Damaged; // V7: no damaged slot is followed
        }
        let Some(here) = self.memory_of(slot.location()) else {
            return Found::Cold;
        };
        let is_key = self.has_key(here, key);
        let is_trusted = if is_key {
            trusts
        } else {
            has_bug(Bug::MissesUnverified)
        };
        if !is_trusted && !self.is_sound_once(here) {
            return self.meet_unsound(slot.location(), here, key);
        }
        if is_key {
            Found::Key(here)
        } else {
            Found::Other
        }
    }

    /// Whether the entry matches its checksum.
    #[inline(always)]
    pub(crate) fn is_sound(&self, here: InMemory) -> bool {
        // SAFETY: the index pointed to this location under our pin, so a whole entry was published
        // there (Acquire in `find`), and neither writer nor cleaner changes or reuses it before the
        // pin ends (epoch::E2, engine::space::S3); or it is a verified copy that the session holds,
        // or that is promoted (core::flash::F4).
        unsafe { entry::is_sound(here.at, here.available) }
    }

    /// As [`is_sound`](Self::is_sound), for an entry that may be met again and again (V8).
    #[inline(always)]
    fn is_sound_once(&self, here: InMemory) -> bool {
        let known = |bytes: usize| (bytes > LONG_BYTES).then(|| self.is_long_sound(here));
        // SAFETY: as in `is_sound`.
        unsafe { entry::is_sound_or_known(here.at, here.available, known) }
    }

    /// V8: whether a long entry is sound; its sum is taken once under a pin.
    #[cold]
    fn is_long_sound(&self, here: InMemory) -> bool {
        let stamp = self.stamp();
        if self.summed().has(here.at, stamp) {
            return true;
        }
        let is_sound = self.is_sound(here);
        if is_sound {
            self.summed().add(here.at, stamp);
        }
        is_sound
    }

    #[cold]
    fn meet_unsound(&self, location: u64, here: InMemory, key: &[u8]) -> Found {
        match self.mended(location, here) {
            Some(copy) if self.has_key(copy, key) => Found::Key(copy),
            Some(_) => Found::Other,
            None => Found::Damaged,
        }
    }

    /// A copy of an entry with damage, of which the flipped bit is put back. `None`: there is more
    /// damage (V5).
    #[cold]
    fn mended(&self, location: u64, here: InMemory) -> Option<InMemory> {
        // SAFETY: as in `is_sound`.
        unsafe { self.holding().mended(self.core(), location, here) }
    }

    /// The verified entry at a location, for a walk.
    ///
    /// # Errors
    /// As [`meet_cold`](Self::meet_cold); [`Error::Damaged`].
    pub(crate) fn entry_in_walk(&self, location: u64) -> Result<Entry<'s>, Error> {
        loop {
            if let Some(here) = self.memory_of(location) {
                let sound = match self.is_sound(here) {
                    true => Some(here),
                    false => self.mended(location, here),
                };
                return sound.map(|here| self.entry_at(here)).ok_or(Error::Damaged);
            }
            self.meet_cold(location, false)?;
        }
    }

    /// True if the entry has this key, and ends within its memory.
    #[inline(always)]
    pub(crate) fn has_key(&self, here: InMemory, key: &[u8]) -> bool {
        // SAFETY: as in `is_sound`; the key is inside the memory (checked by `header_at`).
        unsafe {
            entry::header_at(here.at, here.available).is_some_and(|header| {
                header.key_bytes == key.len()
                    && std::slice::from_raw_parts(here.at.add(header.key_start), key.len()) == key
            })
        }
    }
}

impl Pin<'_> {
    /// V5, for a step that writes to several keys: the step checks all of its keys before its first
    /// write, so that no write is refused after others were done.
    ///
    /// # Errors
    /// [`Error::Damaged`]: a write to this key would be refused.
    pub fn check_sound(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Result<(), Error> {
        let Ok(index) = self.index(table) else {
            return Ok(()); // the write reports it
        };
        let partition = index.partition(hash);
        debug_assert!(
            self.locks().may_read(partition, index.tag(hash)),
            "a key is looked at under locks that do not include its own"
        );
        let view = partition.view();
        if view.len() == 0 || has_bug(Bug::DamageIsMetLate) {
            return Ok(());
        }
        let entries = self.entries();
        match entries.find_verified(view, index.tag(hash), key) {
            Some((_, _, Found::Damaged)) => Err(Error::Damaged),
            Some((_, _, Found::Key(here))) => {
                self.work().meet_bytes(entries.entry_at(here).padded_bytes);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
