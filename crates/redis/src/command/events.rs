//! Keyspace events of commands: a command names an event, which leaves with the command's reply
//! (`reply::effects`).

use super::context::Context;
use crate::reply::effects::Event;
use crate::state::Shared;
use crate::threads::publication::Kind;
use duramen_config::EventClasses;
use duramen_engine::{Departure, Outcome, TableId};

/// A class and a name of events.
pub(crate) type EventName = (EventClasses, &'static str);

pub(crate) const SET: EventName = (EventClasses::STRING, "set");
pub(crate) const INCRBY: EventName = (EventClasses::STRING, "incrby");
pub(crate) const INCRBYFLOAT: EventName = (EventClasses::STRING, "incrbyfloat");
pub(crate) const DEL: EventName = (EventClasses::GENERIC, "del");
pub(crate) const EXPIRE: EventName = (EventClasses::GENERIC, "expire");
pub(crate) const PERSIST: EventName = (EventClasses::GENERIC, "persist");
pub(crate) const NEW: EventName = (EventClasses::NEW, "new");
/// A turn ends after the request with which its messages are to be matched with more patterns than
/// this: matching so many takes one or two milliseconds.
const MATCHES_PER_TURN: usize = 32 << 10;
const MISS: EventName = (EventClasses::MISS, "keymiss");
const EXPIRED: EventName = (EventClasses::EXPIRED, "expired");

/// Chooses the events that are published from now on.
pub(crate) fn set_events(shared: &Shared, classes: EventClasses) {
    shared.commands.set_events(classes);
    if let Some(store) = shared.data() {
        let classes = classes.in_use();
        for (departure, class) in [
            (Departure::Expired, EventClasses::EXPIRED),
            (Departure::Evicted, EventClasses::EVICTED),
        ] {
            store
                .listeners()
                .want_departures(departure, classes.has(class));
        }
    }
}

impl Context<'_> {
    /// Whether events of any class are published.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.shared.commands.events() != EventClasses::default()
    }

    /// Adds an event of a key of the selected table.
    #[inline]
    pub(crate) fn notify(&mut self, event: EventName, key: &[u8]) {
        self.notify_in(self.table, event, key);
    }

    /// As [`notify`](Self::notify), for a key of any table. Keys of tables behind no database have
    /// no events.
    #[inline]
    pub(crate) fn notify_in(&mut self, table: TableId, event: EventName, key: &[u8]) {
        let classes = self.shared.commands.events();
        if classes.has(event.0) {
            self.add_event(table, (classes, event.1), key);
        }
    }

    #[cold]
    fn add_event(&mut self, table: TableId, (classes, name): EventName, key: &[u8]) {
        if let Some(db) = self.shared.commands.db_of(table) {
            let key = key.into();
            self.client.effects.event(Event {
                classes,
                db,
                name,
                key,
            });
            self.note_matching();
            self.note_matching(); // each event is two messages: by its key, and by its name
        }
    }

    /// Counts a message that was added: it is matched with all patterns when it is released, after
    /// the time of its turn was measured.
    pub(crate) fn note_matching(&mut self) {
        self.turn.matches += self.shared.pubsub().count(Kind::Pattern);
        self.turn.halted |= self.turn.matches > MATCHES_PER_TURN;
    }

    /// Adds the events of keys that had expired and that the command has replaced. They come before
    /// the command's own effects, which begin at effect `from`. Returns the place behind these
    /// events.
    #[cold]
    pub(crate) fn notify_replaced(
        &mut self,
        replaced: Vec<(TableId, Box<[u8]>)>,
        from: usize,
    ) -> usize {
        let before = self.client.effects.len();
        for (table, key) in replaced {
            self.notify_in(table, EXPIRED, &key);
        }
        let effects = &mut self.client.effects;
        let events = effects.len() - before;
        effects.bring_forward(from, events);
        from + events
    }

    /// Adds the event of a key that was read and is missing.
    #[inline]
    pub(crate) fn notify_miss(&mut self, key: &[u8]) {
        self.notify(MISS, key);
    }

    /// Adds the events of a command's write to a key, if the write has changed the key: `event`
    /// says how, and `outcome` is the outcome of the write.
    #[inline]
    pub(crate) fn notify_change(&mut self, event: EventName, key: &[u8], outcome: Outcome) {
        if self.has_events() && outcome.before != outcome.after {
            self.add_change(&[event], key, outcome);
        }
    }

    /// As [`notify_change`](Self::notify_change), for a change with several events.
    #[cold]
    pub(crate) fn add_change(&mut self, events: &[EventName], key: &[u8], outcome: Outcome) {
        if outcome.before.is_none() {
            self.notify(NEW, key);
        }
        for event in events {
            self.notify(*event, key);
        }
        if outcome.after.is_none() {
            self.notify(DEL, key);
        }
    }

    /// Adds the events of a write to a key by SET or its like, with a time of expiry. `outcome` is
    /// the outcome of the write.
    #[inline]
    pub(crate) fn notify_set_for(&mut self, key: &[u8], outcome: Outcome) {
        if self.has_events() {
            if outcome.before.is_none() {
                self.notify(NEW, key);
            }
            self.notify(SET, key);
            self.notify(EXPIRE, key);
            if outcome.after.is_none() {
                self.notify(EXPIRED, key); // the time was in the past
            }
        }
    }

    /// Adds the event of a removal, if the key was removed. `outcome` is the outcome of the
    /// removal.
    #[inline]
    pub(crate) fn notify_removal(&mut self, key: &[u8], outcome: Outcome) {
        if outcome.before.is_some() {
            self.notify(DEL, key);
        }
    }
}
