//! Memory for reads of objects.

use crate::layout::{SECTOR_BYTES, room_max};
use duramen_disk::Aligned;

/// Memory for a thread's reads: the thread keeps it, so that a read allocates nothing.
pub struct Scratch(pub(crate) Aligned);

impl Scratch {
    /// Memory for reads of objects of at most this many bytes.
    pub fn new(object_bytes_max: usize) -> Scratch {
        Scratch(Aligned::zeroed(room_max(object_bytes_max)))
    }
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Scratch({} sectors)",
            self.0.bytes().len() / SECTOR_BYTES
        )
    }
}
