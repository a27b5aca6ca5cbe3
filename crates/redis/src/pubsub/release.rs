//! The release of effects: their messages and events go to the subscribers.

use super::publish;
use crate::reply::effects::{Effect, Effects, Event, NO_RECEIVERS};
use crate::state::Shared;
use crate::state::pubsub::registry::Publisher;
use crate::threads::publication::Kind;
use duramen_config::EventClasses;
use duramen_engine::{Departure, TableId};

/// Releases all effects, and puts the number of receivers into the replies of messages. The turn's
/// replies begin at `from` in `out`; `None`: the connection is closed. `thread`: the reactor thread
/// that calls.
pub fn release(
    effects: Effects,
    shared: &Shared,
    thread: usize,
    out: Option<(&mut Vec<u8>, usize)>,
) {
    let publisher = Publisher {
        threads: &shared.threads,
        own: Some(thread),
    };
    let mut received = Vec::new();
    for effect in effects.into_list() {
        match effect {
            Effect::Message {
                kind,
                channel,
                payload,
                reply_at,
            } => {
                let count = publish::publish(shared, publisher, kind, &channel, &payload);
                received.extend(reply_at.filter(|_| count > 0).map(|at| (at, count)));
            }
            Effect::Event(event) => publish_event(&event, shared, publisher),
        }
    }
    if let Some((out, from)) = out {
        write_counts(out, from, &received);
    }
}

/// Replaces replies without receivers by the numbers of receivers. `received`: places, counted from
/// `from`, and numbers.
fn write_counts(out: &mut Vec<u8>, from: usize, received: &[(usize, u64)]) {
    if let [(at, count @ 1..10)] = received {
        if let Some(digit) = out.get_mut(from + at + 1) {
            *digit = b'0' + *count as u8;
        }
        return;
    }
    if received.is_empty() {
        return;
    }
    let replies = out.split_off(from.min(out.len()));
    let mut copied = 0;
    for (at, count) in received {
        let Some(before) = replies.get(copied..*at) else {
            continue;
        };
        out.extend_from_slice(before);
        out.extend_from_slice(format!(":{count}\r\n").as_bytes());
        copied = at + NO_RECEIVERS.len();
    }
    out.extend_from_slice(replies.get(copied..).unwrap_or_default());
}

/// Publishes an event to subscribers of this server. As in Redis, other members do not get it.
fn publish_event<K: AsRef<[u8]>>(event: &Event<K>, shared: &Shared, publisher: Publisher<'_>) {
    let (db, name, key) = (event.db, event.name.as_bytes(), event.key.as_ref());
    let channel = |kind: &str, about: &[u8]| {
        let mut channel = format!("__{kind}@{db}__:").into_bytes();
        channel.extend_from_slice(about);
        channel
    };
    let publish = |channel: &[u8], payload: &[u8]| {
        let pubsub = shared.pubsub();
        pubsub.publish(publisher, Kind::Channel, channel, payload);
    };
    if event.classes.has(EventClasses::KEYSPACE) {
        publish(&channel("keyspace", key), name);
    }
    if event.classes.has(EventClasses::KEYEVENT) {
        publish(&channel("keyevent", name), key);
    }
}

/// Publishes the event of a key that left without a request. Any thread may call it. The entry of
/// the key was durable, if the store has a log, so the event needs to wait for nothing.
pub(crate) fn publish_departure(shared: &Shared, departure: Departure, table: TableId, key: &[u8]) {
    let (name, class) = match departure {
        Departure::Expired => ("expired", EventClasses::EXPIRED),
        Departure::Evicted => ("evicted", EventClasses::EVICTED),
    };
    let classes = shared.commands.events();
    if classes.has(class)
        && let Some(db) = shared.commands.db_of(table)
    {
        let event = Event {
            classes,
            db,
            name,
            key,
        };
        publish_event(&event, shared, Publisher::other(&shared.threads));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_receivers_replace_replies_in_place() {
        let replies = b"+before\r\n+OK\r\n:0\r\n*2\r\n:0\r\n:0\r\n+pushed\r\n".to_vec();
        let from = b"+before\r\n".len();
        let places = [5, 13, 17];
        for (counts, shown) in [
            (vec![], "+OK\r\n:0\r\n*2\r\n:0\r\n:0\r\n"),
            (vec![(places[0], 7)], "+OK\r\n:7\r\n*2\r\n:0\r\n:0\r\n"),
            (vec![(places[1], 10)], "+OK\r\n:0\r\n*2\r\n:10\r\n:0\r\n"),
            (
                vec![(places[0], 1), (places[1], 1000), (places[2], 2)],
                "+OK\r\n:1\r\n*2\r\n:1000\r\n:2\r\n",
            ),
        ] {
            let mut out = replies.clone();
            write_counts(&mut out, from, &counts);
            let out = String::from_utf8(out).expect("text");
            assert_eq!(out, format!("+before\r\n{shown}+pushed\r\n"));
        }
    }
}
