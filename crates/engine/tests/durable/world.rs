//! A store with a log, sessions on different heads, a consumer, and the history of every key: what may be there after a
//! crash, and what must.

use crate::disk::{Commit, Disk, Heads, Name, Recovered, replay};
use duramen_base::ids::Level;
use duramen_engine::{
    Bug, Clock, Collected, LogOptions, Options, Position, Session, Store, TableId,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

pub const TABLE: TableId = TableId::DEFAULT;

/// Pseudo-random numbers from a seed.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// What a key was at one moment of its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub value: Vec<u8>,
    pub expires_at_ms: Option<u64>,
}

/// The writer of the log, and the disk.
#[derive(Default)]
pub struct Consumer {
    heads: Heads,
    pub disk: Disk,
    /// Collected and not completed, oldest first.
    pending: VecDeque<(Collected, Commit)>,
}

impl Consumer {
    pub fn collect(&mut self, store: &Store) {
        let log = store.log().expect("a log");
        let mut collected = Collected::default();
        log.collect(&mut collected);
        if !collected.is_empty() {
            let commit = self.heads.commit_of(log, &collected);
            self.pending.push_back((collected, commit));
        }
    }

    /// Completes the oldest collection. Half of them by way of `buffered`.
    pub fn complete_one(&mut self, store: &Store, in_steps: bool) {
        let log = store.log().expect("a log");
        if let Some((mut collected, commit)) = self.pending.pop_front() {
            self.disk.apply(&commit, |_| true);
            if in_steps {
                log.complete(&mut collected, Level::Buffered);
                log.complete_all(Level::Synced);
            } else {
                log.complete(&mut collected, Level::Synced);
            }
        }
    }

    pub fn complete_everything(&mut self, store: &Store) {
        self.collect(store);
        while !self.pending.is_empty() {
            self.complete_one(store, false);
        }
    }

    /// What a crash leaves: of the pending commits each head keeps a prefix; with `whole` commits, all keep the same.
    pub fn crash(&self, random: &mut Random, whole: bool) -> Disk {
        let mut disk = self.disk.clone();
        let mut prefix = || random.below(self.pending.len() as u64 + 1);
        let first = prefix();
        let kept: Vec<u64> = (0..64)
            .map(|_| if whole { first } else { prefix() })
            .collect();
        let changes = kept.iter().copied().max().unwrap_or(0);
        for (n, (_, commit)) in self.pending.iter().enumerate() {
            if (n as u64) < changes {
                disk.apply(commit, |head| (n as u64) < kept[usize::from(head)]);
            }
        }
        disk
    }
}

/// A reply that was given, or waits to be, and what it said of keys.
struct Reply {
    position: Position,
    /// Key, and the place in its history that was shown or made.
    shown: Vec<(Name, usize)>,
}

pub struct World {
    pub store: Arc<Store>,
    pub sessions: Vec<Session>,
    pub clock: Arc<AtomicU64>,
    pub consumer: Arc<Mutex<Consumer>>,
    pub random: Random,
    histories: BTreeMap<Name, Vec<Option<State>>>,
    waiting: Vec<Reply>,
    /// What replies that went out said.
    promised: BTreeMap<Name, usize>,
    groups: Vec<Vec<(Name, usize)>>,
    /// Makes values unique.
    next_value: u64,
}

impl World {
    pub fn new(seed: u64, heads: usize, bug: Option<Bug>) -> World {
        let clock = Arc::new(AtomicU64::new(1_000_000));
        let mut options = Options::new(64 << 20);
        options.huge_pages = false;
        options.clock = Clock::Manual(clock.clone());
        options.heads = heads;
        options.cleaners = 0;
        options.hash_seed = Some(seed);
        options.log = Some(LogOptions::new(7));
        let store = Store::new(options).unwrap();
        if let Some(bug) = bug {
            store.log().unwrap().plant(bug);
        }
        let sessions = (0..heads).map(|_| store.session().unwrap()).collect();
        let consumer = Arc::new(Mutex::new(Consumer::default()));
        let (weak, hook) = (Arc::downgrade(&store), consumer.clone());
        store.log().unwrap().on_demand(move || {
            if let Some(store) = weak.upgrade() {
                hook.lock().unwrap().complete_everything(&store);
            }
        });
        World {
            store,
            sessions,
            clock,
            consumer,
            random: Random::new(seed),
            histories: BTreeMap::new(),
            waiting: Vec::new(),
            promised: BTreeMap::new(),
            groups: Vec::new(),
            next_value: 0,
        }
    }

    /// A value that no other write has.
    pub fn value(&mut self, bytes: usize) -> Vec<u8> {
        self.next_value += 1;
        let mut value = self.next_value.to_le_bytes().to_vec();
        value.resize(bytes.max(8), self.next_value as u8);
        value
    }

