//! Progress of a command that combines values (`values::computed`).

use duramen_engine::{Stamp, TableId};
use duramen_types::Members;
use std::time::Duration;

/// The progress of a command that combines many values in parts.
#[derive(Default)]
pub(crate) struct Progress {
    /// The table of the values (computed::C4).
    pub(crate) table: Option<TableId>,
    /// The stamps of the values, as they were at the first part.
    pub(crate) stamps: Vec<Stamp>,
    /// The number of values that are combined already, and their result, packed.
    pub(crate) done: usize,
    pub(crate) result: Vec<u8>,
    /// The result so far of a combination of sets.
    pub(crate) members: Members,
    /// The number of elements of the next value that are combined already, and for each member of
    /// the result whether it is one of them.
    pub(crate) at: usize,
    pub(crate) seen: Vec<bool>,
    /// The time that this part took to read the keys.
    pub(crate) reading: Duration,
    /// The runs that were in vain.
    pub(crate) runs: u32,
}

impl Progress {
    /// Whether a part has run.
    pub(crate) fn goes_on(&self) -> bool {
        !self.stamps.is_empty()
    }

    /// Memory of the result so far, and of the stamps of its keys.
    pub(crate) fn bytes(&self) -> usize {
        let stamps = self.stamps.capacity() * size_of::<Stamp>();
        self.result.capacity() + self.members.memory_bytes() + self.seen.capacity() + stamps
    }
}
