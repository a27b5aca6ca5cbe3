//! Pinned pages: they are not evicted until they are unpinned.

use super::Paging;
use crate::budget::add_up_to;
use crate::error::Error;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of pins, of all pages.
#[derive(Default)]
pub(crate) struct Pins {
    all: AtomicU64,
    /// The pins for accesses of the library itself (touch::T1); `all` includes them.
    own: AtomicU64,
}

impl Pins {
    /// Counts pins of the program, which has at most `most`; the library's own pins are beside that
    /// limit. `Err`: the present number of all.
    fn add(&self, count: u64, most: u64) -> Result<(), u64> {
        add_up_to(&self.all, count, most + self.own.load(Ordering::Acquire))
    }

    pub fn remove(&self, count: u64) {
        self.all.fetch_sub(count, Ordering::AcqRel);
    }

    /// Counts a pin of the library, which always may.
    pub fn add_own(&self) {
        self.own.fetch_add(1, Ordering::AcqRel);
        self.all.fetch_add(1, Ordering::AcqRel);
    }

    /// Uncounts a pin of the library, which [`remove`](Self::remove) has uncounted as one of all.
    pub fn remove_own(&self) {
        self.own.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Paging {
    /// See [`crate::pin`].
    pub fn pin(&self, address: usize, bytes: usize, write: bool) -> Result<(), Error> {
        let pages = self.pages_of(address, bytes)?;
        let count = pages.end - pages.start;
        let shown = self.buffer.pages_max;
        self.pins.add(count, shown as u64 / 2).map_err(|pinned| {
            Error::Invalid(format!(
                "{count} pages to be pinned, {pinned} are, of {shown} in the page buffer: at most half"
            ))
        })?;
        for page in pages.clone() {
            if let Err(error) = self.pin_page(page, write) {
                for pinned in pages.start..page {
                    self.unpin_page(pinned);
                }
                self.pins.remove(pages.end - page);
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) fn pin_page(&self, page: u64, write: bool) -> Result<(), Error> {
        let place = self.units.atm().used_place(page).ok_or(Error::BadPointer {
            address: self.address_of(page),
            why: "nothing is allocated there",
        })?;
        let bit = 1 << place.nth;
        loop {
            self.bring(page, &place, Some(write))?;
            let mut unit = self.buffer.own(place.unit);
            let is_there = unit.shown & bit != 0 && (!write || unit.dirty & bit != 0);
            if is_there {
                unit.pins += 1;
                unit.written_by_others |= u32::from(write) << place.nth; // buffer::B4
            }
            self.buffer.release(place.unit, unit);
            if is_there {
                return Ok(());
            }
        }
    }

    pub(super) fn unpin_page(&self, page: u64) -> bool {
        let place = self
            .units
            .atm()
            .chunk(page)
            .and_then(|chunk| chunk.place(page));
        let Some(place) = place else {
            return false;
        };
        let mut unit = self.buffer.own(place.unit);
        let was = unit.pins > 0;
        unit.pins -= u32::from(was);
        if unit.pins == 0 {
            unit.written_by_others = 0;
        }
        self.buffer.release(place.unit, unit);
        self.pins.remove(u64::from(was));
        was
    }

    /// See [`crate::unpin`].
    pub fn unpin(&self, address: usize, bytes: usize) -> Result<(), Error> {
        let mut all = true;
        for page in self.pages_of(address, bytes)? {
            all &= self.unpin_page(page);
        }
        if all {
            return Ok(());
        }
        Err(Error::BadPointer {
            address,
            why: "it is not pinned",
        })
    }

    fn pages_of(&self, address: usize, bytes: usize) -> Result<Range<u64>, Error> {
        let last = address.checked_add(bytes.max(1) - 1);
        match last.filter(|last| self.contains(address) && self.contains(*last)) {
            Some(last) => Ok(self.page_of(address)..self.page_of(last) + 1),
            None => Err(Error::BadPointer {
                address,
                why: "it does not lie in memory of this library",
            }),
        }
    }
}
