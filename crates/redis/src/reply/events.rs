//! Keyspace events: which are published, and their channels.

use crate::pubsub::registry::Publisher;
use crate::shared::Shared;
use crate::threads::publication::Kind;
use duramen_config::EventClasses;
use duramen_engine::{Departure, TableId};

/// Something that has happened to a key, for subscribers of keyspace events.
#[derive(Debug)]
pub(crate) struct Event<K> {
    /// The classes that the setting had when it happened; they say to which channels it goes.
    pub(crate) classes: EventClasses,
    pub(crate) db: u8,
    pub(crate) name: &'static str,
    pub(crate) key: K,
}

impl<K: AsRef<[u8]>> Event<K> {
    /// Publishes it to subscribers of this server. As in Redis, other members do not hear of it.
    pub(crate) fn publish(&self, shared: &Shared, publisher: Publisher<'_>) {
        let (db, name, key) = (self.db, self.name.as_bytes(), self.key.as_ref());
        let channel = |kind: &str, about: &[u8]| {
            let mut channel = format!("__{kind}@{db}__:").into_bytes();
            channel.extend_from_slice(about);
            channel
        };
        let publish = |channel: &[u8], payload: &[u8]| {
            let pubsub = &shared.pubsub;
            pubsub.publish(publisher, Kind::Channel, channel, payload);
        };
        if self.classes.has(EventClasses::KEYSPACE) {
            publish(&channel("keyspace", key), name);
        }
        if self.classes.has(EventClasses::KEYEVENT) {
            publish(&channel("keyevent", name), key);
        }
    }
}

impl Shared {
    /// Chooses the events that are published from now on.
    pub(crate) fn set_events(&self, classes: EventClasses) {
        self.commands.set_events(classes);
        if let Some(store) = self.data() {
            let classes = classes.in_use();
            for (departure, class) in [
                (Departure::Expired, EventClasses::EXPIRED),
                (Departure::Evicted, EventClasses::EVICTED),
            ] {
                store.want_departures(departure, classes.has(class));
            }
        }
    }

    /// Publishes the event of a key that left without a request. Called by any thread. Its entry
    /// was durable, if the store has a log, so the event needs to wait for nothing.
    pub(crate) fn publish_departure(&self, departure: Departure, table: TableId, key: &[u8]) {
        let (name, class) = match departure {
            Departure::Expired => ("expired", EventClasses::EXPIRED),
            Departure::Evicted => ("evicted", EventClasses::EVICTED),
        };
        let classes = self.commands.events();
        if classes.has(class)
            && let Some(db) = self.commands.db_of(table)
        {
            let event = Event {
                classes,
                db,
                name,
                key,
            };
            event.publish(self, Publisher::other(&self.threads));
        }
    }
}
