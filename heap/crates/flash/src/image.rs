//! Images: blocks that are not on flash yet, one that is filled and others that wait to be written.
//!
//! **Invariants**
//! - I1: a block in state `Buffered` has its image in the list; the image leaves the list only
//!   after its bytes are on flash and the state shows that. A thread that saw `Buffered` and finds
//!   no image reads the state again.
//!
//! **Concurrency** the filled image is written under the store's lock on it, and read by any thread
//! under its own.

use crate::layout::{BLOCK_BYTES, BLOCK_HEADER_BYTES, BlockHeader, Owner, footprint, put_object};
use duramen_disk::Aligned;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Content of an image.
pub(crate) struct Content {
    bytes: Aligned,
    /// Offset of the next object.
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
    /// Image of an empty block; `bytes` is as long as a block.
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

    /// Whether an object of this many bytes fits.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.read().end + footprint(bytes) <= BLOCK_BYTES
    }

    /// Appends an object that fits; returns its offset in the block.
    pub fn append(&self, owner: Owner, payload: &[u8]) -> usize {
        let mut content = self.write();
        let at = content.end;
        let sequence = self.sequence;
        content.end = put_object(content.bytes.bytes_mut(), at, sequence, owner, payload);
        content.count += 1;
        at
    }

    /// Closes the image: writes the header, and zeros behind the last object. Returns the number of
    /// used bytes.
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

    /// The memory, for another image; `None` while another thread reads this one.
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

/// Images that are not on flash yet, including the filled one.
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
