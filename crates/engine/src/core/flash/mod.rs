//! The flash tier: segments whose bytes are on a flash device while their memory serves other data.
//!
//! A segment goes to flash as a whole, and its *locations stay the same*. The region has windows
//! for all segments in memory and on flash together. The bytes of a **cold** window are on the
//! device instead of in memory. So a demotion does not touch index slots, counts of live bytes,
//! segment ids, tombstones, positions or the log's rules. Only a thread that reads an entry's bytes
//! has to find out first where they are (`fetch`, `session::cold`).
//!
//! `tier` has the data about windows: places on the device, masks, copies in memory. `demote`
//! chooses the segments that go there. `fetch`, `bulk` and `holding` read entries, `mended` puts
//! flipped bits back, and `cleared` counts the dead entries of cleared tables. The steps of
//! a session with an entry on flash are in `session::cold`.
//!
//! **Invariants**
//! - F1: a window turns cold only after all its bytes were written to a slot of the device that no
//!   other window has, and only if its memory is not needed otherwise: it is closed; with a log, it
//!   is durably closed and written. Until then no thread but its claimer cleans it. A window held
//!   by a side log stays held (swap::D8).
//! - F2: a window's memory is freed when every session has left that may not have seen the window
//!   turn cold. The turn is stored before the stamp for this is taken; a session that was pinned
//!   before still has the memory, unless the window is gone. "Gone" is stored before the last scan
//!   for such sessions. A session may have taken its stamp long before it shows it (a pin is two
//!   steps): either it shows the stamp before that scan, and the memory stays, or it finds the
//!   window gone (`warmth`).
//! - F3: the slot of a cold window is given to another window only when the window is reaped
//!   (engine::space::S3): no reader finds its entries any more. Bytes that were read from the
//!   device are valid only if the window is the same incarnation and still has the slot *after* the
//!   read, and if the entry's own checksum is right under the mask of that one write (mask::F7,
//!   `mask`). So a device that returns earlier data, or data of another place, is detected.
//! - F4: entries never change, so a copy of one (held by a session, or promoted) is as good as the
//!   entry for as long as the index points to its location in the same incarnation of the window.
//!   Copies are never part of the log.
//! - F5: a device that fails a write is not written to any more; its segments are read for as long
//!   as possible. A segment that cannot be read is not cleaned, and is tried again later: after
//!   1 s, then after twice as long each time, up to 16 s. Keys that cannot be read return
//!   [`Error::FlashFailed`](crate::Error::FlashFailed).
//! - F6: memory of the tier (its tables, promoted entries, one window per cleaner that reads a cold
//!   victim back, the buffers of a refill) is part of the budget.
//!
//! **Concurrency**: a demotion claims the window as a cleaner claims a victim (engine::space::S2)
//! and holds it until its memory is freed. Only cleaner threads and loading threads wait for the
//! device, and a guard that is alone in the store; sessions that park their requests do not. So a
//! device that stands still delays no writer for longer than a writer waits for memory
//! (`cleaner::pacer`), whatever keys it has locked.
//!
//! Paper: [Badam11 §3] for the unit of demotion (whole, log-structured, sequential writes);
//! differs: one log over memory and flash, and no object tables, as the index slots that exist
//! anyway are the owners.

mod bulk;
pub mod cleared;
mod demote;
mod fetch;
mod holding;
mod mended;
pub mod tier;

pub(crate) use bulk::{Gather, Image};
pub(crate) use demote::{Demotion, FLASH_DEAD_PART, FLASH_LIVE_PART_MAX};
pub(crate) use fetch::{Read, locate, locate_now};
pub(crate) use holding::{Holding, bytes_of};
