//! Publish and subscribe: the registry of all subscriptions, and the posting of messages to the
//! threads whose clients have them.
//!
//! **Mechanism.** The registry knows how many clients of each thread have a channel or a pattern;
//! each thread knows which clients these are (`pubsub::subscribers`). A message is posted once
//! to each thread that has subscribers. The thread appends it to their outputs, so a publisher
//! never touches the socket of a subscriber.
//!
//! **Invariants**
//! - P1: a message is posted while the lock of its channel's shard is held: all subscribers of a
//!   channel get its messages in one order.
//! - P2: the number that `publish` returns is the number of subscriptions at that moment. A
//!   subscription has the number of messages before it ([`PubSub::subscribe`]), and gets none of
//!   those messages. Before it ends, its client gets all later ones (`pubsub::commands`).
//! - P3: no publisher waits for a thread that delivers. The bytes that wait in a mailbox are
//!   bounded: a client whose message makes a mailbox crowded is not read from for a while
//!   (`reactor::effects`), and beyond `POSTED_BYTES_MAX` a message is lost, and the thread closes
//!   the subscribers that it was for.
//! - P4: names are matched against patterns while no lock is held. Under the lock only the patterns
//!   that came meanwhile are matched.
//!
//! **Concurrency.** Lock order: a shard, the patterns, the queue of a mailbox. Nothing is waited
//! for while one of them is held.

use crate::threads::mailbox::Message;
use crate::threads::publication::{Kind, Publication};
use crate::threads::thread::ThreadShared;
use duramen_base::glob::Pattern;
use duramen_base::limits::KEY_BYTES_MAX;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

/// Shards of the registry: many more than threads, so that two of them seldom want the same.
const SHARDS: usize = 256;

/// Patterns match channels with names up to this many bytes: those of all keyspace events.
pub(crate) const MATCHED_BYTES_MAX: usize = KEY_BYTES_MAX + 64;

/// The threads of a server, and the number of the thread that publishes: it takes its own messages
/// before it sleeps. `own` is `None` if that thread is no reactor thread.
#[derive(Clone, Copy)]
pub struct Publisher<'a> {
    pub(crate) threads: &'a [ThreadShared],
    pub(crate) own: Option<usize>,
}

impl Publisher<'_> {
    /// The publisher for a thread that is no reactor.
    pub fn other(threads: &[ThreadShared]) -> Publisher<'_> {
        Publisher { threads, own: None }
    }
}

/// Number of clients by thread, without threads that have none.
type Subscribers = Vec<(u16, u32)>;

fn count(subscribers: &Subscribers) -> u64 {
    let clients = subscribers.iter().map(|(_, clients)| u64::from(*clients));
    clients.sum()
}

fn add(subscribers: &mut Subscribers, thread: u16) {
    match subscribers.iter_mut().find(|(known, _)| *known == thread) {
        Some((_, clients)) => *clients += 1,
        None => subscribers.push((thread, 1)),
    }
}

fn remove(subscribers: &mut Subscribers, thread: u16) {
    for (known, clients) in subscribers.iter_mut() {
        *clients -= u32::from(*known == thread);
    }
    subscribers.retain(|(_, clients)| *clients > 0);
}

type Names = HashMap<Box<[u8]>, Subscribers>;

#[derive(Debug, Default)]
struct Shard {
    channels: Names,
    shard_channels: Names,
}

impl Shard {
    fn names(&mut self, kind: Kind) -> &mut Names {
        match kind {
            Kind::Shard => &mut self.shard_channels,
            Kind::Channel | Kind::Pattern => &mut self.channels,
        }
    }
}

/// A pattern with subscribers.
#[derive(Debug)]
struct Subscribed {
    number: u64,
    subscribers: Subscribers,
}

/// A pattern to be matched: its number, its text, and its compiled form.
#[derive(Clone, Debug)]
struct Matcher {
    number: u64,
    text: Arc<[u8]>,
    /// The compiled pattern; `None` if the pattern is longer than a pattern may be, and so matches
    /// nothing.
    compiled: Option<Arc<Pattern>>,
}

impl Matcher {
    fn matches(&self, channel: &[u8]) -> bool {
        let compiled = self.compiled.as_ref();
        channel.len() <= MATCHED_BYTES_MAX
            && compiled.is_some_and(|pattern| pattern.matches(channel))
    }
}

