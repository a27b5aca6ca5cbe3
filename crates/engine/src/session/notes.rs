//! Notes of a session about its writes: those of typed values, for a caller that wakes clients
//! which wait for them; and all, for a listener.

use super::{Guard, Session};
use crate::core::writes::Written;
use crate::{KeyHash, TableId};

/// A typed value was written under a key, or one that was there has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypedWrite {
    pub table: TableId,
    pub hash: KeyHash,
    /// The value's first byte.
    pub first: u8,
    /// It has gone: it was removed, or replaced by a value that begins otherwise.
    pub is_gone: bool,
}

impl Session {
    /// Notes typed writes from now on, for a caller that empties
    /// [`typed_writes`](Self::typed_writes) after each operation.
    pub fn note_typed_writes(&mut self) {
        self.carried.notes_typed = true;
    }

    /// As [`Guard::set_origin`], for its guards from now on.
    #[inline]
    pub fn set_origin(&mut self, origin: u64) {
        self.carried.origin = origin;
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
            self.carried.typed_writes.push(TypedWrite {
                table,
                hash,
                first,
                is_gone: false,
            });
        }
    }

    /// A typed value with this first byte was there. `first_now`: that of the typed value that is
    /// there now.
    #[inline]
    pub(crate) fn note_gone(
        &mut self,
        table: TableId,
        hash: KeyHash,
        first: Option<u8>,
        first_now: Option<u8>,
    ) {
        if let Some(first) = first.filter(|first| Some(*first) != first_now)
            && self.carried.notes_typed
        {
            self.carried.typed_writes.push(TypedWrite {
                table,
                hash,
                first,
                is_gone: true,
            });
        }
    }

    /// The origin of the writes from now on, for the listener to writes; 0 = unknown.
    #[inline]
    pub fn set_origin(&mut self, origin: u64) {
        self.carried.origin = origin;
    }

    /// A key was written or removed, and that is visible, or is when the guard's transaction ends.
    #[inline(always)]
    pub(crate) fn note_key(&mut self, table: TableId, key: &[u8]) {
        if self.core.writes.wanted() {
            self.note_wanted(table, key);
        }
    }

    #[cold]
    fn note_wanted(&mut self, table: TableId, key: &[u8]) {
        self.carried.written.push(Written {
            origin: self.carried.origin,
            readers: Vec::new(),
            table,
            key: key.into(),
        });
    }

    /// The guard ends, and its keys are unlocked.
    #[cold]
    pub(crate) fn tell_written(&mut self) {
        let mut written = std::mem::take(&mut self.carried.written);
        if !self.carried.reads.is_empty() {
            std::mem::take(&mut self.carried.reads).add_to(&mut written);
        }
        self.core.writes.tell(&written);
    }
}
