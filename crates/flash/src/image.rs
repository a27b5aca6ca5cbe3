//! Blocks that are not on flash yet: one that is filled, and those that wait to be written.
//!
//! **Invariants**
//! - I1: a block whose state is `Buffered` has its image in the list; it leaves the list only after
//!   its bytes are on flash and its state says so. Who saw `Buffered` and finds no image looks at
//!   the state again.
//!
//! **Concurrency** the image that is filled is written under the store's lock on it, and read by
//! anybody under its own.

use crate::layout::{BLOCK_BYTES, BLOCK_HEADER_BYTES, BlockHeader, Owner, footprint, put_object};
use crate::memory::Aligned;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What is in an image.
pub(crate) struct Content {
    bytes: Aligned,
    /// Where the next object begins.
    pub end: usize,
    pub count: u32,
}

/// A block in memory.
pub(crate) struct Image {
    pub block: u32,
    pub sequence: u64,
    content: RwLock<Content>,
}

impl Image {
    /// Of an empty block; `bytes` is of a block's length.
    pub fn new(block: u32, sequence: u64, bytes: Aligned) -> Image {
        Image {
            block,
            sequence,
            content: RwLock::new(Content {
                bytes,
                end: BLOCK_HEADER_BYTES,
                count: 0,
            }),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an object of so many bytes fits.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.read().end + footprint(bytes) <= BLOCK_BYTES
    }

    /// Appends; returns where in the block it begins. It fits.
    pub fn append(&self, owner: Owner, payload: &[u8]) -> usize {
        let mut content = self.write();
        let at = content.end;
        let sequence = self.sequence;
        content.end = put_object(content.bytes.bytes_mut(), at, sequence, owner, payload);
        content.count += 1;
        at
    }

    /// Nothing more is appended: writes the header, and zeros behind the last object. Returns how
    /// many bytes are used.
    pub fn seal(&self, store: u64) -> usize {
        let mut content = self.write();
        let (end, count) = (content.end, content.count);
        let bytes = content.bytes.bytes_mut();
        bytes[end..].fill(0);
        let header = BlockHeader {
            sequence: self.sequence,
            count,
            bytes: end as u32,
            store,
        };
        header.put(bytes);
        end
    }

    /// The memory, for another image; `None` while somebody else looks at this one.
    pub fn into_bytes(image: Arc<Image>) -> Option<Aligned> {
        let image = Arc::into_inner(image)?;
        let content = image.content.into_inner();
        Some(content.unwrap_or_else(PoisonError::into_inner).bytes)
    }
}

impl Content {
    /// The whole block.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.bytes()
    }
}

/// Those that are not on flash yet, the one that is filled included.
#[derive(Default)]
pub(crate) struct Images(RwLock<Vec<Arc<Image>>>);

impl Images {
    pub fn of(&self, block: u32) -> Option<Arc<Image>> {
        let images = self.0.read().unwrap_or_else(PoisonError::into_inner);
        images.iter().find(|image| image.block == block).cloned()
    }

    pub fn add(&self, image: Arc<Image>) {
        let mut images = self.0.write().unwrap_or_else(PoisonError::into_inner);
        images.push(image);
    }

    pub fn remove(&self, block: u32) {
        let mut images = self.0.write().unwrap_or_else(PoisonError::into_inner);
        images.retain(|image| image.block != block);
    }
}