/// All patterns with subscribers.
#[derive(Debug, Default)]
struct Patterns {
    by_text: HashMap<Arc<[u8]>, Subscribed>,
    /// The patterns by their numbers, in the order in which they came.
    by_number: BTreeMap<u64, Matcher>,
    /// The number of the next pattern.
    next: u64,
    /// All of `by_number`, for publishers without the lock. Made by the first publisher after a
    /// change.
    list: OnceLock<Arc<Vec<Matcher>>>,
}

impl Patterns {
    fn add(&mut self, text: &[u8], thread: u16) {
        if let Some(known) = self.by_text.get_mut(text) {
            return add(&mut known.subscribers, thread);
        }
        let (number, text) = (self.next, Arc::<[u8]>::from(text));
        self.next += 1;
        let compiled = Pattern::new(&text, false).map(Arc::new);
        let subscribers = vec![(thread, 1)];
        self.by_text.insert(
            Arc::clone(&text),
            Subscribed {
                number,
                subscribers,
            },
        );
        self.by_number.insert(
            number,
            Matcher {
                number,
                text,
                compiled,
            },
        );
        self.list = OnceLock::new();
    }

    fn remove(&mut self, text: &[u8], thread: u16) {
        let Some(known) = self.by_text.get_mut(text) else {
            return;
        };
        remove(&mut known.subscribers, thread);
        if known.subscribers.is_empty() {
            self.by_number.remove(&known.number);
            self.by_text.remove(text);
            self.list = OnceLock::new();
        }
    }

    /// All patterns, and the number of the next one.
    fn list(&self) -> (Arc<Vec<Matcher>>, u64) {
        let make = || Arc::new(self.by_number.values().cloned().collect());
        (Arc::clone(self.list.get_or_init(make)), self.next)
    }
}

/// The patterns that a channel matches, as far as they had come when it was matched (P4).
#[derive(Default)]
struct Matched {
    patterns: Vec<Matcher>,
    /// The number of the first pattern that came too late to be compared.
    next: u64,
}

/// All subscriptions of a server.
#[derive(Debug)]
pub struct PubSub {
    hashes: RandomState,
    shards: Box<[Mutex<Shard>]>,
    patterns: RwLock<Patterns>,
    /// Number of patterns with subscribers. Changes under the lock of `patterns`. A publisher that
    /// reads 0 without the lock has published before the first of them.
    pattern_count: AtomicUsize,
    /// Number of messages so far. Changes under the lock of a shard and that of `patterns`, shared.
    /// Relaxed: the locks order it where that matters (P2).
    published: AtomicU64,
    /// Distinct channels with subscribers, of each kind but patterns. Counts only.
    channel_counts: [AtomicUsize; 2],
}

impl Default for PubSub {
    fn default() -> PubSub {
        PubSub {
            hashes: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            patterns: RwLock::default(),
            pattern_count: AtomicUsize::new(0),
            published: AtomicU64::new(0),
            channel_counts: Default::default(),
        }
    }
}

