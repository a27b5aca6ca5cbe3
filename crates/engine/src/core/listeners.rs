//! The listeners of a store: all that hear of its changes.

use super::damage::{Damages, EntryDamage};
use super::departures::Departures;
use super::tracker::Tracker;
use super::watches::Watches;
use super::writes::{Writes, Written};
use crate::{Departure, TableId};
use duramen_base::ids::SegmentId;
use duramen_format::hash::KeyHasher;

/// The listeners of a store, which are outside of the engine, and the watches of ranges; from
/// [`Store::listeners`](crate::Store::listeners).
pub struct Listeners {
    pub(crate) departures: Departures,
    pub(crate) writes: Writes,
    pub(crate) damages: Damages,
    pub(crate) tracker: Tracker,
    pub(crate) watches: Watches,
}

impl Listeners {
    /// `hasher`: computes the hashes of the keys of all tables.
    pub(crate) fn new(hasher: KeyHasher) -> Listeners {
        Listeners {
            departures: Departures::default(),
            writes: Writes::default(),
            damages: Damages::default(),
            tracker: Tracker::default(),
            watches: Watches::new(hasher),
        }
    }

    /// Bytes of the memory budget charged for marks, and for the tracker.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.watches.charged_bytes() + self.tracker.charged_bytes()
    }

    /// Sets the listener that hears of keys that leave without a request, as far as
    /// [`want_departures`](Self::want_departures) says. Only the first listener counts. It is
    /// called by threads in the store, so it must neither enter the store nor wait.
    pub fn when_departed(
        &self,
        listener: impl Fn(Departure, TableId, &[u8]) + Send + Sync + 'static,
    ) {
        self.departures.listen(Box::new(listener));
    }

    /// Whether the listener hears of these departures. While it hears of expired keys, they leave
    /// soon after their time, or when they are met.
    pub fn want_departures(&self, departure: Departure, wanted: bool) {
        self.departures.want(departure, wanted);
    }

    /// Sets the listener to entries that do not match their checksum. Only the first one counts; it
    /// must not enter the store.
    pub fn when_damaged(&self, listener: impl Fn(&EntryDamage) + Send + Sync + 'static) {
        self.damages.listen(Box::new(listener));
    }

    /// Sets the listener to cleaning that is given up: it gets the segment and the reason. The
    /// segments of such cleaning stay on disk until the next start. Only the first listener counts;
    /// it must not enter the store.
    pub fn when_given_up(&self, listener: impl Fn(SegmentId, &str) + Send + Sync + 'static) {
        self.damages.listen_given_up(Box::new(listener));
    }

    /// Sets the listener that hears of all keys that guards have written or removed, while
    /// [`want_writes`](Self::want_writes) says so. It hears of a write after the write is visible,
    /// and before the guard has ended. Only the first listener counts. The conditions are those of
    /// [`when_departed`](Self::when_departed). Emptied tables and moved tablets are no writes.
    pub fn when_written(&self, listener: impl Fn(&[Written]) + Send + Sync + 'static) {
        self.writes.listen(Box::new(listener));
    }

    /// Sets whether the listener hears of writes, from the guards that begin after this call on.
    /// All earlier guards have ended when an exclusive guard begins. While writes are wanted, the
    /// listener to departures hears of all departures too.
    pub fn want_writes(&self, wanted: bool) {
        self.departures.want_all(wanted);
        self.writes.want(wanted);
    }
}
