//! Parts of the library alone, for measurements: no part of the interface.
//!
//! Paper: [Badam11 §3.7, Table 4]: each cost of the machinery is measured by itself.

use crate::atm::Atm;
pub use crate::cache::{Cache, Counts};
use crate::chunk::{Chunk, GRANULE_PAGES, Kind, Place};
use crate::error::Error;
use crate::signal;
use std::sync::Arc;

/// A directory of addresses as full as that of a large heap.
pub struct Directory {
    atm: Atm,
    pages: u64,
}

impl Directory {
    /// A directory of `chunks` pools, each with as many objects of 128 bytes as one entry stands
    /// for; all objects are handed out.
    ///
    /// # Errors
    /// The system has no memory for it.
    pub fn new(chunks: u32) -> std::io::Result<Directory> {
        let pages = u64::from(chunks) * GRANULE_PAGES;
        let atm = Atm::new(pages)?;
        for table in 0..chunks {
            let first = u64::from(table) * GRANULE_PAGES;
            let chunk = Chunk::new(table, first, GRANULE_PAGES as u32, 128, Kind::Pool);
            while chunk.take().is_some() {}
            atm.add(Arc::new(chunk));
        }
        Ok(Directory { atm, pages })
    }

    /// Number of pages with an object.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The look-up of a fault handler: whether the page has an object.
    pub fn finds(&self, page: u64) -> bool {
        self.atm.used_place(page).is_some()
    }
}

/// A page of the process's heap, looked up.
#[derive(Clone, Copy)]
pub struct Page {
    number: u64,
    place: Place,
}

/// The page of an address; `None`: no object is there.
pub fn page_at(address: *const u8) -> Option<Page> {
    let paging = signal::heap()?.paging();
    if !paging.contains(address as usize) {
        return None;
    }
    let number = paging.page_of(address as usize);
    let place = paging.units().atm().used_place(number)?;
    Some(Page { number, place })
}

/// Brings a page, as a fault handler does after its look-up.
///
/// # Errors
/// Those of a fault, from flash or from the kernel; [`Error::NotInitialized`].
pub fn bring(page: &Page, write: bool) -> Result<(), Error> {
    let heap = signal::heap().ok_or(Error::NotInitialized)?;
    heap.paging().bring(page.number, &page.place, Some(write))
}

/// Evicts all pages that are not pinned, as a fault handler does when too many are shown; returns
/// their number.
///
/// # Errors
/// Those of flash and of the kernel; [`Error::NotInitialized`].
pub fn evict_all() -> Result<usize, Error> {
    let heap = signal::heap().ok_or(Error::NotInitialized)?;
    heap.paging().evict_all()
}
