//! Any program's heap on an SSD: ordinary pointers at addresses that never change, objects packed
//! in a log on flash, and a hard budget of RAM. The interface for C is `include/duramen_alloc.h`;
//! the functions here are the same.
//!
//! ```no_run
//! # fn main() -> Result<(), duramen_alloc::Error> {
//! duramen_alloc::init(&duramen_alloc::Options {
//!     flash_file: "/mnt/ssd/heap".into(),
//!     flash_bytes: 64 << 30,
//!     ram_bytes: 4 << 30,
//!     ..Default::default()
//! })?;
//! let object = duramen_alloc::oalloc(1, 128)?; // zeros; read it, write it
//! unsafe { object.write(7) };
//! unsafe { duramen_alloc::free(object)? };
//! # Ok(())
//! # }
//! ```
//!
//! An object allocated by [`oalloc()`] lies on pages of its own, so that the faults of the
//! processor show which object is used: objects, not pages, are cached in RAM and written to flash.
//! [`malloc()`] is for all other data; there a page is the object.
//!
//! | file | content |
//! |---|---|
//! | `paging` | arrival of a page; `evict`, `batch`: eviction of many pages at once |
//! | | `units`: names and saved contents; `pin`; `touch`: the library's own accesses to objects |
//! | `buffer` | the shown pages, and the owners of units |
//! | `regions` | the existing page tables |
//! | `cache` | objects in RAM |
//! | `chunk`, `atm` | from an address to an object's name |
//! | `heap` | allocation, above the pages |
//! | | `oalloc`: objects on pages of their own; `malloc`: blocks of any length |
//! | | `checkpoint`: the heap's state for a later life |
//! | `pool`, `memory` | the free objects and the free blocks |
//! | `budget`, `stats` | sizes and counts |
//! | `pager` | userfaultfd, `mprotect` |
//! | `signal` | the fault handler |
//! | `session` | the functions for programs; `c`: the same for C |
//! | `measured` | parts of the library alone, for measurements |
//!
//! **Concurrency** any thread may call anything, except [`close`] and [`restore`], during which no
//! other thread of the program may use the library.
//!
//! Paper: [Badam11 §3, §4]; differs: see each file.

// A thread that is cancelled at any moment unwinds through these functions (signal::H2).
#[cfg(panic = "abort")]
compile_error!("the library needs panics that unwind: a cancelled thread unwinds through it");

mod atm;
mod batch;
mod budget;
mod buffer;
mod c;
mod cache;
mod chunk;
mod error;
mod heap;
mod mapping;
#[doc(hidden)]
pub mod measured;
mod memory;
mod pager;
mod paging;
mod pool;
mod regions;
mod session;
mod signal;
mod stats;

pub use error::Error;
pub use pager::Faults;
pub use session::{
    Options, calloc, checkpoint, close, free, init, malloc, oalloc, pin, realloc, restore, root,
    set_root, stats, stride, unpin, usable_bytes,
};
pub use stats::Stats;
