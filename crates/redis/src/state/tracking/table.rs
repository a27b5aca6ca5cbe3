//! Keys that clients have in their own caches (`CLIENT TRACKING`): which client has read which key,
//! and the invalidations when a key changes.
//!
//! **Mechanism.** A client that tracks is remembered under each key that it reads. The store tells
//! of every key that is written, removed, evicted or found expired (`Listeners::when_written`,
//! `Listeners::when_departed`); then the key's clients are forgotten, and their threads get an
//! invalidation to deliver (`reactor::tracking`). A client in broadcast mode is not remembered:
//! it gets all changed keys that begin with one of its prefixes.
//!
//! **Invariants**
//! - I1: no change is missed. A client is remembered before it reads, and a change is told after it
//!   is visible. Both take the lock of the key's shard. So either the change finds the client, or
//!   the client reads the new value. A change is told when its guard ends. Clients may have begun
//!   to read the key after the change, under the same guard: these do not hear of the change, and
//!   stay remembered.
//! - I2: the store tells of changes from the moment at which the first client tracks. That client
//!   waits until all earlier guards have ended (writes::N2).
//! - I3: memory is bounded: keys by `tracking-table-max-keys`, and all of the table by a share of
//!   `memory` (`MEMORY_SHARE`). A key that has to go is invalidated, as if it had changed. If a
//!   mailbox is full of invalidations for a client, they become one of all keys. The prefixes of
//!   all clients have the same share of memory; further prefixes are refused.
//! - I4: a change of many keys at once (an emptied database, exchanged ones, tablets that leave
//!   this server) invalidates all keys of all clients.
//!
//! **Concurrency.** Only threads without a guard take the lock `listens`, because with it one waits
//! for the end of other threads' guards. The other locks are held for a look, and nothing is waited
//! for meanwhile; their order: the clients, a shard; the prefixes, the queue of a mailbox. A thread
//! of its own drops forgotten tables, because that takes long.

use crate::threads::background::Background;
use crate::threads::mailbox::{Invalid, Invalidation, Message};
use crate::threads::start::Starter;
use crate::threads::thread::ThreadShared;
use duramen_config::clock;
use duramen_engine::Written;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Shards of the table: many more than threads, so that two of them seldom want the same.
const SHARDS: usize = 256;
/// The table takes at most `memory` divided by this.
const MEMORY_SHARE: u64 = 20;
/// Memory of a key beside its name, and of a client that has read it.
const KEY_BYTES: usize = 128;
const READER_BYTES: usize = 48;
/// Memory of a client's prefix beside its text.
pub(crate) const PREFIX_BYTES: usize = 256;
/// Number of clients under one key above which the clients that have gone are searched and
/// forgotten.
const CROWD: usize = 1_024;
/// The store tells of changes for this long after the last client that tracked.
const LINGER_MS: u64 = 10_000;
/// Maximum keys that leave at once when the limits are lowered.
const EVICTED_AT_ONCE: usize = 4_096;

/// Clients with their threads.
type Readers = BTreeMap<u64, u16>;

/// Keys with the clients that have read them.
#[derive(Debug, Default)]
struct Shard {
    keys: BTreeMap<Box<[u8]>, Readers>,
    size: Size,
}

/// Size of a part of the table.
#[derive(Clone, Copy, Debug, Default)]
struct Size {
    keys: usize,
    /// Pairs of a key and a client.
    items: usize,
    bytes: usize,
}

impl Size {
    fn of_key(key: &[u8], readers: usize) -> Size {
        Size {
            keys: 1,
            items: readers,
            bytes: KEY_BYTES + key.len() + readers * READER_BYTES,
        }
    }

    fn of_readers(readers: usize) -> Size {
        Size {
            keys: 0,
            items: readers,
            bytes: readers * READER_BYTES,
        }
    }
}

/// Limits of the table.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub(crate) keys: usize,
    pub(crate) bytes: usize,
}

