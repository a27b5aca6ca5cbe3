//! Memory for keys.
//!
//! **Invariants**
//! - G1: a guarded value has pages of its own. They are in no core dump. They are not swapped, if
//!   the process may lock memory (`ulimit -l`). They are wiped before they are freed.
//! - G2: the mapping belongs to one `Guarded`, is as long as the value at least, and never moves.

use crate::error::Error;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ops::Deref;
use std::ptr::NonNull;
use zeroize::Zeroize;

/// A value in pages of its own.
pub(crate) struct Guarded<T> {
    value: NonNull<T>,
    bytes: usize,
}

// SAFETY: it owns its value as a box does.
unsafe impl<T: Send> Send for Guarded<T> {}
// SAFETY: shared, it gives shared references only.
unsafe impl<T: Sync> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    /// Moves the value of `make` into guarded memory. Copies that the compiler leaves on the stack
    /// are not wiped.
    ///
    /// # Errors
    /// [`Error::System`]: no memory.
    pub(crate) fn new(make: impl FnOnce() -> T) -> Result<Guarded<T>, Error> {
        let page = rustix::param::page_size();
        assert!(align_of::<T>() <= page, "a page is aligned enough");
        let bytes = size_of::<T>().max(1).next_multiple_of(page);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) };
        let mapped = mapped.map_err(|error| Error::System {
            source: error.into(),
        })?;
        // SAFETY: the mapping that was just made. Without the right to lock memory, or on a kernel
        // without this advice, the key is only less protected.
        unsafe {
            let _ = madvise(mapped, bytes, Advice::LinuxDontDump);
            let _ = mlock(mapped, bytes);
        }
        let value = NonNull::new(mapped.cast::<T>()).expect("the kernel maps no null");
        // SAFETY: G2: it is long and aligned enough, and nothing else refers to it.
        unsafe { value.write(make()) };
        Ok(Guarded { value, bytes })
    }
}

impl<T> Deref for Guarded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: G2, and `new` has written it.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        let start = self.value.as_ptr().cast::<u8>();
        // SAFETY: G2: the value is dropped once, its bytes are overwritten as bytes, and then
        // nothing refers to the mapping any more.
        unsafe {
            self.value.drop_in_place();
            std::slice::from_raw_parts_mut(start, self.bytes).zeroize(); // G1
            let _ = munmap(start.cast::<c_void>(), self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `VmFlags` of the mapping that holds an address.
    fn flags_of(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().unwrap_or_default();
            let ends = range.split_once('-').and_then(|(from, to)| {
                let number = |text| usize::from_str_radix(text, 16).ok();
                Some((number(from)?, number(to)?))
            });
            if let Some((from, to)) = ends {
                is_inside = (from..to).contains(&address);
            } else if let (true, Some(flags)) = (is_inside, line.strip_prefix("VmFlags:")) {
                return flags.to_owned();
            }
        }
        panic!("no mapping holds {address:x}");
    }

    #[test]
    fn a_key_is_in_no_core_dump() {
        let guarded = Guarded::new(|| [7_u8; 32]).unwrap();
        assert_eq!(*guarded, [7; 32]);
        let flags = flags_of(guarded.value.as_ptr() as usize);
        assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}"); // G1
    }
}
