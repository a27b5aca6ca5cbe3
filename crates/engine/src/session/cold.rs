//! Entries that a guard meets on flash: whether it waits for the device, or its caller reads.

use super::Session;
use super::entries::Entries;
use super::pin::Pin;
use crate::core::Core;
use crate::core::flash::{Holding, locate};
use crate::core::sound::InMemory;
use crate::device::{Cold, Fetched};
use crate::index::Partition;
use crate::index::bucket::Slot;
use crate::{Error, KeyHash, TableId};
use duramen_base::waits::{self, Resource};
use std::sync::atomic::Ordering;

impl Entries<'_> {
    /// The bytes of an entry that the index points to under this pin.
    #[inline(always)]
    pub(crate) fn memory_of(&self, location: u64) -> Option<InMemory> {
        locate(self.core(), || self.stamp(), self.holding(), location)
    }

    /// Probable address of an entry's bytes: good for a prefetch only.
    #[inline(always)]
    pub(crate) fn probably_at(&self, location: u64) -> Option<*const u8> {
        let core = self.core();
        let space = &core.space;
        match core.tier() {
            None => Some(space.at(location)),
            Some(tier) => tier.probably_at(space, location),
        }
    }

    /// Handles an entry that is on the device alone. A session that parks its requests notes the
    /// entry as missing and returns an error; any other session waits for it. `waits`: in the
    /// middle of an atomic step both kinds of sessions wait, but not in a walk, which may meet
    /// every entry of the device and would keep all others waiting.
    ///
    /// # Errors
    /// [`Error::Cold`], [`Error::FlashFailed`].
    #[cold]
    pub(crate) fn meet_cold(&self, location: u64, waits: bool) -> Result<(), Error> {
        let (core, holding) = (self.core(), self.holding());
        let Some(tier) = core.tier() else {
            return Ok(());
        };
        let cold = tier.cold(&core.space, location, self.work().entry_bytes());
        if holding.parks.get() && !waits {
            holding.colds.borrow_mut().push(cold);
            return Err(Error::Cold(cold));
        }
        let _noted = waits::note(Resource::Flash, &[Resource::Pin, Resource::Key]);
        tier.fetch(core, holding, cold)
    }

    /// A copy of a cold entry served a request: promotes the entry if it was fetched for this
    /// request, and not for the first time.
    #[cold]
    pub(crate) fn served_copy(&self, slot: Slot, here: InMemory) {
        let core = self.core();
        let Some(tier) = core.tier() else {
            return;
        };
        let space = &core.space;
        let incarnation = space.segments[space.window_of(slot.location())].incarnation();
        let held = self.holding().get(slot.location(), incarnation);
        if held.map(|(at, _)| at) != Some(here.at)
            || !tier.promoted.wants_copy(slot.location(), incarnation)
        {
            return;
        }
        let bytes = self.entry_at(here).padded_bytes;
        // SAFETY: a whole, verified entry that the session holds.
        let copy = unsafe { std::slice::from_raw_parts(here.at, bytes) };
        if tier.promoted.put(space, slot.location(), incarnation, copy) {
            tier.figures.promotions.fetch_add(1, Ordering::Relaxed);
        } else {
            core.cleaners.wake(); // a cleaner thread finds a window, if copies need one
        }
    }
}

