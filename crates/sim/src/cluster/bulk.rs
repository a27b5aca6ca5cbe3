//! The bulk data of a world, as its clients and checks know it (`fill`).

use duramen_base::ids::{KeyRange, TableId};
use std::collections::BTreeMap;

/// A tablet, and the machine of its owner.
pub(super) type Home = (TableId, KeyRange, Option<usize>);

/// The bulk data of a run.
#[derive(Default)]
pub(super) struct Bulk {
    /// By the number of an object: how often it was written.
    pub written: BTreeMap<u64, u64>,
    /// The number that the next object may have.
    pub next: u64,
    /// Warnings of `status` before the first fault.
    pub warnings: Vec<String>,
    /// The tablets before the first fault.
    pub homes: Vec<Home>,
}
