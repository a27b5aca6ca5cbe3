//! A key of a request: its table, its hash and its name.

use duramen_engine::{Guard, KeyHash, TableId};
use std::hash::{Hash, Hasher};

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key<'a> {
    pub table: TableId,
    pub hash: KeyHash,
    pub bytes: &'a [u8],
}

impl<'a> Key<'a> {
    /// The key of this name in a table.
    #[inline]
    pub fn of(guard: &Guard<'_>, table: TableId, bytes: &'a [u8]) -> Key<'a> {
        let hash = guard.hash(bytes);
        Key { table, hash, bytes }
    }

    /// The part of it that is locked.
    #[inline]
    pub(crate) fn place(&self) -> (TableId, KeyHash) {
        (self.table, self.hash)
    }
}

impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash.hash(state);
    }
}
