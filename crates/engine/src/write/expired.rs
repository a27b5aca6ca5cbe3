//! Expired objects that a guard meets, for a listener to departures.

use crate::cleaner::candidate::Candidate;
use crate::counters::add;
use crate::index::Index;
use crate::session::Pin;
use crate::session::verified::Found;
use crate::{Departure, KeyHash, TableId};

impl Pin<'_> {
    /// A key was found expired: takes it out of the index if a listener wants to hear of it. So the
    /// listener hears of the key when it is met, and only once. As in the expiry pass, an entry
    /// that could still vanish stays. No bucket is locked, except those of a transaction.
    #[cold]
    pub(crate) fn expire_now(&self, table: TableId, index: &Index, hash: KeyHash, key: &[u8]) {
        let core = self.core();
        if !core.listeners.departures.wants(Departure::Expired) || core.is_loading() {
            return;
        }
        let tag = index.tag(hash);
        let view = index.partition(hash).view();
        if view.len() == 0 {
            return;
        }
        let found = self.entries().find_verified(view, tag, key);
        let Some((_, slot, Found::Key(here))) = found else {
            return;
        };
        let (location, entry) = (slot.location(), self.entries().entry_at(here));
        let is_live = self.object(entry).is_some();
        if is_live || core.space.is_undurable(location) || !core.clock().may_forget(&entry) {
            return;
        }
        let candidate = Candidate::new(core, index, location, entry, false);
        let dropped = core.actors.as_guest(|counters| {
            let dropped = candidate.drop_from_index(core, counters, self.me());
            add(&counters.expired, u64::from(dropped == Some(true)));
            dropped
        });
        if dropped == Some(true) {
            core.listeners
                .departures
                .tell(Departure::Expired, table, key);
        }
    }
}