impl Limits {
    /// `keys` is the maximum number of keys; 0: only memory bounds them.
    pub fn new(keys: usize, memory_bytes: u64) -> Limits {
        Limits {
            keys: if keys == 0 { usize::MAX } else { keys },
            bytes: (memory_bytes / MEMORY_SHARE) as usize,
        }
    }
}

/// The prefixes of clients in broadcast mode.
#[derive(Debug, Default)]
struct Prefixes {
    clients: HashMap<Box<[u8]>, Readers>,
    /// Number of prefixes by length.
    lengths: BTreeMap<usize, usize>,
    /// Bytes of the prefixes of each client.
    bytes: usize,
}

impl Prefixes {
    /// The prefixes of a key, each with the clients that want to hear of it.
    fn of<'k>(&self, key: &'k [u8]) -> impl Iterator<Item = (&'k [u8], &Readers)> {
        let lengths = self.lengths.range(..=key.len());
        lengths.filter_map(move |(length, _)| {
            let prefix = &key[..*length];
            Some((prefix, self.clients.get(prefix)?))
        })
    }
}

/// Numbers for `INFO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    /// Pairs of a key and a client.
    pub(crate) items: usize,
    pub(crate) prefixes: usize,
}

/// The keys that all clients have read, and the prefixes of which they want to hear.
pub struct Tracking {
    /// The clients that track, and their number for those that do not take the lock.
    clients: Mutex<Readers>,
    client_count: AtomicUsize,
    /// Whether the store tells of changes.
    listens: Mutex<bool>,
    /// When the last client ended, in milliseconds of the server's clock.
    idle_since_ms: AtomicU64,
    hashes: RandomState,
    shards: Box<[Mutex<Shard>]>,
    keys: AtomicUsize,
    items: AtomicUsize,
    bytes: AtomicUsize,
    prefixes: RwLock<Prefixes>,
    discards: Background,
}

impl Tracking {
    pub(crate) fn new(starter: Starter) -> Tracking {
        Tracking {
            clients: Mutex::default(),
            client_count: AtomicUsize::new(0),
            listens: Mutex::default(),
            idle_since_ms: AtomicU64::new(0),
            hashes: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            keys: AtomicUsize::new(0),
            items: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            prefixes: RwLock::default(),
            discards: Background::new("forgotten-keys", starter),
        }
    }

    fn change_clients(&self, change: impl FnOnce(&mut Readers)) {
        let clients = self.clients.lock();
        let mut clients = clients.unwrap_or_else(PoisonError::into_inner);
        change(&mut clients);
        self.client_count.store(clients.len(), Ordering::Relaxed);
    }

    fn place(&self, key: &[u8]) -> usize {
        self.hashes.hash_one(key) as usize % SHARDS
    }

