//! Notes of a session about its writes of typed values, for a caller that wakes clients which wait
//! for them.

use super::{Guard, Session};
use crate::{KeyHash, TableId};

/// A typed value was written under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypedWrite {
    pub table: TableId,
    pub hash: KeyHash,
    /// The value's first byte.
    pub first: u8,
}

impl Session {
    /// Notes typed writes from now on, for a caller that empties
    /// [`typed_writes`](Self::typed_writes) after each operation.
    pub fn note_typed_writes(&mut self) {
        self.carried.notes_typed = true;
    }

    /// The typed writes of its guards that were noted and not removed from this list.
    #[inline]
    pub fn typed_writes(&mut self) -> &mut Vec<TypedWrite> {
        &mut self.carried.typed_writes
    }
}

impl Guard<'_> {
    /// As [`Session::typed_writes`].
    #[inline]
    pub fn typed_writes(&mut self) -> &mut Vec<TypedWrite> {
        &mut self.carried.typed_writes
    }

    /// The typed value in the scratch buffer was written.
    pub(crate) fn note_typed(&mut self, table: TableId, hash: KeyHash) {
        if self.carried.notes_typed {
            let first = self.scratch.first().copied().unwrap_or_default();
            let write = TypedWrite { table, hash, first };
            self.carried.typed_writes.push(write);
        }
    }
}
