//! Asynchronous disk I/O past the page cache: files and partitions, and many reads of them at once.
//!
//! | file | content |
//! |---|---|
//! | `device` | a file or partition, without the page cache |
//! | `many` | several reads at once, for a caller that waits for all of them |
//! | `memory` | aligned memory, and spans widened to the alignment |
//! | `parallel` | one large read or write in several parts at once |
//! | `pool` | threads that read if there is no io_uring |
//! | `ring` | io_uring |
//! | `spans` | many reads of spans of a device at once, without waiting for each |
//! | `quiet` | threads that do not receive the program's signals |

mod device;
mod error;
mod many;
mod memory;
mod parallel;
mod pool;
mod quiet;
mod ring;
mod spans;

pub use device::{Device, FileDevice, direct_alignment};
pub use error::Error;
pub use many::ManyReads;
pub use memory::{ALIGNMENT_MAX, Aligned, Cut, SECTOR_BYTES, UNIT_BYTES};
pub use parallel::Parallel;
pub use quiet::{foreign_signals, quietly};
pub use spans::{Span, SpanReader};