impl Pin<'_> {
    /// room::R5: reads the entries of the locked keys that are on flash, so that the step's writes
    /// meet none.
    ///
    /// # Errors
    /// [`Error::FlashFailed`].
    pub(crate) fn warm_locked(&self) -> Result<(), Error> {
        if self.core().tier().is_none() {
            return Ok(());
        }
        let mut places = self.locks().places().iter();
        places.try_for_each(|(partition, tag)| warm_tagged(self, partition, *tag))
    }

    /// As [`Guard::set_aside`](crate::Guard::set_aside) does for locked keys, for a guard that is
    /// alone and locks none (room::R5). Called when its room is set aside, before its first write.
    /// Does nothing for any other guard.
    ///
    /// # Errors
    /// [`Error::FlashFailed`].
    pub fn warm_alone(
        &self,
        keys: impl IntoIterator<Item = (TableId, KeyHash)>,
    ) -> Result<(), Error> {
        if !self.is_alone() || self.core().tier().is_none() {
            return Ok(());
        }
        for (table, hash) in keys {
            // A missing table is reported by the write.
            if let Ok(index) = self.index(table) {
                warm_tagged(self, index.partition(hash), index.tag(hash))?;
            }
        }
        Ok(())
    }

    /// The read from the flash device that is needed before an operation on this key; `None`: none
    /// is needed.
    ///
    /// # Errors
    /// [`Error::NoSuchTable`].
    pub fn cold(&self, table: TableId, hash: KeyHash, key: &[u8]) -> Result<Option<Cold>, Error> {
        let (core, index) = (self.core(), self.index(table)?);
        let Some(tier) = core.tier() else {
            return Ok(None);
        };
        let view = index.partition(hash).view();
        if view.len() == 0 {
            return Ok(None);
        }
        let mut missing = None;
        let entries = self.entries();
        view.find(index.tag(hash), self.me(), |slot| {
            let here = entries.memory_of(slot.location());
            missing = here.is_none().then_some(slot.location());
            here.is_none_or(|here| entries.has_key(here, key))
        });
        Ok(missing.map(|location| tier.cold(&core.space, location, self.work().entry_bytes())))
    }

    /// Missing entries of this session's operations since the last call: each operation that
    /// returned [`Error::Cold`] has added its own.
    pub fn take_colds(&self) -> Vec<Cold> {
        self.entries().holding().colds.take()
    }

    /// Hands in the bytes that were read for [`Cold::span`]. They are held until
    /// [`forget_fetched`](Self::forget_fetched).
    ///
    /// # Errors
    /// [`Error::FlashFailed`]: these are not the bytes that were written.
    pub fn fetched(&self, cold: &Cold, bytes: &[u8]) -> Result<Fetched, Error> {
        accept(self.core(), self.entries().holding(), cold, bytes)
    }
}

/// Reads all entries with this tag that are on flash: a search for one key meets those of
/// others too.
fn warm_tagged(pin: &Pin<'_>, partition: &Partition, tag: u64) -> Result<(), Error> {
    let entries = pin.entries();
    loop {
        let view = partition.view();
        if view.len() == 0 {
            return Ok(());
        }
        let is_cold = |slot: Slot| entries.memory_of(slot.location()).is_none();
        let Some((_, slot)) = view.find(tag, entries.me(), is_cold) else {
            return Ok(());
        };
        entries.meet_cold(slot.location(), pin.is_in_step())?;
    }
}

impl Session {
    /// Sets whether the user of this session reads from the flash device itself. If so, an
    /// operation that would otherwise wait for the device does nothing and returns [`Error::Cold`].
    pub fn set_parks(&mut self, parks: bool) {
        self.holding().parks.set(parks);
    }

    /// As [`Pin::fetched`], between guards.
    ///
    /// # Errors
    /// Those of [`Pin::fetched`].
    pub fn fetched(&self, cold: &Cold, bytes: &[u8]) -> Result<Fetched, Error> {
        accept(self.store().core(), self.holding(), cold, bytes)
    }

    /// As [`Pin::forget_fetched`], between guards.
    pub fn forget_fetched(&mut self) {
        self.holding_mut().forget();
    }
}

fn accept(core: &Core, holding: &Holding, cold: &Cold, bytes: &[u8]) -> Result<Fetched, Error> {
    holding.handed_in.set(true);
    match core.tier() {
        Some(tier) => tier.accept(core, holding, cold, bytes),
        None => Ok(Fetched::Gone),
    }
}