    fn shard(&self, place: usize) -> MutexGuard<'_, Shard> {
        let shard = self.shards[place].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any client tracks.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.client_count.load(Ordering::Relaxed) > 0
    }

    /// Notes that a client tracks from now on. `listen` makes the store tell of changes, and waits
    /// until it does (I2). The calling thread must have no guard.
    pub(crate) fn begin<E>(
        &self,
        client: u64,
        thread: usize,
        listen: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        self.change_clients(|clients| {
            clients.insert(client, thread as u16);
        });
        fence(Ordering::SeqCst); // the client reads what others have written, or they see `is_on`
        let mut listens = self.listens();
        if !*listens {
            if let Err(error) = listen() {
                drop(listens);
                self.end(client, [].iter());
                return Err(error);
            }
            *listens = true;
        }
        Ok(())
    }

    /// Notes that a client does not track any more. The keys that it has read are forgotten when
    /// they change or have to go.
    pub(crate) fn end<'p>(&self, client: u64, prefixes: impl Iterator<Item = &'p Arc<[u8]>>) {
        self.remove_prefixes(client, prefixes);
        self.idle_since_ms.store(clock::now_ms(), Ordering::Relaxed);
        self.change_clients(|clients| {
            clients.remove(&client);
            if clients.is_empty() {
                self.forget_all(); // a client that begins now waits for the lock
            }
        });
    }

    /// The clients in broadcast mode.
    pub(crate) fn broadcasters(&self) -> BTreeSet<u64> {
        let all = self.prefixes.read().unwrap_or_else(PoisonError::into_inner);
        let clients = all.clients.values().flat_map(BTreeMap::keys);
        clients.copied().collect()
    }

    /// Adds prefixes. Returns false if the prefixes of all clients would take too much memory; then
    /// none was added.
    #[must_use]
    pub(crate) fn add_prefixes<'p>(
        &self,
        (client, thread): (u64, usize),
        prefixes: impl Iterator<Item = &'p Arc<[u8]>> + Clone,
        limits: Limits,
    ) -> bool {
        let all = self.prefixes.write();
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        let has = |prefix: &&Arc<[u8]>| {
            let clients = all.clients.get(&***prefix);
            clients.is_some_and(|clients| clients.contains_key(&client))
        };
        let new: Vec<_> = prefixes.filter(|prefix| !has(prefix)).collect();
        let bytes = new.iter().map(|prefix| PREFIX_BYTES + prefix.len());
        let bytes = all.bytes + bytes.sum::<usize>();
        if bytes > limits.bytes {
            return false;
        }
        all.bytes = bytes;
        for prefix in new {
            let clients = all.clients.entry((&**prefix).into()).or_default();
            let is_new = clients.is_empty();
            clients.insert(client, thread as u16);
            if is_new {
                *all.lengths.entry(prefix.len()).or_default() += 1;
            }
        }
        true
    }

    fn remove_prefixes<'p>(&self, client: u64, prefixes: impl Iterator<Item = &'p Arc<[u8]>>) {
        let mut prefixes = prefixes.peekable();
        if prefixes.peek().is_none() {
            return;
        }
        let all = self.prefixes.write();
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        for prefix in prefixes {
            let Some(clients) = all.clients.get_mut(&**prefix) else {
                continue;
            };
            let is_removed = clients.remove(&client).is_some();
            let is_last = clients.is_empty();
            if is_removed {
                all.bytes -= PREFIX_BYTES + prefix.len();
            }
            if is_last {
                all.clients.remove(&**prefix);
                let of_length = all.lengths.entry(prefix.len()).or_default();
                *of_length -= 1;
                if *of_length == 0 {
                    all.lengths.remove(&prefix.len());
                }
            }
        }
    }

    /// Remembers a client that is about to read a key (I1). Returns whether it was not remembered
    /// there before.
    pub(crate) fn remember(
        &self,
        threads: &[ThreadShared],
        (client, thread): (u64, usize),
        key: &[u8],
        limits: Limits,
    ) -> bool {
        let place = self.place(key);
        let mut shard = self.shard(place);
        if !shard.keys.contains_key(key) {
            shard.keys.insert(key.into(), Readers::new());
            self.grew(&mut shard, Size::of_key(key, 0));
        }
        let Some(readers) = shard.keys.get_mut(key) else {
            return false; // it is there now
        };
        let is_new = readers.insert(client, thread as u16).is_none();
        let count = readers.len();
        if !is_new {
            return false;
        }
        self.grew(&mut shard, Size::of_readers(1));
        drop(shard);
        if count >= CROWD && count.is_power_of_two() {
            self.forget_gone(key);
        }
        self.evict(threads, limits, 2, place + 1);
        true
    }

    /// Forgets the clients of a key that do not track any more.
    #[cold]
    fn forget_gone(&self, key: &[u8]) {
        let clients = self.clients.lock();
        let clients = clients.unwrap_or_else(PoisonError::into_inner);
        let mut shard = self.shard(self.place(key));
        if let Some(readers) = shard.keys.get_mut(key) {
            let before = readers.len();
            readers.retain(|client, _| clients.contains_key(client));
            let gone = before - readers.len();
            self.shrank(&mut shard, Size::of_readers(gone));
        }
    }

    /// Whether keys have to go.
    pub fn exceeds(&self, limits: Limits) -> bool {
        self.keys.load(Ordering::Relaxed) > limits.keys
            || self.bytes.load(Ordering::Relaxed) > limits.bytes
    }

    /// Invalidates up to `most` keys, from shard `from` on, while there are too many keys (I3).
    fn evict(&self, threads: &[ThreadShared], limits: Limits, most: usize, from: usize) {
        let (mut evicted, mut empty) = (0, 0);
        let mut place = from;
        while evicted < most && empty < SHARDS && self.exceeds(limits) {
            let mut shard = self.shard(place % SHARDS);
            place += 1;
            match shard.keys.pop_first() {
                Some((key, readers)) => {
                    self.shrank(&mut shard, Size::of_key(&key, readers.len()));
                    drop(shard);
                    invalidate(threads, &key, &readers);
                    (evicted, empty) = (evicted + 1, 0);
                }
                None => empty += 1,
            }
        }
    }

    fn grew(&self, shard: &mut Shard, by: Size) {
        shard.size.keys += by.keys;
        shard.size.items += by.items;
        shard.size.bytes += by.bytes;
        self.keys.fetch_add(by.keys, Ordering::Relaxed);
        self.items.fetch_add(by.items, Ordering::Relaxed);
        self.bytes.fetch_add(by.bytes, Ordering::Relaxed);
    }

    fn shrank(&self, shard: &mut Shard, by: Size) {
        shard.size.keys -= by.keys;
        shard.size.items -= by.items;
        shard.size.bytes -= by.bytes;
        self.keys.fetch_sub(by.keys, Ordering::Relaxed);
        self.items.fetch_sub(by.items, Ordering::Relaxed);
        self.bytes.fetch_sub(by.bytes, Ordering::Relaxed);
    }

    fn forget_all(&self) {
        let mut all = Vec::new();
        for place in 0..SHARDS {
            let mut shard = self.shard(place);
            if !shard.keys.is_empty() {
                all.push(std::mem::take(&mut shard.keys));
                let size = shard.size;
                self.shrank(&mut shard, size);
            }
        }
        if !all.is_empty() {
            // If there is no thread for it, they are dropped here.
            let _ = self.discards.give(move || drop(all));
        }
    }

    /// Forgets a key, and returns the clients that are to hear of its change. The other clients
    /// stay (I1).
    fn forget(&self, write: &Written) -> Option<Readers> {
        let key = &write.key;
        let mut shard = self.shard(self.place(key));
        let readers = shard.keys.get_mut(key)?;
        let others = write.readers.iter().chain([&write.origin]);
        let others: Readers = others.filter_map(|it| readers.remove_entry(it)).collect();
        if others.is_empty() {
            let readers = shard.keys.remove(key)?;
            self.shrank(&mut shard, Size::of_key(key, readers.len()));
            return Some(readers);
        }
        let told = std::mem::replace(readers, others);
        self.shrank(&mut shard, Size::of_readers(told.len()));
        Some(told)
    }

    /// Forgets a client that was about to read a key and has not read it.
    pub(crate) fn take_back(&self, client: u64, key: &[u8]) {
        let mut shard = self.shard(self.place(key));
        let Some(readers) = shard.keys.get_mut(key) else {
            return;
        };
        let was_there = readers.remove(&client).is_some();
        let is_empty = readers.is_empty();
        self.shrank(&mut shard, Size::of_readers(usize::from(was_there)));
        if is_empty {
            shard.keys.remove(key);
            self.shrank(&mut shard, Size::of_key(key, 0));
        }
    }

    /// Posts invalidations of changed keys; `writes` are those of one guard, in tables behind
    /// databases only. The origin of a write is the client that does not want to hear of it; 0 =
    /// none.
    pub(crate) fn changed(&self, threads: &[ThreadShared], writes: &[&Written]) {
        for write in writes {
            if let Some(readers) = self.forget(write) {
                invalidate(threads, &write.key, &readers);
            }
        }
        let prefixes = self.prefixes.read();
        let prefixes = prefixes.unwrap_or_else(PoisonError::into_inner);
        if prefixes.clients.is_empty() {
            return;
        }
        for writes in writes.chunk_by(|first, second| first.origin == second.origin) {
            broadcast(threads, &prefixes, writes);
        }
    }

    /// Posts that all keys have changed, to all clients or to those of one thread (I4).
    pub fn all_changed(&self, threads: &[ThreadShared], thread: Option<usize>) {
        if !self.is_on() {
            return;
        }
        // Clients that begin later have read nothing yet.
        if thread.is_none() {
            self.forget_all();
        }
        let mut clients = Readers::new();
        self.change_clients(|all| clients.clone_from(all));
        for (client, of) in clients {
            if thread.is_none_or(|thread| thread == usize::from(of)) {
                post(threads, of, client, Invalid::All);
            }
        }
    }

    fn listens(&self) -> MutexGuard<'_, bool> {
        self.listens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `show` with whether the store is to tell of changes. No client begins to track
    /// meanwhile.
    pub(crate) fn show_data(&self, show: impl FnOnce(bool)) {
        show(*self.listens());
    }

    /// Must be called from time to time by a thread without a guard. `stop` ends the store's
    /// telling of changes.
    pub(crate) fn tend(&self, threads: &[ThreadShared], limits: Limits, stop: impl FnOnce()) {
        self.evict(threads, limits, EVICTED_AT_ONCE, 0);
        if self.is_on() {
            return;
        }
        let mut listens = self.listens();
        let idle_since_ms = self.idle_since_ms.load(Ordering::Relaxed);
        let lingers = clock::now_ms().saturating_sub(idle_since_ms) < LINGER_MS;
        // A client that begins now waits for the lock.
        if *listens && !lingers && !self.is_on() {
            *listens = false;
            stop();
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        let prefixes = self.prefixes.read();
        let prefixes = prefixes.unwrap_or_else(PoisonError::into_inner);
        Totals {
            clients: self.client_count.load(Ordering::Relaxed),
            keys: self.keys.load(Ordering::Relaxed),
            items: self.items.load(Ordering::Relaxed),
            prefixes: prefixes.clients.len(),
        }
    }
}

