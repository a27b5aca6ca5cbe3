//! The library's own accesses to objects: the zeros of a new one, and the copy into a longer one.
//!
//! **Invariants**
//! - T1: no code of the library faults on a page of the arena. A page is pinned while it is touched
//!   here; elsewhere touched pages are shown, and their unit is owned (buffer::B1). So an error of
//!   flash is returned by the function, and a handler of the program that jumps out of a fault
//!   never leaves a function of the library half done, or with a lock held.
//!
//! **Concurrency** as in `paging`; the caller holds no lock.
//!
//! Paper: none.

use super::Paging;
use crate::error::Error;
use crate::pager::PAGE_BYTES;

impl Paging {
    /// Fills an object that was just allocated with zeros.
    pub fn zero(&self, object: usize, bytes: usize) -> Result<(), Error> {
        let mut done = 0;
        while done < bytes {
            let at = object + done;
            let part = left_of_page(at).min(bytes - done);
            self.with_page(at, true, || {
                // SAFETY: the object has no other user, and its page is shown and writable.
                unsafe { std::ptr::write_bytes(at as *mut u8, 0, part) };
                Ok(())
            })?;
            done += part;
        }
        Ok(())
    }

    /// Copies from one object into another one that was just allocated.
    pub fn copy(&self, from: usize, into: usize, bytes: usize) -> Result<(), Error> {
        let mut done = 0;
        while done < bytes {
            let (from, into) = (from + done, into + done);
            let both = left_of_page(from).min(left_of_page(into));
            let part = both.min(bytes - done);
            self.with_page(from, false, || {
                self.with_page(into, true, || {
                    // SAFETY: different objects without other users; their pages are shown, and
                    // this one is writable.
                    unsafe {
                        std::ptr::copy_nonoverlapping(from as *const u8, into as *mut u8, part);
                    }
                    Ok(())
                })
            })?;
            done += part;
        }
        Ok(())
    }

    /// Runs `touch` while the page of an address is in RAM, and writable if `write` (T1).
    fn with_page(
        &self,
        address: usize,
        write: bool,
        touch: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let page = self.page_of(address);
        self.pins.add_own();
        let touched = match self.pin_page(page, write) {
            Ok(()) => {
                let touched = touch();
                self.unpin_page(page);
                touched
            }
            Err(error) => {
                self.pins.remove(1);
                Err(error)
            }
        };
        self.pins.remove_own();
        touched
    }
}

/// Bytes from an address to the end of its page.
fn left_of_page(address: usize) -> usize {
    PAGE_BYTES - address % PAGE_BYTES
}
