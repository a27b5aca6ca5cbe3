//! Eviction of pages, many at once: dirty pages go to the cache, and from there to flash. A
//! faulting thread that finds the page limit exceeded evicts the oldest pages.
//!
//! **Invariants**
//! - E1: the thread that owns the units of the pages (buffer::B1) evicts them, and their contents
//!   are in the cache before the units are released.
//! - E2: a page that cannot be saved stays shown, and dirty.
//!
//! **Concurrency** as in `paging`: any thread, for itself.
//!
//! Paper: [Badam11 §3.2]. A separate thread that frees pages ahead was tried. With two processors,
//! waking that thread costs more than the waiting that it saves (0.9 of the rate, a tenth longer
//! p99).

use super::Paging;
use super::worker::Worker;
use crate::batch::{AT_ONCE, Batch, Taken};
use crate::buffer::Try;
use crate::chunk::Place;
use crate::error::Error;
use crate::pager::PAGE_BYTES;
use std::io;
use std::sync::atomic::Ordering;

impl Paging {
    /// Evicts the oldest pages; returns their number.
    pub(super) fn evict(&self, worker: &mut Worker) -> Result<usize, Error> {
        self.buffer.regions().wait_for_room();
        let mut batch = std::mem::take(&mut worker.batch);
        self.choose(&mut batch);
        let mut done = self.take_away(&mut batch, worker);
        for Taken { name, unit, pages } in batch.units.drain(..) {
            let mut unit = unit;
            if done.is_ok() {
                unit.shown &= !pages;
                unit.dirty &= !pages;
            }
            self.buffer.release(name, unit);
        }
        let count = if done.is_ok() { batch.pages.len() } else { 0 };
        for page in batch.pages.drain(..) {
            if done.is_ok() {
                self.buffer.regions().leave(page);
            } else if let Some(place) = self.units.atm().place(page) {
                self.buffer.queue(page, &place);
            }
        }
        self.buffer.leave(count);
        let counter = &self.counters.hidden;
        counter.fetch_add(count as u64, Ordering::Relaxed);
        if let Some(error) = batch.failed.take()
            && count == 0
        {
            done = Err(error);
        }
        worker.batch = batch;
        done.map(|()| count)
    }

    /// Evicts all pages that are not pinned; returns their number.
    pub fn evict_all(&self) -> Result<usize, Error> {
        let mut worker = self.workers.take();
        let mut evicted = 0;
        let done = loop {
            match self.evict(&mut worker) {
                Ok(0) => break Ok(evicted),
                Ok(count) => evicted += count,
                Err(error) => break Err(error),
            }
        };
        self.workers.give_back(worker);
        done
    }

    /// Takes ownership of the units of the oldest pages.
    fn choose(&self, batch: &mut Batch) {
        let Batch {
            pages,
            units,
            dirty,
            ..
        } = batch;
        dirty.clear();
        self.buffer.oldest(AT_ONCE, pages);
        let look = self.units.atm().look();
        pages.retain(|page| {
            let Some(place) = look.place(*page) else {
                return false; // the page's chunk is gone
            };
            let bit = 1 << place.nth;
            let known = units.iter().position(|taken| taken.name == place.unit);
            let nth = known.or_else(|| match self.buffer.try_own(place.unit) {
                Try::Gone => None,
                Try::Later => {
                    self.buffer.queue(*page, &place);
                    None
                }
                Try::Own(unit) => {
                    units.push(Taken {
                        name: place.unit,
                        unit,
                        pages: 0,
                    });
                    Some(units.len() - 1)
                }
            });
            let Some(its) = nth.and_then(|nth| units.get_mut(nth)) else {
                return false;
            };
            if its.unit.shown & bit == 0 || its.pages & bit != 0 {
                return false; // the page was in the queue twice
            }
            its.pages |= bit;
            if its.unit.dirty & bit != 0 {
                dirty.push((*page, place));
            }
            true
        });
    }