fn post(threads: &[ThreadShared], thread: u16, client: u64, what: Invalid) {
    if let Some(thread) = threads.get(usize::from(thread)) {
        thread.mailbox.post(Message::Invalidate { client, what });
    }
}

/// Posts the invalidation of a key to those that have read it.
fn invalidate(threads: &[ThreadShared], key: &[u8], readers: &Readers) {
    let key: Arc<[u8]> = key.into();
    for (client, thread) in readers {
        let invalidation = Invalidation {
            is_broadcast: false,
            keys: vec![Arc::clone(&key)],
        };
        post(threads, *thread, *client, invalidation.into());
    }
}

/// Posts changes by one client to the clients that want to hear of them. As in Redis, the keys of
/// each prefix are a message of their own.
fn broadcast(threads: &[ThreadShared], prefixes: &Prefixes, writes: &[&Written]) {
    let mut told: BTreeMap<&[u8], (BTreeSet<&[u8]>, &Readers)> = BTreeMap::new();
    for write in writes {
        for (prefix, readers) in prefixes.of(&write.key) {
            let told = told
                .entry(prefix)
                .or_insert_with(|| (BTreeSet::new(), readers));
            told.0.insert(&write.key);
        }
    }
    let origin = writes.first().map_or(0, |write| write.origin);
    for (keys, readers) in told.into_values() {
        let keys: Vec<Arc<[u8]>> = keys.into_iter().map(Arc::from).collect();
        for (client, thread) in readers.iter().filter(|(client, _)| **client != origin) {
            let invalidation = Invalidation {
                is_broadcast: true,
                keys: keys.clone(),
            };
            post(threads, *thread, *client, invalidation.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::bell::Silent;
    use crate::threads::start::STARTER;
    use duramen_engine::TableId;

    fn threads() -> Vec<ThreadShared> {
        vec![ThreadShared::new(Arc::new(Silent))]
    }

    /// The invalidations that were posted: the client, and its keys; none = all keys.
    fn posted(threads: &[ThreadShared]) -> Vec<(u64, Vec<String>)> {
        let mut messages = Vec::new();
        threads[0].mailbox.take(&mut messages);
        let text = |key: &Arc<[u8]>| String::from_utf8_lossy(key).into_owned();
        let posted = messages.into_iter().filter_map(|message| match message {
            Message::Invalidate { client, what } => Some((
                client,
                match what {
                    Invalid::All => Vec::new(),
                    Invalid::Keys(all) => {
                        all.iter().flat_map(|it| it.keys.iter().map(text)).collect()
                    }
                },
            )),
            _ => None,
        });
        posted.collect()
    }

    fn written(key: &str, origin: u64) -> Written {
        Written {
            origin,
            readers: Vec::new(),
            table: TableId::DEFAULT,
            key: key.as_bytes().into(),
        }
    }

    fn begin(tracking: &Tracking, client: u64) {
        tracking
            .begin(client, 0, || Ok::<_, std::convert::Infallible>(()))
            .unwrap_or_else(|never| match never {});
    }

    fn change(tracking: &Tracking, threads: &[ThreadShared], keys: &[&str]) {
        let writes: Vec<Written> = keys.iter().map(|key| written(key, 9)).collect();
        tracking.changed(threads, &writes.iter().collect::<Vec<_>>());
    }

    const WIDE: Limits = Limits {
        keys: usize::MAX,
        bytes: usize::MAX,
    };

    #[test]
    fn a_key_is_invalidated_once_for_all_that_have_read_it() {
        let (tracking, threads) = (Tracking::new(STARTER), threads());
        for client in [1, 2] {
            begin(&tracking, client);
            tracking.remember(&threads, (client, 0), b"k", WIDE);
        }
        tracking.remember(&threads, (1, 0), b"other", WIDE);
        change(&tracking, &threads, &["k", "k", "unread"]);
        let key = || vec!["k".to_owned()];
        assert_eq!(posted(&threads), [(1, key()), (2, key())]);
        change(&tracking, &threads, &["k"]);
        assert_eq!(posted(&threads), []);
        assert_eq!(tracking.totals().keys, 1);
        tracking.all_changed(&threads, None);
        assert_eq!(posted(&threads), [(1, vec![]), (2, vec![])]);
        let totals = tracking.totals();
        assert_eq!((totals.keys, totals.items), (0, 0));
        assert_eq!(tracking.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_client_that_does_not_hear_of_its_own_changes_stays_remembered() {
        let (tracking, threads) = (Tracking::new(STARTER), threads());
        for client in [1, 9] {
            begin(&tracking, client);
            tracking.remember(&threads, (client, 0), b"k", WIDE);
        }
        change(&tracking, &threads, &["k"]);
        change(&tracking, &threads, &["k"]);
        assert_eq!(posted(&threads), [(1, vec!["k".to_owned()])]);
        let totals = tracking.totals();
        assert_eq!((totals.keys, totals.items), (1, 1));
        tracking.changed(&threads, &[&written("k", 0)]);
        assert_eq!(posted(&threads), [(9, vec!["k".to_owned()])]);
        assert_eq!(tracking.totals().keys, 0);
        assert_eq!(tracking.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_change_is_no_news_for_those_that_read_after_it() {
        let (tracking, threads) = (Tracking::new(STARTER), threads());
        for client in [1, 2, 3] {
            begin(&tracking, client);
            assert!(tracking.remember(&threads, (client, 0), b"k", WIDE));
        }
        let write = Written {
            readers: vec![2, 3],
            ..written("k", 3)
        };
        tracking.changed(&threads, &[&write]);
        assert_eq!(posted(&threads), [(1, vec!["k".to_owned()])]);
        let totals = tracking.totals();
        assert_eq!((totals.keys, totals.items), (1, 2));
        for client in [1, 2, 3] {
            tracking.take_back(client, b"k");
            tracking.take_back(client, b"other");
        }
        change(&tracking, &threads, &["k"]);
        assert_eq!(posted(&threads), []);
        let bytes = tracking.bytes.load(Ordering::Relaxed);
        assert_eq!((tracking.totals().keys, bytes), (0, 0));
    }

    #[test]
    fn clients_that_have_gone_do_not_fill_a_key() {
        let (tracking, threads) = (Tracking::new(STARTER), threads());
        begin(&tracking, 0);
        tracking.remember(&threads, (0, 0), b"k", WIDE);
        for client in 1..100_000 {
            begin(&tracking, client);
            tracking.remember(&threads, (client, 0), b"k", WIDE);
            tracking.end(client, [].iter());
        }
        assert!(tracking.totals().items <= CROWD);
        change(&tracking, &threads, &["k"]);
        assert!(posted(&threads).contains(&(0, vec!["k".to_owned()])));
        assert_eq!(tracking.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_prefixes_of_all_clients_are_bounded() {
        let tracking = Tracking::new(STARTER);
        let prefix = |n: usize| [Arc::<[u8]>::from(format!("{n:04}").as_bytes())];
        let limits = Limits {
            bytes: 10 * (PREFIX_BYTES + 4),
            ..WIDE
        };
        let add = |client, n| tracking.add_prefixes((client, 0), prefix(n).iter(), limits);
        for n in 0..10 {
            assert!(add(n as u64 % 3, n / 3));
        }
        assert!(!add(7, 7));
        assert!(add(0, 0), "it has this one already");
        tracking.end(0, prefix(0).iter());
        assert!(add(7, 7));
    }

    #[test]
    fn prefixes_get_the_changes_of_a_guard_at_once() {
        let (tracking, threads) = (Tracking::new(STARTER), threads());
        let prefixes: [Vec<Arc<[u8]>>; 2] =
            [vec![(*b"a:").into(), (*b"b").into()], vec![(*b"").into()]];
        for (client, prefixes) in (1..).zip(&prefixes) {
            begin(&tracking, client);
            assert!(tracking.add_prefixes((client, 0), prefixes.iter(), WIDE));
        }
        change(&tracking, &threads, &["b", "a:2", "a", "a:2"]);
        let texts = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>();
        let expected = [(1, texts(&["a:2", "b"])), (2, texts(&["a", "a:2", "b"]))];
        assert_eq!(posted(&threads), expected);
        tracking.end(2, prefixes[1].iter());
        change(&tracking, &threads, &["c"]);
        assert_eq!(posted(&threads), []);
        tracking.end(1, prefixes[0].iter());
        assert_eq!(tracking.totals(), Totals::default());
    }

    #[test]
    fn a_full_table_invalidates_keys() {
        let (tracking, threads) = (Tracking::new(STARTER), threads());
        begin(&tracking, 1);
        let limits = Limits { keys: 10, ..WIDE };
        for n in 0..1_000 {
            let key = format!("key {n}");
            tracking.remember(&threads, (1, 0), key.as_bytes(), limits);
        }
        assert_eq!(tracking.totals().keys, 10);
        let evicted: usize = posted(&threads).iter().map(|(_, keys)| keys.len()).sum();
        assert_eq!(evicted, 990);
        let limits = Limits { bytes: 500, ..WIDE };
        tracking.evict(&threads, limits, 100, 0);
        assert!(tracking.bytes.load(Ordering::Relaxed) <= 500);
        assert!(tracking.totals().keys > 0);
    }
}
