//! Ranges of key hashes (tablets) within a table: walked in the order of the index, watched,
//! exported, and purged.
//!
//! A range is one of *route* hashes, slot in front (`RouteHash`), while the index is in the order
//! of the hash behind it: so a walk visits the whole table, and the slot is computed from each key
//! that it meets. What is asked of every write is not (ownership is checked where requests are
//! routed).
//!
//! **Invariants**
//! - G1: a walk's position is a hash. The entries below it have been visited, those from it on have
//!   not, whatever the index does meanwhile: buckets are in the order of hashes at every size, and
//!   an object is where its hash is. So what is there for the whole walk is visited exactly once,
//!   and objects of equal hash in the same step.
//! - G2: a step is bounded and pins once: it delays no reader, and nobody's memory for long. Who
//!   must wait for a flash device does so before the pin (F9): the step after notes what it lacks,
//!   and the next one goes on at the same bucket.
//! - G4: of what is on flash an export, and a purge, reads each segment once, as a whole, when it
//!   meets the first entry of it, and does then what is to be done with all of them; only then does
//!   it go on. An entry in a segment that was passed so was shown then, or nothing pointed to it,
//!   and nothing ever will (H1): it may be left out. So nothing that is there for the whole walk is
//!   left out, whatever is demoted or cleaned meanwhile; but an export may show an object twice,
//!   which does no harm where it goes (S1). Counts and samples read single entries instead, and
//!   keep G1 to the letter.
//! - G3: a purge leaves no tombstones: what it takes out is not this server's any more, and a
//!   restart knows it by the position of its segment (`Store::roll_heads`). It lowers nobody's
//!   version.
//!
//! How a range moves: `watch_range`, then `export` everything, then `export_keys` of what was
//! written meanwhile, until that is little; then nobody may write any more, `quiesce`, the last
//! `export_keys`; when the new owner has it durable, `purge`. Paper: [Ousterhout15 §8] sends the
//! log, old to new; differs: live objects once, in the order of the index, and what changes
//! meanwhile by key, so that the work does not depend on how much of the log is dead.

mod cold;
mod purge;
mod walk;
pub(crate) mod watch;

pub use purge::{Purge, Purged};
pub use walk::{Export, RANGE_PARTS, RangeCount, RangePart, RangeStatistics};
pub use watch::{Dirty, MARK_BYTES, Watch};

use crate::core::Core;
use crate::index::Index;
use crate::index::bucket::{Slot, View};
use crate::space::Space;
use duramen_base::ids::{KeyRange, RouteHash};
use duramen_format::entry::{self, Entry};
use duramen_format::hash;

/// Where a walk goes on (G1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) partition: usize,
    pub(crate) tag: u64,
}

impl Place {
    pub(crate) const START: Place = Place {
        partition: 0,
        tag: 0,
    };

    pub(crate) fn is_end(self, index: &Index) -> bool {
        self.partition >= index.partitions().len()
    }

    /// The view there and the bucket; `None` if the partition has none: then the walk is past it.
    /// Fetches ahead what the bucket after it points to.
    pub(crate) fn bucket<'i>(
        &mut self,
        index: &'i Index,
        space: &Space,
    ) -> Option<(View<'i>, usize)> {
        let view = index.partitions()[self.partition].view();
        if view.len() == 0 {
            *self = self.after(view, 0);
            return None;
        }
        let bucket = view.home(self.tag);
        if bucket + 1 < view.len() {
            view.each_inside(bucket + 1, |slot| {
                crate::session::prefetch(space.at(slot.location()));
            });
        }
        Some((view, bucket))
    }

    /// The place after a bucket.
    pub(crate) fn after(self, view: View<'_>, bucket: usize) -> Place {
        if bucket + 1 < view.len() {
            Place {
                partition: self.partition,
                tag: view.first_tag(bucket + 1),
            }
        } else {
            Place {
                partition: self.partition + 1,
                tag: 0,
            }
        }
    }

    /// True if a slot of the bucket at this place is still to be visited (G1).
    pub(crate) fn includes(self, slot: Slot) -> bool {
        slot.tag() >= self.tag
    }
}

/// True if the key lies in the range.
pub(crate) fn contains(core: &Core, range: &KeyRange, key: &[u8]) -> bool {
    if *range == KeyRange::ALL {
        return true;
    }
    let slot = hash::slot(key);
    if slot < range.first.slot() || slot > range.last.slot() {
        return false;
    }
    let inside = RouteHash::first_of_slot(slot) >= range.first
        && RouteHash::last_of_slot(slot) <= range.last;
    inside || range.contains(core.hasher.route(key))
}

/// The entry at a location that the index points to and that is in memory: found so by the caller,
/// under its pin.
pub(crate) fn entry_at(core: &Core, location: u64) -> Entry<'_> {
    // SAFETY: the index pointed to it under the caller's pin: a whole entry, which is not changed
    // or reused before the pin ends (E2, S3), and whose memory stays as long (F2). The caller does
    // not use it for longer.
    unsafe { entry::parse_trusted(core.space.at(location)) }
}