    /// Evicts a batch's pages, and moves dirty contents into the cache. A page that cannot be saved
    /// stays, and leaves the batch.
    fn take_away(&self, batch: &mut Batch, worker: &mut Worker) -> Result<(), Error> {
        let dirty = std::mem::take(&mut batch.dirty);
        // The lift is taken out of the worker: its bytes are borrowed while the rest of the worker
        // saves them.
        let mut lift = worker.lift.take();
        let lifted = lift.as_mut().filter(|_| !dirty.is_empty());
        let lifted = lifted.and_then(|lift| {
            let spans = dirty.iter().map(|(page, place)| (*page, place.bytes));
            self.pager.refer(lift, spans).is_ok().then_some(lift)
        });
        let done = match lifted {
            Some(lift) => {
                let hidden = self.hide(&batch.pages, &mut batch.regions);
                hidden.expect("memory of ours can be given back");
                for (page, place) in &dirty {
                    let saved = self.save_lifted(*page, place, lift.next(place.bytes), worker);
                    self.keep_unsaved(*page, place, saved, batch);
                }
                Ok(())
            }
            None => {
                for (page, place) in &dirty {
                    let saved = self.save(*page, place, worker);
                    self.keep_unsaved(*page, place, saved, batch);
                }
                let hidden = self.hide(&batch.pages, &mut batch.regions);
                hidden.map_err(Error::kernel("taking pages away"))
            }
        };
        worker.lift = lift;
        batch.dirty = dirty;
        done
    }

    /// Keeps a page that could not be saved.
    fn keep_unsaved(&self, page: u64, place: &Place, saved: Result<(), Error>, batch: &mut Batch) {
        if let Err(error) = saved {
            batch.stays(page, place);
            self.buffer.queue(page, place);
            batch.failed = Some(error);
        }
    }

    /// Evicts pages, and frees excess page tables by the same system call.
    pub(super) fn hide(&self, pages: &[u64], with: &mut Vec<u64>) -> io::Result<()> {
        let regions = self.buffer.regions();
        regions.empty(regions.spare(), with);
        let hidden = self.pager.hide(pages, with);
        match hidden {
            Ok(()) => regions.gone(with),
            Err(_) => regions.kept(with),
        }
        with.clear();
        hidden
    }

    /// As [`save`](Self::save), for a page that is evicted already and held `content`; the page
    /// comes back if saving fails.
    fn save_lifted(
        &self,
        page: u64,
        place: &Place,
        content: &[u8],
        worker: &mut Worker,
    ) -> Result<(), Error> {
        self.counters.saved.fetch_add(1, Ordering::Relaxed);
        let saved = self.units.save(place, content, worker);
        if saved.is_err() {
            // No page on the stack: a thread's stack for signals may have no more than two.
            worker.page[..content.len()].copy_from_slice(content);
            worker.page[content.len()..].fill(0);
            worker.filled = PAGE_BYTES;
            let back = self.pager.show(page, &worker.page, true);
            back.expect("a page comes back where it was: what was written would be lost");
        }
        saved
    }

    /// Moves a dirty page's content into the cache. The caller owns the unit; on failure the page
    /// is unchanged.
    pub(super) fn save(&self, page: u64, place: &Place, worker: &mut Worker) -> Result<(), Error> {
        self.pager
            .forbid_writes(page)
            .map_err(Error::kernel("forbidding writes to a page"))?;
        if self.pager.is_gone(page) {
            return Ok(()); // heap::A4
        }
        let content = self.pager.content(page, place.bytes);
        let saved = self.units.save(place, content, worker);
        if saved.is_err() {
            self.pager
                .allow_writes(page)
                .map_err(Error::kernel("allowing writes to a page"))?;
        }
        self.counters.saved.fetch_add(1, Ordering::Relaxed);
        saved
    }

    /// Copies the current content of a page into the cache. The caller owns the unit; the page
    /// stays writable, and may be written to meanwhile.
    pub(super) fn save_as_it_is(
        &self,
        page: u64,
        place: &Place,
        worker: &mut Worker,
    ) -> Result<(), Error> {
        if self.pager.is_gone(page) {
            return Ok(()); // heap::A4
        }
        let mut copy = std::mem::take(&mut worker.copy);
        copy.resize(place.bytes, 0);
        self.pager.copy(page, &mut copy);
        let saved = self.units.save(place, &copy, worker);
        worker.copy = copy;
        self.counters.saved.fetch_add(1, Ordering::Relaxed);
        saved
    }
}
