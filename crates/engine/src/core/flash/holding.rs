//! A session's copies of entries that are on flash, or had a flipped bit in memory.

use crate::core::Core;
use crate::core::sound::{self, InMemory};
use crate::device::Cold;
use duramen_format::entry;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

type Copies = HashMap<(u64, u32), Vec<u64>>;

/// A session's copies of cold entries, for as long as it needs them, and its missing entries.
#[derive(Default)]
pub(crate) struct Holding {
    /// The copies, by the location and the incarnation of its window (core::flash::F4). They are
    /// words, because entries are aligned.
    entries: RefCell<Copies>,
    pub(crate) colds: RefCell<Vec<Cold>>,
    /// Whether the session's owner fetches cold entries. If not, the session itself waits for the
    /// device.
    pub(crate) parks: Cell<bool>,
    any: Cell<bool>,
    /// Some copies were handed in.
    pub(crate) handed_in: Cell<bool>,
    /// Bytes of all copies.
    bytes: Cell<usize>,
}

impl Holding {
    pub(crate) fn forget(&mut self) {
        if self.any.replace(false) {
            self.entries.get_mut().clear();
            self.bytes.set(0);
        }
        self.handed_in.set(false);
    }

    /// Called at the end of a guard, or of a part of it: forgets the entries that the guard waited
    /// for. If some were handed in, all stay until their owner forgets them.
    #[inline(always)]
    pub(crate) fn part_ends(&mut self) {
        if self.any.get() && !self.handed_in.get() {
            self.forget();
        }
    }

    /// A copy, and its length.
    pub(crate) fn get(&self, location: u64, incarnation: u32) -> Option<(*const u8, usize)> {
        if !self.any.get() {
            return None;
        }
        let entries = self.entries.borrow();
        entries
            .get(&(location, incarnation))
            .map(|words| (words.as_ptr().cast(), size_of_val(&words[..])))
    }

    /// Bytes of the copies.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.get()
    }

    pub(crate) fn put(&self, cold: &Cold, words: Vec<u64>) {
        self.hold(cold.location, cold.incarnation, words);
    }

    /// Adds a copy of the entry at a location.
    pub(crate) fn hold(&self, location: u64, incarnation: u32, words: Vec<u64>) {
        let mut entries = self.entries.borrow_mut();
        self.bytes.set(self.bytes.get() + size_of_val(&*words));
        // Never replaced: a reader may be using the present copy.
        entries.entry((location, incarnation)).or_insert(words);
        self.any.set(true);
    }

    /// A verified copy of an entry with damage, which is held. `None`: one bit does not explain the
    /// damage.
    ///
    /// # Safety
    /// As [`sound::mended_copy`].
    #[cold]
    pub(crate) unsafe fn mended(
        &self,
        core: &Core,
        location: u64,
        here: InMemory,
    ) -> Option<InMemory> {
        let window = core.space.window_of(location);
        let incarnation = core.space.segments[window].incarnation();
        let held = || {
            let (at, available) = self.get(location, incarnation)?;
            let is_copy = false; // of an entry on flash
            // SAFETY: words that are held.
            let is_sound = unsafe { entry::is_sound(at, available) };
            is_sound.then_some(InMemory {
                at,
                available,
                is_copy,
            })
        };
        held().or_else(|| {
            // SAFETY: as the caller promises.
            let words = unsafe { sound::mended_copy(core, location, here) }?;
            self.hold(location, incarnation, words);
            held()
        })
    }
}

/// The bytes of some words.
pub(crate) fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: words have no padding, and any bytes are bytes.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}
