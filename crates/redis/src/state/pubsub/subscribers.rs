//! Subscriptions: those of one client, and the clients of one thread by channel and pattern.
//!
//! **Invariants**
//! - S1: three things hold together or not at all: a name is in a client's [`Subscriptions`], the
//!   client's slot is in its thread's [`Subscribers`], and the client is counted in the registry
//!   (`pubsub::registry`). [`Subscribers::add`] and [`Subscribers::remove`] alone change them.
//! - S2: a client gets the messages of a subscription from its number on (registry::P2).

use super::registry::PubSub;
use crate::threads::publication::{Kind, Publication};
use duramen_config::heap;
use duramen_wire::resp::{Encoder, Protocol};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Maximum bytes of one client's subscriptions, as counted by [`SUBSCRIPTION_BYTES`] and the
/// lengths of their names.
pub(crate) const SUBSCRIPTIONS_BYTES_MAX: usize = 64 << 20;
/// Memory of a subscription beside its name: entries in the tables of the client, of the thread and
/// of the registry.
const SUBSCRIPTION_BYTES: usize = 256;
/// Memory of a compiled pattern for each byte of its text: a set of bytes.
const PATTERN_WORD_BYTES: usize = 8 * 256;

fn bytes_of(kind: Kind, name: &[u8]) -> usize {
    let compiled = match kind {
        Kind::Pattern => (name.len() / 64 + 1) * PATTERN_WORD_BYTES,
        Kind::Channel | Kind::Shard => 0,
    };
    SUBSCRIPTION_BYTES + 2 * name.len() + compiled
}

/// The subscriptions of one client, by kind.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    names: [BTreeSet<Arc<[u8]>>; 3],
    bytes: usize,
}

impl Subscriptions {
    pub(crate) fn len(&self) -> usize {
        self.counts().iter().sum()
    }

    /// The numbers of subscriptions, in the order of [`Kind::ALL`].
    pub(crate) fn counts(&self) -> [usize; 3] {
        self.names.each_ref().map(BTreeSet::len)
    }

    /// The number that replies about subscriptions of this kind show: channels and patterns count
    /// together.
    pub(crate) fn shown(&self, kind: Kind) -> usize {
        let [channels, shard, patterns] = self.counts();
        match kind {
            Kind::Shard => shard,
            Kind::Channel | Kind::Pattern => channels + patterns,
        }
    }

    pub(crate) fn names(&self, kind: Kind) -> impl Iterator<Item = &Arc<[u8]>> {
        self.names[kind as usize].iter()
    }

    /// Whether these subscriptions may be added.
    pub(crate) fn has_room<'n>(&self, kind: Kind, names: impl Iterator<Item = &'n [u8]>) -> bool {
        let more: usize = names.map(|name| bytes_of(kind, name)).sum();
        self.bytes + more <= SUBSCRIPTIONS_BYTES_MAX
    }

    pub(crate) fn has(&self, kind: Kind, name: &[u8]) -> bool {
        self.names[kind as usize].contains(name)
    }
}

/// The numbers of the messages that an ended subscription was for.
pub(crate) type Ended = Range<u64>;

/// Slots of clients, each with the number of messages before its subscription.
type Slots = BTreeMap<u32, u64>;

/// The clients of one thread that have subscriptions, by kind and name.
#[derive(Debug)]
pub struct Subscribers {
    thread: usize,
    names: [HashMap<Arc<[u8]>, Slots>; 3],
}

impl Subscribers {
    pub(crate) fn new(thread: usize) -> Subscribers {
        Subscribers {
            thread,
            names: Default::default(),
        }
    }

