//! A session's copies of entries that are on flash, or had a flipped bit in memory.

use crate::device::Cold;
use crate::space::Space;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

type Copies = HashMap<(u64, u32), Vec<u64>>;

/// A session's copies of cold entries, for as long as it needs them, and its missing entries.
#[derive(Default)]
pub(crate) struct Holding {
    /// By location and incarnation of its window (engine::flash::F4); words, because entries are
    /// aligned.
    entries: RefCell<Copies>,
    pub(crate) colds: RefCell<Vec<Cold>>,
    /// True: the session's owner fetches. False: the session itself waits for the device.
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

    /// The end of a guard, or of a part of it: entries that the guard waited for are forgotten.
    /// If some were handed in, all stay until their owner forgets them.
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
}

/// The bytes of an entry.
#[derive(Clone, Copy)]
pub(crate) struct InMemory {
    pub(crate) at: *const u8,
    /// Readable bytes from there on: up to the end of the window, or of the copy.
    pub(crate) available: usize,
    /// True: a copy, not the entry in its own window.
    pub(crate) is_copy: bool,
}

impl InMemory {
    /// The bytes at a location, in its own window.
    #[inline(always)]
    pub(crate) fn in_window(space: &Space, location: u64) -> InMemory {
        InMemory {
            at: space.at(location),
            available: space.segment_bytes() - space.offset_in_window(location) as usize,
            is_copy: false,
        }
    }
}
