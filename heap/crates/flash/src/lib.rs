//! A log-structured object store on flash.
//!
//! Objects are packed into blocks of a log over one file or partition, never overwritten in place.
//! An owner, which is a table and an index in it, names an object. Its location, a sector of 512
//! bytes, is in an object table in memory. Moving an object means writing it elsewhere and changing
//! four bytes. Each object on flash carries its owner, so garbage is recognised by comparing
//! locations [Badam11 §3.3, §3.5].
//!
//! | file | content |
//! |---|---|
//! | `store` | [`ObjectStore`]: write, read, free |
//! | `core` | the state that its callers, its thread and its checkpoints share |
//! | `layout` | every byte on flash and in a checkpoint |
//! | `memory` | memory for reads of objects |
//! | `table` | object tables |
//! | `image` | blocks that are being filled or written |
//! | `space` | free, live and held blocks |
//! | `flusher` | the thread that writes blocks and collects garbage |
//! | `dense` | before a checkpoint: live objects leave sparse blocks |
//! | `superblock` | the owner of a device, and its valid checkpoints |
//! | `checkpoint` | the state from which a later process continues |
//! | `place` | the path of its file, and files that are never replaced |
//! | `pieces` | its file, which is read and verified piece by piece |
//! | `reader` | many reads of objects at once, without waiting for each |
//!
//! Paper: [Badam11 §3.3, §3.5, §3.6]; differs: objects begin at multiples of 8 bytes and are found
//! by their owner instead of by an offset in each sector; a block that a checkpoint needs is not
//! reused before the next one; reads verify a checksum.

mod checkpoint;
mod core;
mod dense;
mod error;
mod flusher;
mod image;
mod layout;
mod memory;
mod pieces;
mod place;
mod reader;
mod space;
mod store;
mod superblock;
mod table;

pub use checkpoint::Restored;
pub use error::Error;
pub use layout::{BLOCK_BYTES, OBJECT_BYTES_MAX, Owner};
pub use memory::Scratch;
pub use reader::{Completed, Reader};
pub use store::{ObjectStore, Options, Stats};