    /// The key's history, which starts with its absence.
    pub fn history(&mut self, name: &Name) -> &mut Vec<Option<State>> {
        self.histories
            .entry(name.clone())
            .or_insert_with(|| vec![None])
    }

    /// True if the key is there, be it that it has expired.
    pub fn exists(&mut self, name: &Name) -> bool {
        self.history(name).last().is_some_and(Option::is_some)
    }

    pub fn push(&mut self, name: &Name, state: Option<State>) -> usize {
        let history = self.history(name);
        history.push(state);
        history.len() - 1
    }

    /// The key's latest place in history, and what a reader must see there now.
    pub fn now(&mut self, name: &Name) -> (usize, Option<State>) {
        let now_ms = self.clock.load(Ordering::Relaxed);
        let history = self.history(name);
        let state = history.last().cloned().flatten();
        let alive = |state: &State| state.expires_at_ms.is_none_or(|at| at > now_ms);
        (history.len() - 1, state.filter(alive))
    }

    pub fn names(&self) -> Vec<Name> {
        self.histories.keys().cloned().collect()
    }

    pub fn note_group(&mut self, group: Vec<(Name, usize)>) {
        self.groups.push(group);
    }

    /// A reply with this position says this of keys. It goes out when the position is reached.
    pub fn reply(&mut self, position: Position, shown: Vec<(Name, usize)>) {
        self.waiting.push(Reply { position, shown });
        self.send_replies();
    }

    pub fn send_replies(&mut self) {
        let log = self.store.log().unwrap();
        let (sent, waiting): (Vec<Reply>, Vec<Reply>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|reply| log.reached(&reply.position) == Level::Synced);
        self.waiting = waiting;
        for (name, place) in sent.into_iter().flat_map(|reply| reply.shown) {
            let known = self.promised.entry(name).or_default();
            *known = (*known).max(place);
        }
    }

    pub fn collect(&mut self) {
        self.consumer.lock().unwrap().collect(&self.store);
    }

    pub fn complete_one(&mut self) {
        let in_steps = self.random.below(2) == 0;
        self.consumer
            .lock()
            .unwrap()
            .complete_one(&self.store, in_steps);
        self.send_replies();
    }

    /// Crashes, replays, and says what is wrong with the outcome.
    pub fn crash(&mut self) -> Result<(), String> {
        self.send_replies();
        let whole = self.random.below(2) == 0;
        let disk = {
            let consumer = self.consumer.lock().unwrap();
            consumer.crash(&mut self.random, whole)
        };
        let (recovered, _) = replay(&disk);
        self.judge(&recovered, whole)
    }

    /// Compares what is there after a restart with what was promised. Unless commits are `whole`, a table may have been
    /// cleared though something before it is lost, so an absence says nothing of the group that made it.
    pub fn judge(&self, recovered: &BTreeMap<Name, Recovered>, whole: bool) -> Result<(), String> {
        let mut places = BTreeMap::new();
        for (name, history) in &self.histories {
            let found = recovered.get(name).map(|found| State {
                value: found.value.clone(),
                expires_at_ms: (found.expires_at_ms != 0).then_some(found.expires_at_ms),
            });
            let matching: Vec<usize> = (0..history.len())
                .filter(|place| history[*place] == found)
                .collect();
            let (Some(first), Some(last)) = (matching.first(), matching.last()) else {
                return Err(format!("{name:?} has a value it never had: {found:?}"));
            };
            let promised = self.promised.get(name).copied().unwrap_or(0);
            if *last < promised {
                return Err(format!(
                    "{name:?} fell back to {last}, {promised} was promised"
                ));
            }
            places.insert(name, (*first, *last));
        }
        if let Some(name) = recovered.keys().find(|name| !places.contains_key(name)) {
            return Err(format!("{name:?} was never written"));
        }
        for group in &self.groups {
            let is_there = group.iter().any(|(name, place)| {
                places[name].0 >= *place && (whole || recovered.contains_key(name))
            });
            let torn = group.iter().find(|(name, place)| places[name].1 < *place);
            if let (true, Some(torn)) = (is_there, torn) {
                let found: Vec<_> = group
                    .iter()
                    .map(|(name, place)| {
                        let length =
                            |state: &Option<State>| state.as_ref().map(|state| state.value.len());
                        let history = &self.histories[name];
                        let made = length(&history[*place]);
                        (
                            name,
                            place,
                            made,
                            places[name],
                            history.len(),
                            recovered.get(name).map(|f| f.version),
                        )
                    })
                    .collect();
                return Err(format!(
                    "there is no {torn:?} of the group {found:?}, whole {whole}"
                ));
            }
        }
        Ok(())
    }
}
