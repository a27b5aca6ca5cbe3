//! The counts of a session about the work of its guards.

use std::cell::Cell;

/// Fractions of a byte in which the average length of an entry is kept.
const LENGTH_PARTS: u32 = 16;
/// Lines of 64 bytes, beyond which the hardware prefetches better.
const PREFETCHED_LINES: usize = 20;

/// The work of a session's guards so far.
pub struct Work {
    /// Bytes that the guards have appended, now and at the writer's last check of the memory
    /// pressure (`pacer`).
    appended: Cell<u64>,
    taxed: Cell<u64>,
    /// Bytes of the entries that they have found.
    met: Cell<u64>,
    /// Whether a writer has waited for memory for longer than a moment (`write::NOTED_WAIT`).
    waited: Cell<bool>,
    /// The average bytes of an entry, in [`LENGTH_PARTS`]: the length that is prefetched.
    entry_bytes: Cell<u32>,
}

impl Default for Work {
    fn default() -> Work {
        Work {
            appended: Cell::new(0),
            taxed: Cell::new(0),
            met: Cell::new(0),
            waited: Cell::new(false),
            entry_bytes: Cell::new(LENGTH_PARTS * 128),
        }
    }
}

impl Work {
    /// Bytes that were appended to the log.
    #[inline(always)]
    pub fn appended_bytes(&self) -> u64 {
        self.appended.get()
    }

    /// Notes that this many bytes were appended.
    #[inline(always)]
    pub(crate) fn note_appended(&self, bytes: usize) {
        self.appended.set(self.appended.get() + bytes as u64);
    }

    /// The bytes that were appended since the last call that returned some, if they are at least
    /// `least`.
    #[inline]
    pub(super) fn take_untaxed(&self, least: u64) -> Option<u64> {
        let appended = self.appended.get();
        let untaxed = appended - self.taxed.get();
        (untaxed >= least).then(|| {
            self.taxed.set(appended);
            untaxed
        })
    }

    /// Bytes of all entries that were found or appended: a measure of the work.
    #[inline(always)]
    pub fn met_bytes(&self) -> u64 {
        self.met.get() + self.appended.get()
    }

    /// Notes that an entry of this many bytes was found.
    #[inline(always)]
    pub(crate) fn meet_bytes(&self, bytes: usize) {
        self.met.set(self.met.get() + bytes as u64);
    }

    /// The average bytes of an entry that was read.
    #[inline(always)]
    pub(super) fn entry_bytes(&self) -> u32 {
        self.entry_bytes.get() / LENGTH_PARTS
    }

    /// Notes that an entry of this many bytes was read.
    #[inline(always)]
    pub(super) fn note_length(&self, bytes: usize) {
        let bytes = bytes.min(PREFETCHED_LINES * 64) as u32;
        let average = self.entry_bytes.get();
        // An exponential average over 16 reads.
        self.entry_bytes
            .set(average - average / LENGTH_PARTS + bytes);
    }

    /// Whether a write has waited for memory since the last call: for milliseconds, in which its
    /// thread served no other request.
    #[inline]
    pub fn take_waited(&self) -> bool {
        self.waited.take()
    }

    /// Notes that a write has waited for memory.
    pub(crate) fn note_waited(&self) {
        self.waited.set(true);
    }
}
