//! All that hear of changes of a store.

use super::damage::Damages;
use super::departures::Departures;
use super::tracker::Tracker;
use super::watches::Watches;
use super::writes::Writes;
use duramen_format::hash::KeyHasher;

/// The listeners of a store, which are outside of the engine, and the watches of ranges.
pub struct Listeners {
    pub departures: Departures,
    pub writes: Writes,
    pub damages: Damages,
    pub tracker: Tracker,
    pub watches: Watches,
}

impl Listeners {
    /// `hasher`: of the keys of all tables.
    pub fn new(hasher: KeyHasher) -> Listeners {
        Listeners {
            departures: Departures::default(),
            writes: Writes::default(),
            damages: Damages::default(),
            tracker: Tracker::default(),
            watches: Watches::new(hasher),
        }
    }

    /// Bytes of the memory budget charged for marks, and for the tracker.
    pub fn charged_bytes(&self) -> u64 {
        self.watches.charged_bytes() + self.tracker.charged_bytes()
    }
}
