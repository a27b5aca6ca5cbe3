//! Ranges of key hashes (tablets) within a table: walked in the order of the index, watched,
//! exported, and purged.
//!
//! A range is one of *route* hashes, with the slot in front (`RouteHash`), while the index is in
//! the order of the hash behind it. So a walk visits the whole table, and computes the slot from
//! each key that it meets. Writes do not pay for this: ownership is checked where requests are
//! routed.
//!
//! **Invariants**
//! - G1: a walk's position is a hash. The entries below it have been visited, those from it on have
//!   not, whatever the index does meanwhile: buckets are in the order of hashes at every size, and
//!   an object is in the place of its hash. So an object that exists for the whole walk is visited
//!   exactly once, and objects of equal hash in the same step.
//! - G2: a step is bounded and pins once: it delays no reader, and holds back no memory for long. A
//!   walk that must wait for a flash device does so before the pin (bulk::F9): a step notes its
//!   missing entries, and the next step continues at the same bucket.
//! - G4: an export, and a purge, reads each segment on flash once, as a whole, when it meets the
//!   first entry of it, and handles all its entries before it goes on. An entry in a segment that
//!   was passed this way was shown then; or the index did not point to it, and never will
//!   (head::H1). So it may be left out. An object that exists for the whole walk is therefore never
//!   left out, whatever is demoted or cleaned meanwhile. But an export may show an object twice,
//!   which does no harm at the receiver (side::S1). Counts and samples read single entries instead,
//!   and keep G1 to the letter.
//! - G5: counts, exports, purges and statistics visit the objects of a table, then its parts,
//!   whose route is that of their home. Scans show objects alone. A segment on flash is handled
//!   once for both, else the parts in it would be left out as passed (G4).
//! - G3: a purge leaves no tombstones: the removed objects belong to another server, and a restart
//!   recognises them by the position of their segment (`Heads::try_roll`). It lowers no
//!   version.
//!
//! A range moves in these steps: `watch`; `export` of everything; `export_keys` of the keys written
//! meanwhile, until these are few; the range is locked for writes; `Store::quiesce`; the last
//! `export_keys`; and `purge`, when the new owner has the range durably. Paper: [Ousterhout15 §3.1]
//! sends the log, old to new; differs: sends live objects once, in the order of the index, and
//! later changes by key, so the work does not depend on the dead part of the log.

mod cold;
mod purge;
mod walk;
pub(crate) mod watch;

pub use purge::{Purge, Purged};
pub use walk::{Export, RANGE_PARTS, RangeCount, RangePart, RangeStatistics};
pub use watch::Watch;

use crate::core::Core;
use crate::index::Index;
use crate::index::bucket::{Slot, View};
use crate::space::Space;
use crate::{Store, TableId};
use duramen_base::ids::{KeyRange, PartKey, RouteHash};
use duramen_base::planted::{Bug, has_bug};
use duramen_format::entry::{self, Entry};
use duramen_format::hash::{self, KeyHasher};
use std::sync::Arc;

/// The ranges of a store's tables; from [`Store::ranges`].
#[derive(Clone, Copy)]
pub struct Ranges<'s> {
    store: &'s Arc<Store>,
}

impl Store {
    /// The ranges of its tables.
    pub fn ranges(self: &Arc<Self>) -> Ranges<'_> {
        Ranges { store: self }
    }
}

/// Position at which a walk continues (G1).
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

    /// The view and the bucket at this position. `None`: the partition has no buckets, and the walk
    /// is past it. Prefetches the entries of the bucket after it.
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
                crate::index::prefetch::prefetch(space.at(slot.location()));
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

    /// True if a slot of the bucket at this position has not been visited yet (G1).
    pub(crate) fn includes(self, slot: Slot) -> bool {
        slot.tag() >= self.tag
    }
}

/// Goes on with the parts of a table when its objects are done (G5). Returns false if the walk was
/// at the parts already, or if there are none. The caller is pinned.
pub(crate) fn goes_on_with_parts(core: &Core, table: &mut TableId, place: &mut Place) -> bool {
    let is_next = !table.is_parts() && core.tables.index(table.parts()).is_ok();
    if is_next {
        (*table, *place) = (table.parts(), Place::START);
    }
    is_next
}

/// True if the object or part is in the range.
pub(crate) fn contains(core: &Core, range: &KeyRange, entry: &Entry<'_>) -> bool {
    contains_key(core.tables.hasher(), range, TableId(entry.table), entry.key)
}

/// True if a key of this table, or of its parts, is in the range.
pub(crate) fn contains_key(
    hasher: &KeyHasher,
    range: &KeyRange,
    table: TableId,
    key: &[u8],
) -> bool {
    if *range == KeyRange::ALL {
        return true;
    }
    if let Some(part) = PartKey::of(table, key)
        && !has_bug(Bug::PartRoutesByKey)
    {
        return range.contains(part.route()); // part::K1: the route of its home
    }
    let slot = hash::slot(key);
    if slot < range.first.slot() || slot > range.last.slot() {
        return false;
    }
    let inside = RouteHash::first_of_slot(slot) >= range.first
        && RouteHash::last_of_slot(slot) <= range.last;
    inside || range.contains(hasher.route(key))
}

/// The entry at a location. The caller has found, under its pin, that the index points to it and
/// that it is in memory.
pub(crate) fn entry_at(core: &Core, location: u64) -> Entry<'_> {
    // SAFETY: the index pointed to it under the caller's pin: a whole entry, which is not changed
    // or reused before the pin ends (epoch::E2, engine::space::S3), and whose memory stays as long
    // (core::flash::F2). The caller does not use it for longer.
    unsafe { entry::parse_trusted(core.space.at(location)) }
}
