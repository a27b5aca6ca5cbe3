//! The origin of a window's entries: which entries of its segment's replicas they are. A pass tells
//! the backups the origin of each survivor, so that they build the survivor from their own replicas
//! of the victims.
//!
//! **Invariants**
//! - OR1: as long as a window is not compacted, its bytes are those of the replicas
//!   (engine::log::L1). A compaction notes the fate of each entry of the replicas, and keeps their
//!   order. If an entry was moved out of order, because a transaction held its bucket
//!   (context::C3), the origin is unknown, and survivors with entries of this window are sent as
//!   bytes.
//! - OR2: the fates are charged to the budget; without room for them, the origin is unknown.
//!
//! Paper: [Beineke18 §VIII]; differs: one memory of two bits per entry at the master, instead of
//! versions at each backup.

use duramen_format::recipe::{Fate, Fates};

/// The origin of the entries of a closed window.
#[derive(Default)]
pub(crate) enum Origin {
    /// The window has the bytes of the replicas.
    #[default]
    Same,
    /// The window has the entries that are not dropped, in the order of the replicas.
    Left(Fates),
    Unknown,
}

/// Follows the entries of a victim while a cleaner walks through it.
pub(crate) struct Trace {
    origin: Origin,
    /// The window's next entry is this entry of the replica, or a later one.
    next: u32,
    /// The replica's entry that is being cleaned; `None`: unknown.
    at: Option<u32>,
    /// Fates of the replica's entries, of a compaction; `None`: unknown.
    pub made: Option<Fates>,
}

impl Trace {
    pub fn new(origin: Origin) -> Trace {
        Trace {
            origin,
            next: 0,
            at: None,
            made: Some(Fates::default()),
        }
    }

    /// The replica's entry that the window's next entry is.
    pub fn advance(&mut self) -> u32 {
        let at = match &self.origin {
            Origin::Left(fates) => fates.next_left(self.next),
            Origin::Same | Origin::Unknown => self.next,
        };
        self.next = at + 1;
        at
    }

    /// The walk continues with this entry of the replica.
    pub fn rewind(&mut self, to: u32) {
        self.next = to;
    }

    /// This entry is cleaned now; `None`: it is out of order.
    pub fn set_at(&mut self, at: Option<u32>) {
        self.at = at;
    }

    /// The present entry was copied. Returns the replica's entry and its fate (recipe::R2), if they
    /// are known.
    pub fn copied(&self, fate: Fate) -> Option<(u32, Fate)> {
        let at = self.at?;
        match &self.origin {
            Origin::Same => Some((at, fate)),
            Origin::Left(fates) => Some((at, fates.get(at).then(fate))),
            Origin::Unknown => None,
        }
    }

    /// Notes a copy of a compaction (OR1).
    pub fn compacted(&mut self, fate: Fate) {
        let copied = self.copied(fate);
        let is_added = match (&mut self.made, copied) {
            (Some(made), Some((at, fate))) => made.add(at, fate),
            _ => false,
        };
        if !is_added {
            self.made = None;
        }
    }
}
