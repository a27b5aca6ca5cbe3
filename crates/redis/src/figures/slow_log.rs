//! The entries of the slow log.

use std::collections::VecDeque;

/// Approximate memory of an entry, in bytes.
pub(crate) const ENTRY_BYTES: usize = 512;

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: i64,
    pub(crate) unix_s: u64,
    pub(crate) took_us: u64,
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) peer: String,
    pub(crate) name: String,
}

/// The newest entries, newest first.
#[derive(Debug, Default)]
pub(crate) struct SlowLog {
    pub(crate) next_id: i64,
    pub(crate) entries: VecDeque<Entry>,
}
