//! The start of service: the data is there, and the store tells the features of its changes.

use crate::command::events::set_events;
use crate::durability::Durability;
use crate::flash::tier::Tier;
use crate::pubsub::release::publish_departure;
use crate::state::Shared;
use crate::tracking::changes::{key_departed, keys_written, track_loaded};
use duramen_base::ids::SegmentId;
use duramen_engine::{EntryDamage, Store};
use std::sync::Arc;

impl Shared {
    /// Ends loading: from now on clients are served from `store`. Must be called once.
    pub fn serve(&self, store: Arc<Store>, durability: Option<Arc<Durability>>) {
        self.serve_with(store, durability, None);
    }

    /// As [`serve`](Self::serve), with a second tier.
    pub fn serve_with(
        &self,
        store: Arc<Store>,
        durability: Option<Arc<Durability>>,
        tier: Option<Arc<Tier>>,
    ) {
        let this = self.weak();
        store
            .listeners()
            .when_departed(move |departure, table, key| {
                if let Some(shared) = this.upgrade() {
                    publish_departure(&shared, departure, table, key);
                    key_departed(&shared, table, key);
                }
            });
        store.listeners().when_damaged(log_damage);
        store.listeners().when_given_up(log_given_up);
        store.set_verify_reads(self.config().verify_reads);
        let this = self.weak();
        store.listeners().when_written(move |writes| {
            if let Some(shared) = this.upgrade() {
                keys_written(&shared, writes);
            }
        });
        track_loaded(self, &Arc::clone(&store), || {
            self.storage.put(store, durability, tier)
        });
        set_events(self, self.config().events);
    }
}

/// Logs that the cleaning of a segment was given up.
fn log_given_up(segment: SegmentId, why: &str) {
    tracing::error!(
        segment = segment.0,
        "cleaning of a segment was given up: {why}. No data is lost, and other segments are cleaned; the disk space that it would have freed is free after a restart of this server"
    );
}

/// Logs an entry in memory that does not match its checksum.
fn log_damage(damage: &EntryDamage) {
    let (segment, what) = (damage.segment.0, &damage.what);
    if damage.is_mended {
        tracing::warn!(
            segment,
            "memory changed an entry, and it was corrected: {what}; test the memory of this machine"
        );
    } else {
        tracing::error!(
            segment,
            "memory changed an entry, and it cannot be corrected: {what}; its segment stays as it is. Test the memory of this machine"
        );
    }
}
