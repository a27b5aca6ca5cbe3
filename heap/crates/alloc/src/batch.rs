//! Pages that are evicted together.

use crate::buffer::Unit;
use crate::chunk::Place;
use crate::error::Error;
use crate::pager::lift;
use crate::regions;

/// Pages that one system call evicts.
pub(crate) const AT_ONCE: usize = lift::PAGES;

/// Pages that are about to be evicted.
#[derive(Default)]
pub(crate) struct Batch {
    pub pages: Vec<u64>,
    /// The units of the pages.
    pub units: Vec<Taken>,
    pub dirty: Vec<(u64, Place)>,
    /// Regions without pages, whose page tables are freed by the same call.
    pub regions: Vec<u64>,
    /// The reason why some pages stay.
    pub failed: Option<Error>,
}

/// A unit, with its pages that are about to be evicted.
pub(crate) struct Taken {
    pub name: u64,
    pub unit: Unit,
    pub pages: u32,
}

impl Batch {
    pub fn new() -> Batch {
        Batch {
            pages: Vec::with_capacity(AT_ONCE),
            units: Vec::with_capacity(AT_ONCE),
            dirty: Vec::with_capacity(AT_ONCE),
            regions: Vec::with_capacity(regions::AT_ONCE),
            failed: None,
        }
    }

    /// Keeps a page after all.
    pub fn stays(&mut self, page: u64, place: &Place) {
        self.pages.retain(|other| *other != page);
        for taken in self
            .units
            .iter_mut()
            .filter(|taken| taken.name == place.unit)
        {
            taken.pages &= !(1 << place.nth);
        }
    }
}