impl PubSub {
    fn shard(&self, channel: &[u8]) -> MutexGuard<'_, Shard> {
        let shard = &self.shards[self.hashes.hash_one(channel) as usize % SHARDS];
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client of `thread` to the subscribers of a name. The client must not be one of them
    /// yet. Returns the number of messages before the subscription (P2).
    pub fn subscribe(&self, kind: Kind, name: &[u8], thread: usize) -> u64 {
        let thread = thread as u16;
        if kind == Kind::Pattern {
            let patterns = self.patterns.write();
            let mut patterns = patterns.unwrap_or_else(PoisonError::into_inner);
            patterns.add(name, thread);
            let count = patterns.by_text.len();
            self.pattern_count.store(count, Ordering::Relaxed);
            return self.published.load(Ordering::Relaxed);
        }
        let mut shard = self.shard(name);
        let names = shard.names(kind);
        match names.get_mut(name) {
            Some(subscribers) => add(subscribers, thread),
            None => {
                names.insert(name.into(), vec![(thread, 1)]);
                self.channel_counts[kind as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
        self.published.load(Ordering::Relaxed)
    }

    /// Removes a client of `thread` from the subscribers of a name. Returns the number of messages
    /// before the end of the subscription: its client gets none of the later ones.
    pub(crate) fn unsubscribe(&self, kind: Kind, name: &[u8], thread: usize) -> u64 {
        let thread = thread as u16;
        if kind == Kind::Pattern {
            let patterns = self.patterns.write();
            let mut patterns = patterns.unwrap_or_else(PoisonError::into_inner);
            patterns.remove(name, thread);
            let count = patterns.by_text.len();
            self.pattern_count.store(count, Ordering::Relaxed);
            return self.published.load(Ordering::Relaxed);
        }
        let mut shard = self.shard(name);
        let names = shard.names(kind);
        if let Some(subscribers) = names.get_mut(name) {
            remove(subscribers, thread);
            if subscribers.is_empty() {
                names.remove(name);
                self.channel_counts[kind as usize].fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.published.load(Ordering::Relaxed)
    }

    /// Posts a message to the threads with subscribers; returns the number of subscriptions that
    /// get it (P1, P2).
    pub fn publish(&self, from: Publisher<'_>, kind: Kind, channel: &[u8], payload: &[u8]) -> u64 {
        self.publish_also(from, kind, channel, payload, || {})
    }

    /// As [`publish`](Self::publish); calls `also` in the order of the channel's messages.
    pub(crate) fn publish_also(
        &self,
        from: Publisher<'_>,
        kind: Kind,
        channel: &[u8],
        payload: &[u8],
        also: impl FnOnce(),
    ) -> u64 {
        let matched = match kind {
            Kind::Shard => Matched::default(),
            Kind::Channel | Kind::Pattern => self.matched(channel),
        };
        self.post_matched(from, (kind, channel, payload), &matched, also)
    }

    /// Posts a message to the threads with subscribers. `matched`: the patterns that were found
    /// without the lock.
    fn post_matched(
        &self,
        from: Publisher<'_>,
        (kind, channel, payload): (Kind, &[u8], &[u8]),
        matched: &Matched,
        also: impl FnOnce(),
    ) -> u64 {
        let mut shard = self.shard(channel);
        also();
        let subscribers = shard.names(kind).get(channel);
        if kind == Kind::Shard || self.pattern_count.load(Ordering::Relaxed) == 0 {
            let Some(subscribers) = subscribers else {
                return 0;
            };
            self.post(from, (kind, channel, payload), subscribers, Vec::new());
            return count(subscribers);
        }
        let patterns = self.patterns.read();
        let patterns = patterns.unwrap_or_else(PoisonError::into_inner);
        let newer = patterns.by_number.range(matched.next..);
        let newer = newer.map(|(_, it)| it).filter(|it| it.matches(channel));
        let mut all = subscribers.cloned().unwrap_or_default();
        let (mut texts, mut received) = (Vec::new(), count(&all));
        for matcher in matched.patterns.iter().chain(newer) {
            // The pattern may have gone meanwhile, and may have come again with a new number.
            let known = patterns.by_text.get(&matcher.text);
            if let Some(known) = known.filter(|it| it.number == matcher.number) {
                texts.push(Arc::clone(&matcher.text));
                received += count(&known.subscribers);
                for (thread, _) in &known.subscribers {
                    if all.iter().all(|(known, _)| known != thread) {
                        all.push((*thread, 0));
                    }
                }
            }
        }
        if !all.is_empty() {
            self.post(from, (kind, channel, payload), &all, texts);
        }
        received
    }

    /// Matches a channel against the patterns, while no lock is held (P4).
    fn matched(&self, channel: &[u8]) -> Matched {
        if self.pattern_count.load(Ordering::Relaxed) == 0 {
            return Matched::default();
        }
        let (list, next) = {
            let patterns = self.patterns.read();
            patterns.unwrap_or_else(PoisonError::into_inner).list()
        };
        let patterns = list.iter().filter(|it| it.matches(channel));
        Matched {
            patterns: patterns.cloned().collect(),
            next,
        }
    }

    /// Posts a message to threads. `subscribers` has each thread once. The locks are held.
    fn post(
        &self,
        from: Publisher<'_>,
        (kind, channel, payload): (Kind, &[u8], &[u8]),
        subscribers: &Subscribers,
        patterns: Vec<Arc<[u8]>>,
    ) {
        let publication = Arc::new(Publication {
            kind,
            channel: channel.into(),
            payload: payload.into(),
            patterns,
            number: self.published.fetch_add(1, Ordering::Relaxed),
        });
        for (thread, _) in subscribers {
            let number = usize::from(*thread);
            if let Some(thread) = from.threads.get(number) {
                let message = Message::Publish(Arc::clone(&publication));
                match from.own == Some(number) {
                    true => thread.mailbox.post_own(message),
                    false => thread.mailbox.post(message),
                }
            }
        }
    }

    /// Number of clients here that would receive a message to a channel now.
    pub(crate) fn receivers(&self, channel: &[u8]) -> u64 {
        let matched = self.matched(channel);
        let patterns = self.patterns.read();
        let patterns = patterns.unwrap_or_else(PoisonError::into_inner);
        let known = matched.patterns.iter();
        let known = known.filter_map(|it| patterns.by_text.get(&it.text));
        let by_pattern: u64 = known.map(|known| count(&known.subscribers)).sum();
        drop(patterns);
        self.subscribers(Kind::Channel, channel) + by_pattern
    }

    /// Number of clients with this channel.
    pub(crate) fn subscribers(&self, kind: Kind, channel: &[u8]) -> u64 {
        self.shard(channel)
            .names(kind)
            .get(channel)
            .map_or(0, count)
    }

    /// The channels with subscribers that `matches` accepts.
    pub(crate) fn channels(&self, kind: Kind, matches: impl Fn(&[u8]) -> bool) -> Vec<Box<[u8]>> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let names = shard.names(kind).keys();
            found.extend(names.filter(|name| matches(name)).cloned());
        }
        found
    }

    /// Number of different names of this kind with subscribers.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Pattern => self.pattern_count.load(Ordering::Relaxed),
            kind => self.channel_counts[kind as usize].load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::bell::Silent;

    fn threads(number: usize) -> Vec<ThreadShared> {
        let threads = (0..number).map(|_| ThreadShared::new(Arc::new(Silent)));
        threads.collect()
    }

    /// The payloads that wait in a thread's mailbox.
    fn taken(thread: &ThreadShared) -> Vec<(Vec<u8>, usize)> {
        let mut messages = Vec::new();
        thread.mailbox.take(&mut messages);
        let publications = messages.into_iter().filter_map(|message| match message {
            Message::Publish(it) => Some((it.payload.to_vec(), it.patterns.len())),
            _ => None,
        });
        publications.collect()
    }

    #[test]
    fn a_message_is_posted_once_to_each_thread_that_has_subscribers() {
        let (registry, threads) = (PubSub::default(), threads(3));
        for (kind, name, thread) in [
            (Kind::Channel, "news", 0),
            (Kind::Channel, "news", 0),
            (Kind::Channel, "news", 2),
            (Kind::Pattern, "n*", 2),
            (Kind::Pattern, "*s", 2),
            (Kind::Pattern, "x*", 1),
            (Kind::Shard, "news", 1),
        ] {
            registry.subscribe(kind, name.as_bytes(), thread);
        }
        let from = Publisher {
            threads: &threads,
            own: None,
        };
        let publish = |kind, channel: &str| registry.publish(from, kind, channel.as_bytes(), b"m");
        assert_eq!(publish(Kind::Channel, "news"), 5);
        assert_eq!(taken(&threads[0]), [(b"m".to_vec(), 2)]);
        assert_eq!(taken(&threads[1]), []);
        assert_eq!(taken(&threads[2]), [(b"m".to_vec(), 2)]);
        assert_eq!(publish(Kind::Shard, "news"), 1);
        assert_eq!(taken(&threads[1]), [(b"m".to_vec(), 0)]);
        assert_eq!(publish(Kind::Channel, "other"), 0);
        assert_eq!(registry.count(Kind::Channel), 1);
        assert_eq!(registry.count(Kind::Pattern), 3);
        assert_eq!(registry.subscribers(Kind::Channel, b"news"), 3);
    }

    #[test]
    fn a_name_without_subscribers_takes_no_memory() {
        let registry = PubSub::default();
        for kind in Kind::ALL {
            for thread in [0, 1, 1] {
                registry.subscribe(kind, b"a", thread);
            }
            for thread in [1, 0, 1] {
                assert_eq!(registry.count(kind), 1);
                registry.unsubscribe(kind, b"a", thread);
            }
            assert_eq!(registry.count(kind), 0);
        }
        assert!(registry.channels(Kind::Channel, |_| true).is_empty());
        assert!(registry.channels(Kind::Shard, |_| true).is_empty());
    }

    /// P4: a pattern that comes while a publisher matches without the lock gets the message, and
    /// one that goes, or goes and comes again, does not get it twice.
    #[test]
    fn patterns_that_change_while_a_message_is_matched_are_exact() {
        let (registry, threads) = (PubSub::default(), threads(2));
        let from = Publisher::other(&threads);
        for text in [b"a*", b"*b", b"?b"] {
            registry.subscribe(Kind::Pattern, text, 0);
        }
        let matched = registry.matched(b"ab");
        assert_eq!((matched.patterns.len(), matched.next), (3, 3));
        registry.unsubscribe(Kind::Pattern, b"a*", 0);
        registry.unsubscribe(Kind::Pattern, b"*b", 0);
        registry.subscribe(Kind::Pattern, b"*b", 1);
        registry.subscribe(Kind::Pattern, b"[a]b", 1);
        registry.subscribe(Kind::Pattern, b"x*", 1);
        let message = (Kind::Channel, &b"ab"[..], &b"m"[..]);
        assert_eq!(registry.post_matched(from, message, &matched, || {}), 3);
        assert_eq!(taken(&threads[0]), [(b"m".to_vec(), 3)]);
        assert_eq!(taken(&threads[1]), [(b"m".to_vec(), 3)]);
    }

    /// One channel of 64 MB once took a thread for seconds for each pattern.
    #[test]
    fn patterns_match_no_name_that_is_longer_than_those_of_events() {
        let (registry, threads) = (PubSub::default(), threads(1));
        let from = Publisher::other(&threads);
        registry.subscribe(Kind::Pattern, b"*", 0);
        for (bytes, received) in [(MATCHED_BYTES_MAX, 1), (MATCHED_BYTES_MAX + 1, 0)] {
            let channel = vec![b'a'; bytes];
            let heard = registry.publish(from, Kind::Channel, &channel, b"m");
            assert_eq!(heard, received, "{bytes}");
        }
    }

    /// The patterns of a message were not counted: 16 bytes for each that matched.
    #[test]
    fn the_patterns_of_a_message_count_in_the_mailbox() {
        let (registry, threads) = (PubSub::default(), threads(1));
        let from = Publisher::other(&threads);
        for n in 0..1_000 {
            registry.subscribe(Kind::Pattern, format!("*{n}*").as_bytes(), 0);
            registry.subscribe(Kind::Pattern, format!("a{}", "*".repeat(n)).as_bytes(), 0);
        }
        for _ in 0..80 {
            assert!(registry.publish(from, Kind::Channel, b"a", b"") >= 999);
        }
        assert!(threads[0].mailbox.is_crowded());
    }

    /// A message that waits in the mailbox is not for clients that subscribe now (P2).
    #[test]
    fn a_subscription_knows_the_messages_before_it() {
        let (registry, threads) = (PubSub::default(), threads(1));
        let from = Publisher {
            threads: &threads,
            own: Some(0),
        };
        assert_eq!(registry.subscribe(Kind::Channel, b"a", 0), 0);
        registry.publish(from, Kind::Channel, b"a", b"1");
        registry.publish(from, Kind::Channel, b"b", b"unheard");
        assert_eq!(registry.subscribe(Kind::Pattern, b"*", 0), 1);
        registry.publish(from, Kind::Channel, b"a", b"2");
        assert_eq!(registry.subscribe(Kind::Channel, b"b", 0), 2);
        let mut messages = Vec::new();
        threads[0].mailbox.take(&mut messages);
        let numbers = messages.iter().map(|message| match message {
            Message::Publish(publication) => publication.number,
            other => panic!("{other:?}"),
        });
        assert!(numbers.eq([0, 1]));
    }
}