    /// Adds a subscription. The client in `slot` must not have it yet.
    pub(crate) fn add(
        &mut self,
        registry: &PubSub,
        (slot, subscriptions): (u32, &mut Subscriptions),
        kind: Kind,
        name: &[u8],
    ) {
        subscriptions.bytes += bytes_of(kind, name);
        let names = &mut self.names[kind as usize];
        let name = match names.get_key_value(name) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::from(name),
        };
        let number = registry.subscribe(kind, &name, self.thread);
        let slots = names.entry(Arc::clone(&name)).or_default();
        slots.insert(slot, number);
        subscriptions.names[kind as usize].insert(name);
    }

    /// Removes a subscription; returns the messages that it was for. `None`: the client has no such
    /// subscription.
    pub(crate) fn remove(
        &mut self,
        registry: &PubSub,
        (slot, subscriptions): (u32, &mut Subscriptions),
        kind: Kind,
        name: &[u8],
    ) -> Option<Ended> {
        if !subscriptions.names[kind as usize].remove(name) {
            return None;
        }
        let bytes = bytes_of(kind, name);
        subscriptions.bytes -= bytes;
        heap::freed(bytes);
        let end = registry.unsubscribe(kind, name, self.thread);
        let names = &mut self.names[kind as usize];
        let slots = names.get_mut(name)?;
        let number = slots.remove(&slot);
        if slots.is_empty() {
            names.remove(name);
        }
        Some(number?..end)
    }

    /// Removes all subscriptions of a client.
    pub(crate) fn remove_all(
        &mut self,
        registry: &PubSub,
        slot: u32,
        mut subscriptions: Box<Subscriptions>,
    ) {
        for kind in Kind::ALL {
            let names: Vec<_> = subscriptions.names(kind).cloned().collect();
            for name in names {
                self.remove(registry, (slot, &mut subscriptions), kind, &name);
            }
        }
    }

    /// The clients with this pattern or, if that is `None`, with the message's channel: their
    /// slots, each with the number of the message from which on the client gets them (S2).
    pub fn receivers(
        &self,
        publication: &Publication,
        pattern: Option<&Arc<[u8]>>,
    ) -> impl Iterator<Item = (u32, u64)> {
        let slots = match pattern {
            Some(pattern) => self.names[Kind::Pattern as usize].get(pattern),
            None => self.names[publication.kind as usize].get(&*publication.channel),
        };
        let slots = slots.into_iter().flatten();
        slots.map(|(slot, number)| (*slot, *number))
    }

    /// All names of this kind with clients.
    pub(crate) fn names(&self, kind: Kind) -> Vec<Arc<[u8]>> {
        self.names[kind as usize].keys().cloned().collect()
    }

    /// The slots of the clients that have this name.
    pub fn slots_of(&self, kind: Kind, name: &[u8]) -> Vec<u32> {
        let slots = self.names[kind as usize].get(name).into_iter();
        slots.flat_map(BTreeMap::keys).copied().collect()
    }

    /// The slots of all clients that have subscriptions.
    pub fn slots(&self) -> BTreeSet<u32> {
        let all = self.names.iter().flat_map(HashMap::values);
        all.flat_map(BTreeMap::keys).copied().collect()
    }
}

/// Consecutive messages for the subscribers of one name, encoded once for each protocol.
#[derive(Debug, Default)]
pub struct Encoded {
    bytes: [Vec<u8>; 2],
    /// The number of each message, and its place in `bytes`.
    starts: Vec<(u64, [usize; 2])>,
}

impl Encoded {
    /// Encodes `run`, messages in the order of their numbers. `pattern`: the pattern by which the
    /// clients get them.
    pub fn new(run: &[Arc<Publication>], pattern: Option<&Arc<[u8]>>) -> Encoded {
        let mut encoded = Encoded::default();
        for publication in run {
            let places = encoded.bytes.each_ref().map(Vec::len);
            encoded.starts.push((publication.number, places));
            let protocols = [Protocol::Resp2, Protocol::Resp3];
            for (out, protocol) in encoded.bytes.iter_mut().zip(protocols) {
                write_message(Encoder::new(out, protocol), publication, pattern);
            }
        }
        encoded
    }

    /// The messages from number `from` on (S2).
    pub fn since(&self, from: u64, protocol: Protocol) -> &[u8] {
        let which = match protocol {
            Protocol::Resp2 => 0,
            Protocol::Resp3 => 1,
        };
        let first = self.starts.iter().find(|(number, _)| *number >= from);
        first.map_or(&[], |(_, places)| &self.bytes[which][places[which]..])
    }
}

/// Appends a message as a client gets it.
pub(crate) fn write_message(
    mut push: Encoder<'_>,
    publication: &Publication,
    pattern: Option<&Arc<[u8]>>,
) {
    match (pattern, publication.kind) {
        (Some(pattern), _) => {
            push.push(4);
            push.bulk(b"pmessage");
            push.bulk(pattern);
        }
        (None, Kind::Shard) => {
            push.push(3);
            push.bulk(b"smessage");
        }
        (None, Kind::Channel | Kind::Pattern) => {
            push.push(3);
            push.bulk(b"message");
        }
    }
    push.bulk(&publication.channel);
    push.bulk(&publication.payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_since_a_subscription_are_the_end_of_one_buffer() {
        let messages = [3, 4, 9].map(|number: u64| {
            Arc::new(Publication {
                kind: Kind::Channel,
                channel: b"news"[..].into(),
                payload: number.to_string().into_bytes().into(),
                patterns: Vec::new(),
                number,
            })
        });
        let encoded = Encoded::new(&messages, None);
        for (since, count) in [(0, 3), (3, 3), (4, 2), (5, 1), (9, 1), (10, 0)] {
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let mut out = Vec::new();
                for message in &messages[messages.len() - count..] {
                    write_message(Encoder::new(&mut out, protocol), message, None);
                }
                assert_eq!(encoded.since(since, protocol), out, "{since}");
            }
        }
    }
}
