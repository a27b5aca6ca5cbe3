//! Expired objects that a session meets, for a listener to departures.

use crate::cleaner::candidate::Candidate;
use crate::counters::add;
use crate::index::Index;
use crate::session::Guard;
use crate::session::verified::{Found, Verify};
use crate::{Departure, KeyHash, TableId};

impl Guard<'_> {
    /// A write has replaced an object that had expired, and that no listener has heard of.
    #[inline(always)]
    pub(super) fn note_replaced(&mut self, table: TableId, key: &[u8], was_expired: bool) {
        if was_expired && self.core.departures.wants(Departure::Expired) {
            self.carried.replaced.push((table, key.into()));
        }
    }

    /// Whether writes of this guard have replaced objects that had expired, and a listener wants to
    /// hear of these.
    #[inline]
    pub fn has_replaced(&self) -> bool {
        !self.carried.replaced.is_empty()
    }

    /// The keys of these objects, since the last call. The caller tells of them when it tells of
    /// its writes. The listener hears of others when the guard ends.
    #[cold]
    pub fn take_replaced(&mut self) -> Vec<(TableId, Box<[u8]>)> {
        std::mem::take(&mut self.carried.replaced)
    }

    #[cold]
    pub(crate) fn tell_replaced(&mut self) {
        for (table, key) in self.take_replaced() {
            let departures = &self.core.departures;
            departures.tell(Departure::Expired, table, &key);
        }
    }

    /// A key was found expired: takes it out of the index if a listener wants to hear of it, so
    /// that it hears when the key is met, and once. As for the expiry pass, an entry that could
    /// still vanish stays. No bucket is locked, except those of a transaction.
    #[cold]
    pub(crate) fn expire_now(&self, table: TableId, index: &Index, hash: KeyHash, key: &[u8]) {
        let core = self.core;
        if !core.departures.wants(Departure::Expired) || core.is_loading() {
            return;
        }
        let tag = index.tag(hash);
        let view = index.partition(hash).view();
        if view.len() == 0 {
            return;
        }
        let found = self.find_in(view, tag, key, Verify::Always);
        let Some((_, slot, Found::Key(here))) = found else {
            return;
        };
        let (location, entry) = (slot.location(), self.entry_at(here));
        let is_live = self.object(entry).is_some();
        if is_live || core.space.is_undurable(location) || !core.may_forget(&entry) {
            return;
        }
        let candidate = Candidate::new(core, index, location, entry, false);
        let dropped = core.as_guest(|counters| {
            let dropped = candidate.drop_from_index(core, counters, self.me);
            add(&counters.expired, u64::from(dropped == Some(true)));
            dropped
        });
        if dropped == Some(true) {
            core.departures.tell(Departure::Expired, table, key);
        }
    }
}
